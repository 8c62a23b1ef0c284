//! Joining a job: every worker finds rank 0, both prove that they know the job's secret, and the result is a
//! [`ControlPlane`].
//!
//! Rank 0 listens, and the others retry until the timeout. If one worker fails, all that have connected are told, so
//! that every error names the same culprit.
//!
//! | module         | what                                                        |
//! |----------------|-------------------------------------------------------------|
//! | `descriptors`  | raises the limit for a connection to each worker            |
//! | `attach`       | from a star around rank 0 to the tree of a large job        |
//! | `launch`       | joins the job that a launcher describes, by way of:         |
//! | `same_host`    | a socket named after the job                                |
//! | `pmix`, `pmi1` | the launcher's own key-value store                          |

mod attach;
mod descriptors;
mod launch;
mod pmi1;
mod pmix;
mod same_host;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlLink};
use crate::control::{ControlError, ControlLinks, ControlPlane, ReturnWay, TreeLinks, exchange};
use crate::environment::EnvironmentError;
pub use crate::environment::JOIN_TIMEOUT;
use crate::handshake::conversation::HandshakeOutcome;
use crate::handshake::dial::DialAttempt;
use crate::handshake::gate::ConnectionAcceptor;
pub use crate::handshake::proof::PROTOCOL;
use crate::handshake::proof::{ConnectionClaim, ConnectionPurpose};
pub use crate::secret::{JobKey, JobSecret};
use crate::threads::{poll_until, sleep};
use crate::{FAILURE_TIMEOUT, Rank, notice};
pub use launch::{join_from_environment, join_launched, publish_card, read_card};

/// How long the others wait for rank 0's verdict after it has given up.
const VERDICT_PATIENCE: Duration = Duration::from_secs(5);

/// How long rank 0 waits for latecomers, to tell them why the job does not start.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(3);

/// How long rank 0 tries to bind a port that is in use: by an earlier job that is ending, or briefly by a worker that
/// connected to itself while trying to reach rank 0.
const BIND_PATIENCE: Duration = Duration::from_secs(3);

/// How long a name resolution is trusted: in a new cluster, names may appear late.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(2);

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
    descriptors::allow(config.rank, config.size);
    let key = JobKey::new(&config.secret, &config.job);
    let inner = match (config.size, config.rank.0) {
        (1, _) => ControlLinks::Solo,
        (_, 0) => ControlLinks::Tree(Box::new(host(&config, &key)?)),
        _ => ControlLinks::Tree(Box::new(knock(&config, &key)?)),
    };
    Ok(ControlPlane::new(config.rank, config.size, config.failure_timeout, key, inner)
        .placed(config.location, config.granted))
}

/// On rank 0: admits the others, and moves them to their places in the tree.
fn host(config: &JoinConfig, key: &JobKey) -> Result<TreeLinks, JoinError> {
    let deadline = Instant::now() + config.timeout;
    let listener = match &config.listener {
        Some(fd) => TcpListener::from(fd.try_clone()?),
        None => bind(&config.root)?,
    };
    let mut gate = ConnectionAcceptor::new(listener, key.clone(), ConnectionPurpose::Join, Rank(0), config.size)?;
    let mut links: Vec<Option<ControlLink>> = Vec::new();
    links.resize_with(config.size as usize - 1, || None);
    let outcome = admit_all(config, &mut gate, &mut links, deadline);
    if let Err(error) = outcome {
        refuse_all(&mut gate, links, &error.to_string());
        return Err(error);
    }
    let tree = ControlTree::new(config.size, config.control_fanout);
    let mut present: Vec<ControlLink> = links.into_iter().flatten().collect();
    for link in &mut present {
        link.queue(ControlKind::Welcome, Rank(0), &tree.fanout().to_le_bytes());
    }
    exchange::flush_all(&mut present, deadline.max(Instant::now() + VERDICT_PATIENCE));
    let addresses = attach::local_addresses(&present);
    let (children, return_way) = if tree.is_star() {
        (present, ReturnWay::None)
    } else {
        // Workers whose parent in the tree has ended call here.
        gate.expect(ConnectionPurpose::Return);
        attach::arrange(tree, &mut present)?;
        (present, ReturnWay::Gate(Box::new(gate)))
    };
    Ok(TreeLinks { tree, up: None, children, return_way, addresses })
}

