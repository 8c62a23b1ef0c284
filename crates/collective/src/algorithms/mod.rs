//! Algorithms: pure functions from (collective, algorithm, [`ScheduleParams`]) to a [`Schedule`]. The tuner picks one
//! from message size, rank count, hosts and the operation's properties.
//!
//! P ranks, n elements of the vector (or of all blocks together), c elements a chunk, m = n / c chunks. "Sent" counts
//! the busiest rank. "In order": the result equals the in-order reduction, so the operation need not commute.
//! "Repeatable": the algorithm combines every element in the canonical order of `groups.rs`, a function of P alone.
//!
//! | module               | collectives                           | steps         | elements sent       | in order | repeatable |
//! |----------------------|---------------------------------------|---------------|---------------------|----------|------------|
//! | `tree`: `flat`       | barrier, bcast, reduce, allreduce     | 1 up, 1 down  | n(P - 1)            | yes      | yes        |
//! | `tree`: `binomial`   | the same                              | lg P          | n lg P              | yes      | yes        |
//! | `tree`: `binary`     | bcast, reduce, allreduce              | 2 lg P + m    | 2n                  | yes      | no         |
//! | `tree`: `chain`      | bcast, reduce, allreduce              | P + m         | n                   | yes      | no         |
//! | `tree`: `two_level`  | barrier, bcast, reduce                | lg H + lg P/H | n lg P              | by host  | no         |
//! | `two_level`          | allreduce, allgather                  | 2 lg P/H + .. | n (lg P/H + 2)      | by host  | no         |
//! | `scatter_allgather`  | bcast                                 | lg P + P      | 2n                  | -        | -          |
//! | `recursive_doubling` | barrier, allreduce, allgather(v)      | lg P          | n lg P; allgather n | yes      | yes        |
//! | `halving_doubling`   | reduce, allreduce                     | 2 lg P        | 2n                  | yes      | yes        |
//! | `recursive_halving`  | reduce_scatter(_block)                | lg P          | n                   | yes      | yes        |
//! | `ring`               | allreduce, allgather(v), reduce_scatter(_block) | P - 1, allreduce twice | n, allreduce 2n | no | no |
//! | `bruck`              | allgather(v), alltoall                | lg P          | n; alltoall n/2 lg P | -       | -          |
//! | `pairwise`           | alltoall(v), reduce_scatter(_block)   | P - 1         | n                   | no       | no         |
//! | `linear`             | allreduce, allgather(v), alltoall(v), reduce_scatter(_block), scan, exscan | 1 | n; allreduce, scan n(P - 1) | yes | yes |
//! | `dissemination`      | barrier                               | lg P          | 0                   | -        | -          |
//! | `gather_scatter`: `flat`, `binomial` | gather(v), scatter(v) | 1, lg P     | n                   | -        | -          |
//! | `overlay`            | allreduce, along given trees          | depths + m    | n a parent, n a child | no     | no         |
//! | `scan`: `chain`, `recursive_doubling` | scan, exscan         | P + m, lg P   | n, n lg P           | yes      | chain      |

mod accumulator;
mod bruck;
mod builder;
mod catalog;
mod dissemination;
mod gather_scatter;
mod groups;
mod halving_doubling;
mod linear;
mod overlay;
mod packed;
mod pairwise;
mod params;
mod recursive_doubling;
mod recursive_halving;
mod ring;
mod scan;
mod scatter_allgather;
mod tree;
mod two_level;

pub(crate) use catalog::alternatives;
pub use catalog::{AlgorithmEntry, supported};
pub(crate) use params::blocks_end;
pub use params::{Algorithm, Collective, ScheduleParams, UnknownName, VectorBlock};

use crate::schedule::{BufferId, BufferRange, Schedule};
use builder::ScheduleBuilder;

/// The algorithm cannot do what was requested; others can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("algorithm {algorithm} cannot run {collective}: {reason}; it can be one of: {alternatives}")]
pub struct UnsupportedAlgorithm {
    /// The requested collective.
    pub collective: Collective,
    /// The requested algorithm.
    pub algorithm: Algorithm,
    /// Why not.
    pub reason: &'static str,
    /// Names of algorithms that can, separated by commas.
    pub alternatives: String,
}

/// The part of rank `params.rank` in `collective`. All ranks must pass the same collective, algorithm and params,
/// except for `rank`, `in_place` and the fields that [`ScheduleParams`] declares local.
///
/// # Errors
/// [`UnsupportedAlgorithm`] if the algorithm does not exist for the collective or cannot guarantee what `params`
/// requests (rank order, repeatability).
///
/// # Panics
/// When `params` is malformed (rank or root not below size, missing blocks): a bug of the caller.
pub fn schedule(
    collective: Collective,
    algorithm: Algorithm,
    params: &ScheduleParams,
) -> Result<Schedule, UnsupportedAlgorithm> {
    params.check(collective);
    if let Some(reason) = catalog::obstacle(collective, algorithm, params) {
        let alternatives = catalog::alternatives(collective, params);
        return Err(UnsupportedAlgorithm { collective, algorithm, reason, alternatives });
    }
    if params.size == 1 {
        return Ok(alone(collective, params));
    }
    // With Send equal to Recv, these would overwrite input that they still have to read, so they work on a copy.
    use Collective::{Alltoall, Alltoallv, ReduceScatter, ReduceScatterBlock};
    let overwrites = matches!(collective, Alltoall | Alltoallv | ReduceScatter | ReduceScatterBlock);
    if params.in_place && overwrites && algorithm != Algorithm::Bruck {
        let apart = ScheduleParams { in_place: false, ..*params };
        let staged = catalog::build(collective, algorithm, &apart).finish();
        return Ok(builder::stage_send(staged, params.send_len(collective)));
    }
    Ok(catalog::build(collective, algorithm, params).finish())
}

/// Any collective on a communicator of one rank.
fn alone(collective: Collective, p: &ScheduleParams) -> Schedule {
    use Collective::{Barrier, Bcast, Exscan};
    let mut b = ScheduleBuilder::new();
    if !p.in_place && !matches!(collective, Barrier | Bcast | Exscan) {
        let (from, into) = match collective {
            Collective::Gatherv | Collective::Allgatherv => (p.own(), p.recv_block(0)),
            Collective::Scatterv => (p.send_block(0), p.result()),
            Collective::Alltoallv => (p.send_block(0), p.recv_block(0)),
            Collective::ReduceScatter => {
                let from = p.send_block(0);
                (from, BufferRange { buffer: BufferId::Recv, start: 0, len: from.len })
            }
            _ => (p.own(), p.result()),
        };
        b.copy(from, into);
    }
    b.finish()
}
