//! The task graph, which every worker builds in the same way before anything runs.
//!
//! Tasks have named ports; an edge connects output ports to an input port and names an exchange, which determines the
//! target of each row. A graph is plain data plus the functions of its tasks. Other modules check it ([`check`]), lower
//! it to copies and movers (`run`), and print and draw it with its placement ([`crate::placement`]).

pub mod check;
pub(crate) mod fingerprint;
mod task;

use std::sync::Arc;

pub use crate::error::{GraphError, GraphErrors};
pub use crate::flow::TaskFactory;
pub use crate::task::{Executor, TaskFuture};
pub(crate) use task::TaskBody;
pub use task::{Parallelism, Resources, TaskSpec};

use crate::exchange::Exchange;

/// Names a task of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(crate) usize);

impl TaskId {
    /// One of its ports.
    pub fn port(self, name: &str) -> PortRef {
        PortRef { task: self, port: Some(name.to_owned()) }
    }
}

/// A port of a task: by name, or the only one the task has on that side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRef {
    pub(crate) task: TaskId,
    pub(crate) port: Option<String>,
}

impl From<TaskId> for PortRef {
    fn from(task: TaskId) -> Self {
        PortRef { task, port: None }
    }
}

/// An edge: from output ports, through an exchange, into an input port.
#[derive(Clone)]
pub(crate) struct GraphEdge {
    pub sources: Vec<PortRef>,
    pub target: PortRef,
    pub exchange: Arc<dyn Exchange>,
    /// Whether it leads back and so closes a loop.
    pub feedback: bool,
}

/// A graph of tasks. See the crate's example.
#[derive(Clone)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) tasks: Vec<TaskSpec>,
    pub(crate) edges: Vec<GraphEdge>,
}

impl Graph {
    /// A graph without tasks.
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), tasks: Vec::new(), edges: Vec::new() }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a task.
    pub fn add(&mut self, task: TaskSpec) -> TaskId {
        self.tasks.push(task);
        TaskId(self.tasks.len() - 1)
    }

    /// Puts another task, with the same ports, in the place of one: it has its edges.
    pub fn replace(&mut self, task: TaskId, by: TaskSpec) {
        self.tasks[task.0] = by;
    }

    /// Gives a task another number of copies.
    pub fn set_parallelism(&mut self, task: TaskId, parallelism: Parallelism) {
        self.tasks[task.0].parallelism = parallelism;
    }

    /// Sends what comes out of `source` to `target`. An output that has several edges gives each everything; an input
    /// that has several edges gets them all, in no order (a union).
    pub fn connect(
        &mut self,
        source: impl Into<PortRef>,
        target: impl Into<PortRef>,
        exchange: impl Exchange + 'static,
    ) -> &mut Self {
        self.connect_all(vec![source.into()], target, exchange)
    }

    /// Adds an edge for an exchange that takes several sources, such as a join, in the order that the exchange
    /// expects.
    pub fn connect_all(
        &mut self,
        sources: Vec<PortRef>,
        target: impl Into<PortRef>,
        exchange: impl Exchange + 'static,
    ) -> &mut Self {
        let (target, exchange) = (target.into(), Arc::new(exchange));
        self.edges.push(GraphEdge { sources, target, exchange, feedback: false });
        self
    }

    /// Sends the output of `source` back to `target`, from which it derives: a loop. All edges of a loop use
    /// [`Rounds`](crate::exchange::Rounds), and no other edge leads to the port. Tasks stay alive from round to
    /// round, and end the loop when they return.
    ///
    /// What is sent back waits at the target, however much it is: a sender that waited for a receiver which sends to
    /// it would wait forever. So a task must receive a round for each that it sends.
    pub fn feedback(
        &mut self,
        source: impl Into<PortRef>,
        target: impl Into<PortRef>,
        exchange: impl Exchange + 'static,
    ) -> &mut Self {
        let (sources, target, exchange) = (vec![source.into()], target.into(), Arc::new(exchange));
        self.edges.push(GraphEdge { sources, target, exchange, feedback: true });
        self
    }

    /// A task's name.
    pub fn task_name(&self, task: TaskId) -> &str {
        &self.tasks[task.0].name
    }

    /// Its tasks' names, in the order in which they were added.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| task.name.as_str())
    }
}
