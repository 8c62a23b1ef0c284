//! Aggregates of windows, in two halves. The first, beside the source, aggregates what one copy sees; the second, at the copy
//! that owns a key, puts the halves together and lets windows *fire* when the watermark has passed their end.
//!
//! Windows share *panes*: stretches of time that no window's border cuts. A row goes into one pane, however many windows
//! overlap there, and a window is put together of its panes when it fires.
//!
//! The first half keeps nothing over a barrier: it sends what it has. The second keeps of each pane the table that grows,
//! and beneath it tables of states that do not change any more. A barrier cuts the growing one off: that is what has
//! changed since the last, all of it, and the snapshot; so a checkpoint costs what has changed, and copies nothing. When
//! memory runs out the tables go to disk, and windows are put together of them a few buckets of keys at a time.
//!
//! Source of panes: Li, Maier, Tufte, Papadimos and Tucker, "No pane, no gain" (2005); of tables that a checkpoint cuts off:
//! O'Neil, Cheng, Gawlick and O'Neil, "The log-structured merge-tree" (1996).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{concat_batches, filter_record_batch, not, take, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use bytes::{Buf, Bytes};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::{Later, Restored, Snapshot, rows};
use tidemill_dataflow::operator::Flow;
use tidemill_dataflow::route_map::BUCKETS;
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emit, Operator, TaskContext, TaskError};

use super::groups::{Aggregation, Arguments, Groups, batch};
use super::held::{Disk, Held, Holds};
use super::kept::{self, Parts, Saved, buckets_of_key};
use super::late::{LATE_PORT, LateCount, LateOutput};
use super::panes::{Pane, States};
use super::sorted::{self, ALL};
use super::spans::Spans;
use super::steps::Steps;
use super::window::{Micros, micros, window_array};

/// The first half sends what it has when it holds more than this.
const HELD_BYTES_MAX: usize = 32 << 20;

/// A windowed aggregation: of a query, the same on all workers.
pub(crate) struct WindowAggregation {
    pub of: Arc<Aggregation>,
    pub time: Arc<dyn PhysicalExpr>,
    /// How far times to come may lie behind the watermark.
    pub behind: Micros,
    pub spans: Spans,
    pub lateness: Micros,
    /// How often windows that have changed give what they have so far, by the machine's clock.
    pub early: Option<Duration>,
    /// The start of a pane, keys, states.
    pub pane_schema: SchemaRef,
    /// These, and how many rows: what goes from the first half to the second.
    pub part_schema: SchemaRef,
    pub output: SchemaRef,
    /// Where the window stands among the keys of the output.
    pub window_at: usize,
    pub late: LateCount,
    /// Where late rows go. Then rows come to the second half, and there is no first.
    pub late_rows: Option<LateOutput>,
}

impl WindowAggregation {
    pub(crate) fn new(
        of: Aggregation,
        (time, behind): (Arc<dyn PhysicalExpr>, Micros),
        spans: Spans,
        (lateness, early): (Micros, Micros),
        output: SchemaRef,
        window_at: usize,
        (late, late_rows): (LateCount, Option<LateOutput>),
    ) -> Self {
        let pane = Field::new(PANE, DataType::Timestamp(TimeUnit::Microsecond, None), false);
        let fields: Vec<Field> =
            std::iter::once(pane).chain(of.state_schema.fields().iter().map(|field| field.as_ref().clone())).collect();
        let pane_schema = Arc::new(Schema::new(fields));
        WindowAggregation {
            of: Arc::new(of),
            time,
            behind,
            spans,
            lateness,
            early: u64::try_from(early).ok().filter(|&early| early > 0).map(Duration::from_micros),
            part_schema: with_rows(&pane_schema),
            pane_schema,
            output,
            window_at,
            late,
            late_rows,
        }
    }

    fn described(&self) -> String {
        self.spans.described()
    }

    /// When the last window that contains the pane takes no more rows.
    fn over(&self, pane: Micros) -> Micros {
        self.spans.last_end(pane).saturating_add(self.lateness)
    }

