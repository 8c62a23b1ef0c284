//! Lazy tables: each method adds a step, actions run them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::ffi::to_schema_pycapsule;
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tidemill_dataset::{
    ActionError, DataSet, DataSetError, ExplainLevel, JoinHow, OutputFormat, ReadProgress, ResultTarget,
    StorageOptions, Watch, WorkerGroup,
};
use tidemill_stream::{BspOptions, OnBusy};

use crate::comm::Comm;
use crate::errors::from_collective;
use crate::wait::detach;

use super::bsp::bsp_function;
use super::calls;
use super::engine::{GivenSchema, QueryEngine};
use super::expr::{NativeExpr, SortKey, exprs, sorts};
use super::process::keyed_function;
use super::table::NativeTable;
use super::{finish, finish_watched, raised};

/// A lazy table.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeDataSet(pub DataSet);

impl NativeDataSet {
    pub(super) fn schema(&self, py: Python<'_>) -> PyResult<SchemaRef> {
        py.detach(|| self.0.schema()).map_err(|error| raised(py, &error))
    }

    /// The result of a query.
    fn table(&self, py: Python<'_>, batches: Vec<RecordBatch>) -> PyResult<NativeTable> {
        // Nullability may differ between a plan and its batches; the batches' schema is used.
        let schema = batches.first().map_or_else(|| self.schema(py), |batch| Ok(batch.schema()))?;
        Ok(NativeTable { schema, batches })
    }

    fn step(py: Python<'_>, made: impl FnOnce() -> Result<DataSet, DataSetError> + Send) -> PyResult<Self> {
        py.detach(made).map(NativeDataSet).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl NativeDataSet {
    /// Names and types of the columns, in order.
    #[getter]
    fn fields(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let schema = self.schema(py)?;
        Ok(schema.fields().iter().map(|field| (field.name().clone(), field.data_type().to_string())).collect())
    }

    /// Names of the columns, in order.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    /// Whether unreadable rows are dropped.
    #[getter]
    fn is_lenient(&self) -> bool {
        self.0.is_lenient()
    }

    /// Whether the order of rows is independent of the workers that make them.
    #[getter]
    fn is_in_order(&self) -> bool {
        self.0.is_in_order()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.schema(py)?.as_ref())?)
    }

    /// A table with these columns and no rows.
    fn empty(&self, py: Python<'_>) -> PyResult<NativeTable> {
        Ok(NativeTable { schema: self.schema(py)?, batches: Vec::new() })
    }

    fn select(&self, py: Python<'_>, columns: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let columns = exprs(&columns);
        Self::step(py, || self.0.select(columns))
    }

    fn with_columns(&self, py: Python<'_>, columns: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let columns = exprs(&columns);
        Self::step(py, || self.0.with_columns(columns))
    }

    fn drop(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        Self::step(py, || self.0.drop_columns(&names))
    }

    fn rename(&self, py: Python<'_>, pairs: Vec<(String, String)>) -> PyResult<Self> {
        Self::step(py, || self.0.rename(&pairs))
    }

    fn filter(&self, py: Python<'_>, predicate: &Bound<'_, NativeExpr>) -> PyResult<Self> {
        let predicate = predicate.get().0.clone();
        Self::step(py, || self.0.filter(predicate))
    }

    fn aggregate(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, NativeExpr>>,
        aggregates: Vec<Bound<'_, NativeExpr>>,
    ) -> PyResult<Self> {
        let (keys, aggregates) = (exprs(&keys), exprs(&aggregates));
        Self::step(py, || self.0.aggregate(keys, aggregates))
    }

    #[pyo3(signature = (right, on, how, suffix, condition, ttl = None))]
    #[expect(clippy::too_many_arguments, reason = "as Python's join has them")]
    fn join(
        &self,
        py: Python<'_>,
        right: &Bound<'_, NativeDataSet>,
        on: Vec<(String, String)>,
        how: &str,
        suffix: &str,
        condition: Option<Bound<'_, NativeExpr>>,
        ttl: Option<i64>,
    ) -> PyResult<Self> {
        let how = JoinHow::parse(how).map_err(|error| raised(py, &error))?;
        let right = &right.get().0;
        let condition = condition.map(|condition| condition.get().0.clone());
        Self::step(py, || self.0.join(right, &on, how, suffix, condition, ttl))
    }

    fn sort(&self, py: Python<'_>, by: Vec<SortKey<'_>>) -> PyResult<Self> {
        let by = sorts(&by);
        Self::step(py, || self.0.sort(by))
    }

