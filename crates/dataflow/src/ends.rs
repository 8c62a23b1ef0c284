//! The least and the greatest of whole numbers: of each batch's times that is asked more than once, and what every processor of x86-64 has
//! compares no numbers of 64 bits.

use arrow::array::{Array, ArrowPrimitiveType, PrimitiveArray};
use arrow::compute::{max, min};

/// The least and the greatest value of a column, if there are any; nulls are none.
pub fn ends<T: ArrowPrimitiveType<Native = i64>>(column: &PrimitiveArray<T>) -> Option<(i64, i64)>
where
    PrimitiveArray<T>: Array,
{
    match column.null_count() {
        0 => ends_of(column.values()),
        _ => min(column).zip(max(column)),
    }
}

fn ends_of(values: &[i64]) -> Option<(i64, i64)> {
    #[inline(always)]
    fn both(values: &[i64]) -> (i64, i64) {
        values.iter().fold((i64::MAX, i64::MIN), |(least, most), &value| (least.min(value), most.max(value)))
    }
    fn best(values: &[i64]) -> (i64, i64) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f")]
            fn avx512(values: &[i64]) -> (i64, i64) {
                both(values)
            }
            #[target_feature(enable = "avx2")]
            fn avx2(values: &[i64]) -> (i64, i64) {
                both(values)
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
        both(values)
    }
    (!values.is_empty()).then(|| best(values))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    /// Wherever they lie among so many values that vectors are full, and have a rest.
    #[test]
    fn the_ends_are_found_anywhere() {
        assert_eq!((ends_of(&[]), ends(&Int64Array::new_null(3))), (None, None));
        assert_eq!(ends(&Int64Array::from(vec![None, Some(3), Some(-1)])), Some((-1, 3)));
        for count in [1, 7, 8, 9, 64, 131] {
            for at in 0..count {
                let mut values: Vec<i64> = (0..count as i64).map(|value| value % 5 - 2).collect();
                values[at] = i64::MIN;
                let most = if count == 1 { i64::MIN } else { *values.iter().max().unwrap() };
                assert_eq!(ends_of(&values), Some((i64::MIN, most)));
                values[at] = i64::MAX;
                assert_eq!(ends_of(&values), Some((*values.iter().min().unwrap(), i64::MAX)));
            }
        }
    }
}
