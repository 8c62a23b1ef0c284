//! Sources of streams: they read *splits* (a partition, a file, a generator's share), each with its own time and a
//! position to resume from. One driver asks a source for rows, derives time from them, and saves the source's
//! position at barriers.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_checkpoint::coordinator::ALL;
use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark, Snapshot};
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::at_most_once::AtMostOnceBuffer;
use super::clock::SourceClock;
use super::handover::TakenSplits;
use crate::checkpoint::CopyStates;
use crate::error::TaskError;
use crate::flow::{Outputs, SplitHandover};
use crate::rebalance::Moves;
use crate::source_progress::SourceTracker;
use crate::task::TaskContext;
use crate::work::{CALL, QUEUE};

/// No batch has this many rows, so a source that may yield this many needs no limit.
const MANY_ROWS: u64 = 1 << 20;

/// The next event of a source.
#[derive(Debug)]
pub enum SourceEvent {
    /// Rows of one of its splits, which it numbers from 0.
    Rows {
        /// The split.
        split: u32,
        /// The split's next rows, in order.
        rows: RecordBatch,
        /// Records between them that cannot be made rows, for the task's second output port, if it has one. They come
        /// with the rows, so that a snapshot is behind both or neither.
        bad: Option<RecordBatch>,
    },
    /// A split has no more for now. A source whose other splits continue repeats this now and then, so that the split
    /// is found to be idle: if a source always has something else to deliver, nobody knows what waits behind that.
    Idle {
        /// The split.
        split: u32,
        /// When there was nothing more, which may be reported a while later.
        at: Instant,
    },
    /// A split is over.
    SplitEnded {
        /// The split.
        split: u32,
    },
    /// Nothing more will come.
    End,
}

/// A split that a source has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasedSplit {
    /// Its name in snapshots.
    pub name: String,
    /// What its next reader needs to resume from there, as in snapshots.
    pub position: Bytes,
    /// Its numbers in events; several if it is read as several, such as files.
    pub numbers: Vec<u32>,
}

impl SourceEvent {
    /// Rows of a split, all of them valid.
    pub fn rows(split: u32, rows: RecordBatch) -> Self {
        SourceEvent::Rows { split, rows, bad: None }
    }
}

/// The ports by which rows, and records that are not rows, leave a source.
const ROWS_PORT: usize = 0;
const BAD_PORT: usize = 1;

/// Where streams come from. Each copy of a source task has one.
///
/// Its methods are called one at a time. A source waits for the outside world in `poll_next`, which may be abandoned
/// and called again at any time; no event may get lost by that.
pub trait Source: Send {
    /// Returns the next event.
    ///
    /// # Errors
    /// Fails the task.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>>;

    /// Its position after all rows that it has delivered: for each split a stable name, and what it needs to resume
    /// from there. The names of ended splits stay too; otherwise they would be read again.
    ///
    /// # Errors
    /// Fails the task.
    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError>;

    /// What users call a split, such as a file or a partition of a topic.
    fn split_name(&self, split: u32) -> String {
        format!("split {split}")
    }

