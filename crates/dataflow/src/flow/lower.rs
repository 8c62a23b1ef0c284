//! What an exchange makes its part of a [`FlowGraph`] with.

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reduction, RoundEnd, RoundUnit};

use super::{EdgeMover, EdgeReduction, FlowEdge, FlowGraph, FlowTask, TaskFactory};
use crate::overlay::{KeyedTrees, Overlay, OverlayChoice, WorkerNetwork, WorkerTree};
use crate::rebalance::StateKind;
use crate::task::Executor;

/// A port of a task of the flow: of a person's task, or of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPort {
    pub(crate) task: usize,
    pub(crate) port: usize,
}

impl FlowPort {
    pub(crate) fn is(self, task: usize, port: usize) -> bool {
        self.task == task && self.port == port
    }
}

/// An edge with its ends looked up, and what arrives at its target.
#[derive(Clone)]
pub(crate) struct CheckedEdge {
    /// Task and output port.
    pub sources: Vec<(usize, usize)>,
    /// Task and input port.
    pub target: (usize, usize),
    pub source_schemas: Vec<SchemaRef>,
    pub target_schema: SchemaRef,
    pub name: String,
    /// How it goes by rounds, if it does.
    pub rounds: Option<RoundEnd>,
    /// What is a round of what leaves the sources.
    pub round_unit: RoundUnit,
    /// It leads back, to a task that comes before its source.
    pub feedback: bool,
}

/// What an exchange is given to make its edge of: its ends, and means to add stages and movers between them.
pub struct Lowering<'a> {
    flow: &'a mut FlowGraph,
    edges: &'a [CheckedEdge],
    network: &'a WorkerNetwork,
    edge: &'a CheckedEdge,
    sources: Vec<FlowPort>,
    /// How movers added from now on go by rounds.
    rounds: Option<RoundEnd>,
    /// What is a round of what leaves the sources.
    round_unit: RoundUnit,
}

impl<'a> Lowering<'a> {
    /// The means to lower the edge numbered `at` in `edges`.
    pub(crate) fn new(
        flow: &'a mut FlowGraph,
        edges: &'a [CheckedEdge],
        at: usize,
        network: &'a WorkerNetwork,
    ) -> Self {
        let edge = &edges[at];
        let sources = edge.sources.iter().map(|&(task, port)| FlowPort { task, port }).collect();
        Lowering { flow, edges, network, edge, sources, rounds: None, round_unit: RoundUnit::Message }
    }
}

