//! A whole column as one value, as in reductions without keys: no group of each row is looked up, and many rows are added at once.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, downcast_primitive_array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::kernels::aggregate::{max, min, sum};
use arrow::datatypes::ArrowNativeTypeOp;
use arrow::error::ArrowError;

use super::reduce::ColumnOp;

/// Sums that are under way at the same time: four registers of AVX2.
const LANES: usize = 16;

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
        Box::new(sum_exactly(values))
    } else if let Some(values) = values.downcast_ref::<ScalarBuffer<i32>>() {
        Box::new(i32::try_from(values.iter().copied().map(i64::from).sum::<i64>()).ok())
    } else {
        return None;
    };
    let total = *total.downcast_ref::<Option<T::Native>>().expect("of the type of the values");
    let beyond = || ArrowError::ArithmeticOverflow(format!("Overflow: a sum is beyond the range of {}", T::DATA_TYPE));
    Some(total.map(|total| row(column, Some(total))).ok_or_else(beyond))
}

/// The sum; `None` if it is beyond the range. Only it counts: sums on the way may be beyond.
fn sum_exactly(values: &[i64]) -> Option<i64> {
    i64::try_from(lanes(values).unwrap_or_else(|| values.iter().copied().map(i128::from).sum())).ok()
}

/// The sum, unless one of the lanes was beyond its range on the way.
fn lanes(values: &[i64]) -> Option<i128> {
    #[inline(always)]
    fn each(values: &[i64]) -> Option<i128> {
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
        #[target_feature(enable = "avx2")]
        fn avx2(values: &[i64]) -> Option<i128> {
            each(values)
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature the function is compiled for was just detected.
            return unsafe { avx2(values) };
        }
    }
    each(values)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DurationMillisecondArray, Float64Array, Int32Array, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type, TimeUnit};
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
            let found = whole(ColumnOp::Sum, &Int64Array::from(values)).unwrap();
            prop_assert_eq!(found.ok().map(|sum| sum.as_primitive::<Int64Type>().value(0)), expected);
        }
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
