//! The operator of a function that all copies enter together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::operator::{EmitStatus, OutputTime, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::row_turns::{RowTurn, RowTurns};
use super::turns::{Moment, Turn, Turns, WindowEnds};
use super::{BspExec, BspFunction, BspSetup, BspWindow, CallOutput, CallSpan, OnBusy};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateCount;
use crate::state::expiring_rows::{ExpiringRows, KeptState};
use crate::state::groups::batch;
use crate::state::operator_memory::{OperatorMemory, SpillableState};
use crate::state::state_layout::{StateLayout, fired_of, shared, time_of};
use crate::time::times::TimeColumn;
use crate::time::window::{Micros, WindowKind};
use crate::time::window_assigner::WindowAssigner;

/// Minimum number of rows that no window needs before they are removed; they must also be half of all rows.
const CLEAR_MIN: usize = 1 << 13;
/// How often a copy that is ahead and has no new input checks whether the others have caught up.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a copy accepts input that arrived while its function was busy, before it checks which windows have ended.
const REST_TIME: Duration = Duration::from_millis(50);
/// The names of the function's state, and of its timer, among what copies share in checkpoints.
const FUNCTION: &str = "function";
const TIMER: &str = "timer";

/// The configuration of a query, the same on all workers.
pub(crate) struct BspShape {
    pub exec: BspExec,
    pub keyed: Arc<KeyedRows>,
    /// The schema of the rows, before keys were added.
    pub rows: SchemaRef,
    /// How far rows may lie behind the watermark.
    pub behind: Micros,
    /// Their time column, if they are called for a number of rows and their latest time is that of the results.
    pub row_time: Option<TimeColumn>,
    pub late: LateCount,
}

impl BspShape {
    /// The task's state.
    pub(crate) fn state(&self) -> Result<StateSchema> {
        let windows = match (&self.exec.query.window, self.assigner()?) {
            (BspWindow::Rows(size), _) => format!("windows of {size} rows of all copies"),
            (_, Some(windows)) => windows.described(),
            (_, None) => "epochs".into(),
        };
        Ok(StateSchema::new(format!("rows of {windows}"), self.layout().fields().collect()))
    }

    fn layout(&self) -> StateLayout {
        self.keyed.layout(&self.rows, "")
    }

    fn assigner(&self) -> Result<Option<WindowAssigner>> {
        let BspWindow::Time { rule, .. } = &self.exec.query.window else { return Ok(None) };
        Ok(Some(match rule.kind.clone() {
            WindowKind::Calendar(calendar) => {
                WindowAssigner::calendar(calendar).map_err(datafusion::error::DataFusionError::from)?
            }
            WindowKind::Sliding { size, slide } => WindowAssigner::sliding(size, slide),
            kind => return datafusion::common::internal_err!("windows {kind:?} of bsp"),
        }))
    }
}

/// The rows of a pane.
#[derive(Default)]
pub(super) struct PaneRows {
    pub count: usize,
    /// They were in a call.
    called: bool,
}

/// The windows that contain panes, or a timer.
pub(super) struct PaneWindows<'a> {
    pub panes: &'a BTreeMap<Micros, PaneRows>,
    pub timer: Option<Micros>,
    /// `None`: epochs instead of windows.
    pub windows: Option<&'a WindowAssigner>,
}

impl PaneWindows<'_> {
    /// The ends of the windows that contain a pane, the last first.
    fn ends(&self, pane: Micros) -> impl Iterator<Item = Micros> {
        let windows = self.windows.map(|windows| windows.windows(pane).map(|start| windows.end(start)));
        windows.into_iter().flatten()
    }
}

impl WindowEnds for PaneWindows<'_> {
    fn first_after(&self, time: Micros) -> Micros {
        let first = |&pane: &Micros| self.ends(pane).take_while(|&end| end > time).last();
        self.panes.keys().find_map(first).unwrap_or(Micros::MAX)
    }

    fn timer_after(&self, time: Micros) -> Micros {
        let end = |(timer, windows): (Micros, &WindowAssigner)| windows.first_end_after(timer.max(time));
        self.timer.zip(self.windows).map_or(Micros::MAX, end)
    }

    fn last_by(&self, time: Micros) -> Micros {
        let last = |&pane: &Micros| self.ends(pane).find(|&end| end <= time);
        self.panes.keys().rev().find_map(last).unwrap_or(Micros::MIN)
    }
}

