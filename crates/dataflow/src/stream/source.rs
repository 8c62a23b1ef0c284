//! Sources of streams: what is read in *splits* (a partition, a file, a generator's share), each with a time of its own
//! and a place to go on from. One driver asks a source for rows, tells time from them, and saves where it stands at
//! barriers.

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
use crate::checkpoint::CopyStates;
use crate::error::TaskError;
use crate::flow::Outputs;
use crate::source_progress::SourceTracker;
use crate::task::TaskContext;
use crate::work::{CALL, QUEUE};

/// No batch has so many rows: a source that may give as many need not be told.
const MANY_ROWS: u64 = 1 << 20;

/// What a source has next.
#[derive(Debug)]
pub enum SourceEvent {
    /// Rows of one of its splits, which it numbers from 0.
    Rows {
        /// The split.
        split: u32,
        /// Its next rows, in its order.
        rows: RecordBatch,
        /// What was met between them and is no row, for the task's second output port, if it has one. It comes with
        /// them, so that a snapshot is behind both or neither.
        bad: Option<RecordBatch>,
    },
    /// A split has been read as far as there is anything. A source whose other splits go on says it again now and then,
    /// so that the split is found to be idle: of one that always has something else to give it is not known what waits
    /// behind that.
    Idle {
        /// The split.
        split: u32,
        /// When there was nothing more: it may be told a while later.
        at: Instant,
    },
    /// A split is over.
    SplitEnded {
        /// The split.
        split: u32,
    },
    /// Nothing will come any more.
    End,
}

impl SourceEvent {
    /// Rows of a split, all of them good.
    pub fn rows(split: u32, rows: RecordBatch) -> Self {
        SourceEvent::Rows { split, rows, bad: None }
    }
}

/// The port that rows leave a source by, and that of what is no row.
const ROWS_PORT: usize = 0;
const BAD_PORT: usize = 1;

/// What streams come from. A copy of a source task has one.
///
/// It is asked one thing at a time. A source that waits for the world outside waits in `poll_next`, which may be left
/// and asked again at any time: nothing may get lost with it.
pub trait Source: Send {
    /// What comes next.
    ///
    /// # Errors
    /// Fails the task.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>>;

    /// Where it stands, behind all rows that it has given: of each split a name that stays the same, and what it needs
    /// to go on from here. The names of splits that are over stay too, else they would be read again.
    ///
    /// # Errors
    /// Fails the task.
    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError>;

    /// What people call a split, such as a file or a partition of a topic.
    fn split_name(&self, split: u32) -> String {
        format!("split {split}")
    }

    /// What every copy is to know when the job goes on, by name
    /// ([`RestoredState::shared`](crate::checkpoint::RestoredState::shared)): such as the splits that there are, so
    /// that one that comes later is taken by one copy, however splits were dealt.
    ///
    /// # Errors
    /// Fails the task.
    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }

    /// The snapshot that is asked for next is that of `epoch`. Behind its end a source is not told any.
    fn barrier(&mut self, epoch: u64) {
        let _ = epoch;
    }

    /// The checkpoint of `epoch` is durable: nothing before that snapshot will be asked for again.
    fn durable(&mut self, epoch: u64) {
        let _ = epoch;
    }

    /// Whoever has its rows takes a moment for so many: larger batches only make barriers wait. A source need not heed
    /// it.
    fn limit_rows(&mut self, rows: usize) {
        let _ = rows;
    }

    /// Whether it gives rows again that lie behind the place it begins at. Those of another one cannot come twice, so
    /// with at most once they do not wait for checkpoints.
    fn is_replayable(&self) -> bool {
        true
    }

    /// Whether it stays until its last snapshot is durable ([`Source::durable`] with the highest number there is, if
    /// that is its end), and then calls [`finish`](Source::finish).
    fn finishes_after_commit(&self) -> bool {
        false
    }

    /// Whether these are said again when the job goes on and its copy had come to its end before: it may have failed
    /// just then.
    fn finish_is_idempotent(&self) -> bool {
        false
    }

    /// What is left to do outside, such as to wait until acknowledgements have arrived.
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
/// A folder that cannot be read, naming it.
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

    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().finish()
    }
}

