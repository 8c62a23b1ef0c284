//! Which algorithms run which collective, what they guarantee, and the mapping from a name to its code.

use super::builder::ScheduleBuilder;
use super::tree::HostGroups;
use super::{Algorithm, Collective, ScheduleParams};
use super::{bruck, dissemination, gather_scatter, halving_doubling, linear, overlay, pairwise, recursive_doubling};
use super::{recursive_halving, ring, scan, scatter_allgather, tree, two_level};

/// The guarantees of one algorithm for one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmEntry {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether the algorithm works for operations that do not commute. `two_level` does only if each host's ranks are
    /// consecutive.
    pub in_order: bool,
    /// Whether it combines in the canonical order (for scans: from the lowest rank up), so that all repeatable
    /// algorithms of the collective give bitwise the same result.
    pub repeatable: bool,
    /// Whether [`ScheduleParams::chunk`] matters.
    pub chunked: bool,
}

const fn entry(algorithm: Algorithm, in_order: bool, repeatable: bool, chunked: bool) -> AlgorithmEntry {
    AlgorithmEntry { algorithm, in_order, repeatable, chunked }
}

/// Moves data only: order and repeatability hold trivially.
const fn moves(algorithm: Algorithm) -> AlgorithmEntry {
    entry(algorithm, true, true, false)
}

/// The guarantees of [`Algorithm::Overlay`]. It is not in the list of supported algorithms: it cannot run without
/// trees, and whoever supplied them decides when to use it.
const OVERLAY: AlgorithmEntry = entry(Algorithm::Overlay, false, false, true);

/// The algorithms that can run `collective`, simplest first.
pub fn supported(collective: Collective) -> &'static [AlgorithmEntry] {
    use Algorithm::*;
    match collective {
        Collective::Barrier => {
            const { &[moves(Flat), moves(Binomial), moves(RecursiveDoubling), moves(Dissemination), moves(TwoLevel)] }
        }
        Collective::Bcast => {
            const {
                &[
                    entry(Flat, true, true, true),
                    entry(Binomial, true, true, true),
                    entry(Binary, true, true, true),
                    entry(Chain, true, true, true),
                    moves(ScatterAllgather),
                    entry(TwoLevel, true, true, true),
                ]
            }
        }
        Collective::Reduce => {
            const {
                &[
                    entry(Flat, true, true, true),
                    entry(Binomial, true, true, true),
                    entry(Binary, true, false, true),
                    entry(Chain, true, false, true),
                    entry(HalvingDoubling, true, true, false),
                    entry(TwoLevel, true, false, true),
                ]
            }
        }
        Collective::Allreduce => {
            const {
                &[
                    entry(Flat, true, true, true),
                    entry(Linear, true, true, false),
                    entry(Binomial, true, true, true),
                    entry(Binary, true, false, true),
                    entry(Chain, true, false, true),
                    entry(RecursiveDoubling, true, true, false),
                    entry(HalvingDoubling, true, true, false),
                    entry(Ring, false, false, false),
                    entry(TwoLevel, true, false, true),
                ]
            }
        }
        Collective::Gather | Collective::Scatter => const { &[moves(Flat), moves(Binomial)] },
        Collective::Gatherv | Collective::Scatterv => const { &[moves(Flat)] },
        Collective::Allgather | Collective::Allgatherv => {
            const { &[moves(Linear), moves(RecursiveDoubling), moves(Bruck), moves(Ring), entry(TwoLevel, true, true, true)] }
        }
        Collective::Alltoall => const { &[moves(Linear), moves(Pairwise), moves(Bruck)] },
        Collective::Alltoallv => const { &[moves(Linear), moves(Pairwise)] },
        Collective::ReduceScatterBlock | Collective::ReduceScatter => {
            const {
                &[
                    entry(Linear, true, true, false),
                    entry(RecursiveHalving, true, true, false),
                    entry(Pairwise, false, false, false),
                    entry(Ring, false, false, false),
                ]
            }
        }
        Collective::Scan | Collective::Exscan => {
            const {
                &[
                    entry(Linear, true, true, false),
                    entry(Chain, true, true, true),
                    entry(RecursiveDoubling, true, false, false),
                ]
            }
        }
    }
}

/// Why `algorithm` cannot run the collective with the given params, if it cannot.
pub(crate) fn obstacle(collective: Collective, algorithm: Algorithm, p: &ScheduleParams) -> Option<&'static str> {
    let along_overlay = (collective, algorithm) == (Collective::Allreduce, Algorithm::Overlay);
    let mut entries = supported(collective).iter().chain(along_overlay.then_some(&OVERLAY));
    let Some(entry) = entries.find(|entry| entry.algorithm == algorithm) else {
        return Some("there is no such schedule");
    };
    match p.overlay {
        None if along_overlay => return Some("it needs an overlay: set one with `set_overlay`"),
        Some(overlay) if along_overlay && overlay.size() != p.size => {
            return Some("its overlay is for another number of ranks");
        }
        _ => {}
    }
    if p.repeatable && !entry.repeatable {
        return Some("it does not combine in canonical order, which `repeatable` requires");
    }
    if p.in_order() && !entry.in_order {
        return Some("it does not keep the order of ranks, which a non-commutative operation needs");
    }
    let reduces = matches!(collective, Collective::Reduce | Collective::Allreduce);
    if algorithm == Algorithm::TwoLevel && reduces && p.in_order() && !HostGroups::are_consecutive(p) {
        return Some("the ranks of a host are not consecutive, and the operation does not commute");
    }
    None
}

