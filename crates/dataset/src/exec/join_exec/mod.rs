//! Joins within the memory budget. DataFusion's own joins ([`planned`]) hold their build side, the left one, in memory,
//! and fail the query when it does not fit; some joins without keys spill, but return left rows once for each partition
//! of the other side.
//!
//! [`JoinExec`] collects the build side, of each partition, or the one that all of them share. If it fits, both sides
//! are passed to DataFusion's join without copying. If not, both sides are written to disk, partitioned by the hash of
//! their keys, and each pair of partitions is joined separately ([`pairs`]); without keys there is one pair. Steps
//! above may rely on the order of rows of the other side, so the results of the pairs are sorted again ([`order`]).

mod build;
mod order;
mod pairs;
mod planned;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};

use datafusion::common::JoinType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
    replace_children_if_necessary,
};
use futures::{FutureExt, TryStreamExt, stream};
use tidemill_dataflow::memory::Governor;

use crate::exec::step::{required_as_by, with_new_children};
use crate::exec::stream_step::has_stream;
use pairs::{BuildSide, PairwiseJoin, ProbeSide, WholeJoin};
use planned::PlannedJoin;
use slot::{ReplayExec, promised};

/// Replaces a DataFusion join.
pub(crate) struct JoinExec {
    /// The original join, with slots in place of its inputs.
    join: PlannedJoin,
    left: Arc<ReplayExec>,
    right: Arc<ReplayExec>,
    governor: Governor,
    /// The build side shared by all partitions, once the first of them has started.
    shared: Mutex<Option<Arc<BuildSide>>>,
    /// Metrics of partitions that spill; the join itself has those of the others.
    metrics: ExecutionPlanMetricsSet,
}

impl JoinExec {
    /// `None` for streams, which have separate joins.
    pub(crate) fn try_replace(node: &Arc<dyn ExecutionPlan>, governor: &Governor) -> Option<Self> {
        let [left, right] = node.children()[..] else { return None };
        if has_stream(node) {
            return None;
        }
        let (left, right) = (ReplayExec::over(left), ReplayExec::over(right));
        let join = PlannedJoin::over(node.as_ref(), Arc::clone(&left) as _, Arc::clone(&right) as _)?.ok()?;
        Some(JoinExec::of(join, left, right, governor))
    }

    fn of(join: PlannedJoin, left: Arc<ReplayExec>, right: Arc<ReplayExec>, governor: &Governor) -> Self {
        let (governor, shared) = (governor.clone(), Mutex::default());
        JoinExec { join, left, right, governor, shared, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whether all partitions share a build side.
    pub(crate) fn collects_left(&self) -> bool {
        self.join.collects_left()
    }

    /// The build side of a partition; reading it starts when it is first awaited.
    fn building(&self, partition: usize, context: &Arc<TaskContext>, joining: &PairwiseJoin) -> Result<Arc<BuildSide>> {
        let left = self.left.input().execute(partition, Arc::clone(context))?;
        let (promise, rows) = promised(left.schema());
        self.left.give(partition, rows);
        let built = joining.clone().build(left, promise).boxed().shared();
        Ok(Arc::new(BuildSide { built, taken: false.into() }))
    }
}

/// Whether left rows are output by themselves, because they have a match or have none.
pub(crate) fn gives_left_rows(kind: JoinType) -> bool {
    matches!(kind, JoinType::Left | JoinType::Full | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark)
}

impl fmt::Debug for JoinExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinExec").field("join", &self.join.plan()).finish_non_exhaustive()
    }
}

impl DisplayAs for JoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinExec, as ")?;
        self.join.exec().fmt_as(t, f)
    }
}

impl ExecutionPlan for JoinExec {
    fn name(&self) -> &'static str {
        "JoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.exec().properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.left.input(), self.right.input()]
    }

    fn apply_expressions(
        &self,
        see: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.exec().apply_expressions(see)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join.exec().dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let join = replace_children_if_necessary(self.join.plan(), children)?;
        Ok(match JoinExec::try_replace(&join, &self.governor) {
            Some(join) => Arc::new(join),
            None => join,
        })
    }

    with_new_children!(Recompute);

    required_as_by!(self => self.join.exec());

    /// In a recursive query, called before each round: the build side changes, also in DataFusion's join within.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let (left, right) = (ReplayExec::over(self.left.input()), ReplayExec::over(self.right.input()));
        let join = self.join.reset(Arc::clone(&left) as _, Arc::clone(&right) as _)?;
        Ok(Arc::new(JoinExec::of(join, left, right, &self.governor)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let joining = PairwiseJoin {
            join: self.join.clone(),
            context: Arc::new(with_memory(&context, Arc::new(UnboundedMemoryPool::default()))),
            governor: self.governor.clone(),
            partition,
            metrics: self.metrics.clone(),
            spilled_bytes: MetricBuilder::new(&self.metrics).spilled_bytes(partition),
            drops_null_keys: false,
        };
        let building = if self.collects_left() {
            let mut shared = self.shared.lock().expect("nothing panics with it locked");
            match &*shared {
                Some(building) => Arc::clone(building),
                None => Arc::clone(shared.insert(self.building(0, &context, &joining)?)),
            }
        } else {
            self.building(partition, &context, &joining)?
        };
        let right = self.right.input();
        let is_one = right.output_partitioning().partition_count() == 1;
        let other = if self.collects_left() && gives_left_rows(self.join.kind()) && !is_one {
            ProbeSide::All(Arc::clone(right), context)
        } else {
            ProbeSide::Rows(right.execute(partition, context)?)
        };
        let (probe, rows) = promised(right.schema());
        self.right.give(partition, rows);
        // It is created at the start: partitions that jointly make a filter of their keys wait for each other, and one
        // that is dropped tells the others not to.
        let rows = self.join.exec().execute(partition, Arc::clone(&joining.context))?;
        let rows = stream::once(joining.run(building, other, WholeJoin { probe, rows })).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut all = self.metrics.clone_inner();
        self.join.exec().metrics()?.iter().for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }
}

/// The context with a different memory pool: unlimited for joins, which reserve their memory before they start.
fn with_memory(context: &TaskContext, memory_pool: Arc<dyn MemoryPool>) -> TaskContext {
    let runtime = RuntimeEnv { memory_pool, ..context.runtime_env().as_ref().clone() };
    TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone(),
        // Expressions contain the functions that they call.
        Default::default(),
        Default::default(),
        Default::default(),
        Default::default(),
        Arc::new(runtime),
    )
}