/// The task of a BSP function.
pub(crate) struct BspTask {
    shape: Arc<BspShape>,
    function: Box<dyn BspFunction>,
    turns: Turns,
    /// For calls for a number of rows.
    row_turns: Option<RowTurns>,
    /// When the function wants to be called though there are no rows.
    timer: Option<Micros>,
    moment: Moment,
    /// No row that comes, if it is not late, has an earlier time.
    reached: Micros,
    state: KeptState,
    /// The panes that a window needs, by their start.
    panes: BTreeMap<Micros, PaneRows>,
    /// Until then, the copy only accepts input that arrived while the function was busy.
    rests_until: Option<Instant>,
    /// While a call is pending: what had been called by then. Its results have no earlier time.
    pending_since: Option<Micros>,
    /// All calls have been made, and what remains is to finish.
    finishes: bool,
    held: OperatorMemory,
}

impl BspTask {
    pub(crate) fn new(shape: &Arc<BspShape>, context: &TaskContext) -> Result<Self, TaskError> {
        let comm = context.comm().ok_or("a function of copies runs without a communicator")?;
        let restored = context.restored();
        let states = restored.iter().flat_map(|restored| restored.shared_by.values());
        let states = states.filter_map(|shared| shared.get(FUNCTION).cloned()).collect();
        let function = (shape.exec.query.function)(&BspSetup { context, comm, restored: states })?;
        // Every copy may have the first: it is what they agree on, and the call sets them anew.
        let timers = restored.iter().flat_map(|restored| restored.shared.get(TIMER)).flatten();
        let timer = timers.map(time_of).collect::<Result<Vec<_>, _>>()?.into_iter().min();
        let held = OperatorMemory::new(context);
        let kept = ExpiringRows::new(Arc::clone(&shape.keyed.schema), held.disk());
        let called = restored.map_or(Ok(Micros::MIN), fired_of)?;
        let row_turns = match shape.exec.query.window {
            BspWindow::Rows(size) => Some(RowTurns::new(comm.clone(), size, called)),
            BspWindow::Epochs | BspWindow::Time { .. } => None,
        };
        let mut new = BspTask {
            shape: Arc::clone(shape),
            function,
            turns: Turns::new(comm.clone(), shape.assigner()?, called, shape.exec.query.on_busy),
            row_turns,
            timer,
            moment: Moment::Time,
            reached: Micros::MIN,
            state: KeptState::new(kept, shape.keyed.keys()),
            panes: BTreeMap::new(),
            rests_until: None,
            pending_since: None,
            finishes: false,
            held,
        };
        if let Some(restored) = restored {
            let reader = shape.layout().reader(&shape.keyed.schema, restored)?;
            for (_, table) in new.state.restore(restored)? {
                let rows = reader.read(&table)?;
                let count = rows.num_rows();
                // Rows of windows that were already called may not have been removed.
                new.keep(rows, called)?;
                new.weigh(count)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// Stores the rows of windows that end after a time. Returns the number of other rows.
    fn keep(&mut self, rows: RecordBatch, too_late: Micros) -> Result<usize, TaskError> {
        let (Some(windows), BspWindow::Time { column, .. }) = (self.turns.windows(), &self.shape.exec.query.window)
        else {
            let times = match &self.shape.row_time {
                // Rows without a time hold back nobody.
                Some(column) => column.values(&rows)?.iter().map(|time| time.unwrap_or(Micros::MAX)).collect(),
                None => Vec::new(),
            };
            self.state.kept.add(rows, times)?;
            return Ok(0);
        };
        let times = TimeColumn::column(*column).values(&rows)?;
        self.shape.late.add_untimed(times.null_count());
        let mut late = 0;
        let mut until = Vec::with_capacity(rows.num_rows());
        let mut wanted = Vec::with_capacity(rows.num_rows());
        // Successive rows are usually in the same pane.
        let (mut pane, mut is_open) = (0..0, false);
        for time in &times {
            let Some(time) = time else {
                wanted.push(Some(false));
                continue;
            };
            if !pane.contains(&time) {
                let (start, end) = windows.pane(time);
                (pane, is_open) = (start..end, windows.last_end(start) > too_late);
            }
            wanted.push(Some(is_open));
            if is_open {
                self.panes.entry(pane.start).or_default().count += 1;
                until.push(time);
            } else {
                late += 1;
            }
        }
        let rows = if until.len() < rows.num_rows() { filter_record_batch(&rows, &wanted.into())? } else { rows };
        self.state.kept.add(rows, until)?;
        Ok(late)
    }

    /// Does what is due at the current moment.
    fn advance(&mut self, waits: bool, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if self.moment != Moment::Time {
            // The copy is about to wait for the others, and they may wait for its part of the pending call.
            self.settle(true, emit)?;
        }
        if self.row_turns.is_some() {
            return self.advance_rows(waits, emit);
        }
        let windows = self.turns.windows().cloned();
        let ends = PaneWindows { panes: &self.panes, timer: self.timer, windows: windows.as_ref() };
        match self.turns.next(self.moment, &ends, waits)? {
            Turn::Call(end) => {
                let start = windows.map_or(Micros::MIN, |windows| windows.start(end));
                let numbers = self.state.kept.within(start..end)?;
                self.call(&numbers, CallSpan::Time(start, end), emit)?;
                self.panes.range_mut(start..end).for_each(|(_, rows)| rows.called = true);
                self.forget()?;
                if self.shape.exec.query.on_busy != OnBusy::Wait {
                    self.rests_until = Some(Instant::now() + REST_TIME);
                }
                Ok(if self.is_resting() { EmitStatus::Done } else { EmitStatus::More })
            }
            Turn::Over if self.turns.windows().is_none() && self.moment != Moment::Time => {
                let numbers: Vec<u32> = (0..self.state.kept.count()).collect();
                self.call(&numbers, CallSpan::Epoch, emit)?;
                self.state.retain(|_| false)?;
                self.pass(emit)
            }
            Turn::Over => {
                self.forget()?;
                self.pass(emit)
            }
            Turn::NotYet => {
                self.forget()?;
                Ok(EmitStatus::Done)
            }
        }
    }

    /// The same for calls for a number of rows.
    fn advance_rows(&mut self, waits: bool, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let Some(turns) = &mut self.row_turns else { return Ok(EmitStatus::Done) };
        let (kept, reached) = (&self.state.kept, self.reached);
        let since = || Ok(kept.times()?.min().map_or(reached, |first| first.min(reached)));
        match turns.next(self.moment, kept.count() as usize, since, waits)? {
            RowTurn::Call { of, share } => {
                let share = share as u32;
                let numbers: Vec<u32> = (0..share).collect();
                self.call(&numbers, CallSpan::Rows(of.start, of.end), emit)?;
                if share > 0 {
                    self.state.retain(|number| number >= share)?;
                }
                Ok(EmitStatus::More)
            }
            RowTurn::Over => self.pass(emit),
            RowTurn::NotYet => Ok(EmitStatus::Done),
        }
    }

    /// All calls at this moment have been made: ends the last one before a barrier, and everything at the end.
    fn pass(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if self.moment != Moment::Time {
            self.settle(true, emit)?;
        }
        self.finishes = self.moment == Moment::End;
        Ok(if self.finishes { EmitStatus::Flush } else { EmitStatus::Done })
    }

    /// Emits what a pending call has returned meanwhile, or all of it if this `waits`.
    fn settle(&mut self, waits: bool, emit: &mut Emitter) -> Result<(), TaskError> {
        if self.pending_since.is_some() {
            let CallOutput { rows, is_pending, .. } = self.function.poll(waits)?;
            if !is_pending {
                self.pending_since = None;
            }
            self.emit(rows, emit)?;
        }
        Ok(())
    }

    /// Whether the copy only accepts input for now. It still answers agreements, and does not delay barriers or the
    /// end.
    fn is_resting(&mut self) -> bool {
        if self.moment != Moment::Time || self.turns.is_pending() {
            return false;
        }
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return true;
        }
        if self.rests_until.take().is_some() {
            self.turns.rest();
        }
        false
    }

    /// Does what the answers of other copies have made possible.
    fn look(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.moment = Moment::Time;
        let rested = self.rests_until.is_some() && !self.is_resting();
        if let Some(turns) = &self.row_turns {
            // If others are behind, this copy's input waits, too.
            let waits = turns.is_enough(self.state.kept.count() as usize);
            return self.advance(waits, emit);
        }
        if !self.turns.is_pending() && !rested {
            return Ok(EmitStatus::Done);
        }
        self.advance(false, emit)
    }

    /// Calls the function for these rows.
    fn call(&mut self, numbers: &[u32], of: CallSpan, emit: &mut Emitter) -> Result<(), TaskError> {
        self.settle(true, emit)?;
        let columns = (0..self.shape.keyed.width).map(|column| self.state.kept.gather(column, numbers));
        let rows = batch(&self.shape.rows, columns.collect::<Result<_>>()?, numbers.len())?;
        let CallOutput { rows, is_pending, timer } = self.function.call(self.turns.comm(), rows, of)?;
        self.timer = timer;
        self.pending_since = is_pending.then(|| self.turns.called());
        self.emit(rows, emit)
    }

    fn emit(&self, made: Vec<RecordBatch>, emit: &mut Emitter) -> Result<(), TaskError> {
        for made in made {
            let rows = self.shape.exec.finish(made)?;
            if rows.num_rows() > 0 {
                emit.send(rows);
            }
        }
        Ok(())
    }

    /// Removes rows that no window needs anymore.
    fn forget(&mut self) -> Result<(), TaskError> {
        let Some(windows) = self.turns.windows() else { return Ok(()) };
        let called = self.turns.called();
        while let Some(first) = self.panes.first_entry().filter(|first| windows.last_end(*first.key()) <= called) {
            let PaneRows { count, called } = first.remove();
            if !called {
                self.shape.late.add_skipped(count);
            }
        }
        let all = self.state.kept.count() as usize;
        let over = all - self.panes.values().map(|rows| rows.count).sum::<usize>();
        if over > CLEAR_MIN && over > all / 2 || over == all && over > 0 {
            match self.panes.keys().next() {
                Some(&first) => self.state.clear(first)?,
                None => self.state.retain(|_| false)?,
            }
        }
        Ok(())
    }
}

impl SpillableState for BspTask {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.state.kept.bytes())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.kept.spill()
    }
}

