//! Parses dates and times. Arrow's parsers truncate what does not fit: the time of day of a date, fractions of a
//! second, a leap second. Here such a text is an error that says what would be lost.

use arrow::array::timezone::Tz;
use arrow::array::types::{
    ArrowTimestampType, Date32Type, Date64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray, StringArray};
use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime, string_to_time_nanoseconds};
use arrow::datatypes::{DataType, TimeUnit};
use std::sync::Arc;

const SECOND_NS: i64 = 1_000_000_000;
const DAY_US: i64 = 86_400_000_000;

/// Why a text is not a value of a type, worded to follow the text.
pub(crate) type Why = &'static str;

const NO_TIME: Why = "is not a date or time";
const TOO_FINE: Why = "is finer than the type";
const TIME_OF_DAY: Why = "has a time of day";
const LEAP_SECOND: Why = "is a leap second";
const TOO_FAR: Why = "is too far from 1970";

/// A row whose text is not a value of the type, and why.
pub(crate) struct UnreadableTime {
    pub(crate) row: usize,
    pub(crate) why: Why,
}

/// Converts a column of text to dates or times; `None` for other types.
pub(crate) fn parsed(texts: &StringArray, kind: &DataType) -> Option<Result<ArrayRef, UnreadableTime>> {
    Some(match kind {
        DataType::Date32 => column::<Date32Type>(texts, kind, date),
        DataType::Date64 => column::<Date64Type>(texts, kind, date_ms),
        DataType::Time32(TimeUnit::Second) => column::<Time32SecondType>(texts, kind, time32::<Time32SecondType>),
        DataType::Time32(TimeUnit::Millisecond) => {
            column::<Time32MillisecondType>(texts, kind, time32::<Time32MillisecondType>)
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            column::<Time64MicrosecondType>(texts, kind, time64::<Time64MicrosecondType>)
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            column::<Time64NanosecondType>(texts, kind, time64::<Time64NanosecondType>)
        }
        DataType::Timestamp(unit, zone) => {
            let zone = zone.as_deref().map_or_else(|| Ok(utc()), str::parse).ok()?;
            match unit {
                TimeUnit::Second => timestamps::<TimestampSecondType>(texts, kind, &zone),
                TimeUnit::Millisecond => timestamps::<TimestampMillisecondType>(texts, kind, &zone),
                TimeUnit::Microsecond => timestamps::<TimestampMicrosecondType>(texts, kind, &zone),
                TimeUnit::Nanosecond => timestamps::<TimestampNanosecondType>(texts, kind, &zone),
            }
        }
        _ => return None,
    })
}

/// What a text would lose as a date or time; `None` for other types, and for texts that are not times, which Arrow's
/// decoder rejects.
pub(crate) fn lost(text: &str, kind: &DataType) -> Option<Why> {
    let texts = StringArray::from(vec![text]);
    let why = parsed(&texts, kind)?.err()?.why;
    (why != NO_TIME).then_some(why)
}

/// Fractional second digits that a time type can store; `None` for other types.
pub(crate) fn second_digits(kind: &DataType) -> Option<usize> {
    match kind {
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
            Some(per_second(*unit).ilog10() as usize)
        }
        DataType::Date64 => Some(3),
        _ => None,
    }
}

fn timestamps<T: ArrowTimestampType>(
    texts: &StringArray,
    kind: &DataType,
    zone: &Tz,
) -> Result<ArrayRef, UnreadableTime> {
    column::<T>(texts, kind, |text| timestamp(text, zone, T::UNIT))
}

fn column<T: ArrowPrimitiveType>(
    texts: &StringArray,
    kind: &DataType,
    parse: impl Fn(&str) -> Result<T::Native, Why>,
) -> Result<ArrayRef, UnreadableTime> {
    let value = |(row, text): (usize, Option<&str>)| {
        text.map(|text| parse(text.trim_ascii()).map_err(|why| UnreadableTime { row, why })).transpose()
    };
    let values: PrimitiveArray<T> = texts.iter().enumerate().map(value).collect::<Result<_, _>>()?;
    Ok(Arc::new(values.with_data_type(kind.clone())))
}

/// Units since 1970, in `zone` if the text does not name one.
pub(crate) fn timestamp(text: &str, zone: &Tz, unit: TimeUnit) -> Result<i64, Why> {
    let at = string_to_datetime(zone, text).map_err(|_| NO_TIME)?;
    let nanos = i64::from(at.timestamp_subsec_nanos());
    if nanos >= SECOND_NS {
        return Err(LEAP_SECOND);
    }
    if has_more_digits(text) {
        return Err(TOO_FINE);
    }
    let each = SECOND_NS / per_second(unit);
    if nanos % each != 0 {
        return Err(TOO_FINE);
    }
    let whole = at.timestamp().checked_mul(per_second(unit));
    whole.and_then(|whole| whole.checked_add(nanos / each)).ok_or(TOO_FAR)
}

/// Days since 1970.
pub(crate) fn date(text: &str) -> Result<i32, Why> {
    let days = Date32Type::parse(text).ok_or(NO_TIME)?;
    // A longer text has a time, unless its year has a sign.
    if text.len() > 10 && !text.starts_with(['+', '-']) {
        let time = timestamp(text, &utc(), TimeUnit::Microsecond).map_err(|_| TIME_OF_DAY)?;
        if time % DAY_US != 0 {
            return Err(TIME_OF_DAY);
        }
    }
    Ok(days)
}

