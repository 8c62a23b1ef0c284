//! Placement: which worker runs which copy of which task. A placement is called once per run on every worker, and
//! must return the same [`PlacementPlan`] everywhere. A plan is data that can be printed, saved and passed in again.
//!
//! | placement      | puts a copy                                                                       |
//! |----------------|-----------------------------------------------------------------------------------|
//! | [`RoundRobin`] | on the next worker in turn; the default                                           |
//! | [`FirstFit`]   | on the first worker that still has its cores and memory                           |
//! | [`Locality`]   | on a worker of a host that holds its data, or the nearest one to it               |
//! | a [`PlacementPlan`]     | where the plan says                                                               |

mod explain;
mod first_fit;
mod locality;
mod round_robin;
mod svg;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use first_fit::FirstFit;
pub use locality::Locality;
pub use round_robin::RoundRobin;

use crate::error::DataflowError;
use crate::graph::{Graph, Parallelism, Resources};

/// What a placement knows about a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The host's name; workers of one host share it.
    pub host: String,
    /// The host's location in the network, from the outside in, such as `zone-a/rack-3/host-7`, if it is set.
    pub location: Option<String>,
    /// Processor cores it may use.
    pub cores: f32,
    /// Bytes of memory it may use.
    pub memory_bytes: u64,
}

/// What a placement knows about a task.
#[derive(Clone, Debug)]
pub struct TaskInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// The number of copies.
    pub copies: u32,
    /// Whether copies are spread evenly over all workers, one per worker and round; placements then do not choose.
    pub per_worker: bool,
    /// What each copy needs.
    pub resources: &'a Resources,
}

/// Decides where copies run.
pub trait Placement: Send + Sync {
    /// The worker of each copy of each task, in order. The same arguments give the same answer on every worker.
    ///
    /// # Errors
    /// A description if no placement is possible, naming the task and what it lacks.
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<PlacementPlan, String>;
}

/// Where every copy of one task runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// The task.
    pub task: String,
    /// The worker of each copy.
    pub workers: Vec<u32>,
}

/// Where everything runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementPlan {
    /// The graph's tasks, in its order.
    pub tasks: Vec<TaskPlan>,
}

impl Graph {
    /// The plan for these workers.
    ///
    /// # Errors
    /// If the graph is invalid or no placement is possible.
    pub fn plan(&self, placement: &dyn Placement, workers: &[WorkerInfo]) -> Result<PlacementPlan, DataflowError> {
        self.check(workers.len() as u32)?;
        PlacementPlan::make(self, placement, workers)
    }
}

impl PlacementPlan {
    pub(crate) fn workers_of(&self, task: usize) -> &[u32] {
        &self.tasks[task].workers
    }

    /// Makes the plan for a graph, and checks what a placement, or a user, has put into it.
    pub(crate) fn make(
        graph: &Graph,
        placement: &dyn Placement,
        workers: &[WorkerInfo],
    ) -> Result<PlacementPlan, DataflowError> {
        let size = workers.len() as u32;
        let tasks: Vec<TaskInfo<'_>> = graph
            .tasks
            .iter()
            .map(|task| TaskInfo {
                name: &task.name,
                copies: task.parallelism.copies(size),
                per_worker: matches!(task.parallelism, Parallelism::PerWorker(_)),
                resources: &task.resources,
            })
            .collect();
        let plan = placement.place(&tasks, workers).map_err(DataflowError::Placement)?;
        if plan.tasks.len() != tasks.len() {
            return Err(DataflowError::Placement(format!(
                "the plan has {} tasks, but the graph has {}",
                plan.tasks.len(),
                tasks.len()
            )));
        }
        for (planned, task) in plan.tasks.iter().zip(&tasks) {
            let wrong = |what: String| Err(DataflowError::Placement(format!("task \"{}\": {what}", task.name)));
            if planned.task != task.name || planned.workers.len() != task.copies as usize {
                let (name, count) = (&planned.task, planned.workers.len());
                return wrong(format!(
                    "the plan has \"{name}\" with {count} copies in that position, not {}",
                    task.copies
                ));
            }
            if let Some(worker) = planned.workers.iter().find(|&&worker| worker >= size) {
                return wrong(format!("the plan names worker {worker}, but there are {size}"));
            }
        }
        Ok(plan)
    }
}

