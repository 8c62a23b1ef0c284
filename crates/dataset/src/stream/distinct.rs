//! Each key once: the first row that has it goes on, at once; others do not. Keys are remembered for ever, or, when one of
//! their columns tells time, until no more rows can have them.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::operator::{Flow, Released};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emit, Operator, TaskContext, TaskError};

use super::groups::batch;
use super::held::{Held, Holds};
use super::kept::{Kept, KeptState};
use super::keyed::Keyed;
use super::keys::KeyIndex;
use super::saved::{Layout, fired_of, shared};
use super::times::{TimeOf, until_of};
use super::window::Micros;

/// Keys are forgotten when there are more than these, and half of them may be.
const CLEAR_MIN: u32 = 1 << 13;

/// Of a query, the same on all workers.
pub(crate) struct Distinct {
    pub keyed: Arc<Keyed>,
    /// Among the columns of the key.
    pub times: Vec<TimeOf>,
    /// What goes on of a row.
    pub gives: Vec<Arc<dyn PhysicalExpr>>,
    pub output: SchemaRef,
}

impl Distinct {
    fn key_schema(&self) -> Result<SchemaRef> {
        Ok(Arc::new(self.keyed.schema.project(&self.keyed.keys())?))
    }

    /// What is kept.
    pub(crate) fn state(&self) -> StateSchema {
        StateSchema::new("distinct keys", self.layout().fields().collect())
    }

    fn layout(&self) -> Layout {
        self.keyed.layout_of_keys()
    }
}

/// See the module.
pub(crate) struct DistinctTask {
    shape: Arc<Distinct>,
    seen: KeyIndex,
    state: KeptState,
    now: Micros,
    clear_at: u32,
    held: Held,
}

impl DistinctTask {
    pub(crate) fn new(shape: &Arc<Distinct>, context: &TaskContext) -> Result<Self, TaskError> {
        let schema = shape.key_schema()?;
        let keys = (0..schema.fields().len()).collect();
        let held = Held::new(context);
        let kept = Kept::new(Arc::clone(&schema), held.disk());
        let mut new = DistinctTask {
            shape: Arc::clone(shape),
            seen: KeyIndex::default(),
            state: KeptState::new(kept, keys),
            now: Micros::MIN,
            clear_at: CLEAR_MIN,
            held,
        };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&new.state.kept.schema(), restored)?;
            new.now = fired_of(restored)?;
            for (_, table) in new.state.restore(restored)? {
                let keys = reader.read(&table)?;
                let count = keys.num_rows();
                new.remember(keys)?;
                new.weigh(count)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// Remembers keys. Returns the first rows that have them.
    fn remember(&mut self, keys: RecordBatch) -> Result<UInt32Array, TaskError> {
        let first = self.seen.intern(&self.state.kept, &keys)?.new;
        if !first.is_empty() {
            let new = take_record_batch(&keys, &first)?;
            let mut until = if self.shape.times.is_empty() { Vec::new() } else { until_of(&self.shape.times, &new)? };
            // A key without a time may come again at any.
            until.iter_mut().filter(|until| **until == Micros::MIN).for_each(|until| *until = Micros::MAX);
            self.state.kept.add(new, until)?;
        }
        Ok(first)
    }

    /// Forgets keys that cannot come again.
    fn clear(&mut self) -> Result<(), TaskError> {
        self.state.clear(self.now)?;
        self.seen.rebuild(&self.state.kept)?;
        self.clear_at = self.state.kept.count().saturating_mul(2).max(CLEAR_MIN);
        Ok(())
    }
}

impl Holds for DistinctTask {
    fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.state.kept.bytes() + self.seen.bytes())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.kept.spill()?;
        self.seen.spill(self.held.disk())
    }
}

impl Operator for DistinctTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let keys =
            batch(&self.shape.key_schema()?, rows.columns()[self.shape.keyed.width..].to_vec(), rows.num_rows())?;
        let count = rows.num_rows();
        let first = self.remember(keys)?;
        if !first.is_empty() {
            let rows = take_record_batch(&rows, &first)?;
            let columns = self.shape.gives.iter().map(|expr| expr.evaluate(&rows)?.into_array(rows.num_rows()));
            emit.send(batch(&self.shape.output, columns.collect::<Result<_>>()?, rows.num_rows())?);
        }
        self.weigh(count)?;
        if !self.shape.times.is_empty() && self.state.kept.count() >= self.clear_at {
            self.clear()?;
        }
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emit) -> Result<Flow, TaskError> {
        self.now = self.now.max(time.0);
        Ok(Flow::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Released, TaskError> {
        let released = self.state.release(buckets)?;
        self.clear()?;
        Ok(released.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, table) in self.state.acquired(&parts)? {
            let keys = self.state.rows(&table)?;
            let count = keys.num_rows();
            self.remember(keys)?;
            self.weigh(count)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.now);
        if whole && !self.shape.times.is_empty() {
            self.clear()?;
        }
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
