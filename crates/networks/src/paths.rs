//! Shortest paths by delta-stepping: nodes are in bins of distances that are `delta` wide; the nearest bin is processed
//! in parallel until it stays empty, and only then the next.
//!
//! Source: U. Meyer and P. Sanders, Delta-stepping: a parallelizable shortest path algorithm (2003).

use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::{Chunks, atomics, float_atomics, for_chunks};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_kernels::pool::Pool;

/// Distances, and predecessors.
#[derive(Clone, Debug)]
pub struct PathTree {
    /// The length of a shortest path from the nearest source; infinite if there is none.
    pub distances: Vec<f64>,
    /// The predecessor of each node on such a path: the smallest of several nearer ones. `NO_NODE` if the node is not
    /// reached; a source is its own.
    pub parents: Vec<u32>,
}

/// Distances from the nearest of `sources`. Links without weights have length 1. Nodes farther away than `cutoff` count
/// as not reached. By default, `delta` is chosen by the weights; it affects the time, not the result.
///
/// # Errors
/// `BadArgument` if a source is not a node or delta is not positive; `BadWeight` with the first link whose weight is
/// negative or NaN.
pub fn shortest_paths(
    pool: &Pool,
    outgoing: &CompressedRows,
    sources: &[u32],
    delta: Option<f64>,
    cutoff: Option<f64>,
) -> Result<PathTree, NetworkError> {
    outgoing.check_square()?;
    outgoing.check_weights()?;
    let n = outgoing.rows();
    ensure(sources.iter().all(|&source| (source as usize) < n), "a source is not a node")?;
    ensure(delta.is_none_or(|delta| delta > 0.0 && delta.is_finite()), "delta must be a number above 0")?;
    let mut distances = vec![f64::INFINITY; n];
    let cutoff = cutoff.unwrap_or(f64::INFINITY);
    let sources = if cutoff >= 0.0 { sources } else { &[] };
    for &source in sources {
        distances[source as usize] = 0.0;
    }
    let inverse = 1.0 / delta.unwrap_or_else(|| width(outgoing));
    let mut relaxed = vec![f64::INFINITY; n];
    let search = DeltaSearch {
        outgoing,
        distances: float_atomics(&mut distances),
        relaxed: float_atomics(&mut relaxed),
        inverse,
        cutoff,
    };
    search.run(pool, sources.to_vec());
    let parents = parents(pool, outgoing, &distances, sources);
    Ok(PathTree { distances, parents })
}

/// A width with neither too few nodes per bin nor too many that are lowered again: a mean link if nodes have many
/// links, and several if they have few, as on roads.
fn width(outgoing: &CompressedRows) -> f64 {
    const SAMPLES: usize = 1 << 14;
    const LINKS_REACHED: f64 = 32.0;
    let Some(weights) = outgoing.weights().filter(|weights| !weights.is_empty()) else { return 1.0 };
    let sample = weights.iter().step_by(weights.len().div_ceil(SAMPLES)).filter(|weight| weight.is_finite());
    let (sum, count) = sample.fold((0.0, 0usize), |(sum, count), weight| (sum + weight, count + 1));
    let degree = outgoing.links() as f64 / outgoing.rows() as f64;
    let width = sum / count.max(1) as f64 * (LINKS_REACHED / degree).clamp(1.0, 16.0);
    if width > 0.0 && width.is_finite() { width } else { 1.0 }
}

struct DeltaSearch<'a> {
    outgoing: &'a CompressedRows,
    /// Bits of distances: those of non-negative floats have the order of the floats.
    distances: &'a [AtomicU64],
    /// The distance of each node when its links were last relaxed.
    relaxed: &'a [AtomicU64],
    inverse: f64,
    cutoff: f64,
}

/// One thread's bins. Those from `first` on have lists; nodes beyond the last list wait in `far`, however small delta
/// is.
#[derive(Default)]
struct DistanceBins {
    first: u64,
    lists: Vec<Vec<u32>>,
    far: Vec<u32>,
}

impl DistanceBins {
    const LISTS_MAX: u64 = 1 << 14;

    #[inline(always)]
    fn push(&mut self, bin: u64, node: u32) {
        let at = bin - self.first;
        if at >= Self::LISTS_MAX {
            self.far.push(node);
            return;
        }
        if at as usize >= self.lists.len() {
            self.lists.resize_with(at as usize + 1, Vec::new);
        }
        self.lists[at as usize].push(node);
    }
}