/// Tells all workers why the job does not start, including those that come a little later: otherwise they would try
/// to reach this worker until their timeout.
fn refuse_all(gate: &mut ConnectionAcceptor, mut links: Vec<Option<ControlLink>>, reason: &str) {
    let until = Instant::now() + REFUSAL_PATIENCE;
    let refuse = |link: &mut ControlLink| {
        exchange::tell(std::slice::from_mut(link), ControlKind::Failed, Rank(0), reason.as_bytes())
    };
    links.iter_mut().flatten().for_each(refuse);
    while links.iter().any(Option::is_none) || gate.has_pending() {
        let mut fds = Vec::new();
        gate.interest(&mut fds);
        let polled = poll_until(&mut fds, gate.next_deadline().map_or(until, |at| at.min(until)));
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let now = Instant::now();
        for met in gate.advance(now, &ready, &|_| false) {
            let rank = met.call.from;
            let mut link = ControlLink::new(met.stream);
            refuse(&mut link);
            // Keep the link open until the end, so that the worker surely receives the reason. It may replace an
            // older link of the same worker.
            if let Some(slot) = rank.0.checked_sub(1).and_then(|index| links.get_mut(index as usize)) {
                *slot = Some(link);
            }
        }
        if polled.is_err() || now >= until {
            return;
        }
    }
}

fn admit_all(
    config: &JoinConfig,
    gate: &mut ConnectionAcceptor,
    links: &mut [Option<ControlLink>],
    deadline: Instant,
) -> Result<(), JoinError> {
    while links.iter().any(Option::is_none) {
        let until = gate.next_deadline().map_or(deadline, |at| at.min(deadline));
        let mut fds = Vec::new();
        gate.interest(&mut fds);
        let gate_len = gate.interest_len();
        fds.extend(links.iter().flatten().map(|link| PollFd::new(link, PollFlags::IN)));
        poll_until(&mut fds, until)?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let now = Instant::now();

        // A worker that ended while it waited may come again, restarted by its launcher.
        let mut ready_links = ready[gate_len..].iter();
        for (slot, rank) in links.iter_mut().zip(1..) {
            let Some(link) = slot else { continue };
            if ready_links.next().is_some_and(|flags| !flags.is_empty())
                && let Err(reason) = link.receive()
            {
                notice!(config.rank, "rank {rank} exited before the job started: {reason}");
                *slot = None;
            }
        }
        // A wrong worker must not keep out those that came with it, since they have to learn the reason too.
        let admitted =
            gate.advance(now, &ready[..gate_len], &|_| false).into_iter().map(|met| admit(config, links, met));
        admitted.fold(Ok(()), Result::and)?;
        if now >= deadline && links.iter().any(Option::is_none) {
            let missing =
                links.iter().zip(1..).filter(|(slot, _)| slot.is_none()).map(|(_, rank)| Rank(rank)).collect();
            return Err(JoinError::Missing { missing, waited_s: config.timeout.as_secs(), hint: gate.refusals() });
        }
    }
    Ok(())
}

/// Admits a worker that has proved that it belongs to this job. The launcher may still have made a mistake.
fn admit(config: &JoinConfig, links: &mut [Option<ControlLink>], met: HandshakeOutcome) -> Result<(), JoinError> {
    let ConnectionClaim { from, size, .. } = met.call;
    let peer = met.stream.peer_addr().map_or_else(|_| "an unknown address".into(), |a| a.to_string());
    let wrong = if size != config.size {
        Some(format!(
            "worker {from} at {peer} was told that the job has {size} worker(s), but rank 0 that it has {}; start all \
             workers with one launcher call and one size",
            config.size
        ))
    } else if from.0 == 0 || from.0 >= config.size {
        Some(format!("a worker at {peer} claims rank {from} in a job of {size} workers that already has a rank 0"))
    } else if links[from.index() - 1].is_some() {
        let first = links[from.index() - 1].as_ref().and_then(|link| link.stream().peer_addr().ok());
        let first = first.map_or_else(|| "another".into(), |a| a.to_string());
        Some(format!(
            "two workers claim rank {from}: one at {first}, one at {peer}; give every worker its own rank (is an \
             environment from an earlier job exported?)"
        ))
    } else {
        None
    };
    let mut link = ControlLink::new(met.stream);
    if let Some(text) = wrong {
        exchange::tell(std::slice::from_mut(&mut link), ControlKind::Failed, Rank(0), text.as_bytes());
        if let Some(slot) = from.0.checked_sub(1).and_then(|index| links.get_mut(index as usize)) {
            slot.get_or_insert(link);
        }
        return Err(JoinError::Disagreement(text));
    }
    link.tune()?;
    links[from.index() - 1] = Some(link);
    Ok(())
}

