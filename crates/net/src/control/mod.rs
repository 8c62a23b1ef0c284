//! The control plane: membership of the job, exchanges at startup, small messages, and notice of workers that end.
//!
//! Up to 256 workers are a star around rank 0, more are a tree of bounded fan-out below it. At start-up
//! [`ControlPlane`] is driven by its caller ([`ControlPlane::allgather`]); [`ControlPlane::start`] hands it to a native
//! thread of its own that sleeps unless something happens, never touches Python, and exchanges heartbeats with those it
//! is connected to, so that a worker is not presumed dead because its main thread is busy.
//!
//! A worker that ends without [`ControlHandle::leave`] is `Lost`: its parent in the tree sees the end of its connection
//! and all are notified within milliseconds. A host that becomes silent is lost after the failure timeout. Who is
//! connected through a worker that ends, whether that is lost or has left, connects to rank 0 instead and stays in the
//! job. When rank 0 itself is lost, all workers notice it, and the control plane ends.
//!
//! | module       | what                                                                    |
//! |--------------|-------------------------------------------------------------------------|
//! | `tree`       | who is connected to whom                                                |
//! | `wire`       | messages, and the links that carry them                                 |
//! | `exchange`   | exchanges at start-up, along the tree                                   |
//! | `state`      | the decisions of a worker: who is present, and who is told              |
//! | `orphans`    | those of rank 0 about workers whose parent has ended                    |
//! | `driver`     | the thread: sockets and clock                                           |
//! | `in_process` | the same events for workers that are threads of one process, no sockets |

mod driver;
pub(crate) mod exchange;
mod in_process;
mod orphans;
#[cfg(test)]
mod simulation;
mod state;
pub(crate) mod tree;
pub(crate) mod wire;

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Rank;
use crate::fork::ForkOrigin;
use crate::secret::{JobKey, JobSecret};
pub(crate) use driver::ReturnWay;
pub use tree::ControlTree;
use wire::ControlLink;
pub use wire::MESSAGE_BYTES_MAX;

/// Silence after which a worker is lost, unless told otherwise (`TIDEMILL_FAILURE_TIMEOUT`, in seconds).
pub const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes of messages that [`ControlHandle::send`] queues before it refuses.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;

/// News from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A worker is gone without having left. Reported once per worker; nothing from it follows.
    Lost {
        /// Who.
        rank: Rank,
        /// How it was noticed.
        reason: String,
    },
    /// A worker has left in good order.
    Left {
        /// Who.
        rank: Rank,
    },
    /// A worker sent a message. In order per sender.
    Message {
        /// Who sent it.
        from: Rank,
        /// What it sent.
        bytes: Vec<u8>,
    },
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageTarget {
    /// One worker, which may be the sender.
    One(Rank),
    /// Every worker but the sender.
    All,
}

/// What can go wrong on the control plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A worker ended during an exchange.
    #[error("worker {rank} was lost: {reason}")]
    Lost {
        /// Who.
        rank: Rank,
        /// How it was noticed.
        reason: String,
    },
    /// Rank 0 gave the exchange up.
    #[error("the job did not start: {reason}")]
    Failed {
        /// Rank 0's words.
        reason: String,
    },
    /// Workers did not take part in an exchange in time.
    #[error("no word from worker(s) {} within {waited_s} s", ranks(missing))]
    TimedOut {
        /// Who is missing.
        missing: Vec<Rank>,
        /// How long this worker waited, in seconds.
        waited_s: u64,
    },
    /// Too much is queued already; the message was dropped.
    #[error("more than {QUEUE_BYTES_MAX} bytes of control messages are queued")]
    QueueFull,
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a control message of {len_bytes} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// The destination is not in the job.
    #[error("this job has no worker {rank}")]
    NoSuchRank {
        /// The destination.
        rank: Rank,
    },
    /// This worker has shut its control plane down.
    #[error("the control plane of this worker is shut down")]
    Closed,
    /// The caller is a forked child of the worker. It is not a member of the job.
    #[error(
        "this process was forked from a worker and does not belong to the job; use spawn instead of fork, or do not \
         use Tidemill in the child"
    )]
    Forked,
    /// The operating system refused something.
    #[error("control plane: {0}")]
    System(String),
}

impl From<std::io::Error> for ControlError {
    fn from(error: std::io::Error) -> Self {
        ControlError::System(error.to_string())
    }
}

