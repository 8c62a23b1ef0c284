//! The thread that reads partitions and emits their records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tidemill_dataflow::{TaskContext, TaskError};

use super::super::client::{KafkaConnection, KafkaContext, failed, partitions, plain};
use super::super::metadata::KafkaMetadata;
use super::super::position::{PartitionPosition, RecordFingerprint};
use super::super::registry::{SchemaCache, SchemaRegistry};
use crate::bad_records::BadRecordHandler;
use crate::decode::RecordDecoder;
use crate::idleness::IdleSplit;
use crate::read_ahead::FeedSender;

use super::super::buffer::{PartitionBuffer, RecordBounds};
use super::spec::{IsolationLevel, KafkaSourceFormat, KafkaSourceOptions, KafkaStart};
use super::{KafkaEvent, ReaderCommand};

/// A batch is emitted when it has this many bytes or rows, or when there is nothing more.
const BATCH_BYTES: usize = 1 << 20;

const BATCH_ROWS: usize = 8192;

/// How long to wait for new records.
const POLL: Duration = Duration::from_millis(50);

/// How long to wait for a broker's reply.
const ANSWER: Duration = Duration::from_secs(5);

/// The same for a reply that is not urgent.
const ASK: Duration = Duration::from_secs(2);

/// What the readers of all copies share.
#[derive(Clone)]
pub(super) struct KafkaReaderPlan {
    pub(super) options: KafkaSourceOptions,
    pub(super) topic: String,
    pub(super) stop_at_end: bool,
    /// How long the brokers may be silent at the start.
    pub(super) patience: Duration,
    /// Time between checks for new partitions; zero for never.
    pub(super) discovery_interval: Duration,
    pub(super) connection: KafkaConnection,
    /// `None` for raw records.
    pub(super) decoder: Option<RecordDecoder>,
    /// The schema of rows, including metadata.
    pub(super) schema: SchemaRef,
    pub(super) registry: Option<SchemaRegistry>,
}

/// Reads on a separate thread.
pub(super) struct KafkaReader {
    pub(super) plan: KafkaReaderPlan,
    pub(super) bad: BadRecordHandler,
    name: String,
    context: TaskContext,
    /// The number of partitions when the job began.
    initial: Option<i32>,
    /// The partitions of all copies.
    held: BTreeSet<i32>,
    /// Schemas from the registry.
    pub(super) schemas: Option<SchemaCache>,
    /// For newly assigned partitions: the offset to resume from, and the expected record before it.
    marks: BTreeMap<i32, (i64, RecordFingerprint)>,
    buffers: BTreeMap<i32, PartitionBuffer>,
    /// Rows and bytes in all buffers.
    waiting: (usize, usize),
    /// The offsets after the last record of each partition.
    next: BTreeMap<i32, i64>,
    /// Partitions that have been read to their current end.
    quiet: BTreeMap<i32, IdleSplit>,
}

impl KafkaReader {
    /// A reader for the copy of `context`, which is called `name`. `held` are the partitions of all copies; `initial`
    /// is the number of partitions when the job began, if it resumes from a checkpoint.
    pub(super) fn new(
        plan: KafkaReaderPlan,
        bad: BadRecordHandler,
        name: &str,
        context: &TaskContext,
        (held, initial): (BTreeSet<i32>, Option<i32>),
    ) -> Self {
        KafkaReader {
            plan,
            bad,
            name: name.to_owned(),
            context: context.clone(),
            initial,
            held,
            schemas: None,
            marks: BTreeMap::new(),
            buffers: BTreeMap::new(),
            waiting: (0, 0),
            next: BTreeMap::new(),
            quiet: BTreeMap::new(),
        }
    }

