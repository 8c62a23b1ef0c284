//! The cost of a collective: runs the schedules of all ranks in virtual time, on the links of a [`crate::Cluster`]
//! without racks and faults.

use std::collections::HashMap;

use tidemill_collective::schedule::Schedule;
use tidemill_collective::tuner::CostModel;

use crate::cluster::Cluster;
use crate::events;
use crate::links::Links;
use crate::program::Program;

/// Runs `schedules` (of ranks 0, 1, ...) on elements of `item_bytes` on the links of a cluster. Returns when each
/// rank is done, in seconds.
///
/// # Panics
/// If the number of schedules differs from the number of workers, or the schedules do not fit together.
pub fn rank_ends_s(schedules: &[Schedule], item_bytes: usize, cluster: &Cluster) -> Vec<f64> {
    assert_eq!(schedules.len(), cluster.host_of.len(), "there must be a schedule for each worker");
    let program = Program::new(schedules, item_bytes, &cluster.model);
    events::run(&mut Links::new(cluster), &program, &vec![0.0; schedules.len()], &[])
}

/// The cost of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunCost {
    /// Seconds until the last rank was done.
    pub seconds: f64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes sent between hosts.
    pub bytes_between_hosts: u64,
}

/// Runs `schedules` (of ranks 0, 1, ...) on elements of `item_bytes`. `hosts` gives each rank's host; empty: all
/// ranks are on one.
///
/// # Panics
/// If the schedules do not fit together and never end: a bug of the algorithm.
pub fn cost(schedules: &[Schedule], item_bytes: usize, hosts: &[u32], model: &CostModel) -> RunCost {
    assert!(hosts.is_empty() || hosts.len() == schedules.len(), "hosts must name the host of every rank, or be empty");
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let host_of: Vec<u32> = (0..schedules.len())
        .map(|rank| {
            let next = numbers.len() as u32;
            *numbers.entry(hosts.get(rank).copied().unwrap_or(0)).or_insert(next)
        })
        .collect();
    let cluster = Cluster::new(host_of, vec![0; numbers.len().max(1)], *model);
    let mut links = Links::new(&cluster);
    let program = Program::new(schedules, item_bytes, model);
    let ends_s = events::run(&mut links, &program, &vec![0.0; schedules.len()], &[]);
    let traffic = links.traffic;
    RunCost {
        seconds: ends_s.into_iter().fold(0.0, f64::max),
        messages: traffic.messages,
        bytes: traffic.bytes,
        bytes_between_hosts: traffic.bytes_between_hosts,
    }
}
