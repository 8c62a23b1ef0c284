//! Writes rows to a topic.
//!
//! | guarantee     | rows                                | *prepare*                    | *commit*                    |
//! |---------------|-------------------------------------|------------------------------|-----------------------------|
//! | exactly once  | are kept                            | hands them to the checkpoint | a transaction, see `commit` |
//! | at least once | are sent, by an idempotent producer | waits for acknowledgments    | nothing                     |
//!
//! With exactly once, rows appear when their checkpoint is durable, all rows of a copy at once, and consumers must read
//! only committed records. Until then, rows are kept in memory and in the checkpoint; when they reach
//! `epoch_bytes_max`, the next checkpoint comes sooner.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use rdkafka::producer::{BaseProducer, Producer};
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};
use tokio::sync::{mpsc, oneshot};

use super::client::{KafkaConnection, KafkaContext, TopicOptions, failed, partitions};
use super::commit::{TransactionCommitter, flush, headers, producer_config, send, transactional_id};
use super::schema::RegisteringEncoder;
use crate::connection::Credentials;
use crate::error::ConnectError;
use crate::headers::HeaderColumn;
use crate::prepared_commit::{CommitOptions, EpochBuffer, with_headers};
use crate::record::RecordEncoder;
use crate::{DeliveryGuarantee, MakeSink, SinkSpec, options};

const NAME: &str = "kafka sink";
/// Default time that the brokers may be silent before the job fails, and default time limit of one transaction.
const PATIENCE_S: f64 = 60.0;
const TRANSACTION_TIMEOUT_S: f64 = 60.0;
/// Minimum of both.
const TIMEOUT_MIN_S: f64 = 0.1;
/// The default limit of brokers.
const RECORD_BYTES_MAX: usize = 1_000_000;
/// Default limit per copy between two checkpoints.
const EPOCH_BYTES_MAX: usize = 256 << 20;
/// Number of batches queued for the sending thread.
const QUEUE: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KafkaSinkFormat {
    #[default]
    Json,
    Avro,
}

#[derive(Clone, Deserialize)]
struct KafkaSinkOptions {
    /// The column whose bytes or text are a record's value; by default, all columns that are not headers, as JSON.
    value: Option<String>,
    /// The column that is a record's key.
    key: Option<String>,
    /// The columns from which a record's headers come.
    #[serde(default)]
    headers: Vec<HeaderColumn>,
    /// The format of the whole row. Avro, and JSON with a schema, need a registry; values then have Confluent's header.
    #[serde(default)]
    format: KafkaSinkFormat,
    /// For Avro: the schema; by default, one derived from the columns.
    avro_schema: Option<Value>,
    record_bytes_max: Option<usize>,
    transaction_timeout_s: Option<f64>,
}

/// What the sinks of all copies share.
#[derive(Clone)]
struct KafkaSinkPlan {
    topic: String,
    connection: KafkaConnection,
    encoder: RegisteringEncoder,
    record_bytes_max: usize,
    /// How long the brokers may be silent before the job fails.
    patience: Duration,
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef) -> Result<SinkSpec, ConnectError> {
    type Groups = (KafkaSinkOptions, TopicOptions, Credentials, CommitOptions);
    let (options, topic, credentials, commits) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let seconds = |name, given_s: Option<f64>, unless_told_s| {
        options::seconds(name, given_s.unwrap_or(unless_told_s), TIMEOUT_MIN_S).map_err(wrong)
    };
    let transaction_timeout = seconds("transaction_timeout_s", options.transaction_timeout_s, TRANSACTION_TIMEOUT_S)?;
    let patience = seconds("patience_s", topic.patience_s, PATIENCE_S)?;
    let plan = KafkaSinkPlan {
        encoder: encoder(&options, &topic, schema, patience).map_err(wrong)?,
        connection: KafkaConnection::new(&topic, credentials).map_err(wrong)?,
        topic: topic.topic,
        record_bytes_max: options.record_bytes_max.unwrap_or(RECORD_BYTES_MAX),
        patience,
    };
    let name = format!("kafka {}", plan.topic);
    let (guarantee, make): (_, MakeSink) = match commits.id("the brokers").map_err(wrong)? {
        Some(id) => {
            let bytes_max = commits.epoch_bytes_max.unwrap_or(EPOCH_BYTES_MAX);
            let make = move |context: &TaskContext| -> Result<Box<dyn Sink>, TaskError> {
                let (topic, headed) = (plan.topic.clone(), plan.encoder.is_headed());
                let buffer = EpochBuffer::new(id.clone(), topic, context.copy(), headed, bytes_max);
                let own = transactional_id(&id, context.copy());
                Ok(Box::new(TransactionalSink::new(&plan, buffer, own, transaction_timeout, context)?))
            };
            (DeliveryGuarantee::ExactlyOnce, Arc::new(make))
        }
        None => {
            let make = move |context: &TaskContext| -> Result<Box<dyn Sink>, TaskError> {
                Ok(Box::new(AtLeastOnceSink::new(&plan, context)?))
            };
            (DeliveryGuarantee::AtLeastOnce, Arc::new(make))
        }
    };
    Ok(SinkSpec { name, copies_max: 0, guarantee, make })
}

