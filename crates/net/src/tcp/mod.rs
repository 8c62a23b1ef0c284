//! Frames over TCP: one connection per pair of workers, `TCP_NODELAY`, non-blocking, one epoll descriptor for all.
//!
//! No copies beyond the kernel's: payloads leave from the caller's memory ([`Transport::push`]) and long ones arrive
//! where the sink wants them ([`FrameSink::begin`]). Connections are authenticated when they open and not encrypted.
//!
//! Source of the wire format: [`crate::FrameHeader`].

pub(crate) mod assembly;
mod connection;
mod listener;
mod open;

use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{Timespec, epoll};

use crate::fork::{ForkOrigin, PrivateFd};
use crate::{FrameHeader, FrameSink, PushResult, Rank, Transport, TransportError, TransportLimits};
use connection::TcpConnection;
pub use listener::PeerListener;
pub use open::TcpOpenError;

/// Largest payload of one frame. A message longer than this travels as pieces, between which others get their turn.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// Up to here an extra round trip (offer and accept) costs more than a copy out of the receiver's queue.
const EAGER_BYTES_MAX: usize = 64 << 10;

/// What the kernel's buffers on both sides hold at most by default (`tcp_wmem` and `tcp_rmem`).
const IN_FLIGHT_BYTES_MAX: usize = 10 << 20;

/// Events taken per poll; the rest waits for the next.
const EVENTS_MAX: usize = 64;

/// This worker's connections.
pub struct TcpTransport {
    /// By rank; `None` for ranks this transport does not serve and for links that are down.
    connections: Vec<Option<TcpConnection>>,
    /// How links went down, by rank.
    ends: Vec<Option<TransportError>>,
    /// Ends found while sending, to be told to the sink.
    untold: Vec<Rank>,
    /// The one peer, if there is no other: then asking epoll who has sent something is a wasted system call.
    only: Option<Rank>,
    epoll: PrivateFd<OwnedFd>,
    origin: ForkOrigin,
}

impl TcpTransport {
    fn new(streams: Vec<(Rank, PrivateFd<TcpStream>)>) -> std::io::Result<Self> {
        let epoll = PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let ranks = streams.iter().map(|(peer, _)| peer.index() + 1).max().unwrap_or(0);
        let only = if let [(peer, _)] = streams[..] { Some(peer) } else { None };
        let mut connections = Vec::new();
        connections.resize_with(ranks, || None);
        for (peer, stream) in streams {
            epoll::add(&epoll, &stream, token(peer), epoll::EventFlags::IN)?;
            connections[peer.index()] = Some(TcpConnection::new(peer, stream));
        }
        Ok(TcpTransport {
            ends: connections.iter().map(|_| None).collect(),
            connections,
            untold: Vec::new(),
            only,
            epoll,
            origin: ForkOrigin::here(),
        })
    }

    fn poll_one(&mut self, peer: Rank, sink: &mut dyn FrameSink) -> bool {
        let Some(connection) = &mut self.connections[peer.index()] else { return false };
        match connection.poll(sink) {
            Ok(moved) => moved,
            Err(end) => {
                let error = end.into_error(peer);
                self.close(peer, &error);
                sink.lost(error);
                true
            }
        }
    }

    /// Closes the link; the socket leaves the epoll set with it.
    fn close(&mut self, peer: Rank, error: &TransportError) {
        self.connections[peer.index()] = None;
        self.ends[peer.index()] = Some(copy(error));
    }

    /// Tells epoll whether to report room for sending to `peer`.
    fn watch_out(&mut self, peer: Rank, wants_out: bool) {
        let Some(connection) = &mut self.connections[peer.index()] else { return };
        if connection.wants_out == wants_out {
            return;
        }
        connection.wants_out = wants_out;
        let out = if wants_out { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        // Fails only if the descriptor is not in the set, and it is as long as the connection lives.
        let _ = epoll::modify(&self.epoll, &*connection, token(peer), epoll::EventFlags::IN | out);
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn limits(&self, _peer: Rank) -> TransportLimits {
        TransportLimits {
            frame_bytes_max: FRAME_BYTES_MAX,
            eager_bytes_max: EAGER_BYTES_MAX,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
            single_copy: false,
        }
    }

    fn push(
        &mut self,
        dest: Rank,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError> {
        debug_assert!(payload.len() == header.len as usize && payload.len() <= FRAME_BYTES_MAX);
        if !self.origin.is_here() {
            return Err(TransportError::PeerLost { peer: dest, reason: "this process is a fork of the worker".into() });
        }
        let Some(connection) = self.connections.get_mut(dest.index()).and_then(Option::as_mut) else {
            let end = self.ends.get(dest.index()).and_then(Option::as_ref);
            let none = || TransportError::PeerLost { peer: dest, reason: "not connected to it".into() };
            return Err(end.map_or_else(none, copy));
        };
        match connection.push(header, payload, sent) {
            Ok(PushResult::Sent) => Ok(PushResult::Sent),
            Ok(PushResult::Blocked) => {
                self.watch_out(dest, true);
                Ok(PushResult::Blocked)
            }
            // What the peer sent before it ended can still be received; the end will be seen there as well.
            Err(end) => {
                let error = end.into_error(dest);
                self.ends[dest.index()] = Some(copy(&error));
                if !self.untold.contains(&dest) {
                    self.untold.push(dest);
                }
                Err(error)
            }
        }
    }

    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let mut moved = false;
        for peer in std::mem::take(&mut self.untold) {
            // First whatever came before the end, a turn at a time until the socket is empty.
            while self.poll_one(peer, sink) {}
            if self.connections[peer.index()].is_some() {
                let error = self.ends[peer.index()].take().expect("untold ends are recorded");
                self.close(peer, &error);
                sink.lost(error);
            }
            moved = true;
        }
        if let Some(peer) = self.only
            && self.connections[peer.index()].as_ref().is_some_and(|connection| !connection.wants_out)
        {
            return self.poll_one(peer, sink) || moved;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call found nothing, which is what the next one is for.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return moved };
        for event in events {
            let peer = Rank(event.data.u64() as u32);
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT) {
                // Reported once per blocked push: a sleeper must not be woken again and again for room nobody wants.
                self.watch_out(peer, false);
                moved = true;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                moved |= self.poll_one(peer, sink);
            }
        }
        moved
    }

    fn finish(&mut self, peer: Rank) -> bool {
        // A link that is down has nothing under way.
        self.connections[peer.index()].as_mut().is_none_or(TcpConnection::finish)
    }

    fn epoll_fd(&self) -> Option<RawFd> {
        Some(self.epoll.as_raw_fd())
    }
}

fn token(peer: Rank) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(peer.0))
}

fn copy(error: &TransportError) -> TransportError {
    match error {
        TransportError::PeerLost { peer, reason } => TransportError::PeerLost { peer: *peer, reason: reason.clone() },
        TransportError::Corrupt { peer, reason } => TransportError::Corrupt { peer: *peer, reason: reason.clone() },
    }
}
