//! The second half: windows of the keys that a copy owns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState, Snapshot};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::route_map::BUCKETS;
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::handover::{AcquiredStates, HandoverParts};
use super::pane_tree::PaneTree;
use super::{WindowAggregation, by_pane};
use crate::rows::late_rows::{LATE_PORT, LateOutput};
use crate::rows::steps::RowSteps;
use crate::state::groups::{GroupStates, batch};
use crate::state::operator_memory::{OperatorMemory, SpillArea, SpillableState};
use crate::state::panes::{PaneStates, spill_small};
use crate::state::snapshot_codec::{self, BucketParts, SavedBuckets};
use crate::state::sorted_states::{self, ALL, CACHED_BYTES, DetachedStates, SortedStates, merge_into};
use crate::state::state_layout::{StateReader, changed_by, changed_of, fired_by, fired_of, shared_with};
use crate::time::window::{Micros, micros, window_array};

/// Bytes of states that are encoded at a time.
const ENCODED_BYTES: usize = 16 << 20;

/// The second half of a window aggregation.
pub(crate) struct MergedWindows {
    shape: Arc<WindowAggregation>,
    steps: RowSteps,
    panes: BTreeMap<Micros, PaneStates>,
    /// Coarser panes, for windows with many panes.
    coarse: Option<PaneTree>,
    /// Frozen states of panes that are not in any snapshot yet.
    unsaved: Vec<(Micros, SortedStates)>,
    /// Due results, and what remains of the first.
    firing: VecDeque<DueWindow>,
    rest: Option<WindowRest>,
    /// Windows that end by then have fired.
    fired: Micros,
    /// The starts of fired windows that late rows have changed since.
    changed: BTreeSet<Micros>,
    /// The starts of open windows that have changed since they gave early results.
    touched: BTreeSet<Micros>,
    /// Rows that were saved as changes since the last full snapshot.
    saved_rows: usize,
    /// Buckets for which something is saved.
    saved: SavedBuckets,
    /// What other copies have handed over, until something can be emitted.
    acquired: Vec<AcquiredStates>,
    /// Whether the job makes snapshots.
    saves: bool,
    held: OperatorMemory,
}

/// A window's final or early result.
struct DueWindow {
    start: Micros,
    /// The result covers the rows before this time: the window's end, or that of a step within it.
    until: Micros,
    last: bool,
}

/// The remaining results of a window.
struct WindowRest {
    /// The states to merge; and earlier states, before the current step, for keys that are in `pieces`.
    pieces: Vec<SortedStates>,
    before: Vec<SortedStates>,
    /// The ranges of key buckets that are merged at a time.
    ranges: VecDeque<Range<u32>>,
}

