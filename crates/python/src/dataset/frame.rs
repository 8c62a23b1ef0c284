//! Lazy tables: each method adds a step, actions run them.

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::ffi::to_schema_pycapsule;
use tidemill_dataset::{DataSet, Explain, How, Output, Result};

use super::engine::QueryEngine;
use super::expr::{NativeExpr, SortKey, exprs, sorts};
use super::table::NativeTable;
use super::{finish, raised};

/// A lazy table.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeDataSet(pub DataSet);

impl NativeDataSet {
    fn step(py: Python<'_>, made: impl FnOnce() -> Result<DataSet> + Send) -> PyResult<Self> {
        py.detach(made).map(NativeDataSet).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl NativeDataSet {
    /// Names and types of the columns, in order.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        let schema = self.0.schema();
        schema.fields().iter().map(|field| (field.name().clone(), field.data_type().to_string())).collect()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.0.schema().as_ref())?)
    }

    /// A table of these columns without rows.
    fn empty(&self) -> NativeTable {
        NativeTable { schema: self.0.schema(), batches: Vec::new() }
    }

    fn select(&self, py: Python<'_>, columns: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let columns = exprs(&columns);
        Self::step(py, || self.0.select(columns))
    }

    fn with_columns(&self, py: Python<'_>, columns: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let columns = exprs(&columns);
        Self::step(py, || self.0.with_columns(columns))
    }

    fn drop(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        Self::step(py, || self.0.drop_columns(&names))
    }

    fn rename(&self, py: Python<'_>, pairs: Vec<(String, String)>) -> PyResult<Self> {
        Self::step(py, || self.0.rename(&pairs))
    }

    fn filter(&self, py: Python<'_>, predicate: &Bound<'_, NativeExpr>) -> PyResult<Self> {
        let predicate = predicate.get().0.clone();
        Self::step(py, || self.0.filter(predicate))
    }

    fn aggregate(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, NativeExpr>>,
        aggregates: Vec<Bound<'_, NativeExpr>>,
    ) -> PyResult<Self> {
        let (keys, aggregates) = (exprs(&keys), exprs(&aggregates));
        Self::step(py, || self.0.aggregate(keys, aggregates))
    }

    fn join(
        &self,
        py: Python<'_>,
        right: &Bound<'_, NativeDataSet>,
        on: Vec<(String, String)>,
        how: &str,
        suffix: &str,
    ) -> PyResult<Self> {
        let how = How::parse(how).map_err(|error| raised(py, &error))?;
        let right = &right.get().0;
        Self::step(py, || self.0.join(right, &on, how, suffix))
    }

    fn sort(&self, py: Python<'_>, by: Vec<SortKey<'_>>) -> PyResult<Self> {
        let by = sorts(&by);
        Self::step(py, || self.0.sort(by))
    }

    #[pyo3(signature = (skip, count = None))]
    fn limit(&self, py: Python<'_>, skip: usize, count: Option<usize>) -> PyResult<Self> {
        Self::step(py, || self.0.limit(skip, count))
    }

    fn distinct(&self, py: Python<'_>, subset: Vec<String>) -> PyResult<Self> {
        Self::step(py, || self.0.distinct(&subset))
    }

    fn union(&self, py: Python<'_>, other: &Bound<'_, NativeDataSet>) -> PyResult<Self> {
        let other = &other.get().0;
        Self::step(py, || self.0.union(other))
    }

    fn explode(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        Self::step(py, || self.0.explode(&names))
    }

    fn repartition(&self, py: Python<'_>, partitions: usize, by: Vec<Bound<'_, NativeExpr>>) -> PyResult<Self> {
        let by = exprs(&by);
        Self::step(py, || self.0.repartition(partitions, by))
    }

    fn collect(&self, py: Python<'_>, engine: &QueryEngine) -> PyResult<NativeTable> {
        let schema = self.0.schema();
        let batches = finish(py, engine.0.start(self.0.clone().collect()))?;
        // What a plan says of nulls and what its batches say may differ; the batches are what is handed on.
        let schema = batches.first().map_or(schema, |batch| batch.schema());
        Ok(NativeTable { schema, batches })
    }

    fn count(&self, py: Python<'_>, engine: &QueryEngine) -> PyResult<usize> {
        finish(py, engine.0.start(self.0.clone().count()))
    }

    fn explain(&self, py: Python<'_>, engine: &QueryEngine, how: &str) -> PyResult<String> {
        let how = match how {
            "logical" => Explain::Logical,
            "optimized" => Explain::Optimized,
            "physical" => Explain::Physical,
            "analyze" => Explain::Analyze,
            other => {
                return Err(pyo3::exceptions::PyValueError::new_err(format!(
                    "explain has \"logical\", \"optimized\", \"physical\" and \"analyze\", not {other:?}"
                )));
            }
        };
        finish(py, engine.0.start(self.0.clone().explain(how)))
    }

    /// Writes into a folder; `format` is `csv`, `json`, `parquet` or `ipc`.
    #[pyo3(signature = (engine, dir, format, *, compression, partition_by, overwrite, delimiter = ',', header = true))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a private method")]
    fn write(
        &self,
        py: Python<'_>,
        engine: &QueryEngine,
        dir: String,
        format: &str,
        compression: String,
        partition_by: Vec<String>,
        overwrite: bool,
        delimiter: char,
        header: bool,
    ) -> PyResult<u64> {
        let output = match format {
            "csv" => Output::Csv { delimiter: super::engine::byte(delimiter)?, has_header: header, compression },
            "json" => Output::Json { compression },
            "parquet" => Output::Parquet { compression },
            _ => Output::Ipc,
        };
        let set = self.0.clone();
        finish(py, engine.0.start(async move { set.write(&dir, output, partition_by, overwrite).await }))
    }
}
