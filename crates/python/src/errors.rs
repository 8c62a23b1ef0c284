//! Converts the errors of the native crates to the exceptions of `tidemill._errors`.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tidemill_collective::CollectiveError;
use tidemill_net::NetError;

/// MPI error classes this crate raises; the numbers of `tidemill._errors.ERROR_CLASSES`.
pub mod class {
    pub const COUNT: i32 = 2;
    pub const TAG: i32 = 4;
    pub const COMM: i32 = 5;
    pub const RANK: i32 = 6;
    pub const REQUEST: i32 = 7;
    pub const ROOT: i32 = 8;
    pub const OP: i32 = 10;
    pub const ARG: i32 = 13;
    pub const OTHER: i32 = 16;
    pub const REVOKED: i32 = 62;
}

fn class_named<'py>(
    py: Python<'py>,
    name: &'static str,
    slot: &'static PyOnceLock<Py<PyType>>,
) -> PyResult<Bound<'py, PyType>> {
    slot.import(py, "tidemill._errors", name).cloned()
}

macro_rules! exception {
    ($name:ident, $class:literal) => {
        pub fn $name(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
            static SLOT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            class_named(py, $class, &SLOT)
        }
    };
}

exception!(comm_error, "CommError");
exception!(worker_lost, "WorkerLost");
exception!(peer_failed, "PeerFailed");
exception!(mismatch_error, "MismatchError");
exception!(truncation_error, "TruncationError");
exception!(operation_error, "OperationError");
exception!(buffer_mismatch_error, "BufferMismatchError");

/// A `CommError` (`MPI.Exception`) of an error class, with a message.
#[cold]
pub fn fail(py: Python<'_>, class: i32, message: impl Into<String>) -> PyErr {
    match comm_error(py) {
        Ok(kind) => PyErr::from_type(kind, (class, message.into())),
        Err(error) => error,
    }
}

/// The exception of a call whose buffers do not match.
#[cold]
pub fn mismatched(py: Python<'_>, message: String) -> PyErr {
    buffer_mismatch_error(py).map_or_else(|e| e, |kind| PyErr::from_type(kind, (message,)))
}

/// The exception for an error of the job or of one message.
#[cold]
pub fn from_net(py: Python<'_>, error: &NetError) -> PyErr {
    let text = error.to_string();
    let made = match error {
        NetError::WorkerLost { rank, .. } => worker_lost(py).map(|kind| PyErr::from_type(kind, (text, rank.0))),
        NetError::PeerFailed { rank, traceback } => {
            peer_failed(py).map(|kind| PyErr::from_type(kind, (text, rank.0, traceback.clone())))
        }
        NetError::PeerLeft { rank } | NetError::PeerEnded { rank, .. } => {
            peer_failed(py).map(|kind| PyErr::from_type(kind, (text, rank.0, "")))
        }
        NetError::Truncated { .. } => truncation_error(py).map(|kind| PyErr::from_type(kind, (text,))),
        NetError::Mismatch(_) => mismatch_error(py).map(|kind| PyErr::from_type(kind, (text,))),
        NetError::Operation(_) => operation_error(py).map(|kind| PyErr::from_type(kind, (text,))),
        NetError::Interrupted => Ok(PyKeyboardInterrupt::new_err(())),
        _ => Ok(fail(py, class::OTHER, text)),
    };
    made.unwrap_or_else(|error| error)
}

/// The exception for a refused or failed call.
#[cold]
pub fn from_collective(py: Python<'_>, error: &CollectiveError) -> PyErr {
    let class = match error {
        CollectiveError::Net(error) => return from_net(py, error),
        CollectiveError::Op(error) => {
            let text = error.to_string();
            return operation_error(py).map_or_else(|e| e, |kind| PyErr::from_type(kind, (text,)));
        }
        CollectiveError::NoSuchRank { .. } => class::RANK,
        CollectiveError::Length { .. } => class::COUNT,
        CollectiveError::Unsupported(_) => class::ARG,
        CollectiveError::Abandoned { .. } => class::REVOKED,
        _ => class::OTHER,
    };
    fail(py, class, error.to_string())
}

/// The exception that is raised in abandoned functions.
pub fn cancelled_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "tidemill.graph._errors", "Cancelled")
}

/// The exception of a copy's port calls once its run was aborted.
#[cold]
pub fn cancelled(py: Python<'_>) -> PyErr {
    let text = "the run was aborted: another task has failed, or it was interrupted";
    cancelled_class(py).map_or_else(|missing| missing, |class| PyErr::from_type(class.clone(), (text,)))
}
