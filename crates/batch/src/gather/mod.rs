//! Gathers rows of several batches: in any order, as the last step of sorts and merges, or in batch order, for
//! exchanges by row.
//!
//! Rows in arbitrary order are scattered over memory, and each would cost one cache miss per column, one after the
//! other. So each row's data is prefetched a few rows ahead (software prefetching), and many misses overlap.
//! Fixed-length values, strings and binaries are copied here; other types use Arrow's `interleave`.

use std::cell::LazyCell;
use std::mem::MaybeUninit;
use std::slice::from_raw_parts_mut;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, GenericByteArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, make_array,
};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, LargeBinaryType, LargeUtf8Type, SchemaRef, Utf8Type,
};
use arrow::error::ArrowError;

#[cfg(target_arch = "x86_64")]
mod row_mask;
pub(crate) mod row_subset;
mod scatter;

pub use row_subset::RowSubset;
pub use scatter::{Scatter, ScatterOutput};

use crate::prefetch::prefetch;
use crate::wire::compact_column;

/// How many rows ahead a row is prefetched: as many cache misses as a core can have outstanding.
const AHEAD: usize = 16;
const LINE_BYTES: usize = 64;
/// Cache lines of a value to prefetch; after these, the processor detects the sequential read itself.
const LINES_MAX: usize = 4;

/// A row: the number of its batch, and its number within that batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowIndex {
    pub batch: u32,
    pub row: u32,
}

/// Batches to pick rows from. Cheap to make: it only refers to their buffers.
pub struct RowGather {
    schema: SchemaRef,
    columns: Vec<GatherColumn>,
}

/// One column of all batches.
struct GatherColumn {
    data_type: DataType,
    values: ColumnValues,
    /// The null buffer of each batch, if any batch has a null.
    nulls: Option<Vec<Option<NullBuffer>>>,
}

enum ColumnValues {
    /// The bytes per value, and the values of each batch.
    Fixed(usize, Vec<Buffer>),
    Texts(Texts<i32>),
    LargeTexts(Texts<i64>),
    Others(Vec<ArrayRef>),
}

/// Offsets and bytes of each batch.
type Texts<O> = Vec<(ScalarBuffer<O>, Buffer)>;

impl RowGather {
    /// A gather from `batches`, which have this schema.
    pub fn new(schema: &SchemaRef, batches: &[RecordBatch]) -> Self {
        let column =
            |at: usize| GatherColumn::new(schema.field(at).data_type(), batches.iter().map(|batch| batch.column(at)));
        RowGather { schema: SchemaRef::clone(schema), columns: (0..schema.fields().len()).map(column).collect() }
    }

    /// These rows, in this order.
    ///
    /// # Errors
    /// If the combined strings are too long for their offsets.
    ///
    /// # Panics
    /// On a row or batch that does not exist.
    pub(crate) fn rows(&self, picks: &[RowIndex]) -> Result<RecordBatch, ArrowError> {
        self.batch(picks.len(), |column| column.rows(picks))
    }

    /// The rows of a subset.
    ///
    /// # Errors
    /// As [`RowGather::rows`].
    ///
    /// # Panics
    /// As [`RowGather::rows`].
    pub fn part(&self, part: &RowSubset) -> Result<RecordBatch, ArrowError> {
        let picks = LazyCell::new(|| part.picks());
        self.batch(part.len(), |column| match &column.values {
            ColumnValues::Fixed(width, values) if column.nulls.is_none() => match fixed_part(*width, values, part) {
                Some(values) => column.fixed(part.len(), values, None),
                None => column.rows(&picks),
            },
            _ => column.rows(&picks),
        })
    }

    /// The width of each column's values, if all columns are plain numbers without nulls.
    pub fn widths(&self) -> Option<Vec<usize>> {
        let width = |column: &GatherColumn| match column.values {
            ColumnValues::Fixed(width @ (1 | 2 | 4 | 8 | 16), _) if column.nulls.is_none() => Some(width),
            _ => None,
        };
        self.columns.iter().map(width).collect()
    }

    /// Writes a subset's values of a numeric column to `out`, which they fill exactly.
    ///
    /// # Panics
    /// As [`RowGather::rows`]; if [`RowGather::widths`] has no width for the column; if `out` does not have room for
    /// exactly the subset's rows.
    pub fn fill(&self, column: usize, part: &RowSubset, out: &mut [MaybeUninit<u8>]) {
        let ColumnValues::Fixed(width, values) = &self.columns[column].values else {
            panic!("column {column}: no number")
        };
        assert!(part.fill(*width, values, out), "values of {width} bytes are not numbers");
    }

    fn batch(
        &self,
        rows: usize,
        column: impl FnMut(&GatherColumn) -> Result<ArrayRef, ArrowError>,
    ) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter().map(column).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(SchemaRef::clone(&self.schema), columns, &options)
    }
}

