//! Exact sums: 64 bits plus the overflow, which is usually zero.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Int64Type, TimeUnit, UInt64Type,
};

/// A number type in which the sums of a group are accumulated.
pub(super) trait SumWord: ArrowPrimitiveType<Native: Send + Sync> + Send {
    /// The wrapped sum, and the overflow: 1, 0 or -1.
    fn add(sum: Self::Native, value: Self::Native) -> (Self::Native, i64);
    /// The same for a whole sum.
    fn split(total: i128) -> (Self::Native, i64);
}

macro_rules! word {
    ($type:ty, $native:ty, $bits:literal) => {
        impl SumWord for $type {
            #[inline(always)]
            fn add(sum: $native, value: $native) -> ($native, i64) {
                let (next, beyond) = sum.overflowing_add(value);
                #[allow(unused_comparisons)]
                let carry = if !beyond {
                    0
                } else if value < 0 {
                    -1
                } else {
                    1
                };
                (next, carry)
            }

            fn split(total: i128) -> ($native, i64) {
                let word = total as $native;
                if $bits == 128 { (word, 0) } else { (word, (total.wrapping_sub(word as i128) >> 64) as i64) }
            }
        }
    };
}
word!(Int64Type, i64, 64);
word!(UInt64Type, u64, 64);
word!(Decimal128Type, i128, 128);

/// The sum of a column of integers, decimals or durations; `None` if it exceeds 128 bits.
pub(super) fn total(column: &ArrayRef) -> Option<i128> {
    match column.data_type() {
        DataType::Int64 => Some(of_signed::<Int64Type>(column)),
        DataType::Duration(TimeUnit::Second) => Some(of_signed::<DurationSecondType>(column)),
        DataType::Duration(TimeUnit::Millisecond) => Some(of_signed::<DurationMillisecondType>(column)),
        DataType::Duration(TimeUnit::Microsecond) => Some(of_signed::<DurationMicrosecondType>(column)),
        DataType::Duration(TimeUnit::Nanosecond) => Some(of_signed::<DurationNanosecondType>(column)),
        DataType::UInt64 => one_by_one::<UInt64Type>(column),
        DataType::Decimal32(..) => one_by_one::<Decimal32Type>(column),
        DataType::Decimal64(..) => one_by_one::<Decimal64Type>(column),
        DataType::Decimal128(..) => one_by_one::<Decimal128Type>(column),
        other => unreachable!("no sums of {other} are made here"),
    }
}

fn one_by_one<T: ArrowPrimitiveType<Native: Into<i128>>>(column: &ArrayRef) -> Option<i128> {
    let column = column.as_primitive::<T>();
    let add = |sum: i128, value: T::Native| sum.checked_add(value.into());
    match column.null_count() {
        0 => column.values().iter().copied().try_fold(0, add),
        _ => column.iter().flatten().try_fold(0, add),
    }
}

fn of_signed<T: ArrowPrimitiveType<Native = i64>>(column: &ArrayRef) -> i128 {
    let column = column.as_primitive::<T>();
    match column.null_count() {
        0 => halves(column.values()),
        _ => column.iter().flatten().map(i128::from).sum(),
    }
}

/// Sums the two halves separately, which vectorizes: neither exceeds 64 bits.
fn halves(values: &[i64]) -> i128 {
    const ROWS_MAX: usize = 1 << 31;
    let sum = |values: &[i64]| {
        let low: u64 = values.iter().map(|&value| u64::from(value as u32)).sum();
        let high: i64 = values.iter().map(|&value| value >> 32).sum();
        (i128::from(high) << 32) + i128::from(low)
    };
    values.chunks(ROWS_MAX).map(sum).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that leave the range and come back, above and below, are correct; those beyond 128 bits are detected.
    #[test]
    fn beyond_and_back() {
        fn of<W: SumWord>(values: &[W::Native]) -> (W::Native, i64) {
            values.iter().fold(W::split(0), |(word, carry), &value| {
                let (next, more) = W::add(word, value);
                (next, carry + more)
            })
        }
        let (least, most) = (i64::MIN, i64::MAX);
        for values in [&[most, most, 5, -7][..], &[least, least, -1], &[least, -1, most, most, 3], &[0, -1], &[]] {
            let expected: i128 = values.iter().copied().map(i128::from).sum();
            assert_eq!(of::<Int64Type>(values), Int64Type::split(expected));
            assert_eq!(Int64Type::split(expected).1 == 0, i64::try_from(expected).is_ok());
            assert_eq!(halves(values), expected);
        }
        let expected = 2 * i128::from(u64::MAX) + 2;
        assert_eq!(of::<UInt64Type>(&[u64::MAX, u64::MAX, 2]), UInt64Type::split(expected));
        assert_eq!(of::<Decimal128Type>(&[i128::MAX, 1]), (i128::MIN, 1));
        assert_eq!(of::<Decimal128Type>(&[i128::MAX, 1, -1]), (i128::MAX, 0));
    }
}