    /// States of a pane as rows that say so.
    fn of_pane(&self, pane: Micros, states: &RecordBatch) -> Result<RecordBatch> {
        let rows = states.num_rows();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(TimestampMicrosecondArray::from(vec![pane; rows]))];
        columns.extend_from_slice(states.columns());
        batch(&self.pane_schema, columns, rows)
    }
}

/// The column that says which pane states are of.
const PANE: &str = "tidemill pane";

/// Columns of states, and how many rows each is of: should they come too late, it is known how many rows have.
pub(crate) fn with_rows(states: &Schema) -> SchemaRef {
    let rows = Field::new("tidemill rows", DataType::Int64, false);
    Arc::new(Schema::new(states.fields().iter().cloned().chain([Arc::new(rows)]).collect::<Vec<_>>()))
}

/// Rows by the pane they are in: its start, and which rows (`None`: all). Rows without a time are in none. `pane` gives the start
/// and the end of that of a time.
fn by_pane(
    times: &TimestampMicrosecondArray,
    pane: impl Fn(Micros) -> (Micros, Micros),
) -> Vec<(Micros, Option<UInt32Array>)> {
    let values = times.values();
    if times.null_count() == 0 {
        let (min, max) = values.iter().fold((i64::MAX, i64::MIN), |(min, max), &time| (min.min(time), max.max(time)));
        if !values.is_empty() {
            let (start, end) = pane(min);
            if max < end {
                return vec![(start, None)];
            }
        }
    }
    let mut panes: Vec<((Micros, Micros), Vec<u32>)> = Vec::new();
    // Rows come more or less in order: the pane of the row before is most often the row's.
    let mut at = 0;
    for (row, &time) in values.iter().enumerate() {
        if times.is_null(row) {
            continue;
        }
        if panes.get(at).is_none_or(|((start, end), _)| time < *start || time >= *end) {
            let of = pane(time);
            at = panes.iter().position(|(other, _)| *other == of).unwrap_or_else(|| {
                panes.push((of, Vec::new()));
                panes.len() - 1
            });
        }
        panes[at].1.push(row as u32);
    }
    panes.into_iter().map(|((start, _), rows)| (start, Some(UInt32Array::from(rows)))).collect()
}

/// The first half.
pub(crate) struct FirstHalf {
    shape: Arc<WindowAggregation>,
    steps: Steps,
    panes: BTreeMap<Micros, Counted>,
    time: Micros,
    held: Held,
}

/// Groups, and the rows of each.
struct Counted {
    groups: Groups,
    rows: Vec<i64>,
}

impl Counted {
    fn update(&mut self, rows: &Arguments, count: usize) -> Result<()> {
        self.groups.update(rows, count)?;
        self.rows.resize(self.groups.len(), 0);
        self.groups.last().iter().for_each(|&group| self.rows[group] += 1);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.rows.capacity() * size_of::<i64>()
    }
}

impl FirstHalf {
    pub(crate) fn new(shape: &Arc<WindowAggregation>, steps: Steps, context: &TaskContext) -> Self {
        let held = Held::new(context);
        FirstHalf { shape: Arc::clone(shape), steps, panes: BTreeMap::new(), time: Micros::MIN, held }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let times = micros(&shape.time.evaluate(batch)?.into_array(batch.num_rows())?)?;
        let all = shape.of.arguments(batch)?;
        for (pane, rows) in by_pane(&times, |time| shape.spans.pane(time)) {
            if shape.over(pane) <= self.time {
                shape.late.add(rows.map_or(batch.num_rows(), |rows| rows.len()));
                continue;
            }
            let groups = match self.panes.entry(pane) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(Counted { groups: Groups::new(&shape.of)?, rows: Vec::new() })
                }
            };
            match rows {
                None => groups.update(&all, batch.num_rows())?,
                Some(rows) => groups.update(&all.take(&rows)?, rows.len())?,
            }
        }
        Ok(())
    }

    /// Sends the panes that `which` names.
    fn send(&mut self, which: impl Fn(Micros) -> bool, emit: &mut Emit) -> Result<(), TaskError> {
        let panes: Vec<Micros> = self.panes.keys().copied().filter(|&pane| which(pane)).collect();
        for pane in panes {
            let Some(Counted { mut groups, rows }) = self.panes.remove(&pane) else { continue };
            let states = self.shape.of_pane(pane, &groups.take_states()?)?;
            let count = states.num_rows();
            let columns = states.columns().iter().cloned().chain([Arc::new(Int64Array::from(rows)) as ArrayRef]);
            emit.send(batch(&self.shape.part_schema, columns.collect(), count)?);
        }
        Ok(())
    }
}

