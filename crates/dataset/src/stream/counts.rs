//! Aggregates of windows that are so many rows of each key, in the order in which they come: rows `[k * slide, k * slide + size)`
//! of the key, for every k. One gives its result with its last row; one that the stream's end cuts short gives none.
//!
//! Windows share panes, as those of time do ([`aggregate`](super::aggregate)). What is known of a pane lies in rows: what a batch
//! brought of it, its key, and how many rows the key had had by then. Rows of a pane are put together when its windows are
//! complete, and now and then all are, so that there are not many more than there are panes. A key whose panes are
//! all over keeps one row, which says how many rows it has had.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StructArray, UInt32Array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::GroupValues;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::operator::{Flow, Released};
use tidemill_dataflow::{Emit, Operator, TaskContext, TaskError};

use super::groups::{Aggregation, batch};
use super::held::{Held, Holds};
use super::kept::{Kept, KeptState};
use super::keyed::Keyed;
use super::saved::{Layout, shared};
use super::window::{Micros, count_fields};
use crate::number_keys::group_values;

/// Rows are put together when there are more than these, and twice as many as the last time.
const COMPACT_MIN: u32 = 1 << 13;
/// Columns of what is kept before the keys: how many rows the key had had, and the pane.
const BEFORE: usize = 2;

/// An aggregation of windows of rows: of a query, the same on all workers.
pub(crate) struct CountAggregation {
    of: Aggregation,
    size: i64,
    slide: i64,
    /// What comes: rows with their keys.
    pub keyed: Arc<Keyed>,
    kept_schema: SchemaRef,
    output: SchemaRef,
    window_at: usize,
}

impl CountAggregation {
    pub(crate) fn new(
        of: Aggregation,
        (size, slide): (i64, i64),
        keyed: Keyed,
        output: SchemaRef,
        window_at: usize,
    ) -> Self {
        let number = |name| Arc::new(Field::new(name, DataType::Int64, false));
        let before = [number("tidemill seen"), number("tidemill pane")];
        let kept_schema = Arc::new(Schema::new(
            before.into_iter().chain(of.state_schema.fields().iter().cloned()).collect::<Vec<_>>(),
        ));
        CountAggregation { of, size, slide, keyed: Arc::new(keyed), kept_schema, output, window_at }
    }

    /// What is kept.
    pub(crate) fn state(&self) -> StateSchema {
        let CountAggregation { size, slide, .. } = self;
        StateSchema::new(format!("windows of {size} rows every {slide} rows"), self.layout().fields().collect())
    }

    fn layout(&self) -> Layout {
        Layout::of_aggregation(&self.of, BEFORE)
    }

