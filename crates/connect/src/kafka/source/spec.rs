//! The options of a Kafka source, and how it is made from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::Deserialize;
use serde_json::Value;

use super::super::client::{KafkaConnection, TopicOptions};
use super::super::metadata::KafkaMetadata;
use super::super::registry::{SchemaCache, SchemaRegistry};
use super::reader::KafkaReaderPlan;
use super::{KafkaSource, RestoredPositions};
use crate::avro::AvroSchemas;
use crate::bad_records::BadRecordPolicy;
use crate::connection::Credentials;
use crate::decode::{RecordDecoder, RecordLayout};
use crate::error::ConnectError;
use crate::read_options::ReadOptions;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, format, options};

const NAME: &str = "kafka source";
/// Default time that the brokers may be silent at the start.
const PATIENCE_S: f64 = 30.0;
const DISCOVERY_INTERVAL_S: f64 = 30.0;

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
    /// The first record that is not older than this.
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
pub(super) struct KafkaSourceOptions {
    #[serde(default)]
    pub(super) format: KafkaSourceFormat,
    /// For JSON: values begin with a zero and a four-byte schema number, as written by Confluent's serializers.
    #[serde(default)]
    pub(super) confluent_header: bool,
    /// Columns after those of the value: the name of each, and the metadata it contains.
    #[serde(default)]
    pub(super) metadata: Vec<(String, KafkaMetadata)>,
    /// For Avro: the schema for reading values. With a registry, the default is the newest schema for the topic's
    /// values.
    avro_schema: Option<Value>,
    /// For Avro values with Confluent's header: the writer schemas by number.
    #[serde(default)]
    avro_writers: BTreeMap<u32, Value>,
    /// Where a job starts that does not resume from a checkpoint.
    #[serde(default)]
    pub(super) start: KafkaStart,
    #[serde(default)]
    pub(super) isolation: IsolationLevel,
    /// Time between checks for new partitions; 0 for never.
    discover_interval_s: Option<f64>,
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    type Groups = (KafkaSourceOptions, TopicOptions, Credentials, ReadOptions);
    let (options, topic, credentials, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let interval_s = options.discover_interval_s.unwrap_or(DISCOVERY_INTERVAL_S);
    let discovery_interval = options::seconds("discover_interval_s", interval_s, 0.0).map_err(wrong)?;
    let patience = options::seconds("patience_s", topic.patience_s.unwrap_or(PATIENCE_S), 0.0).map_err(wrong)?;
    let registry = topic.registry(patience).map_err(wrong)?;
    let (values, decoder) = rows(&options, &topic.topic, registry.as_ref(), schema)?;
    let metadata = options.metadata.iter().map(|(name, what)| (name.as_str(), what.data_type()));
    let schema = options::with_metadata(&values, metadata).map_err(wrong)?;
    let connection = KafkaConnection::new(&topic, credentials).map_err(wrong)?;
    let bad = BadRecordPolicy::new(reading.on_error);
    let (handlers, name) = (bad.clone(), format!("kafka {}", topic.topic));
    let plan = KafkaReaderPlan {
        options,
        topic: topic.topic,
        stop_at_end: reading.stop_at_end,
        patience,
        discovery_interval,
        connection,
        decoder,
        schema: SchemaRef::clone(&schema),
        registry,
    };
    let make: MakeSource = Arc::new(move |context| {
        let copy = format!("{}-{}", context.task(), context.copy());
        let restored = RestoredPositions::of(context)?;
        Ok(Box::new(KafkaSource::start(plan.clone(), handlers.handler(copy.clone()), copy, restored, context)?))
    });
    let spec = SourceSpec::new(name, schema, DeliveryGuarantee::ExactlyOnce, &bad, make);
    Ok(SourceSpec { moves_splits: true, ..spec })
}

/// The schema of rows without metadata, and the decoder of values, which raw values do not need.
fn rows(
    options: &KafkaSourceOptions,
    topic: &str,
    registry: Option<&SchemaRegistry>,
    schema: Option<SchemaRef>,
) -> Result<(SchemaRef, Option<RecordDecoder>), ConnectError> {
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let KafkaSourceOptions { format, avro_schema, avro_writers, .. } = options;
    if *format != KafkaSourceFormat::Avro && (avro_schema.is_some() || !avro_writers.is_empty()) {
        return Err(wrong("`avro_schema` and `avro_writers` are for `format` avro".into()));
    }
    if registry.is_some()
        && !(matches!(format, KafkaSourceFormat::Json | KafkaSourceFormat::Avro) && avro_writers.is_empty())
    {
        return Err(wrong("`registry` is for `format` json and avro, and without `avro_writers`".into()));
    }
    let own_columns = || wrong(format!("{format:?} has its own columns: omit the schema"));
    let in_layout = |layout| -> Result<RecordDecoder, ConnectError> {
        let schema = format::schema(NAME, layout, "value", schema.clone())?;
        RecordDecoder::new(layout, schema).map_err(wrong)
    };
    let decoder = match format {
        KafkaSourceFormat::Json => in_layout(RecordLayout::Json)?,
        KafkaSourceFormat::Text => in_layout(RecordLayout::Text)?,
        KafkaSourceFormat::Raw if schema.as_ref().is_some_and(|schema| *schema != raw_schema()) => {
            return Err(own_columns());
        }
        KafkaSourceFormat::Raw => return Ok((raw_schema(), None)),
        KafkaSourceFormat::Avro if schema.is_some() => return Err(own_columns()),
        KafkaSourceFormat::Avro => {
            let schema = match (avro_schema, registry) {
                (Some(schema), _) => schema.clone(),
                (None, Some(registry)) => SchemaCache::latest(registry, topic, "AVRO").map_err(wrong)?.into(),
                (None, None) => return Err(wrong("avro needs `avro_schema`, or a `registry` that has it".into())),
            };
            let avro = AvroSchemas::new(&schema, avro_writers).map_err(wrong)?;
            RecordDecoder::of_avro(if registry.is_some() { avro.learning() } else { avro })
        }
    };
    Ok((SchemaRef::clone(decoder.schema()), Some(decoder)))
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
