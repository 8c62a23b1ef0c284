//! Aggregates of sessions: of each key, rows that follow each other within a gap. A session is `[first, last + gap)`.
//!
//! What is known of a session so far is a row: its first and last time, its key, states. Rows of one session meet when all are
//! put in order of key and time, and those closer than the gap become one. The first half does that to each batch, the second
//! to all it has, whenever one of its sessions may be over.
//!
//! A row is late when its session would be over, together with all that is known of it: one that is near a session that is not
//! over belongs to that.
//!
//! A snapshot has the rows that came since the last one, and of buckets with sessions that have fired all that is left: what
//! has fired must not come again, not even as part of a session that begins where it ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{concat, concat_batches, filter_record_batch, not, take};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::group_values::new_group_values;
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use tidemill_dataflow::checkpoint::{Later, Part, Snapshot, StateSchema, rows};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::operator::{Flow, Released};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emit, Operator, TaskContext, TaskError};

use super::aggregate::with_rows;
use super::groups::{Aggregation, accumulators, batch};
use super::held::{Held, Holds};
use super::kept::{self, buckets_of_key};
use super::late::{LATE_PORT, LateCount, LateOutput};
use super::saved::{Layout, fired_of, shared};
use super::steps::Steps;
use super::window::{Micros, micros, window_array};

/// An aggregation of sessions: of a query, the same on all workers.
pub(crate) struct SessionAggregation {
    pub of: Arc<Aggregation>,
    pub time: Arc<dyn PhysicalExpr>,
    /// How far times to come may lie behind the watermark.
    pub behind: Micros,
    pub gap: Micros,
    /// First and last time, keys, states.
    pub session_schema: SchemaRef,
    /// These, and how many rows: what goes from the first half to the second.
    pub part_schema: SchemaRef,
    pub output: SchemaRef,
    /// Where the window stands among the keys of the output.
    pub window_at: usize,
    pub late: LateCount,
    /// Where late rows go. Then rows come to the second half, and there is no first.
    pub late_rows: Option<LateOutput>,
}

/// Which session each of some rows is in.
struct Assigned {
    sessions: Vec<usize>,
    /// Of each session its first and last time, and one of its rows.
    firsts: Vec<Micros>,
    lasts: Vec<Micros>,
    rows: Vec<u32>,
}

/// Columns before the keys.
const BEFORE: usize = 2;

impl SessionAggregation {
    pub(crate) fn new(
        of: Aggregation,
        (time, behind): (Arc<dyn PhysicalExpr>, Micros),
        gap: Micros,
        output: SchemaRef,
        window_at: usize,
        (late, late_rows): (LateCount, Option<LateOutput>),
    ) -> Self {
        let time_type = DataType::Timestamp(TimeUnit::Microsecond, None);
        let bounds = ["tidemill first", "tidemill last"].map(|name| Field::new(name, time_type.clone(), false));
        let fields: Vec<Field> =
            bounds.into_iter().chain(of.state_schema.fields().iter().map(|field| field.as_ref().clone())).collect();
        let session_schema = Arc::new(Schema::new(fields));
        let part_schema = with_rows(&session_schema);
        let of = Arc::new(of);
        SessionAggregation { of, time, behind, gap, session_schema, part_schema, output, window_at, late, late_rows }
    }

    /// What the second half keeps.
    pub(crate) fn state(&self) -> StateSchema {
        StateSchema::new(format!("sessions with a gap of {} us", self.gap), self.layout().fields().collect())
    }

    fn layout(&self) -> Layout {
        Layout::of_aggregation(&self.of, BEFORE)
    }

