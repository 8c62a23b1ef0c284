//! The engine of this process, and what requires it: named functions, files, in-memory tables, SQL.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;
use tidemill_collective::Communicator;
use tidemill_connect::BadRecords;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tidemill_dataset::{
    ActionError, CsvLayout, DataSet, Engine, EngineConfig, LocalFile, OnError, ReadFormat, ReadOptions, StorageOptions,
    WorkerGroup, expr, find_files, find_local_files, plain_schema, read, read_bytes, read_npy, read_records, settle,
    types,
};
use tidemill_stream::sql_functions;

use super::expr::{NativeExpr, SortKey, exprs, sorts};
use super::frame::NativeDataSet;
use super::table::NativeTable;
use super::{finish, raised};

/// Runs queries.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct QueryEngine {
    pub engine: Arc<Engine>,
    config: EngineConfig,
    /// How many workers of the job take part in streams at the start, the others being spare; `None`: all.
    active_workers: Option<u32>,
    /// The process that owns the threads.
    process: u32,
    /// All workers of the job, once they have met.
    workers: Mutex<Option<Arc<WorkerGroup>>>,
    /// Records that sources of streams drop.
    bad_records: Mutex<Vec<(String, Weak<BadRecords>)>>,
}

impl Drop for QueryEngine {
    fn drop(&mut self) {
        // A forked child has none of the threads.
        if self.process != std::process::id() {
            std::mem::forget(Arc::clone(&self.engine));
            std::mem::forget(self.workers.get_mut().take());
        }
    }
}

impl QueryEngine {
    /// The number of threads that run queries.
    pub fn threads(&self) -> usize {
        self.config.threads
    }

    /// Registers a source that may drop records.
    pub fn add_source(&self, name: &str, bad: &Arc<BadRecords>) {
        let mut known = self.bad_records.lock();
        known.retain(|(_, bad)| bad.strong_count() > 0);
        known.push((name.to_owned(), Arc::downgrade(bad)));
    }

    /// The number of records that sources of this process have dropped since the last call, and the first of them.
    pub fn take_bad_records(&self) -> (u64, Option<String>) {
        let (mut count, mut first) = (0, None);
        for (name, bad) in self.bad_records.lock().iter() {
            let (more, text) = bad.upgrade().map_or((0, None), |bad| bad.take());
            count += more;
            first = first.or(text.map(|text| format!("{name}: {text}")));
        }
        (count, first)
    }

    /// The workers of the job; the first call is collective. Must be called without the GIL.
    pub fn workers(&self, comm: &Communicator) -> Result<Arc<WorkerGroup>, ActionError> {
        let mut workers = self.workers.lock();
        if let Some(workers) = &*workers {
            return Ok(Arc::clone(workers));
        }
        let met = Arc::new(WorkerGroup::new(comm, &self.engine, &self.config)?);
        if let Some(active) = self.active_workers {
            met.runner().set_active_workers(active);
        }
        *workers = Some(Arc::clone(&met));
        Ok(met)
    }
}

/// A character of a file's format, which must be a single byte.
pub fn byte(character: char) -> PyResult<u8> {
    u8::try_from(character)
        .ok()
        .filter(u8::is_ascii)
        .ok_or_else(|| PyValueError::new_err(format!("{character:?} is not an ASCII character")))
}

/// A schema as pairs (name, type), or any object with `__arrow_c_schema__`.
#[derive(FromPyObject)]
pub enum GivenSchema {
    Pairs(Vec<(String, String)>),
    Arrow(PySchema),
}

impl GivenSchema {
    pub fn resolve(self, py: Python<'_>) -> PyResult<SchemaRef> {
        match self {
            // In the form that imported tables have.
            GivenSchema::Arrow(schema) => Ok(plain_schema(&schema.into_inner())),
            GivenSchema::Pairs(pairs) => {
                let pairs = pairs.iter().map(|(name, kind)| (name.as_str(), kind.as_str()));
                types::schema(pairs).map(|schema| plain_schema(&schema)).map_err(|error| raised(py, &error))
            }
        }
    }
}

#[pymethods]
impl QueryEngine {
    #[new]
    #[pyo3(signature = (threads, workers, memory_bytes = None, spill_dir = None, active_workers = None))]
    fn new(
        py: Python<'_>,
        threads: usize,
        workers: usize,
        memory_bytes: Option<usize>,
        spill_dir: Option<PathBuf>,
        active_workers: Option<u32>,
    ) -> PyResult<Self> {
        let config = EngineConfig { threads, workers, memory_bytes, spill_dir };
        let engine =
            py.detach(|| Engine::with_functions(&config, sql_functions())).map_err(|error| raised(py, &error))?;
        let (engine, process) = (Arc::new(engine), std::process::id());
        let (workers, bad_records) = (Mutex::default(), Mutex::default());
        Ok(QueryEngine { engine, config, active_workers, process, workers, bad_records })
    }

