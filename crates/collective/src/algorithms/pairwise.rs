//! Pairwise exchange: in step k every rank sends to the rank k above and receives from the rank k below.
//!
//! P - 1 steps. Sends n(P - 1) / P elements, the minimum, with one message in flight each way. Alltoall(v): no scratch.
//! Reduce_scatter(_block): one block of scratch, and the operation must commute (contributions arrive from below,
//! around the circle). In place: n more scratch.
//!
//! Source: Thakur, Rabenseifner, Gropp (2005).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;
use crate::schedule::{BufferId, BufferRange};

/// Alltoall and alltoallv.
pub(crate) fn alltoall(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    b.copy(p.send_block(p.rank), p.recv_block(p.rank));
    for distance in 1..p.size {
        b.send(p.above(distance), p.send_block(p.above(distance)));
        b.recv(p.below(distance), p.recv_block(p.below(distance)));
        b.next_round();
    }
}

/// Reduce_scatter and reduce_scatter_block.
pub(crate) fn reduce_scatter(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let own = p.send_block(p.rank);
    let result = BufferRange { buffer: BufferId::Recv, start: 0, len: own.len };
    let spare = b.scratch(if p.size > 2 { own.len } else { 0 });
    for distance in 1..p.size {
        b.send(p.above(distance), p.send_block(p.above(distance)));
        if distance == 1 {
            b.recv(p.below(distance), result);
            b.reduce_right(own, result);
        } else {
            b.recv(p.below(distance), spare);
            b.reduce_left(spare, result);
        }
        b.next_round();
    }
}
