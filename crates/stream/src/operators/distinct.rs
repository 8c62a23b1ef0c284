//! Distinct keys: the first row with a key passes immediately, and others are dropped. Keys are remembered forever; or,
//! if one of their columns tells time, until no more rows can have them; or for a *time to live*: then a row also
//! passes if it is at least this much later than the last row of its key that did.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, is_not_null, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::memory::SpillVec;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateCount;
use crate::state::expiring_rows::{ExpiringRows, KeptState};
use crate::state::groups::batch;
use crate::state::keys::KeyIndex;
use crate::state::operator_memory::{OperatorMemory, SpillableState};
use crate::state::state_layout::{StateLayout, fired_of, shared};
use crate::time::times::{TimeOf, until_of};
use crate::time::window::Micros;

/// Minimum number of keys before some are forgotten; half of them must have expired, too.
const CLEAR_MIN: u32 = 1 << 13;
/// The expiry of keys that are not remembered.
const STALE: Micros = Micros::MIN;

/// The configuration of a query, the same on all workers.
pub(crate) struct DistinctQuery {
    pub keyed: Arc<KeyedRows>,
    /// The time columns of the key.
    pub times: Vec<TimeOf>,
    /// The time of a row, and how long its key is remembered.
    pub ttl: Option<(TimeOf, Micros)>,
    /// Counts rows without a time, if they need one.
    pub untimed: LateCount,
    /// The output columns of a row.
    pub gives: Vec<Arc<dyn PhysicalExpr>>,
    pub output: SchemaRef,
}

impl DistinctQuery {
    fn key_schema(&self) -> Result<SchemaRef> {
        Ok(Arc::new(self.keyed.schema.project(&self.keyed.keys())?))
    }

    /// The stored columns: keys, and when each expires unless its own columns tell.
    fn kept_schema(&self) -> Result<SchemaRef> {
        let keys = self.key_schema()?;
        let until = self.ttl.as_ref().map(|_| Arc::new(Field::new("tidemill until", DataType::Int64, false)));
        Ok(Arc::new(Schema::new(keys.fields().iter().cloned().chain(until).collect::<Vec<_>>())))
    }

