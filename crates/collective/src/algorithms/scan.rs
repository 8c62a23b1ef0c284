//! Scan and exscan: prefix reductions in rank order.
//!
//! | algorithm            | steps     | elements sent | scratch                     | order of combination        |
//! |----------------------|-----------|---------------|-----------------------------|-----------------------------|
//! | `chain`              | P + m - 1 | n             | scan in place c; exscan 3c  | from the lowest rank up     |
//! | `recursive_doubling` | lg P      | n lg P        | n; exscan 2n                | runs of 2^k ranks, by rank  |
//!
//! Both keep rank order. Only the chain (and `linear`, which combines the same way) is repeatable: the three orders
//! differ, and for long vectors it is the fastest.
//!
//! Source: MPICH recursive doubling scan; Hillis and Steele, "Data parallel algorithms" (1986).

use super::builder::ScheduleBuilder;
use super::{Collective, ScheduleParams};

/// A chain, pipelined by chunk: every rank adds its own part and passes the prefix on.
pub(crate) fn chain(b: &mut ScheduleBuilder, p: &ScheduleParams, collective: Collective) {
    let exclusive = collective == Collective::Exscan;
    let (first, last) = (p.rank == 0, p.rank == p.size - 1);
    let chunk_len = p.own().chunks(p.chunk).next().map_or(0, |chunk| chunk.len);
    // In place, the prefix cannot land where our own contribution still lies.
    let spare = (p.in_place && !first).then(|| b.scratch(chunk_len));
    let slots = (exclusive && !first && !last).then(|| [b.scratch(chunk_len), b.scratch(chunk_len)]);
    let mut previous = None;
    for (i, (own, result)) in p.own().chunks(p.chunk).zip(p.result().chunks(p.chunk)).enumerate() {
        if first {
            b.send(1, own);
            if !exclusive && !p.in_place {
                b.copy(own, result);
            }
            continue;
        }
        let prefix = spare.map_or(result, |spare| spare.part(0, own.len));
        b.recv(p.rank - 1, prefix);
        if let Some(sum) = previous {
            b.send(p.rank + 1, sum);
        }
        let mut sum = result;
        if let Some(slots) = slots {
            sum = slots[i % 2].part(0, own.len);
            b.copy(prefix, sum);
            b.reduce_right(own, sum);
        }
        match (exclusive, p.in_place) {
            (false, false) => b.reduce_right(own, result),
            (false, true) => b.reduce_left(prefix, result),
            (true, _) => b.copy(prefix, result),
        }
        b.next_round();
        previous = (!last).then_some(sum);
    }
    if let Some(sum) = previous {
        b.send(p.rank + 1, sum);
    }
    b.next_round();
}

/// Recursive doubling: after step k the running sum covers the 2^(k + 1) ranks up to this one.
pub(crate) fn recursive_doubling(b: &mut ScheduleBuilder, p: &ScheduleParams, collective: Collective) {
    let incoming = b.scratch(p.count);
    // Exscan keeps the sum that includes our own part beside the result, which does not.
    let exclusive = collective == Collective::Exscan;
    let sum = if exclusive { b.scratch(p.count) } else { p.result() };
    if exclusive {
        b.copy(p.own(), sum);
    } else {
        b.copy_own(p, sum);
    }
    b.next_round();
    let mut distance = 1;
    while distance < p.size {
        if p.rank + distance < p.size {
            b.send(p.rank + distance, sum);
        }
        if p.rank >= distance {
            b.recv(p.rank - distance, incoming);
            b.reduce_left(incoming, sum);
            match (exclusive, distance) {
                (true, 1) => b.copy(incoming, p.result()),
                (true, _) => b.reduce_left(incoming, p.result()),
                (false, _) => {}
            }
        }
        b.next_round();
        distance *= 2;
    }
}
