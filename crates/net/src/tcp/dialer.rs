//! Connections on demand: a thread that calls peers when this worker first sends them something, and answers their
//! calls.
//!
//! This is a thread because a caller must not wait until the program of the called worker next communicates. It
//! sleeps unless a handshake is in progress, and passes each connection to the transport, which it wakes through a
//! descriptor.
//!
//! *Who calls whom.* Either end may call, even both at once. Then the higher rank's call wins: the higher rank
//! rejects the lower rank's call ([`HandshakeError::Busy`]), and the lower rank waits for the call in progress. If
//! that fails all the same, because one end has given up a call that the other has answered, the pair has two
//! connections. This is harmless: each end sends on its first connection and receives on both, so frames stay in
//! order.
//!
//! *When a connection counts.* The caller's first byte after the handshake confirms that it has not given up the call
//! in the meantime. The called worker sends nothing before it receives that byte, so no frame goes to a connection
//! that nobody reads.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::PeerListener;
use crate::bell::Bell;
use crate::fork::{ForkOrigin, PrivateFd};
use crate::handshake::dial::DialAttempt;
use crate::handshake::gate::ConnectionAcceptor;
use crate::handshake::proof::{ConnectionClaim, ConnectionPurpose};
use crate::secret::JobKey;
use crate::threads::{poll_until, spawn_native};
use crate::{Rank, notice};

/// Send buffer towards a worker on the same host (the kernel allows twice as much): with more, the bytes would have
/// left the core's cache before the receiver copies them. It has to hold four segments of the loopback interface, of
/// up to 64 KiB each: with one segment, the sender would wait for acknowledgements that the kernel delays.
const LOCAL_SEND_BYTES: usize = 128 << 10;

/// After calling a peer for longer than this, a worker no longer rejects the peer's calls: perhaps the peer can reach
/// this worker, but not the other way round.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// A call that takes longer than this is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(5);

/// How long a thread sleeps that waits only for its descriptors.
const IDLE: Duration = Duration::from_secs(3600);

/// The caller's first byte.
const CONFIRMATION: u8 = 1;

/// What the transport learns about a peer.
pub(super) enum DialNews {
    /// A connection that this worker or the peer opened.
    Connected { peer: Rank, stream: PrivateFd<TcpStream>, called: bool },
    /// A call failed.
    Failed { peer: Rank, reason: DialFailure },
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) enum DialFailure {
    /// The peer was not reached in time; holds the last error.
    TimedOut(Option<String>),
    /// The peer refuses this worker and will keep refusing it.
    Refused(String),
}

/// What the transport and the thread share.
struct DialBoard {
    state: Mutex<DialState>,
    /// Whether [`DialState::news`] has entries.
    has_news: AtomicBool,
    /// Readable while there is news.
    bell: Bell,
    /// Wakes the thread.
    wake: Bell,
}

#[derive(Default)]
struct DialState {
    /// Peers to call.
    wanted: Vec<Rank>,
    /// Peers whose calls were answered but are not confirmed yet.
    unconfirmed: Vec<Rank>,
    news: Vec<DialNews>,
    /// The last caller that was refused, and why.
    refusal: Option<String>,
    stopped: bool,
}

/// The transport's handle on the thread, which ends when the handle is dropped.
pub(super) struct Dialer {
    board: Arc<DialBoard>,
    thread: Option<JoinHandle<()>>,
    origin: ForkOrigin,
}

impl Dialer {
    /// Starts the thread of worker `rank`. It gives up a call after `timeout`.
    pub(super) fn start(
        rank: Rank,
        peers: &[(Rank, Vec<SocketAddr>)],
        listener: PeerListener,
        key: &JobKey,
        timeout: Duration,
    ) -> io::Result<Dialer> {
        let board = Arc::new(DialBoard {
            state: Mutex::default(),
            has_news: AtomicBool::new(false),
            bell: Bell::new()?,
            wake: Bell::new()?,
        });
        let acceptor =
            ConnectionAcceptor::new(listener.socket, key.clone(), ConnectionPurpose::Frames, rank, peers.len() as u32)?;
        let calls = DialLoop {
            rank,
            addresses: peers.iter().cloned().collect(),
            key: key.clone(),
            timeout,
            board: Arc::clone(&board),
            acceptor,
            wanted: BTreeMap::new(),
            dials: BTreeMap::new(),
            unconfirmed: Vec::new(),
        };
        let thread = spawn_native("tidemill-dial".into(), move || calls.run())?;
        Ok(Dialer { board, thread: Some(thread), origin: ForkOrigin::here() })
    }

    /// Calls `peer`, unless a connection with it is in progress. [`Dialer::news`] reports the outcome.
    pub(super) fn call(&self, peer: Rank) {
        self.board.state.lock().wanted.push(peer);
        self.board.wake.ring();
    }