    /// Gives up those of these splits, named as in [`Source::snapshot`], that it has and that have not ended. No event
    /// of them follows, and later snapshots do not list them. A snapshot was taken just before, and nothing was
    /// delivered since. Only asked of sources with [movable splits](crate::TaskSpec::movable_splits).
    ///
    /// # Errors
    /// Fails the task.
    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let _ = splits;
        Ok(Vec::new())
    }

    /// Takes over splits that another copy has released, at the positions that it had saved. Returns the number of
    /// each, in order, which no other split has or has had. A source that had come to its end may go on.
    ///
    /// # Errors
    /// Fails the task.
    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        match splits.first() {
            Some((split, _)) => {
                Err(format!("split {split:?} came from another copy, but the source cannot take it").into())
            }
            None => Ok(Vec::new()),
        }
    }

    /// What every copy should know when the job resumes, by name
    /// ([`RestoredState::shared`](crate::checkpoint::RestoredState::shared)): for example the existing splits, so
    /// that one copy takes a later one, however splits were assigned.
    ///
    /// # Errors
    /// Fails the task.
    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }

    /// Announces that the next requested snapshot belongs to `epoch`. Not called after the source has ended.
    fn barrier(&mut self, epoch: u64) {
        let _ = epoch;
    }

    /// Announces that the checkpoint of `epoch` is durable: nothing before that snapshot will be requested again.
    fn durable(&mut self, epoch: u64) {
        let _ = epoch;
    }

    /// Announces that the receiver needs a moment for this many rows: larger batches only delay barriers. A source
    /// may ignore it.
    fn limit_rows(&mut self, rows: usize) {
        let _ = rows;
    }

    /// Whether it can deliver rows again that follow the position it starts from. Rows of other sources cannot come
    /// twice, so in at-most-once mode they do not wait for checkpoints.
    fn is_replayable(&self) -> bool {
        true
    }

    /// Whether the source stays until its last snapshot is durable, and then calls [`finish`](Source::finish).
    /// [`Source::durable`] announces it, with the highest possible number if the snapshot was taken at its end.
    fn finishes_after_commit(&self) -> bool {
        false
    }

    /// Whether these calls are repeated when the job resumes and its copy had ended before, since it may have failed
    /// just then.
    fn finish_is_idempotent(&self) -> bool {
        false
    }

    /// Whether a copy that had ended runs again when the job resumes: others that had not may need it. It delivers
    /// nothing that the checkpoint has.
    fn runs_again(&self) -> bool {
        false
    }

    /// Does what is left to do outside, such as waiting until acknowledgments have arrived.
    ///
    /// # Errors
    /// Fails the task.
    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Makes the source of one copy.
pub type MakeSource = Arc<dyn Fn(&TaskContext) -> Result<Box<dyn Source>, TaskError> + Send + Sync>;

/// Lists the local files that a source would read.
///
/// # Errors
/// A folder that cannot be read; the error names it.
pub type ListFiles = Arc<dyn Fn() -> Result<Vec<String>, TaskError> + Send + Sync>;

impl Source for Box<dyn Source> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        self.as_mut().poll_next(context)
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        self.as_mut().snapshot()
    }

    fn split_name(&self, split: u32) -> String {
        self.as_ref().split_name(split)
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        self.as_mut().release(splits)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        self.as_mut().acquire(splits)
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        self.as_mut().shared()
    }

    fn barrier(&mut self, epoch: u64) {
        self.as_mut().barrier(epoch);
    }

    fn durable(&mut self, epoch: u64) {
        self.as_mut().durable(epoch);
    }

    fn limit_rows(&mut self, rows: usize) {
        self.as_mut().limit_rows(rows);
    }

    fn is_replayable(&self) -> bool {
        self.as_ref().is_replayable()
    }

    fn finishes_after_commit(&self) -> bool {
        self.as_ref().finishes_after_commit()
    }

    fn finish_is_idempotent(&self) -> bool {
        self.as_ref().finish_is_idempotent()
    }

    fn runs_again(&self) -> bool {
        self.as_ref().runs_again()
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().finish()
    }
}

/// How a source's rows tell time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatermarkStrategy {
    /// The column with each row's event time: a timestamp or a date.
    pub column: String,
    /// How much earlier a row may be than the latest earlier row of its split; rows beyond that are late.
    pub out_of_order: Duration,
    /// A split that has had nothing more for this long no longer holds time back. What counts is how far the source
    /// has read, not how long its rows wait for room.
    pub idle_after: Duration,
    /// What determines how far time has advanced.
    pub origin: WatermarkOrigin,
}

/// What determines how far the time of a source has advanced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatermarkOrigin {
    /// Its rows: a split's time is the latest of them, less [`WatermarkStrategy::out_of_order`].
    Latest,
    /// Another column: where it has a value, no later row of its split has an earlier time.
    Column(String),
    /// The machine's clock, even when no row comes. The source adds the column: the time at which a row was read.
    Arrival,
}

impl WatermarkStrategy {
    /// Time from `column`, whose rows come in order; a split without rows for a second is idle.
    pub fn of(column: impl Into<String>) -> Self {
        let (column, idle_after) = (column.into(), Duration::from_secs(1));
        WatermarkStrategy { column, out_of_order: Duration::ZERO, idle_after, origin: WatermarkOrigin::Latest }
    }

