//! K-means kernels and their threads. Private to `tidemill.ml`, which checks the users' arguments.
//!
//! Arrays are C-contiguous; every call releases the GIL. `x` is `n x d` of float32 or float64 and determines the type
//! of `shift` (`d`); centers, sums and weights are float64.

use numpy::{
    Element as NumpyElement, IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1,
};
use numpy::{PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidemill_kernels::kmeans::{self, KmeansAlgorithm, KmeansFit, PointRows};
use tidemill_kernels::pool::{CpuAffinity, Pool, PoolConfig, PoolMode, usable_cpus};
use tidemill_kernels::{FloatElement, Isa};

/// Threads for kernels; the calling thread is one of them.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub(crate) struct KernelPool(pub(crate) Pool);

#[pymethods]
impl KernelPool {
    #[new]
    #[pyo3(signature = (threads, mode = "bsp", affinity = "none", index = 0, workers = 1, spins = 2000))]
    fn new(threads: usize, mode: &str, affinity: &str, index: usize, workers: usize, spins: u32) -> PyResult<Self> {
        let mode = match mode {
            "bsp" => PoolMode::Bsp,
            "fork-join" => PoolMode::ForkJoin,
            _ => return Err(PyValueError::new_err(format!("threads must be \"bsp\" or \"fork-join\", not {mode:?}"))),
        };
        let affinity: CpuAffinity = affinity.parse().map_err(PyValueError::new_err)?;
        if threads == 0 {
            return Err(PyValueError::new_err("a pool needs at least one thread"));
        }
        Ok(KernelPool(Pool::new(PoolConfig { threads, mode, affinity, workers, index, spins })))
    }

    #[getter]
    fn threads(&self) -> usize {
        self.0.threads()
    }

    /// Whether the threads are bound to processors.
    #[getter]
    fn bound(&self) -> bool {
        self.0.is_bound()
    }
}

/// The number of threads that this process can keep busy, by its affinity and the CPU quota of its container.
#[pyfunction]
fn kernel_cpus() -> usize {
    usable_cpus()
}

/// The names of the instruction sets of this processor, the most basic first.
#[pyfunction]
fn kernel_instruction_sets() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// The instruction set to use: `TIDEMILL_SIMD` if it names one, else the widest.
pub(crate) fn isa() -> PyResult<Isa> {
    match std::env::var("TIDEMILL_SIMD") {
        Ok(name) if !name.is_empty() => Isa::named(&name).ok_or_else(|| {
            PyValueError::new_err(format!("TIDEMILL_SIMD={name}: this processor does not have that instruction set"))
        }),
        _ => Ok(Isa::best()),
    }
}

/// A matrix of either type.
#[derive(FromPyObject)]
pub(crate) enum MatrixArg<'py> {
    F32(PyReadonlyArray2<'py, f32>),
    F64(PyReadonlyArray2<'py, f64>),
}

/// A vector of either type.
#[derive(FromPyObject)]
enum VectorArg<'py> {
    F32(PyReadonlyArray1<'py, f32>),
    F64(PyReadonlyArray1<'py, f64>),
}

type Weights<'py> = Option<PyReadonlyArray1<'py, f64>>;

pub(crate) fn slice<'a, T: NumpyElement, D: numpy::ndarray::Dimension>(
    array: &'a numpy::PyReadonlyArray<'_, T, D>,
) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| PyValueError::new_err("arrays must be C-contiguous"))
}

fn rows<'a, T: FloatElement + NumpyElement>(
    x: &'a PyReadonlyArray2<'_, T>,
    shift: &'a PyReadonlyArray1<'_, T>,
    weights: &'a Weights<'_>,
) -> PyResult<PointRows<'a, T>> {
    let weights = weights.as_ref().map(|weights| slice(weights)).transpose()?;
    let (n, d) = (x.shape()[0], x.shape()[1]);
    if d == 0 || shift.len() != d || weights.is_some_and(|weights| weights.len() != n) {
        return Err(PyValueError::new_err("x, shift and weights must have matching shapes"));
    }
    Ok(PointRows::new(slice(x)?, slice(shift)?, weights))
}

