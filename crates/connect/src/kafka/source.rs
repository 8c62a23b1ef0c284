//! Partitions of a topic, each a split: assigned, not balanced by a group. Their offsets are in checkpoints and nowhere
//! else.
//!
//! Copy c of n begins with the partitions p for which p % n is c, or those that a checkpoint deals to it. All copies
//! know which partitions any of them had at the checkpoint; one that nobody had goes to copy p % n, and is read from
//! its beginning, or where `start` says if it was there when the job began.
//!
//! An offset that is not there any more, because the topic keeps records for less time than the job was away, is an
//! error: nothing is passed over in silence. So is a topic that was deleted and made anew, whose offsets are those of
//! other records: with an offset a checkpoint has a mark of the record before it, which is looked at first, see
//! `position`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context as Wakes, Poll};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, BinaryBuilder, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidemill_dataflow::stream::source::{Next, Source};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::{KafkaConnection, KafkaContext, SaslMechanism, failed, partitions, plain};
use super::metadata::{KafkaMetadata, RecordColumns};
use super::position::{PartitionPosition, RecordFingerprint};
use super::registry::{SchemaCache, SchemaRegistry};
use crate::avro::AvroSchemas;
use crate::bad_records::{BadHeaders, BadRecordHandler, BadRecords, Decoded, OnError, RecordContext};
use crate::decode::{RecordDecoder, RecordLayout};
use crate::error::ConnectError;
use crate::format;
use crate::headers::Headers as HeaderList;
use crate::idleness::IdleSplit;
use crate::options::SecretText;
use crate::read_ahead::{FeedReceiver, FeedSender};
use crate::tls::TlsOptions;
use crate::{Guarantee, SourceSpec, options};

