//! Bcast of long vectors as a binomial scatter of P pieces and a ring allgather of them (van de Geijn).
//!
//! lg P + P - 1 steps; the root sends about 2n elements instead of n lg P. No scratch: pieces travel between their
//! places. A rank passes on only pieces that the next rank did not get from the scatter, so nothing comes back to the
//! root.
//!
//! Source: Barnett, Gupta, Payne, Shuler, van de Geijn, Watts, "Interprocessor collective communication library"
//! (1994); skipping pieces that are already present: Zhou et al., "A bandwidth-saving optimization for MPI broadcast"
//! (2015).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use super::gather_scatter::BinomialNode;
use crate::schedule::BufferRange;

/// Bcast of `data`.
pub(crate) fn bcast(b: &mut ScheduleBuilder, p: &ScheduleParams, data: BufferRange) {
    let node = BinomialNode::new(p);
    let piece = |position: u32| data.piece(position, p.size);
    // The pieces of the positions `first..end`, which are side by side.
    let pieces = |first: u32, end: u32| {
        let (head, tail) = (piece(first), piece(end - 1));
        BufferRange { len: tail.start + tail.len - head.start, ..head }
    };
    let end = |position: u32| if position == 0 { p.size } else { BinomialNode::end(p, position) };
    if node.position > 0 {
        b.recv(node.rank(p, node.parent()), pieces(node.position, end(node.position)));
        b.next_round();
    }
    for &child in node.children.iter().rev() {
        b.send(node.rank(p, child), pieces(child, end(child)));
    }
    b.next_round();

    let has = |position: u32, piece: u32| (position..end(position)).contains(&piece);
    let (next, previous) = ((node.position + 1) % p.size, (node.position + p.size - 1) % p.size);
    for step in 0..p.size - 1 {
        let (out, into) = ((node.position + p.size - step) % p.size, (previous + p.size - step) % p.size);
        if !has(next, out) {
            b.send(node.rank(p, next), piece(out));
        }
        if !has(node.position, into) {
            b.recv(node.rank(p, previous), piece(into));
        }
        b.next_round();
    }
}
