//! Operators: tasks without their own loop. One driver feeds them batches, sends their output with backpressure, and
//! flushes exchanges when idle.

mod handover;
mod output_time;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark, Snapshot};
use tidemill_net::notice;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::error::TaskError;
use crate::flow::{BucketHandover, Inputs, Outputs, StreamElement};
use crate::task::TaskContext;
use crate::work::{SendPace, StepWork};

pub(crate) use output_time::OutputMarks;
pub use output_time::OutputTime;

/// Batches that an operator has emitted, by output port.
#[derive(Debug, Default)]
pub struct Emitter(Vec<(usize, RecordBatch)>);

impl Emitter {
    /// Sends `batch` out of the only output port.
    pub fn send(&mut self, batch: RecordBatch) {
        self.send_to(0, batch);
    }

    /// Sends `batch` out of an output port.
    pub fn send_to(&mut self, port: usize, batch: RecordBatch) {
        self.0.push((port, batch));
    }

    /// What has been emitted since the last call.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (usize, RecordBatch)> {
        self.0.drain(..)
    }
}

/// Parts of buckets on their way to another copy, each with its bucket.
pub struct ReleasedParts(Box<dyn Iterator<Item = Result<(u32, Bytes), TaskError>> + Send>);

impl ReleasedParts {
    /// Parts that are produced lazily.
    pub fn new(parts: impl Iterator<Item = Result<(u32, Bytes), TaskError>> + Send + 'static) -> Self {
        ReleasedParts(Box::new(parts))
    }
}

impl From<Vec<(u32, Bytes)>> for ReleasedParts {
    fn from(parts: Vec<(u32, Bytes)>) -> Self {
        ReleasedParts::new(parts.into_iter().map(Ok))
    }
}

impl Iterator for ReleasedParts {
    type Item = Result<(u32, Bytes), TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

/// Whether an operator has more to emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitStatus {
    /// Send what was emitted, then call `more`.
    More,
    /// The same, and send what the outputs have collected, too: `more` may take long.
    Flush,
    /// Nothing is left.
    Done,
}

/// Processes batches. Calls come one at a time.
pub trait Operator: Send {
    /// Called once, before everything else.
    fn begin(&mut self, context: &TaskContext) {
        let _ = context;
    }

    /// Whether it calls functions of the program for rows, which may take any time: then it receives only as many
    /// rows at once as take a moment, judging by earlier calls, and barriers and time pass in between. Asked once.
    fn calls_program(&self) -> bool {
        false
    }

    /// Processes a batch of an input port. What it emits should not be many times the input: return
    /// [`EmitStatus::More`] and emit the rest in [`Operator::more`], so that a slow receiver bounds memory.
    ///
    /// # Errors
    /// Fails the task.
    fn on_batch(&mut self, input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError>;

    /// Called when an input port has ended.
    ///
    /// # Errors
    /// Fails the task.
    fn on_input_end(&mut self, input: usize, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = (input, emit);
        Ok(EmitStatus::Done)
    }

    /// Called when every row with an earlier event time has arrived, on all ports. Only for
    /// [streaming](crate::TaskSpec::streaming) tasks; what is emitted is sent before the time is.
    ///
    /// # Errors
    /// Fails the task.
    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = (time, emit);
        Ok(EmitStatus::Done)
    }

    /// How far its results have advanced, if they come later than the time they belong to: later tasks are told this
    /// instead of the time of its inputs. Asked after every call; it must not go back.
    fn output_time(&self) -> Option<OutputTime> {
        None
    }

    /// Called when nothing comes for now, and the time of other copies advances without this one: what should count
    /// before that must be emitted here.
    ///
    /// # Errors
    /// Fails the task.
    fn on_idle(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = emit;
        Ok(EmitStatus::Done)
    }

    /// How often [`Operator::on_tick`] should be called, by the machine's clock; `None`: never. Asked once.
    fn ticks(&self) -> Option<Duration> {
        None
    }

    /// Called when that time has passed, whatever has come meanwhile.
    ///
    /// # Errors
    /// Fails the task.
    fn on_tick(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = emit;
        Ok(EmitStatus::Done)
    }

