//! The control plane: membership of the job, exchanges at start-up, small messages, and detection of workers that
//! end.
//!
//! Up to 256 workers form a star around rank 0, more form a tree of bounded fan-out below it. At start-up the caller
//! drives [`ControlPlane`] ([`ControlPlane::allgather`]). [`ControlPlane::start`] hands it to a native thread that
//! sleeps unless something happens and never touches Python. The thread exchanges heartbeats with the workers it is
//! connected to, so that a worker is not presumed dead because its main thread is busy.
//!
//! A worker that ends without [`ControlHandle::leave`] is `Lost`: its parent in the tree sees the end of its
//! connection, and all are notified within milliseconds. A host that falls silent is lost after the failure timeout.
//! When a worker ends, whether it left or was lost, those connected through it connect to rank 0 instead and stay in
//! the job. When rank 0 itself is lost, all workers notice it, and the control plane ends.
//!
//! | module       | what                                                                    |
//! |--------------|-------------------------------------------------------------------------|
//! | `tree`       | who is connected to whom                                                |
//! | `wire`       | messages, and the links that carry them                                 |
//! | `exchange`   | exchanges at start-up, along the tree                                   |
//! | `state`      | the decisions of a worker: who is present, and who is told              |
//! | `orphans`    | rank 0's decisions about workers whose parent has ended                 |
//! | `driver`     | the thread: sockets and clock                                           |
//! | `in_process` | the same events for workers that are threads of one process, no sockets |

mod driver;
pub(crate) mod exchange;
mod in_process;
mod orphans;
#[cfg(test)]
pub(crate) mod simulation;
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

/// Silence after which a worker is lost, by default (`TIDEMILL_FAILURE_TIMEOUT`, in seconds).
pub const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// How many bytes of messages [`ControlHandle::send`] queues before it refuses more.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;

/// An event of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A worker is gone without having left. Reported once per worker; nothing from it follows.
    Lost {
        /// The worker.
        rank: Rank,
        /// How the loss was noticed.
        reason: String,
    },
    /// A worker has left in an orderly way.
    Left {
        /// The worker.
        rank: Rank,
    },
    /// A worker sent a message. Messages of one sender arrive in order.
    Message {
        /// The sender.
        from: Rank,
        /// The content.
        bytes: Vec<u8>,
    },
}

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageTarget {
    /// One worker, which may be the sender.
    One(Rank),
    /// Every worker except the sender.
    All,
}

/// Errors of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A worker ended during an exchange.
    #[error("worker {rank} was lost: {reason}")]
    Lost {
        /// The worker.
        rank: Rank,
        /// How the loss was noticed.
        reason: String,
    },
    /// Rank 0 gave up the exchange.
    #[error("the job did not start: {reason}")]
    Failed {
        /// Rank 0's message.
        reason: String,
    },
    /// Some workers did not take part in an exchange in time.
    #[error("no word from worker(s) {} within {waited_s} s", ranks(missing))]
    TimedOut {
        /// The missing workers.
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
        /// The message's length.
        len_bytes: usize,
    },
    /// The destination is not in the job.
    #[error("this job has no worker {rank}")]
    NoSuchRank {
        /// The destination.
        rank: Rank,
    },
    /// This worker has shut down its control plane.
    #[error("the control plane of this worker is shut down")]
    Closed,
    /// The caller is a forked child of the worker, which is not a member of the job.
    #[error(
        "this process was forked from a worker and does not belong to the job; use spawn instead of fork, or do not \
         use Tidemill in the child"
    )]
    Forked,
    /// The operating system refused an operation.
    #[error("control plane: {0}")]
    System(String),
}

impl From<std::io::Error> for ControlError {
    fn from(error: std::io::Error) -> Self {
        ControlError::System(error.to_string())
    }
}

/// Formats ranks for messages: `1, 2, 5`; a long list is truncated.
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

