//! What is known of a record besides its value, as columns behind those of the value.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, Int32Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, TimeUnit};
use serde::Deserialize;

use super::source::Record;
use crate::headers;

/// One thing that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metadata {
    Topic,
    Partition,
    Offset,
    /// When it was written, as its producer or the broker says.
    Timestamp,
    Key,
    /// Names and values, in their order.
    Headers,
}

impl Metadata {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Metadata::Topic => DataType::Utf8,
            Metadata::Partition => DataType::Int32,
            Metadata::Offset => DataType::Int64,
            Metadata::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, None),
            Metadata::Key => DataType::Binary,
            Metadata::Headers => headers::data_type(),
        }
    }
}

/// Records of a partition, with their keys.
pub(crate) struct Known<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) records: Vec<(&'a Record, Option<&'a [u8]>)>,
}

impl Known<'_> {
    pub(crate) fn column(&self, what: Metadata) -> ArrayRef {
        let records = || self.records.iter().map(|(record, _)| record);
        let count = self.records.len();
        match what {
            Metadata::Topic => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(self.topic, count))),
            Metadata::Partition => Arc::new(Int32Array::from(vec![self.partition; count])),
            Metadata::Offset => Arc::new(Int64Array::from_iter_values(records().map(|record| record.offset))),
            Metadata::Timestamp => {
                Arc::new(records().map(|record| record.timestamp_ms).collect::<TimestampMillisecondArray>())
            }
            Metadata::Key => {
                let mut keys = BinaryBuilder::new();
                self.records.iter().for_each(|(_, key)| keys.append_option(*key));
                Arc::new(keys.finish())
            }
            Metadata::Headers => headers::column(records().map(|record| Some(&record.headers))),
        }
    }
}
