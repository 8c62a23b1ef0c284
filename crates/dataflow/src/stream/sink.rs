//! Sinks of streams: rows appear outside when their checkpoint is durable, and only once, whatever happens in
//! between. (Two-phase commit: *prepare* at the barrier, *commit* when the manifest exists. What is prepared is part
//! of the checkpoint, so a job that resumes from it commits first.)
//!
//! Without checkpoints, rows are prepared and committed every second; what a failure interrupts may then be lost. In
//! at-most-once mode this happens at every barrier, and checkpoints do not record it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_checkpoint::coordinator::ALL;
use tidemill_checkpoint::{Barrier, BarrierControl, Mark, MoveReport, Snapshot};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::checkpoint::CopyStates;
use crate::error::TaskError;
use crate::flow::{Inputs, StreamElement};
use crate::rebalance::Moves;
use crate::task::TaskContext;
use crate::work::StepWork;

/// How often a row may appear at a sink when its job fails and resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryGuarantee {
    /// Never or once.
    AtMostOnce,
    /// Once or more often.
    AtLeastOnce,
    /// Once, if sources can be read again and the job makes checkpoints.
    ExactlyOnce,
}

impl fmt::Display for DeliveryGuarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeliveryGuarantee::AtMostOnce => "at most once",
            DeliveryGuarantee::AtLeastOnce => "at least once",
            DeliveryGuarantee::ExactlyOnce => "exactly once",
        })
    }
}

/// The time between commits without checkpoints.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Where streams go. Each copy of a sink task has one.
pub trait Sink: Send {
    /// Checks that the sink can work as configured, before it receives anything.
    ///
    /// # Errors
    /// Fails the task.
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Accepts rows, which need not appear anywhere yet.
    ///
    /// # Errors
    /// Fails the task.
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Makes what was written since the last call ready to be committed. Returns what [`Sink::commit`] needs, even in
    /// another process on another host; no bytes if there is nothing.
    ///
    /// # Errors
    /// Fails the task.
    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>>;

    /// Makes what was prepared appear. May be called again with the same bytes after a failure, perhaps on another
    /// copy: the second call changes nothing.
    ///
    /// # Errors
    /// Fails the task.
    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>>;

    /// How much it keeps in memory until the next `prepare`, as a fraction of what it may. From a half on, `prepare`
    /// is called soon. From 1 on it receives only rows that must precede it, or the end of a checkpoint whose barrier
    /// overtakes rows.
    fn fullness(&self) -> f64 {
        0.0
    }
}

/// Makes the sink of one copy.
pub type MakeSink = Arc<dyn Fn(&TaskContext) -> Result<Box<dyn Sink>, TaskError> + Send + Sync>;

impl Sink for Box<dyn Sink> {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().begin()
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().write(rows)
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        self.as_mut().prepare(epoch)
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().commit(prepared)
    }

    fn fullness(&self) -> f64 {
        self.as_ref().fullness()
    }
}

/// The name in checkpoints of what a copy has prepared at an epoch
/// ([`RestoredState::split_names`](crate::checkpoint::RestoredState::split_names)).
pub fn split_name(epoch: u64, copy: u32) -> String {
    format!("{epoch}.{copy}")
}

/// What a sink's driver waits for.
enum SinkEvent {
    Item(Option<StreamElement>),
    Durable,
    /// Without checkpoints: it is time to commit.
    Tick,
    /// Something has changed for a full sink: check again whether it may accept rows.
    Changed,
}

/// What is prepared but not committed, by epoch, with the name of its split.
type PreparedSplits = BTreeMap<(u64, String), Bytes>;

/// A running sink. Events come one at a time, from [`SinkDriver::next_event`].
struct SinkDriver<'a, S> {
    context: &'a TaskContext,
    states: Option<&'a CopyStates>,
    barriers: watch::Receiver<Option<Barrier>>,
    durable: watch::Receiver<u64>,
    /// Epochs whose barriers overtake rows.
    unaligned_epochs: watch::Receiver<u64>,
    work: Arc<StepWork>,
    /// Without checkpoints: when to commit next.
    tick: Instant,
    /// The epoch of the last barrier. Without checkpoints there is one for each tick.
    last: u64,
    /// The last durable epoch.
    done: u64,
    /// The epoch after which a checkpoint was requested.
    asked: Option<u64>,
    prepared: PreparedSplits,
    inputs: Inputs,
    sink: S,
}

/// Runs a sink to its end.
pub(crate) async fn drive<S: Sink>(mut sink: S, inputs: Inputs, context: &TaskContext) -> Result<(), TaskError> {
    sink.begin().await?;
    let mut driver = SinkDriver::new(sink, inputs, context);
    driver.restore().await?;
    loop {
        let event = driver.next_event().await?;
        if driver.handle(event).await?.is_break() {
            return driver.end().await;
        }
    }
}

impl<'a, S: Sink> SinkDriver<'a, S> {
    fn new(sink: S, inputs: Inputs, context: &'a TaskContext) -> Self {
        let states = context.states();
        let never = || watch::Sender::new(0).subscribe();
        SinkDriver {
            context,
            states,
            barriers: states.map_or_else(|| watch::Sender::new(None).subscribe(), CopyStates::barriers),
            durable: states.map_or_else(never, CopyStates::durable),
            unaligned_epochs: states.map_or_else(never, CopyStates::unaligned_epochs),
            work: context.work(context.task()),
            tick: Instant::now() + COMMIT_INTERVAL,
            last: 0,
            done: 0,
            asked: None,
            prepared: PreparedSplits::new(),
            inputs,
            sink,
        }
    }

