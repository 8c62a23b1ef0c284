//! One run of a job: its coordinator, its copies, the streams between them, and pending writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidemill_batch::memory::{Governor, MemorySettings};
use tidemill_batch::route_map::{BUCKETS, RouteMap};
use tidemill_checkpoint::coordinator::{
    CheckpointTiming, CoordinatedTask, Coordinator, CoordinatorAction, CoordinatorEvent, StartPoint, StoreFailure,
};
use tidemill_checkpoint::manifest::{CopyReport, ReportBody};
use tidemill_checkpoint::{Barrier, BarrierControl, DeferredPart, DeferredShared, Manifest, Rebalance, RestoredState};
use tidemill_collective::tuner::CostModel;

use super::copies::{CopyBody, Handovers, PendingWrite, SimulatedCopy, SimulatedOutlet, SimulatedOutput, StepContext};
use super::lanes::{SimulatedInputs, SimulatedLanes};
use super::{Dice, OutsideWorld, at_once};
use crate::checkpoint::CheckpointView;
use crate::checkpoint::client::{self, SnapshotChain, SplitDeal, SplitsOf};
use crate::error::TaskError;
use crate::flow::{EdgeMover, FlowGraph, PartitionerContext};
use crate::graph::{Graph, TaskBody};
use crate::overlay::WorkerNetwork;
use crate::placement::{PlacementPlan, TaskPlan};
use crate::rebalance::StateKind;
use crate::run::lower;
use crate::stream::clock::SourceClock;
use crate::task::{ContextState, TaskContext};

/// Of `MOVE_KINDS` bucket moves, on average one moves a few buckets and one moves all to one copy; the others
/// redistribute all of them.
const MOVE_KINDS: usize = 3;
const MOVED_FEW: usize = 40;

pub(super) struct SimulatedJob {
    run: String,
    coordinator: Coordinator,
    copies: Vec<SimulatedCopy>,
    lanes: SimulatedLanes,
    handovers: Handovers,
    governor: Governor,
    /// The last barrier that sources were asked for.
    barrier: Option<Barrier>,
    /// Whether a requested checkpoint has no outcome yet.
    pending: bool,
    /// Tasks whose buckets can move, with their owners and the number of copies.
    movable: Vec<(String, RouteMap, u32)>,
    /// Whether the coordinator has nothing left to do.
    coordinated: bool,
    failed: bool,
}

impl SimulatedJob {
    /// Starts a run, afresh or from the newest checkpoint.
    ///
    /// # Errors
    /// An error that keeps a copy from starting.
    pub(super) fn start(
        world: &mut OutsideWorld,
        graph: &Graph,
        copies: u32,
        dice: &mut dyn Dice,
    ) -> Result<Self, TaskError> {
        world.outcome.runs += 1;
        let run = format!("run{}", world.outcome.runs);
        let budget_bytes = if dice.once_in(2) { world.plan.budget_bytes } else { 0 };
        let from = world.durable.clone();
        world.say(|| {
            let epoch = from.as_ref().map(|from| from.epoch);
            format!("{run} begins from {epoch:?} with {copies} copies and a budget of {budget_bytes} bytes")
        });
        let governor =
            Governor::new(MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() });
        let mut flow = lowered(graph)?;
        let mut members = flow.members(&BTreeSet::new());
        if let Some(manifest) = &from {
            for member in &mut members {
                member.route = member.route_in(manifest, &BTreeSet::new());
                member.set_version_after(manifest);
            }
        }
        flow.edges.iter_mut().for_each(|edge| edge.route.clone_from(&members[edge.target.task].route));