    /// The rows of a pane.
    fn pane(&self) -> i64 {
        let (mut a, mut b) = (self.size, self.slide);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    /// How many windows are complete when there are so many rows.
    fn complete(&self, rows: i64) -> i64 {
        if rows < self.size { 0 } else { (rows - self.size) / self.slide + 1 }
    }

    /// Whether all windows of a pane are complete when there are so many rows.
    fn over(&self, pane: i64, rows: i64) -> bool {
        pane * self.pane() / self.slide < self.complete(rows)
    }

    fn keys(&self) -> Vec<usize> {
        (BEFORE..BEFORE + self.of.keys.len()).collect()
    }

    fn key_values(&self) -> Result<Option<Box<dyn GroupValues>>> {
        let keyed = !self.of.keys.is_empty();
        keyed.then(|| group_values(&self.of.key_schema)).transpose()
    }

    /// What is to be kept of groups: their first rows' keys, and states.
    fn kept(&self, groups: &[Group], keys: &[ArrayRef], states: Vec<ArrayRef>) -> Result<RecordBatch> {
        let number = |of: fn(&Group) -> i64| Arc::new(Int64Array::from_iter_values(groups.iter().map(of))) as ArrayRef;
        let rows = UInt32Array::from_iter_values(groups.iter().map(|group| group.row));
        let mut columns = vec![number(|group| group.seen), number(|group| group.pane)];
        for key in keys {
            columns.push(take(key, &rows, None)?);
        }
        columns.extend(states);
        batch(&self.kept_schema, columns, groups.len())
    }
}

/// A pane of a key, as some rows know it.
struct Group {
    pane: i64,
    seen: i64,
    /// One of the rows.
    row: u32,
}

/// Numbers groups by key and pane, in the order in which they come.
#[derive(Default)]
struct Grouping {
    groups: Vec<Group>,
    of: HashMap<(usize, i64), usize>,
}

impl Grouping {
    fn add(&mut self, key: usize, pane: i64, row: usize, seen: i64) -> usize {
        let groups = &mut self.groups;
        let at = *self.of.entry((key, pane)).or_insert_with(|| {
            groups.push(Group { pane, seen, row: row as u32 });
            groups.len() - 1
        });
        groups[at].seen = groups[at].seen.max(seen);
        at
    }
}

/// What is known of a key.
#[derive(Clone, Default)]
struct Key {
    /// Rows it has had.
    seen: i64,
    /// The number of the newest of what is kept, more by one.
    newest: u32,
}

/// See the module.
pub(crate) struct CountTask {
    shape: Arc<CountAggregation>,
    keys: Option<Box<dyn GroupValues>>,
    by_key: Vec<Key>,
    state: KeptState,
    /// Of what is kept, by number: the pane, and the number of the row of the key before it, more by one.
    panes: Vec<i64>,
    before: Vec<u32>,
    compact_at: u32,
    held: Held,
}

impl CountTask {
    pub(crate) fn new(shape: &Arc<CountAggregation>, context: &TaskContext) -> Result<Self, TaskError> {
        let (by_key, panes, before) = Default::default();
        let held = Held::new(context);
        let kept = Kept::new(Arc::clone(&shape.kept_schema), held.disk());
        let mut new = CountTask {
            shape: Arc::clone(shape),
            keys: shape.key_values()?,
            by_key,
            state: KeptState::new(kept, shape.keys()),
            panes,
            before,
            compact_at: COMPACT_MIN,
            held,
        };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&shape.kept_schema, restored)?;
            for (_, table) in new.state.restore(restored)? {
                new.take(reader.read(&table)?)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// The number of each row's key.
    fn intern(&mut self, keys: &[ArrayRef], rows: usize) -> Result<Vec<usize>> {
        let mut of = vec![0; rows];
        let count = match &mut self.keys {
            Some(values) => {
                values.intern(keys, &mut of)?;
                values.len()
            }
            None => 1,
        };
        self.by_key.resize(count.max(self.by_key.len()), Key::default());
        Ok(of)
    }

    /// Takes what was saved, or another copy has let go of.
    fn take(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        let count = rows.num_rows();
        self.keep(rows)?;
        self.weigh(count)
    }

    /// Keeps rows, of each key those of earlier panes first.
    fn keep(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        self.index(&rows)?;
        self.state.kept.add(rows, Vec::new())
    }

    /// Chains rows that come behind those that are chained.
    fn index(&mut self, rows: &RecordBatch) -> Result<()> {
        let keys = &rows.columns()[BEFORE..BEFORE + self.shape.of.keys.len()];
        let of = self.intern(keys, rows.num_rows())?;
        let numbers = |column: usize| rows.column(column).as_primitive::<Int64Type>().values().iter();
        for ((key, &seen), &pane) in of.into_iter().zip(numbers(0)).zip(numbers(1)) {
            let key = &mut self.by_key[key];
            key.seen = seen.max(key.seen);
            self.before.push(std::mem::replace(&mut key.newest, self.panes.len() as u32 + 1));
            self.panes.push(pane);
        }
        Ok(())
    }

    /// Chains what is kept anew: its numbers have changed.
    fn index_anew(&mut self) -> Result<()> {
        self.by_key.iter_mut().for_each(|key| key.newest = 0);
        (self.panes, self.before) = Default::default();
        self.state.kept.since(0).iter().try_for_each(|rows| self.index(rows))
    }

    /// The numbers of the rows of a key's panes from `low` until before `high`, in their order.
    fn numbers(&self, key: usize, low: i64, high: i64) -> Vec<u32> {
        let mut next = self.by_key[key].newest;
        let mut found = Vec::new();
        while next > 0 && self.panes[next as usize - 1] >= low {
            if self.panes[next as usize - 1] < high {
                found.push(next - 1);
            }
            next = self.before[next as usize - 1];
        }
        found.reverse();
        found
    }

    /// Gives windows, each a key and its number.
    fn give(&mut self, windows: &[(usize, i64)], emit: &mut Emit) -> Result<()> {
        if windows.is_empty() {
            return Ok(());
        }
        let shape = Arc::clone(&self.shape);
        let (mut numbers, mut of, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, &(key, window)) in windows.iter().enumerate() {
            let start = window * shape.slide;
            let found = self.numbers(key, start / shape.pane(), (start + shape.size) / shape.pane());
            firsts.push(found.first().copied().unwrap_or_default());
            of.resize(of.len() + found.len(), at);
            numbers.extend(found);
        }
        let keys = shape.of.keys.len();
        let kept = &self.state.kept;
        let states = BEFORE + keys..shape.kept_schema.fields().len();
        let states = states.map(|column| kept.gather(column, &numbers)).collect::<Result<Vec<_>>>()?;
        let mut columns = shape.keys().into_iter().map(|key| kept.gather(key, &firsts)).collect::<Result<Vec<_>>>()?;
        let starts = windows.iter().map(|(_, window)| window * shape.slide);
        let ends = starts.clone().map(|start| start + shape.size);
        let bounds: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from_iter_values(starts)), Arc::new(Int64Array::from_iter_values(ends))];
        columns.insert(shape.window_at, Arc::new(StructArray::new(count_fields(), bounds, None)));
        for mut function in shape.of.merged(&states, &of, windows.len())? {
            columns.push(function.evaluate(EmitTo::All)?);
        }
        emit.send(batch(&shape.output, columns, windows.len())?);
        Ok(())
    }

