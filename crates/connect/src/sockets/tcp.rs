//! Lines of a TCP server that we connect to. A lost connection is made again; what the server sends meanwhile is lost,
//! which the job prints.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use memchr::{memchr, memrchr};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_dataflow::TaskError;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::line_tap::{LineTap, Sender, give};
use super::reconnect::{ConnectionEnd, SocketReader, read_on};
use super::{keep_alive, tell_lost};
use crate::bad_records::{BadRecordHandler, BadRecordPolicy, Decoded};
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, LineOptions};
use crate::read_options::ReadOptions;
use crate::tls::{self, TlsOptions};
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, connection, options};

const NAME: &str = "socket source";
/// Bytes per read.
const READ_BYTES: usize = 1 << 16;

#[derive(Clone, Deserialize)]
struct TcpOptions {
    host: String,
    port: u16,
    /// Certificate files, if the server uses TLS.
    tls: Option<TlsOptions>,
    line_bytes_max: Option<usize>,
    /// See `connection::patience`.
    patience_s: Option<f64>,
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    // CSV without a header.
    type Groups = (TcpOptions, LineOptions, ReadOptions);
    let (options, lines, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = lines.layout().map_err(wrong)?;
    let schema = format::schema(NAME, layout, "line", schema)?;
    let decoder = RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?;
    let patience = connection::patience(options.patience_s).map_err(wrong)?;
    let tls = options.tls.as_ref().map(|tls| {
        let connector = TlsConnector::from(TlsOptions::or_environment(Some(tls))?.client()?);
        let name = ServerName::try_from(options.host.clone()).map_err(|error| format!("`host`: {error}"))?;
        Ok::<_, String>((connector, name))
    });
    let tls = tls.transpose().map_err(wrong)?;
    let (host, port) = (options.host, options.port);
    let line_bytes_max = options.line_bytes_max.unwrap_or(options::MESSAGE_BYTES_MAX);
    let (stop_at_end, bad) = (reading.stop_at_end, BadRecordPolicy::new(reading.on_error));
    let (name, handlers, made) = (format!("socket {host}:{port}"), bad.clone(), SchemaRef::clone(&schema));
    let shown = name.clone();
    let make: MakeSource = Arc::new(move |context| {
        tell_lost(context, &shown);
        let lines = LineSplitter {
            decoder: decoder.clone(),
            bad: handlers.handler(context.task().to_owned()),
            address: format!("{host}:{port}"),
            line_bytes_max,
            number: 0,
            is_skipping: false,
        };
        let reader = TcpReader { host: host.clone(), port, tls: tls.clone(), lines };
        let run = move |sender| read_on(reader, stop_at_end, patience, sender);
        Ok(Box::new(LineTap::new(SchemaRef::clone(&made), false, run)))
    });
    Ok(SourceSpec { copies_max: 1, ..SourceSpec::new(name, schema, DeliveryGuarantee::AtMostOnce, &bad, make) })
}

/// The stream of a server's lines.
type Stream = Pin<Box<dyn AsyncRead + Send>>;
/// The TLS connector, and the name that the server's certificate must have.
type Encryption = (TlsConnector, ServerName<'static>);

struct TcpReader {
    host: String,
    port: u16,
    tls: Option<Encryption>,
    lines: LineSplitter,
}

impl SocketReader for TcpReader {
    type Connection = Stream;
    type Error = std::io::Error;

    const CONNECT: Duration = Duration::from_secs(5);

    fn name(&self) -> String {
        format!("socket {}", self.lines.address)
    }

    async fn connect(&self) -> std::io::Result<Stream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        keep_alive(&stream)?;
        Ok(match &self.tls {
            Some((connector, name)) => Box::pin(connector.connect(name.clone(), stream).await?),
            None => Box::pin(stream),
        })
    }

    async fn read(&mut self, stream: Stream, sender: &Sender) -> Result<ConnectionEnd<std::io::Error>, TaskError> {
        self.lines.read(stream, sender).await
    }

    fn passes(error: &std::io::Error) -> bool {
        tls::remedy(&error.to_string()).is_none()
    }
}

/// Splits bytes into lines and decodes rows.
struct LineSplitter {
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    address: String,
    line_bytes_max: usize,
    /// The number of the last line.
    number: u64,
    /// Whether it is within a line that is too long.
    is_skipping: bool,
}

impl LineSplitter {
    /// Reads until the connection ends, and returns how; `None` if no more data are wanted.
    async fn read(&mut self, mut stream: Stream, sender: &Sender) -> Result<ConnectionEnd<std::io::Error>, TaskError> {
        let mut buffer = Vec::new();
        self.is_skipping = false;
        loop {
            buffer.reserve(READ_BYTES);
            let ended = tokio::select! {
                read = stream.read_buf(&mut buffer) => match read {
                    Ok(0) => Some(Ok(())),
                    Ok(_) => None,
                    Err(error) => Some(Err(error)),
                },
                () = sender.closed() => return Ok(None),
            };
            // If the server has closed the connection properly, the last line is complete.
            if matches!(ended, Some(Ok(()))) && !buffer.is_empty() {
                buffer.push(b'\n');
            }
            let whole = memrchr(b'\n', &buffer).map_or(0, |at| at + 1);
            let rows = self.rows(&buffer[..whole])?;
            buffer.drain(..whole);
            if !give(sender, rows).await {
                return Ok(None);
            }
            if buffer.len() > self.line_bytes_max {
                // The end of a skipped line does not count.
                self.number += u64::from(!self.is_skipping);
                self.too_long(&buffer)?;
                buffer.clear();
            }
            if let Some(ended) = ended {
                if !buffer.is_empty() && !self.is_skipping {
                    self.number += 1;
                    self.wrong(self.number, "the connection was lost in the middle of it", &buffer)?;
                }
                let none = RecordBatch::new_empty(SchemaRef::clone(self.decoder.schema()));
                if !give(sender, (none, self.bad.flush()?)).await {
                    return Ok(None);
                }
                return Ok(Some(ended));
            }
        }
    }

    /// The rows of complete lines.
    fn rows(&mut self, mut bytes: &[u8]) -> Result<Decoded, TaskError> {
        let (mut records, mut numbers) = (Vec::new(), Vec::new());
        while let Some(end) = memchr(b'\n', bytes) {
            let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            self.number += 1;
            if line.len() > self.line_bytes_max {
                self.too_long(line)?;
                self.is_skipping = false;
            } else if !line.iter().all(u8::is_ascii_whitespace) {
                records.push(line);
                numbers.push(self.number);
            }
        }
        let (bad, address) = (&mut self.bad, &self.address);
        let rows = self.decoder.decode(&records, |at, reason| {
            bad.bad(&[("address", json!(address)), ("line", json!(numbers[at]))], reason, records[at])
        })?;
        Ok((rows, bad.flush()?))
    }

    /// Reports its beginning once.
    fn too_long(&mut self, line: &[u8]) -> Result<(), TaskError> {
        if !std::mem::replace(&mut self.is_skipping, true) {
            let reason = format!("it is longer than `line_bytes_max`, {} bytes", self.line_bytes_max);
            self.wrong(self.number, &reason, &line[..line.len().min(1000)])?;
        }
        Ok(())
    }

    fn wrong(&mut self, number: u64, reason: &str, bytes: &[u8]) -> Result<(), TaskError> {
        self.bad.bad(&[("address", json!(self.address)), ("line", json!(number))], reason, bytes)
    }
}
