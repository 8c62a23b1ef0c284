//! Entries of streams. Each stream is a split, read from the entry after the last one. Copies share the streams by
//! their positions in the list. All copies know from a checkpoint which streams any of them had, so a stream that is
//! added later is read by exactly one of them.
//!
//! Entries that were trimmed by the server or deleted before they were read are an error. They are detected by
//! counting: the server counts the entries that were added and those that are left, and a position is an id with the
//! number of its entry. If more entries were removed than had been read, some are lost. (Servers before Redis 7 do not
//! count, so losses go unnoticed there.)

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
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::RedisServer;
use super::position::{RedisStart, StreamPosition};
use super::reader::{Entry, RedisReader, StreamBounds};
use crate::bad_records::{BadRecordHandler, BadRecordPolicy, Decoded};
use crate::connection::{Credentials, ServerOptions};
use crate::decode::{RecordDecoder, RecordLayout};
use crate::error::ConnectError;
use crate::idleness::IdleSplit;
use crate::read_options::ReadOptions;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "redis source";
/// The name of the state that copies share.
const SHARED: &str = "streams";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RedisFormat {
    /// An entry's fields are the columns, with their values as text.
    #[default]
    Fields,
    /// One field is a JSON object with the columns.
    Json,
}

#[derive(Clone, Deserialize)]
struct RedisSourceOptions {
    streams: Vec<String>,
    #[serde(default)]
    format: RedisFormat,
    /// The field that contains JSON.
    #[serde(default = "value")]
    field: String,
    /// Where a job starts that does not resume from a checkpoint.
    #[serde(default)]
    start: RedisStart,
}

