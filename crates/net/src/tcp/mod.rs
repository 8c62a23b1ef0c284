//! Frames over TCP: one connection per pair of workers that communicate, with `TCP_NODELAY`, non-blocking, and one
//! epoll descriptor for all.
//!
//! The only copies are the kernel's: payloads leave from the caller's memory ([`Transport::push`]), and long ones
//! arrive where the sink wants them ([`FrameSink::begin`]). Connections are authenticated when they open, but not
//! encrypted.
//!
//! Source of the wire format: [`crate::FrameHeader`].

pub(crate) mod assembly;
mod connection;
mod dialer;
mod info;
mod open;

use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{Timespec, epoll};

use crate::fork::{ForkOrigin, PrivateFd};
pub use crate::handshake::PeerListener;
use crate::{FrameHeader, FrameSink, LinkInfo, PushResult, Rank, Transport, TransportError, TransportLimits};
use connection::{ConnectionEnd, TcpConnection};
use dialer::{DialNews, Dialer};
pub use open::{ConnectChoice, TcpOpenError};

/// The largest payload of one frame. A longer message travels as pieces, between which other messages get their turn.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// Up to this size, an extra round trip (offer and accept) costs more than a copy out of the receiver's queue.
const EAGER_BYTES_MAX: usize = 64 << 10;

/// What the kernel's buffers on both sides hold at most by default (`tcp_wmem` and `tcp_rmem`).
const IN_FLIGHT_BYTES_MAX: usize = 10 << 20;

/// Events taken per poll; the rest wait for the next.
const EVENTS_MAX: usize = 64;

/// This worker's connections. See [`dialer`] for how they open.
pub struct TcpTransport {
    /// By rank; `None` for ranks that this transport does not serve.
    peers: Vec<Option<TcpPeer>>,
    /// Peers whose end was found while sending and is not reported to the sink yet.
    unreported: Vec<Rank>,
    /// Peers whose connections have all closed, although another one may be opening.
    closing: Vec<Rank>,
    /// The peer, if there is only one: asking epoll who has sent something would then waste a system call.
    only: Option<Rank>,
    dialer: Dialer,
    epoll: PrivateFd<OwnedFd>,
    origin: ForkOrigin,
}

/// This worker's connections with one peer.
#[derive(Default)]
struct TcpPeer {
    /// The connection that this worker opened, and the one that the peer opened; rarely both.
    connections: [Option<TcpConnection>; 2],
    /// Which of them sends frames: the first one that opened.
    sends_on: Option<usize>,
    /// Whether the dialer was asked for a connection.
    is_called: bool,
    /// Why sending is no longer possible.
    end: Option<TransportError>,
    /// Whether the end was reported to the sink.
    is_lost: bool,
}

impl TcpPeer {
    fn is_connected(&self) -> bool {
        self.connections.iter().any(Option::is_some)
    }
}

