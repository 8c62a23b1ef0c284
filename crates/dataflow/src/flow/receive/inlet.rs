//! The queue in front of an input port of one copy: what its streams have delivered and the copy has not received. The
//! senders' credit is its only limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use tidemill_batch::wire::ReceivedFrame;
use tidemill_checkpoint::{Barrier, EventTime, Mark};

use crate::link::CreditGuard;

/// What a stream delivers.
#[derive(Clone)]
pub(crate) enum StreamPacket {
    /// A batch of this process, never copied.
    Batch(RecordBatch, Arc<CreditGuard>),
    /// A batch of another worker, which the receiver decodes.
    Block(ReceivedFrame, Arc<CreditGuard>),
    /// A mark between batches; `blocks` blocks were sent before it.
    Mark { mark: Mark, blocks: u64 },
    /// The end of the stream; this many blocks and rows were sent.
    End { blocks: u64, rows: u64 },
}

impl StreamPacket {
    /// The guard that holds its credit.
    pub(crate) fn guard(&self) -> Option<Arc<CreditGuard>> {
        match self {
            StreamPacket::Batch(_, guard) | StreamPacket::Block(_, guard) => Some(Arc::clone(guard)),
            StreamPacket::Mark { .. } | StreamPacket::End { .. } => None,
        }
    }
}

#[derive(Default)]
struct StreamQueue {
    packets: VecDeque<StreamPacket>,
    /// The waker of a receive from this stream only.
    waker: Option<Waker>,
    closed: bool,
    /// Set while nothing is taken: how many of its packets were skipped in the order of arrival.
    held: Option<u32>,
}

#[derive(Default)]
struct InletState {
    streams: Vec<StreamQueue>,
    /// Streams with packets, in order of arrival; a stream occurs once for each packet.
    order: VecDeque<u32>,
    /// The waker of a receive from any stream.
    waker: Option<Waker>,
    /// Whether packets are received by stream, so that `order` is not kept.
    by_stream: bool,
    closed: bool,
    queued_bytes: u64,
    peak_bytes: u64,
    /// The newest barrier that any stream has delivered, received or not.
    barrier: Option<Barrier>,
    /// The time that the copy has received, and the stream that holds it back.
    time: Option<EventTime>,
    slowest: Option<u32>,
    /// The time of the stream that is furthest ahead.
    ahead: Option<EventTime>,
}

impl InletState {
    fn pass_over_held(&mut self) {
        while let Some(&stream) = self.order.front()
            && let Some(passed) = &mut self.streams[stream as usize].held
        {
            *passed += 1;
            self.order.pop_front();
        }
    }
}

/// The queue that the module describes.
#[derive(Default)]
pub(crate) struct Inlet(Mutex<InletState>);

impl Inlet {
    /// Adds streams, numbered from the returned number on.
    pub(crate) fn add_streams(&self, count: u32) -> u32 {
        let mut state = self.0.lock();
        let base = state.streams.len() as u32;
        state.streams.resize_with((base + count) as usize, StreamQueue::default);
        base
    }

