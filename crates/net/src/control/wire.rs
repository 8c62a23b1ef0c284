//! Control messages between a worker and those it is connected to, and the link that carries them.
//!
//! ```text
//!  0      4      5          8      12     16
//!  | len  | kind | zero     | rank | to   | payload of len bytes
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::sockopt;

use crate::Rank;
use crate::fork::PrivateFd;

const HEADER_BYTES: usize = 16;

/// The longest payload of one control message. Control messages carry addresses, errors and tracebacks, not data.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes read from a link at once. Memory grows with what arrived, never with what a header announces.
const READ_BYTES: usize = 64 << 10;

/// The kind of a control message.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// From rank 0 to a worker that has joined. Payload: the tree's fan-out and the worker's serial number (u32). A
    /// second time, without payload, from rank 0 or the worker's parent: all workers are in their places. To a worker
    /// that has come back: its link is in use from now on.
    Welcome = 1,
    /// The job does not start, or an exchange failed. Payload: the reason, as text.
    Failed = 2,
    /// Parts of an exchange, of the sender and those connected through it, by rank: for each one a length (u32) and
    /// the bytes.
    Gather = 3,
    /// The parts of all workers, in the same format.
    Gathered = 4,
    /// A heartbeat.
    Ping = 5,
    /// A message from `rank` to `to`, through rank 0.
    ToOne = 6,
    /// A message from `rank` to all others, through rank 0.
    ToAll = 7,
    /// To rank 0: worker `rank` leaves in an orderly way.
    Leave = 8,
    /// From rank 0: worker `rank` left in an orderly way.
    Left = 9,
    /// To and from rank 0: worker `rank` is gone. Payload: how it was noticed.
    Lost = 10,
    /// To rank 0: worker `rank` had left, and now its link has ended, so nobody is connected through it any more. While
    /// workers join: the link of leaf `rank` to the sender has ended. Payload: the leaf's serial number (u32).
    Ended = 11,
    /// A part of the next message, which is longer than [`MESSAGE_BYTES_MAX`].
    Piece = 12,
    /// To the parent, during an exchange: the workers whose parts are missing. Payload: ranks (u32).
    Waiting = 13,
    /// To rank 0, at the start: where the sender listens for its children. Payload: addresses, as text.
    Listening = 14,
    /// From rank 0: where the recipient's parent listens. Payload: addresses, as text; none if the parent has ended,
    /// and may come again.
    Parent = 15,
    /// To rank 0, while workers join: the sender is connected to its parent and its children; with the `rank` of a
    /// leaf, an answer to `Check`: the sender is connected to it. To a parent: the sender's first message, with its
    /// serial number (u32); the parent returns the message without payload. As the first message of a worker that comes
    /// back: it is here.
    Attached = 16,
    /// To rank 0: worker `rank` has left and is about to end, but others are connected through it.
    Retire = 17,
    /// From rank 0 to worker `to`, which retires: no more messages for others will arrive.
    Released = 18,
    /// The last message of a parent that retires: connect to rank 0.
    Handover = 19,
    /// From rank 0, while workers join: is the recipient still connected to the leaf `rank`? Payload: the leaf's serial
    /// number (u32). The answer is `Attached` or `Ended`.
    Check = 20,
    /// From rank 0, while workers join, to a leaf that waits for its parent: hang up and call again later.
    Later = 21,
}

impl ControlKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => ControlKind::Welcome,
            2 => ControlKind::Failed,
            3 => ControlKind::Gather,
            4 => ControlKind::Gathered,
            5 => ControlKind::Ping,
            6 => ControlKind::ToOne,
            7 => ControlKind::ToAll,
            8 => ControlKind::Leave,
            9 => ControlKind::Left,
            10 => ControlKind::Lost,
            11 => ControlKind::Ended,
            12 => ControlKind::Piece,
            13 => ControlKind::Waiting,
            14 => ControlKind::Listening,
            15 => ControlKind::Parent,
            16 => ControlKind::Attached,
            17 => ControlKind::Retire,
            18 => ControlKind::Released,
            19 => ControlKind::Handover,
            20 => ControlKind::Check,
            21 => ControlKind::Later,
            _ => return None,
        })
    }
}

