//! Networks as compressed rows, and algorithms on them. Private to `tidemill.networks`, which checks the users'
//! arguments.
//!
//! Arrays are one-dimensional and C-contiguous; every call releases the GIL. Nodes are uint32, offsets int64, weights
//! float64.

use crate::kernels::{KernelPool, slice};
use numpy::ndarray::ArrayView1;
use numpy::{Element as NumpyElement, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_networks::ids::{self, NodeId};
use tidemill_networks::louvain::{LouvainOptions, louvain, modularity};
use tidemill_networks::pagerank::{BaseScores, PagerankOptions};
use tidemill_networks::parse::{LinkFormat, parse_links};
use tidemill_networks::push::{CountedLinks, PushOptions, push_residuals};
use tidemill_networks::sweeps::Lowered;
use tidemill_networks::{
    CompressedRows, LinkOptions, Links, NetworkError, betweenness, bfs, components, cores, flow, forest, labels,
    pagerank, partition, paths, strong, sweeps, triangles,
};

type Nodes<'py> = PyReadonlyArray1<'py, u32>;
type Integers<'py> = PyReadonlyArray1<'py, i64>;
type Floats<'py> = PyReadonlyArray1<'py, f64>;
type Array<'py, T> = Bound<'py, PyArray1<T>>;

fn refused(error: NetworkError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Parses the name of an option.
fn named<T: std::str::FromStr<Err = String>>(name: &str) -> PyResult<T> {
    name.parse().map_err(PyValueError::new_err)
}

fn optional<'a, T: NumpyElement>(array: &'a Option<PyReadonlyArray1<'_, T>>) -> PyResult<Option<&'a [T]>> {
    array.as_ref().map(slice).transpose()
}

/// Rows of links; see `tidemill_networks::CompressedRows`.
#[pyclass(frozen, name = "CompressedRows", module = "tidemill._tidemill")]
pub(crate) struct NetworkRows(CompressedRows);

/// `values`, which `owner` keeps alive, as a read-only array.
fn view<'py, T: NumpyElement>(owner: &Bound<'py, NetworkRows>, values: &[T]) -> Array<'py, T> {
    // SAFETY: the memory belongs to `owner`, whose arrays never change or move, and which the new array keeps alive.
    let array = unsafe { PyArray1::borrow_from_array(&ArrayView1::from(values), owner.clone().into_any()) };
    array.readwrite().make_nonwriteable();
    array
}

#[pymethods]
impl NetworkRows {
    #[new]
    fn new(
        py: Python<'_>,
        pool: &KernelPool,
        offsets: PyReadonlyArray1<'_, i64>,
        targets: Nodes<'_>,
        weights: Option<Floats<'_>>,
        columns: usize,
    ) -> PyResult<Self> {
        let (offsets, targets, weights) = (slice(&offsets)?, slice(&targets)?, optional(&weights)?);
        py.detach(|| {
            let weights = weights.map(<[f64]>::to_vec);
            CompressedRows::new(&pool.0, offsets.to_vec(), targets.to_vec(), weights, columns)
        })
        .map(NetworkRows)
        .map_err(refused)
    }