/// Milliseconds since 1970; the type can store any number of them.
fn date_ms(text: &str) -> Result<i64, Why> {
    match text.len() {
        0..=10 => Date64Type::parse(text).ok_or(NO_TIME),
        _ => timestamp(text, &utc(), TimeUnit::Millisecond),
    }
}

fn time32<T: ArrowPrimitiveType<Native = i32> + TimeOfDay>(text: &str) -> Result<i32, Why> {
    time(text, T::UNIT).map(|units| i32::try_from(units).expect("a day has fewer"))
}

fn time64<T: ArrowPrimitiveType<Native = i64> + TimeOfDay>(text: &str) -> Result<i64, Why> {
    time(text, T::UNIT)
}

/// The units since midnight.
fn time(text: &str, unit: TimeUnit) -> Result<i64, Why> {
    let nanos = string_to_time_nanoseconds(text).map_err(|_| NO_TIME)?;
    if text.contains(":60") {
        return Err(LEAP_SECOND);
    }
    let each = SECOND_NS / per_second(unit);
    if nanos % each != 0 || has_more_digits(text) {
        return Err(TOO_FINE);
    }
    Ok(nanos / each)
}

fn utc() -> Tz {
    "+00:00".parse().expect("a zone")
}

/// Types of times of day.
trait TimeOfDay {
    const UNIT: TimeUnit;
}

impl TimeOfDay for Time32SecondType {
    const UNIT: TimeUnit = TimeUnit::Second;
}

impl TimeOfDay for Time32MillisecondType {
    const UNIT: TimeUnit = TimeUnit::Millisecond;
}

impl TimeOfDay for Time64MicrosecondType {
    const UNIT: TimeUnit = TimeUnit::Microsecond;
}

impl TimeOfDay for Time64NanosecondType {
    const UNIT: TimeUnit = TimeUnit::Nanosecond;
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => SECOND_NS,
    }
}

/// Whether a fraction has more than nine digits; the parsers ignore the rest.
fn has_more_digits(text: &str) -> bool {
    let Some((_, fraction)) = text.split_once('.') else { return false };
    let digits = fraction.bytes().take_while(u8::is_ascii_digit);
    digits.skip(9).any(|digit| digit != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_cut() {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let utc = |unit| DataType::Timestamp(unit, None);
        for (text, kind, wrong) in [
            ("2024-01-02", DataType::Date32, None),
            ("2024-01-02 00:00:00", DataType::Date32, None),
            ("2024-01-02 10:30:00", DataType::Date32, Some(TIME_OF_DAY)),
            ("2024-01-02T00:00:00+05:00", DataType::Date32, Some(TIME_OF_DAY)),
            ("9999-12-31 10:30:00", DataType::Date32, Some(TIME_OF_DAY)),
            ("9999-12-31 00:00:00", DataType::Date32, None),
            ("+10000-01-01", DataType::Date32, None),
            ("2024-02-30", DataType::Date32, Some(NO_TIME)),
            ("2024-01-02 10:30:00.5", DataType::Date64, None),
            ("2024-01-02 10:30:00.0005", DataType::Date64, Some(TOO_FINE)),
            ("2024-01-02", utc(Second), None),
            ("2024-01-02 10:00:00.5", utc(Second), Some(TOO_FINE)),
            ("2024-01-02 10:00:00.500", utc(Millisecond), None),
            ("2024-01-02 10:00:00.1234567", utc(Microsecond), Some(TOO_FINE)),
            ("2024-01-02T10:00:00.123456789Z", utc(Nanosecond), None),
            ("2024-01-02T10:00:00.1234567890Z", utc(Nanosecond), None),
            ("2024-01-02T10:00:00.1234567891Z", utc(Nanosecond), Some(TOO_FINE)),
            ("1969-12-31T23:59:59.5", utc(Millisecond), None),
            ("2016-12-31T23:59:60", utc(Second), Some(LEAP_SECOND)),
            ("9999-01-01T00:00:00", utc(Microsecond), None),
            ("9999-01-01T00:00:00", utc(Nanosecond), Some(TOO_FAR)),
            ("10:00:00.5", DataType::Time32(Second), Some(TOO_FINE)),
            ("10:00:00.5", DataType::Time32(Millisecond), None),
            ("10:00:00.1234567", DataType::Time64(Microsecond), Some(TOO_FINE)),
            ("10:00:00.1234567", DataType::Time64(Nanosecond), None),
            ("tomorrow", utc(Second), Some(NO_TIME)),
        ] {
            let found = parsed(&StringArray::from(vec![text]), &kind).unwrap();
            assert_eq!(found.err().map(|unread| unread.why), wrong, "{text} as {kind}");
        }
        let half = parsed(&StringArray::from(vec!["1969-12-31T23:59:59.5"]), &utc(Millisecond)).unwrap().ok().unwrap();
        assert_eq!(half.as_any().downcast_ref::<PrimitiveArray<TimestampMillisecondType>>().unwrap().value(0), -500);
    }
}
