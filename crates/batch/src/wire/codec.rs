//! Encodes batches as bytes and decodes them, with one pair for every stream from a copy to a copy. Both ends start
//! with the schema; a dictionary is sent only if it differs from the previous one. Decoded columns lie in the received
//! buffer.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt64Array, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::error::ArrowError;
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};

/// A piece of a batch's encoding.
pub enum BodyPiece {
    /// Literal bytes.
    Bytes(Buffer),
    /// The values of a column, and their size in bytes.
    Values(usize, usize),
}

/// The sending end of a stream.
pub struct BatchEncoder {
    inner: StreamEncoder,
    schema: SchemaRef,
    /// Stands for the values of a column that are filled in later.
    blank: Buffer,
    /// Columns that may refer to memory that no row uses.
    loose: Vec<usize>,
}

/// The start of every stream, which is never sent because both ends make it from the schema: the schema, empty
/// dictionaries and an empty batch.
fn stream_prefix(schema: &SchemaRef, options: IpcWriteOptions) -> Result<(StreamEncoder, Buffer), ArrowError> {
    let mut encoder = StreamEncoder::try_new_with_options(schema, options)?;
    let mut bytes = Vec::new();
    for part in encoder.encode(&RecordBatch::new_empty(SchemaRef::clone(schema)))? {
        bytes.extend_from_slice(&part);
    }
    Ok((encoder, Buffer::from(bytes)))
}

/// Decodes the next batch in `bytes`.
fn next(decoder: &mut StreamDecoder, bytes: &mut Buffer) -> Result<RecordBatch, ArrowError> {
    let nothing = || ArrowError::IpcError("a block has no batch".into());
    match decoder.decode(bytes)? {
        Some(batch) => Ok(batch),
        // The decoder looks at a message without a body (no rows, or all columns null) only when something follows: the
        // first four bytes of a next message, which it does not consume.
        None => decoder.decode(&mut Buffer::from(vec![0xff_u8; 4]))?.ok_or_else(nothing),
    }
}

impl BatchEncoder {
    /// An encoder of batches with this schema.
    ///
    /// # Errors
    /// If a type cannot be encoded.
    pub fn new(schema: &SchemaRef) -> Result<Self, ArrowError> {
        Self::with_options(schema, IpcWriteOptions::default())
    }

    /// An encoder that compresses bodies with LZ4. Decoders detect that by themselves.
    ///
    /// # Errors
    /// As [`BatchEncoder::new`].
    pub fn compressed(schema: &SchemaRef) -> Result<Self, ArrowError> {
        Self::with_options(schema, IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?)
    }

    fn with_options(schema: &SchemaRef, options: IpcWriteOptions) -> Result<Self, ArrowError> {
        let loose = |data_type: &DataType| {
            matches!(data_type, DataType::Utf8View | DataType::BinaryView | DataType::Dictionary(..))
        };
        let fields = schema.fields().iter().enumerate();
        let loose = fields.filter(|(_, field)| loose(field.data_type())).map(|(at, _)| at).collect();
        let (inner, schema) = (stream_prefix(schema, options)?.0, SchemaRef::clone(schema));
        Ok(BatchEncoder { inner, schema, blank: Buffer::default(), loose })
    }

    /// The outline of a batch with `rows` rows of plain numbers, with these widths and without nulls. The caller writes
    /// each column's values at its piece.
    ///
    /// # Errors
    /// If the widths do not match the schema.
    ///
    /// # Panics
    /// If Arrow would not send the values as they are.
    pub fn outline(&mut self, rows: usize, widths: &[usize]) -> Result<Vec<BodyPiece>, ArrowError> {
        let longest = rows * widths.iter().max().copied().unwrap_or_default();
        if self.blank.len() < longest {
            self.blank = MutableBuffer::from_len_zeroed(longest.next_power_of_two()).into();
        }
        let column = |(field, width): (&FieldRef, &usize)| {
            let values = self.blank.slice_with_length(0, rows * width);
            Ok(make_array(ArrayData::builder(field.data_type().clone()).len(rows).add_buffer(values).build()?))
        };
        let columns = self.schema.fields().iter().zip(widths).map(column).collect::<Result<_, ArrowError>>()?;
        let parts = self.inner.encode(&RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?)?;
        let mut columns = 0..;
        let piece = |part: Buffer| match part.data_ptr() == self.blank.data_ptr() {
            true => BodyPiece::Values(columns.next().expect("the column list has no end"), part.len()),
            false => BodyPiece::Bytes(part),
        };
        let pieces = parts.into_iter().map(piece).collect();
        // Each column's values must lie in the stream as they lie in memory, or the pieces would not be those of the
        // batch.
        assert_eq!(columns.start, widths.len(), "the message has values that Arrow would not send in this form");
        Ok(pieces)
    }