const NAME: &str = "kafka source";
/// Batches that are read ahead.
const QUEUE: usize = 4;
/// A batch is given on when it has so many bytes, or so many rows, or nothing more is there.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 8192;
/// How long to wait for what is not there.
const POLL: Duration = Duration::from_millis(50);
/// For a broker's answer.
const ANSWER: Duration = Duration::from_secs(5);
/// For one that may as well come another time.
const ASK: Duration = Duration::from_secs(2);
/// The name of what copies share.
const SHARED: &str = "partitions";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KafkaSourceFormat {
    #[default]
    Json,
    Text,
    Avro,
    Raw,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KafkaStart {
    #[default]
    Earliest,
    Latest,
    /// The first record that is not older.
    TimestampMs(i64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IsolationLevel {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct KafkaSourceOptions {
    /// `host:port`, several with commas between.
    servers: String,
    topic: String,
    #[serde(default)]
    format: KafkaSourceFormat,
    /// Of JSON: values begin with a zero and a schema's number of four bytes, as Confluent's serializers write them.
    #[serde(default)]
    confluent_header: bool,
    /// The schema registry that knows the schemas of Avro values, and of JSON, whose numbers are in Confluent's header.
    registry: Option<SecretText>,
    /// Columns behind those of values: what each is called, and what of a record it has.
    #[serde(default)]
    metadata: Vec<(String, KafkaMetadata)>,
    /// Of Avro: what values are read as; with a registry, by default the newest schema of the topic's values.
    avro_schema: Option<Value>,
    /// Of Avro values with Confluent's header: the schemas they were written with, by number.
    #[serde(default)]
    avro_writers: BTreeMap<u32, Value>,
    /// Where a job begins that goes on from no checkpoint.
    #[serde(default)]
    start: KafkaStart,
    #[serde(default)]
    isolation: IsolationLevel,
    /// Between looks for new partitions; 0 is never.
    #[serde(default = "half_a_minute")]
    discover_interval_s: f64,
    /// Ends when every partition has been read as far as there is anything.
    #[serde(default)]
    stop_at_end: bool,
    #[serde(default)]
    on_error: OnError,
    /// How long the brokers may keep silent at the start.
    #[serde(default = "half_a_minute")]
    patience_s: f64,
    /// For SASL; else `TIDEMILL_KAFKA_USER` and `TIDEMILL_KAFKA_PASSWORD`.
    user: Option<String>,
    password: Option<SecretText>,
    /// By which mechanism; PLAIN unless it is said.
    sasl: Option<SaslMechanism>,
    /// With TLS: files of certificates.
    tls: Option<TlsOptions>,
    /// What else librdkafka is to be told.
    #[serde(default)]
    config: BTreeMap<String, Value>,
}

fn half_a_minute() -> f64 {
    30.0
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: KafkaSourceOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    for (name, seconds) in [("discover_interval_s", options.discover_interval_s), ("patience_s", options.patience_s)] {
        if !(0.0..=1e9).contains(&seconds) {
            return Err(wrong(format!("`{name}` must be 0 or more")));
        }
    }
    if options.format != KafkaSourceFormat::Avro && (options.avro_schema.is_some() || !options.avro_writers.is_empty())
    {
        return Err(wrong("`avro_schema` and `avro_writers` are for `format` avro".into()));
    }
    let patience = Duration::from_secs_f64(options.patience_s);
    let registry = options.registry.as_ref().map(|url| SchemaRegistry::new(url, options.tls.as_ref(), patience));
    let registry = registry.transpose().map_err(wrong)?;
    if registry.is_some()
        && !(matches!(options.format, KafkaSourceFormat::Json | KafkaSourceFormat::Avro)
            && options.avro_writers.is_empty())
    {
        return Err(wrong("`registry` is for `format` json and avro, and without `avro_writers`".into()));
    }
    let layout = match options.format {
        KafkaSourceFormat::Json => Some(RecordLayout::Json),
        KafkaSourceFormat::Text => Some(RecordLayout::Text),
        KafkaSourceFormat::Avro | KafkaSourceFormat::Raw => None,
    };
    let schema = match (layout, schema) {
        (Some(layout), schema) => format::schema(NAME, layout, "value", schema)?,
        (None, None) => raw_schema(),
        (None, Some(schema)) if options.format == KafkaSourceFormat::Raw && schema == raw_schema() => schema,
        (None, Some(_)) => {
            return Err(wrong(format!("{:?} has its own columns: omit the schema", options.format)));
        }
    };
    let decoder = match (options.format, layout) {
        (KafkaSourceFormat::Avro, _) => {
            let schema = match (&options.avro_schema, &registry) {
                (Some(schema), _) => schema.clone(),
                (None, Some(registry)) => SchemaCache::latest(registry, &options.topic, "AVRO").map_err(wrong)?.into(),
                (None, None) => return Err(wrong("avro needs `avro_schema`, or a `registry` that has it".into())),
            };
            let avro = AvroSchemas::new(&schema, &options.avro_writers).map_err(wrong)?;
            Some(RecordDecoder::of_avro(if registry.is_some() { avro.learning() } else { avro }))
        }
        (_, Some(layout)) => Some(RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?),
        (_, None) => None,
    };
    let values = decoder.as_ref().map_or(&schema, RecordDecoder::schema);
    let metadata = options.metadata.iter().map(|(name, what)| (name.as_str(), what.data_type()));
    let schema = options::with_metadata(values, metadata).map_err(wrong)?;
    let KafkaSourceOptions { servers, user, password, sasl, tls, config, .. } = options.clone();
    let connection = KafkaConnection::new(servers, (user, password, sasl), tls.as_ref(), config).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    let made = SchemaRef::clone(&schema);
    Ok(SourceSpec {
        name: format!("kafka {}", options.topic),
        schema,
        copies_max: 0,
        guarantee: Guarantee::ExactlyOnce,
        bad,
        bad_schema: options.on_error.schema(),
        bad_folder: options.on_error.folder(),
        files: None,
        make: Arc::new(move |context| {
            let copy = format!("{}-{}", context.task(), context.copy());
            let restored = RestoredPositions::of(context)?;
            let reader = KafkaReader {
                options: options.clone(),
                connection: connection.clone(),
                decoder: decoder.clone(),
                schema: SchemaRef::clone(&made),
                bad: BadRecordHandler::new(options.on_error.clone(), &counted, copy.clone()),
                name: copy.clone(),
                copy: context.copy() as i32,
                copies: context.copies() as i32,
                initial: restored.initial,
                held: restored.held.clone(),
                registry: registry.clone(),
                schemas: None,
                marks: BTreeMap::new(),
                buffers: BTreeMap::new(),
                waiting: (0, 0),
                next: BTreeMap::new(),
                quiet: BTreeMap::new(),
            };
            let (places, initial) = (restored.places.clone(), restored.initial);
            let feed = FeedReceiver::start(copy, QUEUE, move |feeder| reader.run(restored.places, feeder))?;
            let (schema, numbers, topic) = (SchemaRef::clone(&made), BTreeMap::new(), options.topic.clone());
            Ok(Box::new(KafkaSource { topic, feed, schema, numbers, places, initial }))
        }),
    })
}

fn raw_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("timestamp", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]))
}

/// What copies tell each other by a checkpoint.
#[derive(Default, Serialize, Deserialize)]
struct SharedPositions {
    /// The partitions that a copy had.
    held: Vec<i32>,
    /// How many there were when the job began.
    initial: i32,
}

/// What a copy begins with.
#[derive(Clone, Default)]
struct RestoredPositions {
    /// Of its partitions.
    places: BTreeMap<i32, PartitionPosition>,
    /// The partitions of all copies.
    held: BTreeSet<i32>,
    initial: Option<i32>,
}

impl RestoredPositions {
    fn of(context: &TaskContext) -> Result<Self, TaskError> {
        let mut mine = RestoredPositions::default();
        let Some(restored) = context.restored() else { return Ok(mine) };
        for (name, bytes) in &restored.splits {
            let (partition, place) = name
                .parse()
                .ok()
                .zip(PartitionPosition::of(bytes))
                .ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no kafka source made"))?;
            mine.places.insert(partition, place);
        }
        for bytes in restored.shared.get(SHARED).into_iter().flatten() {
            let shared: SharedPositions = serde_json::from_slice(bytes)?;
            mine.held.extend(shared.held);
            mine.initial = mine.initial.max(Some(shared.initial));
        }
        Ok(mine)
    }
}

enum KafkaEvent {
    /// Partitions that the copy has from now on, where they are read from, and how many there were at the job's
    /// beginning.
    Assigned {
        places: Vec<(i32, PartitionPosition)>,
        initial: i32,
    },
    /// `place` is behind them.
    Rows {
        partition: i32,
        rows: RecordBatch,
        bad: Option<RecordBatch>,
        place: PartitionPosition,
    },
    CaughtUp {
        partition: i32,
        /// When there was nothing more.
        at: Instant,
    },
    Over {
        partition: i32,
    },
    /// The copy has no partition.
    Nothing,
}

/// The source of one copy.
struct KafkaSource {
    topic: String,
    feed: FeedReceiver<KafkaEvent>,
    schema: SchemaRef,
    /// Splits, by partition.
    numbers: BTreeMap<i32, u32>,
    /// Behind the last row that was given.
    places: BTreeMap<i32, PartitionPosition>,
    initial: Option<i32>,
}

impl Source for KafkaSource {
    fn poll_next(&mut self, context: &mut Wakes<'_>) -> Poll<Result<Next, TaskError>> {
        loop {
            let event = match self.feed.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => event?,
            };
            return Poll::Ready(Ok(match event {
                None => Next::End,
                Some(KafkaEvent::Assigned { places, initial }) => {
                    let mut last = None;
                    for (partition, place) in places {
                        let number = self.numbers.len() as u32;
                        self.numbers.insert(partition, number);
                        self.places.insert(partition, place);
                        last = Some(number);
                    }
                    self.initial = Some(initial);
                    // Whoever hears of the last one knows that there are the others, and does not go ahead of them in
                    // time.
                    match last {
                        Some(split) => {
                            let rows = RecordBatch::new_empty(SchemaRef::clone(&self.schema));
                            Next::rows(split, rows)
                        }
                        None => continue,
                    }
                }
                Some(KafkaEvent::Rows { partition, rows, bad, place }) => {
                    self.places.insert(partition, place);
                    if rows.num_rows() == 0 && bad.is_none() {
                        continue;
                    }
                    Next::Rows { split: self.numbers[&partition], rows, bad }
                }
                Some(KafkaEvent::CaughtUp { partition, at }) => Next::CaughtUp { split: self.numbers[&partition], at },
                Some(KafkaEvent::Over { partition }) => Next::SplitEnd { split: self.numbers[&partition] },
                Some(KafkaEvent::Nothing) => Next::CaughtUp { split: 0, at: Instant::now() },
            }));
        }
    }

    fn split_name(&self, split: u32) -> String {
        let of = self.numbers.iter().find(|(_, number)| **number == split);
        of.map_or_else(|| self.topic.clone(), |(partition, _)| format!("{}[{partition}]", self.topic))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(self.places.iter().map(|(partition, place)| (partition.to_string(), place.to_bytes())).collect())
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        // Before it knows, whoever goes on begins as it did.
        let Some(initial) = self.initial else { return Ok(Vec::new()) };
        let shared = SharedPositions { held: self.places.keys().copied().collect(), initial };
        Ok(vec![(SHARED.into(), serde_json::to_vec(&shared)?.into())])
    }
}

