//! All ranks to all ranks, with everything posted at once: one step, and the lowest latency for few ranks and small
//! vectors.
//!
//! | collective            | elements sent | scratch                    |
//! |-----------------------|---------------|----------------------------|
//! | allgather(v)          | n(P - 1) / P  | none                       |
//! | alltoall(v)           | n(P - 1) / P  | none (n in place)          |
//! | allreduce             | n(P - 1)      | n(P - 2)                   |
//! | reduce_scatter(_block)| n(P - 1) / P  | n(P - 2) / P (+ n in place)|
//! | scan, exscan          | n(P - 1)      | n(P - 1)                   |
//!
//! Reductions combine the received contributions in the canonical order (scans from the lowest rank up, as the chain
//! does), so they keep rank order and are repeatable. Each rank addresses its peers starting after itself, so that not
//! all ranks send to rank 0 first.

use super::builder::ScheduleBuilder;
use super::groups;
use super::{Collective, ScheduleParams};
use crate::schedule::{BufferId, BufferRange};

/// Allreduce.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    combine_all(b, p, |_| p.own(), p.result());
}

/// Reduce_scatter and reduce_scatter_block.
pub(crate) fn reduce_scatter(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let result = BufferRange { buffer: BufferId::Recv, start: 0, len: p.send_block(p.rank).len };
    combine_all(b, p, |to| p.send_block(to), result);
}

/// Sends `part(i)` to each rank i and combines all ranks' parts for us into `result`.
fn combine_all(b: &mut ScheduleBuilder, p: &ScheduleParams, part: impl Fn(u32) -> BufferRange, result: BufferRange) {
    let places: Vec<BufferRange> = (1..p.size).map(|_| b.scratch(result.len)).collect();
    let operands = groups::gather_operands(p, part(p.rank), result, &places);
    for distance in 1..p.size {
        let from = p.below(distance);
        b.recv(from, operands[from as usize].0);
    }
    for to in (1..p.size).map(|distance| p.above(distance)) {
        b.send(to, part(to));
    }
    let combined = groups::combine(b, operands);
    b.copy(combined, result);
    b.next_round();
}

/// Allgather and allgatherv.
pub(crate) fn allgather(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    for from in (1..p.size).map(|distance| p.below(distance)) {
        b.recv(from, p.recv_block(from));
    }
    for to in (1..p.size).map(|distance| p.above(distance)) {
        b.send(to, p.own());
    }
    b.copy_own(p, p.recv_block(p.rank));
    b.next_round();
}

/// Alltoall and alltoallv.
pub(crate) fn alltoall(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    for from in (1..p.size).map(|distance| p.below(distance)) {
        b.recv(from, p.recv_block(from));
    }
    for to in (1..p.size).map(|distance| p.above(distance)) {
        b.send(to, p.send_block(to));
    }
    b.copy(p.send_block(p.rank), p.recv_block(p.rank));
    b.next_round();
}

/// Scan and exscan.
pub(crate) fn scan(b: &mut ScheduleBuilder, p: &ScheduleParams, collective: Collective) {
    let places: Vec<BufferRange> = (0..p.rank).map(|_| b.scratch(p.count)).collect();
    // In place, `Recv` still holds our own contribution while messages are in flight.
    let first = if p.in_place || p.rank == 0 { places.first().copied() } else { Some(p.result()) };
    for from in 0..p.rank {
        b.recv(from, if from == 0 { first.expect("rank 0 is below us") } else { places[from as usize] });
    }
    for to in p.rank + 1..p.size {
        b.send(to, p.own());
    }
    if let Some(prefix) = first {
        for place in &places[1..] {
            b.reduce_right(*place, prefix);
        }
        match collective {
            Collective::Exscan => b.copy(prefix, p.result()),
            _ if p.in_place => b.reduce_left(prefix, p.result()),
            _ => b.reduce_right(p.own(), prefix),
        }
    } else if collective == Collective::Scan && !p.in_place {
        b.copy(p.own(), p.result());
    }
    b.next_round();
}
