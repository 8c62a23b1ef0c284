//! Streams: tables as sources, Python functions and objects as sinks, windows, and the job that writes one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::{Value, json};
use tidemill_connect::ConnectError;
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore, StoreError, TaskState};
use tidemill_dataflow::stream::BarrierControl;
use tidemill_dataflow::stream::sink::{DeliveryGuarantee, MakeSink, Sink};
use tidemill_dataflow::stream::source::{WatermarkOrigin, WatermarkStrategy};
use tidemill_dataflow::{RunProgress, TaskContext, TaskError, WorkerStatus};
use tidemill_dataset::DataSetError;
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tidemill_net::notice;
use tidemill_storage::{ObjectStores, StorageOptions};
use tidemill_stream::{
    BadTo, LateRows, LateTo, LookAtSinks, MakeLateSink, StreamJob, StreamSink, StreamSource, WindowRule, ZonedCalendar,
    from_stream, table_stream,
};

use super::calls::{self, PendingCall};
use super::engine::{GivenSchema, QueryEngine};
use super::expr::NativeExpr;
use super::frame::{NativeDataSet, exception_text, together, together_with};
use super::requests::{JobObserver, MoveRequests};
use super::running::NativeRunning;
use super::table::NativeTable;
use super::{finish, raised};
use crate::comm::Comm;
use crate::report::described;

/// A column that tells time, by how many microseconds rows may be out of order, and splits be silent; what says how far
/// time is: "latest", "arrival", or "column" and its name.
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

/// A stream of a connector: `spec` is the JSON that describes it, `schema` what its rows are, where they do not say so.
/// Records that are no rows go to `bad_to`, a sink and what that is called, if `spec` says that they go to one.
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
    // Without the interpreter's lock: it may ask a registry for its schema.
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

/// The window of a row with this time; lengths in microseconds.
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

/// How checkpoints are made; times in seconds.
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

/// Where checkpoints lie, in a store of the engine's where it is a URL.
fn checkpoint_store(
    engine: &QueryEngine,
    place: &str,
    options: &StorageOptions,
    writes: bool,
) -> Result<CheckpointStore, DataSetError> {
    Ok(CheckpointStore::open(engine.engine.object_stores(), place, options, writes)?)
}

