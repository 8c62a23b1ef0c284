//! Task graphs. Private to `tidemill.graph`, which checks and documents what users see.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tidemill_dataflow::DataflowError;

use crate::dataset;
use crate::errors::{cancelled, from_collective, from_net};

mod array_reduction;
mod build;
mod copy_thread;
mod exchange;
mod function;
mod message;
mod run;
mod stream_copy;
mod task_copy;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<build::NativeGraph>()?;
    m.add_class::<copy_thread::NativeTaskCopy>()?;
    m.add_class::<task_copy::NativeCopy>()?;
    m.add_class::<stream_copy::NativeStreamCopy>()?;
    m.add_class::<exchange::NativeExchange>()?;
    m.add_class::<exchange::NativeReduction>()?;
    m.add_class::<run::GraphCheckpoints>()?;
    m.add_class::<run::GraphRunner>()?;
    m.add_function(wrap_pyfunction!(message::object_table, m)?)?;
    m.add_function(wrap_pyfunction!(message::array_table, m)?)?;
    m.add_function(wrap_pyfunction!(message::payloads, m)?)?;
    m.add_function(wrap_pyfunction!(message::message_schema, m)?)?;
    Ok(())
}

/// A `GraphError` with a message, and the task copy that failed first.
#[cold]
fn graph_error(py: Python<'_>, message: String, place: Option<(String, u32, u32)>) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "tidemill.graph._errors", "GraphError") {
        Ok(class) => {
            let (task, copy, worker) =
                place.map_or((None, None, None), |(task, copy, worker)| (Some(task), Some(copy), Some(worker)));
            PyErr::from_type(class.clone(), (message, task, copy, worker))
        }
        Err(missing) => missing,
    }
}

/// The text of a function's exception: a summary line, then the traceback.
#[cold]
fn failure_text(py: Python<'_>, error: &PyErr) -> String {
    format!("{error}\n{}", dataset::exception_text(py, error))
}

/// The exception of a graph that cannot run, or has failed.
#[cold]
fn raised(py: Python<'_>, error: &DataflowError) -> PyErr {
    match error {
        DataflowError::Net(error) => from_net(py, error),
        DataflowError::Collective(error) => from_collective(py, error),
        DataflowError::Cancelled => cancelled(py),
        // For failures outside of the graph's tasks, only the message is useful.
        DataflowError::Task { task, message, worker, .. } if task.starts_with('(') => {
            graph_error(py, format!("{message} (on worker {worker})"), None)
        }
        DataflowError::Task { task, copy, worker, .. } => {
            graph_error(py, error.to_string(), Some((task.clone(), *copy, worker.0)))
        }
        _ => graph_error(py, error.to_string(), None),
    }
}
