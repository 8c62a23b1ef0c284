//! Allreduce along the trees of an [`Overlay`], a slice at a time.
//!
//! The slices of a part climb its reduction tree, are complete at its root, and go down its broadcast tree. Each part
//! has [`STRANDS`] strands in each direction, which take turns with its slices: while one waits for a slice, another
//! has its slice in flight. Strands wait neither for each other nor for their sends, so a slow link delays only the
//! data that has to cross it. At the root, the strand that combined a slice also sends it down.
//!
//! With m slices: depth up + depth down + m - 1 steps. Sent: n to each parent going up and to each child going down.
//! Scratch: a slice for each child and strand, and n at ranks that pass results on, so that these need not wait for
//! slow receivers when they finish.
//!
//! A rank's part of a slice may still be in flight to the parent when the result arrives at the same place. This is
//! safe and delays nothing: the result cannot exist before the parent has received the contribution.

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use super::tree::RankTree;
use crate::overlay::Overlay;
use crate::schedule::{BufferId, BufferRange};

/// Strands of a part in each direction, and so the number of slices in flight.
const STRANDS: usize = 2;

/// One part, as a rank sees it.
struct PartView<'a> {
    p: &'a ScheduleParams<'a>,
    up: RankTree,
    down: RankTree,
    own: BufferRange,
    result: BufferRange,
    /// Where results that are passed on lie.
    kept: Option<BufferRange>,
}

/// Allreduce along `overlay`.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams, overlay: &Overlay) {
    let ranges = overlay.ranges(p.count);
    // Each rank starts with a different part, so that not all send to the root of the first part at once.
    for index in (0..ranges.len()).map(|i| (i + p.rank as usize + 1) % ranges.len()) {
        let (part, range) = (&overlay.parts()[index], ranges[index].clone());
        if range.is_empty() {
            continue;
        }
        let down = RankTree::from_parents(&part.broadcast, p.rank);
        let view = PartView {
            p,
            up: RankTree::from_parents(&part.reduce, p.rank),
            own: p.own().part(range.start, range.len()),
            result: p.result().part(range.start, range.len()),
            kept: (!down.children.is_empty()).then(|| b.scratch(range.len())),
            down,
        };
        for strand in 0..STRANDS.min(view.own.chunks(p.chunk).len()) {
            let up = 2 * (index * STRANDS + strand) as u32;
            let down = up + 1;
            if view.up.parent.is_none() {
                b.next_strand(up, down);
                view.reduce(b, strand);
            } else {
                b.next_strand(up, up);
                view.reduce(b, strand);
                b.next_strand(down, down);
                view.broadcast(b, strand);
            }
        }
    }
}

impl PartView<'_> {
    /// First element and length of each slice of a strand.
    fn slices(&self, strand: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let first = self.own.start;
        self.own.chunks(self.p.chunk).skip(strand).step_by(STRANDS).map(move |slice| (slice.start - first, slice.len))
    }

    /// Combines the slices of a strand and passes them up; at the root, down.
    fn reduce(&self, b: &mut ScheduleBuilder, strand: usize) {
        let Some((&first_child, other_children)) = self.up.children.split_first() else {
            let parent = self.up.parent.expect("a tree of several ranks has a rank below its root");
            for (start, len) in self.slices(strand) {
                b.send_late(parent, self.own.part(start, len));
            }
            return b.next_round();
        };
        let (into, receivers) = match (self.up.parent, self.kept) {
            (Some(parent), _) => (self.result, std::slice::from_ref(&parent).to_vec()),
            (None, Some(kept)) => (kept, self.down.children.clone()),
            (None, None) => unreachable!("a root has somebody to pass results on to"),
        };
        let chunk = self.own.chunks(self.p.chunk).next().map_or(0, |slice| slice.len);
        // If our own contribution lies where the result goes, the first child needs a separate place, too.
        let overwrites_own = self.p.in_place && into.buffer == BufferId::Recv;
        let first_place = overwrites_own.then(|| b.scratch(chunk));
        let places: Vec<BufferRange> = other_children.iter().map(|_| b.scratch(chunk)).collect();
        for (start, len) in self.slices(strand) {
            let (own, sum) = (self.own.part(start, len), into.part(start, len));
            let first = first_place.map_or(sum, |place| place.part(0, len));
            b.recv(first_child, first);
            for (&child, place) in other_children.iter().zip(&places) {
                b.recv(child, place.part(0, len));
            }
            if overwrites_own {
                b.reduce_right(first, sum);
            } else {
                b.reduce_left(own, sum);
            }
            for place in &places {
                b.reduce_right(place.part(0, len), sum);
            }
            if self.up.parent.is_none() {
                b.copy(sum, self.result.part(start, len));
            }
            b.next_round();
            // Leaves with the next round, which already waits for the next slice.
            receivers.iter().for_each(|&to| b.send_late(to, sum));
        }
        b.next_round();
    }

    /// Receives the results of a strand and passes them on.
    fn broadcast(&self, b: &mut ScheduleBuilder, strand: usize) {
        let parent = self.down.parent.expect("a rank below the root has a parent in both trees");
        for (start, len) in self.slices(strand) {
            let result = self.result.part(start, len);
            let Some(kept) = self.kept else {
                b.recv(parent, result);
                continue;
            };
            let kept = kept.part(start, len);
            b.recv(parent, kept);
            b.copy(kept, result);
            b.next_round();
            self.down.children.iter().for_each(|&child| b.send_late(child, kept));
        }
        b.next_round();
    }
}
