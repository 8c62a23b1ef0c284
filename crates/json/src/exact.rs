//! Values of text files in types that may have too little room for them. Arrow's readers cut digits, fractions and
//! times of day without a word; what they read here has room for all, and becomes what is wanted by a step that rounds
//! decimals, as casts do, and refuses the rest.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, Fields, Float16Type, Float32Type, Float64Type,
    Schema, SchemaRef,
};
use arrow::error::ArrowError;

use crate::times;

/// How rows of a schema are read from CSV.
#[derive(Clone, Debug)]
pub struct LosslessReader {
    schema: SchemaRef,
    /// Decimals with a digit more, times as texts.
    read: SchemaRef,
    /// Floats as texts, too.
    floats: SchemaRef,
    /// Of these columns a value has to be written as it would be printed.
    canonical: Vec<bool>,
}

impl LosslessReader {
    /// For rows of `schema`.
    pub fn new(schema: &SchemaRef) -> Self {
        let guarded = with_guard_digits(schema);
        let text = |kind: &DataType| if kind.is_temporal() { DataType::Utf8 } else { kind.clone() };
        let read = schema_with(&guarded, text);
        let floats = schema_with(&read, |kind| if kind.is_floating() { DataType::Utf8 } else { kind.clone() });
        let canonical = vec![false; schema.fields().len()];
        LosslessReader { schema: SchemaRef::clone(schema), read, floats, canonical }
    }

    /// The same, where a number has to stand there as it would be printed: `007` is no value of a column of whole
    /// numbers.
    pub fn strict(schema: &SchemaRef) -> Self {
        let exact = LosslessReader::new(schema);
        let is_number = |kind: &DataType| kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean;
        let canonical: Vec<bool> = schema.fields().iter().map(|field| is_number(field.data_type())).collect();
        let text = |schema: &SchemaRef| {
            schema_with(schema, |kind| if is_number(kind) { DataType::Utf8 } else { kind.clone() })
        };
        LosslessReader { read: text(&exact.read), floats: text(&exact.floats), canonical, ..exact }
    }

    /// The rows that `read` makes of a schema's types, as rows of the wanted schema, or of the columns of it that
    /// `projection` names.
    ///
    /// # Errors
    /// Those of `read`; a value that the wanted type has no room for.
    pub fn read(
        &self,
        projection: Option<&[usize]>,
        read: impl Fn(&SchemaRef) -> Result<RecordBatch, ArrowError>,
    ) -> Result<RecordBatch, ArrowError> {
        let batch = read(&self.read)?;
        // An infinite number that somebody wrote, or one that is too large: only its text tells.
        let batch = if batch.columns().iter().any(|column| is_infinite(&column.to_data())) {
            read(&self.floats)?
        } else {
            batch
        };
        self.typed(&batch, projection)
    }

    /// Rows of texts, or of the types that are read, as rows of the wanted schema.
    ///
    /// # Errors
    /// A value that the wanted type has no room for.
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

/// A column as one of another type; none of its values is cut.
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
        // Casts know more words for it than the reader of CSV.
        let truth = |text: &str| match text {
            _ if text.eq_ignore_ascii_case("true") => Ok(true),
            _ if text.eq_ignore_ascii_case("false") => Ok(false),
            _ => Err(unfit(text, field, "")),
        };
        let values = texts.iter().map(|text| text.map(truth).transpose());
        return Ok(Arc::new(values.collect::<Result<BooleanArray, _>>()?));
    }
    // Of many texts the one at fault is looked for.
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

/// The values, if each is written as it prints.
fn printed(texts: &ArrayRef, made: ArrayRef, field: &Field) -> Result<ArrayRef, ArrowError> {
    let Some(texts) = texts.as_string_opt::<i32>() else { return Ok(made) };
    let other = (0..made.len()).find(|&row| made.is_valid(row) && !is_canonical(texts.value(row), field.data_type()));
    match other {
        Some(row) => Err(unfit(texts.value(row), field, "would be written otherwise")),
        None => Ok(made),
    }
}

/// Whether a value of a type stands there as it would be printed, so that nothing is lost if it is read as one.
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
                // 2.0 of a column of fractions is how those print.
                Some(fraction) => is_plain && are_digits(fraction) && (fraction == "0" || !fraction.ends_with('0')),
            }
        }
        _ => true,
    }
}

/// Whether a text is a number that would lose something as one: zeros before it, or the plus sign of a whole one. It is
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

/// Whether there is an infinite number, at any depth.
fn is_infinite(data: &ArrayData) -> bool {
    match data.data_type() {
        DataType::Float16 => !infinite_rows(&arrow::array::make_array(data.clone())).is_empty(),
        DataType::Float32 => data.buffers()[0].typed_data::<f32>().iter().any(|value| value.is_infinite()),
        DataType::Float64 => data.buffers()[0].typed_data::<f64>().iter().any(|value| value.is_infinite()),
        _ => data.child_data().iter().any(is_infinite),
    }
}

/// Whether rows have an infinite number that no text of `record` says: JSON cannot write it but as a text.
pub fn has_overflown(batch: &RecordBatch, record: &[u8]) -> bool {
    batch.columns().iter().any(|column| is_infinite(&column.to_data()))
        && !record.windows(3).any(|word| word.eq_ignore_ascii_case(b"inf"))
}

/// The same columns, decimals with one digit more behind the point. Arrow's readers cut digits that a type has no room
/// for; with this one a cast rounds as every cast does.
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
/// A number that is too large.
pub fn rounded(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if batch.schema_ref().fields() == schema.fields() {
        return Ok(batch);
    }
    let strictly = CastOptions { safe: false, ..Default::default() };
    let column = |(column, field): (&ArrayRef, &Arc<Field>)| cast_with_options(column, field.data_type(), &strictly);
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<_, _>>()?;
    RecordBatch::try_new(SchemaRef::clone(schema), columns)
}

/// A type, `change` made to it if it is not nested, else to the types within.
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

/// A schema, `change` made to the types of its columns.
pub fn schema_with(schema: &SchemaRef, change: impl Fn(&DataType) -> DataType) -> SchemaRef {
    let changed = |field: &Arc<Field>| field.as_ref().clone().with_data_type(change(field.data_type()));
    let fields: Fields = schema.fields().iter().map(changed).collect();
    match fields == *schema.fields() {
        true => Arc::clone(schema),
        false => Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
    }
}
