//! Casts that lose nothing, and the types that columns have internally.
//!
//! Arrow's casts reject values that are out of range, but truncate the fraction of a float, and round values that the
//! target type cannot distinguish. If the cast is implicit, because files or a schema have other types, such a value is
//! an error here.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    RecordBatch, StructArray, new_null_array,
};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, can_cast_types, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Fields, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
pub(crate) use tidemill_json::{schema_with, type_with};

/// The internal type of a column with the given type. Run-end encoded values and list views are materialized, because
/// joins and groups would compare runs and views instead of values. Dictionary keys are wide enough for the values of
/// all batches together.
pub fn plain_type(kind: &DataType) -> DataType {
    type_with(kind, &|kind| match kind {
        DataType::RunEndEncoded(_, values) => plain_type(values.data_type()),
        DataType::ListView(of) => DataType::List(Arc::new(plain_field(of))),
        DataType::LargeListView(of) => DataType::LargeList(Arc::new(plain_field(of))),
        DataType::Dictionary(keys, values) => {
            let keys = match keys.as_ref() {
                DataType::Int8 | DataType::UInt8 | DataType::Int16 | DataType::UInt16 => DataType::Int32,
                wide => wide.clone(),
            };
            DataType::Dictionary(Box::new(keys), Box::new(plain_type(values)))
        }
        other => other.clone(),
    })
}

pub(crate) fn plain_field(field: &Field) -> Field {
    field.clone().with_data_type(plain_type(field.data_type()))
}

/// The same columns with plain types.
pub fn plain_schema(schema: &SchemaRef) -> SchemaRef {
    schema_with(schema, plain_type)
}

/// The same values with plain types.
///
/// # Errors
/// None known.
pub fn plain_batch(batch: &RecordBatch, plain: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if batch.schema_ref().fields() == plain.fields() {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().zip(plain.fields()).map(|(column, field)| exact(column, field.data_type()));
    RecordBatch::try_new(Arc::clone(plain), columns.collect::<Result<_, _>>()?)
}

/// Whether every value of one type is a value of the other, and a plain cast preserves it.
pub(crate) fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Date32, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64, Null, UInt8, UInt16, UInt32, UInt64,
    };
    match (from, to) {
        _ if from == to => true,
        (Null, _) => !to.is_nested(),
        (Int8, Int16 | Int32 | Int64 | Float32 | Float64)
        | (Int16, Int32 | Int64 | Float32 | Float64)
        | (Int32, Int64 | Float64)
        | (UInt8, UInt16 | UInt32 | UInt64 | Int16 | Int32 | Int64 | Float32 | Float64)
        | (UInt16, UInt32 | UInt64 | Int32 | Int64 | Float32 | Float64)
        | (UInt32, UInt64 | Int64 | Float64)
        | (Float32, Float64)
        | (Date32, DataType::Date64) => true,
        (Decimal128(digits, scale), Decimal128(more, finer)) => {
            finer >= scale && i16::from(*more) - i16::from(*finer) >= i16::from(*digits) - i16::from(*scale)
        }
        _ => is_text(from) && is_text(to) || is_binary(from) && is_binary(to),
    }
}

pub(crate) fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub(crate) fn is_binary(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Whether a cast exists at all.
pub(crate) fn can_cast(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        _ if from == to || *from == DataType::Null => true,
        (DataType::RunEndEncoded(_, values), _) => can_cast(values.data_type(), to),
        (DataType::ListView(of), _) => can_cast(&DataType::List(Arc::clone(of)), to),
        (DataType::LargeListView(of), _) => can_cast(&DataType::LargeList(Arc::clone(of)), to),
        (DataType::Struct(from), DataType::Struct(to)) => to.iter().all(|field| match from.find(field.name()) {
            Some((_, known)) => can_cast(known.data_type(), field.data_type()),
            None => field.is_nullable(),
        }),
        (DataType::List(from), DataType::List(to))
        | (DataType::LargeList(from), DataType::LargeList(to))
        | (DataType::Map(from, _), DataType::Map(to, _)) => can_cast(from.data_type(), to.data_type()),
        _ => can_cast_types(from, to),
    }
}

/// The values converted to another type.
///
/// # Errors
/// `CastError` for the first value that would change.
pub fn exact(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let from = array.data_type();
    match (from, to) {
        _ if from == to => Ok(Arc::clone(array)),
        (DataType::Null, _) => Ok(new_null_array(to, array.len())),
        (DataType::RunEndEncoded(_, values), _) => exact(&cast(array, values.data_type())?, to),
        (DataType::ListView(of), _) => exact(&cast(array, &DataType::List(Arc::clone(of)))?, to),
        (DataType::LargeListView(of), _) => exact(&cast(array, &DataType::LargeList(Arc::clone(of)))?, to),
        (DataType::Dictionary(_, values), DataType::Dictionary(_, wanted)) if values == wanted => strict(array, to),
        (DataType::Dictionary(_, values), _) => exact(&cast(array, values)?, to),
        (_, DataType::Dictionary(_, values)) => strict(&exact(array, values)?, to),
        (DataType::Struct(_), DataType::Struct(fields)) => struct_of(array.as_struct(), fields),
        (DataType::List(_), DataType::List(of)) => list_of(array.as_list::<i32>(), of),
        (DataType::LargeList(_), DataType::LargeList(of)) => list_of(array.as_list::<i64>(), of),
        (DataType::FixedSizeList(_, length), DataType::FixedSizeList(of, wanted)) if length == wanted => {
            let list = array.as_fixed_size_list();
            let values = exact(list.values(), of.data_type())?;
            Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(of), *length, values, list.nulls().cloned())?))
        }
        (DataType::Map(..), DataType::Map(entries, sorted)) => map_of(array.as_map(), entries, *sorted),
        // A different kind of list: its elements first.
        _ if let (Some(same_kind), Some(_)) = (of_elements(from, to), of_elements(to, to))
            && same_kind != *from =>
        {
            strict(&exact(array, &same_kind)?, to)
        }
        _ => {
            let made = strict(array, to)?;
            match first_lost(array, &made)? {
                None => Ok(made),
                Some(row) => {
                    let value = array_value_to_string(array, row)?;
                    Err(ArrowError::CastError(format!("{value} ({from}) is not a value of type {to}")))
                }
            }
        }
    }
}