impl CheckpointOptions {
    fn settings(
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

/// Between lines that tell of what was left out.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// The records that this process has left out because they are no rows, and the rows that came too late or had no time:
/// what all of them were at the end, and meanwhile a line now and then.
struct DroppedRows {
    count: u64,
    first: Option<String>,
    late: Arc<LateRows>,
    late_told: BTreeMap<String, [u64; 3]>,
    looked: Instant,
}

impl DroppedRows {
    /// From now on: what a run before has left out is not told again.
    fn new(engine: &QueryEngine) -> Self {
        engine.take_bad_records();
        let (late, late_told) = Default::default();
        DroppedRows { count: 0, first: None, late, late_told, looked: Instant::now() }
    }

    fn look(&mut self, engine: &QueryEngine) {
        if self.looked.elapsed() >= TELL_INTERVAL {
            self.tell(engine);
        }
    }

    /// Prints what has come since the last time.
    fn tell(&mut self, engine: &QueryEngine) {
        self.looked = Instant::now();
        if let (more @ 1.., Some(first)) = self.take(engine) {
            let records = if more == 1 { "1 record was" } else { &format!("{more} records were") };
            notice!("{records} left out; the first: {first}");
        }
        for (step, late, untimed, skipped) in self.late.counts() {
            let told = self.late_told.insert(step.clone(), [late, untimed, skipped]).unwrap_or_default();
            if let more @ 1.. = late - told[0] {
                let came = if more == 1 { "1 row came" } else { &format!("{more} rows came") };
                notice!("{came} too late for {step}: left out");
            }
            if let more @ 1.. = untimed - told[1] {
                let had = if more == 1 { "1 row had" } else { &format!("{more} rows had") };
                notice!("{had} no time for {step}: left out");
            }
            if let more @ 1.. = skipped - told[2] {
                let rows = if more == 1 { "1 row" } else { &format!("{more} rows") };
                notice!("{rows} of windows that ended while {step} was busy: left out");
            }
        }
    }

    fn take(&mut self, engine: &QueryEngine) -> (u64, Option<String>) {
        let (more, first) = engine.take_bad_records();
        self.count += more;
        if self.first.is_none() {
            self.first.clone_from(&first);
        }
        (more, first)
    }
}

/// Hands what the job says, and which checkpoints it makes, to a function of Python that logs.
struct RunLogger {
    function: Py<PyAny>,
    durable: u64,
    looked: Instant,
}

impl RunLogger {
    const EVERY: Duration = Duration::from_millis(200);

    fn new(function: Py<PyAny>) -> Self {
        notice::keep();
        RunLogger { function, durable: 0, looked: Instant::now() }
    }

    fn look(&mut self, py: Python<'_>, run: &RunProgress) -> PyResult<()> {
        if self.looked.elapsed() < Self::EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let durable = run.durable().filter(|&durable| run.worker() == 0 && durable > self.durable);
        let made = durable.zip(run.checkpoint());
        if let Some((epoch, _)) = made {
            self.durable = epoch;
        }
        self.tell(py, made.map(|(epoch, made)| (epoch, made.took_ms as f64 / 1e3, made.bytes)))
    }

    fn tell(&mut self, py: Python<'_>, made: Option<(u64, f64, u64)>) -> PyResult<()> {
        let said = notice::take();
        if !said.is_empty() || made.is_some() {
            self.function.call1(py, (said, made))?;
        }
        Ok(())
    }
}

/// Tells when the newest checkpoint is long overdue, and which step is slow. On worker 0, who knows.
struct OverdueMonitor {
    every: Option<Duration>,
    last: u64,
    since: Instant,
    /// After which age it is told next.
    next: Duration,
}

impl OverdueMonitor {
    /// So many times the interval is too old.
    const TIMES: u32 = 5;
    /// What is done more often than that may be late for reasons that nobody need know.
    const LEAST: Duration = Duration::from_secs(5);

    fn new(every: Option<Duration>) -> Self {
        let mut new = OverdueMonitor { every, last: 0, since: Instant::now(), next: Duration::ZERO };
        new.again();
        new
    }

    fn again(&mut self) {
        self.since = Instant::now();
        self.next = (self.every.unwrap_or_default() * Self::TIMES).max(Self::LEAST);
    }

    fn look(&mut self, run: &RunProgress) {
        let (Some(every), Some(durable)) = (self.every, run.durable()) else { return };
        if run.worker() != 0 {
            return;
        }
        if durable != self.last {
            self.last = durable;
            self.again();
        }
        let age = self.since.elapsed();
        if age < self.next {
            return;
        }
        self.next = age * 2;
        let newest = match durable {
            0 => format!("no checkpoint for {:.0} s", age.as_secs_f64()),
            epoch => format!("the newest checkpoint, {epoch}, is {:.0} s old", age.as_secs_f64()),
        };
        let slow = slowest(run).map_or_else(String::new, |slow| format!("; the step that works most is {slow}"));
        notice!("{newest}, and one is due every {every:?}{slow}; `tidemill top` shows all steps");
    }
}

/// The step that works most, of all workers that are known of: functions of the program before the steps that they are
/// in.
fn slowest(run: &RunProgress) -> Option<String> {
    let mut steps: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut add = |step: &str, busy_ns: u64, rows: u64| {
        let of = steps.entry(step.to_owned()).or_default();
        (of.0, of.1, of.2) = (of.0 + busy_ns, of.1 + rows, of.2.max(busy_ns));
    };
    run.works().iter().for_each(|work| add(&work.step, work.busy_ns, work.rows));
    for worker in run.statuses() {
        let Ok(told) = serde_json::from_slice::<Value>(&worker.status) else { continue };
        for work in told["steps"].as_array().into_iter().flatten() {
            let number = |key: &str| work[key].as_u64().unwrap_or(0);
            add(work["step"].as_str().unwrap_or_default(), number("busy_ns"), number("rows"));
        }
    }
    // A function's time is part of its step's: the function is what people know.
    let weight = |step: &str, busy: u64| if step.contains(" in ") { busy + busy / 4 } else { busy };
    let (step, (busy_ns, rows, _)) = steps.into_iter().max_by_key(|(step, (busy, ..))| weight(step, *busy))?;
    let each = if rows > 0 { format!(", {:.3} ms a row", busy_ns as f64 / 1e6 / rows as f64) } else { String::new() };
    (busy_ns > 0).then(|| format!("{step}: busy for {:.1} s{each}", busy_ns as f64 / 1e9))
}

/// What a run has done: the edges' reports, how many records were left out by this process, and the first of them, and
/// by step how many rows because they came too late, and because they had no time.
type Told<'py> = (Bound<'py, PyDict>, u64, Option<String>, Vec<(String, u64, u64, u64)>);

/// A query, its sink, and what that is called.
type Written = (Py<NativeDataSet>, Py<PyAny>, String);

/// The step that rows come too late for, a sink for them, and what that is called; `None`: all windows.
type Late = (Option<String>, Py<PyAny>, String);

/// Writes streams, each to its sink, until they end; collective.
#[pyfunction]
#[pyo3(signature = (engine, comm, outputs, name, checkpoints = None, stop = None, status = None, guarantee = None, watch = None, late = None, look_at_sinks = None, log = None))]
#[expect(clippy::too_many_arguments, reason = "arguments of a private function")]
pub fn write_stream<'py>(
    py: Python<'py>,
    engine: &QueryEngine,
    comm: &Comm,
    outputs: Vec<Written>,
    name: String,
    checkpoints: Option<CheckpointOptions>,
    stop: Option<Py<PyAny>>,
    status: Option<(Option<PathBuf>, String)>,
    guarantee: Option<&str>,
    watch: Option<Py<PyAny>>,
    late: Option<Vec<Late>>,
    look_at_sinks: Option<Py<PyAny>>,
    log: Option<Py<PyAny>>,
) -> PyResult<Told<'py>> {
    let outputs = outputs.into_iter().map(|(set, sink, sink_name)| -> PyResult<_> {
        let set = set.get();
        Ok((set.0.clone(), any_sink(py, engine, sink, sink_name, &set.schema(py)?)?))
    });
    let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
    let late = late.map_or(Ok(LateTo::Nowhere), |late| late_to(py, engine, late))?;
    let guarantee = guarantee.map(guaranteed).transpose()?;
    let checkpoints = checkpoints.map(|checkpoints| checkpoints.settings(py, engine, guarantee));
    let checkpoints = checkpoints.transpose()?;
    let every = checkpoints.as_ref().map(|settings| settings.interval);
    let mut overdue = OverdueMonitor::new(every);
    let mut log = log.map(RunLogger::new);
    let mut left_out = DroppedRows::new(engine);
    let job = StreamJob {
        name,
        checkpoints,
        guarantee,
        late,
        left_out: Arc::clone(&left_out.late),
        look_at_sinks: look_at_sinks.map(sinks_seen_by),
    };
    let workers = comm.get(py)?.size();
    let mut requests = MoveRequests::new(status.as_ref().and_then(|(file, _)| file.clone()));
    let mut observer = JobObserver::new();
    let status = status.map(|(file, about)| StatusFile::new(file, &about, workers, every));
    let spilled = engine.engine.governor().spilled_bytes();
    let mut status = status.transpose()?;
    let running = watch.is_some().then(|| Py::new(py, NativeRunning::default())).transpose()?;
    let mut stopping = false;
    let report = together_with(py, engine, comm, |workers, look| {
        tidemill_stream::run(workers, &engine.engine, &outputs, &job, &mut |run| {
            left_out.look(engine);
            overdue.look(run);
            observer.look(run);
            requests.look(run, observer.rates());
            if let Some(status) = &mut status
                && status.tell(run, &left_out.late, engine.engine.governor().spilled_bytes() - spilled)
                && !std::mem::replace(&mut stopping, true)
            {
                run.request(BarrierControl::Stop);
            }
            look(&mut |py| {
                if let Some(log) = &mut log {
                    log.look(py, run)?;
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
    if let Some(log) = &mut log {
        log.tell(py, None)?;
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

/// The tasks that queries over streams become, each with its sink, if that is known; collective.
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

/// A function of the program that raises if sinks are such that the job must not begin.
fn sinks_seen_by(look: Py<PyAny>) -> LookAtSinks {
    Arc::new(move |sinks| {
        let sinks: Vec<(&str, Vec<&str>)> =
            sinks.iter().map(|(sink, sources)| (&**sink, sources.iter().map(|source| &**source).collect())).collect();
        Python::attach(|py| look.call1(py, (sinks,)).map(drop).map_err(|error| error.value(py).to_string()))
    })
}

/// What a worker tells of itself while the job runs: in a file, which `tidemill top` reads, and worker 0, whose file
/// has what all others tell, too. The first line of it is the worker's own, each other one of another worker. A worker
/// that is killed leaves its file behind: readers look whether its process is there, and when it told last. Beside it
/// `tidemill stop` puts an empty file, to ask worker 0 for a last checkpoint; when the job has stopped, that has
/// another name. Others ask for keys to move (`requests`).
struct StatusFile {
    /// `None` where there can be none.
    file: Option<PathBuf>,
    /// Who it is.
    about: Value,
    every: Duration,
    /// Between checkpoints, if there are any.
    every_checkpoint: Option<Duration>,
    told: Option<Instant>,
}

impl StatusFile {
    const EVERY: Duration = Duration::from_millis(500);
    /// Of many workers each tells less often, so that worker 0 has no more to do than to hear so often of somebody.
    const EVERY_WORKER: Duration = Duration::from_millis(4);

    fn new(file: Option<PathBuf>, about: &str, workers: u32, every_checkpoint: Option<Duration>) -> PyResult<Self> {
        let every = Self::EVERY.max(Self::EVERY_WORKER * workers);
        let status = StatusFile { file, about: described_by(about)?, every, every_checkpoint, told: None };
        // Of a process that had the same number once.
        status.asked().iter().flatten().for_each(|left| drop(std::fs::remove_file(left)));
        Ok(status)
    }

    /// The file that asks for a stop, and the one that says that the job has stopped.
    fn asked(&self) -> Option<[PathBuf; 2]> {
        self.file.as_ref().map(|file| ["stop", "stopped"].map(|name| file.with_extension(name)))
    }

    /// Tells it now and then. It is of no use to the job itself, so failures are passed over. Returns whether somebody
    /// asks the job to stop, which it can if it makes checkpoints.
    fn tell(&mut self, run: &RunProgress, late: &LateRows, spilled_bytes: u64) -> bool {
        if self.told.is_some_and(|told| told.elapsed() < self.every) {
            return false;
        }
        self.told = Some(Instant::now());
        let mut edges = run.edges();
        edges.iter_mut().for_each(|edge| {
            edge.bucket_rows.clear();
            edge.bucket_bytes.clear();
            edge.bucket_work_ns.clear();
        });
        let mut status = self.about.clone();
        status["at_s"] = json!(SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
        // Whoever reads it on this machine tells by it how long ago that was, though the machine's clock may be set
        // meanwhile.
        let up = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        status["up_s"] = json!(up.split(' ').next().and_then(|text| text.parse::<f64>().ok()));
        status["durable"] = json!(run.durable());
        status["every_s"] = json!(self.every_checkpoint.map(|every| every.as_secs_f64()));
        let checkpoint = run.checkpoint();
        status["checkpoint"] = json!(checkpoint.map(
            |made| json!({"at_s": made.at_ms as f64 / 1e3, "bytes": made.bytes, "took_s": made.took_ms as f64 / 1e3})
        ));
        status["edges"] = json!(edges);
        status["steps"] = json!(run.works());
        status["sources"] = json!(run.sources());
        let left_out = late.counts();
        let of = |count: fn(&(String, u64, u64, u64)) -> u64| {
            let counts = left_out.iter().map(|step| (&step.0, count(step)));
            counts.filter(|(_, rows)| *rows > 0).collect::<Vec<_>>()
        };
        status["late"] = json!(of(|step| step.1));
        status["untimed"] = json!(of(|step| step.2));
        status["skipped"] = json!(of(|step| step.3));
        status["spilled_bytes"] = json!(spilled_bytes);
        let status = status.to_string();
        if let Some(file) = &self.file {
            let mut lines = status.clone().into_bytes();
            for WorkerStatus { worker, status, age, over } in run.statuses() {
                let age_s = age.as_secs_f64();
                // As it came: nobody need read it here.
                let head = format!("\n{{\"worker\":{worker},\"age_s\":{age_s:.3},\"over\":{over},\"status\":");
                lines.extend([head.as_bytes(), status.as_slice(), b"}".as_slice()].concat());
            }
            let new = file.with_extension("new");
            drop(std::fs::write(&new, lines).and_then(|()| std::fs::rename(&new, file)));
        }
        run.tell_status(status.into_bytes());
        run.durable().is_some() && self.asked().is_some_and(|[asked, _]| asked.exists())
    }

    /// The job has come to its end, or to the last checkpoint that somebody asked for, who hears so.
    fn has_stopped(&mut self) {
        if let Some([asked, stopped]) = self.asked() {
            drop(std::fs::rename(asked, stopped));
        }
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let asked = self.asked().map(|[asked, _]| asked);
        asked.iter().chain(&self.file).for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// A sink of the engine's own, described by a text, or of the program, for rows of `schema`.
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

/// Where late rows go, by step or those of all windows to one sink.
fn late_to(py: Python<'_>, engine: &QueryEngine, late: Vec<Late>) -> PyResult<LateTo> {
    let mut steps = BTreeMap::new();
    for (step, sink, name) in late {
        let sink = late_sink(py, engine, sink, name)?;
        let Some(step) = step else { return Ok(LateTo::Windows(sink)) };
        steps.insert(step, sink);
    }
    Ok(LateTo::Steps(steps))
}

/// What rows are is known when the query is planned.
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
    // Once more with what the plan says its rows are, which may differ in details.
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
    // Those of the package may want all rows in one place.
    let copies_max = match sink.bind(py).hasattr("_copies_max")? {
        true => sink.bind(py).getattr("_copies_max")?.extract()?,
        false => 0,
    };
    let make = move |_: &SchemaRef| -> MakeSink {
        let sink = Arc::clone(&sink);
        Arc::new(move |_: &TaskContext| {
            let Some(_call) = PendingCall::begin() else { return Err("the program is ending".into()) };
            // What one copy has prepared must not be mixed with what another one has written since: each has its own.
            let mine = Python::attach(|py| match whole {
                true => py.import("copy")?.call_method1("deepcopy", (sink.bind(py),)).map(Bound::unbind),
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
    /// Most sinks wait for a disk or a server: meanwhile the copy's thread does what else there is to do.
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

/// What a checkpoint is: its job, when it was made (milliseconds since 1970), whether the job had come to its end,
/// bytes, and copies by task.
type Made = (String, u64, bool, u64, Vec<Kept>);

/// A task, its copies, and what its states consist of, with the version of that, if it is known.
type Kept = (String, u32, Option<(u32, String)>);

/// A checkpoint in a list: its epoch, what it is, and what is wrong with it.
type Listed = (u64, Option<Made>, Option<String>);

/// The checkpoints in a folder, newest first; `verify`: with a look at all that they refer to.
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

/// Copies the checkpoint of an epoch, or the newest, to another folder or URL, of stores that are told the same.
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