/// Names of the algorithms that could run the collective.
pub(crate) fn alternatives(collective: Collective, p: &ScheduleParams) -> String {
    let able = supported(collective).iter().filter(|entry| obstacle(collective, entry.algorithm, p).is_none());
    able.map(|entry| entry.algorithm.name()).collect::<Vec<_>>().join(", ")
}

/// The rounds of a supported combination, for at least two ranks.
pub(crate) fn build(collective: Collective, algorithm: Algorithm, p: &ScheduleParams) -> ScheduleBuilder {
    use Algorithm as A;
    use Collective as C;
    let b = &mut ScheduleBuilder::new();
    match (collective, algorithm) {
        (C::Barrier, A::RecursiveDoubling) => return silent(p, recursive_doubling::allreduce),
        (C::Barrier, A::Flat | A::Binomial | A::TwoLevel) => return silent(p, |b, p| tree::allreduce(b, algorithm, p)),
        (C::Barrier, A::Dissemination) => dissemination::barrier(b, p),
        (C::Bcast, A::ScatterAllgather) => scatter_allgather::bcast(b, p, p.result()),
        (C::Bcast, A::Flat | A::Binomial | A::Binary | A::Chain | A::TwoLevel) => {
            tree::bcast(b, algorithm, p, p.result())
        }
        (C::Reduce, A::Flat | A::Binomial | A::Binary | A::Chain | A::TwoLevel) => tree::reduce(b, algorithm, p),
        (C::Reduce, A::HalvingDoubling) => halving_doubling::reduce(b, p),
        (C::Allreduce, A::Flat | A::Binomial | A::Binary | A::Chain) => tree::allreduce(b, algorithm, p),
        (C::Allreduce, A::Linear) => linear::allreduce(b, p),
        (C::Allreduce, A::RecursiveDoubling) => recursive_doubling::allreduce(b, p),
        (C::Allreduce, A::HalvingDoubling) => halving_doubling::allreduce(b, p),
        (C::Allreduce, A::Ring) => ring::allreduce(b, p),
        (C::Allreduce, A::TwoLevel) => two_level::allreduce(b, p),
        (C::Allreduce, A::Overlay) => overlay::allreduce(b, p, p.overlay.expect("`obstacle` asks for one")),
        (C::Gather | C::Gatherv, A::Flat) => gather_scatter::gather_flat(b, p),
        (C::Gather, A::Binomial) => gather_scatter::gather_binomial(b, p),
        (C::Scatter | C::Scatterv, A::Flat) => gather_scatter::scatter_flat(b, p),
        (C::Scatter, A::Binomial) => gather_scatter::scatter_binomial(b, p),
        (C::Allgather | C::Allgatherv, A::Linear) => linear::allgather(b, p),
        (C::Allgather | C::Allgatherv, A::RecursiveDoubling) => recursive_doubling::allgather(b, p),
        (C::Allgather | C::Allgatherv, A::Bruck) => bruck::allgather(b, p),
        (C::Allgather | C::Allgatherv, A::Ring) => ring::allgather(b, p),
        (C::Allgather | C::Allgatherv, A::TwoLevel) => two_level::allgather(b, p),
        (C::Alltoall | C::Alltoallv, A::Linear) => linear::alltoall(b, p),
        (C::Alltoall | C::Alltoallv, A::Pairwise) => pairwise::alltoall(b, p),
        (C::Alltoall, A::Bruck) => bruck::alltoall(b, p),
        (C::ReduceScatterBlock | C::ReduceScatter, A::Linear) => linear::reduce_scatter(b, p),
        (C::ReduceScatterBlock | C::ReduceScatter, A::RecursiveHalving) => recursive_halving::reduce_scatter(b, p),
        (C::ReduceScatterBlock | C::ReduceScatter, A::Pairwise) => pairwise::reduce_scatter(b, p),
        (C::ReduceScatterBlock | C::ReduceScatter, A::Ring) => ring::reduce_scatter(b, p),
        (C::Scan | C::Exscan, A::Linear) => linear::scan(b, p, collective),
        (C::Scan | C::Exscan, A::Chain) => scan::chain(b, p, collective),
        (C::Scan | C::Exscan, A::RecursiveDoubling) => scan::recursive_doubling(b, p, collective),
        _ => unreachable!("{algorithm} is not listed for {collective}"),
    }
    std::mem::replace(b, ScheduleBuilder::new())
}

/// A barrier: a collective on empty vectors, reduced to its messages.
fn silent(p: &ScheduleParams, build: impl FnOnce(&mut ScheduleBuilder, &ScheduleParams)) -> ScheduleBuilder {
    let mut b = ScheduleBuilder::silent();
    build(&mut b, &ScheduleParams { root: 0, count: 0, chunk: 0, commutative: true, in_place: false, ..*p });
    b
}
