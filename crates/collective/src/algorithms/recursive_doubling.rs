//! Recursive doubling: in step k every rank exchanges all it has with the partner at distance 2^k.
//!
//! Allreduce: lg P steps, n lg P elements sent, n scratch. Nothing is copied: the first message lands in `Recv`, and
//! our own vector is combined into it. Allgather: lg P steps, n(P - 1) / P sent. Allgatherv works in n scratch, packed,
//! because the places of blocks may differ between ranks. Any P: ranks beyond a power of two pair up first (see
//! `groups.rs`) and get the result at the end, two more steps. Keeps rank order; its order is the canonical order.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005).

use super::ScheduleParams;
use super::accumulator::RangeAccumulator;
use super::builder::ScheduleBuilder;
use super::groups::RankGroups;
use super::packed::PackedBlocks;

/// Allreduce.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let groups = RankGroups::new(p.size);
    let group = groups.of(p.rank);
    let mut sum = RangeAccumulator::new(b, p.rank, p.own(), p.result(), p.in_place);
    let whole = (0, p.count);
    if let Some(partner) = groups.partner(p.rank) {
        if groups.leader(group) != p.rank {
            b.send(partner, sum.value());
            b.next_round();
            b.recv(partner, p.result());
            return b.next_round();
        }
        sum.absorb(b, partner, whole);
    }
    let mut distance = 1;
    while distance < groups.count {
        let partner = groups.leader(group ^ distance);
        b.send(partner, sum.value());
        sum.absorb(b, partner, whole);
        distance *= 2;
    }
    if let Some(partner) = groups.partner(p.rank) {
        b.send(partner, sum.value());
    }
    b.next_round();
}

/// Allgather and allgatherv.
pub(crate) fn allgather(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let packed = PackedBlocks::new(b, p);
    let groups = RankGroups::new(p.size);
    let group = groups.of(p.rank);
    b.copy_own(p, packed.block(p.rank));
    b.next_round();
    if let Some(partner) = groups.partner(p.rank) {
        if groups.leader(group) != p.rank {
            b.send(partner, packed.block(p.rank));
            b.next_round();
            // Our own block comes back with the rest: one message instead of two.
            b.recv(partner, packed.blocks(0, p.size));
            b.next_round();
            return packed.unpack(b, p);
        }
        b.recv(partner, packed.block(partner));
        b.next_round();
    }
    let mut distance = 1;
    while distance < groups.count {
        let partner = group ^ distance;
        let span = |group: u32| {
            let first = group & !(distance - 1);
            packed.blocks(groups.first(first), groups.first(first + distance))
        };
        b.send(groups.leader(partner), span(group));
        b.recv(groups.leader(partner), span(partner));
        b.next_round();
        distance *= 2;
    }
    if let Some(partner) = groups.partner(p.rank) {
        b.send(partner, packed.blocks(0, p.size));
        b.next_round();
    }
    packed.unpack(b, p);
}
