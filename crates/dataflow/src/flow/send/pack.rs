//! Combines small batches of one stream: what a copy sends in one turn is sent and received as one batch.
//!
//! Handing over a batch of a hundred bytes costs a microsecond or more, whether to another thread or to another
//! worker: credit, queue, wake-up, a frame with Arrow's metadata, its checksum. Its rows alone cost a few
//! nanoseconds. Numbers, texts and bytes without nulls, by far the most frequent case, are copied at once to the end of
//! their column, so that the memory of a small batch returns to its producer while it is still in the cache; for other
//! columns the batches are kept, and concatenated in the end.

use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowPrimitiveType, GenericByteArray, PrimitiveArray, RecordBatch, downcast_primitive,
    make_array,
};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, FieldRef, LargeBinaryType, LargeUtf8Type, SchemaRef, Utf8Type,
};
use arrow::error::ArrowError;

/// Larger batches are sent unchanged: they justify a separate hand-over, but not a copy.
pub const SMALL_BYTES_MAX: u64 = 4 << 10;
/// A pack of this size is sent at the latest.
pub(super) const PACK_BYTES_MAX: u64 = 128 << 10;

/// The values of a column of numbers, as bytes; `None` for other types.
type NumberValues = fn(&dyn Array) -> Option<&[u8]>;

fn values<T: ArrowPrimitiveType>(column: &dyn Array) -> Option<&[u8]> {
    Some(column.as_any().downcast_ref::<PrimitiveArray<T>>()?.values().inner().as_slice())
}

fn values_of(data_type: &DataType) -> Option<NumberValues> {
    macro_rules! of {
        ($t:ty) => {
            Some(values::<$t> as NumberValues)
        };
    }
    downcast_primitive! {
        data_type => (of),
        _ => None
    }
}

/// Texts or bytes, one behind the other, with the offsets where each ends, in the type that the column has for them.
#[derive(Default)]
struct PackedBytes {
    ends: MutableBuffer,
    bytes: MutableBuffer,
}

impl PackedBytes {
    /// Adds a column; `false` if it is of another type.
    fn push<T: ByteArrayType>(&mut self, column: &dyn Array) -> bool {
        let Some(column) = column.as_any().downcast_ref::<GenericByteArray<T>>() else { return false };
        let offsets = column.value_offsets();
        let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        let before = self.bytes.len();
        self.ends.extend(offsets[1..].iter().map(|end| T::Offset::usize_as(end.as_usize() - first + before)));
        self.bytes.extend_from_slice(&column.value_data()[first..last]);
        true
    }

    /// Takes the offsets, which begin with that of the first text, and the bytes.
    fn take<T: ByteArrayType>(&mut self) -> [Buffer; 2] {
        let mut offsets = MutableBuffer::with_capacity(size_of::<T::Offset>() + self.ends.len());
        offsets.push(T::Offset::usize_as(0));
        offsets.extend_from_slice(self.ends.as_slice());
        self.ends.clear();
        let room = MutableBuffer::with_capacity(self.bytes.len());
        [offsets.into(), std::mem::replace(&mut self.bytes, room).into()]
    }
}

/// What a column's values are copied to.
enum PackedColumn {
    Numbers {
        of: NumberValues,
        values: MutableBuffer,
    },
    Bytes {
        push: fn(&mut PackedBytes, &dyn Array) -> bool,
        take: fn(&mut PackedBytes) -> [Buffer; 2],
        packed: PackedBytes,
    },
}

impl PackedColumn {
    /// `None` for types whose values are not copied.
    fn new(data_type: &DataType) -> Option<Self> {
        fn bytes<T: ByteArrayType>() -> PackedColumn {
            let (push, take) = (PackedBytes::push::<T>, PackedBytes::take::<T>);
            PackedColumn::Bytes { push, take, packed: PackedBytes::default() }
        }
        Some(match data_type {
            DataType::Utf8 => bytes::<Utf8Type>(),
            DataType::LargeUtf8 => bytes::<LargeUtf8Type>(),
            DataType::Binary => bytes::<BinaryType>(),
            DataType::LargeBinary => bytes::<LargeBinaryType>(),
            other => PackedColumn::Numbers { of: values_of(other)?, values: MutableBuffer::new(0) },
        })
    }

