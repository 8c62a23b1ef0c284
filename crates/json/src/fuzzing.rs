//! For fuzz targets and property tests with arbitrary bytes: records that this crate reads must equal what Arrow's
//! decoder reads.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::RowReader;

/// Reads lines as records, with and without nulls, and with `texts_of_all` off and on. Panics if the rows differ from
/// those of Arrow's decoder, or if Arrow's decoder returns none. Returns how often there were rows.
pub fn plain_records(bytes: &[u8]) -> usize {
    let records: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let mut found = 0;
    for (nullable, texts_of_all) in [(true, true), (true, false), (false, true)] {
        let schema = schema(nullable);
        let rows = RowReader::new(&schema, texts_of_all).expect("it has none but plain types");
        if let Some(rows) = rows.read(&records) {
            assert_eq!(Some(rows), arrow(&schema, texts_of_all, &records));
            found += 1;
        }
    }
    found
}

/// Columns of most types.
pub(crate) fn schema(nullable: bool) -> SchemaRef {
    let fields = [
        ("text", DataType::Utf8),
        ("view", DataType::Utf8View),
        ("n", DataType::Int64),
        ("small", DataType::Int8),
        ("large", DataType::UInt64),
        ("x", DataType::Float64),
        ("y", DataType::Float32),
        ("is", DataType::Boolean),
        ("at", DataType::Timestamp(TimeUnit::Millisecond, None)),
        ("there", DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into()))),
        ("day", DataType::Date32),
    ];
    Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, nullable)).to_vec()))
}

/// The result of Arrow's decoder for the same input.
pub(crate) fn arrow(schema: &SchemaRef, texts_of_all: bool, records: &[&[u8]]) -> Option<RecordBatch> {
    let builder = arrow::json::ReaderBuilder::new(SchemaRef::clone(schema)).with_coerce_primitive(texts_of_all);
    let mut decoder = builder.with_batch_size(records.len() + 1).build_decoder().unwrap();
    for (at, record) in records.iter().enumerate() {
        let read = decoder.decode(record).ok()?;
        if read < record.len() || decoder.has_partial_record() || decoder.len() != at + 1 {
            return None;
        }
    }
    decoder.flush().ok()?
}
