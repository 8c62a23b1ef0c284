//! Opens the transport, with or without connecting all pairs at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::dialer::{DialFailure, DialNews, Dialer};
use super::{PeerListener, TcpPeer, TcpTransport};
use crate::Rank;
use crate::control::ranks;
use crate::secret::JobKey;
use crate::threads::poll_until;

/// How much later than this worker its dialer may notice the timeout. Worth waiting for, since the dialer knows the
/// reason.
const REASON_PATIENCE: Duration = Duration::from_millis(500);

/// Why not all peers were connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpOpenError {
    /// Peers that did not connect, or were not reached, in time.
    #[error(
        "no connection to worker(s) {} within {waited_s} s{}; do firewalls let workers connect to each other, and is \
         the right network interface in use?",
        ranks(missing), hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default()
    )]
    Missing {
        /// The peers.
        missing: Vec<Rank>,
        /// How long this worker tried, in seconds.
        waited_s: u64,
        /// The last thing that went wrong.
        hint: Option<String>,
    },
    /// A peer refuses this worker and will keep refusing it.
    #[error("worker {peer} and this one reject each other: {reason}")]
    Refused {
        /// The peer.
        peer: Rank,
        /// Its reason.
        reason: String,
    },
    /// The operating system refused an operation.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// When workers connect to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectChoice {
    /// A pair connects when one first sends something to the other.
    #[default]
    OnDemand,
    /// All pairs connect at the start, so that obstacles show then.
    All,
}

impl std::str::FromStr for ConnectChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on-demand" | "" => Ok(Self::OnDemand),
            "all" => Ok(Self::All),
            _ => Err(format!("unknown way to connect {text:?}; choose on-demand or all")),
        }
    }
}

impl DialFailure {
    /// Explains the failure for one peer.
    pub(super) fn explain(self) -> String {
        match self {
            DialFailure::TimedOut(hint) => format!(
                "no connection to it{}; do firewalls let workers connect to each other, and is the right network \
                 interface in use?",
                hint.map(|h| format!(" ({h})")).unwrap_or_default()
            ),
            DialFailure::Refused(reason) => format!("it and this worker reject each other: {reason}"),
        }
    }
}

impl TcpTransport {
    /// Opens this worker's side to `peers`, each with the addresses it published. Connections are authenticated with
    /// the job's key; others are refused and logged. A call that does not succeed within `timeout` loses the peer.
    ///
    /// Collective with [`ConnectChoice::All`]: every peer opens its own side at the same time, and the higher rank of
    /// each pair calls the lower one.
    ///
    /// # Errors
    /// [`TcpOpenError`], after `timeout` at the latest.
    pub fn open(
        rank: Rank,
        peers: &[(Rank, Vec<SocketAddr>)],
        listener: PeerListener,
        key: &JobKey,
        connect: ConnectChoice,
        timeout: Duration,
    ) -> Result<TcpTransport, TcpOpenError> {
        let dialer = Dialer::start(rank, peers, listener, key, timeout)?;
        let mut transport = TcpTransport::new(peers.iter().map(|(peer, _)| *peer), dialer)?;
        if connect == ConnectChoice::All {
            transport.connect_all(rank, timeout)?;
        }
        Ok(transport)
    }

    fn connect_all(&mut self, rank: Rank, timeout: Duration) -> Result<(), TcpOpenError> {
        let deadline = Instant::now() + timeout + REASON_PATIENCE;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            // The higher ranks call.
            if let Some(peer) = peer
                && index < rank.index()
            {
                peer.is_called = true;
                self.dialer.call(Rank(index as u32));
            }
        }
        let mut hint = None;
        loop {
            for news in self.dialer.news() {
                match news {
                    DialNews::Connected { peer, stream, called } => self.connect(peer, stream, called)?,
                    DialNews::Failed { peer, reason: DialFailure::Refused(reason) } => {
                        return Err(TcpOpenError::Refused { peer, reason });
                    }
                    DialNews::Failed { reason: DialFailure::TimedOut(last), .. } => hint = hint.or(last),
                }
            }
            let missing = |peer: &TcpPeer| !peer.is_connected();
            let ranks = self.peers.iter().zip(0..).filter(|(peer, _)| peer.as_ref().is_some_and(missing));
            let missing: Vec<Rank> = ranks.map(|(_, rank)| Rank(rank)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let hint = hint.or_else(|| self.dialer.last_refusal());
                return Err(TcpOpenError::Missing { missing, waited_s: timeout.as_secs(), hint });
            }
            poll_until(&mut [PollFd::new(&self.dialer, PollFlags::IN)], deadline)?;
        }
    }
}
