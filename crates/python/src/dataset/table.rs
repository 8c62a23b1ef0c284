//! The result of a query: record batches that any Arrow library can use without copying.

use std::sync::Arc;

use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString};
use pyo3_arrow::PyTable;
use pyo3_arrow::ffi::{ArrayIterator, to_schema_pycapsule, to_stream_pycapsule};
use tidemill_collective::DType;
use tidemill_dataflow::memory::{AllocationSet, verify_rows};
use tidemill_dataset::datafusion::arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, RecordBatch, StructArray, make_array,
    new_empty_array,
};
use tidemill_dataset::datafusion::arrow::buffer::{BooleanBuffer, Buffer};
use tidemill_dataset::datafusion::arrow::compute::{
    CastOptions, cast, cast_with_options, concat, concat_batches, filter_record_batch, nullif,
};
use tidemill_dataset::datafusion::arrow::datatypes::{DataType, Field, Fields, Int32Type, Schema, SchemaRef};
use tidemill_dataset::datafusion::arrow::error::ArrowError;
use tidemill_dataset::datafusion::arrow::ipc::reader::StreamReader;
use tidemill_dataset::datafusion::arrow::ipc::writer::StreamWriter;
use tidemill_dataset::datafusion::arrow::util::display::FormatOptions;
use tidemill_dataset::datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use tidemill_dataset::{DataSetError, plain_batch, plain_schema, types, unite};

use super::engine::GivenSchema;
use super::{raised, value};
use crate::array::plain;

/// Rows in memory.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeTable {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
}

impl NativeTable {
    /// The batches, for immediate reading: data on disk was verified.
    fn checked(&self, py: Python<'_>) -> PyResult<&[RecordBatch]> {
        let verified = py.detach(|| self.batches.iter().try_for_each(verify_rows));
        verified.map_err(|error| raised(py, &DataSetError::Io(error.to_string())))?;
        Ok(&self.batches)
    }

    fn from_columns(py: Python<'_>, columns: Vec<(String, ArrayRef)>) -> PyResult<Self> {
        let fields: Vec<Field> =
            columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
        let schema: SchemaRef = Schema::new(fields).into();
        if columns.is_empty() {
            return Ok(NativeTable { schema, batches: Vec::new() });
        }
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(|error| raised(py, &error.into()))?;
        Ok(NativeTable { schema, batches: vec![batch] })
    }
}

/// A column's name, the NumPy name of its type, and the bytes of its values.
type ColumnArray<'py> = (String, String, Option<Bound<'py, PyArray1<u8>>>);

#[pymethods]
impl NativeTable {
    /// Imports any object with the Arrow PyCapsule interface.
    #[staticmethod]
    fn take(py: Python<'_>, table: PyTable) -> PyResult<Self> {
        let (batches, schema) = table.into_inner();
        let plain = plain_schema(&schema);
        if Arc::ptr_eq(&plain, &schema) {
            return Ok(NativeTable { schema, batches });
        }
        let batches = py.detach(|| batches.iter().map(|batch| plain_batch(batch, &plain)).collect::<Result<_, _>>());
        Ok(NativeTable { schema: plain, batches: batches.map_err(|error: ArrowError| raised(py, &error.into()))? })
    }

    /// A table with these columns and no rows.
    #[staticmethod]
    fn empty(py: Python<'_>, schema: GivenSchema) -> PyResult<Self> {
        Ok(NativeTable { schema: schema.resolve(py)?, batches: Vec::new() })
    }

    /// The rows of tables with the columns of `first`, appended to its own.
    #[staticmethod]
    fn concat(first: &NativeTable, others: Vec<PyRef<'_, NativeTable>>) -> Self {
        let batches = first.batches.iter().chain(others.iter().flat_map(|table| &table.batches)).cloned().collect();
        NativeTable { schema: first.schema.clone(), batches }
    }