impl Operator for FirstHalf {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let rows = batch.num_rows();
        for batch in self.steps.apply(batch)? {
            self.add(&batch)?;
        }
        if self.held.is_due(rows) {
            let bytes = self.panes.values().map(Counted::bytes).sum::<usize>();
            if bytes > HELD_BYTES_MAX || !self.held.fits(bytes) {
                self.send(|_| true, emit)?;
                self.held.free();
            }
        }
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        let time = time.minus(self.shape.behind);
        let shape = Arc::clone(&self.shape);
        self.send(|pane| shape.spans.pane(pane).1 <= time.0, emit)?;
        self.time = time.0;
        Ok(Flow::Done)
    }

    fn ticks(&self) -> Option<Duration> {
        self.shape.early
    }

    fn on_tick(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.send(|_| true, emit)?;
        Ok(Flow::Done)
    }

    fn before_barrier(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.send(|_| true, emit)?;
        Ok(Flow::Done)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.send(|_| true, emit)?;
        Ok(Flow::Done)
    }
}

impl Arguments {
    fn take(&self, rows: &UInt32Array) -> Result<Self> {
        let of = |column: &ArrayRef| Ok(take(column, rows, None)?);
        Ok(Arguments {
            keys: self.keys.iter().map(of).collect::<Result<_>>()?,
            values: self
                .values
                .iter()
                .map(|values| values.iter().map(of).collect::<Result<_>>())
                .collect::<Result<_>>()?,
            filters: self
                .filters
                .iter()
                .map(|filter| {
                    filter.as_ref().map(|filter| Ok(take(filter, rows, None)?.as_boolean().clone())).transpose()
                })
                .collect::<Result<_>>()?,
        })
    }
}

/// The second half.
pub(crate) struct SecondHalf {
    shape: Arc<WindowAggregation>,
    steps: Steps,
    panes: BTreeMap<Micros, Pane>,
    /// States of panes that were cut off since the last snapshot, and are in none.
    unsaved: Vec<(Micros, States)>,
    /// The starts of windows that are firing, for the last time or not, and of the first the buckets that it has still to give.
    firing: VecDeque<(Micros, bool)>,
    ranges: Option<VecDeque<Range<u32>>>,
    /// Windows that end here or before have fired.
    fired: Micros,
    /// Of these, the starts of those that late rows have changed.
    changed: BTreeSet<Micros>,
    /// The starts of those that have not fired, and have changed since they gave early results.
    touched: BTreeSet<Micros>,
    /// Rows that were saved as changes since all were saved whole.
    saved_rows: usize,
    /// Buckets of which something is saved.
    saved: Saved,
    /// What other copies have handed over, until something can be emitted.
    acquired: Vec<Acquired>,
    /// Whether there are snapshots.
    saves: bool,
    held: Held,
}

/// States that another copy has kept.
struct Acquired {
    /// Windows that end here or before have fired there.
    fired: Micros,
    /// Of these, the starts of those that late rows have changed since.
    changed: BTreeSet<Micros>,
    states: RecordBatch,
}

impl Acquired {
    /// A part of what is handed over: times, and states behind them.
    fn encode(fired: Micros, changed: &BTreeSet<Micros>, states: &[u8]) -> Bytes {
        let times = [fired, changed.len() as Micros].into_iter().chain(changed.iter().copied());
        let mut part: Vec<u8> = times.flat_map(Micros::to_le_bytes).collect();
        part.extend_from_slice(states);
        part.into()
    }

