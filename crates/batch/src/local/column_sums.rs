//! Reduces a whole column to one value, for reductions without keys: skips the group lookup per row, and adds many rows
//! at once.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray, RecordBatch, downcast_primitive_array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::kernels::aggregate::{max, min, sum};
use arrow::datatypes::{ArrowNativeTypeOp, DataType, Int64Type, SchemaRef};
use arrow::error::ArrowError;

use super::reduce::ColumnOp;
use crate::simd_dispatch::dispatch_simd;

/// Running sums of int64 columns over several batches, without a per-batch result.
pub(crate) struct ColumnSums {
    totals: Vec<i128>,
    empty: bool,
    /// Sums of short batches that are not in the totals yet.
    lanes: VectorSums,
}

impl ColumnSums {
    /// Sums for batches with this schema; `None` if a column is not int64.
    pub(crate) fn new(schema: &SchemaRef) -> Option<Self> {
        let fields = schema.fields();
        let whole = fields.iter().all(|field| *field.data_type() == DataType::Int64);
        whole.then(|| ColumnSums { totals: vec![0; fields.len()], empty: true, lanes: VectorSums::default() })
    }

    /// Adds a batch, unless it has nulls or no rows. Returns whether it did.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> bool {
        if batch.num_rows() == 0 || batch.columns().iter().any(|column| column.null_count() > 0) {
            return false;
        }
        for (total, column) in self.totals.iter_mut().zip(batch.columns()) {
            *total += exactly(words(column.as_primitive::<Int64Type>().values()));
        }
        self.empty = false;
        true
    }

    /// Adds values, given as bytes, of the only column. Returns whether there is only one column.
    #[inline]
    pub(crate) fn add_values(&mut self, values: &[u8]) -> bool {
        let [total] = self.totals.as_mut_slice() else { return false };
        let values = values.as_chunks().0;
        if values.len() > LANES_VALUES_MAX || !self.lanes.add(values) {
            *total += exactly(values);
        } else if self.lanes.added > VALUES_MAX {
            *total += self.lanes.take();
        }
        self.empty &= values.is_empty();
        true
    }

    /// The sums, if any rows were added.
    ///
    /// # Errors
    /// If a sum overflows.
    pub(crate) fn row(mut self, schema: &SchemaRef) -> Option<Result<RecordBatch, ArrowError>> {
        if let [total] = self.totals.as_mut_slice() {
            *total += self.lanes.sum();
        }
        let column = |total: i128| -> Result<ArrayRef, ArrowError> {
            let total = i64::try_from(total).map_err(|_| beyond(&DataType::Int64))?;
            Ok(Arc::new(Int64Array::from(vec![total])))
        };
        let columns = || self.totals.iter().copied().map(column).collect::<Result<_, _>>();
        (!self.empty).then(|| RecordBatch::try_new(SchemaRef::clone(schema), columns()?))
    }
}

/// The result of `op` on a column, as one row; `None` if there is no faster way for this type of column.
pub(crate) fn whole(op: ColumnOp, column: &dyn Array) -> Option<Result<ArrayRef, ArrowError>> {
    match op {
        ColumnOp::Sum => downcast_primitive_array!(column => of_sum(column), _ => None),
        ColumnOp::Min => downcast_primitive_array!(column => Some(Ok(row(column, min(column)))), _ => None),
        ColumnOp::Max => downcast_primitive_array!(column => Some(Ok(row(column, max(column)))), _ => None),
        ColumnOp::Product | ColumnOp::Any => None,
    }
}

fn row<T: ArrowPrimitiveType>(like: &PrimitiveArray<T>, value: Option<T::Native>) -> ArrayRef {
    let (values, nulls) = (vec![value.unwrap_or_default()], value.is_none().then(|| NullBuffer::new_null(1)));
    Arc::new(PrimitiveArray::<T>::new(values.into(), nulls).with_data_type(like.data_type().clone()))
}

fn of_sum<T: ArrowPrimitiveType>(column: &PrimitiveArray<T>) -> Option<Result<ArrayRef, ArrowError>>
where
    T::Native: ArrowNativeTypeOp,
{
    if column.data_type().is_floating() {
        return Some(Ok(row(column, sum(column))));
    }
    if column.is_empty() || column.null_count() > 0 {
        return None;
    }
    let values: &dyn Any = column.values();
    let total: Box<dyn Any> = if let Some(values) = values.downcast_ref::<ScalarBuffer<i64>>() {
        Box::new(i64::try_from(exactly(words(values))).ok())
    } else if let Some(values) = values.downcast_ref::<ScalarBuffer<i32>>() {
        Box::new(i32::try_from(values.iter().copied().map(i64::from).sum::<i64>()).ok())
    } else {
        return None;
    };
    let total = *total.downcast_ref::<Option<T::Native>>().expect("of the type of the values");
    Some(total.map(|total| row(column, Some(total))).ok_or_else(|| beyond(&T::DATA_TYPE)))
}

