//! TCP, for workers that share no memory with this one.

use std::net::SocketAddr;

use super::{OpenError, PeerAddresses, Routes, TransportChoice};
use crate::control::ControlPlane;
use crate::tcp::{ConnectChoice, PeerListener, TcpTransport};
use crate::{OPEN_TIMEOUT, Rank};

/// Where TCP reaches this worker.
pub(super) struct PeerListeners {
    /// `None` if TCP is not needed or not allowed.
    listener: Option<PeerListener>,
    pub(super) addresses: Vec<SocketAddr>,
}

impl PeerListeners {
    /// Listens even if shared memory should reach every worker: a pair may still fall back to TCP.
    pub(super) fn bind(control: &ControlPlane, choice: TransportChoice) -> Result<Self, OpenError> {
        if control.is_in_process() || control.size() == 1 || choice == TransportChoice::SharedMemory {
            return Ok(PeerListeners { listener: None, addresses: Vec::new() });
        }
        let bound = PeerListener::bind(&control.local_addresses());
        let (listener, addresses) = bound.map_err(|e| OpenError::Tcp(e.to_string()))?;
        Ok(PeerListeners { listener: Some(listener), addresses })
    }

    /// Opens TCP to all workers that `routes` do not reach yet.
    pub(super) fn connect(
        self,
        control: &ControlPlane,
        addresses: &[PeerAddresses],
        connect: ConnectChoice,
        routes: &mut Routes,
    ) -> Result<(), OpenError> {
        let remote: Vec<(Rank, Vec<SocketAddr>)> = (0..control.size())
            .map(Rank)
            .filter(|&peer| peer != control.rank() && routes.of_rank[peer.index()].is_none())
            .map(|peer| (peer, addresses[peer.index()].listener.clone()))
            .collect();
        let Some(&(first, _)) = remote.first() else { return Ok(()) };
        let Some(listener) = self.listener else {
            return Err(OpenError::NotLocal { rank: first, reason: "it is on another host".into() });
        };
        let transport = TcpTransport::open(control.rank(), &remote, listener, control.key(), connect, OPEN_TIMEOUT)
            .map_err(|e| OpenError::Tcp(e.to_string()))?;
        routes.add(remote.iter().map(|&(peer, _)| peer), Box::new(transport));
        Ok(())
    }
}