/// How a source's rows tell time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatermarkStrategy {
    /// The column with each row's event time: a timestamp or a date.
    pub column: String,
    /// How much earlier a row may be than the latest of its split before it; rows that are later than that are late.
    pub out_of_order: Duration,
    /// A split that has been read as far as there is anything, for so long, holds time back no longer. What counts is
    /// how far the source has read, not how long its rows wait for room.
    pub idle_after: Duration,
    /// What says how far time is.
    pub origin: WatermarkOrigin,
}

/// What says how far the time of a source is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatermarkOrigin {
    /// Its rows: a split's time is the latest of them, less [`WatermarkStrategy::out_of_order`].
    Latest,
    /// Another column: where it has a value, no row of its split that comes later has an earlier time.
    Column(String),
    /// The machine's clock, also when no row comes. The source adds the column: the time at which a row was read.
    Arrival,
}

impl WatermarkStrategy {
    /// Told by `column`, whose rows come in order; a split without rows for a second is idle.
    pub fn of(column: impl Into<String>) -> Self {
        let (column, idle_after) = (column.into(), Duration::from_secs(1));
        WatermarkStrategy { column, out_of_order: Duration::ZERO, idle_after, origin: WatermarkOrigin::Latest }
    }

    /// With something else to say how far it is.
    #[must_use]
    pub fn origin(mut self, origin: WatermarkOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// What a source's rows are, which are read with this schema.
    ///
    /// # Errors
    /// In words, when a column is missing or tells no time, or is there that would be added.
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

    /// With rows that may be so much out of order.
    #[must_use]
    pub fn out_of_order(mut self, by: Duration) -> Self {
        self.out_of_order = by;
        self
    }

    /// With splits idle after so long.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = idle;
        self
    }
}

/// The position of a column that holds event times.
///
/// # Errors
/// In words, when there is none or it is of another type.
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
}

/// What comes after an event.
enum AfterEvent {
    Continue,
    /// Nobody wants more rows. That is an end like any other: the places of its splits are kept.
    End,
    /// The job stops at the barrier of this epoch.
    Stop(u64),
}

/// What it takes lately to send rows: much where their receivers are slow, or the links there. A source is told to give
/// few at a time then, as barriers pass between two batches.
#[derive(Default)]
struct SendTimes {
    rows: u64,
    time_ns: u64,
}

impl SendTimes {
    /// So many rows were sent in this time. Of what was before an eighth is forgotten.
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

/// A source that runs. Events come one at a time, from [`SourceDriver::next_event`].
struct SourceDriver<'a, S> {
    states: Option<&'a CopyStates>,
    barriers: watch::Receiver<Option<Barrier>>,
    durable: watch::Receiver<u64>,
    place: SourceTracker,
    clock: Option<SourceClock>,
    /// Rows that wait for a durable checkpoint: at most once.
    held: Option<AtMostOnceBuffer>,
    /// The last thing that the source said is that it has nothing for now.
    waiting: bool,
    ended: bool,
    /// Rows take whoever gets them so long that the source was told to give few.
    slow: bool,
    /// What sending takes.
    sending: SendTimes,
    /// The last epoch whose checkpoint has what the copy kept before its end.
    passed: u64,
    outputs: Outputs,
    source: S,
}

