//! The canonical order of combination: how a reduction pairs up P ranks when P is not a power of two, and the single
//! tree that every repeatable algorithm evaluates for every element.
//!
//! Let G be the largest power of two that is at most P. The first 2(P - G) ranks form pairs and the others stand alone,
//! which gives G groups of neighbors. A pair combines first; then groups 2i and 2i + 1 combine, then their results, and
//! so on, always with the lower one on the left. The tree depends on P alone, keeps rank order, and has the smallest
//! possible depth. Recursive doubling and halving walk it from the nearest partner to the farthest, the binomial tree
//! of `tree.rs` walks it to rank 0, and a rank that holds all contributions evaluates it locally ([`combine`]).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use crate::schedule::BufferRange;

/// `size` ranks as a power of two of groups of one or two neighbors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankGroups {
    /// A power of two.
    pub(crate) count: u32,
    /// The first `pairs` groups have two ranks.
    pairs: u32,
    /// The rank that represents its group even though it is the higher one.
    preferred: u32,
}

impl RankGroups {
    pub(crate) fn new(size: u32) -> Self {
        let count = 1 << size.ilog2();
        RankGroups { count, pairs: size - count, preferred: 0 }
    }

    /// Makes `rank` represent its group; in other groups the lower rank does.
    pub(crate) fn led_by(size: u32, rank: u32) -> Self {
        RankGroups { preferred: rank, ..RankGroups::new(size) }
    }

    /// The group of `rank`.
    pub(crate) fn of(&self, rank: u32) -> u32 {
        if rank < 2 * self.pairs { rank / 2 } else { rank - self.pairs }
    }

    /// Lowest rank of `group`; for `count`, one past the last rank.
    pub(crate) fn first(&self, group: u32) -> u32 {
        group + group.min(self.pairs)
    }

    /// The rank that represents `group`.
    pub(crate) fn leader(&self, group: u32) -> u32 {
        let first = self.first(group);
        if group < self.pairs && self.preferred == first + 1 { first + 1 } else { first }
    }

    /// The other rank of a pair.
    pub(crate) fn partner(&self, rank: u32) -> Option<u32> {
        (rank < 2 * self.pairs).then_some(rank ^ 1)
    }
}

/// An operand: where it lies and whether it may be overwritten.
pub(crate) type Operand = (BufferRange, bool);

/// Combines one operand per rank, in the canonical order, and returns where the result lies: the leftmost writable
/// operand. At most one operand may be read-only.
pub(crate) fn combine(b: &mut ScheduleBuilder, mut operands: Vec<Operand>) -> BufferRange {
    let groups = RankGroups::new(operands.len() as u32);
    let mut fold = |(left, left_writable): Operand, (right, right_writable): Operand| {
        if left_writable {
            b.reduce_right(right, left);
            (left, true)
        } else {
            assert!(right_writable, "two read-only operands have nowhere to go");
            b.reduce_left(left, right);
            (right, true)
        }
    };
    let rest = operands.split_off(2 * groups.pairs as usize);
    let mut level: Vec<Operand> = operands.chunks(2).map(|pair| fold(pair[0], pair[1])).collect();
    level.extend(rest);
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| fold(pair[0], pair[1])).collect();
    }
    level[0].0
}

/// Operands for [`combine`] at a rank that receives all parts: its own part, and a place for every other one. The
/// result should end up in `result`, so that becomes the place of the lowest other rank, unless our own part lies
/// there. `places` contains one range of at least `own.len` elements for every other rank.
pub(crate) fn gather_operands(
    p: &ScheduleParams,
    own: BufferRange,
    result: BufferRange,
    places: &[BufferRange],
) -> Vec<Operand> {
    let lowest_other = if p.rank == 0 { 1 } else { 0 };
    let mut places = places.iter();
    let operand = |rank| {
        if rank == p.rank {
            if p.in_place { (result, true) } else { (own, false) }
        } else if rank == lowest_other && !p.in_place {
            (result, true)
        } else {
            (places.next().expect("a place for every other rank").part(0, own.len), true)
        }
    };
    (0..p.size).map(operand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank in no group would be lost from every reduction; a rank in two would count twice.
    #[test]
    fn groups_partition_the_ranks_in_order() {
        for size in 1..40 {
            let groups = RankGroups::new(size);
            assert!(groups.count.is_power_of_two() && groups.count <= size && size < 2 * groups.count);
            for rank in 0..size {
                let group = groups.of(rank);
                assert!(groups.first(group) <= rank && rank < groups.first(group + 1), "rank {rank} of {size}");
                let mates: Vec<u32> = (groups.first(group)..groups.first(group + 1)).filter(|&r| r != rank).collect();
                assert_eq!(groups.partner(rank), mates.first().copied());
                assert_eq!(RankGroups::led_by(size, rank).leader(group), rank);
            }
            assert_eq!(groups.first(groups.count), size);
        }
    }
}