    /// The sessions of rows that have a key and a stretch of time each.
    fn assign(&self, keys: &[ArrayRef], firsts: &[Micros], lasts: &[Micros]) -> Result<Assigned> {
        let rows = firsts.len();
        let mut of_key = Vec::new();
        if keys.is_empty() {
            of_key.resize(rows, 0);
        } else {
            new_group_values(SchemaRef::clone(&self.of.key_schema), &GroupOrdering::None)?.intern(keys, &mut of_key)?;
        }
        let mut order: Vec<u32> = (0..rows as u32).collect();
        order.sort_unstable_by_key(|&row| (of_key[row as usize], firsts[row as usize]));
        let (mut sessions, mut first_rows) = (vec![0; rows], Vec::new());
        let (mut starts, mut ends): (Vec<Micros>, Vec<Micros>) = Default::default();
        let mut before = None;
        for &row in &order {
            let at = row as usize;
            let follows =
                before == Some(of_key[at]) && ends.last().is_some_and(|&end| firsts[at].saturating_sub(end) < self.gap);
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
        Ok(Assigned { sessions, firsts: starts, lasts: ends, rows: first_rows })
    }

    /// What is known of the sessions of rows. `add` adds the rows to the functions, given the session of each and how many there
    /// are.
    fn sessions(
        &self,
        keys: &[ArrayRef],
        of: Assigned,
        add: impl FnOnce(&mut [Box<dyn GroupsAccumulator>], &[usize], usize) -> Result<()>,
    ) -> Result<RecordBatch> {
        let Assigned { sessions, firsts, lasts, rows } = of;
        let count = firsts.len();
        let mut functions = accumulators(&self.of)?;
        add(&mut functions, &sessions, count)?;
        let rows = UInt32Array::from(rows);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(TimestampMicrosecondArray::from(firsts)), Arc::new(TimestampMicrosecondArray::from(lasts))];
        for key in keys {
            columns.push(take(key, &rows, None)?);
        }
        for function in &mut functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        batch(&self.session_schema, columns, count)
    }

    /// The rows of a batch that have a time, and their times; the others are counted.
    fn timed(&self, rows: RecordBatch) -> Result<(RecordBatch, TimestampMicrosecondArray)> {
        let times = |rows: &RecordBatch| micros(&self.time.evaluate(rows)?.into_array(rows.num_rows())?);
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

    /// The sessions of rows with these times, and how many rows each has.
    fn of_rows(&self, rows: &RecordBatch, times: &[Micros]) -> Result<(RecordBatch, Vec<i64>)> {
        let rows = self.of.arguments(rows)?;
        let assigned = self.assign(&rows.keys, times, times)?;
        let mut counts = vec![0; assigned.firsts.len()];
        assigned.sessions.iter().for_each(|&session| counts[session] += 1);
        let sessions = self.sessions(&rows.keys, assigned, |functions, of, count| {
            for ((function, values), filter) in functions.iter_mut().zip(&rows.values).zip(&rows.filters) {
                function.update_batch(values, of, filter.as_ref(), count)?;
            }
            Ok(())
        })?;
        Ok((sessions, counts))
    }

    /// Sessions of rows that are sessions, or parts of some.
    fn merged(&self, parts: &[RecordBatch]) -> Result<RecordBatch> {
        let all = concat_batches(&self.session_schema, parts)?;
        let (firsts, lasts) = (times(&all, 0), times(&all, 1));
        let keys = all.columns()[BEFORE..BEFORE + self.of.keys.len()].to_vec();
        let assigned = self.assign(&keys, firsts.values(), lasts.values())?;
        self.sessions(&keys, assigned, |functions, sessions, count| {
            let mut at = BEFORE + keys.len();
            for (function, width) in functions.iter_mut().zip(&self.of.widths) {
                function.merge_batch(&all.columns()[at..at + width], sessions, count)?;
                at += width;
            }
            Ok(())
        })
    }

    /// The results of sessions that are over.
    fn results(&self, over: &RecordBatch) -> Result<RecordBatch> {
        let rows = over.num_rows();
        let each: Vec<usize> = (0..rows).collect();
        let keys = self.of.keys.len();
        let mut columns = over.columns()[BEFORE..BEFORE + keys].to_vec();
        let ends = times(over, 1).values().iter().map(|last| last.saturating_add(self.gap)).collect();
        columns.insert(self.window_at, Arc::new(window_array(times(over, 0).values().to_vec(), ends, None)));
        let mut at = BEFORE + keys;
        for (mut function, width) in accumulators(&self.of)?.into_iter().zip(&self.of.widths) {
            function.merge_batch(&over.columns()[at..at + width], &each, rows)?;
            columns.push(function.evaluate(EmitTo::All)?);
            at += width;
        }
        batch(&self.output, columns, rows)
    }
}

fn times(sessions: &RecordBatch, column: usize) -> &TimestampMicrosecondArray {
    sessions.column(column).as_primitive::<TimestampMicrosecondType>()
}

/// The first half: sessions of each batch.
pub(crate) struct FirstHalf {
    shape: Arc<SessionAggregation>,
    steps: Steps,
}

impl FirstHalf {
    pub(crate) fn new(shape: &Arc<SessionAggregation>, steps: Steps) -> Self {
        FirstHalf { shape: Arc::clone(shape), steps }
    }
}

impl Operator for FirstHalf {
    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let shape = &self.shape;
        for rows in self.steps.apply(rows)? {
            let (rows, times) = shape.timed(rows)?;
            if rows.num_rows() == 0 {
                continue;
            }
            let (sessions, counts) = shape.of_rows(&rows, times.values())?;
            let columns = sessions.columns().iter().cloned().chain([Arc::new(Int64Array::from(counts)) as ArrayRef]);
            emit.send(batch(&shape.part_schema, columns.collect(), sessions.num_rows())?);
        }
        Ok(Flow::Done)
    }
}

