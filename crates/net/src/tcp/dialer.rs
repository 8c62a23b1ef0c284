//! Connections on demand: a thread that calls the peers this worker first has something for, and answers their calls.
//!
//! It is a thread because a caller must not wait until the program of the called worker next communicates. It sleeps
//! unless a handshake is under way, and hands each connection over to the transport, which it wakes by a descriptor.
//!
//! *Who calls whom.* Either end may call, also both at once. The higher rank's call counts then: it turns the lower
//! one's away ([`HandshakeError::Busy`]), who waits for the call that is under way. Where that fails all the same (one
//! end has given up a call that the other has answered) a pair has two connections, which is no harm: each end sends on
//! the first that it has, and receives on both, so frames stay in order.
//!
//! *When a connection counts.* The caller's first byte behind the handshake says that it has not given the call up in
//! the meantime. Before that byte the called worker sends nothing on it, so no frame goes to where nobody reads.

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

/// What the kernel, which allows twice as much, holds on its way to a worker of the same host: with more, the bytes
/// would have left the core's cache before the receiver copies them. It has to be four segments of the loopback
/// interface, of up to 64 KiB each: with one the sender would wait for acknowledgements that the kernel delays.
const LOCAL_SEND_BYTES: usize = 128 << 10;

/// A call that has not come through after this long does not turn others away any more: perhaps only the peer can reach
/// this worker, and not the other way round.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// A call that takes longer than this is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(5);

/// The sleep of a thread that waits for nothing but its descriptors.
const IDLE: Duration = Duration::from_secs(3600);

/// The caller's first byte.
const CONFIRMATION: u8 = 1;

/// What has become of a peer.
pub(super) enum DialNews {
    /// A connection, called by this worker or by the peer.
    Connected { peer: Rank, stream: PrivateFd<TcpStream>, called: bool },
    /// A call that has come to nothing, and why.
    Failed { peer: Rank, reason: DialFailure },
}

/// Why a call has come to nothing.
#[derive(Clone, Debug)]
pub(super) enum DialFailure {
    /// The peer was not reached in time; the last thing that went wrong.
    TimedOut(Option<String>),
    /// The peer refuses this worker and will go on to.
    Refused(String),
}

/// What the transport and the thread share.
struct DialBoard {
    state: Mutex<DialState>,
    /// There is something in [`DialState::news`].
    has_news: AtomicBool,
    /// Readable while there are news.
    bell: Bell,
    /// Wakes the thread.
    wake: Bell,
}

#[derive(Default)]
struct DialState {
    /// Peers to call.
    wanted: Vec<Rank>,
    /// Peers whose calls are answered, and not confirmed yet.
    unconfirmed: Vec<Rank>,
    news: Vec<DialNews>,
    /// The last caller that was refused, and why.
    refusal: Option<String>,
    stopped: bool,
}

/// The transport's handle on the thread. Dropping it ends the thread.
pub(super) struct Dialer {
    board: Arc<DialBoard>,
    thread: Option<JoinHandle<()>>,
    origin: ForkOrigin,
}

impl Dialer {
    /// Starts the thread of worker `rank`. A call is given up after `timeout`.
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

    /// Calls `peer`, unless a connection with it is on its way already. [`Dialer::news`] has the outcome.
    pub(super) fn call(&self, peer: Rank) {
        self.board.state.lock().wanted.push(peer);
        self.board.wake.ring();
    }

    /// Whether there may be news. One load.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.board.has_news.load(Ordering::Acquire)
    }

    /// What has come since the last look.
    pub(super) fn news(&self) -> Vec<DialNews> {
        let mut state = self.board.state.lock();
        self.board.has_news.store(false, Ordering::Release);
        self.board.bell.hush();
        std::mem::take(&mut state.news)
    }

    /// Who called and was refused last: an honest worker with another secret, say.
    pub(super) fn last_refusal(&self) -> Option<String> {
        self.board.state.lock().refusal.clone()
    }

    /// Whether a connection with `peer` was made that [`Dialer::news`] has not told of yet: the peer may have sent
    /// something on it.
    pub(super) fn has_connection(&self, peer: Rank) -> bool {
        let state = self.board.state.lock();
        state.unconfirmed.contains(&peer)
            || state.news.iter().any(|news| matches!(news, DialNews::Connected { peer: p, .. } if *p == peer))
    }
}

