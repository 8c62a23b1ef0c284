//! Aggregates of time windows with early results: one after every given number of rows of a key, and a final one at the
//! end.
//!
//! To count the rows of a key's window, its owner gets rows, not partial aggregates. The state of a window and a key is
//! a *chain* of states: those of each batch, cut where a result is due, with the number of rows up to there. A result
//! combines the states of a chain up to its rows. Then, and when a chain is long, they are merged permanently: a
//! *total* starts a new chain, and the states before it are discarded from time to time. So the cost of a result
//! depends on the rows since the last one, and its rows depend only on their order of arrival: resuming a job or moving
//! keys changes nothing.

mod groups;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{filter_record_batch, take, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType};
use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::memory::SpillVec;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use self::groups::TriggeredGroups;
use crate::rows::late_rows::{LATE_PORT, LateCount, LateOutput};
use crate::state::expiring_rows::{ExpiringRows, KeptState};
use crate::state::groups::{Functions, GroupAggregation, batch};
use crate::state::keys::NumberedKeys;
use crate::state::operator_memory::{OperatorMemory, SpillableState};
use crate::state::snapshot_codec::{table_of, tables_of};
use crate::state::state_layout::{StateLayout, fired_by, fired_of, shared, time_of};
use crate::time::window::{Micros, micros, window_array};
use crate::time::window_assigner::WindowAssigner;

/// Stored columns before the window's start and the keys: the number of rows so far, and whether the state is a total.
const BEFORE: usize = 2;
/// Maximum number of states of a chain that are merged only for results, not permanently.
const CHAIN_MAX: u32 = 8;
/// Maximum number of results of one key from rows added together, since each starts from the chain's total.
const RESULTS_MAX: usize = 128;
/// Maximum number of rows added together, each counted once per window that contains it.
const PLACES_MAX: usize = 1 << 16;
/// Minimum number of obsolete states before they are removed; they must also be half of all.
const CLEAR_MIN: u32 = 1 << 13;
/// The same in bytes, because totals of some functions are long.
const CLEAR_BYTES_MIN: usize = 4 << 20;
/// Approximate size of states of variable length that are merged at a time.
const PORTION_BYTES: usize = 4 << 20;
/// Windows of keys that fire at a time.
const FIRE_MAX: usize = 1 << 13;
/// The kinds of parts in a handover: tables of state, and the time up to which windows have fired.
const KEPT: u8 = 0;
const FIRED: u8 = 1;

/// An aggregation of windows with results by rows; the same for a query on all workers.
pub(crate) struct TriggeredAggregation {
    /// The first key is the window's start.
    pub of: GroupAggregation,
    pub time: Arc<dyn PhysicalExpr>,
    /// How far future times may lie behind the watermark.
    pub behind: Micros,
    pub spans: WindowAssigner,
    /// The number of rows between results.
    pub every: i64,
    pub output: SchemaRef,
    /// The position of the window among the output columns.
    pub window_at: usize,
    pub late: LateCount,
    /// Where late rows go.
    pub late_rows: Option<LateOutput>,
}

impl TriggeredAggregation {
    /// The key for the window's start. It is not computed from a row, which may be in several windows.
    pub(crate) fn window_key() -> (Arc<dyn PhysicalExpr>, String) {
        let start = ScalarValue::TimestampMicrosecond(Some(0), None);
        (Arc::new(Literal::new(start)), "window start".into())
    }