impl GatherColumn {
    fn new<'a>(data_type: &DataType, arrays: impl Iterator<Item = &'a ArrayRef> + Clone) -> Self {
        let width = match data_type {
            DataType::FixedSizeBinary(width) => Some(*width as usize),
            other => other.primitive_width(),
        };
        let values = match (data_type, width) {
            (_, Some(width)) => {
                ColumnValues::Fixed(width, arrays.clone().map(|array| fixed_values(array, width)).collect())
            }
            (DataType::Utf8, _) => ColumnValues::Texts(texts::<Utf8Type>(arrays.clone())),
            (DataType::Binary, _) => ColumnValues::Texts(texts::<BinaryType>(arrays.clone())),
            (DataType::LargeUtf8, _) => ColumnValues::LargeTexts(texts::<LargeUtf8Type>(arrays.clone())),
            (DataType::LargeBinary, _) => ColumnValues::LargeTexts(texts::<LargeBinaryType>(arrays.clone())),
            _ => ColumnValues::Others(arrays.clone().cloned().collect()),
        };
        // For other types, Arrow handles nulls.
        let has_nulls =
            !matches!(values, ColumnValues::Others(_)) && arrays.clone().any(|array| array.null_count() > 0);
        let nulls = has_nulls.then(|| arrays.map(|array| array.nulls().cloned()).collect());
        GatherColumn { data_type: data_type.clone(), values, nulls }
    }

    fn rows(&self, picks: &[RowIndex]) -> Result<ArrayRef, ArrowError> {
        match &self.values {
            ColumnValues::Fixed(width, values) => {
                self.fixed(picks.len(), fixed(*width, values, picks), self.nulls(picks))
            }
            ColumnValues::Texts(texts) if self.data_type == DataType::Utf8 => self.texts::<Utf8Type>(texts, picks),
            ColumnValues::Texts(texts) => self.texts::<BinaryType>(texts, picks),
            ColumnValues::LargeTexts(texts) if self.data_type == DataType::LargeUtf8 => {
                self.texts::<LargeUtf8Type>(texts, picks)
            }
            ColumnValues::LargeTexts(texts) => self.texts::<LargeBinaryType>(texts, picks),
            ColumnValues::Others(arrays) => {
                let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
                let picks: Vec<_> = picks.iter().map(|pick| (pick.batch as usize, pick.row as usize)).collect();
                // A result with string views refers to all buffers of all the batches.
                compact_column(&interleave(&arrays, &picks)?)
            }
        }
    }

    fn fixed(&self, len: usize, values: Buffer, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        let data = ArrayData::builder(self.data_type.clone()).len(len).add_buffer(values).nulls(nulls);
        Ok(make_array(data.build()?))
    }

    fn nulls(&self, picks: &[RowIndex]) -> Option<NullBuffer> {
        let nulls = self.nulls.as_ref()?;
        let mut valid = BooleanBufferBuilder::new(picks.len());
        let is_valid =
            |pick: &RowIndex| nulls[pick.batch as usize].as_ref().is_none_or(|n| n.is_valid(pick.row as usize));
        picks.iter().for_each(|pick| valid.append(is_valid(pick)));
        Some(NullBuffer::new(valid.finish())).filter(|nulls| nulls.null_count() > 0)
    }

    fn texts<T: ByteArrayType>(&self, texts: &Texts<T::Offset>, picks: &[RowIndex]) -> Result<ArrayRef, ArrowError> {
        let mut offsets = Vec::with_capacity(picks.len() + 1);
        offsets.push(T::Offset::default());
        let mut spans = Vec::with_capacity(picks.len());
        let mut len = 0;
        for (at, pick) in picks.iter().enumerate() {
            if let Some(ahead) = picks.get(at + AHEAD) {
                let (offsets, _) = &texts[ahead.batch as usize];
                prefetch_range(offsets.inner(), ahead.row as usize * size_of::<T::Offset>(), 1);
            }
            let (from, _) = &texts[pick.batch as usize];
            let row = pick.row as usize;
            let span = from[row].as_usize()..from[row + 1].as_usize();
            len += span.len();
            offsets.push(T::Offset::from_usize(len).ok_or(ArrowError::OffsetOverflowError(len))?);
            spans.push(span);
        }
        let mut values = Vec::with_capacity(len);
        for (at, pick) in picks.iter().enumerate() {
            if let Some(ahead) = picks.get(at + AHEAD) {
                let span = &spans[at + AHEAD];
                prefetch_range(&texts[ahead.batch as usize].1, span.start, span.len());
            }
            values.extend_from_slice(&texts[pick.batch as usize].1[spans[at].clone()]);
        }
        // SAFETY: offsets begin with 0 and only grow, because lengths were added. Between two of them lies the whole
        // value of a row of a valid array of the same type, so it is a valid string. Benefit: strings are not validated
        // again.
        let array = unsafe {
            let offsets = OffsetBuffer::new_unchecked(offsets.into());
            GenericByteArray::<T>::new_unchecked(offsets, values.into(), self.nulls(picks))
        };
        Ok(Arc::new(array))
    }
}

