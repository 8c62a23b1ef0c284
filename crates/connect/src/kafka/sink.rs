//! Rows into a topic.
//!
//! | guarantee     | rows                                | *prepare*                    | *commit*                    |
//! |---------------|-------------------------------------|------------------------------|-----------------------------|
//! | exactly once  | are kept                            | hands them to the checkpoint | a transaction, see `commit` |
//! | at least once | are sent, by an idempotent producer | waits until they are there   | nothing                     |
//!
//! With exactly once, rows appear when their checkpoint is durable, all of a copy at once, and readers have to read
//! committed records only. They are kept in memory and in the checkpoint until then: with
//! `epoch_bytes_max` of them a checkpoint comes sooner.

use std::collections::{BTreeMap, HashMap};
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

use super::client::{KafkaConnection, KafkaContext, SaslMechanism, failed, partitions};
use super::commit::{TransactionCommitter, flush, headers, producer_config, send, transactional_id};
use super::registry::SchemaRegistry;
use super::schema::RegisteringEncoder;
use crate::error::ConnectError;
use crate::headers::HeaderColumn;
use crate::options::SecretText;
use crate::prepared_commit::{PreparedHeader, seal, with_headers};
use crate::record::RecordEncoder;
use crate::tls::TlsOptions;
use crate::{Guarantee, SinkSpec, hash, options};

const NAME: &str = "kafka sink";
/// Batches on their way to the thread that sends.
const QUEUE: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KafkaGuarantee {
    #[default]
    ExactlyOnce,
    AtLeastOnce,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KafkaSinkFormat {
    #[default]
    Json,
    Avro,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct KafkaSinkOptions {
    /// `host:port`, several with commas between.
    servers: String,
    topic: String,
    /// The column whose bytes or text are a record's value; without it, all columns that no header is of as JSON.
    value: Option<String>,
    /// The column that is a record's key.
    key: Option<String>,
    /// The columns that a record's headers are of.
    #[serde(default)]
    headers: Vec<HeaderColumn>,
    /// The whole row as this; Avro, and JSON with a schema, need a registry.
    #[serde(default)]
    format: KafkaSinkFormat,
    /// The schema registry that is to know the schema of values, which then have Confluent's header.
    registry: Option<SecretText>,
    /// Of Avro: by which schema; without, by one that is made of the columns.
    avro_schema: Option<Value>,
    #[serde(default)]
    guarantee: KafkaGuarantee,
    /// With exactly once: what the job is called at the brokers, where nobody else may be called so. Transactional ids
    /// and consumer groups are `ID-COPY`.
    id: Option<String>,
    #[serde(default = "a_megabyte")]
    record_bytes_max: usize,
    /// Of one copy between two checkpoints: at half of it one is asked for, and at all of it rows wait for that.
    #[serde(default = "epoch_bytes_max_default")]
    epoch_bytes_max: usize,
    #[serde(default = "options::a_minute")]
    transaction_timeout_s: f64,
    /// How long the brokers may keep silent before the job fails.
    #[serde(default = "options::a_minute")]
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

fn a_megabyte() -> usize {
    // What brokers take unless they are told otherwise.
    1_000_000
}

fn epoch_bytes_max_default() -> usize {
    256 << 20
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef) -> Result<SinkSpec, ConnectError> {
    let options: KafkaSinkOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    for (name, seconds) in
        [("transaction_timeout_s", options.transaction_timeout_s), ("patience_s", options.patience_s)]
    {
        if !(0.1..=1e6).contains(&seconds) {
            return Err(wrong(format!("`{name}` must be at least 0.1")));
        }
    }
    let encoder = encoder(&options, schema).map_err(wrong)?;
    let KafkaSinkOptions { servers, user, password, sasl, tls, config, .. } = options.clone();
    let connection = KafkaConnection::new(servers, (user, password, sasl), tls.as_ref(), config).map_err(wrong)?;
    let name = format!("kafka {}", options.topic);
    let spec = |guarantee, make| SinkSpec { name, copies_max: 0, guarantee, make };
    match options.guarantee {
        KafkaGuarantee::ExactlyOnce => {
            let Some(id) = options.id.clone().filter(|id| !id.is_empty()) else {
                let text = "exactly once needs `id`, a name that only this job uses at the brokers and keeps";
                return Err(wrong(text.into()));
            };
            let make = move |context: &TaskContext| -> Result<Box<dyn Sink>, TaskError> {
                Ok(Box::new(TransactionalSink::new(&options, &connection, &encoder, &id, context)?))
            };
            Ok(spec(Guarantee::ExactlyOnce, Arc::new(make)))
        }
        KafkaGuarantee::AtLeastOnce => {
            let make = move |context: &TaskContext| -> Result<Box<dyn Sink>, TaskError> {
                Ok(Box::new(AtLeastOnceSink::new(&options, &connection, &encoder, context)?))
            };
            Ok(spec(Guarantee::AtLeastOnce, Arc::new(make)))
        }
    }
}

fn encoder(options: &KafkaSinkOptions, schema: &SchemaRef) -> Result<RegisteringEncoder, String> {
    let is_avro = options.format == KafkaSinkFormat::Avro;
    if options.avro_schema.is_some() && !is_avro {
        return Err("`avro_schema` is for `format` avro".into());
    }
    let encoder = RecordEncoder::new(schema, options.value.as_deref(), options.key.as_deref(), &options.headers);
    let Some(url) = &options.registry else {
        return match is_avro {
            true => Err("avro needs `registry`, where its readers find the schema".into()),
            false => encoder.map(RegisteringEncoder::plain),
        };
    };
    if options.value.is_some() {
        return Err("with `registry` values are whole rows, not a column `value`".into());
    }
    let registry = SchemaRegistry::new(url, options.tls.as_ref(), Duration::from_secs_f64(options.patience_s))?;
    let avro = is_avro.then_some(options.avro_schema.as_ref());
    RegisteringEncoder::new(schema, registry, &options.topic, encoder?, avro)
}

/// What a sink's thread is asked to do.
enum ProducerCommand {
    /// Look whether the topic is there, and may be written to.
    Begin(oneshot::Sender<Result<(), TaskError>>),
    Send(Vec<u8>),
    /// Answer when all is there.
    Flush(oneshot::Sender<Result<(), TaskError>>),
    Commit(Bytes, oneshot::Sender<Result<(), TaskError>>),
}

/// Starts a thread that carries out commands until `body` fails or nobody commands any more.
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
            // An error of what was sent before is told by whoever answers next.
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

/// Sends a command that is answered, and waits for the answer.
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
    header: PreparedHeader,
    record_bytes_max: usize,
    epoch_bytes_max: usize,
    bytes: Vec<u8>,
    commands: mpsc::Sender<ProducerCommand>,
}

impl TransactionalSink {
    fn new(
        options: &KafkaSinkOptions,
        connection: &KafkaConnection,
        encoder: &RegisteringEncoder,
        id: &str,
        context: &TaskContext,
    ) -> Result<Self, TaskError> {
        let name = format!("{}-{}", context.task(), context.copy());
        let mut committer = TransactionCommitter {
            connection: connection.clone(),
            name: name.clone(),
            transaction_timeout: Duration::from_secs_f64(options.transaction_timeout_s),
            record_bytes_max: options.record_bytes_max,
            patience: Duration::from_secs_f64(options.patience_s),
            fenced: 0,
            producers: HashMap::new(),
        };
        let (topic, own) = (options.topic.clone(), transactional_id(id, context.copy()));
        let commands = start(&name.clone(), move |command| match command {
            ProducerCommand::Begin(answer) => {
                let client = committer.connection.config(&[]).create_with_context(committer.connection.context(&name));
                let begun =
                    client.map_err(|error| failed(&topic, &error)).and_then(|client: BaseProducer<KafkaContext>| {
                        let serve = |time| client.poll(time);
                        partitions(client.client(), &committer.connection, &topic, committer.patience, serve)?;
                        committer.begin(&own, &topic)
                    });
                // Nobody may be there to hear it.
                drop(answer.send(begun));
                Ok(())
            }
            ProducerCommand::Commit(prepared, answer) => {
                // As above.
                drop(answer.send(committer.commit(&prepared)));
                Ok(())
            }
            ProducerCommand::Send(_) | ProducerCommand::Flush(_) => unreachable!("nobody asks for that"),
        })?;
        let header = PreparedHeader {
            id: id.to_owned(),
            target: options.topic.clone(),
            origin: context.copy(),
            run: hash::unique(),
            epoch: 0,
            records: 0,
            headed: encoder.is_headed(),
        };
        let (record_bytes_max, epoch_bytes_max) = (options.record_bytes_max, options.epoch_bytes_max);
        Ok(TransactionalSink {
            encoder: encoder.clone(),
            header,
            record_bytes_max,
            epoch_bytes_max,
            bytes: Vec::new(),
            commands,
        })
    }
}

impl Sink for TransactionalSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ask(&self.commands, ProducerCommand::Begin))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            self.encoder.encode(&rows, self.record_bytes_max, &mut self.bytes).await?;
            self.header.records += rows.num_rows() as u64;
            Ok(())
        })
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        let bytes = std::mem::take(&mut self.bytes);
        self.header.epoch = epoch;
        let sealed = if self.header.records == 0 { Bytes::new() } else { seal(&self.header, &bytes) };
        self.header.records = 0;
        Box::pin(std::future::ready(Ok(sealed)))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ask(&self.commands, |answer| ProducerCommand::Commit(prepared, answer)))
    }

    fn fullness(&self) -> f64 {
        self.bytes.len() as f64 / self.epoch_bytes_max as f64
    }
}

