//! Streams: tables as sources, Python functions and objects as sinks, windows, and jobs that write streams.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::Value;
use tidemill_connect::ConnectError;
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore, StoreError, TaskState};
use tidemill_dataflow::stream::BarrierControl;
use tidemill_dataflow::stream::sink::{DeliveryGuarantee, MakeSink, Sink};
use tidemill_dataflow::stream::source::{WatermarkOrigin, WatermarkStrategy};
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tidemill_dataset::{DataSet, DataSetError};
use tidemill_storage::{ObjectStores, StorageOptions};
use tidemill_stream::{
    BadTo, LateTo, LookAtSinks, MakeLateSink, StreamJob, StreamSink, StreamSource, WindowRule, ZonedCalendar,
    from_stream, table_stream,
};

use super::calls::{self, PendingCall};
use super::control::{self, ControllerOptions, RunControl};
use super::engine::{GivenSchema, QueryEngine};
use super::expr::NativeExpr;
use super::frame::{NativeDataSet, exception_text, together, together_with};
use super::monitor::{DroppedRows, OverdueMonitor, RunLogger};
use super::running::NativeRunning;
use super::status::StatusFile;
use super::table::NativeTable;
use super::{finish, raised};
use crate::comm::Comm;
use crate::report::described;

/// A time column; the microseconds by which rows may be out of order, and for which splits may be silent; and the
/// origin of the watermark: "latest", "arrival", or "column" with its name.
pub(super) type Times = (String, u64, u64, String, Option<String>);

pub(super) fn times(given: Option<Times>) -> PyResult<Option<WatermarkStrategy>> {
    let Some((column, out_of_order, idle_after, kind, by)) = given else { return Ok(None) };
    let origin = match (kind.as_str(), by) {
        ("latest", None) => WatermarkOrigin::Latest,
        ("arrival", None) => WatermarkOrigin::Arrival,
        ("column", Some(column)) => WatermarkOrigin::Column(column),
        (other, _) => return Err(PyValueError::new_err(format!("{other:?} does not describe event time"))),
    };
    let times = WatermarkStrategy::of(column).out_of_order(Duration::from_micros(out_of_order));
    Ok(Some(times.idle_after(Duration::from_micros(idle_after)).origin(origin)))
}

pub(super) fn guaranteed(words: &str) -> PyResult<DeliveryGuarantee> {
    match words {
        "exactly_once" => Ok(DeliveryGuarantee::ExactlyOnce),
        "at_least_once" => Ok(DeliveryGuarantee::AtLeastOnce),
        "at_most_once" => Ok(DeliveryGuarantee::AtMostOnce),
        other => Err(PyValueError::new_err(format!(
            "guarantee is \"exactly_once\", \"at_least_once\" or \"at_most_once\", not {other:?}"
        ))),
    }
}

/// A table in memory as a stream.
#[pyfunction]
#[pyo3(signature = (engine, table, name, time, slice_rows, rows_per_s))]
pub fn stream_of_table(
    py: Python<'_>,
    engine: &QueryEngine,
    table: &NativeTable,
    name: &str,
    time: Option<Times>,
    slice_rows: usize,
    rows_per_s: f64,
) -> PyResult<NativeDataSet> {
    let schema = Arc::clone(&table.schema);
    let source = table_stream(name, schema, &table.batches, times(time)?, slice_rows, rows_per_s);
    let made = from_stream(&engine.engine, source);
    made.map(NativeDataSet).map_err(|error| raised(py, &error))
}

