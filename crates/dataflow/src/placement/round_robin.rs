//! Copies in turn over the workers. Copies of equal number of different tasks meet on one worker, so that direct edges
//! stay in a process.

use super::{Placement, PlacementPlan, TaskInfo, WorkerInfo, everywhere};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Placement for RoundRobin {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<PlacementPlan, String> {
        Ok(PlacementPlan { tasks: tasks.iter().map(|task| everywhere(task, workers.len())).collect() })
    }
}
