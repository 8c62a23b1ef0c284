//! Messages of a queue as rows, acknowledged when the checkpoint that they belong to is durable. Until then they are
//! the server's: what was not acknowledged when a job failed comes again.
//!
//! | `id`             | copies    | a message is a row                                                                     |
//! |------------------|-----------|----------------------------------------------------------------------------------------|
//! | none             | any       | at least once: again after a failure, or a lost connection, until it is acknowledged   |
//! | a property of it | one       | exactly once, if no two messages have the same, and none is without                    |
//!
//! With an id, those that may come again are remembered, and are in checkpoints (see `known`): a message that comes
//! again is acknowledged with the next checkpoint, and is no row. That holds for what comes again within an hour, and
//! while the server loses no acknowledgement that it has had for ten seconds.
//!
//! At most once, messages are acknowledged before they are given on, and one that the server gives again is no row.
//!
//! Without checkpoints, messages are acknowledged as they are given on: what is on its way then is lost with the job.

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
use tidemill_dataflow::stream::source::{Next, Source};
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::Server;
use super::known::Known;
use super::metadata::{Metadata, object};
use super::queue::{Event, Message, Queue, Reading, Tag};
use crate::bad::{BadHeaders, BadRecords, Besides, Decoded, Handler, OnError};
use crate::decode::Decoder;
use crate::error::ConnectError;
use crate::format::{self, MessageFormat};
use crate::options::Secret;
use crate::tls::Tls;
use crate::{Guarantee, SourceSpec, options};

const NAME: &str = "rabbitmq source";
/// Of the split that has the ids.
const SPLIT: &str = "ids";
/// For a job that ends: how long the server may take to have its acknowledgements.
const LAST_WORD: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The property that tells messages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Id {
    MessageId,
    CorrelationId,
}

impl Id {
    fn name(self) -> &'static str {
        match self {
            Id::MessageId => "message_id",
            Id::CorrelationId => "correlation_id",
        }
    }

    fn of(self, message: &Message) -> Option<&str> {
        let properties = &message.delivery.properties;
        let id = match self {
            Id::MessageId => properties.message_id(),
            Id::CorrelationId => properties.correlation_id(),
        };
        id.as_ref().map(ShortString::as_str)
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// `amqp://HOST:PORT/VHOST`; user and password are its, else `TIDEMILL_RABBITMQ_USER` and `TIDEMILL_RABBITMQ_PASSWORD`.
    url: Secret,
    /// Files of certificates, for `amqps:`.
    tls: Option<Tls>,
    queue: String,
    #[serde(default)]
    format: MessageFormat,
    id: Option<Id>,
    /// Columns behind those of the bytes: what each is called, and what of a message it has.
    #[serde(default)]
    metadata: Vec<(String, Metadata)>,
    /// How many messages a copy may have that are not acknowledged: no more are read from one checkpoint to the next.
    #[serde(default = "many")]
    prefetch: u16,
    /// Ends when the queue has nothing more to give.
    #[serde(default)]
    stop_at_end: bool,
    #[serde(default)]
    on_error: OnError,
    /// How long the server may keep silent.
    #[serde(default = "options::a_minute")]
    patience_s: f64,
}

fn many() -> u16 {
    50_000
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: Options = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let layout = options.format.layout();
    let schema = format::schema(NAME, layout, "value", schema)?;
    if options.prefetch == 0 {
        return Err(wrong("`prefetch` must be from 1 to 65535".into()));
    }
    let reading = Reading {
        server: Server::new(&options.url, options.tls.as_ref()).map_err(wrong)?,
        queue: options.queue.clone(),
        prefetch: options.prefetch,
        patience: Duration::from_secs_f64(options.patience_s.clamp(0.0, 1e6)),
    };
    let metadata = options.metadata.iter().map(|(name, what)| (name.as_str(), what.data_type()));
    let made = options::with_metadata(&schema, metadata).map_err(wrong)?;
    let decoder = Decoder::new(layout, schema).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    Ok(SourceSpec {
        name: format!("rabbitmq {}", options.queue),
        schema: SchemaRef::clone(&made),
        // Another copy would not know what comes again after this one has lost its connection.
        copies_max: if options.id.is_some() { 1 } else { 0 },
        guarantee: if options.id.is_some() { Guarantee::ExactlyOnce } else { Guarantee::AtLeastOnce },
        bad,
        bad_schema: options.on_error.schema(),
        bad_folder: options.on_error.folder(),
        files: None,
        make: Arc::new(move |context| {
            let copy = format!("{}-{}", context.task(), context.copy());
            let keeps = context.makes_checkpoints();
            let mut options = options.clone();
            // Without checkpoints nothing is promised that ids would be of use for.
            options.id = options.id.filter(|_| keeps);
            Ok(Box::new(RabbitMq {
                known: known(context)?,
                decoder: decoder.clone(),
                schema: SchemaRef::clone(&made),
                bad: Handler::new(options.on_error.clone(), &counted, copy),
                reading: reading.clone(),
                options,
                queue: None,
                keeps,
                once: context.at_most_once(),
                current: Owed::default(),
                pending: BTreeMap::new(),
                acknowledgements: 0,
            }))
        }),
    })
}

