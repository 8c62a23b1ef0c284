//! The flow: a graph lowered to executable form, with copies of tasks assigned to workers, and edges that only move
//! data.
//!
//! Every exchange becomes one or more *movers* and, if it also works on rows (a reduction, a sort, a join), *stages*:
//! tasks like a user's, placed beside the tasks they serve. So everything runs, blocks, fails and is counted in the
//! same way. Edges between copies of one process pass batches on without copying.

mod handover;
mod lower;
mod receive;
mod send;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
pub use tidemill_batch::batch_bytes;
use tidemill_batch::local::{Reduction, RoundEnd, RoundUnit};
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::StateSchema;
use tidemill_checkpoint::coordinator::CoordinatedTask;

pub(crate) use handover::{BucketHandover, Handover, HandoverPartitioner, SplitHandover};
pub(crate) use lower::CheckedEdge;
pub use lower::{ExchangeStage, FlowPort, Lowering};
pub(crate) use receive::{EdgeLimits, EdgeRuntime, Inlet, RoundReplay, unequal_rounds};
pub use receive::{Input, InputStream, Inputs, StreamElement};
pub(crate) use send::Outlet;
pub use send::{Output, Outputs, SMALL_BYTES_MAX};

use crate::overlay::Overlay;
pub use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};
use crate::rebalance::StateKind;
pub use crate::task::LongTurn;
use crate::task::{Executor, TaskContext, TaskFuture};

/// Starts one copy. Called once per copy and run.
pub type TaskFactory = Arc<dyn Fn(Inputs, Outputs, TaskContext) -> TaskFuture + Send + Sync>;

/// How an edge moves batches from the copies of one task to those of another.
#[derive(Clone)]
pub enum EdgeMover {
    /// Copy `i` sends everything to copy `map[i]`; with `None`, it sends nothing.
    Map(Vec<Option<u32>>),
    /// Every copy sends everything to all copies, along a tree of workers.
    Broadcast(Overlay),
    /// Every copy sends everything to all copies, to each one separately.
    Copies,
    /// The partitioner decides where each row goes.
    Partition(Arc<dyn Partitioner>),
}

impl EdgeMover {
    /// Whether all copies receive the same.
    pub(crate) fn is_to_all(&self) -> bool {
        matches!(self, EdgeMover::Broadcast(_) | EdgeMover::Copies)
    }
}

/// A task as it runs.
pub(crate) struct FlowTask {
    pub name: String,
    pub factory: TaskFactory,
    pub executor: Executor,
    pub comm: bool,
    /// Whether its copies handle marks.
    pub streaming: bool,
    /// Whether it assembles and keeps open rounds itself, so that barriers overtake nothing on their way to it.
    pub saves_rounds: bool,
    /// Its state, if declared.
    pub state: Option<StateSchema>,
    pub keeps: StateKind,
    pub inputs: usize,
    /// Schemas of the output ports.
    pub outputs: Vec<SchemaRef>,
    /// The worker of each copy.
    pub workers: Vec<u32>,
}

/// What a source copy reduces the data on an edge to.
#[derive(Clone)]
pub(crate) enum EdgeReduction {
    /// One row for everything, at its end.
    All(Reduction),
    /// One row for each message.
    Messages(Reduction),
}

/// An edge as it runs.
pub(crate) struct FlowEdge {
    pub name: String,
    pub source: FlowPort,
    pub target: FlowPort,
    pub schema: SchemaRef,
    pub mover: EdgeMover,
    /// The reduction at a source copy, whose result alone is sent.
    pub reduction: Option<EdgeReduction>,
    /// The map that a partition by key starts with, if not its own.
    pub route: Option<Arc<RouteMap>>,
    /// Set if a mark follows each message, and what comes between marks is a round at the target.
    pub rounds: Option<RoundEnd>,
    /// What counts as a round in what a source copy sends.
    pub round_unit: RoundUnit,
    /// Whether it is part of an edge that leads back: its senders never wait for receivers, which may be themselves.
    pub feedback: bool,
    /// Whether a task hands over buckets or splits between its copies on it; it is not one of the ports that the task
    /// knows.
    pub handover: bool,
}

impl FlowEdge {
    /// The assigner of rows to `copies`, if this edge assigns row by row.
    pub(crate) fn partitioner_of(&self, copies: u32) -> Option<Box<dyn RowAssigner>> {
        let EdgeMover::Partition(partitioner) = &self.mover else { return None };
        let seat =
            PartitionerContext { source: 0, targets: copies, metrics: Arc::default(), route: self.route.clone() };
        Some(partitioner.start(&seat))
    }
}

/// What runs.
#[derive(Default)]
pub(crate) struct FlowGraph {
    pub tasks: Vec<FlowTask>,
    pub edges: Vec<FlowEdge>,
}

impl FlowGraph {
    /// The map that distributes the rows of a task.
    ///
    /// # Errors
    /// A description, if there is no such map, so that only the task itself knows its buckets.
    pub(crate) fn route(&self, task: usize) -> Result<Arc<RouteMap>, String> {
        let mut found: Option<&Arc<RouteMap>> = None;
        for edge in self.edges.iter().filter(|edge| edge.target.task == task && !edge.handover) {
            let map = match &edge.mover {
                // Every copy receives everything, regardless of who owns which bucket.
                EdgeMover::Broadcast(_) | EdgeMover::Copies => continue,
                EdgeMover::Partition(partitioner) => edge.route.as_ref().or_else(|| partitioner.route()),
                EdgeMover::Map(_) => None,
            };
            let map = map.ok_or_else(|| format!("its input {} is not partitioned by key", edge.name))?;
            if *found.get_or_insert(map) != map {
                return Err("its inputs use different route maps".into());
            }
        }
        found.cloned().ok_or_else(|| "none of its inputs is partitioned by key".into())
    }
}

