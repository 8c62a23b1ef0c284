//! Joining a job and leaving it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tidemill_collective::{Communicator, TuneTable};
use tidemill_machine::Machine;
use tidemill_net::control::ControlPlane;
use tidemill_net::environment::LaunchContext;
use tidemill_net::rendezvous::join_from_environment;
use tidemill_net::topology::{HostShare, WorkerPlacement};
use tidemill_net::{Endpoint, EndpointSettings, Rank};

use crate::comm::Comm;
use crate::errors::{class, fail};
use crate::wait::{detach, interruptibly};

/// This process as a worker of its job.
#[pyclass(frozen, name = "Worker", module = "tidemill._tidemill")]
pub struct JobWorker {
    world: Communicator,
    solo: Communicator,
    /// Returns the program's position; removed once the worker leaves.
    locator: Arc<Mutex<Option<Py<PyAny>>>>,
}

fn settings(transport: &str, connect: &str, stall_warning_s: f64) -> PyResult<EndpointSettings> {
    let stall_warning = Duration::try_from_secs_f64(stall_warning_s)
        .map_err(|_| PyValueError::new_err(format!("stall_warning must be seconds, not {stall_warning_s}")))?;
    let transport = transport.parse().map_err(PyValueError::new_err)?;
    let connect = connect.parse().map_err(|e: String| PyValueError::new_err(format!("TIDEMILL_CONNECT: {e}")))?;
    Ok(EndpointSettings { transport, connect, stall_warning })
}

impl JobWorker {
    fn open(
        py: Python<'_>,
        settings: EndpointSettings,
        meet: impl FnOnce() -> Result<ControlPlane, String> + Send,
    ) -> PyResult<Self> {
        let joined = interruptibly(py, || {
            let endpoint = Endpoint::open(meet()?, settings).map_err(|e| e.to_string())?;
            // All ranks use rank 0's table.
            let table = match endpoint.rank() {
                Rank(0) => TuneTable::load_default().map_err(|error| {
                    let text = error.to_string();
                    endpoint.report_failure(&text);
                    text
                })?,
                _ => TuneTable::default(),
            };
            let table = Arc::new(table);
            let solo = Communicator::solo(endpoint.clone(), Arc::clone(&table));
            let world = Communicator::world(endpoint, table).map_err(|e| e.to_string())?;
            Ok((world, solo))
        })?;
        let (world, solo) =
            joined.map_err(|text: String| fail(py, class::OTHER, format!("joining the job: {text}")))?;
        Ok(JobWorker { world, solo, locator: Arc::default() })
    }
}

/// `(processors, workers, index, room, threads)`.
type ShareParts = (usize, usize, usize, usize, usize);

fn parts(share: HostShare) -> ShareParts {
    let HostShare { processors, workers, index, room, threads } = share;
    (processors, workers, index, room, threads)
}

/// The share of the host of a process that has joined no job; see [`JobWorker::share`]. `bound`: its launcher assigned
/// processors to it.
#[pyfunction]
pub(crate) fn share_of_process(bound: bool) -> ShareParts {
    // An invalid environment is an error only when joining a job.
    let launch = LaunchContext::from_process().ok();
    parts(HostShare::of_process(&WorkerPlacement::here(), launch.as_ref(), bound))
}

#[pymethods]
impl JobWorker {
    /// Joins the job described by the environment, or a job of one worker if there is none; returns when all workers
    /// have joined. Raises `MPI.Exception` with the remedy if they do not join, or disagree.
    #[staticmethod]
    fn join(py: Python<'_>, transport: &str, connect: &str, stall_warning: f64) -> PyResult<Self> {
        let settings = settings(transport, connect, stall_warning)?;
        Self::open(py, settings, || join_from_environment().map_err(|e| e.to_string()))
    }

