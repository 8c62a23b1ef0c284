//! The position in a partition: an offset, and a fingerprint of the record before it. A topic that is deleted and
//! recreated has other records at the same offsets, and brokers do not tell a client that asks for an offset; the
//! fingerprint does.
//!
//! A checkpoint contains the offset and, if there is a fingerprint, the record's timestamp and the hash of its value,
//! in eight little-endian bytes each. Before anything has been read there is no position.

use bytes::Bytes;

use crate::hash;

/// Identifies a record when it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordFingerprint {
    timestamp_ms: i64,
    hash: u64,
}

impl RecordFingerprint {
    pub(super) fn new(timestamp_ms: Option<i64>, value: Option<&[u8]>) -> Self {
        RecordFingerprint {
            timestamp_ms: timestamp_ms.unwrap_or(i64::MIN),
            hash: hash::of_bytes(value.unwrap_or_default()),
        }
    }
}

/// The position in a partition, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartitionPosition {
    pub(super) next: i64,
    /// The record before the offset, if it has been read.
    pub(super) last: Option<RecordFingerprint>,
}

impl PartitionPosition {
    pub(super) fn at(next: i64) -> Self {
        PartitionPosition { next, last: None }
    }

    pub(super) fn to_bytes(self) -> Bytes {
        let mut bytes = self.next.to_le_bytes().to_vec();
        if let Some(RecordFingerprint { timestamp_ms, hash }) = self.last {
            bytes.extend(timestamp_ms.to_le_bytes());
            bytes.extend(hash.to_le_bytes());
        }
        bytes.into()
    }

    /// Decodes what `to_bytes` produced.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let (next, rest) = bytes.split_first_chunk()?;
        let last = match rest.split_first_chunk() {
            Some((timestamp_ms, hash)) => Some(RecordFingerprint {
                timestamp_ms: i64::from_le_bytes(*timestamp_ms),
                hash: u64::from_le_bytes(hash.try_into().ok()?),
            }),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(PartitionPosition { next: i64::from_le_bytes(*next), last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints contain positions, with and without a fingerprint, so the format must not change.
    #[test]
    fn places_come_back() {
        assert_eq!(PartitionPosition::of(&17i64.to_le_bytes()), Some(PartitionPosition::at(17)));
        let mark = RecordFingerprint::new(Some(5), Some(b"x"));
        for place in [PartitionPosition::at(17), PartitionPosition { next: 17, last: Some(mark) }] {
            assert_eq!(PartitionPosition::of(&place.to_bytes()), Some(place));
        }
        let bytes = PartitionPosition { next: 17, last: Some(mark) }.to_bytes();
        assert_eq!(bytes[..16], [17i64.to_le_bytes(), 5i64.to_le_bytes()].concat());
        for len in (0..24).filter(|len| *len != 8) {
            assert_eq!(PartitionPosition::of(&bytes[..len]), None, "{len}");
        }
        assert_ne!(mark, RecordFingerprint::new(Some(6), Some(b"x")));
        assert_ne!(mark, RecordFingerprint::new(Some(5), None));
    }
}
