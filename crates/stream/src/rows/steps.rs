//! Stateless steps over one batch at a time: projections, filters, functions of programs. They can run anywhere between
//! marks, so they run in the task that produces the rows.

use std::any::Any;
use std::sync::{Arc, Mutex};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExprs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    ExecutionPlan, PhysicalExpr, SendableRecordBatchStream, collect, replace_children_if_necessary,
};
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::work::StepWork;
use tidemill_dataflow::{Emitter, Operator, TaskContext as CopyContext, TaskError, wait_in_copy};
use tidemill_dataset::extend::{MapExec, SplitExec};

use crate::state::groups::batch;

/// A step.
#[derive(Clone)]
enum RowStep {
    Project {
        exprs: ProjectionExprs,
        schema: SchemaRef,
    },
    Filter {
        predicate: Arc<dyn PhysicalExpr>,
        columns: Option<Vec<usize>>,
    },
    /// A node of a plan, which runs over each batch.
    Plan(PlanStep),
}

/// See [`RowStep::Plan`].
pub(crate) struct PlanStep {
    plan: Arc<dyn ExecutionPlan>,
    /// The node below it that the batches replace; all other leaves are tables.
    leaf: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    /// The plan over the slot for batches. Whatever it builds from its tables is built once and reused.
    running: Option<(Arc<dyn ExecutionPlan>, Arc<BatchTable>)>,
    /// For a function of the program: counts the time it takes.
    work: Option<Arc<StepWork>>,
}

impl Clone for PlanStep {
    fn clone(&self) -> Self {
        // Every copy of a task has its own slot.
        PlanStep::new(&self.plan, &self.leaf, &self.context)
    }
}

/// The plan with another node in place of `leaf`.
fn replace(
    plan: &Arc<dyn ExecutionPlan>,
    leaf: &Arc<dyn ExecutionPlan>,
    by: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if Arc::ptr_eq(plan, leaf) {
        return Ok(Arc::clone(by));
    }
    let inputs: Vec<_> = plan.children().into_iter().map(|input| replace(input, leaf, by)).collect::<Result<_>>()?;
    if inputs.is_empty() { Ok(Arc::clone(plan)) } else { replace_children_if_necessary(Arc::clone(plan), inputs) }
}

/// A table of one batch at a time.
#[derive(Debug)]
struct BatchTable {
    schema: SchemaRef,
    rows: Mutex<Option<RecordBatch>>,
}