    /// The task's state.
    pub(crate) fn state(&self) -> StateSchema {
        let what = format!("{}, with results by rows", self.spans.described());
        StateSchema::new(what, self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of_aggregation(&self.of, BEFORE)
    }

    fn kept_schema(&self) -> SchemaRef {
        let before = [
            Field::new("tidemill seen", DataType::Int64, false),
            Field::new("tidemill total", DataType::Boolean, false),
        ];
        let fields = before.into_iter().map(Arc::new).chain(self.of.state_schema.fields().iter().cloned());
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// The columns of the state that contain the window's start and the keys.
    fn keys(&self) -> std::ops::Range<usize> {
        BEFORE..BEFORE + self.of.keys.len()
    }

    /// Whether states may be longer than a number, as for `n_unique` and strings.
    fn has_long_states(&self) -> bool {
        let mut states = self.of.state_schema.fields().iter().skip(self.of.keys.len());
        states.any(|field| field.data_type().primitive_width().is_none() && *field.data_type() != DataType::Boolean)
    }
}

/// The task of windows with early results by rows.
pub(crate) struct TriggeredTask {
    shape: Arc<TriggeredAggregation>,
    keys: NumberedKeys,
    groups: TriggeredGroups,
    state: KeptState,
    /// Input rows that have yet to be added.
    rest: Option<RecordBatch>,
    /// Windows that end by then have fired, or are about to.
    fired: Micros,
    /// No window ends before that.
    next_end: Micros,
    /// Groups that fire, and how many of them have fired.
    firing: SpillVec<u32>,
    fired_of_firing: usize,
    /// Obsolete state is removed at this number of rows or bytes.
    clear_at: (u32, usize),
    held: OperatorMemory,
}

impl TriggeredTask {
    pub(crate) fn new(shape: &Arc<TriggeredAggregation>, context: &TaskContext) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let schema = shape.kept_schema();
        // The owner of a key does not depend on the window.
        let keys = shape.keys().skip(1).collect();
        let mut new = TriggeredTask {
            shape: Arc::clone(shape),
            keys: NumberedKeys::new(Arc::clone(&shape.of.key_schema), held.disk())?,
            groups: TriggeredGroups::default(),
            state: KeptState::new(ExpiringRows::new(Arc::clone(&schema), held.disk()), keys),
            rest: None,
            fired: Micros::MIN,
            next_end: Micros::MAX,
            firing: SpillVec::default(),
            fired_of_firing: 0,
            clear_at: (CLEAR_MIN, CLEAR_BYTES_MIN),
            held,
        };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&schema, restored)?;
            new.fired = fired_of(restored)?;
            for (bucket, table) in new.state.restore(restored)? {
                let rows = reader.read(&table)?;
                // Drop what had fired where it was stored; what had fired only elsewhere has yet to fire.
                let fired = fired_by(restored, bucket)?.unwrap_or(new.fired);
                let open = starts_of(&rows).values().iter().map(|&start| Some(shape.spans.end(start) > fired));
                let rows = filter_record_batch(&rows, &open.collect::<BooleanArray>())?;
                new.take(rows)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// The number of each row's window and key.
    fn intern(&mut self, keys: &[ArrayRef]) -> Result<Vec<usize>, TaskError> {
        let of = self.keys.intern(keys, keys[0].len())?;
        let count = of.iter().max().map_or(0, |last| last + 1);
        self.groups.reserve(count)?;
        let starts = keys[0].as_primitive::<TimestampMicrosecondType>().values();
        let mut last = None;
        for (&group, &start) in of.iter().zip(starts) {
            self.groups.starts_at(group, start);
            if last.replace(start) != Some(start) {
                self.next_end = self.next_end.min(self.shape.spans.end(start));
            }
        }
        Ok(of)
    }

    /// Adds state that was saved, or that another copy has handed over.
    fn take(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        let count = rows.num_rows();
        self.keep(rows)?;
        self.weigh(count)
    }

    fn keep(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        self.index(&rows)?;
        self.state.kept.add(rows, Vec::new())
    }

    /// Appends stored rows to their chains.
    fn index(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        let of = self.intern(&rows.columns()[self.shape.keys()])?;
        let seen = rows.column(0).as_primitive::<Int64Type>().values();
        let totals = rows.column(1).as_boolean();
        self.groups.chain(&of, seen, |row| totals.value(row))
    }

    /// The keys and the functions of some groups, each for its first rows up to a number.
    fn merged(&self, wanted: &[(usize, i64)]) -> Result<(Vec<ArrayRef>, Functions)> {
        let (shape, kept) = (&self.shape, &self.state.kept);
        let (mut numbers, mut of, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, &(group, seen)) in wanted.iter().enumerate() {
            let found = self.groups.states(group, seen);
            firsts.push(found.first().copied().unwrap_or_default());
            of.resize(of.len() + found.len(), at);
            numbers.extend(found);
        }
        let keys = shape.keys().map(|key| kept.gather(key, &firsts)).collect::<Result<Vec<_>>>()?;
        let states = shape.keys().end..kept.schema().fields().len();
        let states = states.map(|column| kept.gather(column, &numbers)).collect::<Result<Vec<_>>>()?;
        Ok((keys, shape.of.merged(&states, &of, wanted.len())?))
    }

    /// The number of groups in a portion, by the length of their states; unlimited if states are numbers.
    fn portion(&self) -> usize {
        if !self.shape.has_long_states() {
            return usize::MAX;
        }
        let kept = &self.state.kept;
        let chain_bytes = kept.bytes_anywhere() / (kept.count() as usize).max(1) * CHAIN_MAX as usize;
        (PORTION_BYTES / chain_bytes.max(1)).max(1)
    }

    /// The number of rows that are added together: their results stay in memory until all have been added.
    fn rows_max(&self) -> usize {
        let results = RESULTS_MAX.min(self.portion());
        let by_results = usize::try_from(self.shape.every).unwrap_or(usize::MAX).saturating_mul(results);
        by_results.min(PLACES_MAX / self.shape.spans.windows_max()).max(1)
    }

    /// Divides groups into portions whose states fit in memory. If states may be long, a portion contains each group
    /// only once: a hundred results of one key would start with a hundred copies of its total.
    fn portions(&self, wanted: &[(usize, i64)]) -> Vec<Vec<(usize, i64)>> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let portion = self.portion();
        if portion == usize::MAX {
            return vec![wanted.to_vec()];
        }
        let mut turns: Vec<Vec<(usize, i64)>> = Vec::new();
        let mut met: HashMap<usize, usize> = HashMap::new();
        for &(group, seen) in wanted {
            let turn = met.entry(group).or_default();
            if *turn == turns.len() {
                turns.push(Vec::new());
            }
            turns[*turn].push((group, seen));
            *turn += 1;
        }
        turns.iter().flat_map(|turn| turn.chunks(portion)).map(<[_]>::to_vec).collect()
    }

    /// Emits results of groups, each for its first rows up to a number.
    fn give(&self, wanted: &[(usize, i64)], last: bool, emit: &mut Emitter) -> Result<()> {
        self.portions(wanted).iter().try_for_each(|portion| self.give_portion(portion, last, emit))
    }

    fn give_portion(&self, wanted: &[(usize, i64)], last: bool, emit: &mut Emitter) -> Result<()> {
        let shape = &self.shape;
        let (mut keys, functions) = self.merged(wanted)?;
        let starts = keys.remove(0).as_primitive::<TimestampMicrosecondType>().values().to_vec();
        let ends = starts.iter().map(|&start| shape.spans.end(start)).collect();
        keys.insert(shape.window_at, Arc::new(window_array(starts, ends, Some(last))));
        for mut function in functions {
            keys.push(function.evaluate(EmitTo::All)?);
        }
        emit.send(batch(&shape.output, keys, wanted.len())?);
        Ok(())
    }

    /// Merges all states of each of these groups into a total.
    fn total(&mut self, groups: &[usize]) -> Result<(), TaskError> {
        let all: Vec<(usize, i64)> = groups.iter().map(|&group| (group, self.groups.seen(group))).collect();
        self.portions(&all).iter().try_for_each(|portion| self.total_portion(portion))
    }

    fn total_portion(&mut self, all: &[(usize, i64)]) -> Result<(), TaskError> {
        let (keys, functions) = self.merged(all)?;
        let seen = Int64Array::from_iter_values(all.iter().map(|(_, seen)| *seen));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(seen), Arc::new(BooleanArray::from(vec![true; all.len()]))];
        columns.extend(keys);
        for mut function in functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        self.keep(batch(&self.state.kept.schema(), columns, all.len())?)
    }

