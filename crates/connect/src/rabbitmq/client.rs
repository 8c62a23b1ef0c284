//! Connections, and which errors are temporary.

use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, Error, ErrorKind};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::tls::runtime;
use crate::connection::ServerOptions;
use crate::tls::{self, TlsOptions};

/// Time between attempts.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
const CONNECT_MS: u64 = 5000;

/// The address of the server, and the user.
#[derive(Clone)]
pub(crate) struct RabbitMqServer {
    uri: AMQPUri,
    /// With TLS: the connector, and the name that the server's certificate must have.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Host and port.
    pub(crate) name: String,
    /// How long it may be unreachable or silent before the job fails.
    pub(crate) patience: Duration,
}

impl RabbitMqServer {
    /// The URL is `amqp://HOST:PORT/VHOST`, or `amqps:` for TLS. User and password come from the URL, else from
    /// `TIDEMILL_RABBITMQ_USER` and `TIDEMILL_RABBITMQ_PASSWORD`.
    ///
    /// # Errors
    /// A description without the URL, which may contain a password.
    pub(crate) fn new(options: &ServerOptions) -> Result<Self, String> {
        let (url, tls) = (options.url.reveal(), options.tls.as_ref());
        let wrong = || "`url` must be amqp://HOST:PORT/VHOST, or amqps:// for TLS".to_owned();
        let mut uri: AMQPUri = url.parse().map_err(|_| wrong())?;
        let tls = match (&uri.scheme, tls) {
            (AMQPScheme::AMQPS, tls) => {
                let connector = TlsConnector::from(TlsOptions::or_environment(tls)?.client()?);
                let host = uri.authority.host.clone();
                Some((connector, ServerName::try_from(host).map_err(|_| wrong())?))
            }
            (AMQPScheme::AMQP, None) => None,
            (AMQPScheme::AMQP, Some(_)) => return Err("`tls` needs an amqps:// `url`".into()),
        };
        // The streams it gets are already encrypted.
        uri.scheme = AMQPScheme::AMQP;
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        if !authority.contains('@') {
            if let Ok(user) = std::env::var("TIDEMILL_RABBITMQ_USER") {
                uri.authority.userinfo.username = user;
            }
            if let Ok(password) = std::env::var("TIDEMILL_RABBITMQ_PASSWORD") {
                uri.authority.userinfo.password = password;
            }
        }
        uri.query.connection_timeout.get_or_insert(CONNECT_MS);
        let name = format!("{}:{}", uri.authority.host, uri.authority.port);
        Ok(RabbitMqServer { uri, tls, name, patience: options.patience()? })
    }

    pub(crate) async fn connect(&self) -> lapin::Result<Connection> {
        let properties = ConnectionProperties::default().with_connection_name("tidemill".into());
        let uri = self.uri.clone();
        match self.tls.clone() {
            Some((connector, name)) => {
                Connection::connect_uri_with_runtime(uri, properties, runtime(connector, name)).await
            }
            None => {
                let runtime = async_rs::Runtime::tokio_current();
                Connection::connect_uri_with_runtime(uri, properties, runtime).await
            }
        }
    }
}

/// Whether another attempt on a new connection makes sense.
pub(crate) fn passes(error: &Error) -> bool {
    if tls::remedy(&error.to_string()).is_some() {
        return false;
    }
    match error.kind() {
        // 402 and 403: the vhost or the user; 404: a queue or an exchange, unless its host is down; 530: not allowed.
        ErrorKind::ProtocolError(said) => {
            let is_away = said.get_message().as_str().contains("down or inaccessible");
            is_away || !matches!(said.get_id(), 402 | 403 | 404 | 406 | 530)
        }
        ErrorKind::AuthProviderError(_) | ErrorKind::InvalidProtocolVersion(_) => false,
        _ => true,
    }
}

/// An error with the remedy, if known.
pub(crate) fn told(error: &Error) -> String {
    tls::told(&error.to_string())
}
