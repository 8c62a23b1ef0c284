//! DataSets, expressions and result tables. Private to `tidemill.dataset`, which checks and documents what users see.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tidemill_dataset::{ActionHandle, DataSetError};

mod bsp;
mod calls;
mod control;
mod engine;
mod expr;
mod frame;
mod lookup;
mod monitor;
mod process;
mod requests;
mod running;
mod source;
mod status;
mod stream;
mod table;
mod value;

// Task graphs share tables, schemas and the engine with DataSets.
pub use calls::PendingCall;
pub use engine::{GivenSchema, QueryEngine};
pub use frame::exception_text;
pub use stream::CheckpointOptions;
pub use table::NativeTable;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<engine::QueryEngine>()?;
    m.add_class::<expr::NativeExpr>()?;
    m.add_class::<frame::NativeDataSet>()?;
    m.add_class::<table::NativeTable>()?;
    m.add_function(wrap_pyfunction!(calls::end_calls, m)?)?;
    m.add_function(wrap_pyfunction!(memory_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(address_bytes_left, m)?)?;
    m.add_function(wrap_pyfunction!(stream::stream_of, m)?)?;
    m.add_function(wrap_pyfunction!(stream::stream_of_table, m)?)?;
    m.add_function(wrap_pyfunction!(source::stream_of_function, m)?)?;
    m.add_function(wrap_pyfunction!(stream::window_of, m)?)?;
    m.add_class::<stream::NativeStreamJob>()?;
    m.add_function(wrap_pyfunction!(stream::explain_stream, m)?)?;
    m.add_class::<process::NativeKeyedEngine>()?;
    m.add_class::<running::NativeRunning>()?;
    m.add_class::<lookup::NativeRedisHashes>()?;
    m.add_function(wrap_pyfunction!(stream::list_checkpoints, m)?)?;
    m.add_function(wrap_pyfunction!(stream::controller_record, m)?)?;
    m.add_function(wrap_pyfunction!(stream::copy_checkpoint, m)?)?;
    m.add_function(wrap_pyfunction!(table::join_files, m)?)?;
    Ok(())
}

/// The memory that the processes of this machine or container may use together, if the system tells, in bytes.
#[pyfunction]
fn memory_bytes() -> Option<u64> {
    tidemill_dataflow::memory::memory_bytes()
}

/// The address space that this process may still map, if `ulimit -v` limits it, in bytes.
#[pyfunction]
fn address_bytes_left() -> Option<u64> {
    tidemill_dataflow::memory::address_bytes_left()
}

/// The exception of a query that cannot be built or has failed.
#[cold]
fn raised(py: Python<'_>, error: &DataSetError) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "tidemill._tables.errors", "DataSetError") {
        Ok(class) => PyErr::from_type(class.clone(), (error.to_string(),)),
        Err(missing) => missing,
    }
}

/// Waits for an action with the GIL released, checking for signals; an exception of a signal handler cancels it.
pub(crate) fn finish<T: Send>(py: Python<'_>, running: ActionHandle<T>) -> PyResult<T> {
    finish_watched(py, running, &mut |_| Ok(()))
}

/// [`finish`] that also calls `look` regularly; an exception of that cancels the action, too.
fn finish_watched<T: Send>(
    py: Python<'_>,
    mut running: ActionHandle<T>,
    look: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    /// How long Ctrl-C may go unnoticed.
    const SLICE: Duration = Duration::from_millis(50);
    loop {
        // Moved back and forth, because a receiver is for one thread at a time.
        let (outcome, back) = py.detach(move || (running.wait(SLICE), running));
        let failed = match outcome {
            Some(Ok(outcome)) => return Ok(outcome),
            Some(Err(error)) => raised(py, &error),
            None => match py.check_signals().and_then(|()| look(py)) {
                Ok(()) => {
                    running = back;
                    continue;
                }
                Err(interrupt) => interrupt,
            },
        };
        py.detach(|| back.cancel());
        calls::interrupt(py);
        return Err(failed);
    }
}
