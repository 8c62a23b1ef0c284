//! The operator of count windows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::Snapshot;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::CountAggregation;
use super::state::CountState;
use crate::state::operator_memory::{OperatorMemory, SpillableState};

/// The task of count windows.
pub(crate) struct CountTask {
    state: CountState,
    held: OperatorMemory,
}

impl CountTask {
    pub(crate) fn new(shape: &Arc<CountAggregation>, context: &TaskContext) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let mut new = CountTask { state: CountState::new(shape, context.saves(), held.disk()), held };
        if let Some(restored) = context.restored() {
            let reader = shape.layout().reader(&shape.kept_schema, restored)?;
            let mut all = 0;
            for table in new.state.restore(restored)? {
                let panes = reader.read(&table)?;
                let count = panes.num_rows();
                all += count;
                new.state.keep(panes)?;
                new.weigh(count)?;
            }
            new.state.restored(all);
        }
        Ok(new)
    }
}

impl SpillableState for CountTask {
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

impl Operator for CountTask {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.state.take(&rows, |results| emit.send(results))?;
        self.weigh(rows.num_rows())?;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.state.pass(time.0)?;
        Ok(EmitStatus::Done)
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
        Ok(self.state.snapshot(whole))
    }
}
