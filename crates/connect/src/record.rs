//! Rows as records with a key and a value, or as messages.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow_avro::schema::FingerprintStrategy;
use arrow_avro::writer::WriterBuilder;
use arrow_avro::writer::format::AvroSoeFormat;
use tidemill_dataflow::TaskError;

use crate::encode::{NotFinite, json_lines};
use crate::options;
use crate::prepared::put;

/// How rows are records.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    /// The column that is the value, else the whole row as JSON.
    value: Option<usize>,
    key: Option<usize>,
    /// How the whole row is a value that has the number of a schema before it; without, it is JSON alone.
    numbered: Option<Numbered>,
}

/// Values with a zero and the number of their schema before them, as Confluent's serializers write them.
#[derive(Clone, Debug)]
pub(crate) enum Numbered {
    Json(u32),
    /// With the columns, whose metadata has the Avro schema.
    Avro(SchemaRef, u32),
}

impl Encoder {
    /// `value` and `key` are names of columns.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn new(schema: &SchemaRef, value: Option<&str>, key: Option<&str>) -> Result<Self, String> {
        let column =
            |option: &str, name: Option<&str>| name.map(|name| options::column(schema, option, name)).transpose();
        let (value, key) = (column("value", value)?, column("key", key)?);
        Encoder { value, key, numbered: None }.looked_at(schema)
    }

    /// With numbers before values.
    ///
    /// # Errors
    /// In words, for types that cannot be written so.
    pub(crate) fn numbered(self, schema: &SchemaRef, numbered: Numbered) -> Result<Self, String> {
        Encoder { numbered: Some(numbered), ..self }.looked_at(schema)
    }

    /// The number that values have before them from now on.
    pub(crate) fn set_number(&mut self, new: u32) {
        match &mut self.numbered {
            Some(Numbered::Json(number) | Numbered::Avro(_, number)) => *number = new,
            None => {}
        }
    }

    /// Types are looked at before there are rows.
    fn looked_at(self, schema: &SchemaRef) -> Result<Self, String> {
        let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
        self.encode(&empty, usize::MAX, &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(self)
    }

    /// Appends the records of rows to `out`.
    ///
    /// # Errors
    /// For a record of more than `bytes_max` bytes, and types that cannot be written.
    pub(crate) fn encode(&self, rows: &RecordBatch, bytes_max: usize, out: &mut Vec<u8>) -> Result<(), TaskError> {
        let bytes_of = |column: usize| -> Result<_, TaskError> {
            // Numbers and times as people write them.
            let column = rows.column(column);
            let texts = match column.data_type() {
                // As text, what is no UTF-8 would be null.
                DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
                    cast(column, &DataType::LargeBinary)?
                }
                _ => cast(&cast(column, &DataType::LargeUtf8)?, &DataType::LargeBinary)?,
            };
            Ok(texts.as_binary::<i64>().clone())
        };
        let keys = self.key.map(bytes_of).transpose()?;
        let values = self.value.map(bytes_of).transpose()?;
        let mut whole = self.whole(rows, values.is_none())?.into_iter();
        for row in 0..rows.num_rows() {
            let of = |column: &arrow::array::LargeBinaryArray| column.is_valid(row).then(|| column.value(row).to_vec());
            let key = keys.as_ref().and_then(of);
            let value = match &values {
                Some(values) => of(values),
                None => whole.next(),
            };
            let bytes = key.as_ref().map_or(0, Vec::len) + value.as_ref().map_or(0, Vec::len);
            if bytes > bytes_max {
                return Err(format!(
                    "a row makes a record of {bytes} bytes, and `record_bytes_max` is {bytes_max}: raise it, and what the \
                     server takes (max.message.bytes of a topic, max_message_size of RabbitMQ) with it"
                )
                .into());
            }
            put(key.as_deref(), out);
            put(value.as_deref(), out);
        }
        Ok(())
    }

    /// Each row in one piece, if that is wanted.
    fn whole(&self, rows: &RecordBatch, wanted: bool) -> Result<Vec<Vec<u8>>, TaskError> {
        if !wanted {
            return Ok(Vec::new());
        }
        if let Some(Numbered::Avro(schema, number)) = &self.numbered {
            let strategy = FingerprintStrategy::Id(*number);
            let builder = WriterBuilder::new(Schema::clone(schema)).with_fingerprint_strategy(strategy);
            let mut encoder = builder.build_encoder::<AvroSoeFormat>()?;
            encoder.encode(rows)?;
            return Ok(encoder.flush().iter().map(|row| row.to_vec()).collect());
        }
        let (header, not_finite) = match self.numbered {
            Some(Numbered::Json(number)) => ([&[0], number.to_be_bytes().as_slice()].concat(), NotFinite::Refused),
            _ => (Vec::new(), NotFinite::Text),
        };
        let mut lines = Vec::new();
        json_lines(rows, not_finite, &mut lines)?;
        let lines = lines.split(|byte| *byte == b'\n').take(rows.num_rows());
        Ok(lines.map(|line| [header.as_slice(), line].concat()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;
    use crate::prepared::records;

    fn rows() -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("a\nb"), Some(""), None]));
        RecordBatch::try_from_iter([("n", n), ("text", text)]).unwrap()
    }

    fn texts(encoder: &Encoder) -> Vec<(Option<String>, Option<String>)> {
        let mut bytes = Vec::new();
        encoder.encode(&rows(), 100, &mut bytes).unwrap();
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        records(&bytes).map(|record| record.map(|(key, value)| (text(key), text(value))).unwrap()).collect()
    }

    /// Records that are not those of the rows: nulls, empty texts and line ends among them.
    #[test]
    fn rows_are_records() {
        let schema = rows().schema();
        let some = |text: &str| Some(text.to_owned());
        let json = Encoder::new(&schema, None, Some("n")).unwrap();
        let expected = [
            (some("1"), some(r#"{"n":1,"text":"a\nb"}"#)),
            (None, some(r#"{"text":""}"#)),
            (some("3"), some(r#"{"n":3}"#)),
        ];
        assert_eq!(texts(&json), expected);
        let raw = Encoder::new(&schema, Some("text"), None).unwrap();
        assert_eq!(texts(&raw), [(None, some("a\nb")), (None, some("")), (None, None)]);
        assert!(Encoder::new(&schema, Some("txt"), None).unwrap_err().contains("txt"));
        let error = raw.encode(&rows(), 2, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("a record of 3 bytes"), "{error}");
    }
}
