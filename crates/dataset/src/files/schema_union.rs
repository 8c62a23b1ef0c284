//! A common schema for files with different ones: types become wide enough for all values, and columns that a file
//! lacks are null.

use std::fmt::Display;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::error::{DataSetError, Result};
use crate::lossless_cast::{can_cast, is_binary, is_text, plain_field, plain_type};

/// The columns of all files, in the order in which they first appear.
///
/// # Errors
/// `Data` for a column with incompatible types, naming two files.
pub fn unite<F: Display>(files: &[F], schemas: &[SchemaRef]) -> Result<SchemaRef> {
    let Some((first, others)) = schemas.split_first() else { return Ok(Arc::new(Schema::empty())) };
    let mut fields: Vec<Field> = first.fields().iter().map(|field| plain_field(field)).collect();
    // The file that determined each column's type, for the error.
    let mut origins = vec![0; fields.len()];
    for (other, schema) in others.iter().enumerate().map(|(place, schema)| (place + 1, schema)) {
        // Files written by the same program usually have the same schema.
        if schema.fields() == schemas[other - 1].fields() {
            continue;
        }
        for field in schema.fields() {
            let Some(known) = fields.iter().position(|known| known.name() == field.name()) else {
                fields.push(plain_field(field).with_nullable(true));
                origins.push(other);
                continue;
            };
            let (ours, theirs) = (fields[known].data_type().clone(), plain_type(field.data_type()));
            let Some(both) = common(&ours, &theirs) else {
                return Err(DataSetError::Data(format!(
                    "column {:?} is {ours} in {} but {theirs} in {}, which have no type in common: set \
                     schema={{...}}, or read the files separately, cast the column and combine them with union",
                    field.name(),
                    files[origins[known]],
                    files[other],
                )));
            };
            if both != ours {
                origins[known] = other;
            }
            let nullable = fields[known].is_nullable() || field.is_nullable();
            fields[known] = fields[known].clone().with_data_type(both).with_nullable(nullable);
        }
        for field in fields.iter_mut().filter(|field| schema.field_with_name(field.name()).is_err()) {
            field.set_nullable(true);
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Rejects a schema with types to which columns of the files cannot be cast.
///
/// # Errors
/// `Data`, naming the file.
pub(crate) fn fits<F: Display>(wanted: &Schema, files: &[F], schemas: &[SchemaRef]) -> Result<()> {
    for (file, schema) in files.iter().zip(schemas) {
        for field in wanted.fields() {
            if let Ok(there) = schema.field_with_name(field.name())
                && !can_cast(there.data_type(), field.data_type())
            {
                return Err(DataSetError::Data(format!(
                    "column {:?} is {} in {file}, which cannot become {}, as schema= says",
                    field.name(),
                    there.data_type(),
                    field.data_type()
                )));
            }
        }
    }
    Ok(())
}

/// The narrowest type that contains the values of both.
fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{
        Date32, Date64, Dictionary, Duration, FixedSizeBinary, FixedSizeList, LargeList, List, Map, Null, Struct,
        Time32, Time64, Timestamp,
    };
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Dictionary(_, a), Dictionary(_, b)) => common(a, b)?,
        (Dictionary(_, a), b) | (b, Dictionary(_, a)) => common(a, b)?,
        _ if a.is_numeric() && b.is_numeric() => number(a, b)?,
        _ if is_text(a) && is_text(b) => match (a, b) {
            (DataType::Utf8View, _) | (_, DataType::Utf8View) => DataType::Utf8View,
            _ => DataType::LargeUtf8,
        },
        _ if is_binary(a) && is_binary(b) => match (a, b) {
            (DataType::BinaryView, _) | (_, DataType::BinaryView) => DataType::BinaryView,
            _ => DataType::LargeBinary,
        },
        (FixedSizeBinary(_), other) | (other, FixedSizeBinary(_)) if is_binary(other) => other.clone(),
        (FixedSizeBinary(_), FixedSizeBinary(_)) => DataType::Binary,
        (Date32, Date64) | (Date64, Date32) => Date64,
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        (Timestamp(a, zone), Timestamp(b, other)) if zone.is_some() == other.is_some() => {
            Timestamp(finer(*a, *b), zone.clone())
        }
        (Duration(a), Duration(b)) => Duration(finer(*a, *b)),
        (Time32(a) | Time64(a), Time32(b) | Time64(b)) => match finer(*a, *b) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => Time32(unit),
            unit => Time64(unit),
        },
        (List(a), List(b)) => List(element(a, b)?),
        (LargeList(a), LargeList(b)) => LargeList(element(a, b)?),
        (FixedSizeList(a, n), FixedSizeList(b, m)) if n == m => FixedSizeList(element(a, b)?, *n),
        (Map(a, sorted), Map(b, _)) => Map(element(a, b)?, *sorted),
        (Struct(a), Struct(b)) => Struct(structs(a, b)?),
        _ => return None,
    })
}

