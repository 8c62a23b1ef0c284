//! The one trait behind which every way of moving bytes stands. A transport moves frames between workers and knows
//! nothing of tags, matching or collectives.
//!
//! Invariants every transport keeps, and the conformance suite in `tests/` checks:
//! - frames from one peer arrive in the order they were pushed, whole, once;
//! - `push` and `poll` never block;
//! - what is in flight to a peer is bounded ([`TransportLimits::in_flight_bytes_max`]); beyond that `push` reports
//!   `Blocked`;
//! - a frame pushed in part is continued by the next `push` to that peer before any other frame.

use std::time::Duration;

use crate::claim::{ChunkClaim, ClaimWords};
use crate::segment::SegmentRef;
use crate::{FrameHeader, Rank};

/// Whether a push handed the whole frame over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PushResult {
    /// Header and payload have left the caller's memory; the buffer may be reused.
    Sent,
    /// No room now. `sent` says how far it got; push the same frame again later.
    Blocked,
}

/// What can go wrong on a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The peer's process is gone or its connection broke. Later calls for this peer fail the same way.
    #[error("worker {peer} was lost: {reason}")]
    PeerLost {
        /// Who is gone.
        peer: Rank,
        /// How it was noticed.
        reason: String,
    },
    /// Bytes that are no frame arrived from `peer`; the link is unusable from here on.
    #[error("corrupt frame from worker {peer}: {reason}")]
    Corrupt {
        /// Where it came from.
        peer: Rank,
        /// What was wrong.
        reason: String,
    },
}

/// What a transport can do.
#[derive(Clone, Copy, Debug)]
pub struct TransportLimits {
    /// Largest payload of a frame that `push` takes. Larger messages travel as pieces.
    pub frame_bytes_max: usize,
    /// Messages of up to this many bytes should be sent unasked (eagerly); larger ones by offer and accept.
    pub eager_bytes_max: usize,
    /// Bytes in flight to one peer before `push` blocks.
    pub in_flight_bytes_max: usize,
    /// Whether [`Transport::read_peer`] and [`Transport::write_peer`] work for this peer.
    pub single_copy: bool,
    /// Whether frames to this peer leave the host's memory, or at least go as if they did: the link may be slow.
    pub network: bool,
}

/// What the kernel knows of a connection to a peer. Counters run from its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// The newest delivery rate, in bytes per second.
    pub delivery_bytes_s: u64,
    /// Whether there was too little to send when that was measured: the link may carry more.
    pub app_limited: bool,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Smallest round-trip time of late, in microseconds.
    pub min_rtt_us: u64,
    /// Bytes that the peer's host has acknowledged.
    pub acked_bytes: u64,
    /// Bytes in the kernel that it has not acknowledged, sent or not: now.
    pub buffered_bytes: u64,
    /// Time in which there was something to send or unacknowledged, in microseconds.
    pub busy_us: u64,
    /// Time of that in which the peer's receive window held it up, in microseconds.
    pub receiver_limited_us: u64,
    /// Time of that in which the size of the own buffer held it up, in microseconds.
    pub buffer_limited_us: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
}

/// Where arriving frames go. The engine implements it; a transport calls it from `poll`.
pub trait FrameSink {
    /// A whole frame, its payload in the transport's own memory, valid during the call only.
    fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]);

    /// The header of a frame whose payload the transport will place by itself, in steps: returns `header.len` writable
    /// bytes, which must stay valid until `landed` for the same `src`. Called instead of `frame`, by transports that
    /// can read straight from the wire into place. The transport has checked that `header.len` is within its limits.
    fn begin(&mut self, src: Rank, header: &FrameHeader) -> *mut u8;

    /// All bytes of the frame last begun for `src` are in place.
    fn landed(&mut self, src: Rank, header: &FrameHeader);

    /// The link to `peer` is down. Called once per peer.
    fn lost(&mut self, error: TransportError);
}

/// A claim over shared memory, for a message that both sides copy. See [`crate::claim`].
pub type LocalClaim = ChunkClaim<SegmentRef<ClaimWords>>;

/// Moves frames between this worker and the peers it was opened for. See the module's invariants.
pub trait Transport: Send {
    /// A short name for people: `"shm"`, `"tcp"`, `"in-process"`.
    fn name(&self) -> &'static str;

