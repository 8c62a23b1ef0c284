//! Messages of a WebSocket, each a row. A lost connection is made again; what the server sends meanwhile is lost, which
//! the job prints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
use super::reconnect::{ConnectionEnd, SocketReader, read_on};
use super::{keep_alive, tell_lost};
use crate::bad_records::{BadRecordHandler, BadRecordPolicy, Decoded};
use crate::connection::ServerOptions;
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, MessageFormat};
use crate::options::SecretText;
use crate::read_options::ReadOptions;
use crate::tls::{self, TlsOptions};
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "websocket source";
/// Maximum number of messages in a batch.
const MESSAGES_MAX: usize = 1000;

#[derive(Clone, Deserialize)]
struct WebSocketOptions {
    /// Additional headers of the request. Without an `Authorization`, the token in `TIDEMILL_WEBSOCKET_TOKEN` is used.
    #[serde(default)]
    headers: BTreeMap<String, SecretText>,
    /// Messages to send after connecting, such as subscriptions.
    #[serde(default)]
    send: Vec<String>,
    #[serde(default)]
    format: MessageFormat,
    message_bytes_max: Option<usize>,
}

/// `url` is `ws://HOST:PORT/PATH`, or `wss:` for TLS; it may contain a token.
pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    type Groups = (WebSocketOptions, ServerOptions, ReadOptions);
    let (options, server, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = options.format.layout();
    let schema = format::schema(NAME, layout, "value", schema)?;
    let url = server.url.reveal();
    let connector = match (url.starts_with("wss://"), &server.tls) {
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
    let message_bytes_max = options.message_bytes_max.unwrap_or(options::MESSAGE_BYTES_MAX);
    let patience = server.patience().map_err(wrong)?;
    let (stop_at_end, bad) = (reading.stop_at_end, BadRecordPolicy::new(reading.on_error));
    let (handlers, made, shown) = (bad.clone(), SchemaRef::clone(&schema), format!("websocket {name}"));
    let make: MakeSource = Arc::new(move |context| {
        let reader = WebSocketReader {
            url: server.url.clone(),
            send: options.send.clone(),
            message_bytes_max,
            headers: headers.clone(),
            connector: connector.clone().map(Connector::Rustls),
            name: name.clone(),
            decoder: decoder.clone(),
            bad: handlers.handler(context.task().to_owned()),
            number: 0,
        };
        tell_lost(context, &reader.name());
        let run = move |sender| read_on(reader, stop_at_end, patience, sender);
        Ok(Box::new(LineTap::new(SchemaRef::clone(&made), false, run)))
    });
    Ok(SourceSpec { copies_max: 1, ..SourceSpec::new(shown, schema, DeliveryGuarantee::AtMostOnce, &bad, make) })
}

/// The headers of the request, which never appear in messages.
///
/// # Errors
/// A description without values, for invalid headers and for those that WebSockets use themselves.
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

type Connection = WebSocketStream<MaybeTlsStream<TcpStream>>;

struct WebSocketReader {
    url: SecretText,
    send: Vec<String>,
    message_bytes_max: usize,
    headers: HeaderMap,
    /// Set with TLS.
    connector: Option<Connector>,
    /// Host and port.
    name: String,
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    /// The number of the last message.
    number: u64,
}

impl SocketReader for WebSocketReader {
    type Connection = Connection;
    type Error = Error;

    const CONNECT: Duration = Duration::from_secs(10);

    fn name(&self) -> String {
        format!("websocket {}", self.name)
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let bytes_max = Some(self.message_bytes_max);
        let config = WebSocketConfig::default().max_message_size(bytes_max).max_frame_size(bytes_max);
        let mut request = self.url.reveal().into_client_request()?;
        // Overrides headers that the request already has, such as its host.
        request.headers_mut().extend(self.headers.clone());
        let (mut connection, _) =
            connect_async_tls_with_config(request, Some(config), false, self.connector.clone()).await?;
        match connection.get_ref() {
            MaybeTlsStream::Plain(stream) => keep_alive(stream)?,
            MaybeTlsStream::Rustls(stream) => keep_alive(stream.get_ref().0)?,
            // There is none.
            _ => {}
        }
        for text in &self.send {
            connection.send(Message::text(text.as_str())).await?;
        }
        Ok(connection)
    }

    async fn read(&mut self, mut connection: Connection, sender: &Sender) -> Result<ConnectionEnd<Error>, TaskError> {
        loop {
            let first = tokio::select! {
                message = connection.next() => message,
                () = sender.closed() => return Ok(None),
            };
            let mut messages: Vec<Bytes> = Vec::new();
            let mut next = Some(first);
            let mut ended = None;
            // Takes along further messages that are available immediately.
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

    /// A restarting server closes connections in the middle of a handshake, and a proxy in front of it responds with
    /// 502 to 504 meanwhile. Any other response that is not a WebSocket's, or a wrong URL, is permanent.
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
}

impl WebSocketReader {
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
