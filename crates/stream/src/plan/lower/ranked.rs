//! Steps over whole groups of rows, such as ranks: each group is complete once a time has passed.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use tidemill_dataflow::TaskSpec;
use tidemill_dataset::Result;

use super::{JobLowering, ROWS, RowFlow, chosen, passes, until_the_end};
use crate::operators::windowed_plan::{CompleteTask, WindowedPlan};
use crate::rows::keyed::KeyedRows;
use crate::rows::steps::PlanStep;
use crate::time::times::{StreamTimes, TimeOf, following};

/// Steps over whole groups of rows: a node that computes over partitions, and the nodes below it that also do so or
/// sort for it.
struct RankedSteps<'p> {
    /// The node that provides the rows.
    leaf: &'p Arc<dyn ExecutionPlan>,
    /// The projections and filters in between, the last first.
    choices: Vec<&'p Arc<dyn ExecutionPlan>>,
    /// The partition keys that all nodes have in common, as expressions over the leaf's rows.
    keys: Vec<Arc<dyn PhysicalExpr>>,
}

impl<'p> RankedSteps<'p> {
    fn of(plan: &'p Arc<dyn ExecutionPlan>, keys: &[Arc<dyn PhysicalExpr>]) -> Self {
        let mut below = plan.children()[0];
        let mut chain = RankedSteps { leaf: below, choices: Vec::new(), keys: keys.to_vec() };
        // Projections and filters are included only if another such node follows below: otherwise they run better at
        // the source of the rows.
        let (mut choices, mut keys) = (Vec::new(), keys.to_vec());
        loop {
            let any: &dyn Any = below.as_ref();
            let mut belongs = any.is::<SortExec>();
            if let Some(exprs) = chosen(below) {
                let Some(before) = keys.iter().map(|key| over(key, &exprs)).collect() else { return chain };
                keys = before;
                choices.push(below);
            } else if let Some(theirs) = partitions(below) {
                let all = keys.len().min(theirs.len());
                keys.retain(|key| theirs.contains(key));
                if keys.len() < all || keys.is_empty() {
                    return chain;
                }
                belongs = true;
            } else if !belongs && !passes(below) {
                return chain;
            }
            below = below.children()[0];
            if belongs {
                chain = RankedSteps { leaf: below, choices: choices.clone(), keys: keys.clone() };
            }
        }
    }

    /// The time columns after these steps, given those before.
    fn times(&self, times: &StreamTimes) -> StreamTimes {
        let same = |of: &TimeOf| {
            let is = |key| following(key).is_some_and(|of_key| of_key.is_place(&of.place));
            self.keys.iter().any(is)
        };
        let places = times.places.iter().filter(|of| same(of)).cloned().collect();
        let times = StreamTimes { places, ..times.clone() };
        self.choices.iter().rev().filter_map(|step| chosen(step)).fold(times, |times, exprs| times.project(&exprs))
    }
}

/// Rewrites an expression over the results of `exprs` into one over their input; `None` if it refers to anything else.
fn over(expr: &Arc<dyn PhysicalExpr>, exprs: &[Arc<dyn PhysicalExpr>]) -> Option<Arc<dyn PhysicalExpr>> {
    let mut known = true;
    let put = Arc::clone(expr).transform_down(|part| {
        let any: &dyn Any = part.as_ref();
        let Some(column) = any.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
        match exprs.get(column.index()) {
            Some(by) => Ok(Transformed::new(Arc::clone(by), true, TreeNodeRecursion::Jump)),
            None => {
                known = false;
                Ok(Transformed::no(part))
            }
        }
    });
    put.ok().map(|put| put.data).filter(|_| known)
}

/// The keys of a node that computes over whole partitions of rows.
pub(super) fn partitions(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let any: &dyn Any = plan.as_ref();
    let bounded = any.downcast_ref::<BoundedWindowAggExec>().map(BoundedWindowAggExec::partition_keys);
    bounded.or_else(|| any.downcast_ref::<WindowAggExec>().map(WindowAggExec::partition_keys))
}

impl JobLowering<'_> {
    /// A node over whole partitions with a time column among their keys: each is complete once its time has passed.
    pub(super) fn ranked(&mut self, plan: &Arc<dyn ExecutionPlan>, keys: &[Arc<dyn PhysicalExpr>]) -> Result<RowFlow> {
        let chain = RankedSteps::of(plan, keys);
        let rows = self.timed(chain.leaf)?;
        let times = chain.times(&rows.times);
        self.complete(plan, chain.leaf, rows, chain.keys, times)
    }

    /// A part of the plan that runs over groups of rows once they are complete.
    pub(super) fn complete(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        leaf: &Arc<dyn ExecutionPlan>,
        rows: RowFlow,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        times: StreamTimes,
    ) -> Result<RowFlow> {
        let mut of_keys = rows.times.project(&keys).places;
        if of_keys.is_empty() {
            return Err(until_the_end(
                "functions with over() whose keys do not tell when a group is complete; add one that does, such as \
                 window_end",
            ));
        }
        let late = rows.times.places.first().cloned();
        let keyed = Arc::new(KeyedRows::new(&rows.schema, keys, false, late)?);
        of_keys.iter_mut().for_each(|of| of.place.column += keyed.width);
        let (name, detail) = (self.name("groups"), displayable(plan.as_ref()).one_line().to_string());
        let shape = Arc::new(WindowedPlan {
            keyed: Arc::clone(&keyed),
            rows: Arc::clone(&rows.schema),
            times: of_keys,
            plan: PlanStep::new(plan, leaf, &self.context),
            late: self.late.of(&name),
        });
        let (state, sources) = (shape.state(), rows.sources.clone());
        let task =
            TaskSpec::operator(name.clone(), move |copy| CompleteTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(self.copies);
        let task = self.graph.add(task);
        self.keyed(rows, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, self.copies, plan.schema(), times, sources))
    }
}