    /// What `peer` can be sent.
    fn limits(&self, peer: Rank) -> TransportLimits;

    /// Hands over as much of `header` + `payload` as there is room for, without blocking and without allocating.
    /// `sent` counts bytes of header and payload already handed over: 0 for a fresh frame; the caller passes the same
    /// frame with the updated `sent` until `PushResult::Sent`. `payload.len() == header.len`.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] when the link is down.
    fn push(
        &mut self,
        dest: Rank,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError>;

    /// Delivers what has arrived to `sink`, from all peers, fairly and in bounded time. Returns whether anything moved.
    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool;

    /// Wakes peers that went to sleep and have not been told of pushed frames yet. Called after a batch of pushes;
    /// a transport that wakes inside `push` has nothing to do.
    fn flush(&mut self) {}

    /// Wakes `peer` if it sleeps, though no frame was pushed: it shares other memory with this worker. Transports
    /// without shared memory have nothing to do.
    fn wake(&mut self, peer: Rank) {
        let _ = peer;
    }

    /// Tells the transport that `peer` is gone, noticed elsewhere: pushes to it fail from now on, and once the frames
    /// it left behind are delivered, `poll` reports it to [`FrameSink::lost`]. For transports that cannot notice by
    /// themselves.
    fn mark_lost(&mut self, peer: Rank, reason: &str) {
        let _ = (peer, reason);
    }

    /// Whether there is a link to `peer` now; transports that make links on demand have none before the first frame.
    fn is_linked(&self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// What the kernel knows of the connection that frames to `peer` leave by; `None` where there is none. A system
    /// call or two.
    fn link_info(&self, peer: Rank) -> Option<LinkInfo> {
        let _ = peer;
        None
    }

    /// Has the kernel take only about so many bytes that it cannot send yet; what exceeds them is `Blocked`. For who
    /// wants frames to be behind little else. Connections that there are not yet have no such limit, nor have
    /// transports without the kernel.
    fn limit_unsent(&self, peer: Rank, bytes: u32) {
        let _ = (peer, bytes);
    }

    /// Whether nothing more can come from `peer`, which has left, once a poll finds nothing. Transports without
    /// connections know by that alone.
    fn has_ended(&self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Nothing more will be pushed to `peer`, and every frame pushed to it was whole: whether all of them will reach it
    /// now, even if this process ends. Goes on polling meanwhile. For transports whose frames are on their way for a
    /// while.
    fn finish(&mut self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Copies `into.len()` bytes at `addr` in `peer`'s memory. Only where [`TransportLimits::single_copy`]. An offer
    /// must have named the region and its owner must keep it alive until told.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] when the peer is gone.
    fn read_peer(&mut self, peer: Rank, addr: u64, into: &mut [u8]) -> Result<(), TransportError> {
        let _ = (addr, into);
        Err(TransportError::PeerLost { peer, reason: "this transport cannot read a peer's memory".into() })
    }

    /// As [`Transport::read_peer`] for each of up to [`PARTS_MAX`] parts, an address and where it goes; faster where
    /// they are short. When it fails, any of them may have been copied.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] when the peer is gone.
    fn read_peer_parts(&mut self, peer: Rank, parts: &mut [(u64, &mut [u8])]) -> Result<(), TransportError> {
        parts.iter_mut().try_for_each(|(addr, into)| self.read_peer(peer, *addr, into))
    }

    /// The twin of [`Transport::read_peer`]: copies `from` to `addr` in `peer`'s memory.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] when the peer is gone.
    fn write_peer(&mut self, peer: Rank, addr: u64, from: &[u8]) -> Result<(), TransportError> {
        let _ = (addr, from);
        Err(TransportError::PeerLost { peer, reason: "this transport cannot write a peer's memory".into() })
    }

    /// The claims by which this worker and `peer` copy one large message together: of messages from it, and to it. Only
    /// where [`TransportLimits::single_copy`].
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

/// Most parts of one [`Transport::read_peer_parts`].
pub(crate) const PARTS_MAX: usize = 8;

/// How long to wait for a peer to take part in opening a transport.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
