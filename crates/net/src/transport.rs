//! The trait that every transport implements. A transport moves frames between workers and knows nothing about tags,
//! matching or collectives.
//!
//! Every transport keeps these invariants, which the conformance suite in `tests/` checks:
//! - frames from one peer arrive in the order they were pushed, whole, once;
//! - `push` and `poll` never block;
//! - the number of bytes in transit to a peer is bounded ([`TransportLimits::in_flight_bytes_max`]); beyond that
//!   `push` reports `Blocked`;
//! - a frame pushed in part is continued by the next `push` to that peer before any other frame.

use std::time::Duration;

use crate::claim::{ChunkClaim, ClaimWords};
use crate::segment::SegmentRef;
use crate::{FrameHeader, Rank};

/// Whether a push handed over the whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PushResult {
    /// Header and payload have left the caller's memory; the buffer may be reused.
    Sent,
    /// There is no room now. `sent` says how many bytes were handed over; push the same frame again later.
    Blocked,
}

/// Errors of a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The peer's process is gone or its connection broke. Later calls for this peer fail the same way.
    #[error("worker {peer} was lost: {reason}")]
    PeerLost {
        /// The lost peer.
        peer: Rank,
        /// How the loss was noticed.
        reason: String,
    },
    /// Bytes that are not a frame arrived from `peer`; the link is unusable from here on.
    #[error("corrupt frame from worker {peer}: {reason}")]
    Corrupt {
        /// The sender.
        peer: Rank,
        /// What was wrong.
        reason: String,
    },
}

/// What a transport can do.
#[derive(Clone, Copy, Debug)]
pub struct TransportLimits {
    /// The largest payload of a frame that `push` takes. Larger messages travel as pieces.
    pub frame_bytes_max: usize,
    /// Messages of up to this many bytes should be sent eagerly; larger ones by offer and accept.
    pub eager_bytes_max: usize,
    /// Bytes in flight to one peer before `push` blocks.
    pub in_flight_bytes_max: usize,
    /// Whether [`Transport::read_peer`] and [`Transport::write_peer`] work for this peer.
    pub single_copy: bool,
    /// Whether frames to this peer leave the host, or at least travel as if they did: the link may be slow.
    pub network: bool,
}

/// What the kernel knows about a connection to a peer. Counters start when it opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// The most recent delivery rate, in bytes per second.
    pub delivery_bytes_s: u64,
    /// Whether there was too little to send during that measurement: the link may carry more.
    pub app_limited: bool,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// The smallest recent round-trip time, in microseconds.
    pub min_rtt_us: u64,
    /// Bytes that the peer's host has acknowledged.
    pub acked_bytes: u64,
    /// Bytes currently in the kernel that the peer's host has not acknowledged, sent or not.
    pub buffered_bytes: u64,
    /// How long there was something unsent or unacknowledged, in microseconds.
    pub busy_us: u64,
    /// How much of that time the peer's receive window limited sending, in microseconds.
    pub receiver_limited_us: u64,
    /// How much of that time the local send buffer limited sending, in microseconds.
    pub buffer_limited_us: u64,
    /// How many segments were retransmitted.
    pub retransmits: u64,
}

/// Where arriving frames go. The engine implements it; a transport calls it from `poll`.
pub trait FrameSink {
    /// A whole frame. Its payload is in the transport's own memory, and valid only during the call.
    fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]);

    /// The header of a frame whose payload the transport will write in steps: returns `header.len` writable bytes,
    /// which must stay valid until `landed` for the same `src`. Transports that can read from the wire straight to
    /// the destination call this instead of `frame`. The transport has checked that `header.len` is within its
    /// limits.
    fn begin(&mut self, src: Rank, header: &FrameHeader) -> *mut u8;

    /// All bytes of the frame last begun for `src` have arrived.
    fn landed(&mut self, src: Rank, header: &FrameHeader);

    /// The link to `peer` is down. Called once per peer.
    fn lost(&mut self, error: TransportError);
}

/// A claim over shared memory, for a message that both sides copy. See [`crate::claim`].
pub type LocalClaim = ChunkClaim<SegmentRef<ClaimWords>>;

/// Moves frames between this worker and the peers it was opened for. See the module for its invariants.
pub trait Transport: Send {
    /// A short name for messages: `"shm"`, `"tcp"`, `"in-process"`.
    fn name(&self) -> &'static str;

    /// What can be sent to `peer`.
    fn limits(&self, peer: Rank) -> TransportLimits;