    /// Removes obsolete state.
    fn clear(&mut self) -> Result<(), TaskError> {
        self.forget()?;
        self.index_anew()
    }

    /// The same without rebuilding the index, which is invalid afterwards. Obsolete states are those before totals, and
    /// those of windows that have fired.
    fn forget(&mut self) -> Result<(), TaskError> {
        let chained = self.groups.chained()?;
        self.state.retain(|number| chained[number as usize] > 0)
    }

    /// Rebuilds the chains after row numbers have changed. Windows that have fired have no state left.
    fn index_anew(&mut self) -> Result<(), TaskError> {
        let few = self.state.kept.bytes_anywhere() <= self.held.disk().run_bytes();
        self.keys.clear(few)?;
        self.groups.clear(few)?;
        self.next_end = Micros::MAX;
        self.state.kept.since(0).iter().try_for_each(|rows| self.index(rows))?;
        let kept = &self.state.kept;
        self.clear_at = (
            kept.count().saturating_mul(2).max(CLEAR_MIN),
            kept.bytes_anywhere().saturating_mul(2).max(CLEAR_BYTES_MIN),
        );
        Ok(())
    }

    fn add(&mut self, rows: &RecordBatch, emit: &mut Emitter) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let times = micros(&shape.time.evaluate(rows)?.into_array(rows.num_rows())?)?;
        shape.late.add_untimed(times.null_count());
        let (mut at, mut starts, mut late) = (Vec::new(), Vec::new(), Vec::new());
        // The open windows of the pane.
        let (mut pane, mut open) = ((0, 0), Vec::new());
        for (row, time) in (0..).zip(times.iter()) {
            let Some(time) = time else { continue };
            // Usually the pane of the row before.
            if !(pane.0..pane.1).contains(&time) {
                pane = shape.spans.pane(time);
                open = shape.spans.windows(pane.0).filter(|&start| shape.spans.end(start) > self.fired).collect();
            }
            if open.is_empty() {
                late.push(row);
            }
            at.resize(at.len() + open.len(), row);
            starts.extend_from_slice(&open);
        }
        match &shape.late_rows {
            Some(of) if !late.is_empty() => {
                emit.send_to(LATE_PORT, of.of(&take_record_batch(rows, &UInt32Array::from(late))?)?);
            }
            _ => shape.late.add(late.len()),
        }
        if starts.is_empty() {
            return Ok(());
        }
        let mut rows = shape.of.arguments(rows)?.take(&UInt32Array::from(at))?;
        rows.keys[0] = Arc::new(TimestampMicrosecondArray::from(starts));
        let of_group = self.intern(&rows.keys)?;
        // For each run of rows of a group: its last row, and the number of the group's rows up to it. `of` is the run
        // of each row.
        let (mut firsts, mut seen, mut of): (Vec<u32>, Vec<i64>, Vec<usize>) = Default::default();
        let mut stretches: HashMap<(usize, i64), usize> = HashMap::new();
        let mut due = Vec::new();
        for (row, &group) in of_group.iter().enumerate() {
            let before = self.groups.seen(group);
            let stretch = *stretches.entry((group, before / shape.every)).or_insert_with(|| {
                firsts.push(row as u32);
                seen.push(before);
                firsts.len() - 1
            });
            self.groups.count_row(group);
            seen[stretch] = before + 1;
            of.push(stretch);
            if (before + 1) % shape.every == 0 {
                due.push((group, before + 1));
            }
        }
        let firsts = UInt32Array::from(firsts);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(seen)), Arc::new(BooleanArray::from(vec![false; firsts.len()]))];
        for key in &rows.keys {
            columns.push(take(key, &firsts, None)?);
        }
        for mut function in shape.of.updated(&rows, &of, firsts.len())? {
            columns.extend(function.state(EmitTo::All)?);
        }
        self.keep(batch(&self.state.kept.schema(), columns, firsts.len())?)?;
        self.give(&due, false, emit)?;
        let mut long: Vec<usize> = due.into_iter().map(|(group, _)| group).collect();
        long.extend(of_group.into_iter().filter(|&group| self.groups.length(group) >= CHAIN_MAX));
        long.sort_unstable();
        long.dedup();
        // A chain of a single state is as good as a total.
        long.retain(|&group| self.groups.length(group) > 1);
        self.total(&long)?;
        let kept = &self.state.kept;
        if kept.count() >= self.clear_at.0 || kept.bytes_anywhere() >= self.clear_at.1 {
            self.clear()?;
        }
        Ok(())
    }

    /// Fires the windows that end by `time`, in portions: see [`TriggeredTask::go_on`].
    fn fire(&mut self, time: Micros) -> Result<(), TaskError> {
        self.fired = self.fired.max(time);
        if self.next_end <= self.fired {
            self.firing = self.groups.over(|start| self.shape.spans.end(start) <= self.fired)?;
            self.fired_of_firing = 0;
        }
        Ok(())
    }

    /// Fires windows that have already ended, which come from another copy: either its time was behind, or it was ahead
    /// and they have fired there. Rows of these windows are late, so they must not reopen them.
    fn settle(&mut self, emit: &mut Emitter) -> Result<(), TaskError> {
        self.fire(self.fired)?;
        while self.go_on(emit)? == EmitStatus::More {}
        Ok(())
    }

    /// Adds more input rows, or fires more windows.
    fn go_on(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if let Some(rows) = self.rest.take() {
            let (count, most) = (rows.num_rows(), self.rows_max());
            self.add(&rows.slice(0, most.min(count)), emit)?;
            self.weigh(most.min(count))?;
            if count <= most {
                return Ok(EmitStatus::Done);
            }
            self.rest = Some(rows.slice(most, count - most));
            return Ok(EmitStatus::More);
        }
        if self.firing.is_empty() {
            return Ok(EmitStatus::Done);
        }
        let some = self.firing[self.fired_of_firing..].iter().take(FIRE_MAX);
        let some: Vec<_> = some.map(|&group| (group as usize, self.groups.seen(group as usize))).collect();
        self.give(&some, true, emit)?;
        some.iter().for_each(|&(group, _)| self.groups.end_chain(group));
        self.fired_of_firing += some.len();
        if self.fired_of_firing < self.firing.len() {
            return Ok(EmitStatus::More);
        }
        self.firing = SpillVec::default();
        let (next_end, states) = self.groups.open().fold((Micros::MAX, 0_u32), |(end, states), (start, length)| {
            (end.min(self.shape.spans.end(start)), states + length)
        });
        self.next_end = next_end;
        // Not each time: with overlapping windows, most are still open.
        if self.state.kept.count() >= states.saturating_mul(2) {
            self.clear()?;
        }
        Ok(EmitStatus::Done)
    }
}