    #[staticmethod]
    #[pyo3(signature = (pool, sources, targets, weights, rows, columns, duplicates = "keep", loops = true, symmetric = false))]
    #[allow(clippy::too_many_arguments)]
    fn of_links(
        py: Python<'_>,
        pool: &KernelPool,
        sources: Nodes<'_>,
        targets: Nodes<'_>,
        weights: Option<Floats<'_>>,
        rows: usize,
        columns: usize,
        duplicates: &str,
        loops: bool,
        symmetric: bool,
    ) -> PyResult<Self> {
        let options = LinkOptions { rows, columns, duplicates: named(duplicates)?, loops, symmetric };
        let links = Links { sources: slice(&sources)?, targets: slice(&targets)?, weights: optional(&weights)? };
        py.detach(|| CompressedRows::of_links(&pool.0, links, &options)).map(NetworkRows).map_err(refused)
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments)]
    fn of_block<'py>(
        py: Python<'py>,
        pool: &KernelPool,
        sources: Nodes<'py>,
        targets: Nodes<'py>,
        weights: Option<Floats<'py>>,
        rows: usize,
        columns: usize,
        first: usize,
        duplicates: &str,
    ) -> PyResult<(NetworkRows, Array<'py, u32>)> {
        let options = LinkOptions { rows, duplicates: named(duplicates)?, ..LinkOptions::square(columns) };
        let links = Links { sources: slice(&sources)?, targets: slice(&targets)?, weights: optional(&weights)? };
        let (rows, ghosts) =
            py.detach(|| CompressedRows::of_block(&pool.0, links, &options, first)).map_err(refused)?;
        Ok((NetworkRows(rows), ghosts.into_pyarray(py)))
    }

    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    #[getter]
    fn columns(&self) -> usize {
        self.0.columns()
    }

    #[getter]
    fn links(&self) -> usize {
        self.0.links()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    #[getter]
    fn offsets<'py>(slf: &Bound<'py, Self>) -> Array<'py, i64> {
        view(slf, slf.get().0.offsets())
    }

    #[getter]
    fn targets<'py>(slf: &Bound<'py, Self>) -> Array<'py, u32> {
        view(slf, slf.get().0.targets())
    }

    #[getter]
    fn weights<'py>(slf: &Bound<'py, Self>) -> Option<Array<'py, f64>> {
        slf.get().0.weights().map(|weights| view(slf, weights))
    }

    fn transpose(&self, py: Python<'_>, pool: &KernelPool) -> Self {
        NetworkRows(py.detach(|| self.0.transpose(&pool.0)))
    }

    fn is_symmetric(&self, py: Python<'_>, pool: &KernelPool) -> bool {
        py.detach(|| self.0.is_symmetric(&pool.0))
    }

    fn weight_sums<'py>(&self, py: Python<'py>, pool: &KernelPool) -> Array<'py, f64> {
        py.detach(|| self.0.weight_sums(&pool.0)).into_pyarray(py)
    }

    fn part<'py>(
        &self,
        py: Python<'py>,
        pool: &KernelPool,
        nodes: Nodes<'py>,
    ) -> PyResult<(NetworkRows, Array<'py, u32>)> {
        let nodes = slice(&nodes)?;
        let (rows, ghosts) = py.detach(|| self.0.part(&pool.0, nodes)).map_err(refused)?;
        Ok((NetworkRows(rows), ghosts.into_pyarray(py)))
    }
}

/// Text as `bytes` or as an array of bytes.
#[derive(FromPyObject)]
enum TextArg<'py> {
    Bytes(Bound<'py, PyBytes>),
    Array(PyReadonlyArray1<'py, u8>),
}

fn one_byte(delimiter: &str) -> PyResult<u8> {
    match delimiter.as_bytes() {
        [byte] => Ok(*byte),
        _ => Err(PyValueError::new_err(format!("a delimiter or tag must be one ASCII character, not {delimiter:?}"))),
    }
}

/// The result of `network_parse`.
type Parsed<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Array<'py, f64>>, u64);

/// Parses links from lines of text.
#[pyfunction]
#[pyo3(signature = (pool, data, weighted, delimiter = None, comments = "#%", tag = None, first_line = 1))]
#[allow(clippy::too_many_arguments)]
fn network_parse<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    data: TextArg<'py>,
    weighted: bool,
    delimiter: Option<&str>,
    comments: &str,
    tag: Option<&str>,
    first_line: u64,
) -> PyResult<Parsed<'py>> {
    let format = LinkFormat {
        delimiter: delimiter.map(one_byte).transpose()?,
        comments: comments.as_bytes().to_vec(),
        tag: tag.map(one_byte).transpose()?,
        weighted,
        first_line,
    };
    let text = match &data {
        TextArg::Bytes(bytes) => bytes.as_bytes(),
        TextArg::Array(array) => slice(array)?,
    };
    let links = py.detach(|| parse_links(&pool.0, text, &format)).map_err(refused)?;
    let ids = |ids: Vec<i64>| {
        if links.unsigned {
            ids.into_iter().map(|id| id as u64).collect::<Vec<_>>().into_pyarray(py).into_any()
        } else {
            ids.into_pyarray(py).into_any()
        }
    };
    let weights = weighted.then(|| links.weights.into_pyarray(py));
    Ok((ids(links.sources), ids(links.targets), weights, links.lines))
}