impl MergedWindows {
    pub(crate) fn new(
        shape: &Arc<WindowAggregation>,
        steps: RowSteps,
        context: &TaskContext,
    ) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let mut new = MergedWindows {
            shape: Arc::clone(shape),
            steps,
            panes: BTreeMap::new(),
            coarse: PaneTree::new(&shape.spans, &shape.of, held.disk()),
            unsaved: Vec::new(),
            firing: VecDeque::new(),
            rest: None,
            fired: Micros::MIN,
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            saved_rows: 0,
            saved: SavedBuckets::default(),
            acquired: Vec::new(),
            saves: context.saves(),
            held,
        };
        let Some(restored) = context.restored() else { return Ok(new) };
        let reader = shape.layout().reader(&shape.pane_schema, restored)?;
        new.fired = fired_of(restored)?;
        new.restore(restored, &reader)?;
        new.saved.restore(restored);
        // Restoring does not count as a change.
        new.changed = changed_of(restored)?;
        Ok(new)
    }

    /// Restores state. The first parts of all buckets become the first level, and so on, without merging.
    fn restore(&mut self, restored: &RestoredState, reader: &StateReader) -> Result<(), TaskError> {
        let disk = self.held.disk().clone();
        let mut levels: Vec<BTreeMap<Micros, Vec<SortedStates>>> = Vec::new();
        let mut buckets = restored.buckets.iter().peekable();
        while buckets.peek().is_some() {
            let (mut some, mut bytes) = (Vec::<Vec<RecordBatch>>::new(), 0);
            while bytes < disk.run_bytes()
                && let Some((&bucket, parts)) = buckets.next()
            {
                let fired = fired_by(restored, bucket)?.unwrap_or(self.fired);
                for (level, part) in parts.iter().enumerate() {
                    let states = reader.read(part)?;
                    bytes += batch_bytes(&states) as usize;
                    self.saved_rows = self.saved_rows.saturating_add(states.num_rows());
                    if fired == self.fired {
                        some.resize(some.len().max(level + 1), Vec::new());
                        some[level].push(states);
                        continue;
                    }
                    // From a copy that was behind because its streams were idle: windows that have not fired there must
                    // still fire. Everything is then saved in full, since it would otherwise count as changes.
                    let changed = changed_by(restored, bucket)?;
                    self.acquired.push(AcquiredStates { fired, changed, level, states });
                    self.saved_rows = usize::MAX / 2;
                }
            }
            levels.resize_with(levels.len().max(some.len()), BTreeMap::new);
            for (level, states) in levels.iter_mut().zip(some) {
                for (pane, states) in self.by_pane(&states)? {
                    level.entry(pane).or_default().push(states);
                }
            }
            let all = || levels.iter().flat_map(BTreeMap::values).flatten();
            if !self.held.fits(all().map(SortedStates::bytes).sum()) {
                let all = levels.iter_mut().flat_map(BTreeMap::values_mut).flatten();
                sorted_states::put_small_on_disk(all, &disk)?;
                let mut large = levels.iter_mut().flat_map(BTreeMap::values_mut);
                large.try_for_each(|pieces| sorted_states::put_on_disk(pieces, &disk))?;
            }
        }
        for (level, panes) in levels.into_iter().enumerate() {
            panes.into_iter().try_for_each(|(pane, states)| self.add(pane, level, states))?;
        }
        self.compact()
    }

    /// States by pane. Their first column is the pane.
    fn by_pane(&self, states: &[RecordBatch]) -> Result<Vec<(Micros, SortedStates)>> {
        let states = concat_batches(&self.shape.pane_schema, states)?;
        let columns: Vec<usize> = (1..states.num_columns()).collect();
        let panes = states.column(0).as_primitive::<TimestampMicrosecondType>();
        let of_pane = |(pane, rows): (Micros, Option<UInt32Array>)| {
            let states = match rows {
                None => states.project(&columns)?,
                Some(rows) => take_record_batch(&states.project(&columns)?, &rows)?,
            };
            Ok((pane, SortedStates::new(states, &self.shape.of)?))
        };
        by_pane(panes, |pane| (pane, pane + 1)).into_iter().map(of_pane).collect()
    }

    /// Adds states to a level of a pane, unless all its windows have ended.
    fn add(&mut self, pane: Micros, level: usize, states: Vec<SortedStates>) -> Result<(), TaskError> {
        if self.touch(pane) {
            self.panes.entry(pane).or_default().add_to(level, states)?;
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<(), TaskError> {
        let (of, disk) = (&self.shape.of, self.held.disk());
        self.panes.values_mut().try_for_each(|pane| pane.compact(of, disk))
    }

    /// Adds states, each to its pane. Returns the number of rows that are late, if known.
    fn take(&mut self, states: &RecordBatch) -> Result<usize, TaskError> {
        let panes = states.column(0).as_primitive::<TimestampMicrosecondType>();
        let columns: Vec<usize> = (1..self.shape.pane_schema.fields().len()).collect();
        let counts = states.columns().get(columns.len() + 1).map(|rows| rows.as_primitive::<Int64Type>());
        let mut late = 0;
        for (pane, rows) in by_pane(panes, |pane| (pane, pane + 1)) {
            let Some(open) = self.open(pane)? else {
                let of = |counts: &Int64Array| match &rows {
                    None => counts.values().iter().sum(),
                    Some(rows) => rows.values().iter().map(|&row| counts.value(row as usize)).sum::<i64>(),
                };
                late += counts.map_or(0, of) as usize;
                continue;
            };
            let rows = match rows {
                None => states.clone(),
                Some(rows) => take_record_batch(states, &rows)?,
            };
            open.merge(&rows.project(&columns)?)?;
        }
        Ok(late)
    }

    /// Adds rows with their keys; late rows go to the late output.
    fn take_rows(&mut self, batch: &RecordBatch, of: &LateOutput, emit: &mut Emitter) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let times = micros(&shape.time.evaluate(batch)?.into_array(batch.num_rows())?)?;
        shape.late.add_untimed(times.null_count());
        let all = shape.of.arguments(batch)?;
        for (pane, rows) in by_pane(&times, |time| shape.spans.pane(time)) {
            match (self.open(pane)?, rows) {
                (Some(open), None) => open.update(&all, batch.num_rows())?,
                (Some(open), Some(rows)) => open.update(&all.take(&rows)?, rows.len())?,
                (None, None) => emit.send_to(LATE_PORT, of.of(batch)?),
                (None, Some(rows)) => emit.send_to(LATE_PORT, of.of(&take_record_batch(batch, &rows)?)?),
            }
        }
        Ok(())
    }

    /// A pane is about to change. Returns whether it may: not if all of its windows have ended.
    fn touch(&mut self, pane: Micros) -> bool {
        let shape = &self.shape;
        if shape.over(pane) <= self.fired {
            return false;
        }
        self.coarse.iter_mut().for_each(|coarse| coarse.touch(pane));
        if shape.lateness > 0 {
            self.changed.extend(shape.spans.windows_ending(pane, Micros::MIN..=self.fired));
        }
        if shape.ticks().is_some() {
            let under_way = shape.spans.windows(pane).filter(|&start| shape.spans.end(start) > self.fired);
            self.touched.extend(under_way);
        }
        true
    }

    /// The growing table of a pane that is about to change; `None` if all of its windows have ended.
    fn open(&mut self, pane: Micros) -> Result<Option<&mut GroupStates>> {
        if !self.touch(pane) {
            return Ok(None);
        }
        self.panes.entry(pane).or_default().open(&self.shape.of).map(Some)
    }

    /// Adds what other copies have handed over. Their time may differ if streams were idle: windows that have fired
    /// there must not fire again, and windows that have fired here must still fire for what they contribute.
    fn settle(&mut self, emit: &mut Emitter) -> Result<(), TaskError> {
        let acquired = std::mem::take(&mut self.acquired);
        let Some(last) = acquired.iter().map(|one| one.fired).max() else { return Ok(()) };
        let until = last.max(self.fired);
        if until > self.fired {
            self.fire_all(until, emit)?;
        }
        self.coarse.iter_mut().for_each(PaneTree::clear);
        let own = std::mem::take(&mut self.changed);
        let shape = Arc::clone(&self.shape);
        let mut levels: BTreeMap<usize, Vec<RecordBatch>> = BTreeMap::new();
        let mut others = Vec::new();
        for one in acquired {
            if one.fired == until && one.changed.is_empty() {
                levels.entry(one.level).or_default().push(one.states);
            } else {
                others.push(one);
            }
        }
        // States with the same time as here are merged later.
        for (level, states) in levels {
            for (pane, states) in self.by_pane(&states)? {
                self.add(pane, level, vec![states])?;
            }
            self.weigh(states.iter().map(RecordBatch::num_rows).sum())?;
        }
        self.compact()?;
        for AcquiredStates { fired, changed, states, .. } in others {
            let panes = std::mem::take(&mut self.panes);
            self.fired = fired;
            self.take(&states)?;
            self.changed = changed;
            self.fire_all(until, emit)?;
            self.coarse.iter_mut().for_each(PaneTree::clear);
            let disk = self.held.disk();
            for (pane, held) in std::mem::replace(&mut self.panes, panes) {
                self.panes.entry(pane).or_default().absorb(held, &shape.of, disk)?;
            }
        }
        // A handover does not count as a change.
        self.changed = own;
        Ok(())
    }

    /// Fires the windows that end by `time`, in portions: see [`MergedWindows::go_on`].
    fn fire(&mut self, time: Micros) {
        let shape = Arc::clone(&self.shape);
        let mut due = VecDeque::from(self.steps_due(time));
        let mut windows = std::mem::take(&mut self.changed);
        let mut last = Micros::MIN;
        for &pane in self.panes.keys() {
            // Windows that begin by then also contain an earlier pane.
            let before = last;
            let ending = shape.spans.windows_ending(pane, self.fired.saturating_add(1)..=time);
            for start in ending.take_while(|&start| start > before) {
                last = last.max(start);
                windows.insert(start);
            }
        }
        self.fired = self.fired.max(time);
        due.extend(windows.into_iter().map(|start| DueWindow { start, until: shape.spans.end(start), last: true }));
        self.firing = due;
    }

    /// The results for steps of event time that end by `time`, in order, for windows with rows in the step.
    fn steps_due(&self, time: Micros) -> Vec<DueWindow> {
        let spans = &self.shape.spans;
        let Some(step) = spans.step().filter(|_| time > self.fired) else { return Vec::new() };
        let passed = self.fired.saturating_add(1)..=time;
        // A step that has ended since then has no earlier panes.
        let panes = self.panes.range(self.fired.saturating_sub(step)..=time);
        let all = panes.flat_map(|(&pane, _)| spans.steps(pane)).filter(|(until, _)| passed.contains(until));
        let all: BTreeSet<(Micros, Micros)> = all.collect();
        all.into_iter().map(|(until, start)| DueWindow { start, until, last: false }).collect()
    }

    /// The same, all at once.
    fn fire_all(&mut self, time: Micros, emit: &mut Emitter) -> Result<(), TaskError> {
        self.fire(time);
        while self.go_on(emit)? == EmitStatus::More {}
        Ok(())
    }

    /// Emits the next results of firing windows: those of one window, or of some of its keys if they do not all fit in
    /// memory.
    fn go_on(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let shape = Arc::clone(&self.shape);
        while let Some(&DueWindow { start, until, last }) = self.firing.front() {
            // No other window needs its pane, and neither does this one later.
            let alone = last && shape.spans.tumble() && shape.lateness == 0;
            let end = shape.spans.end(start);
            if self.rest.is_none() {
                let step = shape.spans.step().filter(|_| until < end);
                self.rest = Some(self.prepare(start..until, step.map(|step| until - step), alone)?);
            }
            let rest = self.rest.as_mut().expect("just made");
            let Some(range) = rest.ranges.pop_front() else {
                self.firing.pop_front();
                self.rest = None;
                if alone {
                    self.panes.remove(&start);
                }
                continue;
            };
            let mut merged = if alone { self.panes.get_mut(&start).and_then(PaneStates::take) } else { None };
            merge_into(&rest.pieces, &mut merged, &shape.of, &range)?;
            let Some(rows) = merged.as_ref().map(GroupStates::len) else { continue };
            // Keys that occur only before the step get larger numbers than the others.
            merge_into(&rest.before, &mut merged, &shape.of, &range)?;
            let Some(mut merged) = merged else { continue };
            let (mut columns, results, all) = merged.take_results()?;
            let windows = window_array(vec![start; all], vec![end; all], shape.gives_early().then_some(last));
            columns.insert(shape.window_at, Arc::new(windows));
            columns.extend(results);
            if rows < all {
                columns.iter_mut().for_each(|column| *column = column.slice(0, rows));
            }
            for batch in self.steps.apply(batch(&shape.output, columns, rows)?)? {
                emit.send(batch);
            }
            return Ok(EmitStatus::More);
        }
        let fired = self.fired;
        self.panes.retain(|&pane, _| shape.over(pane) > fired);
        self.coarse.iter_mut().for_each(|coarse| coarse.retain(|pane| shape.over(pane) > fired));
        self.touched.retain(|&start| shape.spans.end(start) > fired);
        let panes = &self.panes;
        self.unsaved.retain(|(pane, _)| panes.contains_key(pane));
        Ok(EmitStatus::Done)
    }

    /// Prepares a window to fire. States before `step` are used only for keys that also have rows after it.
    fn prepare(&mut self, window: Range<Micros>, step: Option<Micros>, alone: bool) -> Result<WindowRest, TaskError> {
        let before = match step {
            Some(step) => self.prepare(window.start..step, None, false)?.pieces,
            None => Vec::new(),
        };
        let window = step.unwrap_or(window.start)..window.end;
        let (of, disk) = (Arc::clone(&self.shape.of), self.held.disk().clone());
        // Other windows need what is frozen here, too, and so does the next snapshot.
        let wanted = self.saves && !alone;
        let unsaved = &mut self.unsaved;
        let mut close = |start: Micros, pane: &mut PaneStates, to_disk: bool| -> Result<(), TaskError> {
            if to_disk {
                let cut = pane.spill(&of, &disk)?.into_iter().filter(|_| wanted);
                unsaved.extend(cut.map(|states| (start, states)));
                return Ok(());
            }
            let cut = pane.cut(&of)?.filter(|_| wanted);
            unsaved.extend(cut.map(|states| (start, states)));
            if alone { Ok(()) } else { pane.compact(&of, &disk) }
        };
        let pieces: Vec<SortedStates> = if let Some(coarse) = &mut self.coarse {
            let mut close = |start: Micros, pane: &mut PaneStates| {
                let to_disk = pane.closed().any(SortedStates::is_on_disk);
                close(start, pane, to_disk)
            };
            coarse.pieces(window, &mut self.panes, &mut close)?
        } else {
            self.panes.range_mut(window.clone()).try_for_each(|(_, pane)| pane.settle())?;
            let closed = || self.panes.range(window.clone()).flat_map(|(_, pane)| pane.closed());
            let is_small =
                || closed().map(SortedStates::states_bytes).sum::<usize>() <= disk.run_bytes().min(CACHED_BYTES);
            if alone && is_small() {
                return Ok(WindowRest { pieces: closed().cloned().collect(), before, ranges: [ALL].into() });
            }
            let on_disk = closed().any(SortedStates::is_on_disk);
            self.panes.range_mut(window.clone()).try_for_each(|(&start, pane)| close(start, pane, on_disk))?;
            self.panes.range(window).flat_map(|(_, pane)| pane.closed()).cloned().collect()
        };
        let ranges = sorted_states::ranges(pieces.iter().chain(&before), disk.run_bytes().min(CACHED_BYTES)).into();
        if self.coarse.is_some() {
            self.weigh(pieces.iter().map(SortedStates::rows).sum())?;
        }
        Ok(WindowRest { pieces, before, ranges })
    }
}

