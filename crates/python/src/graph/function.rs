//! Functions of the program that a graph holds. Its own functions may lead back to the graph, by the module they are
//! in: so Python's garbage collector has to see them, and tasks and exchanges refer to them by a slot that it may
//! empty.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// A function that a graph owns. Clones are the same.
#[derive(Clone)]
pub struct GraphFunction(Arc<Mutex<Option<Py<PyAny>>>>);

impl GraphFunction {
    pub fn new(function: Py<PyAny>) -> Self {
        GraphFunction(Arc::new(Mutex::new(Some(function))))
    }

    /// The function, to be called.
    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let function = self.0.lock().as_ref().map(|function| function.clone_ref(py));
        let function = function.ok_or_else(|| PyRuntimeError::new_err("the graph has been dropped"))?;
        Ok(function.into_bound(py))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Held for a moment only, and never by who waits for Python.
        self.0.try_lock().map_or(Ok(()), |function| visit.call(&*function))
    }

    pub fn clear(&self) {
        let function = self.0.lock().take();
        drop(function);
    }
}
