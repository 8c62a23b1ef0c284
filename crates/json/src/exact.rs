//! Reads values of text files into types that may be too small for them. Arrow's readers silently truncate digits,
//! fractions and times of day. Here they read into types that are large enough; a second step then converts to the
//! target type. It rounds decimals, as casts do, and rejects everything else that does not fit.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, Fields, Float16Type, Float32Type, Float64Type,
    Schema, SchemaRef,
};
use arrow::error::ArrowError;

use crate::times;

/// How to read rows of a schema from CSV.
#[derive(Clone, Debug)]
pub struct LosslessReader {
    schema: SchemaRef,
    /// Decimals with one more digit, times as text.
    read: SchemaRef,
    /// Floats as text, too.
    floats: SchemaRef,
    /// Whether the values of each column must be in canonical form, as they would be printed.
    canonical: Vec<bool>,
}

impl LosslessReader {
    /// A reader for rows of `schema`.
    pub fn new(schema: &SchemaRef) -> Self {
        let guarded = with_guard_digits(schema);
        let text = |kind: &DataType| if kind.is_temporal() { DataType::Utf8 } else { kind.clone() };
        let read = schema_with(&guarded, text);
        let floats = schema_with(&read, |kind| if kind.is_floating() { DataType::Utf8 } else { kind.clone() });
        let canonical = vec![false; schema.fields().len()];
        LosslessReader { schema: SchemaRef::clone(schema), read, floats, canonical }
    }

    /// The same, but numbers must be in canonical form: `007` is not a value of an integer column.
    pub fn strict(schema: &SchemaRef) -> Self {
        let exact = LosslessReader::new(schema);
        let is_number = |kind: &DataType| kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean;
        let canonical: Vec<bool> = schema.fields().iter().map(|field| is_number(field.data_type())).collect();
        let text = |schema: &SchemaRef| {
            schema_with(schema, |kind| if is_number(kind) { DataType::Utf8 } else { kind.clone() })
        };
        LosslessReader { read: text(&exact.read), floats: text(&exact.floats), canonical, ..exact }
    }

    /// Converts the rows that `read` returns for a schema's types to rows of the target schema, or to those of its
    /// columns that `projection` selects.
    ///
    /// # Errors
    /// Those of `read`; a value that does not fit the target type.
    pub fn read(
        &self,
        projection: Option<&[usize]>,
        read: impl Fn(&SchemaRef) -> Result<RecordBatch, ArrowError>,
    ) -> Result<RecordBatch, ArrowError> {
        let batch = read(&self.read)?;
        // Either infinity in the input or a number that is out of range: only the text tells.
        let batch = if batch.columns().iter().any(|column| is_infinite(&column.to_data())) {
            read(&self.floats)?
        } else {
            batch
        };
        self.typed(&batch, projection)
    }

    /// Converts rows of text, or of the types that are read, to rows of the target schema.
    ///
    /// # Errors
    /// A value that does not fit the target type.
    pub fn typed(&self, batch: &RecordBatch, projection: Option<&[usize]>) -> Result<RecordBatch, ArrowError> {
        let at = |column: usize| projection.map_or(column, |projection| projection[column]);
        let schema = match projection {
            Some(projection) => Arc::new(self.schema.project(projection)?),
            None => SchemaRef::clone(&self.schema),
        };
        let typed = |(number, (column, field)): (usize, (&ArrayRef, &Arc<Field>))| {
            let made = value(column, field)?;
            if self.canonical[at(number)] { printed(column, made, field) } else { Ok(made) }
        };
        let columns = batch.columns().iter().zip(schema.fields()).enumerate().map(typed);
        let columns = columns.collect::<Result<_, ArrowError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(schema, columns, &options)
    }
}

/// Converts a column to another type without truncating any value.
fn value(column: &ArrayRef, field: &Field) -> Result<ArrayRef, ArrowError> {
    let kind = field.data_type();
    if column.data_type() == kind {
        return Ok(Arc::clone(column));
    }
    let strictly = CastOptions { safe: false, ..Default::default() };
    let Some(texts) = column.as_string_opt::<i32>() else { return cast_with_options(column, kind, &strictly) };
    if let Some(parsed) = times::parsed(texts, kind) {
        return parsed.map_err(|unread| unfit(texts.value(unread.row), field, unread.why));
    }
    if *kind == DataType::Boolean {
        // Casts accept more words for a boolean than the CSV reader.
        let truth = |text: &str| match text {
            _ if text.eq_ignore_ascii_case("true") => Ok(true),
            _ if text.eq_ignore_ascii_case("false") => Ok(false),
            _ => Err(unfit(text, field, "")),
        };
        let values = texts.iter().map(|text| text.map(truth).transpose());
        return Ok(Arc::new(values.collect::<Result<BooleanArray, _>>()?));
    }
    // For an error, the offending text is searched for afterwards.
    let made = cast_with_options(column, kind, &CastOptions::default())?;
    let lost = (0..texts.len()).find(|&row| texts.is_valid(row) && made.is_null(row));
    if let Some(row) = lost {
        return Err(unfit(texts.value(row), field, ""));
    }
    if kind.is_floating() {
        let infinite = infinite_rows(&made).into_iter().find(|&row| !says_infinite(texts.value(row)));
        if let Some(row) = infinite {
            return Err(unfit(texts.value(row), field, "is too large"));
        }
    }
    Ok(made)
}

