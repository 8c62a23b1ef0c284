//! Times in microseconds.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use datafusion::error::Result;
use tidemill_dataflow::min_max;
use tidemill_dataflow::stream::EventTime;

/// Converts times of any unit or zone to microseconds; null for times that rows must not have.
pub fn micros(times: &ArrayRef) -> Result<TimestampMicrosecondArray> {
    fn is_time(time: &i64) -> bool {
        EventTime(*time).is_of_row()
    }
    /// The conversion is monotonic: if the first and the last values are valid times, all are.
    fn converted<T: ArrowPrimitiveType<Native = i64>>(
        times: &ArrayRef,
        micros: impl Fn(i64) -> Option<i64>,
    ) -> TimestampMicrosecondArray {
        let times = times.as_primitive::<T>();
        let checked = |time| micros(time).filter(is_time);
        match min_max(times).is_none_or(|(least, most)| checked(least).is_some() && checked(most).is_some()) {
            true => times.unary(|time| micros(time).unwrap_or_default()),
            false => times.unary_opt(checked),
        }
    }
    Ok(match times.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => {
            converted::<TimestampSecondType>(times, |time| time.checked_mul(1_000_000))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            converted::<TimestampMillisecondType>(times, |time| time.checked_mul(1000))
        }
        // A cast would round toward 1970, and move an earlier time out of its window.
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            converted::<TimestampNanosecondType>(times, |time| Some(time.div_euclid(1000)))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            let times = times.as_primitive::<TimestampMicrosecondType>().clone().with_timezone_opt(None::<Arc<str>>);
            match min_max(&times).is_none_or(|(least, most)| is_time(&least) && is_time(&most)) {
                true => times,
                false => times.unary_opt(|time| Some(time).filter(is_time)),
            }
        }
        _ => return micros(&cast(times, &DataType::Timestamp(TimeUnit::Microsecond, None))?),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date32Array, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, new_null_array,
    };

    use super::*;

    /// A wrong conversion would put a row into the wrong window; a time that rows must not have would close all
    /// windows.
    #[test]
    fn times_of_each_unit_are_microseconds() {
        let most = i64::MAX - 1;
        let zone = || Some(Arc::<str>::from("Europe/Berlin"));
        let cases: [(ArrayRef, Vec<Option<i64>>); 8] = [
            (Arc::new(TimestampSecondArray::from(vec![-2, 3])), vec![Some(-2_000_000), Some(3_000_000)]),
            (Arc::new(TimestampSecondArray::from(vec![most, 3, -most])), vec![None, Some(3_000_000), None]),
            (
                Arc::new(TimestampMillisecondArray::from(vec![Some(5), None]).with_timezone_opt(zone())),
                vec![Some(5000), None],
            ),
            (Arc::new(TimestampMillisecondArray::from(vec![Some(most), None, Some(1)])), vec![None, None, Some(1000)]),
            // Rounds toward the past, before 1970 as well as after it.
            (Arc::new(TimestampNanosecondArray::from(vec![-1, 1999])), vec![Some(-1), Some(1)]),
            (
                Arc::new(TimestampMicrosecondArray::from(vec![i64::MIN, 7, i64::MAX]).with_timezone_opt(zone())),
                vec![None, Some(7), None],
            ),
            (Arc::new(Date32Array::from(vec![1])), vec![Some(86_400_000_000)]),
            (new_null_array(&DataType::Timestamp(TimeUnit::Microsecond, None), 2), vec![None, None]),
        ];
        for (times, expected) in cases {
            let found = micros(&times).unwrap();
            assert_eq!(found.data_type(), &DataType::Timestamp(TimeUnit::Microsecond, None));
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{times:?}");
        }
        for unit in [TimeUnit::Second, TimeUnit::Nanosecond] {
            assert!(micros(&new_null_array(&DataType::Timestamp(unit, None), 0)).unwrap().is_empty());
        }
    }
}
