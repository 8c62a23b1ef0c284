//! Recursive halving for reduce_scatter: partners exchange the half of the blocks that the other is responsible for.
//!
//! lg P steps, n(P - 1) / P elements sent, 2n scratch. If rank order matters, the blocks are first laid out in
//! bit-reversed order (n elements copied, n more scratch): the first split is then between nearest neighbors, and every
//! combination is one of the canonical order. Otherwise the first partner is the farthest, and halves are runs of
//! `Send` that need no copy. Any P: ranks beyond a power of two pair up first (n elements and two more steps).
//!
//! Source: Thakur, Rabenseifner, Gropp (2005); the permutation is that of MPICH's non-commutative reduce_scatter.

use super::ScheduleParams;
use super::accumulator::RangeAccumulator;
use super::builder::ScheduleBuilder;
use super::groups::RankGroups;
use crate::schedule::{BufferId, BufferRange};

/// Reduce_scatter and reduce_scatter_block.
pub(crate) fn reduce_scatter(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let groups = RankGroups::new(p.size);
    let group = groups.of(p.rank);
    let result = |rank: u32| BufferRange { buffer: BufferId::Recv, start: 0, len: p.send_block(rank).len };
    // The blocks of a group's ranks, which lie side by side in `Send`.
    let blocks_of = |group: u32| {
        let (first, end) = (p.send_block(groups.first(group)), p.send_block(groups.first(group + 1) - 1));
        (first.start, end.start + end.len - first.start)
    };
    let base = p.send_block(0).start;
    let last = p.send_block(p.size - 1);
    let send = BufferRange { buffer: BufferId::Send, start: base, len: last.start + last.len - base };
    let partial = b.scratch(send.len);
    let mut sum = RangeAccumulator::new(b, p.rank, send, partial, false);
    if let Some(partner) = groups.partner(p.rank) {
        if groups.leader(group) != p.rank {
            b.send(partner, send);
            b.next_round();
            b.recv(partner, result(p.rank));
            return b.next_round();
        }
        sum.absorb(b, partner, (0, send.len));
    }

    // Positions are split in halves, top bit first; `at` says which group's blocks are at a position.
    let bits = groups.count.ilog2();
    let reversed = |i: u32| if bits == 0 { i } else { i.reverse_bits() >> (32 - bits) };
    let at = |i: u32| if p.in_order() { reversed(i) } else { i };
    let mut starts = vec![0];
    for position in 0..groups.count {
        starts.push(starts[position as usize] + blocks_of(at(position)).1);
    }
    if p.in_order() {
        let permuted = b.scratch(send.len);
        for position in 0..groups.count {
            let (start, len) = blocks_of(at(position));
            b.copy(sum.value().part(start - base, len), permuted.part(starts[position as usize], len));
        }
        b.next_round();
        sum.restart(permuted);
    }

    let position = at(group);
    let window = |first: u32, end: u32| (starts[first as usize], starts[end as usize] - starts[first as usize]);
    let (mut first, mut end) = (0, groups.count);
    while end - first > 1 {
        let half = (end - first) / 2;
        let (low, high) = ((first, first + half), (first + half, end));
        let (kept, given) = if position < low.1 { (low, high) } else { (high, low) };
        let partner = groups.leader(at(position ^ half));
        let (start, len) = window(given.0, given.1);
        b.send(partner, sum.value().part(start, len));
        sum.absorb(b, partner, window(kept.0, kept.1));
        (first, end) = kept;
    }
    let (start, len) = window(position, position + 1);
    let mine = sum.value().part(start, len);
    b.copy(mine.part(0, result(p.rank).len), result(p.rank));
    if let Some(partner) = groups.partner(p.rank) {
        b.send(partner, mine.part(result(p.rank).len, result(partner).len));
    }
    b.next_round();
}
