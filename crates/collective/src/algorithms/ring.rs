//! Ring: every rank sends to the next rank and receives from the previous one.
//!
//! | collective             | steps    | elements sent  | scratch                              |
//! |------------------------|----------|----------------|--------------------------------------|
//! | allgather(v)           | P - 1    | n(P - 1) / P   | none                                 |
//! | reduce_scatter(_block) | P - 1    | n(P - 1) / P   | two largest blocks (+ n in place)    |
//! | allreduce              | 2(P - 1) | 2n(P - 1) / P  | none; in place one piece             |
//!
//! The least possible traffic, and only between neighbors, but many steps. A block is combined in a circle that starts
//! after its owner, so the operation must commute, and the order depends on which block an element is in.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use crate::schedule::{BufferId, BufferRange};

/// Allreduce: reduce_scatter of P pieces, then allgather of them.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let (next, previous) = (p.above(1), p.below(1));
    let piece = |range: BufferRange, distance: u32| range.piece(p.below(distance), p.size);
    let spare = if p.in_place { (0..p.size).map(|i| p.own().piece(i, p.size).len).max() } else { None };
    let spare = b.scratch(spare.unwrap_or(0));
    for step in 0..p.size - 1 {
        let from = if step == 0 { p.own() } else { p.result() };
        let into = piece(p.result(), step + 1);
        b.send(next, piece(from, step));
        if p.in_place {
            let incoming = spare.part(0, into.len);
            b.recv(previous, incoming);
            b.reduce_left(incoming, into);
        } else {
            b.recv(previous, into);
            b.reduce_right(piece(p.own(), step + 1), into);
        }
        b.next_round();
    }
    for step in 0..p.size - 1 {
        b.send(next, piece(p.result(), (step + p.size - 1) % p.size));
        b.recv(previous, piece(p.result(), step));
        b.next_round();
    }
}

/// Allgather and allgatherv.
pub(crate) fn allgather(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    for step in 0..p.size - 1 {
        let out = p.recv_block(p.below(step));
        if step == 0 {
            b.send(p.above(1), p.own());
            b.copy_own(p, out);
        } else {
            b.send(p.above(1), out);
        }
        b.recv(p.below(1), p.recv_block(p.below(step + 1)));
        b.next_round();
    }
}

/// Reduce_scatter and reduce_scatter_block.
pub(crate) fn reduce_scatter(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let len_max = (0..p.size).map(|rank| p.send_block(rank).len).max().unwrap_or(0);
    let slots = [b.scratch(len_max), b.scratch(len_max)];
    let mut partial = p.send_block(p.below(1));
    for step in 1..p.size {
        // The block that arrives has passed `step` ranks; after P - 1 it is our own.
        let own = p.send_block(p.below(step + 1));
        let into = if step == p.size - 1 {
            BufferRange { buffer: BufferId::Recv, start: 0, len: own.len }
        } else {
            slots[step as usize % 2].part(0, own.len)
        };
        b.send(p.above(1), partial);
        b.recv(p.below(1), into);
        b.reduce_right(own, into);
        b.next_round();
        partial = into;
    }
}