    /// Hands over as much of `header` + `payload` as there is room for, without blocking and without allocating.
    /// `sent` counts bytes of header and payload already handed over: 0 for a fresh frame; the caller passes the same
    /// frame with the updated `sent` until `PushResult::Sent`. `payload.len() == header.len`.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] if the link is down.
    fn push(
        &mut self,
        dest: Rank,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError>;

    /// Delivers what has arrived to `sink`, from all peers, fairly and in bounded time. Returns whether anything moved.
    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool;

    /// Wakes peers that sleep and have not been told about pushed frames yet. Called after a batch of pushes; a
    /// transport that wakes inside `push` has nothing to do.
    fn flush(&mut self) {}

    /// Wakes `peer` if it sleeps, although no frame was pushed: it shares other memory with this worker. Transports
    /// without shared memory have nothing to do.
    fn wake(&mut self, peer: Rank) {
        let _ = peer;
    }

    /// Tells the transport that `peer` is gone, as noticed elsewhere: pushes to it fail from now on, and once the
    /// frames it left behind are delivered, `poll` reports it to [`FrameSink::lost`]. For transports that cannot
    /// notice it themselves.
    fn mark_lost(&mut self, peer: Rank, reason: &str) {
        let _ = (peer, reason);
    }

    /// Whether there is a link to `peer` now; transports that connect on demand have none before the first frame.
    fn is_linked(&self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// What the kernel knows about the connection that sends frames to `peer`; `None` if there is none. Costs a
    /// system call or two.
    fn link_info(&self, peer: Rank) -> Option<LinkInfo> {
        let _ = peer;
        None
    }

    /// Makes the kernel accept only about this many bytes that it cannot send yet; what exceeds them is `Blocked`.
    /// For callers that want frames to queue behind as little as possible. The limit does not apply to connections
    /// that do not exist yet, or to transports without the kernel.
    fn limit_unsent(&self, peer: Rank, bytes: u32) {
        let _ = (peer, bytes);
    }

    /// Whether nothing more can come from `peer`, which has left, once a poll finds nothing. For transports without
    /// connections, that is always so.
    fn has_ended(&self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Announces that nothing more will be pushed to `peer`, to which only whole frames were pushed. Returns whether
    /// all of them will now arrive, even if this process ends; keep polling until then. For transports whose frames
    /// stay in transit for a while.
    fn finish(&mut self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Copies `into.len()` bytes at `addr` in `peer`'s memory. Only if [`TransportLimits::single_copy`]. An offer
    /// must have named the region, and its owner must keep it alive until notified.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] if the peer is gone.
    fn read_peer(&mut self, peer: Rank, addr: u64, into: &mut [u8]) -> Result<(), TransportError> {
        let _ = (addr, into);
        Err(TransportError::PeerLost { peer, reason: "this transport cannot read a peer's memory".into() })
    }

    /// Like [`Transport::read_peer`] for each of up to [`PARTS_MAX`] parts, given as an address and a destination;
    /// faster if they are short. If it fails, any of them may have been copied.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] if the peer is gone.
    fn read_peer_parts(&mut self, peer: Rank, parts: &mut [(u64, &mut [u8])]) -> Result<(), TransportError> {
        parts.iter_mut().try_for_each(|(addr, into)| self.read_peer(peer, *addr, into))
    }

    /// The counterpart of [`Transport::read_peer`]: copies `from` to `addr` in `peer`'s memory.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] if the peer is gone.
    fn write_peer(&mut self, peer: Rank, addr: u64, from: &[u8]) -> Result<(), TransportError> {
        let _ = (addr, from);
        Err(TransportError::PeerLost { peer, reason: "this transport cannot write a peer's memory".into() })
    }

    /// The claims with which this worker and `peer` copy one large message together: for messages from the peer, and
    /// to it. Only if [`TransportLimits::single_copy`].
    fn claims(&self, peer: Rank) -> Option<(LocalClaim, LocalClaim)> {
        let _ = peer;
        None
    }

    /// File descriptors that become readable (or writable, for links with unsent bytes) when `poll` or a blocked `push`
    /// may make progress, collected behind one epoll descriptor; `None` for transports that ring the doorbell instead.
    fn epoll_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// The most parts of one [`Transport::read_peer_parts`].
pub(crate) const PARTS_MAX: usize = 8;

/// How long to wait for a peer to take part in opening a transport.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