/// The list type with the elements of another.
fn of_elements(kind: &DataType, of: &DataType) -> Option<DataType> {
    let (DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _)) = of else {
        return None;
    };
    let element = Arc::clone(element);
    Some(match kind {
        DataType::List(_) => DataType::List(element),
        DataType::LargeList(_) => DataType::LargeList(element),
        DataType::FixedSizeList(_, length) => DataType::FixedSizeList(element, *length),
        _ => return None,
    })
}

fn strict(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(array, to, &CastOptions { safe: false, ..Default::default() })
}

/// By field name, with null for missing fields.
fn struct_of(array: &StructArray, fields: &Fields) -> Result<ArrayRef, ArrowError> {
    let column = |field: &Arc<Field>| match array.column_by_name(field.name()) {
        Some(column) => exact(column, field.data_type()),
        None => Ok(new_null_array(field.data_type(), array.len())),
    };
    let columns = fields.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())?))
}

fn list_of<O: OffsetSizeTrait>(array: &GenericListArray<O>, of: &Arc<Field>) -> Result<ArrayRef, ArrowError> {
    let values = exact(array.values(), of.data_type())?;
    let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(of), offsets, values, nulls)?))
}

/// Keys and values, regardless of the names of their fields.
fn map_of(array: &MapArray, entries: &Arc<Field>, sorted: bool) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(pair) = entries.data_type() else {
        return Err(ArrowError::CastError(format!("{entries} are not entries of a map")));
    };
    let columns = array.entries().columns().iter().zip(pair).map(|(column, field)| exact(column, field.data_type()));
    let pairs = StructArray::try_new(pair.clone(), columns.collect::<Result<_, _>>()?, None)?;
    let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
    Ok(Arc::new(MapArray::try_new(Arc::clone(entries), offsets, pairs, nulls, sorted)?))
}

/// The first row whose value has changed.
fn first_lost(before: &ArrayRef, after: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    let (from, to) = (before.data_type(), after.data_type());
    let said_otherwise = is_text(from) || is_text(to) || from.is_nested() || to.is_nested();
    let same = if widens(from, to) || said_otherwise {
        return Ok(None);
    } else if to.is_floating() && !from.is_integer() {
        // Rounding to the nearest float is fine; becoming infinite changes the value.
        let (before, after) = (cast(before, &DataType::Float64)?, cast(after, &DataType::Float64)?);
        let pairs = before.as_primitive::<Float64Type>().iter().zip(after.as_primitive::<Float64Type>());
        pairs.map(|(before, after)| is_finite(before) == is_finite(after)).collect()
    } else if !can_cast_types(to, from) {
        return Ok(None);
    } else if from.is_floating() {
        let (before, after) = (cast(before, &DataType::Float64)?, cast(&cast(after, from)?, &DataType::Float64)?);
        // Zero has two signs, which do not matter here.
        let pairs = before.as_primitive::<Float64Type>().iter().zip(after.as_primitive::<Float64Type>());
        pairs.map(|(before, after)| before == after).collect::<BooleanArray>()
    } else {
        not_distinct(before, &cast(after, from)?)?
    };
    Ok((0..same.len()).find(|&row| !same.value(row)))
}

fn is_finite(value: Option<f64>) -> bool {
    value.is_some_and(f64::is_finite)
}

/// The function that performs such a cast in plans.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LosslessCast {
    column: String,
    to: DataType,
    signature: Signature,
}

impl LosslessCast {
    pub(crate) fn function(column: &str, to: &DataType) -> ScalarUDF {
        let signature = Signature::any(1, Volatility::Immutable);
        ScalarUDF::new_from_impl(LosslessCast { column: column.to_owned(), to: to.clone(), signature })
    }
}

impl ScalarUDFImpl for LosslessCast {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<Arc<Field>> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.to.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let made = exact(&arrays[0], &self.to);
        made.map(ColumnarValue::Array).map_err(|error| {
            let text = error.to_string();
            let text = text.strip_prefix("Cast error: ").unwrap_or(&text);
            DataFusionError::ArrowError(
                Box::new(ArrowError::CastError(format!("column {:?}: {text}", self.column))),
                None,
            )
        })
    }
}
