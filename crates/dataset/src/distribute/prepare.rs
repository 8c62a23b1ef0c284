//! Planning for several workers: the same plan on each of them, and none that counts on shared memory.
//!
//! DataFusion's joins that collect their left side tell each other, through memory, which left rows found a partner;
//! those that give out left rows by themselves (left, full, semi, anti, mark) are changed here to joins that do
//! without.

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

/// What each partition of the result is to get.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultDivision {
    /// What there is, wherever it is made.
    AsMade,
    /// About as many rows as the others, if the rows are in no order.
    Even,
}

/// A query's plan and the session to run it in.
pub(super) struct PreparedQuery {
    pub plan: Arc<dyn ExecutionPlan>,
    pub state: SessionState,
}

/// Plans a query for `partitions` partitions of workers that may use `memory_bytes` each. `now` is the time that the
/// query sees, in nanoseconds since 1970.
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
        // Partitions of other workers' files are not this worker's to take.
        .set_bool("datafusion.execution.enable_file_stream_work_stealing", false)
        // Each partition writes one file after the other: rows stay in their order.
        .set_usize("datafusion.execution.minimum_parallel_output_files", 1)
        // A filter made of one worker's build side would drop rows that have their partners on another.
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let mut rules = state.physical_optimizers().to_vec();
    // Joins take their form before that.
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

/// The plan of one thread, in which a sort of the whole result is one of partitions, as it is in that of several: the
/// exchange sorts faster than DataFusion's step does.
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
        // One that looks for nulls anywhere on the right must see all of it.
        Some(join) if !join.null_aware => {
            let (left_keys, right_keys) = join.on().iter().cloned().unzip();
            // What was gathered to be collected need not be.
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
    // Steps above count on rows being where they were.
    let again = match before {
        Partitioning::Hash(..) => before,
        other => Partitioning::RoundRobinBatch(other.partition_count()),
    };
    Ok(Transformed::yes(Arc::new(RepartitionExec::try_new(join, again)?)))
}
