//! Entries of streams: each stream is a split, read from the entry behind the last one. Copies share the streams by their
//! places in the list. All know from a checkpoint which ones any of them had, so that a stream that is named later is read by
//! one of them.
//!
//! Entries that the server has trimmed away before they were read are not seen, and nobody is told: keep them for longer than a
//! job may be away.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidemill_dataflow::stream::source::{Next, Source};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::{PAUSE, Server, passes, told};
use crate::bad::{BadRecords, Handler, OnError};
use crate::decode::{Decoder, Layout};
use crate::error::ConnectError;
use crate::options::Secret;
use crate::tls::Tls;
use crate::{SourceSpec, options};

const NAME: &str = "redis source";
/// Entries asked for at a time, of each stream.
const COUNT: usize = 1000;
/// How long the server waits for one.
const BLOCK_MS: usize = 100;
/// The name of what copies share.
const SHARED: &str = "streams";

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
    /// `redis://HOST:PORT/NUMBER`, or `rediss:` for TLS.
    url: Secret,
    /// Files of certificates.
    tls: Option<Tls>,
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
    #[serde(default = "options::a_minute")]
    patience_s: f64,
}

fn value() -> String {
    "value".into()
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: Arc<Options> = Arc::new(options::read(NAME, spec)?);
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let schema = options::needed(NAME, schema)?;
    let names: BTreeSet<&String> = options.streams.iter().collect();
    if names.is_empty() || names.len() < options.streams.len() {
        return Err(wrong("`streams` has to name at least one stream, and none twice".into()));
    }
    let server = Server::new(&options.url, options.user.clone(), options.password.clone(), options.tls.as_ref())
        .map_err(wrong)?;
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
            let (streams, held) = streams(&options, context)?;
            let reader = Reader { server: server.clone(), connection: None, options: Arc::clone(&options) };
            Ok(Box::new(Redis {
                options: Arc::clone(&options),
                decoder: decoder.clone(),
                bad,
                streams,
                held,
                has_begun: false,
                found: Vec::new(),
                empty: Vec::new(),
                reader: Some(reader),
                reading: None,
            }))
        }),
    })
}

/// A stream that a copy reads.
#[derive(Clone)]
struct Stream {
    name: String,
    /// The last entry that was given on; none, where that is not known yet.
    last: Option<String>,
    /// It was said that there is nothing more, and nothing has come since.
    told_end: bool,
    is_over: bool,
}

impl Stream {
    fn new(name: &str, last: &str) -> Self {
        let last = Some(last.to_owned()).filter(|id| !id.is_empty());
        Stream { name: name.to_owned(), last, told_end: false, is_over: false }
    }
}

/// The streams of a copy, and those of all copies.
fn streams(options: &Options, context: &TaskContext) -> Result<(Vec<Stream>, BTreeSet<String>), TaskError> {
    let (mut mine, mut held) = (Vec::new(), BTreeSet::new());
    if let Some(restored) = context.restored() {
        for bytes in restored.shared.get(SHARED).into_iter().flatten() {
            held.extend(serde_json::from_slice::<Vec<String>>(bytes)?);
        }
        for (name, bytes) in &restored.splits {
            match options.streams.contains(name) {
                true => mine.push(Stream::new(name, std::str::from_utf8(bytes)?)),
                false => eprintln!("tidemill: the checkpoint knows stream \"{name}\", which is not asked for any more"),
            }
        }
    }
    let new = options.streams.iter().enumerate().filter(|(_, name)| !held.contains(*name));
    let new = new.filter(|(at, _)| *at as u32 % context.copies() == context.copy());
    mine.extend(new.map(|(_, name)| Stream::new(name, "")));
    Ok((mine, options.streams.iter().cloned().collect()))
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
    options: Arc<Options>,
    decoder: Decoder,
    bad: Handler,
    streams: Vec<Stream>,
    /// The streams of all copies.
    held: BTreeSet<String>,
    has_begun: bool,
    /// By places of streams, and what has not been given on yet.
    found: Vec<(usize, Vec<Entry>)>,
    /// The streams that had nothing when they were asked last, and that is not told yet.
    empty: Vec<usize>,
    reader: Option<Reader>,
    reading: Option<BoxFuture<'static, Result<Found, TaskError>>>,
}