/// A stream of a connector: `spec` is the JSON that describes it, `schema` the schema of its rows, if they do not
/// contain one. Bad records go to `bad_to`, a sink and its name, if `spec` says so.
#[pyfunction]
#[pyo3(signature = (engine, spec, schema, time, bad_to = None))]
pub fn stream_of(
    py: Python<'_>,
    engine: &QueryEngine,
    spec: &str,
    schema: Option<GivenSchema>,
    time: Option<Times>,
    bad_to: Option<(Py<PyAny>, String)>,
) -> PyResult<NativeDataSet> {
    let schema = schema.map(|schema| schema.resolve(py)).transpose()?;
    let (described, spec) = (Arc::from(spec), described_by(spec)?);
    // Without the GIL, since this may ask a registry for its schema.
    let found = py
        .detach(|| tidemill_connect::source(&spec, schema, engine.engine.object_stores()))
        .map_err(|error| refused(py, &error))?;
    let bad_to = bad_to.zip(found.bad_schema).map(|((sink, name), schema)| -> PyResult<_> {
        let sink = any_sink(py, engine, sink, name, &schema)?;
        Ok(BadTo { schema, sink })
    });
    let bad_to = bad_to.transpose()?;
    engine.add_source(&found.name, &found.bad);
    let source = StreamSource {
        name: found.name,
        schema: found.schema,
        times: times(time)?,
        copies_max: found.copies_max,
        guarantee: found.guarantee,
        spec: Some(described),
        bad_to,
        bad_folder: found.bad_folder,
        files: found.files,
        moves_splits: found.moves_splits,
        make: found.make,
    };
    let made = from_stream(&engine.engine, source);
    made.map(NativeDataSet).map_err(|error| raised(py, &error))
}

pub(super) fn described_by(spec: &str) -> PyResult<Value> {
    serde_json::from_str(spec).map_err(|error| PyValueError::new_err(error.to_string()))
}

pub(super) fn refused(py: Python<'_>, error: &ConnectError) -> PyErr {
    raised(py, &DataSetError::Query(error.to_string()))
}

/// The window of a row with this time; durations in microseconds.
#[pyfunction]
#[pyo3(signature = (
    time, kind, size, slide, lateness, early = None, early_time = None, early_rows = None, zone = "", ttl = None,
))]
#[expect(clippy::too_many_arguments, reason = "arguments of a private function")]
pub fn window_of(
    py: Python<'_>,
    time: &Bound<'_, NativeExpr>,
    kind: &str,
    size: i64,
    slide: i64,
    lateness: i64,
    early: Option<i64>,
    early_time: Option<i64>,
    early_rows: Option<i64>,
    zone: &str,
    ttl: Option<i64>,
) -> PyResult<NativeExpr> {
    let windows = match kind {
        "session" => WindowRule::session(size),
        "count" => WindowRule::count(size, slide),
        "d" | "w" | "mo" | "y" => {
            ZonedCalendar::new(u32::try_from(size).unwrap_or(0), kind, zone).map(WindowRule::calendar)
        }
        _ => WindowRule::sliding(size, slide),
    };
    let asked = |mut windows: WindowRule| {
        windows = windows.late(lateness)?;
        if let Some(every) = early {
            windows = windows.early(every)?;
        }
        if let Some(step) = early_time {
            windows = windows.early_time(step)?;
        }
        if let Some(rows) = early_rows {
            windows = windows.early_rows(rows)?;
        }
        ttl.map_or(Ok(windows.clone()), |ttl| windows.remembered_for(ttl))
    };
    let windows = windows.and_then(asked);
    let windows = windows.map_err(|error| raised(py, &error))?;
    Ok(NativeExpr(windows.of(time.get().0.clone())))
}

/// Options of checkpoints; times in seconds.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct CheckpointOptions {
    place: String,
    storage_options: StorageOptions,
    every: f64,
    unaligned_after: Option<f64>,
    timeout: f64,
    keep: usize,
    at_most_once: bool,
    forget: Vec<String>,
}

/// The store of checkpoints, which may be a URL of one of the engine's stores.
fn checkpoint_store(
    engine: &QueryEngine,
    place: &str,
    options: &StorageOptions,
    writes: bool,
) -> Result<CheckpointStore, DataSetError> {
    Ok(CheckpointStore::open(engine.engine.object_stores(), place, options, writes)?)
}