fn starts_of(kept: &RecordBatch) -> &TimestampMicrosecondArray {
    kept.column(BEFORE).as_primitive()
}

impl SpillableState for TriggeredTask {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.state.kept.bytes() + self.keys.bytes() + self.groups.bytes())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.kept.spill()?;
        self.groups.spill(self.held.disk().governor())?;
        self.keys.spill()
    }
}

impl Operator for TriggeredTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        self.rest = Some(rows);
        self.go_on(emit)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.fire(time.minus(self.shape.behind).0)?;
        self.go_on(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.go_on(emit)
    }

    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        // The snapshot says that these windows have fired.
        self.settle(emit)?;
        Ok(EmitStatus::Done)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.fire(Micros::MAX)?;
        self.go_on(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let fired = (buckets[0], table_of(FIRED, &self.fired.to_le_bytes()));
        self.forget()?;
        let released = self.state.release(buckets)?;
        self.index_anew()?;
        Ok([fired].into_iter().chain(released).collect::<Vec<_>>().into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            for (kind, table) in tables_of(&part)? {
                match kind {
                    FIRED => self.fired = self.fired.max(time_of(&table)?),
                    KEPT => self.take(self.state.rows(&table)?)?,
                    other => {
                        return Err(
                            format!("state handed over by another copy has a part of unknown kind {other}").into()
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        if whole {
            self.clear()?;
        }
        let mut snapshot = shared(self.fired);
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