/// Runs `$body` with `$rows` as the rows of either type.
macro_rules! with_rows {
    ($x:expr, $shift:expr, $weights:expr, $rows:ident => $body:expr) => {
        match (&$x, &$shift) {
            (MatrixArg::F32(x), VectorArg::F32(shift)) => {
                let $rows = rows(x, shift, &$weights)?;
                $body
            }
            (MatrixArg::F64(x), VectorArg::F64(shift)) => {
                let $rows = rows(x, shift, &$weights)?;
                $body
            }
            _ => return Err(PyValueError::new_err("x and shift must have the same dtype")),
        }
    };
}

fn centres_of<'a, T: FloatElement>(
    rows: &PointRows<'_, T>,
    centres: &'a PyReadonlyArray2<'_, f64>,
) -> PyResult<&'a [f64]> {
    if centres.shape()[0] == 0 || centres.shape()[1] != rows.d() {
        return Err(PyValueError::new_err("centers must be k x d"));
    }
    slice(centres)
}

enum AnyFit {
    F32(KmeansFit<f32>),
    F64(KmeansFit<f64>),
}

/// The state of one fit on the rows of this worker. Every call must get the same rows.
#[pyclass(module = "tidemill._tidemill")]
struct KMeansFit {
    fit: AnyFit,
    pool: Py<KernelPool>,
    algorithm: KmeansAlgorithm,
}

#[pymethods]
impl KMeansFit {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        pool: Py<KernelPool>,
        x: MatrixArg<'_>,
        shift: VectorArg<'_>,
        weights: Weights<'_>,
        k: usize,
        algorithm: &str,
        steps_max: usize,
    ) -> PyResult<Self> {
        let isa = isa()?;
        let threads = &pool.get().0;
        let choose = |n, d| match algorithm {
            "auto" => Ok(KmeansAlgorithm::choose(n, d, k, steps_max)),
            name => name.parse().map_err(PyValueError::new_err),
        };
        let (fit, algorithm) = match (&x, &shift) {
            (MatrixArg::F32(x), VectorArg::F32(shift)) => {
                let rows = rows(x, shift, &weights)?;
                let algorithm = choose(rows.n(), rows.d())?;
                (AnyFit::F32(py.detach(|| KmeansFit::new(threads, isa, rows, k, algorithm))), algorithm)
            }
            (MatrixArg::F64(x), VectorArg::F64(shift)) => {
                let rows = rows(x, shift, &weights)?;
                let algorithm = choose(rows.n(), rows.d())?;
                (AnyFit::F64(py.detach(|| KmeansFit::new(threads, isa, rows, k, algorithm))), algorithm)
            }
            _ => return Err(PyValueError::new_err("x and shift must have the same dtype")),
        };
        Ok(KMeansFit { fit, pool, algorithm })
    }

    /// The algorithm in use.
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Assigns every row to its nearest center; writes the clusters' sums (`k * d`) and then weights (`k`) to `out`.
    /// Returns how many rows changed their label and how many were searched.
    #[allow(clippy::too_many_arguments)]
    fn step(
        &mut self,
        py: Python<'_>,
        pool: &KernelPool,
        x: MatrixArg<'_>,
        shift: VectorArg<'_>,
        weights: Weights<'_>,
        centres: PyReadonlyArray2<'_, f64>,
        mut out: PyReadwriteArray1<'_, f64>,
    ) -> PyResult<(u64, u64)> {
        let out = out.as_slice_mut()?;
        macro_rules! step {
            ($fit:ident, $x:ident, $shift:ident) => {{
                let rows = rows($x, $shift, &weights)?;
                let centres = centres_of(&rows, &centres)?;
                let (sums, totals) = out
                    .split_at_mut_checked(centres.len())
                    .filter(|(_, totals)| totals.len() >= centres.len() / rows.d())
                    .ok_or_else(|| PyValueError::new_err("out is too short"))?;
                py.detach(|| {
                    let step = $fit.step(&pool.0, rows, centres);
                    sums.copy_from_slice($fit.sums());
                    totals[..$fit.weights().len()].copy_from_slice($fit.weights());
                    Ok((step.changed, step.searched))
                })
            }};
        }
        match (&mut self.fit, &x, &shift) {
            (AnyFit::F32(fit), MatrixArg::F32(x), VectorArg::F32(shift)) => step!(fit, x, shift),
            (AnyFit::F64(fit), MatrixArg::F64(x), VectorArg::F64(shift)) => step!(fit, x, shift),
            _ => Err(PyValueError::new_err("x and shift must have the dtype of the fit")),
        }
    }

    /// The label of each row.
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        let pool = &self.pool.get().0;
        let labels = py.detach(|| match &self.fit {
            AnyFit::F32(fit) => fit.labels(pool),
            AnyFit::F64(fit) => fit.labels(pool),
        });
        labels.into_pyarray(py)
    }
}