/// Sends rows as they come.
struct AtLeastOnceSink {
    encoder: RegisteringEncoder,
    record_bytes_max: usize,
    commands: mpsc::Sender<ProducerCommand>,
}

impl AtLeastOnceSink {
    fn new(
        options: &KafkaSinkOptions,
        connection: &KafkaConnection,
        encoder: &RegisteringEncoder,
        context: &TaskContext,
    ) -> Result<Self, TaskError> {
        let name = format!("{}-{}", context.task(), context.copy());
        let (topic, patience) = (options.topic.clone(), Duration::from_secs_f64(options.patience_s));
        let patience_ms = patience.as_millis().to_string();
        let config = producer_config(options.record_bytes_max);
        let mut config: Vec<(&str, &str)> = config.iter().map(|(name, value)| (*name, value.as_str())).collect();
        config.push(("delivery.timeout.ms", &patience_ms));
        let producer: BaseProducer<KafkaContext> = connection
            .producer_config(&config)
            .create_with_context(connection.context(&name))
            .map_err(|error| failed(&topic, &error))?;
        let (connection, headed) = (connection.clone(), encoder.is_headed());
        let commands = start(&name, move |command| match command {
            ProducerCommand::Begin(answer) => {
                // Nobody may be there to hear it.
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
        Ok(AtLeastOnceSink { encoder: encoder.clone(), record_bytes_max: options.record_bytes_max, commands })
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
        // What another guarantee prepared before the job went on with this one.
        let error =
            "the checkpoint has rows of a sink that writes exactly once: continue with `guarantee` exactly_once";
        Box::pin(std::future::ready(Err(error.into())))
    }
}
