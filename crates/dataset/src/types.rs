//! Column types under user-friendly names, in addition to Arrow's own.

use std::str::FromStr;

use arrow::array::timezone::Tz;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{DataSetError, Result};

/// The type with a name: `int64`, `float32`, `str`, `bool`, `date`, `datetime`, `datetime[ns]`,
/// `datetime[us, Europe/Paris]`, `decimal(12, 2)`, `binary`, ... or Arrow's own notation, such as
/// `Timestamp(Millisecond, Some("UTC"))`.
///
/// # Errors
/// `Query`, listing some valid names.
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
        _ => return with_parameters(name.trim()).or_else(|| name.trim().parse().ok()).ok_or_else(|| unknown(name)),
    })
}

/// `datetime[unit]`, `datetime[unit, zone]`, `duration[unit]` and `decimal(precision, scale)`.
fn with_parameters(name: &str) -> Option<DataType> {
    let (kind, rest) = name.split_once(['[', '('])?;
    let inner = rest.strip_suffix([']', ')'])?;
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    let unit = |name: &str| {
        Some(match name.to_ascii_lowercase().as_str() {
            "s" => TimeUnit::Second,
            "ms" => TimeUnit::Millisecond,
            "us" => TimeUnit::Microsecond,
            "ns" => TimeUnit::Nanosecond,
            _ => return None,
        })
    };
    match (kind.to_ascii_lowercase().as_str(), parts.as_slice()) {
        ("duration", [of]) => Some(DataType::Duration(unit(of)?)),
        ("datetime" | "timestamp", [of]) => Some(DataType::Timestamp(unit(of)?, None)),
        ("datetime" | "timestamp", [of, zone]) => {
            let zone = zone.trim_matches(['"', '\'']);
            let zone = (!zone.eq_ignore_ascii_case("none")).then_some(zone);
            zone.map_or(Ok(()), |zone| Tz::from_str(zone).map(drop)).ok()?;
            Some(DataType::Timestamp(unit(of)?, zone.map(Into::into)))
        }
        ("decimal", [precision, rest @ ..]) if rest.len() < 2 => {
            let scale = rest.first().map_or(Some(0), |scale| scale.parse().ok())?;
            let precision = precision.parse().ok()?;
            (1..=38).contains(&precision).then_some(DataType::Decimal128(precision, scale))
        }
        _ => None,
    }
}

fn unknown(name: &str) -> DataSetError {
    DataSetError::Query(format!(
        "unknown type {name:?}; use bool, int8 to int64, uint8 to uint64, float16 to float64, str, bytes, date, time, \
         datetime, datetime[ns], datetime[us, Europe/Paris], duration, decimal(precision, scale), or Arrow's own such \
         as 'List(Int64)'"
    ))
}

/// A schema with nullable columns.
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
        for zoned in
            ["datetime[us, Europe/Paris]", "Timestamp(us, \"Europe/Paris\")", "Timestamp(µs, \"Europe/Paris\")"]
        {
            let paris = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Paris".into()));
            assert_eq!(parse(zoned).unwrap(), paris, "{zoned}");
        }
        assert_eq!(parse("Timestamp(ms, None)").unwrap(), DataType::Timestamp(TimeUnit::Millisecond, None));
        assert_eq!(parse("Int64").unwrap(), DataType::Int64);
        assert_eq!(parse("Date64").unwrap(), DataType::Date64);
        for wrong in
            ["", "integer", "decimal(99, 2)", "datetime[h]", "decimal(", "datetime[us, Paris]", "decimal(3, 1, 1)"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
