//! Where a job's copies run, and which copy owns which bucket.

use serde::Serialize;

/// Hosts, workers and tasks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterLayout {
    /// The hosts, in the order of their lowest worker.
    pub hosts: Vec<HostLayout>,
    /// The host of each worker, as an index into `hosts`.
    pub worker_hosts: Vec<u32>,
    /// The tasks, in the graph's order.
    pub tasks: Vec<TaskLayout>,
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