impl Source for Redis {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Ok(match self.streams.len().checked_sub(1) {
                // Whoever hears of the last one knows that there are the others, and does not go ahead of them in time.
                Some(last) => {
                    let rows = RecordBatch::new_empty(SchemaRef::clone(self.decoder.schema()));
                    Next::Rows { split: last as u32, rows }
                }
                None => Next::CaughtUp { split: 0 },
            }));
        }
        if self.streams.is_empty() && !self.options.stop_at_end {
            // One that has ended would have nothing to read for good, also of streams that are named later.
            return Poll::Pending;
        }
        loop {
            if let Some((at, entries)) = self.found.pop() {
                let rows = self.rows(at, &entries)?;
                let stream = &mut self.streams[at];
                stream.last = entries.last().map(|(id, _)| id.clone());
                stream.told_end = false;
                if rows.num_rows() > 0 {
                    return Poll::Ready(Ok(Next::Rows { split: at as u32, rows }));
                }
                continue;
            }
            if let Some(at) = self.empty.pop() {
                let (stream, split) = (&mut self.streams[at], at as u32);
                if self.options.stop_at_end {
                    stream.is_over = true;
                    return Poll::Ready(Ok(Next::SplitEnd { split }));
                }
                if !std::mem::replace(&mut stream.told_end, true) {
                    return Poll::Ready(Ok(Next::CaughtUp { split }));
                }
                continue;
            }
            if self.streams.iter().all(|stream| stream.is_over) {
                return Poll::Ready(Ok(Next::End));
            }
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None => {
                    let reader = self.reader.take().expect("it is back when nothing is being read");
                    let asked = self.streams.iter().filter(|stream| !stream.is_over);
                    let asked = asked.map(|stream| (stream.name.clone(), stream.last.clone())).collect();
                    self.reading.insert(Box::pin(reader.read(asked)))
                }
            };
            let Poll::Ready(found) = reading.as_mut().poll(context) else { return Poll::Pending };
            self.reading = None;
            let Found { reader, first, entries } = found?;
            self.reader = Some(reader);
            let first: BTreeMap<String, String> = first.into_iter().collect();
            let mut entries: BTreeMap<String, Vec<Entry>> = entries.into_iter().collect();
            for (at, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| !stream.is_over) {
                if let Some(id) = first.get(&stream.name) {
                    stream.last = Some(id.clone());
                }
                match entries.remove(&stream.name) {
                    Some(entries) => self.found.push((at, entries)),
                    None => self.empty.push(at),
                }
            }
        }
    }

    fn split_name(&self, split: u32) -> String {
        self.streams.get(split as usize).map_or_else(|| "no stream".into(), |stream| stream.name.clone())
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = |stream: &Stream| (stream.name.clone(), stream.last.clone().unwrap_or_default().into());
        Ok(self.streams.iter().map(saved).collect())
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(vec![(SHARED.into(), serde_json::to_vec(&self.held)?.into())])
    }
}

impl Redis {
    fn rows(&mut self, at: usize, entries: &[Entry]) -> Result<RecordBatch, TaskError> {
        let (mut records, mut numbers, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (_, fields)) in entries.iter().enumerate() {
            match self.record(fields) {
                Ok(record) => {
                    records.push(record);
                    numbers.push(number);
                }
                Err((reason, bytes)) => wrong.push((number, reason, bytes)),
            }
        }
        let records: Vec<&[u8]> = records.iter().map(AsRef::as_ref).collect();
        let Ok(rows) = self.decoder.decode(&records, |at, reason| {
            wrong.push((numbers[at], reason.to_owned(), records[at]));
            Ok::<(), Infallible>(())
        });
        // The first one is told first.
        wrong.sort_unstable_by_key(|(number, ..)| *number);
        for (number, reason, bytes) in wrong {
            let place = [("stream", json!(self.streams[at].name)), ("id", json!(entries[number].0))];
            self.bad.bad(&place, &reason, bytes)?;
        }
        self.bad.flush()?;
        Ok(rows)
    }

    /// An entry as JSON; else what is wrong, and with which bytes.
    fn record<'a>(&self, fields: &'a [(Vec<u8>, Vec<u8>)]) -> Result<Cow<'a, [u8]>, (String, &'a [u8])> {
        if self.options.format == Format::Json {
            let name = &self.options.field;
            let found = fields.iter().find(|(field, _)| *field == name.as_bytes());
            return found
                .map(|(_, value)| Cow::from(value))
                .ok_or_else(|| (format!("it has no field \"{name}\""), &[][..]));
        }
        let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| ("it is not UTF-8".to_owned(), bytes));
        let mut object = Map::new();
        for (name, value) in fields {
            let (Ok(name), schema) = (std::str::from_utf8(name), self.decoder.schema()) else { continue };
            let Ok(column) = schema.field_with_name(name) else { continue };
            // Numbers and times are read from texts, these are not.
            let value = match (column.data_type(), text(value)?) {
                (DataType::Boolean, "true") => Value::Bool(true),
                (DataType::Boolean, "false") => Value::Bool(false),
                (_, value) => value.into(),
            };
            object.insert(name.to_owned(), value);
        }
        Ok(Value::Object(object).to_string().into_bytes().into())
    }
}

/// Asks the server, on a connection that it keeps.
struct Reader {
    server: Server,
    connection: Option<MultiplexedConnection>,
    options: Arc<Options>,
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
                Err(error) => return Err(format!("redis {}: {}", self.server.name, told(&error)).into()),
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
