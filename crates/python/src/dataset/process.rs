//! Functions of the program over the rows of each key of a stream: an object in Python keeps states and timers.

use std::ops::Range;

use bytes::Bytes;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tidemill_dataflow::DataflowError;
use tidemill_dataflow::checkpoint::{Buckets, Part};
use tidemill_dataflow::memory::{Governor, MapWriter};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::{KeyedBatch, KeyedFunction, MakeKeyedFunction};

use super::calls::Call;
use super::frame::told;
use super::table::NativeTable;

/// An object with the methods of [`KeyedFunction`], of one copy.
struct PythonKeyed {
    object: Py<PyAny>,
    governor: Governor,
    /// As the object said last.
    alarm: Option<i64>,
}

impl PythonKeyed {
    /// Calls the object, which may set alarms then.
    fn call<T>(&mut self, work: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T>) -> Result<T, String> {
        let object = &self.object;
        let (done, alarm) = call(|py| {
            let done = work(py, object)?;
            Ok((done, object.call_method0(py, "next_alarm")?.extract(py)?))
        })?;
        self.alarm = alarm;
        Ok(done)
    }
}

/// Makes one by calling `factory`.
pub fn keyed_function(factory: Py<PyAny>) -> MakeKeyedFunction {
    std::sync::Arc::new(move |context| {
        let governor = context.governor().clone();
        let object = call(|py| factory.call1(py, (&governor.settings().spill_dir, context.makes_checkpoints())))?;
        Ok(Box::new(PythonKeyed { object, governor, alarm: None }) as Box<dyn KeyedFunction>)
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
        let arguments = (table(keys), buckets, ends, table(rows));
        self.call(|py, object| batches(py, &object.call_method1(py, "rows", arguments)?))
    }

    fn time(&mut self, now: EventTime) -> Result<(Vec<RecordBatch>, bool), String> {
        self.call(|py, object| {
            let (made, more): (Py<PyAny>, bool) = object.call_method1(py, "time", (now.0,))?.extract(py)?;
            Ok((batches(py, &made)?, more))
        })
    }

    fn next_alarm(&self) -> Option<i64> {
        self.alarm
    }

    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String> {
        self.call(|py, object| {
            let (made, more): (Py<PyAny>, bool) = object.call_method0(py, "ring")?.extract(py)?;
            Ok((batches(py, &made)?, more))
        })
    }

    fn bytes(&self) -> Result<usize, String> {
        call(|py| self.object.call_method0(py, "held_bytes")?.extract(py))
    }

    fn spill(&mut self) -> Result<(), String> {
        call(|py| self.object.call_method0(py, "spill").map(drop))
    }

    fn snapshot(&mut self, whole: bool) -> Result<Buckets, String> {
        let mut gathered = Gathered::new(&self.governor);
        let wholes: Vec<(u32, bool)> = call(|py| {
            let saved = self.object.call_method1(py, "snapshot", (whole,))?;
            let mut wholes = Vec::new();
            for part in saved.bind(py).try_iter()? {
                let (bucket, whole, bytes): (u32, bool, Bound<'_, PyBytes>) = part?.extract()?;
                gathered.add(bytes.as_bytes())?;
                wholes.push((bucket, whole));
            }
            Ok(wholes)
        })?;
        let part = |((bucket, whole), bytes)| (bucket, if whole { Part::Whole(bytes) } else { Part::Change(bytes) });
        Ok(wholes.into_iter().zip(gathered.finish()?).map(part).collect())
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String> {
        let mut gathered = Gathered::new(&self.governor);
        let released: Vec<u32> = call(|py| {
            let parts = self.object.call_method1(py, "release", (buckets.to_vec(),))?;
            let mut released = Vec::new();
            for part in parts.bind(py).try_iter()? {
                let (bucket, bytes): (u32, Bound<'_, PyBytes>) = part?.extract()?;
                gathered.add(bytes.as_bytes())?;
                released.push(bucket);
            }
            Ok(released)
        })?;
        Ok(released.into_iter().zip(gathered.finish()?).collect())
    }

    fn restore(&mut self, now: EventTime, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String> {
        self.call(|py, object| {
            for (bucket, parts) in buckets {
                let parts = PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?;
                object.call_method1(py, "restore", (now.0, bucket, parts))?;
            }
            Ok(())
        })
    }
}

/// Parts that may be more than fits in memory: under a budget they lie on disk.
struct Gathered {
    governor: Governor,
    memory: Vec<Bytes>,
    bytes: usize,
    file: Option<MapWriter>,
    places: Vec<Range<usize>>,
}

/// So much is gathered in memory.
const GATHERED_BYTES_MAX: usize = 4 << 20;

impl Gathered {
    fn new(governor: &Governor) -> Self {
        Gathered { governor: governor.clone(), memory: Vec::new(), bytes: 0, file: None, places: Vec::new() }
    }

    fn add(&mut self, part: &[u8]) -> PyResult<()> {
        let failed = |error: DataflowError| PyOSError::new_err(error.to_string());
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
        let Gathered { mut memory, file, places, .. } = self;
        if let Some(file) = file {
            let all = file.finish().map_err(|error| error.to_string())?;
            memory.extend(places.into_iter().map(|place| all.slice(place)));
        }
        Ok(memory)
    }
}
