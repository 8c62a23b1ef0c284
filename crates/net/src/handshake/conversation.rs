//! One handshake on one non-blocking socket: moves bytes between the stream and the state machine of [`super::proof`].

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::PollFlags;

use super::proof::{
    CHUNK_BYTES_MAX, ConnectionClaim, ConnectionPurpose, HandshakeClient, HandshakeError, HandshakeServer,
    HandshakeStep,
};
use crate::Rank;
use crate::fork::PrivateFd;
use crate::secret::{JobKey, random_bytes};

enum HandshakeSide {
    Client(HandshakeClient),
    Server(HandshakeServer),
}

/// A handshake in progress.
pub(crate) struct Conversation {
    stream: PrivateFd<TcpStream>,
    side: HandshakeSide,
    peer: SocketAddr,
    deadline: Instant,
    chunk: [u8; CHUNK_BYTES_MAX],
    chunk_len: usize,
    wanted: usize,
    out: Vec<u8>,
    done: Option<ConnectionClaim>,
}

/// The result of a handshake: the stream, still non-blocking, with nothing read past the handshake.
pub(crate) struct HandshakeOutcome {
    pub(crate) stream: PrivateFd<TcpStream>,
    pub(crate) call: ConnectionClaim,
}

impl Conversation {
    /// Answers the caller at the other end of `stream`.
    pub(crate) fn answer(
        stream: PrivateFd<TcpStream>,
        peer: SocketAddr,
        key: &JobKey,
        (purpose, me): (ConnectionPurpose, Rank),
        deadline: Instant,
    ) -> Self {
        let (server, step) = HandshakeServer::start(key.clone(), purpose, me, random_bytes());
        Self::new(stream, HandshakeSide::Server(server), peer, deadline, step, Vec::new())
    }

    /// Calls over `stream`, which may still be connecting: then the first write fails or waits like any other.
    pub(crate) fn call(
        stream: PrivateFd<TcpStream>,
        peer: SocketAddr,
        key: &JobKey,
        call: ConnectionClaim,
        deadline: Instant,
    ) -> Self {
        let mut out = Vec::new();
        let (client, step) = HandshakeClient::start(key.clone(), call, random_bytes(), &mut out);
        Self::new(stream, HandshakeSide::Client(client), peer, deadline, step, out)
    }

    fn new(
        stream: PrivateFd<TcpStream>,
        side: HandshakeSide,
        peer: SocketAddr,
        deadline: Instant,
        step: HandshakeStep,
        out: Vec<u8>,
    ) -> Self {
        let HandshakeStep::Read(wanted) = step else { unreachable!("a handshake takes more than one message") };
        let chunk = [0; CHUNK_BYTES_MAX];
        Conversation { stream, side, peer, deadline, chunk, chunk_len: 0, wanted, out, done: None }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// What to poll for. A conversation with bytes to send does not read.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Advances as far as possible without blocking. Returns `true` when done; [`Conversation::finish`] then has the
    /// result. `is_calling` is for [`HandshakeServer::receive`].
    pub(crate) fn advance(&mut self, is_calling: &dyn Fn(Rank) -> bool) -> Result<bool, HandshakeError> {
        loop {
            if !self.write()? {
                return Ok(false);
            }
            if self.done.is_some() {
                return Ok(true);
            }
            if !self.read()? {
                return Ok(false);
            }
            let chunk = &self.chunk[..self.chunk_len];
            let step = match &mut self.side {
                HandshakeSide::Client(client) => client.receive(chunk, &mut self.out),
                HandshakeSide::Server(server) => server.receive(chunk, is_calling, &mut self.out),
            };
            self.chunk_len = 0;
            match step {
                Ok(HandshakeStep::Read(wanted)) => self.wanted = wanted,
                Ok(HandshakeStep::Done(call)) => self.done = Some(call),
                Err(error) => {
                    // Send the reason to an honest caller. It fits into an empty socket buffer; a stranger's full
                    // buffer is not worth waiting for.
                    let _ = self.write();
                    return Err(error);
                }
            }
        }
    }

    /// Returns the stream and the agreed claim, once `advance` is done.
    pub(crate) fn finish(self) -> HandshakeOutcome {
        let call = self.done.expect("finish follows a successful advance");
        HandshakeOutcome { stream: self.stream, call }
    }

    fn write(&mut self) -> Result<bool, HandshakeError> {
        while !self.out.is_empty() {
            match (&*self.stream).write(&self.out) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(HandshakeError::Broken(e.to_string())),
            }
        }
        Ok(true)
    }

    fn read(&mut self) -> Result<bool, HandshakeError> {
        while self.chunk_len < self.wanted {
            match (&*self.stream).read(&mut self.chunk[self.chunk_len..self.wanted]) {
                Ok(0) => return Err(HandshakeError::Broken("the connection was closed".into())),
                Ok(n) => self.chunk_len += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(HandshakeError::Broken(e.to_string())),
            }
        }
        Ok(true)
    }
}
