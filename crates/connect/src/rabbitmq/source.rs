//! Messages of a queue as rows, acknowledged when their checkpoint is durable. Until then they belong to the server:
//! messages that were not acknowledged when a job failed are redelivered.
//!
//! | `id`             | copies    | guarantee of a message                                                                 |
//! |------------------|-----------|----------------------------------------------------------------------------------------|
//! | none             | any       | at least once: again after a failure, or a lost connection, until it is acknowledged   |
//! | a property of it | one       | exactly once, if every message has a unique one                                        |
//!
//! With an id, the source remembers messages that may be redelivered, also in checkpoints (see `seen_ids`): a
//! redelivered message is acknowledged with the next checkpoint, and does not become a row. This covers redeliveries
//! within an hour, as long as the server does not lose acknowledgments that it received ten seconds ago or earlier.
//!
//! At most once: messages are acknowledged before they are emitted, and redelivered messages do not become rows.
//!
//! Without checkpoints, messages are acknowledged when they are emitted: messages in flight are lost with the job.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use lapin::message::Delivery;
use lapin::types::ShortString;
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::RabbitMqServer;
use super::metadata::{RabbitMqMetadata, object};
use super::queue::{DeliveryTag, QueueEvent, QueueMessage, QueueOptions, QueueTask};
use super::seen_ids::SeenMessageIds;
use crate::bad_records::{BadHeaders, BadRecordHandler, BadRecordPolicy, Decoded, RecordContext};
use crate::connection::ServerOptions;
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, MessageFormat};
use crate::read_options::ReadOptions;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "rabbitmq source";
/// The name of the split with the ids.
const SPLIT: &str = "ids";
/// Default maximum number of unacknowledged messages per copy.
const PREFETCH: u16 = 50_000;
/// When a job ends: how long the server may take to receive its acknowledgments.
const LAST_WORD: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The property that identifies a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IdProperty {
    MessageId,
    CorrelationId,
}

impl IdProperty {
    fn name(self) -> &'static str {
        match self {
            IdProperty::MessageId => "message_id",
            IdProperty::CorrelationId => "correlation_id",
        }
    }

    fn of(self, message: &QueueMessage) -> Option<&str> {
        let properties = &message.delivery.properties;
        let id = match self {
            IdProperty::MessageId => properties.message_id(),
            IdProperty::CorrelationId => properties.correlation_id(),
        };
        id.as_ref().map(ShortString::as_str)
    }
}