fn beyond(data_type: &DataType) -> ArrowError {
    ArrowError::ArithmeticOverflow(format!("Overflow: a sum is beyond the range of {data_type}"))
}

/// The sum. Only the result has to fit: intermediate sums may overflow.
fn exactly(values: &[[u8; 8]]) -> i128 {
    match values.split_at_checked(VALUES_MAX) {
        None => some_exactly(values),
        Some((some, others)) => some_exactly(some) + exactly(others),
    }
}

/// Values that are summed at a time: see [`from_halves`].
const VALUES_MAX: usize = 1 << 31;

/// The sum of at most about [`VALUES_MAX`] values, from two sums that a processor can add for many values at once. The
/// sum of the upper halves, `upper`, gives the result up to an error below `count << 32`. The sum of the values modulo
/// 2^64, `whole`, gives that error.
fn from_halves(whole: i64, upper: i64) -> i128 {
    let least = i128::from(upper) << 32;
    least + i128::from(whole.wrapping_sub(least as i64) as u64)
}

/// The sum of at most [`VALUES_MAX`] values.
fn some_exactly(values: &[[u8; 8]]) -> i128 {
    #[inline(always)]
    fn both(values: &[[u8; 8]]) -> i128 {
        let (mut whole, mut upper) = (0_i64, 0_i64);
        for value in values.iter().copied().map(i64::from_ne_bytes) {
            whole = whole.wrapping_add(value);
            upper = upper.wrapping_add(value >> 32);
        }
        from_halves(whole, upper)
    }
    dispatch_simd(both, values)
}

/// With more values, adding up the lanes of a vector costs little in comparison. With fewer, it would take longer than
/// adding the values one by one.
const LANES_VALUES_MAX: usize = 64;

/// Sums by vector lane: each lane adds every n-th value.
#[derive(Default)]
#[repr(C, align(64))]
struct VectorSums {
    /// See [`from_halves`].
    whole: [i64; 8],
    upper: [i64; 8],
    /// The number of values.
    added: usize,
}

impl VectorSums {
    /// Adds values, if that is faster on this processor than a separate vector sum. Returns whether it did.
    #[inline]
    fn add(&mut self, values: &[[u8; 8]]) -> bool {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature the function is compiled for was just detected.
            unsafe { self.add_avx512(values) };
            return true;
        }
        _ = values;
        false
    }

    /// Returns the sum of all values added so far, and resets it.
    #[cold]
    fn take(&mut self) -> i128 {
        std::mem::take(self).sum()
    }

    /// Uses intrinsics because the compiler would split the lanes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn add_avx512(&mut self, values: &[[u8; 8]]) {
        use std::arch::x86_64::*;
        let (rows, others) = values.as_chunks::<8>();
        // SAFETY: both arrays have 64 bytes.
        let (mut whole, mut upper) =
            unsafe { (_mm512_load_si512(self.whole.as_ptr().cast()), _mm512_load_si512(self.upper.as_ptr().cast())) };
        for row in rows {
            // SAFETY: as above; any alignment is allowed.
            let row = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
            whole = _mm512_add_epi64(whole, row);
            upper = _mm512_add_epi64(upper, _mm512_srai_epi64::<32>(row));
        }
        // SAFETY: as above; the struct is aligned to 64 bytes, and both arrays begin at a multiple of that.
        unsafe {
            _mm512_store_si512(self.whole.as_mut_ptr().cast(), whole);
            _mm512_store_si512(self.upper.as_mut_ptr().cast(), upper);
        }
        for value in others.iter().copied().map(i64::from_ne_bytes) {
            self.whole[0] = self.whole[0].wrapping_add(value);
            self.upper[0] += value >> 32;
        }
        self.added += values.len();
    }

    fn sum(&self) -> i128 {
        self.whole.iter().zip(&self.upper).map(|(whole, upper)| from_halves(*whole, *upper)).sum()
    }
}

