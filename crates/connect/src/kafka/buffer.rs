//! Records of a partition that have been read, but not emitted yet.

use crate::bad_records::{BadHeaders, RecordContext};
use crate::headers::Headers as HeaderList;

/// Records of a partition that have not been emitted yet.
#[derive(Default)]
pub(super) struct PartitionBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) records: Vec<RecordBounds>,
    /// Bytes of these records, including headers.
    pub(super) size: usize,
    pub(super) next: i64,
}

/// The ends of a record's key and value in the buffer; each starts at the previous end.
pub(super) struct RecordBounds {
    pub(super) offset: i64,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) key: Option<usize>,
    pub(super) value: Option<usize>,
    /// Names and values, if headers are wanted.
    pub(super) headers: HeaderList,
}

impl RecordBounds {
    /// What the record has besides its value, for storing a bad record.
    pub(super) fn besides(&self, key: Option<&[u8]>) -> RecordContext {
        let headers = (!self.headers.is_empty()).then(|| BadHeaders::List(self.headers.clone()));
        RecordContext { timestamp_ms: self.timestamp_ms, key: key.map(<[u8]>::to_vec), headers }
    }
}

impl PartitionBuffer {
    /// The records, their keys and their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RecordBounds, Option<&[u8]>, Option<&[u8]>)> {
        let mut at = 0;
        self.records.iter().map(move |record| {
            let mut take = |end: Option<usize>| {
                let bytes = &self.bytes[at..end?];
                at += bytes.len();
                Some(bytes)
            };
            let key = take(record.key);
            (record, key, take(record.value))
        })
    }
}
