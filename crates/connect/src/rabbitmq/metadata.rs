//! What is known of a message besides its bytes, as columns after those of the bytes.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, ListBuilder, StringArray, StringBuilder, StructBuilder, TimestampSecondArray,
};
use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::queue::QueueMessage;
use crate::bad_records::told;

/// A metadata column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RabbitMqMetadata {
    Exchange,
    RoutingKey,
    /// The time at which it was sent, if its sender has set it.
    Timestamp,
    MessageId,
    CorrelationId,
    /// Whether it was delivered before, to a consumer that has not acknowledged it.
    Redelivered,
    /// Names and values, sorted by name.
    Headers,
}

/// Unlike Kafka's, values have types: strings stay as they are, anything else becomes JSON.
fn header_fields() -> Fields {
    Fields::from(vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)])
}

impl RabbitMqMetadata {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            RabbitMqMetadata::Exchange
            | RabbitMqMetadata::RoutingKey
            | RabbitMqMetadata::MessageId
            | RabbitMqMetadata::CorrelationId => DataType::Utf8,
            RabbitMqMetadata::Timestamp => DataType::Timestamp(TimeUnit::Second, None),
            RabbitMqMetadata::Redelivered => DataType::Boolean,
            RabbitMqMetadata::Headers => DataType::new_list(DataType::Struct(header_fields()), true),
        }
    }

    /// The column of some messages, one per row.
    pub(crate) fn column(self, messages: &[&QueueMessage]) -> ArrayRef {
        let given = || messages.iter().map(|message| &message.delivery);
        let sent = || given().map(|delivery| &delivery.properties);
        let texts = |texts: Vec<Option<&str>>| -> ArrayRef { Arc::new(StringArray::from(texts)) };
        let ids = |id: &Option<ShortString>| id.as_ref().map(|id| id.as_str().to_owned());
        match self {
            RabbitMqMetadata::Exchange => texts(given().map(|delivery| Some(delivery.exchange.as_str())).collect()),
            RabbitMqMetadata::RoutingKey => {
                texts(given().map(|delivery| Some(delivery.routing_key.as_str())).collect())
            }
            RabbitMqMetadata::MessageId => Arc::new(sent().map(|of| ids(of.message_id())).collect::<StringArray>()),
            RabbitMqMetadata::CorrelationId => {
                Arc::new(sent().map(|of| ids(of.correlation_id())).collect::<StringArray>())
            }
            RabbitMqMetadata::Timestamp => {
                let seconds = |at: u64| i64::try_from(at).ok();
                Arc::new(sent().map(|of| of.timestamp().and_then(seconds)).collect::<TimestampSecondArray>())
            }
            RabbitMqMetadata::Redelivered => {
                Arc::new(given().map(|delivery| Some(delivery.redelivered)).collect::<BooleanArray>())
            }
            RabbitMqMetadata::Headers => {
                let mut lists = ListBuilder::new(StructBuilder::from_fields(header_fields(), 0));
                for of in sent() {
                    let headers = lists.values();
                    for (name, value) in of.headers().iter().flat_map(|table| table.inner()) {
                        let value = match value_of(value) {
                            Value::Null => None,
                            Value::String(text) => Some(text),
                            other => Some(other.to_string()),
                        };
                        headers.field_builder::<StringBuilder>(0).expect("names").append_value(name.as_str());
                        headers.field_builder::<StringBuilder>(1).expect("values").append_option(value);
                        headers.append(true);
                    }
                    lists.append(true);
                }
                Arc::new(lists.finish())
            }
        }
    }
}

/// Headers as an object.
pub(crate) fn object(headers: &FieldTable) -> Map<String, Value> {
    headers.inner().iter().map(|(name, value)| (name.as_str().to_owned(), value_of(value))).collect()
}

/// A header's value as JSON; a time becomes seconds since 1970.
fn value_of(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(value) => json!(f64::from(value.value) / 10f64.powi(i32::from(value.scale))),
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => told(text.as_bytes()),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(value_of).collect(),
        AMQPValue::Timestamp(at_s) => json!(at_s),
        AMQPValue::FieldTable(table) => object(table).into(),
        AMQPValue::ByteArray(bytes) => told(bytes.as_slice()),
        AMQPValue::Void => Value::Null,
    }
}
