//! Entries of streams: each stream is a split, read from the entry behind the last one. Copies share the streams by their
//! places in the list.
//!
//! Entries that the server has trimmed away before they were read are not seen, and nobody is told: keep them for longer than a
//! job may be away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidemill_dataflow::stream::source::{Next, Source};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::{PAUSE, Server, passes};
use crate::bad::{BadRecords, Handler, OnError};
use crate::decode::{Decoder, Layout};
use crate::error::ConnectError;
use crate::options::Secret;
use crate::{SourceSpec, options};

const NAME: &str = "redis source";
/// Entries asked for at a time, of each stream.
const COUNT: usize = 1000;
/// How long the server waits for one.
const BLOCK_MS: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// An entry's fields are the columns, their values as text.
    #[default]
    Fields,
    /// One field is a JSON object with the columns.
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Start {
    #[default]
    Earliest,
    Latest,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// `redis://HOST:PORT/NUMBER`.
    url: Secret,
    /// Else the URL's, else `TIDEMILL_REDIS_USER` and `TIDEMILL_REDIS_PASSWORD`.
    user: Option<String>,
    password: Option<Secret>,
    streams: Vec<String>,
    #[serde(default)]
    format: Format,
    /// The field that is JSON.
    #[serde(default = "value")]
    field: String,
    /// Where a job begins that goes on from no checkpoint.
    #[serde(default)]
    start: Start,
    /// Ends when every stream has been read as far as there is anything.
    #[serde(default)]
    stop_at_end: bool,
    #[serde(default)]
    on_error: OnError,
    /// How long the server may keep silent.
    #[serde(default = "a_minute")]
    patience_s: f64,
}

fn value() -> String {
    "value".into()
}

fn a_minute() -> f64 {
    60.0
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: Options = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let schema = options::needed(NAME, schema)?;
    if options.streams.is_empty() {
        return Err(wrong("`streams` is empty".into()));
    }
    let server = Server::new(&options.url, options.user.clone(), options.password.clone()).map_err(wrong)?;
    let decoder = Decoder::new(Layout::Json, SchemaRef::clone(&schema)).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    Ok(SourceSpec {
        name: format!("redis {}", options.streams.join(", ")),
        schema,
        copies_max: options.streams.len() as u32,
        replayable: true,
        bad,
        make: Arc::new(move |context| {
            let copy = format!("{}-{}", context.task(), context.copy());
            let bad = Handler::new(options.on_error.clone(), &counted, copy);
            let streams = streams(&options, context)?;
            let told_end = vec![false; streams.len()];
            let reader = Reader { server: server.clone(), connection: None, options: options.clone() };
            let (decoder, reader) = (decoder.clone(), Some(reader));
            Ok(Box::new(Redis {
                decoder,
                bad,
                streams,
                told_end,
                found: Vec::new(),
                at_end: false,
                reader,
                reading: None,
            }))
        }),
    })
}

/// The streams of a copy, each with its last entry; none, where that is not known yet.
fn streams(options: &Options, context: &TaskContext) -> Result<Vec<(String, Option<String>)>, TaskError> {
    match context.restored().filter(|restored| !restored.splits.is_empty()) {
        Some(restored) => {
            let last = |(name, bytes): (&String, &Bytes)| match std::str::from_utf8(bytes)? {
                "" => Ok((name.clone(), None)),
                id => Ok((name.clone(), Some(id.to_owned()))),
            };
            restored.splits.iter().map(last).collect()
        }
        None => {
            let mine = options.streams.iter().enumerate();
            let mine = mine.filter(|(at, _)| *at as u32 % context.copies() == context.copy());
            Ok(mine.map(|(_, name)| (name.clone(), None)).collect())
        }
    }
}

/// An id, and fields with their values.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// Where streams begin, and what was found behind that.
struct Found {
    reader: Reader,
    first: Vec<(String, String)>,
    entries: Vec<(String, Vec<Entry>)>,
}

/// The source of one copy.
struct Redis {
    decoder: Decoder,
    bad: Handler,
    streams: Vec<(String, Option<String>)>,
    /// Since the last row of each.
    told_end: Vec<bool>,
    found: Vec<(String, Vec<Entry>)>,
    /// The last time nothing was found.
    at_end: bool,
    reader: Option<Reader>,
    reading: Option<BoxFuture<'static, Result<Found, TaskError>>>,
}

