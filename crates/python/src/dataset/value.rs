//! Conversion of single values between Python and Arrow: literals in, cells of results out.

use std::sync::Arc;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use tidemill_dataset::datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray, new_null_array,
};
use tidemill_dataset::datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use tidemill_dataset::datafusion::arrow::compute::{CastOptions, cast_with_options};
use tidemill_dataset::datafusion::arrow::datatypes::{DataType, Field, Fields, Float64Type, TimeUnit};
use tidemill_dataset::datafusion::arrow::error::ArrowError;
use tidemill_dataset::datafusion::common::ScalarValue;

macro_rules! python_type {
    ($function:ident, $module:literal, $name:literal) => {
        fn $function(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
            static SLOT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            SLOT.import(py, $module, $name)
        }
    };
}

python_type!(date, "datetime", "date");
python_type!(datetime, "datetime", "datetime");
python_type!(time, "datetime", "time");
python_type!(timedelta, "datetime", "timedelta");
python_type!(decimal, "decimal", "Decimal");
python_type!(zone, "zoneinfo", "ZoneInfo");
python_type!(month_day_nano, "tidemill._tables.values", "MonthDayNano");

/// `date(1970, 1, 1).toordinal()`.
const EPOCH_ORDINAL: i64 = 719_163;
const MICROS_PER_DAY: i64 = 86_400_000_000;
/// Maximum nesting of lists and the like, since a list may contain itself.
const DEPTH_MAX: usize = 64;

/// A Python value as a literal of the most suitable type.
pub fn scalar(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(ScalarValue::Null);
    }
    // A bool is also an int, and a datetime also a date, so the narrower types come first.
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(ScalarValue::Boolean(Some(value.is_true())));
    }
    if value.is_instance_of::<PyInt>() {
        return match value.extract::<i64>() {
            Ok(value) => Ok(ScalarValue::Int64(Some(value))),
            Err(_) => match value.extract() {
                Ok(value) => Ok(ScalarValue::UInt64(Some(value))),
                Err(_) => Err(PyOverflowError::new_err(format!(
                    "{value} has more than 64 bits; use a decimal.Decimal of up to 38 digits, or a float"
                ))),
            },
        };
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(ScalarValue::Float64(Some(value.extract()?)));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(ScalarValue::Utf8(Some(value.extract()?)));
    }
    if let Ok(value) = value.cast::<PyBytes>() {
        return Ok(ScalarValue::Binary(Some(value.as_bytes().to_vec())));
    }
    if value.is_instance(datetime(py)?)? {
        let tz = value.getattr("tzinfo")?;
        let utc = PyModule::import(py, "datetime")?.getattr("timezone")?.getattr("utc")?;
        let (aware, name) = if tz.is_none() {
            let kwargs = PyDict::new(py);
            kwargs.set_item("tzinfo", &utc)?;
            (value.call_method("replace", (), Some(&kwargs))?, None)
        } else {
            let key = tz.getattr("key").and_then(|key| key.extract::<String>());
            (value.clone(), Some(key.unwrap_or_else(|_| "UTC".into()).into()))
        };
        let epoch = datetime(py)?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?;
        return Ok(ScalarValue::TimestampMicrosecond(Some(micros(&aware.sub(epoch)?)?), name));
    }
    if value.is_instance(date(py)?)? {
        let days: i64 = value.call_method0("toordinal")?.extract()?;
        return Ok(ScalarValue::Date32(Some((days - EPOCH_ORDINAL) as i32)));
    }
    if value.is_instance(time(py)?)? {
        if !value.getattr("tzinfo")?.is_none() {
            return Err(PyTypeError::new_err(format!("time-of-day values cannot have a time zone: {value}")));
        }
        let part = |name: &str| value.getattr(name).and_then(|part| part.extract::<i64>());
        let seconds = (part("hour")? * 60 + part("minute")?) * 60 + part("second")?;
        return Ok(ScalarValue::Time64Microsecond(Some(seconds * 1_000_000 + part("microsecond")?)));
    }
    if value.is_instance(timedelta(py)?)? {
        return Ok(ScalarValue::DurationMicrosecond(Some(micros(value)?)));
    }
    if value.is_instance(decimal(py)?)? {
        return exact(value);
    }
    if value.is_instance(month_day_nano(py)?)? {
        let (months, days, nanoseconds) = value.extract()?;
        return Ok(ScalarValue::new_interval_mdn(months, days, nanoseconds));
    }
    // NumPy scalars and the like convert to Python's own types.
    if let Ok(item) = value.call_method0("item")
        && !item.get_type().is(value.get_type())
    {
        return scalar(&item);
    }
    Err(PyTypeError::new_err(format!(
        "values of type {} cannot become literals; use None, bool, int, float, str, bytes, date, datetime, time, \
         timedelta or Decimal",
        value.get_type().name()?
    )))
}