/// Ids of either type.
#[derive(FromPyObject)]
enum IdsArg<'py> {
    Signed(PyReadonlyArray1<'py, i64>),
    Unsigned(PyReadonlyArray1<'py, u64>),
}

/// The distinct ids of all arrays, ascending.
#[pyfunction]
#[pyo3(signature = (pool, *values))]
fn network_ids<'py>(py: Python<'py>, pool: &KernelPool, values: Vec<IdsArg<'py>>) -> PyResult<Bound<'py, PyAny>> {
    fn distinct<'py, T: NodeId + NumpyElement>(
        py: Python<'py>,
        pool: &KernelPool,
        lists: &[&PyReadonlyArray1<'py, T>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let lists = lists.iter().map(|list| slice(list)).collect::<PyResult<Vec<_>>>()?;
        Ok(py.detach(|| ids::distinct(&pool.0, &lists)).into_pyarray(py).into_any())
    }
    let (mut signed, mut unsigned) = (Vec::new(), Vec::new());
    for list in &values {
        match list {
            IdsArg::Signed(list) => signed.push(list),
            IdsArg::Unsigned(list) => unsigned.push(list),
        }
    }
    match (signed.is_empty(), unsigned.is_empty()) {
        (_, true) => distinct(py, pool, &signed),
        (true, false) => distinct(py, pool, &unsigned),
        _ => Err(PyTypeError::new_err("ids must have the same dtype")),
    }
}

/// The index of each value among ascending ids.
#[pyfunction]
fn network_find<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    ids: IdsArg<'py>,
    values: IdsArg<'py>,
) -> PyResult<Array<'py, u32>> {
    let places = match (&ids, &values) {
        (IdsArg::Signed(ids), IdsArg::Signed(values)) => {
            let (ids, values) = (slice(ids)?, slice(values)?);
            py.detach(|| ids::find(&pool.0, ids, values))
        }
        (IdsArg::Unsigned(ids), IdsArg::Unsigned(values)) => {
            let (ids, values) = (slice(ids)?, slice(values)?);
            py.detach(|| ids::find(&pool.0, ids, values))
        }
        _ => return Err(PyTypeError::new_err("ids and values must have the same dtype")),
    };
    Ok(places.into_pyarray(py))
}

/// Scores, iterations and the last change.
#[pyfunction]
#[pyo3(signature = (
    pool, incoming, outgoing, damping, tolerance, iterations_max, rule = "l1", start = None, teleport = None,
    dangling = None, drop_dangling = false,
))]
#[allow(clippy::too_many_arguments)]
fn network_pagerank<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    incoming: &NetworkRows,
    outgoing: Floats<'py>,
    damping: f64,
    tolerance: f64,
    iterations_max: usize,
    rule: &str,
    start: Option<Floats<'py>>,
    teleport: Option<Floats<'py>>,
    dangling: Option<Floats<'py>>,
    drop_dangling: bool,
) -> PyResult<(Array<'py, f64>, usize, f64)> {
    let options = PagerankOptions {
        damping,
        tolerance,
        iterations_max,
        rule: named(rule)?,
        start: optional(&start)?,
        teleport: optional(&teleport)?,
        dangling: optional(&dangling)?,
        drop_dangling,
    };
    let outgoing = slice(&outgoing)?;
    let found = py.detach(|| pagerank::pagerank(&pool.0, &incoming.0, outgoing, options)).map_err(refused)?;
    Ok((found.scores.into_pyarray(py), found.iterations, found.change))
}

/// Parents and levels.
#[pyfunction]
fn network_bfs<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    incoming: Option<&NetworkRows>,
    source: usize,
) -> PyResult<(Array<'py, u32>, Array<'py, i32>)> {
    let incoming = incoming.map(|rows| &rows.0);
    let tree = py.detach(|| bfs::bfs(&pool.0, &outgoing.0, incoming, source)).map_err(refused)?;
    Ok((tree.parents.into_pyarray(py), tree.levels.into_pyarray(py)))
}

