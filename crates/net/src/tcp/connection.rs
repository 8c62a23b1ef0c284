//! One connection: sends frames from the caller's memory, and receives frames into their destination.

use std::io::IoSlice;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::assembly::{FrameAssembly, ReadSpace};
use super::info;
use crate::fork::PrivateFd;
use crate::transport::LinkInfo;
use crate::{FrameHeader, FrameSink, HEADER_BYTES, PushResult, Rank, TransportError};

/// Frames up to this size are copied next to their header, which is cheaper than a system call with two pieces.
const JOIN_BYTES_MAX: usize = 512;

/// Bytes taken from one connection per poll, so that the others get their turn.
const TURN_BYTES: usize = 1 << 20;

pub(super) struct TcpConnection {
    stream: PrivateFd<TcpStream>,
    assembly: FrameAssembly,
    /// Whether epoll reports when there is room to send.
    pub(super) wants_out: bool,
    finished: bool,
}

/// How a connection ended.
pub(super) enum ConnectionEnd {
    Lost(String),
    Corrupt(String),
}

impl ConnectionEnd {
    pub(super) fn into_error(self, peer: Rank) -> TransportError {
        match self {
            ConnectionEnd::Lost(reason) => TransportError::PeerLost { peer, reason },
            ConnectionEnd::Corrupt(reason) => TransportError::Corrupt { peer, reason },
        }
    }
}

impl TcpConnection {
    pub(super) fn new(peer: Rank, stream: PrivateFd<TcpStream>) -> Self {
        TcpConnection { stream, assembly: FrameAssembly::new(peer), wants_out: false, finished: false }
    }

    /// Sends as much as the socket has room for. See [`crate::Transport::push`].
    pub(super) fn push(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, ConnectionEnd> {
        let total = HEADER_BYTES + payload.len();
        let mut joined = [0; HEADER_BYTES + JOIN_BYTES_MAX];
        let whole: Option<&[u8]> = (payload.len() <= JOIN_BYTES_MAX).then(|| {
            joined[..HEADER_BYTES].copy_from_slice(header.as_bytes());
            joined[HEADER_BYTES..total].copy_from_slice(payload);
            &joined[..total]
        });
        while *sent < total {
            let result = match whole {
                Some(frame) => rustix::net::send(&self.stream, &frame[*sent..], SendFlags::NOSIGNAL),
                None => {
                    let header_rest = header.as_bytes().get(*sent..).unwrap_or(&[]);
                    let payload_rest = &payload[sent.saturating_sub(HEADER_BYTES)..];
                    let parts = [IoSlice::new(header_rest), IoSlice::new(payload_rest)];
                    let parts = if header_rest.is_empty() { &parts[1..] } else { &parts[..] };
                    let mut nothing = SendAncillaryBuffer::default();
                    rustix::net::sendmsg(&self.stream, parts, &mut nothing, SendFlags::NOSIGNAL)
                }
            };
            match result {
                Ok(n) => *sent += n,
                // The kernel is short of memory: treat the socket as full.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(PushResult::Blocked),
                Err(Errno::INTR) => {}
                Err(e) => return Err(ConnectionEnd::Lost(format!("sending failed: {}", std::io::Error::from(e)))),
            }
        }
        Ok(PushResult::Sent)
    }

    /// Ends the sending half: the peer reads what was sent, and then the end. Returns whether the peer's host has
    /// received all of it. Until then the socket must not be closed: if it holds unread data, which the peer may send
    /// at any moment, closing it makes the kernel drop what it has not delivered.
    pub(super) fn finish(&mut self) -> bool {
        if !self.finished {
            self.finished = true;
            if rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write).is_err() {
                return true;
            }
        }
        info::unacknowledged(self.as_fd()) == 0
    }

    /// See [`crate::Transport::link_info`].
    pub(super) fn info(&self) -> Option<LinkInfo> {
        info::link_info(self.as_fd())
    }

    /// See [`crate::Transport::limit_unsent`].
    pub(super) fn limit_unsent(&self, bytes: u32) {
        info::limit_unsent(self.as_fd(), bytes);
    }

    /// Receives what has arrived, at most one turn's worth. Returns whether anything had arrived.
    pub(super) fn poll(&mut self, sink: &mut dyn FrameSink) -> Result<bool, ConnectionEnd> {
        let mut taken = 0;
        while taken < TURN_BYTES {
            let (wanted, got) = match self.receive() {
                Ok((_, 0)) => return Err(self.closed()),
                Ok(pair) => pair,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Err(self.closed()),
                Err(e) => return Err(ConnectionEnd::Lost(format!("receiving failed: {}", std::io::Error::from(e)))),
            };
            taken += got;
            self.assembly.arrived(got, sink).map_err(ConnectionEnd::Corrupt)?;
            // A short read emptied the socket; reading again would only cost a system call.
            if got < wanted {
                break;
            }
        }
        Ok(taken > 0)
    }

    /// One system call. Returns the bytes of room and the bytes received.
    fn receive(&mut self) -> Result<(usize, usize), Errno> {
        let ReadSpace { first, second } = self.assembly.room();
        let wanted = first.1 + second.1;
        // SAFETY: the room is writable until the next `arrived`, as `ReadSpace` promises. Benefit over slices:
        // payloads land in place without an intermediate copy, and no `&mut` to memory to which the sink's owner may
        // hold pointers is ever made. A zeroed message header has no name, parts or ancillary data.
        let got = unsafe {
            if second.1 == 0 {
                libc::recv(self.stream.as_raw_fd(), first.0.cast(), first.1, 0)
            } else {
                let mut parts = [first, second].map(|(at, len)| libc::iovec { iov_base: at.cast(), iov_len: len });
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = parts.as_mut_ptr();
                message.msg_iovlen = parts.len();
                libc::recvmsg(self.stream.as_raw_fd(), &mut message, 0)
            }
        };
        if got < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok((wanted, got as usize))
    }

    fn closed(&self) -> ConnectionEnd {
        ConnectionEnd::Lost(
            if self.assembly.is_within_frame() {
                "its connection closed in the middle of a frame"
            } else {
                "its connection closed"
            }
            .into(),
        )
    }
}

impl AsFd for TcpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
