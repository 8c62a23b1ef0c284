//! The key of a hash: the values of some columns, with colons between. Sinks write it and lookups ask for it, so both
//! come here.
//!
//! No two rows whose values differ have the same key, and keys that people read stay as people would write them:
//!
//! | type of the column                 | a value                                                           | null    |
//! |------------------------------------|-------------------------------------------------------------------|---------|
//! | a number, a time, a boolean        | as Arrow writes it: where it ends is known                        | nothing |
//! | any other that is not the last one | a backslash before each colon and backslash                       | `\N`    |
//! | the last of these                  | as it is, for it is what the others leave; `\N`, and what would   | `\N`    |
//! |                                    | be taken for it written so, has one more backslash in front       |         |

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Schema};
use arrow::error::ArrowError;

/// Where a text is null.
const NULL: &str = "\\N";

/// Columns as the texts that a server gets.
///
/// # Errors
/// Naming the column, for types that have no text, and for bytes that are none: they would come to be nulls otherwise.
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

/// How rows of a schema have keys.
#[derive(Clone, Debug)]
pub(super) struct KeyTemplate {
    parts: Vec<(usize, KeyPart)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyPart {
    /// Its texts end where they have to.
    Plain,
    /// Its texts may have any characters.
    Text,
    /// So may these, and no more such come behind them.
    LastText,
}

impl KeyTemplate {
    /// Of these columns, in this order.
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

    /// Of a row, behind a prefix. `texts` are all columns of the schema.
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

/// Whether a value may have any characters.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        DataType::Boolean | DataType::Null => false,
        other => !(other.is_numeric() || other.is_temporal()),
    }
}

/// Backslashes, one at least, and an N.
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

    /// Keys of rows with these columns, which are all of the key.
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

    /// Rows of other keys would be added together, in silence; and keys that people read must stay as they are.
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

    /// A null says by its type what it is: that of a number is no text.
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

    /// The same values, however they are kept, are the same key: a sink may have them in one way and a lookup in
    /// another.
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

    /// Bytes that are no text were nulls, and their rows all had one key.
    #[test]
    fn bytes_that_are_no_text() {
        let column: ArrayRef = Arc::new(BinaryArray::from(vec![b"\xff".as_slice()]));
        let rows = RecordBatch::try_from_iter([("a", column)]).unwrap();
        assert!(texts(&rows).unwrap_err().to_string().contains("UTF"));
    }
}