fn element(a: &Arc<Field>, b: &Arc<Field>) -> Option<Arc<Field>> {
    let both = common(a.data_type(), b.data_type())?;
    Some(Arc::new(a.as_ref().clone().with_data_type(both).with_nullable(a.is_nullable() || b.is_nullable())))
}

fn structs(a: &Fields, b: &Fields) -> Option<Fields> {
    let mut fields = Vec::new();
    for field in a {
        fields.push(match b.find(field.name()) {
            Some((_, other)) => element(field, other)?,
            None => Arc::new(field.as_ref().clone().with_nullable(true)),
        });
    }
    let more = b.iter().filter(|field| a.find(field.name()).is_none());
    fields.extend(more.map(|field| Arc::new(field.as_ref().clone().with_nullable(true))));
    Some(fields.into())
}

fn number(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Decimal128, Decimal256, Float16, Float32, Float64, Int8, Int16, Int32, Int64};
    let bits = |kind: &DataType| kind.primitive_width().unwrap_or_default() * 8;
    Some(match (a, b) {
        _ if a.is_floating() && b.is_floating() => {
            if bits(a) > bits(b) {
                a.clone()
            } else {
                b.clone()
            }
        }
        // Some 64-bit integers are not exact floats; such a value is an error when it is read.
        _ if a.is_floating() && b.is_integer() => {
            if bits(b) <= 16 && *a != Float64 && *a != Float16 {
                Float32
            } else {
                Float64
            }
        }
        _ if a.is_integer() && b.is_floating() => number(b, a)?,
        _ if a.is_signed_integer() == b.is_signed_integer() && a.is_integer() && b.is_integer() => {
            if bits(a) > bits(b) { a.clone() } else { b.clone() }
        }
        _ if a.is_integer() && b.is_integer() => {
            let (signed, unsigned) = if a.is_signed_integer() { (bits(a), bits(b)) } else { (bits(b), bits(a)) };
            match signed.max(2 * unsigned) {
                8 => Int8,
                16 => Int16,
                32 => Int32,
                64 => Int64,
                _ => return None,
            }
        }
        _ => {
            let ((whole, scale), (others, other_scale)) = (digits(a)?, digits(b)?);
            let scale = scale.max(other_scale);
            match u8::try_from(whole.max(others) + i16::from(scale)).ok()? {
                all @ 0..=38 => Decimal128(all, scale),
                all @ 39..=76 => Decimal256(all, scale),
                _ => return None,
            }
        }
    })
}

/// The numbers of digits before and after the decimal point.
fn digits(kind: &DataType) -> Option<(i16, i8)> {
    Some(match kind {
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        DataType::Decimal32(all, scale)
        | DataType::Decimal64(all, scale)
        | DataType::Decimal128(all, scale)
        | DataType::Decimal256(all, scale) => (i16::from(*all) - i16::from(*scale), *scale),
        _ => return None,
    })
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    a.max(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type that is too narrow would reject or truncate values.
    #[test]
    fn types_in_common() {
        use DataType::*;
        let utc = || Some("UTC".into());
        for (a, b, both) in [
            (Int8, Int64, Some(Int64)),
            (UInt8, Int8, Some(Int16)),
            (UInt32, Int64, Some(Int64)),
            (UInt64, Int64, None),
            (Int16, Float32, Some(Float32)),
            (Int32, Float32, Some(Float64)),
            (Int64, Float64, Some(Float64)),
            (Decimal128(5, 2), Decimal128(6, 4), Some(Decimal128(7, 4))),
            (Decimal128(5, 2), Int32, Some(Decimal128(12, 2))),
            (Decimal128(5, 2), Float64, None),
            (Utf8, LargeUtf8, Some(LargeUtf8)),
            (Utf8, Utf8View, Some(Utf8View)),
            (Utf8, Int64, None),
            (Null, Boolean, Some(Boolean)),
            (Date32, Timestamp(TimeUnit::Second, None), Some(Timestamp(TimeUnit::Second, None))),
            (
                Timestamp(TimeUnit::Second, utc()),
                Timestamp(TimeUnit::Nanosecond, utc()),
                Some(Timestamp(TimeUnit::Nanosecond, utc())),
            ),
            (Timestamp(TimeUnit::Second, utc()), Timestamp(TimeUnit::Second, None), None),
            (Dictionary(Box::new(Int32), Box::new(Utf8)), Utf8, Some(Utf8)),
        ] {
            assert_eq!(common(&a, &b), both, "{a} and {b}");
            assert_eq!(common(&b, &a), both, "{b} and {a}");
        }
    }
}