/// On the others: finds rank 0, waits for its answer, and takes the assigned place.
fn knock(config: &JoinConfig, key: &JobKey) -> Result<TreeLinks, JoinError> {
    let deadline = Instant::now() + config.timeout;
    let mut root = find_root(config, key)?;
    let welcome = match exchange::await_word(&mut root, Rank(0), deadline + VERDICT_PATIENCE, config.timeout) {
        Ok(message) if message.kind == ControlKind::Welcome => message,
        Ok(message) => {
            let reason = format!("it sent {:?} where a welcome was expected", message.kind);
            return Err(ControlError::Lost { rank: Rank(0), reason }.into());
        }
        Err(ControlError::Failed { reason }) => return Err(JoinError::Disagreement(reason)),
        Err(error) => return Err(error.into()),
    };
    let fanout = welcome.payload.as_slice().try_into().ok().map(u32::from_le_bytes);
    let tree = fanout.and_then(|fanout| ControlTree::told(config.size, fanout));
    let malformed = || ControlError::Lost { rank: Rank(0), reason: "it sent a malformed welcome".into() };
    let tree = tree.ok_or_else(malformed)?;
    if !tree.is_star() {
        return attach::take_place(config, key, tree, root);
    }
    let addresses = attach::local_addresses([&root]);
    Ok(TreeLinks { tree, up: Some(root), children: Vec::new(), return_way: ReturnWay::None, addresses })
}

/// Connects to rank 0.
fn find_root(config: &JoinConfig, key: &JobKey) -> Result<ControlLink, JoinError> {
    let start = Instant::now();
    let deadline = start + config.timeout;
    let call = ConnectionClaim { purpose: ConnectionPurpose::Join, from: config.rank, to: Rank(0), size: config.size };
    let mut dial = DialAttempt::new(Vec::new(), key.clone(), call, start);
    let mut resolve_at = start;
    let mut resolve_error = None;
    let met = loop {
        let now = Instant::now();
        if dial.is_waiting() && now >= resolve_at {
            resolve_at = now + RESOLVE_INTERVAL;
            match resolve(&config.root) {
                Ok(addresses) => {
                    resolve_error = None;
                    dial.set_addresses(addresses);
                }
                Err(e) => resolve_error = Some(e.to_string()),
            }
        }
        let until = dial.next_deadline().map_or(deadline, |at| at.min(deadline));
        let mut fds: Vec<_> = dial.interest().into_iter().collect();
        poll_until(&mut fds, until)?;
        let ready = fds.first().map_or(PollFlags::empty(), PollFd::revents);
        let now = Instant::now();
        match dial.advance(now, ready) {
            Ok(Some(met)) => break met,
            Ok(None) => {}
            Err(error) => return Err(JoinError::Refused { root: config.root.clone(), reason: error.to_string() }),
        }
        if now >= deadline {
            let last = resolve_error.unwrap_or_else(|| dial.last_error().to_string());
            return Err(JoinError::NoRoot { root: config.root.clone(), waited_s: config.timeout.as_secs(), last });
        }
    };
    let link = ControlLink::new(met.stream);
    link.tune()?;
    Ok(link)
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

/// Rank 0's listening socket at `root`; a name that is not this host's has its own error.
fn bind(root: &str) -> Result<TcpListener, JoinError> {
    let fail = |reason: String| JoinError::Listen { root: root.into(), reason };
    let start = Instant::now();
    loop {
        let addresses: Vec<SocketAddr> = resolve(root).map_err(|e| fail(e.to_string()))?;
        let error = match TcpListener::bind(&addresses[..]) {
            Ok(listener) => return Ok(listener),
            Err(e) => e,
        };
        let in_use = error.kind() == std::io::ErrorKind::AddrInUse;
        if in_use && start.elapsed() < BIND_PATIENCE {
            sleep(Duration::from_millis(50))?;
            continue;
        }
        return Err(fail(match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "the port is in use; is another rank 0 of this job, or an earlier job, still running? Choose another \
                 port"
                    .into()
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "this is not an address of this host; rank 0 must run on the host with that address".into()
            }
            _ => error.to_string(),
        }));
    }
}