    /// Puts what is kept together, and throws out what is over.
    fn compact(&mut self) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let all = concat_batches(&shape.kept_schema, &self.state.kept.since(0))?;
        let keys = all.columns()[BEFORE..BEFORE + shape.of.keys.len()].to_vec();
        let of_key = self.intern(&keys, all.num_rows())?;
        let (mut grouping, mut rows, mut of) = (Grouping::default(), Vec::new(), Vec::new());
        for (row, (&key, &pane)) in of_key.iter().zip(&self.panes).enumerate() {
            let seen = self.by_key[key].seen;
            // The last pane says how many rows there were, over or not.
            if !shape.over(pane, seen) || pane == (seen - 1) / shape.pane() {
                of.push(grouping.add(key, pane, row, seen));
                rows.push(row as u32);
            }
        }
        let rows = UInt32Array::from(rows);
        let states = all.columns()[BEFORE + keys.len()..].iter().map(|states| take(states, &rows, None));
        let states = states.collect::<std::result::Result<Vec<_>, _>>()?;
        let mut columns = Vec::new();
        for mut function in shape.of.merged(&states, &of, grouping.groups.len())? {
            columns.extend(function.state(EmitTo::All)?);
        }
        self.state.replace(shape.kept(&grouping.groups, &keys, columns)?)?;
        self.index_anew()?;
        self.compact_at = self.state.kept.count().saturating_mul(2).max(COMPACT_MIN);
        Ok(())
    }
}

impl Holds for CountTask {
    fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        let keys = self.keys.as_ref().map_or(0, |keys| keys.size()) + size_of_val(self.by_key.as_slice());
        let chains = size_of_val(self.panes.as_slice()) + size_of_val(self.before.as_slice());
        Ok(self.state.kept.bytes() + keys + chains)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.kept.spill()
    }
}

impl Operator for CountTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let shape = Arc::clone(&self.shape);
        let rows_of = shape.of.arguments(&rows)?;
        let of_key = self.intern(&rows_of.keys, rows.num_rows())?;
        let (mut grouping, mut of, mut windows) = (Grouping::default(), Vec::new(), Vec::new());
        let mut seen: HashMap<usize, i64> = HashMap::new();
        for (row, key) in of_key.into_iter().enumerate() {
            let seen = seen.entry(key).or_insert(self.by_key[key].seen);
            let pane = *seen / shape.pane();
            *seen += 1;
            of.push(grouping.add(key, pane, row, *seen));
            if shape.complete(*seen) > shape.complete(*seen - 1) {
                windows.push((key, shape.complete(*seen) - 1));
            }
        }
        let count = grouping.groups.len();
        let mut states = Vec::new();
        for mut function in shape.of.updated(&rows_of, &of, count)? {
            states.extend(function.state(EmitTo::All)?);
        }
        self.keep(shape.kept(&grouping.groups, &rows_of.keys, states)?)?;
        self.give(&windows, emit)?;
        self.weigh(rows.num_rows())?;
        if self.state.kept.count() >= self.compact_at {
            self.compact()?;
        }
        Ok(Flow::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Released, TaskError> {
        let released = self.state.release(buckets)?;
        self.index_anew()?;
        Ok(released.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, table) in self.state.acquired(&parts)? {
            self.take(self.state.rows(&table)?)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        if whole {
            self.compact()?;
        }
        let mut snapshot = shared(Micros::MIN);
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
