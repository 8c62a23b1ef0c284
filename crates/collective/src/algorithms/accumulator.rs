//! A running combination that begins as the caller's read-only vector and moves to its own place with the first
//! contribution received: no reduction copies its input first.

use super::builder::Builder;
use crate::schedule::Range;

pub(crate) struct Accumulator {
    rank: u32,
    own: Range,
    result: Range,
    spare: Range,
    started: bool,
}

impl Accumulator {
    /// Combines into `result`, starting with `own`; with `started`, `result` holds our contribution already.
    pub(crate) fn new(b: &mut Builder, rank: u32, own: Range, result: Range, started: bool) -> Self {
        Accumulator { rank, own, result, spare: b.scratch(own.len), started }
    }

    /// Where the combination is now.
    pub(crate) fn value(&self) -> Range {
        if self.started { self.result } else { self.own }
    }

    /// Receives `len` elements from `start` of a contribution of the ranks around `from`, combines them on the side
    /// that `from` says, and ends the round. After the first call only what was combined is valid in [`Self::value`].
    pub(crate) fn absorb(&mut self, b: &mut Builder, from: u32, (start, len): (usize, usize)) {
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

    /// Goes on with what `result` holds.
    pub(crate) fn restart(&mut self, result: Range) {
        (self.result, self.started) = (result, true);
    }
}
