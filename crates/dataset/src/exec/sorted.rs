//! Sorts of more than fits, and merges of what they give, by bytes rather than by rows.
//!
//! DataFusion sorts and merges batches of 8192 rows. With a row of a kilobyte that is 8 MiB for each run, with one of a
//! hundred 800 MiB, and a merge that holds a batch of each run is refused memory although there is room on disk. The
//! exchange that sorts between workers cuts batches by their bytes; here its sort takes the place of DataFusion's
//! within a worker, too.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream};
use futures::{StreamExt, TryStreamExt, stream};
use tidemill_dataflow::memory::{Governor, Reservation};
use tidemill_dataflow::sorting::{KWayMerge, MergeStep, RowOrder, Sorter};

use crate::exec::replaced_exec::StepReplacement;
use crate::exec::spill::failed;
use crate::exec::stream_step::has_stream;
use crate::plan::numbers::beneath;

/// Who holds the memory, where that is told.
const NAME: &str = "sort";
/// Rows of a merged batch, at most; and bytes, about.
const ROWS_MAX: usize = 8192;
const MERGED_BYTES: u64 = 1 << 20;
/// What a merge holds of each of its inputs: the batch that it stands in, its keys, and those that wait.
const INPUT_BYTES: u64 = 2 << 20;
/// Of the budget, what a merge says that it holds at most: others are at work until the last of its inputs is sorted.
const MERGE_SHARE: u64 = 16;

/// What a [`SortExec`] does, done by the sort of exchanges; plans call it a `SorterExec`.
#[derive(Clone)]
pub(crate) struct SortReplacement {
    pub(crate) governor: Governor,
    /// Of the worker, among which memory is shared.
    pub(crate) threads: usize,
}

impl StepReplacement for SortReplacement {
    type Step = SortExec;
    const NAME: &'static str = "SorterExec";

    fn fits(&self, sort: &SortExec) -> bool {
        sort.fetch().is_none() && !has_stream(sort.input()) && order(sort.expr(), sort).is_some()
    }

    fn execute(
        &self,
        sort: &SortExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let (schema, order) = (sort.schema(), order(sort.expr(), sort).expect("fits"));
        let mut input = sort.input().execute(partition, context)?;
        // Half of what there is: the other half is for those who take the rows.
        let copies = sort.properties().output_partitioning().partition_count().min(self.threads).max(1) as u64;
        let limit = self.governor.limit_bytes();
        let share = if limit == 0 { u64::MAX } else { limit / 2 / copies };
        let sorter = Sorter::new(&schema, order, &self.governor, self.governor.reservation(NAME)).with_limit(share);
        let (baseline, spills) = (BaselineMetrics::new(metrics, partition), SpillMetrics::new(metrics, partition));
        let sorted = async move {
            let mut sorter = sorter;
            while let Some(batch) = input.next().await {
                let _timed = baseline.elapsed_compute().timer();
                sorter.push(batch?).map_err(failed)?;
            }
            let timed = baseline.elapsed_compute().timer();
            let mut sorted = sorter.finish().map_err(failed)?;
            drop(timed);
            let spilled = sorted.spilled();
            spills.spill_file_count.add(spilled.runs);
            spills.spilled_rows.add(spilled.rows as usize);
            spills.spilled_bytes.add(spilled.bytes as usize);
            let batches = std::iter::from_fn(move || {
                let _timed = baseline.elapsed_compute().timer();
                let batch = sorted.next_batch().map_err(failed).transpose()?;
                Some(batch.inspect(|batch| baseline.record_output(batch.num_rows())))
            });
            Ok::<_, DataFusionError>(stream::iter(batches))
        };
        let rows = stream::once(sorted).try_flatten();
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, rows))))
    }
}

/// What a [`SortPreservingMergeExec`] over such sorts does; plans call it a `MergeExec`.
#[derive(Clone)]
pub(crate) struct MergeReplacement {
    pub(crate) governor: Governor,
}

impl StepReplacement for MergeReplacement {
    type Step = SortPreservingMergeExec;
    const NAME: &'static str = "MergeExec";

    fn fits(&self, merge: &SortPreservingMergeExec) -> bool {
        is_of_sorts(merge.input())
            && merge.input().output_partitioning().partition_count() > 1
            && order(merge.expr(), merge).is_some()
    }

    fn execute(
        &self,
        merge: &SortPreservingMergeExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let (schema, order) = (merge.schema(), order(merge.expr(), merge).expect("fits"));
        let count = merge.input().output_partitioning().partition_count();
        let input = |number| Ok(spawn_buffered(merge.input().execute(number, Arc::clone(&context))?, 1));
        let inputs = (0..count).map(input).collect::<Result<Vec<_>>>()?;
        let merging = MergeInputs {
            merge: KWayMerge::new(order, count, ROWS_MAX, MERGED_BYTES),
            inputs,
            left: merge.fetch().unwrap_or(usize::MAX),
            bytes: (INPUT_BYTES * count as u64).min(self.governor.settings().budget_bytes / MERGE_SHARE),
            reservation: self.governor.reservation("merge"),
        };
        let metrics = BaselineMetrics::new(metrics, partition);
        let rows = stream::try_unfold(merging, |mut merging| async move {
            Ok::<_, DataFusionError>(merging.next().await?.map(|batch| (batch, merging)))
        });
        let rows = rows.inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

struct MergeInputs {
    merge: KWayMerge,
    inputs: Vec<SendableRecordBatchStream>,
    /// Rows that are still wanted.
    left: usize,
    /// What it holds.
    bytes: u64,
    reservation: Reservation,
}

impl MergeInputs {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.left == 0 {
            return Ok(None);
        }
        loop {
            match self.merge.step()? {
                MergeStep::Need(number) => {
                    let batch = self.inputs[number].next().await.transpose()?;
                    if self.reservation.bytes() == 0 {
                        // It is held in any case: whoever can should spill for it.
                        self.reservation.force_grow(self.bytes);
                    }
                    self.merge.offer(number, batch)?;
                }
                MergeStep::Batch(batch) => {
                    let rows = batch.num_rows().min(self.left);
                    self.left -= rows;
                    return Ok(Some(batch.slice(0, rows)));
                }
                MergeStep::Done => {
                    self.reservation.free();
                    return Ok(None);
                }
            }
        }
    }
}

/// Whether rows come from sorts of ours, through steps that keep their order.
fn is_of_sorts(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.name() {
        SortReplacement::NAME => true,
        "CooperativeExec" | "FilterExec" | "LocalLimitExec" | "ProjectionExec" => is_of_sorts(plan.children()[0]),
        _ => false,
    }
}

/// What a step sorts by, if the sort of exchanges can.
/// The order by columns of a step's rows; `None` by something else than columns, or of a type without an order.
fn order<'a>(by: impl IntoIterator<Item = &'a PhysicalSortExpr>, step: &dyn ExecutionPlan) -> Option<RowOrder> {
    // Floats are in the same order here by themselves.
    let column = |by: &PhysicalSortExpr| Some((beneath(&by.expr).downcast_ref::<Column>()?.index(), by.options));
    let columns = by.into_iter().map(column).collect::<Option<Vec<_>>>()?;
    RowOrder::by_columns(&step.schema(), columns).ok()
}