    /// An engine for a group of this many workers, which shares this one's memory.
    fn beside(&self, py: Python<'_>, workers: usize) -> PyResult<Self> {
        let config = EngineConfig { workers, ..self.config.clone() };
        let engine = Arc::new(py.detach(|| self.engine.beside(&config)).map_err(|error| raised(py, &error))?);
        let process = std::process::id();
        let (workers, bad_records) = (Mutex::default(), Mutex::default());
        Ok(QueryEngine { engine, config, active_workers: None, process, workers, bad_records })
    }

    fn call(&self, py: Python<'_>, name: &str, args: Vec<Bound<'_, NativeExpr>>) -> PyResult<NativeExpr> {
        let made = expr::call(self.engine.context(), name, exprs(&args));
        made.map(NativeExpr).map_err(|error| raised(py, &error))
    }

    #[pyo3(signature = (name, args, distinct = false, filter = None, order_by = Vec::new()))]
    fn aggregate(
        &self,
        py: Python<'_>,
        name: &str,
        args: Vec<Bound<'_, NativeExpr>>,
        distinct: bool,
        filter: Option<Bound<'_, NativeExpr>>,
        order_by: Vec<SortKey<'_>>,
    ) -> PyResult<NativeExpr> {
        let filter = filter.map(|filter| filter.get().0.clone());
        let made = expr::aggregate(self.engine.context(), name, exprs(&args), distinct, filter, sorts(&order_by));
        made.map(NativeExpr).map_err(|error| raised(py, &error))
    }

    fn count_rows(&self, py: Python<'_>) -> PyResult<NativeExpr> {
        expr::count_rows(self.engine.context()).map(NativeExpr).map_err(|error| raised(py, &error))
    }

    #[pyo3(signature = (name, args, filter = None))]
    fn window(
        &self,
        py: Python<'_>,
        name: &str,
        args: Vec<Bound<'_, NativeExpr>>,
        filter: Option<Bound<'_, NativeExpr>>,
    ) -> PyResult<NativeExpr> {
        let filter = filter.map(|filter| filter.get().0.clone());
        let made = expr::window(self.engine.context(), name, exprs(&args), filter);
        made.map(NativeExpr).map_err(|error| raised(py, &error))
    }

    fn table(&self, py: Python<'_>, table: &NativeTable) -> PyResult<NativeDataSet> {
        let made = DataSet::from_batches(&self.engine, table.schema.clone(), &table.batches);
        made.map(NativeDataSet).map_err(|error| raised(py, &error))
    }

    /// Files of records; columns are names and bytes.
    #[pyo3(signature = (paths, columns, storage_options = StorageOptions::new()))]
    fn read_records(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        columns: Vec<(String, i32)>,
        storage_options: StorageOptions,
    ) -> PyResult<NativeDataSet> {
        let engine = Arc::clone(&self.engine);
        let work = async move { read_records(&engine, &paths, &storage_options, &columns).await };
        finish(py, self.engine.start(work)).map(NativeDataSet)
    }

    /// Arrays in NumPy files; `columns` replace their names.
    #[pyo3(signature = (paths, columns = None, storage_options = StorageOptions::new()))]
    fn read_npy(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        columns: Option<Vec<String>>,
        storage_options: StorageOptions,
    ) -> PyResult<NativeDataSet> {
        let engine = Arc::clone(&self.engine);
        let work = async move { read_npy(&engine, &paths, &storage_options, columns.as_deref()).await };
        finish(py, self.engine.start(work)).map(NativeDataSet)
    }

    /// The number of rows that this process has dropped since the last call, and the first: file, line and reason.
    fn take_bad_rows(&self) -> (u64, Option<(String, u64, String)>) {
        let (count, first) = self.engine.take_bad_rows();
        (count, first.map(|row| (row.file, row.line, row.reason)))
    }

    /// The files that paths refer to.
    #[pyo3(signature = (paths, storage_options = StorageOptions::new()))]
    fn find_files(&self, py: Python<'_>, paths: Vec<String>, storage_options: StorageOptions) -> PyResult<Vec<String>> {
        let engine = Arc::clone(&self.engine);
        let work = async move { find_files(&engine, &paths, &storage_options).await };
        finish(py, self.engine.start(work))
    }

    /// The local files that paths refer to on this host, possibly none: path, bytes, and modification time.
    #[staticmethod]
    fn find_local_files(py: Python<'_>, paths: Vec<String>) -> PyResult<Vec<(String, u64, i64)>> {
        let found = py.detach(|| find_local_files(&paths)).map_err(|error| raised(py, &error))?;
        Ok(found.into_iter().map(|LocalFile { path, bytes, changed_ns }| (path, bytes, changed_ns)).collect())
    }

