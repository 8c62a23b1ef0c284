//! Functions of the program over the rows of each key of a stream: an object in Python keeps states and timers.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tidemill_dataflow::checkpoint::{Buckets, Part};
use tidemill_dataflow::memory::{Governor, MapWriter};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{BatchError, wait_in_copy};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_stream::{KeyedBatch, KeyedFunction, MakeKeyedFunction};

use super::calls;
use super::frame::exception_text;
use super::table::NativeTable;

/// An object with the methods of [`KeyedFunction`], of one copy.
struct PythonKeyed {
    object: Arc<Py<PyAny>>,
    governor: Governor,
    /// As the object said last.
    alarm: Option<i64>,
}

impl PythonKeyed {
    /// Calls the object.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, String> {
        let object = Arc::clone(&self.object);
        call(move |py| work(py, &object))
    }

    /// The same, where it may set alarms.
    fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, String> {
        let (done, alarm) = self.call(|py, object| {
            let done = work(py, object)?;
            Ok((done, object.call_method0(py, "next_alarm")?.extract(py)?))
        })?;
        self.alarm = alarm;
        Ok(done)
    }
}

/// Makes one by calling `factory`.
pub fn keyed_function(factory: Py<PyAny>) -> MakeKeyedFunction {
    let factory = Arc::new(factory);
    Arc::new(move |context| {
        let (factory, governor) = (Arc::clone(&factory), context.governor().clone());
        let given = (governor.settings().spill_dir.clone(), context.makes_checkpoints());
        let object = Arc::new(call(move |py| factory.call1(py, given))?);
        Ok(Box::new(PythonKeyed { object, governor, alarm: None }) as Box<dyn KeyedFunction>)
    })
}

/// On a thread of its own: the function may block for longer than its run is there.
fn call<T: Send + 'static>(work: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static) -> Result<T, String> {
    let called = calls::call(move |py| work(py).map_err(|error| exception_text(py, &error)));
    wait_in_copy(called).map_err(|error| error.to_string())?
}

fn batches(py: Python<'_>, made: &Py<PyAny>) -> PyResult<Vec<RecordBatch>> {
    let tables = made.extract::<Vec<PyRef<'_, NativeTable>>>(py)?;
    Ok(tables.iter().flat_map(|table| table.batches.clone()).collect())
}

impl KeyedFunction for PythonKeyed {
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String> {
        let table = |rows: RecordBatch| NativeTable { schema: rows.schema(), batches: vec![rows] };
        let KeyedBatch { keys, buckets, ends, rows } = batch;
        let arguments = (table(keys), buckets, ends, table(rows));
        self.run(|py, object| batches(py, &object.call_method1(py, "rows", arguments)?))
    }

    fn time(&mut self, now: EventTime) -> Result<(Vec<RecordBatch>, bool), String> {
        self.run(move |py, object| {
            let (made, more): (Py<PyAny>, bool) = object.call_method1(py, "time", (now.0,))?.extract(py)?;
            Ok((batches(py, &made)?, more))
        })
    }

    fn next_alarm(&self) -> Option<i64> {
        self.alarm
    }

    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String> {
        self.run(|py, object| {
            let (made, more): (Py<PyAny>, bool) = object.call_method0(py, "ring")?.extract(py)?;
            Ok((batches(py, &made)?, more))
        })
    }

    fn bytes(&self) -> Result<usize, String> {
        self.call(|py, object| object.call_method0(py, "held_bytes")?.extract(py))
    }

    fn spill(&mut self) -> Result<(), String> {
        self.call(|py, object| object.call_method0(py, "spill").map(drop))
    }

    fn snapshot(&mut self, whole: bool) -> Result<Buckets, String> {
        let mut gathered = GatheredParts::new(&self.governor);
        let (wholes, gathered) = self.call(move |py, object| {
            let saved = object.call_method1(py, "snapshot", (whole,))?;
            let mut wholes: Vec<(u32, bool)> = Vec::new();
            for part in saved.bind(py).try_iter()? {
                let (bucket, whole, bytes): (u32, bool, Bound<'_, PyBytes>) = part?.extract()?;
                gathered.add(bytes.as_bytes())?;
                wholes.push((bucket, whole));
            }
            Ok((wholes, gathered))
        })?;
        let part = |((bucket, whole), bytes)| (bucket, if whole { Part::Whole(bytes) } else { Part::Change(bytes) });
        Ok(wholes.into_iter().zip(gathered.finish()?).map(part).collect())
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String> {
        let (mut gathered, buckets) = (GatheredParts::new(&self.governor), buckets.to_vec());
        let (released, gathered) = self.call(move |py, object| {
            let parts = object.call_method1(py, "release", (buckets,))?;
            let mut released: Vec<u32> = Vec::new();
            for part in parts.bind(py).try_iter()? {
                let (bucket, bytes): (u32, Bound<'_, PyBytes>) = part?.extract()?;
                gathered.add(bytes.as_bytes())?;
                released.push(bucket);
            }
            Ok((released, gathered))
        })?;
        Ok(released.into_iter().zip(gathered.finish()?).collect())
    }

    fn restore(&mut self, now: EventTime, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String> {
        self.run(move |py, object| {
            for (bucket, parts) in buckets {
                let parts = PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?;
                object.call_method1(py, "restore", (now.0, bucket, parts))?;
            }
            Ok(())
        })
    }
}

/// Parts that may be more than fits in memory: under a budget they lie on disk.
struct GatheredParts {
    governor: Governor,
    memory: Vec<Bytes>,
    bytes: usize,
    file: Option<MapWriter>,
    places: Vec<Range<usize>>,
}

/// So much is gathered in memory.
const GATHERED_BYTES_MAX: usize = 4 << 20;

impl GatheredParts {
    fn new(governor: &Governor) -> Self {
        GatheredParts { governor: governor.clone(), memory: Vec::new(), bytes: 0, file: None, places: Vec::new() }
    }

    fn add(&mut self, part: &[u8]) -> PyResult<()> {
        let failed = |error: BatchError| PyOSError::new_err(error.to_string());
        let limited = self.governor.settings().budget_bytes > 0;
        if self.file.is_none() && !(limited && self.bytes + part.len() > GATHERED_BYTES_MAX) {
            self.bytes += part.len();
            self.memory.push(Bytes::copy_from_slice(part));
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(MapWriter::new(&self.governor).map_err(failed)?),
        };
        let start = file.len();
        file.write(part).map_err(failed)?;
        self.places.push(start..file.len());
        Ok(())
    }

    /// The parts, in order.
    fn finish(self) -> Result<Vec<Bytes>, String> {
        let GatheredParts { mut memory, file, places, .. } = self;
        if let Some(file) = file {
            let all = file.finish().map_err(|error| error.to_string())?;
            memory.extend(places.into_iter().map(|place| all.slice(place)));
        }
        Ok(memory)
    }
}
