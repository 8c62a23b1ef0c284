//! Buckets, the copies that may own them, and what their hosts can carry.

use super::plan::AssignError;
use crate::{layout::ClusterLayout, observe::Rates};

/// The assumed work of tasks whose work has not been measured, in CPUs: enough to distribute them evenly.
const WORK_UNKNOWN: f64 = 0.01;

/// A link in front of which something waits for less than the fraction `EASY` of the time can carry more, at least
/// `EASY_MORE` times the current traffic; other links can carry hardly more.
const EASY: f64 = 0.1;
const EASY_MORE: f64 = 1.5;
const HARD_MORE: f64 = 0.15;

/// The buckets to be assigned to copies.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    pub(super) hosts: Vec<HostBounds>,
    /// Links about which more is known than about their hosts.
    pub(super) links: Vec<LinkBound>,
    pub(super) lanes: Vec<Lane>,
    /// By task: its first lane; after the last task, the number of lanes.
    pub(super) first_lane: Vec<usize>,
    pub(super) items: Vec<Item>,
    /// By item, and within it by host: bytes per second that the host sends to it.
    pub(super) sent: Vec<f64>,
}

/// A host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostBounds {
    pub(super) name: String,
    pub(super) drained: bool,
    /// Its CPUs, and the CPUs that others leave to the job.
    pub(super) cores: f64,
    pub(super) cpus: f64,
    /// CPUs used by what cannot move.
    pub(super) cpus_fixed: f64,
    /// Bytes per second; guessed if unknown, and infinite if there is no basis for a guess.
    pub(super) inbound: f64,
    pub(super) outbound: f64,
    pub(super) in_known: bool,
    pub(super) out_known: bool,
    /// Bytes per second of what cannot move.
    pub(super) in_fixed: f64,
    pub(super) out_fixed: f64,
}

/// A link between two hosts.
#[derive(Clone, Debug)]
pub(super) struct LinkBound {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) capacity: f64,
    pub(super) fixed: f64,
}

/// A copy of a task, which works on the buckets of its lane one after the other.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) copy: u32,
    pub(super) worker: u32,
    pub(super) host: usize,
    /// Whether it gets no buckets: its host is drained, or its worker is spare.
    pub(super) closed: bool,
}

/// A bucket of a task.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) task: usize,
    /// The lane that currently owns it.
    pub(super) home: usize,
    pub(super) work: f64,
    pub(super) sent: f64,
    pub(super) state_bytes: f64,
}

impl Item {
    /// Whether any load has been measured for it.
    pub(super) fn is_loaded(&self) -> bool {
        self.work > 0.0 || self.sent > 0.0
    }
}

/// What a host can carry. If that is unknown: as much as the best host has carried, if nothing waits; hardly more
/// than the current traffic, if something often does.
fn bound(known: Option<f64>, usual: f64, flow: f64, busy: f64) -> f64 {
    match known {
        Some(known) => known.clamp(1.0, usual),
        None if busy < EASY => usual.max(EASY_MORE * flow),
        None => (flow * (1.0 + HARD_MORE * (1.0 - busy))).clamp(1.0, usual),
    }
}

impl Problem {
    /// The problem of a job at a moment: all buckets that can move, without drained hosts and spare workers.
    ///
    /// Leaves out tasks whose owners do not fit their copies.
    pub fn of(layout: &ClusterLayout, rates: &Rates) -> Self {
        let hosts = layout.hosts.len();
        let mut problem = Self::default();
        for (at, host) in layout.hosts.iter().enumerate() {
            let cpus = rates.limits.get(at).and_then(|limits| limits.cpus).unwrap_or(host.cores);
            problem.hosts.push(HostBounds {
                name: host.name.clone(),
                drained: host.drained,
                cores: if host.cores.is_finite() { host.cores.max(0.01) } else { 1.0 },
                cpus: if cpus.is_finite() { cpus.max(0.01) } else { 1.0 },
                cpus_fixed: rates.hosts.get(at).map_or(0.0, |host| host.cpus_used),
                inbound: f64::INFINITY,
                outbound: f64::INFINITY,
                ..HostBounds::default()
            });
        }
        for task in 0..layout.tasks.len() {
            problem.first_lane.push(problem.lanes.len());
            problem.add_task(layout, rates, task, hosts);
        }
        problem.first_lane.push(problem.lanes.len());
        problem.bound(rates);
        problem.fix(rates);
        problem
    }