/// Ranks for people: `1, 2, 5`; a long list is cut.
pub(crate) fn ranks(list: &[Rank]) -> String {
    const SHOWN_MAX: usize = 16;
    let mut text = list.iter().take(SHOWN_MAX).map(Rank::to_string).collect::<Vec<_>>().join(", ");
    if list.len() > SHOWN_MAX {
        text += &format!(" and {} more", list.len() - SHOWN_MAX);
    }
    text
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(messages: &[wire::ControlMessage]) {
    state::fuzz(messages);
}

/// This worker's place in the job, during start-up.
pub struct ControlPlane {
    rank: Rank,
    size: u32,
    failure_timeout: Duration,
    key: JobKey,
    location: Option<String>,
    granted: Option<u32>,
    origin: ForkOrigin,
    inner: ControlLinks,
}

pub(crate) enum ControlLinks {
    Solo,
    Tree(Box<TreeLinks>),
    InProcess(in_process::InProcessMember),
}

/// A worker's place in the tree, with its links.
pub(crate) struct TreeLinks {
    pub(crate) tree: ControlTree,
    /// To its parent; rank 0 has none.
    pub(crate) up: Option<ControlLink>,
    /// To its children, by rank.
    pub(crate) children: Vec<ControlLink>,
    pub(crate) return_way: ReturnWay,
    /// Where others have reached this worker, or it them.
    pub(crate) addresses: Vec<IpAddr>,
}

impl ControlPlane {
    pub(crate) fn new(rank: Rank, size: u32, failure_timeout: Duration, key: JobKey, inner: ControlLinks) -> Self {
        ControlPlane {
            rank,
            size,
            failure_timeout,
            key,
            location: None,
            granted: None,
            origin: ForkOrigin::here(),
            inner,
        }
    }

    pub(crate) fn placed(self, location: Option<String>, granted: Option<u32>) -> Self {
        ControlPlane { location, granted, ..self }
    }

    /// A job of one worker.
    pub fn solo() -> Self {
        ControlPlane::new(Rank(0), 1, FAILURE_TIMEOUT, JobKey::new(&JobSecret::random(), ""), ControlLinks::Solo)
    }

    /// A job whose `size` workers are threads of this process; one for each.
    ///
    /// # Panics
    /// When `size` is 0.
    pub fn in_process(size: u32) -> Vec<Self> {
        let key = JobKey::new(&JobSecret::random(), "");
        let members = (0..size).zip(in_process::group(size));
        let control = |(rank, member)| {
            ControlPlane::new(Rank(rank), size, FAILURE_TIMEOUT, key.clone(), ControlLinks::InProcess(member))
        };
        members.map(control).collect()
    }

    /// This worker's number.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many workers the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Where this worker's host is in the network, if its environment said so.
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// How many processors are meant for this worker, if its launcher said so.
    pub fn granted(&self) -> Option<u32> {
        self.granted
    }

    /// With what connections between the job's workers prove themselves.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Whether all workers are threads of this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.inner, ControlLinks::InProcess(_) | ControlLinks::Solo)
    }

    /// Addresses of this host that other workers have reached or been reached from; no duplicates, none for a job
    /// within one process. Good ones to publish first.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        match &self.inner {
            ControlLinks::Tree(place) => place.addresses.clone(),
            ControlLinks::Solo | ControlLinks::InProcess(_) => Vec::new(),
        }
    }

    /// How many other workers this one is connected to: to the others of a star if it is rank 0, to its parent and its
    /// children in the tree of a larger job; none for a job within one process.
    pub fn links(&self) -> usize {
        match &self.inner {
            ControlLinks::Tree(place) => place.children.len() + usize::from(place.up.is_some()),
            ControlLinks::Solo | ControlLinks::InProcess(_) => 0,
        }
    }

    /// Gives every worker what every worker passed, by rank. Collective: all call it, equally often.
    ///
    /// # Errors
    /// On every worker when one ends or does not call within [`crate::OPEN_TIMEOUT`], naming it.
    pub fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ControlError> {
        if !self.origin.is_here() {
            return Err(ControlError::Forked);
        }
        if mine.len() > exchange::part_bytes_max(self.size) {
            return Err(ControlError::TooLong { len_bytes: mine.len() });
        }
        match &mut self.inner {
            ControlLinks::Solo => Ok(vec![mine.to_vec()]),
            ControlLinks::Tree(place) => exchange::allgather(place, self.rank, mine, crate::OPEN_TIMEOUT),
            ControlLinks::InProcess(member) => member.allgather(mine, crate::OPEN_TIMEOUT),
        }
    }

    /// Hands the control plane to its thread, which calls `on_event` for all news, one at a time and in order.
    /// `on_event` must not block for long: heartbeats wait for it.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub fn start(self, on_event: Box<dyn Fn(ControlEvent) + Send + Sync>) -> Result<ControlHandle, ControlError> {
        if !self.origin.is_here() {
            return Err(ControlError::Forked);
        }
        let mut subtree = if self.rank.0 == 0 { 0..self.size } else { self.rank.0..self.rank.0 + 1 };
        let core = match self.inner {
            ControlLinks::Solo => ControlBackend::InProcess(in_process::group(1).remove(0).start(on_event)?),
            ControlLinks::InProcess(member) => ControlBackend::InProcess(member.start(on_event)?),
            ControlLinks::Tree(place) => {
                subtree = place.tree.subtree(self.rank);
                ControlBackend::Tree(driver::start(self.rank, self.failure_timeout, *place, on_event)?)
            }
        };
        Ok(ControlHandle {
            shared: Arc::new(SharedHandle { rank: self.rank, size: self.size, subtree, origin: self.origin, core }),
        })
    }
}

