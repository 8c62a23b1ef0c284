//! Encodes rows as records with a key and a value, or as messages.

use std::sync::Arc;

use arrow::array::{Array, LargeBinaryArray, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_avro::schema::FingerprintStrategy;
use arrow_avro::writer::WriterBuilder;
use arrow_avro::writer::format::AvroSoeFormat;
use tidemill_dataflow::TaskError;

use crate::encode::{NotFinite, json_lines};
use crate::headers::{HeaderColumn, HeaderColumns, bytes_of};
use crate::options;
use crate::prepared_commit::put;

/// The mapping from rows to records.
#[derive(Clone, Debug)]
pub(crate) struct RecordEncoder {
    /// The column with the value; by default, the whole row as JSON.
    value: Option<usize>,
    key: Option<usize>,
    headers: Option<HeaderColumns>,
    /// The columns of the whole row, without header columns.
    whole: Vec<usize>,
    /// The encoding of the whole row as a value with a schema number; without it, plain JSON.
    numbered: Option<SchemaPrefix>,
}

/// Values preceded by a zero and the number of their schema, as written by Confluent's serializers.
#[derive(Clone, Debug)]
pub(crate) enum SchemaPrefix {
    Json(u32),
    /// With the columns, whose metadata contain the Avro schema.
    Avro(SchemaRef, u32),
}

impl RecordEncoder {
    /// `value` and `key` are column names.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn new(
        schema: &SchemaRef,
        value: Option<&str>,
        key: Option<&str>,
        headers: &[HeaderColumn],
    ) -> Result<Self, String> {
        let column =
            |option: &str, name: Option<&str>| name.map(|name| options::column(schema, option, name)).transpose();
        let (value, key) = (column("value", value)?, column("key", key)?);
        let headers = if headers.is_empty() { None } else { Some(HeaderColumns::new(schema, headers)?) };
        let is_header = |column: &usize| headers.as_ref().is_some_and(|headers| headers.has(*column));
        let whole: Vec<usize> = (0..schema.fields().len()).filter(|column| !is_header(column)).collect();
        if value.is_none() && whole.is_empty() && headers.is_some() {
            return Err("`headers` takes all columns, so none is left for values: name one as `value`".into());
        }
        RecordEncoder { value, key, headers, whole, numbered: None }.looked_at(schema)
    }

    /// Whether records have headers.
    pub(crate) fn is_headed(&self) -> bool {
        self.headers.is_some()
    }

    /// The schema of whole rows.
    pub(crate) fn whole_schema(&self, schema: &SchemaRef) -> SchemaRef {
        Arc::new(schema.project(&self.whole).expect("they are columns of it"))
    }

    /// Adds schema numbers before values.
    ///
    /// # Errors
    /// A description, for types that cannot be written this way.
    pub(crate) fn numbered(self, schema: &SchemaRef, numbered: SchemaPrefix) -> Result<Self, String> {
        RecordEncoder { numbered: Some(numbered), ..self }.looked_at(schema)
    }

    /// Sets the number for all following values.
    pub(crate) fn set_number(&mut self, new: u32) {
        match &mut self.numbered {
            Some(SchemaPrefix::Json(number) | SchemaPrefix::Avro(_, number)) => *number = new,
            None => {}
        }
    }

    /// Checks types before there are rows.
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
        let of_column = |column: usize| bytes_of(rows.column(column));
        let keys = self.key.map(of_column).transpose()?;
        let values = self.value.map(of_column).transpose()?;
        let headers = self.headers.as_ref().map(|headers| headers.of(rows)).transpose()?;
        let mut whole = self.whole(rows, values.is_none())?.into_iter();
        for row in 0..rows.num_rows() {
            let of = |column: &LargeBinaryArray| column.is_valid(row).then(|| column.value(row).to_vec());
            let key = keys.as_ref().and_then(of);
            let value = match &values {
                Some(values) => of(values),
                None => whole.next(),
            };
            let headers = headers.as_ref().map(|headers| headers.row(row)).transpose()?;
            let bytes: usize = [&key, &value, &headers].into_iter().flatten().map(Vec::len).sum();
            if bytes > bytes_max {
                return Err(format!(
                    "a row makes a record of {bytes} bytes, but `record_bytes_max` is {bytes_max}: raise it, and the \
                     server's limit (max.message.bytes of a topic, max_message_size of RabbitMQ) with it"
                )
                .into());
            }
            put(key.as_deref(), out);
            put(value.as_deref(), out);
            if let Some(headers) = &headers {
                put(Some(headers), out);
            }
        }
        Ok(())
    }

    /// Each row in one piece, if `wanted`.
    fn whole(&self, rows: &RecordBatch, wanted: bool) -> Result<Vec<Vec<u8>>, TaskError> {
        if !wanted {
            return Ok(Vec::new());
        }
        let rows = &rows.project(&self.whole)?;
        if let Some(SchemaPrefix::Avro(schema, number)) = &self.numbered {
            let strategy = FingerprintStrategy::Id(*number);
            let builder = WriterBuilder::new(Schema::clone(schema)).with_fingerprint_strategy(strategy);
            let mut encoder = builder.build_encoder::<AvroSoeFormat>()?;
            encoder.encode(rows)?;
            return Ok(encoder.flush().iter().map(|row| row.to_vec()).collect());
        }
        let (header, not_finite) = match self.numbered {
            Some(SchemaPrefix::Json(number)) => ([&[0], number.to_be_bytes().as_slice()].concat(), NotFinite::Refused),
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
    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;
    use crate::prepared_commit::{records, with_headers};

    fn rows() -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("a\nb"), Some(""), None]));
        RecordBatch::try_from_iter([("n", n), ("text", text)]).unwrap()
    }

    fn texts(encoder: &RecordEncoder) -> Vec<(Option<String>, Option<String>)> {
        let mut bytes = Vec::new();
        encoder.encode(&rows(), 100, &mut bytes).unwrap();
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        records(&bytes).map(|record| record.map(|(key, value)| (text(key), text(value))).unwrap()).collect()
    }

    /// Catches records that differ from their rows, including nulls, empty strings and line ends.
    #[test]
    fn rows_are_records() {
        let schema = rows().schema();
        let some = |text: &str| Some(text.to_owned());
        let json = RecordEncoder::new(&schema, None, Some("n"), &[]).unwrap();
        let expected = [
            (some("1"), some(r#"{"n":1,"text":"a\nb"}"#)),
            (None, some(r#"{"text":""}"#)),
            (some("3"), some(r#"{"n":3}"#)),
        ];
        assert_eq!(texts(&json), expected);
        let raw = RecordEncoder::new(&schema, Some("text"), None, &[]).unwrap();
        assert_eq!(texts(&raw), [(None, some("a\nb")), (None, some("")), (None, None)]);
        assert!(RecordEncoder::new(&schema, Some("txt"), None, &[]).unwrap_err().contains("txt"));
        let error = raw.encode(&rows(), 2, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("a record of 3 bytes"), "{error}");
    }

    /// Catches a header that is also in the value, is not counted, or leaves nothing to write.
    #[test]
    fn headers_are_beside_the_value() {
        let schema = rows().schema();
        let of = |name: &str, column: &str| (Some(name.to_owned()), column.to_owned());
        let encoder = RecordEncoder::new(&schema, None, None, &[of("t", "text")]).unwrap();
        let mut bytes = Vec::new();
        encoder.encode(&rows(), 100, &mut bytes).unwrap();
        let found: Vec<_> = with_headers(&bytes, true).map(Result::unwrap).collect();
        let values: Vec<_> = found.iter().map(|((_, value), _)| String::from_utf8_lossy(value.unwrap())).collect();
        assert_eq!(values, [r#"{"n":1}"#, "{}", r#"{"n":3}"#]);
        let headers = |at: usize| records(found[at].1.unwrap()).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(headers(0), [(Some(b"t".as_slice()), Some(b"a\nb".as_slice()))]);
        assert_eq!((headers(1), headers(2)), (vec![(Some(b"t".as_slice()), Some(b"".as_slice()))], vec![]));
        // Name and value have four bytes, their lengths eight, and the object seven.
        let error = encoder.encode(&rows(), 18, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("a record of 19 bytes"), "{error}");
        let error = RecordEncoder::new(&schema, None, None, &[of("t", "text"), of("n", "n")]).unwrap_err();
        assert!(error.contains("takes all columns"), "{error}");
    }
}