impl CheckpointOptions {
    /// The settings of a job, with its place opened.
    pub fn settings(
        self,
        py: Python<'_>,
        engine: &QueryEngine,
        guarantee: Option<DeliveryGuarantee>,
    ) -> PyResult<CheckpointSettings> {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).map_err(|e| PyValueError::new_err(e.to_string()));
        let store = checkpoint_store(engine, &self.place, &self.storage_options, true);
        Ok(CheckpointSettings {
            store: store.map_err(|error| raised(py, &error))?,
            interval: seconds(self.every)?,
            unaligned_after: self.unaligned_after.map(seconds).transpose()?,
            timeout: seconds(self.timeout)?,
            keep: self.keep,
            at_most_once: self.at_most_once,
            may_repeat: guarantee != Some(DeliveryGuarantee::ExactlyOnce),
            forget: self.forget,
        })
    }
}

/// The report of a run: the edges' reports, the number of records that this process has dropped, and the first of them;
/// and by step, the numbers of rows dropped because they were late, and because they had no time.
type Told<'py> = (Bound<'py, PyDict>, u64, Option<String>, Vec<(String, u64, u64, u64)>);

/// A query, its sink, and the sink's name.
type Written = (Py<NativeDataSet>, Py<PyAny>, String);

/// The step that rows are late for (`None`: all windows), a sink for them, and its name.
type Late = (Option<String>, Py<PyAny>, String);

/// A job that writes streams, each to its sink. Making one opens what a worker may lack by itself, such as the store of
/// its checkpoints; running it is collective.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeStreamJob {
    job: StreamJob,
    outputs: Vec<(DataSet, StreamSink)>,
}

#[pymethods]
impl NativeStreamJob {
    /// Not collective: it may fail on one worker alone.
    #[new]
    #[pyo3(signature = (engine, outputs, name, checkpoints = None, guarantee = None, late = None, look_at_sinks = None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of a private method")]
    fn new(
        py: Python<'_>,
        engine: &QueryEngine,
        outputs: Vec<Written>,
        name: String,
        checkpoints: Option<CheckpointOptions>,
        guarantee: Option<&str>,
        late: Option<Vec<Late>>,
        look_at_sinks: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let outputs = outputs.into_iter().map(|(set, sink, sink_name)| -> PyResult<_> {
            let set = set.get();
            Ok((set.0.clone(), any_sink(py, engine, sink, sink_name, &set.schema(py)?)?))
        });
        let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
        let late = late.map_or(Ok(LateTo::Nowhere), |late| late_to(py, engine, late))?;
        let guarantee = guarantee.map(guaranteed).transpose()?;
        let checkpoints = checkpoints.map(|checkpoints| checkpoints.settings(py, engine, guarantee));
        let job = StreamJob {
            name,
            checkpoints: checkpoints.transpose()?,
            guarantee,
            late,
            left_out: Arc::default(),
            look_at_sinks: look_at_sinks.map(sinks_seen_by),
        };
        Ok(NativeStreamJob { job, outputs })
    }