/// Records of a partition that are not given on yet.
#[derive(Default)]
struct PartitionBuffer {
    bytes: Vec<u8>,
    records: Vec<RecordBounds>,
    /// Bytes of these, with headers.
    size: usize,
    next: i64,
}

/// Where a record's key and value end in the buffer; each begins where the one before ends.
pub(super) struct RecordBounds {
    pub(super) offset: i64,
    pub(super) timestamp_ms: Option<i64>,
    key: Option<usize>,
    value: Option<usize>,
    /// Where they are wanted: names and values.
    pub(super) headers: HeaderList,
}

impl RecordBounds {
    /// What it has besides its value, for who writes it down.
    fn besides(&self, key: Option<&[u8]>) -> RecordContext {
        let headers = (!self.headers.is_empty()).then(|| BadHeaders::List(self.headers.clone()));
        RecordContext { timestamp_ms: self.timestamp_ms, key: key.map(<[u8]>::to_vec), headers }
    }
}

/// Reads on a thread of its own.
struct KafkaReader {
    options: KafkaSourceOptions,
    connection: KafkaConnection,
    decoder: Option<RecordDecoder>,
    schema: SchemaRef,
    bad: BadRecordHandler,
    name: String,
    copy: i32,
    copies: i32,
    initial: Option<i32>,
    held: BTreeSet<i32>,
    registry: Option<SchemaRegistry>,
    /// Of the registry.
    schemas: Option<SchemaCache>,
    /// Of partitions that have just been assigned: the offset they go on from, and what has to be the record before it.
    marks: BTreeMap<i32, (i64, RecordFingerprint)>,
    buffers: BTreeMap<i32, PartitionBuffer>,
    /// Rows and bytes in all buffers.
    waiting: (usize, usize),
    /// Behind the last record of each partition.
    next: BTreeMap<i32, i64>,
    /// Partitions that have been read as far as there is anything.
    quiet: BTreeMap<i32, IdleSplit>,
}

