//! Operators: tasks without a loop of their own. One driver feeds them batches, sends their output with backpressure,
//! and flushes exchanges when idle.

mod handover;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_checkpoint::{Control, EventTime, Mark, Snapshot};
use tidemill_net::notice;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::error::TaskError;
use crate::flow::{Inputs, Item, Outputs};
use crate::task::TaskContext;
use crate::work::Work;

/// Batches on their way out of an operator, by output port.
#[derive(Debug, Default)]
pub struct Emit(Vec<(usize, RecordBatch)>);

impl Emit {
    /// Sends `batch` out of the only output port.
    pub fn send(&mut self, batch: RecordBatch) {
        self.send_to(0, batch);
    }

    /// Sends `batch` out of an output port.
    pub fn send_to(&mut self, port: usize, batch: RecordBatch) {
        self.0.push((port, batch));
    }
}

/// Parts of buckets on their way to another copy: of which bucket each is, and what it is.
pub struct Released(Box<dyn Iterator<Item = Result<(u32, Bytes), TaskError>> + Send>);

impl Released {
    /// Parts that are made when they are asked for.
    pub fn new(parts: impl Iterator<Item = Result<(u32, Bytes), TaskError>> + Send + 'static) -> Self {
        Released(Box::new(parts))
    }
}

impl From<Vec<(u32, Bytes)>> for Released {
    fn from(parts: Vec<(u32, Bytes)>) -> Self {
        Released::new(parts.into_iter().map(Ok))
    }
}

impl Iterator for Released {
    type Item = Result<(u32, Bytes), TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

/// Whether an operator has more to emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Send what was emitted, then call `more`.
    More,
    /// Nothing is left.
    Done,
}

/// What is done with batches. Calls come one at a time.
pub trait Operator: Send {
    /// Is called once, before all else.
    fn begin(&mut self, context: &TaskContext) {
        let _ = context;
    }

    /// Whether it calls functions of the program for rows, which may take any time: then it gets no more rows at once
    /// than take a moment, by what calls before have taken, and barriers and time pass between. Asked once.
    fn calls_program(&self) -> bool {
        false
    }

    /// Takes a batch of an input port. What it emits should not be many times what it took: return [`Flow::More`] and
    /// emit the rest in [`Operator::more`], so that a slow receiver bounds memory.
    ///
    /// # Errors
    /// Fails the task.
    fn on_batch(&mut self, input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError>;

    /// An input port has ended.
    ///
    /// # Errors
    /// Fails the task.
    fn on_input_end(&mut self, input: usize, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = (input, emit);
        Ok(Flow::Done)
    }

    /// Every row with an earlier event time has come, on all ports. Told only to
    /// [streaming](crate::TaskSpec::streaming) tasks; what is emitted goes out before the time does.
    ///
    /// # Errors
    /// Fails the task.
    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = (time, emit);
        Ok(Flow::Done)
    }

    /// Nothing comes for now, and the time of other copies goes on without this one's: what they are to count comes
    /// before that is told.
    ///
    /// # Errors
    /// Fails the task.
    fn on_idle(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = emit;
        Ok(Flow::Done)
    }

    /// How often [`Operator::on_tick`] is wanted, by the machine's clock; `None`: never. Asked once.
    fn ticks(&self) -> Option<Duration> {
        None
    }

    /// So much time has passed, whatever has come meanwhile.
    ///
    /// # Errors
    /// Fails the task.
    fn on_tick(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = emit;
        Ok(Flow::Done)
    }

    /// A barrier is about to pass: what is emitted goes out before it, and need not be kept.
    ///
    /// # Errors
    /// Fails the task.
    fn before_barrier(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = emit;
        Ok(Flow::Done)
    }

    /// What it keeps, now that a barrier passes. `whole` asks for all buckets, whole, also those that have become
    /// empty: what was saved before cannot be built on. It begins with
    /// [`TaskContext::restored`](crate::TaskContext::restored) when the job goes on from there.
    ///
    /// # Errors
    /// Fails the task.
    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let _ = whole;
        Ok(Snapshot::default())
    }

    /// Whether what it keeps by bucket can move to another copy ([`rebalance`](crate::rebalance)): by `release` and
    /// `acquire`, or because it keeps nothing by bucket; then neither is needed.
    fn moves() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Lets go of these buckets, which another copy owns from now on, and returns what that one's `acquire` needs: of
    /// each any number of parts, in order. They may be made as they are sent, while the other one takes the first ones.
    /// A snapshot was taken just before.
    ///
    /// # Errors
    /// Fails the task.
    fn release(&mut self, buckets: &[u32]) -> Result<Released, TaskError> {
        let _ = buckets;
        Ok(Vec::new().into())
    }

    /// Takes over parts of buckets that another copy has released. Rows of their keys come when all parts have. The
    /// next snapshot is asked for as a whole.
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

    /// All input ports have ended.
    ///
    /// # Errors
    /// Fails the task.
    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = emit;
        Ok(Flow::Done)
    }

    /// Goes on emitting after [`Flow::More`].
    ///
    /// # Errors
    /// Fails the task.
    fn more(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let _ = emit;
        Ok(Flow::Done)
    }

    /// Whether batches of this port are wanted now. Those of others wait at their senders: a join takes one side first.
    /// At least one port that has not ended must be wanted.
    fn wants(&self, input: usize) -> bool {
        let _ = input;
        true
    }
}

