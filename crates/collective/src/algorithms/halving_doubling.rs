//! Recursive halving, then doubling (Rabenseifner's algorithm): for long vectors with few steps.
//!
//! In step k, partners at distance 2^k split the window they share: each keeps one half and receives the other's
//! contribution to it. After lg P steps every rank has the complete combination of n / P elements. The way back
//! collects these, either everywhere (allreduce) or toward the root (reduce). 2 lg P steps, 2n(P - 1) / P elements
//! sent; scratch n, or 2n on non-root ranks of a reduce. Halving starts with the nearest partner, which is the
//! canonical order, so it keeps rank order and its results are bitwise equal to those of recursive doubling. Any P:
//! ranks beyond a power of two pair up first, which costs n elements and up to two more steps. Windows may be empty.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations" (2004).

use super::ScheduleParams;
use super::accumulator::RangeAccumulator;
use super::builder::ScheduleBuilder;
use super::groups::RankGroups;
use crate::schedule::BufferRange;

/// What a step leaves to us and to the partner, as (start, len).
struct HalvingSplit {
    partner: u32,
    kept: (usize, usize),
    given: (usize, usize),
}

/// Allreduce.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let groups = RankGroups::new(p.size);
    let mut sum = RangeAccumulator::new(b, p.rank, p.own(), p.result(), p.in_place);
    let partner = groups.partner(p.rank);
    let Some(splits) = halve(b, p, &groups, &mut sum) else {
        b.recv(partner.expect("only pairs fold"), p.result());
        return b.next_round();
    };
    for split in splits.iter().rev() {
        b.send(split.partner, part(p.result(), split.kept));
        b.recv(split.partner, part(p.result(), split.given));
        b.next_round();
    }
    if let Some(partner) = partner {
        b.send(partner, p.result());
    }
    b.next_round();
}

/// Reduce.
pub(crate) fn reduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let groups = RankGroups::led_by(p.size, p.root);
    let at_root = p.rank == p.root;
    let result = if at_root { p.result() } else { b.scratch(p.count) };
    let mut sum = RangeAccumulator::new(b, p.rank, p.own(), result, at_root && p.in_place);
    let Some(splits) = halve(b, p, &groups, &mut sum) else { return };
    // At every split, the side away from the root hands over what it has collected and is done.
    let away = groups.of(p.rank) ^ groups.of(p.root);
    for (k, split) in splits.iter().enumerate().rev() {
        if away & (1 << k) != 0 {
            b.send(split.partner, part(result, split.kept));
            return b.next_round();
        }
        b.recv(split.partner, part(result, split.given));
        b.next_round();
    }
}

/// The way down; `None` for the rank of a pair that only hands over its contribution.
fn halve(
    b: &mut ScheduleBuilder,
    p: &ScheduleParams,
    groups: &RankGroups,
    sum: &mut RangeAccumulator,
) -> Option<Vec<HalvingSplit>> {
    let group = groups.of(p.rank);
    if let Some(partner) = groups.partner(p.rank) {
        if groups.leader(group) != p.rank {
            b.send(partner, sum.value());
            b.next_round();
            return None;
        }
        sum.absorb(b, partner, (0, p.count));
    }
    let mut splits: Vec<HalvingSplit> = Vec::new();
    let (mut start, mut len) = (0, p.count);
    for k in 0..groups.count.ilog2() {
        let partner = groups.leader(group ^ (1 << k));
        let (low, high) = ((start, len / 2), (start + len / 2, len - len / 2));
        let (kept, given) = if group & (1 << k) == 0 { (low, high) } else { (high, low) };
        b.send(partner, part(sum.value(), given));
        sum.absorb(b, partner, kept);
        splits.push(HalvingSplit { partner, kept, given });
        (start, len) = kept;
    }
    Some(splits)
}

fn part(range: BufferRange, (start, len): (usize, usize)) -> BufferRange {
    range.part(start, len)
}