    /// A table without rows that has the columns of all `tables`, with types that can represent the values of all.
    /// `names` are those of the tables, for errors.
    #[staticmethod]
    fn unite(py: Python<'_>, tables: Vec<PyRef<'_, NativeTable>>, names: Vec<String>) -> PyResult<Self> {
        let schemas: Vec<SchemaRef> = tables.iter().map(|table| SchemaRef::clone(&table.schema)).collect();
        let schema = unite(&names, &schemas).map_err(|error| raised(py, &error))?;
        Ok(NativeTable { schema, batches: Vec::new() })
    }

    /// A table of columns (name, values, type or `None`) of Python values.
    #[staticmethod]
    fn from_lists(py: Python<'_>, columns: Vec<(String, Bound<'_, PyList>, Option<String>)>) -> PyResult<Self> {
        let columns: PyResult<Vec<(String, ArrayRef)>> = columns
            .into_iter()
            .map(|(name, values, kind)| {
                let made = match kind {
                    None => value::array(&values),
                    Some(kind) => types::parse(&kind)
                        .map_err(|error| raised(py, &error))
                        .and_then(|kind| value::array_as(&values, &kind)),
                };
                made.map(|array| (name.clone(), array)).map_err(|error| in_column(py, error, &name))
            })
            .collect();
        Self::from_columns(py, columns?)
    }

    /// Python values as the columns of a schema, a list for each.
    #[staticmethod]
    fn from_lists_as(py: Python<'_>, columns: Vec<Bound<'_, PyList>>, schema: GivenSchema) -> PyResult<Self> {
        let schema = schema.resolve(py)?;
        let columns = columns.iter().zip(schema.fields()).map(|(values, field)| {
            value::array_as(values, field.data_type()).map_err(|error| in_column(py, error, field.name()))
        });
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).map_err(|error| raised(py, &error.into()))?;
        Ok(NativeTable { schema, batches: vec![batch] })
    }

    /// Columns that contain, possibly nested, nothing but nulls, so that their type is unknown.
    #[getter]
    fn untyped(&self) -> Vec<String> {
        let untyped = self.schema.fields().iter().filter(|field| is_untyped(field.data_type()));
        untyped.map(|field| field.name().clone()).collect()
    }

    /// A table of one-dimensional arrays by name, which are copied. `None` unless all are contiguous, of equal length,
    /// and of numbers or booleans in native byte order that Arrow supports; the caller then finds out why.
    #[staticmethod]
    fn from_plain(py: Python<'_>, columns: &Bound<'_, PyDict>) -> PyResult<Option<Self>> {
        let mut arrays = Vec::with_capacity(columns.len());
        for (name, array) in columns {
            let (Ok(name), Some(array)) = (name.cast::<PyString>(), plain(&array)) else { return Ok(None) };
            let Some(kind) = arrow_type(array.dtype).filter(|_| array.axes == 1) else { return Ok(None) };
            // SAFETY: a plain array has `len` elements of its type at `ptr`, and no other code changes it while the GIL
            // is held.
            let bytes = unsafe { std::slice::from_raw_parts(array.ptr, array.len * array.dtype.size_bytes()) };
            let made: ArrayRef = match kind {
                DataType::Boolean => {
                    Arc::new(BooleanArray::from(BooleanBuffer::collect_bool(array.len, |at| bytes[at] != 0)))
                }
                kind => {
                    let data = ArrayData::builder(kind).len(array.len).add_buffer(Buffer::from_slice_ref(bytes));
                    make_array(data.build().map_err(|error| raised(py, &error.into()))?)
                }
            };
            arrays.push((name.to_str()?.to_owned(), made));
        }
        match arrays.first() {
            Some((_, first)) if arrays.iter().any(|(_, array)| array.len() != first.len()) => Ok(None),
            _ => Self::from_columns(py, arrays).map(Some),
        }
    }

    /// The same with nulls where `nulls` is true.
    fn with_nulls(&self, py: Python<'_>, nulls: Vec<bool>) -> PyResult<Self> {
        let made = || -> Result<RecordBatch, ArrowError> {
            let batch = concat_batches(&self.schema, &self.batches)?;
            let nulls = BooleanArray::from(nulls);
            let columns = batch.columns().iter().map(|column| nullif(column, &nulls)).collect::<Result<_, _>>()?;
            RecordBatch::try_new(self.schema.clone(), columns)
        };
        let batch = made().map_err(|error| raised(py, &error.into()))?;
        Ok(NativeTable { schema: batch.schema(), batches: vec![batch] })
    }

    /// The only column's values in lists of `size` elements.
    fn in_lists(&self, py: Python<'_>, name: &str, size: i32) -> PyResult<Self> {
        let made = || -> Result<ArrayRef, ArrowError> {
            let batch = concat_batches(&self.schema, &self.batches)?;
            let values = Arc::clone(batch.column(0));
            let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
            Ok(Arc::new(FixedSizeListArray::try_new(field, size, values, None)?))
        };
        let lists = made().map_err(|error| raised(py, &error.into()))?;
        Self::from_columns(py, vec![(name.to_owned(), lists)])
    }

    /// All rows as an Arrow IPC stream.
    fn to_ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let written = py.detach(|| {
            let mut writer = StreamWriter::try_new(Vec::new(), &self.schema)?;
            for batch in &self.batches {
                writer.write(batch)?;
            }
            writer.into_inner()
        });
        Ok(PyBytes::new(py, &written.map_err(|error| raised(py, &error.into()))?))
    }

    #[staticmethod]
    fn from_ipc(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let read = || {
            let reader = StreamReader::try_new(data, None)?;
            let schema = reader.schema();
            Ok(NativeTable { schema, batches: reader.collect::<Result<_, ArrowError>>()? })
        };
        read().map_err(|error: ArrowError| raised(py, &error.into()))
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        let mut allocations = AllocationSet::default();
        self.batches.iter().map(|batch| allocations.add(batch)).sum()
    }

    /// Names and types of the columns, in order.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        self.schema.fields().iter().map(|field| (field.name().clone(), field.data_type().to_string())).collect()
    }

    fn slice(&self, skip: usize, count: usize) -> Self {
        let (mut skip, mut left) = (skip, count);
        let mut batches = Vec::new();
        for batch in &self.batches {
            let passed = skip.min(batch.num_rows());
            let length = left.min(batch.num_rows() - passed);
            if length > 0 {
                batches.push(batch.slice(passed, length));
            }
            skip -= passed;
            left -= length;
        }
        NativeTable { schema: self.schema.clone(), batches }
    }

    /// A list of Python values for each column.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (columns, batches) = (PyDict::new(py), self.checked(py)?);
        for (place, field) in self.schema.fields().iter().enumerate() {
            let cells = PyList::empty(py);
            for batch in batches {
                cells.call_method1("extend", (value::list(py, batch.column(place).as_ref())?,))?;
            }
            columns.set_item(field.name(), cells)?;
        }
        Ok(columns)
    }

    /// The same values as the types of a schema with the same columns.
    fn cast(&self, py: Python<'_>, schema: GivenSchema) -> PyResult<Self> {
        let schema = schema.resolve(py)?;
        let exact = CastOptions { safe: false, ..Default::default() };
        let cast = |batch: &RecordBatch| -> Result<RecordBatch, ArrowError> {
            let column = |field: &Arc<Field>| {
                let missing = || ArrowError::SchemaError(format!("no column {:?}", field.name()));
                let column = batch.column_by_name(field.name()).ok_or_else(missing)?;
                cast_with_options(column, field.data_type(), &exact)
            };
            RecordBatch::try_new(Arc::clone(&schema), schema.fields().iter().map(column).collect::<Result<_, _>>()?)
        };
        let batches = self.batches.iter().map(cast).collect::<Result<_, _>>().map_err(|e| raised(py, &e.into()))?;
        Ok(NativeTable { schema, batches })
    }

    /// These columns, followed by those of a table with the same number of rows.
    fn beside(&self, py: Python<'_>, other: &NativeTable) -> PyResult<Self> {
        let together = || -> Result<RecordBatch, ArrowError> {
            let (left, right) =
                (concat_batches(&self.schema, &self.batches)?, concat_batches(&other.schema, &other.batches)?);
            let fields: Fields = self.schema.fields().iter().chain(other.schema.fields()).cloned().collect();
            let columns = left.columns().iter().chain(right.columns()).cloned().collect();
            RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        };
        let batch = together().map_err(|error| raised(py, &error.into()))?;
        Ok(NativeTable { schema: batch.schema(), batches: vec![batch] })
    }

    /// The rows selected by `keep`.
    fn filter(&self, py: Python<'_>, keep: Vec<bool>) -> PyResult<Self> {
        let mut from = 0;
        let kept = self.batches.iter().map(|batch| {
            let mask = BooleanArray::from(keep[from..from + batch.num_rows()].to_vec());
            from += batch.num_rows();
            filter_record_batch(batch, &mask)
        });
        let batches = kept.collect::<Result<_, _>>().map_err(|error| raised(py, &error.into()))?;
        Ok(NativeTable { schema: self.schema.clone(), batches })
    }

    /// For each row, the structs in a list column as a table.
    fn lists(&self, column: &str) -> PyResult<Vec<NativeTable>> {
        let mut tables = Vec::new();
        for batch in &self.batches {
            let lists = batch.column_by_name(column).and_then(|column| column.as_list_opt::<i32>());
            let lists = lists.ok_or_else(|| PyKeyError::new_err(column.to_owned()))?;
            for rows in lists.iter() {
                let rows = rows.ok_or_else(|| PyKeyError::new_err(column.to_owned()))?;
                let structs = rows.as_struct_opt().ok_or_else(|| PyKeyError::new_err(column.to_owned()))?;
                let rows = RecordBatch::from(structs);
                tables.push(NativeTable { schema: rows.schema(), batches: vec![rows] });
            }
        }
        Ok(tables)
    }

    /// The Python values of a column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let cells = PyList::empty(py);
        for batch in self.checked(py)? {
            let column = batch.column_by_name(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
            cells.call_method1("extend", (value::list(py, column.as_ref())?,))?;
        }
        Ok(cells)
    }

    /// A column as numbers of its distinct values in order of first occurrence, and these values as a one-column table.
    /// The numbers are int32 as bytes; -1 means null.
    fn codes<'py>(&self, py: Python<'py>, name: &str) -> PyResult<(Bound<'py, PyBytes>, NativeTable)> {
        let place = self.schema.index_of(name).map_err(|_| PyKeyError::new_err(name.to_owned()))?;
        let made = py.detach(|| {
            let field = self.schema.field(place);
            // Strings of their own, not views of the batch they came from.
            let kind = match field.data_type() {
                DataType::Utf8View => DataType::Utf8,
                other => other.clone(),
            };
            let parts: Vec<&dyn Array> = self.batches.iter().map(|batch| batch.column(place).as_ref()).collect();
            let column = if parts.is_empty() { new_empty_array(field.data_type()) } else { concat(&parts)? };
            let column = cast(&column, &DataType::Dictionary(Box::new(DataType::Int32), Box::new(kind.clone())))?;
            let coded = column.as_dictionary::<Int32Type>();
            let mut bytes = Vec::with_capacity(coded.len() * size_of::<i32>());
            for code in coded.keys() {
                bytes.extend_from_slice(&code.unwrap_or(-1).to_ne_bytes());
            }
            let schema: SchemaRef = Schema::new(vec![Field::new(name, kind, true)]).into();
            let batch = RecordBatch::try_new(schema.clone(), vec![coded.values().clone()])?;
            Ok((bytes, NativeTable { schema, batches: vec![batch] }))
        });
        let (bytes, distinct) = made.map_err(|error: ArrowError| raised(py, &error.into()))?;
        Ok((PyBytes::new(py, &bytes), distinct))
    }

    /// For each column its name, the NumPy name of its type, and a copy of its values as bytes; no bytes if NumPy has
    /// no such type, or if there are nulls.
    fn to_arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<ColumnArray<'py>>> {
        let batches = self.checked(py)?;
        let column = |(place, field): (usize, &Arc<Field>)| {
            let parts: Vec<&ArrayRef> = batches.iter().map(|batch| batch.column(place)).collect();
            let (kind, width) = numpy_type(field.data_type())
                .filter(|_| parts.iter().all(|part| part.null_count() == 0))
                .unwrap_or_default();
            let bytes = (width > 0).then(|| {
                let mut bytes = Vec::with_capacity(self.num_rows() * width);
                for part in parts {
                    match part.as_boolean_opt() {
                        Some(values) => bytes.extend(values.values().iter().map(u8::from)),
                        None => {
                            let data = part.to_data();
                            let start = data.offset() * width;
                            bytes.extend_from_slice(&data.buffers()[0][start..start + data.len() * width]);
                        }
                    }
                }
                bytes.into_pyarray(py)
            });
            (field.name().clone(), kind.to_owned(), bytes)
        };
        Ok(self.schema.fields().iter().enumerate().map(column).collect())
    }

    /// The rows as a text table, with the types below the column names if `types`.
    #[pyo3(signature = (types = false))]
    fn format(&self, py: Python<'_>, types: bool) -> PyResult<String> {
        let empty = [RecordBatch::new_empty(self.schema.clone())];
        let batches = if self.batches.is_empty() { &empty[..] } else { &self.batches };
        // A null must be distinguishable from an empty string.
        let options = FormatOptions::default().with_null("null").with_types_info(types);
        let table = pretty_format_batches_with_options(batches, &options).map_err(|error| raised(py, &error.into()))?;
        Ok(table.to_string())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let field =
            Field::new_struct("", self.schema.fields().clone(), false).with_metadata(self.schema.metadata().clone());
        let arrays: Vec<_> =
            self.checked(py)?.iter().map(|batch| Ok(Arc::new(StructArray::from(batch.clone())) as ArrayRef)).collect();
        let reader = Box::new(ArrayIterator::new(arrays.into_iter(), field.into()));
        Ok(to_stream_pycapsule(py, reader, requested_schema)?)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.schema.as_ref())?)
    }
}