/// The second half.
pub(crate) struct SecondHalf {
    shape: Arc<SessionAggregation>,
    steps: Steps,
    /// Sessions and parts of some; the first are those that were put together last.
    parts: Vec<RecordBatch>,
    /// No session is over before that.
    next_end: Micros,
    fired: Micros,
    /// Whether there are snapshots.
    saves: bool,
    /// What has come since the last one; nothing, if there are none.
    news: Vec<RecordBatch>,
    /// Buckets of which sessions have fired since.
    fired_buckets: BTreeSet<u32>,
    /// Buckets of which something is saved.
    saved: Arc<Mutex<BTreeSet<u32>>>,
    held: Held,
}

impl SecondHalf {
    pub(crate) fn new(shape: &Arc<SessionAggregation>, steps: Steps, context: &TaskContext) -> Result<Self, TaskError> {
        let mut new = SecondHalf {
            shape: Arc::clone(shape),
            steps,
            parts: Vec::new(),
            next_end: Micros::MAX,
            fired: Micros::MIN,
            saves: context.makes_checkpoints() && !context.at_most_once(),
            news: Vec::new(),
            fired_buckets: BTreeSet::new(),
            saved: Arc::default(),
            held: Held::new(context),
        };
        let Some(restored) = context.restored() else { return Ok(new) };
        let reader = shape.layout().reader(&shape.session_schema, restored)?;
        new.fired = fired_of(restored)?;
        for part in restored.buckets.values().flatten() {
            new.take(reader.read(part)?);
        }
        new.news.clear();
        // A part may have several rows of one session, if it is what came between two snapshots.
        if !new.parts.is_empty() {
            new.parts = vec![shape.merged(&new.parts)?];
        }
        *new.saved.lock().expect("nothing panics with it locked") = restored.buckets.keys().copied().collect();
        Ok(new)
    }

