//! A copy's input ports, which deliver batches after checking, decoding and counting them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::RoundUnit;
use tidemill_checkpoint::marks::{MarkMerger, StreamGate};
use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark};
use tidemill_net::notice;
use tokio::sync::oneshot;

use super::edge::EdgeRuntime;
use super::inlet::{Inlet, StreamPacket};
use super::meter::PortMeter;
use super::rounds::{RoundCollector, RoundReplay, ShortStream};
use super::stream_end::StreamEnd;
use crate::checkpoint::{CopyStates, InFlightReplay};
use crate::error::{DataflowError, TaskError};
use crate::link::CreditGuard;
use crate::metrics;
use crate::task::CancelToken;
use crate::unaligned::{RecordedItem, Recording, UnalignedSignal};
use crate::work::{BatchPacer, SendPace};

/// What a stream of batches consists of.
#[derive(Clone, Debug)]
pub enum StreamElement {
    /// Rows, at least one; but on an edge with [`Rounds`](crate::exchange::Rounds), a batch is a round and may be
    /// empty.
    Batch(RecordBatch),
    /// A mark between them, for all streams of the port together: a time that no stream is behind, or a barrier that
    /// all have delivered. Only tasks that handle streams receive marks
    /// ([`TaskSpec::streaming`](crate::TaskSpec::streaming)).
    Mark(Mark),
}

impl StreamElement {
    /// The rows, if this is a batch.
    pub fn into_batch(self) -> Option<RecordBatch> {
        match self {
            StreamElement::Batch(batch) => Some(batch),
            StreamElement::Mark(_) => None,
        }
    }
}

/// A receiver that accepts at least this many rows at a time does not count as slow.
const SLOW_ROWS_MAX: usize = 4096;

/// What a recording records of an item of a stream.
fn seen(item: Option<&StreamElement>) -> RecordedItem<RecordBatch> {
    match item {
        Some(StreamElement::Batch(rows)) => RecordedItem::Rows(rows.clone()),
        Some(StreamElement::Mark(Mark::Barrier(barrier))) => RecordedItem::Barrier(barrier.epoch),
        Some(StreamElement::Mark(_)) => RecordedItem::Other,
        None => RecordedItem::End,
    }
}

/// A port's part in checkpoints whose barriers overtake rows.
struct UnalignedInput {
    signal: UnalignedSignal,
    port: u32,
    states: Arc<CopyStates>,
    /// The rows in flight, until all of them are known, and where to send them then.
    recording: Option<(Recording<RecordBatch>, oneshot::Sender<Vec<RecordBatch>>)>,
}

/// An item taken ahead of its turn: its stream and its content. It keeps its credit.
struct EarlyElement {
    stream: u32,
    item: Option<StreamElement>,
    guard: Option<Arc<CreditGuard>>,
}

/// The stream number of rows that were in flight when the run began.
const FROM_BEFORE: u32 = u32::MAX;

/// An input port of a copy.
pub struct Input {
    inlet: Arc<Inlet>,
    streams: Vec<StreamEnd>,
    open: usize,
    target: u32,
    cancel: CancelToken,
    /// `None` for a task that does not handle marks.
    marks: Option<MarkMerger>,
    /// `None` if barriers overtake nothing.
    overtaking: Option<Box<UnalignedInput>>,
    /// Comes before everything else: first what was in flight when the run began, then what was taken ahead of its
    /// turn.
    replay: Option<InFlightReplay>,
    ahead: VecDeque<EarlyElement>,
    meter: PortMeter,
    /// Set if the edges that lead here use rounds; also who saves open rounds.
    rounds: Option<RoundCollector>,
    saved_by: Option<(u32, Arc<CopyStates>)>,
    /// Comes there behind the rounds that are complete; whether it is to be told there that nothing comes for now;
    /// whether that was told last; and whether it is to be told first that something comes again.
    next_barrier: Option<Barrier>,
    is_idle_next: bool,
    is_idle: bool,
    is_awake_next: bool,
    /// What comes before all else there.
    round_replay: Option<RoundReplay>,
    /// Whether the task is part of a loop: what it waits for may wait for it.
    in_loop: bool,
    /// For tasks that call functions of the program: how many rows they receive at a time.
    pace: Option<BatchPacer>,
}