    /// Runs the job until its streams end; collective, and once.
    #[pyo3(signature = (engine, comm, stop = None, status = None, watch = None, log = None, controller = None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of a private method")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        engine: &QueryEngine,
        comm: &Comm,
        stop: Option<Py<PyAny>>,
        status: Option<(Option<PathBuf>, String)>,
        watch: Option<Py<PyAny>>,
        log: Option<Py<PyAny>>,
        controller: Option<ControllerOptions>,
    ) -> PyResult<Told<'py>> {
        let NativeStreamJob { job, outputs } = self;
        let every = job.checkpoints.as_ref().map(|settings| settings.interval);
        let mut overdue = OverdueMonitor::new(every);
        let mut log = log.map(RunLogger::new);
        let mut left_out = DroppedRows::new(engine, &job.left_out);
        let workers = comm.get(py)?.size();
        let store = job.checkpoints.as_ref().map(|settings| settings.store.clone());
        let status_file = status.as_ref().and_then(|(file, _)| file.clone());
        let mut control = RunControl::open(py, engine, controller.as_ref(), store, status_file, comm.get(py)?.rank())?;
        let about = status.as_ref().map(|(_, about)| described_by(about)).transpose()?;
        let launch = about.and_then(|about| about["launch"].as_str().map(PathBuf::from));
        let status = status.map(|(file, about)| StatusFile::new(file, &about, workers, every));
        let spilled = engine.engine.governor().spilled_bytes();
        let mut status = status.transpose()?;
        let running = watch.is_some().then(|| Py::new(py, NativeRunning::default())).transpose()?;
        let mut stopping = false;
        let report = together_with(py, engine, comm, |workers, look| {
            tidemill_stream::run(workers, &engine.engine, outputs, job, &mut |run| {
                left_out.look(engine);
                overdue.look(run);
                control.look(engine, run);
                if let Some(active) = control.take_scaled(launch.as_deref()) {
                    workers.runner().set_active_workers(active);
                }
                if let Some(status) = &mut status {
                    let spilled_bytes = engine.engine.governor().spilled_bytes() - spilled;
                    status.tell(run, &left_out.late, spilled_bytes, &control.controller);
                    if !stopping && status.is_asked_to_stop(run) {
                        stopping = true;
                        run.request(BarrierControl::Stop);
                    }
                }
                look(&mut |py| {
                    if let Some(log) = &mut log {
                        log.look(py, run, &mut control)?;
                    }
                    if let (Some(watch), Some(running)) = (&watch, &running) {
                        running.get().look(run);
                        watch.call1(py, (running.clone_ref(py),))?;
                        running.get().pass_on(run);
                    }
                    if !stopping && let Some(stop) = &stop {
                        stopping = stop.call0(py)?.is_truthy(py)?;
                        if stopping {
                            run.request(BarrierControl::Stop);
                        }
                    }
                    Ok(())
                })
            })
        });
        control.close(py);
        if let Some(log) = &mut log {
            log.tell(py, None, &mut control)?;
        }
        match report {
            Ok(report) => {
                if let Some(status) = &mut status {
                    status.has_stopped();
                }
                left_out.take(engine);
                Ok((described(py, &report)?, left_out.count, left_out.first, left_out.late.counts()))
            }
            Err(error) => {
                left_out.tell(engine);
                Err(error)
            }
        }
    }
}

/// Describes the tasks of queries over streams, each with its sink, if that is known; collective.
#[pyfunction]
pub fn explain_stream(
    py: Python<'_>,
    engine: &QueryEngine,
    comm: &Comm,
    outputs: Vec<(Py<NativeDataSet>, Option<Py<PyAny>>, String)>,
) -> PyResult<String> {
    let outputs = outputs.into_iter().map(|(set, sink, sink_name)| -> PyResult<_> {
        let set = set.get();
        let schema = set.schema(py)?;
        let sink = sink.map(|sink| any_sink(py, engine, sink, sink_name, &schema)).transpose()?;
        Ok((set.0.clone(), sink))
    });
    let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
    together(py, engine, comm, None, |workers, _| tidemill_stream::explain(workers, &engine.engine, &outputs))
}

/// A check by a function of the program, which raises if the job must not start with these sinks.
fn sinks_seen_by(look: Py<PyAny>) -> LookAtSinks {
    Arc::new(move |sinks| {
        let sinks: Vec<(&str, Vec<&str>)> =
            sinks.iter().map(|(sink, sources)| (&**sink, sources.iter().map(|source| &**source).collect())).collect();
        Python::attach(|py| look.call1(py, (sinks,)).map(drop).map_err(|error| error.value(py).to_string()))
    })
}

/// A sink for rows of `schema`: one of the engine's, described by a string, or one of the program.
fn any_sink(
    py: Python<'_>,
    engine: &QueryEngine,
    sink: Py<PyAny>,
    name: String,
    schema: &SchemaRef,
) -> PyResult<StreamSink> {
    match sink.extract::<String>(py) {
        Ok(spec) => connector_sink(engine.engine.object_stores(), &described_by(&spec)?, schema)
            .map_err(|error| raised(py, &error)),
        Err(_) => python_sink(py, sink, name),
    }
}

