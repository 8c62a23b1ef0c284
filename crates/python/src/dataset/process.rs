//! Functions of the program over the rows of each key of a stream: an object in Python keeps states and timers.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tidemill_dataflow::checkpoint::{Buckets, Part};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::{KeyedBatch, KeyedFunction, MakeKeyedFunction};

use super::calls::Call;
use super::frame::told;
use super::table::NativeTable;

/// An object with the methods of [`KeyedFunction`], of one copy.
struct PythonKeyed(Py<PyAny>);

/// Makes one by calling `factory`.
pub fn keyed_function(factory: Py<PyAny>) -> MakeKeyedFunction {
    std::sync::Arc::new(move || {
        let made = call(|py| factory.call0(py))?;
        Ok(Box::new(PythonKeyed(made)) as Box<dyn KeyedFunction>)
    })
}

fn call<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    let Some(_call) = Call::begin() else { return Err("the program is ending".to_owned()) };
    Python::attach(|py| work(py).map_err(|error| told(py, &error)))
}

fn batches(py: Python<'_>, made: &Py<PyAny>) -> PyResult<Vec<RecordBatch>> {
    let tables = made.extract::<Vec<PyRef<'_, NativeTable>>>(py)?;
    Ok(tables.iter().flat_map(|table| table.batches.clone()).collect())
}

impl KeyedFunction for PythonKeyed {
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String> {
        let table = |rows: RecordBatch| NativeTable { schema: rows.schema(), batches: vec![rows] };
        let KeyedBatch { keys, buckets, ends, rows } = batch;
        call(|py| batches(py, &self.0.call_method1(py, "rows", (table(keys), buckets, ends, table(rows)))?))
    }

    fn time(&mut self, now: EventTime) -> Result<Vec<RecordBatch>, String> {
        call(|py| batches(py, &self.0.call_method1(py, "time", (now.0,))?))
    }

    fn snapshot(&mut self, whole: bool) -> Result<Buckets, String> {
        call(|py| {
            let saved = self.0.call_method1(py, "snapshot", (whole,))?;
            let saved: Vec<(u32, bool, Bound<'_, PyBytes>)> = saved.extract(py)?;
            let part = |(bucket, whole, bytes): (u32, bool, Bound<'_, PyBytes>)| {
                let bytes = Bytes::copy_from_slice(bytes.as_bytes());
                (bucket, if whole { Part::Whole(bytes) } else { Part::Change(bytes) })
            };
            Ok(saved.into_iter().map(part).collect())
        })
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String> {
        call(|py| {
            let parts = self.0.call_method1(py, "release", (buckets.to_vec(),))?;
            let parts: Vec<(u32, Bound<'_, PyBytes>)> = parts.extract(py)?;
            Ok(parts.into_iter().map(|(bucket, part)| (bucket, Bytes::copy_from_slice(part.as_bytes()))).collect())
        })
    }

    fn restore(&mut self, now: EventTime, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String> {
        call(|py| {
            for (bucket, parts) in buckets {
                let parts = PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?;
                self.0.call_method1(py, "restore", (now.0, bucket, parts))?;
            }
            Ok(())
        })
    }
}
