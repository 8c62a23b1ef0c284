//! Places copies on the workers in turn. Equally numbered copies of different tasks share a worker, so that direct
//! edges stay within a process.

use super::{Placement, PlacementPlan, TaskInfo, WorkerInfo, everywhere};

/// The placement that the module describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Placement for RoundRobin {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<PlacementPlan, String> {
        Ok(PlacementPlan { tasks: tasks.iter().map(|task| everywhere(task, workers.len())).collect() })
    }
}