impl KafkaReader {
    fn run(
        mut self,
        restored: BTreeMap<i32, PartitionPosition>,
        feeder: &FeedSender<KafkaEvent>,
    ) -> Result<(), TaskError> {
        let kind = if self.options.format == KafkaSourceFormat::Avro { "AVRO" } else { "JSON" };
        self.schemas = self.registry.take().map(|registry| SchemaCache::new(registry, kind)).transpose()?;
        let consumer = self.consumer()?;
        let patience = Duration::from_secs_f64(self.options.patience_s);
        // Nothing is read yet, so no record is lost; one call may return after the first thing that was said.
        let serve = |time| {
            let begun = Instant::now();
            while begun.elapsed() < time {
                drop(consumer.poll(time.saturating_sub(begun.elapsed())));
            }
        };
        let count = partitions(consumer.client(), &self.connection, &self.options.topic, patience, serve)?;
        let initial = *self.initial.get_or_insert(count);
        if let Some(partition) = restored.keys().find(|partition| **partition >= count) {
            let text = format!("it has {count} partitions, but the checkpoint has partition {partition}");
            return Err(self.topic_recreated(&text));
        }
        let mut places: Vec<(i32, PartitionPosition)> = restored.into_iter().collect();
        places.extend(self.first_places(&consumer, count, patience)?);
        let mut reading: BTreeSet<i32> = places.iter().map(|(partition, _)| *partition).collect();
        if !self.assign(&consumer, places, initial, feeder)? {
            return Ok(());
        }
        if reading.is_empty() && !self.options.stop_at_end && !feeder.give(KafkaEvent::Nothing) {
            return Ok(());
        }
        let interval = Duration::from_secs_f64(self.options.discover_interval_s);
        let mut looked = Instant::now();
        while feeder.is_wanted() {
            if self.options.stop_at_end && reading.is_empty() {
                return Ok(());
            }
            if !interval.is_zero() && !self.options.stop_at_end && looked.elapsed() >= interval {
                looked = Instant::now();
                // It is tried again: a broker that is away comes back.
                let topic = &self.options.topic;
                let count = partitions(consumer.client(), &self.connection, topic, Duration::ZERO, |_| ());
                if let Ok(count) = count {
                    let places = self.first_places(&consumer, count, patience)?;
                    reading.extend(places.iter().map(|(partition, _)| *partition));
                    if !places.is_empty() && !self.assign(&consumer, places, initial, feeder)? {
                        return Ok(());
                    }
                }
            }
            let is_waiting = self.waiting.0 > 0;
            match consumer.poll(if is_waiting { Duration::ZERO } else { POLL }) {
                None => {
                    if !self.flush_buffers(None, feeder)? || !self.emit_idle(None, feeder) {
                        return Ok(());
                    }
                }
                Some(Ok(message)) => {
                    // What is still in its queue of a partition that is over.
                    if reading.contains(&message.partition()) && self.is_new(&message)? {
                        self.buffer_record(&message);
                    }
                    drop(message);
                    if (self.waiting.0 >= BATCH_ROWS || self.waiting.1 >= BATCH_BYTES)
                        && !(self.flush_buffers(None, feeder)? && self.emit_idle(Some(&consumer), feeder))
                    {
                        return Ok(());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if !reading.contains(&partition) {
                        continue;
                    }
                    let event = match self.options.stop_at_end {
                        true => {
                            reading.remove(&partition);
                            KafkaEvent::Over { partition }
                        }
                        false => {
                            let at = Instant::now();
                            self.quiet.insert(partition, IdleSplit::new(at));
                            KafkaEvent::CaughtUp { partition, at }
                        }
                    };
                    if !(self.flush_buffers(Some(partition), feeder)? && feeder.give(event)) {
                        return Ok(());
                    }
                }
                Some(Err(error)) => self.classify_error(&error, consumer.client().context())?,
            }
        }
        Ok(())
    }

    fn consumer(&self) -> Result<BaseConsumer<KafkaContext>, TaskError> {
        let isolation = match self.options.isolation {
            IsolationLevel::ReadCommitted => "read_committed",
            IsolationLevel::ReadUncommitted => "read_uncommitted",
        };
        let config = self.connection.config(&[
            // It has to have one, and joins none.
            ("group.id", "tidemill"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("enable.partition.eof", "true"),
            ("isolation.level", isolation),
        ]);
        let consumer = config.create_with_context(self.connection.context(&self.name));
        consumer.map_err(|error| failed(&self.options.topic, &error))
    }

    /// Of `count` partitions those that nobody has and this copy is to take, and where they are read from.
    fn first_places(
        &mut self,
        consumer: &BaseConsumer<KafkaContext>,
        count: i32,
        patience: Duration,
    ) -> Result<Vec<(i32, PartitionPosition)>, TaskError> {
        let mut places = Vec::new();
        for partition in (0..count).filter(|partition| partition % self.copies == self.copy) {
            if !self.held.insert(partition) {
                continue;
            }
            let was_there = self.initial.is_none_or(|initial| partition < initial);
            let start = if was_there { self.options.start } else { KafkaStart::Earliest };
            let offset = self.retry(patience, || self.first_offset(consumer, partition, start))?;
            places.push((partition, PartitionPosition::at(offset)));
        }
        Ok(places)
    }

    /// Asks the brokers until they answer.
    fn retry<T>(&self, patience: Duration, question: impl Fn() -> Result<T, KafkaError>) -> Result<T, TaskError> {
        let begun = Instant::now();
        loop {
            match question() {
                Ok(answer) => return Ok(answer),
                Err(error) if begun.elapsed() >= patience => return Err(failed(&self.options.topic, &error)),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// A number, never "the end": where the job goes on must not depend on when.
    fn first_offset(
        &self,
        consumer: &BaseConsumer<KafkaContext>,
        partition: i32,
        start: KafkaStart,
    ) -> Result<i64, KafkaError> {
        let timeout = ANSWER;
        let topic = &self.options.topic;
        if let KafkaStart::TimestampMs(timestamp_ms) = start {
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_offset(topic, partition, Offset::Offset(timestamp_ms))?;
            let found = consumer.offsets_for_times(wanted, timeout)?;
            if let Some(element) = found.elements().first() {
                element.error()?;
                if let Offset::Offset(offset) = element.offset() {
                    return Ok(offset);
                }
            }
        }
        let (low, high) = consumer.fetch_watermarks(topic, partition, timeout)?;
        Ok(if start == KafkaStart::Earliest { low } else { high })
    }

    fn assign(
        &mut self,
        consumer: &BaseConsumer<KafkaContext>,
        places: Vec<(i32, PartitionPosition)>,
        initial: i32,
        feeder: &FeedSender<KafkaEvent>,
    ) -> Result<bool, TaskError> {
        let topic = &self.options.topic;
        let patience = Duration::from_secs_f64(self.options.patience_s);
        let (mut list, mut marks) = (TopicPartitionList::new(), BTreeMap::new());
        for &(partition, PartitionPosition { next, last }) in &places {
            let mut offset = next;
            if let Some(mark) = last {
                let (low, _) = self.retry(patience, || consumer.fetch_watermarks(topic, partition, ANSWER))?;
                // A record that the topic keeps no longer tells nothing.
                if low < next {
                    offset = next - 1;
                    marks.insert(partition, (next, mark));
                }
            }
            let added = list.add_partition_offset(topic, partition, Offset::Offset(offset));
            added.map_err(|error| failed(topic, &error))?;
        }
        self.next.extend(places.iter().map(|(partition, place)| (*partition, place.next)));
        if !feeder.give(KafkaEvent::Assigned { places, initial }) {
            return Ok(false);
        }
        self.marks.extend(marks);
        consumer.incremental_assign(&list).map_err(|error| failed(topic, &error))?;
        Ok(true)
    }

    /// Whether a record was not read before the checkpoint: the last one that was comes again, so that it can be looked
    /// at.
    ///
    /// # Errors
    /// When it is another one than it was.
    fn is_new(&mut self, message: &BorrowedMessage<'_>) -> Result<bool, TaskError> {
        let Some((next, mark)) = self.marks.remove(&message.partition()) else { return Ok(true) };
        // Compaction may have removed it.
        if message.offset() >= next {
            return Ok(true);
        }
        if mark == RecordFingerprint::new(message.timestamp().to_millis(), message.payload()) {
            return Ok(false);
        }
        let (offset, partition) = (message.offset(), message.partition());
        Err(self
            .topic_recreated(&format!("record {offset} of partition {partition} is not the one that was read there")))
    }

    fn topic_recreated(&self, reason: &str) -> TaskError {
        let topic = &self.options.topic;
        format!(
            "kafka topic \"{topic}\" was recreated: {reason}; start without this checkpoint to read it from the \
             beginning"
        )
        .into()
    }

    /// What a consumer says instead of a record.
    fn classify_error(&self, error: &KafkaError, context: &KafkaContext) -> Result<(), TaskError> {
        use RDKafkaErrorCode as E;
        let topic = &self.options.topic;
        match error.rdkafka_error_code() {
            // It looks for them on its own, and says so in its log.
            Some(
                E::BrokerTransportFailure
                | E::AllBrokersDown
                | E::Resolve
                | E::OperationTimedOut
                | E::RequestTimedOut
                | E::NetworkException
                | E::LeaderNotAvailable
                | E::NotLeaderForPartition
                | E::ReplicaNotAvailable
                | E::BrokerNotAvailable
                | E::OffsetNotAvailable
                | E::CoordinatorLoadInProgress
                | E::CoordinatorNotAvailable
                | E::NotCoordinator,
            ) => Ok(()),
            // A broker that restarts says the like in the middle of a handshake; what will not change has been heard
            // with its reason.
            Some(E::Authentication | E::SSL) => match context.distrust() {
                Some(why) => Err(format!("kafka {}: {why}", self.connection.servers).into()),
                None => Ok(()),
            },
            Some(E::AutoOffsetReset | E::OffsetOutOfRange) => Err(format!(
                "kafka topic \"{topic}\": the resume offset no longer exists: retention is shorter than the job's \
                 downtime, or the topic was recreated; start without this checkpoint ({})",
                plain(error)
            )
            .into()),
            _ => Err(failed(topic, error)),
        }
    }

    fn buffer_record(&mut self, message: &BorrowedMessage<'_>) {
        let buffer = self.buffers.entry(message.partition()).or_default();
        let before = buffer.bytes.len();
        let mut header_bytes = 0;
        let mut put = |bytes: Option<&[u8]>| {
            buffer.bytes.extend_from_slice(bytes?);
            Some(buffer.bytes.len())
        };
        // A bad record is written down with all that it takes to send it again.
        let wants = |what: KafkaMetadata| {
            self.options.on_error.keeps() || self.options.metadata.iter().any(|(_, of)| *of == what)
        };
        let key = put(if self.decoder.is_none() || wants(KafkaMetadata::Key) { message.key() } else { None });
        let value = put(message.payload());
        let headers = message.headers().filter(|_| wants(KafkaMetadata::Headers));
        let headers = headers.into_iter().flat_map(|headers| headers.iter());
        let headers = headers.map(|header| {
            header_bytes += header.key.len() + header.value.map_or(0, <[u8]>::len);
            (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
        });
        let headers = headers.collect();
        buffer.next = message.offset() + 1;
        self.quiet.remove(&message.partition());
        self.next.insert(message.partition(), buffer.next);
        let timestamp_ms = message.timestamp().to_millis();
        buffer.records.push(RecordBounds { offset: message.offset(), timestamp_ms, key, value, headers });
        let more = buffer.bytes.len() - before + header_bytes;
        buffer.size += more;
        self.waiting.0 += 1;
        self.waiting.1 += more;
    }

    /// Says of partitions that had nothing more that they still have nothing, when it is time to. That is so when
    /// nothing at all has come; else (`asking`) the broker is asked whether there is something behind what was read,
    /// which may wait in the consumer's queue behind records of others. What was read is told by the consumer's
    /// position, which is behind the mark that ends a transaction and is no record; before the first record of a
    /// partition it has none, and it is where reading began.
    fn emit_idle(&mut self, asking: Option<&BaseConsumer<KafkaContext>>, feeder: &FeedSender<KafkaEvent>) -> bool {
        let now = Instant::now();
        let topic = &self.options.topic;
        for (&partition, quiet) in &mut self.quiet {
            if !quiet.goes_on(now) {
                continue;
            }
            let is_so = asking.is_none_or(|consumer| {
                let position = consumer.position().ok();
                let position = position.and_then(|list| list.find_partition(topic, partition)?.offset().to_raw());
                // Before the first record it is no number of one.
                let read = self.next.get(&partition).copied().max(position.filter(|position| *position >= 0));
                // A broker that is away may have something.
                let end = consumer.fetch_watermarks(topic, partition, ASK);
                end.is_ok_and(|(_, end)| read == Some(end))
            });
            if is_so && !feeder.give(KafkaEvent::CaughtUp { partition, at: now }) {
                return false;
            }
        }
        true
    }

    /// Gives on what is there of a partition, or of all. False: nobody wants more.
    fn flush_buffers(&mut self, only: Option<i32>, feeder: &FeedSender<KafkaEvent>) -> Result<bool, TaskError> {
        let chosen: Vec<i32> = match only {
            Some(partition) => vec![partition],
            None => self.buffers.keys().copied().collect(),
        };
        for partition in chosen {
            let Some(buffer) = self.buffers.remove(&partition) else { continue };
            self.waiting.0 -= buffer.records.len();
            self.waiting.1 -= buffer.size;
            let (rows, bad) = match self.decoder.is_some() {
                true => self.decode(partition, &buffer)?,
                false => (self.raw(partition, &buffer)?, None),
            };
            let last =
                buffer.iter().last().map(|(record, _, value)| RecordFingerprint::new(record.timestamp_ms, value));
            if !feeder.give(KafkaEvent::Rows {
                partition,
                rows,
                bad,
                place: PartitionPosition { next: buffer.next, last },
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn decode(&mut self, partition: i32, buffer: &PartitionBuffer) -> Result<Decoded, TaskError> {
        let KafkaReader { bad, options, decoder, schemas, schema, .. } = self;
        let decoder = decoder.as_mut().expect("asked for by who has one");
        let is_json = options.format == KafkaSourceFormat::Json;
        let strips = (options.confluent_header || schemas.is_some()) && is_json;
        let (mut values, mut records, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for (record, key, value) in buffer.iter() {
            let body = match (value, strips) {
                (None, _) => Err("it has no value"),
                (Some([0, _, _, _, _, body @ ..]), true) => Ok(body),
                (Some(_), true) => Err("it has no Confluent header"),
                (Some(value), false) => Ok(value),
            };
            let body = body.map_err(str::to_owned);
            let known = match (schemas.as_mut(), value) {
                (Some(schemas), Some([0, a, b, c, d, ..])) => {
                    let number = u32::from_be_bytes([*a, *b, *c, *d]);
                    let found = schemas.find(number)?.as_ref().map_err(String::clone);
                    found.and_then(|schema| decoder.learn(number, schema))
                }
                // Without a header there is nothing to ask for, as it is told below.
                _ => Ok(()),
            };
            match known.and(body) {
                Ok(body) => {
                    values.push(body);
                    records.push((record, key));
                }
                Err(reason) => wrong.push((record, key, reason, value)),
            }
        }
        let mut is_row = vec![true; values.len()];
        let Ok(rows) = decoder.decode(&values, |at, reason| {
            let (record, key) = records[at];
            wrong.push((record, key, reason.to_owned(), Some(values[at])));
            is_row[at] = false;
            Ok::<(), Infallible>(())
        });
        // The first one is told first.
        wrong.sort_unstable_by_key(|(record, ..)| record.offset);
        for (record, key, reason, bytes) in wrong {
            let offset = json!(record.offset);
            let place = [("topic", json!(options.topic)), ("partition", json!(partition)), ("offset", offset)];
            bad.bad_with(&place, &reason, bytes, || record.besides(key))?;
        }
        let bad = bad.flush()?;
        if options.metadata.is_empty() {
            return Ok((rows, bad));
        }
        let records = records.into_iter().zip(is_row).filter(|(_, is_row)| *is_row).map(|(record, _)| record).collect();
        let found = RecordColumns { topic: &options.topic, partition, records };
        let more = options.metadata.iter().map(|(_, what)| found.column(*what));
        let columns = rows.columns().iter().cloned().chain(more).collect();
        Ok((RecordBatch::try_new(SchemaRef::clone(schema), columns)?, bad))
    }

    fn raw(&self, partition: i32, buffer: &PartitionBuffer) -> Result<RecordBatch, TaskError> {
        let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
        for (_, key, value) in buffer.iter() {
            keys.append_option(key);
            values.append_option(value);
        }
        let records = || buffer.records.iter();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(keys.finish()),
            Arc::new(values.finish()),
            Arc::new(Int32Array::from(vec![partition; buffer.records.len()])),
            Arc::new(Int64Array::from_iter_values(records().map(|record| record.offset))),
            Arc::new(records().map(|record| record.timestamp_ms).collect::<TimestampMillisecondArray>()),
        ];
        let records = buffer.iter().map(|(record, key, _)| (record, key)).collect();
        let found = RecordColumns { topic: &self.options.topic, partition, records };
        let more = self.options.metadata.iter().map(|(_, what)| found.column(*what));
        let columns = columns.into_iter().chain(more).collect();
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?)
    }
}

impl PartitionBuffer {
    /// The records, their keys and their values.
    fn iter(&self) -> impl Iterator<Item = (&RecordBounds, Option<&[u8]>, Option<&[u8]>)> {
        let mut at = 0;
        self.records.iter().map(move |record| {
            let mut take = |end: Option<usize>| {
                let bytes = &self.bytes[at..end?];
                at += bytes.len();
                Some(bytes)
            };
            let key = take(record.key);
            (record, key, take(record.value))
        })
    }
}