/// Distances and parents.
#[pyfunction]
#[pyo3(signature = (pool, outgoing, sources, delta = None, cutoff = None))]
fn network_shortest_paths<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    sources: Nodes<'py>,
    delta: Option<f64>,
    cutoff: Option<f64>,
) -> PyResult<(Array<'py, f64>, Array<'py, u32>)> {
    let sources = slice(&sources)?;
    let tree = py.detach(|| paths::shortest_paths(&pool.0, &outgoing.0, sources, delta, cutoff)).map_err(refused)?;
    Ok((tree.distances.into_pyarray(py), tree.parents.into_pyarray(py)))
}

/// For each node, the smallest node of its connected component.
#[pyfunction]
fn network_components<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    incoming: Option<&NetworkRows>,
) -> PyResult<Array<'py, u32>> {
    let incoming = incoming.map(|rows| &rows.0);
    let labels = py.detach(|| components::components(&pool.0, &outgoing.0, incoming)).map_err(refused)?;
    Ok(labels.into_pyarray(py))
}

/// For each node, the smallest node of its strongly connected component.
#[pyfunction]
fn network_strong_components<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
) -> PyResult<Array<'py, u32>> {
    let _ = pool;
    Ok(py.detach(|| strong::strong_components(&outgoing.0)).map_err(refused)?.into_pyarray(py))
}

/// The number of triangles that each node is in.
#[pyfunction]
fn network_triangles<'py>(py: Python<'py>, pool: &KernelPool, links: &NetworkRows) -> PyResult<Array<'py, i64>> {
    Ok(py.detach(|| triangles::triangles(&pool.0, &links.0)).map_err(refused)?.into_pyarray(py))
}

/// Sums over each node's triangles of the products of their weights, or of the weights opposite to the node.
#[pyfunction]
#[pyo3(signature = (pool, links, opposite = false))]
fn network_weighted_triangles<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    links: &NetworkRows,
    opposite: bool,
) -> PyResult<Array<'py, f64>> {
    let weighing = if opposite { triangles::Weighing::Opposite } else { triangles::Weighing::Product };
    Ok(py.detach(|| triangles::weighted_triangles(&pool.0, &links.0, weighing)).map_err(refused)?.into_pyarray(py))
}

/// The links of a part's own nodes that lead up, ascending by column.
#[pyfunction]
fn network_upward(
    py: Python<'_>,
    pool: &KernelPool,
    links: &NetworkRows,
    degrees: Integers<'_>,
    numbers: Nodes<'_>,
) -> PyResult<NetworkRows> {
    let (degrees, numbers) = (slice(&degrees)?, slice(&numbers)?);
    py.detach(|| triangles::upward_part(&pool.0, &links.0, degrees, numbers)).map(NetworkRows).map_err(refused)
}

/// Lists of nodes by number, as rows of a part's columns.
#[pyfunction]
fn network_lists(
    py: Python<'_>,
    pool: &KernelPool,
    offsets: Integers<'_>,
    numbers: Nodes<'_>,
    weights: Option<Floats<'_>>,
    own: (u32, u32),
    ghosts: Nodes<'_>,
) -> PyResult<NetworkRows> {
    let (offsets, numbers, ghosts) = (slice(&offsets)?, slice(&numbers)?, slice(&ghosts)?);
    let weights = optional(&weights)?;
    py.detach(|| triangles::lists_of_part(&pool.0, offsets, numbers, weights, own.0..own.1, ghosts))
        .map(NetworkRows)
        .map_err(refused)
}

/// Adds triangles of a part to counts.
#[pyfunction]
fn network_part_triangles(
    py: Python<'_>,
    pool: &KernelPool,
    up: &NetworkRows,
    lists: &NetworkRows,
    first: usize,
    mut counts: PyReadwriteArray1<'_, i64>,
) -> PyResult<()> {
    let counts = counts.as_slice_mut()?;
    py.detach(|| triangles::part_triangles(&pool.0, &up.0, &lists.0, first, counts)).map_err(refused)
}

