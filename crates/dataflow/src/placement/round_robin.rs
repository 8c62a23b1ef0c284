//! Copies in turn over the workers. Copies of equal number of different tasks meet on one worker, so that direct edges
//! stay in a process.

use super::{Placement, Plan, TaskInfo, WorkerInfo, everywhere};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Placement for RoundRobin {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<Plan, String> {
        Ok(Plan { tasks: tasks.iter().map(|task| everywhere(task, workers.len())).collect() })
    }
}
