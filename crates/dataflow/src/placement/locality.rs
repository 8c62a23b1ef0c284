//! Places copies near their data: on a worker of a host that holds it, otherwise on the nearest one, and otherwise on
//! the least loaded one.
//!
//! A host's location in the network is a path from the outside in, such as `zone-a/rack-3/host-7`, as in Hadoop's and
//! Slurm's topologies: the more leading parts two paths share, the nearer they are. Hosts of data are such paths, or
//! plain names, which say nothing about distance.

use std::cmp::Reverse;

use super::{Placement, PlacementPlan, TaskInfo, TaskPlan, WorkerInfo, everywhere};

/// The placement that the module describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Locality;

impl Placement for Locality {
    fn place(&self, tasks: &[TaskInfo<'_>], workers: &[WorkerInfo]) -> Result<PlacementPlan, String> {
        let goes_anywhere = |task: &TaskInfo<'_>| task.per_worker || task.resources.data_hosts.is_empty();
        // The number of copies of all tasks on each worker: first those whose worker is fixed.
        let mut load = vec![0u32; workers.len()];
        for task in tasks.iter().filter(|task| goes_anywhere(task)) {
            everywhere(task, workers.len()).workers.into_iter().for_each(|worker| load[worker as usize] += 1);
        }
        let places: Vec<HostLocation<'_>> = workers.iter().map(HostLocation::of).collect();
        let mut plan = PlacementPlan::default();
        for task in tasks {
            if goes_anywhere(task) {
                plan.tasks.push(everywhere(task, workers.len()));
                continue;
            }
            let hosts_of = |copy: usize| task.resources.data_hosts.get(copy).into_iter().flatten();
            let data: Vec<Vec<Vec<&str>>> =
                (0..task.copies as usize).map(|copy| hosts_of(copy).map(|host| parts(host)).collect()).collect();
            let near = |copy: usize, place: &HostLocation<'_>| {
                data[copy].iter().map(|host| place.nearness(host)).max().unwrap_or_default()
            };
            let nearest = |copy| places.iter().map(|place| near(copy, place)).max().unwrap_or_default();
            // Copies whose data is nearest choose first. Those that may go anywhere come last, and even out the load.
            let mut order: Vec<(Reverse<DataNearness>, usize)> =
                (0..data.len()).map(|copy| (Reverse(nearest(copy)), copy)).collect();
            order.sort_unstable();
            let mut chosen = vec![0u32; data.len()];
            for (Reverse(nearest), copy) in order {
                let equals = (0..places.len()).filter(|&worker| near(copy, &places[worker]) == nearest);
                let worker = equals.min_by_key(|&worker| load[worker]).ok_or("there are no workers")?;
                load[worker] += 1;
                chosen[copy] = worker as u32;
            }
            plan.tasks.push(TaskPlan { task: task.name.to_owned(), workers: chosen });
        }
        Ok(plan)
    }
}

/// How near a worker is to data; by default nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct DataNearness {
    /// Whether it is on the host of that name. If names are not unique, the rest of the path decides.
    is_there: bool,
    /// The number of leading parts in common.
    common: usize,
}

/// The location of a worker.
struct HostLocation<'a> {
    host: &'a str,
    path: Vec<&'a str>,
}

impl<'a> HostLocation<'a> {
    fn of(worker: &'a WorkerInfo) -> Self {
        HostLocation { host: &worker.host, path: parts(worker.location.as_deref().unwrap_or_default()) }
    }

    fn nearness(&self, data: &[&str]) -> DataNearness {
        DataNearness {
            // A container has its own name; its path may end with its host's.
            is_there: data.last().is_some_and(|name| *name == self.host || Some(name) == self.path.last()),
            common: self.path.iter().zip(data).take_while(|(mine, theirs)| mine == theirs).count(),
        }
    }
}

/// The parts of a path, which may begin with a slash, as Hadoop's do.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}
