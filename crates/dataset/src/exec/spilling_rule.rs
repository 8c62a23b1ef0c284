//! Replaces steps that hold all of their rows in memory by versions that can spill, and window functions by faster
//! versions.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use tidemill_dataflow::memory::Governor;

use crate::exec::join_exec::JoinExec;
use crate::exec::replaced_exec::ReplacedExec;
use crate::exec::running::InOrder;
use crate::exec::sorted::{MergeReplacement, SortReplacement};
use crate::exec::window_exec::PartitionedWindows;

/// The fraction of the budget that the first rows of a sorted table may use if they are held in memory.
const TOP_SHARE: u64 = 16;
/// Below this budget, the blocks of a merge, a quarter of a MiB per run, would matter.
const BLOCKS_BUDGET_BYTES: u64 = 16 << 20;
/// Approximate size of a string, a list or similar.
const VALUE_BYTES: usize = 32;

/// The rule.
#[derive(Debug, Clone)]
pub(crate) struct SpillingRule {
    pub(crate) governor: Governor,
    /// The budget that plans depend on; 0: no limit. The same on all workers.
    pub(crate) budget_bytes: u64,
    /// Threads of a worker.
    pub(crate) threads: usize,
    /// Whether all partitions belong to this worker. Otherwise sorts and merges stay unchanged, because they determine
    /// how rows move between workers.
    pub(crate) is_alone: bool,
}

impl SpillingRule {
    pub(crate) const NAME: &str = "within_memory";

    pub(crate) fn apply(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let windows = PartitionedWindows { governor: self.governor.clone() };
        let sorts = SortReplacement { governor: self.governor.clone(), threads: self.threads };
        let merges = MergeReplacement { governor: self.governor.clone() };
        let running = InOrder { governor: self.governor.clone() };
        plan.transform_up(|node| {
            if let Some(join) = JoinExec::try_replace(&node, &self.governor) {
                return Ok(Transformed::yes(Arc::new(join) as _));
            }
            if is_window(&node) {
                let input = Arc::clone(node.children()[0]);
                let sorted = ReplacedExec::of(&input, &sorts).unwrap_or(input);
                let node = replace_children_if_necessary(node, vec![sorted])?;
                let window = ReplacedExec::of(&node, &windows).or_else(|| ReplacedExec::of(&node, &running));
                return Ok(Transformed::yes(window.unwrap_or(node)));
            }
            if self.sorts_by_bytes()
                && let Some(step) = ReplacedExec::of(&node, &sorts).or_else(|| ReplacedExec::of(&node, &merges))
            {
                return Ok(Transformed::yes(step));
            }
            match node.downcast_ref::<SortExec>().and_then(|sort| self.sort_all(sort, &sorts)) {
                Some(sorted) => Ok(Transformed::yes(sorted)),
                None => Ok(Transformed::no(node)),
            }
        })
        .data()
    }

    fn sorts_by_bytes(&self) -> bool {
        self.is_alone && self.budget_bytes >= BLOCKS_BUDGET_BYTES
    }

    /// A full sort, which can spill, to replace a top-k sort, which cannot, if k is large.
    fn sort_all(&self, sort: &SortExec, sorts: &SortReplacement) -> Option<Arc<dyn ExecutionPlan>> {
        let fetch = sort.fetch()?;
        // The rows, and their sort keys.
        let bytes = (fetch as u64).saturating_mul(row_bytes(&sort.schema())).saturating_mul(2);
        let is_large = self.budget_bytes > 0 && bytes > self.budget_bytes / TOP_SHARE;
        is_large.then(|| {
            let all: Arc<dyn ExecutionPlan> = Arc::new(sort.with_fetch(None));
            let ours = self.sorts_by_bytes().then(|| ReplacedExec::of(&all, sorts)).flatten();
            Arc::new(LocalLimitExec::new(ours.unwrap_or(all), fetch)) as _
        })
    }
}

fn is_window(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<BoundedWindowAggExec>().is_some() || node.downcast_ref::<WindowAggExec>().is_some()
}

fn row_bytes(schema: &Schema) -> u64 {
    let widths = schema.fields().iter().map(|field| field.data_type().primitive_width().unwrap_or(VALUE_BYTES));
    widths.sum::<usize>() as u64
}

impl PhysicalOptimizerRule for SpillingRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        self.apply(plan)
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::empty::EmptyExec;
    use tidemill_dataflow::memory::MemorySettings;

    use super::*;

    /// Even if the size of that many rows overflows.
    #[test]
    fn the_first_of_very_many_rows_are_sorted_on_disk() {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let order = [PhysicalSortExpr::new_default(Arc::new(Column::new("x", 0)))];
        let sort = SortExec::new(order.into(), Arc::new(EmptyExec::new(schema)));
        let within = SpillingRule {
            governor: Governor::new(MemorySettings::default()),
            budget_bytes: 1 << 20,
            threads: 1,
            is_alone: true,
        };
        let sorts = SortReplacement { governor: within.governor.clone(), threads: 1 };
        for (fetch, spills) in [(10, false), (1 << 20, true), (1 << 60, true), (usize::MAX, true)] {
            assert_eq!(within.sort_all(&sort.with_fetch(Some(fetch)), &sorts).is_some(), spills, "{fetch}");
        }
    }
}
