//! Messages as tables: tables unchanged; arrays and pickled objects as rows with their bytes.

use std::fmt::Write;
use std::num::ParseIntError;
use std::sync::{Arc, LazyLock};

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tidemill_dataflow::TaskError;
use tidemill_dataset::datafusion::arrow::array::{
    Array, ArrayRef, AsArray, LargeBinaryArray, RecordBatch, StringArray,
};
use tidemill_dataset::datafusion::arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use tidemill_dataset::datafusion::arrow::compute::{CastOptions, cast_with_options};
use tidemill_dataset::datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::dataset::NativeTable;

use super::graph_error;

/// Where the meaning of a column is recorded: Arrow's standard key.
const EXTENSION: &str = "ARROW:extension:name";
const OBJECT: &str = "tidemill.object";
const ARRAY: &str = "tidemill.array";

/// Nullable, as the columns of all ports are, although there are no nulls.
fn payload_field(name: &str, kind: &str) -> Field {
    let meaning = [(EXTENSION.to_owned(), kind.to_owned())];
    Field::new(name, DataType::LargeBinary, true).with_metadata(meaning.into())
}

/// Of pickled objects.
static OBJECTS: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new(vec![payload_field("object", OBJECT)])));
/// Of arrays: their bytes, and their form, which is the dtype and the length of each dimension, such as `<f8 3 4`. In
/// one column, since most messages are small, and so is what else they cost.
static ARRAYS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![payload_field("data", ARRAY), Field::new("form", DataType::Utf8, true)]))
});

/// The same schema; that of objects or arrays as the one that their messages have, which nobody then compares.
pub fn interned(schema: SchemaRef) -> SchemaRef {
    [&OBJECTS, &ARRAYS].into_iter().find(|known| ***known == schema).map_or(schema, |known| Arc::clone(known))
}

/// The dtype of a form, and the lengths of the dimensions.
pub fn dtype_and_shape(form: &str) -> (&str, impl Iterator<Item = Result<usize, ParseIntError>>) {
    let mut words = form.split(' ');
    (words.next().unwrap_or_default(), words.map(str::parse))
}

/// The kind of rows in a schema: `"objects"`, `"arrays"` or `"table"`.
fn kind(schema: &Schema) -> &'static str {
    match schema.fields().first().and_then(|field| field.metadata().get(EXTENSION)).map(String::as_str) {
        Some(OBJECT) => "objects",
        Some(ARRAY) => "arrays",
        _ => "table",
    }
}

/// The schema of a port of `"objects"` or `"arrays"`, as a table without rows.
#[pyfunction]
pub fn message_schema(name: &str) -> Option<NativeTable> {
    let schema = match name {
        "objects" => &OBJECTS,
        "arrays" => &ARRAYS,
        _ => return None,
    };
    Some(NativeTable { schema: Arc::clone(schema), batches: Vec::new() })
}

/// Pickled objects, one per row.
#[pyfunction]
pub fn object_table(py: Python<'_>, pickled: Vec<PyReadonlyArray1<'_, u8>>) -> PyResult<NativeTable> {
    let data: ArrayRef = bytes_column(&pickled)?;
    table(py, &OBJECTS, vec![data])
}

