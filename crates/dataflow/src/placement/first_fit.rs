//! Places each copy on the first worker that still has the cores and the memory it asks for. Workers may differ.

use super::{Placement, PlacementPlan, TaskInfo, TaskPlan, WorkerInfo, everywhere};
use crate::graph::Resources;

/// The placement that the module describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl Placement for FirstFit {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<PlacementPlan, String> {
        let mut free: Vec<FreeResources> = workers.iter().map(FreeResources::of).collect();
        let lacks = |task: &TaskInfo<'_>, who: &str, copy: usize| {
            let Resources { cores, memory_bytes, .. } = task.resources;
            let name = task.name;
            format!(
                "task \"{name}\": {who} {cores} cores and {memory_bytes} bytes left for copy {copy}; ask for less, or start more \
                 workers"
            )
        };
        // Copies that run on every worker do not choose their worker, but they use up resources.
        for task in tasks.iter().filter(|task| task.per_worker) {
            for (copy, worker) in everywhere(task, workers.len()).workers.into_iter().enumerate() {
                if !free[worker as usize].give(task.resources) {
                    return Err(lacks(
                        task,
                        &format!("worker {worker}, which runs one as every worker does, has no"),
                        copy,
                    ));
                }
            }
        }
        let mut plan = PlacementPlan::default();
        for task in tasks {
            if task.per_worker {
                plan.tasks.push(everywhere(task, workers.len()));
                continue;
            }
            let mut chosen = Vec::new();
            for copy in 0..task.copies as usize {
                let worker = free.iter_mut().position(|free| free.give(task.resources));
                chosen.push(worker.ok_or_else(|| lacks(task, "no worker has", copy))? as u32);
            }
            plan.tasks.push(TaskPlan { task: task.name.to_owned(), workers: chosen });
        }
        Ok(plan)
    }
}

/// What a worker has left.
struct FreeResources {
    cores: f32,
    bytes: u64,
}

impl FreeResources {
    fn of(worker: &WorkerInfo) -> Self {
        FreeResources { cores: worker.cores, bytes: worker.memory_bytes }
    }

    /// Takes what a copy needs, if it is available.
    fn give(&mut self, needs: &Resources) -> bool {
        let fits = self.cores >= needs.cores && self.bytes >= needs.memory_bytes;
        if fits {
            self.cores -= needs.cores;
            self.bytes -= needs.memory_bytes;
        }
        fits
    }
}
