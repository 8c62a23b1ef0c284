//! Joins whose smaller side is sent to every worker, so that the larger side stays in place.
//!
//! DataFusion's own rule assumes threads that share memory, and does this below a fixed size. This rule weighs the data
//! to transfer. With `p` partitions, a broadcast costs each of them the whole smaller side, to receive and to build a
//! hash table from. The alternative costs each a share of both sides, to send, to receive and to build. If these three
//! cost the same, broadcasting `s` bytes next to `l` larger ones is cheaper for about `l > 1.5 (p - 1) s`.

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

/// Maximum size of a broadcast: every worker holds all of it.
const BROADCAST_BYTES_MAX: usize = 256 << 20;
/// Maximum if the size is an estimate, which can be far off.
const ESTIMATED_BYTES_MAX: usize = 32 << 20;

/// The rule. It runs after DataFusion's own choice, which puts the smaller side on the left.
#[derive(Debug)]
pub(super) struct BroadcastSmaller {
    pub partitions: usize,
    /// The memory of a worker; `None`: no limit.
    pub memory_bytes: Option<usize>,
}

impl PhysicalOptimizerRule for BroadcastSmaller {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
            // Other joins output left rows by themselves, for which they need all of the right side in one place.
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