    /// Changes what determines how far time has advanced.
    #[must_use]
    pub fn origin(mut self, origin: WatermarkOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// The schema of a source's rows, which are read with the schema `read`.
    ///
    /// # Errors
    /// A description, if a column is missing or does not tell time, or if the column to be added already exists.
    pub fn schema(&self, read: &SchemaRef) -> Result<SchemaRef, String> {
        match &self.origin {
            WatermarkOrigin::Arrival if read.column_with_name(&self.column).is_some() => Err(format!(
                "column \"{}\" already exists: give the column of processing_time() another name",
                self.column
            )),
            WatermarkOrigin::Arrival => {
                let time = Field::new(&self.column, DataType::Timestamp(TimeUnit::Microsecond, None), false);
                let fields = read.fields().iter().cloned().chain([Arc::new(time)]);
                Ok(Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), read.metadata().clone())))
            }
            WatermarkOrigin::Column(told) => {
                time_column(read, &self.column)?;
                time_column(read, told)?;
                Ok(Arc::clone(read))
            }
            WatermarkOrigin::Latest => {
                time_column(read, &self.column)?;
                Ok(Arc::clone(read))
            }
        }
    }

    /// Allows rows to be out of order by this much.
    #[must_use]
    pub fn out_of_order(mut self, by: Duration) -> Self {
        self.out_of_order = by;
        self
    }

    /// Makes splits idle after this long.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = idle;
        self
    }
}

/// The position of a column that holds event times.
///
/// # Errors
/// A description, if the column is missing or has another type.
pub fn time_column(schema: &SchemaRef, name: &str) -> Result<usize, String> {
    let at = tidemill_batch::schema::columns(schema, std::slice::from_ref(&name.to_owned()))?[0];
    match schema.field(at).data_type() {
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => Ok(at),
        other => Err(format!("column \"{name}\" ({other}) is not a time: cast it to a timestamp")),
    }
}

/// What a source's driver waits for.
enum DriverEvent {
    Next(SourceEvent),
    /// The source has nothing for now.
    Waiting,
    Barrier,
    Durable,
    /// A split may have become idle.
    Idle,
    /// Another copy has no split left, or has ended.
    Parked,
}

/// What to do after an event.
enum AfterEvent {
    Continue,
    /// Nobody wants more rows. This is an end like any other: the positions of its splits are kept.
    End,
    /// The job stops at the barrier of this epoch.
    Stop(u64),
}

/// How long it has recently taken to send rows: long if their receivers or links are slow. The source is then told to
/// deliver few at a time, since barriers pass between two batches.
#[derive(Default)]
struct SendTimes {
    rows: u64,
    time_ns: u64,
}

impl SendTimes {
    /// Records that this many rows were sent in this time. An eighth of the earlier total fades each time.
    fn note(&mut self, rows: usize, time: Duration) {
        if rows > 0 {
            self.rows = self.rows - self.rows / 8 + rows as u64;
            self.time_ns = self.time_ns - self.time_ns / 8 + time.as_nanos() as u64;
        }
    }

    fn row_ns(&self) -> u64 {
        self.time_ns / self.rows.max(1)
    }
}

/// A running source. Events come one at a time, from [`SourceDriver::next_event`].
struct SourceDriver<'a, S> {
    task: &'a str,
    states: Option<&'a CopyStates>,
    /// For sources whose splits can move.
    handover: Option<SplitHandover>,
    barriers: watch::Receiver<Option<Barrier>>,
    durable: watch::Receiver<u64>,
    place: SourceTracker,
    clock: Option<SourceClock>,
    /// Rows that wait for a durable checkpoint, in at-most-once mode.
    held: Option<AtMostOnceBuffer>,
    /// Whether the source last reported that it has nothing for now.
    waiting: bool,
    ended: bool,
    /// Whether rows take the receiver so long that the source was told to deliver few.
    slow: bool,
    /// How long sending takes.
    sending: SendTimes,
    /// The last epoch whose checkpoint holds a state of the copy from before its end.
    passed: u64,
    outputs: Outputs,
    source: S,
}

