//! Encodes rows as values with a schema in a registry: Confluent's header, followed by Avro or JSON.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow_avro::schema::{AVRO_NAME_METADATA_KEY, AvroSchema, SCHEMA_METADATA_KEY};
use serde_json::{Map, Value, json};
use tidemill_dataflow::TaskError;

use super::registry::SchemaRegistry;
use crate::record::{RecordEncoder, SchemaPrefix};

/// Encodes rows as records, and registers their schema before the first one.
#[derive(Clone, Debug)]
pub(crate) struct RegisteringEncoder {
    encoder: RecordEncoder,
    /// Set until the number is known.
    wanted: Option<SchemaRequest>,
}

/// The schema to register.
#[derive(Clone, Debug)]
struct SchemaRequest {
    registry: SchemaRegistry,
    subject: String,
    kind: &'static str,
    schema: String,
}

impl RegisteringEncoder {
    /// Records without a registered schema.
    pub(crate) fn plain(encoder: RecordEncoder) -> Self {
        RegisteringEncoder { encoder, wanted: None }
    }

    /// Encodes rows of `schema` as values of a topic, in addition to what `encoder` does: as Avro, with `avro` or a
    /// schema derived from the columns, or as JSON.
    ///
    /// # Errors
    /// A description, for columns that it cannot write.
    pub(crate) fn new(
        schema: &SchemaRef,
        registry: SchemaRegistry,
        topic: &str,
        encoder: RecordEncoder,
        avro: Option<Option<&Value>>,
    ) -> Result<Self, String> {
        let whole = &encoder.whole_schema(schema);
        let (kind, text, numbered) = match avro {
            Some(given) => {
                let text = match given {
                    Some(Value::String(text)) => text.clone(),
                    Some(schema) => schema.to_string(),
                    None => avro_schema(whole, topic)?,
                };
                let metadata = [(SCHEMA_METADATA_KEY.to_owned(), text.clone())].into();
                let whole = Schema::new_with_metadata(whole.fields().clone(), metadata);
                ("AVRO", text, SchemaPrefix::Avro(Arc::new(whole), 0))
            }
            None => ("JSON", json_schema(whole, topic).to_string(), SchemaPrefix::Json(0)),
        };
        let encoder = encoder.numbered(schema, numbered)?;
        let wanted = Some(SchemaRequest { registry, subject: SchemaRegistry::subject(topic), kind, schema: text });
        Ok(RegisteringEncoder { encoder, wanted })
    }

    /// Whether records have headers.
    pub(crate) fn is_headed(&self) -> bool {
        self.encoder.is_headed()
    }

    /// Appends the records of rows to `out`.
    ///
    /// # Errors
    /// As [`RecordEncoder::encode`]; those of the registry.
    pub(crate) async fn encode(
        &mut self,
        rows: &RecordBatch,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), TaskError> {
        if let Some(SchemaRequest { registry, subject, kind, schema }) = &self.wanted {
            let number = registry.register(subject, kind, schema).await?;
            self.encoder.set_number(number);
            self.wanted = None;
        }
        self.encoder.encode(rows, bytes_max, out)
    }
}

/// The schema of rows as a record named after the topic: all schemas of a subject must have the same name.
fn avro_schema(schema: &SchemaRef, topic: &str) -> Result<String, String> {
    let mut name: String = topic.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    let metadata = [(AVRO_NAME_METADATA_KEY.to_owned(), name)].into();
    let schema = Schema::new_with_metadata(schema.fields().clone(), metadata);
    AvroSchema::try_from(&schema).map(|schema| schema.json_string).map_err(|error| error.to_string())
}

/// The JSON schema of rows; nulls are omitted.
fn json_schema(schema: &SchemaRef, topic: &str) -> Value {
    let mut made = object(schema.fields());
    made.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    made.insert("title".into(), topic.into());
    made.into()
}

fn object(fields: &Fields) -> Map<String, Value> {
    let properties: Map<String, Value> = fields.iter().map(|field| (field.name().clone(), kind(field))).collect();
    let required: Vec<&String> = fields.iter().filter(|field| !field.is_nullable()).map(|field| field.name()).collect();
    let mut made = Map::new();
    made.insert("type".into(), "object".into());
    made.insert("properties".into(), properties.into());
    if !required.is_empty() {
        made.insert("required".into(), json!(required));
    }
    made
}

fn kind(field: &Field) -> Value {
    match field.data_type() {
        DataType::Boolean => json!({"type": "boolean"}),
        whole if whole.is_integer() => json!({"type": "integer"}),
        number if number.is_numeric() => json!({"type": "number"}),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            json!({"type": "array", "items": kind(item)})
        }
        DataType::Struct(fields) => object(fields).into(),
        _ => json!({"type": "string"}),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use serde_json::json;

    use super::*;
    use crate::avro::AvroSchemas;
    use crate::prepared_commit::records;

    fn rows() -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-300)]));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "ä"]));
        let schema =
            Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("text", DataType::Utf8, false)]);
        RecordBatch::try_new(Arc::new(schema), vec![n, text]).unwrap()
    }

    fn values(numbered: SchemaPrefix) -> Vec<Vec<u8>> {
        let rows = rows();
        let encoder = RecordEncoder::new(&rows.schema(), None, None, &[]).unwrap();
        let mut encoder = encoder.numbered(&rows.schema(), numbered).unwrap();
        encoder.set_number(258);
        let mut bytes = Vec::new();
        encoder.encode(&rows, 100, &mut bytes).unwrap();
        records(&bytes).map(|record| record.unwrap().1.unwrap().to_vec()).collect()
    }

    /// What is written must be readable after the header that Confluent's readers expect.
    #[test]
    fn avro_is_read_as_it_was_written() {
        let schema = rows().schema();
        let text = avro_schema(&schema, "1 clicks.v2").unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["name"], "_1_clicks_v2");
        let metadata = [(SCHEMA_METADATA_KEY.to_owned(), text.clone())].into();
        let with_text = Schema::new_with_metadata(schema.fields().clone(), metadata);
        let values = values(SchemaPrefix::Avro(Arc::new(with_text), 0));
        assert!(values.iter().all(|value| value.starts_with(&[0, 0, 0, 1, 2])), "{values:?}");
        let writer: Value = serde_json::from_str(&text).unwrap();
        let avro = AvroSchemas::new(&writer, &[(258, writer.clone())].into()).unwrap();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let Ok(read) = avro.decode(&values) else { panic!("they are good") };
        assert_eq!(read.columns(), rows().columns());
    }

    #[test]
    fn json_has_a_schema() {
        let values = values(SchemaPrefix::Json(0));
        assert_eq!(values[0], b"\x00\x00\x00\x01\x02{\"n\":1,\"text\":\"a\"}");
        let list = Field::new("list", DataType::List(Arc::new(Field::new("item", DataType::Float64, true))), true);
        let schema = Schema::new([rows().schema().fields().to_vec(), vec![Arc::new(list)]].concat());
        let expected = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "t",
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "text": {"type": "string"},
                "list": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["text"],
        });
        assert_eq!(json_schema(&Arc::new(schema), "t"), expected);
    }
}