/// The result of `kmeans_statistics`.
type Statistics<'py> = (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>, f64, bool);

/// For the shifted rows: sums and sums of squares of the features, (2, d), the same with weights, the sum of weights,
/// and whether everything is finite.
#[pyfunction]
fn kmeans_statistics<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    x: MatrixArg<'py>,
    shift: VectorArg<'py>,
    weights: Weights<'py>,
) -> PyResult<Statistics<'py>> {
    let isa = isa()?;
    let s = with_rows!(x, shift, weights, rows => py.detach(|| kmeans::statistics(&pool.0, isa, rows)));
    let plain = PyArray2::from_vec2(py, &[s.sums, s.squares])?;
    let weighted = PyArray2::from_vec2(py, &[s.weighted_sums, s.weighted_squares])?;
    Ok((plain, weighted, s.weight, s.finite))
}

/// The nearest center of each row.
#[pyfunction]
fn kmeans_assign<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    x: MatrixArg<'py>,
    shift: VectorArg<'py>,
    centres: PyReadonlyArray2<'py, f64>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let isa = isa()?;
    let labels = with_rows!(x, shift, None, rows => {
        let centres = centres_of(&rows, &centres)?;
        let mut labels = vec![0; rows.n()];
        py.detach(|| kmeans::assign(&pool.0, isa, rows, centres, &mut labels));
        labels
    });
    Ok(labels.into_pyarray(py))
}

fn labels_of<'a, T: FloatElement>(
    rows: &PointRows<'_, T>,
    labels: &'a PyReadonlyArray1<'_, i32>,
    k: usize,
) -> PyResult<&'a [i32]> {
    let labels = slice(labels)?;
    if labels.len() != rows.n() || labels.iter().any(|&label| label < 0 || label as usize >= k) {
        return Err(PyValueError::new_err("labels must name a center for each row"));
    }
    Ok(labels)
}

/// The sum of weight times squared distance to the center of each row's label.
#[pyfunction]
fn kmeans_inertia(
    py: Python<'_>,
    pool: &KernelPool,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    centres: PyReadonlyArray2<'_, f64>,
    labels: PyReadonlyArray1<'_, i32>,
) -> PyResult<f64> {
    let isa = isa()?;
    with_rows!(x, shift, weights, rows => {
        let labels = labels_of(&rows, &labels, centres.shape()[0])?;
        let centres = centres_of(&rows, &centres)?;
        Ok(py.detach(|| kmeans::inertia(&pool.0, isa, rows, centres, labels)))
    })
}

/// Squared distances and indices of the `count` rows farthest from the center of their label, farthest first.
#[pyfunction]
fn kmeans_farthest(
    py: Python<'_>,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    centres: PyReadonlyArray2<'_, f64>,
    labels: PyReadonlyArray1<'_, i32>,
    count: usize,
) -> PyResult<Vec<(f64, usize)>> {
    with_rows!(x, shift, weights, rows => {
        let labels = labels_of(&rows, &labels, centres.shape()[0])?;
        let centres = centres_of(&rows, &centres)?;
        Ok(py.detach(|| kmeans::farthest(rows, centres, labels, count)))
    })
}

