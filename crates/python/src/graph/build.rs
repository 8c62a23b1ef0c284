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

use super::copy_thread::TaskCopies;
use super::exchange::NativeExchange;
use super::function::GraphFunction;
use super::message::interned;
use super::task_copy::factory;
use super::{raised, stream_copy};

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
                        "unknown placement={other:?}: use \"round_robin\", \"first_fit\", \"locality\" or \
                         \"applications\", a plan as Graph.plan() returns it, or a function of tasks and workers that \
                         makes one"
                    )));
                }
            },
        })
    }
}

/// A task without its function.
#[derive(Clone)]
struct TaskShape {
    name: String,
    inputs: Vec<(String, Option<SchemaRef>)>,
    outputs: Vec<(String, SchemaRef)>,
    parallelism: Parallelism,
    resources: Resources,
    comm: bool,
}

impl TaskShape {
    fn of(&self, task: TaskSpec) -> TaskSpec {
        let mut task = task.parallelism(self.parallelism).resources(self.resources.clone());
        for (port, schema) in &self.inputs {
            task = match schema {
                Some(schema) => task.input_of(port, Arc::clone(schema)),
                None => task.input(port),
            };
        }
        for (port, schema) in &self.outputs {
            task = task.output(port, Arc::clone(schema));
        }
        if self.comm { task.with_comm() } else { task }
    }
}

/// A task graph.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeGraph {
    pub graph: Mutex<Graph>,
    pub crew: Arc<TaskCopies>,
    functions: Mutex<Vec<GraphFunction>>,
    tasks: Mutex<Vec<TaskId>>,
    shapes: Mutex<Vec<TaskShape>>,
}

impl NativeGraph {
    /// A changed copy of the graph. Its functions belong to this graph, which lives as long: the garbage collector must
    /// see each only once.
    fn changed(&self, change: impl FnOnce(&mut Graph, &[TaskId])) -> NativeGraph {
        let (mut graph, tasks) = (self.graph.lock().clone(), self.tasks.lock().clone());
        change(&mut graph, &tasks);
        NativeGraph {
            graph: Mutex::new(graph),
            crew: Arc::clone(&self.crew),
            functions: Mutex::default(),
            tasks: Mutex::new(tasks),
            shapes: Mutex::new(self.shapes.lock().clone()),
        }
    }

    fn port(&self, (task, port): (usize, String)) -> PortRef {
        self.tasks.lock()[task].port(&port)
    }
}

/// All columns are nullable, because functions need not declare which are not.
fn nullable(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema.fields().iter().map(|field| Field::clone(field).with_nullable(true)).collect();
    interned(Arc::new(Schema::new(fields)))
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
            shapes: Mutex::default(),
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
        let inputs = inputs.into_iter().map(|(port, schema)| -> PyResult<_> {
            Ok((port, schema.map(|schema| Ok::<_, PyErr>(nullable(&schema.resolve(py)?))).transpose()?))
        });
        let inputs = inputs.collect::<PyResult<_>>()?;
        let outputs = outputs.into_iter().map(|(port, schema)| Ok((port, nullable(&schema.resolve(py)?))));
        let outputs = outputs.collect::<PyResult<_>>()?;
        let resources = Resources { cores, memory_bytes, data_hosts };
        let shape = TaskShape { name, inputs, outputs, parallelism, resources, comm };
        let task = shape.of(TaskSpec::from_factory(&shape.name, factory(&start, &self.crew)));
        self.functions.lock().push(start);
        self.shapes.lock().push(shape);
        let task = self.graph.lock().add(task);
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

    /// The same graph with other numbers of copies, given by the numbers of the tasks.
    fn resized(&self, copies: Vec<(usize, u32)>) -> NativeGraph {
        self.changed(|graph, tasks| {
            for (task, copies) in copies {
                graph.set_parallelism(tasks[task], Parallelism::Total(copies));
            }
        })
    }

    /// The same graph for a job that makes checkpoints. For each task, `starts` has the function that starts the thread
    /// of a copy, given a `NativeStreamCopy`, and whether its input (for a source, its output) uses rounds.
    fn streaming(&self, py: Python<'_>, starts: Vec<(Py<PyAny>, bool)>) -> NativeGraph {
        let shapes = self.shapes.lock().clone();
        let functions: Vec<GraphFunction> =
            starts.iter().map(|(start, _)| GraphFunction::new(start.clone_ref(py))).collect();
        let made = self.changed(|graph, tasks| {
            for (at, (shape, (_, has_rounds))) in shapes.iter().zip(&starts).enumerate() {
                let function = (functions[at].clone(), Arc::clone(&self.crew));
                let outputs = shape.outputs.iter().map(|(_, schema)| Arc::clone(schema)).collect();
                let make = if shape.inputs.is_empty() { stream_copy::source } else { stream_copy::each };
                graph.replace(tasks[at], shape.of(make(&shape.name, function, outputs, *has_rounds)));
            }
        });
        *made.functions.lock() = functions;
        made
    }

    /// The same graph with a task more, without ports, that has a copy on every worker and a communicator. `start` is
    /// as of `add`.
    fn with_service(&self, name: &str, start: Py<PyAny>) -> NativeGraph {
        let function = GraphFunction::new(start);
        let task = TaskSpec::from_factory(name, factory(&function, &self.crew)).with_comm();
        let made = self.changed(|graph, _| {
            graph.add(task);
        });
        made.functions.lock().push(function);
        made
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