/// Adds what triangles of a part weigh to sums.
#[pyfunction]
#[pyo3(signature = (pool, up, lists, first, sums, opposite = false))]
fn network_part_weighted_triangles(
    py: Python<'_>,
    pool: &KernelPool,
    up: &NetworkRows,
    lists: &NetworkRows,
    first: usize,
    mut sums: PyReadwriteArray1<'_, f64>,
    opposite: bool,
) -> PyResult<()> {
    let weighing = if opposite { triangles::Weighing::Opposite } else { triangles::Weighing::Product };
    let sums = sums.as_slice_mut()?;
    py.detach(|| triangles::part_weighted_triangles(&pool.0, &up.0, &lists.0, first, weighing, sums)).map_err(refused)
}

/// For each wanted row, the sums of several values of each target.
#[pyfunction]
fn network_row_sums<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    links: &NetworkRows,
    values: Floats<'py>,
    width: usize,
    wanted: PyReadonlyArray1<'py, bool>,
) -> PyResult<Array<'py, f64>> {
    let (values, wanted) = (slice(&values)?, slice(&wanted)?);
    Ok(py.detach(|| betweenness::row_sums(&pool.0, &links.0, values, width, wanted)).map_err(refused)?.into_pyarray(py))
}

/// For each node, the sum over sources of the shares of shortest paths through it, by number of links or by weight.
#[pyfunction]
#[pyo3(signature = (pool, outgoing, sources, endpoints = false, weighted = false))]
fn network_betweenness<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    sources: Nodes<'py>,
    endpoints: bool,
    weighted: bool,
) -> PyResult<Array<'py, f64>> {
    let sources = slice(&sources)?;
    let sum = if weighted { betweenness::weighted_betweenness } else { betweenness::betweenness };
    let sums = py.detach(|| sum(&pool.0, &outgoing.0, sources, endpoints)).map_err(refused)?;
    Ok(sums.into_pyarray(py))
}

/// Core numbers.
#[pyfunction]
fn network_core_numbers<'py>(py: Python<'py>, links: &NetworkRows) -> PyResult<Array<'py, u32>> {
    Ok(py.detach(|| cores::core_numbers(&links.0)).map_err(refused)?.into_pyarray(py))
}

/// Labels, and the number of iterations.
#[pyfunction]
fn network_label_propagation<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    incoming: Option<&NetworkRows>,
    labels: Nodes<'py>,
    iterations_max: usize,
) -> PyResult<(Array<'py, u32>, usize)> {
    let (incoming, first) = (incoming.map(|rows| &rows.0), slice(&labels)?);
    let (labels, iterations) = py
        .detach(|| labels::label_propagation(&pool.0, &outgoing.0, incoming, first, iterations_max))
        .map_err(refused)?;
    Ok((labels.into_pyarray(py), iterations))
}

/// A round of label propagation on a part: labels of own nodes, and how many changed.
#[pyfunction]
#[pyo3(signature = (pool, outgoing, labels, labels_max, incoming = None, incoming_labels = None))]
fn network_label_round<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    outgoing: &NetworkRows,
    labels: Nodes<'py>,
    labels_max: usize,
    incoming: Option<&NetworkRows>,
    incoming_labels: Option<Nodes<'py>>,
) -> PyResult<(Array<'py, u32>, usize)> {
    let (labels, incoming_labels) = (slice(&labels)?, optional(&incoming_labels)?);
    let incoming = incoming.map(|rows| &rows.0).zip(incoming_labels);
    let (labels, changed) =
        py.detach(|| labels::label_round(&pool.0, (&outgoing.0, labels), incoming, labels_max)).map_err(refused)?;
    Ok((labels.into_pyarray(py), changed))
}

/// Sources and indices of the links of a spanning forest.
#[pyfunction]
#[pyo3(signature = (pool, links, maximum = false))]
fn network_spanning_forest<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    links: &NetworkRows,
    maximum: bool,
) -> PyResult<(Array<'py, u32>, Array<'py, i64>)> {
    let _ = pool;
    let (sources, places) = py
        .detach(|| {
            let places = forest::spanning_forest(&links.0, maximum)?;
            let sources: Vec<u32> = places.iter().map(|&place| links.0.source(place) as u32).collect();
            Ok((sources, places.into_iter().map(|place| place as i64).collect::<Vec<_>>()))
        })
        .map_err(refused)?;
    Ok((sources.into_pyarray(py), places.into_pyarray(py)))
}

