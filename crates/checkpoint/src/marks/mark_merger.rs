//! The marks of several streams together, in the order in which whoever reads all of them sees them: no later than any
//! stream's time, and a barrier where all have brought it.

use std::collections::VecDeque;

use super::align::{BarrierAlignment, BarrierArrival};
use super::mark::{Barrier, EventTime, Mark};
use super::watermarks::WatermarkMerger;

/// Which streams are read further, after a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGate {
    /// All as before.
    Same,
    /// Not the one that brought it; with `release`, those that were held before are.
    Hold {
        /// Whether those that were held before are read again.
        release: bool,
    },
    /// All.
    Release,
}

/// See the module. Streams are numbered.
#[derive(Default)]
pub struct MarkMerger {
    time: WatermarkMerger,
    align: BarrierAlignment,
    /// What comes out next: the end of a stream may bring both.
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

    /// A stream brings a mark.
    pub fn mark(&mut self, stream: usize, mark: Mark) -> StreamGate {
        match mark {
            Mark::Watermark(time) => self.time.advance(stream, time),
            Mark::Idle => self.time.idle(stream),
            Mark::Barrier(barrier) => match self.align.arrive(stream, barrier) {
                BarrierArrival::Wait { released } => return StreamGate::Hold { release: released },
                BarrierArrival::Aligned(barrier) => {
                    self.ready.push_back(Mark::Barrier(barrier));
                    return StreamGate::Release;
                }
                BarrierArrival::Stale => {}
            },
        }
        self.emit_watermark();
        StreamGate::Same
    }

    /// A barrier comes out next although not all streams have brought it; all are read further. Returns which have not.
    pub fn overtake(&mut self, barrier: Barrier) -> Vec<bool> {
        let open = self.align.overtake(&barrier);
        self.ready.push_back(Mark::Barrier(barrier));
        open
    }

    /// A stream has ended.
    pub fn end_stream(&mut self, stream: usize) -> StreamGate {
        // The barrier first: the time that the end sets free belongs to the next epoch, as the end itself does.
        let aligned = self.align.end_stream(stream);
        let gate = if aligned.is_some() { StreamGate::Release } else { StreamGate::Same };
        self.ready.extend(aligned.map(Mark::Barrier));
        self.time.end_stream(stream);
        self.emit_watermark();
        gate
    }

    /// At once: a barrier that comes later may be of the next epoch.
    fn emit_watermark(&mut self) {
        self.ready.extend(std::iter::from_fn(|| self.time.next_mark()));
    }

    /// The next mark of all streams together.
    #[inline]
    pub fn next_mark(&mut self) -> Option<Mark> {
        self.ready.pop_front()
    }

    /// Whether the stream has brought a barrier that others have not.
    #[inline]
    pub fn holds(&self, stream: usize) -> bool {
        self.align.holds(stream)
    }

    /// The time of the stream that is furthest ahead.
    pub fn ahead(&self) -> EventTime {
        self.time.ahead()
    }

    /// The stream that holds the time of all back.
    pub fn slowest(&self) -> Option<usize> {
        self.time.slowest()
    }
}