fn in_column(py: Python<'_>, error: PyErr, name: &str) -> PyErr {
    error.value(py).call_method1("add_note", (format!("in column {name:?}"),)).ok();
    error
}

fn is_untyped(kind: &DataType) -> bool {
    match kind {
        DataType::Null => true,
        DataType::List(inner) | DataType::Map(inner, _) => is_untyped(inner.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| is_untyped(field.data_type())),
        _ => false,
    }
}

/// The Arrow type of a NumPy number; `None` if Arrow has no such type.
fn arrow_type(dtype: DType) -> Option<DataType> {
    Some(match dtype {
        DType::Bool => DataType::Boolean,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U8 => DataType::UInt8,
        DType::U16 => DataType::UInt16,
        DType::U32 => DataType::UInt32,
        DType::U64 => DataType::UInt64,
        DType::F16 => DataType::Float16,
        DType::F32 => DataType::Float32,
        DType::F64 => DataType::Float64,
        _ => return None,
    })
}

/// The NumPy name of a type, and the size of a value in bytes.
fn numpy_type(kind: &DataType) -> Option<(&'static str, usize)> {
    Some(match kind {
        DataType::Boolean => ("bool", 1),
        DataType::Int8 => ("int8", 1),
        DataType::Int16 => ("int16", 2),
        DataType::Int32 => ("int32", 4),
        DataType::Int64 => ("int64", 8),
        DataType::UInt8 => ("uint8", 1),
        DataType::UInt16 => ("uint16", 2),
        DataType::UInt32 => ("uint32", 4),
        DataType::UInt64 => ("uint64", 8),
        DataType::Float16 => ("float16", 2),
        DataType::Float32 => ("float32", 4),
        DataType::Float64 => ("float64", 8),
        _ => return None,
    })
}

/// Writes the rows of files, in order, into one new file; see `tidemill_dataset::join_files`.
#[pyfunction]
pub fn join_files(
    py: Python<'_>,
    parquet: bool,
    parts: Vec<std::path::PathBuf>,
    out: std::path::PathBuf,
    codec: &str,
) -> PyResult<()> {
    let joined = py.detach(|| tidemill_dataset::join_files(parquet, &parts, &out, codec));
    joined.map_err(|error| raised(py, &error))
}