impl Placement for PlacementPlan {
    fn place(&self, _tasks: &[TaskInfo<'_>], _workers: &[WorkerInfo]) -> Result<PlacementPlan, String> {
        Ok(self.clone())
    }
}

impl fmt::Display for PlacementPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.iter().try_for_each(|task| writeln!(f, "{}: {:?}", task.task, task.workers))
    }
}

/// The copies of a task that runs on every worker.
fn everywhere(task: &TaskInfo<'_>, workers: usize) -> TaskPlan {
    TaskPlan { task: task.name.to_owned(), workers: (0..task.copies).map(|copy| copy % workers as u32).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(sizes: &[(&str, f32, u64)]) -> Vec<WorkerInfo> {
        let info = |&(host, cores, memory_bytes): &(&str, f32, u64)| WorkerInfo {
            host: host.into(),
            location: None,
            cores,
            memory_bytes,
        };
        sizes.iter().map(info).collect()
    }

    /// Workers with locations, whose last part is the host's name.
    fn located(locations: &[&str]) -> Vec<WorkerInfo> {
        let info = |location: &&str| {
            let host = location.rsplit('/').next().unwrap().into();
            WorkerInfo { host, location: Some((*location).into()), cores: 1.0, memory_bytes: 0 }
        };
        locations.iter().map(info).collect()
    }

    /// Where `Locality` puts copies whose data is on these hosts.
    fn beside_data(workers: &[WorkerInfo], hosts: &[&[&str]]) -> Vec<u32> {
        let data_hosts = hosts.iter().map(|hosts| hosts.iter().map(|&host| host.into()).collect()).collect();
        let needs = Resources { data_hosts, ..Resources::default() };
        let plan = Locality.place(&[task(&needs, hosts.len() as u32)], workers).unwrap();
        plan.tasks[0].workers.clone()
    }

    fn task(resources: &Resources, copies: u32) -> TaskInfo<'_> {
        TaskInfo { name: "t", copies, per_worker: false, resources }
    }

    /// A copy on a worker without enough memory would be killed.
    #[test]
    fn first_fit_respects_cores_and_memory_of_unequal_workers() {
        let workers = workers(&[("a", 1.0, 100), ("b", 4.0, 50), ("c", 4.0, 400)]);
        let needs = Resources { cores: 1.0, memory_bytes: 60, ..Resources::default() };
        let plan = FirstFit.place(&[task(&needs, 4)], &workers).unwrap();
        assert_eq!(plan.tasks[0].workers, [0, 2, 2, 2]);
        let error = FirstFit.place(&[task(&needs, 6)], &workers).unwrap_err();
        assert!(error.contains("copy 5") && error.contains("60 bytes"), "{error}");
        // Copies that every worker runs have needs as well.
        let everywhere = TaskInfo { per_worker: true, ..task(&needs, 3) };
        let error = FirstFit.place(std::slice::from_ref(&everywhere), &workers).unwrap_err();
        assert!(error.contains("worker 1") && error.contains("60 bytes left for copy 1"), "{error}");
        let less = Resources { cores: 1.0, memory_bytes: 50, ..Resources::default() };
        let everywhere = TaskInfo { resources: &less, ..everywhere };
        let error = FirstFit.place(&[task(&needs, 4), everywhere.clone()], &workers).unwrap_err();
        assert!(error.contains("no worker has 1 cores"), "{error}");
        assert_eq!(FirstFit.place(&[task(&needs, 3), everywhere], &workers).unwrap().tasks[0].workers, [2, 2, 2]);
    }

    /// Reading data across the network although a worker runs beside it would be slow, and so would placing all
    /// copies on one worker.
    #[test]
    fn locality_goes_to_the_data_and_spreads() {
        let workers = workers(&[("a", 1.0, 0), ("b", 1.0, 0), ("b", 1.0, 0)]);
        let hosts = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let data_hosts = vec![hosts(&["b"]), hosts(&["b", "a"]), hosts(&["b"]), hosts(&["z"]), vec![]];
        let needs = Resources { data_hosts, ..Resources::default() };
        let plan = Locality.place(&[task(&needs, 5)], &workers).unwrap();
        assert_eq!(plan.tasks[0].workers[..3], [1, 0, 2]);
        let mut all = plan.tasks[0].workers.clone();
        all.sort_unstable();
        assert_eq!(all.len(), 5);
        assert!(all.contains(&0) && all.contains(&1) && all.contains(&2));
        // Tasks of one copy are not all placed on the first worker that holds the data.
        let needs = Resources { data_hosts: vec![hosts(&["b"])], ..Resources::default() };
        let plan = Locality.place(&[1, 1, 1, 1].map(|copies| task(&needs, copies)), &workers).unwrap();
        assert_eq!(plan.tasks.iter().map(|task| task.workers[0]).collect::<Vec<_>>(), [1, 2, 1, 2]);
    }

    /// Data on a host without a worker would be read from the far end of the network although a worker runs in its
    /// rack.
    #[test]
    fn locality_goes_near_the_data_if_it_cannot_go_beside_it() {
        let workers = located(&["a/1/h1", "a/2/h2", "b/1/h3", "b/1/h4"]);
        let chosen = |hosts: &[&[&str]]| beside_data(&workers, hosts);
        assert_eq!(chosen(&[&["a/1/h9"], &["a/2/h9"], &["/b/1/h4"]]), [0, 1, 3]);
        // Among equals, the least loaded one: in the rack, or in the zone if the rack has no worker.
        assert_eq!(chosen(&[&["b/1/h9"], &["b/1/h9"], &["b/1/h9"], &["b/7/h9"]]), [2, 3, 2, 3]);
        // Of several hosts the nearest counts, and the copy that is nearest chooses first.
        assert_eq!(chosen(&[&["b/1/h9", "a/1/h1"], &["a/1/h9"], &["a/2/h2", "a/1/h1"]]), [0, 0, 1]);
        // A host is found by its name, even in paths of another form.
        assert_eq!(chosen(&[&["h3"], &["rack/h2"], &["h1"]]), [2, 1, 0]);
        // Nothing is known about distant hosts, or about plain names of other hosts.
        assert_eq!(chosen(&[&["c/1/h9"], &["h9"], &["a/1/h1"], &[]]), [1, 2, 0, 3]);
        // Hosts with the same name in two zones.
        assert_eq!(beside_data(&located(&["a/n1", "b/n1", "b/n2"]), &[&["b/n1"], &["b/n1"], &["a/n1"]]), [1, 1, 0]);
    }

    /// Only some workers know their location, and a container's name differs from its host's.
    #[test]
    fn locality_uses_what_is_known_about_workers() {
        let mut workers = located(&["a/1/h1", "a/1", "b/2/h3"]);
        workers[1].host = "h2".into();
        workers[2].host = "container".into();
        workers.extend(super::tests::workers(&[("h4", 1.0, 0)]));
        assert_eq!(beside_data(&workers, &[&["a/1/h2"], &["b/2/h3"], &["h3"], &["b/2/h4"]]), [1, 2, 2, 3]);
    }

    /// A plan written to a file is unchanged when read back.
    #[test]
    fn plans_are_data() {
        let needs = Resources::default();
        let plan = RoundRobin.place(&[task(&needs, 5)], &workers(&[("a", 1.0, 0), ("a", 1.0, 0)])).unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<PlacementPlan>(&text).unwrap(), plan);
        assert_eq!(plan.to_string(), "t: [0, 1, 0, 1, 0]\n");
    }
}