    fn decode(schema: &SchemaRef, mut part: Bytes) -> Result<Self, TaskError> {
        let mut time = || {
            let eight = part.first_chunk().copied().ok_or("what another copy handed over was cut short")?;
            part.advance(size_of::<Micros>());
            Ok::<Micros, &str>(Micros::from_le_bytes(eight))
        };
        let (fired, count) = (time()?, time()?);
        let changed = (0..count).map(|_| time()).collect::<Result<_, _>>()?;
        Ok(Acquired { fired, changed, states: rows::decode(schema, &part)? })
    }
}

/// What copies share in checkpoints.
const FIRED: &str = "fired";
const SCHEMA: &str = "schema";

impl SecondHalf {
    pub(crate) fn new(shape: &Arc<WindowAggregation>, steps: Steps, context: &TaskContext) -> Result<Self, TaskError> {
        let mut new = SecondHalf {
            shape: Arc::clone(shape),
            steps,
            panes: BTreeMap::new(),
            unsaved: Vec::new(),
            firing: VecDeque::new(),
            ranges: None,
            fired: Micros::MIN,
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            saved_rows: 0,
            saved: Saved::default(),
            acquired: Vec::new(),
            saves: context.makes_checkpoints(),
            held: Held::new(context),
        };
        let Some(restored) = context.restored() else { return Ok(new) };
        check_schema(restored, &shape.described(), &shape.pane_schema, BEFORE)?;
        new.fired = fired_of(restored)?;
        for (&bucket, parts) in &restored.buckets {
            let fired = fired_by(restored, bucket)?.unwrap_or(new.fired);
            for part in parts {
                let states = rows::decode(&shape.pane_schema, part)?;
                new.saved_rows = new.saved_rows.saturating_add(states.num_rows());
                if fired == new.fired {
                    new.take(&states)?;
                    new.weigh(states.num_rows())?;
                    continue;
                }
                // Of a copy that was behind, by streams that were idle: what has not fired there must fire yet. Then all is
                // saved anew, else it would count as what has come since.
                new.acquired.push(Acquired { fired, changed: BTreeSet::new(), states });
                new.saved_rows = usize::MAX / 2;
            }
        }
        new.saved.restore(restored);
        for pane in new.panes.values_mut() {
            pane.cut(&shape.of, new.held.disk())?;
        }
        new.unsaved.clear();
        // Windows that late rows can still change are given again: which had been changed, nobody has saved.
        Ok(new)
    }

    /// Adds states, each to its pane. Returns how many rows those are of that come too late, if that is known.
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

    /// Adds rows that came with their keys; those that come too late go on by themselves.
    fn take_rows(&mut self, batch: &RecordBatch, of: &LateOutput, emit: &mut Emit) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let times = micros(&shape.time.evaluate(batch)?.into_array(batch.num_rows())?)?;
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

    /// What grows of a pane that is about to change; `None`: all its windows are over.
    fn open(&mut self, pane: Micros) -> Result<Option<&mut Groups>> {
        let shape = &self.shape;
        if shape.over(pane) <= self.fired {
            return Ok(None);
        }
        if shape.lateness > 0 {
            let late = shape.spans.windows(pane).filter(|&start| shape.spans.end(start) <= self.fired);
            self.changed.extend(late);
        }
        if shape.early.is_some() {
            let under_way = shape.spans.windows(pane).filter(|&start| shape.spans.end(start) > self.fired);
            self.touched.extend(under_way);
        }
        self.panes.entry(pane).or_default().open(&shape.of).map(Some)
    }

    /// Adds what other copies have handed over. Their time may have been another, if streams were idle: what has fired there
    /// must not fire here again, and what has fired here must still fire of that.
    fn settle(&mut self, emit: &mut Emit) -> Result<(), TaskError> {
        let acquired = std::mem::take(&mut self.acquired);
        let Some(last) = acquired.iter().map(|one| one.fired).max() else { return Ok(()) };
        let until = last.max(self.fired);
        if until > self.fired {
            self.fire_all(until, emit)?;
        }
        let own = std::mem::take(&mut self.changed);
        let shape = Arc::clone(&self.shape);
        for Acquired { fired, changed, states } in acquired {
            if fired == until && changed.is_empty() {
                self.take(&states)?;
                self.weigh(states.num_rows())?;
                continue;
            }
            let panes = std::mem::take(&mut self.panes);
            self.fired = fired;
            self.take(&states)?;
            self.changed = changed;
            self.fire_all(until, emit)?;
            let disk = self.held.disk();
            for (pane, held) in std::mem::replace(&mut self.panes, panes) {
                self.panes.entry(pane).or_default().absorb(held, &shape.of, disk)?;
            }
        }
        // To be taken here is no change.
        self.changed = own;
        Ok(())
    }

