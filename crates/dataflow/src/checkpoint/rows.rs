//! Rows in snapshots: batches as bytes, without their schema, which is saved once beside them.

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use bytes::Bytes;

use crate::memory::verify;
use crate::wire::{Decoder, Encoder};

/// The rows, compressed.
///
/// # Errors
/// When a column cannot be encoded.
pub fn encode(batch: &RecordBatch) -> Result<Bytes, ArrowError> {
    with(&mut Encoder::compressed(batch.schema_ref())?, batch, Vec::new())
}

/// The rows as they are, for who is beside, behind what `before` has.
///
/// # Errors
/// When a column cannot be encoded.
pub fn encode_plain(batch: &RecordBatch, before: Vec<u8>) -> Result<Bytes, ArrowError> {
    with(&mut Encoder::new(batch.schema_ref())?, batch, before)
}

fn with(encoder: &mut Encoder, batch: &RecordBatch, mut bytes: Vec<u8>) -> Result<Bytes, ArrowError> {
    let parts = encoder.encode(batch)?;
    bytes.reserve_exact(8 + parts.iter().map(|part| part.len()).sum::<usize>());
    bytes.extend_from_slice(&(batch.num_rows() as u64).to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes.into())
}

/// What [`encode`] made of rows with this schema, in memory of their own.
///
/// # Errors
/// When the bytes make no sense.
pub fn decode(schema: &SchemaRef, bytes: &Bytes) -> Result<RecordBatch, ArrowError> {
    let (rows, body) = parts(bytes)?;
    // Copied once, to memory that is aligned for every type.
    Decoder::new(schema)?.decode(Buffer::from_slice_ref(&body), rows)
}

/// What [`encode_plain`] made of rows with this schema, where it lies: only columns that do not lie as their type wants it are
/// copied.
///
/// # Errors
/// When the bytes make no sense.
pub fn decode_in_place(schema: &SchemaRef, bytes: &Bytes) -> Result<RecordBatch, ArrowError> {
    let (rows, body) = parts(bytes)?;
    Decoder::new(schema)?.decode(Buffer::from(body), rows)
}

fn parts(bytes: &Bytes) -> Result<(usize, Bytes), ArrowError> {
    verify(bytes).map_err(|error| ArrowError::ExternalError(Box::new(error)))?;
    let rows = bytes.first_chunk().ok_or_else(|| ArrowError::IpcError("rows cut short".into()))?;
    Ok((u64::from_le_bytes(*rows) as usize, bytes.slice(rows.len()..)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use bytes::Bytes;

    use super::{decode, decode_in_place, encode, encode_plain};

    /// State that came back otherwise than it was saved would be found only by its wrong results.
    #[test]
    fn rows_come_back() {
        for rows in [0, 1, 1000] {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter((0..rows).map(|n| (n % 3 != 0).then_some(n))));
            let texts: ArrayRef =
                Arc::new(StringArray::from_iter_values((0..rows).map(|n| "x".repeat(n as usize % 7))));
            let batch = RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).unwrap();
            let bytes = encode(&batch).unwrap();
            assert_eq!(decode(&batch.schema(), &bytes).unwrap(), batch);
            assert!(decode(&batch.schema(), &Bytes::new()).is_err());
            for before in [0, 1, 8, 9] {
                let plain = encode_plain(&batch, vec![1; before]).unwrap();
                assert_eq!(decode_in_place(&batch.schema(), &plain.slice(before..)).unwrap(), batch);
            }
        }
    }
}
