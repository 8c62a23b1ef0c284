//! Connections of lapin by TLS. Its own TLS would bring a reader of PKCS#12 and forty crates with it, so it is given
//! streams that are encrypted already: by a reactor that shakes hands as it connects, and is Tokio's otherwise.

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

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct EncryptedStream {
    tokio: Tokio,
    connector: OpaqueConnector,
    /// What the server's certificate has to be for.
    name: ServerName<'static>,
}

/// One without anything that could be shown.
#[derive(Clone)]
struct OpaqueConnector(TlsConnector);

impl std::fmt::Debug for OpaqueConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

/// Within a runtime of Tokio: what lapin connects by.
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