    /// Adds a column without nulls; `false` if it is of another type.
    fn push(&mut self, column: &dyn Array) -> bool {
        match self {
            PackedColumn::Numbers { of, values } => of(column).map(|of| values.extend_from_slice(of)).is_some(),
            PackedColumn::Bytes { push, packed, .. } => push(packed, column),
        }
    }

    /// Takes the values as a column of so many rows.
    fn take(&mut self, data_type: &DataType, rows: usize) -> Result<ArrayRef, ArrowError> {
        let data = ArrayData::builder(data_type.clone()).len(rows);
        let data = match self {
            PackedColumn::Numbers { values, .. } => {
                let room = MutableBuffer::with_capacity(values.len());
                data.add_buffer(std::mem::replace(values, room).into())
            }
            PackedColumn::Bytes { take, packed, .. } => data.buffers(take(packed).into()),
        };
        Ok(make_array(data.build()?))
    }
}

/// Whether columns of a type can be concatenated at a cost that depends only on their rows. The values of
/// dictionaries would be merged, and could become too many for their keys.
fn is_packable(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        Boolean | Utf8 | LargeUtf8 | Binary | LargeBinary | FixedSizeBinary(_) => true,
        List(field) | LargeList(field) | FixedSizeList(field, _) => is_packable(field.data_type()),
        Struct(fields) => fields.iter().all(|field| is_packable(field.data_type())),
        other => values_of(other).is_some(),
    }
}

/// Rows that wait to be sent together.
pub(super) struct RowPack {
    schema: SchemaRef,
    /// The columns' values so far, for `rows` rows; none if some column has other values.
    columns: Vec<PackedColumn>,
    rows: usize,
    /// What follows those rows, or everything if some column has other values.
    others: Vec<RecordBatch>,
    /// The weight of everything, and the weight at which the pack is sent.
    bytes: u64,
    full_bytes: u64,
}

impl RowPack {
    /// An empty pack for batches of `schema`; `None` if they cannot be combined.
    pub(super) fn new(schema: &SchemaRef) -> Option<RowPack> {
        let fields = schema.fields();
        if fields.is_empty() || !fields.iter().all(|field| is_packable(field.data_type())) {
            return None;
        }
        let columns = fields.iter().map(|field| PackedColumn::new(field.data_type())).collect::<Option<_>>();
        let (schema, columns, full_bytes) = (SchemaRef::clone(schema), columns.unwrap_or_default(), PACK_BYTES_MAX);
        Some(RowPack { schema, columns, rows: 0, others: Vec::new(), bytes: 0, full_bytes })
    }

    /// Sets the weight at which to send the pack.
    pub(super) fn set_full_bytes(&mut self, bytes: u64) {
        self.full_bytes = bytes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.rows == 0 && self.others.is_empty()
    }

    /// Adds a batch that weighs `bytes`. Returns whether it is time to send.
    pub(super) fn push(&mut self, batch: RecordBatch, bytes: u64) -> bool {
        self.bytes += bytes;
        if !self.copy(&batch) {
            self.others.push(batch);
        }
        self.bytes >= self.full_bytes
    }

    /// Adds rows of the only column, given as bytes, as [`RowPack::push`] adds a batch of them; `None` if there are
    /// other columns, or the rows would have to follow kept batches.
    pub(super) fn push_values(&mut self, values: &[u8], rows: usize) -> Option<bool> {
        let [PackedColumn::Numbers { values: column, .. }] = self.columns.as_mut_slice() else { return None };
        if !self.others.is_empty() {
            return None;
        }
        column.extend_from_slice(values);
        self.rows += rows;
        self.bytes += values.len() as u64;
        Some(self.bytes >= self.full_bytes)
    }

    /// Copies a batch's values after the others, if the pack and the batch hold nothing but such values.
    fn copy(&mut self, batch: &RecordBatch) -> bool {
        let of_schema = || batch.columns().iter().zip(self.schema.fields());
        if self.columns.is_empty()
            || !self.others.is_empty()
            || of_schema().any(|(column, field)| column.null_count() > 0 || column.data_type() != field.data_type())
        {
            return false;
        }
        for (all, column) in self.columns.iter_mut().zip(batch.columns()) {
            assert!(all.push(column), "the column has the type that its schema says");
        }
        self.rows += batch.num_rows();
        true
    }

