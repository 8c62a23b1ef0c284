//! The `tidemill` command for the console script.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs the `tidemill` command with `argv` (the first is the command's name) and returns its exit code.
///
/// `python` is the interpreter for `.py` files and modules. The GIL is released throughout.
#[pyfunction]
fn launch_main(py: Python<'_>, argv: Vec<OsString>, python: PathBuf) -> i32 {
    py.detach(|| tidemill_launch::main(argv, python))
}

/// Adds the function to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(launch_main, m)?)
}
