//! Aggregates of sessions: for each key, rows that are less than a gap apart. A session is `[first, last + gap)`, and
//! ends when that time has passed. Then its result is emitted. With an allowed lateness, it is kept for this much
//! longer: a late row that extends it, or merges two sessions, emits the result again when time advances. A session is
//! forgotten when its lateness has passed. A result replaces earlier ones of the same key whose windows lie within its
//! own: sessions only grow, and live sessions never overlap.
//!
//! The state of a session is a row: its first and last time, what has been emitted, its key, and states. Sorting rows
//! by key and time brings those of one session together, and rows closer than the gap are merged. The first half does
//! this for each batch, the second for all rows of a key, whenever one of its sessions may have ended.
//!
//! A row is late if its session would already be forgotten, with everything known of it; a row close to a live session
//! belongs to that one.
//!
//! | module    | contents                                            |
//! |-----------|-----------------------------------------------------|
//! | `state`   | the sessions of a copy: rows, results and snapshots |
//! | `by_rows` | early results by row count                          |
//! | `task`    | the second half                                     |

mod by_rows;
mod state;
mod task;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int8Array, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{concat_batches, filter_record_batch, take};
use arrow::datatypes::{DataType, Field, Int8Type, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

pub(crate) use task::MergedSessions;

use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::{LateCount, LateOutput};
use crate::rows::steps::RowSteps;
use crate::state::groups::{AggregateArguments, Functions, GroupAggregation, batch};
use crate::state::state_layout::StateLayout;
use crate::time::window::{EarlyResults, Micros, micros, window_array};

/// Stored columns before the keys.
const FIRST: usize = 0;
const LAST: usize = 1;
/// What has been emitted of the current session; the minimum when several are merged.
const TOLD: usize = 2;
/// The rows that are in no result yet; the sum when several sessions are merged. Counted only for results by rows. A
/// part can have a negative count, if a result already included the rows of another part.
const UNTOLD: usize = 3;
const BEFORE: usize = 4;
/// The same between the two halves, where nothing has been emitted yet.
const PART_BEFORE: usize = TOLD;

/// What can have been emitted.
const NOTHING: i8 = 0;
const EARLY: i8 = 1;
const FINAL: i8 = 2;

/// When sessions give results, and when they end.
pub(crate) struct SessionTimes {
    /// The time of a row.
    pub time: Arc<dyn PhysicalExpr>,
    /// How far future times may lie behind the watermark.
    pub behind: Micros,
    pub gap: Micros,
    /// How long ended sessions are kept.
    pub lateness: Micros,
    pub early: EarlyResults,
}

/// An aggregation of sessions; the same for a query on all workers.
pub(crate) struct SessionAggregation {
    pub of: Arc<GroupAggregation>,
    times: SessionTimes,
    /// The stored columns: first and last time, what has been emitted, rows in no result, keys, states.
    kept_schema: SchemaRef,
    /// The rows between the two halves: first and last time, keys, states, number of rows.
    pub part_schema: SchemaRef,
    output: SchemaRef,
    /// The position of the window among the output columns.
    window_at: usize,
    late: LateCount,
    /// If set, rows go to the second half with their keys, and there is no first half.
    keyed: Option<Arc<KeyedRows>>,
    /// Where late rows go.
    late_rows: Option<LateOutput>,
}

/// The session of each of some rows.
struct SessionAssignment {
    sessions: Vec<usize>,
    /// By session: its first and last time, and one of its rows.
    firsts: Vec<Micros>,
    lasts: Vec<Micros>,
    rows: Vec<u32>,
}

impl SessionAssignment {
    fn len(&self) -> usize {
        self.firsts.len()
    }
}

impl SessionAggregation {
    pub(crate) fn new(
        of: GroupAggregation,
        times: SessionTimes,
        (output, window_at): (SchemaRef, usize),
        keyed: Option<Arc<KeyedRows>>,
        (late, late_rows): (LateCount, Option<LateOutput>),
    ) -> Self {
        let time_type = DataType::Timestamp(TimeUnit::Microsecond, None);
        let bounds = || ["tidemill first", "tidemill last"].map(|name| Field::new(name, time_type.clone(), false));
        let told = [("tidemill told", DataType::Int8), ("tidemill untold", DataType::Int64)]
            .map(|(name, of)| Field::new(name, of, false));
        let states = || of.state_schema.fields().iter().map(|field| field.as_ref().clone());
        let kept_schema = Arc::new(Schema::new(bounds().into_iter().chain(told).chain(states()).collect::<Vec<_>>()));
        let rows = Field::new("tidemill rows", DataType::Int64, false);
        let part_schema = Arc::new(Schema::new(bounds().into_iter().chain(states()).chain([rows]).collect::<Vec<_>>()));
        let of = Arc::new(of);
        SessionAggregation { of, times, kept_schema, part_schema, output, window_at, late, keyed, late_rows }
    }

    /// The state of the second half.
    pub(crate) fn state(&self) -> StateSchema {
        let what = format!("sessions with a gap of {} us, in pieces, and what was given of them", self.times.gap);
        StateSchema::new(what, self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of_aggregation(&self.of, BEFORE)
    }

    /// The end of a session whose last row has this time.
    fn end(&self, last: Micros) -> Micros {
        last.saturating_add(self.times.gap)
    }

    /// When that session is forgotten.
    fn gone(&self, last: Micros) -> Micros {
        self.end(last).saturating_add(self.times.lateness)
    }

    /// The stored columns that are keys.
    fn keys<'a>(&self, kept: &'a RecordBatch) -> &'a [ArrayRef] {
        &kept.columns()[BEFORE..BEFORE + self.of.keys.len()]
    }

    /// Assigns rows to sessions, given each row's key number and time span.
    fn assign(&self, of_key: &[usize], firsts: &[Micros], lasts: &[Micros]) -> SessionAssignment {
        let rows = firsts.len();
        let mut order: Vec<u32> = (0..rows as u32).collect();
        order.sort_unstable_by_key(|&row| (of_key[row as usize], firsts[row as usize]));
        let (mut sessions, mut first_rows) = (vec![0; rows], Vec::new());
        let (mut starts, mut ends): (Vec<Micros>, Vec<Micros>) = Default::default();
        let mut before = None;
        for &row in &order {
            let at = row as usize;
            let follows = before == Some(of_key[at])
                && ends.last().is_some_and(|&end| firsts[at].saturating_sub(end) < self.times.gap);
            if follows {
                let end = ends.last_mut().expect("a session that something follows");
                *end = lasts[at].max(*end);
            } else {
                starts.push(firsts[at]);
                ends.push(lasts[at]);
                first_rows.push(row);
                before = Some(of_key[at]);
            }
            sessions[at] = starts.len() - 1;
        }
        SessionAssignment { sessions, firsts: starts, lasts: ends, rows: first_rows }
    }

    /// The columns of sessions: first and last times, keys, and the functions' states. `keys` are the columns of the
    /// rows they consist of.
    fn columns(&self, keys: &[ArrayRef], of: &SessionAssignment, functions: Functions) -> Result<Vec<ArrayRef>> {
        let rows = UInt32Array::from(of.rows.clone());
        let times = |times: &[Micros]| Arc::new(TimestampMicrosecondArray::from(times.to_vec())) as ArrayRef;
        let mut columns = vec![times(&of.firsts), times(&of.lasts)];
        for key in keys {
            columns.push(take(key, &rows, None)?);
        }
        for mut function in functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        Ok(columns)
    }

    /// Sessions as stored rows.
    fn kept(&self, mut columns: Vec<ArrayRef>, told: Vec<i8>, untold: Vec<i64>) -> Result<RecordBatch> {
        let rows = told.len();
        let told: [ArrayRef; 2] = [Arc::new(Int8Array::from(told)), Arc::new(Int64Array::from(untold))];
        columns.splice(TOLD..TOLD, told);
        batch(&self.kept_schema, columns, rows)
    }

    /// The rows of a batch that have a time, and these times; counts the others.
    fn timed(&self, rows: RecordBatch) -> Result<(RecordBatch, TimestampMicrosecondArray)> {
        let times = |rows: &RecordBatch| micros(&self.times.time.evaluate(rows)?.into_array(rows.num_rows())?);
        let known = times(&rows)?;
        if known.null_count() == 0 {
            return Ok((rows, known));
        }
        self.late.add_untimed(known.null_count());
        let kept = BooleanArray::from_iter(known.iter().map(|time| Some(time.is_some())));
        let rows = filter_record_batch(&rows, &kept)?;
        let known = times(&rows)?;
        Ok((rows, known))
    }

    /// The sessions of only these rows: their columns, and the number of rows in each.
    fn of_rows(&self, rows: &AggregateArguments, times: &[Micros]) -> Result<(Vec<ArrayRef>, Vec<i64>)> {
        let of = self.assign(&self.of.number(&rows.keys, times.len())?, times, times);
        let mut counts = vec![0; of.len()];
        of.sessions.iter().for_each(|&session| counts[session] += 1);
        let functions = self.of.updated(rows, &of.sessions, of.len())?;
        Ok((self.columns(&rows.keys, &of, functions)?, counts))
    }

    /// Merges sessions or parts of sessions.
    fn merged(&self, parts: &[RecordBatch]) -> Result<RecordBatch> {
        let all = concat_batches(&self.kept_schema, parts)?;
        let of_key = self.of.number(self.keys(&all), all.num_rows())?;
        Ok(self.joined(&all, &of_key)?.0)
    }

    /// The same, given the numbers of their keys. Also returns the merged session that each row belongs to.
    fn joined(&self, all: &RecordBatch, of_key: &[usize]) -> Result<(RecordBatch, SessionAssignment)> {
        let of = self.assign(of_key, times(all, FIRST), times(all, LAST));
        let (mut told, mut untold) = (vec![FINAL; of.len()], vec![0; of.len()]);
        for ((&session, &part), &rows) in of.sessions.iter().zip(told_of(all)).zip(untold_of(all)) {
            told[session] = part.min(told[session]);
            untold[session] += rows;
        }
        let states = &all.columns()[BEFORE + self.of.keys.len()..];
        let functions = self.of.merged(states, &of.sessions, of.len())?;
        let kept = self.kept(self.columns(self.keys(all), &of, functions)?, told, untold)?;
        Ok((kept, of))
    }

    /// The current results of sessions. `last` says that they have ended.
    fn results(&self, sessions: &RecordBatch, last: bool) -> Result<RecordBatch> {
        let rows = sessions.num_rows();
        let each: Vec<usize> = (0..rows).collect();
        let mut columns = self.keys(sessions).to_vec();
        let ends = times(sessions, LAST).iter().map(|&last| self.end(last)).collect();
        let last = (self.times.early != EarlyResults::Never).then_some(last);
        columns.insert(self.window_at, Arc::new(window_array(times(sessions, FIRST).to_vec(), ends, last)));
        let states = &sessions.columns()[BEFORE + self.of.keys.len()..];
        for mut function in self.of.merged(states, &each, rows)? {
            columns.push(function.evaluate(EmitTo::All)?);
        }
        batch(&self.output, columns, rows)
    }
}

