//! Gather and scatter: blocks between the root and all ranks.
//!
//! | algorithm  | steps | elements sent                    | scratch                        |
//! |------------|-------|----------------------------------|--------------------------------|
//! | `flat`     | 1     | scatter, root: n(P - 1) / P      | none                           |
//! | `binomial` | lg P  | gather, first child: n / 2       | the blocks of the own subtree  |
//!
//! Only the root knows all lengths in the vector variants, so these are always flat. In the binomial tree, positions
//! count from the root around the circle, and a subtree is a run of positions. A run that crosses from rank P - 1 to
//! rank 0 takes two messages, so the root's blocks need no rotation.
//!
//! Source: binomial gather and scatter of MPICH; MPI 3.1 sections 5.5 and 5.6.

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use crate::schedule::{BufferId, BufferRange};

/// Flat gather and gatherv.
pub(crate) fn gather_flat(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    if p.rank == p.root {
        for from in (1..p.size).map(|distance| p.above(distance)) {
            b.recv(from, p.recv_block(from));
        }
        b.copy_own(p, p.recv_block(p.rank));
    } else {
        b.send(p.root, p.own());
    }
    b.next_round();
}

/// Flat scatter and scatterv.
pub(crate) fn scatter_flat(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    if p.rank == p.root {
        for to in (1..p.size).map(|distance| p.above(distance)) {
            b.send(to, p.send_block(to));
        }
        keep_own(b, p);
    } else {
        b.recv(p.root, p.result());
    }
    b.next_round();
}

/// The root's block of a scatter; an in-place scatter already has it in place.
fn keep_own(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    if !p.in_place {
        b.copy(p.send_block(p.rank), p.result());
    }
}

/// Binomial gather.
pub(crate) fn gather_binomial(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let node = BinomialNode::new(p);
    let store = node.store(b, p, BufferId::Recv, p.own());
    for &child in &node.children {
        node.runs(p, child).for_each(|run| b.recv(node.rank(p, child), store.at(p, run)));
    }
    if node.position == 0 {
        b.copy_own(p, p.recv_block(p.rank));
    } else if !node.children.is_empty() {
        b.copy(p.own(), store.at(p, (node.position, node.position + 1)));
    }
    b.next_round();
    if node.position > 0 {
        node.runs(p, node.position).for_each(|run| b.send(node.rank(p, node.parent()), store.at(p, run)));
    }
    b.next_round();
}

/// Binomial scatter.
pub(crate) fn scatter_binomial(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let node = BinomialNode::new(p);
    let store = node.store(b, p, BufferId::Send, p.result());
    if node.position > 0 {
        node.runs(p, node.position).for_each(|run| b.recv(node.rank(p, node.parent()), store.at(p, run)));
        if !node.children.is_empty() {
            b.copy(store.at(p, (node.position, node.position + 1)), p.result());
        }
        b.next_round();
    } else {
        keep_own(b, p);
    }
    // The largest subtree first, because it has the most left to pass on.
    for &child in node.children.iter().rev() {
        node.runs(p, child).for_each(|run| b.send(node.rank(p, child), store.at(p, run)));
    }
    b.next_round();
}

/// A place in the binomial tree in which the subtree of position v is `v .. v + lowest set bit of v`.
pub(crate) struct BinomialNode {
    pub(crate) position: u32,
    pub(crate) children: Vec<u32>,
}

impl BinomialNode {
    pub(crate) fn new(p: &ScheduleParams) -> BinomialNode {
        let position = (p.rank + p.size - p.root) % p.size;
        let reach = if position == 0 { p.size } else { 1 << position.trailing_zeros() };
        let distances = (0..32).map(|k| 1u32 << k).take_while(|&d| d < reach && d < p.size - position);
        BinomialNode { position, children: distances.map(|distance| position + distance).collect() }
    }

    pub(crate) fn parent(&self) -> u32 {
        self.position & (self.position - 1)
    }

    /// The rank at a position.
    pub(crate) fn rank(&self, p: &ScheduleParams, position: u32) -> u32 {
        ((u64::from(position) + u64::from(p.root)) % u64::from(p.size)) as u32
    }

    /// One past the last position of the subtree of `position > 0`.
    pub(crate) fn end(p: &ScheduleParams, position: u32) -> u32 {
        p.size.min(position + (1 << position.trailing_zeros()))
    }

    /// The subtree of a child, or of ourselves, as runs of positions whose ranks are consecutive.
    fn runs(&self, p: &ScheduleParams, position: u32) -> impl Iterator<Item = (u32, u32)> {
        let (end, rank_zero) = (Self::end(p, position), p.size - p.root);
        let cut = rank_zero.clamp(position, end);
        [(position, cut), (cut, end)].into_iter().filter(|run| run.0 < run.1)
    }

    /// `all`: the root's buffer, by rank; `single`: where a leaf stores its block.
    fn store(&self, b: &mut ScheduleBuilder, p: &ScheduleParams, all: BufferId, single: BufferRange) -> SubtreeBlocks {
        let blocks = match (self.position, self.children.is_empty()) {
            (0, _) => BufferRange { buffer: all, start: 0, len: p.size as usize * p.count },
            (_, true) => single,
            _ => b.scratch((Self::end(p, self.position) - self.position) as usize * p.count),
        };
        // At the root, block 0 belongs to rank 0; elsewhere it belongs to the node's own position.
        SubtreeBlocks { blocks, offset: if self.position == 0 { p.root } else { p.size - self.position } }
    }
}

/// Where a node keeps the blocks of its subtree.
struct SubtreeBlocks {
    blocks: BufferRange,
    /// A position plus this offset, around the circle, is the block's place.
    offset: u32,
}

impl SubtreeBlocks {
    /// The blocks of a run of positions.
    fn at(&self, p: &ScheduleParams, (start, end): (u32, u32)) -> BufferRange {
        let place = (u64::from(start) + u64::from(self.offset)) % u64::from(p.size);
        self.blocks.part(place as usize * p.count, (end - start) as usize * p.count)
    }
}