    /// Commits what is prepared in the checkpoint from which the job resumes.
    async fn restore(&mut self) -> Result<(), TaskError> {
        let Some(restored) = self.states.and_then(CopyStates::restored) else { return Ok(()) };
        self.last = restored.epoch;
        self.done = restored.epoch;
        for (name, bytes) in &restored.splits {
            let epoch = name.split('.').next().and_then(|epoch| epoch.parse().ok());
            let epoch = epoch.ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no sink made"))?;
            self.prepared.insert((epoch, name.clone()), bytes.clone());
        }
        // The checkpoint is durable; otherwise the job could not resume from it.
        self.commit(ALL).await
    }

    async fn next_event(&mut self) -> Result<SinkEvent, TaskError> {
        let (has_states, is_full) = (self.states.is_some(), self.is_full());
        Ok(tokio::select! {
            biased;
            Ok(()) = self.durable.changed(), if has_states => SinkEvent::Durable,
            () = sleep_until(self.tick), if !has_states => SinkEvent::Tick,
            Ok(()) = self.barriers.changed(), if is_full => SinkEvent::Changed,
            Ok(()) = self.unaligned_epochs.changed(), if is_full => SinkEvent::Changed,
            item = self.inputs.recv_any(|_| true), if !is_full => SinkEvent::Item(item?.and_then(|(_, item)| item)),
        })
    }

    /// Whether the sink accepts no rows for now. From half of what it may keep, it requests to be emptied.
    fn is_full(&mut self) -> bool {
        let fullness = self.sink.fullness();
        let Some(states) = self.states else {
            if fullness >= 0.5 {
                self.tick = Instant::now();
            }
            return false;
        };
        // Before a coming barrier there are only the rows that are already on their way.
        if self.barriers.borrow().as_ref().is_some_and(|barrier| barrier.epoch > self.last) {
            return false;
        }
        if fullness >= 0.5 && self.asked.replace(self.last) != Some(self.last) {
            states.request_checkpoint(self.last);
        }
        // A full sink must not hold up a checkpoint in progress. That needs what comes after its barrier only if the
        // barrier has overtaken rows: senders then reach the barrier only when these rows have moved on.
        let may_wait = self.done >= self.last || *self.unaligned_epochs.borrow() < self.last;
        fullness >= 1.0 && may_wait
    }

    /// Returns `Break` when no more rows come.
    async fn handle(&mut self, event: SinkEvent) -> Result<ControlFlow<()>, TaskError> {
        match event {
            SinkEvent::Item(Some(StreamElement::Batch(rows))) => {
                let count = rows.num_rows();
                self.work.time_async(count, self.sink.write(rows)).await?;
            }
            SinkEvent::Item(Some(StreamElement::Mark(Mark::Barrier(barrier)))) => {
                return self.on_barrier(&barrier).await;
            }
            SinkEvent::Item(Some(StreamElement::Mark(_))) | SinkEvent::Changed => {}
            SinkEvent::Item(None) if self.inputs.is_over() => return Ok(ControlFlow::Break(())),
            SinkEvent::Item(None) => {}
            SinkEvent::Durable => {
                self.done = *self.durable.borrow_and_update();
                self.commit(self.done).await?;
            }
            SinkEvent::Tick => {
                self.last += 1;
                self.prepare(self.last, true).await?;
                self.tick = Instant::now() + COMMIT_INTERVAL;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn on_barrier(&mut self, barrier: &Barrier) -> Result<ControlFlow<()>, TaskError> {
        self.prepare(barrier.epoch, self.context.at_most_once()).await?;
        self.last = barrier.epoch;
        if let Some(states) = self.states {
            states.save(barrier.epoch, true, snapshot(&self.prepared));
            if barrier.route_of(self.context.task()).is_some() {
                // It keeps nothing by key: knowing that other rows will come is enough.
                states.moved(&Moves::default(), MoveReport { epoch: barrier.epoch, ..MoveReport::default() });
            }
        }
        let stops = barrier.control == BarrierControl::Stop;
        Ok(if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Prepares an epoch. Commits it `at_once` if no checkpoint may contain it: in at-most-once mode, a job that
    /// resumes from the checkpoint would commit it again.
    async fn prepare(&mut self, epoch: u64, at_once: bool) -> Result<(), TaskError> {
        let bytes = self.sink.prepare(epoch).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        if at_once {
            return self.sink.commit(bytes).await;
        }
        self.prepared.insert((epoch, split_name(epoch, self.context.copy())), bytes);
        Ok(())
    }

    /// Commits everything up to `epoch`, in order.
    async fn commit(&mut self, epoch: u64) -> Result<(), TaskError> {
        while let Some(entry) = self.prepared.first_entry().filter(|entry| entry.key().0 <= epoch) {
            self.sink.commit(entry.get().clone()).await?;
            entry.remove();
        }
        Ok(())
    }

    /// Prepares the rest, and commits it when it is durable.
    async fn end(mut self) -> Result<(), TaskError> {
        self.prepare(self.last + 1, self.context.at_most_once()).await?;
        let Some(states) = self.states else { return self.commit(ALL).await };
        states.end(snapshot(&self.prepared)).await?;
        // Others may continue for long. A checkpoint of an epoch whose barrier has not come here was made when this
        // end was known, and contains it.
        loop {
            let epoch = *self.durable.borrow_and_update();
            let was_left = !self.prepared.is_empty();
            self.commit(epoch).await?;
            if epoch == ALL {
                return Ok(());
            }
            if was_left && self.prepared.is_empty() {
                states.clear_end_state();
            }
            if self.durable.changed().await.is_err() {
                return Err("the run ended before its last checkpoint".into());
            }
        }
    }
}

fn snapshot(prepared: &PreparedSplits) -> Snapshot {
    let splits = prepared.iter().map(|((_, name), bytes)| (name.clone(), bytes.clone())).collect();
    Snapshot { splits, ..Snapshot::default() }
}