/// Runs a source to its end. `missed`: the source announces no time, although other tasks wait for time.
pub(crate) async fn drive<S: Source>(
    source: S,
    times: Option<WatermarkStrategy>,
    missed: bool,
    mut outputs: Outputs,
    (handover, context): (Option<SplitHandover>, &TaskContext),
) -> Result<(), TaskError> {
    let schema = outputs.port(ROWS_PORT).schema();
    let clock = times.map(|times| SourceClock::new(times, schema, context.restored())).transpose()?;
    if context.was_finished() && !source.runs_again() {
        return end_again(source, clock, context).await;
    }
    let mut driver = SourceDriver::new(source, clock, missed, outputs, (handover, context))?;
    match driver.run().await? {
        Some(epoch) => leave(driver.source, &mut driver.durable, (epoch, epoch)).await,
        None => driver.end().await,
    }
}

/// Runs a source whose copy had come to its end when the job resumed.
async fn end_again<S: Source>(
    mut source: S,
    clock: Option<SourceClock>,
    context: &TaskContext,
) -> Result<(), TaskError> {
    if let Some(states) = context.states() {
        states.end(snapshot(&mut source, clock.as_ref())?).await?;
    }
    if source.finish_is_idempotent() {
        source.durable(ALL);
        source.finish().await?;
    }
    Ok(())
}