fn value() -> String {
    "value".into()
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    type Groups = (RedisSourceOptions, ServerOptions, Credentials, ReadOptions);
    let (options, server, credentials, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let options = Arc::new(options);
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let schema = options::needed(NAME, schema)?;
    let names: BTreeSet<&String> = options.streams.iter().collect();
    if names.is_empty() || names.len() < options.streams.len() {
        return Err(wrong("`streams` must name at least one stream, and none twice".into()));
    }
    let server = RedisServer::new(&server, credentials).map_err(wrong)?;
    let decoder = RecordDecoder::new(RecordLayout::Json, SchemaRef::clone(&schema)).map_err(wrong)?;
    let (stop_at_end, bad) = (reading.stop_at_end, BadRecordPolicy::new(reading.on_error));
    let (name, copies_max) = (format!("redis {}", options.streams.join(", ")), options.streams.len() as u32);
    let handlers = bad.clone();
    let make: MakeSource = Arc::new(move |context| {
        let (streams, held) = streams(&options, context)?;
        Ok(Box::new(RedisSource {
            options: Arc::clone(&options),
            stop_at_end,
            decoder: decoder.clone(),
            bad: handlers.handler(format!("{}-{}", context.task(), context.copy())),
            streams,
            held,
            has_begun: false,
            found: Vec::new(),
            empty: Vec::new(),
            asked: Instant::now(),
            reader: Some(RedisReader::new(server.clone(), options.start, stop_at_end)),
            reading: None,
        }))
    });
    Ok(SourceSpec { copies_max, ..SourceSpec::new(name, schema, DeliveryGuarantee::ExactlyOnce, &bad, make) })
}

/// A stream that a copy reads.
#[derive(Clone)]
struct ReadStream {
    name: String,
    /// The position after the last emitted entry; `None` if not known yet.
    place: Option<StreamPosition>,
    /// Set if everything available has been read.
    quiet: Option<IdleSplit>,
    is_over: bool,
}

impl ReadStream {
    fn new(name: &str, place: &str) -> Self {
        ReadStream { name: name.to_owned(), place: StreamPosition::parse(place), quiet: None, is_over: false }
    }
}

/// The streams of a copy, and those of all copies.
fn streams(
    options: &RedisSourceOptions,
    context: &TaskContext,
) -> Result<(Vec<ReadStream>, BTreeSet<String>), TaskError> {
    let (mut mine, mut held) = (Vec::new(), BTreeSet::new());
    if let Some(restored) = context.restored() {
        for bytes in restored.shared.get(SHARED).into_iter().flatten() {
            held.extend(serde_json::from_slice::<Vec<String>>(bytes)?);
        }
        for (name, bytes) in &restored.splits {
            match options.streams.contains(name) {
                true => mine.push(ReadStream::new(name, std::str::from_utf8(bytes)?)),
                false => eprintln!("tidemill: the checkpoint has stream \"{name}\", which is no longer read"),
            }
        }
    }
    let new = options.streams.iter().enumerate().filter(|(_, name)| !held.contains(*name));
    let new = new.filter(|(at, _)| context.is_dealt(*at));
    mine.extend(new.map(|(_, name)| ReadStream::new(name, "")));
    Ok((mine, options.streams.iter().cloned().collect()))
}

/// The source of one copy.
struct RedisSource {
    options: Arc<RedisSourceOptions>,
    stop_at_end: bool,
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    streams: Vec<ReadStream>,
    /// The streams of all copies.
    held: BTreeSet<String>,
    has_begun: bool,
    /// Entries not emitted yet, with the position of their stream in the list.
    found: Vec<(usize, Vec<Entry>)>,
    /// Streams that had nothing at the last request, which is not reported yet.
    empty: Vec<usize>,
    /// The time of that request.
    asked: Instant,
    reader: Option<RedisReader>,
    reading: Option<BoxFuture<'static, Result<StreamBounds, TaskError>>>,
}

impl Source for RedisSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Ok(match self.streams.len().checked_sub(1) {
                // A receiver that sees the last one knows that the others exist, and does not let time advance past
                // them.
                Some(last) => {
                    let rows = RecordBatch::new_empty(SchemaRef::clone(self.decoder.schema()));
                    SourceEvent::rows(last as u32, rows)
                }
                None => SourceEvent::Idle { split: 0, at: Instant::now() },
            }));
        }
        if self.streams.is_empty() && !self.stop_at_end {
            // If it ended, it could never read anything again, not even streams that are added later.
            return Poll::Pending;
        }
        loop {
            if let Some((at, entries)) = self.found.pop() {
                let (rows, bad) = self.rows(at, &entries)?;
                let stream = &mut self.streams[at];
                if let (Some(place), Some((id, _))) = (&mut stream.place, entries.last()) {
                    let number = place.number.map(|number| number + entries.len() as u64);
                    *place = StreamPosition { id: id.clone(), number };
                }
                stream.quiet = None;
                if rows.num_rows() > 0 || bad.is_some() {
                    return Poll::Ready(Ok(SourceEvent::Rows { split: at as u32, rows, bad }));
                }
                continue;
            }
            if let Some(at) = self.empty.pop() {
                let (stream, split) = (&mut self.streams[at], at as u32);
                if self.stop_at_end {
                    stream.is_over = true;
                    return Poll::Ready(Ok(SourceEvent::SplitEnded { split }));
                }
                let at = self.asked;
                if IdleSplit::of(&mut stream.quiet, at) {
                    return Poll::Ready(Ok(SourceEvent::Idle { split, at }));
                }
                continue;
            }
            if self.streams.iter().all(|stream| stream.is_over) {
                return Poll::Ready(Ok(SourceEvent::End));
            }
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None => {
                    let reader = self.reader.take().expect("it is back when nothing is being read");
                    self.asked = Instant::now();
                    let asked = self.streams.iter().filter(|stream| !stream.is_over);
                    let asked = asked.map(|stream| (stream.name.clone(), stream.place.clone())).collect();
                    self.reading.insert(Box::pin(reader.read(asked)))
                }
            };
            let Poll::Ready(found) = reading.as_mut().poll(context) else { return Poll::Pending };
            self.reading = None;
            let StreamBounds { reader, first, entries } = found?;
            self.reader = Some(reader);
            let mut first: BTreeMap<String, StreamPosition> = first.into_iter().collect();
            let mut entries: BTreeMap<String, Vec<Entry>> = entries.into_iter().collect();
            for (at, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| !stream.is_over) {
                if let Some(place) = first.remove(&stream.name) {
                    stream.place = Some(place);
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
        let place = |stream: &ReadStream| stream.place.as_ref().map(StreamPosition::to_string).unwrap_or_default();
        let saved = |stream: &ReadStream| (stream.name.clone(), place(stream).into());
        Ok(self.streams.iter().map(saved).collect())
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(vec![(SHARED.into(), serde_json::to_vec(&self.held)?.into())])
    }
}

impl RedisSource {
    fn rows(&mut self, at: usize, entries: &[Entry]) -> Result<Decoded, TaskError> {
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
        // The first one is reported first.
        wrong.sort_unstable_by_key(|(number, ..)| *number);
        for (number, reason, bytes) in wrong {
            let place = [("stream", json!(self.streams[at].name)), ("id", json!(entries[number].0))];
            self.bad.bad(&place, &reason, bytes)?;
        }
        Ok((rows, self.bad.flush()?))
    }

    /// An entry as JSON, or the problem and the bytes that cause it.
    fn record<'a>(&self, fields: &'a [(Vec<u8>, Vec<u8>)]) -> Result<Cow<'a, [u8]>, (String, &'a [u8])> {
        if self.options.format == RedisFormat::Json {
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
            // Numbers and times are parsed from strings; values of these types are not.
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