#[derive(Clone, Deserialize)]
struct RabbitMqSourceOptions {
    queue: String,
    #[serde(default)]
    format: MessageFormat,
    id: Option<IdProperty>,
    /// Columns after those of the bytes: the name of each, and the metadata it contains.
    #[serde(default)]
    metadata: Vec<(String, RabbitMqMetadata)>,
    /// Maximum number of unacknowledged messages per copy, and thus of messages read between two checkpoints.
    prefetch: Option<u16>,
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    type Groups = (RabbitMqSourceOptions, ServerOptions, ReadOptions);
    let (options, server, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = options.format.layout();
    let schema = format::schema(NAME, layout, "value", schema)?;
    let prefetch = options.prefetch.unwrap_or(PREFETCH);
    if prefetch == 0 {
        return Err(wrong("`prefetch` must be from 1 to 65535".into()));
    }
    let server = RabbitMqServer::new(&server).map_err(wrong)?;
    let queue = QueueOptions { server, queue: options.queue.clone(), prefetch };
    let metadata = options.metadata.iter().map(|(name, what)| (name.as_str(), what.data_type()));
    let made = options::with_metadata(&schema, metadata).map_err(wrong)?;
    let decoder = RecordDecoder::new(layout, schema).map_err(wrong)?;
    let (stop_at_end, bad) = (reading.stop_at_end, BadRecordPolicy::new(reading.on_error));
    let (name, schema) = (format!("rabbitmq {}", options.queue), SchemaRef::clone(&made));
    let (guarantee, copies_max) = match options.id {
        // Another copy would not recognize messages redelivered after this one has lost its connection.
        Some(_) => (DeliveryGuarantee::ExactlyOnce, 1),
        None => (DeliveryGuarantee::AtLeastOnce, 0),
    };
    let handlers = bad.clone();
    let make: MakeSource = Arc::new(move |context| {
        if !context.active_copies().contains(&context.copy()) {
            return Ok(Box::new(SpareCopy));
        }
        let keeps = context.makes_checkpoints();
        let mut options = options.clone();
        // Without checkpoints there is no guarantee for which ids would be useful.
        options.id = options.id.filter(|_| keeps);
        Ok(Box::new(RabbitMqSource {
            known: known(context)?,
            decoder: decoder.clone(),
            schema: SchemaRef::clone(&made),
            bad: handlers.handler(format!("{}-{}", context.task(), context.copy())),
            reading: queue.clone(),
            options,
            stop_at_end,
            queue: None,
            keeps,
            once: context.at_most_once(),
            current: PendingAcks::default(),
            pending: BTreeMap::new(),
            acknowledgements: 0,
        }))
    });
    Ok(SourceSpec { copies_max, ..SourceSpec::new(name, schema, guarantee, &bad, make) })
}

/// The source of a copy on a spare worker: it takes no messages from the others. As queues have no splits that can
/// move, the job is started again if that worker is to take part.
struct SpareCopy;

impl Source for SpareCopy {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        Poll::Ready(Ok(SourceEvent::End))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

fn known(context: &TaskContext) -> Result<SeenMessageIds, TaskError> {
    let splits = context.restored().map(|restored| &restored.splits).into_iter().flatten();
    let mut ids = Vec::new();
    for (_, bytes) in splits {
        ids.extend(serde_json::from_slice::<Vec<String>>(bytes)?);
    }
    Ok(SeenMessageIds::restored(ids, Instant::now()))
}

/// Acknowledgments to send when a checkpoint is durable.
#[derive(Default)]
struct PendingAcks {
    /// The last message.
    tag: Option<DeliveryTag>,
    ids: Vec<String>,
}

impl PendingAcks {
    fn add(&mut self, later: PendingAcks) {
        self.tag = later.tag.or(self.tag);
        self.ids.extend(later.ids);
    }
}

/// The source of one copy.
struct RabbitMqSource {
    options: RabbitMqSourceOptions,
    stop_at_end: bool,
    decoder: RecordDecoder,
    /// Includes metadata columns.
    schema: SchemaRef,
    bad: BadRecordHandler,
    reading: QueueOptions,
    queue: Option<QueueTask>,
    /// Whether the job makes checkpoints.
    keeps: bool,
    /// Whether a redelivered message may already have been a row.
    once: bool,
    known: SeenMessageIds,
    /// Messages since the last barrier.
    current: PendingAcks,
    /// Acknowledgments by the epoch of the barrier.
    pending: BTreeMap<u64, PendingAcks>,
    /// Number of acknowledgments sent.
    acknowledgements: u64,
}

impl Source for RabbitMqSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if !self.keeps {
            // The last batch has been taken.
            self.settle(u64::MAX);
        }
        loop {
            let queue = self.queue.get_or_insert_with(|| QueueTask::open(self.reading.clone()));
            match queue.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => match event? {
                    QueueEvent::Lost => {
                        self.known.lost(Instant::now());
                        // Those numbers are invalid now.
                        self.current = PendingAcks::default();
                        self.pending.clear();
                    }
                    QueueEvent::Messages(messages) => {
                        let (rows, bad) = self.rows(messages)?;
                        if rows.num_rows() > 0 || bad.is_some() {
                            return Poll::Ready(Ok(SourceEvent::Rows { split: 0, rows, bad }));
                        }
                    }
                    QueueEvent::CaughtUp if self.stop_at_end => return Poll::Ready(Ok(SourceEvent::End)),
                    QueueEvent::CaughtUp => return Poll::Ready(Ok(SourceEvent::Idle { split: 0, at: Instant::now() })),
                },
            }
        }
    }

    fn barrier(&mut self, epoch: u64) {
        let owed = std::mem::take(&mut self.current);
        self.pending.entry(epoch).or_default().add(owed);
    }

    fn split_name(&self, _split: u32) -> String {
        self.options.queue.clone()
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(match self.options.id {
            Some(_) => vec![(SPLIT.into(), serde_json::to_vec(&self.known.ids()?)?.into())],
            None => Vec::new(),
        })
    }

    fn durable(&mut self, epoch: u64) {
        self.settle(epoch);
    }

    fn finishes_after_commit(&self) -> bool {
        true
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            let Some(queue) = &self.queue else { return Ok(()) };
            let since = Instant::now();
            // Without the reply, messages are redelivered, which is no reason to fail.
            while queue.confirmed() < self.acknowledgements && since.elapsed() < LAST_WORD {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Ok(())
        })
    }
}

