//! Bruck's algorithms: data hops by doubling distances, lg P steps for any P.
//!
//! Allgather(v): sends n(P - 1) / P elements. Blocks travel from their place in `Recv` to their place (allgatherv:
//! packed, n scratch); a run that crosses from rank P - 1 to rank 0 takes two messages. Alltoall: a block travels the
//! binary digits of its distance, so about (n / 2) lg P elements are sent; 2n scratch and as many copies. Suited to
//! small blocks.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems" (1997).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use super::packed::PackedBlocks;
use crate::schedule::{BufferId, BufferRange};

/// Allgather and allgatherv.
pub(crate) fn allgather(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let packed = PackedBlocks::new(b, p);
    b.copy_own(p, packed.block(p.rank));
    b.next_round();
    // We have the blocks of `held` ranks from our own up.
    let mut held = 1;
    while held < p.size {
        let len = held.min(p.size - held);
        packed.circle(p.rank, len).for_each(|run| b.send(p.below(held), run));
        packed.circle(p.above(held), len).for_each(|run| b.recv(p.above(held), run));
        b.next_round();
        held += len;
    }
    packed.unpack(b, p);
}

/// Alltoall.
pub(crate) fn alltoall(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let (size, n) = (p.size as usize, p.count);
    // Block i is on its way to the rank i above where it started.
    let blocks = b.scratch(size * n);
    let places = size.div_ceil(2).max(1) * n;
    let (outgoing, incoming) = (b.scratch(places), b.scratch(places));
    let send = BufferRange { buffer: BufferId::Send, start: 0, len: size * n };
    let head = (size - p.rank as usize) * n;
    b.copy(send.part(size * n - head, head), blocks.part(0, head));
    b.copy(send.part(0, size * n - head), blocks.part(head, size * n - head));
    let mut distance = 1;
    while distance < p.size {
        // Runs of blocks whose distance has this binary digit, side by side for one message.
        let runs = (0..size).step_by(2 * distance as usize).filter_map(|i| {
            let (first, end) = (i + distance as usize, (i + 2 * distance as usize).min(size));
            (first < end).then(|| (first * n, (end - first) * n))
        });
        let mut filled = 0;
        for (start, len) in runs.clone() {
            b.copy(blocks.part(start, len), outgoing.part(filled, len));
            filled += len;
        }
        b.next_round();
        b.send(p.above(distance), outgoing.part(0, filled));
        b.recv(p.below(distance), incoming.part(0, filled));
        let mut taken = 0;
        for (start, len) in runs {
            b.copy(incoming.part(taken, len), blocks.part(start, len));
            taken += len;
        }
        distance *= 2;
    }
    for i in 0..p.size {
        b.copy(blocks.part(i as usize * n, n), p.recv_block(p.below(i)));
    }
    b.next_round();
}
