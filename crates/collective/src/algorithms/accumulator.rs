//! A running combination that starts as the caller's read-only vector and moves to its own buffer with the first
//! contribution received, so no reduction copies its input first.

use super::builder::ScheduleBuilder;
use crate::schedule::BufferRange;

pub(crate) struct RangeAccumulator {
    rank: u32,
    own: BufferRange,
    result: BufferRange,
    spare: BufferRange,
    started: bool,
}

impl RangeAccumulator {
    /// Combines into `result`, starting with `own`. With `started`, `result` already holds our contribution.
    pub(crate) fn new(
        b: &mut ScheduleBuilder,
        rank: u32,
        own: BufferRange,
        result: BufferRange,
        started: bool,
    ) -> Self {
        RangeAccumulator { rank, own, result, spare: b.scratch(own.len), started }
    }

    /// Where the combination currently is.
    pub(crate) fn value(&self) -> BufferRange {
        if self.started { self.result } else { self.own }
    }

    /// Receives `len` elements from `start` of a contribution from the ranks around `from`, combines them on the side
    /// that `from` implies, and ends the round. After the first call, only the combined part of [`Self::value`] is
    /// valid.
    pub(crate) fn absorb(&mut self, b: &mut ScheduleBuilder, from: u32, (start, len): (usize, usize)) {
        let (incoming, mine) = if self.started { (self.spare, self.result) } else { (self.result, self.own) };
        let (incoming, mine) = (incoming.part(start, len), mine.part(start, len));
        b.recv(from, incoming);
        match (self.started, from < self.rank) {
            (true, true) => b.reduce_left(incoming, mine),
            (true, false) => b.reduce_right(incoming, mine),
            (false, true) => b.reduce_right(mine, incoming),
            (false, false) => b.reduce_left(mine, incoming),
        }
        self.started = true;
        b.next_round();
    }

    /// Continues with the contents of `result`.
    pub(crate) fn restart(&mut self, result: BufferRange) {
        (self.result, self.started) = (result, true);
    }
}