/// The result of `network_maximum_flow`.
type Flow<'py> = (f64, Array<'py, f64>, Array<'py, bool>);

/// The value of a maximum flow, the flow on each link, and the source's side of a minimum cut.
#[pyfunction]
fn network_maximum_flow<'py>(
    py: Python<'py>,
    outgoing: &NetworkRows,
    source: usize,
    sink: usize,
) -> PyResult<Flow<'py>> {
    let flow = py.detach(|| flow::maximum_flow(&outgoing.0, source, sink)).map_err(refused)?;
    Ok((flow.value, flow.flows.into_pyarray(py), flow.source_side.into_pyarray(py)))
}

/// Communities, their modularity, and the number of levels.
#[pyfunction]
#[pyo3(signature = (pool, links, resolution = 1.0, threshold = 1e-7, seed = 0, levels_max = None, refined = false))]
#[allow(clippy::too_many_arguments)]
fn network_louvain<'py>(
    py: Python<'py>,
    pool: &KernelPool,
    links: &NetworkRows,
    resolution: f64,
    threshold: f64,
    seed: u64,
    levels_max: Option<usize>,
    refined: bool,
) -> PyResult<(Array<'py, u32>, f64, usize)> {
    let levels_max = levels_max.unwrap_or(usize::MAX);
    let options = LouvainOptions { resolution, threshold, seed, levels_max, refined };
    let found = py.detach(|| louvain(&pool.0, &links.0, options)).map_err(refused)?;
    Ok((found.labels.into_pyarray(py), found.modularity, found.levels))
}

/// The modularity of labels.
#[pyfunction]
#[pyo3(signature = (links, labels, resolution = 1.0))]
fn network_modularity(py: Python<'_>, links: &NetworkRows, labels: Nodes<'_>, resolution: f64) -> PyResult<f64> {
    let labels = slice(&labels)?;
    py.detach(|| modularity(&links.0, labels, resolution)).map_err(refused)
}

/// The part of each node, and the number of cut links.
#[pyfunction]
#[pyo3(signature = (links, parts, passes = 10, imbalance = 0.05))]
fn network_partition<'py>(
    py: Python<'py>,
    links: &NetworkRows,
    parts: usize,
    passes: usize,
    imbalance: f64,
) -> PyResult<(Array<'py, u32>, usize)> {
    let (part_of, cut) = py.detach(|| partition::partition(&links.0, parts, passes, imbalance)).map_err(refused)?;
    Ok((part_of.into_pyarray(py), cut))
}

/// The number of links between nodes of different parts.
#[pyfunction]
fn network_cut(py: Python<'_>, pool: &KernelPool, links: &NetworkRows, parts: Nodes<'_>) -> PyResult<usize> {
    let parts = slice(&parts)?;
    py.detach(|| partition::cut(&pool.0, &links.0, parts)).map_err(refused)
}

/// One value for all rows, or one per row.
#[derive(FromPyObject)]
enum BaseArg<'py> {
    Uniform(f64),
    Each(Floats<'py>),
}

impl BaseArg<'_> {
    fn scores(&self) -> PyResult<BaseScores<'_>> {
        Ok(match self {
            BaseArg::Uniform(value) => BaseScores::Uniform(*value),
            BaseArg::Each(values) => BaseScores::Each(slice(values)?),
        })
    }
}

/// One step of PageRank on the rows of a part: L1 and largest change.
#[pyfunction]
fn network_pagerank_step(
    py: Python<'_>,
    pool: &KernelPool,
    incoming: &NetworkRows,
    contributions: Floats<'_>,
    base: BaseArg<'_>,
    damping: f64,
    mut values: PyReadwriteArray1<'_, f64>,
) -> PyResult<(f64, f64)> {
    let (contributions, base, values) = (slice(&contributions)?, base.scores()?, values.as_slice_mut()?);
    let change = py
        .detach(|| pagerank::pagerank_step(&pool.0, &incoming.0, contributions, base, damping, values))
        .map_err(refused)?;
    Ok((change.l1, change.largest))
}