impl Lowering<'_> {
    /// The output ports the edge begins at.
    pub fn sources(&self) -> &[FlowPort] {
        &self.sources
    }

    /// Lets all movers that are added from now on go by rounds: see [`Rounds`](crate::exchange::Rounds).
    pub(crate) fn set_rounds(&mut self, end: RoundEnd, unit: RoundUnit) {
        (self.rounds, self.round_unit) = (Some(end), unit);
    }

    /// What is a round of what leaves the sources. Behind them a message is.
    pub(crate) fn round_unit(&self) -> RoundUnit {
        self.round_unit
    }

    /// How movers go by rounds that are added now.
    pub(crate) fn rounds(&self) -> Option<RoundEnd> {
        self.rounds
    }

    /// The same; those that are added from now on do not.
    pub(crate) fn take_rounds(&mut self) -> Option<RoundEnd> {
        self.rounds.take()
    }

    /// Has the edge begin behind a stage that each copy of its only source sends all to.
    pub(crate) fn begin_at(&mut self, source: FlowPort) {
        self.sources = vec![source];
    }

    /// The schemas that leave them.
    pub fn source_schemas(&self) -> &[SchemaRef] {
        &self.edge.source_schemas
    }

    /// The input port the edge leads to.
    pub fn target(&self) -> FlowPort {
        FlowPort { task: self.edge.target.0, port: self.edge.target.1 }
    }

    /// What arrives there.
    pub fn target_schema(&self) -> &SchemaRef {
        &self.edge.target_schema
    }

    /// How many workers the job has.
    pub fn workers(&self) -> u32 {
        self.network.hosts.len() as u32
    }

    /// The host of each worker.
    pub(crate) fn hosts(&self) -> &[u32] {
        &self.network.hosts
    }

    /// The workers of the copies of a port's task.
    pub fn workers_of(&self, port: FlowPort) -> &[u32] {
        &self.flow.tasks[port.task].workers
    }

    /// The overlay from `root` to `members`.
    pub fn overlay(&self, choice: OverlayChoice, root: u32, members: &[u32]) -> Overlay {
        choice.choose(root, members, self.network)
    }

    /// The overlay from `members` to `root`.
    pub fn overlay_upward(&self, choice: OverlayChoice, root: u32, members: &[u32]) -> Overlay {
        choice.choose_upward(root, members, self.network)
    }

    /// The trees of a keyed reduction between copies of these ports.
    pub(crate) fn keyed_trees(&self, choice: OverlayChoice, from: FlowPort, to: FlowPort) -> KeyedTrees {
        let (senders, targets) = (self.workers_of(from), self.workers_of(to));
        let overlay = choice.choose_keyed(senders, targets, self.network);
        KeyedTrees::new(overlay, senders, targets, &self.network.hosts)
    }

    /// A tree from `root` over `members`.
    pub fn tree(&self, overlay: Overlay, root: u32, members: &[u32]) -> WorkerTree {
        overlay.tree(root, members, &self.network.hosts)
    }

    /// Whether anybody else waits for what the tasks send that lead to source `at`, or that source itself. Then a stage
    /// must not leave it waiting for long: those tasks would stop, and what waits for them may be what the stage is
    /// waiting for. That need not be in sight from here: two joins may each hold up what the other takes first.
    pub fn has_dependents(&self, at: usize) -> bool {
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
    ) -> ExchangeStage {
        let name = format!("{label} of {}", self.edge.name);
        self.flow.tasks.push(FlowTask {
            name,
            factory,
            executor,
            comm: false,
            streaming: false,
            saves_rounds: false,
            state: None,
            keeps: StateKind::Unknown,
            inputs,
            outputs,
            workers,
        });
        ExchangeStage(self.flow.tasks.len() - 1)
    }

    /// Lets a stage, which knows barriers, save the rounds that are open when one passes.
    pub(crate) fn save_rounds(&mut self, stage: ExchangeStage) {
        self.set_streaming(stage);
        self.flow.tasks[stage.0].saves_rounds = true;
    }

    /// Says that a stage knows marks.
    pub(crate) fn set_streaming(&mut self, stage: ExchangeStage) {
        self.flow.tasks[stage.0].streaming = true;
    }

    /// Adds an edge.
    pub fn connect(&mut self, source: FlowPort, target: FlowPort, mover: EdgeMover) {
        let schema = SchemaRef::clone(&self.flow.tasks[source.task].outputs[source.port]);
        self.add_edge(source, target, schema, mover, None);
    }

    /// Adds an edge on which nothing goes but what each copy's rows come to, without keys; as an [`EdgeMover::Map`]
    /// does.
    pub fn connect_reduced(
        &mut self,
        source: FlowPort,
        target: FlowPort,
        map: Vec<Option<u32>>,
        reduction: &Reduction,
    ) {
        let schema = SchemaRef::clone(self.target_schema());
        self.add_edge(source, target, schema, EdgeMover::Map(map), Some(EdgeReduction::All(reduction.clone())));
    }

    /// The same for each message by itself: a row goes for each that a copy sends.
    pub fn connect_messages(
        &mut self,
        source: FlowPort,
        target: FlowPort,
        map: Vec<Option<u32>>,
        reduction: &Reduction,
    ) {
        let schema = SchemaRef::clone(self.target_schema());
        self.add_edge(source, target, schema, EdgeMover::Map(map), Some(EdgeReduction::Messages(reduction.clone())));
    }

    fn add_edge(
        &mut self,
        source: FlowPort,
        target: FlowPort,
        schema: SchemaRef,
        mover: EdgeMover,
        reduction: Option<EdgeReduction>,
    ) {
        // Between two ports of the graph the edge is the graph's; else it is a part, named after what it is between.
        let name = if self.sources.contains(&source) && target == self.target() {
            self.edge.name.clone()
        } else {
            format!("{} -> {}", self.flow.tasks[source.task].name, self.flow.tasks[target.task].name)
        };
        let (rounds, feedback) = (self.rounds, self.edge.feedback);
        // What stages send on are rounds; but none of those that end with barriers is counted.
        let is_first =
            self.sources.contains(&source) || matches!(self.round_unit, RoundUnit::Epoch | RoundUnit::Time(_));
        let round_unit = if is_first { self.round_unit } else { RoundUnit::Message };
        let (route, handover) = (None, false);
        self.flow.edges.push(FlowEdge {
            name,
            source,
            target,
            schema,
            mover,
            reduction,
            route,
            rounds,
            round_unit,
            feedback,
            handover,
        });
    }

    /// Lets `lower` make the edge of each source in turn, as if it were the only one.
    pub fn each_source(&mut self, lower: impl Fn(&mut Lowering<'_>)) {
        for (at, source) in self.sources.clone().into_iter().enumerate() {
            let edge = CheckedEdge {
                sources: vec![self.edge.sources[at]],
                source_schemas: vec![SchemaRef::clone(&self.edge.source_schemas[at])],
                ..self.edge.clone()
            };
            let sources = vec![source];
            let (edges, network, rounds, round_unit) = (self.edges, self.network, self.rounds, self.round_unit);
            let mut one = Lowering { flow: self.flow, edges, network, edge: &edge, sources, rounds, round_unit };
            lower(&mut one);
        }
    }

    /// Adds an edge from each copy to the copy with its number.
    pub fn connect_direct(&mut self, source: FlowPort, target: FlowPort) {
        let copies = self.workers_of(source).len() as u32;
        self.connect(source, target, EdgeMover::Map((0..copies).map(Some).collect()));
    }
}

/// A stage that an exchange has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeStage(usize);

impl ExchangeStage {
    /// One of its input ports.
    pub fn input(self, port: usize) -> FlowPort {
        FlowPort { task: self.0, port }
    }

    /// One of its output ports.
    pub fn output(self, port: usize) -> FlowPort {
        FlowPort { task: self.0, port }
    }
}