    /// Lets windows fire whose end is not after `time`: [`SecondHalf::go_on`] does it, a part at a time.
    fn fire(&mut self, time: Micros) {
        let shape = Arc::clone(&self.shape);
        let mut windows = std::mem::take(&mut self.changed);
        for &pane in self.panes.keys() {
            let ends = |start: &Micros| (self.fired.saturating_add(1)..=time).contains(&shape.spans.end(*start));
            windows.extend(shape.spans.windows(pane).filter(ends));
        }
        self.fired = self.fired.max(time);
        self.firing = windows.into_iter().map(|start| (start, true)).collect();
    }

    /// The same, all at once.
    fn fire_all(&mut self, time: Micros, emit: &mut Emit) -> Result<(), TaskError> {
        self.fire(time);
        while self.go_on(emit)? == Flow::More {}
        Ok(())
    }

    /// Gives the next results of windows that are firing: those of one window, or of some of its keys when they do not fit in
    /// memory.
    fn go_on(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let shape = Arc::clone(&self.shape);
        while let Some(&(start, last)) = self.firing.front() {
            // Its pane is nobody else's, and not needed any more.
            let alone = last && shape.spans.tumble() && shape.lateness == 0;
            let end = shape.spans.end(start);
            if self.ranges.is_none() {
                self.ranges = Some(self.prepare(start..end, alone)?);
            }
            let Some(range) = self.ranges.as_mut().and_then(VecDeque::pop_front) else {
                self.firing.pop_front();
                self.ranges = None;
                if alone {
                    self.panes.remove(&start);
                }
                continue;
            };
            let mut merged = None;
            for (_, pane) in self.panes.range_mut(start..end) {
                if alone {
                    merged = pane.take();
                }
                pane.merge_into(&mut merged, &shape.of, &range)?;
            }
            let Some(mut merged) = merged else { continue };
            let (keys, results, rows) = merged.take_results()?;
            let mut columns = keys;
            let windows = window_array(vec![start; rows], vec![end; rows], shape.early.map(|_| last));
            columns.insert(shape.window_at, Arc::new(windows));
            columns.extend(results);
            for batch in self.steps.apply(batch(&shape.output, columns, rows)?)? {
                emit.send(batch);
            }
            return Ok(Flow::More);
        }
        let fired = self.fired;
        self.panes.retain(|&pane, _| shape.over(pane) > fired);
        self.touched.retain(|&start| shape.spans.end(start) > fired);
        let panes = &self.panes;
        self.unsaved.retain(|(pane, _)| panes.contains_key(pane));
        Ok(Flow::Done)
    }

    /// A window is about to fire. Returns the buckets of keys that are put together at a time.
    fn prepare(&mut self, window: Range<Micros>, alone: bool) -> Result<VecDeque<Range<u32>>, TaskError> {
        let (of, disk) = (Arc::clone(&self.shape.of), self.held.disk().clone());
        if self.panes.range(window.clone()).any(|(_, pane)| pane.is_on_disk()) {
            for (&start, pane) in self.panes.range_mut(window.clone()) {
                let cut = pane.spill(&of, &disk)?.into_iter().filter(|_| self.saves && !alone);
                self.unsaved.extend(cut.map(|states| (start, States::Disk(states))));
            }
            let states = self.panes.range(window).flat_map(|(_, pane)| pane.sorted());
            return Ok(sorted::ranges(states, disk.run_bytes()).into());
        }
        if !alone {
            for (&start, pane) in self.panes.range_mut(window) {
                // Other windows want it, too, and so does the next snapshot.
                let cut = pane.cut(&of, &disk)?.filter(|_| self.saves);
                self.unsaved.extend(cut.map(|states| (start, States::Memory(states))));
            }
        }
        Ok([ALL].into())
    }
}

