//! What people write to describe a source, and what is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::Deserialize;
use serde_json::Value;

use super::super::client::{KafkaConnection, SaslMechanism};
use super::super::metadata::KafkaMetadata;
use super::super::registry::{SchemaCache, SchemaRegistry};
use crate::avro::AvroSchemas;
use crate::bad_records::{BadRecordHandler, BadRecords, OnError};
use crate::decode::{RecordDecoder, RecordLayout};
use crate::error::ConnectError;
use crate::options::{self, SecretText};
use crate::read_ahead::FeedReceiver;
use crate::tls::TlsOptions;
use crate::{Guarantee, SourceSpec, format};

use super::reader::KafkaReader;
use super::{KafkaSource, RestoredPositions};

const NAME: &str = "kafka source";

/// Batches that are read ahead.
const QUEUE: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KafkaSourceFormat {
    #[default]
    Json,
    Text,
    Avro,
    Raw,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KafkaStart {
    #[default]
    Earliest,
    Latest,
    /// The first record that is not older.
    TimestampMs(i64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum IsolationLevel {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaSourceOptions {
    /// `host:port`, several with commas between.
    pub(super) servers: String,
    pub(super) topic: String,
    #[serde(default)]
    pub(super) format: KafkaSourceFormat,
    /// Of JSON: values begin with a zero and a schema's number of four bytes, as Confluent's serializers write them.
    #[serde(default)]
    pub(super) confluent_header: bool,
    /// The schema registry that knows the schemas of Avro values, and of JSON, whose numbers are in Confluent's header.
    pub(super) registry: Option<SecretText>,
    /// Columns behind those of values: what each is called, and what of a record it has.
    #[serde(default)]
    pub(super) metadata: Vec<(String, KafkaMetadata)>,
    /// Of Avro: what values are read as; with a registry, by default the newest schema of the topic's values.
    pub(super) avro_schema: Option<Value>,
    /// Of Avro values with Confluent's header: the schemas they were written with, by number.
    #[serde(default)]
    pub(super) avro_writers: BTreeMap<u32, Value>,
    /// Where a job begins that goes on from no checkpoint.
    #[serde(default)]
    pub(super) start: KafkaStart,
    #[serde(default)]
    pub(super) isolation: IsolationLevel,
    /// Between looks for new partitions; 0 is never.
    #[serde(default = "half_a_minute")]
    pub(super) discover_interval_s: f64,
    /// Ends when every partition has been read as far as there is anything.
    #[serde(default)]
    pub(super) stop_at_end: bool,
    #[serde(default)]
    pub(super) on_error: OnError,
    /// How long the brokers may keep silent at the start.
    #[serde(default = "half_a_minute")]
    pub(super) patience_s: f64,
    /// For SASL; else `TIDEMILL_KAFKA_USER` and `TIDEMILL_KAFKA_PASSWORD`.
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretText>,
    /// By which mechanism; PLAIN unless it is said.
    pub(super) sasl: Option<SaslMechanism>,
    /// With TLS: files of certificates.
    pub(super) tls: Option<TlsOptions>,
    /// What else librdkafka is to be told.
    #[serde(default)]
    pub(super) config: BTreeMap<String, Value>,
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
