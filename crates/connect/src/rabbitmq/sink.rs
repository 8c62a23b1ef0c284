//! Rows as messages: they wait in the checkpoint, and are published when it is durable, persistent, and confirmed by
//! the server one and all. A message that no queue takes is an error; that there is the queue, or the exchange, is
//! looked at before there are any.
//!
//! At least once: a commit that is repeated, because the server was away or the job goes on after a failure, publishes
//! again. Then messages have the same `message_id` as before, so that who reads them can tell (`source` does, with
//! `id`). At most once, what was sent is not sent again: if the connection is lost before it is confirmed, it may be
//! lost, which is printed.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ErrorKind, ExchangeKind, PublisherConfirm};
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::{PAUSE, RabbitMqServer, passes, told};
use crate::connection::ServerOptions;
use crate::error::ConnectError;
use crate::prepared_commit::{EpochBuffer, PreparedHeader, open, records};
use crate::record::RecordEncoder;
use crate::{DeliveryGuarantee, SinkSpec, options};

const NAME: &str = "rabbitmq sink";
/// Messages that are published before the first of them is confirmed.
const AHEAD_MAX: usize = 1000;
/// What the server says of a queue that only the connection which made it may look at; messages it takes from all.
const RESOURCE_LOCKED: u16 = 405;
const NOT_FOUND: u16 = 404;
/// Of the message.
const PERSISTENT: u8 = 2;

/// What servers take unless they are told otherwise.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Of one copy between two checkpoints, unless told.
const EPOCH_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Deserialize)]
struct RabbitMqSinkOptions {
    /// Empty is the one that knows every queue by its name.
    #[serde(default)]
    exchange: String,
    /// The queue, or what the exchange goes by.
    #[serde(default)]
    routing_key: String,
    /// The column that has the routing key instead.
    key: Option<String>,
    /// The column whose bytes or text are a message; without it, all columns as JSON.
    value: Option<String>,
    record_bytes_max: Option<usize>,
    /// See `EpochBuffer`.
    epoch_bytes_max: Option<usize>,
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef) -> Result<SinkSpec, ConnectError> {
    let (options, server) = options::read_groups::<(RabbitMqSinkOptions, ServerOptions)>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let server = RabbitMqServer::new(&server).map_err(wrong)?;
    let encoder = RecordEncoder::new(schema, options.value.as_deref(), options.key.as_deref(), &[]).map_err(wrong)?;
    if options.exchange.is_empty() && options.routing_key.is_empty() && options.key.is_none() {
        return Err(wrong("`routing_key` or `key` must name the queue, or `exchange` the exchange".into()));
    }
    let target = match (&options.exchange, &options.routing_key) {
        (exchange, _) if !exchange.is_empty() => format!("exchange \"{exchange}\""),
        (_, queue) => format!("queue \"{queue}\""),
    };
    let record_bytes_max = options.record_bytes_max.unwrap_or(RECORD_BYTES_MAX);
    let epoch_bytes_max = options.epoch_bytes_max.unwrap_or(EPOCH_BYTES_MAX);
    Ok(SinkSpec {
        name: format!("rabbitmq {}{}", options.exchange, options.routing_key),
        copies_max: 0,
        guarantee: DeliveryGuarantee::AtLeastOnce,
        make: Arc::new(move |context: &TaskContext| {
            Ok(Box::new(RabbitMqSink {
                options: options.clone(),
                encoder: encoder.clone(),
                server: server.clone(),
                open: None,
                once: context.at_most_once(),
                record_bytes_max,
                buffer: EpochBuffer::new(String::new(), target.clone(), context.copy(), false, epoch_bytes_max),
            }))
        }),
    })
}

/// The sink of one copy.
struct RabbitMqSink {
    options: RabbitMqSinkOptions,
    encoder: RecordEncoder,
    server: RabbitMqServer,
    open: Option<(Connection, Channel)>,
    /// Whether nothing may be sent twice.
    once: bool,
    record_bytes_max: usize,
    buffer: EpochBuffer,
}

/// Why messages are not published.
enum PublishFailure {
    /// Of the server or the connection.
    Server(lapin::Error),
    /// Of what is published.
    Message(TaskError),
}

impl From<lapin::Error> for PublishFailure {
    fn from(error: lapin::Error) -> Self {
        PublishFailure::Server(error)
    }
}

impl RabbitMqSink {
    /// Looks whether there is what messages go to: else a wrong name or password is found out when there are rows.
    async fn begin(&mut self) -> Result<(), TaskError> {
        let begun = Instant::now();
        loop {
            match self.look().await {
                Ok(()) => return Ok(()),
                Err(error) => self.wait(begun, &error).await?,
            }
        }
    }

