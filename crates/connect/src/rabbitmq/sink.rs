//! Writes rows as messages. They wait in the checkpoint, and are published as persistent messages when it is durable;
//! the server confirms each one. A message that no queue accepts is an error. The queue or exchange is checked before
//! there are rows.
//!
//! At least once: a repeated commit, because the server was unreachable or the job resumes after a failure, publishes
//! again. The messages then have the same `message_id` as before, so that consumers can detect them (`source` does,
//! with `id`). At most once: nothing is sent twice. If the connection is lost before a message is confirmed, the
//! message may be lost, and the job prints that.

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
/// Maximum number of published messages that are not confirmed yet.
const AHEAD_MAX: usize = 1000;
/// The server's reply for a queue that only its own connection may inspect; anyone may publish to it.
const RESOURCE_LOCKED: u16 = 405;
const NOT_FOUND: u16 = 404;
/// The delivery mode.
const PERSISTENT: u8 = 2;

/// The default limit of servers.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Default limit per copy between two checkpoints.
const EPOCH_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Deserialize)]
struct RabbitMqSinkOptions {
    /// Empty for the default exchange, which knows every queue by name.
    #[serde(default)]
    exchange: String,
    /// The queue, or the routing key for the exchange.
    #[serde(default)]
    routing_key: String,
    /// The column that contains the routing key, as an alternative.
    key: Option<String>,
    /// The column whose bytes or text are a message; by default, all columns as JSON.
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

/// Why messages were not published.
enum PublishFailure {
    /// An error of the server or the connection.
    Server(lapin::Error),
    /// An error of the message itself.
    Message(TaskError),
}

impl From<lapin::Error> for PublishFailure {
    fn from(error: lapin::Error) -> Self {
        PublishFailure::Server(error)
    }
}

impl RabbitMqSink {
    /// Checks that the target exists. Otherwise a wrong name or password would be noticed only when there are rows.
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
        // A separate channel: a negative reply closes it.
        let channel = connection.create_channel().await?;
        let RabbitMqSinkOptions { exchange, routing_key, key, .. } = &self.options;
        if !exchange.is_empty() {
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            // The server ignores the kind, because nothing is created.
            channel
                .exchange_declare(exchange.as_str().into(), ExchangeKind::Direct, options, FieldTable::default())
                .await?;
        } else if key.is_none() {
            let options = QueueDeclareOptions::default().passive();
            match channel.queue_declare(routing_key.as_str().into(), options, FieldTable::default()).await {
                Err(error) if said(&error) == Some(RESOURCE_LOCKED) => {}
                Err(error) => return Err(error),
                // One copy reports it for all.
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

    /// Whether an existing queue is lost with the server. Declares it as a durable one: for a queue that differs, the
    /// server names the difference, durability first. Without the permission to ask, there is no answer.
    async fn forgets(&self, queue: &str) -> lapin::Result<bool> {
        let Some((connection, _)) = &self.open else { return Ok(false) };
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Err(error) if said(&error).is_none() => Err(error),
            answer => Ok(answer.is_err_and(|error| error.to_string().contains("'durable'"))),
        }
    }

    /// The connection, with a channel on which messages are confirmed.
    async fn open(&mut self) -> lapin::Result<&(Connection, Channel)> {
        if self.open.is_none() {
            let connection = self.server.connect().await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            self.open = Some((connection, channel));
        }
        Ok(self.open.as_ref().expect("it was opened above"))
    }

    /// After an error: waits a little before an attempt on a new connection.
    ///
    /// # Errors
    /// If another attempt makes no sense, or if patience has run out.
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
        // This run does not publish confirmed messages again.
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

/// The reply code with which the server has rejected something.
fn said(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(said) => Some(said.get_id()),
        _ => None,
    }
}

/// Waits until the server has confirmed each message.
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
            // A queue is full and rejects more, or its host is down.
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