fn times(sessions: &RecordBatch, column: usize) -> &[Micros] {
    sessions.column(column).as_primitive::<TimestampMicrosecondType>().values()
}

fn told_of(kept: &RecordBatch) -> &[i8] {
    kept.column(TOLD).as_primitive::<Int8Type>().values()
}

fn untold_of(kept: &RecordBatch) -> &[i64] {
    kept.column(UNTOLD).as_primitive::<Int64Type>().values()
}

/// The first half: sessions within each batch.
pub(crate) struct PartialSessions {
    shape: Arc<SessionAggregation>,
    steps: RowSteps,
}

impl PartialSessions {
    pub(crate) fn new(shape: &Arc<SessionAggregation>, steps: RowSteps) -> Self {
        PartialSessions { shape: Arc::clone(shape), steps }
    }
}

impl Operator for PartialSessions {
    fn begin(&mut self, context: &TaskContext) {
        self.steps.begin(context);
    }

    fn calls_program(&self) -> bool {
        self.steps.calls_program()
    }

    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let shape = &self.shape;
        for rows in self.steps.apply(rows)? {
            let (rows, times) = shape.timed(rows)?;
            if rows.num_rows() == 0 {
                continue;
            }
            let (mut columns, counts) = shape.of_rows(&shape.of.arguments(&rows)?, times.values())?;
            let count = counts.len();
            columns.push(Arc::new(Int64Array::from(counts)));
            emit.send(batch(&shape.part_schema, columns, count)?);
        }
        Ok(EmitStatus::Done)
    }
}
