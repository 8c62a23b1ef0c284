//! DataFusion's joins that hold their build side, the left one, in memory.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{JoinSide, JoinType};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, PartitionMode,
};

/// One of these joins.
#[derive(Clone)]
pub(super) enum PlannedJoin {
    /// By keys.
    Hash(Arc<HashJoinExec>),
    /// By a condition on every pair of rows.
    Loops(Arc<NestedLoopJoinExec>),
    /// Every pair of rows.
    Cross(Arc<CrossJoinExec>),
}

impl PlannedJoin {
    /// The same kind of join as `node` over other inputs; `None` if it is not one of these.
    pub(super) fn over(
        node: &dyn ExecutionPlan,
        left: Arc<dyn ExecutionPlan>,
        right: Arc<dyn ExecutionPlan>,
    ) -> Option<Result<Self>> {
        if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            let join = join.builder().with_new_children(vec![left, right]).and_then(|join| join.build());
            return Some(join.map(|join| PlannedJoin::Hash(Arc::new(join))));
        }
        if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
            let join = loops(join, left, right, *join.join_type(), true);
            return Some(join.map(|join| PlannedJoin::Loops(Arc::new(join))));
        }
        node.is::<CrossJoinExec>().then(|| Ok(PlannedJoin::Cross(Arc::new(CrossJoinExec::new(left, right)))))
    }

    /// The same join in its initial state.
    pub(super) fn reset(&self, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Ok(match self {
            PlannedJoin::Hash(join) => {
                PlannedJoin::Hash(Arc::new(join.builder().reset_state().with_new_children(vec![left, right])?.build()?))
            }
            PlannedJoin::Loops(join) => {
                PlannedJoin::Loops(Arc::new(loops(join, left, right, *join.join_type(), true)?))
            }
            PlannedJoin::Cross(_) => PlannedJoin::Cross(Arc::new(CrossJoinExec::new(left, right))),
        })
    }

    /// A join of parts of the inputs, of the given `kind`, whose build side is `build_side`.
    pub(super) fn of_parts(
        &self,
        left: Arc<dyn ExecutionPlan>,
        right: Arc<dyn ExecutionPlan>,
        kind: JoinType,
        build_side: JoinSide,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Half of a full join outputs columns of one side only.
        let is_half = self.kind() == JoinType::Full && kind == JoinType::RightAnti;
        match self {
            PlannedJoin::Hash(join) => {
                let builder = join.builder().reset_state().with_type(kind).with_null_aware(false).with_fetch(None);
                let builder = if is_half { builder.with_projection(None) } else { builder };
                let builder = builder.with_partition_mode(PartitionMode::Partitioned);
                let join = builder.with_new_children(vec![left, right])?.build()?;
                if build_side == JoinSide::Left {
                    Ok(Arc::new(join))
                } else {
                    join.swap_inputs(PartitionMode::Partitioned)
                }
            }
            PlannedJoin::Loops(join) => {
                let join = loops(join, left, right, kind, !is_half)?;
                if build_side == JoinSide::Left { Ok(Arc::new(join)) } else { join.swap_inputs() }
            }
            // The build side of inner joins is the left side.
            PlannedJoin::Cross(_) => Ok(Arc::new(CrossJoinExec::new(left, right))),
        }
    }

    pub(super) fn plan(&self) -> Arc<dyn ExecutionPlan> {
        match self {
            PlannedJoin::Hash(join) => Arc::clone(join) as _,
            PlannedJoin::Loops(join) => Arc::clone(join) as _,
            PlannedJoin::Cross(join) => Arc::clone(join) as _,
        }
    }

    pub(super) fn exec(&self) -> &dyn ExecutionPlan {
        match self {
            PlannedJoin::Hash(join) => join.as_ref(),
            PlannedJoin::Loops(join) => join.as_ref(),
            PlannedJoin::Cross(join) => join.as_ref(),
        }
    }

    pub(super) fn schema_of(&self, side: JoinSide) -> SchemaRef {
        self.exec().children()[usize::from(side == JoinSide::Right)].schema()
    }

    pub(super) fn kind(&self) -> JoinType {
        match self {
            PlannedJoin::Hash(join) => *join.join_type(),
            PlannedJoin::Loops(join) => *join.join_type(),
            PlannedJoin::Cross(_) => JoinType::Inner,
        }
    }

    /// Whether all partitions share a build side.
    pub(super) fn collects_left(&self) -> bool {
        match self {
            PlannedJoin::Hash(join) => *join.partition_mode() == PartitionMode::CollectLeft,
            PlannedJoin::Loops(_) | PlannedJoin::Cross(_) => true,
        }
    }

    /// The keys, left and right; empty if every row meets every row.
    pub(super) fn on(&self) -> &[(PhysicalExprRef, PhysicalExprRef)] {
        match self {
            PlannedJoin::Hash(join) => join.on(),
            PlannedJoin::Loops(_) | PlannedJoin::Cross(_) => &[],
        }
    }

    pub(super) fn has_keys(&self) -> bool {
        !self.on().is_empty()
    }

    /// Whether it implements `NOT IN (...)`.
    pub(super) fn is_null_aware(&self) -> bool {
        matches!(self, PlannedJoin::Hash(join) if join.null_aware)
    }

    /// The output columns among those of both sides; `None`: all of them.
    pub(super) fn projection(&self) -> Option<&[usize]> {
        match self {
            PlannedJoin::Hash(join) => join.projection.as_deref(),
            PlannedJoin::Loops(join) => join.projection().as_deref(),
            PlannedJoin::Cross(_) => None,
        }
    }
}

fn loops(
    join: &NestedLoopJoinExec,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    kind: JoinType,
    projects: bool,
) -> Result<NestedLoopJoinExec> {
    let projection = if projects { join.projection().clone() } else { None };
    let builder = NestedLoopJoinExecBuilder::new(left, right, kind).with_filter(join.filter().cloned());
    builder.with_projection_ref(projection).build()
}