    /// Whether there may be news. One atomic load.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.board.has_news.load(Ordering::Acquire)
    }

    /// The news since the last call.
    pub(super) fn news(&self) -> Vec<DialNews> {
        let mut state = self.board.state.lock();
        self.board.has_news.store(false, Ordering::Release);
        self.board.bell.hush();
        std::mem::take(&mut state.news)
    }

    /// The last caller that was refused, and why: an honest worker with another secret, for example.
    pub(super) fn last_refusal(&self) -> Option<String> {
        self.board.state.lock().refusal.clone()
    }

    /// Whether a connection with `peer` exists that [`Dialer::news`] has not reported yet: the peer may have sent
    /// something on it.
    pub(super) fn has_connection(&self, peer: Rank) -> bool {
        let state = self.board.state.lock();
        state.unconfirmed.contains(&peer)
            || state.news.iter().any(|news| matches!(news, DialNews::Connected { peer: p, .. } if *p == peer))
    }
}

impl AsFd for Dialer {
    /// Readable when there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.board.bell.as_fd()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        // A forked child does not have this thread, and the lock may be held forever.
        if !self.origin.is_here() {
            return std::mem::forget(self.thread.take());
        }
        self.board.state.lock().stopped = true;
        self.board.wake.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Dial {
    attempt: DialAttempt,
    since: Instant,
    noticed: bool,
}

/// The state of the thread.
struct DialLoop {
    rank: Rank,
    addresses: BTreeMap<Rank, Vec<SocketAddr>>,
    key: JobKey,
    timeout: Duration,
    board: Arc<DialBoard>,
    acceptor: ConnectionAcceptor,
    /// Peers for which the transport has no connection to send on, and since when.
    wanted: BTreeMap<Rank, Instant>,
    dials: BTreeMap<Rank, Dial>,
    /// Connections that their callers have not confirmed yet.
    unconfirmed: Vec<(Rank, PrivateFd<TcpStream>)>,
}

impl DialLoop {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            if !self.take_calls(now) {
                return;
            }
            self.begin_dials(now);
            let ready = match self.wait(now) {
                Ok(ready) => ready,
                Err(error) => {
                    notice!(self.rank, "cannot wait for connections: {error}");
                    return;
                }
            };
            let now = Instant::now();
            let (answers, rest) = ready.split_at(self.acceptor.interest_len());
            let (unconfirmed, dials) = rest.split_at(self.unconfirmed.len());
            // In this order: each step takes as many poll results as it had descriptors when the poll began.
            self.confirm(unconfirmed);
            self.advance_dials(now, dials);
            self.answer(now, answers);
            self.give_up(now);
        }
    }

    /// Collects the transport's requests. Returns `false` when the thread is to end.
    fn take_calls(&mut self, now: Instant) -> bool {
        let mut state = self.board.state.lock();
        for peer in state.wanted.drain(..) {
            self.wanted.entry(peer).or_insert(now);
        }
        !state.stopped
    }

    fn begin_dials(&mut self, now: Instant) {
        for (&peer, &since) in &self.wanted {
            if self.dials.contains_key(&peer) || self.unconfirmed.iter().any(|(from, _)| *from == peer) {
                continue;
            }
            // The size is unused here: the rendezvous has compared it.
            let call = ConnectionClaim { purpose: ConnectionPurpose::Frames, from: self.rank, to: peer, size: 0 };
            let addresses = self.addresses.get(&peer).cloned().unwrap_or_default();
            let mut attempt = DialAttempt::new(addresses, self.key.clone(), call, now);
            // Starts connecting at once. A new attempt cannot have been refused.
            let _ = attempt.advance(now, PollFlags::empty());
            self.dials.insert(peer, Dial { attempt, since, noticed: false });
        }
    }

    /// Sleeps until something can proceed. Returns the poll results of the acceptor, the unconfirmed connections and
    /// the dials, in this order.
    fn wait(&self, now: Instant) -> io::Result<Vec<PollFlags>> {
        let timeouts = self.wanted.values().map(|since| *since + self.timeout);
        let deadlines = self.dials.values().filter_map(|dial| dial.attempt.next_deadline());
        let until = timeouts.chain(deadlines).chain(self.acceptor.next_deadline()).min().unwrap_or(now + IDLE);
        let mut fds = Vec::new();
        self.acceptor.interest(&mut fds);
        fds.extend(self.unconfirmed.iter().map(|(_, stream)| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)));
        fds.extend(self.dials.values().filter_map(|dial| dial.attempt.interest()));
        fds.push(PollFd::new(&self.board.wake, PollFlags::IN));
        poll_until(&mut fds, until)?;
        let ready = fds.iter().map(PollFd::revents).collect();
        self.board.wake.hush();
        Ok(ready)
    }

    /// Reads the callers' first bytes.
    fn confirm(&mut self, ready: &[PollFlags]) {
        let mut flags = ready.iter();
        for (peer, stream) in std::mem::take(&mut self.unconfirmed) {
            if flags.next().is_none_or(|flags| flags.is_empty()) {
                self.unconfirmed.push((peer, stream));
                continue;
            }
            let mut byte = [0];
            match rustix::net::recv(&stream, &mut byte, RecvFlags::empty()) {
                Ok((1, _)) if byte[0] == CONFIRMATION => self.connected(peer, stream, false),
                Err(Errno::AGAIN | Errno::INTR) => self.unconfirmed.push((peer, stream)),
                // The caller has given up this call; it calls again or waits for this worker's call.
                _ => self.forget_unconfirmed(peer, |_| {}),
            }
        }
    }

    fn advance_dials(&mut self, now: Instant, ready: &[PollFlags]) {
        let mut flags = ready.iter();
        for (peer, mut dial) in std::mem::take(&mut self.dials) {
            let ready = match dial.attempt.interest() {
                Some(_) => flags.next().copied().unwrap_or(PollFlags::empty()),
                None => PollFlags::empty(),
            };
            match dial.attempt.advance(now, ready) {
                Ok(Some(met)) => {
                    // One byte fits into an empty buffer. If the peer is already gone, the first poll reports it.
                    let _ = rustix::net::send(&met.stream, &[CONFIRMATION], SendFlags::NOSIGNAL);
                    self.connected(peer, met.stream, true);
                }
                Err(error) => self.failed(peer, DialFailure::Refused(error.to_string())),
                // Nobody waits for this call any more, and the peer does not know of it.
                Ok(None) if dial.attempt.is_waiting() && !self.wanted.contains_key(&peer) => {}
                Ok(None) => {
                    if !dial.noticed && now - dial.since > NOTICE_AFTER {
                        dial.noticed = true;
                        let error = dial.attempt.last_error();
                        notice!(self.rank, "cannot connect to worker {peer} yet, retrying: {error}");
                    }
                    self.dials.insert(peer, dial);
                }
            }
        }
    }

    /// Advances the calls of other workers.
    fn answer(&mut self, now: Instant, ready: &[PollFlags]) {
        let (rank, dials) = (self.rank, &self.dials);
        let is_calling = |from: Rank| {
            from < rank
                && dials.get(&from).is_some_and(|dial| !dial.attempt.is_waiting() && now - dial.since < PRECEDENCE)
        };
        // Locked from the verdict that the caller receives until the connection is recorded: when the caller has sent
        // something and left, `has_connection` is true.
        let mut state = self.board.state.lock();
        for caller in self.acceptor.advance(now, ready, &is_calling) {
            let from = caller.call.from;
            if self.addresses.contains_key(&from) {
                state.unconfirmed.push(from);
                self.unconfirmed.push((from, caller.stream));
            } else {
                notice!(rank, "rank {from} connected by TCP, but shares memory with this worker; ignored");
            }
        }
        state.refusal = self.acceptor.refusals();
    }

    /// Gives up calls that take too long.
    fn give_up(&mut self, now: Instant) {
        let overdue: Vec<Rank> =
            self.wanted.iter().filter(|(_, since)| now - **since >= self.timeout).map(|(peer, _)| *peer).collect();
        for peer in overdue {
            let tried = self.dials.remove(&peer).map(|dial| dial.attempt.last_error().to_string());
            let hint = tried.or_else(|| self.acceptor.refusals());
            self.failed(peer, DialFailure::TimedOut(hint));
        }
    }

    fn connected(&mut self, peer: Rank, stream: PrivateFd<TcpStream>, called: bool) {
        self.wanted.remove(&peer);
        match prepare(&stream) {
            Ok(()) => {
                let news = DialNews::Connected { peer, stream, called };
                if called { self.tell(news) } else { self.forget_unconfirmed(peer, |state| state.news.push(news)) }
            }
            Err(error) => {
                if !called {
                    self.forget_unconfirmed(peer, |_| {});
                }
                self.failed(peer, DialFailure::Refused(format!("this worker's system refused: {error}")));
            }
        }
    }

    fn failed(&mut self, peer: Rank, reason: DialFailure) {
        self.wanted.remove(&peer);
        self.tell(DialNews::Failed { peer, reason });
    }

    fn tell(&self, news: DialNews) {
        let mut state = self.board.state.lock();
        state.news.push(news);
        self.announce();
    }

    /// Removes `peer` from the unconfirmed connections and runs `then` under the same lock.
    fn forget_unconfirmed(&self, peer: Rank, then: impl FnOnce(&mut DialState)) {
        let mut state = self.board.state.lock();
        let at = state.unconfirmed.iter().position(|from| *from == peer).expect("told when it was answered");
        state.unconfirmed.swap_remove(at);
        then(&mut state);
        self.announce();
    }

    /// Call with the state locked, so that a later look sees all of it.
    fn announce(&self) {
        self.board.has_news.store(true, Ordering::Release);
        self.board.bell.ring();
    }
}

/// Sets the options of every connection.
fn prepare(stream: &PrivateFd<TcpStream>) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    // A peer that is already gone has no address; the first poll reports it.
    let same_host = matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a.ip() == b.ip());
    if same_host {
        sockopt::set_socket_send_buffer_size(stream, LOCAL_SEND_BYTES)?;
    }
    // Detects a host that vanishes while nothing is sent. No TCP_USER_TIMEOUT: it would also end connections whose
    // receiver only pauses reading; the control plane's heartbeats tell the two apart.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    Ok(())
}
