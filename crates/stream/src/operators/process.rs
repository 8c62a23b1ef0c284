//! Functions of programs over the rows of one key at a time, with a state for each key and timers: what no query can
//! say.
//!
//! In a plan such a function is a table, as one on batches is: what lies below is planned when it is scanned.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::{Session, TableProvider};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataflow::checkpoint::{Snapshot, StateSchema};
use tidemill_dataflow::operator::{Flow, Released};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emit, Operator, TaskContext as CopyContext, TaskError};
use tidemill_dataset::extend::{
    StepProvider, StepTable, StreamStep, StreamStepExec, fitted, group_values, planned_below,
};
use tidemill_dataset::{DataSet, DataSetError};

use crate::operators::keyed::{KeyedBatch, KeyedFunction, KeyedSetup, MakeKeyedFunction};
use crate::rows::keyed::KeyedRows;
use crate::state::groups::batch;
use crate::state::operator_memory::{OperatorMemory, SpillableState, WEIGH_EVERY_ROWS};
use crate::state::snapshot_codec::buckets_of;
use crate::state::state_layout::{StateLayout, fired_of, shared};
use crate::time::window::Micros;

/// What a function makes of a stream's rows by key: rows with `schema`. `keeps` says what it keeps of a key, if
/// that is to be known: then a checkpoint's states are those of the function as it is now, or refused. `name` stands
/// for it in plans and errors. A function that `waits` does something when time has passed, whatever comes.
///
/// # Errors
/// `UnknownColumn`; what the function fails with is an error of the job.
pub fn process(
    rows: &DataSet,
    name: &str,
    keys: &[String],
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    waits: bool,
) -> std::result::Result<DataSet, DataSetError> {
    let names = rows.names();
    let place = |key: &String| {
        let found = names.iter().position(|name| name == key);
        found.ok_or_else(|| DataSetError::unknown_column(key, names.clone()))
    };
    let keys = keys.iter().map(place).collect::<std::result::Result<Vec<_>, _>>()?;
    let (state, input) = rows.frame().clone().into_parts();
    let process = ProcessQuery { name: name.to_owned(), keys, function, schema, keeps, waits };
    let table = ProcessTable { input, process: Arc::new(process) };
    let plan =
        LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(StepProvider(Arc::new(table)))), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
}

/// A function on keys, in a query.
pub(crate) struct ProcessQuery {
    pub name: String,
    /// Columns of its input.
    pub keys: Vec<usize>,
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    pub waits: bool,
}

impl ProcessQuery {
    /// What is kept.
    pub(crate) fn state(&self, keyed: &KeyedRows) -> StateSchema {
        let keys = keyed.layout_of_keys();
        match &self.keeps {
            None => StateSchema::new("states of a function, without names", keys.fields().collect()),
            Some(state) => {
                let state = StateLayout::of_rows(state, "");
                StateSchema::new("states of a function", keys.fields().chain(state.fields()).collect())
            }
        }
    }
}

pub(crate) struct ProcessTable {
    input: LogicalPlan,
    process: Arc<ProcessQuery>,
}

impl StepTable for ProcessTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(ProcessTable { input, process: Arc::clone(&self.process) }))
    }
}

impl fmt::Debug for ProcessTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessTable").field("name", &self.process.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for ProcessTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.process.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = planned_below(session, &self.input).await?;
        let step = ProcessExec { process: Arc::clone(&self.process), projection: projection.cloned() };
        Ok(Arc::new(StreamStepExec::new(Arc::new(step), Some(input))?))
    }
}

/// Stands in the plan of a stream until it is lowered.
pub(crate) struct ProcessExec {
    pub process: Arc<ProcessQuery>,
    pub projection: Option<Vec<usize>>,
}

impl fmt::Debug for ProcessExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessExec").field("name", &self.process.name).finish_non_exhaustive()
    }
}

impl StreamStep for ProcessExec {
    fn kind(&self) -> &'static str {
        "ProcessExec"
    }

    fn title(&self) -> String {
        self.process.name.clone()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.process.schema.project(columns)?),
            None => Arc::clone(&self.process.schema),
        })
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} runs per key of a stream: run it with write_stream, such as write_stream(print), or preview its first \
             rows with show()",
            self.process.name
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}

