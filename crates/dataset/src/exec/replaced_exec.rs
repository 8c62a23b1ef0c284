//! Steps of a plan with our own execution, which look like DataFusion's to everything that plans.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream,
    replace_children_if_necessary,
};

use crate::exec::step::required_as_by;

/// The execution of one kind of step.
pub(crate) trait StepReplacement: Clone + Send + Sync + 'static {
    /// The step that it replaces.
    type Step: ExecutionPlan;
    /// Its name in plans, by which `distribute::stages` recognizes it.
    const NAME: &'static str;

    /// Whether it can replace a step.
    fn fits(&self, step: &Self::Step) -> bool;

    /// The rows of a partition.
    fn execute(
        &self,
        step: &Self::Step,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream>;
}

/// A step with our own execution.
pub(crate) struct ReplacedExec<W> {
    step: Arc<dyn ExecutionPlan>,
    work: W,
    metrics: ExecutionPlanMetricsSet,
}

impl<W: StepReplacement> ReplacedExec<W> {
    /// `None` for a step that it cannot replace.
    pub(crate) fn of(step: &Arc<dyn ExecutionPlan>, work: &W) -> Option<Arc<dyn ExecutionPlan>> {
        let fits = step.downcast_ref::<W::Step>().is_some_and(|step| work.fits(step));
        let instead = || ReplacedExec { step: Arc::clone(step), work: work.clone(), metrics: Default::default() };
        fits.then(|| Arc::new(instead()) as _)
    }

    /// The original step.
    pub(crate) fn step(&self) -> &W::Step {
        self.step.downcast_ref().expect("made of one")
    }
}

impl<W: StepReplacement> fmt::Debug for ReplacedExec<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(W::NAME).field("step", &self.step).finish_non_exhaustive()
    }
}

impl<W: StepReplacement> DisplayAs for ReplacedExec<W> {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, as ", W::NAME)?;
        self.step().fmt_as(t, f)
    }
}

impl<W: StepReplacement> ExecutionPlan for ReplacedExec<W> {
    fn name(&self) -> &'static str {
        W::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.step.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.step.children()
    }

    fn apply_expressions(
        &self,
        see: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.step.apply_expressions(see)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.step.maintains_input_order()
    }

    required_as_by!(self => self.step);

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let step = replace_children_if_necessary(Arc::clone(&self.step), children)?;
        Ok(ReplacedExec::of(&step, &self.work).unwrap_or(step))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.work.execute(self.step(), partition, context, &self.metrics)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
