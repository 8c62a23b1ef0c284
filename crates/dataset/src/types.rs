//! Column types by the names that people use, beside Arrow's own.

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{DataSetError, Result};

/// The type of a name: `int64`, `float32`, `str`, `bool`, `date`, `datetime`, `datetime[ns]`, `decimal(12, 2)`, `binary`, ...
/// or whatever Arrow itself writes, such as `Timestamp(Millisecond, Some("UTC"))`.
///
/// # Errors
/// `Query`, naming some that there are.
pub fn parse(name: &str) -> Result<DataType> {
    let lower = name.trim().to_ascii_lowercase();
    Ok(match lower.as_str() {
        "bool" | "boolean" => DataType::Boolean,
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int" | "int64" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "float16" => DataType::Float16,
        "float32" => DataType::Float32,
        "float" | "float64" | "double" => DataType::Float64,
        "str" | "string" | "utf8" => DataType::Utf8View,
        "bytes" | "binary" => DataType::BinaryView,
        "date" | "date32" => DataType::Date32,
        "time" => DataType::Time64(TimeUnit::Microsecond),
        "null" => DataType::Null,
        "datetime" | "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "duration" | "timedelta" => DataType::Duration(TimeUnit::Microsecond),
        _ => return with_parameters(&lower).or_else(|| name.trim().parse().ok()).ok_or_else(|| unknown(name)),
    })
}

/// `datetime[unit]`, `duration[unit]` and `decimal(precision, scale)`.
fn with_parameters(name: &str) -> Option<DataType> {
    let (kind, rest) = name.split_once(['[', '('])?;
    let inner = rest.strip_suffix([']', ')'])?;
    let mut parts = inner.split(',').map(str::trim);
    let first = parts.next()?;
    match kind {
        "datetime" | "timestamp" | "duration" => {
            let unit = match first {
                "s" => TimeUnit::Second,
                "ms" => TimeUnit::Millisecond,
                "us" => TimeUnit::Microsecond,
                "ns" => TimeUnit::Nanosecond,
                _ => return None,
            };
            Some(if kind == "duration" { DataType::Duration(unit) } else { DataType::Timestamp(unit, None) })
        }
        "decimal" => {
            let (precision, scale) = (first.parse().ok()?, parts.next().map_or(Some(0), |scale| scale.parse().ok())?);
            (1..=38).contains(&precision).then_some(DataType::Decimal128(precision, scale))
        }
        _ => None,
    }
}

fn unknown(name: &str) -> DataSetError {
    DataSetError::Query(format!(
        "no type {name:?}; there are bool, int8 to int64, uint8 to uint64, float16 to float64, str, bytes, date, time, \
         datetime, datetime[ns], duration, decimal(precision, scale), and Arrow's own such as 'List(Int64)'"
    ))
}

/// A schema of columns that may be null.
///
/// # Errors
/// Those of [`parse`].
pub fn schema<'a>(columns: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<SchemaRef> {
    let fields: Result<Vec<Field>> =
        columns.into_iter().map(|(name, kind)| Ok(Field::new(name, parse(kind)?, true))).collect();
    Ok(Schema::new(fields?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types() {
        assert_eq!(parse("int64").unwrap(), DataType::Int64);
        assert_eq!(parse("datetime[ns]").unwrap(), DataType::Timestamp(TimeUnit::Nanosecond, None));
        assert_eq!(parse("decimal(12, 2)").unwrap(), DataType::Decimal128(12, 2));
        assert_eq!(parse("Int64").unwrap(), DataType::Int64);
        assert_eq!(parse("Date64").unwrap(), DataType::Date64);
        for wrong in ["", "integer", "decimal(99, 2)", "datetime[h]", "decimal("] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
