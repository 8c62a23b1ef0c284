//! Reads one connection after another: a lost connection is made again. What the server sends meanwhile is lost, which
//! the job prints.

use std::future::Future;
use std::time::{Duration, Instant};
use std::{fmt, io};

use tidemill_dataflow::TaskError;

use super::line_tap::Sender;
use crate::tls;

/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// How a connection ended; `None` if no more data are wanted.
pub(super) type ConnectionEnd<E> = Option<Result<(), E>>;

/// Connects to a server, and reads what it sends.
pub(super) trait SocketReader {
    type Connection;
    type Error: fmt::Display + From<io::Error>;

    /// Time limit for connecting.
    const CONNECT: Duration;

    /// The kind of connection and the server, for messages.
    fn name(&self) -> String;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;

    /// Emits what arrives, until the connection ends.
    fn read(
        &mut self,
        connection: Self::Connection,
        sender: &Sender,
    ) -> impl Future<Output = Result<ConnectionEnd<Self::Error>, TaskError>> + Send;

    /// Whether reconnecting makes sense.
    fn passes(error: &Self::Error) -> bool;
}

/// Reads until no more data are wanted or, with `stop_at_end`, the server closes the connection.
///
/// # Errors
/// If the server is unreachable for longer than `patience`, or if reconnecting makes no sense.
pub(super) async fn read_on<R>(
    mut reader: R,
    stop_at_end: bool,
    patience: Duration,
    sender: Sender,
) -> Result<(), TaskError>
where
    R: SocketReader<Connection: Send, Error: Send> + Send + Sync,
{
    let mut away = Instant::now();
    let mut told = false;
    loop {
        let connected = tokio::time::timeout(R::CONNECT, reader.connect()).await;
        let lost = match connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
            Ok(connection) => {
                told = false;
                match reader.read(connection, &sender).await? {
                    None => return Ok(()),
                    Some(Ok(())) if stop_at_end => return Ok(()),
                    Some(ended) => {
                        away = Instant::now();
                        ended.err().map_or_else(|| "closed by the server".to_owned(), |error| error.to_string())
                    }
                }
            }
            Err(error) if away.elapsed() >= patience || !R::passes(&error) => {
                return Err(format!("{}: {}", reader.name(), tls::told(&error.to_string())).into());
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut told, true) {
            eprintln!("tidemill: {}: {lost}; anything it sends before reconnecting is lost", reader.name());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
