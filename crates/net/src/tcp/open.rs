//! Connecting all pairs at once: the higher rank of a pair calls, the lower one answers, in one loop that never waits
//! for any single peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::sockopt;

use super::{PeerListener, TcpTransport};
use crate::control::ranks;
use crate::rendezvous::conversation::HandshakeOutcome;
use crate::rendezvous::dial::DialAttempt;
use crate::rendezvous::gate::ConnectionAcceptor;
use crate::rendezvous::proof::{ConnectionClaim, ConnectionPurpose};
use crate::secret::JobKey;
use crate::threads::poll_until;
use crate::{Rank, notice};

/// What the kernel, which allows twice as much, holds on its way to a worker of the same host: with more, the bytes
/// would have left the core's cache before the receiver copies them. It has to be four segments of the loopback
/// interface, of up to 64 KiB each: with one the sender would wait for acknowledgements that the kernel delays.
const LOCAL_SEND_BYTES: usize = 128 << 10;

/// Why not all peers were connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpOpenError {
    /// Peers that did not come, or were not reached, in time.
    #[error(
        "no connection to worker(s) {} within {waited_s} s{}; do firewalls let workers connect to each other, and is \
         the right network interface in use?",
        ranks(missing), hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default()
    )]
    Missing {
        /// Who.
        missing: Vec<Rank>,
        /// How long this worker tried, in seconds.
        waited_s: u64,
        /// The last thing that went wrong.
        hint: Option<String>,
    },
    /// A peer refuses this worker and will go on to.
    #[error("worker {peer} and this one reject each other: {reason}")]
    Refused {
        /// Who.
        peer: Rank,
        /// Why.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl TcpTransport {
    /// Connects this worker with `peers`, each with the addresses it published. Collective: every peer opens its own
    /// side at the same time. Connections prove themselves with the job's key; strangers are refused and logged.
    ///
    /// # Errors
    /// [`TcpOpenError`], after `timeout` at the latest.
    pub fn open(
        rank: Rank,
        peers: &[(Rank, Vec<SocketAddr>)],
        listener: PeerListener,
        key: &JobKey,
        timeout: Duration,
    ) -> Result<TcpTransport, TcpOpenError> {
        let start = Instant::now();
        let deadline = start + timeout;
        let mut met: BTreeMap<Rank, Option<HandshakeOutcome>> = peers.iter().map(|(peer, _)| (*peer, None)).collect();
        let callers = peers.iter().filter(|(peer, _)| *peer > rank).count();
        let mut gate =
            ConnectionAcceptor::new(listener.socket, key.clone(), ConnectionPurpose::Frames, rank, callers as u32)?;
        // The size takes no part here; the rendezvous has compared it.
        let call = |to| ConnectionClaim { purpose: ConnectionPurpose::Frames, from: rank, to, size: 0 };
        let mut dials: Vec<(Rank, DialAttempt)> = peers
            .iter()
            .filter(|(peer, _)| *peer < rank)
            .map(|(peer, addresses)| (*peer, DialAttempt::new(addresses.clone(), key.clone(), call(*peer), start)))
            .collect();

        while met.values().any(Option::is_none) {
            let deadlines = dials.iter().filter_map(|(_, dial)| dial.next_deadline()).chain(gate.next_deadline());
            let until = deadlines.min().map_or(deadline, |at| at.min(deadline));
            let mut fds = Vec::new();
            gate.interest(&mut fds);
            let gate_len = fds.len();
            fds.extend(dials.iter().filter_map(|(_, dial)| dial.interest()));
            poll_until(&mut fds, until)?;
            let ready: Vec<PollFlags> = fds.iter().map(rustix::event::PollFd::revents).collect();
            drop(fds);
            let now = Instant::now();

            let mut ready_dials = ready[gate_len..].iter();
            for (peer, dial) in &mut dials {
                let flags =
                    if dial.interest().is_some() { *ready_dials.next().expect("asked") } else { PollFlags::empty() };
                match dial.advance(now, flags) {
                    Ok(None) => {}
                    Ok(Some(answered)) => drop(met.insert(*peer, Some(answered))),
                    Err(error) => return Err(TcpOpenError::Refused { peer: *peer, reason: error.to_string() }),
                }
            }
            for caller in gate.advance(now, &ready[..gate_len]) {
                let from = caller.call.from;
                match met.get_mut(&from) {
                    // The last call counts: a peer calls again only when it has given up the one before.
                    Some(slot) if from > rank => *slot = Some(caller),
                    _ => notice!(rank, "rank {from} connected, but higher ranks must connect to lower ones"),
                }
            }
            if now >= deadline {
                let missing: Vec<Rank> = met.iter().filter(|(_, met)| met.is_none()).map(|(peer, _)| *peer).collect();
                let Some(first) = missing.first() else { break };
                let tried = dials.iter().find(|(peer, _)| peer == first).map(|(_, dial)| dial.last_error().to_string());
                let hint = tried.or_else(|| gate.refusals());
                return Err(TcpOpenError::Missing { missing, waited_s: timeout.as_secs(), hint });
            }
        }
        let mut streams = Vec::with_capacity(met.len());
        for (peer, met) in met {
            let stream = met.expect("the loop ends when nobody is missing").stream;
            sockopt::set_tcp_nodelay(&stream, true).map_err(std::io::Error::from)?;
            // A peer that is gone again has no address; the first poll will tell.
            let same_host = matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a.ip() == b.ip());
            if same_host {
                sockopt::set_socket_send_buffer_size(&stream, LOCAL_SEND_BYTES).map_err(std::io::Error::from)?;
            }
            // Finds a host that vanished while nothing is sent. No TCP_USER_TIMEOUT: it would also end connections
            // whose receiver just does not read for a while, which the control plane's heartbeats tell apart.
            sockopt::set_socket_keepalive(&stream, true).map_err(std::io::Error::from)?;
            sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10)).map_err(std::io::Error::from)?;
            sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5)).map_err(std::io::Error::from)?;
            sockopt::set_tcp_keepcnt(&stream, 6).map_err(std::io::Error::from)?;
            streams.push((peer, stream));
        }
        Ok(TcpTransport::new(streams)?)
    }
}