fn encoder(
    options: &KafkaSinkOptions,
    topic: &TopicOptions,
    schema: &SchemaRef,
    patience: Duration,
) -> Result<RegisteringEncoder, String> {
    let is_avro = options.format == KafkaSinkFormat::Avro;
    if options.avro_schema.is_some() && !is_avro {
        return Err("`avro_schema` is for `format` avro".into());
    }
    let encoder = RecordEncoder::new(schema, options.value.as_deref(), options.key.as_deref(), &options.headers);
    let Some(registry) = topic.registry(patience)? else {
        return match is_avro {
            true => Err("avro needs `registry`, where its readers find the schema".into()),
            false => encoder.map(RegisteringEncoder::plain),
        };
    };
    if options.value.is_some() {
        return Err("with `registry` values are whole rows, not a column `value`".into());
    }
    let avro = is_avro.then_some(options.avro_schema.as_ref());
    RegisteringEncoder::new(schema, registry, &topic.topic, encoder?, avro)
}

/// A command for a sink's thread.
enum ProducerCommand {
    /// Check that the topic exists and is writable.
    Begin(oneshot::Sender<Result<(), TaskError>>),
    Send(Vec<u8>),
    /// Reply when everything is acknowledged.
    Flush(oneshot::Sender<Result<(), TaskError>>),
    Commit(Bytes, oneshot::Sender<Result<(), TaskError>>),
}

/// Starts a thread that executes commands until `body` fails or the sender is dropped.
fn start(
    name: &str,
    mut body: impl FnMut(ProducerCommand) -> Result<(), TaskError> + Send + 'static,
) -> Result<mpsc::Sender<ProducerCommand>, TaskError> {
    let (sender, mut commands) = mpsc::channel(QUEUE);
    let work = move || {
        let mut broken = None;
        while let Some(command) = commands.blocking_recv() {
            let (ProducerCommand::Begin(_) | ProducerCommand::Flush(_) | ProducerCommand::Commit(..)) = &command else {
                if broken.is_none() {
                    broken = body(command).err();
                }
                continue;
            };
            // The next reply carries an error of something sent earlier.
            match (broken.take(), command) {
                (
                    Some(error),
                    ProducerCommand::Begin(answer)
                    | ProducerCommand::Flush(answer)
                    | ProducerCommand::Commit(_, answer),
                ) => {
                    drop(answer.send(Err(error)));
                }
                (_, command) => broken = body(command).err(),
            }
        }
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| format!("cannot start a thread for {name}: {error}"))?;
    Ok(sender)
}

/// Sends a command and waits for the reply.
async fn ask(
    commands: &mpsc::Sender<ProducerCommand>,
    command: impl FnOnce(oneshot::Sender<Result<(), TaskError>>) -> ProducerCommand,
) -> Result<(), TaskError> {
    let (sender, answer) = oneshot::channel();
    let gone = "the thread of a kafka sink has died";
    commands.send(command(sender)).await.map_err(|_| gone)?;
    answer.await.map_err(|_| gone)?
}

/// Keeps rows for the checkpoint.
struct TransactionalSink {
    encoder: RegisteringEncoder,
    record_bytes_max: usize,
    buffer: EpochBuffer,
    commands: mpsc::Sender<ProducerCommand>,
}