impl Input {
    /// Explains long waits if the task is part of a loop.
    pub(crate) fn new(inlet: Arc<Inlet>, target: u32, streaming: bool, in_loop: bool, cancel: CancelToken) -> Self {
        let marks = streaming.then(MarkMerger::default);
        Input {
            inlet,
            streams: Vec::new(),
            open: 0,
            target,
            cancel,
            marks,
            overtaking: None,
            replay: None,
            ahead: VecDeque::new(),
            meter: PortMeter::default(),
            rounds: None,
            saved_by: None,
            next_barrier: None,
            is_idle_next: false,
            is_idle: false,
            is_awake_next: false,
            round_replay: None,
            in_loop,
            pace: None,
        }
    }

    /// Delivers only as many rows at a time as take a moment to process, so that marks pass between them.
    pub(crate) fn limit_rows(&mut self) {
        if self.marks.is_some() {
            self.pace = Some(BatchPacer::default());
        }
    }

    /// Records how long it took to process `rows` delivered rows.
    pub(crate) fn note_time(&mut self, rows: usize, time: Duration) {
        let Some(pace) = &mut self.pace else { return };
        pace.learn(rows, time);
        let slow = pace.rows() < SLOW_ROWS_MAX;
        let (row_ns, call_rows) = (if slow { pace.row_ns() } else { 0 }, pace.rows());
        self.streams.iter().for_each(|end| end.edge.note_row_cost(row_ns, call_rows));
    }

    /// Records how long rows take that this copy passes on: what waits in front of it waits as long.
    pub(crate) fn note_pace(&self, pace: &SendPace) {
        if self.marks.is_some() {
            self.streams.iter().for_each(|end| end.edge.note_row_cost(pace.row_ns(), pace.call_rows()));
        }
    }

    /// The rows that are delivered now; the others come next.
    fn bounded(&mut self, stream: u32, item: StreamElement, guard: Option<Arc<CreditGuard>>) -> StreamElement {
        match (item, self.pace) {
            (StreamElement::Batch(rows), Some(pace)) if rows.num_rows() > pace.rows() => {
                let rest = rows.slice(pace.rows(), rows.num_rows() - pace.rows());
                self.ahead.push_front(EarlyElement { stream, item: Some(StreamElement::Batch(rest)), guard });
                StreamElement::Batch(rows.slice(0, pace.rows()))
            }
            (item, _) => item,
        }
    }

    /// Lets barriers overtake the rows that arrive at this input, which is port `port` of the copy with these
    /// `states`.
    pub(crate) fn enable_unaligned(&mut self, port: u32, states: &Arc<CopyStates>) {
        let (signal, states) = (states.unaligned_signal(), Arc::clone(states));
        self.overtaking = Some(Box::new(UnalignedInput { signal, port, states, recording: None }));
    }

    /// Delivers rows before all others: they were in flight when the job was cut off.
    pub(crate) fn replay_first(&mut self, replay: Option<InFlightReplay>) {
        self.replay = replay;
    }

    /// Saves the rounds that are open when a barrier passes, as those of input port `port` of the copy with these
    /// `states`; `replay` was saved when the job was cut off.
    pub(crate) fn save_rounds(&mut self, port: u32, states: &Arc<CopyStates>, replay: Option<RoundReplay>) {
        self.saved_by = Some((port, Arc::clone(states)));
        self.round_replay = replay;
    }

    /// Adds the streams of an edge that leads here. All of its source copies are numbered, although only some may
    /// send.
    pub(crate) fn add_edge(&mut self, edge: &Arc<EdgeRuntime>) {
        for source in 0..edge.sources() {
            let over = !edge.has_stream(source, self.target);
            if over && let Some(marks) = &mut self.marks {
                marks.set_of_some();
            }
            self.open += usize::from(!over);
            if let Some(end) = edge.rounds {
                let by_epoch = edge.round_unit == RoundUnit::Epoch;
                self.rounds.get_or_insert_with(|| RoundCollector::new(end, by_epoch)).add(!over);
            }
            let edge = Arc::clone(edge);
            if let Some(marks) = &mut self.marks {
                marks.add(self.streams.len(), over);
            }
            self.streams.push(StreamEnd { edge, source, decoder: None, blocks: 0, rows: 0, over });
        }
    }