    /// A table of separate files per worker; this one, `worker` of `workers`, has `mine`.
    fn own_files(
        &self,
        py: Python<'_>,
        schema: &NativeTable,
        mine: Option<Bound<'_, NativeDataSet>>,
        is_lenient: bool,
        worker: usize,
        workers: usize,
    ) -> PyResult<NativeDataSet> {
        let mine = mine.map(|mine| mine.get().0.clone());
        let made = DataSet::from_own_files(&self.engine, &schema.schema, mine.as_ref(), is_lenient, worker, workers);
        made.map(NativeDataSet).map_err(|error| raised(py, &error))
    }

    /// The bytes of one file.
    #[pyo3(signature = (path, storage_options = StorageOptions::new()))]
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        path: String,
        storage_options: StorageOptions,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let engine = Arc::clone(&self.engine);
        let work = async move { read_bytes(&engine, &path, &storage_options).await };
        Ok(PyBytes::new(py, &finish(py, self.engine.start(work))?))
    }

    /// Whether the output in a folder is complete; removes what a dead writer has left in a store.
    #[pyo3(signature = (path, storage_options = StorageOptions::new()))]
    fn settle(&self, py: Python<'_>, path: String, storage_options: StorageOptions) -> PyResult<bool> {
        let engine = Arc::clone(&self.engine);
        let work = async move { settle(&engine, &path, &storage_options).await };
        finish(py, self.engine.start(work))
    }

    /// A table that is distributed over workers; this one, `worker` of `workers`, has a part.
    fn part(&self, py: Python<'_>, table: &NativeTable, worker: usize, workers: usize) -> PyResult<NativeDataSet> {
        let made = DataSet::from_parts(&self.engine, table.schema.clone(), &table.batches, worker, workers);
        made.map(NativeDataSet).map_err(|error| raised(py, &error))
    }

    fn sql(
        &self,
        py: Python<'_>,
        query: String,
        tables: Vec<(String, Bound<'_, NativeDataSet>)>,
    ) -> PyResult<NativeDataSet> {
        let tables = tables.into_iter().map(|(name, table)| (name, table.get().0.clone())).collect();
        let engine = Arc::clone(&self.engine);
        let running = self.engine.start(async move { DataSet::from_sql(&engine, &query, tables).await });
        finish(py, running).map(NativeDataSet)
    }

    #[pyo3(signature = (paths, format, schema = None, infer_rows = 1000, *, header = true, delimiter = ',', quote = '"',
                        comment = None, newlines_in_values = false, null = None, storage_options = StorageOptions::new(),
                        on_error = "raise", quarantine = None, overrides = None, strict = false, encoding = None, file_column = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a private method")]
    fn read(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        format: &str,
        schema: Option<GivenSchema>,
        infer_rows: usize,
        header: bool,
        delimiter: char,
        quote: char,
        comment: Option<char>,
        newlines_in_values: bool,
        null: Option<String>,
        storage_options: StorageOptions,
        on_error: &str,
        quarantine: Option<PathBuf>,
        overrides: Option<GivenSchema>,
        strict: bool,
        encoding: Option<String>,
        file_column: Option<String>,
    ) -> PyResult<NativeDataSet> {
        let on_error = match (on_error, quarantine) {
            ("raise", None) => OnError::Raise,
            ("skip", None) => OnError::Skip,
            ("quarantine", Some(folder)) => OnError::Quarantine(folder),
            ("quarantine", None) => {
                return Err(PyValueError::new_err(
                    "on_error=\"quarantine\" needs quarantine=, a folder for the bad rows",
                ));
            }
            ("raise" | "skip", Some(_)) => {
                return Err(PyValueError::new_err("quarantine= is for on_error=\"quarantine\""));
            }
            (other, _) => {
                return Err(PyValueError::new_err(format!(
                    "on_error must be \"raise\", \"skip\" or \"quarantine\", not {other:?}"
                )));
            }
        };
        let schema = schema.map(|schema| schema.resolve(py)).transpose()?;
        let format = match format {
            "csv" => ReadFormat::Csv(CsvLayout {
                has_header: header,
                delimiter: byte(delimiter)?,
                quote: byte(quote)?,
                comment: comment.map(byte).transpose()?,
                newlines_in_values,
                null,
                strict,
                overrides: overrides.map(|overrides| overrides.resolve(py)).transpose()?,
            }),
            "json" => ReadFormat::Json,
            "parquet" => ReadFormat::Parquet,
            "ipc" => ReadFormat::Ipc,
            _ => ReadFormat::Text,
        };
        let engine = Arc::clone(&self.engine);
        let options = ReadOptions { schema, infer_rows, encoding, file_column, on_error };
        let work = async move { read(&engine, &paths, &storage_options, format, options).await };
        finish(py, self.engine.start(work)).map(NativeDataSet)
    }
}