    /// The rows with a row number as the first column.
    fn with_row_index(&self, py: Python<'_>, name: &str, first: i64, by: Vec<SortKey<'_>>) -> PyResult<Self> {
        let by = sorts(&by);
        Self::step(py, || self.0.with_row_index(name, first, by))
    }

    #[pyo3(signature = (skip, count = None))]
    fn limit(&self, py: Python<'_>, skip: usize, count: Option<usize>) -> PyResult<Self> {
        Self::step(py, || self.0.limit(skip, count))
    }

    #[pyo3(signature = (subset, ttl = None))]
    fn distinct(&self, py: Python<'_>, subset: Vec<String>, ttl: Option<i64>) -> PyResult<Self> {
        Self::step(py, || match ttl {
            None => self.0.distinct(&subset),
            Some(ttl) => self.0.distinct_for(&subset, ttl),
        })
    }

    fn union(&self, py: Python<'_>, other: &Bound<'_, NativeDataSet>) -> PyResult<Self> {
        let other = &other.get().0;
        Self::step(py, || self.0.union(other))
    }

    fn explode(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        Self::step(py, || self.0.explode(&names))
    }

    fn repartition(&self, py: Python<'_>, partitions: usize, by: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let by = exprs(&by);
        Self::step(py, || self.0.repartition(partitions, by))
    }

