//! Building a graph, and inspecting it before it runs.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use tidemill_dataflow::graph::Parallelism;
use tidemill_dataflow::placement::{FirstFit, Locality, Placement, RoundRobin, TaskPlan};
use tidemill_dataflow::{DataflowError, Graph, PlacementPlan, PortRef, Resources, TaskId, TaskSpec, WorkerInfo};
use tidemill_dataset::datafusion::arrow::datatypes::{Field, Schema, SchemaRef};

use crate::comm::Comm;
use crate::dataset::GivenSchema;

use super::exchange::NativeExchange;
use super::function::GraphFunction;
use super::raised;
use super::task_copy::{TaskCopies, factory};

/// A worker's host, cores, bytes of memory (0: no limit) and location.
pub type Worker = (String, f32, u64, Option<String>);
/// For each task, the worker of each copy.
pub type Planned = Vec<(String, Vec<u32>)>;

pub fn infos(workers: Vec<Worker>) -> Vec<WorkerInfo> {
    let info = |(host, cores, memory, location): Worker| {
        let memory_bytes = if memory == 0 { u64::MAX } else { memory };
        WorkerInfo { host, location, cores, memory_bytes }
    };
    workers.into_iter().map(info).collect()
}

pub fn plan(planned: Planned) -> PlacementPlan {
    PlacementPlan { tasks: planned.into_iter().map(|(task, workers)| TaskPlan { task, workers }).collect() }
}

/// The placement of copies, as given in Python.
#[derive(FromPyObject)]
pub enum PlacementSpec {
    Name(String),
    Plan(Planned),
}

impl PlacementSpec {
    fn placement(self) -> PyResult<Box<dyn Placement>> {
        Ok(match self {
            PlacementSpec::Plan(planned) => Box::new(plan(planned)),
            PlacementSpec::Name(name) => match name.as_str() {
                "round_robin" => Box::new(RoundRobin),
                "first_fit" => Box::new(FirstFit),
                "locality" => Box::new(Locality),
                other => {
                    return Err(PyValueError::new_err(format!(
                        "unknown placement={other:?}: use \"round_robin\", \"first_fit\" or \"locality\", a plan as \
                         Graph.plan() returns it, or a function of tasks and workers that makes one"
                    )));
                }
            },
        })
    }
}

/// A task graph.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeGraph {
    pub graph: Mutex<Graph>,
    pub crew: Arc<TaskCopies>,
    functions: Mutex<Vec<GraphFunction>>,
    tasks: Mutex<Vec<TaskId>>,
}

impl NativeGraph {
    fn port(&self, (task, port): (usize, String)) -> PortRef {
        self.tasks.lock()[task].port(&port)
    }
}

/// All columns are nullable, because functions need not declare which are not.
fn nullable(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema.fields().iter().map(|field| Field::clone(field).with_nullable(true)).collect();
    Arc::new(Schema::new(fields))
}

#[pymethods]
impl NativeGraph {
    #[new]
    fn new(name: String) -> Self {
        NativeGraph {
            graph: Mutex::new(Graph::new(name)),
            crew: Arc::default(),
            functions: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(functions) = self.functions.try_lock() else { return Ok(()) };
        functions.iter().try_for_each(|function| function.traverse(&visit))
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut *self.functions.lock());
        functions.iter().for_each(GraphFunction::clear);
    }

    /// Adds a task, and returns its number. `start` starts the thread of a copy; see `task_copy::factory`.
    #[pyo3(signature = (name, start, inputs, outputs, *, copies, per_worker, cores, memory_bytes, data_hosts, comm))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a private method")]
    fn add(
        &self,
        py: Python<'_>,
        name: String,
        start: Py<PyAny>,
        inputs: Vec<(String, Option<GivenSchema>)>,
        outputs: Vec<(String, GivenSchema)>,
        copies: Option<u32>,
        per_worker: u32,
        cores: f32,
        memory_bytes: u64,
        data_hosts: Vec<Vec<String>>,
        comm: bool,
    ) -> PyResult<usize> {
        let parallelism = copies.map_or(Parallelism::PerWorker(per_worker), Parallelism::Total);
        let start = GraphFunction::new(start);
        let mut task = TaskSpec::from_factory(name, factory(&start, &self.crew))
            .parallelism(parallelism)
            .resources(Resources { cores, memory_bytes, data_hosts });
        for (port, schema) in inputs {
            task = match schema {
                Some(schema) => task.input_of(&port, nullable(&schema.resolve(py)?)),
                None => task.input(&port),
            };
        }
        for (port, schema) in outputs {
            task = task.output(&port, nullable(&schema.resolve(py)?));
        }
        self.functions.lock().push(start);
        let task = self.graph.lock().add(if comm { task.with_comm() } else { task });
        let mut tasks = self.tasks.lock();
        tasks.push(task);
        Ok(tasks.len() - 1)
    }

    /// Adds an edge from ports (task, port) to a port.
    fn connect(&self, sources: Vec<(usize, String)>, target: (usize, String), exchange: &NativeExchange) {
        let sources = sources.into_iter().map(|port| self.port(port)).collect();
        let target = self.port(target);
        self.functions.lock().extend(exchange.function.clone());
        self.graph.lock().connect_all(sources, target, exchange.exchange.clone());
    }

    /// Adds a feedback edge.
    fn feedback(&self, source: (usize, String), target: (usize, String), exchange: &NativeExchange) {
        let (source, target) = (self.port(source), self.port(target));
        self.functions.lock().extend(exchange.function.clone());
        self.graph.lock().feedback(source, target, exchange.exchange.clone());
    }

    /// Raises all errors in the graph.
    fn check(&self, py: Python<'_>, workers: u32) -> PyResult<()> {
        self.graph.lock().check(workers).map_err(|errors| raised(py, &errors.into()))
    }

    fn plan(&self, py: Python<'_>, placement: PlacementSpec, workers: Vec<Worker>) -> PyResult<Planned> {
        let placement = placement.placement()?;
        let plan = self.graph.lock().plan(placement.as_ref(), &infos(workers));
        let plan = plan.map_err(|error| raised(py, &error))?;
        Ok(plan.tasks.into_iter().map(|task| (task.task, task.workers)).collect())
    }

    /// The graph as `"text"`, `"dot"` or `"svg"`, with its placement on these workers of a job.
    fn explain(
        &self,
        py: Python<'_>,
        format: &str,
        workers: Vec<Worker>,
        planned: Planned,
        comm: &Comm,
    ) -> PyResult<String> {
        let table = comm.get(py)?.table();
        let (graph, plan, infos) = (self.graph.lock(), plan(planned), infos(workers));
        let workers = infos.len() as u32;
        let text = match format {
            "text" => graph.explain(workers, Some((&plan, &infos, table.model()))),
            "dot" => graph.to_dot(workers, Some(&plan)),
            "svg" => graph.to_svg(workers, Some(&plan)),
            other => {
                return Err(PyValueError::new_err(format!(
                    "a graph can explain itself as \"text\", \"dot\" or \"svg\", not {other:?}"
                )));
            }
        };
        text.map_err(|errors| raised(py, &DataflowError::from(errors)))
    }
}