impl PartitionStream for BatchTable {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().expect("nothing panics with it locked").take();
        let rows = futures::stream::iter(rows.map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

impl PlanStep {
    /// A plan over the rows of one of the nodes below it.
    pub(crate) fn new(
        plan: &Arc<dyn ExecutionPlan>,
        leaf: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Self {
        PlanStep {
            plan: Arc::clone(plan),
            leaf: Arc::clone(leaf),
            context: Arc::clone(context),
            running: None,
            work: None,
        }
    }

    /// The name of the program's function, if this is one.
    fn function(&self) -> Option<&str> {
        let any: &dyn Any = self.plan.as_ref();
        any.downcast_ref::<MapExec>().map(MapExec::function_name)
    }

    /// The results of the plan for these rows.
    pub(crate) fn apply(&mut self, rows: RecordBatch) -> Result<Vec<RecordBatch>> {
        match self.work.clone() {
            Some(work) => work.time(rows.num_rows(), || self.run(rows)),
            None => self.run(rows),
        }
    }

    fn run(&mut self, rows: RecordBatch) -> Result<Vec<RecordBatch>> {
        if self.running.is_none() {
            let schema = self.leaf.schema();
            let slot = Arc::new(BatchTable { schema: Arc::clone(&schema), rows: Mutex::default() });
            let rows =
                StreamingTableExec::try_new(schema, vec![Arc::clone(&slot) as _], None, Vec::new(), false, None)?;
            let rows: Arc<dyn ExecutionPlan> = Arc::new(rows);
            self.running = Some((replace(&self.plan, &self.leaf, &rows)?, slot));
        }
        let (plan, slot) = self.running.as_ref().expect("just made");
        // Nullability may differ between a plan's schema and its batches.
        let rows = batch(&slot.schema, rows.columns().to_vec(), rows.num_rows())?;
        *slot.rows.lock().expect("nothing panics with it locked") = Some(rows);
        let work = collect(Arc::clone(plan), Arc::clone(&self.context));
        // Over rows in memory, only a function of the program may block.
        wait_in_copy(work).map_err(|error| DataFusionError::External(error.into()))?
    }
}

/// Steps, one after the other.
#[derive(Clone, Default)]
pub(crate) struct RowSteps(Vec<RowStep>);

impl RowSteps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes functions of the program count their time, each separately. Called before a copy starts.
    pub(crate) fn begin(&mut self, context: &CopyContext) {
        for step in &mut self.0 {
            if let RowStep::Plan(plan) = step
                && let Some(function) = plan.function()
            {
                plan.work = Some(context.work(&format!("{function} in {}", context.task())));
            }
        }
    }

    /// Whether functions of the program are among the steps.
    pub(crate) fn calls_program(&self) -> bool {
        self.0.iter().any(|step| matches!(step, RowStep::Plan(plan) if plan.function().is_some()))
    }

    /// Whether all steps only select columns, which costs nothing to repeat.
    pub(crate) fn only_choose(&self) -> bool {
        let chooses = |step: &RowStep| match step {
            RowStep::Project { exprs, .. } => exprs.iter().all(|by| {
                let any: &dyn Any = by.expr.as_ref();
                any.is::<Column>()
            }),
            RowStep::Filter { .. } | RowStep::Plan(_) => false,
        };
        self.0.iter().all(chooses)
    }

    /// Adds the step of a plan's node. Returns whether the node is a stateless step.
    pub(crate) fn add(&mut self, plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> bool {
        let any: &dyn Any = plan.as_ref();
        if let Some(project) = any.downcast_ref::<ProjectionExec>() {
            self.0.push(RowStep::Project { exprs: project.projection_expr().clone(), schema: plan.schema() });
        } else if let Some(filter) = any.downcast_ref::<FilterExec>() {
            let columns = filter.projection().as_ref().map(|columns| columns.iter().copied().collect());
            self.0.push(RowStep::Filter { predicate: Arc::clone(filter.predicate()), columns });
        } else if any.is::<MapExec>() || any.is::<UnnestExec>() || any.is::<SplitExec>() {
            self.add_plan(plan, plan.children()[0], context);
        } else {
            return false;
        }
        true
    }

    /// Adds a node of a plan whose input `leaf` is replaced by the batches; its other inputs are tables in memory.
    pub(crate) fn add_plan(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        leaf: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) {
        self.0.push(RowStep::Plan(PlanStep::new(plan, leaf, context)));
    }

    /// Adds a projection.
    pub(crate) fn project(&mut self, columns: &[usize], schema: &SchemaRef) -> Result<()> {
        let exprs = ProjectionExprs::from_indices(columns, schema);
        self.0.push(RowStep::Project { exprs, schema: Arc::new(schema.project(columns)?) });
        Ok(())
    }

    /// Applies the steps to a batch. Batches without rows are omitted.
    pub(crate) fn apply(&mut self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        let mut batches = vec![batch];
        for step in &mut self.0 {
            let mut made = Vec::with_capacity(batches.len());
            for batch in batches.into_iter().filter(|batch| batch.num_rows() > 0) {
                step.apply(batch, &mut made)?;
            }
            batches = made;
        }
        batches.retain(|batch| batch.num_rows() > 0);
        Ok(batches)
    }
}

impl RowStep {
    fn apply(&mut self, rows: RecordBatch, made: &mut Vec<RecordBatch>) -> Result<()> {
        match self {
            RowStep::Project { exprs, schema } => {
                let columns = exprs.iter().map(|by| by.expr.evaluate(&rows)?.into_array(rows.num_rows()));
                made.push(batch(schema, columns.collect::<Result<_>>()?, rows.num_rows())?);
            }
            RowStep::Filter { predicate, columns } => {
                let kept = predicate.evaluate(&rows)?.into_array(rows.num_rows())?;
                let kept =
                    kept.as_boolean_opt().ok_or_else(|| DataFusionError::Plan("a filter is not boolean".into()))?;
                let rows = filter_record_batch(&rows, kept)?;
                made.push(match columns {
                    Some(columns) => rows.project(columns)?,
                    None => rows,
                });
            }
            RowStep::Plan(step) => made.extend(step.apply(rows)?),
        }
        Ok(())
    }
}

/// Steps as a separate task.
pub(crate) struct StepsTask(pub RowSteps);

impl Operator for StepsTask {
    fn begin(&mut self, context: &CopyContext) {
        self.0.begin(context);
    }

    fn calls_program(&self) -> bool {
        self.0.calls_program()
    }

    fn on_batch(
        &mut self,
        _input: usize,
        batch: RecordBatch,
        emit: &mut Emitter,
    ) -> std::result::Result<EmitStatus, TaskError> {
        self.0.apply(batch)?.into_iter().for_each(|batch| emit.send(batch));
        Ok(EmitStatus::Done)
    }
}
