//! Kernels of multidimensional scaling. Private to `tidemill.ml`, which checks the users' arguments.
//!
//! Arrays are C-contiguous; every call that passes over distances releases the GIL. Positions, column weights and
//! results are float64, blocks of distances or weights float32 or float64.

use crate::kernels::{KernelPool, MatrixArg, isa, slice};
use numpy::{Element as NumpyElement, IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use numpy::{PyArrayMethods, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use tidemill_kernels::FloatElement;
use tidemill_kernels::mds::{
    self, BlockDiagonal, BlockInspection, CellError, CellPlane, CellStorage, DistanceBlock, GuttmanPass,
    LaplacianCoefficients, SymmetryCheck,
};

/// Distances of this worker's points to all points, and their weights.
#[pyclass(module = "tidemill._tidemill")]
struct MdsDistances(DistanceBlock);

fn fits(condition: bool, message: &'static str) -> PyResult<()> {
    if condition { Ok(()) } else { Err(PyValueError::new_err(message)) }
}

impl MdsDistances {
    fn check_block(&self, at: usize, shape: &[usize]) -> PyResult<()> {
        fits(shape[1] == self.0.n() && at + shape[0] <= self.0.rows(), "the block must consist of existing rows")
    }

    fn symmetry(&self, weights: bool) -> PyResult<SymmetryCheck<'_>> {
        fits(!weights || self.0.is_weighted(), "the distances have no weights")?;
        let plane = if weights { CellPlane::Weights } else { CellPlane::Distances };
        Ok(SymmetryCheck { distances: &self.0, plane })
    }
}

#[pymethods]
impl MdsDistances {
    /// Allocates distances. `first` is the column of the same point as row 0.
    #[new]
    fn new(py: Python<'_>, rows: usize, n: usize, first: Option<usize>, storage: &str) -> PyResult<Self> {
        fits(n > 0 && first.is_none_or(|first| first + rows <= n), "rows and columns do not match")?;
        let storage: CellStorage = storage.parse().map_err(PyValueError::new_err)?;
        Ok(MdsDistances(py.detach(|| DistanceBlock::new(rows, n, first, storage))))
    }

    /// Distances between vectors: rows (rows, d) to columns (n, d).
    #[staticmethod]
    fn of_vectors(
        py: Python<'_>,
        rows: PyReadonlyArray2<'_, f32>,
        columns: PyReadonlyArray2<'_, f32>,
        first: Option<usize>,
    ) -> PyResult<Self> {
        let (count, n, d) = (rows.shape()[0], columns.shape()[0], columns.shape()[1]);
        fits(d > 0 && rows.shape()[1] == d && n > 0, "rows and columns must have the same features")?;
        fits(first.is_none_or(|first| first + count <= n), "rows and columns do not match")?;
        let (rows, columns) = (slice(&rows)?, slice(&columns)?);
        Ok(MdsDistances(py.detach(|| DistanceBlock::of_vectors(rows, columns, d, first))))
    }

    /// The size of cells and weights in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len_bytes()
    }

    /// Stores rows of distances from row `at` on, in units of `unit`.
    fn fill(&mut self, py: Python<'_>, pool: &KernelPool, at: usize, block: MatrixArg<'_>, unit: f64) -> PyResult<()> {
        match &block {
            MatrixArg::F32(block) => {
                self.check_block(at, block.shape())?;
                let block = slice(block)?;
                py.detach(|| self.0.fill(&pool.0, at, block, unit));
            }
            MatrixArg::F64(block) => {
                self.check_block(at, block.shape())?;
                let block = slice(block)?;
                py.detach(|| self.0.fill(&pool.0, at, block, unit));
            }
        }
        Ok(())
    }

    /// Allocates a weight for each distance, all 0.
    fn make_weights(&mut self, py: Python<'_>, storage: &str) -> PyResult<()> {
        let storage: CellStorage = storage.parse().map_err(PyValueError::new_err)?;
        py.detach(|| self.0.make_weights(storage));
        Ok(())
    }

    /// Stores rows of weights from row `at` on, in units of `unit`.
    fn weigh(&mut self, py: Python<'_>, pool: &KernelPool, at: usize, block: MatrixArg<'_>, unit: f64) -> PyResult<()> {
        fits(self.0.is_weighted(), "the distances have no weights")?;
        match &block {
            MatrixArg::F32(block) => {
                self.check_block(at, block.shape())?;
                let block = slice(block)?;
                py.detach(|| self.0.weigh(&pool.0, at, block, unit));
            }
            MatrixArg::F64(block) => {
                self.check_block(at, block.shape())?;
                let block = slice(block)?;
                py.detach(|| self.0.weigh(&pool.0, at, block, unit));
            }
        }
        Ok(())
    }

    /// For each row, B(Z) Z and the stress, into `out`, (rows, k + 1).
    #[allow(clippy::too_many_arguments)]
    fn guttman(
        &self,
        py: Python<'_>,
        pool: &KernelPool,
        rows: PyReadonlyArray2<'_, f64>,
        columns: PyReadonlyArray2<'_, f64>,
        weights: Option<PyReadonlyArray1<'_, f64>>,
        shift: f64,
        mut out: PyReadwriteArray2<'_, f64>,
    ) -> PyResult<()> {
        let isa = isa()?;
        let k = columns.shape()[1];
        let shapes = rows.shape() == [self.0.rows(), k] && columns.shape()[0] == self.0.n() && k > 0;
        fits(shapes && out.shape() == [self.0.rows(), k + 1], "positions must be (n, k), and out (rows, k + 1)")?;
        let weighted = weights.as_ref().map_or(self.0.is_weighted(), |weights| weights.len() == self.0.n());
        fits(weighted, "there must be one weight for each column, or each distance")?;
        let weights = weights.as_ref().map(slice).transpose()?;
        let pass = GuttmanPass { rows: slice(&rows)?, columns: slice(&columns)?, k, weights, shift };
        let out = out.as_slice_mut()?;
        py.detach(|| mds::guttman(&pool.0, isa, &self.0, pass, out));
        Ok(())
    }

    /// For each row, the Laplacian of `coefficients` ("weights", "squares", "missing") times `points` (n, k), and the
    /// degree, into `out`, (rows, k + 1).
    fn laplacian(
        &self,
        py: Python<'_>,
        pool: &KernelPool,
        coefficients: &str,
        points: PyReadonlyArray2<'_, f64>,
        mut out: PyReadwriteArray2<'_, f64>,
    ) -> PyResult<()> {
        let isa = isa()?;
        let coefficients: LaplacianCoefficients = coefficients.parse().map_err(PyValueError::new_err)?;
        let k = points.shape()[1];
        let shapes = points.shape()[0] == self.0.n() && k > 0 && out.shape() == [self.0.rows(), k + 1];
        fits(shapes, "vectors must be (n, k), and out (rows, k + 1)")?;
        fits(coefficients == LaplacianCoefficients::Squares || self.0.is_weighted(), "the distances have no weights")?;
        let points = slice(&points)?;
        let out = out.as_slice_mut()?;
        py.detach(|| mds::laplacian(&pool.0, isa, &self.0, coefficients, points, out));
        Ok(())
    }

    /// Cells as stored, in their units.
    fn block<'py>(
        &self,
        py: Python<'py>,
        weights: bool,
        rows: (usize, usize),
        columns: (usize, usize),
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let isa = isa()?;
        let symmetry = self.symmetry(weights)?;
        let there = rows.0 <= rows.1 && rows.1 <= self.0.rows() && columns.0 <= columns.1 && columns.1 <= self.0.n();
        fits(there, "the block must be within the rows and columns")?;
        let cells = py.detach(|| symmetry.block(isa, rows.0..rows.1, columns.0..columns.1));
        cells.into_pyarray(py).reshape([rows.1 - rows.0, columns.1 - columns.0])
    }

    /// The first cell of `columns` that differs from its counterpart in `others`, (columns, rows): row, column and both
    /// values.
    fn first_difference(
        &self,
        py: Python<'_>,
        pool: &KernelPool,
        weights: bool,
        columns: (usize, usize),
        others: PyReadonlyArray2<'_, f32>,
        tolerance: f32,
    ) -> PyResult<Option<(usize, usize, f32, f32)>> {
        let isa = isa()?;
        let symmetry = self.symmetry(weights)?;
        fits(columns.0 <= columns.1 && columns.1 <= self.0.n(), "the block must be within the rows and columns")?;
        let columns: Range<usize> = columns.0..columns.1;
        fits(others.shape() == [columns.len(), self.0.rows()], "others must have the shape (columns, rows)")?;
        let others = slice(&others)?;
        Ok(py.detach(|| symmetry.first_difference(&pool.0, isa, columns, others, tolerance)))
    }

    /// For each column, the first one that it is connected to by weights of these rows.
    fn components<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        fits(self.0.is_weighted(), "the distances have no weights")?;
        Ok(py.detach(|| self.0.components()).into_pyarray(py))
    }
}

