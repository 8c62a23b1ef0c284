//! A whole column as one value, as in reductions without keys: no group of each row is looked up, and many rows are added at once.

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

/// Sums of columns of whole numbers that come in batches: nothing is made of each batch.
pub(crate) struct Sums {
    totals: Vec<i128>,
    empty: bool,
}

impl Sums {
    /// Of batches with this schema; `None` if one of their columns is not of int64.
    pub(crate) fn new(schema: &SchemaRef) -> Option<Self> {
        let fields = schema.fields();
        let whole = fields.iter().all(|field| *field.data_type() == DataType::Int64);
        whole.then(|| Sums { totals: vec![0; fields.len()], empty: true })
    }

    /// Adds a batch, unless it has nulls, or no rows. Returns whether it did.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> bool {
        if batch.num_rows() == 0 || batch.columns().iter().any(|column| column.null_count() > 0) {
            return false;
        }
        for (total, column) in self.totals.iter_mut().zip(batch.columns()) {
            *total += exactly(column.as_primitive::<Int64Type>().values());
        }
        self.empty = false;
        true
    }

    /// The sums, if there are any.
    ///
    /// # Errors
    /// When one is beyond the range.
    pub(crate) fn row(self, schema: &SchemaRef) -> Option<Result<RecordBatch, ArrowError>> {
        let column = |total: i128| -> Result<ArrayRef, ArrowError> {
            let total = i64::try_from(total).map_err(|_| beyond(&DataType::Int64))?;
            Ok(Arc::new(Int64Array::from(vec![total])))
        };
        let columns = || self.totals.iter().copied().map(column).collect::<Result<_, _>>();
        (!self.empty).then(|| RecordBatch::try_new(SchemaRef::clone(schema), columns()?))
    }
}

/// One row of what `op` makes of a column; `None`: not of such a column, or not in a shorter way.
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
        Box::new(i64::try_from(exactly(values)).ok())
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

/// The sum. Only it has to fit: sums on the way may be beyond the range.
fn exactly(values: &[i64]) -> i128 {
    lanes(values).unwrap_or_else(|| values.iter().copied().map(i128::from).sum())
}

/// The sum, unless one of the lanes was beyond its range on the way.
fn lanes(values: &[i64]) -> Option<i128> {
    /// `LANES` sums are under way at the same time: four registers.
    #[inline(always)]
    fn each<const LANES: usize>(values: &[i64]) -> Option<i128> {
        let (mut sums, mut beyond) = ([0_i64; LANES], [0_i64; LANES]);
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                let next = sums[lane].wrapping_add(chunk[lane]);
                // Beyond the range if the sign of both, which is the same then, is not that of their sum.
                beyond[lane] |= (sums[lane] ^ next) & (chunk[lane] ^ next);
                sums[lane] = next;
            }
        }
        let whole = beyond.iter().all(|&beyond| beyond >= 0);
        whole.then(|| sums.iter().chain(rest).copied().map(i128::from).sum())
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512(values: &[i64]) -> Option<i128> {
            each::<32>(values)
        }
        #[target_feature(enable = "avx2")]
        fn avx2(values: &[i64]) -> Option<i128> {
            each::<16>(values)
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature the function is compiled for was just detected.
            return unsafe { avx512(values) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(values) };
        }
    }
    each::<16>(values)
}

#[cfg(test)]
mod tests {
    use arrow::array::{DurationMillisecondArray, Float64Array, Int32Array, StringArray};
    use arrow::datatypes::{Float64Type, Int32Type, TimeUnit};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Near the ends of the range a sum that went beyond on the way, in one lane or between them, would be another number, or
        /// an error where there is none.
        #[test]
        fn sums_are_exact(values in prop::collection::vec(
            prop_oneof![-9_i64..9, Just(i64::MAX), Just(i64::MIN), Just(i64::MAX / 2), Just(i64::MIN / 3), any::<i64>()], 1..200)
        ) {
            let expected = i64::try_from(values.iter().copied().map(i128::from).sum::<i128>()).ok();
            let column: ArrayRef = Arc::new(Int64Array::from(values));
            let found = whole(ColumnOp::Sum, &column).unwrap();
            prop_assert_eq!(found.ok().map(|sum| sum.as_primitive::<Int64Type>().value(0)), expected);

            // Also in batches, of which one alone may be beyond.
            let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
            let mut sums = Sums::new(batch.schema_ref()).unwrap();
            let half = batch.num_rows() / 2;
            prop_assert_eq!(sums.add(&batch.slice(0, half)), half > 0);
            prop_assert!(sums.add(&batch.slice(half, batch.num_rows() - half)));
            let row = sums.row(batch.schema_ref()).unwrap();
            prop_assert_eq!(row.ok().map(|row| row.column(0).as_primitive::<Int64Type>().value(0)), expected);
        }
    }

    /// What is not added has to be reduced otherwise, and no rows have no sum.
    #[test]
    fn batches_that_are_not_summed() {
        let batch = |column: ArrayRef| RecordBatch::try_from_iter([("n", column)]).unwrap();
        let nulls = batch(Arc::new(Int64Array::from(vec![Some(1), None])));
        let mut sums = Sums::new(nulls.schema_ref()).unwrap();
        assert!(!sums.add(&nulls) && !sums.add(&nulls.slice(0, 0)));
        assert!(sums.row(nulls.schema_ref()).is_none());
        assert!(Sums::new(batch(Arc::new(Float64Array::from(vec![1.0]))).schema_ref()).is_none());
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
        // Of nothing there is nothing; nulls, texts and products are left to who looks at rows one by one.
        let nothing = whole(ColumnOp::Sum, &Float64Array::from(Vec::<f64>::new())).unwrap().unwrap();
        assert_eq!((nothing.len(), nothing.null_count()), (1, 1));
        assert_eq!(sum(&Int64Array::from(vec![Some(1), None])), None);
        assert!(whole(ColumnOp::Max, &StringArray::from(vec!["a"])).is_none());
        assert!(whole(ColumnOp::Product, &floats).is_none());
    }
}
