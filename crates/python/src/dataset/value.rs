//! Single values between Python and Arrow: literals going in, cells of a result coming out.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyType};
use tidemill_dataset::datafusion::arrow::array::{Array, ArrayRef, ListArray, new_null_array};
use tidemill_dataset::datafusion::arrow::buffer::OffsetBuffer;
use tidemill_dataset::datafusion::arrow::datatypes::{DataType, Field, TimeUnit};
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

/// `date(1970, 1, 1).toordinal()`.
const EPOCH_ORDINAL: i64 = 719_163;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A Python value as a literal of the type that fits it best.
pub fn scalar(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(ScalarValue::Null);
    }
    // A bool is an int too, a datetime a date: the narrower type first.
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(ScalarValue::Boolean(Some(value.is_true())));
    }
    if value.is_instance_of::<PyInt>() {
        return match value.extract::<i64>() {
            Ok(value) => Ok(ScalarValue::Int64(Some(value))),
            Err(_) => Ok(ScalarValue::UInt64(Some(value.extract()?))),
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
    if value.is_instance(timedelta(py)?)? {
        return Ok(ScalarValue::DurationMicrosecond(Some(micros(value)?)));
    }
    if value.is_instance(decimal(py)?)? {
        return exact(value);
    }
    // NumPy's scalars and their like turn into Python's own.
    if let Ok(item) = value.call_method0("item")
        && !item.get_type().is(value.get_type())
    {
        return scalar(&item);
    }
    Err(PyTypeError::new_err(format!(
        "no literal can be made of a {}; there are None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal",
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

/// Python values as a column: of the type of the first that is not `None`, of floats if there are ints and floats.
pub fn array(values: &Bound<'_, PyList>) -> PyResult<ArrayRef> {
    let py = values.py();
    let failed = |error: ArrowError| super::raised(py, &error.into());
    let first = values.iter().find(|value| !value.is_none());
    if first.is_some_and(|first| first.is_instance_of::<PyList>()) {
        let elements = PyList::empty(py);
        let (mut lengths, mut valid) = (Vec::new(), Vec::new());
        for value in values {
            valid.push(!value.is_none());
            lengths.push(if value.is_none() { 0 } else { value.len()? });
            if !value.is_none() {
                elements.call_method1("extend", (value,))?;
            }
        }
        let elements = array(&elements)?;
        let field = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
        let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
        let made = ListArray::try_new(field, offsets, elements, Some(valid.into())).map_err(failed)?;
        return Ok(Arc::new(made));
    }
    let mut scalars = values.iter().map(|value| scalar(&value)).collect::<PyResult<Vec<_>>>()?;
    let is_float = |value: &ScalarValue| matches!(value, ScalarValue::Float64(_));
    if scalars.iter().any(is_float) {
        for value in &mut scalars {
            if let ScalarValue::Int64(Some(whole)) = value {
                *value = ScalarValue::Float64(Some(*whole as f64));
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

/// A type for values of both: wide enough for all digits of decimals; otherwise the first.
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

/// A value that is not null as a Python object.
fn object<'py>(py: Python<'py>, value: &ScalarValue) -> PyResult<Bound<'py, PyAny>> {
    use ScalarValue as S;
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
        S::Dictionary(_, inner) => object(py, inner)?,
        S::Decimal32(Some(_), ..)
        | S::Decimal64(Some(_), ..)
        | S::Decimal128(Some(_), ..)
        | S::Decimal256(Some(_), ..) => {
            // The text of an Arrow decimal is what Python's own reads.
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

/// Python's clocks count microseconds; what is finer is cut off.
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
    // An offset such as +02:00 has no name that Python knows: the same instant in UTC.
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
