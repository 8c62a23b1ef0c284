//! Rows as records with a key and a value, or as messages.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use tidemill_dataflow::TaskError;

use crate::encode::LineFormat;
use crate::prepared::put;

/// How rows are records.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    /// The column that is the value, else the whole row as JSON.
    value: Option<usize>,
    key: Option<usize>,
}

impl Encoder {
    /// `value` and `key` are names of columns.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn new(schema: &SchemaRef, value: Option<&str>, key: Option<&str>) -> Result<Self, String> {
        let column = |name: Option<&str>| name.map(|name| schema.index_of(name)).transpose();
        let (value, key) = match (column(value), column(key)) {
            (Ok(value), Ok(key)) => (value, key),
            (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
        };
        let encoder = Encoder { value, key };
        // Types are looked at before there are rows.
        let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
        encoder.encode(&empty, usize::MAX, &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(encoder)
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
                DataType::Binary | DataType::LargeBinary => cast(column, &DataType::LargeBinary)?,
                _ => cast(&cast(column, &DataType::LargeUtf8)?, &DataType::LargeBinary)?,
            };
            Ok(texts.as_binary::<i64>().clone())
        };
        let keys = self.key.map(bytes_of).transpose()?;
        let values = self.value.map(bytes_of).transpose()?;
        let mut lines = Vec::new();
        if values.is_none() {
            LineFormat::Json.encode(rows, false, &mut lines)?;
        }
        let mut lines = lines.split(|byte| *byte == b'\n');
        for row in 0..rows.num_rows() {
            let of = |column: &arrow::array::LargeBinaryArray| column.is_valid(row).then(|| column.value(row).to_vec());
            let key = keys.as_ref().and_then(of);
            let value = match &values {
                Some(values) => of(values),
                None => lines.next().map(<[u8]>::to_vec),
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
