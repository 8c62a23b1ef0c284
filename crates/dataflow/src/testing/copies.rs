//! Copies of tasks, run step by step as the drivers do (`stream::source`, `operator`, `stream::sink`,
//! `run::task_copy`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::schema::fits;
use tidemill_checkpoint::manifest::{CopyReport, ReportBody};
use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark, MoveReport, Snapshot};

use super::lanes::{InputEvent, LanePacket, SimulatedInputs, SimulatedLanes};
use super::{Dice, StoryPlan};
use crate::checkpoint::client::SnapshotChain;
use crate::error::TaskError;
use crate::operator::{EmitStatus, Emitter, Operator, ReleasedParts};
use crate::partitioner::{RowAssigner, RowAssignment};
use crate::rebalance::{BucketOwnership, Moves};
use crate::stream::clock::SourceClock;
use crate::stream::source::{Source, SourceEvent};

/// How much usually waits in a stream before its sender waits.
const LANE_MAX: usize = 6;
/// A sender whose streams hold more than that continues one time in this many: a receiver that waits for two streams
/// of one sender may be waiting for the one that is not full.
const IMPATIENCE: usize = 8;
/// The most parts of buckets that go to another copy at once.
const BLOCK_PARTS_MAX: usize = 4;

/// A copy's end of an edge.
pub(super) struct SimulatedOutlet {
    /// The task that it leads to.
    pub target: String,
    /// The lane to each of its copies that it reaches; all receive marks.
    pub lanes: Vec<usize>,
    /// What assigns rows to them; `None`: all receive everything.
    pub assign: Option<Box<dyn RowAssigner>>,
}

impl SimulatedOutlet {
    fn send(&mut self, rows: &RecordBatch, lanes: &mut SimulatedLanes) -> Result<(), TaskError> {
        let Some(assign) = &mut self.assign else {
            self.lanes.iter().for_each(|&lane| lanes.push(lane, LanePacket::Batch(rows.clone())));
            return Ok(());
        };
        let mut targets = Vec::new();
        let assignment = match assign.assign_unseen() {
            Some(target) => RowAssignment::Whole(target),
            None => assign.assign(rows, &mut targets)?,
        };
        if let RowAssignment::Whole(target) = assignment {
            lanes.push(self.lanes[target as usize], LanePacket::Batch(rows.clone()));
            return Ok(());
        }
        for (target, &lane) in (0..).zip(&self.lanes) {
            let mine: UInt32Array = (0..).zip(&targets).filter(|(_, of)| **of == target).map(|(row, _)| row).collect();
            if !mine.is_empty() {
                lanes.push(lane, LanePacket::Batch(take_record_batch(rows, &mine)?));
            }
        }
        Ok(())
    }

    fn mark(&mut self, mark: &Mark, lanes: &mut SimulatedLanes) {
        self.lanes.iter().for_each(|&lane| lanes.push(lane, LanePacket::Mark(mark.clone())));
        if let (Some(assign), Mark::Barrier(barrier)) = (&mut self.assign, mark)
            && let Some(map) = barrier.route_of(&self.target)
        {
            assign.reroute(&Arc::new(map.clone()));
        }
    }
}

/// An output port.
pub(super) struct SimulatedOutput {
    pub schema: SchemaRef,
    pub outlets: Vec<SimulatedOutlet>,
}

/// What copies of a task hand over to each other.
pub(super) enum HandoverPacket {
    Parts(Vec<(u32, Bytes)>),
    /// The end of the hand-over at a barrier, or at the copy's end.
    Over,
}

/// The streams of a task's handover edge, from one copy to another.
pub(super) type Handovers = BTreeMap<(u32, u32, u32), VecDeque<HandoverPacket>>;

/// What a copy is writing, or will write.
pub(super) struct PendingWrite {
    /// `None`: its state at its end.
    pub epoch: Option<u64>,
    pub whole: bool,
    pub snapshot: Snapshot,
    pub ownership: BucketOwnership,
}

/// The body of a copy.
pub(super) enum CopyBody {
    Source { source: Box<dyn Source>, clock: Option<Box<SourceClock>> },
    Operator { operator: Box<dyn Operator>, ticks: bool },
    Sink { number: usize, rows: Vec<RecordBatch> },
}

/// The phase of a copy.
enum CopyPhase {
    Running,
    Moving(CopyMove),
    Over,
}

/// A copy hands over what it loses at a barrier, and takes what it gains, like `BucketHandover::run`.
struct CopyMove {
    epoch: u64,
    map: RouteMap,
    moves: Moves,
    outgoing: VecDeque<(u32, Vec<u32>)>,
    sending: Option<(u32, ReleasedParts)>,
    awaited: BTreeSet<u32>,
}

