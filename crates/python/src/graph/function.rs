//! Functions of the program that a graph holds. They may refer back to the graph through their module's globals, so
//! Python's garbage collector must see them: tasks and exchanges refer to them through a slot that it can clear.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// A function that a graph owns. Clones share it.
#[derive(Clone)]
pub struct GraphFunction(Arc<Mutex<Option<Py<PyAny>>>>);

impl GraphFunction {
    pub fn new(function: Py<PyAny>) -> Self {
        GraphFunction(Arc::new(Mutex::new(Some(function))))
    }

    /// The function, for a call.
    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let function = self.0.lock().as_ref().map(|function| function.clone_ref(py));
        let function = function.ok_or_else(|| PyRuntimeError::new_err("the graph has been dropped"))?;
        Ok(function.into_bound(py))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Locked only briefly, and never while waiting for Python.
        self.0.try_lock().map_or(Ok(()), |function| visit.call(&*function))
    }

    pub fn clear(&self) {
        let function = self.0.lock().take();
        drop(function);
    }
}