fn micros(delta: &Bound<'_, PyAny>) -> PyResult<i64> {
    let part = |name: &str| delta.getattr(name).and_then(|part| part.extract::<i64>());
    Ok(part("days")? * MICROS_PER_DAY + part("seconds")? * 1_000_000 + part("microseconds")?)
}

fn exact(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let (negative, digits, exponent): (i64, Vec<u8>, i64) = value
        .call_method0("as_tuple")?
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{value} is not a finite number")))?;
    let too_long = || PyTypeError::new_err(format!("{value} has more than 38 digits"));
    let zeros = usize::try_from(exponent.max(0)).map_err(|_| too_long())?;
    if digits.len() + zeros > 38 || exponent < -38 {
        return Err(too_long());
    }
    let magnitude = digits.iter().chain(std::iter::repeat_n(&0, zeros)).fold(0i128, |sum, &d| sum * 10 + i128::from(d));
    let scale = (-exponent).max(0) as i8;
    let precision = (digits.len() + zeros).max(scale as usize).max(1) as u8;
    Ok(ScalarValue::Decimal128(Some(if negative == 1 { -magnitude } else { magnitude }), precision, scale))
}

/// Python values as a column: with the type of the first that is not `None`, or floats if there are ints and floats.
/// Dicts become structs, and lists of pairs become maps.
pub fn array(values: &Bound<'_, PyList>) -> PyResult<ArrayRef> {
    array_within(values, 0)
}