        let mut lanes = SimulatedLanes::default();
        let (mut outputs, mut inputs) = connected(&flow, &mut lanes);
        let (mut handovers, mut movable) = (Handovers::new(), Vec::new());
        for (at, member) in (0..).zip(&members) {
            if flow.tasks[at as usize].keeps == StateKind::ByBucket
                && member.why_not_movable.is_none()
                && let Some(route) = &member.route
            {
                movable.push((member.name.clone(), RouteMap::clone(route), member.copies));
                let pairs = (0..member.copies).flat_map(|from| (0..member.copies).map(move |to| (from, to)));
                handovers.extend(pairs.map(|(from, to)| ((at, from, to), VecDeque::new())));
            }
        }
        let sinks: Vec<usize> =
            (0..graph.tasks.len()).filter(|&task| matches!(graph.tasks[task].body, TaskBody::Sink)).collect();
        world.outcome.rows.resize(sinks.len(), Vec::new());
        let mut made = Vec::new();
        let mut ended = Vec::new();
        for (at, member) in members.iter().enumerate() {
            for copy in 0..member.copies {
                let restored = from.as_deref().map(|from| read(world, from, member, (&flow, at), copy, &governor));
                let restored = restored.transpose()?.map(Arc::new);
                let epoch = restored.as_ref().map_or(0, |restored| restored.epoch);
                let has_ended = restored.as_ref().is_some_and(|restored| restored.ended);
                let is_broken = restored.as_ref().is_some_and(|restored| restored.evolved);
                let context = TaskContext(Arc::new(ContextState {
                    task: member.name.clone(),
                    copy,
                    copies: member.copies,
                    active: (0..member.copies).collect(),
                    worker: 0,
                    workers: 1,
                    comm: None,
                    governor: governor.clone(),
                    checkpoints: Some(CheckpointView { restored, at_most_once: false }),
                    states: None,
                    sources: Arc::default(),
                    works: Arc::default(),
                    clock: Arc::default(),
                }));
                let body = copy_body(graph, (&flow, at), &sinks, &context)?;
                let inputs = SimulatedInputs::new(std::mem::take(&mut inputs[at][copy as usize]));
                let outputs = std::mem::take(&mut outputs[at][copy as usize]);
                let mut one = SimulatedCopy::new((at as u32, copy), member.name.clone(), body, inputs, outputs);
                one.epoch = epoch;
                one.chain = SnapshotChain::new(is_broken);
                one.route = member.route.clone().filter(|_| handovers.contains_key(&(at as u32, copy, copy)));
                ended.extend(has_ended.then_some(made.len()));
                made.push(one);
            }
        }
        let timing =
            CheckpointTiming { interval: Duration::ZERO, unaligned_after: None, timeout: Duration::from_secs(3600) };
        let begin =
            StartPoint { newest: from.as_ref().map_or(0, |from| from.epoch), from, claim: 1, ..StartPoint::default() };
        let mut job = SimulatedJob {
            run,
            coordinator: Coordinator::new(graph.name(), members, timing, &begin),
            copies: made,
            lanes,
            handovers,
            governor,
            barrier: None,
            pending: false,
            movable,
            coordinated: false,
            failed: false,
        };
        for at in ended {
            job.with_copy(at, world, dice, SimulatedCopy::end_again)?;
        }
        Ok(job)
    }

    /// Whether nothing more will happen.
    pub(super) fn is_over(&self) -> bool {
        self.failed || self.coordinated && self.copies.iter().all(SimulatedCopy::is_over)
    }

    pub(super) fn spilled_bytes(&self) -> u64 {
        self.governor.spilled_bytes()
    }

    /// The copies that have not ended.
    pub(super) fn describe(&self) -> String {
        let open = self.copies.iter().filter(|copy| !copy.is_over());
        open.map(SimulatedCopy::describe).collect::<Vec<_>>().join("; ")
    }

    /// Performs one step of a copy, a write or the coordinator.
    ///
    /// # Errors
    /// The failure of a task, by name.
    pub(super) fn step(&mut self, world: &mut OutsideWorld, dice: &mut dyn Dice) -> Result<(), TaskError> {
        if !self.pending {
            let plan = &world.plan;
            let control = if world.fault(plan.rebalance, dice) {
                self.rebalance(dice)
            } else if world.fault(plan.stop, dice) {
                Some(BarrierControl::Stop)
            } else {
                world.fault(plan.checkpoint, dice).then_some(BarrierControl::Checkpoint)
            };
            if let Some(control) = control {
                self.pending = true;
                self.coordinate(CoordinatorEvent::Request { id: 1, control }, world, dice);
            }
        }
        let at = dice.below(self.copies.len());
        if dice.once_in(4) {
            return self.write(at, world, dice);
        }
        self.with_copy(at, world, dice, SimulatedCopy::step)
    }

    fn with_copy(
        &mut self,
        at: usize,
        world: &mut OutsideWorld,
        dice: &mut dyn Dice,
        step: impl FnOnce(&mut SimulatedCopy, &mut StepContext<'_>) -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        let copy = &mut self.copies[at];
        let mut reports = Vec::new();
        let mut with = StepContext {
            plan: &world.plan,
            lanes: &mut self.lanes,
            handovers: &mut self.handovers,
            barrier: self.barrier.as_ref(),
            reports: &mut reports,
            prepared: &mut world.prepared,
            moved_parts: &mut world.outcome.moved_parts,
            dice,
        };
        step(copy, &mut with).map_err(|error| format!("{}: {error}", copy.describe()))?;
        for report in reports {
            self.coordinate(CoordinatorEvent::Report(report), world, dice);
        }
        Ok(())
    }

    /// Completes what `CopyStates::save` and `CopyStates::end` leave pending.
    fn write(&mut self, at: usize, world: &mut OutsideWorld, dice: &mut dyn Dice) -> Result<(), TaskError> {
        let copy = &mut self.copies[at];
        let Some(PendingWrite { epoch, whole, mut snapshot, ownership }) = copy.writes.pop_front() else {
            return Ok(());
        };
        let (task, of) = copy.id;
        let mut put = Err("the snapshot before it, which it builds on, could not be written".to_owned());
        if epoch.is_none() || copy.chain.holds(whole) {
            if let Some(DeferredPart(make)) = snapshot.later.take() {
                snapshot.buckets.extend(make().map_err(|error| format!("{}: {error}", copy.describe()))?);
            }
            if let Some(DeferredShared(make)) = snapshot.later_shared.take() {
                snapshot.shared.extend(make().map_err(|error| format!("{}: {error}", copy.describe()))?);
            }
            ownership.settle(whole, &mut snapshot.buckets);
            let end = if epoch.is_none() { "-end" } else { "" };
            let file = client::state_file(&self.run, epoch.unwrap_or(copy.epoch + 1), copy.id, end);
            put = match epoch.is_some() && world.fault(world.plan.snapshot_fails, dice) {
                true => Err("it cannot be written".into()),
                false => Ok(at_once(world.store.put_state(file, client::parts(snapshot)))?),
            };
        }
        let said = match (epoch, put) {
            (Some(epoch), put) => {
                copy.chain.wrote(whole, put.is_ok());
                match put {
                    Ok(parts) => ReportBody::Saved { epoch, parts },
                    Err(reason) => ReportBody::Failed { epoch, reason },
                }
            }
            (None, put) => ReportBody::Ended { parts: put? },
        };
        self.coordinate(CoordinatorEvent::Report(CopyReport { task, copy: of, said }), world, dice);
        Ok(())
    }

    /// Acts as `CheckpointClient::coordinate`, with a store that is written to at once.
    fn coordinate(&mut self, event: CoordinatorEvent, world: &mut OutsideWorld, dice: &mut dyn Dice) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.coordinator.handle(Duration::ZERO, 0, event) {
                match action {
                    CoordinatorAction::Inject(barrier) => {
                        world.say(|| format!("  barrier {}: {}", barrier.epoch, control_name(&barrier.control)));
                        for (name, route, _) in &mut self.movable {
                            if let Some(map) = barrier.route_of(name) {
                                *route = map.clone();
                            }
                        }
                        self.barrier = Some(barrier);
                    }
                    CoordinatorAction::Store(manifest) => {
                        let epoch = manifest.epoch;
                        let result = match !manifest.finished && world.fault(world.plan.snapshot_fails, dice) {
                            true => Err(StoreFailure { reason: "it cannot be written".into(), fenced: false }),
                            false => {
                                world.say(|| format!("  checkpoint {epoch} is durable: {}", manifest.finished));
                                world.stored(*manifest);
                                Ok(())
                            }
                        };
                        self.pending = false;
                        events.push_back(CoordinatorEvent::Stored { epoch, result });
                    }
                    CoordinatorAction::Warn(why) => {
                        world.say(|| format!("  {why}"));
                        self.pending = false;
                    }
                    CoordinatorAction::Fail(why) => {
                        world.say(|| format!("  it fails: {why}"));
                        self.failed = true;
                    }
                    CoordinatorAction::Finished => self.coordinated = true,
                    CoordinatorAction::Answer { outcome: Err(why), .. } => {
                        world.say(|| format!("  refused: {why}"));
                        self.pending = false;
                    }
                    CoordinatorAction::Answer { .. }
                    | CoordinatorAction::Unalign(_)
                    | CoordinatorAction::Durable(_) => {}
                }
            }
        }
    }

    /// Chooses other owners for buckets of one of the tasks, and of others along with it.
    fn rebalance(&self, dice: &mut dyn Dice) -> Option<BarrierControl> {
        if self.movable.is_empty() {
            return None;
        }
        let first = dice.below(self.movable.len());
        let mut maps = BTreeMap::new();
        for (at, (task, route, copies)) in self.movable.iter().enumerate() {
            if at == first || dice.once_in(2) {
                maps.insert(task.clone(), moved(route, *copies, dice));
            }
        }
        Some(BarrierControl::Rebalance(Rebalance { maps, ..Rebalance::default() }))
    }
}

