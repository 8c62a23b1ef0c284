//! Measures the best algorithm for each collective: what `tidemill tune` runs on every worker.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use tidemill_collective::measure::{SIZES_BYTES, TuneFinding, measure};
use tidemill_collective::measure_links::measure_links;
use tidemill_collective::tuner::TuneTable;

use crate::comm::Comm;
use crate::errors::from_collective;
use crate::wait::detach;

/// Measures every algorithm on the ranks of `comm`, and the cost of messages between them, and adds the best to the
/// table in `path` (default: this user's).
///
/// Collective. `budget_s` is the time spent on each way of running a collective at one size. `report` is called with
/// (collective, order, bytes, algorithm, chunk_bytes, blocking, seconds, seconds_untuned) after each size; `blocking`
/// is the algorithm without messages that is better for blocking calls, or None. Rank 0 writes the file; returns its
/// path. Raises `OSError` if it cannot be read or written.
#[pyfunction]
#[pyo3(signature = (comm, path, budget_s, largest_bytes, report))]
pub fn tune(
    py: Python<'_>,
    comm: &Comm,
    path: Option<PathBuf>,
    budget_s: f64,
    largest_bytes: usize,
    report: Py<PyAny>,
) -> PyResult<PathBuf> {
    let comm = comm.get(py)?.clone();
    let budget = Duration::try_from_secs_f64(budget_s).map_err(|e| PyValueError::new_err(format!("budget: {e}")))?;
    let sizes: Vec<usize> = SIZES_BYTES.into_iter().filter(|&s| s <= largest_bytes.max(SIZES_BYTES[0])).collect();
    let path = path
        .or_else(TuneTable::default_path)
        .ok_or_else(|| PyOSError::new_err("there is no home directory for the table; name a file"))?;
    // Keep earlier measurements, perhaps for other worker counts.
    let mut table = if comm.rank() == 0 && path.exists() {
        TuneTable::load(&path).map_err(|e| PyOSError::new_err(e.to_string()))?
    } else {
        TuneTable::default()
    };
    let mut failed = None;
    let links = detach(py, || {
        measure(&comm, &mut table, &sizes, budget, |finding| {
            let result = Python::attach(|py| call(py, &report, finding));
            failed = failed.take().or(result.err());
        })?;
        measure_links(&comm)
    })
    .map_err(|e| from_collective(py, &e))?;
    if let Some(error) = failed {
        return Err(error);
    }
    table.set_links(links.same_host, links.other_host);
    if comm.rank() == 0 {
        table.save(&path).map_err(|e| PyOSError::new_err(e.to_string()))?;
    }
    Ok(path)
}

fn call(py: Python<'_>, report: &Py<PyAny>, finding: &TuneFinding) -> PyResult<()> {
    let (algorithm, chunk_bytes, time) = finding.best;
    let (blocking, time) = finding.blocking.map_or((None, time), |(direct, time)| (Some(direct.name()), time));
    let names = (finding.collective.name(), finding.order.name(), finding.bytes, algorithm.name());
    let numbers = (chunk_bytes, blocking, time.as_secs_f64(), finding.untuned.as_secs_f64());
    report.call1(py, (names.0, names.1, names.2, names.3, numbers.0, numbers.1, numbers.2, numbers.3)).map(|_| ())
}