impl RabbitMqSource {
    /// Acknowledges everything emitted before the barrier of `epoch`.
    fn settle(&mut self, epoch: u64) {
        let mut owed = PendingAcks::default();
        while let Some(entry) = self.pending.first_entry().filter(|entry| *entry.key() <= epoch) {
            owed.add(entry.remove());
        }
        if epoch == u64::MAX {
            owed.add(std::mem::take(&mut self.current));
        }
        let Some(queue) = &self.queue else { return };
        if let Some(tag) = owed.tag {
            self.acknowledgements += 1;
            queue.acknowledge(tag, self.acknowledgements);
        }
        self.known.acknowledged(owed.ids, self.acknowledgements, queue.confirmed(), Instant::now());
    }

    fn rows(&mut self, messages: Vec<QueueMessage>) -> Result<Decoded, TaskError> {
        let mut new = Vec::new();
        for message in messages {
            self.current.tag = Some(message.tag);
            if self.once && message.delivery.redelivered {
                continue;
            }
            if let Some(property) = self.options.id {
                let Some(id) = property.of(&message) else {
                    let reason = format!("a message has no {}", property.name());
                    self.put_aside(&message, &reason)?;
                    continue;
                };
                self.current.ids.push(id.to_owned());
                if !self.known.comes(id) {
                    continue;
                }
            }
            new.push(message);
        }
        let records: Vec<&[u8]> = new.iter().map(|message| message.delivery.data.as_slice()).collect();
        let mut wrong = BTreeMap::new();
        let Ok(rows) = self.decoder.decode(&records, |at, reason| {
            wrong.insert(at, reason.to_owned());
            Ok::<(), Infallible>(())
        });
        for (at, reason) in &wrong {
            self.put_aside(&new[*at], reason)?;
        }
        let bad = self.bad.flush()?;
        if self.options.metadata.is_empty() {
            return Ok((rows, bad));
        }
        let good: Vec<&QueueMessage> =
            new.iter().enumerate().filter(|(at, _)| !wrong.contains_key(at)).map(|(_, message)| message).collect();
        let more = self.options.metadata.iter().map(|(_, what)| what.column(&good));
        let columns = rows.columns().iter().cloned().chain(more).collect();
        Ok((RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?, bad))
    }

    /// Handles a message that cannot be decoded.
    fn put_aside(&mut self, message: &QueueMessage, reason: &str) -> Result<(), TaskError> {
        let Delivery { properties, data, .. } = &message.delivery;
        let besides = || RecordContext {
            timestamp_ms: properties.timestamp().and_then(|sent_s| i64::try_from(sent_s.checked_mul(1000)?).ok()),
            key: None,
            headers: properties.headers().as_ref().map(|headers| BadHeaders::Object(object(headers))),
        };
        self.bad.bad_with(&place(&self.options.queue, message), reason, Some(data), besides)
    }
}

/// What identifies a message: its ids, if it has any, else where and when it was sent. Also whether it was delivered
/// before, because a message that was skipped then is skipped again.
fn place(queue: &str, message: &QueueMessage) -> Vec<(&'static str, Value)> {
    let Delivery { delivery_tag, exchange, routing_key, redelivered, properties, .. } = &message.delivery;
    let mut place = vec![("queue", json!(queue))];
    if !exchange.as_str().is_empty() {
        place.push(("exchange", json!(exchange.as_str())));
    }
    // With the default exchange, the routing key is the queue's name.
    if routing_key.as_str() != queue {
        place.push(("routing_key", json!(routing_key.as_str())));
    }
    for id in [IdProperty::MessageId, IdProperty::CorrelationId] {
        place.extend(id.of(message).map(|text| (id.name(), json!(text))));
    }
    place.extend(properties.timestamp().map(|sent_s| ("timestamp", json!(sent_s))));
    place.extend([("delivery_tag", json!(delivery_tag)), ("redelivered", json!(redelivered))]);
    place
}
