//! The first half: aggregates the rows of one copy, next to the source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch};
use datafusion::error::Result;
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::{WindowAggregation, by_pane};
use crate::rows::steps::RowSteps;
use crate::state::groups::{AggregateArguments, GroupStates, batch};
use crate::state::operator_memory::OperatorMemory;
use crate::time::window::{Micros, micros};

/// The first half sends what it has when it holds more than this.
const HELD_BYTES_MAX: usize = 32 << 20;
/// If most rows had distinct keys, this many times as many rows are sent batch by batch before that is checked again:
/// holding them does not reduce their number, and the table of one batch stays in the processor's cache.
const PASS_TIMES: usize = 16;

/// The first half of a window aggregation.
pub(crate) struct PartialWindows {
    shape: Arc<WindowAggregation>,
    steps: RowSteps,
    panes: BTreeMap<Micros, GroupRows>,
    time: Micros,
    held: OperatorMemory,
    /// Rows since everything was last sent.
    rows: usize,
    /// Rows that are yet to be sent batch by batch.
    passing: usize,
}

/// Groups, and the number of rows of each.
struct GroupRows {
    groups: GroupStates,
    rows: Vec<i64>,
}

impl GroupRows {
    fn update(&mut self, rows: &AggregateArguments, count: usize) -> Result<()> {
        self.groups.update(rows, count)?;
        self.rows.resize(self.groups.len(), 0);
        self.groups.last().iter().for_each(|&group| self.rows[group] += 1);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.rows.capacity() * size_of::<i64>()
    }
}

impl PartialWindows {
    pub(crate) fn new(shape: &Arc<WindowAggregation>, steps: RowSteps, context: &TaskContext) -> Self {
        let held = OperatorMemory::new(context);
        let shape = Arc::clone(shape);
        PartialWindows { shape, steps, panes: BTreeMap::new(), time: Micros::MIN, held, rows: 0, passing: 0 }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let times = micros(&shape.time.evaluate(batch)?.into_array(batch.num_rows())?)?;
        shape.late.add_untimed(times.null_count());
        let all = shape.of.arguments(batch)?;
        self.rows += batch.num_rows();
        for (pane, rows) in by_pane(&times, |time| shape.spans.pane(time)) {
            if shape.over(pane) <= self.time {
                shape.late.add(rows.map_or(batch.num_rows(), |rows| rows.len()));
                continue;
            }
            let groups = match self.panes.entry(pane) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(GroupRows { groups: GroupStates::new(&shape.of)?, rows: Vec::new() })
                }
            };
            match rows {
                None => groups.update(&all, batch.num_rows())?,
                Some(rows) => groups.update(&all.take(&rows)?, rows.len())?,
            }
        }
        Ok(())
    }

    /// Sends everything; panes may still get more rows.
    fn send_all(&mut self, emit: &mut Emitter) -> Result<(), TaskError> {
        self.rows = 0;
        self.send(|_| true, false, emit)
    }

    /// Sends the panes selected by `which`. If `done`, they get no more rows.
    fn send(&mut self, which: impl Fn(Micros) -> bool, done: bool, emit: &mut Emitter) -> Result<(), TaskError> {
        // A single table is reused, most likely for as many keys. With several panes, their tables would take memory
        // for nothing, and one that is most of the allowed memory would be sent again with few keys.
        let again = !done && self.panes.len() == 1;
        for (&pane, GroupRows { groups, rows }) in self.panes.iter_mut().filter(|(pane, _)| which(**pane)) {
            if groups.len() == 0 {
                continue;
            }
            let states = self.shape.of_pane(pane, &groups.take_states()?)?;
            let (count, rows) = (states.num_rows(), Int64Array::from(std::mem::take(rows)));
            let columns = states.columns().iter().cloned().chain([Arc::new(rows) as ArrayRef]);
            emit.send(batch(&self.shape.part_schema, columns.collect(), count)?);
        }
        self.panes.retain(|&pane, held| !which(pane) || again && held.bytes() <= HELD_BYTES_MAX / 2);
        Ok(())
    }
}

impl Operator for PartialWindows {
    fn begin(&mut self, context: &TaskContext) {
        self.steps.begin(context);
    }

    fn calls_program(&self) -> bool {
        self.steps.calls_program()
    }

    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let rows = batch.num_rows();
        for batch in self.steps.apply(batch)? {
            self.add(&batch)?;
        }
        if self.passing > 0 {
            self.passing = self.passing.saturating_sub(rows);
            self.send_all(emit)?;
        } else if self.held.is_due(rows) {
            let bytes = self.panes.values().map(GroupRows::bytes).sum::<usize>();
            if bytes > HELD_BYTES_MAX || !self.held.fits(bytes) {
                let groups: usize = self.panes.values().map(|held| held.groups.len()).sum();
                // With several panes, a batch would become many small ones.
                if self.panes.len() == 1 && groups > self.rows / 2 {
                    self.passing = PASS_TIMES * self.rows;
                }
                self.send_all(emit)?;
                self.held.free();
            }
        }
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let time = time.minus(self.shape.behind);
        let shape = Arc::clone(&self.shape);
        self.send(|pane| shape.spans.pane(pane).1 <= time.0, true, emit)?;
        self.time = time.0;
        Ok(EmitStatus::Done)
    }

    fn on_idle(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        // The owner of a key no longer waits for these.
        self.send_all(emit)?;
        Ok(EmitStatus::Done)
    }

    fn ticks(&self) -> Option<Duration> {
        self.shape.ticks()
    }

    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.send_all(emit)?;
        Ok(EmitStatus::Done)
    }

    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.send_all(emit)?;
        Ok(EmitStatus::Done)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.send(|_| true, true, emit)?;
        Ok(EmitStatus::Done)
    }
}
