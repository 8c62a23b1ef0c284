//! JSON values that do not fit their column. Arrow's decoder truncates them: the fraction of a number in an integer or
//! time column, so that 2.5 becomes 2; the time of day of a text in a date column; and fractions of a second that are
//! too fine. This module finds such records, at little cost for all others.

use arrow::datatypes::{DataType, Field, Fields};
use memchr::{memchr_iter, memchr3_iter, memmem};
use serde_json::Value;

use crate::times;

/// Detects such values in records of a schema.
#[derive(Clone, Debug)]
pub struct LossDetector {
    fields: Fields,
    /// The names of columns, and fields within columns, that may lose something.
    names: Vec<String>,
    /// Whether there are lists of such numbers, or maps, whose keys are arbitrary.
    lists: bool,
    maps: bool,
    /// The smallest number of fractional second digits that one of the time types can store.
    second_digits: Option<usize>,
    /// Whether there are dates.
    dates: bool,
}

impl LossDetector {
    /// A detector for records with these fields.
    pub fn of(fields: &Fields) -> Self {
        let mut cuts = LossDetector {
            fields: fields.clone(),
            names: Vec::new(),
            lists: false,
            maps: false,
            second_digits: None,
            dates: false,
        };
        fields.iter().for_each(|field| cuts.add(field));
        cuts
    }

    fn add(&mut self, field: &Field) {
        self.dates |= *field.data_type() == DataType::Date32;
        if let Some(digits) = times::second_digits(field.data_type()) {
            self.second_digits = Some(self.second_digits.map_or(digits, |fewest| fewest.min(digits)));
        }
        match elements(field.data_type()) {
            Some(element) => {
                self.lists |= is_whole(element.data_type());
                self.maps |= matches!(field.data_type(), DataType::Map(..));
                self.add(element);
            }
            None => match field.data_type() {
                DataType::Struct(fields) => fields.iter().for_each(|field| self.add(field)),
                kind if is_whole(kind) => self.names.push(field.name().clone()),
                _ => {}
            },
        }
    }

    /// Whether a record, or one of several concatenated records, may contain such a value: faster than checking each
    /// record.
    pub fn may_cut(&self, records: &[u8]) -> bool {
        if self.may_cut_text(records) {
            return true;
        }
        if self.names.is_empty() && !self.lists {
            return false;
        }
        let small = memmem::find_iter(records, b"e-").chain(memmem::find_iter(records, b"E-"));
        memchr_iter(b'.', records).chain(small).any(|at| self.may_cut_at(records, at))
    }

    /// The problem with a record: a fraction where an integer is required, or a time that is finer than its type.
    pub fn cut(&self, record: &[u8]) -> Option<String> {
        if !self.may_cut(record) {
            return None;
        }
        let Value::Object(object) = serde_json::from_slice(record).ok()? else { return None };
        self.fields.iter().find_map(|field| cut_in(object.get(field.name())?, field, field.name()))
    }

    /// Whether a text that represents a time may not fit its type: because of too many fractional second digits, a leap
    /// second, or the time of day of a date.
    fn may_cut_text(&self, records: &[u8]) -> bool {
        if self.second_digits.is_none() && !self.dates {
            return false;
        }
        let is_digit = |at: Option<usize>| at.and_then(|at| records.get(at)).is_some_and(u8::is_ascii_digit);
        // Any character may be written as an escape.
        if memmem::find(records, b"\\u").is_some() {
            return true;
        }
        if self.dates
            && memchr3_iter(b'T', b't', b' ', records).any(|at| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)))
        {
            return true;
        }
        let Some(digits) = self.second_digits else { return false };
        let is_fine = |at: usize| {
            let behind = records[at + 1..].iter().take(digits + 1).take_while(|byte| byte.is_ascii_digit()).count();
            behind > digits && is_digit(at.checked_sub(1))
        };
        let is_leap = |at: usize| {
            let before = at.checked_sub(1);
            (is_digit(before) || before.is_some_and(|before| records[before] == b':')) && !is_digit(Some(at + 2))
        };
        memchr_iter(b'.', records).any(is_fine) || memmem::find_iter(records, b"60").any(is_leap)
    }

    /// Whether the point or exponent at `at` may belong to such a number, as far as can be seen without parsing the
    /// whole record.
    fn may_cut_at(&self, record: &[u8], at: usize) -> bool {
        if !at.checked_sub(1).is_some_and(|before| record[before].is_ascii_digit()) {
            return false;
        }
        let before = record[..at].trim_suffix_of(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E'));
        match before.trim_ascii_end().split_last() {
            Some((b'[' | b',', _)) => self.lists,
            // A name ends there: within a text, a quote would follow a backslash.
            Some((b':', name)) => match name.trim_ascii_end().strip_suffix(b"\"") {
                Some(name) => {
                    self.maps
                        || self.names.iter().any(|known| {
                            name.strip_suffix(known.as_bytes()).is_some_and(|before| before.ends_with(b"\""))
                        })
                }
                None => false,
            },
            _ => false,
        }
    }
}