impl Source for Redis {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        if self.streams.is_empty() {
            return Poll::Ready(Ok(Next::End));
        }
        loop {
            while let Some((name, entries)) = self.found.pop() {
                let Some(at) = self.streams.iter().position(|(known, _)| *known == name) else { continue };
                let rows = self.rows(&name, &entries)?;
                self.streams[at].1 = entries.last().map(|(id, _)| id.clone());
                self.told_end[at] = false;
                if rows.num_rows() > 0 {
                    return Poll::Ready(Ok(Next::Rows { split: at as u32, rows }));
                }
            }
            if self.at_end {
                if let Some(at) = self.told_end.iter().rposition(|told| !told) {
                    self.told_end[at] = true;
                    let split = at as u32;
                    let is_over = self.reader.as_ref().is_some_and(|reader| reader.options.stop_at_end);
                    return Poll::Ready(Ok(if is_over { Next::SplitEnd { split } } else { Next::CaughtUp { split } }));
                }
                if self.reader.as_ref().is_some_and(|reader| reader.options.stop_at_end) {
                    return Poll::Ready(Ok(Next::End));
                }
            }
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None => {
                    let reader = self.reader.take().expect("it is back when nothing is being read");
                    self.reading.insert(Box::pin(reader.read(self.streams.clone())))
                }
            };
            let Poll::Ready(found) = reading.as_mut().poll(context) else { return Poll::Pending };
            self.reading = None;
            let Found { reader, first, entries } = found?;
            self.reader = Some(reader);
            for (name, id) in first {
                let stream = self.streams.iter_mut().find(|(known, _)| *known == name);
                stream.expect("it was asked for").1 = Some(id);
            }
            self.at_end = entries.is_empty();
            self.found = entries;
        }
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = |(name, last): &(String, Option<String>)| (name.clone(), last.clone().unwrap_or_default().into());
        Ok(self.streams.iter().map(saved).collect())
    }
}

impl Redis {
    fn rows(&mut self, stream: &str, entries: &[Entry]) -> Result<arrow::array::RecordBatch, TaskError> {
        let options = &self.reader.as_ref().expect("it is back when something was read").options;
        let record = |(_, fields): &Entry| match options.format {
            Format::Json => {
                let found = fields.iter().find(|(name, _)| *name == options.field.as_bytes());
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            }
            Format::Fields => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let object: Map<String, Value> =
                    fields.iter().map(|(name, value)| (text(name), text(value).into())).collect();
                Value::Object(object).to_string().into_bytes()
            }
        };
        let records: Vec<Vec<u8>> = entries.iter().map(record).collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let bad = &mut self.bad;
        let rows = self.decoder.decode(&records, |at, reason| {
            bad.bad(&[("stream", json!(stream)), ("id", json!(entries[at].0))], reason, records[at])
        })?;
        bad.flush()?;
        Ok(rows)
    }
}

/// Asks the server, on a connection that it keeps.
struct Reader {
    server: Server,
    connection: Option<MultiplexedConnection>,
    options: Options,
}

impl Reader {
    async fn read(mut self, streams: Vec<(String, Option<String>)>) -> Result<Found, TaskError> {
        let begun = Instant::now();
        loop {
            match self.attempt(&streams).await {
                Ok((first, entries)) => return Ok(Found { reader: self, first, entries }),
                Err(error) if passes(&error) && begun.elapsed().as_secs_f64() < self.options.patience_s => {
                    self.connection = None;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(format!("redis {}: {error}", self.server.name).into()),
            }
        }
    }

    async fn attempt(
        &mut self,
        streams: &[(String, Option<String>)],
    ) -> RedisResult<(Vec<(String, String)>, Vec<(String, Vec<Entry>)>)> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.server.connect().await?),
        };
        let mut first = Vec::new();
        for (name, _) in streams.iter().filter(|(_, last)| last.is_none()) {
            // A place that stays the same, never "the end".
            let last: Vec<Entry> = match self.options.start {
                Start::Earliest => Vec::new(),
                Start::Latest => {
                    redis::cmd("XREVRANGE").arg(name).arg(&["+", "-", "COUNT", "1"]).query_async(connection).await?
                }
            };
            first.push((name.clone(), last.into_iter().next().map_or_else(|| "0-0".to_owned(), |(id, _)| id)));
        }
        let known: BTreeMap<&String, &String> = first.iter().map(|(name, id)| (name, id)).collect();
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT);
        if !self.options.stop_at_end {
            command.arg("BLOCK").arg(BLOCK_MS);
        }
        command.arg("STREAMS");
        streams.iter().for_each(|(name, _)| {
            command.arg(name);
        });
        for (name, last) in streams {
            command.arg(last.as_ref().unwrap_or_else(|| known[name]));
        }
        let entries: Option<Vec<(String, Vec<Entry>)>> = command.query_async(connection).await?;
        Ok((first, entries.unwrap_or_default()))
    }
}