/// The next map of a task, with other owners.
fn moved(route: &RouteMap, copies: u32, dice: &mut dyn Dice) -> RouteMap {
    let mut one_of = |count: u32| dice.below(count as usize) as u32;
    let (kind, one) = (one_of(MOVE_KINDS as u32), one_of(copies));
    let mut owners: Vec<u32> = route.copies().collect();
    match kind {
        0 => owners.fill(one),
        1 => (0..MOVED_FEW).for_each(|_| owners[one_of(BUCKETS) as usize] = one_of(copies)),
        _ => owners.iter_mut().for_each(|owner| *owner = one_of(copies)),
    }
    RouteMap::new(route.version() + 1, owners)
}

fn control_name(control: &BarrierControl) -> String {
    match control {
        BarrierControl::Checkpoint => "checkpoint".into(),
        BarrierControl::Stop => "stop".into(),
        BarrierControl::Rebalance(rebalance) => {
            format!("buckets of {} move", rebalance.maps.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The flow of a graph on one worker.
fn lowered(graph: &Graph) -> Result<FlowGraph, TaskError> {
    let edges = graph.checked(1)?;
    let place = |task: &crate::graph::TaskSpec| TaskPlan {
        task: task.name.clone(),
        workers: vec![0; task.parallelism.copies(1) as usize],
    };
    let plan = PlacementPlan { tasks: graph.tasks.iter().map(place).collect() };
    let flow = lower(graph, &edges, &plan, &WorkerNetwork { hosts: vec![0], model: CostModel::TYPICAL });
    if flow.tasks.len() > graph.tasks.len() {
        return Err("a simulated graph cannot contain exchanges that work on rows".into());
    }
    Ok(flow)
}

/// By task, copy and port.
type ByPort<T> = Vec<Vec<Vec<T>>>;

/// The output ports of all copies with their edges, and the lanes that lead to their input ports.
fn connected(flow: &FlowGraph, lanes: &mut SimulatedLanes) -> (Vec<Vec<Vec<SimulatedOutput>>>, ByPort<Vec<usize>>) {
    let copies = |task: usize| flow.tasks[task].workers.len();
    let mut inputs: ByPort<Vec<usize>> =
        flow.tasks.iter().map(|task| vec![vec![Vec::new(); task.inputs]; task.workers.len()]).collect();
    let output = |schema: &Arc<_>| SimulatedOutput { schema: Arc::clone(schema), outlets: Vec::new() };
    let mut outputs: ByPort<SimulatedOutput> = flow
        .tasks
        .iter()
        .map(|task| task.workers.iter().map(|_| task.outputs.iter().map(output).collect()).collect())
        .collect();
    for edge in &flow.edges {
        let (source, target) = (edge.source, edge.target);
        for copy in 0..copies(source.task) {
            let all = 0..copies(target.task);
            let (targets, assign) = match &edge.mover {
                EdgeMover::Map(map) => (map[copy].into_iter().map(|to| to as usize).collect(), None),
                EdgeMover::Broadcast(_) | EdgeMover::Copies => (all.collect(), None),
                EdgeMover::Partition(partitioner) => {
                    let seat = PartitionerContext {
                        source: copy as u32,
                        targets: copies(target.task) as u32,
                        metrics: Arc::default(),
                        route: edge.route.clone(),
                    };
                    (all.collect::<Vec<usize>>(), Some(partitioner.start(&seat)))
                }
            };
            let mut to = Vec::new();
            for of in targets {
                let lane = lanes.add();
                inputs[target.task][of][target.port].push(lane);
                to.push(lane);
            }
            let outlet = SimulatedOutlet { target: flow.tasks[target.task].name.clone(), lanes: to, assign };
            outputs[source.task][copy][source.port].outlets.push(outlet);
        }
    }
    (outputs, inputs)
}

/// What a copy starts with, like `ResumePlan::read`.
fn read(
    world: &OutsideWorld,
    manifest: &Manifest,
    member: &CoordinatedTask,
    (flow, at): (&FlowGraph, usize),
    copy: u32,
    governor: &Governor,
) -> Result<RestoredState, TaskError> {
    let route = member.route.clone().unwrap_or_else(|| Arc::new(RouteMap::even(BUCKETS, member.copies)));
    let task = &flow.tasks[at];
    let splits_of = if task.keeps == StateKind::Nothing { SplitsOf::Sink } else { SplitsOf::Source };
    let named = (member.name.as_str(), splits_of);
    let all: Vec<u32> = (0..member.copies).collect();
    let (ids, deal) = ((copy, member.copies), SplitDeal { active: &all, anew: false });
    let read = client::restore(&world.store, manifest, named, ids, deal, &route, governor);
    let mut read = at_once(read)?;
    read.evolved = task.state.as_ref().zip(read.schema.as_ref()).is_some_and(|(now, then)| !now.is_same(then));
    Ok(read)
}

/// The body of a copy.
fn copy_body(
    graph: &Graph,
    (flow, at): (&FlowGraph, usize),
    sinks: &[usize],
    context: &TaskContext,
) -> Result<CopyBody, TaskError> {
    Ok(match &graph.tasks[at].body {
        TaskBody::Operator(make) => {
            let mut operator = make(context)?;
            operator.begin(context);
            CopyBody::Operator { ticks: operator.ticks().is_some(), operator }
        }
        TaskBody::Source(make, times) => {
            let schema = &flow.tasks[at].outputs[0];
            let clock = times.clone().map(|times| SourceClock::new(times, schema, context.restored()));
            CopyBody::Source { source: make(context)?, clock: clock.transpose()?.map(Box::new) }
        }
        TaskBody::Sink => {
            let number = sinks.iter().position(|&sink| sink == at).expect("it is one of them");
            CopyBody::Sink { number, rows: Vec::new() }
        }
        TaskBody::Function => return Err(format!("task \"{}\" has a loop of its own", context.task()).into()),
    })
}