/// The distance of each row from each center, in the dtype of `x`.
#[pyfunction]
fn kmeans_transform<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    x: MatrixArg<'py>,
    shift: VectorArg<'py>,
    centres: PyReadonlyArray2<'py, f64>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, T: FloatElement + NumpyElement>(
        py: Python<'py>,
        pool: &Pool,
        rows: PointRows<'_, T>,
        centres: &[f64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let isa = isa()?;
        let k = centres.len() / rows.d();
        // SAFETY: the array is new and not shared; `transform` writes every element before any is read.
        let out = unsafe { PyArray2::<T>::new(py, [rows.n(), k], false) };
        {
            let mut out = out.readwrite();
            let distances = out.as_slice_mut()?;
            py.detach(|| kmeans::transform(pool, isa, rows, centres, distances));
        }
        Ok(out.into_any())
    }
    with_rows!(x, shift, None, rows => run(py, &pool.0, rows, centres_of(&rows, &centres)?))
}

/// Lowers `closest` for the new `seeds`; where one is nearer, `index` is set to its number, counting from `first`.
/// Returns the sum of weight times `closest`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn kmeans_nearest_update(
    py: Python<'_>,
    pool: &KernelPool,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    seeds: PyReadonlyArray2<'_, f64>,
    first: u32,
    mut closest: PyReadwriteArray1<'_, f64>,
    mut index: PyReadwriteArray1<'_, u32>,
) -> PyResult<f64> {
    let isa = isa()?;
    let (closest, index) = (closest.as_slice_mut()?, index.as_slice_mut()?);
    with_rows!(x, shift, weights, rows => {
        check_lengths(&rows, closest.len())?;
        check_lengths(&rows, index.len())?;
        let seeds = centres_of(&rows, &seeds)?;
        Ok(py.detach(|| kmeans::nearest_update(&pool.0, isa, rows, seeds, first, closest, index)))
    })
}

fn check_lengths<T: FloatElement>(rows: &PointRows<'_, T>, len: usize) -> PyResult<()> {
    if len != rows.n() {
        return Err(PyValueError::new_err("one value is needed for each row"));
    }
    Ok(())
}

/// For each of `trials`, the sum of weight times `closest` if it were the only new seed.
#[pyfunction]
fn kmeans_potentials(
    py: Python<'_>,
    pool: &KernelPool,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    trials: PyReadonlyArray2<'_, f64>,
    closest: PyReadonlyArray1<'_, f64>,
) -> PyResult<Vec<f64>> {
    let isa = isa()?;
    let closest = slice(&closest)?;
    with_rows!(x, shift, weights, rows => {
        check_lengths(&rows, closest.len())?;
        let trials = centres_of(&rows, &trials)?;
        Ok(py.detach(|| kmeans::potentials(&pool.0, isa, rows, trials, closest)))
    })
}

/// The rows drawn with probability `scale * weight * closest`; `offset` is the number of the first row over all
/// workers.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn kmeans_draw(
    py: Python<'_>,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    closest: PyReadonlyArray1<'_, f64>,
    scale: f64,
    seed: u64,
    round: u64,
    offset: u64,
) -> PyResult<Vec<usize>> {
    let closest = slice(&closest)?;
    with_rows!(x, shift, weights, rows => {
        check_lengths(&rows, closest.len())?;
        Ok(py.detach(|| kmeans::draw(rows, closest, scale, seed, round, offset)))
    })
}

/// For each target, the first row at which the running sum of weight times `closest` exceeds it.
#[pyfunction]
fn kmeans_locate(
    py: Python<'_>,
    x: MatrixArg<'_>,
    shift: VectorArg<'_>,
    weights: Weights<'_>,
    closest: PyReadonlyArray1<'_, f64>,
    targets: Vec<f64>,
) -> PyResult<Vec<usize>> {
    let closest = slice(&closest)?;
    with_rows!(x, shift, weights, rows => {
        check_lengths(&rows, closest.len())?;
        Ok(py.detach(|| kmeans::locate(rows, closest, &targets)))
    })
}

/// Adds these functions and classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<KernelPool>()?;
    m.add_class::<KMeansFit>()?;
    m.add_function(wrap_pyfunction!(kernel_cpus, m)?)?;
    m.add_function(wrap_pyfunction!(kernel_instruction_sets, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_statistics, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_assign, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_inertia, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_farthest, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_transform, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_nearest_update, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_potentials, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_draw, m)?)?;
    m.add_function(wrap_pyfunction!(kmeans_locate, m)?)
}