    pub(super) fn run(
        mut self,
        restored: BTreeMap<i32, PartitionPosition>,
        commands: &mpsc::Receiver<ReaderCommand>,
        feeder: &FeedSender<KafkaEvent>,
    ) -> Result<(), TaskError> {
        let kind = if self.plan.options.format == KafkaSourceFormat::Avro { "AVRO" } else { "JSON" };
        self.schemas = self.plan.registry.take().map(|registry| SchemaCache::new(registry, kind)).transpose()?;
        let consumer = self.consumer()?;
        let patience = self.plan.patience;
        // Nothing has been read yet, so no record is lost; one call may return after the first message.
        let serve = |time| {
            let begun = Instant::now();
            while begun.elapsed() < time {
                drop(consumer.poll(time.saturating_sub(begun.elapsed())));
            }
        };
        let count = partitions(consumer.client(), &self.plan.connection, &self.plan.topic, patience, serve)?;
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
        if reading.is_empty() && !self.plan.stop_at_end && !feeder.give(KafkaEvent::Nothing) {
            return Ok(());
        }
        let interval = self.plan.discovery_interval;
        let mut looked = Instant::now();
        // How many commands were carried out, and whether the end was announced since.
        let (mut heard, mut has_ended) = (0, false);
        while feeder.is_wanted() {
            let is_over = self.plan.stop_at_end && reading.is_empty();
            if is_over && !std::mem::replace(&mut has_ended, true) && !feeder.give(KafkaEvent::End { commands: heard })
            {
                return Ok(());
            }
            // Another copy may give up partitions for this one, even behind its end.
            let command = if is_over { commands.recv_timeout(POLL).ok() } else { commands.try_recv().ok() };
            if let Some(command) = command {
                (heard, has_ended) = (heard + 1, false);
                if !self.obey(command, &mut reading, &consumer, initial, feeder)? {
                    return Ok(());
                }
                continue;
            }
            if is_over {
                continue;
            }
            if !interval.is_zero() && !self.plan.stop_at_end && looked.elapsed() >= interval {
                looked = Instant::now();
                // The client tries again: an unreachable broker comes back.
                let topic = &self.plan.topic;
                let count = partitions(consumer.client(), &self.plan.connection, topic, Duration::ZERO, |_| ());
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
                    // Its queue may still contain records of a finished partition.
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
                    let event = self.caught_up(partition, &mut reading);
                    if !(self.flush_buffers(Some(partition), feeder)? && feeder.give(event)) {
                        return Ok(());
                    }
                }
                Some(Err(error)) => self.classify_error(&error, consumer.client().context())?,
            }
        }
        Ok(())
    }

    /// A partition has been read to its current end.
    fn caught_up(&mut self, partition: i32, reading: &mut BTreeSet<i32>) -> KafkaEvent {
        if self.plan.stop_at_end {
            reading.remove(&partition);
            return KafkaEvent::Over { partition };
        }
        let at = Instant::now();
        self.quiet.insert(partition, IdleSplit::new(at));
        KafkaEvent::CaughtUp { partition, at }
    }

    /// Carries out a command. Returns false if no more data are wanted.
    fn obey(
        &mut self,
        command: ReaderCommand,
        reading: &mut BTreeSet<i32>,
        consumer: &BaseConsumer<KafkaContext>,
        initial: i32,
        feeder: &FeedSender<KafkaEvent>,
    ) -> Result<bool, TaskError> {
        match command {
            ReaderCommand::Release(partitions) => {
                let mut list = TopicPartitionList::new();
                for partition in partitions {
                    list.add_partition(&self.plan.topic, partition);
                    if let Some(buffer) = self.buffers.remove(&partition) {
                        self.waiting.0 -= buffer.records.len();
                        self.waiting.1 -= buffer.size;
                    }
                    reading.remove(&partition);
                    self.marks.remove(&partition);
                    self.next.remove(&partition);
                    self.quiet.remove(&partition);
                }
                consumer.incremental_unassign(&list).map_err(|error| failed(&self.plan.topic, &error))?;
                Ok(true)
            }
            ReaderCommand::Acquire(places) => {
                let partitions = || places.iter().map(|(partition, _)| *partition);
                self.held.extend(partitions());
                reading.extend(partitions());
                self.assign(consumer, places, initial, feeder)
            }
        }
    }

    fn consumer(&self) -> Result<BaseConsumer<KafkaContext>, TaskError> {
        let isolation = match self.plan.options.isolation {
            IsolationLevel::ReadCommitted => "read_committed",
            IsolationLevel::ReadUncommitted => "read_uncommitted",
        };
        let config = self.plan.connection.config(&[
            // A group id is required, although the consumer does not join a group.
            ("group.id", "tidemill"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("enable.partition.eof", "true"),
            ("isolation.level", isolation),
        ]);
        let consumer = config.create_with_context(self.plan.connection.context(&self.name));
        consumer.map_err(|error| failed(&self.plan.topic, &error))
    }

    /// The partitions out of `count` that are unassigned and belong to this copy, with their initial positions.
    fn first_places(
        &mut self,
        consumer: &BaseConsumer<KafkaContext>,
        count: i32,
        patience: Duration,
    ) -> Result<Vec<(i32, PartitionPosition)>, TaskError> {
        let mut places = Vec::new();
        for partition in (0..count).filter(|partition| self.context.is_dealt(*partition as usize)) {
            if !self.held.insert(partition) {
                continue;
            }
            let was_there = self.initial.is_none_or(|initial| partition < initial);
            let start = if was_there { self.plan.options.start } else { KafkaStart::Earliest };
            let offset = self.retry(patience, || self.first_offset(consumer, partition, start))?;
            places.push((partition, PartitionPosition::at(offset)));
        }
        Ok(places)
    }

    /// Asks the brokers until they reply.
    fn retry<T>(&self, patience: Duration, question: impl Fn() -> Result<T, KafkaError>) -> Result<T, TaskError> {
        let begun = Instant::now();
        loop {
            match question() {
                Ok(answer) => return Ok(answer),
                Err(error) if begun.elapsed() >= patience => return Err(failed(&self.plan.topic, &error)),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// A number, never "the end": where the job resumes must not depend on when.
    fn first_offset(
        &self,
        consumer: &BaseConsumer<KafkaContext>,
        partition: i32,
        start: KafkaStart,
    ) -> Result<i64, KafkaError> {
        let timeout = ANSWER;
        let topic = &self.plan.topic;
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
        let topic = &self.plan.topic;
        let patience = self.plan.patience;
        let (mut list, mut marks) = (TopicPartitionList::new(), BTreeMap::new());
        for &(partition, PartitionPosition { next, last }) in &places {
            let mut offset = next;
            if let Some(mark) = last {
                let (low, _) = self.retry(patience, || consumer.fetch_watermarks(topic, partition, ANSWER))?;
                // A record that the topic no longer keeps cannot be checked.
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

    /// Whether a record was not read before the checkpoint. The last one before the checkpoint is read again so that it
    /// can be checked.
    ///
    /// # Errors
    /// If it is a different record than before.
    fn is_new(&mut self, message: &BorrowedMessage<'_>) -> Result<bool, TaskError> {
        let Some((next, mark)) = self.marks.remove(&message.partition()) else { return Ok(true) };
        // Compaction may have removed the expected record.
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
        let topic = &self.plan.topic;
        format!(
            "kafka topic \"{topic}\" was recreated: {reason}; start without this checkpoint to read it from the \
             beginning"
        )
        .into()
    }

    /// Classifies an error that a consumer returns instead of a record.
    fn classify_error(&self, error: &KafkaError, context: &KafkaContext) -> Result<(), TaskError> {
        use RDKafkaErrorCode as E;
        let topic = &self.plan.topic;
        match error.rdkafka_error_code() {
            // The client retries by itself, and logs that.
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
            // A restarting broker causes similar errors in the middle of a handshake; a permanent problem has been
            // reported with its reason.
            Some(E::Authentication | E::SSL) => match context.distrust() {
                Some(why) => Err(format!("kafka {}: {why}", self.plan.connection.servers).into()),
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
        // A bad record is stored with everything needed to send it again.
        let wants =
            |what: KafkaMetadata| self.bad.keeps() || self.plan.options.metadata.iter().any(|(_, of)| *of == what);
        let key = put(if self.plan.decoder.is_none() || wants(KafkaMetadata::Key) { message.key() } else { None });
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

    /// Reports when partitions that were idle still are, when it is time to. If nothing at all has arrived, this is
    /// certain. Otherwise (`asking`) it asks the broker whether there is something after what was read, which may wait
    /// in the consumer's queue behind records of other partitions. The consumer's position says what was read: it is
    /// past the transaction marker, which is not a record. Before the first record of a partition there is no position,
    /// and the start of reading counts.
    fn emit_idle(&mut self, asking: Option<&BaseConsumer<KafkaContext>>, feeder: &FeedSender<KafkaEvent>) -> bool {
        let now = Instant::now();
        let topic = &self.plan.topic;
        for (&partition, quiet) in &mut self.quiet {
            if !quiet.goes_on(now) {
                continue;
            }
            let is_so = asking.is_none_or(|consumer| {
                let position = consumer.position().ok();
                let position = position.and_then(|list| list.find_partition(topic, partition)?.offset().to_raw());
                // Before the first record, the position is not a valid offset.
                let read = self.next.get(&partition).copied().max(position.filter(|position| *position >= 0));
                // An unreachable broker may have something.
                let end = consumer.fetch_watermarks(topic, partition, ASK);
                end.is_ok_and(|(_, end)| read == Some(end))
            });
            if is_so && !feeder.give(KafkaEvent::CaughtUp { partition, at: now }) {
                return false;
            }
        }
        true
    }

    /// Emits what has been read of a partition, or of all. Returns false if no more data are wanted.
    fn flush_buffers(&mut self, only: Option<i32>, feeder: &FeedSender<KafkaEvent>) -> Result<bool, TaskError> {
        let chosen: Vec<i32> = match only {
            Some(partition) => vec![partition],
            None => self.buffers.keys().copied().collect(),
        };
        for partition in chosen {
            let Some(buffer) = self.buffers.remove(&partition) else { continue };
            self.waiting.0 -= buffer.records.len();
            self.waiting.1 -= buffer.size;
            let (rows, bad) = match self.plan.decoder.is_some() {
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
}
