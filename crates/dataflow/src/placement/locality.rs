//! Copies go to their data: to a worker on a host that holds it, else to whoever has the least to do.

use super::{Placement, Plan, TaskInfo, TaskPlan, WorkerInfo, everywhere};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Locality;

impl Placement for Locality {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<Plan, String> {
        let goes_anywhere = |task: &TaskInfo<'_>| task.per_worker || task.resources.data_hosts.is_empty();
        // Copies on each worker, of all tasks: those that go nowhere else first.
        let mut load = vec![0u32; workers.len()];
        for task in tasks.iter().filter(|task| goes_anywhere(task)) {
            everywhere(task, workers.len()).workers.into_iter().for_each(|worker| load[worker as usize] += 1);
        }
        let mut plan = Plan::default();
        for task in tasks {
            let hosts_of = |copy: u32| task.resources.data_hosts.get(copy as usize).filter(|hosts| !hosts.is_empty());
            if goes_anywhere(task) {
                plan.tasks.push(everywhere(task, workers.len()));
                continue;
            }
            let mut chosen = vec![0u32; task.copies as usize];
            let mut far = Vec::new();
            for copy in 0..task.copies {
                let Some(hosts) = hosts_of(copy) else {
                    far.push(copy);
                    continue;
                };
                let beside = (0..workers.len()).filter(|&worker| hosts.contains(&workers[worker].host));
                match beside.min_by_key(|&worker| load[worker]) {
                    Some(worker) => {
                        load[worker] += 1;
                        chosen[copy as usize] = worker as u32;
                    }
                    None => far.push(copy),
                }
            }
            // Last, so that they fill up what the data has left unequal.
            for copy in far {
                let worker = (0..workers.len()).min_by_key(|&worker| load[worker]).ok_or("there are no workers")?;
                load[worker] += 1;
                chosen[copy as usize] = worker as u32;
            }
            plan.tasks.push(TaskPlan { task: task.name.to_owned(), workers: chosen });
        }
        Ok(plan)
    }
}