    /// The batch as pieces of the stream; most are the batch's own buffers, not copies.
    ///
    /// # Errors
    /// If Arrow cannot encode it.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<Vec<Buffer>, ArrowError> {
        if batch.num_columns() == 0 {
            return Ok(Vec::new());
        }
        if self.loose.is_empty() {
            return self.inner.encode(batch);
        }
        let mut columns = batch.columns().to_vec();
        for &at in &self.loose {
            columns[at] = compact_column(&columns[at])?;
        }
        self.inner.encode(&RecordBatch::try_new(batch.schema(), columns)?)
    }
}

/// Whether texts of `held` bytes, of which rows refer to `used`, should be copied: on a slow link, a copy is cheaper
/// than anything that crosses the link in vain.
fn is_loose(held: usize, used: usize) -> bool {
    held > used + used / 8 + 512
}

/// A column without the values that none of its rows refers to, if there are many: a slice of a big batch must not drag
/// along all of the batch's strings.
pub(crate) fn compact_column(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Utf8View => {
            let views = column.as_string_view();
            let held: usize = views.data_buffers().iter().map(Buffer::len).sum();
            Ok(if is_loose(held, views.total_buffer_bytes_used()) {
                std::sync::Arc::new(views.gc())
            } else {
                column.clone()
            })
        }
        DataType::BinaryView => {
            let views = column.as_binary_view();
            let held: usize = views.data_buffers().iter().map(Buffer::len).sum();
            Ok(if is_loose(held, views.total_buffer_bytes_used()) {
                std::sync::Arc::new(views.gc())
            } else {
                column.clone()
            })
        }
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let values = dictionary.values();
            // A dictionary that is no larger than its rows is sent whole, because the next batch will probably use it,
            // too.
            if values.len() <= 1024.max(2 * column.len()) || values.data_type().is_nested() {
                return Ok(column.clone());
            }
            let keys = dictionary.normalized_keys();
            let mut used: Vec<u64> =
                keys.iter().enumerate().filter(|(row, _)| column.is_valid(*row)).map(|(_, &key)| key as u64).collect();
            used.sort_unstable();
            used.dedup();
            let compact = arrow::compute::take(values, &UInt64Array::from(used.clone()), None)?;
            let new_keys: arrow::array::Int64Array = keys
                .iter()
                .enumerate()
                .map(|(row, &key)| {
                    column.is_valid(row).then(|| used.binary_search(&(key as u64)).expect("collected above") as i64)
                })
                .collect();
            let new_keys = arrow::compute::cast(&new_keys, dictionary.keys().data_type())?;
            let data = new_keys.to_data().into_builder().data_type(column.data_type().clone());
            Ok(arrow::array::make_array(data.child_data(vec![compact.to_data()]).build()?))
        }
        _ => Ok(column.clone()),
    }
}

/// The receiving end of a stream.
pub struct BatchDecoder {
    inner: StreamDecoder,
    schema: SchemaRef,
}

impl BatchDecoder {
    /// A decoder of batches with this schema.
    ///
    /// # Errors
    /// If a type cannot be encoded.
    pub fn new(schema: &SchemaRef) -> Result<Self, ArrowError> {
        let mut inner = StreamDecoder::new();
        next(&mut inner, &mut stream_prefix(schema, IpcWriteOptions::default())?.1)?;
        Ok(BatchDecoder { inner, schema: SchemaRef::clone(schema) })
    }

    /// Decodes the batch in a body.
    ///
    /// # Errors
    /// If the body is not a batch with `rows` rows.
    pub fn decode(&mut self, mut body: Buffer, rows: usize) -> Result<RecordBatch, ArrowError> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        if self.schema.fields().is_empty() {
            return RecordBatch::try_new_with_options(SchemaRef::clone(&self.schema), Vec::new(), &options);
        }
        let batch = next(&mut self.inner, &mut body)?;
        if batch.num_rows() != rows || !body.is_empty() {
            return Err(ArrowError::IpcError(format!("a block of {} rows claims to have {rows}", batch.num_rows())));
        }
        // The stream's schema has its own dictionary numbers; tasks compare the task's schema.
        RecordBatch::try_new_with_options(SchemaRef::clone(&self.schema), batch.columns().to_vec(), &options)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::sync::Arc;

