//! Plans: which buckets move, what that costs, and what it should gain.

use std::{collections::BTreeMap, error::Error, fmt};

use super::{problem::Problem, state::State};

/// Seconds that moving takes in addition to copying state: a barrier on its way.
const BARRIER_S: f64 = 0.05;
/// The assumed rate at which state moves between hosts, in bytes per second, if nothing else is known.
const STATE_BYTES_S: f64 = 500e6;

/// New owners of buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// By changed task, as an index into the layout's: the copy that owns each bucket.
    pub owners: Vec<(u32, Vec<u32>)>,
    /// How many buckets change owners.
    pub buckets: u32,
    /// The bytes of state of these buckets, as far as known.
    pub state_bytes: u64,
    /// About how long they wait while they move, in seconds.
    pub pause_s: f64,
    /// How full hosts and links are now.
    pub before: Load,
    /// How full they should be afterwards, if as many rows come.
    pub after: Load,
}

/// How full the fullest parts of a job are; 1 is their whole capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The CPUs of the fullest host, or the fullest copy.
    pub cpu: f64,
    /// The fullest link; 0 if no capacity is known.
    pub network: f64,
}

impl Load {
    /// The larger of the two.
    pub fn most(self) -> f64 {
        self.cpu.max(self.network)
    }
}

impl Plan {
    /// How much more the job should carry with it: 0.38 is 38 % more; less than 0 if the plan only empties a host.
    pub fn gain(&self) -> f64 {
        match self.buckets > 0 && self.after.most() > 0.0 {
            true => self.before.most() / self.after.most() - 1.0,
            false => 0.0,
        }
    }

    pub(super) fn of(problem: &Problem, state: &State<'_>) -> Self {
        let mut plan = Self { before: State::of_homes(problem).load(), after: state.load(), ..Self::default() };
        let mut changed: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut leaving = vec![0.0; problem.hosts.len()];
        for (item, lane) in problem.items.iter().zip(&state.place) {
            if *lane != item.home {
                changed.entry(item.task).or_default();
                plan.buckets += 1;
                plan.state_bytes = plan.state_bytes.saturating_add(item.state_bytes as u64);
                leaving[problem.lanes[item.home].host] += item.state_bytes;
            }
        }
        for (item, lane) in problem.items.iter().zip(&state.place) {
            if let Some(owners) = changed.get_mut(&item.task) {
                owners.push(problem.lanes[*lane].copy);
            }
        }
        plan.owners = changed.into_iter().map(|(task, owners)| (task as u32, owners)).collect();
        let copying = leaving.iter().zip(&problem.hosts).map(|(bytes, host)| bytes / host.outbound.min(STATE_BYTES_S));
        plan.pause_s = if plan.buckets > 0 { copying.fold(BARRIER_S, |most, s| most.max(s + BARRIER_S)) } else { 0.0 };
        plan
    }
}

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AssignError {
    /// A task has copies only on hosts that are to be drained.
    NoHostLeft {
        /// The hosts that are to be drained.
        hosts: Vec<String>,
    },
}

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHostLeft { hosts } => write!(
                f,
                "no host is left for all buckets if {} gets none; leave out a host, or start workers on others first",
                hosts.join(", ")
            ),
        }
    }
}

impl Error for AssignError {}