/// Runs an operator to its end.
pub(crate) async fn drive(
    mut operator: impl Operator,
    mut inputs: Inputs,
    mut outputs: Outputs,
    context: &TaskContext,
) -> Result<(), TaskError> {
    let mut emit = Emit::default();
    let mut handover = inputs.take_handover();
    if context.had_ended() {
        // So have those that it would hear from, and what it had to say at its end it has said.
        return Ok(());
    }
    operator.begin(context);
    let calls_program = operator.calls_program();
    if calls_program {
        inputs.give_few();
    }
    let work = context.work(context.task());
    let mut ticks = operator.ticks().map(|every| {
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    let mut wanted = Vec::new();
    while !inputs.is_over() {
        if !outputs.is_wanted() {
            return Ok(());
        }
        if inputs.is_idle() {
            outputs.flush().await?;
        }
        wanted.clear();
        wanted.extend((0..inputs.len()).map(|port| operator.wants(port)));
        let found = match &mut ticks {
            None => inputs.recv_any(|port| wanted[port]).await?,
            Some(ticks) => {
                let found = tokio::select! {
                    biased;
                    _ = ticks.tick() => None,
                    found = inputs.recv_any(|port| wanted[port]) => Some(found?),
                };
                let Some(found) = found else {
                    let flow = work.time(0, || operator.on_tick(&mut emit))?;
                    // Most often there is nothing to say, and what the outputs collect goes on being collected.
                    if flow == Flow::More || !emit.0.is_empty() {
                        send(&mut operator, flow, &mut emit, &mut outputs, &work).await?;
                        outputs.flush().await?;
                    }
                    continue;
                };
                found
            }
        };
        let flow = match found {
            Some((port, Some(Item::Batch(batch)))) => {
                let (rows, since) = (batch.num_rows(), Instant::now());
                let flow = work.time(rows, || operator.on_batch(port, batch, &mut emit))?;
                if calls_program {
                    inputs.port(port).took(rows, since.elapsed());
                }
                flow
            }
            Some((_, Some(Item::Mark(mark)))) => {
                match &mark {
                    // It ends idleness, and tells nothing of time.
                    Mark::Watermark(EventTime::MIN) => {}
                    Mark::Watermark(time) => {
                        let flow = work.time(0, || operator.on_watermark(*time, &mut emit))?;
                        send(&mut operator, flow, &mut emit, &mut outputs, &work).await?;
                    }
                    Mark::Idle => {
                        let flow = operator.on_idle(&mut emit)?;
                        send(&mut operator, flow, &mut emit, &mut outputs, &work).await?;
                    }
                    Mark::Barrier(barrier) => {
                        let flow = operator.before_barrier(&mut emit)?;
                        send(&mut operator, flow, &mut emit, &mut outputs, &work).await?;
                        if let Some(states) = context.states() {
                            states.save_kept(barrier.epoch, |whole| operator.snapshot(whole))?;
                        }
                    }
                }
                outputs.mark(&mark).await?;
                if matches!(&mark, Mark::Barrier(barrier) if barrier.control == Control::Stop) {
                    // It goes on from there another time. The ends that follow are not the streams', nor is the time
                    // that they set free: what came of it now would come again.
                    return Ok(());
                }
                if let (Mark::Barrier(barrier), Some(handover), Some(states)) = (&mark, &mut handover, context.states())
                    && let Some(map) = barrier.route_of(context.task())
                {
                    // Behind the barrier in the outputs: who is further down does not wait for this.
                    let moves = handover.moves(map);
                    let moved = handover.run(&mut operator, barrier, map).await?;
                    states.moved(&moves, moved);
                }
                continue;
            }
            Some((port, None)) => operator.on_input_end(port, &mut emit)?,
            None => return Err("the operator accepts no input although ports are still open".into()),
        };
        send(&mut operator, flow, &mut emit, &mut outputs, &work).await?;
    }
    let flow = work.time(0, || operator.on_end(&mut emit))?;
    send(&mut operator, flow, &mut emit, &mut outputs, &work).await
}

async fn send(
    operator: &mut impl Operator,
    mut flow: Flow,
    emit: &mut Emit,
    outputs: &mut Outputs,
    work: &Work,
) -> Result<(), TaskError> {
    loop {
        for (port, batch) in emit.0.drain(..) {
            if port >= outputs.len() {
                return Err(format!("the operator sent to output port {port} of {}", outputs.len()).into());
            }
            outputs.port(port).send(batch).await?;
        }
        if flow == Flow::Done {
            return Ok(());
        }
        flow = work.time(0, || operator.more(emit))?;
    }
}

/// What [`TaskSpec::each`](crate::TaskSpec::each) makes of a function.
pub(crate) struct Each<F> {
    function: Arc<F>,
    retries: u32,
    context: TaskContext,
}

impl<F> Each<F> {
    pub(crate) fn new(function: &Arc<F>, retries: u32, context: &TaskContext) -> Self {
        Each { function: Arc::clone(function), retries, context: context.clone() }
    }
}

impl<F> Operator for Each<F>
where
    F: Fn(&RecordBatch, &TaskContext) -> Result<Option<RecordBatch>, TaskError> + Send + Sync + 'static,
{
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
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
        Ok(Flow::Done)
    }

    fn moves() -> bool {
        true
    }
}