impl DeltaSearch<'_> {
    /// Below this number of nodes, one thread is faster than waking the others.
    const SHARED_MIN: usize = 512;

    fn run(&self, pool: &Pool, sources: Vec<u32>) {
        let mut bins: Vec<DistanceBins> = (0..pool.threads()).map(|_| DistanceBins::default()).collect();
        let (mut at, mut front) = (0, sources);
        loop {
            let bin = bins[0].first + at as u64;
            if pool.threads() == 1 || front.len() < Self::SHARED_MIN {
                self.relax::<false>(&front, bin, &mut bins[0]);
            } else {
                let chunks = Chunks::new(front.len(), 128);
                pool.each(&mut bins, |_, bins| {
                    while let Some((_, range)) = chunks.next() {
                        self.relax::<true>(&front[range], bin, bins);
                    }
                });
            }
            front.clear();
            loop {
                for bins in &mut bins {
                    if let Some(list) = bins.lists.get_mut(at) {
                        front.append(list);
                    }
                }
                if !front.is_empty() {
                    break;
                }
                at += 1;
                if bins.iter().all(|bins| at >= bins.lists.len()) {
                    if !self.refill(&mut bins) {
                        return;
                    }
                    at = 0;
                }
            }
        }
    }

    /// Moves the lists to the bin of the nearest far node; false if there is none.
    fn refill(&self, bins: &mut [DistanceBins]) -> bool {
        let after = bins[0].first.saturating_add(DistanceBins::LISTS_MAX);
        let mut far: Vec<u32> = bins.iter_mut().flat_map(|bins| std::mem::take(&mut bins.far)).collect();
        // Nodes that have come nearer since were processed there.
        far.retain(|&node| self.bin(self.distance(node)) >= after);
        let Some(first) = far.iter().map(|&node| self.bin(self.distance(node))).min() else { return false };
        for bins in &mut *bins {
            bins.first = first;
        }
        for node in far {
            bins[0].push(self.bin(self.distance(node)), node);
        }
        true
    }

    #[inline(always)]
    fn distance(&self, node: u32) -> f64 {
        f64::from_bits(self.distances[node as usize].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn bin(&self, distance: f64) -> u64 {
        (distance * self.inverse) as u64
    }

    /// Offers neighbors a path over each node of `front` that still belongs to `bin`.
    fn relax<const SHARED: bool>(&self, front: &[u32], bin: u64, bins: &mut DistanceBins) {
        for &node in front {
            let distance = self.distance(node);
            let relaxed = &self.relaxed[node as usize];
            if self.bin(distance) != bin || relaxed.load(Ordering::Relaxed) == distance.to_bits() {
                continue;
            }
            relaxed.store(distance.to_bits(), Ordering::Relaxed);
            self.outgoing.each_weighted(node as usize, |target, weight| {
                let offer = distance + weight;
                let place = &self.distances[target as usize];
                if offer < f64::from_bits(place.load(Ordering::Relaxed)) && offer <= self.cutoff {
                    let lowered = if SHARED {
                        place.fetch_min(offer.to_bits(), Ordering::Relaxed) > offer.to_bits()
                    } else {
                        place.store(offer.to_bits(), Ordering::Relaxed);
                        true
                    };
                    if lowered {
                        bins.push(self.bin(offer), target);
                    }
                }
            });
        }
    }
}

/// The parents that follow from distances. First nearer nodes, which cannot form a cycle; then, along links of length
/// 0, nodes behind one that already has a parent.
fn parents(pool: &Pool, outgoing: &CompressedRows, distances: &[f64], sources: &[u32]) -> Vec<u32> {
    let mut parents = vec![NO_NODE; distances.len()];
    let shared = atomics(&mut parents);
    for_chunks(pool, distances.len(), 1 << 10, |_, range| {
        for node in range {
            let distance = distances[node];
            if distance == f64::INFINITY {
                continue;
            }
            outgoing.each_weighted(node, |target, weight| {
                let reached = distances[target as usize];
                if distance + weight == reached && distance < reached {
                    let parent = &shared[target as usize];
                    if parent.load(Ordering::Relaxed) > node as u32 {
                        parent.fetch_min(node as u32, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    for &source in sources {
        parents[source as usize] = source;
    }
    if parents.iter().zip(distances).all(|(&parent, &distance)| parent != NO_NODE || distance == f64::INFINITY) {
        return parents;
    }
    let mut queue: Vec<u32> = (0..parents.len() as u32).filter(|&node| parents[node as usize] != NO_NODE).collect();
    while let Some(node) = queue.pop() {
        for (target, weight) in outgoing.weighted(node as usize) {
            let tight = distances[node as usize] + weight == distances[target as usize];
            if tight && parents[target as usize] == NO_NODE {
                parents[target as usize] = node;
                queue.push(target);
            }
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of, unweighted};
    use proptest::prelude::*;

    /// The Bellman-Ford algorithm.
    fn naive(outgoing: &CompressedRows, sources: &[u32]) -> Vec<f64> {
        let mut distances = vec![f64::INFINITY; outgoing.rows()];
        sources.iter().for_each(|&source| distances[source as usize] = 0.0);
        for _ in 0..outgoing.rows() {
            for v in 0..outgoing.rows() {
                for (target, weight) in outgoing.weighted(v) {
                    distances[target as usize] = distances[target as usize].min(distances[v] + weight);
                }
            }
        }
        distances
    }

    fn check(outgoing: &CompressedRows, sources: &[u32], delta: Option<f64>, cutoff: Option<f64>, threads: usize) {
        let tree = shortest_paths(&pool(threads), outgoing, sources, delta, cutoff).unwrap();
        let mut expected = naive(outgoing, sources);
        expected.iter_mut().filter(|d| **d > cutoff.unwrap_or(f64::INFINITY)).for_each(|d| *d = f64::INFINITY);
        assert_eq!(tree.distances, expected);
        for node in 0..outgoing.rows() {
            // Every path back ends at a source, after at most as many links as there are nodes.
            let mut at = node as u32;
            for _ in 0..outgoing.rows() {
                let parent = tree.parents[at as usize];
                assert_eq!(parent == NO_NODE, tree.distances[at as usize] == f64::INFINITY);
                if parent == NO_NODE || parent == at {
                    break;
                }
                let length = tree.distances[at as usize] - tree.distances[parent as usize];
                assert!(outgoing.weighted(parent as usize).any(|link| link == (at, length)));
                at = parent;
            }
            assert!(tree.parents[node] == NO_NODE || sources.contains(&at));
        }
    }

    proptest! {
        /// Weights of 0 give cycles of equal distance, and small deltas give bins beyond the lists.
        #[test]
        fn distances_equal_bellman_ford(
            network in any_network(false), threads in 1usize..3, delta in 0usize..4, cutoff in 0usize..3, plain: bool,
        ) {
            if network.rows() > 0 {
                let network = if plain { unweighted(&network) } else { network };
                let delta = [None, Some(1e-9), Some(1.5), Some(100.0)][delta];
                let cutoff = [None, Some(0.0), Some(6.0)][cutoff];
                check(&network, &[0], delta, cutoff, threads);
                check(&network, &[0, network.rows() as u32 / 2], delta, cutoff, threads);
            }
        }
    }

    /// Bins that several threads share.
    #[test]
    fn large_bins() {
        let n = 4_000u32;
        let links: Vec<_> =
            (1..n).flat_map(|v| (1..5).map(move |k| (v * k / 7 % n, v, f64::from(v * k % 5)))).collect();
        let network = rows_of(n as usize, &links, true);
        for threads in [1, 3] {
            let tree = shortest_paths(&pool(threads), &network, &[0], None, None).unwrap();
            let alone = shortest_paths(&pool(1), &network, &[0], Some(0.5), None).unwrap();
            assert_eq!((tree.distances, tree.parents), (alone.distances, alone.parents));
        }
    }

    #[test]
    fn bad_weights_are_named() {
        for (weight, shown) in [(-1.0, "-1"), (f64::NAN, "NaN")] {
            let network = rows_of(3, &[(0, 1, 1.0), (1, 2, weight)], false);
            let error = shortest_paths(&pool(1), &network, &[0], None, None).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("the link from node 1 to node 2 weighs {shown}; weights must be numbers, 0 or more")
            );
        }
    }
}
