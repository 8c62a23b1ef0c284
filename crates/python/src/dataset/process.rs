//! Keyed functions of the program over streams: a Python object calls them and pickles their states; the engine does
//! the rest.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tidemill_dataflow::checkpoint::{BucketStates, SnapshotPart};
use tidemill_dataflow::memory::{Governor, MemorySettings};
use tidemill_dataflow::wait_in_copy;
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tidemill_stream::{
    KeyContext, KeyLogic, KeyedBatch, KeyedEngine, KeyedFunction, KeyedOptions, Lifetimes, MakeKeyedFunction, Timer,
};

use super::calls;
use super::engine::GivenSchema;
use super::frame::exception_text;
use super::table::NativeTable;

/// A state; timers that were set (true) or deleted: whether by the machine's clock, and when; whether something with a
/// time to live was put; and when the first part expires.
type Called = (Option<Py<PyAny>>, Vec<(bool, i64, bool)>, bool, Option<i64>);

/// An object with the methods of `tidemill._streaming.process.KeyedLogic`. States are Python objects.
struct PythonLogic(Py<PyAny>);

impl PythonLogic {
    fn call<T>(&self, work: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, String> {
        Python::attach(|py| work(py, self.0.bind(py)).map_err(|error| exception_text(py, &error)))
    }

    fn finish(called: Called, key: &mut KeyContext<'_, Py<PyAny>>) {
        let (state, timers, has_fresh, expires) = called;
        key.state = state;
        key.lifetimes = Lifetimes { has_fresh, expires };
        for (by_clock, at, is_set) in timers {
            let timer = if by_clock { Timer::Clock(at) } else { Timer::Event(at) };
            if is_set { key.set(timer) } else { key.delete(timer) }
        }
    }
}

fn table(rows: RecordBatch) -> NativeTable {
    NativeTable { schema: rows.schema(), batches: vec![rows] }
}

impl KeyLogic for PythonLogic {
    type State = Py<PyAny>;

    fn on_batch(&mut self, batch: &KeyedBatch) -> Result<(), String> {
        let (keys, rows) = (table(batch.keys.clone()), table(batch.rows.clone()));
        self.call(|_, logic| logic.call_method1("on_batch", (keys, rows)).map(drop))
    }

    fn on_rows(
        &mut self,
        _batch: &KeyedBatch,
        number: usize,
        rows: Range<usize>,
        key: &mut KeyContext<'_, Py<PyAny>>,
    ) -> Result<(), String> {
        let arguments = (number, rows.start, rows.end, key.state.take(), key.time(), key.raw_time());
        let called = self.call(|_, logic| logic.call_method1("on_rows", arguments)?.extract::<Called>())?;
        PythonLogic::finish(called, key);
        Ok(())
    }

    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_, Py<PyAny>>) -> Result<(), String> {
        let (by_clock, at) = match timer {
            Timer::Event(at) => (false, at),
            Timer::Clock(at) => (true, at),
        };
        // An existing state already knows its key.
        let columns = if key.state.is_none() { Some(table(key.columns()?)) } else { None };
        let arguments = (columns, by_clock, at, key.state.take(), key.time(), key.raw_time());
        let called = self.call(|_, logic| logic.call_method1("on_timer", arguments)?.extract::<Called>())?;
        PythonLogic::finish(called, key);
        Ok(())
    }

    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String> {
        self.call(|_, logic| {
            let made = logic.call_method0("take_rows")?;
            let tables = made.extract::<Vec<PyRef<'_, NativeTable>>>()?;
            Ok(tables.iter().flat_map(|table| table.batches.clone()).collect())
        })
    }

    fn encode(&mut self, state: &Py<PyAny>, whole: bool) -> Result<Vec<u8>, String> {
        self.call(|_, logic| logic.call_method1("encode", (state, whole))?.extract())
    }

    fn saved(&mut self, state: &mut Py<PyAny>) -> Result<(), String> {
        self.call(|_, logic| logic.call_method1("saved", (&*state,)).map(drop))
    }

    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Py<PyAny>, String> {
        self.call(|py, logic| {
            let parts = PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?;
            logic.call_method1("decode", (parts,)).map(Bound::unbind)
        })
    }

    fn bytes(&mut self, state: &Py<PyAny>) -> Result<usize, String> {
        self.call(|_, logic| logic.call_method1("bytes", (state,))?.extract())
    }