    /// Called when a barrier is about to pass: what is emitted is sent before it, and need not be saved.
    ///
    /// # Errors
    /// Fails the task.
    fn before_barrier(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = emit;
        Ok(EmitStatus::Done)
    }

    /// Its state when a barrier passes. `whole` asks for all buckets, complete, including those that have become
    /// empty, because nothing can build on earlier snapshots. It starts with
    /// [`TaskContext::restored`](crate::TaskContext::restored) when the job resumes from there.
    ///
    /// # Errors
    /// Fails the task.
    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let _ = whole;
        Ok(Snapshot::default())
    }

    /// Whether its state by bucket can move to another copy ([`rebalance`](crate::rebalance)): through `release` and
    /// `acquire`, or because it keeps nothing by bucket; then neither is needed.
    fn moves() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Gives up these buckets, which another copy owns from now on, and returns what that copy's `acquire` needs: for
    /// each bucket any number of parts, in order. They may be produced while they are sent and the other copy already
    /// receives the first ones. A snapshot was taken just before.
    ///
    /// # Errors
    /// Fails the task.
    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let _ = buckets;
        Ok(Vec::new().into())
    }

    /// Takes over parts of buckets that another copy has released. Rows of their keys come once all parts have
    /// arrived. The next snapshot must be complete.
    ///
    /// # Errors
    /// Fails the task.
    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        match parts.first() {
            Some((bucket, _)) => {
                Err(format!("bucket {bucket} came from another copy, but the operator cannot take it").into())
            }
            None => Ok(()),
        }
    }

    /// Called when all input ports have ended.
    ///
    /// # Errors
    /// Fails the task.
    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = emit;
        Ok(EmitStatus::Done)
    }

    /// What it keeps behind its end, for who goes on from a checkpoint that was made later; nothing, most often. Asked
    /// after [`Operator::on_end`], or without it when nobody takes its output any more, and of one that had ended in
    /// the checkpoint that the job goes on from.
    ///
    /// # Errors
    /// Fails the task.
    fn kept_at_end(&mut self) -> Result<Snapshot, TaskError> {
        Ok(Snapshot::default())
    }

    /// Goes on emitting after [`EmitStatus::More`].
    ///
    /// # Errors
    /// Fails the task.
    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let _ = emit;
        Ok(EmitStatus::Done)
    }

    /// Whether batches of this port are wanted now. Those of other ports wait at their senders: a join receives one
    /// side first. At least one port that has not ended must be wanted.
    fn wants(&self, input: usize) -> bool {
        let _ = input;
        true
    }
}

/// Runs an operator to its end.
pub(crate) async fn drive(
    mut operator: impl Operator,
    mut inputs: Inputs,
    outputs: Outputs,
    context: &TaskContext,
) -> Result<(), TaskError> {
    let handover = inputs.take_handover();
    if context.was_finished() {
        // So have those that it would hear from, and what it had to say at its end it has said.
        if let Some(states) = context.states() {
            states.end(operator.kept_at_end()?).await?;
        }
        return Ok(());
    }
    let mut driver = OperatorDriver::new(operator, inputs, outputs, handover, context);
    driver.run().await
}

/// What an operator's driver waits for.
enum OperatorEvent {
    /// An input port and its item, or `None` for its end. The outer `None`: no port is wanted.
    Input(Option<(usize, Option<StreamElement>)>),
    Tick,
}

/// A running operator. Events come one at a time, from [`OperatorDriver::next_event`].
struct OperatorDriver<'a, O> {
    context: &'a TaskContext,
    work: Arc<StepWork>,
    ticks: Option<Interval>,
    calls_program: bool,
    pace: SendPace,
    handover: Option<BucketHandover>,
    /// Which input ports the operator wants now.
    wanted: Vec<bool>,
    emit: Emitter,
    marks: OutputMarks,
    outputs: Outputs,
    inputs: Inputs,
    operator: O,
}

