//! Who is connected to whom on the control plane: arithmetic that every worker repeats.
//!
//! A tree of contiguous ranks, rooted at rank 0. The subtree of a worker is a range of ranks that starts with its
//! own; the rest of the range is divided into nearly equal pieces, one for each child, and the child is the first
//! rank of its piece. Launchers number the workers of a host and of a rack consecutively, so most links stay within
//! these, a rack that fails is one subtree, and the parts of a subtree in an exchange are already in order.
//!
//! | workers        | fan-out     | depth |
//! |----------------|-------------|-------|
//! | up to 256      | all: a star | 1     |
//! | up to 4,161    | 16 to 64    | 2     |
//! | up to 266,305  | 17 to 64    | 3     |
//!
//! The fan-out is the smallest one that makes the tree no deeper than the largest fan-out would.

use std::ops::Range;

use crate::Rank;

/// Up to this many workers are all connected to rank 0.
pub(crate) const STAR_WORKERS_MAX: u32 = 256;

/// The most children of a worker in a larger job.
const FANOUT_MAX: u32 = 64;

/// The tree of a job's control plane, which other traffic from and to worker 0 may also use: ranks in nearly equal
/// ranges, each led by its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlTree {
    size: u32,
    fanout: u32,
}

/// A worker's position in the tree.
struct TreePlace {
    parent: Option<Rank>,
    subtree: Range<u32>,
}

impl ControlTree {
    /// The tree of a job of `size` workers, with at most `fanout_max` children per worker if it is given.
    pub fn new(size: u32, fanout_max: Option<u32>) -> Self {
        let all = size.saturating_sub(1).max(1);
        let default = if size <= STAR_WORKERS_MAX { all } else { FANOUT_MAX };
        let fanout_max = fanout_max.unwrap_or(default).clamp(1, all);
        if fanout_max == 1 {
            return ControlTree { size, fanout: 1 };
        }
        let depth = (1..).find(|&depth| holds(fanout_max, depth) >= u64::from(size)).expect("a tree grows");
        // The capacity grows with the fan-out, so bisection finds the smallest.
        let (mut too_small, mut enough) = (0, fanout_max);
        while enough - too_small > 1 {
            let middle = too_small + (enough - too_small) / 2;
            if holds(middle, depth) >= u64::from(size) { enough = middle } else { too_small = middle }
        }
        ControlTree { size, fanout: enough }
    }

    /// The tree that another worker described; `None` if it is not valid.
    pub(crate) fn told(size: u32, fanout: u32) -> Option<Self> {
        (fanout >= 1 && fanout <= size.saturating_sub(1).max(1)).then_some(ControlTree { size, fanout })
    }

    /// How many workers the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The most children of a worker.
    pub(crate) fn fanout(&self) -> u32 {
        self.fanout
    }

    /// Whether all others are children of rank 0.
    pub(crate) fn is_star(&self) -> bool {
        self.fanout >= self.size.saturating_sub(1)
    }

    /// The worker through which `rank` is connected to the others; `None` for rank 0.
    pub fn parent(&self, rank: Rank) -> Option<Rank> {
        self.place(rank).parent
    }

    /// `rank` and the workers connected through it.
    pub fn subtree(&self, rank: Rank) -> Range<u32> {
        self.place(rank).subtree
    }

    pub(crate) fn is_leaf(&self, rank: Rank) -> bool {
        self.subtree(rank).len() == 1
    }

    /// How many workers rank 0 is connected to until all have joined: its children, and all that have children.
    pub(crate) fn links_at_join(&self) -> u32 {
        let is_kept = |&rank: &Rank| self.parent(rank) == Some(Rank(0)) || !self.is_leaf(rank);
        (1..self.size).map(Rank).filter(is_kept).count() as u32
    }