    fn lifetimes(&mut self, state: &Py<PyAny>, now: i64) -> Result<Lifetimes, String> {
        let (has_fresh, expires) = self.call(|_, logic| logic.call_method1("lifetimes", (state, now))?.extract())?;
        Ok(Lifetimes { has_fresh, expires })
    }

    fn count_from(&mut self, state: &mut Py<PyAny>, now: i64) -> Result<bool, String> {
        self.call(|_, logic| logic.call_method1("count_from", (&*state, now))?.extract())
    }

    fn expire(&mut self, state: Py<PyAny>, now: i64) -> Result<Option<Py<PyAny>>, String> {
        self.call(|_, logic| {
            let left = logic.call_method1("expire", (state, now))?;
            Ok((!left.is_none()).then(|| left.unbind()))
        })
    }
}

/// The engine of one copy, on threads that may block, possibly for longer than the run exists.
struct PythonKeyed(Arc<Mutex<KeyedEngine<PythonLogic>>>);

impl PythonKeyed {
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut KeyedEngine<PythonLogic>) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let engine = Arc::clone(&self.0);
        call(move |_| work(&mut engine.lock()))
    }
}

/// Makes a function by calling `factory`, which makes the object.
pub fn keyed_function(factory: Py<PyAny>, ttl: Option<i64>) -> MakeKeyedFunction {
    let factory = Arc::new(factory);
    Arc::new(move |setup| {
        let factory = Arc::clone(&factory);
        let logic = call(move |py| factory.call0(py).map_err(|error| exception_text(py, &error)))?;
        let options = KeyedOptions { keys: Arc::clone(&setup.keys), ttl, clock: None };
        let engine = KeyedEngine::new(PythonLogic(logic), options, setup.context)?;
        Ok(Box::new(PythonKeyed(Arc::new(Mutex::new(engine)))) as Box<dyn KeyedFunction>)
    })
}

fn call<T: Send + 'static>(work: impl FnOnce(Python<'_>) -> Result<T, String> + Send + 'static) -> Result<T, String> {
    wait_in_copy(calls::call(work)).map_err(|error| error.to_string())?
}

impl KeyedFunction for PythonKeyed {
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String> {
        self.call(|engine| engine.rows(batch))
    }

    fn time(&mut self, now: i64) -> Result<(Vec<RecordBatch>, bool), String> {
        self.call(move |engine| engine.time(now))
    }

    fn next_alarm(&self) -> Option<i64> {
        self.0.lock().next_alarm()
    }

    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String> {
        self.call(|engine| engine.ring())
    }

    fn bytes(&self) -> Result<usize, String> {
        self.0.lock().bytes()
    }

    fn spill(&mut self) -> Result<(), String> {
        self.call(|engine| engine.spill())
    }

