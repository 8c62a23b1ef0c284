//! The small handles that calls take: datatypes, operations, statuses. Their Python subclasses in `tidemill.mpi` add
//! everything that is not needed to move bytes.

#![allow(non_snake_case)] // MPI and mpi4py write them so.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tidemill_collective::{DType, ReduceOp, UserOp};

use crate::errors::{class, fail};

/// An element type by its native name (`"float64"`, `"double_int"`, `"V12"`); none for null and derived datatypes.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct Datatype {
    pub dtype: Option<DType>,
}

#[pymethods]
impl Datatype {
    #[new]
    #[pyo3(signature = (element=None))]
    fn new(element: Option<&str>) -> PyResult<Self> {
        Ok(Datatype { dtype: element.map(parse_dtype).transpose()? })
    }

    /// The native name of the element, or `None`.
    #[getter]
    fn _element(&self) -> Option<String> {
        self.dtype.map(|dtype| dtype.to_string())
    }

    /// The size of one element in bytes.
    #[getter]
    fn _element_bytes(&self) -> usize {
        self.dtype.map_or(0, DType::size_bytes)
    }
}

pub fn parse_dtype(name: &str) -> PyResult<DType> {
    name.parse()
        .map_err(|error: tidemill_collective::UnknownDType| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}

/// A reduction operation: predefined by name, a Python function, or none.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct Operation {
    kind: OperationKind,
}

enum OperationKind {
    Null,
    Predefined(ReduceOp),
    /// `function(left, right, datatype)`, with the operands as writable memory.
    User {
        function: Py<PyAny>,
        commutative: bool,
    },
}

/// Where a Python function of an operation stores its exception, to be raised by the call that runs it.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

#[pymethods]
impl Operation {
    #[new]
    #[pyo3(signature = (name=None, function=None, commutative=false))]
    fn new(name: Option<&str>, function: Option<Py<PyAny>>, commutative: bool) -> PyResult<Self> {
        let kind = match (name, function) {
            (Some(name), _) => {
                OperationKind::Predefined(name.parse().map_err(|e: tidemill_collective::UnknownOp| {
                    pyo3::exceptions::PyValueError::new_err(e.to_string())
                })?)
            }
            (None, Some(function)) => OperationKind::User { function, commutative },
            (None, None) => OperationKind::Null,
        };
        Ok(Operation { kind })
    }

    /// Whether the operation is commutative.
    fn _is_commutative(&self) -> bool {
        match &self.kind {
            OperationKind::Predefined(op) => op.is_commutative(),
            OperationKind::User { commutative, .. } => *commutative,
            OperationKind::Null => false,
        }
    }
}

impl Operation {
    /// The native operation, if it is predefined.
    #[inline]
    pub fn predefined(&self) -> Option<&ReduceOp> {
        match &self.kind {
            OperationKind::Predefined(op) => Some(op),
            _ => None,
        }
    }

    /// The native operation for one call. A Python function gets `datatype`; its exception is stored in `raised`.
    pub fn native(&self, py: Python<'_>, datatype: Option<&Bound<'_, PyAny>>, raised: &Raised) -> PyResult<ReduceOp> {
        match &self.kind {
            OperationKind::Predefined(op) => Ok(op.clone()),
            OperationKind::Null => Err(fail(py, class::OP, "the operation is OP_NULL (or was freed)")),
            OperationKind::User { function, commutative } => {
                let function = function.clone_ref(py);
                let datatype = datatype.map(|d| d.clone().unbind());
                let raised = Arc::clone(raised);
                let run = move |left: &[u8], right: &mut [u8], dtype: DType| {
                    Python::attach(|py| {
                        let datatype = datatype.as_ref().map(|d| d.bind(py));
                        call_user_function(function.bind(py), left, right, datatype, dtype).map_err(|error| {
                            // This text is all that other workers see of the exception.
                            let traceback = error.traceback(py).and_then(|traceback| traceback.format().ok());
                            let text = format!("{error}\n{}", traceback.unwrap_or_default());
                            raised.lock().get_or_insert(error);
                            text.into()
                        })
                    })
                };
                Ok(ReduceOp::User(UserOp::new("user function", *commutative, run)))
            }
        }
    }
}

/// Calls `function(left, right, datatype)` on the operands' own memory, through `tidemill.mpi._buffers.operands`.
fn call_user_function(
    function: &Bound<'_, PyAny>,
    left: &[u8],
    right: &mut [u8],
    datatype: Option<&Bound<'_, PyAny>>,
    dtype: DType,
) -> PyResult<()> {
    let py = function.py();
    let apply = py.import("tidemill.mpi._buffers")?.getattr("apply_user_function")?;
    let name = dtype.to_string();
    apply.call1((function, left.as_ptr() as usize, right.as_mut_ptr() as usize, left.len(), datatype, name))?;
    Ok(())
}

/// Status of a completed receive.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct Status {
    pub source: AtomicI32,
    pub tag: AtomicI32,
    pub error: AtomicI32,
    pub nbytes: AtomicI64,
    pub cancelled: AtomicI32,
}

pub const ANY: i32 = -1;
pub const PROC_NULL: i32 = -2;

#[pymethods]
impl Status {
    #[new]
    #[pyo3(signature = (status=None))]
    fn new(status: Option<&Bound<'_, Status>>) -> Self {
        let this =
            Status { source: ANY.into(), tag: ANY.into(), error: 0.into(), nbytes: 0.into(), cancelled: 0.into() };
        if let Some(other) = status {
            this.copy_from(other.get());
        }
        this
    }

    /// Return the rank that sent the message.
    fn Get_source(&self) -> i32 {
        self.source.load(Ordering::Relaxed)
    }

    /// Set the source, as generalized requests do.
    fn Set_source(&self, source: i32) {
        self.source.store(source, Ordering::Relaxed);
    }

    /// Return the tag of the message.
    fn Get_tag(&self) -> i32 {
        self.tag.load(Ordering::Relaxed)
    }

    /// Set the tag.
    fn Set_tag(&self, tag: i32) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Return the error code of this message.
    fn Get_error(&self) -> i32 {
        self.error.load(Ordering::Relaxed)
    }

    /// Set the error code.
    fn Set_error(&self, error: i32) {
        self.error.store(error, Ordering::Relaxed);
    }

    /// Return whether the request was cancelled.
    fn Is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) != 0
    }

    /// Set whether the request was cancelled.
    pub fn Set_cancelled(&self, flag: bool) {
        self.cancelled.store(flag.into(), Ordering::Relaxed);
    }

    /// The bytes of the message.
    #[getter]
    fn _nbytes(&self) -> i64 {
        self.nbytes.load(Ordering::Relaxed)
    }

    #[setter]
    fn set__nbytes(&self, nbytes: i64) {
        self.nbytes.store(nbytes, Ordering::Relaxed);
    }

    fn _copy_from(&self, other: &Bound<'_, Status>) {
        self.copy_from(other.get());
    }
}

impl Status {
    pub fn fill(&self, source: i32, tag: i32, nbytes: u64) {
        self.source.store(source, Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
        self.error.store(0, Ordering::Relaxed);
        self.nbytes.store(nbytes as i64, Ordering::Relaxed);
        self.cancelled.store(0, Ordering::Relaxed);
    }

    fn copy_from(&self, other: &Status) {
        self.source.store(other.source.load(Ordering::Relaxed), Ordering::Relaxed);
        self.tag.store(other.tag.load(Ordering::Relaxed), Ordering::Relaxed);
        self.error.store(other.error.load(Ordering::Relaxed), Ordering::Relaxed);
        self.nbytes.store(other.nbytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.cancelled.store(other.cancelled.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
