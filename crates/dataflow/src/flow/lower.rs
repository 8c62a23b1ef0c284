//! Lowering: a checked graph and its plan become a [`Flow`]. Exchanges do their own part through [`Lowering`].

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::Reduce as Reduction;

use super::{Flow, FlowEdge, FlowTask, Mover};
use crate::graph::check::CheckedEdge;
use crate::graph::{Executor, Graph, TaskFactory};
use crate::overlay::{Overlay, Tree};
use crate::placement::Plan;
use crate::rebalance::Keeps;

/// A port of a task of the flow: of a person's task, or of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub(crate) task: usize,
    pub(crate) port: usize,
}

impl Port {
    pub(crate) fn is(self, task: usize, port: usize) -> bool {
        self.task == task && self.port == port
    }
}

/// What an exchange is given to make its edge of: its ends, and means to add stages and movers between them.
pub struct Lowering<'a> {
    flow: &'a mut Flow,
    edges: &'a [CheckedEdge],
    hosts: &'a [u32],
    edge: &'a CheckedEdge,
    sources: Vec<Port>,
}

impl Lowering<'_> {
    /// The output ports the edge begins at.
    pub fn sources(&self) -> &[Port] {
        &self.sources
    }

    /// The schemas that leave them.
    pub fn source_schemas(&self) -> &[SchemaRef] {
        &self.edge.source_schemas
    }

    /// The input port the edge leads to.
    pub fn target(&self) -> Port {
        Port { task: self.edge.target.0, port: self.edge.target.1 }
    }

    /// What arrives there.
    pub fn target_schema(&self) -> &SchemaRef {
        &self.edge.target_schema
    }

    /// How many workers the job has.
    pub fn workers(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The workers of the copies of a port's task.
    pub fn workers_of(&self, port: Port) -> &[u32] {
        &self.flow.tasks[port.task].workers
    }

    /// A tree from `root` over `members`.
    pub fn tree(&self, overlay: Overlay, root: u32, members: &[u32]) -> Tree {
        overlay.tree(root, members, self.hosts)
    }

    /// Whether anybody else waits for what the tasks send that lead to source `at`, or that source itself. Then a stage
    /// must not leave it waiting for long: those tasks would stop, and what waits for them may be what the stage is
    /// waiting for. That need not be in sight from here: two joins may each hold up what the other takes first.
    pub fn others_wait_for(&self, at: usize) -> bool {
        let mut above = vec![self.edge.sources[at].0];
        let mut seen = 0;
        while let Some(&below) = above.get(seen) {
            let sources = self.edges.iter().filter(|edge| edge.target.0 == below).flat_map(|edge| &edge.sources);
            for &(task, _) in sources {
                if !above.contains(&task) {
                    above.push(task);
                }
            }
            seen += 1;
        }
        let leads_away = |edge: &CheckedEdge| {
            let is_this = edge.target == self.edge.target && edge.sources == self.edge.sources;
            let mut sources = edge.sources.iter().enumerate();
            sources.any(|(number, (task, _))| {
                above.contains(task) && !above.contains(&edge.target.0) && !(is_this && number == at)
            })
        };
        self.edges.iter().any(leads_away)
    }

    /// Adds a task of the exchange's own whose copies run on `workers`; `label` tells people what it does.
    pub fn stage(
        &mut self,
        label: &str,
        workers: Vec<u32>,
        inputs: usize,
        outputs: Vec<SchemaRef>,
        executor: Executor,
        factory: TaskFactory,
    ) -> Stage {
        let name = format!("{label} of {}", self.edge.name);
        self.flow.tasks.push(FlowTask {
            name,
            factory,
            executor,
            comm: false,
            streaming: false,
            state: None,
            keeps: Keeps::Unknown,
            inputs,
            outputs,
            workers,
        });
        Stage(self.flow.tasks.len() - 1)
    }

    /// Adds an edge.
    pub fn connect(&mut self, source: Port, target: Port, mover: Mover) {
        let schema = SchemaRef::clone(&self.flow.tasks[source.task].outputs[source.port]);
        self.add_edge(source, target, schema, mover, None);
    }

    /// Adds an edge on which nothing goes but what each copy's rows come to, without keys; as a [`Mover::Map`] does.
    pub fn connect_reduced(&mut self, source: Port, target: Port, map: Vec<Option<u32>>, reduction: &Reduction) {
        let schema = SchemaRef::clone(self.target_schema());
        self.add_edge(source, target, schema, Mover::Map(map), Some(reduction.clone()));
    }

    fn add_edge(&mut self, source: Port, target: Port, schema: SchemaRef, mover: Mover, reduction: Option<Reduction>) {
        // Between two ports of the graph the edge is the graph's; else it is a part, named after what it is between.
        let name = if self.sources.contains(&source) && target == self.target() {
            self.edge.name.clone()
        } else {
            format!("{} -> {}", self.flow.tasks[source.task].name, self.flow.tasks[target.task].name)
        };
        self.flow.edges.push(FlowEdge { name, source, target, schema, mover, reduction, route: None, handover: false });
    }

    /// Lets `lower` make the edge of each source in turn, as if it were the only one.
    pub fn each_source(&mut self, lower: impl Fn(&mut Lowering<'_>)) {
        for (at, source) in self.sources.clone().into_iter().enumerate() {
            let edge = CheckedEdge {
                sources: vec![self.edge.sources[at]],
                source_schemas: vec![SchemaRef::clone(&self.edge.source_schemas[at])],
                ..self.edge.clone()
            };
            let mut one =
                Lowering { flow: self.flow, edges: self.edges, hosts: self.hosts, edge: &edge, sources: vec![source] };
            lower(&mut one);
        }
    }

    /// Adds an edge from each copy to the copy with its number.
    pub fn connect_direct(&mut self, source: Port, target: Port) {
        let copies = self.workers_of(source).len() as u32;
        self.connect(source, target, Mover::Map((0..copies).map(Some).collect()));
    }
}

/// A stage that an exchange has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(usize);

impl Stage {
    /// One of its input ports.
    pub fn input(self, port: usize) -> Port {
        Port { task: self.0, port }
    }

    /// One of its output ports.
    pub fn output(self, port: usize) -> Port {
        Port { task: self.0, port }
    }
}

/// Makes what runs. The first tasks of the flow are the graph's, with their numbers.
pub(crate) fn lower(graph: &Graph, edges: &[CheckedEdge], plan: &Plan, hosts: &[u32]) -> Flow {
    let mut flow = Flow::default();
    for (index, task) in graph.tasks.iter().enumerate() {
        flow.tasks.push(FlowTask {
            name: task.name.clone(),
            factory: Arc::clone(&task.factory),
            executor: task.executor,
            comm: task.comm,
            streaming: task.streaming,
            state: task.state.clone(),
            keeps: task.keeps,
            inputs: task.inputs.len(),
            outputs: task.outputs.iter().map(|port| SchemaRef::clone(&port.schema)).collect(),
            workers: plan.workers_of(index).to_vec(),
        });
    }
    for (checked, edge) in edges.iter().zip(&graph.edges) {
        let sources = checked.sources.iter().map(|&(task, port)| Port { task, port }).collect();
        edge.exchange.lower(&mut Lowering { flow: &mut flow, edges, hosts, edge: checked, sources });
    }
    flow
}