fn array_within(values: &Bound<'_, PyList>, depth: usize) -> PyResult<ArrayRef> {
    if depth > DEPTH_MAX {
        return Err(PyTypeError::new_err(format!("values are nested more than {DEPTH_MAX} deep")));
    }
    let first = values.iter().find(|value| !value.is_none());
    if first.as_ref().is_some_and(|first| first.is_instance_of::<PyList>()) {
        let lists = ListValues::of(values)?;
        if lists.elements.iter().find(|element| !element.is_none()).is_some_and(|element| is_pair(&element)) {
            let [keys, items] = lists.pairs()?;
            return lists.map(array_within(&keys, depth + 1)?, array_within(&items, depth + 1)?);
        }
        return lists.list(array_within(&lists.elements, depth + 1)?);
    }
    if first.is_some_and(|first| first.is_instance_of::<PyDict>()) {
        let mut names: Vec<String> = Vec::new();
        for value in values.iter().filter(|value| !value.is_none()) {
            for name in dict(&value)?.keys() {
                let name = field_name(&name)?;
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let columns = names.into_iter().map(|name| {
            let column = array_within(&field_values(values, &name)?, depth + 1)?;
            Ok((Field::new(name, column.data_type().clone(), true), column))
        });
        let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns.collect::<PyResult<Vec<_>>>()?.into_iter().unzip();
        return structs(values, fields.into(), columns);
    }
    scalars_of(values)
}

/// Python values as a column of a type. Fields that are missing from a struct's dict are null; extra ones are an error.
/// A map is a list of pairs, or a dict.
pub fn array_as(values: &Bound<'_, PyList>, kind: &DataType) -> PyResult<ArrayRef> {
    let py = values.py();
    let failed = |error: ArrowError| super::raised(py, &error.into());
    Ok(match kind {
        DataType::Struct(fields) => {
            for value in values.iter().filter(|value| !value.is_none()) {
                for name in dict(&value)?.keys() {
                    let name = field_name(&name)?;
                    if fields.find(&name).is_none() {
                        let names = fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
                        return Err(PyTypeError::new_err(format!(
                            "{value} has a field {name:?}, but those of {kind} are {names}"
                        )));
                    }
                }
            }
            let columns = fields.iter().map(|field| array_as(&field_values(values, field.name())?, field.data_type()));
            structs(values, fields.clone(), columns.collect::<PyResult<_>>()?)?
        }
        DataType::List(field) => {
            let lists = ListValues::of(values)?;
            let elements = array_as(&lists.elements, field.data_type())?;
            let made = ListArray::try_new(Arc::clone(field), lists.offsets()?, elements, lists.nulls());
            Arc::new(made.map_err(failed)?)
        }
        DataType::LargeList(field) => {
            let lists = ListValues::of(values)?;
            let elements = array_as(&lists.elements, field.data_type())?;
            let offsets = OffsetBuffer::from_lengths(lists.lengths.iter().copied());
            Arc::new(LargeListArray::try_new(Arc::clone(field), offsets, elements, lists.nulls()).map_err(failed)?)
        }
        DataType::FixedSizeList(field, length) => {
            let nothing = PyList::new(py, (0..*length).map(|_| py.None()))?;
            let elements = PyList::empty(py);
            for value in values {
                let list = if value.is_none() { nothing.clone().into_any() } else { value };
                if !is_list(&list) || list.len()? != *length as usize {
                    return Err(PyTypeError::new_err(format!(
                        "{list} is not a list of {length} values, as {kind} requires"
                    )));
                }
                elements.call_method1("extend", (list,))?;
            }
            let elements = array_as(&elements, field.data_type())?;
            let nulls = Some(values.iter().map(|value| !value.is_none()).collect::<Vec<_>>().into());
            Arc::new(FixedSizeListArray::try_new(Arc::clone(field), *length, elements, nulls).map_err(failed)?)
        }
        DataType::Map(entries, sorted) => {
            let DataType::Struct(fields) = entries.data_type() else {
                return Err(PyTypeError::new_err(format!("{kind} has no keys and values")));
            };
            let [key, item] = fields.as_ref() else {
                return Err(PyTypeError::new_err(format!("{kind} has other fields than a key and a value")));
            };
            let lists = ListValues::of(values)?;
            let [keys, items] = lists.pairs()?;
            let pairs = vec![array_as(&keys, key.data_type())?, array_as(&items, item.data_type())?];
            let pairs = StructArray::try_new(fields.clone(), pairs, None).map_err(failed)?;
            let made = MapArray::try_new(Arc::clone(entries), lists.offsets()?, pairs, lists.nulls(), *sorted);
            Arc::new(made.map_err(failed)?)
        }
        kind => {
            let exact = CastOptions { safe: false, ..Default::default() };
            let made = array(values)?;
            // A cast would truncate it.
            if kind.is_integer()
                && let Some(floats) = made.as_primitive_opt::<Float64Type>()
                && let Some(value) = floats.iter().flatten().find(|value| value.fract() != 0.0)
            {
                return Err(PyTypeError::new_err(format!("{value} is not an integer, but the column is {kind}")));
            }
            cast_with_options(&made, kind, &exact).map_err(failed)?
        }
    })
}

/// The elements of lists, or of dicts as lists of pairs, concatenated.
struct ListValues<'py> {
    elements: Bound<'py, PyList>,
    lengths: Vec<usize>,
    valid: Vec<bool>,
}

impl<'py> ListValues<'py> {
    fn of(values: &Bound<'py, PyList>) -> PyResult<Self> {
        let py = values.py();
        let mut lists = ListValues { elements: PyList::empty(py), lengths: Vec::new(), valid: Vec::new() };
        for value in values {
            let value = match value.cast::<PyDict>() {
                Ok(dict) => dict.items().into_any(),
                Err(_) => value,
            };
            lists.valid.push(!value.is_none());
            if value.is_none() {
                lists.lengths.push(0);
                continue;
            }
            if !is_list(&value) {
                return Err(PyTypeError::new_err(format!("{value} is not a list, unlike other values of the column")));
            }
            lists.lengths.push(value.len()?);
            lists.elements.call_method1("extend", (value,))?;
        }
        Ok(lists)
    }

    fn offsets(&self) -> PyResult<OffsetBuffer<i32>> {
        let all: usize = self.lengths.iter().sum();
        i32::try_from(all).map_err(|_| PyTypeError::new_err("a column's lists have more than two billion values"))?;
        Ok(OffsetBuffer::from_lengths(self.lengths.iter().copied()))
    }

    fn nulls(&self) -> Option<NullBuffer> {
        Some(self.valid.clone().into())
    }

    /// The first and the second items of each pair.
    fn pairs(&self) -> PyResult<[Bound<'py, PyList>; 2]> {
        let py = self.elements.py();
        let parts = [PyList::empty(py), PyList::empty(py)];
        for pair in &self.elements {
            if !is_pair(&pair) {
                return Err(PyTypeError::new_err(format!("{pair} is not a pair of a key and a value, as a map needs")));
            }
            for (at, part) in parts.iter().enumerate() {
                part.append(pair.get_item(at)?)?;
            }
        }
        Ok(parts)
    }

    fn list(&self, elements: ArrayRef) -> PyResult<ArrayRef> {
        let field = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
        let made = ListArray::try_new(field, self.offsets()?, elements, self.nulls());
        Ok(Arc::new(made.map_err(|error| super::raised(self.elements.py(), &error.into()))?))
    }

    fn map(&self, keys: ArrayRef, items: ArrayRef) -> PyResult<ArrayRef> {
        let fields = Fields::from(vec![
            Field::new("key", keys.data_type().clone(), false),
            Field::new("value", items.data_type().clone(), true),
        ]);
        let made = StructArray::try_new(fields.clone(), vec![keys, items], None).and_then(|pairs| {
            let entries = Arc::new(Field::new_struct("entries", fields, false));
            MapArray::try_new(
                entries,
                OffsetBuffer::from_lengths(self.lengths.iter().copied()),
                pairs,
                self.nulls(),
                false,
            )
        });
        Ok(Arc::new(made.map_err(|error| super::raised(self.elements.py(), &error.into()))?))
    }
}

fn is_list(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>()
}

fn is_pair(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyTuple>().is_ok_and(|pair| pair.len() == 2)
}

fn dict<'a, 'py>(value: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyDict>> {
    value.cast().map_err(|_| PyTypeError::new_err(format!("{value} is not a dict, unlike other values of the column")))
}

fn field_name(name: &Bound<'_, PyAny>) -> PyResult<String> {
    name.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "a dict with the key {name} cannot become a struct, whose fields need names; a map is a list of pairs \
             (key, value), or a dict where the schema says so"
        ))
    })
}