/// The running control plane of a worker. Clones share it; when the last one goes without [`ControlHandle::leave`],
/// this worker is lost to the others, as if it had crashed.
#[derive(Clone)]
pub struct ControlHandle {
    shared: Arc<SharedHandle>,
}

struct SharedHandle {
    rank: Rank,
    size: u32,
    subtree: Range<u32>,
    origin: ForkOrigin,
    core: ControlBackend,
}

enum ControlBackend {
    InProcess(in_process::MemberThread),
    Tree(driver::ControlDriver),
}

impl ControlHandle {
    /// This worker's number.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many workers the job has.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// This worker's number and those of the workers that hear of the job through it: on rank 0 all, in a job of up to
    /// 256 workers nobody else on the others.
    pub fn subtree(&self) -> Range<u32> {
        self.shared.subtree.clone()
    }

    /// Queues a message and returns at once. It arrives unless a worker on its way ends or the queue there is full
    /// (then the worker before it logs that it was dropped).
    ///
    /// # Errors
    /// `QueueFull`, and the message is dropped; `TooLong`; `NoSuchRank`; `Closed`; `Forked`.
    pub fn send(&self, to: MessageTarget, bytes: &[u8]) -> Result<(), ControlError> {
        self.check()?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(ControlError::TooLong { len_bytes: bytes.len() });
        }
        if let MessageTarget::One(rank) = to
            && rank.0 >= self.shared.size
        {
            return Err(ControlError::NoSuchRank { rank });
        }
        match &self.shared.core {
            ControlBackend::InProcess(running) => running.send(to, bytes),
            ControlBackend::Tree(driver) => driver.send(to, bytes),
        }
    }

    /// Leaves in good order: the others get `Left`, not `Lost`, and this worker may end. Waits until that is on its
    /// way, two seconds at most. Messages of others still pass through this worker until `shutdown`; then those that
    /// are connected through it connect to rank 0, and what is under way through it is forwarded.
    ///
    /// # Errors
    /// `Closed`; `Forked`.
    pub fn leave(&self) -> Result<(), ControlError> {
        self.check()?;
        match &self.shared.core {
            ControlBackend::InProcess(running) => running.leave(),
            ControlBackend::Tree(driver) => driver.leave(),
        }
        Ok(())
    }

    /// Ends the control plane of this worker and its thread. Without `leave` before, the others take it for lost. Where
    /// others are connected through this worker, waits until they have another way, two seconds at most. Called by
    /// dropping the last handle.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }

    fn check(&self) -> Result<(), ControlError> {
        if self.shared.origin.is_here() { Ok(()) } else { Err(ControlError::Forked) }
    }
}

impl SharedHandle {
    fn shutdown(&self) {
        // A forked child has the handle but neither the thread nor the sockets, and the thread's locks may be held
        // forever in its copy.
        if self.origin.is_here() {
            match &self.core {
                ControlBackend::InProcess(running) => running.shutdown(),
                ControlBackend::Tree(driver) => driver.shutdown(),
            }
        }
    }
}

impl Drop for SharedHandle {
    fn drop(&mut self) {
        self.shutdown();
    }
}