impl Operator for BspTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let count = rows.num_rows();
        let late = self.keep(rows, self.turns.too_late())?;
        self.shape.late.add(late);
        self.weigh(count)?;
        self.look(emit)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.reached = match time {
            EventTime::MAX => Micros::MAX,
            EventTime(time) => time.saturating_sub(self.shape.behind),
        };
        self.turns.pass(self.reached);
        if self.row_turns.is_some() {
            return self.look(emit);
        }
        self.moment = Moment::Time;
        if self.is_resting() {
            return Ok(EmitStatus::Done);
        }
        self.advance(!self.turns.is_pending(), emit)
    }

    fn output_time(&self) -> Option<OutputTime> {
        if let Some(turns) = &self.row_turns {
            self.shape.row_time.as_ref()?;
            return Some(OutputTime { time: EventTime(turns.now()), is_settled: !turns.is_pending() });
        }
        self.turns.windows()?;
        let is_settled = !self.turns.is_pending() && !self.turns.is_due() && self.pending_since.is_none();
        let time = self.pending_since.unwrap_or_else(|| self.turns.called());
        Some(OutputTime { time: EventTime(time), is_settled })
    }

    fn ticks(&self) -> Option<Duration> {
        (self.row_turns.is_some() || self.turns.windows().is_some()).then_some(LOOK_INTERVAL)
    }

    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if let Some(turns) = &mut self.row_turns {
            turns.tick();
        }
        self.settle(false, emit)?;
        self.look(emit)
    }

    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.moment = Moment::Barrier;
        self.advance(true, emit)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.reached = Micros::MAX;
        self.turns.pass(self.reached);
        self.moment = Moment::End;
        self.advance(true, emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if self.finishes {
            let made = self.function.finish()?;
            self.emit(made, emit)?;
            return Ok(EmitStatus::Done);
        }
        self.advance(true, emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let parts = self.state.release(buckets)?;
        self.panes.clear();
        if let Some(windows) = self.turns.windows() {
            let called = self.turns.called();
            for time in self.state.kept.times()? {
                let (start, _) = windows.pane(time);
                if windows.last_end(start) > called {
                    self.panes.entry(start).or_default().count += 1;
                }
            }
        }
        Ok(parts.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, table) in self.state.acquired(&parts)? {
            let rows = self.state.rows(&table)?;
            let count = rows.num_rows();
            // Restored with the time of the copy that had them, which may have been behind.
            self.keep(rows, self.turns.called())?;
            self.weigh(count)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.row_turns.as_ref().map_or(self.turns.called(), RowTurns::called));
        snapshot.shared.push((FUNCTION.into(), self.function.save()?));
        let timer = self.timer.map(|timer| (TIMER.into(), Bytes::copy_from_slice(&timer.to_le_bytes())));
        snapshot.shared.extend(timer);
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
