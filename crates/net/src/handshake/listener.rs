//! Where other workers connect, and the addresses that they should try.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// A bound listening socket of this worker.
#[derive(Debug)]
pub struct PeerListener {
    pub(crate) socket: TcpListener,
}

impl PeerListener {
    /// Binds a free port and returns the addresses to publish, best first.
    ///
    /// `reached_at` are addresses of this host that other workers are known to use
    /// ([`crate::ControlPlane::local_addresses`]). If all of them are loopback, the job is within this host and the
    /// socket listens on nothing else; otherwise it accepts connections on every interface, and all their addresses
    /// are published, since other workers may be on other networks than rank 0.
    ///
    /// # Errors
    /// If no port can be bound.
    pub fn bind(reached_at: &[IpAddr]) -> io::Result<(PeerListener, Vec<SocketAddr>)> {
        if !reached_at.is_empty() && reached_at.iter().all(IpAddr::is_loopback) {
            let socket = TcpListener::bind((reached_at[0], 0))?;
            let address = socket.local_addr()?;
            return Ok((PeerListener { socket }, vec![address]));
        }
        // A socket bound to [::] also accepts IPv4 connections, unless the system has no IPv6.
        let socket =
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        let local = socket.local_addr()?;
        let mut addresses: Vec<IpAddr> = reached_at.iter().copied().filter(|ip| !ip.is_loopback()).collect();
        addresses.extend(crate::interfaces::addresses());
        let mut published: Vec<SocketAddr> = Vec::new();
        for ip in addresses {
            let address = SocketAddr::new(ip, local.port());
            if (ip.is_ipv4() || local.is_ipv6()) && !published.contains(&address) {
                published.push(address);
            }
        }
        Ok((PeerListener { socket }, published))
    }
}