/// The values of dicts under a name; `None` where it is missing.
fn field_values<'py>(values: &Bound<'py, PyList>, name: &str) -> PyResult<Bound<'py, PyList>> {
    let py = values.py();
    let found = PyList::empty(py);
    for value in values {
        let field = if value.is_none() { None } else { dict(&value)?.get_item(name)? };
        found.append(field)?;
    }
    Ok(found)
}

fn structs(values: &Bound<'_, PyList>, fields: Fields, columns: Vec<ArrayRef>) -> PyResult<ArrayRef> {
    let nulls = Some(values.iter().map(|value| !value.is_none()).collect::<Vec<_>>().into());
    let made = StructArray::try_new_with_length(fields, columns, nulls, values.len());
    Ok(Arc::new(made.map_err(|error| super::raised(values.py(), &error.into()))?))
}

fn scalars_of(values: &Bound<'_, PyList>) -> PyResult<ArrayRef> {
    let py = values.py();
    let mut scalars = values.iter().map(|value| scalar(&value)).collect::<PyResult<Vec<_>>>()?;
    let is_float = |value: &ScalarValue| matches!(value, ScalarValue::Float64(_));
    let is_large = |value: &ScalarValue| matches!(value, ScalarValue::UInt64(_));
    if scalars.iter().any(is_float) {
        for value in &mut scalars {
            match value {
                ScalarValue::Int64(Some(whole)) => *value = ScalarValue::Float64(Some(*whole as f64)),
                ScalarValue::UInt64(Some(whole)) => *value = ScalarValue::Float64(Some(*whole as f64)),
                _ => {}
            }
        }
    } else if scalars.iter().any(is_large) {
        // Outside the range of int64, which the other values suggested.
        for value in &mut scalars {
            if let ScalarValue::Int64(Some(whole)) = value {
                let fits = u64::try_from(*whole).map_err(|_| {
                    PyOverflowError::new_err(format!(
                        "{whole} and values of 2**63 or more in one column: no integer type holds both; use \
                         decimal.Decimal or floats"
                    ))
                })?;
                *value = ScalarValue::UInt64(Some(fits));
            }
        }
    }
    let kinds = || scalars.iter().map(ScalarValue::data_type).filter(|kind| !kind.is_null());
    let Some(kind) = kinds().reduce(common) else {
        return Ok(new_null_array(&DataType::Null, scalars.len()));
    };
    let null = ScalarValue::try_from(&kind).map_err(|error| super::raised(py, &error.into()))?;
    for value in &mut scalars {
        if value.is_null() {
            *value = null.clone();
        } else if value.data_type() != kind {
            let given = value.data_type();
            let family = |kind: &DataType| matches!(kind, DataType::Decimal128(..) | DataType::Timestamp(..));
            if !(family(&kind) && family(&given)) {
                return Err(PyTypeError::new_err(format!("values of one column have types {kind} and {given}")));
            }
            *value = value.cast_to(&kind).map_err(|error| super::raised(py, &error.into()))?;
        }
    }
    ScalarValue::iter_to_array(scalars).map_err(|error| super::raised(py, &error.into()))
}

