//! Groups that are complete once a time has passed, because one of their keys tells time, such as the results of one
//! window. Their rows are stored until then; a part of the query's plan then runs over them as over a table. So streams
//! support whatever plans can do with groups: rank them, take their first rows, aggregate them again.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateCount;
use crate::rows::steps::PlanStep;
use crate::state::expiring_rows::{ExpiringRows, KeptState};
use crate::state::groups::batch;
use crate::state::operator_memory::{OperatorMemory, SpillableState};
use crate::state::state_layout::{StateLayout, fired_by, fired_of, shared};
use crate::time::times::{TimeOf, until_of};
use crate::time::window::Micros;

/// Minimum number of expired rows before they are removed; they must also be half of all rows.
const CLEAR_MIN: u32 = 1 << 13;

/// The configuration of a query, the same on all workers.
pub(crate) struct WindowedPlan {
    pub keyed: Arc<KeyedRows>,
    /// The schema of the rows, before keys were added.
    pub rows: SchemaRef,
    /// The time columns among the keyed rows.
    pub times: Vec<TimeOf>,
    pub plan: PlanStep,
    pub late: LateCount,
}

impl WindowedPlan {
    /// The task's state.
    pub(crate) fn state(&self) -> StateSchema {
        StateSchema::new("rows of groups", self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        self.keyed.layout(&self.rows, "")
    }
}

/// The task of complete groups.
pub(crate) struct CompleteTask {
    shape: Arc<WindowedPlan>,
    plan: PlanStep,
    state: KeptState,
    now: Micros,
    /// Whether the state contains groups that have expired and were not emitted.
    overdue: bool,
    /// The number of expired rows still stored.
    over: u32,
    held: OperatorMemory,
}

impl CompleteTask {
    pub(crate) fn new(shape: &Arc<WindowedPlan>, context: &TaskContext) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let kept = ExpiringRows::new(Arc::clone(&shape.keyed.schema), held.disk());
        let mut new = CompleteTask {
            shape: Arc::clone(shape),
            plan: shape.plan.clone(),
            state: KeptState::new(kept, shape.keyed.keys()),
            now: Micros::MIN,
            overdue: false,
            over: 0,
            held,
        };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&shape.keyed.schema, restored)?;
            new.now = fired_of(restored)?;
            for (bucket, table) in new.state.restore(restored)? {
                // Groups emitted before are not in the state; groups that a slower copy had not emitted are emitted
                // now.
                let given = fired_by(restored, bucket)?.unwrap_or(new.now);
                let rows = reader.read(&table)?;
                let count = rows.num_rows();
                new.keep(rows, given)?;
                new.weigh(count)?;
            }
            new.state.restored();
        }
        Ok(new)
    }

    /// Stores rows of groups that were not emitted, that is, that end after a time. Returns how many rows do not.
    fn keep(&mut self, rows: RecordBatch, given: Micros) -> Result<usize, TaskError> {
        let until = until_of(&self.shape.times, &rows)?;
        self.overdue |= until.iter().any(|until| (given..self.now).contains(until));
        if until.iter().all(|&until| until >= given) {
            self.state.kept.add(rows, until)?;
            return Ok(0);
        }
        // Rows without a time are in no group that will ever be complete.
        let over = until.iter().filter(|&&until| until < given && until > Micros::MIN).count();
        let wanted = until.iter().map(|&until| Some(until >= given)).collect();
        let until = until.iter().copied().filter(|&until| until >= given).collect();
        self.state.kept.add(filter_record_batch(&rows, &wanted)?, until)?;
        Ok(over)
    }

    /// Emits the groups left over by another copy whose time was behind.
    fn settle(&mut self, emit: &mut Emitter) -> Result<(), TaskError> {
        if std::mem::take(&mut self.overdue) {
            let over = self.state.kept.over(Micros::MIN, self.now);
            self.give(&over, emit)?;
            self.over += over.len() as u32;
        }
        Ok(())
    }

    /// Emits the results of the plan over these rows.
    fn give(&mut self, numbers: &[u32], emit: &mut Emitter) -> Result<(), TaskError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let columns = (0..self.shape.keyed.width).map(|column| self.state.kept.gather(column, numbers));
        let rows = batch(&self.shape.rows, columns.collect::<Result<_>>()?, numbers.len())?;
        self.plan.apply(rows)?.into_iter().filter(|rows| rows.num_rows() > 0).for_each(|rows| emit.send(rows));
        Ok(())
    }
}

impl SpillableState for CompleteTask {
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

impl Operator for CompleteTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        let count = rows.num_rows();
        let late = self.keep(rows, self.now)?;
        self.shape.late.add(late);
        self.weigh(count)?;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        let over = self.state.kept.over(self.now, time.0);
        self.now = self.now.max(time.0);
        self.give(&over, emit)?;
        self.over += over.len() as u32;
        if self.over > CLEAR_MIN && self.over > self.state.kept.count() / 2 || self.over == self.state.kept.count() {
            self.over = 0;
            self.state.clear(self.now)?;
        }
        Ok(EmitStatus::Done)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        let rest = self.state.kept.over(self.now, Micros::MAX);
        self.give(&rest, emit)?;
        Ok(EmitStatus::Done)
    }

    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.settle(emit)?;
        Ok(EmitStatus::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        self.state.clear(self.now)?;
        self.over = 0;
        Ok(self.state.release(buckets)?.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        // Expired rows still stored were emitted, unless another copy has just handed them over; new rows were not.
        if !self.overdue {
            self.state.clear(self.now)?;
            self.over = 0;
        }
        for (_, table) in self.state.acquired(&parts)? {
            let rows = self.state.rows(&table)?;
            let count = rows.num_rows();
            self.keep(rows, Micros::MIN)?;
            self.weigh(count)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.now);
        snapshot.later = self.state.snapshot(whole);
        Ok(snapshot)
    }
}