/// This worker's place in the job during start-up.
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
    /// The link to its parent; rank 0 has none.
    pub(crate) up: Option<ControlLink>,
    /// The links to its children, by rank.
    pub(crate) children: Vec<ControlLink>,
    /// On rank 0, until the first exchange: the links by which it has welcomed others. If it closed one while a message
    /// of such a worker was on its way, the welcome could be lost.
    pub(crate) others: Vec<ControlLink>,
    pub(crate) return_way: ReturnWay,
    /// Addresses at which others have reached this worker, or from which it has reached them.
    pub(crate) addresses: Vec<IpAddr>,
    /// On rank 0: how many workers it was connected to when the last one joined; 0 on the others.
    pub(crate) links_at_join: usize,
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

    /// Creates the control plane of a job of one worker.
    pub fn solo() -> Self {
        ControlPlane::new(Rank(0), 1, FAILURE_TIMEOUT, JobKey::new(&JobSecret::random(), ""), ControlLinks::Solo)
    }

    /// Creates the control planes, one per worker, of a job whose `size` workers are threads of this process.
    ///
    /// # Panics
    /// If `size` is 0.
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

    /// The location of this worker's host in the network, if its environment sets it.
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// How many processors the launcher intends for this worker, if it says so.
    pub fn granted(&self) -> Option<u32> {
        self.granted
    }

    /// The key that authenticates connections between the job's workers.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Whether all workers are threads of this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.inner, ControlLinks::InProcess(_) | ControlLinks::Solo)
    }

    /// Addresses of this host at which other workers have reached it or from which it has reached them, without
    /// duplicates; empty for a job within one process. Publish these first.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        match &self.inner {
            ControlLinks::Tree(place) => place.addresses.clone(),
            ControlLinks::Solo | ControlLinks::InProcess(_) => Vec::new(),
        }
    }

    /// How many other workers this one is connected to: in a star, rank 0 is connected to all others; in the tree of
    /// a larger job, a worker is connected to its parent and its children. 0 for a job within one process.
    pub fn links(&self) -> usize {
        match &self.inner {
            ControlLinks::Tree(place) => place.children.len() + usize::from(place.up.is_some()),
            ControlLinks::Solo | ControlLinks::InProcess(_) => 0,
        }
    }

    /// On rank 0: how many workers it was connected to at the moment when the last one joined. In a star that is all;
    /// in the tree of a larger job, those with children, those that are its own children, and the others that were on
    /// their way to their parents. 0 on the others, and for a job within one process.
    pub fn links_at_join(&self) -> usize {
        match &self.inner {
            ControlLinks::Tree(place) => place.links_at_join,
            ControlLinks::Solo | ControlLinks::InProcess(_) => 0,
        }
    }

    /// Gives every worker what every worker passed in, by rank. Collective: all workers call it equally often.
    ///
    /// # Errors
    /// On every worker, naming the culprit, if one ends or does not call within [`crate::OPEN_TIMEOUT`].
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

    /// Passes the control plane to its thread, which calls `on_event` for all events, one at a time and in order.
    /// `on_event` must not block for long: heartbeats wait for it.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
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

/// The running control plane of a worker. Clones share it. If the last one is dropped without
/// [`ControlHandle::leave`], the others lose this worker as if it had crashed.
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

    /// This worker's rank and those of the workers connected to the job through it: on rank 0 all workers; on the
    /// others, in a job of up to 256 workers, only itself.
    pub fn subtree(&self) -> Range<u32> {
        self.shared.subtree.clone()
    }

    /// Queues a message and returns at once. The message arrives unless a worker on its way ends or the queue there
    /// is full; then the worker before it logs that the message was dropped.
    ///
    /// # Errors
    /// `QueueFull`, in which case the message is dropped; `TooLong`; `NoSuchRank`; `Closed`; `Forked`.
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

    /// Leaves in an orderly way: the others receive `Left`, not `Lost`, and this worker may end. Waits until the
    /// message is on its way, at most two seconds. Messages of others still pass through this worker until
    /// `shutdown`; then the workers connected through it connect to rank 0, and it forwards what is in transit.
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

    /// Ends this worker's control plane and its thread. Without a `leave` before, the others lose it. If others are
    /// connected through this worker, waits until they have reconnected, at most two seconds. Dropping the last
    /// handle calls this.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }

    fn check(&self) -> Result<(), ControlError> {
        if self.shared.origin.is_here() { Ok(()) } else { Err(ControlError::Forked) }
    }
}

impl SharedHandle {
    fn shutdown(&self) {
        // A forked child has the handle but neither the thread nor the sockets, and its copy of the thread's locks
        // may be held forever.
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
