//! The key of a hash: the values of some columns, joined by colons. Both sinks, which write keys, and lookups, which
//! ask for them, use this module.
//!
//! Rows with different values never have the same key, and readable keys look the way a person would write them:
//!
//! | type of the column                 | a value                                                           | null    |
//! |------------------------------------|-------------------------------------------------------------------|---------|
//! | a number, a time, a boolean        | as Arrow writes it, since its end is unambiguous                  | nothing |
//! | any other that is not the last one | a backslash before each colon and backslash                       | `\N`    |
//! | the last of these                  | unchanged, since it takes the rest; `\N`, and values that would   | `\N`    |
//! |                                    | be mistaken for a written `\N`, get one more backslash in front   |         |

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Schema};
use arrow::error::ArrowError;

/// Stands for a null text.
const NULL: &str = "\\N";

/// Columns as the texts sent to a server.
///
/// # Errors
/// An error that names the column, for types without a text form, and for bytes that are not text: they would otherwise
/// become nulls.
pub(super) fn texts(rows: &RecordBatch) -> Result<Vec<LargeStringArray>, ArrowError> {
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let text = |(column, field): (&ArrayRef, &FieldRef)| {
        let name = field.name();
        cast_with_options(column, &DataType::LargeUtf8, &exact).map(|texts| texts.as_string().clone()).map_err(|error| {
            let reason = match field.data_type() {
                data_type if data_type.is_binary() => {
                    "has bytes that are not UTF-8: write them as text, as tm.functions.scalar(\"encode\", column, \"hex\") does".into()
                }
                _ => error.to_string(),
            };
            ArrowError::CastError(format!("column \"{name}\" {reason}"))
        })
    };
    rows.columns().iter().zip(rows.schema_ref().fields()).map(text).collect()
}

/// The mapping from rows of a schema to keys.
#[derive(Clone, Debug)]
pub(super) struct KeyTemplate {
    parts: Vec<(usize, KeyPart)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyPart {
    /// The end of its text is unambiguous.
    Plain,
    /// Its text may contain any characters.
    Text,
    /// The same, and no other such column follows.
    LastText,
}

impl KeyTemplate {
    /// A key of these columns, in this order.
    pub(super) fn new(schema: &Schema, columns: &[usize]) -> Self {
        let is_text = |column: usize| is_text(schema.field(column).data_type());
        let last = columns.iter().rposition(|column| is_text(*column));
        let part = |(at, column): (usize, &usize)| match is_text(*column) {
            false => (*column, KeyPart::Plain),
            true if Some(at) == last => (*column, KeyPart::LastText),
            true => (*column, KeyPart::Text),
        };
        KeyTemplate { parts: columns.iter().enumerate().map(part).collect() }
    }

    pub(super) fn has(&self, column: usize) -> bool {
        self.parts.iter().any(|(part, _)| *part == column)
    }

    /// The key of a row, after a prefix. `texts` contains all columns of the schema.
    pub(super) fn of(&self, prefix: &str, texts: &[LargeStringArray], row: usize) -> String {
        let mut key = prefix.to_owned();
        for (at, (column, part)) in self.parts.iter().enumerate() {
            if at > 0 {
                key.push(':');
            }
            let value = texts[*column].is_valid(row).then(|| texts[*column].value(row));
            match (part, value) {
                (KeyPart::Plain, value) => key.push_str(value.unwrap_or_default()),
                (_, None) => key.push_str(NULL),
                (KeyPart::LastText, Some(value)) => {
                    if is_like_null(value) {
                        key.push('\\');
                    }
                    key.push_str(value);
                }
                (KeyPart::Text, Some(value)) => {
                    for character in value.chars() {
                        if matches!(character, '\\' | ':') {
                            key.push('\\');
                        }
                        key.push(character);
                    }
                }
            }
        }
        key
    }
}

/// Whether a value may contain any characters.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        DataType::Boolean | DataType::Null => false,
        other => !(other.is_numeric() || other.is_temporal()),
    }
}

