//! Sorts of data larger than memory, and merges of their results, by bytes instead of rows.
//!
//! DataFusion sorts and merges batches of 8192 rows. With rows of a kilobyte, that is 8 MiB per run; with rows of a
//! hundred kilobytes, 800 MiB. A merge that holds a batch per run then fails although there is room on disk. The
//! exchange that sorts between workers splits batches by size. Here its sort replaces DataFusion's within a worker,
//! too.

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

/// The owner of the memory in messages.
const NAME: &str = "sort";
/// Limits of a merged batch: maximum number of rows, and approximate size.
const ROWS_MAX: usize = 8192;
const MERGED_BYTES: u64 = 1 << 20;
/// Memory of a merge per input: its current batch with the keys, and those that wait.
const INPUT_BYTES: u64 = 2 << 20;
/// The maximum fraction of the budget that a merge reserves: other steps run until the last of its inputs is sorted.
const MERGE_SHARE: u64 = 16;

/// Replaces a [`SortExec`] with the sort of exchanges; its name in plans is `SorterExec`.
#[derive(Clone)]
pub(crate) struct SortReplacement {
    pub(crate) governor: Governor,
    /// The worker's threads, which share its memory.
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
        // Half of the memory: the other half is for the consumers of the rows.
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

/// Replaces a [`SortPreservingMergeExec`] over such sorts; its name in plans is `MergeExec`.
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
    /// Number of rows still to output.
    left: usize,
    /// Its memory.
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
                        // The memory is in use anyway: operators that can should spill to make room.
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

/// Whether rows come from our sorts, through steps that keep their order.
fn is_of_sorts(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.name() {
        SortReplacement::NAME => true,
        "CooperativeExec" | "FilterExec" | "LocalLimitExec" | "ProjectionExec" => is_of_sorts(plan.children()[0]),
        _ => false,
    }
}

/// The sort order of a step's rows by columns, for the sort of exchanges. `None` for an order by expressions, or by a
/// type without an order.
fn order<'a>(by: impl IntoIterator<Item = &'a PhysicalSortExpr>, step: &dyn ExecutionPlan) -> Option<RowOrder> {
    // Floats already have this order here.
    let column = |by: &PhysicalSortExpr| Some((beneath(&by.expr).downcast_ref::<Column>()?.index(), by.options));
    let columns = by.into_iter().map(column).collect::<Option<Vec<_>>>()?;
    RowOrder::by_columns(&step.schema(), columns).ok()
}
