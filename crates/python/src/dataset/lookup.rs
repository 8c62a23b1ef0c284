//! Lookups that streams are joined with: tables of other servers, by key.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tidemill_connect::RedisHashes;

use super::stream::{described_by, refused};
use super::table::NativeTable;

/// Redis hashes.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeRedisHashes(RedisHashes);

#[pymethods]
impl NativeRedisHashes {
    #[new]
    fn new(py: Python<'_>, spec: &str) -> PyResult<Self> {
        RedisHashes::new(&described_by(spec)?).map(NativeRedisHashes).map_err(|error| refused(py, &error))
    }

    /// The fields of each row's hash, in the order in which they were named; `None` if the hash does not exist. The
    /// columns `on` contain its key.
    fn get(&self, py: Python<'_>, rows: &NativeTable, on: Vec<String>) -> PyResult<Vec<Option<Vec<Option<String>>>>> {
        let get = || -> Result<Vec<_>, String> {
            let mut found = Vec::new();
            for batch in &rows.batches {
                found.extend(self.0.get(batch, &on)?);
            }
            Ok(found)
        };
        py.detach(get).map_err(PyRuntimeError::new_err)
    }
}
