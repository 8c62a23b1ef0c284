//! Each copy on the first worker that still has the cores and the memory it asks for. Workers may differ.

use super::{Placement, Plan, TaskInfo, TaskPlan, WorkerInfo, everywhere};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl Placement for FirstFit {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<Plan, String> {
        let mut free: Vec<(f32, u64)> = workers.iter().map(|worker| (worker.cores, worker.memory_bytes)).collect();
        // Copies that are on every worker are not asked where they go, but what they need is gone.
        for task in tasks.iter().filter(|task| task.per_worker) {
            for worker in everywhere(task, workers.len()).workers {
                let (cores, memory) = &mut free[worker as usize];
                *cores -= task.resources.cores;
                *memory = memory.saturating_sub(task.resources.memory_bytes);
            }
        }
        let mut plan = Plan::default();
        for task in tasks {
            if task.per_worker {
                plan.tasks.push(everywhere(task, workers.len()));
                continue;
            }
            let (cores, memory_bytes) = (task.resources.cores, task.resources.memory_bytes);
            let mut chosen = Vec::new();
            for copy in 0..task.copies {
                let fits = |&(free_cores, free_bytes): &(f32, u64)| free_cores >= cores && free_bytes >= memory_bytes;
                let Some(worker) = free.iter().position(fits) else {
                    return Err(format!(
                        "task \"{}\": no worker has {cores} cores and {memory_bytes} bytes left for copy {copy}; ask for \
                         less, or start more workers",
                        task.name
                    ));
                };
                free[worker].0 -= cores;
                free[worker].1 -= memory_bytes;
                chosen.push(worker as u32);
            }
            plan.tasks.push(TaskPlan { task: task.name.to_owned(), workers: chosen });
        }
        Ok(plan)
    }
}