/// The values of an array, starting with its first.
fn fixed_values(array: &ArrayRef, width: usize) -> Buffer {
    let data = array.to_data();
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

fn texts<'a, T: ByteArrayType>(arrays: impl Iterator<Item = &'a ArrayRef>) -> Texts<T::Offset>
where
    T::Offset: OffsetSizeTrait,
{
    let parts = |array: &ArrayRef| {
        let array = array.as_bytes::<T>();
        (array.offsets().inner().clone(), array.values().clone())
    };
    arrays.map(parts).collect()
}

fn fixed(width: usize, values: &[Buffer], picks: &[RowIndex]) -> Buffer {
    match width {
        1 => fixed_of::<1>(values, picks),
        2 => fixed_of::<2>(values, picks),
        4 => fixed_of::<4>(values, picks),
        8 => fixed_of::<8>(values, picks),
        16 => fixed_of::<16>(values, picks),
        _ => {
            let mut out = Vec::with_capacity(picks.len() * width);
            for (at, pick) in picks.iter().enumerate() {
                if let Some(ahead) = picks.get(at + AHEAD) {
                    prefetch_range(&values[ahead.batch as usize], ahead.row as usize * width, width);
                }
                out.extend_from_slice(&values[pick.batch as usize][pick.row as usize * width..][..width]);
            }
            Buffer::from_vec(out)
        }
    }
}

/// The values of a subset; `None` for a width that no number has.
fn fixed_part(width: usize, values: &[Buffer], part: &RowSubset) -> Option<Buffer> {
    let len = part.len() * width;
    // Aligned for every type.
    let mut out = MutableBuffer::with_capacity(len);
    // SAFETY: the buffer has room for `len` bytes.
    let spare = unsafe { from_raw_parts_mut(out.as_mut_ptr().cast(), len) };
    if !part.fill(width, values, spare) {
        return None;
    }
    // SAFETY: all bytes have been filled.
    unsafe { out.set_len(len) };
    Some(out.into())
}

/// [`fixed`] for a width known at compile time, so that copying a value is a single move.
fn fixed_of<const WIDTH: usize>(values: &[Buffer], picks: &[RowIndex]) -> Buffer {
    // Aligned for every type.
    let mut out = MutableBuffer::from_len_zeroed(picks.len() * WIDTH);
    for (at, (pick, to)) in picks.iter().zip(out.as_slice_mut().as_chunks_mut::<WIDTH>().0).enumerate() {
        if let Some(ahead) = picks.get(at + AHEAD) {
            prefetch_range(&values[ahead.batch as usize], ahead.row as usize * WIDTH, WIDTH);
        }
        to.copy_from_slice(&values[pick.batch as usize][pick.row as usize * WIDTH..][..WIDTH]);
    }
    out.into()
}