/// The values, if each is written in canonical form.
fn printed(texts: &ArrayRef, made: ArrayRef, field: &Field) -> Result<ArrayRef, ArrowError> {
    let Some(texts) = texts.as_string_opt::<i32>() else { return Ok(made) };
    let other = (0..made.len()).find(|&row| made.is_valid(row) && !is_canonical(texts.value(row), field.data_type()));
    match other {
        Some(row) => Err(unfit(texts.value(row), field, "would be written otherwise")),
        None => Ok(made),
    }
}

/// Whether a value of a type is in canonical form, so that nothing is lost by parsing it.
pub fn is_canonical(text: &str, kind: &DataType) -> bool {
    match kind {
        DataType::Boolean => matches!(text, "true" | "false"),
        _ if kind.is_integer() || kind.is_floating() => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
            let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let is_plain = are_digits(whole) && (whole == "0" || !whole.starts_with('0'));
            match fraction {
                None => is_plain && text != "-0",
                // 2.0 in a float column is canonical.
                Some(fraction) => is_plain && are_digits(fraction) && (fraction == "0" || !fraction.ends_with('0')),
            }
        }
        _ => true,
    }
}

/// Whether a text is a number that would lose something if parsed: leading zeros, or the plus sign of an integer. It is
/// a code.
pub fn is_code(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text).as_bytes();
    let has_zeros = matches!(digits, [b'0', b'0'..=b'9', ..]);
    has_zeros || (text.starts_with('+') && digits.iter().all(u8::is_ascii_digit))
}

fn unfit(text: &str, field: &Field, why: &str) -> ArrowError {
    let (kind, name) = (field.data_type(), field.name());
    let why = if why.is_empty() { String::new() } else { format!(" (it {why})") };
    ArrowError::ParseError(format!("{text:?} is not of type {kind}, that of column {name:?}{why}"))
}

fn says_infinite(text: &str) -> bool {
    text.trim_start_matches([' ', '+', '-']).starts_with(['i', 'I'])
}

fn infinite_rows(column: &ArrayRef) -> Vec<usize> {
    let is_infinite = |row: &usize| match column.data_type() {
        DataType::Float16 => column.as_primitive::<Float16Type>().value(*row).is_infinite(),
        DataType::Float32 => column.as_primitive::<Float32Type>().value(*row).is_infinite(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(*row).is_infinite(),
        _ => false,
    };
    (0..column.len()).filter(is_infinite).collect()
}

/// Whether there is an infinite number at any nesting depth.
fn is_infinite(data: &ArrayData) -> bool {
    match data.data_type() {
        DataType::Float16 => !infinite_rows(&arrow::array::make_array(data.clone())).is_empty(),
        DataType::Float32 => data.buffers()[0].typed_data::<f32>().iter().any(|value| value.is_infinite()),
        DataType::Float64 => data.buffers()[0].typed_data::<f64>().iter().any(|value| value.is_infinite()),
        _ => data.child_data().iter().any(is_infinite),
    }
}

/// Whether rows contain an infinity that no text of `record` stands for: JSON can write it only as text.
pub fn has_overflown(batch: &RecordBatch, record: &[u8]) -> bool {
    batch.columns().iter().any(|column| is_infinite(&column.to_data()))
        && !record.windows(3).any(|word| word.eq_ignore_ascii_case(b"inf"))
}

/// The same columns, with one more decimal place for decimals. Arrow's readers truncate digits that do not fit; given
/// the additional digit, a cast rounds as every cast does.
pub fn with_guard_digits(schema: &SchemaRef) -> SchemaRef {
    let guarded = |kind: &DataType| match kind {
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
            if *digits < DECIMAL128_MAX_PRECISION =>
        {
            DataType::Decimal128(digits + 1, scale + 1)
        }
        DataType::Decimal128(digits, scale) => DataType::Decimal256(digits + 1, scale + 1),
        DataType::Decimal256(digits, scale) if *digits < DECIMAL256_MAX_PRECISION => {
            DataType::Decimal256(digits + 1, scale + 1)
        }
        other => other.clone(),
    };
    schema_with(schema, |kind| type_with(kind, &guarded))
}

/// Rows with guard digits, rounded to the decimals of `schema`.
///
/// # Errors
/// A number that is out of range.
pub fn rounded(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if batch.schema_ref().fields() == schema.fields() {
        return Ok(batch);
    }
    let strictly = CastOptions { safe: false, ..Default::default() };
    let column = |(column, field): (&ArrayRef, &Arc<Field>)| cast_with_options(column, field.data_type(), &strictly);
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<_, _>>()?;
    RecordBatch::try_new(SchemaRef::clone(schema), columns)
}

/// A type with `change` applied to it, or to the types within if it is nested.
pub fn type_with(kind: &DataType, change: &dyn Fn(&DataType) -> DataType) -> DataType {
    let inner = |field: &Arc<Field>| {
        let kind = type_with(field.data_type(), change);
        Arc::new(field.as_ref().clone().with_data_type(kind))
    };
    match kind {
        DataType::List(of) => DataType::List(inner(of)),
        DataType::LargeList(of) => DataType::LargeList(inner(of)),
        DataType::FixedSizeList(of, length) => DataType::FixedSizeList(inner(of), *length),
        DataType::Map(of, sorted) => DataType::Map(inner(of), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        other => change(other),
    }
}

/// A schema with `change` applied to the types of its columns.
pub fn schema_with(schema: &SchemaRef, change: impl Fn(&DataType) -> DataType) -> SchemaRef {
    let changed = |field: &Arc<Field>| field.as_ref().clone().with_data_type(change(field.data_type()));
    let fields: Fields = schema.fields().iter().map(changed).collect();
    match fields == *schema.fields() {
        true => Arc::clone(schema),
        false => Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
    }
}