impl AsFd for Dialer {
    /// Readable when there are news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.board.bell.as_fd()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        // A forked child has no such thread, and the lock may be held for ever.
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

/// The thread.
struct DialLoop {
    rank: Rank,
    addresses: BTreeMap<Rank, Vec<SocketAddr>>,
    key: JobKey,
    timeout: Duration,
    board: Arc<DialBoard>,
    acceptor: ConnectionAcceptor,
    /// Peers that the transport has nothing to send by, and since when.
    wanted: BTreeMap<Rank, Instant>,
    dials: BTreeMap<Rank, Dial>,
    /// Connections whose callers have not confirmed them yet.
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
            // In this order: each takes as many answers as there were when they were asked for.
            self.confirm(unconfirmed);
            self.advance_dials(now, dials);
            self.answer(now, answers);
            self.give_up(now);
        }
    }

    /// Takes what the transport wants. `false`: the thread is to end.
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
            // The size takes no part here; the rendezvous has compared it.
            let call = ConnectionClaim { purpose: ConnectionPurpose::Frames, from: self.rank, to: peer, size: 0 };
            let addresses = self.addresses.get(&peer).cloned().unwrap_or_default();
            let mut attempt = DialAttempt::new(addresses, self.key.clone(), call, now);
            // Connects at once; an attempt that has just been made cannot have been refused.
            let _ = attempt.advance(now, PollFlags::empty());
            self.dials.insert(peer, Dial { attempt, since, noticed: false });
        }
    }

    /// Sleeps until something can go on. Returns what is ready: of the acceptor, of the unconfirmed, of the dials.
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

    /// Looks for the callers' first bytes.
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
                // The caller has given this call up, and calls again or waits for this worker's call.
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
                    // It fits into an empty buffer; if the peer is gone again the first poll will tell.
                    let _ = rustix::net::send(&met.stream, &[CONFIRMATION], SendFlags::NOSIGNAL);
                    self.connected(peer, met.stream, true);
                }
                Err(error) => self.failed(peer, DialFailure::Refused(error.to_string())),
                // Nobody waits for it any more, and the peer does not know of it.
                Ok(None) if dial.attempt.is_waiting() && !self.wanted.contains_key(&peer) => {}
                Ok(None) => {
                    if !dial.noticed && now - dial.since > NOTICE_AFTER {
                        dial.noticed = true;
                        let error = dial.attempt.last_error();
                        notice!(self.rank, "cannot connect to worker {peer} yet, and tries again: {error}");
                    }
                    self.dials.insert(peer, dial);
                }
            }
        }
    }

    /// Goes on with the calls of others.
    fn answer(&mut self, now: Instant, ready: &[PollFlags]) {
        let (rank, dials) = (self.rank, &self.dials);
        let is_calling = |from: Rank| {
            from < rank
                && dials.get(&from).is_some_and(|dial| !dial.attempt.is_waiting() && now - dial.since < PRECEDENCE)
        };
        // Locked from the verdict that the caller hears until the connection is known to be there: when the caller has
        // sent something and left, `has_connection` says so.
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
                self.failed(peer, DialFailure::Refused(format!("this worker's system refuses: {error}")));
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

    /// A connection of `peer` is unconfirmed no more, and `then` happens at the same moment.
    fn forget_unconfirmed(&self, peer: Rank, then: impl FnOnce(&mut DialState)) {
        let mut state = self.board.state.lock();
        let at = state.unconfirmed.iter().position(|from| *from == peer).expect("told when it was answered");
        state.unconfirmed.swap_remove(at);
        then(&mut state);
        self.announce();
    }

    /// With the state locked, so that a look that follows sees all of it.
    fn announce(&self) {
        self.board.has_news.store(true, Ordering::Release);
        self.board.bell.ring();
    }
}

/// Sets what every connection has.
fn prepare(stream: &PrivateFd<TcpStream>) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    // A peer that is gone again has no address; the first poll will tell.
    let same_host = matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a.ip() == b.ip());
    if same_host {
        sockopt::set_socket_send_buffer_size(stream, LOCAL_SEND_BYTES)?;
    }
    // Finds a host that vanished while nothing is sent. No TCP_USER_TIMEOUT: it would also end connections whose
    // receiver just does not read for a while, which the control plane's heartbeats tell apart.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    Ok(())
}
