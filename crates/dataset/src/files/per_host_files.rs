//! Tables of files that only some hosts have: each worker reads its own files, and no other worker reads them.
//!
//! For planning, such a table is the same on all workers, wherever the files are: it has as many partitions as the job
//! has threads, and its size is unknown. What a worker reads is a separate plan that others do not see.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::TableType;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties, SendableRecordBatchStream,
};
use futures::{StreamExt, TryStreamExt};

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::exec::step::as_planned;
use crate::exec::step::no_input;

impl DataSet {
    /// A table of the rows of `mine` and of those on the other workers. This is `worker` of `workers`, and may have no
    /// files.
    ///
    /// `schema` is the same on every worker, and equals that of `mine` except for nullability. `is_lenient` is also the
    /// same: it says whether any worker skips unreadable rows.
    ///
    /// # Errors
    /// None known.
    pub fn from_own_files(
        engine: &Engine,
        schema: &SchemaRef,
        mine: Option<&DataSet>,
        is_lenient: bool,
        worker: usize,
        workers: usize,
    ) -> crate::error::Result<Self> {
        // The files of one worker may have no nulls.
        let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let threads = engine.context().copied_config().target_partitions();
        let share = HostPartitions { worker, workers, threads };
        let table = OwnTable { schema, input: mine.map(|mine| mine.frame().clone()), is_lenient, share };
        DataSet::new(engine.context().read_table(Arc::new(table))?)
    }
}

/// The partitions that a worker runs: partition `i` of a query runs on worker `i % workers`.
#[derive(Clone, Copy, Debug)]
struct HostPartitions {
    worker: usize,
    workers: usize,
    threads: usize,
}

/// The files of all workers, as seen by one of them.
pub(crate) struct OwnTable {
    schema: SchemaRef,
    pub(crate) input: Option<DataFrame>,
    pub(crate) is_lenient: bool,
    share: HostPartitions,
}

impl fmt::Debug for OwnTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnTable").field("share", &self.share).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for OwnTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(projection) => Arc::new(self.schema.project(projection)?),
            None => Arc::clone(&self.schema),
        };
        let input = match &self.input {
            Some(frame) => {
                // In a separate session, which plans for the threads of this worker instead of those of the job.
                let (state, _) = frame.clone().into_parts();
                Some(frame.clone().into_view().scan(&state, projection, filters, limit).await?)
            }
            None => None,
        };
        Ok(Arc::new(OwnExec::new(input, schema, self.share)))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Exact; filters.len()])
    }
}

/// Reads the files of this worker; other workers read theirs.
pub(crate) struct OwnExec {
    input: Option<Arc<dyn ExecutionPlan>>,
    share: HostPartitions,
    properties: Arc<PlanProperties>,
}

impl OwnExec {
    fn new(input: Option<Arc<dyn ExecutionPlan>>, schema: SchemaRef, share: HostPartitions) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(share.threads * share.workers),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        OwnExec { input, share, properties: Arc::new(properties) }
    }
}

impl fmt::Debug for OwnExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnExec").field("share", &self.share).finish_non_exhaustive()
    }
}

impl DisplayAs for OwnExec {
    /// The same on every worker, regardless of what it reads.
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.properties.eq_properties.schema();
        let names = schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        write!(f, "OwnExec: files of each host, columns=[{names}]")
    }
}

impl ExecutionPlan for OwnExec {
    fn name(&self) -> &'static str {
        "OwnExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    no_input!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let HostPartitions { worker, workers, threads } = self.share;
        let schema = Arc::clone(self.properties.eq_properties.schema());
        let Some(input) = self.input.clone().filter(|_| partition % workers == worker) else {
            return Ok(Box::pin(EmptyRecordBatchStream::new(schema)));
        };
        // A share of its plan's partitions, one after the other; usually there is one for each thread.
        let (thread, count) = (partition / workers, input.output_partitioning().partition_count());
        let parts = thread * count / threads..(thread + 1) * count / threads;
        let run = move |part| input.execute(part, Arc::clone(&context));
        let planned = Arc::clone(&schema);
        let rows = futures::stream::iter(parts.map(run)).try_flatten().map(move |batch| as_planned(batch?, &planned));
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, rows))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineConfig;
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field};
    use datafusion::logical_expr::lit;
    use datafusion::physical_plan::displayable;

    /// A partition that runs twice duplicates rows, and one that never runs loses them; a plan that mentions files
    /// would differ between workers.
    #[test]
    fn each_worker_reads_what_it_has_and_plans_alike() {
        let (threads, workers) = (2, 3);
        let engine = Engine::new(&EngineConfig { threads, workers, memory_bytes: None, spill_dir: None }).unwrap();
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        // Worker 1 has no files.
        let mine = |worker: usize| {
            let numbers = Int64Array::from_iter_values((0..20_000).map(|n| n * 10 + worker as i64));
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers)]).unwrap();
            (worker != 1).then(|| DataSet::from_batches(&engine, Arc::clone(&schema), &[batch]).unwrap())
        };
        let (mut rows, mut plans) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let set = DataSet::from_own_files(&engine, &schema, mine(worker).as_ref(), false, worker, workers).unwrap();
            let set = set.filter(crate::plan::expr::column("n").lt(lit(50_000i64))).unwrap();
            let frame = set.frame().clone();
            let (plan, context) = engine
                .run(async move {
                    let context = Arc::new(frame.task_ctx());
                    Ok((frame.create_physical_plan().await?, context))
                })
                .unwrap();
            assert_eq!(plan.output_partitioning().partition_count(), threads * workers);
            plans.push(displayable(plan.as_ref()).indent(true).to_string());
            for partition in (worker..threads * workers).step_by(workers) {
                let stream = plan.execute(partition, Arc::clone(&context)).unwrap();
                let batches = engine.run(async move { Ok(stream.try_collect::<Vec<_>>().await?) }).unwrap();
                for batch in batches {
                    rows.extend(batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec());
                }
            }
        }
        assert!(plans.iter().all(|plan| *plan == plans[0]), "{plans:?}");
        assert!(plans[0].contains("OwnExec: files of each host"), "{}", plans[0]);
        rows.sort_unstable();
        let expected: Vec<i64> = (0..5_000).flat_map(|n| [n * 10, n * 10 + 2]).collect();
        assert_eq!(rows, expected);
    }
}