    pub(crate) fn push(&self, stream: u32, packet: StreamPacket) {
        let mut state = self.0.lock();
        if state.closed || state.streams[stream as usize].closed {
            drop(state);
            // Outside the lock: dropping it returns credit.
            drop(packet);
            return;
        }
        if let StreamPacket::Batch(_, guard) | StreamPacket::Block(_, guard) = &packet {
            state.queued_bytes += guard.bytes();
            state.peak_bytes = state.peak_bytes.max(state.queued_bytes);
        }
        if let StreamPacket::Mark { mark: Mark::Barrier(barrier), .. } = &packet
            && state.barrier.as_ref().is_none_or(|newest| newest.epoch < barrier.epoch)
        {
            state.barrier = Some(barrier.clone());
        }
        state.streams[stream as usize].packets.push_back(packet);
        let waker = if state.by_stream {
            state.streams[stream as usize].waker.take()
        } else {
            state.order.push_back(stream);
            state.waker.take()
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next packet of any stream, in order of arrival, or only of `stream`.
    pub(crate) fn poll_take(&self, stream: Option<u32>, context: &mut Context<'_>) -> Poll<(u32, StreamPacket)> {
        let mut state = self.0.lock();
        let found = match stream {
            Some(stream) => {
                if !state.by_stream {
                    state.by_stream = true;
                    state.order.clear();
                }
                state.streams[stream as usize].packets.pop_front().map(|packet| (stream, packet))
            }
            None => {
                assert!(!state.by_stream, "an input that was read by stream is not read in order of arrival later");
                state.pass_over_held();
                state.order.pop_front().map(|stream| {
                    let packet = state.streams[stream as usize].packets.pop_front();
                    (stream, packet.expect("a stream is in the order once for each of its packets"))
                })
            }
        };
        match found {
            Some((stream, packet)) => {
                if let StreamPacket::Batch(_, guard) | StreamPacket::Block(_, guard) = &packet {
                    state.queued_bytes -= guard.bytes();
                }
                Poll::Ready((stream, packet))
            }
            None => {
                let waker = Some(context.waker().clone());
                match stream {
                    Some(stream) => state.streams[stream as usize].waker = waker,
                    None => state.waker = waker,
                }
                Poll::Pending
            }
        }
    }

    /// Takes nothing from a stream until [`Inlet::release`]; its sender waits once its credit is used up.
    pub(crate) fn hold(&self, stream: u32) {
        self.0.lock().streams[stream as usize].held.get_or_insert(0);
    }

    /// Takes from all streams again.
    pub(crate) fn release(&self) {
        let state = &mut *self.0.lock();
        for (stream, queue) in state.streams.iter_mut().enumerate() {
            for _ in 0..queue.held.take().unwrap_or(0) {
                state.order.push_front(stream as u32);
            }
        }
    }

    /// Whether a take would wait.
    pub(crate) fn is_empty(&self) -> bool {
        let mut state = self.0.lock();
        if state.by_stream {
            return state.streams.iter().all(|queue| queue.packets.is_empty());
        }
        state.pass_over_held();
        state.order.is_empty()
    }

    /// Ends receiving: drops what is queued and whatever still arrives, which returns the credit.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.order.clear();
        let dropped: Vec<_> = state.streams.iter_mut().map(std::mem::take).collect();
        drop(state);
        drop(dropped);
    }

    /// [`Inlet::close`] for one stream, while the others are received by stream.
    pub(crate) fn close_stream(&self, stream: u32) {
        let mut state = self.0.lock();
        let queue = &mut state.streams[stream as usize];
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.packets);
        drop(state);
        drop(dropped);
    }

    /// The newest barrier that any stream has delivered, if it belongs to `epoch`.
    pub(crate) fn barrier(&self, epoch: u64) -> Option<Barrier> {
        self.0.lock().barrier.clone().filter(|barrier| barrier.epoch == epoch)
    }

    /// Whether nothing more of a stream is received.
    pub(crate) fn is_closed(&self, stream: u32) -> bool {
        let state = self.0.lock();
        state.closed || state.streams[stream as usize].closed
    }

    /// Records the time of all streams together that the copy has received, and which stream holds it back.
    pub(crate) fn note_time(&self, time: Option<EventTime>, slowest: Option<u32>, ahead: Option<EventTime>) {
        let mut state = self.0.lock();
        state.time = time.or(state.time);
        state.slowest = slowest;
        state.ahead = ahead;
    }

    /// The time of the stream that is furthest ahead.
    pub(crate) fn ahead(&self) -> Option<EventTime> {
        self.0.lock().ahead
    }

    /// The queued bytes, the copy's time, and the stream that holds it back.
    pub(crate) fn now(&self) -> (u64, Option<EventTime>, Option<u32>) {
        let state = self.0.lock();
        (state.queued_bytes, state.time, state.slowest)
    }

    /// The largest number of bytes queued at once.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.0.lock().peak_bytes
    }
}