trait TrimSuffix {
    fn trim_suffix_of(&self, of: impl Fn(u8) -> bool) -> &Self;
}

impl TrimSuffix for [u8] {
    fn trim_suffix_of(&self, of: impl Fn(u8) -> bool) -> &[u8] {
        let kept = self.iter().rposition(|&byte| !of(byte)).map_or(0, |last| last + 1);
        &self[..kept]
    }
}

/// The field of a list's elements.
fn elements(kind: &DataType) -> Option<&Field> {
    match kind {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) | DataType::Map(of, _) => {
            Some(of)
        }
        DataType::ListView(of) | DataType::LargeListView(of) => Some(of),
        _ => None,
    }
}

fn is_whole(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_temporal()
}

fn cut_in(value: &Value, field: &Field, column: &str) -> Option<String> {
    match (value, field.data_type()) {
        (Value::Object(object), DataType::Struct(fields)) => {
            fields.iter().find_map(|field| cut_in(object.get(field.name())?, field, column))
        }
        (Value::Object(object), DataType::Map(entries, _)) => match entries.data_type() {
            DataType::Struct(pair) => object.values().find_map(|value| cut_in(value, pair.get(1)?, column)),
            _ => None,
        },
        (Value::Array(values), kind) => {
            let element = elements(kind)?;
            values.iter().find_map(|value| cut_in(value, element, column))
        }
        (Value::Number(number), kind) if is_whole(kind) => {
            let fraction = number.as_f64().is_some_and(|value| value.fract() != 0.0);
            fraction.then(|| format!("{number} is not an integer, but column {column:?} is {kind}"))
        }
        (Value::String(text), kind) if kind.is_temporal() => {
            let why = times::lost(text, kind)?;
            Some(format!("{text:?} is not of type {kind}, that of column {column:?} (it {why})"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn numbers_that_would_be_cut() {
        let int = |name: &str| Field::new(name, DataType::Int64, true);
        let fields = Fields::from(vec![
            int("n"),
            Field::new("x", DataType::Float64, true),
            Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
            Field::new("day", DataType::Date32, true),
            Field::new(
                "in",
                DataType::Struct(Fields::from(vec![int("deep"), Field::new("y", DataType::Float32, true)])),
                true,
            ),
            Field::new("many", DataType::List(Arc::new(Field::new("item", DataType::Int32, true))), true),
            Field::new_map("map", "entries", Field::new("key", DataType::Utf8, false), int("value"), false, true),
        ]);
        let cuts = LossDetector::of(&fields);
        for (record, bad) in [
            (r#"{"n":2.5}"#, Some("n")),
            (r#"{"n": -0.5, "x": 1}"#, Some("n")),
            (r#"{"n" : 25e-1}"#, Some("n")),
            (r#"{"x":1,"at":1.25E0}"#, Some("at")),
            (r#"{"in":{"y":1.5,"deep":7.5}}"#, Some("in")),
            (r#"{"many":[1, 2.5]}"#, Some("many")),
            (r#"{"map":{"a":1,"b":2.5}}"#, Some("map")),
            (r#"{"at":"2026-01-01T00:00:00.1234567"}"#, Some("at")),
            (r#"{"at":"2026-01-01T00:00:60"}"#, Some("at")),
            (r#"{"at":"2026-01-01T000060"}"#, Some("at")),
            (r#"{"at":"2026-01-01T00:00:00\u002e1234567"}"#, Some("at")),
            (r#"{"day":"2026-01-01 10:30:00"}"#, Some("day")),
            (r#"{"day":"2026-01-01T103000"}"#, Some("day")),
            (r#"{"day":"2026-01-01T00:00:00","text":"1.1234567, 60 5"}"#, None),
            (r#"{"at":"2026-01-01T00:00:00.123456"}"#, None),
            (r#"{"at":"2026-01-01"}"#, None),
            // An integer after all, or not one of our columns, or not a number.
            (r#"{"n":2.0,"at":1e3,"many":[30e-1]}"#, None),
            (r#"{"x":2.5,"n":2,"other":{"n":2.5},"many":[1]}"#, None),
            (r#"{"text":"\"n\":2.5, 1.5","n":1}"#, None),
            (r#"{"n":"2.5"}"#, None),
            (r#"{"n":.5}"#, None),
            (".", None),
            ("", None),
        ] {
            let found = cuts.cut(record.as_bytes());
            assert_eq!(found.is_some(), bad.is_some(), "{record}: {found:?}");
            assert!(found.zip(bad).is_none_or(|(found, bad)| found.contains(&format!("{bad:?}"))), "{record}");
        }
        assert!(
            LossDetector::of(&Fields::from(vec![Field::new("n", DataType::Float64, true)]))
                .cut(br#"{"n":2.5}"#)
                .is_none()
        );
    }
}