impl<'a, O: Operator> OperatorDriver<'a, O> {
    fn new(
        mut operator: O,
        mut inputs: Inputs,
        outputs: Outputs,
        handover: Option<BucketHandover>,
        context: &'a TaskContext,
    ) -> Self {
        operator.begin(context);
        let calls_program = operator.calls_program();
        if calls_program {
            inputs.limit_rows();
        }
        let ticks = operator.ticks().map(|every| {
            let mut ticks = interval_at(Instant::now() + every, every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let work = context.work(context.task());
        if calls_program {
            work.set_program();
        }
        OperatorDriver {
            context,
            work,
            ticks,
            calls_program,
            pace: SendPace::default(),
            handover,
            wanted: Vec::new(),
            emit: Emitter::default(),
            marks: OutputMarks::default(),
            outputs,
            inputs,
            operator,
        }
    }

    async fn run(&mut self) -> Result<(), TaskError> {
        while !self.inputs.is_over() {
            if !self.outputs.is_wanted() {
                return self.end().await;
            }
            if self.inputs.is_idle() {
                self.outputs.flush().await?;
            }
            let flow = match self.next_event().await? {
                OperatorEvent::Tick => {
                    self.on_tick().await?;
                    continue;
                }
                OperatorEvent::Input(Some((port, Some(StreamElement::Batch(batch))))) => {
                    let (rows, since) = (batch.num_rows(), Instant::now());
                    let flow = self.on_batch(port, batch)?;
                    self.send(flow).await?;
                    if !self.calls_program && self.pace.pass(rows, since.elapsed()) {
                        self.inputs.port(port).note_pace(&self.pace);
                    }
                    self.tell_time().await?;
                    continue;
                }
                OperatorEvent::Input(Some((_, Some(StreamElement::Mark(mark))))) => {
                    if self.on_mark(mark).await?.is_break() {
                        return Ok(());
                    }
                    continue;
                }
                OperatorEvent::Input(Some((port, None))) => self.operator.on_input_end(port, &mut self.emit)?,
                OperatorEvent::Input(None) => {
                    return Err("the operator accepts no input although ports are still open".into());
                }
            };
            self.send(flow).await?;
            self.tell_time().await?;
        }
        let flow = self.work.time(0, || self.operator.on_end(&mut self.emit))?;
        self.send(flow).await?;
        self.end().await
    }

    /// Saves what the operator keeps behind its end.
    async fn end(&mut self) -> Result<(), TaskError> {
        if let Some(states) = self.context.states() {
            let kept = self.operator.kept_at_end()?;
            self.outputs.finish().await?;
            states.end(kept).await?;
        }
        Ok(())
    }

    async fn next_event(&mut self) -> Result<OperatorEvent, TaskError> {
        self.wanted.clear();
        self.wanted.extend((0..self.inputs.len()).map(|port| self.operator.wants(port)));
        let wanted = &self.wanted;
        let Some(ticks) = &mut self.ticks else {
            return Ok(OperatorEvent::Input(self.inputs.recv_any(|port| wanted[port]).await?));
        };
        Ok(tokio::select! {
            biased;
            _ = ticks.tick() => OperatorEvent::Tick,
            found = self.inputs.recv_any(|port| wanted[port]) => OperatorEvent::Input(found?),
        })
    }

    async fn on_tick(&mut self) -> Result<(), TaskError> {
        let flow = self.work.time(0, || self.operator.on_tick(&mut self.emit))?;
        // Usually there is nothing to emit, and the outputs keep collecting.
        if flow != EmitStatus::Done || !self.emit.0.is_empty() {
            self.send(flow).await?;
            self.outputs.flush().await?;
        }
        self.tell_time().await
    }

    /// Tells later tasks how far the operator's results have advanced, if that differs from the time of its inputs.
    async fn tell_time(&mut self) -> Result<(), TaskError> {
        let Some(now) = self.operator.output_time() else { return Ok(()) };
        for mark in self.marks.due(now) {
            self.outputs.mark(&mark).await?;
        }
        Ok(())
    }

    fn on_batch(&mut self, port: usize, batch: RecordBatch) -> Result<EmitStatus, TaskError> {
        let (rows, since) = (batch.num_rows(), Instant::now());
        let flow = self.work.time(rows, || self.operator.on_batch(port, batch, &mut self.emit))?;
        if self.calls_program {
            self.inputs.port(port).note_time(rows, since.elapsed());
        }
        Ok(flow)
    }

    /// Returns `Break` at a barrier where the job stops. The job resumes from there another time: the ends that
    /// follow are not the streams' own, nor is the time that they set free. What they produced now would come again.
    async fn on_mark(&mut self, mark: Mark) -> Result<ControlFlow<()>, TaskError> {
        match &mark {
            // It ends idleness, and says nothing about time.
            Mark::Watermark(EventTime::MIN) => {}
            Mark::Watermark(time) => {
                let flow = self.work.time(0, || self.operator.on_watermark(*time, &mut self.emit))?;
                self.send(flow).await?;
            }
            Mark::Idle => {
                let flow = self.operator.on_idle(&mut self.emit)?;
                self.send(flow).await?;
            }
            Mark::Barrier(barrier) => {
                let flow = self.operator.before_barrier(&mut self.emit)?;
                self.send(flow).await?;
                if let Some(states) = self.context.states() {
                    states.save_kept(barrier.epoch, |whole| self.operator.snapshot(whole))?;
                }
            }
        }
        match self.operator.output_time() {
            None => self.outputs.mark(&mark).await?,
            Some(now) => {
                for mark in self.marks.of(&mark, now) {
                    self.outputs.mark(&mark).await?;
                }
            }
        }
        let Mark::Barrier(barrier) = mark else { return Ok(ControlFlow::Continue(())) };
        if barrier.control == BarrierControl::Stop {
            return Ok(ControlFlow::Break(()));
        }
        // After the barrier in the outputs, so that later tasks do not wait for this.
        self.rebalance(&barrier).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// Hands over the buckets that move at a barrier, and takes over those that come.
    async fn rebalance(&mut self, barrier: &Barrier) -> Result<(), TaskError> {
        if let (Some(handover), Some(states)) = (&mut self.handover, self.context.states())
            && let Some(map) = barrier.route_of(self.context.task())
        {
            let moves = handover.moves(map);
            let moved = handover.run(&mut self.operator, barrier, map).await?;
            states.moved(&moves, moved);
        }
        Ok(())
    }

    /// Sends what the operator has emitted, until it has nothing more.
    async fn send(&mut self, mut flow: EmitStatus) -> Result<(), TaskError> {
        loop {
            for (port, batch) in self.emit.take() {
                if port >= self.outputs.len() {
                    return Err(format!("the operator sent to output port {port} of {}", self.outputs.len()).into());
                }
                self.outputs.port(port).send(batch).await?;
            }
            match flow {
                EmitStatus::More => {}
                EmitStatus::Flush => self.outputs.flush().await?,
                EmitStatus::Done => return Ok(()),
            }
            flow = self.work.time(0, || self.operator.more(&mut self.emit))?;
        }
    }
}

/// The operator that [`TaskSpec::each`](crate::TaskSpec::each) makes of a function.
pub(crate) struct BatchMapper<F> {
    function: Arc<F>,
    retries: u32,
    context: TaskContext,
}

impl<F> BatchMapper<F> {
    pub(crate) fn new(function: &Arc<F>, retries: u32, context: &TaskContext) -> Self {
        BatchMapper { function: Arc::clone(function), retries, context: context.clone() }
    }
}

impl<F> Operator for BatchMapper<F>
where
    F: Fn(&RecordBatch, &TaskContext) -> Result<Option<RecordBatch>, TaskError> + Send + Sync + 'static,
{
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let mut again = 0;
        let made = loop {
            match (self.function)(&batch, &self.context) {
                Err(error) if again < self.retries => {
                    again += 1;
                    let (task, copy, worker) = (self.context.task(), self.context.copy(), self.context.worker());
                    notice!(
                        "task '{task}', copy {copy} on worker {worker} failed ({error}); calling its function again \
                         ({again} of {})",
                        self.retries
                    );
                }
                made => break made?,
            }
        };
        made.into_iter().for_each(|batch| emit.send(batch));
        Ok(EmitStatus::Done)
    }

    fn moves() -> bool {
        true
    }
}
