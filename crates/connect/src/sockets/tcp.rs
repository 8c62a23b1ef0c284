//! Lines of a TCP server that we connect to. When the connection is lost it is made again; what the server has sent
//! meanwhile is lost, which is printed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use super::{keep_alive, tell_lost};
use crate::bad_records::{BadRecordHandler, BadRecords, Decoded, OnError};
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, LineFormat};
use crate::tls::{self, TlsOptions};
use crate::{Guarantee, SourceSpec, options};

const NAME: &str = "socket source";
/// Between tries.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_secs(5);
/// What is read at a time.
const READ_BYTES: usize = 1 << 16;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpOptions {
    host: String,
    port: u16,
    /// The server speaks TLS: files of certificates.
    tls: Option<TlsOptions>,
    #[serde(default)]
    format: LineFormat,
    /// Of CSV, which has no header.
    #[serde(default = "options::comma")]
    delimiter: char,
    #[serde(default = "options::a_megabyte")]
    line_bytes_max: usize,
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
    let options: TcpOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = options.format.layout(options.delimiter).map_err(wrong)?;
    let schema = format::schema(NAME, layout, "line", schema)?;
    let decoder = RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    let address = format!("{}:{}", options.host, options.port);
    let tls = options.tls.as_ref().map(|tls| {
        let connector = TlsConnector::from(TlsOptions::or_environment(Some(tls))?.client()?);
        let name = ServerName::try_from(options.host.clone()).map_err(|error| format!("`host`: {error}"))?;
        Ok::<_, String>((connector, name))
    });
    let tls = tls.transpose().map_err(wrong)?;
    let shown = format!("socket {address}");
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
            let lines = LineSplitter {
                decoder: decoder.clone(),
                bad: BadRecordHandler::new(options.on_error.clone(), &counted, context.task().to_owned()),
                address: address.clone(),
                line_bytes_max: options.line_bytes_max,
                number: 0,
                is_skipping: false,
            };
            let (options, tls) = (options.clone(), tls.clone());
            Ok(Box::new(LineTap::new(SchemaRef::clone(&schema), false, |sender| run(options, tls, lines, sender))))
        }),
    })
}

/// What a server's lines come by.
type Stream = Pin<Box<dyn AsyncRead + Send>>;
/// How to speak TLS, and what the server's certificate has to be for.
type Encryption = (TlsConnector, ServerName<'static>);

async fn connect(options: &TcpOptions, tls: Option<&Encryption>) -> std::io::Result<Stream> {
    let stream = TcpStream::connect((options.host.as_str(), options.port)).await?;
    keep_alive(&stream)?;
    Ok(match tls {
        Some((connector, name)) => Box::pin(connector.connect(name.clone(), stream).await?),
        None => Box::pin(stream),
    })
}

async fn run(
    options: TcpOptions,
    tls: Option<Encryption>,
    mut lines: LineSplitter,
    sender: Sender,
) -> Result<(), TaskError> {
    let patience = Duration::from_secs_f64(options.patience_s.clamp(0.0, 1e6));
    let mut away = Instant::now();
    let mut told = false;
    loop {
        let connected = tokio::time::timeout(CONNECT, connect(&options, tls.as_ref())).await;
        let lost = match connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                told = false;
                match lines.read(stream, &sender).await? {
                    None => return Ok(()),
                    Some(Ok(())) if options.stop_at_end => return Ok(()),
                    Some(ended) => {
                        away = Instant::now();
                        ended.err().map_or_else(|| "closed by the server".to_owned(), |error| error.to_string())
                    }
                }
            }
            Err(error) if away.elapsed() >= patience || tls::remedy(&error.to_string()).is_some() => {
                return Err(format!("socket {}: {}", lines.address, tls::told(&error.to_string())).into());
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut told, true) {
            eprintln!("tidemill: socket {}: {lost}; what it sends until it is connected again is lost", lines.address);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Bytes to rows.
struct LineSplitter {
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    address: String,
    line_bytes_max: usize,
    /// Of the last line.
    number: u64,
    /// Within a line that is too long.
    is_skipping: bool,
}

impl LineSplitter {
    /// Until the connection ends, which is told; nothing, if nobody wants more.
    async fn read(
        &mut self,
        mut stream: Stream,
        sender: &Sender,
    ) -> Result<Option<Result<(), std::io::Error>>, TaskError> {
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
            // The last line of a server that says that it has no more is a whole one.
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
                // Its end is not counted.
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

    /// The rows of whole lines.
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

    /// Its beginning is told once.
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
