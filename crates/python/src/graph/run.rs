//! Running a graph on all workers, on a thread that never waits for Python.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore, StoreError};
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::{DataflowError, RunReport, Runner, RunnerSettings, WorkerInfo};
use tidemill_dataset::DataSetError;

use crate::comm::Comm;
use crate::dataset::{CheckpointOptions, QueryEngine, finish};
use crate::report::described;
use crate::wait::{check_given_up, detach};

use super::build::{NativeGraph, Planned, Worker, plan};
use super::raised;

/// The return values of functions, by task and copy.
type Values = HashMap<String, HashMap<u32, Py<PyAny>>>;

/// How long Ctrl-C may go unnoticed.
const SLICE: Duration = Duration::from_millis(50);

/// Where a graph saves its checkpoints, and how.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct GraphCheckpoints(CheckpointSettings);

#[pymethods]
impl GraphCheckpoints {
    /// Opens the store, which is one of the engine's. Not collective: it may fail on one worker alone.
    #[new]
    fn new(py: Python<'_>, options: CheckpointOptions, engine: &QueryEngine) -> PyResult<Self> {
        options.settings(py, engine, Some(DeliveryGuarantee::ExactlyOnce)).map(GraphCheckpoints)
    }

    /// The bytes of a note next to the checkpoints; `None` if there is none.
    fn note<'py>(&self, py: Python<'py>, engine: &QueryEngine, name: String) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.ask(py, engine, move |store| async move { store.note(&name).await })?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Writes a note, which is durable then.
    fn put_note(&self, py: Python<'_>, engine: &QueryEngine, name: String, bytes: Vec<u8>) -> PyResult<()> {
        self.ask(py, engine, move |store| async move { store.put_note(&name, bytes).await })
    }

    /// The names of notes that begin with the folder `within`, in alphabetical order.
    fn note_names(&self, py: Python<'_>, engine: &QueryEngine, within: String) -> PyResult<Vec<String>> {
        self.ask(py, engine, move |store| async move { store.note_names(&within).await })
    }

    fn remove_notes(&self, py: Python<'_>, engine: &QueryEngine, names: Vec<String>) -> PyResult<()> {
        self.ask(py, engine, move |store| async move {
            for name in names {
                store.remove_note(&name).await?;
            }
            Ok(())
        })
    }
}

impl GraphCheckpoints {
    fn ask<T, F>(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        work: impl FnOnce(CheckpointStore) -> F + Send + 'static,
    ) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let store = self.0.store.clone();
        let work = async move { work(store).await.map_err(|error| DataSetError::Io(error.to_string())) };
        finish(py, engine.engine.start(work))
    }
}

/// Runs graphs on the workers of a job.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct GraphRunner {
    runner: Arc<Runner>,
    /// The process that owns the threads.
    process: u32,
}

impl Drop for GraphRunner {
    fn drop(&mut self) {
        // A forked child has none of the threads.
        if self.process != std::process::id() {
            std::mem::forget(Arc::clone(&self.runner));
        }
    }
}

#[pymethods]
impl GraphRunner {
    /// A runner with the memory budget of the process's engine. Collective.
    #[new]
    fn new(py: Python<'_>, comm: &Comm, engine: &QueryEngine) -> PyResult<Self> {
        let comm = comm.get(py)?;
        let governor = engine.engine.governor().clone();
        let settings = RunnerSettings {
            threads: engine.threads(),
            memory: governor.settings().clone(),
            ..RunnerSettings::default()
        };
        let runner = detach(py, || Runner::governed(comm, settings, governor)).map_err(|error| raised(py, &error))?;
        Ok(GraphRunner { runner: Arc::new(runner), process: std::process::id() })
    }

    /// The workers as placements see them: host, cores, bytes of memory (0: no limit), location.
    #[getter]
    fn workers(&self) -> Vec<Worker> {
        let memory = |bytes: u64| if bytes == u64::MAX { 0 } else { bytes };
        let of = |w: &WorkerInfo| (w.host.clone(), w.cores, memory(w.memory_bytes), w.location.clone());
        self.runner.workers().iter().map(of).collect()
    }

    /// Runs a graph with a plan; collective. With `checkpoints`, it resumes from the last one. Returns the return
    /// values of this worker's copies, by task and copy, and its report.
    #[pyo3(signature = (graph, planned, checkpoints = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        graph: &NativeGraph,
        planned: Planned,
        checkpoints: Option<PyRef<'py, GraphCheckpoints>>,
    ) -> PyResult<(Values, Bound<'py, PyDict>)> {
        let settings = checkpoints.map(|checkpoints| checkpoints.0.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, outcome) = sync_channel(1);
        let (runner, built, asked) = (Arc::clone(&self.runner), graph.graph.lock().clone(), Arc::clone(&stop));
        let drive = move || {
            let mut look = |_: &_| if asked.load(Ordering::SeqCst) { Err("interrupted".to_owned()) } else { Ok(()) };
            // This fails only if Python no longer waits.
            drop(sender.send(runner.run_job(&built, &plan(planned), settings.as_ref(), &mut look)));
        };
        let thread = std::thread::Builder::new().name("tidemill-io".into()).spawn(drive);
        drop(thread.map_err(|error| super::graph_error(py, format!("cannot start a thread: {error}"), None))?);
        let (outcome, interrupt) = wait(py, outcome, &stop);
        let values = graph.crew.dismiss(py, outcome.is_err());
        if let Some(interrupt) = interrupt {
            return Err(interrupt);
        }
        let report = outcome.map_err(|error| raised(py, &error))?;
        let mut by_task = Values::new();
        for (task, copy, value) in values {
            by_task.entry(task).or_default().insert(copy, value);
        }
        Ok((by_task, described(py, &report)?))
    }
}

/// Waits with the GIL released, checking for signals; an exception of a signal handler aborts the run.
fn wait(
    py: Python<'_>,
    mut outcome: Receiver<Result<RunReport, DataflowError>>,
    stop: &AtomicBool,
) -> (Result<RunReport, DataflowError>, Option<PyErr>) {
    let mut interrupt = None;
    loop {
        // Moved back and forth, because a receiver is for one thread at a time.
        let (came, back) = py.detach(move || (outcome.recv_timeout(SLICE), outcome));
        match came {
            Ok(outcome) => return (outcome, interrupt),
            Err(RecvTimeoutError::Timeout) => {
                // A graph within a function ends with the run of that function.
                if let Err(error) = py.check_signals().and_then(|()| check_given_up(py)) {
                    stop.store(true, Ordering::SeqCst);
                    interrupt.get_or_insert(error);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                let message = "the run's thread panicked; its message is above".to_owned();
                let (task, worker) = ("(run)".to_owned(), tidemill_net::Rank(0));
                return (Err(DataflowError::Task { task, copy: 0, worker, message }), interrupt);
            }
        }
        outcome = back;
    }
}