    /// Applies `function` to each batch: called with a table, it returns a list of tables with `schema`.
    fn map_batches(&self, py: Python<'_>, name: &str, function: Py<PyAny>, schema: GivenSchema) -> PyResult<Self> {
        let schema = schema.resolve(py)?;
        let function = Arc::new(function);
        let called = move |batch: RecordBatch| -> BoxFuture<'static, Result<Vec<RecordBatch>, String>> {
            let function = Arc::clone(&function);
            Box::pin(calls::call(move |py| {
                let table = NativeTable { schema: batch.schema(), batches: vec![batch] };
                let made = function.call1(py, (table,)).and_then(|made| {
                    Ok(made
                        .extract::<Vec<PyRef<'_, NativeTable>>>(py)?
                        .iter()
                        .flat_map(|table| table.batches.clone())
                        .collect())
                });
                made.map_err(|error| exception_text(py, &error))
            }))
        };
        Self::step(py, || self.0.map_batches(name, Arc::new(called), schema))
    }

    /// Applies a keyed object to a stream; `factory` makes one for each thread. `keeps` names the fields of its state;
    /// a key is forgotten after `ttl` microseconds without rows.
    #[pyo3(signature = (name, keys, factory, schema, keeps = None, ttl = None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of a private method")]
    fn process(
        &self,
        py: Python<'_>,
        name: &str,
        keys: Vec<String>,
        factory: Py<PyAny>,
        schema: GivenSchema,
        keeps: Option<GivenSchema>,
        ttl: Option<i64>,
    ) -> PyResult<Self> {
        let schema = schema.resolve(py)?;
        let keeps = keeps.map(|keeps| keeps.resolve(py)).transpose()?;
        let function = keyed_function(factory, ttl);
        Self::step(py, || tidemill_stream::process(&self.0, name, &keys, function, schema, keeps, ttl.is_some()))
    }

    /// Adds a step that calls a Python object for each window, on all copies together. `factory` makes the object of
    /// each copy.
    #[pyo3(signature = (name, factory, schema, by, window = None, copies = None, on_busy = "wait", time = None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of a private method")]
    fn bsp(
        &self,
        py: Python<'_>,
        name: &str,
        factory: Py<PyAny>,
        schema: GivenSchema,
        by: Vec<String>,
        window: Option<&Bound<'_, NativeExpr>>,
        copies: Option<u32>,
        on_busy: &str,
        time: Option<String>,
    ) -> PyResult<Self> {
        let on_busy = match on_busy {
            "drop" => OnBusy::Drop,
            "latest" => OnBusy::Latest,
            _ => OnBusy::Wait,
        };
        let window = window.map(|window| window.get().0.clone());
        let schema = schema.resolve(py)?;
        let options = BspOptions { name: name.to_owned(), by, window, schema, time, copies, on_busy };
        let function = bsp_function(name, factory);
        Self::step(py, || tidemill_stream::bsp(&self.0, options, function))
    }

    /// The same rows, with a name for the last step of the stream.
    fn named(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        Self::step(py, || tidemill_stream::named(&self.0, name))
    }

    /// The same rows of a stream, distributed over all copies of the following steps.
    fn shuffled(&self, py: Python<'_>) -> PyResult<Self> {
        Self::step(py, || tidemill_stream::shuffled(&self.0))
    }

    /// Whether the rows are unbounded.
    fn is_stream(&self) -> bool {
        self.0.is_stream()
    }

    /// Runs the query on this worker alone. `watch` is called regularly with the number of rows read, and the total if
    /// it is known.
    #[pyo3(signature = (engine, watch = None))]
    fn collect(&self, py: Python<'_>, engine: &QueryEngine, watch: Option<Py<PyAny>>) -> PyResult<NativeTable> {
        let reading = ReadProgress::default();
        let running = engine.engine.start(self.0.clone().collect(reading.clone()));
        let batches = finish_watched(py, running, &mut |py| show(py, watch.as_ref(), &reading))?;
        self.table(py, batches)
    }

    /// Runs the query on all workers of `comm`; collective. `to` is a worker, or "all", or "each" for each worker's own
    /// rows.
    #[pyo3(signature = (engine, comm, to, watch = None))]
    fn collect_on(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        comm: &Comm,
        to: RowTarget,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<NativeTable> {
        let to = to.parse()?;
        let collect = |workers: &WorkerGroup, watch: Watch<'_>| workers.collect(&engine.engine, &self.0, to, watch);
        let batches = together(py, engine, comm, watch, collect)?;
        self.table(py, batches)
    }

    /// At least the first `rows` of the query: on this worker alone, or on all of `comm` with the result on worker 0,
    /// which is collective.
    #[pyo3(signature = (engine, comm, rows, watch = None))]
    fn collect_first(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        comm: Option<&Comm>,
        rows: usize,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<NativeTable> {
        let batches = match comm {
            None => {
                let reading = ReadProgress::default();
                let running = engine.engine.start(self.0.clone().collect_first(rows, reading.clone()));
                finish_watched(py, running, &mut |py| show(py, watch.as_ref(), &reading))?
            }
            Some(comm) => together(py, engine, comm, watch, |workers: &WorkerGroup, watch: Watch<'_>| {
                workers.collect_first(&engine.engine, &self.0, rows, 0, watch)
            })?,
        };
        self.table(py, batches)
    }

    /// The rows that this worker has made, and the number in each partition, by partition number; collective.
    #[pyo3(signature = (engine, comm, watch = None))]
    fn collect_in_order(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        comm: &Comm,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<(NativeTable, Vec<usize>)> {
        let collect =
            |workers: &WorkerGroup, watch: Watch<'_>| workers.collect_in_order(&engine.engine, &self.0, watch);
        let parts = together(py, engine, comm, watch, collect)?;
        let rows = parts.iter().map(|part| part.iter().map(|batch| batch.num_rows()).sum()).collect();
        let batches = parts.concat();
        Ok((self.table(py, batches)?, rows))
    }

    /// The number of rows, as a one-row table.
    fn counted(&self, py: Python<'_>) -> PyResult<Self> {
        Self::step(py, || self.0.counted())
    }

    /// The plan of all workers of `comm`, or if it is analyzed, what they did; collective.
    #[pyo3(signature = (engine, comm, analyze, watch = None))]
    fn explain_on(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        comm: &Comm,
        analyze: bool,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        together(py, engine, comm, watch, |workers, watch| match analyze {
            true => workers.analyze(&engine.engine, &self.0, watch),
            false => workers.explain(&engine.engine, &self.0),
        })
    }

    fn explain(&self, py: Python<'_>, engine: &QueryEngine, how: &str) -> PyResult<String> {
        let how = match how {
            "logical" => ExplainLevel::Logical,
            "optimized" => ExplainLevel::Optimized,
            "physical" => ExplainLevel::Physical,
            "analyze" => ExplainLevel::Analyze,
            other => {
                return Err(PyValueError::new_err(format!(
                    "explain supports \"logical\", \"optimized\", \"physical\" and \"analyze\", not {other:?}"
                )));
            }
        };
        finish(py, engine.engine.start(self.0.clone().explain(how)))
    }

    /// Writes into a folder; `format` is `csv`, `json`, `parquet`, `ipc` or `records`. With `comm`, all of its workers
    /// write; collective.
    #[pyo3(signature = (engine, comm, dir, format, *, compression, partition_by, overwrite, storage_options = StorageOptions::new(),
                        delimiter = ',', header = true, watch = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a private method")]
    fn write(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        comm: Option<&Comm>,
        dir: String,
        format: &str,
        compression: String,
        partition_by: Vec<String>,
        overwrite: bool,
        storage_options: StorageOptions,
        delimiter: char,
        header: bool,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let output = match format {
            "csv" => OutputFormat::Csv { delimiter: super::engine::byte(delimiter)?, has_header: header, compression },
            "json" => OutputFormat::Json { compression },
            "parquet" => OutputFormat::Parquet { compression },
            "records" => OutputFormat::records(),
            "text" => OutputFormat::text(&compression).map_err(|error| raised(py, &error))?,
            "npy" => OutputFormat::npy(),
            _ => OutputFormat::Ipc { compression },
        };
        let set = self.0.clone();
        let Some(comm) = comm else {
            let (asked, reading) = (Arc::clone(&engine.engine), ReadProgress::default());
            let told = reading.clone();
            let work =
                async move { set.write(&asked, &dir, &storage_options, output, partition_by, overwrite, told).await };
            return finish_watched(py, engine.engine.start(work), &mut |py| show(py, watch.as_ref(), &reading));
        };
        together(py, engine, comm, watch, |workers, watch| {
            workers.write(&engine.engine, &set, &dir, &storage_options, &output, partition_by, overwrite, watch)
        })
    }
}

/// The receiver of rows, as given in Python.
#[derive(FromPyObject)]
enum RowTarget {
    Worker(u32),
    Word(String),
}

impl RowTarget {
    fn parse(&self) -> PyResult<ResultTarget> {
        match self {
            RowTarget::Worker(rank) => Ok(ResultTarget::One(*rank)),
            RowTarget::Word(word) if word == "all" => Ok(ResultTarget::All),
            RowTarget::Word(word) if word == "each" => Ok(ResultTarget::Each),
            RowTarget::Word(word) => {
                Err(PyValueError::new_err(format!("rows must go to \"all\" or \"each\", not {word:?}")))
            }
        }
    }
}

/// Reports the progress of an action to `watch`.
fn show(py: Python<'_>, watch: Option<&Py<PyAny>>, reading: &ReadProgress) -> PyResult<()> {
    watch.map_or(Ok(()), |watch| watch.call1(py, (reading.rows(), reading.rows_total())).map(drop))
}

/// Runs an action of all workers with the GIL released, checking for signals and showing progress; an exception of a
/// signal handler cancels it on all workers.
pub fn together<T: Send>(
    py: Python<'_>,
    engine: &QueryEngine,
    comm: &Comm,
    watch: Option<Py<PyAny>>,
    action: impl FnOnce(&WorkerGroup, Watch<'_>) -> Result<T, ActionError> + Send,
) -> PyResult<T> {
    let comm = comm.get(py)?;
    let mut interrupt = None;
    let outcome = detach(py, || {
        let workers = engine.workers(comm)?;
        action(&workers, &mut |reading| {
            let seen = Python::attach(|py| py.check_signals().and_then(|()| show(py, watch.as_ref(), reading)));
            seen.map_err(|error| {
                interrupt = Some(error);
                "interrupted".to_owned()
            })
        })
    });
    ended(py, outcome, interrupt)
}

/// Called regularly with the GIL; an exception cancels the action.
pub type Look<'a> = &'a mut dyn FnMut(Python<'_>) -> PyResult<()>;

/// [`together`] for callers that watch the run themselves.
pub fn together_with<T: Send>(
    py: Python<'_>,
    engine: &QueryEngine,
    comm: &Comm,
    action: impl FnOnce(&WorkerGroup, &mut dyn FnMut(Look<'_>) -> Result<(), String>) -> Result<T, ActionError> + Send,
) -> PyResult<T> {
    let comm = comm.get(py)?;
    let mut interrupt = None;
    let outcome = detach(py, || {
        let workers = engine.workers(comm)?;
        action(&workers, &mut |look| {
            Python::attach(|py| py.check_signals().and_then(|()| look(py))).map_err(|error| {
                interrupt = Some(error);
                "interrupted".to_owned()
            })
        })
    });
    ended(py, outcome, interrupt)
}

fn ended<T>(py: Python<'_>, outcome: Result<T, ActionError>, interrupt: Option<PyErr>) -> PyResult<T> {
    // Also if a job was stopped, because functions that read its streams may wait for more.
    calls::interrupt(py);
    match (outcome, interrupt) {
        (_, Some(interrupt)) => Err(interrupt),
        (Ok(value), None) => Ok(value),
        (Err(ActionError::DataSet(error)), None) => Err(raised(py, &error)),
        (Err(ActionError::Job(error)), None) => Err(from_collective(py, &error)),
    }
}

/// The text of a user function's exception, with its traceback.
pub fn exception_text(py: Python<'_>, error: &PyErr) -> String {
    let lines = py.import("traceback").and_then(|traceback| {
        // The traceback is passed separately: before Python 3.12, a newly raised exception does not contain it.
        traceback.call_method1("format_exception", (error.get_type(py), error.value(py), error.traceback(py)))
    });
    let text = lines.and_then(|lines| lines.extract::<Vec<String>>()).map(|lines| lines.concat());
    text.map_or_else(|_| error.to_string(), |text| text.trim_end().to_owned())
}
