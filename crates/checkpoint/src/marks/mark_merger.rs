//! Combines the marks of several streams for a reader of all of them: a time no later than that of any stream, and a
//! barrier once all have delivered it.

use std::collections::VecDeque;

use super::align::{BarrierAlignment, BarrierArrival};
use super::mark::{Barrier, EventTime, Mark};
use super::watermarks::WatermarkMerger;

/// Which streams to read from after a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGate {
    /// The same as before.
    Same,
    /// Not the one that delivered it; with `release`, those held before are read again.
    Hold {
        /// Whether those held before are read again.
        release: bool,
    },
    /// All of them.
    Release,
}

/// Combines the marks of several streams, which are numbered.
#[derive(Default)]
pub struct MarkMerger {
    time: WatermarkMerger,
    align: BarrierAlignment,
    /// Not all copies of the tasks before have a stream here.
    of_some: bool,
    /// The next combined marks: the end of a stream may cause both kinds.
    ready: VecDeque<Mark>,
}

impl MarkMerger {
    /// Adds a stream, which may be `over` from the beginning.
    pub fn add(&mut self, stream: usize, over: bool) {
        self.time.add();
        self.align.add();
        if over {
            self.time.end_stream(stream);
            self.align.end_stream(stream);
        }
    }

    /// Records that only some copies of a task before have a stream here: when splits move between its copies, the
    /// combined time of these may go back.
    pub fn set_of_some(&mut self) {
        self.of_some = true;
    }

    /// Whether [`MarkMerger::set_of_some`] was called.
    pub fn is_of_some(&self) -> bool {
        self.of_some
    }

    /// A stream delivers a mark.
    pub fn mark(&mut self, stream: usize, mark: Mark) -> StreamGate {
        match mark {
            Mark::Watermark(time) => self.time.advance(stream, time),
            Mark::Idle => self.time.idle(stream),
            Mark::Barrier(barrier) => match self.align.arrive(stream, barrier) {
                BarrierArrival::Wait { released } => return StreamGate::Hold { release: released },
                BarrierArrival::Aligned(barrier) => {
                    self.pass(barrier);
                    return StreamGate::Release;
                }
                BarrierArrival::Stale => {}
            },
        }
        self.emit_watermark();
        StreamGate::Same
    }

    /// Emits a barrier next although some streams have not delivered it, and returns which; all are read again.
    pub fn overtake(&mut self, barrier: Barrier) -> Vec<bool> {
        let open = self.align.overtake(&barrier);
        self.ready.push_back(Mark::Barrier(barrier));
        open
    }

    /// A stream has ended.
    pub fn end_stream(&mut self, stream: usize) -> StreamGate {
        // The barrier comes first: the time released by the end belongs to the next epoch, as does the end itself.
        let aligned = self.align.end_stream(stream);
        let gate = if aligned.is_some() { StreamGate::Release } else { StreamGate::Same };
        if let Some(barrier) = aligned {
            self.pass(barrier);
        }
        self.time.end_stream(stream);
        self.emit_watermark();
        gate
    }

    /// All streams have delivered a barrier.
    fn pass(&mut self, barrier: Barrier) {
        let restarts_time = barrier.restarts_time();
        self.ready.push_back(Mark::Barrier(barrier));
        if restarts_time {
            self.time.restart(!self.of_some);
            self.emit_watermark();
        }
    }

    /// Must run immediately, since a later barrier may belong to the next epoch.
    fn emit_watermark(&mut self) {
        self.ready.extend(std::iter::from_fn(|| self.time.next_mark()));
    }

    /// The next combined mark.
    #[inline]
    pub fn next_mark(&mut self) -> Option<Mark> {
        self.ready.pop_front()
    }

    /// Whether the stream has delivered a barrier that others have not.
    #[inline]
    pub fn holds(&self, stream: usize) -> bool {
        self.align.holds(stream)
    }

    /// The time of the stream that is furthest ahead.
    pub fn ahead(&self) -> EventTime {
        self.time.ahead()
    }

    /// The stream that holds back the combined time.
    pub fn slowest(&self) -> Option<usize> {
        self.time.slowest()
    }
}