/// The destinations of late rows: by step, or one sink for all windows.
fn late_to(py: Python<'_>, engine: &QueryEngine, late: Vec<Late>) -> PyResult<LateTo> {
    let mut steps = BTreeMap::new();
    for (step, sink, name) in late {
        let sink = late_sink(py, engine, sink, name)?;
        let Some(step) = step else { return Ok(LateTo::Windows(sink)) };
        steps.insert(step, sink);
    }
    Ok(LateTo::Steps(steps))
}

/// The schema of late rows is known only when the query is planned.
fn late_sink(py: Python<'_>, engine: &QueryEngine, sink: Py<PyAny>, name: String) -> PyResult<MakeLateSink> {
    if let Ok(spec) = sink.extract::<String>(py) {
        let (spec, stores) = (described_by(&spec)?, engine.engine.object_stores().clone());
        return Ok(Arc::new(move |schema| connector_sink(&stores, &spec, schema)));
    }
    let sink = python_sink(py, sink, name)?;
    Ok(Arc::new(move |_| Ok(sink.clone())))
}

fn connector_sink(stores: &ObjectStores, spec: &Value, schema: &SchemaRef) -> Result<StreamSink, DataSetError> {
    let found = tidemill_connect::sink(spec, schema, stores).map_err(|error| DataSetError::Query(error.to_string()))?;
    let described = Some(Arc::from(spec.to_string()));
    let (spec, stores) = (spec.clone(), stores.clone());
    // Make the sink again with the planned schema, which may differ in details.
    let make = move |schema: &SchemaRef| -> MakeSink {
        match tidemill_connect::sink(&spec, schema, &stores) {
            Ok(found) => found.make,
            Err(error) => Arc::new(move |_: &TaskContext| Err(error.to_string().into())),
        }
    };
    let (copies_max, guarantee) = (found.copies_max, found.guarantee);
    Ok(StreamSink { name: found.name, copies_max, guarantee, spec: described, make: Arc::new(make) })
}

fn python_sink(py: Python<'_>, sink: Py<PyAny>, name: String) -> PyResult<StreamSink> {
    let sink = Arc::new(sink);
    let whole = sink.bind(py).hasattr("prepare")?;
    // Sinks of this package may require all rows in one place.
    let copies_max = match sink.bind(py).hasattr("_copies_max")? {
        true => sink.bind(py).getattr("_copies_max")?.extract()?,
        false => 0,
    };
    let make = move |_: &SchemaRef| -> MakeSink {
        let sink = Arc::clone(&sink);
        Arc::new(move |context: &TaskContext| {
            let Some(_call) = PendingCall::begin() else { return Err("the program is ending".into()) };
            // What one copy has prepared must not be mixed with another's later output, so each has its own sink.
            let mine = Python::attach(|py| match whole {
                true => {
                    let mine = py.import("copy")?.call_method1("deepcopy", (sink.bind(py),))?;
                    mine.call_method1("placed", (context.copy(),))?;
                    Ok(mine.unbind())
                }
                false => Ok(sink.clone_ref(py)),
            });
            let sink = mine.map_err(|error| Python::attach(|py| exception_text(py, &error)))?;
            Ok(Box::new(PythonSink { sink: Arc::new(sink), whole }) as Box<dyn Sink>)
        })
    };
    let guarantee = if whole { DeliveryGuarantee::ExactlyOnce } else { DeliveryGuarantee::AtLeastOnce };
    Ok(StreamSink { name, copies_max, guarantee, spec: None, make: Arc::new(make) })
}

/// A Python function that is called with each table, or an object with the three methods of a sink.
struct PythonSink {
    sink: Arc<Py<PyAny>>,
    whole: bool,
}

impl PythonSink {
    /// Most sinks wait for a disk or a server; meanwhile the copy's thread does other work.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, TaskError>> {
        let sink = Arc::clone(&self.sink);
        let called = calls::call(move |py| work(py, &sink).map_err(|error| exception_text(py, &error)));
        Box::pin(async move { Ok(called.await?) })
    }
}

