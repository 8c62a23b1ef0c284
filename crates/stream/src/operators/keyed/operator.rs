//! The operator of a keyed function.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::Snapshot;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext as CopyContext, TaskError};
use tidemill_dataset::extend::group_values;

use super::logic::{KeyLogic, KeyedBatch, KeyedFunction};
use super::{KeyedEngine, KeyedOptions};
use crate::state::groups::batch;
use crate::state::operator_memory::{OperatorMemory, SpillableState, WEIGH_EVERY_ROWS};
use crate::state::snapshot_codec::buckets_of;
use crate::state::state_layout::{fired_of, shared};
use crate::time::window::Micros;

/// The interval between checks of the machine's clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The input columns of a function.
pub(crate) struct KeyedColumns {
    pub keys: Vec<usize>,
    /// The rows that the function gets: the first columns, with these names.
    pub rows: SchemaRef,
}

/// Finishes rows that a function has made.
pub(crate) type FinishRows = Box<dyn Fn(RecordBatch) -> Result<RecordBatch, TaskError> + Send>;

/// The operator of a keyed function. Its input is partitioned by the same columns, with
/// [`Partition::by_key`](tidemill_dataflow::exchange::Partition::by_key).
pub struct KeyOperator {
    function: Box<dyn KeyedFunction>,
    columns: KeyedColumns,
    finish: FinishRows,
    calls_program: bool,
    now: Micros,
    /// The event time being passed to the function.
    telling: Micros,
    /// Whether the function is being called for an alarm of the machine's clock.
    is_ringing: bool,
    held: OperatorMemory,
}

impl SpillableState for KeyOperator {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.function.bytes()?)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        Ok(self.function.spill()?)
    }
}

impl KeyOperator {
    /// The operator of a [`KeyLogic`]. `keys` are columns of `input`, the schema of the input rows.
    ///
    /// # Errors
    /// If a column cannot be a key, or if the checkpoint was made with other keys.
    pub fn new<L: KeyLogic + 'static>(
        logic: L,
        input: &SchemaRef,
        keys: &[usize],
        context: &CopyContext,
    ) -> Result<Self, TaskError> {
        let schema = Arc::new(input.project(keys)?);
        let options = KeyedOptions { keys: schema, ttl: None, clock: None };
        let engine = KeyedEngine::new(logic, options, context)?;
        let columns = KeyedColumns { keys: keys.to_vec(), rows: Arc::clone(input) };
        KeyOperator::of(Box::new(engine), columns, Box::new(Ok), false, context)
    }

    /// The operator of a function of the program, which may block.
    pub(crate) fn calling_program(
        function: Box<dyn KeyedFunction>,
        columns: KeyedColumns,
        finish: FinishRows,
        context: &CopyContext,
    ) -> Result<Self, TaskError> {
        KeyOperator::of(function, columns, finish, true, context)
    }

    fn of(
        function: Box<dyn KeyedFunction>,
        columns: KeyedColumns,
        finish: FinishRows,
        calls_program: bool,
        context: &CopyContext,
    ) -> Result<Self, TaskError> {
        let mut new = KeyOperator {
            function,
            columns,
            finish,
            calls_program,
            now: Micros::MIN,
            telling: Micros::MIN,
            is_ringing: false,
            held: OperatorMemory::new(context),
        };
        if let Some(restored) = context.restored() {
            new.now = fired_of(restored)?;
            for (&bucket, parts) in &restored.buckets {
                new.restore(bucket, parts.clone())?;
            }
        }
        Ok(new)
    }

    fn restore(&mut self, bucket: u32, parts: Vec<Bytes>) -> Result<(), TaskError> {
        // Buckets are many and small: each has about one state of this size.
        let states = parts.iter().map(Bytes::len).sum::<usize>() / 64;
        self.function.restore(self.now, vec![(bucket, parts)])?;
        self.weigh(states)
    }

    /// Passes the time to the function.
    fn tell(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let (made, more) = match self.is_ringing {
            true => self.function.ring()?,
            false => self.function.time(self.telling)?,
        };
        self.send(made, emit)?;
        if more {
            self.weigh(WEIGH_EVERY_ROWS)?;
        }
        Ok(if more { EmitStatus::More } else { EmitStatus::Done })
    }

    fn send(&self, made: Vec<RecordBatch>, emit: &mut Emitter) -> Result<(), TaskError> {
        for rows in made.into_iter().filter(|rows| rows.num_rows() > 0) {
            emit.send((self.finish)(rows)?);
        }
        Ok(())
    }

    /// Groups rows by their keys.
    fn keyed(&self, rows: &RecordBatch) -> Result<KeyedBatch, TaskError> {
        let keys = rows.project(&self.columns.keys)?;
        let mut of = Vec::new();
        group_values(&keys.schema())?.intern(keys.columns(), &mut of)?;
        let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
        // A stable sort: the rows of a key stay in order.
        order.sort_by_key(|&row| of[row as usize]);
        let (mut first, mut ends) = (Vec::new(), Vec::new());
        for (at, &row) in order.iter().enumerate() {
            if at == 0 || of[row as usize] != of[order[at - 1] as usize] {
                first.push(row);
                ends.push(at);
            }
        }
        ends.push(order.len());
        ends.remove(0);
        let keys = take_record_batch(&keys, &UInt32Array::from(first))?;
        let buckets = buckets_of(&keys, &(0..keys.num_columns()).collect::<Vec<_>>())?;
        let sorted = take_record_batch(rows, &UInt32Array::from(order))?;
        let width = self.columns.rows.fields().len();
        let rows = batch(&self.columns.rows, sorted.columns()[..width].to_vec(), sorted.num_rows())?;
        Ok(KeyedBatch { keys, buckets, ends, rows })
    }
}

impl Operator for KeyOperator {
    fn calls_program(&self) -> bool {
        self.calls_program
    }

    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let count = rows.num_rows();
        if count == 0 {
            return Ok(EmitStatus::Done);
        }
        let batch = self.keyed(&rows)?;
        let made = self.function.rows(batch)?;
        self.send(made, emit)?;
        self.weigh(count)?;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.now = self.now.max(time.0);
        (self.telling, self.is_ringing) = (time.0, false);
        self.tell(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        Some(CLOCK_INTERVAL)
    }

    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let Some(alarm) = self.function.next_alarm() else { return Ok(EmitStatus::Done) };
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as i64);
        if alarm > now {
            return Ok(EmitStatus::Done);
        }
        self.is_ringing = true;
        self.tell(emit)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        (self.telling, self.is_ringing) = (EventTime::MAX.0, false);
        self.tell(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.tell(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        Ok(self.function.release(buckets)?.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        parts.into_iter().try_for_each(|(bucket, part)| self.restore(bucket, vec![part]))
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.now);
        snapshot.buckets = self.function.snapshot(whole)?;
        Ok(snapshot)
    }
}
