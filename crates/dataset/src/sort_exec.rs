//! Sorts beneath window functions: by the sorter of exchanges, which compares numbers as whole keys, in a processor's cache, and
//! copies each row once. DataFusion's step sorts short runs and merges them row by row.

use std::sync::Arc;

use arrow::compute::SortOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream};
use futures::{StreamExt, TryStreamExt, stream};
use tidemill_dataflow::memory::Governor;
use tidemill_dataflow::{Order, Sorter};

use crate::instead::Work;
use crate::numbers::beneath;
use crate::spill::failed;
use crate::stream::has_stream;

/// Who holds the memory, where that is told.
const NAME: &str = "the query's sort";

/// What a [`SortExec`] of whole partitions by columns does, done otherwise.
#[derive(Clone)]
pub(crate) struct SortRows {
    pub(crate) governor: Governor,
}

/// `None`: by something else than columns.
fn order(sort: &SortExec) -> Option<Order> {
    let column = |by: &PhysicalSortExpr| -> Option<(usize, SortOptions)> {
        // The sorter has floats in the same order by itself.
        Some((beneath(&by.expr).downcast_ref::<Column>()?.index(), by.options))
    };
    let columns = sort.expr().iter().map(column).collect::<Option<Vec<_>>>()?;
    Order::by_columns(&sort.schema(), columns).ok()
}

impl Work for SortRows {
    type Step = SortExec;
    const NAME: &'static str = "SortRowsExec";

    fn fits(&self, sort: &SortExec) -> bool {
        let keeps_partitions =
            sort.preserve_partitioning() || sort.input().output_partitioning().partition_count() == 1;
        keeps_partitions && sort.fetch().is_none() && !has_stream(sort.input()) && order(sort).is_some()
    }

    fn execute(
        &self,
        sort: &SortExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let order = order(sort).expect("looked at before");
        let mut sorter = Sorter::new(&sort.schema(), order, &self.governor, self.governor.reservation(NAME));
        let mut input = sort.input().execute(partition, context)?;
        let spilled_bytes = MetricBuilder::new(metrics).spilled_bytes(partition);
        let metrics = BaselineMetrics::new(metrics, partition);
        let sorted = async move {
            while let Some(batch) = input.next().await.transpose()? {
                sorter.push(batch).map_err(failed)?;
            }
            drop(input);
            let sorted = sorter.finish().map_err(failed)?;
            spilled_bytes.add(sorted.spilled_bytes() as usize);
            let rows = stream::try_unfold(sorted, |mut sorted| async move {
                let batch = sorted.next_batch().map_err(failed)?;
                Ok::<_, DataFusionError>(batch.map(|batch| (batch, sorted)))
            });
            Ok::<_, DataFusionError>(rows)
        };
        let rows = stream::once(sorted).try_flatten().inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(sort.schema(), rows)))
    }
}
