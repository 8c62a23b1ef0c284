//! Steps of a stream's plan: they exist only until the plan becomes tasks, and never run themselves.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream,
};

use crate::exec::step::{no_expressions, unordered, with_new_children};

/// A step of a stream's plan. Plans wrap it in a [`StreamStepExec`].
pub trait StreamStep: Any + fmt::Debug + Send + Sync {
    /// The kind of step, as shown in plans.
    fn kind(&self) -> &'static str;

    /// The name of the step, as shown in plans.
    fn title(&self) -> String;

    /// The columns of its rows, given those of its input if it has one.
    ///
    /// # Errors
    /// If it cannot have the required columns.
    fn schema(&self, input: Option<SchemaRef>) -> Result<SchemaRef>;

    /// The error if it is run as part of a table query.
    fn refusal(&self) -> DataFusionError;
}

/// A [`StreamStep`] as part of a plan. One without an input is the start of a stream.
#[derive(Debug)]
pub struct StreamStepExec {
    step: Arc<dyn StreamStep>,
    input: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl StreamStepExec {
    /// The step over the rows of `input`.
    ///
    /// # Errors
    /// As for [`StreamStep::schema`].
    pub fn new(step: Arc<dyn StreamStep>, input: Option<Arc<dyn ExecutionPlan>>) -> Result<Self> {
        let properties = unordered(step.schema(input.as_ref().map(|input| input.schema()))?, 1);
        Ok(StreamStepExec { step, input, properties })
    }

    /// The stream step of a plan node, if it has this type.
    pub fn step_of<T: StreamStep>(plan: &dyn ExecutionPlan) -> Option<&T> {
        let step: &dyn Any = plan.downcast_ref::<StreamStepExec>()?.step.as_ref();
        step.downcast_ref()
    }
}

/// Whether a plan's rows come from a stream.
pub fn has_stream(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<StreamStepExec>().is_some_and(|exec| exec.input.is_none())
        || plan.children().into_iter().any(has_stream)
}

impl DisplayAs for StreamStepExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.kind(), self.step.title())
    }
}

impl ExecutionPlan for StreamStepExec {
    fn name(&self) -> &str {
        self.step.kind()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
    }

    no_expressions!();

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.input.is_none() {
            return Ok(self);
        }
        let input =
            children.pop().ok_or_else(|| DataFusionError::Internal(format!("{} has one input", self.step.kind())))?;
        Ok(Arc::new(StreamStepExec::new(Arc::clone(&self.step), Some(input))?))
    }

    with_new_children!(Recompute);

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(self.step.refusal())
    }
}
