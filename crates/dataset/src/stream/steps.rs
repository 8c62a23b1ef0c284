//! Steps that look at one batch at a time and keep nothing: projections, filters, functions of programs. Between marks they can
//! be done anywhere, so they are done where the rows are taken.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExprs};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr, collect, replace_children_if_necessary};
use tidemill_dataflow::operator::Flow;
use tidemill_dataflow::{Emit, Operator, TaskError};

use super::groups::batch;
use crate::map::MapExec;
use crate::split::SplitExec;

/// One step.
#[derive(Clone)]
enum Step {
    Project {
        exprs: ProjectionExprs,
        schema: SchemaRef,
    },
    Filter {
        predicate: Arc<dyn PhysicalExpr>,
        columns: Option<Vec<usize>>,
    },
    /// A step of a plan, which is run over each batch.
    Plan {
        plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    },
}

/// Steps one after the other.
#[derive(Clone, Default)]
pub(crate) struct Steps(Vec<Step>);

impl Steps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what a node of a plan does. Returns whether it is such a step.
    pub(crate) fn add(&mut self, plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> bool {
        let any: &dyn Any = plan.as_ref();
        if let Some(project) = any.downcast_ref::<ProjectionExec>() {
            self.0.push(Step::Project { exprs: project.projection_expr().clone(), schema: plan.schema() });
        } else if let Some(filter) = any.downcast_ref::<FilterExec>() {
            let columns = filter.projection().as_ref().map(|columns| columns.iter().copied().collect());
            self.0.push(Step::Filter { predicate: Arc::clone(filter.predicate()), columns });
        } else if any.is::<MapExec>() || any.is::<UnnestExec>() || any.is::<SplitExec>() {
            self.0.push(Step::Plan { plan: Arc::clone(plan), context: Arc::clone(context) });
        } else {
            return false;
        }
        true
    }

    /// Adds a choice of columns.
    pub(crate) fn project(&mut self, columns: &[usize], schema: &SchemaRef) -> Result<()> {
        let exprs = ProjectionExprs::from_indices(columns, schema);
        self.0.push(Step::Project { exprs, schema: Arc::new(schema.project(columns)?) });
        Ok(())
    }

    /// What becomes of a batch; batches without rows are left out.
    pub(crate) fn apply(&self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        let mut batches = vec![batch];
        for step in &self.0 {
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

impl Step {
    fn apply(&self, rows: RecordBatch, made: &mut Vec<RecordBatch>) -> Result<()> {
        match self {
            Step::Project { exprs, schema } => {
                let columns = exprs.iter().map(|by| by.expr.evaluate(&rows)?.into_array(rows.num_rows()));
                made.push(batch(schema, columns.collect::<Result<_>>()?, rows.num_rows())?);
            }
            Step::Filter { predicate, columns } => {
                let kept = predicate.evaluate(&rows)?.into_array(rows.num_rows())?;
                let kept =
                    kept.as_boolean_opt().ok_or_else(|| DataFusionError::Plan("a filter is no boolean".into()))?;
                let rows = filter_record_batch(&rows, kept)?;
                made.push(match columns {
                    Some(columns) => rows.project(columns)?,
                    None => rows,
                });
            }
            Step::Plan { plan, context } => {
                let input = MemorySourceConfig::try_new(&[vec![rows.clone()]], rows.schema(), None)?;
                let input: Arc<dyn ExecutionPlan> = Arc::new(DataSourceExec::new(Arc::new(input)));
                let plan = replace_children_if_necessary(Arc::clone(plan), vec![input])?;
                // Over rows in memory such a step waits for nothing.
                made.extend(futures::executor::block_on(collect(plan, Arc::clone(context)))?);
            }
        }
        Ok(())
    }
}

/// Steps as a task of their own.
pub(crate) struct StepsTask(pub Steps);

impl Operator for StepsTask {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> std::result::Result<Flow, TaskError> {
        self.0.apply(batch)?.into_iter().for_each(|batch| emit.send(batch));
        Ok(Flow::Done)
    }
}
