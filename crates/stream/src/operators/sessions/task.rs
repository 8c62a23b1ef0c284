//! The second half: sessions of the keys that a copy owns.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::{filter_record_batch, not};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::checkpoint::Snapshot;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::state::SessionState;
use super::{FIRST, LAST, PART_BEFORE, SessionAggregation, times};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LATE_PORT;
use crate::state::operator_memory::{OperatorMemory, SpillableState};
use crate::time::window::{EarlyResults, Micros};

/// Maximum number of results from rows added together, since they stay in memory until all have been added.
const RESULTS_MAX: usize = 1 << 10;

/// The second half of a session aggregation.
pub(crate) struct MergedSessions {
    shape: Arc<SessionAggregation>,
    state: SessionState,
    /// Input rows that have yet to be added.
    rest: Option<RecordBatch>,
    held: OperatorMemory,
}

impl MergedSessions {
    pub(crate) fn new(shape: &Arc<SessionAggregation>, context: &TaskContext) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let state = SessionState::new(shape, context.saves(), held.disk());
        let mut new = MergedSessions { shape: Arc::clone(shape), state, rest: None, held };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&shape.kept_schema, restored)?;
            for table in new.state.restore(restored)? {
                let sessions = reader.read(&table)?;
                let count = sessions.num_rows();
                new.state.keep(sessions)?;
                new.weigh(count)?;
            }
        }
        Ok(new)
    }

    /// Adds parts of sessions, whose last column is their number of rows.
    fn take_parts(&mut self, parts: &RecordBatch) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let keys = &parts.columns()[PART_BEFORE..PART_BEFORE + shape.of.keys.len()];
        let late = self.state.late(keys, times(parts, FIRST), times(parts, LAST))?;
        let mut parts = parts.clone();
        if let Some(late) = late {
            let rows = parts.column(parts.num_columns() - 1).as_primitive::<Int64Type>();
            let count: i64 =
                rows.values().iter().zip(late.values()).filter(|(_, late)| *late).map(|(rows, _)| rows).sum();
            shape.late.add(count as usize);
            parts = filter_record_batch(&parts, &not(&late)?)?;
        }
        let columns = parts.columns()[..parts.num_columns() - 1].to_vec();
        self.state.take(columns, parts.num_rows())
    }

    /// Adds rows with their keys. Late rows go to the late output, or are counted.
    fn take_rows(&mut self, rows: RecordBatch, keyed: &KeyedRows, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let shape = Arc::clone(&self.shape);
        let (mut rows, mut times) = shape.timed(rows)?;
        let keys: Vec<ArrayRef> = rows.columns()[keyed.width..].to_vec();
        if let Some(late) = self.state.late(&keys, times.values(), times.values())? {
            match &shape.late_rows {
                Some(of) => emit.send_to(LATE_PORT, of.of(&filter_record_batch(&rows, &late)?)?),
                None => shape.late.add(late.true_count()),
            }
            rows = filter_record_batch(&rows, &not(&late)?)?;
            (rows, times) = shape.timed(rows)?;
        }
        if let EarlyResults::Rows(_) = shape.times.early {
            self.rest = Some(rows);
            return self.go_on(emit);
        }
        let (columns, counts) = shape.of_rows(&shape.of.arguments(&rows)?, times.values())?;
        self.state.take(columns, counts.len())?;
        self.weigh(rows.num_rows())?;
        Ok(EmitStatus::Done)
    }

    /// Adds more of the input rows, with results by rows, or emits more results of ended or open sessions.
    fn go_on(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let (EarlyResults::Rows(every), Some(rows)) = (self.shape.times.early, self.rest.take()) else {
            let Some(results) = self.state.go_on()? else { return Ok(EmitStatus::Done) };
            emit.send(results);
            return Ok(EmitStatus::More);
        };
        let most = usize::try_from(every).unwrap_or(usize::MAX).saturating_mul(RESULTS_MAX);
        let some = rows.slice(0, rows.num_rows().min(most));
        let (some, times) = self.shape.timed(some)?;
        let count = some.num_rows();
        if count > 0 {
            let results = self.state.add_by_rows(every, &some, times.values())?;
            results.into_iter().for_each(|results| emit.send(results));
        }
        self.weigh(count)?;
        if count == rows.num_rows() {
            return Ok(EmitStatus::Done);
        }
        self.rest = Some(rows.slice(count, rows.num_rows() - count));
        Ok(EmitStatus::More)
    }

    fn fire(&mut self, time: Micros, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.state.fire(time);
        self.go_on(emit)
    }
}

impl SpillableState for MergedSessions {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.state.bytes())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        self.state.spill()
    }
}

impl Operator for MergedSessions {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if let Some(keyed) = self.shape.keyed.clone() {
            return self.take_rows(batch, &keyed, emit);
        }
        self.take_parts(&batch)?;
        self.weigh(batch.num_rows())?;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.fire(time.minus(self.shape.times.behind).0, emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.go_on(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        match self.shape.times.early {
            EarlyResults::Every(every) => Some(Duration::from_micros(every.max(1) as u64)),
            EarlyResults::Never | EarlyResults::Time(_) | EarlyResults::Rows(_) => None,
        }
    }

    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.state.so_far();
        self.go_on(emit)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.fire(Micros::MAX, emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, lost: &[u32]) -> Result<ReleasedParts, TaskError> {
        Ok(self.state.release(lost)?.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            let count = self.state.acquire(&part)?;
            self.weigh(count)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        self.state.snapshot(whole)
    }
}
