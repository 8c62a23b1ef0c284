//! Rows in snapshots: batches as bytes, without their schema, which is saved once next to them.
//!
//! ```text
//! u64       rows
//! column*   those of whole numbers: see `packed`
//! message   the others, if there are any: an Arrow IPC message with LZ4
//! ```

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use bytes::Bytes;
use tidemill_batch::memory::verify;
use tidemill_batch::wire::{BatchDecoder, BatchEncoder};

use crate::packed::{self, cut_short};

/// The columns of a schema that are not packed.
fn others(schema: &SchemaRef) -> Vec<usize> {
    let fields = schema.fields().iter().enumerate();
    fields.filter(|(_, field)| !packed::can(field.data_type())).map(|(at, _)| at).collect()
}

/// Encodes rows compactly.
///
/// # Errors
/// If a column cannot be encoded.
pub fn encode(batch: &RecordBatch) -> Result<Bytes, ArrowError> {
    let mut bytes = Vec::with_capacity(8 + batch.num_columns() * (9 + 4 * batch.num_rows()));
    bytes.extend_from_slice(&(batch.num_rows() as u64).to_le_bytes());
    for column in batch.columns().iter().filter(|column| packed::can(column.data_type())) {
        packed::pack(column.as_ref(), &mut bytes);
    }
    let others = others(batch.schema_ref());
    if !others.is_empty() {
        let rest = batch.project(&others)?;
        let parts = BatchEncoder::compressed(rest.schema_ref())?.encode(&rest)?;
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
    }
    bytes.shrink_to_fit();
    Ok(bytes.into())
}

/// Encodes rows without compression, for a reader on the same machine, after the bytes in `before`.
///
/// # Errors
/// If a column cannot be encoded.
pub fn encode_plain(batch: &RecordBatch, mut before: Vec<u8>) -> Result<Bytes, ArrowError> {
    let parts = BatchEncoder::new(batch.schema_ref())?.encode(batch)?;
    before.reserve_exact(8 + parts.iter().map(|part| part.len()).sum::<usize>());
    before.extend_from_slice(&(batch.num_rows() as u64).to_le_bytes());
    parts.iter().for_each(|part| before.extend_from_slice(part));
    Ok(before.into())
}

/// Decodes the result of [`encode`] for rows with this schema, into new memory.
///
/// # Errors
/// If the bytes are invalid.
pub fn decode(schema: &SchemaRef, bytes: &Bytes) -> Result<RecordBatch, ArrowError> {
    let (rows, body) = parts(bytes)?;
    let (mut rest, others) = (body.as_ref(), others(schema));
    let packed = schema.fields().iter().filter(|field| packed::can(field.data_type()));
    let packed = packed.map(|field| packed::unpack(field.data_type(), rows, &mut rest));
    let mut packed = packed.collect::<Result<Vec<ArrayRef>, _>>()?.into_iter();
    let mut decoded = if others.is_empty() {
        Vec::new()
    } else {
        // Copied once, to memory that is aligned for every type.
        let schema = SchemaRef::new(schema.project(&others)?);
        BatchDecoder::new(&schema)?.decode(Buffer::from_slice_ref(std::mem::take(&mut rest)), rows)?.columns().to_vec()
    }
    .into_iter();
    if !rest.is_empty() {
        return Err(ArrowError::IpcError(format!("{} extra bytes after the rows", rest.len())));
    }
    let of = |at| if others.contains(&at) { decoded.next() } else { packed.next() };
    let columns = (0..schema.fields().len()).map(of).map(|column| column.expect("one for each field")).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options)
}

/// Decodes the result of [`encode_plain`] for rows with this schema, in place: only misaligned columns are copied.
///
/// # Errors
/// If the bytes are invalid.
pub fn decode_in_place(schema: &SchemaRef, bytes: &Bytes) -> Result<RecordBatch, ArrowError> {
    let (rows, body) = parts(bytes)?;
    BatchDecoder::new(schema)?.decode(Buffer::from(body), rows)
}

fn parts(bytes: &Bytes) -> Result<(usize, Bytes), ArrowError> {
    verify(bytes).map_err(|error| ArrowError::ExternalError(Box::new(error)))?;
    let rows = bytes.first_chunk().ok_or_else(cut_short)?;
    Ok((u64::from_le_bytes(*rows) as usize, bytes.slice(rows.len()..)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use bytes::Bytes;

    use super::{decode, decode_in_place, encode, encode_plain};

    /// Otherwise, only wrong results would reveal that restored state differs from saved state.
    #[test]
    fn rows_round_trip() {
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