    /// A job of this process alone, regardless of the environment.
    #[staticmethod]
    fn alone(py: Python<'_>, transport: &str, connect: &str, stall_warning: f64) -> PyResult<Self> {
        let settings = settings(transport, connect, stall_warning)?;
        Self::open(py, settings, || Ok(ControlPlane::solo()))
    }

    /// The communicator of all workers.
    fn world(&self) -> Comm {
        Comm::of(self.world.clone())
    }

    /// The communicator of this worker alone.
    fn solo(&self) -> Comm {
        Comm::of(self.solo.clone())
    }

    /// Tells every worker that this one's program has failed.
    fn report_failure(&self, py: Python<'_>, traceback: &str) {
        detach(py, || self.world.endpoint().report_failure(traceback));
    }

    /// Leaves the job: sends queued messages, then tells the others. Idempotent.
    fn leave(&self, py: Python<'_>) {
        // The interpreter may end next, along with any thread that is in it, so wait for a thread that is calling the
        // locator.
        let locate = detach(py, || self.locator.lock().take());
        drop(locate);
        detach(py, || self.world.endpoint().leave());
    }

    /// Raises the reason why the job cannot continue; returns if it can.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.world.endpoint().faults().fatal() {
            Some(error) => Err(crate::errors::from_net(py, &error)),
            None => Ok(()),
        }
    }

    /// Sets the function that tells stall reports where the program is: `locate()` returns text such as `"app.py:88"`,
    /// or `None`.
    fn set_locator(&self, locate: Py<PyAny>) {
        let locator = Arc::clone(&self.locator);
        *locator.lock() = Some(locate);
        self.world.endpoint().set_locator(Arc::new(move || {
            let locate = locator.lock();
            let locate = locate.as_ref()?;
            Python::try_attach(|py| locate.call0(py).ok()?.extract::<Option<String>>(py).ok()?)?
        }));
    }

    /// This worker's share of its host, by its current affinity: the program may have bound itself since it joined.
    fn share(&self) -> ShareParts {
        let endpoint = self.world.endpoint();
        let (mut placements, rank) = (Cow::Borrowed(endpoint.placements()), endpoint.rank().index());
        let now: Vec<u32> = Machine::here().allowed().iter().map(|cpu| cpu as u32).collect();
        if placements[rank].processors != now {
            placements.to_mut()[rank].processors = now;
        }
        parts(HostShare::of(&placements, rank))
    }

    /// The default number of threads of each worker, determined when they joined; the same on all workers.
    fn threads(&self) -> Vec<usize> {
        let placements = self.world.endpoint().placements();
        (0..placements.len()).map(|rank| HostShare::of(placements, rank).threads).collect()
    }

    /// Where each worker runs, and how it is reached from here.
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let endpoint = self.world.endpoint();
        let placements = endpoint.placements().iter().enumerate();
        let describe = |(rank, placement): (usize, &WorkerPlacement)| {
            let route = endpoint.lock().route(Rank(rank as u32)).map(|(name, _)| name);
            let entry = PyDict::new(py);
            entry.set_item("rank", rank)?;
            entry.set_item("host", &placement.hostname)?;
            // The first worker on the same host: equal numbers mean the same host, regardless of names.
            entry.set_item("host_id", endpoint.placements().iter().position(|p| p.host == placement.host))?;
            entry.set_item("location", placement.location.as_deref())?;
            entry.set_item("pid", placement.pid)?;
            entry.set_item("cores", placement.cores_allowed)?;
            entry.set_item("socket", placement.socket)?;
            entry.set_item("core", placement.core)?;
            entry.set_item("transport", route)?;
            entry.set_item("lack", endpoint.lack(Rank(rank as u32)))?;
            entry.set_item("single_copy", endpoint.reads_memory_of(Rank(rank as u32)))?;
            entry.set_item("shares_memory", endpoint.shares_memory_with(Rank(rank as u32)))?;
            Ok(entry)
        };
        placements.map(describe).collect()
    }
}
