//! Connections, and which errors are temporary.

use std::path::Path;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Connection, ConnectionAddr, IntoConnectionInfo, RedisError,
    RedisResult, TlsCertificates,
};
use tidemill_dataflow::TaskError;

use crate::connection::{Credentials, ServerOptions};
use crate::tls::{self, TlsFiles, TlsOptions};

/// Time between attempts.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// The address of the server, and the user.
#[derive(Clone)]
pub(crate) struct RedisServer {
    client: Client,
    /// Host and port.
    pub(crate) name: String,
    /// How long it may be unreachable or silent before the job fails.
    pub(crate) patience: Duration,
}

impl RedisServer {
    /// The URL is `redis://HOST:PORT/NUMBER`, or `rediss:` for TLS. User and password come from the URL, else from
    /// `credentials`, else from `TIDEMILL_REDIS_USER` and `TIDEMILL_REDIS_PASSWORD`.
    ///
    /// # Errors
    /// A description without the URL, which may contain a password.
    pub(crate) fn new(options: &ServerOptions, credentials: Credentials) -> Result<Self, String> {
        let ServerOptions { url, tls, .. } = options;
        let tls = tls.as_ref();
        let wrong = |_| "`url` must be redis://HOST:PORT/NUMBER, or rediss:// for TLS".to_owned();
        let mut info = url.reveal().into_connection_info().map_err(wrong)?;
        let mut settings = info.redis_settings().clone();
        let (user, password) = credentials.or_environment("TIDEMILL_REDIS_USER", "TIDEMILL_REDIS_PASSWORD");
        if let Some(user) = user.filter(|_| settings.username().is_none()) {
            settings = settings.set_username(user);
        }
        if let Some(password) = password.filter(|_| settings.password().is_none()) {
            settings = settings.set_password(password.reveal());
        }
        info = info.set_redis_settings(settings);
        let name = info.addr().to_string();
        let client = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err("`url` asks for TLS without certificate checks, which is not supported".into());
            }
            ConnectionAddr::TcpTls { .. } => {
                let tls = TlsOptions::or_environment(tls)?;
                let TlsFiles { ca, own } = tls.files()?;
                let bytes = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
                let own = own.map(|(certificate, key)| {
                    Ok::<_, String>(ClientTlsConfig { client_cert: bytes(certificate)?, client_key: bytes(key)? })
                });
                let certificates =
                    TlsCertificates { client_tls: own.transpose()?, root_cert: ca.map(bytes).transpose()? };
                Client::build_with_tls(info, certificates).map_err(|error| error.to_string())?
            }
            _ if tls.is_some() => return Err("`tls` needs a rediss:// `url`".into()),
            _ => Client::open(info).map_err(wrong)?,
        };
        Ok(RedisServer { client, name, patience: options.patience()? })
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(Some(ANSWER));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// The connection in `open`; makes a new one if there is none.
    pub(crate) async fn connected<'a>(
        &self,
        open: &'a mut Option<MultiplexedConnection>,
    ) -> RedisResult<&'a mut MultiplexedConnection> {
        Ok(match open {
            Some(connection) => connection,
            None => open.insert(self.connect().await?),
        })
    }

    /// After an error: waits a little before an attempt on a new connection.
    ///
    /// # Errors
    /// If another attempt makes no sense, or if patience since `begun` has run out.
    pub(crate) async fn wait(&self, begun: Instant, error: &RedisError) -> Result<(), TaskError> {
        if passes(error) && begun.elapsed() < self.patience {
            tokio::time::sleep(PAUSE).await;
            return Ok(());
        }
        Err(format!("redis {}: {}", self.name, told(error)).into())
    }

    /// A connection for a thread that blocks for its replies.
    pub(crate) fn connect_blocking(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(CONNECT)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        Ok(connection)
    }
}

/// Whether another attempt on a new connection makes sense.
pub(crate) fn passes(error: &RedisError) -> bool {
    if tls::remedy(&error.to_string()).is_some() {
        return false;
    }
    if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
        return true;
    }
    let for_now = |code: &str| matches!(code, "LOADING" | "TRYAGAIN" | "MASTERDOWN" | "CLUSTERDOWN" | "READONLY");
    // For a transaction or pipeline, the error contains the reply to each of its commands.
    let answers = error.clone().into_server_errors().unwrap_or_default();
    !answers.is_empty() && answers.iter().all(|(_, answer)| for_now(answer.code()))
}

/// An error with the remedy, if known.
pub(crate) fn told(error: &RedisError) -> String {
    tls::told(&error.to_string())
}