fn words(values: &ScalarBuffer<i64>) -> &[[u8; 8]] {
    values.inner().as_slice().as_chunks().0
}

#[cfg(test)]
mod tests {
    use arrow::array::{DurationMillisecondArray, Float64Array, Int32Array, StringArray};
    use arrow::datatypes::{Float64Type, Int32Type, TimeUnit, ToByteSlice};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Near the ends of the range, an intermediate overflow would give a different number, or an error although the
        /// result fits.
        #[test]
        fn sums_are_exact(values in prop::collection::vec(
            prop_oneof![-9_i64..9, Just(i64::MAX), Just(i64::MIN), Just(i64::MAX / 2), Just(i64::MIN / 3), any::<i64>()], 1..200),
            at_once in 1..2 * LANES_VALUES_MAX,
        ) {
            let expected = i64::try_from(values.iter().copied().map(i128::from).sum::<i128>()).ok();
            let column: ArrayRef = Arc::new(Int64Array::from(values));
            let found = whole(ColumnOp::Sum, &column).unwrap();
            prop_assert_eq!(found.ok().map(|sum| sum.as_primitive::<Int64Type>().value(0)), expected);

            // Also in batches, of which a single one may overflow.
            let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
            let mut sums = ColumnSums::new(batch.schema_ref()).unwrap();
            let half = batch.num_rows() / 2;
            prop_assert_eq!(sums.add(&batch.slice(0, half)), half > 0);
            prop_assert!(sums.add(&batch.slice(half, batch.num_rows() - half)));
            let row = sums.row(batch.schema_ref()).unwrap();
            prop_assert_eq!(row.ok().map(|row| row.column(0).as_primitive::<Int64Type>().value(0)), expected);

            // And without a batch.
            let mut sums = ColumnSums::new(batch.schema_ref()).unwrap();
            for part in batch.column(0).as_primitive::<Int64Type>().values().chunks(at_once) {
                prop_assert!(sums.add_values(part.to_byte_slice()));
            }
            let row = sums.row(batch.schema_ref()).unwrap();
            prop_assert_eq!(row.ok().map(|row| row.column(0).as_primitive::<Int64Type>().value(0)), expected);
        }
    }

    /// Batches that are not added must be reduced in another way; and without rows there is no sum.
    #[test]
    fn batches_that_are_not_summed() {
        let batch = |column: ArrayRef| RecordBatch::try_from_iter([("n", column)]).unwrap();
        let nulls = batch(Arc::new(Int64Array::from(vec![Some(1), None])));
        let mut sums = ColumnSums::new(nulls.schema_ref()).unwrap();
        assert!(!sums.add(&nulls) && !sums.add(&nulls.slice(0, 0)));
        assert!(sums.row(nulls.schema_ref()).is_none());
        assert!(ColumnSums::new(batch(Arc::new(Float64Array::from(vec![1.0]))).schema_ref()).is_none());
    }

    #[test]
    fn other_types() {
        let sum = |column: &dyn Array| whole(ColumnOp::Sum, column).map(Result::ok);
        assert_eq!(
            sum(&Int32Array::from(vec![i32::MAX, 1, -5])).unwrap().unwrap().as_primitive::<Int32Type>().value(0),
            i32::MAX - 4
        );
        assert_eq!(sum(&Int32Array::from(vec![i32::MAX, 1])), Some(None));
        let hours = sum(&DurationMillisecondArray::from(vec![3, 4])).unwrap().unwrap();
        assert_eq!(hours.data_type(), &DataType::Duration(TimeUnit::Millisecond));
        let floats = Float64Array::from(vec![Some(f64::NAN), None, Some(-0.0), Some(2.5)]);
        let of = |op| whole(op, &floats).unwrap().unwrap().as_primitive::<Float64Type>().value(0);
        assert!(of(ColumnOp::Sum).is_nan() && of(ColumnOp::Max).is_nan());
        assert_eq!(of(ColumnOp::Min), 0.0);
        // No values have no sum; nulls, strings and products are left to the row-by-row code.
        let nothing = whole(ColumnOp::Sum, &Float64Array::from(Vec::<f64>::new())).unwrap().unwrap();
        assert_eq!((nothing.len(), nothing.null_count()), (1, 1));
        assert_eq!(sum(&Int64Array::from(vec![Some(1), None])), None);
        assert!(whole(ColumnOp::Max, &StringArray::from(vec!["a"])).is_none());
        assert!(whole(ColumnOp::Product, &floats).is_none());
    }
}
