//! Dissemination barrier: in step k every rank signals the rank 2^k above. lg P steps for any P, no data, no scratch.
//!
//! Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).

use super::ScheduleParams;
use super::builder::ScheduleBuilder;

/// Barrier.
pub(crate) fn barrier(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let nothing = p.result().part(0, 0);
    let mut distance = 1;
    while distance < p.size {
        b.send(p.above(distance), nothing);
        b.recv(p.below(distance), nothing);
        b.next_round();
        distance *= 2;
    }
}