/// The result of `mds_inspect`.
type Found = (f64, Option<(usize, usize, &'static str)>, Option<(f64, usize)>);

/// Checks rows of distances or weights: returns the maximum, the first invalid cell (row, column, reason), and the
/// maximum on the diagonal with its row. NaN is accepted where a weight is 0; `weights` are those of the cells or of
/// the columns.
#[pyfunction]
fn mds_inspect(
    py: Python<'_>,
    pool: &KernelPool,
    block: MatrixArg<'_>,
    first: Option<usize>,
    weights: Option<MatrixArg<'_>>,
    columns: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<Found> {
    let columns = columns.as_ref().map(slice).transpose()?;
    match (&block, &weights) {
        (MatrixArg::F32(block), None) => look(py, pool, block, first, None, columns),
        (MatrixArg::F64(block), None) => look(py, pool, block, first, None, columns),
        (MatrixArg::F32(block), Some(MatrixArg::F32(weights))) => look(py, pool, block, first, Some(weights), columns),
        (MatrixArg::F64(block), Some(MatrixArg::F64(weights))) => look(py, pool, block, first, Some(weights), columns),
        _ => Err(PyValueError::new_err("distances and weights must have the same dtype")),
    }
}

fn look<T: FloatElement + NumpyElement>(
    py: Python<'_>,
    pool: &KernelPool,
    block: &PyReadonlyArray2<'_, T>,
    first: Option<usize>,
    weights: Option<&PyReadonlyArray2<'_, T>>,
    columns: Option<&[f64]>,
) -> PyResult<Found> {
    let n = block.shape()[1];
    let shapes = n > 0 && weights.is_none_or(|weights| weights.shape() == block.shape());
    fits(
        shapes && columns.is_none_or(|columns| columns.len() == n),
        "there must be one weight for each cell or column",
    )?;
    let weights = weights.map(slice).transpose()?;
    let block = slice(block)?;
    let BlockInspection { max, bad, diagonal } =
        py.detach(|| mds::inspect(&pool.0, block, n, BlockDiagonal { first, weights, columns }));
    let why = |trouble| match trouble {
        CellError::Nan => "NaN",
        CellError::Infinite => "infinite",
        CellError::Negative => "negative",
    };
    Ok((max, bad.map(|(row, column, trouble)| (row, column, why(trouble))), diagonal))
}

/// Adds these functions and classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<MdsDistances>()?;
    m.add_function(wrap_pyfunction!(mds_inspect, m)?)
}