/// PageRank in place on the rows of a part: the number of sweeps, L1 and largest change of the last.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn network_pagerank_sweeps(
    py: Python<'_>,
    incoming: &NetworkRows,
    mut contributions: PyReadwriteArray1<'_, f64>,
    inverse: Floats<'_>,
    base: BaseArg<'_>,
    damping: f64,
    mut values: PyReadwriteArray1<'_, f64>,
    sweeps_max: usize,
    tolerance: f64,
) -> PyResult<(usize, f64, f64)> {
    let (contributions, values) = (contributions.as_slice_mut()?, values.as_slice_mut()?);
    let (inverse, base, ends) = (slice(&inverse)?, base.scores()?, (sweeps_max, tolerance));
    let (sweeps, change) = py
        .detach(|| sweeps::pagerank_sweeps(&incoming.0, contributions, inverse, base, damping, values, ends))
        .map_err(refused)?;
    Ok((sweeps, change.l1, change.largest))
}

/// Columns that were lowered, own nodes that are still active, and the number of links visited.
type LoweredArrays<'py> = (Array<'py, u32>, Array<'py, u32>, u64);

fn lowered_arrays(py: Python<'_>, lowered: Lowered) -> LoweredArrays<'_> {
    (lowered.columns.into_pyarray(py), lowered.active.into_pyarray(py), lowered.links)
}

/// Lowers distances over the links of a part.
#[pyfunction]
#[pyo3(signature = (outgoing, distances, parents, active, rounds_max = None))]
fn network_relax<'py>(
    py: Python<'py>,
    outgoing: &NetworkRows,
    mut distances: PyReadwriteArray1<'py, f64>,
    mut parents: Option<PyReadwriteArray1<'py, u32>>,
    active: Option<Nodes<'py>>,
    rounds_max: Option<usize>,
) -> PyResult<LoweredArrays<'py>> {
    let (distances, active) = (distances.as_slice_mut()?, optional(&active)?);
    let parents = parents.as_mut().map(|parents| parents.as_slice_mut()).transpose()?;
    let lowered = py.detach(|| sweeps::relax(&outgoing.0, distances, parents, active, rounds_max)).map_err(refused)?;
    Ok(lowered_arrays(py, lowered))
}

/// Lowers labels over the links of a part.
#[pyfunction]
#[pyo3(signature = (links, labels, active, sweeps_max = None))]
fn network_lower_labels<'py>(
    py: Python<'py>,
    links: &NetworkRows,
    mut labels: PyReadwriteArray1<'py, i64>,
    active: Option<Nodes<'py>>,
    sweeps_max: Option<usize>,
) -> PyResult<LoweredArrays<'py>> {
    let (labels, active) = (labels.as_slice_mut()?, optional(&active)?);
    let lowered = py.detach(|| sweeps::lower_labels(&links.0, labels, active, sweeps_max)).map_err(refused)?;
    Ok(lowered_arrays(py, lowered))
}

/// Lowers values along the links of a part, within groups.
#[pyfunction]
fn network_lower_along<'py>(
    py: Python<'py>,
    links: &NetworkRows,
    mut values: PyReadwriteArray1<'py, i64>,
    groups: Integers<'py>,
    active: Nodes<'py>,
) -> PyResult<LoweredArrays<'py>> {
    let (values, groups, active) = (values.as_slice_mut()?, slice(&groups)?, slice(&active)?);
    let lowered = py.detach(|| sweeps::lower_along(&links.0, values, groups, active)).map_err(refused)?;
    Ok(lowered_arrays(py, lowered))
}