/// The environment of a step.
pub(super) struct StepContext<'a> {
    pub plan: &'a StoryPlan,
    pub lanes: &'a mut SimulatedLanes,
    pub handovers: &'a mut Handovers,
    /// The last barrier that sources were asked for.
    pub barrier: Option<&'a Barrier>,
    pub reports: &'a mut Vec<CopyReport>,
    /// Rows of sinks, by epoch.
    pub prepared: &'a mut BTreeMap<u64, Vec<(usize, RecordBatch)>>,
    pub moved_parts: &'a mut usize,
    pub dice: &'a mut dyn Dice,
}

/// The copy that the module describes.
pub(super) struct SimulatedCopy {
    /// Task and copy.
    pub id: (u32, u32),
    pub task: String,
    /// The last epoch that was saved, or from which the copy resumed.
    pub epoch: u64,
    pub chain: SnapshotChain,
    pub ownership: BucketOwnership,
    /// The owners of buckets, if buckets can move.
    pub route: Option<Arc<RouteMap>>,
    pub inputs: SimulatedInputs,
    pub outputs: Vec<SimulatedOutput>,
    pub body: CopyBody,
    pub writes: VecDeque<PendingWrite>,
    phase: CopyPhase,
}

impl SimulatedCopy {
    pub(super) fn new(
        id: (u32, u32),
        task: String,
        body: CopyBody,
        inputs: SimulatedInputs,
        outputs: Vec<SimulatedOutput>,
    ) -> Self {
        SimulatedCopy {
            id,
            task,
            epoch: 0,
            chain: SnapshotChain::new(false),
            ownership: BucketOwnership::default(),
            route: None,
            inputs,
            outputs,
            body,
            writes: VecDeque::new(),
            phase: CopyPhase::Running,
        }
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, CopyPhase::Over)
    }

    pub(super) fn describe(&self) -> String {
        let phase = match &self.phase {
            CopyPhase::Running => "runs",
            CopyPhase::Moving(_) => "moves buckets",
            CopyPhase::Over => "is over",
        };
        format!("\"{}\", copy {}, {phase} behind epoch {}", self.task, self.id.1, self.epoch)
    }

    /// Performs the next step, if there is one.
    ///
    /// # Errors
    /// An error that fails the task.
    pub(super) fn step(&mut self, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        match &mut self.phase {
            CopyPhase::Over => Ok(()),
            CopyPhase::Moving(_) => self.step_moving(with),
            CopyPhase::Running => {
                let outlets = self.outputs.iter().flat_map(|output| &output.outlets);
                let is_full = outlets.flat_map(|outlet| &outlet.lanes).any(|&lane| with.lanes.len(lane) >= LANE_MAX);
                if is_full && !with.dice.once_in(IMPATIENCE) {
                    return Ok(());
                }
                match &self.body {
                    CopyBody::Source { .. } => self.step_source(with),
                    CopyBody::Operator { .. } => self.step_operator(with),
                    CopyBody::Sink { .. } => {
                        self.step_sink(with);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Repeats the end of a copy that had already ended in the checkpoint from which the job resumes.
    pub(super) fn end_again(&mut self, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        let kept = match &mut self.body {
            CopyBody::Source { source, clock } => source_snapshot(source.as_mut(), clock.as_deref())?,
            CopyBody::Operator { .. } | CopyBody::Sink { .. } => Snapshot::default(),
        };
        self.end(kept, with);
        Ok(())
    }

    fn send(&mut self, port: usize, rows: &RecordBatch, lanes: &mut SimulatedLanes) -> Result<(), TaskError> {
        let output = &mut self.outputs[port];
        fits(rows.schema_ref(), &output.schema).map_err(|reason| format!("output port {port}: {reason}"))?;
        if rows.num_rows() > 0 {
            output.outlets.iter_mut().try_for_each(|outlet| outlet.send(rows, lanes))?;
        }
        Ok(())
    }

    fn mark(&mut self, mark: &Mark, lanes: &mut SimulatedLanes) {
        self.outputs.iter_mut().flat_map(|output| &mut output.outlets).for_each(|outlet| outlet.mark(mark, lanes));
    }

    fn save(&mut self, epoch: u64, whole: bool, snapshot: Snapshot) {
        self.epoch = epoch;
        let ownership = self.ownership.at_snapshot();
        self.writes.push_back(PendingWrite { epoch: Some(epoch), whole, snapshot, ownership });
    }

    /// Ends the copy.
    fn end(&mut self, kept: Snapshot, with: &mut StepContext<'_>) {
        for &lane in self.outputs.iter().flat_map(|output| &output.outlets).flat_map(|outlet| &outlet.lanes) {
            with.lanes.push(lane, LanePacket::End);
        }
        let (task, copy) = self.id;
        for (_, lane) in with.handovers.iter_mut().filter(|((of, from, _), _)| (*of, *from) == (task, copy)) {
            lane.push_back(HandoverPacket::Over);
        }
        let ownership = self.ownership.clone();
        self.writes.push_back(PendingWrite { epoch: None, whole: false, snapshot: kept, ownership });
        self.phase = CopyPhase::Over;
    }

    fn step_source(&mut self, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        let CopyBody::Source { source, clock } = &mut self.body else { unreachable!("asked of sources") };
        if let Some(barrier) = with.barrier.filter(|barrier| barrier.epoch > self.epoch)
            && with.dice.once_in(2)
        {
            source.barrier(barrier.epoch);
            let snapshot = source_snapshot(source.as_mut(), clock.as_deref())?;
            self.save(barrier.epoch, true, snapshot);
            self.mark(&Mark::Barrier(barrier.clone()), with.lanes);
            if barrier.control == BarrierControl::Stop {
                self.end(Snapshot::default(), with);
            }
            return Ok(());
        }
        let Poll::Ready(event) = source.poll_next(&mut Context::from_waker(Waker::noop())) else { return Ok(()) };
        match (event?, &mut *clock) {
            (SourceEvent::Rows { split, rows, .. }, clock) => {
                let rows = match clock {
                    Some(clock) => clock.rows(split, rows)?,
                    None => rows,
                };
                self.send(0, &rows, with.lanes)?;
            }
            (SourceEvent::SplitEnded { split }, Some(clock)) => clock.end_split(split),
            (SourceEvent::End, clock) => {
                let latest = clock.as_deref().map(SourceClock::latest).filter(|&latest| latest > EventTime::MIN);
                let kept = source_snapshot(source.as_mut(), clock.as_deref())?;
                if let Some(latest) = latest {
                    self.mark(&Mark::Watermark(latest), with.lanes);
                }
                self.end(kept, with);
                return Ok(());
            }
            (SourceEvent::SplitEnded { .. } | SourceEvent::Idle { .. }, _) => {}
        }
        // Time is announced now and then.
        if let CopyBody::Source { clock: Some(clock), .. } = &mut self.body
            && with.dice.once_in(2)
        {
            for mark in clock.next_marks(Instant::now(), true) {
                self.mark(&mark, with.lanes);
            }
        }
        Ok(())
    }

    /// Calls the operator, and sends what it emits until it has nothing more.
    fn call(
        &mut self,
        lanes: &mut SimulatedLanes,
        function: impl FnOnce(&mut dyn Operator, &mut Emitter) -> Result<EmitStatus, TaskError>,
    ) -> Result<(), TaskError> {
        let mut emit = Emitter::default();
        let mut flow = function(self.operator(), &mut emit)?;
        loop {
            for (port, rows) in emit.take().collect::<Vec<_>>() {
                self.send(port, &rows, lanes)?;
            }
            if flow == EmitStatus::Done {
                return Ok(());
            }
            flow = self.operator().more(&mut emit)?;
        }
    }

    fn operator(&mut self) -> &mut dyn Operator {
        let CopyBody::Operator { operator, .. } = &mut self.body else { unreachable!("asked of operators") };
        operator.as_mut()
    }

    fn step_operator(&mut self, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        let CopyBody::Operator { operator, ticks } = &mut self.body else { unreachable!("asked of operators") };
        if *ticks && with.dice.once_in(with.plan.tick) {
            return self.call(with.lanes, |operator, emit| operator.on_tick(emit));
        }
        let wanted: Vec<bool> = (0..self.inputs.len()).map(|port| operator.wants(port)).collect();
        match self.inputs.recv(with.lanes, |port| wanted[port], with.dice) {
            None => return Ok(()),
            Some(InputEvent::Batch(port, rows)) => {
                self.call(with.lanes, |operator, emit| operator.on_batch(port, rows, emit))?;
            }
            Some(InputEvent::Mark(mark)) => return self.on_mark(mark, with),
            Some(InputEvent::PortEnd(port)) => {
                self.call(with.lanes, |operator, emit| operator.on_input_end(port, emit))?;
            }
        }
        if self.inputs.is_over() {
            self.call(with.lanes, |operator, emit| operator.on_end(emit))?;
            self.end(Snapshot::default(), with);
        }
        Ok(())
    }

    fn on_mark(&mut self, mark: Mark, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        match &mark {
            Mark::Watermark(EventTime::MIN) => {}
            Mark::Watermark(time) => self.call(with.lanes, |operator, emit| operator.on_watermark(*time, emit))?,
            Mark::Idle => self.call(with.lanes, |operator, emit| operator.on_idle(emit))?,
            Mark::Barrier(barrier) => {
                self.call(with.lanes, |operator, emit| operator.before_barrier(emit))?;
                let whole = self.chain.is_broken() || self.ownership.wants_whole();
                let snapshot = self.operator().snapshot(whole)?;
                self.save(barrier.epoch, whole, snapshot);
            }
        }
        self.mark(&mark, with.lanes);
        let Mark::Barrier(barrier) = mark else { return Ok(()) };
        if barrier.control == BarrierControl::Stop {
            self.end(Snapshot::default(), with);
        } else if let (Some(route), Some(map)) = (&self.route, barrier.route_of(&self.task)) {
            let moves = Moves::of(self.id.1, route, map);
            let awaited = moves.gained.keys().copied().collect();
            let outgoing = moves.lost.iter().map(|(&to, buckets)| (to, buckets.clone())).collect();
            let (epoch, map) = (barrier.epoch, map.clone());
            self.phase = CopyPhase::Moving(CopyMove { epoch, map, moves, outgoing, sending: None, awaited });
        }
        Ok(())
    }

    /// Hands over one item, or takes one.
    fn step_moving(&mut self, with: &mut StepContext<'_>) -> Result<(), TaskError> {
        let CopyPhase::Moving(mut moving) = std::mem::replace(&mut self.phase, CopyPhase::Running) else {
            unreachable!("asked while buckets move")
        };
        let (task, me) = self.id;
        if moving.sending.is_none()
            && let Some((to, buckets)) = moving.outgoing.pop_front()
        {
            moving.sending = Some((to, self.operator().release(&buckets)?));
        }
        if with.dice.once_in(2)
            && let Some((to, mut parts)) = moving.sending.take()
        {
            let most = 1 + with.dice.below(BLOCK_PARTS_MAX);
            let some = parts.by_ref().take(most).collect::<Result<Vec<_>, _>>()?;
            let lane = with.handovers.get_mut(&(task, me, to)).expect("each copy has a stream to each");
            *with.moved_parts += some.len();
            if some.is_empty() {
                lane.push_back(HandoverPacket::Over);
            } else {
                lane.push_back(HandoverPacket::Parts(some));
                moving.sending = Some((to, parts));
            }
        } else if !moving.awaited.is_empty() {
            let from = *moving.awaited.iter().nth(with.dice.below(moving.awaited.len())).expect("one of them");
            match with.handovers.get_mut(&(task, from, me)).and_then(VecDeque::pop_front) {
                None => {}
                Some(HandoverPacket::Parts(parts)) => self.operator().acquire(parts)?,
                Some(HandoverPacket::Over) => {
                    moving.awaited.remove(&from);
                }
            }
        }
        if !moving.outgoing.is_empty() || moving.sending.is_some() || !moving.awaited.is_empty() {
            self.phase = CopyPhase::Moving(moving);
            return Ok(());
        }
        self.route = Some(Arc::new(moving.map));
        self.ownership.moved(&moving.moves);
        let said = ReportBody::Moved(MoveReport { epoch: moving.epoch, ..MoveReport::default() });
        with.reports.push(CopyReport { task, copy: me, said });
        Ok(())
    }

    fn step_sink(&mut self, with: &mut StepContext<'_>) {
        let CopyBody::Sink { number, rows } = &mut self.body else { unreachable!("asked of sinks") };
        let mut prepare = |epoch: u64, rows: &mut Vec<RecordBatch>| {
            with.prepared.entry(epoch).or_default().extend(rows.drain(..).map(|rows| (*number, rows)));
        };
        match self.inputs.recv(with.lanes, |_| true, with.dice) {
            Some(InputEvent::Batch(_, batch)) => rows.push(batch),
            Some(InputEvent::Mark(Mark::Barrier(barrier))) => {
                prepare(barrier.epoch, rows);
                self.save(barrier.epoch, true, Snapshot::default());
                if barrier.control == BarrierControl::Stop {
                    self.end(Snapshot::default(), with);
                }
            }
            Some(InputEvent::PortEnd(_)) if self.inputs.is_over() => {
                prepare(self.epoch + 1, rows);
                self.end(Snapshot::default(), with);
            }
            Some(InputEvent::Mark(_) | InputEvent::PortEnd(_)) | None => {}
        }
    }
}

fn source_snapshot(source: &mut dyn Source, clock: Option<&SourceClock>) -> Result<Snapshot, TaskError> {
    let mut shared = source.shared()?;
    shared.extend(clock.and_then(SourceClock::shared));
    Ok(Snapshot { splits: source.snapshot()?, shared, ..Snapshot::default() })
}
