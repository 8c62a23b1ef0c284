//! TLS connections for lapin. Its own TLS would pull in a PKCS#12 reader and forty crates, so it gets streams that are
//! already encrypted, from a reactor that does the handshake when it connects, and is otherwise Tokio's.

use std::io::{Read, Result, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use async_compat::{Compat, CompatExt};
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_util::{AsyncRead, AsyncWrite, Stream};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An encrypted stream, see the module.
#[derive(Clone, Debug)]
pub(crate) struct EncryptedStream {
    tokio: Tokio,
    connector: OpaqueConnector,
    /// The name that the server's certificate must have.
    name: ServerName<'static>,
}

/// A wrapper whose `Debug` shows nothing.
#[derive(Clone)]
struct OpaqueConnector(TlsConnector);

impl std::fmt::Debug for OpaqueConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

/// The runtime through which lapin connects. Call it within a Tokio runtime.
pub(crate) fn runtime(
    connector: TlsConnector,
    name: ServerName<'static>,
) -> Runtime<RuntimeParts<Tokio, EncryptedStream>> {
    let tokio = Tokio::current();
    let reactor = EncryptedStream { tokio: tokio.clone(), connector: OpaqueConnector(connector), name };
    Runtime::new(RuntimeParts::new(tokio, reactor))
}

impl Reactor for EncryptedStream {
    type TcpStream = Compat<TlsStream<TcpStream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.tokio.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(duration)
    }

    fn tcp_connect_addr(&self, address: SocketAddr) -> impl Future<Output = Result<Self::TcpStream>> + Send + 'static {
        let (OpaqueConnector(connector), name) = (self.connector.clone(), self.name.clone());
        async move { Ok(connector.connect(name, TcpStream::connect(address).await?).await?.compat()) }
    }
}
