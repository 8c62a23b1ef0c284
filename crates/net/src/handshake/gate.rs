//! The listening side: many concurrent handshakes, none of which can delay another.
//!
//! Every caller gets [`HANDSHAKE_TIMEOUT`] and a few hundred bytes of memory. At most `pending_max` handshakes are
//! open; a further one evicts the oldest. Evicted honest workers try again, so a flood can only delay them.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::conversation::{Conversation, HandshakeOutcome};
use super::proof::{ConnectionPurpose, HandshakeError};
use crate::fork::PrivateFd;
use crate::secret::JobKey;
use crate::{Rank, notice};

/// How long one handshake may take.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many connections are accepted per round, so that a flood leaves time for handshakes in progress.
const ACCEPTS_PER_ROUND: usize = 64;

pub(crate) struct ConnectionAcceptor {
    listener: PrivateFd<TcpListener>,
    key: JobKey,
    expects: (ConnectionPurpose, Rank),
    pending: VecDeque<Conversation>,
    pending_max: usize,
    /// After a failed accept (out of descriptors), the time of the next try.
    accept_after: Option<Instant>,
    refused: u64,
    last_refusal: Option<String>,
}

impl ConnectionAcceptor {
    /// Accepts calls on `listener`, which becomes non-blocking, for `purpose` to rank `me`.
    pub(crate) fn new(
        listener: TcpListener,
        key: JobKey,
        purpose: ConnectionPurpose,
        me: Rank,
        size: u32,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(ConnectionAcceptor {
            listener: PrivateFd::new(listener),
            key,
            expects: (purpose, me),
            pending: VecDeque::new(),
            pending_max: 64 + 2 * size as usize,
            accept_after: None,
            refused: 0,
            last_refusal: None,
        })
    }

    /// Accepts calls for another purpose from now on. Gives up handshakes in progress.
    pub(crate) fn expect(&mut self, purpose: ConnectionPurpose) {
        self.expects.0 = purpose;
        self.pending.clear();
    }

    /// Adds what to poll for; `advance` takes the poll results in the same order.
    pub(crate) fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let flags = if self.accept_after.is_some() { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(self.listener.as_fd(), flags));
        fds.extend(self.pending.iter().map(|c| PollFd::from_borrowed_fd(c.stream().as_fd(), c.interest())));
    }

    /// How many poll results `advance` expects.
    pub(crate) fn interest_len(&self) -> usize {
        1 + self.pending.len()
    }

    /// Whether handshakes are in progress.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The latest time for the next call of `advance`.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pending.iter().map(Conversation::deadline).chain(self.accept_after).min()
    }

    /// Advances every handshake that `ready` reports, and returns those that succeeded. Rejects a call from a rank
    /// that this worker `is_calling` itself.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        ready: &[PollFlags],
        is_calling: &dyn Fn(Rank) -> bool,
    ) -> Vec<HandshakeOutcome> {
        let mut met = Vec::new();
        for &flags in &ready[1..] {
            let mut conversation = self.pending.pop_front().expect("one answer per pending handshake");
            let outcome = if !flags.is_empty() {
                match conversation.advance(is_calling) {
                    // Both ends have called at once, and this end's call wins.
                    Err(HandshakeError::Busy) => continue,
                    other => other.map_err(|e| e.to_string()),
                }
            } else if now >= conversation.deadline() {
                Err(format!("no proof within {} s", HANDSHAKE_TIMEOUT.as_secs()))
            } else {
                Ok(false)
            };
            match outcome {
                Ok(true) => met.push(conversation.finish()),
                Ok(false) => self.pending.push_back(conversation),
                Err(reason) => self.refuse(conversation.peer(), reason),
            }
        }
        if self.accept_after.is_some_and(|at| now >= at) {
            self.accept_after = None;
        }
        if !ready[0].is_empty() {
            self.accept(now);
        }
        met
    }

    /// Summarizes refused connections for an error message: honest workers with a wrong secret show up here.
    pub(crate) fn refusals(&self) -> Option<String> {
        let last = self.last_refusal.as_ref()?;
        Some(format!("{} connection(s) refused, the last {last}", self.refused))
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_ROUND {
            let (stream, peer) = match self.listener.accept() {
                Ok(pair) => pair,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The caller hung up before we accepted.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
                Err(e) => {
                    notice!(self.expects.1, "cannot accept connections: {e}");
                    self.accept_after = Some(now + Duration::from_millis(100));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.pending.len() >= self.pending_max {
                let oldest = self.pending.pop_front().expect("pending_max is not zero");
                self.refuse(oldest.peer(), "too many unauthenticated connections".into());
            }
            let deadline = now + HANDSHAKE_TIMEOUT;
            self.pending.push_back(Conversation::answer(
                PrivateFd::new(stream),
                peer,
                &self.key,
                self.expects,
                deadline,
            ));
        }
    }

    fn refuse(&mut self, peer: SocketAddr, reason: String) {
        self.refused += 1;
        // A scanner must not fill the log: log every refusal at first, then only at powers of two.
        if self.refused <= 16 || self.refused.is_power_of_two() {
            let refused = self.refused;
            notice!(self.expects.1, "refused a connection from {peer}: {reason} ({refused} refused so far)");
        }
        self.last_refusal = Some(format!("from {peer}: {reason}"));
    }
}