    fn snapshot(&mut self, whole: bool) -> Result<BucketStates, String> {
        self.call(move |engine| engine.snapshot(whole))
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String> {
        let buckets = buckets.to_vec();
        self.call(move |engine| engine.release(&buckets))
    }

    fn restore(&mut self, now: i64, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String> {
        self.call(move |engine| engine.restore(now, buckets))
    }
}

/// The engine of one copy by itself, without a stream, for inspection.
#[pyclass(module = "tidemill._tidemill")]
pub struct NativeKeyedEngine(Mutex<KeyedEngine<PythonLogic>>);

impl NativeKeyedEngine {
    fn run<T>(&self, work: impl FnOnce(&mut KeyedEngine<PythonLogic>) -> Result<T, String>) -> PyResult<T> {
        work(&mut self.0.lock()).map_err(PyValueError::new_err)
    }

    fn tables(rows: Vec<RecordBatch>) -> Vec<NativeTable> {
        rows.into_iter().map(table).collect()
    }
}

fn together(table: &NativeTable) -> PyResult<RecordBatch> {
    concat_batches(&table.schema, &table.batches).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Bytes by bucket; for a snapshot, with whether they are full.
type PartBytes<'py> = Vec<(u32, bool, Bound<'py, PyBytes>)>;

#[pymethods]
impl NativeKeyedEngine {
    #[new]
    #[pyo3(signature = (logic, keys, ttl = None, saves = false, spill_dir = None, clock = None))]
    fn new(
        py: Python<'_>,
        logic: Py<PyAny>,
        keys: GivenSchema,
        ttl: Option<i64>,
        saves: bool,
        spill_dir: Option<std::path::PathBuf>,
        clock: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let mut settings = MemorySettings::default();
        if let Some(spill_dir) = spill_dir {
            settings.spill_dir = spill_dir;
        }
        let clock = clock.map(|clock| {
            let now = move || {
                Python::attach(|py| clock.call0(py)?.extract::<i64>(py)).expect("a clock of a test returns its time")
            };
            Box::new(now) as Box<dyn Fn() -> i64 + Send>
        });
        let options = KeyedOptions { keys: keys.resolve(py)?, ttl, clock };
        let engine = KeyedEngine::alone(PythonLogic(logic), options, saves, &Governor::new(settings));
        Ok(NativeKeyedEngine(Mutex::new(engine.map_err(|error| PyValueError::new_err(error.to_string()))?)))
    }

    /// Adds rows: each key's end at its entry of `ends`.
    fn rows(
        &self,
        keys: &NativeTable,
        buckets: Vec<u32>,
        ends: Vec<usize>,
        rows: &NativeTable,
    ) -> PyResult<Vec<NativeTable>> {
        let batch = KeyedBatch { keys: together(keys)?, buckets, ends, rows: together(rows)? };
        self.run(|engine| engine.rows(batch)).map(Self::tables)
    }

    /// Event time has advanced, in microseconds. Also returns whether this must be called again.
    fn time(&self, now: i64) -> PyResult<(Vec<NativeTable>, bool)> {
        self.run(|engine| engine.time(now)).map(|(rows, more)| (Self::tables(rows), more))
    }

    /// When `ring` must be called, in microseconds of the machine's clock.
    fn next_alarm(&self) -> Option<i64> {
        self.0.lock().next_alarm()
    }

    /// Alarms that are due go off. Also returns whether this must be called again.
    fn ring(&self) -> PyResult<(Vec<NativeTable>, bool)> {
        self.run(|engine| engine.ring()).map(|(rows, more)| (Self::tables(rows), more))
    }

    /// The approximate size of the state in memory, in bytes.
    fn held_bytes(&self) -> PyResult<usize> {
        self.run(|engine| engine.bytes())
    }

    /// Moves half of the keys, or this many, to disk.
    #[pyo3(signature = (keys = None))]
    fn spill(&self, keys: Option<usize>) -> PyResult<()> {
        self.run(|engine| match keys {
            None => engine.spill(),
            Some(keys) => engine.spill_keys(keys).map_err(|error| error.to_string()),
        })
    }

    /// Bytes by bucket, and whether they are the bucket's full state.
    fn snapshot<'py>(&self, py: Python<'py>, whole: bool) -> PyResult<PartBytes<'py>> {
        let parts = self.run(|engine| engine.snapshot(whole))?;
        let part = |(bucket, part)| match part {
            SnapshotPart::Whole(bytes) => (bucket, true, PyBytes::new(py, &bytes)),
            SnapshotPart::Change(bytes) => (bucket, false, PyBytes::new(py, &bytes)),
        };
        Ok(parts.into_iter().map(part).collect())
    }

    /// Hands over the states of buckets, as bytes.
    fn release<'py>(&self, py: Python<'py>, buckets: Vec<u32>) -> PyResult<Vec<(u32, Bound<'py, PyBytes>)>> {
        let parts = self.run(|engine| engine.release(&buckets))?;
        Ok(parts.into_iter().map(|(bucket, bytes)| (bucket, PyBytes::new(py, &bytes))).collect())
    }

    /// Adds the state of a bucket: a full one, and changes since.
    fn restore(&self, now: i64, bucket: u32, parts: Vec<Vec<u8>>) -> PyResult<()> {
        let parts = parts.into_iter().map(Bytes::from).collect();
        self.run(|engine| engine.restore(now, vec![(bucket, parts)]))
    }

    /// The keys in memory: each as a table of one row, its bucket, state, timers, alarms, and when it was last touched.
    #[expect(clippy::type_complexity, reason = "read by tests alone")]
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<(NativeTable, u32, Option<Py<PyAny>>, Vec<i64>, Vec<i64>, i64)>> {
        self.run(|engine| {
            let entries = engine.entries().map(|entry| {
                let state = entry.state.map(|state| state.clone_ref(py));
                let key = table(entry.key.map_err(|error| error.to_string())?);
                Ok((key, entry.bucket, state, entry.timers, entry.alarms, entry.touched))
            });
            entries.collect()
        })
    }

    /// The number of keys on disk.
    fn stored(&self) -> usize {
        self.0.lock().stored()
    }

    /// The numbers of due times in memory, by the stream's time and by the machine's clock.
    fn due(&self) -> (usize, usize) {
        self.0.lock().due()
    }
}