    /// Whether only some copies of a task before send here.
    pub(crate) fn is_of_some(&self) -> bool {
        self.marks.as_ref().is_some_and(MarkMerger::is_of_some)
    }

    /// The schema of what arrives here; `None` if no edge leads here.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.streams.first().map(|stream| &stream.edge.schema)
    }

    pub(super) fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// How many streams lead here: one from each copy of each connected task.
    pub fn streams(&self) -> u32 {
        self.streams.len() as u32
    }

    /// The next item, from whichever stream has one first; `None` when all have ended.
    ///
    /// # Errors
    /// If what arrived is not what was sent. Ends early if the run is given up.
    pub async fn recv(&mut self) -> Result<Option<StreamElement>, DataflowError> {
        Ok(self.recv_from().await?.map(|(_, item)| item))
    }

    /// [`Input::recv`] that also returns the stream's number.
    ///
    /// # Errors
    /// As [`Input::recv`].
    pub async fn recv_from(&mut self) -> Result<Option<(u32, StreamElement)>, DataflowError> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// [`Input::recv`] for a copy that blocks its thread. The error is `Cancelled` if the run is given up.
    ///
    /// # Errors
    /// As [`Input::recv`].
    pub fn recv_blocking(&mut self) -> Result<Option<StreamElement>, DataflowError> {
        let cancel = self.cancel.clone();
        if !self.in_loop {
            return cancel.block_on(cancel.guard(self.recv()))?;
        }
        let edge = self.streams.first().map(|stream| stream.edge.name.clone()).unwrap_or_default();
        cancel.block_on_explained(cancel.guard(self.recv()), |waited| {
            notice!(
                "a task of a loop has waited for {} s for {edge}; if all of them wait, none has sent: let one of them \
                 send before it receives",
                waited.as_secs_f64()
            );
        })?
    }

    /// Whether [`Input::recv`] would wait.
    pub fn is_idle(&self) -> bool {
        self.open > 0 && !self.has_ahead() && self.inlet.is_empty()
    }

    /// Whether every stream has ended.
    pub fn is_over(&self) -> bool {
        self.open == 0 && !self.has_ahead()
    }

    fn has_ahead(&self) -> bool {
        self.replay.is_some() || !self.ahead.is_empty()
    }

    /// The next item of any stream: an item, marks as each stream delivered them, or that it has ended. For callers
    /// that know what each stream means.
    pub(crate) async fn recv_each(&mut self) -> Result<Option<(u32, Option<StreamElement>)>, DataflowError> {
        poll_fn(|context| {
            if self.open == 0 {
                return Poll::Ready(Ok(None));
            }
            let Poll::Ready((stream, packet)) = self.inlet.poll_take(None, context) else { return Poll::Pending };
            Poll::Ready(self.unpack(stream, packet).map(|item| Some((stream, item))))
        })
        .await
    }

    /// Whether the end of a stream has been received.
    pub(crate) fn has_ended(&self, stream: u32) -> bool {
        self.streams[stream as usize].over
    }

    /// [`Input::recv_from`] for callers that poll by hand.
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<(u32, StreamElement)>, DataflowError>> {
        self.worked();
        if self.rounds.is_some() {
            return self.poll_round(context);
        }
        if let Some(replay) = self.replay.take() {
            self.replay(replay)?;
        }
        loop {
            self.overtake();
            self.record(context)?;
            if let Some(mark) = self.marks.as_mut().and_then(MarkMerger::next_mark) {
                match &mark {
                    Mark::Watermark(time) => {
                        let known = Some(*time).filter(|&time| time > EventTime::MIN);
                        self.inlet.note_time(known, self.held_back_by(), self.ahead_of_others())
                    }
                    Mark::Barrier(barrier) => self.overtaking.iter().for_each(|of| of.signal.pass(barrier.epoch)),
                    Mark::Idle => {}
                }
                return Poll::Ready(Ok(Some((0, StreamElement::Mark(mark)))));
            }
            let (stream, item, guard) = match self.ahead.pop_front() {
                Some(EarlyElement { stream, item, guard }) => (stream, item, guard),
                None if self.open == 0 => return Poll::Ready(Ok(None)),
                None => match self.inlet.poll_take(None, context) {
                    Poll::Ready((stream, packet)) => {
                        let guard = self.pace.and_then(|_| packet.guard());
                        (stream, self.unpack(stream, packet)?, guard)
                    }
                    Poll::Pending => {
                        // A barrier may have become unaligned since the last look; otherwise it wakes this copy.
                        if self.overtaking.as_ref().is_some_and(|of| of.signal.poll(context).is_ready())
                            && self.overtake()
                        {
                            continue;
                        }
                        return Poll::Pending;
                    }
                },
            };
            match item {
                Some(StreamElement::Mark(mark)) => self.mark(stream, mark)?,
                Some(item) => {
                    let item = self.bounded(stream, item, guard);
                    // Rows that were in flight before belong to no stream.
                    if let (StreamElement::Batch(batch), Some(end)) = (&item, self.streams.get(stream as usize)) {
                        self.meter.begin(&end.edge, batch);
                    }
                    return Poll::Ready(Ok(Some((stream, item))));
                }
                None => self.stream_over(stream),
            }
        }
    }

    /// The next round as one batch, perhaps without rows, nominally of the first stream.
    fn poll_round(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<(u32, StreamElement)>, DataflowError>> {
        self.restore_rounds()?;
        loop {
            if std::mem::take(&mut self.is_awake_next) {
                return Poll::Ready(Ok(Some((0, StreamElement::Mark(Mark::Watermark(EventTime::MIN))))));
            }
            let rounds = self.rounds.as_mut().expect("the edges go by rounds");
            match rounds.take() {
                Ok(Some(batches)) => {
                    self.hold_rounds();
                    let round = match <[RecordBatch; 1]>::try_from(batches) {
                        Ok([one]) => one,
                        Err(batches) => concat_batches(&self.streams[0].edge.schema, &batches)?,
                    };
                    return Poll::Ready(Ok(Some((0, StreamElement::Batch(round)))));
                }
                Ok(None) => {}
                Err(ShortStream { stream, rounds }) => return Poll::Ready(Err(self.streams[stream].unequal(rounds))),
            }
            // After the rounds that were complete before it.
            if let Some(barrier) = self.next_barrier.take() {
                self.save_open(barrier.epoch)?;
                return Poll::Ready(Ok(Some((0, StreamElement::Mark(Mark::Barrier(barrier))))));
            }
            if std::mem::take(&mut self.is_idle_next) && self.marks.is_some() {
                self.is_idle = true;
                return Poll::Ready(Ok(Some((0, StreamElement::Mark(Mark::Idle)))));
            }
            if let Some(mark) = self.marks.as_mut().and_then(MarkMerger::next_mark) {
                if let Mark::Barrier(barrier) = mark {
                    rounds.end_epoch(false);
                    self.next_barrier = Some(barrier);
                }
                continue;
            }
            if self.open == 0 {
                if rounds.end_epoch(true) {
                    continue;
                }
                return Poll::Ready(Ok(None));
            }
            let Poll::Ready((stream, packet)) = self.inlet.poll_take(None, context) else { return Poll::Pending };
            let item = self.unpack(stream, packet)?;
            let rounds = self.rounds.as_mut().expect("just seen");
            if matches!(item, Some(StreamElement::Batch(_) | StreamElement::Mark(Mark::Watermark(_)))) {
                self.is_awake_next = std::mem::take(&mut self.is_idle);
            }
            match item {
                Some(StreamElement::Batch(batch)) => rounds.push(stream, batch),
                Some(StreamElement::Mark(Mark::Watermark(EventTime::MIN))) => rounds.wake(stream),
                Some(StreamElement::Mark(Mark::Watermark(_))) => {
                    let late = rounds.mark(stream);
                    metrics::add(&self.streams[stream as usize].edge.metrics.late_rows, late as u64);
                    if rounds.is_ahead(stream as usize) {
                        self.hold_rounds();
                    }
                }
                Some(StreamElement::Mark(Mark::Idle)) => self.is_idle_next = rounds.set_idle(stream),
                Some(StreamElement::Mark(mark @ Mark::Barrier(_))) => {
                    let Some(marks) = &mut self.marks else {
                        self.streams[stream as usize].refuse(&mark)?;
                        continue;
                    };
                    marks.mark(stream as usize, mark);
                    self.hold_rounds();
                }
                None => {
                    rounds.end_stream(stream);
                    if let Some(marks) = &mut self.marks {
                        marks.end_stream(stream as usize);
                        self.hold_rounds();
                    }
                }
            }
        }
    }

    /// Stops reading streams that have delivered a barrier that others have not, or, while no barrier is awaited,
    /// those that are far ahead: a barrier may follow messages of rounds that others reach only after their own
    /// barrier.
    fn hold_rounds(&self) {
        let Some(rounds) = &self.rounds else { return };
        let held = |stream: usize| self.marks.as_ref().is_some_and(|marks| marks.holds(stream));
        let aligning = (0..self.streams.len()).any(held);
        self.inlet.release();
        let waits = |stream: &usize| held(*stream) || !aligning && rounds.is_ahead(*stream);
        (0..self.streams.len()).filter(waits).for_each(|stream| self.inlet.hold(stream as u32));
    }

    /// The barrier of `epoch` passes: what is open becomes part of the next snapshot.
    fn save_open(&self, epoch: u64) -> Result<(), DataflowError> {
        let (Some((port, states)), Some(rounds)) = (&self.saved_by, &self.rounds) else { return Ok(()) };
        states.open_rounds(epoch, *port, rounds.save().map_err(|error| self.wrong(&error))?);
        Ok(())
    }

    /// Delivers what was open when the run began before everything else.
    fn restore_rounds(&mut self) -> Result<(), DataflowError> {
        let (Some(replay), Some(StreamEnd { edge, .. })) = (self.round_replay.take(), self.streams.first()) else {
            return Ok(());
        };
        let schema = SchemaRef::clone(&edge.schema);
        let rounds = self.rounds.as_mut().expect("the edges go by rounds");
        rounds.restore(replay, &schema).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &TaskError) -> DataflowError {
        let edge = self.streams.first().map(|end| end.edge.name.clone()).unwrap_or_default();
        DataflowError::Edge { edge, reason: error.to_string() }
    }

    /// Records that what was delivered has been processed.
    pub(super) fn worked(&mut self) {
        self.meter.end();
    }

    /// Delivers what was in flight when the run began before everything else.
    fn replay(&mut self, replay: InFlightReplay) -> Result<(), DataflowError> {
        let Some(StreamEnd { edge, .. }) = self.streams.first() else { return Ok(()) };
        let rows = replay.rows(&edge.schema).map_err(|error| self.wrong(&error))?;
        let first = |rows| EarlyElement { stream: FROM_BEFORE, item: Some(StreamElement::Batch(rows)), guard: None };
        self.ahead.extend(rows.into_iter().map(first));
        Ok(())
    }

    /// Lets an unaligned barrier pass once any stream has delivered it, and starts recording the rows that it
    /// overtakes. Returns whether there is one.
    fn overtake(&mut self) -> bool {
        let (Some(overtaking), Some(marks)) = (&mut self.overtaking, &mut self.marks) else { return false };
        let Some(epoch) = overtaking.signal.now() else { return false };
        let barrier = self.inlet.barrier(epoch).filter(|barrier| barrier.control == BarrierControl::Checkpoint);
        let Some(barrier) = barrier else { return false };
        let mut recording = Recording::new(epoch, marks.overtake(barrier));
        overtaking.signal.pass(epoch);
        self.inlet.release();
        for EarlyElement { stream, item, .. } in &self.ahead {
            recording.note(*stream as usize, seen(item.as_ref()));
        }
        let (sender, in_flight) = oneshot::channel();
        overtaking.states.overtaken(epoch, overtaking.port, in_flight);
        overtaking.recording = Some((recording, sender));
        true
    }

    /// Takes arrived items ahead of their turn, as long as an overtaken barrier is still to come on some stream.
    fn record(&mut self, context: &mut Context<'_>) -> Result<(), DataflowError> {
        let Some((mut recording, sender)) = self.overtaking.as_mut().and_then(|of| of.recording.take()) else {
            return Ok(());
        };
        while !recording.is_over() {
            let Poll::Ready((stream, packet)) = self.inlet.poll_take(None, context) else {
                self.overtaking.as_mut().expect("just seen").recording = Some((recording, sender));
                return Ok(());
            };
            let guard = packet.guard();
            let item = self.unpack(stream, packet)?;
            recording.note(stream as usize, seen(item.as_ref()));
            self.ahead.push_back(EarlyElement { stream, item, guard });
        }
        // If nobody waits for it, the checkpoint was given up.
        drop(sender.send(recording.into_rows()));
        Ok(())
    }

    /// Handles a stream's mark: what it means for all streams together becomes ready.
    fn mark(&mut self, stream: u32, mark: Mark) -> Result<(), DataflowError> {
        let at = stream as usize;
        let Some(marks) = &mut self.marks else { return self.streams[at].refuse(&mark) };
        match marks.mark(at, mark) {
            StreamGate::Same => {}
            StreamGate::Hold { release } => {
                if release {
                    self.inlet.release();
                }
                self.inlet.hold(stream);
            }
            StreamGate::Release => self.inlet.release(),
        }
        self.inlet.note_time(None, self.held_back_by(), self.ahead_of_others());
        Ok(())
    }

    fn stream_over(&mut self, stream: u32) {
        if self.marks.as_mut().is_some_and(|marks| marks.end_stream(stream as usize) == StreamGate::Release) {
            self.inlet.release();
        }
    }

    fn ahead_of_others(&self) -> Option<EventTime> {
        self.marks.as_ref().map(MarkMerger::ahead).filter(|&ahead| ahead > EventTime::MIN)
    }

    fn held_back_by(&self) -> Option<u32> {
        self.marks.as_ref()?.slowest().map(|stream| stream as u32)
    }

    /// The source task and copy of the stream that holds time back; `None` if none does.
    pub fn slowest(&self) -> Option<(&str, u32)> {
        let end = &self.streams[self.marks.as_ref()?.slowest()?];
        Some((&end.edge.name, end.source))
    }

    fn unpack(&mut self, stream: u32, packet: StreamPacket) -> Result<Option<StreamElement>, DataflowError> {
        let end = &mut self.streams[stream as usize];
        let item = end.unpack(self.target, packet)?;
        self.open -= usize::from(item.is_none());
        Ok(item)
    }

    /// The streams in the order of their numbers, for separate tasks to read.
    pub fn into_streams(mut self) -> Vec<InputStream> {
        let ends = std::mem::take(&mut self.streams);
        let stream = |(stream, end)| InputStream {
            inlet: Arc::clone(&self.inlet),
            stream: stream as u32,
            end,
            target: self.target,
        };
        ends.into_iter().enumerate().map(stream).collect()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // Otherwise it has been taken apart, or no edge leads here.
        if !self.streams.is_empty() {
            self.inlet.close();
            self.streams.iter().for_each(|end| end.stop(self.target));
        }
    }
}