/// Between two looks at the machine's clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct ProcessTask {
    process: Arc<ProcessQuery>,
    projection: Option<Vec<usize>>,
    keyed: Arc<KeyedRows>,
    /// What the function is to see of a row.
    rows: SchemaRef,
    function: Box<dyn KeyedFunction>,
    now: Micros,
    /// What the function is being told.
    telling: EventTime,
    /// Whether it is being told that the machine's clock has come to an alarm.
    ringing: bool,
    held: OperatorMemory,
}

impl SpillableState for ProcessTask {
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

impl ProcessTask {
    pub(crate) fn new(
        exec: (&Arc<ProcessQuery>, &Option<Vec<usize>>),
        keyed: &Arc<KeyedRows>,
        rows: &SchemaRef,
        context: &CopyContext,
    ) -> Result<Self, TaskError> {
        let process = Arc::clone(exec.0);
        let keys = Arc::new(keyed.schema.project(&keyed.keys())?);
        let function = (process.function)(&KeyedSetup { context, keys })?;
        let (held, telling) = (OperatorMemory::new(context), EventTime(Micros::MIN));
        let (keyed, rows) = (Arc::clone(keyed), Arc::clone(rows));
        let (projection, now) = (exec.1.clone(), Micros::MIN);
        let ringing = false;
        let mut new = ProcessTask { process, projection, keyed, rows, function, now, telling, ringing, held };
        if let Some(restored) = context.restored() {
            new.now = fired_of(restored)?;
            for (&bucket, parts) in &restored.buckets {
                new.restore(bucket, parts.clone())?;
            }
        }
        Ok(new)
    }

    fn restore(&mut self, bucket: u32, parts: Vec<Bytes>) -> Result<(), TaskError> {
        // Buckets are many and small: a state or so of each of these lengths.
        let states = parts.iter().map(Bytes::len).sum::<usize>() / 64;
        self.function.restore(self.now, vec![(bucket, parts)])?;
        self.weigh(states)
    }

    /// Tells the function what time it is.
    fn tell(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let (made, more) = match self.ringing {
            true => self.function.ring()?,
            false => self.function.time(self.telling.0)?,
        };
        self.send(made, emit)?;
        if more {
            self.weigh(WEIGH_EVERY_ROWS)?;
        }
        Ok(if more { Flow::More } else { Flow::Done })
    }

    fn send(&self, made: Vec<RecordBatch>, emit: &mut Emit) -> Result<(), TaskError> {
        for rows in made.into_iter().filter(|rows| rows.num_rows() > 0) {
            let rows = fitted(rows, &self.process.schema).map_err(|error| format!("{}: {error}", self.process.name))?;
            emit.send(match &self.projection {
                Some(columns) => rows.project(columns)?,
                None => rows,
            });
        }
        Ok(())
    }
}

impl Operator for ProcessTask {
    fn calls_program(&self) -> bool {
        true
    }

    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let columns = self.keyed.keys();
        let keys = rows.project(&columns)?;
        let mut of = Vec::new();
        group_values(&keys.schema())?.intern(keys.columns(), &mut of)?;
        let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
        // Rows of a key stay in their order.
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
        let buckets = buckets_of(&keys, &(0..columns.len()).collect::<Vec<_>>())?;
        let sorted = take_record_batch(&rows, &UInt32Array::from(order))?;
        let count = sorted.num_rows();
        let rows = batch(&self.rows, sorted.columns()[..self.keyed.width].to_vec(), count)?;
        let made = self.function.rows(KeyedBatch { keys, buckets, ends, rows })?;
        self.send(made, emit)?;
        self.weigh(count)?;
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.now = self.now.max(time.0);
        (self.telling, self.ringing) = (time, false);
        self.tell(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        Some(CLOCK_INTERVAL)
    }

    fn on_tick(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let Some(alarm) = self.function.next_alarm() else { return Ok(Flow::Done) };
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as i64);
        if alarm > now {
            return Ok(Flow::Done);
        }
        self.ringing = true;
        self.tell(emit)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        (self.telling, self.ringing) = (EventTime::MAX, false);
        self.tell(emit)
    }

    fn more(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.tell(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Released, TaskError> {
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