fn known(context: &TaskContext) -> Result<Known, TaskError> {
    let splits = context.restored().map(|restored| &restored.splits).into_iter().flatten();
    let mut ids = Vec::new();
    for (_, bytes) in splits {
        ids.extend(serde_json::from_slice::<Vec<String>>(bytes)?);
    }
    Ok(Known::restored(ids, Instant::now()))
}

/// What the server is to hear when a checkpoint is durable.
#[derive(Default)]
struct Owed {
    /// The last message.
    tag: Option<Tag>,
    ids: Vec<String>,
}

impl Owed {
    fn add(&mut self, later: Owed) {
        self.tag = later.tag.or(self.tag);
        self.ids.extend(later.ids);
    }
}

/// The source of one copy.
struct RabbitMq {
    options: Options,
    decoder: Decoder,
    /// With columns of metadata.
    schema: SchemaRef,
    bad: Handler,
    reading: Reading,
    queue: Option<Queue>,
    /// Whether the job makes checkpoints.
    keeps: bool,
    /// Whether a message that comes again may have been a row.
    once: bool,
    known: Known,
    /// Since the last barrier.
    current: Owed,
    /// By the epochs of barriers.
    pending: BTreeMap<u64, Owed>,
    /// How many were sent.
    acknowledgements: u64,
}

impl Source for RabbitMq {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        if !self.keeps {
            // What was given last has been taken.
            self.settle(u64::MAX);
        }
        loop {
            let queue = self.queue.get_or_insert_with(|| Queue::open(self.reading.clone()));
            match queue.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => match event? {
                    Event::Lost => {
                        self.known.lost(Instant::now());
                        // Those numbers mean nothing any more.
                        self.current = Owed::default();
                        self.pending.clear();
                    }
                    Event::Messages(messages) => {
                        let (rows, bad) = self.rows(messages)?;
                        if rows.num_rows() > 0 || bad.is_some() {
                            return Poll::Ready(Ok(Next::Rows { split: 0, rows, bad }));
                        }
                    }
                    Event::CaughtUp if self.options.stop_at_end => return Poll::Ready(Ok(Next::End)),
                    Event::CaughtUp => return Poll::Ready(Ok(Next::CaughtUp { split: 0, at: Instant::now() })),
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

    fn has_last_words(&self) -> bool {
        true
    }

    fn last_words(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            let Some(queue) = &self.queue else { return Ok(()) };
            let since = Instant::now();
            // Without its answer messages come again, which is no reason to fail.
            while queue.confirmed() < self.acknowledgements && since.elapsed() < LAST_WORD {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Ok(())
        })
    }
}

impl RabbitMq {
    /// Acknowledges what was given before the barrier of `epoch`.
    fn settle(&mut self, epoch: u64) {
        let mut owed = Owed::default();
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

    fn rows(&mut self, messages: Vec<Message>) -> Result<Decoded, TaskError> {
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
        let good: Vec<&Message> =
            new.iter().enumerate().filter(|(at, _)| !wrong.contains_key(at)).map(|(_, message)| message).collect();
        let more = self.options.metadata.iter().map(|(_, what)| what.column(&good));
        let columns = rows.columns().iter().cloned().chain(more).collect();
        Ok((RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?, bad))
    }

    /// Of a message that is no row.
    fn put_aside(&mut self, message: &Message, reason: &str) -> Result<(), TaskError> {
        let Delivery { properties, data, .. } = &message.delivery;
        let besides = || Besides {
            timestamp_ms: properties.timestamp().and_then(|sent_s| i64::try_from(sent_s.checked_mul(1000)?).ok()),
            key: None,
            headers: properties.headers().as_ref().map(|headers| BadHeaders::Object(object(headers))),
        };
        self.bad.bad_with(&place(&self.options.queue, message), reason, Some(data), besides)
    }
}

/// What a message is known by: its ids, if it has any, else where and when it was sent; and that it has come before, as
/// what was put aside then is put aside again.
fn place(queue: &str, message: &Message) -> Vec<(&'static str, Value)> {
    let Delivery { delivery_tag, exchange, routing_key, redelivered, properties, .. } = &message.delivery;
    let mut place = vec![("queue", json!(queue))];
    if !exchange.as_str().is_empty() {
        place.push(("exchange", json!(exchange.as_str())));
    }
    // The exchange that has no name takes it for the queue's.
    if routing_key.as_str() != queue {
        place.push(("routing_key", json!(routing_key.as_str())));
    }
    for id in [Id::MessageId, Id::CorrelationId] {
        place.extend(id.of(message).map(|text| (id.name(), json!(text))));
    }
    place.extend(properties.timestamp().map(|sent_s| ("timestamp", json!(sent_s))));
    place.extend([("delivery_tag", json!(delivery_tag)), ("redelivered", json!(redelivered))]);
    place
}