impl TcpTransport {
    fn new(peers: impl Iterator<Item = Rank> + Clone, dialer: Dialer) -> std::io::Result<Self> {
        let epoll = PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &dialer, epoll::EventData::new_u64(NEWS), epoll::EventFlags::IN)?;
        let mut table: Vec<Option<TcpPeer>> = Vec::new();
        table.resize_with(peers.clone().map(|peer| peer.index() + 1).max().unwrap_or(0), || None);
        peers.clone().for_each(|peer| table[peer.index()] = Some(TcpPeer::default()));
        Ok(TcpTransport {
            only: peers.clone().next().filter(|_| peers.count() == 1),
            peers: table,
            unreported: Vec::new(),
            closing: Vec::new(),
            dialer,
            epoll,
            origin: ForkOrigin::here(),
        })
    }

    fn peer(&mut self, rank: Rank) -> &mut TcpPeer {
        self.peers[rank.index()].as_mut().expect("a rank that this transport serves")
    }

    fn poll_one(&mut self, rank: Rank, slot: usize, sink: &mut dyn FrameSink) -> bool {
        let Some(connection) = &mut self.peer(rank).connections[slot] else { return false };
        match connection.poll(sink) {
            Ok(moved) => moved,
            Err(ConnectionEnd::Corrupt(reason)) => {
                self.lose(rank, TransportError::Corrupt { peer: rank, reason }, sink);
                true
            }
            Err(ConnectionEnd::Lost(reason)) => {
                let peer = self.peer(rank);
                // This also removes the socket from the epoll set. The peer has ended, or the network is cut; what it
                // sent on its other connection, if there is one, is read to the end.
                peer.connections[slot] = None;
                peer.end.get_or_insert(TransportError::PeerLost { peer: rank, reason });
                self.closing.push(rank);
                self.settle(sink);
                true
            }
        }
    }

    /// Reports those peers of [`TcpTransport::closing`] from which nothing more can come.
    fn settle(&mut self, sink: &mut dyn FrameSink) {
        for rank in std::mem::take(&mut self.closing) {
            if self.peer(rank).is_connected() {
                continue;
            }
            if self.dialer.has_connection(rank) {
                self.closing.push(rank);
                continue;
            }
            let error = self.peer(rank).end.as_ref().map(copy).expect("set when it closed");
            self.lose(rank, error, sink);
        }
    }

    /// Closes the connections with a peer, and reports it once.
    fn lose(&mut self, rank: Rank, error: TransportError, sink: &mut dyn FrameSink) {
        let peer = self.peer(rank);
        peer.connections = [None, None];
        peer.end = Some(copy(&error));
        if !std::mem::replace(&mut peer.is_lost, true) {
            sink.lost(error);
        }
    }

    /// Takes the dialer's news. Returns whether there was any.
    fn take_news(&mut self, sink: &mut dyn FrameSink) -> bool {
        let news = self.dialer.news();
        let any = !news.is_empty();
        for news in news {
            match news {
                DialNews::Connected { peer: rank, stream, called } => {
                    if let Err(error) = self.connect(rank, stream, called) {
                        let reason = format!("its connection cannot be waited for: {error}");
                        self.lose(rank, TransportError::PeerLost { peer: rank, reason }, sink);
                    }
                }
                DialNews::Failed { peer: rank, reason } => {
                    // A failed second call does not matter while one connection is open.
                    if !self.peer(rank).is_connected() {
                        let reason = reason.explain();
                        self.lose(rank, TransportError::PeerLost { peer: rank, reason }, sink);
                    }
                }
            }
        }
        self.settle(sink);
        any
    }

    /// Starts using a connection.
    fn connect(&mut self, rank: Rank, stream: PrivateFd<TcpStream>, called: bool) -> std::io::Result<()> {
        let slot = usize::from(!called);
        // No peer calls twice. A peer that was lost in the meantime is not taken back.
        if self.peer(rank).is_lost || self.peer(rank).connections[slot].is_some() {
            return Ok(());
        }
        epoll::add(&self.epoll, &stream, token(rank, slot), epoll::EventFlags::IN)?;
        let peer = self.peer(rank);
        peer.connections[slot] = Some(TcpConnection::new(rank, stream));
        peer.sends_on.get_or_insert(slot);
        Ok(())
    }

    /// Tells epoll whether to report when there is room to send to `rank`.
    fn watch_out(&mut self, rank: Rank, slot: usize, wants_out: bool) {
        let Some(connection) = &mut self.peers[rank.index()].as_mut().expect("served").connections[slot] else {
            return;
        };
        if connection.wants_out == wants_out {
            return;
        }
        connection.wants_out = wants_out;
        let out = if wants_out { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        // Fails only if the descriptor is not in the set, where it stays as long as the connection lives.
        let _ = epoll::modify(&self.epoll, &*connection, token(rank, slot), epoll::EventFlags::IN | out);
    }

    /// Delivers what arrived before the end of each peer in `unreported`, a turn at a time until the sockets are
    /// empty; then reports its end.
    fn tell_ends(&mut self, sink: &mut dyn FrameSink) -> bool {
        let unreported = std::mem::take(&mut self.unreported);
        for &rank in &unreported {
            while self.poll_one(rank, 0, sink) || self.poll_one(rank, 1, sink) {}
            let error = self.peer(rank).end.as_ref().map(copy).expect("unreported ends are recorded");
            self.lose(rank, error, sink);
        }
        !unreported.is_empty()
    }

    /// The connection that sends frames to a peer.
    fn sending(&self, rank: Rank) -> Option<&TcpConnection> {
        let peer = self.peers.get(rank.index())?.as_ref()?;
        peer.connections[peer.sends_on?].as_ref()
    }

    /// The one connection with the one peer, if nothing else needs polling.
    fn only_connection(&self) -> Option<(Rank, usize)> {
        let rank = self.only?;
        match &self.peers[rank.index()].as_ref()?.connections {
            [Some(connection), None] if !connection.wants_out => Some((rank, 0)),
            [None, Some(connection)] if !connection.wants_out => Some((rank, 1)),
            _ => None,
        }
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
            network: true,
        }
    }

    /// Calls the peer when the first frame is sent to it; until a connection opens, no part of the frame leaves.
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
        let Some(peer) = self.peers.get_mut(dest.index()).and_then(Option::as_mut) else {
            return Err(TransportError::PeerLost { peer: dest, reason: "not connected to it".into() });
        };
        if let Some(end) = &peer.end {
            return Err(copy(end));
        }
        let Some(slot) = peer.sends_on else {
            if !std::mem::replace(&mut peer.is_called, true) {
                self.dialer.call(dest);
            }
            return Ok(PushResult::Blocked);
        };
        let connection = peer.connections[slot].as_mut().expect("there as long as there is no end");
        match connection.push(header, payload, sent) {
            Ok(PushResult::Sent) => Ok(PushResult::Sent),
            Ok(PushResult::Blocked) => {
                self.watch_out(dest, slot, true);
                Ok(PushResult::Blocked)
            }
            // What the peer sent before it ended can still be received; `poll` will see the end as well.
            Err(end) => {
                let error = end.into_error(dest);
                peer.end = Some(copy(&error));
                if !self.unreported.contains(&dest) {
                    self.unreported.push(dest);
                }
                Err(error)
            }
        }
    }

    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let mut moved = self.dialer.has_news() && self.take_news(sink);
        if !self.unreported.is_empty() {
            moved |= self.tell_ends(sink);
        }
        if let Some((rank, slot)) = self.only_connection() {
            return self.poll_one(rank, slot, sink) || moved;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call reports nothing; the next call will.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return moved };
        for event in events {
            let token = event.data.u64();
            if token == NEWS {
                moved |= self.take_news(sink);
                continue;
            }
            let (rank, slot) = (Rank(token as u32), (token >> 32) as usize);
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT) {
                // Reported once per blocked push: a sleeper must not wake again and again for room that nobody wants.
                self.watch_out(rank, slot, false);
                moved = true;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                moved |= self.poll_one(rank, slot, sink);
            }
        }
        moved
    }

    fn is_linked(&self, peer: Rank) -> bool {
        self.peers[peer.index()].as_ref().is_some_and(|peer| peer.sends_on.is_some())
    }

    fn link_info(&self, peer: Rank) -> Option<LinkInfo> {
        self.sending(peer)?.info()
    }

    fn limit_unsent(&self, peer: Rank, bytes: u32) {
        if let Some(connection) = self.sending(peer) {
            connection.limit_unsent(bytes);
        }
    }

    fn has_ended(&self, peer: Rank) -> bool {
        self.peers[peer.index()].as_ref().is_none_or(|state| !state.is_connected() && !self.dialer.has_connection(peer))
    }

    fn finish(&mut self, peer: Rank) -> bool {
        // A link that is down, or never existed, has nothing in flight.
        let [called, answered] = &mut self.peer(peer).connections;
        // Finish both, so that the second does not wait for the first.
        let finished = [called, answered].map(|connection| connection.as_mut().is_none_or(TcpConnection::finish));
        finished == [true, true]
    }

    fn epoll_fd(&self) -> Option<RawFd> {
        Some(self.epoll.as_raw_fd())
    }
}

/// The token of the dialer's descriptor.
const NEWS: u64 = u64::MAX;

fn token(peer: Rank, slot: usize) -> epoll::EventData {
    epoll::EventData::new_u64((slot as u64) << 32 | u64::from(peer.0))
}

fn copy(error: &TransportError) -> TransportError {
    match error {
        TransportError::PeerLost { peer, reason } => TransportError::PeerLost { peer: *peer, reason: reason.clone() },
        TransportError::Corrupt { peer, reason } => TransportError::Corrupt { peer: *peer, reason: reason.clone() },
    }
}