    use arrow::array::{
        Decimal128Array, FixedSizeBinaryArray, Float32Array, Int8Array, Int16Array, Int64Array,
        TimestampMicrosecondArray, UInt16Array,
    };

    use super::*;
    use crate::gather::RowGather;
    use crate::gather::row_subset::split_by_target;

    fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
        let bytes = || rows.clone().map(|row| i128::from(row).to_le_bytes());
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("i8", Arc::new(Int8Array::from_iter_values(rows.clone().map(|row| row as i8)))),
            ("i16", Arc::new(Int16Array::from_iter_values(rows.clone().map(|row| row as i16)))),
            ("u16", Arc::new(UInt16Array::from_iter_values(rows.clone().map(|row| row as u16)))),
            ("f32", Arc::new(Float32Array::from_iter_values(rows.clone().map(|row| row as f32)))),
            ("i64", Arc::new(Int64Array::from_iter_values(rows.clone()))),
            ("time", Arc::new(TimestampMicrosecondArray::from_iter_values(rows.clone()).with_timezone("UTC"))),
            ("decimal", Arc::new(Decimal128Array::from_iter_values(rows.clone().map(i128::from)))),
            ("bytes", Arc::new(FixedSizeBinaryArray::try_from_iter(bytes()).unwrap())),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// Blocks for slow links are pieces of batches: if each had all texts of its batch, half of what crosses the link
    /// would be for nobody.
    #[test]
    fn half_a_batch_takes_half_the_bytes() {
        let texts = || (0..4).map(|row| format!("{row}").repeat(4096));
        let arrays: [ArrayRef; 2] = [
            Arc::new(arrow::array::StringViewArray::from_iter_values(texts())),
            Arc::new(arrow::array::BinaryViewArray::from_iter_values(texts())),
        ];
        for texts in arrays {
            let whole = RecordBatch::try_from_iter([("text", texts)]).unwrap();
            let half = whole.slice(1, 2);
            let mut encoder = BatchEncoder::new(&whole.schema()).unwrap();
            let mut bytes_of =
                |batch: &RecordBatch| encoder.encode(batch).unwrap().iter().map(Buffer::len).sum::<usize>();
            // The first block has the schema, too.
            bytes_of(&whole);
            let (all, part) = (bytes_of(&whole), bytes_of(&half));
            assert!((4 * 4096..4 * 4096 + 1024).contains(&all), "{all}");
            assert!((2 * 4096..2 * 4096 + 1024).contains(&part), "{part} of {all}");
        }
    }

    /// A block with values filled in must equal the encoded batch byte for byte: its receiver cannot tell the
    /// difference.
    #[test]
    fn an_outline_filled_in_is_the_batch() {
        let batches = [batch(0..3000), batch(-500..0)];
        let schema = batches[0].schema();
        let gather = RowGather::new(&schema, &batches);
        let widths = gather.widths().unwrap();
        assert_eq!(widths, [1, 2, 2, 4, 8, 8, 16, 16]);
        let (mut whole, mut outlined) = (BatchEncoder::new(&schema).unwrap(), BatchEncoder::new(&schema).unwrap());
        for step in [1, 3, 7, 64, 1000, 2999] {
            let rows = batches.each_ref().map(RecordBatch::num_rows);
            let assigned = rows.iter().flat_map(|&rows| (0..rows).map(|row| (row % step).min(1) as u32));
            let part = split_by_target(2, &assigned.collect::<Vec<_>>(), &rows).swap_remove(0);
            let expected: Vec<u8> =
                whole.encode(&gather.part(&part).unwrap()).unwrap().iter().flat_map(|part| part.to_vec()).collect();
            let mut found = Vec::new();
            for piece in outlined.outline(part.len(), &widths).unwrap() {
                match piece {
                    BodyPiece::Bytes(bytes) => found.extend_from_slice(&bytes),
                    BodyPiece::Values(column, len) => {
                        let mut values = vec![MaybeUninit::new(0); len];
                        gather.fill(column, &part, &mut values);
                        // SAFETY: they were initialized to zeros.
                        found.extend(values.into_iter().map(|value| unsafe { value.assume_init() }));
                    }
                }
            }
            assert!(found == expected, "every {step}th row");
        }
    }

    /// Strings and nulls are not plain numbers: they are sent as batches.
    #[test]
    fn what_is_not_a_plain_number_has_no_width() {
        let texts: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a"]));
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(1)]));
        let flags: ArrayRef = Arc::new(arrow::array::BooleanArray::from(vec![true]));
        for column in [texts, nulls, flags] {
            let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
            assert_eq!(RowGather::new(&batch.schema(), &[batch]).widths(), None);
        }
    }
}