    /// Which of some rows, or parts of sessions, come too late; `None`: none does.
    fn late(&mut self, keys: &[ArrayRef], firsts: &[Micros], lasts: &[Micros]) -> Result<Option<BooleanArray>> {
        let shape = Arc::clone(&self.shape);
        let over = |last: &Micros| last.saturating_add(shape.gap) <= self.fired;
        if !lasts.iter().any(over) {
            return Ok(None);
        }
        self.merge()?;
        let open =
            self.parts.first().cloned().unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(&shape.session_schema)));
        let behind = |column: usize, more: &[Micros]| [times(&open, column).values(), more].concat();
        let with_keys = |(at, key): (usize, &ArrayRef)| concat(&[open.column(BEFORE + at).as_ref(), key.as_ref()]);
        let all_keys = keys.iter().enumerate().map(with_keys).collect::<Result<Vec<_>, _>>()?;
        let of = shape.assign(&all_keys, &behind(0, firsts), &behind(1, lasts))?;
        let over = |last: &Micros| last.saturating_add(shape.gap) <= self.fired;
        let late: BooleanArray = of.sessions[open.num_rows()..].iter().map(|&at| Some(over(&of.lasts[at]))).collect();
        Ok((late.true_count() > 0).then_some(late))
    }

    /// Takes parts of sessions, of which the last column says how many rows they are of.
    fn take_parts(&mut self, parts: &RecordBatch) -> Result<()> {
        let columns: Vec<usize> = (0..parts.num_columns() - 1).collect();
        let keys = &parts.columns()[BEFORE..BEFORE + self.shape.of.keys.len()];
        let late = self.late(keys, times(parts, 0).values(), times(parts, 1).values())?;
        let mut sessions = parts.project(&columns)?;
        if let Some(late) = late {
            let rows = parts.column(columns.len()).as_primitive::<Int64Type>();
            let count: i64 =
                rows.values().iter().zip(late.values()).filter(|(_, late)| *late).map(|(rows, _)| rows).sum();
            self.shape.late.add(count as usize);
            sessions = filter_record_batch(&sessions, &not(&late)?)?;
        }
        if sessions.num_rows() > 0 {
            self.take(sessions);
        }
        Ok(())
    }

    /// Takes rows that came with their keys; those that come too late go on by themselves.
    fn take_rows(&mut self, rows: RecordBatch, of: &LateOutput, emit: &mut Emit) -> Result<()> {
        let shape = Arc::clone(&self.shape);
        let (mut rows, mut times) = shape.timed(rows)?;
        let keys: Vec<ArrayRef> = rows.columns()[of.keyed.width..].to_vec();
        if let Some(late) = self.late(&keys, times.values(), times.values())? {
            emit.send_to(LATE_PORT, of.of(&filter_record_batch(&rows, &late)?)?);
            rows = filter_record_batch(&rows, &not(&late)?)?;
            (rows, times) = shape.timed(rows)?;
        }
        if rows.num_rows() > 0 {
            self.take(shape.of_rows(&rows, times.values())?.0);
        }
        Ok(())
    }

    fn take(&mut self, sessions: RecordBatch) {
        let gap = self.shape.gap;
        let end = times(&sessions, 1).values().iter().map(|last| last.saturating_add(gap)).min();
        self.next_end = end.unwrap_or(Micros::MAX).min(self.next_end);
        if self.saves {
            self.news.push(sessions.clone());
        }
        self.parts.push(sessions);
    }

    /// Puts all parts together.
    fn merge(&mut self) -> Result<()> {
        if self.parts.len() > 1 {
            self.parts = vec![self.shape.merged(&self.parts)?];
        }
        Ok(())
    }

    fn fire(&mut self, time: Micros, emit: &mut Emit) -> Result<(), TaskError> {
        self.fired = self.fired.max(time);
        if self.next_end > time {
            return Ok(());
        }
        self.merge()?;
        let Some(all) = self.parts.pop() else { return Ok(()) };
        let gap = self.shape.gap;
        let ends: Vec<Micros> = times(&all, 1).values().iter().map(|last| last.saturating_add(gap)).collect();
        let over = BooleanArray::from_iter(ends.iter().map(|&end| Some(end <= time)));
        self.next_end = ends.into_iter().filter(|&end| end > time).min().unwrap_or(Micros::MAX);
        let rest = filter_record_batch(&all, &not(&over)?)?;
        let over = filter_record_batch(&all, &over)?;
        if rest.num_rows() > 0 {
            self.parts.push(rest);
        }
        if over.num_rows() == 0 {
            return Ok(());
        }
        self.fired_buckets.extend(buckets_of_key(&over, BEFORE, self.shape.of.keys.len())?);
        for batch in self.steps.apply(self.shape.results(&over)?)? {
            emit.send(batch);
        }
        Ok(())
    }
}

