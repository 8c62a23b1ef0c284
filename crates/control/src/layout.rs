//! Where a job's copies run, and which copy owns which bucket.

use std::collections::BTreeSet;

use serde::Serialize;

/// Hosts, workers and tasks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterLayout {
    /// The hosts, in the order of their lowest worker.
    pub hosts: Vec<HostLayout>,
    /// The host of each worker, as an index into `hosts`.
    pub worker_hosts: Vec<u32>,
    /// Workers that get no buckets and splits until the job is scaled.
    pub spares: BTreeSet<u32>,
    /// The tasks, in the graph's order.
    pub tasks: Vec<TaskLayout>,
}

/// The spare workers if `active` of the job's workers are to work. `worker_hosts` has the host of each worker, as any
/// number. Hosts take turns: the first workers of all hosts are active before the second ones of any, worker 0 always.
pub fn spare_workers(worker_hosts: &[u32], active: usize) -> BTreeSet<u32> {
    let place = |worker: usize| worker_hosts[..worker].iter().filter(|host| **host == worker_hosts[worker]).count();
    let mut workers: Vec<(usize, u32)> = (0..worker_hosts.len()).map(|worker| (place(worker), worker as u32)).collect();
    workers.sort_unstable();
    workers.into_iter().skip(active.max(1)).map(|(_, worker)| worker).collect()
}

/// A host of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostLayout {
    /// Its name, as the launcher knows it.
    pub name: String,
    /// CPUs that the job may use there.
    pub cores: f64,
    /// Whether it is being emptied, so that it gets no buckets.
    pub drained: bool,
}

impl ClusterLayout {
    /// The same, with these hosts drained.
    pub fn without(mut self, hosts: impl IntoIterator<Item = u32>) -> Self {
        for host in hosts {
            if let Some(host) = self.hosts.get_mut(host as usize) {
                host.drained = true;
            }
        }
        self
    }

    /// The same, with these spare workers.
    pub fn with_spares(self, spares: BTreeSet<u32>) -> Self {
        Self { spares, ..self }
    }

    /// The number of workers that are not spare.
    pub fn active(&self) -> usize {
        self.worker_hosts.len() - self.spares.len()
    }

    /// A spare worker that would own buckets, if their owners are `owners`: by task, as an index, the copy of each.
    pub fn spare_owner(&self, owners: &[(u32, Vec<u32>)]) -> Option<u32> {
        let workers = owners.iter().flat_map(|(task, copies)| {
            let workers = self.tasks.get(*task as usize).map_or(&[][..], |task| &task.copy_workers);
            copies.iter().filter_map(|copy| workers.get(*copy as usize)).copied()
        });
        workers.into_iter().find(|worker| self.spares.contains(worker))
    }

    /// Whether a worker gets no buckets and splits: it is spare, or its host is drained.
    pub fn is_closed(&self, worker: u32) -> bool {
        let host = self.worker_hosts.get(worker as usize).and_then(|host| self.hosts.get(*host as usize));
        self.spares.contains(&worker) || host.is_some_and(|host| host.drained)
    }
}

/// A task of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskLayout {
    /// Its name.
    pub name: String,
    /// Its position in the graph.
    pub role: TaskRole,
    /// The worker of each copy.
    pub copy_workers: Vec<u32>,
    /// The copy that owns each bucket, according to the newest route map; empty if its inputs are not partitioned by
    /// key, or the buckets cannot move.
    pub owners: Vec<u32>,
    /// The version of that map.
    pub version: u64,
    /// By copy, the splits that it reads according to the newest checkpoint, `None` for one that has ended; empty if
    /// they cannot move, or no checkpoint says where they are.
    pub splits: Vec<Option<Vec<String>>>,
    /// Whether they can move.
    pub moves_splits: bool,
    /// Why its buckets or splits cannot move; `None` if they can, or if it has neither.
    pub why_stays: Option<String>,
    /// The bytes of state of each bucket according to the newest checkpoint; empty if that does not say.
    pub state_bytes: Vec<u64>,
    /// The tasks whose output it takes, as indices into `tasks`.
    pub inputs: Vec<u32>,
}

/// The position of a task in its graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskRole {
    /// It has no inputs.
    Source,
    /// It has inputs and outputs.
    #[default]
    Step,
    /// It has no outputs.
    Sink,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job on several hosts that used all of the first before any of the second would leave its links idle.
    #[test]
    fn hosts_take_turns() {
        let spares = |active| spare_workers(&[0, 0, 0, 7, 7, 7], active).into_iter().collect::<Vec<_>>();
        assert_eq!(spares(0), [1, 2, 3, 4, 5], "worker 0 always works");
        assert_eq!(spares(1), [1, 2, 3, 4, 5]);
        assert_eq!(spares(2), [1, 2, 4, 5]);
        assert_eq!(spares(3), [2, 4, 5]);
        assert!(spares(6).is_empty() && spares(9).is_empty());
        assert_eq!(spare_workers(&[0; 4], 3), [3].into());
    }

    /// What the controller moves back may have been on a worker that is spare meanwhile.
    #[test]
    fn no_bucket_goes_to_spare_workers() {
        let task = TaskLayout { copy_workers: vec![0, 1, 2, 0, 1, 2], ..TaskLayout::default() };
        let layout = ClusterLayout { tasks: vec![TaskLayout::default(), task], ..ClusterLayout::default() };
        let layout = layout.with_spares([2].into());
        assert_eq!(layout.spare_owner(&[(1, vec![0, 1, 3, 4])]), None);
        assert_eq!(layout.spare_owner(&[(1, vec![0, 5])]), Some(2));
        assert_eq!(layout.spare_owner(&[(0, vec![5]), (7, vec![2])]), None, "tasks and copies that there are not");
    }
}