/// A decoded control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlMessage {
    pub(crate) kind: ControlKind,
    /// Its author, or the worker that it is about.
    pub(crate) rank: Rank,
    /// Its destination, for messages that pass through other workers.
    pub(crate) to: Rank,
    pub(crate) payload: Vec<u8>,
}

impl ControlMessage {
    pub(crate) fn new(kind: ControlKind, rank: Rank, payload: Vec<u8>) -> Self {
        ControlMessage { kind, rank, to: Rank(0), payload }
    }

    /// Creates a message to one worker.
    pub(crate) fn to_one(from: Rank, to: Rank, payload: Vec<u8>) -> Self {
        ControlMessage { kind: ControlKind::ToOne, rank: from, to, payload }
    }

    /// Whether it may be dropped when too much is queued. News about other workers may not; there is little of it.
    pub(crate) fn is_droppable(&self) -> bool {
        matches!(self.kind, ControlKind::ToOne | ControlKind::ToAll)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Appends one message to `out`.
fn encode(out: &mut Vec<u8>, kind: ControlKind, rank: Rank, to: Rank, payload: &[u8]) {
    debug_assert!(payload.len() <= MESSAGE_BYTES_MAX);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&rank.0.to_le_bytes());
    out.extend_from_slice(&to.0.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Cuts a stream of bytes into messages.
#[derive(Default)]
pub(crate) struct MessageDecoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl MessageDecoder {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 && self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        } else if self.taken > READ_BYTES {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message, if it has arrived.
    ///
    /// # Errors
    /// If the bytes are invalid; the link is then unusable.
    pub(crate) fn next(&mut self) -> Result<Option<ControlMessage>, String> {
        let rest = &self.bytes[self.taken..];
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let len = number(0) as usize;
        let Some(kind) = ControlKind::from_byte(header[4]) else {
            return Err(format!("unknown control message kind {}", header[4]));
        };
        if len > MESSAGE_BYTES_MAX || header[5..8] != [0; 3] {
            return Err(format!("malformed control message of {len} bytes"));
        }
        let Some(payload) = rest.get(HEADER_BYTES..HEADER_BYTES + len) else { return Ok(None) };
        let message = ControlMessage { kind, rank: Rank(number(8)), to: Rank(number(12)), payload: payload.to_vec() };
        self.taken += HEADER_BYTES + len;
        Ok(Some(message))
    }
}

/// A non-blocking stream of control messages to one other worker.
pub(crate) struct ControlLink {
    stream: PrivateFd<TcpStream>,
    decoder: MessageDecoder,
    outbox: Vec<u8>,
    sent: usize,
}

impl ControlLink {
    pub(crate) fn new(stream: PrivateFd<TcpStream>) -> Self {
        ControlLink { stream, decoder: MessageDecoder::default(), outbox: Vec::new(), sent: 0 }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Makes small messages leave at once, and has the kernel notice a vanished host too.
    pub(crate) fn tune(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.stream, true)?;
        sockopt::set_socket_keepalive(&self.stream, true)?;
        Ok(())
    }

    /// Bytes queued that the kernel has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// What to poll it for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.backlog() == 0 { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Queues a message for `flush` to send.
    pub(crate) fn queue(&mut self, kind: ControlKind, rank: Rank, payload: &[u8]) {
        encode(&mut self.outbox, kind, rank, Rank(0), payload);
    }

    /// Queues a message to pass on, for `flush` to send.
    pub(crate) fn queue_message(&mut self, message: &ControlMessage) {
        encode(&mut self.outbox, message.kind, message.rank, message.to, &message.payload);
    }

    /// Sends as much as the kernel takes. Returns `true` when nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.outbox.len() {
            match (&*self.stream).write(&self.outbox[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.sent = 0;
        self.outbox.clear();
        self.outbox.shrink_to(READ_BYTES);
        Ok(true)
    }

    /// Returns the next message that has arrived, or `Ok(None)` if there is none.
    ///
    /// # Errors
    /// How the link ended. Everything that arrived before the end has been returned first.
    pub(crate) fn receive(&mut self) -> Result<Option<ControlMessage>, String> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            let mut buffer = [0; READ_BYTES];
            match (&*self.stream).read(&mut buffer) {
                Ok(0) => return Err("its process ended".into()),
                Ok(n) => self.decoder.feed(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err("its process ended (reset)".into()),
                Err(e) => return Err(e.to_string()),
            }
        }
    }
}

impl AsFd for ControlLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
