//! Joining a job: every worker finds rank 0, both prove that they know the job's secret, and the result is a
//! [`ControlPlane`].
//!
//! Rank 0 listens, and the others retry until the timeout. All prove to rank 0 that they belong to the job. In the tree
//! of a large job, leaves then connect to their parents and give up their connections to rank 0. If one worker fails,
//! all that have connected are told, along the tree, so that every error names the same culprit.
//!
//! ```text
//! rank 0                                  worker
//!   Welcome (fan-out, serial)    ---->                      each, as soon as it has joined
//!                                <----   Listening (where)  those with children
//!   Parent (where)               ---->                      those with another parent, as soon as it listens
//!                                                           call their parents, and exchange Attached
//!                                <----   Attached           all whose parent is not rank 0, or with children
//!   closes                                                  the connections of leaves whose parent is not rank 0
//!   Welcome                      ---->                      those that are still connected; they tell their leaves
//! ```
//!
//! | module         | what                                                        |
//! |----------------|-------------------------------------------------------------|
//! | `descriptors`  | raises the limit for a connection to each worker            |
//! | `ledger`       | rank 0's decisions about who has joined                     |
//! | `attach`       | how the others find rank 0 and take their places            |
//! | `host`         | how rank 0 admits them                                      |
//! | `launch`       | joins the job that a launcher describes, by way of:         |
//! | `same_host`    | a socket named after the job                                |
//! | `pmix`, `pmi1` | the launcher's own key-value store                          |

mod attach;
mod descriptors;
mod host;
mod launch;
mod ledger;
mod pmi1;
mod pmix;
mod same_host;
#[cfg(test)]
mod simulation;

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::control::tree::ControlTree;
use crate::control::{ControlError, ControlLinks, ControlPlane};
use crate::environment::EnvironmentError;
pub use crate::environment::JOIN_TIMEOUT;
pub use crate::handshake::proof::PROTOCOL;
pub use crate::secret::{JobKey, JobSecret};
use crate::{FAILURE_TIMEOUT, Rank};
pub use launch::{join_from_environment, join_launched, publish_card, read_card};

/// How long the others wait for rank 0's verdict after it has given up.
const VERDICT_PATIENCE: Duration = Duration::from_secs(5);

/// What a worker must know to join its job.
#[derive(Debug)]
pub struct JoinConfig {
    /// This worker's number.
    pub rank: Rank,
    /// How many workers the job has.
    pub size: u32,
    /// The job's name; workers of different jobs refuse each other.
    pub job: String,
    /// What only workers of this job know.
    pub secret: JobSecret,
    /// Where rank 0 listens, as `host:port`; the others try several, separated by commas, in order.
    pub root: String,
    /// On rank 0: the listening socket, if whoever started the job has bound it already.
    pub listener: Option<OwnedFd>,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Silence after which a worker counts as lost.
    pub failure_timeout: Duration,
    /// The location of this worker's host in the network; see
    /// [`LaunchContext::location`](crate::environment::LaunchContext::location).
    pub location: Option<String>,
    /// How many processors the launcher intends for this worker; see
    /// [`LaunchContext::granted`](crate::environment::LaunchContext::granted).
    pub granted: Option<u32>,
    /// On rank 0: the largest number of workers connected to one worker in the tree of the control plane; see
    /// [`LaunchContext::control_fanout`](crate::environment::LaunchContext::control_fanout).
    pub control_fanout: Option<u32>,
}

impl JoinConfig {
    /// A configuration with default timeouts.
    pub fn new(rank: Rank, size: u32, job: &str, secret: JobSecret, root: &str) -> Self {
        JoinConfig {
            rank,
            size,
            job: job.into(),
            secret,
            root: root.into(),
            listener: None,
            timeout: JOIN_TIMEOUT,
            failure_timeout: FAILURE_TIMEOUT,
            location: None,
            granted: None,
            control_fanout: None,
        }
    }
}

/// Why a worker did not join its job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The rank is not below the size.
    #[error("rank {rank} is out of range for a job of {size} worker(s)")]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// The job's size.
        size: u32,
    },
    /// Rank 0 cannot listen at the given address.
    #[error("rank 0 cannot listen on {root}: {reason}")]
    Listen {
        /// The address.
        root: String,
        /// The reason.
        reason: String,
    },
    /// On rank 0: workers did not join in time.
    #[error("worker(s) {} did not join within {waited_s} s{}", crate::control::ranks(missing), hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default())]
    Missing {
        /// The missing workers.
        missing: Vec<Rank>,
        /// How long this worker waited, in seconds.
        waited_s: u64,
        /// Connections refused meanwhile.
        hint: Option<String>,
    },
    /// On the others: rank 0 cannot be reached.
    #[error("worker 0 (rank 0) could not be reached at {root} within {waited_s} s; last attempt: {last}")]
    NoRoot {
        /// The address of rank 0.
        root: String,
        /// How long this worker tried, in seconds.
        waited_s: u64,
        /// The last error.
        last: String,
    },
    /// Rank 0 refused this worker, or could not prove that it is rank 0.
    #[error("rank 0 at {root} and this worker reject each other: {reason}")]
    Refused {
        /// The address of rank 0.
        root: String,
        /// The reason.
        reason: String,
    },
    /// Workers disagree about the job; every worker reports the same text.
    #[error("{0}")]
    Disagreement(String),
    /// The environment is inconsistent.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The workers could not meet in the way the launcher offers.
    #[error("started by {launcher}, but the workers cannot meet: {reason}")]
    Bootstrap {
        /// The launcher of this worker.
        launcher: String,
        /// What went wrong.
        reason: String,
    },
    /// The control plane failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused an operation.
    #[error("joining the job: {0}")]
    System(#[from] std::io::Error),
}

/// Joins the job. Returns when all its workers have joined.
///
/// # Errors
/// See [`JoinError`]; at most a few seconds after `config.timeout`.
pub fn join(config: JoinConfig) -> Result<ControlPlane, JoinError> {
    if config.rank.0 >= config.size {
        return Err(JoinError::RankOutOfRange { rank: config.rank, size: config.size });
    }
    let tree = ControlTree::new(config.size, config.control_fanout);
    // Only rank 0 knows the fan-out yet, and only it needs the number.
    descriptors::allow(config.rank, config.size, tree.links_at_join());
    let key = JobKey::new(&config.secret, &config.job);
    let inner = match (config.size, config.rank.0) {
        (1, _) => ControlLinks::Solo,
        (_, 0) => ControlLinks::Tree(Box::new(host::host(&config, &key, tree)?)),
        _ => ControlLinks::Tree(Box::new(attach::knock(&config, &key)?)),
    };
    Ok(ControlPlane::new(config.rank, config.size, config.failure_timeout, key, inner)
        .placed(config.location, config.granted))
}

/// All addresses of a list of `host:port`. An error only if there are none.
fn resolve(root: &str) -> std::io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    let mut error = None;
    for part in root.split(',') {
        match part.trim().to_socket_addrs() {
            Ok(found) => addresses.extend(found),
            Err(e) => error = Some(e),
        }
    }
    match error {
        Some(error) if addresses.is_empty() => Err(error),
        _ => Ok(addresses),
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(messages: &[crate::control::wire::ControlMessage]) {
    ledger::fuzz(messages);
}