/// Pushes residuals of PageRank over the links of a share; returns values for other shares, and own slots still active.
#[pyfunction]
#[pyo3(signature = (links, new_links, outgoing, scores, residuals, candidates, share, shares, damping, tolerance, several, rounds_max = None, weights = None))]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
fn network_push<'py>(
    py: Python<'py>,
    links: (Integers<'py>, Integers<'py>, Integers<'py>),
    new_links: (Integers<'py>, Integers<'py>),
    outgoing: Floats<'py>,
    mut scores: PyReadwriteArray1<'py, f64>,
    mut residuals: PyReadwriteArray1<'py, f64>,
    candidates: Integers<'py>,
    share: usize,
    shares: usize,
    damping: f64,
    tolerance: f64,
    several: bool,
    rounds_max: Option<usize>,
    weights: Option<(Floats<'py>, Floats<'py>)>,
) -> PyResult<(Array<'py, i64>, Array<'py, f64>, Array<'py, i64>, u64)> {
    let weights = match &weights {
        Some((old, new)) => Some((slice(old)?, slice(new)?)),
        None => None,
    };
    let links = CountedLinks {
        firsts: slice(&links.0)?,
        keys: slice(&links.1)?,
        counts: slice(&links.2)?,
        new_keys: slice(&new_links.0)?,
        new_counts: slice(&new_links.1)?,
        several,
        weights,
    };
    let options = PushOptions { share, shares, damping, tolerance, rounds_max };
    let (outgoing, candidates) = (slice(&outgoing)?, slice(&candidates)?);
    let (scores, residuals) = (scores.as_slice_mut()?, residuals.as_slice_mut()?);
    let pushed =
        py.detach(|| push_residuals(&links, outgoing, scores, residuals, candidates, &options)).map_err(refused)?;
    Ok((pushed.numbers.into_pyarray(py), pushed.values.into_pyarray(py), pushed.active.into_pyarray(py), pushed.links))
}

/// Adds these functions and classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<NetworkRows>()?;
    m.add_function(wrap_pyfunction!(network_parse, m)?)?;
    m.add_function(wrap_pyfunction!(network_ids, m)?)?;
    m.add_function(wrap_pyfunction!(network_find, m)?)?;
    m.add_function(wrap_pyfunction!(network_pagerank, m)?)?;
    m.add_function(wrap_pyfunction!(network_push, m)?)?;
    m.add_function(wrap_pyfunction!(network_bfs, m)?)?;
    m.add_function(wrap_pyfunction!(network_pagerank_step, m)?)?;
    m.add_function(wrap_pyfunction!(network_shortest_paths, m)?)?;
    m.add_function(wrap_pyfunction!(network_components, m)?)?;
    m.add_function(wrap_pyfunction!(network_strong_components, m)?)?;
    m.add_function(wrap_pyfunction!(network_triangles, m)?)?;
    m.add_function(wrap_pyfunction!(network_weighted_triangles, m)?)?;
    m.add_function(wrap_pyfunction!(network_upward, m)?)?;
    m.add_function(wrap_pyfunction!(network_lists, m)?)?;
    m.add_function(wrap_pyfunction!(network_part_triangles, m)?)?;
    m.add_function(wrap_pyfunction!(network_part_weighted_triangles, m)?)?;
    m.add_function(wrap_pyfunction!(network_row_sums, m)?)?;
    m.add_function(wrap_pyfunction!(network_betweenness, m)?)?;
    m.add_function(wrap_pyfunction!(network_core_numbers, m)?)?;
    m.add_function(wrap_pyfunction!(network_label_propagation, m)?)?;
    m.add_function(wrap_pyfunction!(network_label_round, m)?)?;
    m.add_function(wrap_pyfunction!(network_spanning_forest, m)?)?;
    m.add_function(wrap_pyfunction!(network_maximum_flow, m)?)?;
    m.add_function(wrap_pyfunction!(network_louvain, m)?)?;
    m.add_function(wrap_pyfunction!(network_modularity, m)?)?;
    m.add_function(wrap_pyfunction!(network_partition, m)?)?;
    m.add_function(wrap_pyfunction!(network_cut, m)?)?;
    m.add_function(wrap_pyfunction!(network_pagerank_sweeps, m)?)?;
    m.add_function(wrap_pyfunction!(network_relax, m)?)?;
    m.add_function(wrap_pyfunction!(network_lower_labels, m)?)?;
    m.add_function(wrap_pyfunction!(network_lower_along, m)?)?;
    Ok(())
}