    /// The task's state.
    pub(crate) fn state(&self) -> StateSchema {
        let what = if self.ttl.is_some() { "distinct keys for a time" } else { "distinct keys" };
        StateSchema::new(what, self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        self.keyed.layout_of_keys()
    }
}

/// The task of distinct keys.
pub(crate) struct DistinctTask {
    shape: Arc<DistinctQuery>,
    seen: KeyIndex,
    state: KeptState,
    now: Micros,
    clear_at: u32,
    /// With a time to live, by number: when the key expires; [`STALE`] if the key has a new number.
    until: SpillVec<Micros>,
    held: OperatorMemory,
}

impl DistinctTask {
    pub(crate) fn new(shape: &Arc<DistinctQuery>, context: &TaskContext) -> Result<Self, TaskError> {
        let keys = (0..shape.key_schema()?.fields().len()).collect();
        let held = OperatorMemory::new(context);
        let kept = ExpiringRows::new(shape.kept_schema()?, held.disk());
        let mut new = DistinctTask {
            shape: Arc::clone(shape),
            seen: KeyIndex::default(),
            state: KeptState::new(kept, keys),
            now: Micros::MIN,
            clear_at: CLEAR_MIN,
            until: SpillVec::default(),
            held,
        };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&new.state.kept.schema(), restored)?;
            new.now = fired_of(restored)?;
            for (_, table) in new.state.restore(restored)? {
                new.take(reader.read(&table)?)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// Remembers keys. Returns the first rows of new ones.
    fn remember(&mut self, keys: RecordBatch) -> Result<UInt32Array, TaskError> {
        let first = self.seen.intern(&self.state.kept, &keys)?.new;
        if !first.is_empty() {
            let new = take_record_batch(&keys, &first)?;
            let mut until = if self.shape.times.is_empty() { Vec::new() } else { until_of(&self.shape.times, &new)? };
            // A key without a time may occur again at any time.
            until.iter_mut().filter(|until| **until == Micros::MIN).for_each(|until| *until = Micros::MAX);
            self.state.kept.add(new, until)?;
        }
        Ok(first)
    }

    /// Whether keys are forgotten.
    fn forgets(&self) -> bool {
        !self.shape.times.is_empty() || self.shape.ttl.is_some()
    }

    /// Keys that expire by this time are forgotten: a row that is not late is not earlier, so it passes.
    fn over(&self, time: &TimeOf) -> Micros {
        self.now.saturating_sub(time.behind)
    }

    /// The rows of a batch that have a time, if rows need one; counts the others.
    fn timed(&self, rows: RecordBatch) -> Result<RecordBatch> {
        let Some((time, _)) = &self.shape.ttl else { return Ok(rows) };
        let times = time.place.values(&rows)?;
        if times.null_count() == 0 {
            return Ok(rows);
        }
        self.shape.untimed.add_untimed(times.null_count());
        Ok(filter_record_batch(&rows, &is_not_null(&times)?)?)
    }

    /// Adds keys that were saved, or that another copy has handed over.
    fn take(&mut self, kept: RecordBatch) -> Result<(), TaskError> {
        let count = kept.num_rows();
        if self.shape.ttl.is_some() {
            let columns = kept.num_columns() - 1;
            let until = kept.column(columns).as_primitive::<Int64Type>().values().to_vec();
            let keys = kept.project(&(0..columns).collect::<Vec<_>>())?;
            // A key may occur twice: the later row is the more recent one.
            self.remember_until(&keys, |row, _| Some(until[row]))?;
        } else {
            self.remember(kept)?;
        }
        self.weigh(count)
    }

    /// Remembers keys for a time. For a row, given when its key expires (if it is known), `goes_on` returns the new
    /// expiry if the row passes. Returns the rows that pass.
    fn remember_until(
        &mut self,
        keys: &RecordBatch,
        goes_on: impl Fn(usize, Option<Micros>) -> Option<Micros>,
    ) -> Result<UInt32Array, TaskError> {
        let known = self.state.kept.count();
        let numbers = self.seen.intern(&self.state.kept, keys)?.numbers;
        let (mut went_on, mut firsts) = (Vec::new(), Vec::new());
        // By known key: the last row that passed.
        let mut again: BTreeMap<u32, u32> = BTreeMap::new();
        for (row, number) in (0..).zip(numbers) {
            let at = number as usize;
            let before = self.until.get(at).copied();
            let Some(until) = goes_on(row as usize, before) else { continue };
            went_on.push(row);
            match before {
                // New keys get the next numbers, in the order of their rows.
                None => {
                    assert!(at == self.until.len(), "a key that is new is remembered");
                    self.until.extend_from_slice(&[until])?;
                    firsts.push(row);
                }
                Some(_) => {
                    self.until[at] = until;
                    if number < known {
                        again.insert(number, row);
                    }
                }
            }
        }
        self.keep(keys, firsts, known)?;
        if !again.is_empty() {
            // Stored rows do not change: these keys are stored again, and their previous rows become stale.
            let first = self.state.kept.count();
            let (old, rows): (Vec<u32>, Vec<u32>) = again.into_iter().unzip();
            self.seen.renumber(&take_record_batch(keys, &UInt32Array::from(rows.clone()))?, &old, first)?;
            let new: Vec<Micros> =
                old.into_iter().map(|number| std::mem::replace(&mut self.until[number as usize], STALE)).collect();
            self.until.extend_from_slice(&new)?;
            self.keep(keys, rows, first)?;
        }
        Ok(went_on.into())
    }

    /// Stores the keys of some rows, which have the numbers from `first` on.
    fn keep(&mut self, keys: &RecordBatch, rows: Vec<u32>, first: u32) -> Result<(), TaskError> {
        if rows.is_empty() {
            return Ok(());
        }
        let count = rows.len();
        let mut columns = take_record_batch(keys, &UInt32Array::from(rows))?.columns().to_vec();
        let until = &self.until[first as usize..][..count];
        columns.push(Arc::new(Int64Array::from(until.to_vec())) as ArrayRef);
        self.state.kept.add(batch(&self.state.kept.schema(), columns, count)?, Vec::new())
    }

    /// Forgets keys that have expired.
    fn clear(&mut self) -> Result<(), TaskError> {
        match &self.shape.ttl {
            None => self.state.clear(self.now)?,
            Some((time, _)) => {
                let (until, over) = (&self.until, self.over(time));
                self.state.retain(|number| until[number as usize] > over)?;
            }
        }
        self.index_anew()?;
        self.clear_at = self.state.kept.count().saturating_mul(2).max(CLEAR_MIN);
        Ok(())
    }

    /// Rebuilds the index after numbers have changed. No key is stored twice.
    fn index_anew(&mut self) -> Result<(), TaskError> {
        let columns = self.shape.keyed.keys().len();
        if self.shape.ttl.is_some() {
            self.until.resize(0)?;
            for rows in self.state.kept.since(0) {
                self.until.extend_from_slice(rows.column(columns).as_primitive::<Int64Type>().values())?;
            }
        }
        self.seen.rebuild(&self.state.kept, columns)
    }
}

impl SpillableState for DistinctTask {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.state.kept.bytes() + self.seen.bytes() + self.until.bytes())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.kept.spill()?;
        if self.shape.ttl.is_some() {
            self.until.spill(self.held.disk().governor())?;
        }
        self.seen.spill(self.held.disk())
    }
}

impl Operator for DistinctTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let rows = self.timed(rows)?;
        let keys =
            batch(&self.shape.key_schema()?, rows.columns()[self.shape.keyed.width..].to_vec(), rows.num_rows())?;
        let count = rows.num_rows();
        let shape = Arc::clone(&self.shape);
        let first = match &shape.ttl {
            None => self.remember(keys)?,
            Some((time, ttl)) => {
                let times = time.place.values(&rows)?;
                // Whether a late row passes must not depend on when expired keys were last removed.
                let over = self.over(time);
                self.remember_until(&keys, |row, before| {
                    let at = times.value(row);
                    before.is_none_or(|before| at >= before || before <= over).then(|| at.saturating_add(*ttl))
                })?
            }
        };
        if !first.is_empty() {
            let rows = take_record_batch(&rows, &first)?;
            let columns = self.shape.gives.iter().map(|expr| expr.evaluate(&rows)?.into_array(rows.num_rows()));
            emit.send(batch(&self.shape.output, columns.collect::<Result<_>>()?, rows.num_rows())?);
        }
        self.weigh(count)?;
        if self.forgets() && self.state.kept.count() >= self.clear_at {
            self.clear()?;
        }
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.now = self.now.max(time.0);
        Ok(EmitStatus::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        if self.forgets() {
            self.clear()?;
        }
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
        let mut snapshot = shared(self.now);
        if whole && self.forgets() {
            self.clear()?;
        }
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
