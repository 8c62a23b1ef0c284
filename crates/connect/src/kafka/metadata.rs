//! What is known of a record besides its value, as columns after those of the value.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, Int32Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, TimeUnit};
use serde::Deserialize;

use super::buffer::RecordBounds;
use crate::headers;

/// A metadata column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KafkaMetadata {
    Topic,
    Partition,
    Offset,
    /// The time it was written, according to its producer or the broker.
    Timestamp,
    Key,
    /// Names and values, in order.
    Headers,
}

impl KafkaMetadata {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            KafkaMetadata::Topic => DataType::Utf8,
            KafkaMetadata::Partition => DataType::Int32,
            KafkaMetadata::Offset => DataType::Int64,
            KafkaMetadata::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, None),
            KafkaMetadata::Key => DataType::Binary,
            KafkaMetadata::Headers => headers::data_type(),
        }
    }
}

/// Records of a partition, with their keys.
pub(crate) struct RecordColumns<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) records: Vec<(&'a RecordBounds, Option<&'a [u8]>)>,
}

impl RecordColumns<'_> {
    pub(crate) fn column(&self, what: KafkaMetadata) -> ArrayRef {
        let records = || self.records.iter().map(|(record, _)| record);
        let count = self.records.len();
        match what {
            KafkaMetadata::Topic => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(self.topic, count))),
            KafkaMetadata::Partition => Arc::new(Int32Array::from(vec![self.partition; count])),
            KafkaMetadata::Offset => Arc::new(Int64Array::from_iter_values(records().map(|record| record.offset))),
            KafkaMetadata::Timestamp => {
                Arc::new(records().map(|record| record.timestamp_ms).collect::<TimestampMillisecondArray>())
            }
            KafkaMetadata::Key => {
                let mut keys = BinaryBuilder::new();
                self.records.iter().for_each(|(_, key)| keys.append_option(*key));
                Arc::new(keys.finish())
            }
            KafkaMetadata::Headers => headers::column(records().map(|record| Some(&record.headers))),
        }
    }
}
