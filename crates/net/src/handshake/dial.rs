//! The calling side: connects to one worker at any of its addresses, and retries until it succeeds.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use super::conversation::{Conversation, HandshakeOutcome};
use super::proof::{ConnectionClaim, HandshakeError};
use crate::fork::PrivateFd;
use crate::secret::JobKey;

/// How long one try may take, including connecting and the handshake. Longer than the pause of a busy peer, and short
/// enough that trying the next address of a host does not feel stuck.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A permanent refusal counts only after this long: at first it may come from a remnant of an earlier job.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct DialAttempt {
    addresses: Vec<SocketAddr>,
    next: usize,
    key: JobKey,
    call: ConnectionClaim,
    state: DialState,
    pause: Duration,
    refused_since: Option<Instant>,
    not_expected: bool,
    last_error: String,
}

enum DialState {
    Waiting { until: Instant },
    Talking(Box<Conversation>),
    Finished,
}

impl DialAttempt {
    pub(crate) fn new(addresses: Vec<SocketAddr>, key: JobKey, call: ConnectionClaim, now: Instant) -> Self {
        DialAttempt {
            addresses,
            next: 0,
            key,
            call,
            state: DialState::Waiting { until: now },
            pause: PAUSE_MIN,
            refused_since: None,
            not_expected: false,
            last_error: "no address".into(),
        }
    }

    /// Sets the addresses for the next try on, as name resolution finds them.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// The last error.
    pub(crate) fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Whether the last worker that answered did not expect this call.
    pub(crate) fn is_not_expected(&self) -> bool {
        self.not_expected
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, DialState::Waiting { .. })
    }

    /// What to poll for, if anything.
    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            DialState::Talking(c) => Some(PollFd::from_borrowed_fd(c.stream().as_fd(), c.interest())),
            DialState::Waiting { .. } | DialState::Finished => None,
        }
    }

    /// The latest time for the next call of `advance`.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            DialState::Waiting { until } => Some(*until),
            DialState::Talking(c) => Some(c.deadline()),
            DialState::Finished => None,
        }
    }

    /// Advances. `ready` is the poll result for `interest`, empty if there was none.
    ///
    /// # Errors
    /// A refusal that another try will not change.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        ready: PollFlags,
    ) -> Result<Option<HandshakeOutcome>, HandshakeError> {
        match &mut self.state {
            DialState::Finished => return Ok(None),
            DialState::Waiting { until } => {
                if now < *until || self.addresses.is_empty() {
                    if now >= *until {
                        self.retry(now);
                    }
                    return Ok(None);
                }
                let address = self.addresses[self.next % self.addresses.len()];
                self.next += 1;
                match connect(address) {
                    Ok(stream) => {
                        let deadline = now + TRY_TIMEOUT;
                        self.last_error = format!("{address}: no answer");
                        let talk = Conversation::call(stream, address, &self.key, self.call, deadline);
                        self.state = DialState::Talking(Box::new(talk));
                    }
                    Err(e) => {
                        let out_of_files = matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                        let remedy = if out_of_files { "; raise the limit on open files (`ulimit -n`)" } else { "" };
                        self.last_error = format!("{address}: {e}{remedy}");
                        self.retry(now);
                    }
                }
                return Ok(None);
            }
            DialState::Talking(_) => {}
        }
        let DialState::Talking(mut talk) = std::mem::replace(&mut self.state, DialState::Finished) else {
            unreachable!()
        };
        let outcome = if !ready.is_empty() {
            talk.advance(&|_| false)
        } else if now >= talk.deadline() {
            Err(HandshakeError::Broken(format!("no answer within {} s", TRY_TIMEOUT.as_secs())))
        } else {
            Ok(false)
        };
        match outcome {
            Ok(true) => Ok(Some(talk.finish())),
            Ok(false) => {
                self.state = DialState::Talking(talk);
                Ok(None)
            }
            Err(error) => {
                self.last_error = format!("{}: {error}", talk.peer());
                self.not_expected = matches!(error, HandshakeError::NotExpected);
                if error.is_final() {
                    let since = *self.refused_since.get_or_insert(now);
                    if now - since >= REFUSAL_PATIENCE {
                        return Err(error);
                    }
                } else {
                    self.refused_since = None;
                }
                self.retry(now);
                Ok(None)
            }
        }
    }

    fn retry(&mut self, now: Instant) {
        // Try the other addresses of the host first, then pause.
        let another = self.addresses.len() > 1 && !self.next.is_multiple_of(self.addresses.len());
        let until = if another { now } else { now + self.pause };
        if !another {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.state = DialState::Waiting { until };
    }
}

/// Starts a connection without waiting for it.
fn connect(address: SocketAddr) -> std::io::Result<PrivateFd<TcpStream>> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    let stream = PrivateFd::new(TcpStream::from(socket));
    match rustix::net::connect(&stream, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(stream),
        Err(e) => Err(e.into()),
    }
}