/// A single stream of an input port. See [`Input::into_streams`].
pub struct InputStream {
    inlet: Arc<Inlet>,
    stream: u32,
    end: StreamEnd,
    target: u32,
}

impl Drop for InputStream {
    fn drop(&mut self) {
        self.inlet.close_stream(self.stream);
        self.end.stop(self.target);
    }
}

impl futures_core::Stream for InputStream {
    type Item = Result<RecordBatch, DataflowError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.end.over {
            let Poll::Ready((_, packet)) = this.inlet.poll_take(Some(this.stream), context) else {
                return Poll::Pending;
            };
            match this.end.unpack(this.target, packet) {
                Ok(Some(StreamElement::Batch(batch))) => return Poll::Ready(Some(Ok(batch))),
                Ok(Some(StreamElement::Mark(mark))) => {
                    if let Err(error) = this.end.refuse(&mark) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        Poll::Ready(None)
    }
}

impl futures_core::Stream for Input {
    type Item = Result<RecordBatch, DataflowError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match this.poll_recv(context) {
                Poll::Ready(Ok(Some((_, item)))) => match item.into_batch() {
                    Some(batch) => return Poll::Ready(Some(Ok(batch))),
                    None => continue,
                },
                Poll::Ready(Ok(None)) => return Poll::Ready(None),
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