/// A common type for values of both: wide enough for all digits of decimals; otherwise the first.
fn common(first: DataType, second: DataType) -> DataType {
    match (&first, &second) {
        (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) => {
            let scale = *s1.max(s2);
            let whole = (*p1 as i8 - s1).max(*p2 as i8 - s2);
            DataType::Decimal128((whole + scale).clamp(1, 38) as u8, scale)
        }
        _ => first,
    }
}

/// The cells of `array` as a list of Python values; nulls are `None`.
pub fn list<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Bound<'py, PyList>> {
    let cells = PyList::empty(py);
    for row in 0..array.len() {
        cells.append(cell(py, array, row)?)?;
    }
    Ok(cells)
}

fn cell<'py>(py: Python<'py>, array: &dyn Array, row: usize) -> PyResult<Bound<'py, PyAny>> {
    if array.is_null(row) || matches!(array.data_type(), DataType::Null) {
        return Ok(py.None().into_bound(py));
    }
    let value = ScalarValue::try_from_array(array, row).map_err(|error| super::raised(py, &error.into()))?;
    object(py, &value)
}

/// A value as a Python object.
fn object<'py>(py: Python<'py>, value: &ScalarValue) -> PyResult<Bound<'py, PyAny>> {
    use ScalarValue as S;
    // A null of a union or dictionary type is one of the values that it selects.
    if value.is_null() {
        return Ok(py.None().into_bound(py));
    }
    macro_rules! plain {
        ($value:expr) => {
            $value.into_pyobject(py)?.into_any()
        };
    }
    Ok(match value {
        S::Boolean(Some(v)) => PyBool::new(py, *v).to_owned().into_any(),
        S::Int8(Some(v)) => plain!(v),
        S::Int16(Some(v)) => plain!(v),
        S::Int32(Some(v)) => plain!(v),
        S::Int64(Some(v)) => plain!(v),
        S::UInt8(Some(v)) => plain!(v),
        S::UInt16(Some(v)) => plain!(v),
        S::UInt32(Some(v)) => plain!(v),
        S::UInt64(Some(v)) => plain!(v),
        S::Float16(Some(v)) => plain!(f64::from(*v)),
        S::Float32(Some(v)) => plain!(v),
        S::Float64(Some(v)) => plain!(v),
        S::Utf8(Some(v)) | S::LargeUtf8(Some(v)) | S::Utf8View(Some(v)) => plain!(v),
        S::Binary(Some(v)) | S::LargeBinary(Some(v)) | S::BinaryView(Some(v)) | S::FixedSizeBinary(_, Some(v)) => {
            PyBytes::new(py, v).into_any()
        }
        S::Date32(Some(v)) => date(py)?.call_method1("fromordinal", (i64::from(*v) + EPOCH_ORDINAL,))?,
        S::Date64(Some(v)) => {
            date(py)?.call_method1("fromordinal", (v.div_euclid(MICROS_PER_DAY / 1000) + EPOCH_ORDINAL,))?
        }
        S::TimestampSecond(Some(v), tz) => instant(py, *v, TimeUnit::Second, tz.as_deref())?,
        S::TimestampMillisecond(Some(v), tz) => instant(py, *v, TimeUnit::Millisecond, tz.as_deref())?,
        S::TimestampMicrosecond(Some(v), tz) => instant(py, *v, TimeUnit::Microsecond, tz.as_deref())?,
        S::TimestampNanosecond(Some(v), tz) => instant(py, *v, TimeUnit::Nanosecond, tz.as_deref())?,
        S::DurationSecond(Some(v)) => span(py, *v, TimeUnit::Second)?,
        S::DurationMillisecond(Some(v)) => span(py, *v, TimeUnit::Millisecond)?,
        S::DurationMicrosecond(Some(v)) => span(py, *v, TimeUnit::Microsecond)?,
        S::DurationNanosecond(Some(v)) => span(py, *v, TimeUnit::Nanosecond)?,
        S::IntervalMonthDayNano(Some(v)) => month_day_nano(py)?.call1((v.months, v.days, v.nanoseconds))?,
        S::IntervalYearMonth(Some(months)) => month_day_nano(py)?.call1((*months, 0, 0))?,
        S::IntervalDayTime(Some(v)) => timedelta(py)?.call1((v.days, 0, i64::from(v.milliseconds) * 1000))?,
        S::Time32Second(Some(v)) => clock(py, i64::from(*v), TimeUnit::Second)?,
        S::Time32Millisecond(Some(v)) => clock(py, i64::from(*v), TimeUnit::Millisecond)?,
        S::Time64Microsecond(Some(v)) => clock(py, *v, TimeUnit::Microsecond)?,
        S::Time64Nanosecond(Some(v)) => clock(py, *v, TimeUnit::Nanosecond)?,
        S::List(array) => list(py, array.value(0).as_ref())?.into_any(),
        S::LargeList(array) => list(py, array.value(0).as_ref())?.into_any(),
        S::FixedSizeList(array) => list(py, array.value(0).as_ref())?.into_any(),
        S::Struct(array) => {
            let fields = PyDict::new(py);
            for (field, column) in array.fields().iter().zip(array.columns()) {
                fields.set_item(field.name(), cell(py, column.as_ref(), 0)?)?;
            }
            fields.into_any()
        }
        // Not a dict, because a map can have duplicate keys, and keys that are not hashable.
        S::Map(array) => {
            let pairs = array.value(0);
            let (keys, items) = (list(py, pairs.column(0).as_ref())?, list(py, pairs.column(1).as_ref())?);
            PyList::new(
                py,
                keys.iter().zip(items.iter()).map(|pair| pair.into_pyobject(py)).collect::<PyResult<Vec<_>>>()?,
            )?
            .into_any()
        }
        S::Dictionary(_, inner) | S::Union(Some((_, inner)), ..) => object(py, inner)?,
        S::Decimal32(Some(_), ..)
        | S::Decimal64(Some(_), ..)
        | S::Decimal128(Some(_), ..)
        | S::Decimal256(Some(_), ..) => {
            // Python's Decimal reads the text of an Arrow decimal.
            let text = arrow_text(py, value)?;
            decimal(py)?.call1((text,))?
        }
        other => PyString::new(py, &other.to_string()).into_any(),
    })
}