/// Whether it is at least one backslash followed by an N.
fn is_like_null(value: &str) -> bool {
    value.strip_suffix('N').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte == b'\\'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use arrow::array::{BinaryArray, BooleanArray, Int64Array, StringArray, TimestampMillisecondArray, new_null_array};
    use arrow::compute::cast;
    use arrow::datatypes::TimeUnit;

    use super::*;

    /// Keys of rows with these columns, all of which belong to the key.
    fn keys(columns: &[(&str, ArrayRef)]) -> Vec<String> {
        let columns = columns.iter().map(|(name, column)| (*name, ArrayRef::clone(column), true));
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let all: Vec<usize> = (0..rows.num_columns()).collect();
        let (key, texts) = (KeyTemplate::new(&rows.schema(), &all), texts(&rows).unwrap());
        (0..rows.num_rows()).map(|row| key.of("p:", &texts, row)).collect()
    }

    fn strings(texts: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(texts.to_vec()))
    }

    /// Rows with different keys would silently be added together; and readable keys must not change.
    #[test]
    fn keys_of_other_values_differ() {
        let some = [
            None,
            Some(""),
            Some(":"),
            Some("a"),
            Some("a:b"),
            Some("\\"),
            Some("\\N"),
            Some("\\\\N"),
            Some("\\:N"),
            Some("N"),
        ];
        let pairs: Vec<_> = some.iter().flat_map(|first| some.iter().map(|second| (*first, *second))).collect();
        let (first, second): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let numbers: Vec<Option<i64>> = (0..pairs.len() as i64).map(|at| (at % 3 > 0).then_some(at % 3)).collect();
        let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
        for columns in [
            vec![("a", strings(&first)), ("b", strings(&second))],
            vec![("a", strings(&first)), ("n", numbers), ("b", strings(&second))],
        ] {
            let keys = keys(&columns);
            let different: BTreeSet<&String> = keys.iter().collect();
            assert_eq!(different.len(), pairs.len(), "{keys:?}");
        }
        let different: BTreeSet<String> = keys(&[("a", strings(&some))]).into_iter().collect();
        assert_eq!(different.len(), some.len());

        assert_eq!(keys(&[("a", strings(&[Some("http://h/\\"), None]))]), ["p:http://h/\\", "p:\\N"]);
        let begin: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(0), None]));
        let both = keys(&[("a", strings(&[Some("a:b"), Some("a")])), ("begin", begin)]);
        assert_eq!(both, ["p:a:b:1970-01-01T00:00:00", "p:a:"]);
        let both = keys(&[("a", strings(&[Some("a:b"), Some("a")])), ("b", strings(&[Some("c:d"), None]))]);
        assert_eq!(both, ["p:a\\:b:c:d", "p:a:\\N"]);
    }

    /// A null depends on the type: that of a number is not text.
    #[test]
    fn nulls_are_of_a_type() {
        let of = |data_type: DataType| keys(&[("n", new_null_array(&data_type, 1)), ("a", strings(&[Some("x")]))]);
        let dictionary = |values| DataType::Dictionary(Box::new(DataType::Int32), Box::new(values));
        for plain in [
            DataType::Int8,
            DataType::Float64,
            DataType::Decimal128(9, 2),
            DataType::Boolean,
            DataType::Date32,
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Timestamp(TimeUnit::Second, Some("UTC".into())),
            DataType::Duration(TimeUnit::Second),
            DataType::Null,
            dictionary(DataType::Int64),
        ] {
            assert_eq!(of(plain), ["p::x"]);
        }
        for text in [DataType::Utf8, DataType::Utf8View, DataType::Binary, dictionary(DataType::Utf8)] {
            assert_eq!(of(text), ["p:\\N:x"]);
        }
    }

    /// The same values have the same key, however they are stored: a sink and a lookup may store them differently.
    #[test]
    fn ways_of_keeping_values_make_no_difference() {
        let plain = strings(&[Some("a:b"), None, Some("\\N")]);
        let expected = keys(&[("a", ArrayRef::clone(&plain)), ("b", ArrayRef::clone(&plain))]);
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for data_type in [DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, dictionary] {
            let other = cast(&plain, &data_type).unwrap();
            assert_eq!(keys(&[("a", ArrayRef::clone(&other)), ("b", other)]), expected, "{data_type}");
        }
        assert_eq!(keys(&[("a", Arc::new(BooleanArray::from(vec![true])))]), ["p:true"]);
    }

    /// Bytes that were not text used to become nulls, and all their rows had the same key.
    #[test]
    fn bytes_that_are_no_text() {
        let column: ArrayRef = Arc::new(BinaryArray::from(vec![b"\xff".as_slice()]));
        let rows = RecordBatch::try_from_iter([("a", column)]).unwrap();
        assert!(texts(&rows).unwrap_err().to_string().contains("UTF"));
    }
}
