//! The columns that rows are read into.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::builder::{
    BooleanBuilder, LargeStringBuilder, PrimitiveBuilder, StringBuilder, StringLikeArrayBuilder, StringViewBuilder,
};
use arrow::array::timezone::Tz;
use arrow::array::{ArrayRef, ArrowPrimitiveType};
use arrow::datatypes::{
    ArrowTimestampType, DataType, Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::scan::RecordScanner;
use crate::times;

/// A column while rows are read.
pub(crate) trait ColumnReader {
    /// Reads the next value, which is not null.
    fn read(&mut self, scan: &mut RecordScanner<'_>, room: &mut String) -> Option<()>;

    fn null(&mut self);

    fn finish(&mut self) -> ArrayRef;
}

/// A column of a type, with capacity for `rows` rows; `None` if the type is not supported here. With `texts_of_all`,
/// numbers and booleans are accepted where text is expected.
pub(crate) fn column(data_type: &DataType, rows: usize, texts_of_all: bool) -> Option<Box<dyn ColumnReader>> {
    let column: Box<dyn ColumnReader> = match data_type {
        DataType::Utf8 => Box::new(TextColumn { values: StringBuilder::with_capacity(rows, rows * 16), texts_of_all }),
        DataType::LargeUtf8 => {
            Box::new(TextColumn { values: LargeStringBuilder::with_capacity(rows, rows * 16), texts_of_all })
        }
        DataType::Utf8View => Box::new(TextColumn { values: StringViewBuilder::with_capacity(rows), texts_of_all }),
        DataType::Boolean => Box::new(BooleanBuilder::with_capacity(rows)),
        DataType::Int8 => Box::new(NumberColumn::<Int8Type>::integers(rows)),
        DataType::Int16 => Box::new(NumberColumn::<Int16Type>::integers(rows)),
        DataType::Int32 => Box::new(NumberColumn::<Int32Type>::integers(rows)),
        DataType::Int64 => Box::new(NumberColumn::<Int64Type>::integers(rows)),
        DataType::UInt8 => Box::new(NumberColumn::<UInt8Type>::integers(rows)),
        DataType::UInt16 => Box::new(NumberColumn::<UInt16Type>::integers(rows)),
        DataType::UInt32 => Box::new(NumberColumn::<UInt32Type>::integers(rows)),
        DataType::UInt64 => Box::new(NumberColumn::<UInt64Type>::integers(rows)),
        DataType::Float32 => Box::new(NumberColumn::<Float32Type> {
            values: PrimitiveBuilder::with_capacity(rows),
            read: |scan| finite(scan, f32::is_finite),
        }),
        DataType::Float64 => Box::new(NumberColumn::<Float64Type> {
            values: PrimitiveBuilder::with_capacity(rows),
            read: |scan| finite(scan, f64::is_finite),
        }),
        DataType::Date32 => Box::new(DateColumn(PrimitiveBuilder::with_capacity(rows))),
        DataType::Timestamp(unit, zone) => {
            let zone: Tz = zone.as_deref().unwrap_or("+00:00").parse().ok()?;
            match unit {
                TimeUnit::Second => Box::new(TimestampColumn::<TimestampSecondType>::new(data_type, zone, rows)),
                TimeUnit::Millisecond => {
                    Box::new(TimestampColumn::<TimestampMillisecondType>::new(data_type, zone, rows))
                }
                TimeUnit::Microsecond => {
                    Box::new(TimestampColumn::<TimestampMicrosecondType>::new(data_type, zone, rows))
                }
                TimeUnit::Nanosecond => {
                    Box::new(TimestampColumn::<TimestampNanosecondType>::new(data_type, zone, rows))
                }
            }
        }
        _ => return None,
    };
    Some(column)
}

struct TextColumn<B> {
    values: B,
    texts_of_all: bool,
}

impl<B: StringLikeArrayBuilder> ColumnReader for TextColumn<B> {
    fn read(&mut self, scan: &mut RecordScanner<'_>, room: &mut String) -> Option<()> {
        match scan.peek() {
            b'"' => self.values.append_value(scan.quoted()?.text(room)?),
            _ if !self.texts_of_all => return None,
            b't' | b'f' => self.values.append_value(if scan.boolean()? { "true" } else { "false" }),
            _ => self.values.append_value(scan.number()?.text),
        }
        Some(())
    }

    fn null(&mut self) {
        self.values.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        self.values.finish()
    }
}

impl ColumnReader for BooleanBuilder {
    fn read(&mut self, scan: &mut RecordScanner<'_>, _: &mut String) -> Option<()> {
        self.append_value(scan.boolean()?);
        Some(())
    }

    fn null(&mut self) {
        self.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.finish())
    }
}

struct NumberColumn<T: ArrowPrimitiveType> {
    values: PrimitiveBuilder<T>,
    read: fn(&mut RecordScanner<'_>) -> Option<T::Native>,
}

impl<T: ArrowPrimitiveType<Native: FromStr>> NumberColumn<T> {
    fn integers(rows: usize) -> Self {
        NumberColumn { values: PrimitiveBuilder::with_capacity(rows), read: whole }
    }
}

/// A number that is in range.
fn finite<N: FromStr + Copy>(scan: &mut RecordScanner<'_>, is_finite: fn(N) -> bool) -> Option<N> {
    scan.number()?.text.parse().ok().filter(|&number| is_finite(number))
}

/// A number without a point or an exponent.
fn whole<N: FromStr>(scan: &mut RecordScanner<'_>) -> Option<N> {
    let number = scan.number()?;
    number.is_whole.then(|| number.text.parse().ok())?
}

impl<T: ArrowPrimitiveType> ColumnReader for NumberColumn<T> {
    fn read(&mut self, scan: &mut RecordScanner<'_>, _: &mut String) -> Option<()> {
        self.values.append_value((self.read)(scan)?);
        Some(())
    }

    fn null(&mut self) {
        self.values.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.values.finish())
    }
}

struct TimestampColumn<T: ArrowTimestampType> {
    values: PrimitiveBuilder<T>,
    zone: Tz,
}

impl<T: ArrowTimestampType> TimestampColumn<T> {
    fn new(data_type: &DataType, zone: Tz, rows: usize) -> Self {
        TimestampColumn { values: PrimitiveBuilder::with_capacity(rows).with_data_type(data_type.clone()), zone }
    }
}

impl<T: ArrowTimestampType> ColumnReader for TimestampColumn<T> {
    fn read(&mut self, scan: &mut RecordScanner<'_>, room: &mut String) -> Option<()> {
        let value = if scan.peek() == b'"' {
            times::timestamp(scan.quoted()?.text(room)?, &self.zone, T::UNIT).ok()?
        } else {
            whole(scan)?
        };
        self.values.append_value(value);
        Some(())
    }

    fn null(&mut self) {
        self.values.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.values.finish())
    }
}

struct DateColumn(PrimitiveBuilder<Date32Type>);

impl ColumnReader for DateColumn {
    fn read(&mut self, scan: &mut RecordScanner<'_>, room: &mut String) -> Option<()> {
        let quoted = scan.peek() == b'"';
        self.0.append_value(if quoted { times::date(scan.quoted()?.text(room)?).ok()? } else { whole(scan)? });
        Some(())
    }

    fn null(&mut self) {
        self.0.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}