impl SpillableState for MergedWindows {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        let unsaved = self.unsaved.iter().map(|(_, states)| states.bytes()).sum::<usize>();
        let coarse = self.coarse.as_ref().map_or(0, PaneTree::bytes);
        Ok(self.panes.values().map(PaneStates::bytes).sum::<usize>() + coarse + unsaved)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        let (of, disk) = (Arc::clone(&self.shape.of), self.held.disk().clone());
        sorted_states::put_small_on_disk(self.unsaved.iter_mut().map(|(_, states)| states), &disk)?;
        for (pane, states) in std::mem::take(&mut self.unsaved) {
            self.unsaved.extend(states.on_disk(&disk)?.into_iter().map(|states| (pane, states)));
        }
        for (&start, pane) in self.panes.iter_mut().filter(|(_, pane)| pane.is_large()) {
            let cut = pane.spill(&of, &disk)?.into_iter().filter(|_| self.saves);
            self.unsaved.extend(cut.map(|states| (start, states)));
        }
        let cut = spill_small(&mut self.panes, &of, &disk)?.into_iter().filter(|_| self.saves);
        self.unsaved.extend(cut);
        self.coarse.as_mut().map_or(Ok(()), PaneTree::spill)
    }
}

impl Operator for MergedWindows {
    fn begin(&mut self, context: &TaskContext) {
        self.steps.begin(context);
    }

    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        let (shape, rows) = (Arc::clone(&self.shape), batch.num_rows());
        match &shape.late_rows {
            Some(of) => self.take_rows(&batch, of, emit)?,
            None => {
                let late = self.take(&batch)?;
                shape.late.add(late);
            }
        }
        self.weigh(rows)?;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        self.fire(time.minus(self.shape.behind).0);
        self.go_on(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.go_on(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        self.shape.ticks()
    }

    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        let end = |start| self.shape.spans.end(start);
        let touched = std::mem::take(&mut self.touched).into_iter();
        self.firing = touched.map(|start| DueWindow { start, until: end(start), last: false }).collect();
        self.go_on(emit)
    }

    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        Ok(EmitStatus::Done)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        self.fire(Micros::MAX);
        self.go_on(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, lost: &[u32]) -> Result<ReleasedParts, TaskError> {
        let shape = Arc::clone(&self.shape);
        let mut gone = vec![false; BUCKETS as usize];
        lost.iter().for_each(|&bucket| gone[bucket as usize] = true);
        // A snapshot was just taken, so all of this is saved.
        let mut moved = Vec::new();
        for (&pane, held) in &mut self.panes {
            let levels = held.split(&shape.of, |bucket| gone[usize::from(bucket)])?;
            moved.extend((0..).zip(levels).flat_map(|(level, some)| some.into_iter().map(move |of| (pane, level, of))));
        }
        self.panes.retain(|_, held| held.rows() > 0);
        self.coarse.iter_mut().for_each(PaneTree::clear);
        Ok(ReleasedParts::new(HandoverParts::new(shape, lost[0], self.fired, &self.changed, moved)))
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            self.acquired.push(AcquiredStates::decode(&self.shape.pane_schema, part)?);
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let shape = Arc::clone(&self.shape);
        let disk = self.held.disk().clone();
        let mut states: Vec<(Micros, DetachedStates)> =
            self.unsaved.drain(..).map(|(pane, states)| (pane, DetachedStates::Sorted(states))).collect();
        for (&pane, held) in &mut self.panes {
            held.compact_later(&shape.of, &disk)?;
            states.extend(held.cut_later(&shape.of)?.map(|states| (pane, states)));
        }
        self.saved_rows = states.iter().fold(self.saved_rows, |sum, (_, states)| sum.saturating_add(states.rows()));
        let rows: usize = self.panes.values().map(PaneStates::rows).sum();
        // Changes of removed panes are still saved: when they are most of what is saved, everything is saved in full.
        let whole = whole || self.saved_rows > 3 * rows + 4096;
        if whole {
            self.saved_rows = rows;
            states = self.panes.iter().flat_map(|(&pane, held)| held.all().map(move |of| (pane, of))).collect();
        }
        let saved = self.saved.clone();
        let mut snapshot = shared_with(self.fired, &self.changed);
        if whole || !states.is_empty() {
            let parts = move || {
                let sorted = states.iter().map(|(pane, states)| Ok((*pane, states.sorted()?)));
                let sorted = sorted.collect::<Result<Vec<_>, TaskError>>()?;
                Ok(saved.parts(by_bucket(&shape, &sorted, &disk)?, whole))
            };
            snapshot.later = Some(DeferredPart(Box::new(parts)));
        }
        Ok(snapshot)
    }
}

/// States by bucket, as bytes.
fn by_bucket(
    shape: &WindowAggregation,
    states: &[(Micros, SortedStates)],
    disk: &SpillArea,
) -> Result<Vec<(u32, Bytes)>, TaskError> {
    let mut parts = BucketParts::new(disk);
    for range in sorted_states::ranges(states.iter().map(|(_, states)| states), disk.run_bytes().min(ENCODED_BYTES)) {
        let (mut some, mut of) = (Vec::new(), Vec::new());
        for (pane, states) in states {
            let (states, buckets) = states.of(&range)?;
            if states.num_rows() > 0 {
                some.push(shape.of_pane(*pane, &states)?);
                of.extend(buckets.iter().map(|&bucket| u32::from(bucket)));
            }
        }
        for (bucket, bytes) in snapshot_codec::by_bucket(&concat_batches(&shape.pane_schema, &some)?, &of, |_| true)? {
            parts.add(bucket, &[&bytes])?;
        }
    }
    parts.finish()
}
