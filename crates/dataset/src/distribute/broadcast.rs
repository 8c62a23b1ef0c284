//! Joins whose smaller side goes to every worker, so that the larger one stays where it is.
//!
//! Beside DataFusion's rule, which knows threads that share memory and joins so below a fixed size, this one weighs
//! what crosses: with `p` partitions, a broadcast costs each of them the whole smaller side, to receive and to build a
//! hash table of; the other way costs it a share of both sides, to send, to receive and to build. Taking the three as
//! equal, a broadcast of `s` bytes beside `l` larger ones is less for `l > 1.5 (p - 1) s`, nearly.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// The most that is broadcast: every worker holds all of it.
const BROADCAST_BYTES_MAX: usize = 256 << 20;
/// The most where the size is an estimate, which can be far from the truth.
const ESTIMATED_BYTES_MAX: usize = 32 << 20;

/// The rule; comes after DataFusion's own choice, which has put the smaller side on the left.
#[derive(Debug)]
pub(super) struct BroadcastSmaller {
    pub partitions: usize,
    /// Of a worker; `None`: no limit.
    pub memory_bytes: Option<usize>,
}

impl PhysicalOptimizerRule for BroadcastSmaller {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
            // The others give out left rows by themselves, which takes all of the right side in one place.
            let apart = matches!(
                join.join_type(),
                JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
            );
            if !apart || *join.partition_mode() != PartitionMode::Partitioned || !self.pays(join)? {
                return Ok(Transformed::no(node));
            }
            let builder = join.builder().with_partition_mode(PartitionMode::CollectLeft);
            Ok(Transformed::yes(builder.recompute_properties().build_exec()?))
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "broadcast_smaller"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl BroadcastSmaller {
    fn pays(&self, join: &HashJoinExec) -> Result<bool> {
        let bytes = |side: &Arc<dyn ExecutionPlan>| -> Result<Precision<usize>> {
            Ok(StatisticsContext::new().compute(side.as_ref(), &StatisticsArgs::new())?.total_byte_size)
        };
        let (small, large) = (bytes(join.left())?, bytes(join.right())?);
        let most = match (self.memory_bytes, &small) {
            (Some(budget_bytes), _) => ESTIMATED_BYTES_MAX.min(budget_bytes / 8),
            (None, Precision::Exact(_)) => BROADCAST_BYTES_MAX,
            (None, _) => ESTIMATED_BYTES_MAX,
        };
        let (Some(&small), Some(&large)) = (small.get_value(), large.get_value()) else { return Ok(false) };
        Ok(small <= most && large / 3 >= small.saturating_mul(self.partitions - 1) / 2)
    }
}