impl<'a, S: Source> SourceDriver<'a, S> {
    fn new(
        mut source: S,
        clock: Option<SourceClock>,
        missed: bool,
        outputs: Outputs,
        (mut handover, context): (Option<SplitHandover>, &'a TaskContext),
    ) -> Result<Self, TaskError> {
        if let (Some(handover), Some(restored)) = (&mut handover, context.restored()) {
            // Others have all splits since an earlier run, so some may come back.
            handover.may_get = restored.splits.is_empty() && !restored.split_names.is_empty();
        }
        if let Some(handover) = &mut handover {
            handover.may_get |= !context.active_copies().contains(&context.copy());
        }
        let place = context.sources().place(context.task(), context.copy());
        if missed {
            place.report_no_time();
        }
        let held = if context.at_most_once() && source.is_replayable() {
            Some(AtMostOnceBuffer::new(&snapshot(&mut source, clock.as_ref())?))
        } else {
            None
        };
        let states = context.states();
        Ok(SourceDriver {
            task: context.task(),
            states,
            handover,
            // Without checkpoints there are no barriers, and everything is durable at once.
            barriers: states.map_or_else(|| watch::Sender::new(None).subscribe(), CopyStates::barriers),
            durable: states.map_or_else(|| watch::Sender::new(ALL).subscribe(), CopyStates::durable),
            place,
            clock,
            held,
            waiting: false,
            ended: false,
            slow: false,
            sending: SendTimes::default(),
            passed: context.restored().map_or(0, |restored| restored.epoch),
            outputs,
            source,
        })
    }

    /// Handles events until the source ends. Returns the epoch if the job stopped at its barrier.
    async fn run(&mut self) -> Result<Option<u64>, TaskError> {
        while !(self.ended && self.holds_nothing() && !self.stays().await?) {
            let event = self.next_event().await?;
            match self.handle(event).await? {
                AfterEvent::Continue => self.tell_time().await?,
                AfterEvent::End => break,
                AfterEvent::Stop(epoch) => return Ok(Some(epoch)),
            }
        }
        Ok(None)
    }

    /// Whether a copy without splits stays, because it may get some.
    async fn stays(&mut self) -> Result<bool, TaskError> {
        let Some(handover) = self.handover.as_mut().filter(|handover| handover.may_get) else { return Ok(false) };
        if handover.park()? {
            if let Some(clock) = &mut self.clock {
                clock.park();
            }
            self.outputs.flush().await?;
            self.tell_time().await?;
        }
        Ok(self.handover.as_ref().is_some_and(|handover| !handover.all_parked()))
    }

    fn holds_nothing(&self) -> bool {
        self.held.as_ref().is_none_or(AtMostOnceBuffer::is_empty)
    }

    async fn next_event(&mut self) -> Result<DriverEvent, TaskError> {
        let has_states = self.states.is_some();
        let has_room = !self.ended && self.held.as_ref().is_none_or(AtMostOnceBuffer::has_room);
        let idle_at = self.clock.as_ref().and_then(SourceClock::due);
        let (source, waiting) = (&mut self.source, self.waiting);
        let (handover, ended) = (&mut self.handover, self.ended);
        Ok(tokio::select! {
            biased;
            Ok(()) = self.barriers.changed(), if has_states => DriverEvent::Barrier,
            Ok(()) = self.durable.changed(), if has_states => DriverEvent::Durable,
            next = poll_fn(|context| match source.poll_next(context) {
                Poll::Ready(next) => Poll::Ready(next.map(DriverEvent::Next)),
                // What has been collected does not wait along with the source.
                Poll::Pending if !waiting => Poll::Ready(Ok(DriverEvent::Waiting)),
                Poll::Pending => Poll::Pending,
            }), if has_room => next?,
            () = async { sleep_until(idle_at.expect("asked only then").into()).await }, if idle_at.is_some() => {
                DriverEvent::Idle
            }
            heard = async { handover.as_mut().expect("asked only then").hear_parked().await },
                if ended && handover.as_ref().is_some_and(|handover| handover.told_parked) =>
            {
                heard?;
                DriverEvent::Parked
            }
        })
    }

    async fn handle(&mut self, event: DriverEvent) -> Result<AfterEvent, TaskError> {
        self.waiting = match event {
            DriverEvent::Waiting => true,
            DriverEvent::Next(_) | DriverEvent::Barrier => false,
            DriverEvent::Idle | DriverEvent::Durable | DriverEvent::Parked => self.waiting,
        };
        match event {
            DriverEvent::Next(SourceEvent::End) => self.ended = true,
            DriverEvent::Next(next) => return self.on_next(next).await,
            DriverEvent::Waiting => self.outputs.flush().await?,
            DriverEvent::Idle | DriverEvent::Parked => {}
            DriverEvent::Durable => self.on_durable().await?,
            DriverEvent::Barrier => return self.on_barrier().await,
        }
        Ok(AfterEvent::Continue)
    }

    async fn on_next(&mut self, next: SourceEvent) -> Result<AfterEvent, TaskError> {
        match &mut self.held {
            Some(held) => held.keep(next),
            None => {
                let rows = if let SourceEvent::Rows { rows, .. } = &next { rows.num_rows() } else { 0 };
                let begun = Instant::now();
                give(next, &mut self.clock, &mut self.outputs).await?;
                self.sending.note(rows, begun.elapsed());
            }
        }
        let port = self.outputs.port(ROWS_PORT);
        let (row_ns, is_wanted) = (port.row_ns(), port.is_wanted());
        let rows_within = |time: Duration, row_ns: u64| time.as_nanos() as u64 / row_ns.max(1);
        let at_most = rows_within(QUEUE, row_ns).min(rows_within(CALL, self.sending.row_ns()));
        let is_slow = at_most < MANY_ROWS;
        if is_slow || self.slow {
            self.slow = is_slow;
            self.source.limit_rows(if is_slow { at_most.max(1) as usize } else { usize::MAX });
        }
        if !is_wanted {
            return Ok(AfterEvent::End);
        }
        // A source that always has something must not keep its thread for itself.
        tokio::task::yield_now().await;
        Ok(AfterEvent::Continue)
    }

    async fn on_durable(&mut self) -> Result<(), TaskError> {
        let epoch = *self.durable.borrow_and_update();
        // First, so that nobody delivers again what is sent on now.
        self.source.durable(epoch);
        if let Some(held) = &mut self.held {
            for next in held.durable(epoch) {
                give(next, &mut self.clock, &mut self.outputs).await?;
            }
            self.outputs.flush().await?;
        }
        Ok(())
    }

    async fn on_barrier(&mut self) -> Result<AfterEvent, TaskError> {
        let Some(barrier) = self.barriers.borrow_and_update().clone() else { return Ok(AfterEvent::Continue) };
        let (epoch, stops) = (barrier.epoch, barrier.control == BarrierControl::Stop);
        self.passed = epoch;
        if let Some(states) = self.states {
            let snapshot = match self.held.take_if(|_| stops) {
                Some(held) => held.stop(),
                None => self.snapshot_at(epoch)?,
            };
            states.save(epoch, true, snapshot);
        }
        self.outputs.mark(&Mark::Barrier(barrier.clone())).await?;
        if barrier.restarts_time() {
            // After the barrier in the outputs, so that later tasks do not wait for this.
            let first = self.move_splits(&barrier).await?;
            if let Some(clock) = &mut self.clock {
                clock.restate(first);
            }
        }
        Ok(if stops { AfterEvent::Stop(epoch) } else { AfterEvent::Continue })
    }

    /// Hands over the splits that move to other copies at a barrier, and takes over those that come. Returns the
    /// earliest time of the latter.
    async fn move_splits(&mut self, barrier: &Barrier) -> Result<Option<EventTime>, TaskError> {
        let (Some(handover), Some(states)) = (&mut self.handover, self.states) else { return Ok(None) };
        let Some(moves) = barrier.split_moves_of(self.task).filter(|moves| handover.takes_part(moves)) else {
            return Ok(None);
        };
        let TakenSplits { moved, count, first } =
            handover.run(&mut self.source, &mut self.clock, (barrier, moves)).await?;
        self.ended &= count == 0;
        states.moved(&Moves::default(), moved);
        Ok(first)
    }

    fn snapshot_at(&mut self, epoch: u64) -> Result<Snapshot, TaskError> {
        self.source.barrier(epoch);
        let snapshot = snapshot(&mut self.source, self.clock.as_ref())?;
        if let Some(held) = &mut self.held {
            held.barrier(epoch, &snapshot);
        }
        Ok(snapshot)
    }

    /// Tells others how far the source's time has advanced.
    async fn tell_time(&mut self) -> Result<(), TaskError> {
        let is_quiet = self.waiting && self.holds_nothing();
        let Some(clock) = &mut self.clock else { return Ok(()) };
        let now = Instant::now();
        if is_quiet {
            clock.note_source_idle(now);
        }
        clock.check_idle(now);
        let (slowest, times) = clock.report();
        self.place.update(slowest, times, |split| self.source.split_name(split));
        for mark in clock.next_marks(now, self.waiting) {
            self.outputs.mark(&mark).await?;
        }
        Ok(())
    }

    /// Saves the source's final position.
    async fn end(mut self) -> Result<(), TaskError> {
        // Nobody waits for this copy to take splits over, even if it has to wait for its last checkpoint below.
        if let Some(handover) = &mut self.handover {
            handover.output.finish().await?;
        }
        // Nothing more comes, so time advances to the latest row before the end: for timers that set further timers.
        if let Some(latest) = self.clock.as_ref().map(SourceClock::latest).filter(|&latest| latest > EventTime::MIN) {
            self.outputs.mark(&Mark::Watermark(latest)).await?;
        }
        self.outputs.finish().await?;
        if let Some(states) = self.states {
            states.end(snapshot(&mut self.source, self.clock.as_ref())?).await?;
        }
        // Any later checkpoint is complete only if it contains this end, whatever else the job has to do after it.
        leave(self.source, &mut self.durable, (self.passed + 1, ALL)).await
    }
}

/// Sends rows on, or records what is reported about a split.
async fn give(next: SourceEvent, clock: &mut Option<SourceClock>, outputs: &mut Outputs) -> Result<(), TaskError> {
    match (next, clock) {
        (SourceEvent::Rows { split, rows, bad }, clock) => {
            if let Some(bad) = bad.filter(|_| outputs.len() > BAD_PORT) {
                outputs.port(BAD_PORT).send(bad).await?;
            }
            let rows = match clock {
                Some(clock) => clock.rows(split, rows)?,
                None => rows,
            };
            outputs.port(ROWS_PORT).send(rows).await?;
        }
        (SourceEvent::Idle { split, at }, Some(clock)) => clock.note_idle(split, at),
        (SourceEvent::SplitEnded { split }, Some(clock)) => clock.end_split(split),
        _ => {}
    }
    Ok(())
}

/// Lets a source finish what it has left to do, once its last snapshot is durable: with the checkpoint of epoch
/// `awaited`, or a later one. The source learns of it as `epoch`.
async fn leave<S: Source>(
    mut source: S,
    durable: &mut watch::Receiver<u64>,
    (awaited, epoch): (u64, u64),
) -> Result<(), TaskError> {
    if !source.finishes_after_commit() {
        return Ok(());
    }
    while *durable.borrow_and_update() < awaited {
        durable.changed().await.map_err(|_| "the run ended before its last checkpoint")?;
    }
    source.durable(epoch);
    source.finish().await
}

fn snapshot(source: &mut impl Source, clock: Option<&SourceClock>) -> Result<Snapshot, TaskError> {
    let mut shared = source.shared()?;
    shared.extend(clock.and_then(SourceClock::shared));
    Ok(Snapshot { splits: source.snapshot()?, shared, ..Snapshot::default() })
}