    /// The workers connected directly to `rank` and below it.
    pub fn children(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let subtree = self.subtree(rank);
        let (fanout, end) = (self.fanout, subtree.end);
        let mut next = subtree.start + 1;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let child = next;
            next = piece(subtree.clone(), fanout, child).end;
            Some(Rank(child))
        })
    }

    /// The child of `from` that leads to `to`, if `to` is below `from`.
    pub(crate) fn next_hop(&self, from: Rank, to: Rank) -> Option<Rank> {
        let subtree = self.subtree(from);
        let below = to != from && subtree.contains(&to.0);
        below.then(|| Rank(piece(subtree, self.fanout, to.0).start))
    }

    fn place(&self, rank: Rank) -> TreePlace {
        debug_assert!(rank.0 < self.size.max(1));
        let mut place = TreePlace { parent: None, subtree: 0..self.size };
        while place.subtree.start != rank.0 {
            let parent = Some(Rank(place.subtree.start));
            place = TreePlace { parent, subtree: piece(place.subtree, self.fanout, rank.0) };
        }
        place
    }
}

/// The piece of `subtree` that contains `rank`, which is not its root.
fn piece(subtree: Range<u32>, fanout: u32, rank: u32) -> Range<u32> {
    let first = subtree.start + 1;
    let rest = subtree.end - first;
    let pieces = fanout.min(rest);
    // The first `longer` pieces have one rank more than the others.
    let (len, longer) = (rest / pieces, rest % pieces);
    let (at, long) = (rank - first, longer * (len + 1));
    let (start, len) = if at < long { (at - at % (len + 1), len + 1) } else { (at - (at - long) % len, len) };
    first + start..first + start + len
}

/// How many workers a tree can hold.
fn holds(fanout: u32, depth: u32) -> u64 {
    (0..depth).fold(1u64, |count, _| count.saturating_mul(u64::from(fanout)).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(tree: &ControlTree, rank: Rank) -> u32 {
        tree.parent(rank).map_or(0, |parent| 1 + depth(tree, parent))
    }

    /// A worker with two parents would receive news twice; a worker without a parent, never.
    #[test]
    fn every_worker_but_rank_0_has_one_parent_whose_child_it_is() {
        for size in (1..70).chain([255, 256, 257, 300, 1000]) {
            for fanout in [None, Some(1), Some(2), Some(3), Some(7), Some(64), Some(5000)] {
                if fanout == Some(1) && size > 70 {
                    continue;
                }
                let tree = ControlTree::new(size, fanout);
                assert_eq!(ControlTree::told(size, tree.fanout()), Some(tree));
                let mut seen = vec![0; size as usize];
                for rank in (0..size).map(Rank) {
                    let children: Vec<Rank> = tree.children(rank).collect();
                    assert!(children.len() as u32 <= fanout.unwrap_or(u32::MAX));
                    assert_eq!(children.is_empty(), tree.is_leaf(rank));
                    let mut next = rank.0 + 1;
                    for child in children {
                        assert_eq!(tree.parent(child), Some(rank), "{tree:?}");
                        let subtree = tree.subtree(child);
                        assert_eq!((subtree.start, child.0), (next, next), "pieces follow each other");
                        next = subtree.end;
                        subtree.for_each(|r| assert_eq!(tree.next_hop(rank, Rank(r)), Some(child)));
                        seen[child.index()] += 1;
                    }
                    assert_eq!(next, tree.subtree(rank).end);
                    assert_eq!(tree.next_hop(rank, rank), None);
                }
                assert_eq!((seen[0], seen[1..].iter().all(|&times| times == 1)), (0, true), "{tree:?}");
            }
        }
    }

    #[test]
    fn jobs_of_up_to_256_workers_are_stars_and_larger_ones_are_flat() {
        for size in [1, 2, 3, 100, 255, 256] {
            let tree = ControlTree::new(size, None);
            assert!(tree.is_star() && (1..size).all(|rank| tree.parent(Rank(rank)) == Some(Rank(0))));
        }
        for (size, fanout, deepest) in
            [(257, 16, 2), (1000, 32, 2), (4161, 64, 2), (4162, 16, 3), (16_384, 26, 3), (266_305, 64, 3)]
        {
            let tree = ControlTree::new(size, None);
            assert_eq!((tree.fanout(), tree.is_star()), (fanout, false), "{size}");
            assert_eq!((0..size).step_by(7).map(|rank| depth(&tree, Rank(rank))).max(), Some(deepest), "{size}");
        }
        for (size, links) in [(2, 1), (256, 255), (1024, 32), (4096, 64), (16_384, 702)] {
            assert_eq!(ControlTree::new(size, None).links_at_join(), links, "{size}");
        }
        assert!(ControlTree::told(300, 0).is_none() && ControlTree::told(300, 300).is_none());
    }
}