impl Sink for PythonSink {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        let table = NativeTable { schema: rows.schema(), batches: vec![rows] };
        let whole = self.whole;
        self.call(move |py, sink| {
            match whole {
                true => sink.call_method1(py, "write", (table,))?,
                false => sink.call1(py, (table,))?,
            };
            Ok(())
        })
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<bytes::Bytes, TaskError>> {
        if !self.whole {
            return Box::pin(std::future::ready(Ok(bytes::Bytes::new())));
        }
        self.call(move |py, sink| {
            let made = sink.call_method1(py, "prepare", (epoch,))?;
            Ok(bytes::Bytes::copy_from_slice(made.bind(py).cast::<PyBytes>()?.as_bytes()))
        })
    }

    fn commit(&mut self, prepared: bytes::Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        self.call(move |py, sink| {
            sink.call_method1(py, "commit", (PyBytes::new(py, &prepared),))?;
            Ok(())
        })
    }
}

/// A checkpoint: its job, when it was made (milliseconds since 1970), whether the job had ended, bytes, and copies by
/// task.
type Made = (String, u64, bool, u64, Vec<Kept>);

/// A task, its copies, and the version and description of its state's schema, if known.
type Kept = (String, u32, Option<(u32, String)>);

/// A checkpoint in a list: its epoch, its description, and the problem with it.
type Listed = (u64, Option<Made>, Option<String>);

/// The checkpoints in a folder, newest first; with `verify`, everything they refer to is checked.
#[pyfunction]
pub fn list_checkpoints(
    py: Python<'_>,
    engine: &QueryEngine,
    place: &str,
    storage_options: StorageOptions,
    verify: bool,
) -> PyResult<Vec<Listed>> {
    let store = checkpoint_store(engine, place, &storage_options, false).map_err(|error| raised(py, &error))?;
    let work = async move {
        let failed = |error: StoreError| DataSetError::Io(error.to_string());
        let mut found = Vec::new();
        for epoch in store.epochs().await.map_err(failed)? {
            let Some((manifest, damage)) = store.inspect(epoch, verify).await.map_err(failed)? else { continue };
            let made = manifest.map(|manifest| {
                let state = |task: &TaskState| task.schema.as_ref().map(|state| (state.version, state.described()));
                let tasks = manifest.tasks.iter().map(|(name, task)| (name.clone(), task.copies, state(task)));
                let (tasks, size) = (tasks.collect(), manifest.state_bytes());
                (manifest.job, manifest.at_ms, manifest.finished, size, tasks)
            });
            found.push((epoch, made, damage.map(|error| error.to_string())));
        }
        Ok(found)
    };
    finish(py, engine.engine.start(work))
}

/// The decisions of a job's controllers, and the drained hosts, as JSON; `null` if there are none.
#[pyfunction]
pub fn controller_record(
    py: Python<'_>,
    engine: &QueryEngine,
    place: &str,
    storage_options: StorageOptions,
) -> PyResult<String> {
    let store = checkpoint_store(engine, place, &storage_options, false).map_err(|error| raised(py, &error))?;
    finish(py, engine.engine.start(control::kept(store))).map(|kept| kept.to_string())
}

/// Copies the checkpoint of an epoch, or the newest, to another folder or URL, with the same options for both stores.
/// Returns its epoch and bytes.
#[pyfunction]
pub fn copy_checkpoint(
    py: Python<'_>,
    engine: &QueryEngine,
    place: &str,
    to: &str,
    storage_options: StorageOptions,
    epoch: Option<u64>,
) -> PyResult<(u64, u64)> {
    let store = |place, writes| checkpoint_store(engine, place, &storage_options, writes);
    let opened = store(place, false).and_then(|from| Ok((from, store(to, true)?)));
    let (from, to) = opened.map_err(|error| raised(py, &error))?;
    let work = async move {
        let copied = from.copy(epoch, &to).await.map_err(|error| DataSetError::Io(error.to_string()))?;
        Ok((copied.epoch, copied.state_bytes()))
    };
    finish(py, engine.engine.start(work))
}