impl TransactionalSink {
    /// `own` is the transactional id of the copy.
    fn new(
        plan: &KafkaSinkPlan,
        buffer: EpochBuffer,
        own: String,
        transaction_timeout: Duration,
        context: &TaskContext,
    ) -> Result<Self, TaskError> {
        let KafkaSinkPlan { topic, connection, encoder, record_bytes_max, patience } = plan.clone();
        let name = format!("{}-{}", context.task(), context.copy());
        let mut committer = TransactionCommitter {
            connection,
            name: name.clone(),
            transaction_timeout,
            record_bytes_max,
            patience,
            fenced: 0,
            producers: HashMap::new(),
        };
        let commands = start(&name.clone(), move |command| match command {
            ProducerCommand::Begin(answer) => {
                let client = committer.connection.config(&[]).create_with_context(committer.connection.context(&name));
                let begun =
                    client.map_err(|error| failed(&topic, &error)).and_then(|client: BaseProducer<KafkaContext>| {
                        let serve = |time| client.poll(time);
                        partitions(client.client(), &committer.connection, &topic, committer.patience, serve)?;
                        committer.begin(&own, &topic)
                    });
                // The receiver may be gone.
                drop(answer.send(begun));
                Ok(())
            }
            ProducerCommand::Commit(prepared, answer) => {
                // As above.
                drop(answer.send(committer.commit(&prepared)));
                Ok(())
            }
            ProducerCommand::Send(_) | ProducerCommand::Flush(_) => unreachable!("not sent by this sink"),
        })?;
        Ok(TransactionalSink { encoder, record_bytes_max, buffer, commands })
    }
}

impl Sink for TransactionalSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ask(&self.commands, ProducerCommand::Begin))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            self.encoder.encode(&rows, self.record_bytes_max, &mut self.buffer.bytes).await?;
            self.buffer.count(rows.num_rows());
            Ok(())
        })
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(std::future::ready(Ok(self.buffer.seal(epoch))))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ask(&self.commands, |answer| ProducerCommand::Commit(prepared, answer)))
    }

    fn fullness(&self) -> f64 {
        self.buffer.fullness()
    }
}

/// Sends rows as they arrive.
struct AtLeastOnceSink {
    encoder: RegisteringEncoder,
    record_bytes_max: usize,
    commands: mpsc::Sender<ProducerCommand>,
}

impl AtLeastOnceSink {
    fn new(plan: &KafkaSinkPlan, context: &TaskContext) -> Result<Self, TaskError> {
        let KafkaSinkPlan { topic, connection, encoder, record_bytes_max, patience } = plan.clone();
        let name = format!("{}-{}", context.task(), context.copy());
        let patience_ms = patience.as_millis().to_string();
        let config = producer_config(record_bytes_max);
        let mut config: Vec<(&str, &str)> = config.iter().map(|(name, value)| (*name, value.as_str())).collect();
        config.push(("delivery.timeout.ms", &patience_ms));
        let producer: BaseProducer<KafkaContext> = connection
            .producer_config(&config)
            .create_with_context(connection.context(&name))
            .map_err(|error| failed(&topic, &error))?;
        let headed = encoder.is_headed();
        let commands = start(&name, move |command| match command {
            ProducerCommand::Begin(answer) => {
                // The receiver may be gone.
                let found = partitions(producer.client(), &connection, &topic, patience, |time| producer.poll(time));
                drop(answer.send(found.map(drop)));
                Ok(())
            }
            ProducerCommand::Send(bytes) => {
                for record in with_headers(&bytes, headed) {
                    let (record, of) = record?;
                    let sent = send(&producer, &topic, record, headers(of)?, patience);
                    sent.map_err(|error| failed(&topic, &error))?;
                }
                producer.poll(Duration::ZERO);
                Ok(())
            }
            ProducerCommand::Flush(answer) => {
                // As above.
                drop(answer.send(flush(&producer, &topic, patience)));
                Ok(())
            }
            ProducerCommand::Commit(..) => unreachable!("nothing is prepared"),
        })?;
        Ok(AtLeastOnceSink { encoder, record_bytes_max, commands })
    }
}

impl Sink for AtLeastOnceSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ask(&self.commands, ProducerCommand::Begin))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            let mut bytes = Vec::new();
            self.encoder.encode(&rows, self.record_bytes_max, &mut bytes).await?;
            let gone = "the thread of a kafka sink has died";
            Ok(self.commands.send(ProducerCommand::Send(bytes)).await.map_err(|_| gone)?)
        })
    }

    fn prepare(&mut self, _: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(async move { ask(&self.commands, ProducerCommand::Flush).await.map(|()| Bytes::new()) })
    }

    fn commit(&mut self, _: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        // Prepared under a different guarantee, before the job resumed with this one.
        let error =
            "the checkpoint has rows of a sink that writes exactly once: continue with `guarantee` exactly_once";
        Box::pin(std::future::ready(Err(error.into())))
    }
}