impl Holds for SecondHalf {
    fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        Ok(self.parts.iter().map(batch_bytes).sum::<u64>() as usize)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        Ok(())
    }
}

impl Operator for SecondHalf {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let (shape, rows) = (Arc::clone(&self.shape), batch.num_rows());
        match &shape.late_rows {
            Some(of) => self.take_rows(batch, of, emit)?,
            None => self.take_parts(&batch)?,
        }
        self.weigh(rows)?;
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.fire(time.minus(self.shape.behind).0, emit)?;
        Ok(Flow::Done)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.fire(Micros::MAX, emit)?;
        Ok(Flow::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, lost: &[u32]) -> Result<Released, TaskError> {
        self.merge()?;
        let Some(all) = self.parts.pop() else { return Ok(Vec::new().into()) };
        let lost: BTreeSet<u32> = lost.iter().copied().collect();
        let keys = self.shape.of.keys.len();
        let of = buckets_of_key(&all, BEFORE, keys)?;
        let stays = BooleanArray::from_iter(of.into_iter().map(|bucket| Some(!lost.contains(&bucket))));
        let rest = filter_record_batch(&all, &stays)?;
        if rest.num_rows() > 0 {
            self.parts.push(rest);
        }
        Ok(by_bucket(&all, keys, |bucket| lost.contains(&bucket))?.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            self.take(rows::decode(&self.shape.session_schema, &part)?);
        }
        Ok(())
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        self.merge()?;
        let mut snapshot = shared(self.fired);
        let news = std::mem::take(&mut self.news);
        let fired = std::mem::take(&mut self.fired_buckets);
        if !whole && news.is_empty() && fired.is_empty() {
            return Ok(snapshot);
        }
        let (shape, saved) = (Arc::clone(&self.shape), Arc::clone(&self.saved));
        let all = self.parts.clone();
        snapshot.later = Some(Later(Box::new(move || {
            let keys = shape.of.keys.len();
            let mut saved = saved.lock().expect("nothing panics with it locked");
            let wholes: BTreeSet<u32> = if whole { saved.clone() } else { fired };
            let mut parts = by_bucket(&concat_batches(&shape.session_schema, &all)?, keys, |bucket| {
                whole || wholes.contains(&bucket)
            })?;
            let made: BTreeSet<u32> = parts.iter().map(|(bucket, _)| *bucket).collect();
            let gone = wholes.difference(&made).filter(|bucket| saved.contains(bucket));
            let mut changes = Vec::new();
            if !whole {
                let news = concat_batches(&shape.session_schema, &news)?;
                changes = by_bucket(&news, keys, |bucket| !wholes.contains(&bucket))?;
            }
            let part = |part: fn(Bytes) -> Part| move |(bucket, bytes)| (bucket, part(bytes));
            let empty: Vec<(u32, Bytes)> = gone.map(|&bucket| (bucket, Bytes::new())).collect();
            let forgotten: Vec<u32> = empty.iter().map(|(bucket, _)| *bucket).collect();
            parts.extend(empty);
            saved.extend(made);
            saved.extend(changes.iter().map(|(bucket, _)| *bucket));
            forgotten.iter().for_each(|bucket| {
                saved.remove(bucket);
            });
            Ok(parts.into_iter().map(part(Part::Whole)).chain(changes.into_iter().map(part(Part::Change))).collect())
        })));
        Ok(snapshot)
    }
}

/// Sessions of the buckets that are wanted, by bucket, as bytes.
fn by_bucket(sessions: &RecordBatch, keys: usize, wanted: impl Fn(u32) -> bool) -> Result<Vec<(u32, Bytes)>> {
    kept::by_bucket(sessions, &buckets_of_key(sessions, BEFORE, keys)?, wanted)
}
