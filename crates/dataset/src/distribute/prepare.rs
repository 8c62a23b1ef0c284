//! Planning for several workers: gives the same plan on each worker, and one that does not depend on shared memory.
//!
//! DataFusion's joins that collect their left side share in memory which left rows have a match. Joins that output left
//! rows by themselves (left, full, semi, anti, mark) are replaced here by joins that do not need this.

use std::sync::Arc;

use chrono::DateTime;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, replace_children_if_necessary};

use tidemill_dataflow::memory::Governor;

use super::broadcast::BroadcastSmaller;
use super::stages::collects_left;
use crate::exec::join_exec::gives_left_rows;
use crate::exec::spilling_rule::SpillingRule;
use crate::exec::spread::{SpreadResult, SpreadRows};

/// How the result is divided among partitions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultDivision {
    /// Rows stay where they are made.
    AsMade,
    /// About equal numbers of rows, if the rows have no order.
    Even,
}

/// A query's plan and the session to run it in.
pub(super) struct PreparedQuery {
    pub plan: Arc<dyn ExecutionPlan>,
    pub state: SessionState,
}

/// Plans a query for `partitions` partitions on workers that may each use `memory_bytes`. `now` is the query's current
/// time, in nanoseconds since 1970.
pub(super) async fn prepare(
    frame: DataFrame,
    partitions: usize,
    memory_bytes: Option<usize>,
    governor: &Governor,
    now: i64,
    share: ResultDivision,
) -> Result<PreparedQuery> {
    let (state, logical) = frame.into_parts();
    let threads = state.config().target_partitions();
    let state = session(state, partitions, memory_bytes, now, share);
    let plan = state.create_physical_plan(&logical).await?.transform_up(apart)?.data;
    let plan = if partitions == 1 { sorted_apart(plan)? } else { plan };
    let budget_bytes = memory_bytes.unwrap_or(0) as u64;
    let within = SpillingRule { governor: governor.clone(), budget_bytes, threads, is_alone: false };
    Ok(PreparedQuery { plan: within.apply(plan)?, state })
}

fn session(
    state: SessionState,
    partitions: usize,
    memory_bytes: Option<usize>,
    now: i64,
    share: ResultDivision,
) -> SessionState {
    let config = state
        .config()
        .clone()
        .with_target_partitions(partitions)
        // A worker must not take partitions of other workers' files.
        .set_bool("datafusion.execution.enable_file_stream_work_stealing", false)
        // Each partition writes its files sequentially, so rows keep their order.
        .set_usize("datafusion.execution.minimum_parallel_output_files", 1)
        // A filter derived from one worker's build side would drop rows with matches on another worker.
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let mut rules = state.physical_optimizers().to_vec();
    // Joins must have their final form before that rule.
    rules.retain(|rule| rule.name() != SpillingRule::NAME);
    if share == ResultDivision::Even {
        let spread =
            rules.iter().position(|rule| rule.name() == SpreadRows::NAME).expect("the engine's session has it");
        rules.insert(spread + 1, Arc::new(SpreadResult));
    }
    let choice = rules.iter().position(|rule| rule.name() == "join_selection");
    let broadcast = Arc::new(BroadcastSmaller { partitions, memory_bytes });
    rules.insert(choice.expect("DataFusion chooses how to join") + 1, broadcast);
    let builder = SessionStateBuilder::new_from_existing(state).with_config(config);
    let mut state = builder.with_physical_optimizer_rules(rules).build();
    state.execution_props_mut().query_execution_start_time = Some(DateTime::from_timestamp_nanos(now));
    state
}

/// In the plan of a single thread, divides a sort of the whole result into partitions, as in the plans of several
/// threads: the exchange sorts faster than DataFusion's step.
fn sorted_apart(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(sort) = plan.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none()) {
        return Ok(Arc::new(SortPreservingMergeExec::new(sort.expr().clone(), Arc::clone(&plan))));
    }
    if !matches!(plan.name(), "CooperativeExec" | "DataSinkExec" | "ProjectionExec") {
        return Ok(plan);
    }
    let input = sorted_apart(Arc::clone(plan.children()[0]))?;
    replace_children_if_necessary(plan, vec![input])
}

/// A join in a form whose partitions can run in different processes.
fn apart(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let kind = match (plan.downcast_ref::<HashJoinExec>(), plan.downcast_ref::<NestedLoopJoinExec>()) {
        (Some(join), _) => *join.join_type(),
        (_, Some(join)) => *join.join_type(),
        _ => return Ok(Transformed::no(plan)),
    };
    if !collects_left(&plan) || !gives_left_rows(kind) {
        return Ok(Transformed::no(plan));
    }
    let (left, right) = (Arc::clone(plan.children()[0]), Arc::clone(plan.children()[1]));
    let partitions = right.output_partitioning().partition_count();
    if partitions == 1 {
        return Ok(Transformed::no(plan));
    }
    let before = plan.output_partitioning().clone();
    let by = |side, keys| -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(RepartitionExec::try_new(side, Partitioning::Hash(keys, partitions))?))
    };
    let join = match plan.downcast_ref::<HashJoinExec>() {
        // A null-aware join must see all of its right side.
        Some(join) if !join.null_aware => {
            let (left_keys, right_keys) = join.on().iter().cloned().unzip();
            // A side that was gathered to be collected need not be gathered.
            let left = match left.downcast_ref::<CoalescePartitionsExec>() {
                Some(gather) if gather.fetch().is_none() => Arc::clone(gather.input()),
                _ => left,
            };
            let sides = vec![by(left, left_keys)?, by(right, right_keys)?];
            let builder = HashJoinExecBuilder::from(join).with_partition_mode(PartitionMode::Partitioned);
            builder.with_new_children(sides)?.recompute_properties().build_exec()?
        }
        _ => {
            let right: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(right));
            replace_children_if_necessary(plan, vec![left, right])?
        }
    };
    let same = match (&before, join.output_partitioning()) {
        (Partitioning::Hash(..), _) => false,
        (before, now) => before.partition_count() == now.partition_count(),
    };
    if same {
        return Ok(Transformed::yes(join));
    }
    // The steps above rely on the original distribution.
    let again = match before {
        Partitioning::Hash(..) => before,
        other => Partitioning::RoundRobinBatch(other.partition_count()),
    };
    Ok(Transformed::yes(Arc::new(RepartitionExec::try_new(join, again)?)))
}