    /// Returns everything as one batch, and empties the pack.
    ///
    /// # Errors
    /// If Arrow cannot combine the batches.
    pub(super) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        let mut batches = std::mem::take(&mut self.others);
        if rows > 0 {
            let column = |(of, field): (&mut PackedColumn, &FieldRef)| of.take(field.data_type(), rows);
            let columns = self.columns.iter_mut().zip(self.schema.fields()).map(column).collect::<Result<_, _>>()?;
            batches.insert(0, RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?);
        }
        match batches.len() {
            1 => Ok(batches.remove(0)),
            _ => concat_batches(&self.schema, &batches),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryArray, Decimal128Array, Float64Array, Int8Array, Int64Array, LargeBinaryArray,
        LargeStringArray, StringArray, TimestampNanosecondArray,
    };
    use arrow::datatypes::{Field, Schema};
    use proptest::prelude::*;

    use super::*;

    fn batch(numbers: &[Option<i64>], texts: bool) -> RecordBatch {
        let all = || numbers.iter().copied();
        let mut columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(all().collect::<Int64Array>())),
            ("x", Arc::new(all().map(|n| n.map(|n| n as f64 / 3.0)).collect::<Float64Array>())),
            ("b", Arc::new(all().map(|n| n.map(|n| n as i8)).collect::<Int8Array>())),
            ("t", Arc::new(all().collect::<TimestampNanosecondArray>().with_timezone("Europe/Berlin"))),
            ("d", Arc::new(all().map(|n| n.map(i128::from)).collect::<Decimal128Array>())),
        ];
        if texts {
            let texts = || all().map(|n| n.map(|n| "text".repeat((n + 100) as usize % 7)));
            columns.push(("s", Arc::new(texts().collect::<StringArray>())));
            columns.push(("l", Arc::new(texts().collect::<LargeStringArray>())));
            columns.push(("y", Arc::new(texts().map(|s| s.map(String::into_bytes)).collect::<BinaryArray>())));
            columns.push(("z", Arc::new(texts().map(|s| s.map(String::into_bytes)).collect::<LargeBinaryArray>())));
        }
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    proptest! {
        /// A value that is lost, moved to another row or loses its null would be wrong data without any error: packs
        /// are compared with Arrow's own concatenation, for slices with and without nulls, and several packs from
        /// one.
        #[test]
        fn a_pack_is_what_was_pushed(
            pushed in prop::collection::vec(
                (prop::collection::vec(prop::option::weighted(0.97, -100i64..100), 1..40), 0usize..8, any::<bool>()), 1..30),
            texts: bool,
        ) {
            let mut pack = RowPack::new(&batch(&[], texts).schema()).unwrap();
            let mut waiting = Vec::new();
            for (numbers, cut, go) in pushed {
                let whole = batch(&numbers, texts);
                let part = whole.slice(cut.min(whole.num_rows() - 1), whole.num_rows() - cut.min(whole.num_rows() - 1));
                let full = pack.push(part.clone(), 7000);
                waiting.push(part);
                prop_assert_eq!(full, 7000 * waiting.len() as u64 >= PACK_BYTES_MAX);
                if full || go {
                    prop_assert_eq!(pack.take().unwrap(), concat_batches(&whole.schema(), &waiting).unwrap());
                    prop_assert!(pack.is_empty());
                    waiting.clear();
                }
            }
        }
    }

    /// Merged dictionaries could have more values than their keys can count.
    #[test]
    fn unpackable_schemas_are_reported() {
        let words = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        let schema = |data_type: &DataType| Arc::new(Schema::new(vec![Field::new("c", data_type.clone(), true)]));
        let list = |data_type: &DataType| DataType::List(Arc::new(Field::new_list_field(data_type.clone(), true)));
        for data_type in [&words, &list(&words), &DataType::Utf8View, &DataType::Null] {
            assert!(RowPack::new(&schema(data_type)).is_none(), "{data_type}");
        }
        for data_type in [&DataType::Boolean, &list(&DataType::Utf8), &DataType::Int64] {
            assert!(RowPack::new(&schema(data_type)).is_some(), "{data_type}");
        }
        assert!(RowPack::new(&Arc::new(Schema::empty())).is_none());
    }
}