/// The bytes of arrays, in C order, their dtypes and shapes; one per row.
#[pyfunction]
pub fn array_table(
    py: Python<'_>,
    arrays: Vec<(PyReadonlyArray1<'_, u8>, String, Vec<usize>)>,
) -> PyResult<NativeTable> {
    let (bytes, forms): (Vec<_>, Vec<_>) = arrays
        .into_iter()
        .map(|(bytes, mut form, shape)| {
            shape.iter().for_each(|length| write!(form, " {length}").expect("a string takes all"));
            (bytes, form)
        })
        .unzip();
    table(py, &ARRAYS, vec![bytes_column(&bytes)?, Arc::new(StringArray::from_iter_values(forms))])
}

/// Copies the bytes, so that the sender may change its data after sending.
fn bytes_column(parts: &[PyReadonlyArray1<'_, u8>]) -> PyResult<ArrayRef> {
    let mut offsets = vec![0i64];
    let mut data = Vec::new();
    if let [only] = parts {
        data = only.as_slice()?.to_vec();
        offsets.push(data.len() as i64);
    } else {
        for part in parts {
            data.extend_from_slice(part.as_slice()?);
            offsets.push(data.len() as i64);
        }
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Ok(Arc::new(LargeBinaryArray::new(offsets, Buffer::from_vec(data), None)))
}

fn table(py: Python<'_>, schema: &SchemaRef, columns: Vec<ArrayRef>) -> PyResult<NativeTable> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns);
    let batch = batch.map_err(|error| graph_error(py, error.to_string(), None))?;
    Ok(NativeTable { schema: Arc::clone(schema), batches: vec![batch] })
}

/// Keeps the memory of array views alive.
#[pyclass(frozen)]
struct KeepAlive(#[expect(dead_code, reason = "only its lifetime matters")] LargeBinaryArray);

/// The bytes of rows `from` to `to` as a read-only array that shares their memory.
fn bytes_between<'py>(
    data: &LargeBinaryArray,
    held: &Bound<'py, KeepAlive>,
    (from, to): (usize, usize),
) -> PyResult<Bound<'py, PyAny>> {
    let offsets = data.value_offsets();
    let view = ArrayView1::from(&data.value_data()[offsets[from] as usize..offsets[to] as usize]);
    // SAFETY: `held` keeps the bytes, which never change, alive as long as the array; the array is read-only.
    let bytes = unsafe { PyArray1::borrow_from_array(&view, held.clone().into_any()) };
    bytes.call_method1("setflags", (false,))?;
    Ok(bytes.into_any())
}

/// The kind of a table's rows, `"objects"`, `"arrays"` or `"table"`, and the messages in them, in blocks: of objects
/// their pickled bytes, one behind the other, and where each begins and the last one ends; of arrays of the same dtype
/// and shape their bytes, the dtype, the shape, and how many there are. Bytes are read-only arrays that share the
/// table's memory.
#[pyfunction]
pub fn payloads<'py>(py: Python<'py>, table: &NativeTable) -> PyResult<(&'static str, Bound<'py, PyList>)> {
    let kind = kind(&table.schema);
    let blocks = PyList::empty(py);
    if kind == "table" {
        return Ok((kind, blocks));
    }
    for batch in table.batches.iter().filter(|batch| batch.num_rows() > 0) {
        let data = batch.column(0).as_binary::<i64>();
        let held = Bound::new(py, KeepAlive(data.clone()))?;
        let (offsets, rows) = (data.value_offsets(), batch.num_rows());
        if kind == "objects" {
            let starts: Vec<i64> = offsets.iter().map(|offset| offset - offsets[0]).collect();
            blocks.append((bytes_between(data, &held, (0, rows))?, starts))?;
            continue;
        }
        let forms = batch.column(1).as_string::<i32>();
        let bytes = |row: usize| offsets[row + 1] - offsets[row];
        let mut from = 0;
        while from < rows {
            let is_like = |&row: &usize| forms.value(row) == forms.value(from) && bytes(row) == bytes(from);
            let to = (from + 1..rows).take_while(is_like).last().map_or(from + 1, |row| row + 1);
            let (dtype, shape) = dtype_and_shape(forms.value(from));
            let shape =
                shape.collect::<Result<Vec<_>, _>>().map_err(|error| PyValueError::new_err(error.to_string()))?;
            let shape = PyTuple::new(py, shape)?;
            blocks.append((bytes_between(data, &held, (from, to))?, dtype, shape, to - from))?;
            from = to;
        }
    }
    Ok((kind, blocks))
}

/// The batch with the declared columns of its port, in order. Values are cast if this preserves them.
pub fn fitted(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, TaskError> {
    if Arc::ptr_eq(batch.schema_ref(), schema) {
        return Ok(batch.clone());
    }
    let found = batch.schema_ref();
    if found.fields().len() != schema.fields().len()
        || schema.fields().iter().any(|f| found.index_of(f.name()).is_err())
    {
        let names = |schema: &Schema| {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            names.join(", ")
        };
        return Err(format!("the columns {} are sent, but {} are declared", names(found), names(schema)).into());
    }
    let column = |field: &Arc<Field>| -> Result<ArrayRef, TaskError> {
        let column = batch.column_by_name(field.name()).ok_or("looked up before")?;
        let (from, to) = (column.data_type(), field.data_type());
        if from == to {
            return Ok(Arc::clone(column));
        }
        let wrong = |reason: &str| format!("column \"{}\" is {from}, but {to} is declared{reason}", field.name());
        if !keeps_values(from, to) {
            return Err(wrong("; cast it, or declare another type").into());
        }
        let exact = CastOptions { safe: false, ..Default::default() };
        cast_with_options(column, to, &exact).map_err(|error| wrong(&format!(": {error}")).into())
    };
    let columns = schema.fields().iter().map(column).collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Whether a cast gives equal values, or an error.
fn keeps_values(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Dictionary, Float16, Float32, Float64, LargeBinary, LargeUtf8, Null, Utf8, Utf8View,
    };
    let text = |kind: &DataType| matches!(kind, Utf8 | LargeUtf8 | Utf8View);
    let bytes = |kind: &DataType| matches!(kind, Binary | LargeBinary | BinaryView);
    match (from, to) {
        (Null, _) => true,
        (Dictionary(_, value), _) => **value == *to || keeps_values(value, to),
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        _ => (text(from) && text(to)) || (bytes(from) && bytes(to)) || (from.is_integer() && to.is_integer()),
    }
}
