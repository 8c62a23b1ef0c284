//! The minimum and maximum of integers. Called more than once for the times of each batch, so it has to be fast.

use arrow::array::{Array, ArrowNumericType, PrimitiveArray};
use arrow::compute::{max, min};

use crate::simd_dispatch::dispatch_simd;

/// The minimum and maximum of a column's values, if there are any; nulls are ignored.
pub fn min_max<T: ArrowNumericType<Native = i64>>(column: &PrimitiveArray<T>) -> Option<(i64, i64)> {
    match column.null_count() {
        0 => min_max_of(column.values()),
        _ => min(column).zip(max(column)),
    }
}

fn min_max_of(values: &[i64]) -> Option<(i64, i64)> {
    #[inline(always)]
    fn both(values: &[i64]) -> (i64, i64) {
        values.iter().fold((i64::MAX, i64::MIN), |(least, most), &value| (least.min(value), most.max(value)))
    }
    (!values.is_empty()).then(|| dispatch_simd(both, values))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    /// Wherever they lie among enough values for full vectors and a remainder.
    #[test]
    fn the_ends_are_found_anywhere() {
        assert_eq!((min_max_of(&[]), min_max(&Int64Array::new_null(3))), (None, None));
        assert_eq!(min_max(&Int64Array::from(vec![None, Some(3), Some(-1)])), Some((-1, 3)));
        for count in [1, 7, 8, 9, 64, 131] {
            for at in 0..count {
                let mut values: Vec<i64> = (0..count as i64).map(|value| value % 5 - 2).collect();
                values[at] = i64::MIN;
                let most = if count == 1 { i64::MIN } else { *values.iter().max().unwrap() };
                assert_eq!(min_max_of(&values), Some((i64::MIN, most)));
                values[at] = i64::MAX;
                assert_eq!(min_max_of(&values), Some((*values.iter().min().unwrap(), i64::MAX)));
            }
        }
    }
}