/// Runs a source to its end. `missed`: it tells no time, though others wait for it.
pub(crate) async fn drive<S: Source>(
    source: S,
    times: Option<WatermarkStrategy>,
    missed: bool,
    mut outputs: Outputs,
    context: &TaskContext,
) -> Result<(), TaskError> {
    let schema = outputs.port(ROWS_PORT).schema();
    let clock = times.map(|times| SourceClock::new(times, schema, context.restored())).transpose()?;
    if context.was_finished() {
        return end_again(source, clock, context).await;
    }
    let mut driver = SourceDriver::new(source, clock, missed, outputs, context)?;
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
        context: &'a TaskContext,
    ) -> Result<Self, TaskError> {
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
            states,
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
        while !(self.ended && self.holds_nothing()) {
            let event = self.next_event().await?;
            match self.handle(event).await? {
                AfterEvent::Continue => self.tell_time().await?,
                AfterEvent::End => break,
                AfterEvent::Stop(epoch) => return Ok(Some(epoch)),
            }
        }
        Ok(None)
    }

    fn holds_nothing(&self) -> bool {
        self.held.as_ref().is_none_or(AtMostOnceBuffer::is_empty)
    }

    async fn next_event(&mut self) -> Result<DriverEvent, TaskError> {
        let has_states = self.states.is_some();
        let has_room = !self.ended && self.held.as_ref().is_none_or(AtMostOnceBuffer::has_room);
        let idle_at = self.clock.as_ref().and_then(SourceClock::due);
        let (source, waiting) = (&mut self.source, self.waiting);
        Ok(tokio::select! {
            biased;
            Ok(()) = self.barriers.changed(), if has_states => DriverEvent::Barrier,
            Ok(()) = self.durable.changed(), if has_states => DriverEvent::Durable,
            next = poll_fn(|context| match source.poll_next(context) {
                Poll::Ready(next) => Poll::Ready(next.map(DriverEvent::Next)),
                // What has been collected does not wait with the source.
                Poll::Pending if !waiting => Poll::Ready(Ok(DriverEvent::Waiting)),
                Poll::Pending => Poll::Pending,
            }), if has_room => next?,
            () = async { sleep_until(idle_at.expect("asked only then").into()).await }, if idle_at.is_some() => {
                DriverEvent::Idle
            }
        })
    }

    async fn handle(&mut self, event: DriverEvent) -> Result<AfterEvent, TaskError> {
        self.waiting = match event {
            DriverEvent::Waiting => true,
            DriverEvent::Next(_) | DriverEvent::Barrier => false,
            DriverEvent::Idle | DriverEvent::Durable => self.waiting,
        };
        match event {
            DriverEvent::Next(SourceEvent::End) => self.ended = true,
            DriverEvent::Next(next) => return self.on_next(next).await,
            DriverEvent::Waiting => self.outputs.flush().await?,
            DriverEvent::Idle => {}
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
        // One that always has something must not keep its thread for itself.
        tokio::task::yield_now().await;
        Ok(AfterEvent::Continue)
    }

    async fn on_durable(&mut self) -> Result<(), TaskError> {
        let epoch = *self.durable.borrow_and_update();
        // First, so that nobody gives again what goes on now.
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
        self.outputs.mark(&Mark::Barrier(barrier)).await?;
        Ok(if stops { AfterEvent::Stop(epoch) } else { AfterEvent::Continue })
    }

    fn snapshot_at(&mut self, epoch: u64) -> Result<Snapshot, TaskError> {
        self.source.barrier(epoch);
        let snapshot = snapshot(&mut self.source, self.clock.as_ref())?;
        if let Some(held) = &mut self.held {
            held.barrier(epoch, &snapshot);
        }
        Ok(snapshot)
    }

    /// Tells others how far the source's time is.
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

    /// Saves where the source stands for good.
    async fn end(mut self) -> Result<(), TaskError> {
        // Nothing comes any more, so time goes on to the latest row before it ends: for timers that set the next.
        if let Some(latest) = self.clock.as_ref().map(SourceClock::latest).filter(|&latest| latest > EventTime::MIN) {
            self.outputs.mark(&Mark::Watermark(latest)).await?;
        }
        self.outputs.finish().await?;
        if let Some(states) = self.states {
            states.end(snapshot(&mut self.source, self.clock.as_ref())?).await?;
        }
        // Any further checkpoint is whole only with this end in it, whatever else the job has to do after it.
        leave(self.source, &mut self.durable, (self.passed + 1, ALL)).await
    }
}

/// Sends rows on, or notes what is told of a split.
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

/// Lets a source that has last words say them, when its last snapshot is durable: with the checkpoint of the first
/// epoch, or one after it. It is told the second.
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