    async fn look(&mut self) -> lapin::Result<()> {
        let (connection, _) = self.open().await?;
        // A channel of its own: an answer that there is none closes it.
        let channel = connection.create_channel().await?;
        let RabbitMqSinkOptions { exchange, routing_key, key, .. } = &self.options;
        if !exchange.is_empty() {
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            // Which kind it is does not matter to the server, as it is not made.
            channel
                .exchange_declare(exchange.as_str().into(), ExchangeKind::Direct, options, FieldTable::default())
                .await?;
        } else if key.is_none() {
            let options = QueueDeclareOptions::default().passive();
            match channel.queue_declare(routing_key.as_str().into(), options, FieldTable::default()).await {
                Err(error) if said(&error) == Some(RESOURCE_LOCKED) => {}
                Err(error) => return Err(error),
                // One copy says it for all.
                Ok(_) if self.buffer.origin() == 0 && self.forgets(routing_key).await? => eprintln!(
                    "tidemill: rabbitmq {}, {}: it is not durable: messages that the server has confirmed are lost \
                     when it restarts; a queue declared as durable keeps them",
                    self.server.name,
                    self.buffer.target()
                ),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Whether a queue that is there is lost with the server. It is asked for as a durable one: a server that has
    /// another names what is other, durability first. Who may not ask hears nothing.
    async fn forgets(&self, queue: &str) -> lapin::Result<bool> {
        let Some((connection, _)) = &self.open else { return Ok(false) };
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Err(error) if said(&error).is_none() => Err(error),
            answer => Ok(answer.is_err_and(|error| error.to_string().contains("'durable'"))),
        }
    }

    /// The connection, and its channel, on which messages are confirmed.
    async fn open(&mut self) -> lapin::Result<&(Connection, Channel)> {
        if self.open.is_none() {
            let connection = self.server.connect().await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            self.open = Some((connection, channel));
        }
        Ok(self.open.as_ref().expect("it was opened above"))
    }

    /// After an error: waits a little, for a try on a new connection.
    ///
    /// # Errors
    /// When it is not of use to try again, or there is no patience left for it.
    async fn wait(&mut self, begun: Instant, error: &lapin::Error) -> Result<(), TaskError> {
        self.open = None;
        if passes(error) && begun.elapsed() < self.server.patience {
            tokio::time::sleep(PAUSE).await;
            return Ok(());
        }
        let remedy = match said(error) {
            Some(NOT_FOUND) => ": declare it before the job starts, or name an existing one",
            _ => "",
        };
        Err(format!("rabbitmq {}, {}: {}{remedy}", self.server.name, self.buffer.target(), told(error)).into())
    }

    fn take(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        self.encoder.encode(rows, self.record_bytes_max, &mut self.buffer.bytes)?;
        self.buffer.count(rows.num_rows());
        Ok(())
    }

    async fn publish(&mut self, header: &PreparedHeader, bytes: &[u8]) -> Result<(), TaskError> {
        let begun = Instant::now();
        // What is confirmed is not published again by this run.
        let (mut confirmed, mut sent) = (0, 0);
        loop {
            match self.attempt(header, bytes, (&mut confirmed, &mut sent)).await {
                Ok(()) => return Ok(()),
                Err(PublishFailure::Message(error)) => return Err(error),
                Err(PublishFailure::Server(error)) => {
                    self.wait(begun, &error).await?;
                    if self.once && sent > confirmed {
                        let (name, lost) = (&self.server.name, sent - confirmed);
                        eprintln!("tidemill: rabbitmq {name}: {error}; {lost} messages may be lost");
                        confirmed = sent;
                    }
                }
            }
        }
    }

    async fn attempt(
        &mut self,
        header: &PreparedHeader,
        bytes: &[u8],
        (confirmed, sent): (&mut u64, &mut u64),
    ) -> Result<(), PublishFailure> {
        let channel = self.open().await?.1.clone();
        let RabbitMqSinkOptions { exchange, routing_key, .. } = &self.options;
        let mut ahead: Vec<PublisherConfirm> = Vec::new();
        for (number, record) in records(bytes).enumerate().skip(*confirmed as usize) {
            let (key, value) = record.map_err(PublishFailure::Message)?;
            let key = key.map(String::from_utf8_lossy);
            let key = key.as_deref().unwrap_or(routing_key);
            let properties = BasicProperties::default()
                .with_delivery_mode(PERSISTENT)
                .with_message_id(format!("{}-{}-{number}", header.run, header.epoch).into());
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let value = value.unwrap_or_default();
            let key = key.into();
            *sent = (*sent).max(number as u64 + 1);
            ahead.push(channel.basic_publish(exchange.as_str().into(), key, options, value, properties).await?);
            if ahead.len() == AHEAD_MAX {
                self::confirmed(&mut ahead, header, confirmed).await?;
            }
        }
        self::confirmed(&mut ahead, header, confirmed).await
    }
}

/// The number by which the server has refused something.
fn said(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(said) => Some(said.get_id()),
        _ => None,
    }
}

/// Waits until the server has said that it has each message.
async fn confirmed(
    ahead: &mut Vec<PublisherConfirm>,
    header: &PreparedHeader,
    count: &mut u64,
) -> Result<(), PublishFailure> {
    for confirm in ahead.drain(..) {
        match confirm.await? {
            Confirmation::Ack(None) => *count += 1,
            Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) => {
                let (key, reason) = (&back.routing_key, &back.reply_text);
                let text = format!("rabbitmq {}: no queue is bound to routing key \"{key}\" ({reason})", header.target);
                return Err(PublishFailure::Message(text.into()));
            }
            // A queue is full and refuses more, or its host is away.
            Confirmation::Nack(None) => {
                return Err(PublishFailure::Server(std::io::Error::other("the server rejects messages").into()));
            }
            Confirmation::NotRequested => unreachable!("they were asked for"),
        }
    }
    Ok(())
}

impl Sink for RabbitMqSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(RabbitMqSink::begin(self))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(self.take(&rows)))
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(std::future::ready(Ok(self.buffer.seal(epoch))))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            let (header, bytes) = open(&prepared)?;
            self.publish(&header, bytes).await
        })
    }

    fn fullness(&self) -> f64 {
        self.buffer.fullness()
    }
}