impl Holds for SecondHalf {
    fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        let unsaved = self.unsaved.iter().map(|(_, states)| states.bytes()).sum::<usize>();
        Ok(self.panes.values().map(Pane::bytes).sum::<usize>() + unsaved)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        let (of, disk) = (Arc::clone(&self.shape.of), self.held.disk().clone());
        for (pane, states) in std::mem::take(&mut self.unsaved) {
            let states = states.sorted(&of, &disk)?;
            self.unsaved.extend(states.into_iter().map(|states| (pane, States::Disk(states))));
        }
        for (&start, pane) in self.panes.iter_mut().filter(|(_, pane)| pane.is_large()) {
            let cut = pane.spill(&of, &disk)?.into_iter().filter(|_| self.saves);
            self.unsaved.extend(cut.map(|states| (start, States::Disk(states))));
        }
        Ok(())
    }
}

/// Columns before the keys.
const BEFORE: usize = 1;

/// Which windows there are, and the columns that are saved, but for the first ones, which are ours.
fn described(windows: &str, schema: &Schema, before: usize) -> String {
    let fields: Vec<String> =
        schema.fields().iter().skip(before).map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    format!("{windows} of {}", fields.join(", "))
}

/// A snapshot with what copies share: the time until which windows have fired, and the columns of what is saved.
pub(crate) fn shared(fired: Micros, windows: &str, schema: &Schema, before: usize) -> Snapshot {
    let fired = Bytes::copy_from_slice(&fired.to_le_bytes());
    let shared = vec![(FIRED.into(), fired), (SCHEMA.into(), described(windows, schema, before).into())];
    Snapshot { shared, ..Snapshot::default() }
}

/// Whether what was saved is of the query as it is now.
pub(crate) fn check_schema(
    restored: &Restored,
    windows: &str,
    schema: &Schema,
    before: usize,
) -> Result<(), TaskError> {
    let now = described(windows, schema, before);
    for then in restored.shared.get(SCHEMA).into_iter().flatten() {
        let then = String::from_utf8_lossy(then);
        if then != now {
            return Err(format!(
                "the checkpoint has states of other windows, aggregates or rows ({then}) than the query now ({now}); begin anew in another \
                 place, or change the query back"
            )
            .into());
        }
    }
    Ok(())
}

/// The time until which windows of a bucket had fired.
pub(crate) fn fired_by(restored: &Restored, bucket: u32) -> Result<Option<Micros>, TaskError> {
    restored.shared_of(bucket, FIRED).map(time_of).transpose()
}

fn time_of(bytes: &Bytes) -> Result<Micros, TaskError> {
    let time: [u8; 8] = bytes.as_ref().try_into().map_err(|_| "a checkpoint's time is no time")?;
    Ok(Micros::from_le_bytes(time))
}

/// The time until which windows had fired.
pub(crate) fn fired_of(restored: &Restored) -> Result<Micros, TaskError> {
    let mut last = Micros::MIN;
    for fired in restored.shared.get(FIRED).into_iter().flatten() {
        last = last.max(time_of(fired)?);
    }
    Ok(last)
}