    fn add_task(&mut self, layout: &ClusterLayout, rates: &Rates, at: usize, hosts: usize) {
        let task = &layout.tasks[at];
        let host_of = |worker: &u32| layout.worker_hosts.get(*worker as usize).map(|host| *host as usize);
        let lane_hosts: Option<Vec<usize>> =
            task.copy_workers.iter().map(|worker| host_of(worker).filter(|host| *host < hosts)).collect();
        let Some(lane_hosts) = lane_hosts else { return };
        if task.owners.iter().any(|owner| *owner as usize >= lane_hosts.len()) || task.owners.is_empty() {
            return;
        }
        let first = self.lanes.len();
        self.lanes.extend(task.copy_workers.iter().zip(&lane_hosts).enumerate().map(|(copy, (&worker, &host))| {
            let closed = layout.is_closed(worker);
            Lane { copy: copy as u32, worker, host, closed }
        }));
        let measured = rates.tasks.get(at).filter(|rates| {
            rates.work.len() == task.owners.len()
                && rates.rows_s.len() == task.owners.len()
                && rates.sent_bytes_s.len() == task.owners.len() * hosts
        });
        let rows: f64 = measured.map_or(0.0, |rates| rates.rows_s.iter().sum());
        let work: f64 = measured.map_or(0.0, |rates| rates.work.iter().sum());
        for (bucket, owner) in task.owners.iter().enumerate() {
            let sent = measured.map(|rates| &rates.sent_bytes_s[bucket * hosts..(bucket + 1) * hosts]);
            match sent {
                Some(sent) => self.sent.extend_from_slice(sent),
                None => self.sent.resize(self.sent.len() + hosts, 0.0),
            }
            self.items.push(Item {
                task: at,
                home: first + *owner as usize,
                work: measured.map_or(0.0, |rates| match work > 0.0 {
                    true => rates.work[bucket],
                    false => WORK_UNKNOWN * rates.rows_s[bucket] / rows.max(1e-9),
                }),
                sent: sent.map_or(0.0, |sent| sent.iter().sum()),
                state_bytes: task.state_bytes.get(bucket).map_or(0.0, |bytes| *bytes as f64),
            });
        }
    }

    /// Uses the capacities that are known. If there are any, the others are guessed.
    fn bound(&mut self, rates: &Rates) {
        let known = rates.hosts.iter().flat_map(|host| [host.in_capacity, host.out_capacity]).flatten();
        if known.clone().next().is_some() {
            let peaks = rates.limits.iter().flat_map(|limits| [limits.in_peak, limits.out_peak]);
            let usual = known.chain(peaks).fold(1.0, f64::max);
            for ((bounds, host), limits) in self.hosts.iter_mut().zip(&rates.hosts).zip(&rates.limits) {
                (bounds.in_known, bounds.out_known) = (host.in_capacity.is_some(), host.out_capacity.is_some());
                bounds.inbound = bound(host.in_capacity, usual, host.in_bytes_s, limits.in_busy);
                // What waits there may be waiting for acknowledgments, which arrive over the host's other link.
                bounds.outbound = bound(host.out_capacity, usual, host.out_bytes_s, 0.0);
            }
        }
        for link in &rates.links {
            let (from, to) = (link.from as usize, link.to as usize);
            if let Some(capacity) = link.capacity.filter(|_| from < self.hosts.len() && to < self.hosts.len()) {
                self.links.push(LinkBound { from, to, capacity: capacity.max(1.0), fixed: 0.0 });
            }
        }
    }

    /// Determines the load that cannot move: all that does not belong to buckets.
    fn fix(&mut self, rates: &Rates) {
        let hosts = self.hosts.len();
        let mut buckets = vec![0.0; hosts * hosts];
        for (at, item) in self.items.iter().enumerate() {
            let to = self.lanes[item.home].host;
            let fixed = &mut self.hosts[to].cpus_fixed;
            *fixed = (*fixed - item.work).max(0.0);
            for from in 0..hosts {
                buckets[from * hosts + to] += self.sent[at * hosts + from];
            }
        }
        for link in &rates.links {
            let (from, to) = (link.from as usize, link.to as usize);
            if from < hosts && to < hosts {
                let fixed = (link.bytes_s - buckets[from * hosts + to]).max(0.0);
                self.hosts[from].out_fixed += fixed;
                self.hosts[to].in_fixed += fixed;
                for bound in self.links.iter_mut().filter(|bound| (bound.from, bound.to) == (from, to)) {
                    bound.fixed = fixed;
                }
            }
        }
    }

    /// The same problem, assuming that a link is full only if that has been observed.
    pub fn without_guesses(mut self) -> Self {
        for host in &mut self.hosts {
            host.inbound = if host.in_known { host.inbound } else { f64::INFINITY };
            host.outbound = if host.out_known { host.outbound } else { f64::INFINITY };
        }
        self
    }

    /// The same problem as if only the load of buckets existed. What cannot move may fill a host so much that moving
    /// buckets hardly matters; a user who asks for balance still wants them even.
    pub fn of_buckets_alone(mut self) -> Self {
        // What others take matters only as far as they take more from one host than from another.
        let most = |of: fn(&HostBounds) -> f64| self.hosts.iter().map(of).fold(0.01, f64::max);
        let scale = most(|host| host.cores) / most(|host| host.cpus);
        for host in &mut self.hosts {
            host.cpus *= scale;
            (host.cpus_fixed, host.in_fixed, host.out_fixed) = (0.0, 0.0, 0.0);
        }
        self.links.iter_mut().for_each(|link| link.fixed = 0.0);
        self
    }

    /// The bytes per second that hosts send to an item, by host.
    pub(super) fn sent(&self, item: usize) -> &[f64] {
        let hosts = self.hosts.len();
        &self.sent[item * hosts..(item + 1) * hosts]
    }

    /// The lanes that may own buckets of a task.
    pub(super) fn lanes_of(&self, task: usize) -> impl Iterator<Item = usize> + Clone {
        (self.first_lane[task]..self.first_lane[task + 1]).filter(|lane| !self.lanes[*lane].closed)
    }

    /// Checks that each task has a host left.
    pub(super) fn check(&self) -> Result<(), AssignError> {
        for item in &self.items {
            if self.lanes_of(item.task).next().is_none() {
                let hosts = self.hosts.iter().filter(|host| host.drained).map(|host| host.name.clone()).collect();
                return Err(AssignError::NoHostLeft { hosts });
            }
        }
        Ok(())
    }
}