fn arrow_text(py: Python<'_>, value: &ScalarValue) -> PyResult<String> {
    let failed = |error: tidemill_dataset::datafusion::error::DataFusionError| super::raised(py, &error.into());
    let array = value.to_array().map_err(failed)?;
    tidemill_dataset::datafusion::arrow::util::display::array_value_to_string(array.as_ref(), 0)
        .map_err(|error| super::raised(py, &error.into()))
}

/// Python's times have microseconds; finer digits are truncated.
fn to_micros(value: i64, unit: TimeUnit) -> i128 {
    let value = i128::from(value);
    match unit {
        TimeUnit::Second => value * 1_000_000,
        TimeUnit::Millisecond => value * 1000,
        TimeUnit::Microsecond => value,
        TimeUnit::Nanosecond => value.div_euclid(1000),
    }
}

fn span(py: Python<'_>, value: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    timedelta(py)?.call1((0, 0, to_micros(value, unit)))
}

fn instant<'py>(py: Python<'py>, value: i64, unit: TimeUnit, tz: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    let since = span(py, value, unit)?;
    let Some(tz) = tz else {
        return datetime(py)?.call1((1970, 1, 1))?.add(since);
    };
    let utc = PyModule::import(py, "datetime")?.getattr("timezone")?.getattr("utc")?;
    let at = datetime(py)?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?.add(since)?;
    // Python has no time zone named like the offset +02:00: return the same instant in UTC.
    match zone(py)?.call1((tz,)) {
        Ok(zone) => at.call_method1("astimezone", (zone,)),
        Err(_) => Ok(at),
    }
}

fn clock(py: Python<'_>, value: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    let micros = to_micros(value, unit) as i64;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    time(py)?.call1((seconds / 3600, seconds / 60 % 60, seconds % 60, micros))
}
