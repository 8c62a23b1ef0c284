//! Messages of a WebSocket, each a row. When the connection is lost it is made again; what the server has sent
//! meanwhile is lost, which is printed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_dataflow::TaskError;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::header::{
    AUTHORIZATION, CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

use super::line_tap::{LineTap, Sender, give};
use super::tcp::PAUSE;
use super::{keep_alive, tell_lost};
use crate::bad_records::{BadRecordHandler, BadRecords, Decoded, OnError};
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, MessageFormat};
use crate::options::SecretText;
use crate::tls::{self, TlsOptions};
use crate::{Guarantee, SourceSpec, options};

const NAME: &str = "websocket source";
const CONNECT: Duration = Duration::from_secs(10);
/// Messages that are given together at most.
const MESSAGES_MAX: usize = 1000;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebSocketOptions {
    /// `ws://HOST:PORT/PATH`, or `wss:` for TLS; it may have a token in it.
    url: SecretText,
    /// Files of certificates.
    tls: Option<TlsOptions>,
    /// What the request has beside what WebSockets need; without an `Authorization`, the token of
    /// `TIDEMILL_WEBSOCKET_TOKEN` is one.
    #[serde(default)]
    headers: BTreeMap<String, SecretText>,
    /// What is sent after connecting, such as what to subscribe to.
    #[serde(default)]
    send: Vec<String>,
    #[serde(default)]
    format: MessageFormat,
    #[serde(default = "options::a_megabyte")]
    message_bytes_max: usize,
    /// Ends when the server closes the connection.
    #[serde(default)]
    stop_at_end: bool,
    #[serde(default)]
    on_error: OnError,
    /// How long the server may be away.
    #[serde(default = "options::a_minute")]
    patience_s: f64,
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: WebSocketOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = options.format.layout();
    let schema = format::schema(NAME, layout, "value", schema)?;
    let url = options.url.reveal();
    let connector = match (url.starts_with("wss://"), &options.tls) {
        (true, tls) => Some(TlsOptions::or_environment(tls.as_ref()).and_then(|tls| tls.client()).map_err(wrong)?),
        (false, None) => None,
        (false, Some(_)) => return Err(wrong("`tls` needs a wss:// `url`".into())),
    };
    let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("wss://"));
    let name = rest.and_then(|rest| rest.split(['/', '?']).next());
    let name = name.and_then(|authority| authority.rsplit('@').next()).filter(|host| !host.is_empty());
    let name = name.ok_or_else(|| wrong("`url` must be ws://HOST:PORT/PATH, or wss:// for TLS".into()))?.to_owned();
    let headers = headers(&options.headers).map_err(wrong)?;
    let decoder = RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    let shown = format!("websocket {name}");
    Ok(SourceSpec {
        name: shown.clone(),
        schema: SchemaRef::clone(&schema),
        copies_max: 1,
        guarantee: Guarantee::AtMostOnce,
        bad,
        bad_schema: options.on_error.schema(),
        bad_folder: options.on_error.folder(),
        files: None,
        make: Arc::new(move |context| {
            tell_lost(context, &shown);
            let reader = WebSocketReader {
                options: options.clone(),
                headers: headers.clone(),
                connector: connector.clone().map(Connector::Rustls),
                name: name.clone(),
                decoder: decoder.clone(),
                bad: BadRecordHandler::new(options.on_error.clone(), &counted, context.task().to_owned()),
                number: 0,
            };
            Ok(Box::new(LineTap::new(SchemaRef::clone(&schema), false, |sender| reader.run(sender))))
        }),
    })
}

/// What is sent with the request, which no message shows.
///
/// # Errors
/// In words that do not show a value, for what is no header, or is one that WebSockets need for themselves.
fn headers(given: &BTreeMap<String, SecretText>) -> Result<HeaderMap, String> {
    let own = [CONNECTION, UPGRADE, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION];
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let header = HeaderName::try_from(name).ok().filter(|name| !own.contains(name));
        let header = header.ok_or_else(|| format!("`headers`: {name:?} is not a header name that you can set"))?;
        let value = HeaderValue::try_from(value);
        let mut value = value.map_err(|_| format!("`headers`: the value of {name:?} is not valid in a header"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok::<_, String>(())
    };
    for (name, value) in given {
        add(name, value.reveal())?;
    }
    if !given.keys().any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()))
        && let Some(token) = SecretText::or_environment(None, "TIDEMILL_WEBSOCKET_TOKEN")
    {
        add(AUTHORIZATION.as_str(), &format!("Bearer {}", token.reveal()))?;
    }
    Ok(headers)
}