impl FlowGraph {
    /// The copies of a task that are not on these spare workers. Every task has one, since worker 0 is never spare and
    /// has the first copy of each.
    pub(crate) fn active_copies(&self, task: usize, spares: &BTreeSet<u32>) -> Vec<u32> {
        let workers = (0..).zip(&self.tasks[task].workers);
        workers.filter(|(_, worker)| !spares.contains(worker)).map(|(copy, _)| copy).collect()
    }

    /// Has the tasks whose buckets can move begin without buckets on spare workers.
    pub(crate) fn leave_out(&mut self, spares: &BTreeSet<u32>) {
        for task in 0..self.tasks.len() {
            let active = self.active_copies(task, spares);
            if active.len() == self.tasks[task].workers.len()
                || active.is_empty()
                || self.why_not_movable(task).is_some()
            {
                continue;
            }
            let Ok(route) = self.route(task) else { continue };
            let route = Arc::new(RouteMap::even_among(route.buckets(), &active));
            for edge in self.edges.iter_mut().filter(|edge| edge.target.task == task) {
                edge.route = Some(Arc::clone(&route));
            }
        }
    }

    /// Its tasks, as the coordinator of their checkpoints knows them.
    pub(crate) fn members(&self, spares: &BTreeSet<u32>) -> Vec<CoordinatedTask> {
        let member = |(at, task): (usize, &FlowTask)| CoordinatedTask {
            name: task.name.clone(),
            copies: task.workers.len() as u32,
            route: self.route(at).ok(),
            why_not_movable: self.why_not_movable(at),
            why_splits_stay: self.why_splits_stay(at),
            spares: (0..).zip(&task.workers).filter(|(_, w)| spares.contains(w)).map(|(copy, _)| copy).collect(),
            schema: task.state.clone(),
        };
        self.tasks.iter().enumerate().map(member).collect()
    }

    /// Why the buckets of a task cannot move, if they cannot.
    pub(crate) fn why_not_movable(&self, task: usize) -> Option<String> {
        match (self.route(task), self.tasks[task].keeps) {
            (Err(reason), _) => Some(reason),
            (Ok(_), StateKind::Nothing | StateKind::ByBucket) => None,
            (Ok(_), StateKind::Unknown | StateKind::Splits) => Some(
                "its operator does not say how its state can move; implement `moves`, `release` and `acquire`".into(),
            ),
        }
    }

    /// Why the splits of a task cannot move, if they cannot.
    pub(crate) fn why_splits_stay(&self, task: usize) -> Option<String> {
        let by_rounds = || self.edges.iter().find(|edge| edge.rounds.is_some());
        match (self.edges.iter().any(|edge| !edge.handover && edge.target.task == task), self.tasks[task].keeps) {
            (true, _) | (_, StateKind::Nothing | StateKind::ByBucket) => Some("it is not a source".into()),
            (false, StateKind::Unknown) => Some("sources of this kind read each split where they began to".into()),
            (false, StateKind::Splits) => {
                let edge = by_rounds()?;
                Some(format!("edge {} goes by rounds, which depend on the copy that sends a row", edge.name))
            }
        }
    }

    /// Adds the edges on which tasks hand over buckets or splits.
    pub(crate) fn add_handovers(&mut self) {
        let hands_over = |task: &usize| match self.tasks[*task].keeps {
            StateKind::ByBucket => self.route(*task).is_ok(),
            StateKind::Splits => self.why_splits_stay(*task).is_none(),
            StateKind::Unknown | StateKind::Nothing => false,
        };
        for task in (0..self.tasks.len()).filter(hands_over).collect::<Vec<_>>() {
            let FlowTask { name, inputs, outputs, keeps, .. } = &self.tasks[task];
            let is_source = *keeps == StateKind::Splits;
            self.edges.push(FlowEdge {
                name: format!("hand-over of {name}"),
                source: FlowPort { task, port: outputs.len() },
                target: FlowPort { task, port: *inputs },
                schema: if is_source { SplitHandover::schema() } else { BucketHandover::schema() },
                mover: EdgeMover::Partition(Arc::new(HandoverPartitioner)),
                reduction: None,
                route: None,
                rounds: None,
                round_unit: RoundUnit::Message,
                feedback: false,
                handover: true,
            });
        }
    }

    /// Whether what a task sends can lead back to it.
    pub(crate) fn is_in_loop(&self, task: usize) -> bool {
        if !self.edges.iter().any(|edge| edge.feedback) {
            return false;
        }
        let mut reached = vec![false; self.tasks.len()];
        let mut waiting = vec![task];
        while let Some(from) = waiting.pop() {
            for edge in self.edges.iter().filter(|edge| !edge.handover && edge.source.task == from) {
                if !std::mem::replace(&mut reached[edge.target.task], true) {
                    waiting.push(edge.target.task);
                }
            }
        }
        reached[task]
    }

    /// The edge on which a task hands over buckets or splits.
    pub(crate) fn handover(&self, task: usize) -> Option<usize> {
        self.edges.iter().position(|edge| edge.handover && edge.target.task == task)
    }
}
