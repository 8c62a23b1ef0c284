//! Messages as tables: tables unchanged; arrays and pickled objects as rows with their bytes.

use std::sync::Arc;

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tidemill_dataflow::TaskError;
use tidemill_dataset::datafusion::arrow::array::{
    Array, ArrayRef, AsArray, LargeBinaryArray, ListArray, RecordBatch, StringArray,
};
use tidemill_dataset::datafusion::arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use tidemill_dataset::datafusion::arrow::compute::{CastOptions, cast_with_options};
use tidemill_dataset::datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};

use crate::dataset::NativeTable;

use super::graph_error;

/// Where the meaning of a column is recorded: Arrow's standard key.
const EXTENSION: &str = "ARROW:extension:name";
const OBJECT: &str = "tidemill.object";
const ARRAY: &str = "tidemill.array";

fn payload_field(name: &str, kind: &str) -> Field {
    let meaning = [(EXTENSION.to_owned(), kind.to_owned())];
    Field::new(name, DataType::LargeBinary, false).with_metadata(meaning.into())
}

pub fn object_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![payload_field("object", OBJECT)]))
}

fn shape_field() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Int64, false))
}

pub fn array_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        payload_field("data", ARRAY),
        Field::new("dtype", DataType::Utf8, false),
        Field::new("shape", DataType::List(shape_field()), false),
    ]))
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
        "objects" => object_schema(),
        "arrays" => array_schema(),
        _ => return None,
    };
    Some(NativeTable { schema, batches: Vec::new() })
}

/// Pickled objects, one per row.
#[pyfunction]
pub fn object_table(py: Python<'_>, pickled: Vec<PyReadonlyArray1<'_, u8>>) -> PyResult<NativeTable> {
    let data: ArrayRef = bytes_column(&pickled)?;
    table(py, object_schema(), vec![data])
}

/// The bytes of arrays, in C order, their dtypes and shapes; one per row.
#[pyfunction]
pub fn array_table(py: Python<'_>, arrays: Vec<(PyReadonlyArray1<'_, u8>, String, Vec<i64>)>) -> PyResult<NativeTable> {
    let lengths = arrays.iter().map(|(_, _, shape)| shape.len());
    let offsets = OffsetBuffer::from_lengths(lengths);
    let shapes: Vec<i64> = arrays.iter().flat_map(|(_, _, shape)| shape.iter().copied()).collect();
    let values = Arc::new(tidemill_dataset::datafusion::arrow::array::Int64Array::from(shapes));
    let shapes = ListArray::new(shape_field(), offsets, values, None);
    let dtypes = StringArray::from_iter_values(arrays.iter().map(|(_, dtype, _)| dtype));
    let bytes: Vec<_> = arrays.into_iter().map(|(bytes, _, _)| bytes).collect();
    table(py, array_schema(), vec![bytes_column(&bytes)?, Arc::new(dtypes), Arc::new(shapes)])
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

fn table(py: Python<'_>, schema: SchemaRef, columns: Vec<ArrayRef>) -> PyResult<NativeTable> {
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
    let batch = batch.map_err(|error| graph_error(py, error.to_string(), None))?;
    Ok(NativeTable { schema, batches: vec![batch] })
}

/// Keeps the memory of array views alive.
#[pyclass(frozen)]
struct KeepAlive(#[expect(dead_code, reason = "only its lifetime matters")] LargeBinaryArray);

/// The kind of a table's rows, `"objects"`, `"arrays"` or `"table"`, and the messages in them: for an object its
/// pickled bytes, for an array its bytes, dtype and shape. Bytes are read-only arrays that share the table's memory.
#[pyfunction]
pub fn payloads<'py>(py: Python<'py>, table: &NativeTable) -> PyResult<(&'static str, Bound<'py, PyList>)> {
    let kind = kind(&table.schema);
    let messages = PyList::empty(py);
    if kind == "table" {
        return Ok((kind, messages));
    }
    for batch in &table.batches {
        let data = batch.column(0).as_binary::<i64>();
        let held = Bound::new(py, KeepAlive(data.clone()))?;
        for row in 0..batch.num_rows() {
            let view = ArrayView1::from(data.value(row));
            // SAFETY: `held` keeps the bytes, which never change, alive as long as the array; the array is read-only.
            let bytes = unsafe { PyArray1::borrow_from_array(&view, held.clone().into_any()) };
            bytes.call_method1("setflags", (false,))?;
            if kind == "objects" {
                messages.append(bytes)?;
                continue;
            }
            let dtype = batch.column(1).as_string::<i32>().value(row);
            let shape = batch.column(2).as_list::<i32>().value(row);
            let shape = PyTuple::new(py, shape.as_primitive::<Int64Type>().values())?;
            messages.append((bytes, dtype, shape))?;
        }
    }
    Ok((kind, messages))
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