/// Whether it is of use to connect again. A server that restarts closes connections in the middle of a handshake, and a
/// proxy before it answers 502 to 504 meanwhile; another answer that is no WebSocket's, or a wrong URL, stays so.
fn passes(error: &Error) -> bool {
    if tls::remedy(&error.to_string()).is_some() {
        return false;
    }
    match error {
        Error::Io(_) | Error::ConnectionClosed | Error::AlreadyClosed => true,
        Error::Protocol(ProtocolError::HandshakeIncomplete | ProtocolError::ResetWithoutClosingHandshake) => true,
        Error::Http(answer) => answer.status().is_server_error(),
        _ => false,
    }
}

type Connection = WebSocketStream<MaybeTlsStream<TcpStream>>;

struct WebSocketReader {
    options: WebSocketOptions,
    headers: HeaderMap,
    /// With TLS.
    connector: Option<Connector>,
    /// Host and port.
    name: String,
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    /// Of the last message.
    number: u64,
}

impl WebSocketReader {
    async fn run(mut self, sender: Sender) -> Result<(), TaskError> {
        let patience = Duration::from_secs_f64(self.options.patience_s.clamp(0.0, 1e6));
        let mut away = Instant::now();
        let mut told = false;
        loop {
            let connected = tokio::time::timeout(CONNECT, self.connect()).await;
            let lost = match connected.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into()))) {
                Ok(connection) => {
                    told = false;
                    match self.read(connection, &sender).await? {
                        None => return Ok(()),
                        Some(Ok(())) if self.options.stop_at_end => return Ok(()),
                        Some(ended) => {
                            away = Instant::now();
                            ended.err().map_or_else(|| "closed by the server".to_owned(), |error| error.to_string())
                        }
                    }
                }
                Err(error) if away.elapsed() >= patience || !passes(&error) => {
                    return Err(format!("websocket {}: {}", self.name, tls::told(&error.to_string())).into());
                }
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut told, true) {
                eprintln!(
                    "tidemill: websocket {}: {lost}; what it sends until it is connected again is lost",
                    self.name
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let bytes_max = Some(self.options.message_bytes_max);
        let config = WebSocketConfig::default().max_message_size(bytes_max).max_frame_size(bytes_max);
        let mut request = self.options.url.reveal().into_client_request()?;
        // In the place of what a request has of its own, such as its host.
        request.headers_mut().extend(self.headers.clone());
        let (mut connection, _) =
            connect_async_tls_with_config(request, Some(config), false, self.connector.clone()).await?;
        match connection.get_ref() {
            MaybeTlsStream::Plain(stream) => keep_alive(stream)?,
            MaybeTlsStream::Rustls(stream) => keep_alive(stream.get_ref().0)?,
            // There is none.
            _ => {}
        }
        for text in &self.options.send {
            connection.send(Message::text(text.as_str())).await?;
        }
        Ok(connection)
    }

    /// Until the connection ends, which is told; nothing, if nobody wants more.
    async fn read(
        &mut self,
        mut connection: Connection,
        sender: &Sender,
    ) -> Result<Option<Result<(), Error>>, TaskError> {
        loop {
            let first = tokio::select! {
                message = connection.next() => message,
                () = sender.closed() => return Ok(None),
            };
            let mut messages: Vec<Bytes> = Vec::new();
            let mut next = Some(first);
            let mut ended = None;
            // What there is more at once goes along.
            while let Some(message) = next.take() {
                match message {
                    Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => messages.push(message.into_data()),
                    None | Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed)) => ended = Some(Ok(())),
                    Some(Err(error)) => ended = Some(Err(error)),
                    Some(Ok(_)) => {}
                }
                if ended.is_none() && messages.len() < MESSAGES_MAX {
                    next = connection.next().now_or_never();
                }
            }
            let rows = self.rows(&messages)?;
            if !give(sender, rows).await {
                return Ok(None);
            }
            if let Some(ended) = ended {
                return Ok(Some(ended));
            }
        }
    }

    fn rows(&mut self, messages: &[Bytes]) -> Result<Decoded, TaskError> {
        let records: Vec<&[u8]> = messages.iter().map(AsRef::as_ref).collect();
        let first = self.number + 1;
        self.number += records.len() as u64;
        let (bad, name) = (&mut self.bad, &self.name);
        let rows = self.decoder.decode(&records, |at, reason| {
            bad.bad(&[("address", json!(name)), ("message", json!(first + at as u64))], reason, records[at])
        })?;
        Ok((rows, bad.flush()?))
    }
}