/// Prefetches `len` bytes from `at` on, up to a limit.
#[inline(always)]
fn prefetch_range(bytes: &[u8], at: usize, len: usize) {
    let first = bytes.as_ptr().wrapping_add(at);
    let end = (first as usize % LINE_BYTES + len).min(LINES_MAX * LINE_BYTES);
    let line = first.wrapping_sub(first as usize % LINE_BYTES);
    (0..end).step_by(LINE_BYTES).for_each(|offset| prefetch(line.wrapping_add(offset)));
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BooleanArray, Decimal128Array, FixedSizeBinaryArray, Int8Array, Int16Array, Int32Array, Int64Array,
        LargeBinaryArray, StringArray, StringViewArray,
    };
    use arrow::compute::interleave_record_batch;
    use proptest::prelude::*;

    use super::*;
    use crate::gather::row_subset::{split_by_target, split_numbers};

    /// A row with every kind of column, with or without nulls.
    fn batch(rows: &[u32], with_nulls: bool) -> RecordBatch {
        let null = |row: u32| with_nulls && row.is_multiple_of(3);
        let some = |row: &u32| (!null(*row)).then_some(*row);
        let text = |row: u32| "é".repeat(row as usize % 70) + &row.to_string();
        let wide = rows.iter().map(|row| some(row).map(|row| [row as u8; 90]));
        let none = rows.iter().map(|row| some(row).map(|_| [0_u8; 0]));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("i8", Arc::new(rows.iter().map(|row| some(row).map(|row| row as i8)).collect::<Int8Array>())),
            ("i16", Arc::new(rows.iter().map(|row| some(row).map(|row| row as i16)).collect::<Int16Array>())),
            ("i32", Arc::new(rows.iter().map(|row| some(row).map(|row| row as i32)).collect::<Int32Array>())),
            ("i64", Arc::new(rows.iter().map(|row| some(row).map(i64::from)).collect::<Int64Array>())),
            ("i128", Arc::new(rows.iter().map(|row| some(row).map(i128::from)).collect::<Decimal128Array>())),
            ("bytes", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(wide, 90).unwrap())),
            ("nothing", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(none, 0).unwrap())),
            ("text", Arc::new(rows.iter().map(|row| some(row).map(text)).collect::<StringArray>())),
            ("binary", Arc::new(rows.iter().map(|row| some(row).map(text)).collect::<LargeBinaryArray>())),
            ("view", Arc::new(rows.iter().map(|row| some(row).map(text)).collect::<StringViewArray>())),
            ("flag", Arc::new(rows.iter().map(|row| some(row).map(|row| row % 2 == 0)).collect::<BooleanArray>())),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    proptest! {
        /// A comparison with Arrow's result catches the value of another row, the row before the start of a slice, and
        /// misplaced nulls.
        #[test]
        fn equals_interleave(
            batches in prop::collection::vec((prop::collection::vec(0u32..1000, 1..60), any::<bool>(), 0usize..5), 1..6),
            seeds in prop::collection::vec((0usize..6, 0usize..60), 0..200),
        ) {
            let slice = |(rows, with_nulls, from): &(Vec<u32>, bool, usize)| {
                let (batch, from) = (batch(rows, *with_nulls), (*from).min(rows.len() - 1));
                batch.slice(from, rows.len() - from)
            };
            let batches: Vec<RecordBatch> = batches.iter().map(slice).collect();
            let at = |&(batch, row): &(usize, usize)| {
                let batch = batch % batches.len();
                (batch, row % batches[batch].num_rows())
            };
            let indices: Vec<(usize, usize)> = seeds.iter().map(at).collect();
            let picks: Vec<RowIndex> =
                indices.iter().map(|&(batch, row)| RowIndex { batch: batch as u32, row: row as u32 }).collect();
            let found = RowGather::new(batches[0].schema_ref(), &batches).rows(&picks).unwrap();
            for column in found.columns() {
                column.to_data().validate_full().unwrap();
            }
            let refs: Vec<&RecordBatch> = batches.iter().collect();
            prop_assert_eq!(found, interleave_record_batch(&refs, &indices).unwrap());
        }
    }

    proptest! {
        /// A subset has rows of each batch in order, and may have none of a batch. A row taken from the wrong batch
        /// would be wrong data. Few targets and many use different code, batches are longer than a word or vector, and
        /// slices start anywhere.
        #[test]
        fn parts_are_what_was_assigned(
            targets in prop_oneof![1u32..9, 9u32..40],
            batches in prop::collection::vec((0usize..200, any::<bool>(), 0usize..9), 1..4),
            seed: u32,
            one: bool,
        ) {
            let made = |(rows, with_nulls, from): &(usize, bool, usize)| {
                let numbers: Vec<u32> = (0..(rows + from) as u32).map(|row| row ^ (seed % 1000)).collect();
                batch(&numbers, *with_nulls).slice(*from, *rows)
            };
            let batches: Vec<RecordBatch> = batches.iter().map(made).collect();
            let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
            let target = |at: u32| if one { seed % targets } else { (at ^ seed).wrapping_mul(0x9e37_79b9) % targets };
            let assigned: Vec<u32> = (0..rows.iter().sum::<usize>() as u32).map(target).collect();
            let all = (0..).zip(&rows).flat_map(|(batch, &rows)| (0..rows as u32).map(move |row| RowIndex { batch, row }));
            let all: Vec<RowIndex> = all.collect();
            let gather = RowGather::new(batches[0].schema_ref(), &batches);
            for parts in [split_by_target(targets, &assigned, &rows), split_numbers(targets, &assigned, &rows)] {
                prop_assert_eq!(parts.len(), targets as usize);
                for (target, part) in (0..).zip(&parts) {
                    let picks = all.iter().zip(&assigned).filter(|(_, to)| **to == target).map(|(pick, _)| *pick);
                    let picks: Vec<RowIndex> = picks.collect();
                    prop_assert_eq!((part.len(), part.picks()), (picks.len(), picks.clone()));
                    let found = gather.part(part).unwrap();
                    for column in found.columns() {
                        column.to_data().validate_full().unwrap();
                    }
                    prop_assert_eq!(found, gather.rows(&picks).unwrap());
                }
            }
        }
    }

    /// A batch without columns has as many rows as were picked.
    #[test]
    fn rows_without_columns() {
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), Vec::new(), &options).unwrap();
        let picks = [RowIndex { batch: 0, row: 2 }; 5];
        assert_eq!(RowGather::new(&schema, &[batch]).rows(&picks).unwrap().num_rows(), 5);
    }
}