impl Operator for SecondHalf {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
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
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.settle(emit)?;
        self.fire(time.minus(self.shape.behind).0);
        self.go_on(emit)
    }

    fn more(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.go_on(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        self.shape.early
    }

    fn on_tick(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.settle(emit)?;
        self.firing = std::mem::take(&mut self.touched).into_iter().map(|start| (start, false)).collect();
        self.go_on(emit)
    }

    fn before_barrier(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.settle(emit)?;
        Ok(Flow::Done)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.settle(emit)?;
        self.fire(Micros::MAX);
        self.go_on(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, lost: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        let shape = Arc::clone(&self.shape);
        let mut gone = vec![false; BUCKETS as usize];
        lost.iter().for_each(|&bucket| gone[bucket as usize] = true);
        let mut moved = Vec::new();
        let disk = self.held.disk().clone();
        for (&pane, held) in &mut self.panes {
            // A snapshot has just been taken: nothing of this is unsaved.
            held.cut(&shape.of, &disk)?;
            held.retain(&shape.of, &disk, |states| {
                let rows = states.batch();
                let of = buckets_of_key(rows, 0, shape.of.keys.len())?;
                let goes = BooleanArray::from_iter(of.into_iter().map(|bucket| Some(gone[bucket as usize])));
                if goes.true_count() == 0 {
                    return Ok(None);
                }
                let rest = filter_record_batch(rows, &not(&goes)?)?;
                moved.push((pane, states));
                Ok(Some(rest))
            })?;
        }
        self.panes.retain(|_, held| held.rows() > 0);
        let part = |(bucket, states): (u32, Bytes)| (bucket, Acquired::encode(self.fired, &self.changed, &states));
        let moved = by_bucket(&shape, moved, &disk, |bucket| gone[bucket as usize])?;
        Ok(moved.into_iter().map(part).collect())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            self.acquired.push(Acquired::decode(&self.shape.pane_schema, part)?);
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let shape = Arc::clone(&self.shape);
        let disk = self.held.disk().clone();
        let mut states = std::mem::take(&mut self.unsaved);
        for (&pane, held) in &mut self.panes {
            states.extend(held.cut(&shape.of, &disk)?.map(|states| (pane, States::Memory(states))));
        }
        self.saved_rows = states.iter().fold(self.saved_rows, |sum, (_, states)| sum.saturating_add(states.rows()));
        let rows: usize = self.panes.values().map(Pane::rows).sum();
        // Changes of panes that are gone are still there: when they are most of what is saved, all is saved anew.
        let whole = whole || self.saved_rows > 2 * rows + 4096;
        if whole {
            self.saved_rows = rows;
            let all = self.panes.iter().flat_map(|(&pane, held)| held.closed().map(move |states| (pane, states)));
            states = all.collect();
        }
        let saved = self.saved.clone();
        let mut snapshot = shared(self.fired, &shape.described(), &shape.pane_schema, BEFORE);
        if whole || !states.is_empty() {
            let parts = move || Ok(saved.parts(by_bucket(&shape, states, &disk, |_| true)?, whole));
            snapshot.later = Some(Later(Box::new(parts)));
        }
        Ok(snapshot)
    }
}

/// States of the buckets that are wanted, by bucket, as bytes.
fn by_bucket(
    shape: &WindowAggregation,
    states: Vec<(Micros, States)>,
    disk: &Disk,
    wanted: impl Fn(u32) -> bool,
) -> Result<Vec<(u32, Bytes)>, TaskError> {
    let encode = |states: Vec<(Micros, RecordBatch)>| -> Result<_> {
        let states = states.iter().map(|(pane, states)| shape.of_pane(*pane, states)).collect::<Result<Vec<_>>>()?;
        let states = concat_batches(&shape.pane_schema, &states)?;
        kept::by_bucket(&states, &buckets_of_key(&states, BEFORE, shape.of.keys.len())?, &wanted)
    };
    let bytes = states.iter().map(|(_, states)| states.bytes()).sum::<usize>();
    if bytes <= disk.run_bytes() && states.iter().all(|(_, states)| matches!(states, States::Memory(_))) {
        return Ok(encode(states.into_iter().map(|(pane, states)| (pane, states.batch().clone())).collect())?);
    }
    let mut pieces = Vec::new();
    for (pane, states) in states {
        pieces.extend(states.sorted(&shape.of, disk)?.into_iter().map(|states| (pane, states)));
    }
    let mut parts = Parts::new(disk);
    for range in sorted::ranges(pieces.iter().map(|(_, states)| states), disk.run_bytes()) {
        let some = pieces.iter().map(|(pane, states)| (*pane, states.of(&range)));
        for (bucket, bytes) in encode(some.filter(|(_, states)| states.num_rows() > 0).collect())? {
            parts.add(bucket, &[&bytes])?;
        }
    }
    parts.finish()
}
