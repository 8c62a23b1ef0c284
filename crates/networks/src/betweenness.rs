//! Betweenness: a search from each source counts shortest paths, and the way back accumulates dependencies.
//!
//! Source: U. Brandes, A faster algorithm for betweenness centrality (2001). The search is breadth-first by number of
//! links, and Dijkstra's by length. The way back keeps no lists of predecessors and does not compare levels: a node
//! contributes 0 until it is done, so the sum over all neighbors equals the sum over its successors.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use crate::shared::{SharedSlice, gather_sum};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use tidemill_kernels::pool::Pool;

/// For each node, the sum over `sources` of the shares of shortest paths (by number of links) that pass through it;
/// with `endpoints`, paths that start or end there count, too. Neither scaled nor halved. Parallel links count as
/// several paths. Threads share the sources, so the last bits depend on the number of threads.
///
/// # Errors
/// `BadArgument` if a source is not a node.
pub fn betweenness(
    pool: &Pool,
    outgoing: &CompressedRows,
    sources: &[u32],
    endpoints: bool,
) -> Result<Vec<f64>, NetworkError> {
    sum_over_sources(pool, outgoing, sources, || {
        let mut search = PathCounts::new(outgoing.rows());
        move |source, sum| search.add(outgoing, source, endpoints, sum)
    })
}

/// As [`betweenness`], with shortest paths by the sum of weights. Paths are equally long if floating point says so.
///
/// # Errors
/// As [`betweenness`]; `BadWeight` for a weight that is not finite and above 0: with links of length 0, there can be
/// any number of shortest paths.
pub fn weighted_betweenness(
    pool: &Pool,
    outgoing: &CompressedRows,
    sources: &[u32],
    endpoints: bool,
) -> Result<Vec<f64>, NetworkError> {
    let weights = outgoing.weights().unwrap_or_default();
    if let Some(link) = weights.iter().position(|&weight| !(weight > 0.0 && weight < f64::INFINITY)) {
        return Err(NetworkError::BadWeight {
            source: outgoing.source(link),
            target: outgoing.targets()[link],
            weight: weights[link],
            need: "lengths must be finite and above 0",
        });
    }
    sum_over_sources(pool, outgoing, sources, || {
        let mut search = LengthCounts::new(outgoing.rows());
        move |source, sum| search.add(outgoing, source, endpoints, sum)
    })
}

/// Adds up over sources what searches, one for each thread, add for each.
fn sum_over_sources<S: FnMut(u32, &mut [f64])>(
    pool: &Pool,
    outgoing: &CompressedRows,
    sources: &[u32],
    search: impl Fn() -> S + Sync,
) -> Result<Vec<f64>, NetworkError> {
    outgoing.check_square()?;
    let n = outgoing.rows();
    ensure(sources.iter().all(|&source| (source as usize) < n), "a source is not a node")?;
    let sums = Mutex::new(Vec::new());
    pool.run(|worker| {
        let mut sum = vec![0.0; n];
        let mut add = search();
        for &source in sources.iter().skip(worker.thread).step_by(worker.threads) {
            add(source, &mut sum);
        }
        sums.lock().expect("no thread panics with it").push((worker.thread, sum));
    });
    let mut sums = sums.into_inner().expect("no thread panics with it");
    sums.sort_unstable_by_key(|&(thread, _)| thread);
    let mut all = vec![0.0; n];
    for (_, sum) in sums {
        all.iter_mut().zip(sum).for_each(|(all, sum)| *all += sum);
    }
    Ok(all)
}

/// One thread's state; reset after each source.
struct PathCounts {
    states: Vec<SearchState>,
    /// The number of shortest paths from the source to each node.
    counts: Vec<f64>,
    /// (1 + dependency) / count, for nodes whose level is done.
    shares: Vec<f64>,
    /// Nodes in the order they are reached.
    order: Vec<u32>,
}

/// A byte per node, so that more nodes fit into the cache than with levels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchState {
    Far,
    NextLevel,
    Reached,
}

impl PathCounts {
    fn new(n: usize) -> Self {
        let states = vec![SearchState::Far; n];
        PathCounts { states, counts: vec![0.0; n], shares: vec![0.0; n], order: Vec::with_capacity(n) }
    }

    fn add(&mut self, outgoing: &CompressedRows, source: u32, endpoints: bool, sum: &mut [f64]) {
        let starts = self.count_paths(outgoing, source);
        let mut level_shares = Vec::new();
        for level in starts.windows(2).rev() {
            let nodes = &self.order[level[0]..level[1]];
            level_shares.clear();
            for &node in nodes {
                let node = node as usize;
                // SAFETY: targets are below `columns`, of which there are as many as shares.
                let dependency = self.counts[node] * unsafe { gather_sum(&self.shares, outgoing.neighbors(node)) };
                if node != source as usize {
                    sum[node] += dependency + f64::from(u8::from(endpoints));
                }
                level_shares.push((1.0 + dependency) / self.counts[node]);
            }
            nodes.iter().zip(&level_shares).for_each(|(&node, &share)| self.shares[node as usize] = share);
        }
        if endpoints {
            sum[source as usize] += (self.order.len() - 1) as f64;
        }
        for &node in &self.order {
            let node = node as usize;
            (self.states[node], self.counts[node], self.shares[node]) = (SearchState::Far, 0.0, 0.0);
        }
        self.order.clear();
    }

    /// Searches from `source`; returns the start of each level in the order, and the end of the last.
    fn count_paths(&mut self, outgoing: &CompressedRows, source: u32) -> Vec<usize> {
        self.states[source as usize] = SearchState::Reached;
        self.counts[source as usize] = 1.0;
        self.order.push(source);
        let mut starts = vec![0];
        while starts.last() < Some(&self.order.len()) {
            let range = starts[starts.len() - 1]..self.order.len();
            starts.push(range.end);
            for at in range.clone() {
                let node = self.order[at] as usize;
                let count = self.counts[node];
                for &target in outgoing.neighbors(node) {
                    let state = &mut self.states[target as usize];
                    if *state == SearchState::Reached {
                        continue;
                    }
                    if *state == SearchState::Far {
                        *state = SearchState::NextLevel;
                        self.order.push(target);
                    }
                    self.counts[target as usize] += count;
                }
            }
            for &node in &self.order[range.end..] {
                self.states[node as usize] = SearchState::Reached;
            }
        }
        starts
    }
}

/// One thread's state of searches by length; all as at the beginning between sources.
struct LengthCounts {
    distances: Vec<f64>,
    done: Vec<bool>,
    /// How many shortest paths lead from the source to each node.
    counts: Vec<f64>,
    /// (1 + dependency) / count of nodes that are done on the way back.
    shares: Vec<f64>,
    /// Nodes in the order of their distances.
    order: Vec<u32>,
    /// Distances and nodes, the nearest first. The bits of floats that are not negative grow with the floats.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl LengthCounts {
    fn new(n: usize) -> Self {
        LengthCounts {
            distances: vec![f64::INFINITY; n],
            done: vec![false; n],
            counts: vec![0.0; n],
            shares: vec![0.0; n],
            order: Vec::with_capacity(n),
            waiting: BinaryHeap::new(),
        }
    }

    fn add(&mut self, outgoing: &CompressedRows, source: u32, endpoints: bool, sum: &mut [f64]) {
        self.count_paths(outgoing, source);
        for &node in self.order.iter().rev() {
            let node = node as usize;
            let (distance, mut shares) = (self.distances[node], 0.0);
            outgoing.each_weighted(node, |target, weight| {
                if distance + weight == self.distances[target as usize] {
                    shares += self.shares[target as usize];
                }
            });
            let dependency = self.counts[node] * shares;
            if node != source as usize {
                sum[node] += dependency + f64::from(u8::from(endpoints));
            }
            self.shares[node] = (1.0 + dependency) / self.counts[node];
        }
        if endpoints {
            sum[source as usize] += (self.order.len() - 1) as f64;
        }
        for &node in &self.order {
            let node = node as usize;
            (self.distances[node], self.done[node]) = (f64::INFINITY, false);
            (self.counts[node], self.shares[node]) = (0.0, 0.0);
        }
        self.order.clear();
    }

    fn count_paths(&mut self, outgoing: &CompressedRows, source: u32) {
        self.distances[source as usize] = 0.0;
        self.counts[source as usize] = 1.0;
        self.waiting.push(Reverse((0, source)));
        while let Some(Reverse((_, node))) = self.waiting.pop() {
            let at = node as usize;
            // It waits once for each time that it came nearer.
            if std::mem::replace(&mut self.done[at], true) {
                continue;
            }
            self.order.push(node);
            let (distance, count) = (self.distances[at], self.counts[at]);
            outgoing.each_weighted(at, |target, weight| {
                let (far, at) = (distance + weight, target as usize);
                if far < self.distances[at] {
                    (self.distances[at], self.counts[at]) = (far, count);
                    self.waiting.push(Reverse((far.to_bits(), target)));
                } else if far == self.distances[at] && far < f64::INFINITY && !self.done[at] {
                    self.counts[at] += count;
                }
            });
        }
    }
}

/// For each of the `wanted` rows of a part, the sums of `width` values of each of its targets; zeros for others. The
/// sums of a row do not depend on threads or parts. With frontiers as values, this is a step of Brandes's algorithm for
/// `width` sources at once, as a product with a matrix.
///
/// Source: J. Kepner and J. Gilbert (eds.), Graph Algorithms in the Language of Linear Algebra (2011), chapter 6.
///
/// # Errors
/// `BadArgument` if lengths differ.
pub fn row_sums(
    pool: &Pool,
    links: &CompressedRows,
    values: &[f64],
    width: usize,
    wanted: &[bool],
) -> Result<Vec<f64>, NetworkError> {
    ensure(values.len() == links.columns() * width, "there must be `width` values for each column")?;
    ensure(wanted.len() == links.rows(), "there must be one wish for each row")?;
    let mut sums = vec![0.0; links.rows() * width];
    let shared = SharedSlice::new(&mut sums);
    let chunks = links.chunks(1 << 12);
    pool.run(|_| {
        while let Some((_, range)) = chunks.next() {
            for row in range.filter(|&row| wanted[row]) {
                // SAFETY: rows do not overlap.
                let sum = unsafe { shared.range(row * width..(row + 1) * width) };
                for &target in links.neighbors(row) {
                    let more = &values[target as usize * width..][..width];
                    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
            }
        }
    });
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of, unweighted};
    use proptest::prelude::*;

    const FAR: u32 = u32::MAX;

    /// Levels and numbers of shortest paths from a node.
    fn counted(network: &CompressedRows, source: usize) -> (Vec<u32>, Vec<f64>) {
        let n = network.rows();
        let (mut levels, mut counts) = (vec![FAR; n], vec![0.0; n]);
        (levels[source], counts[source]) = (0, 1.0);
        for level in 0..n as u32 {
            for v in (0..n).filter(|&v| levels[v] == level).collect::<Vec<_>>() {
                for &target in network.neighbors(v) {
                    if levels[target as usize] > level {
                        levels[target as usize] = level + 1;
                        counts[target as usize] += counts[v];
                    }
                }
            }
        }
        (levels, counts)
    }

    proptest! {
        /// A row that is left out, or summed twice, or from the values of another source.
        #[test]
        fn row_sums_are_products(network in any_network(false), width in 1usize..4, threads in 1usize..3) {
            let n = network.rows();
            let values: Vec<f64> = (0..n * width).map(|at| (at * at) as f64).collect();
            let wanted: Vec<bool> = (0..n).map(|row| row % 3 != 1).collect();
            let mut expected = vec![0.0; n * width];
            for row in (0..n).filter(|&row| wanted[row]) {
                for &target in network.neighbors(row) {
                    (0..width).for_each(|at| expected[row * width + at] += values[target as usize * width + at]);
                }
            }
            prop_assert_eq!(row_sums(&pool(threads), &network, &values, width, &wanted).unwrap(), expected);
        }

        /// By the definition: the sum over all pairs of the share of paths through the node.
        #[test]
        fn shares_equal_the_definition(network in any_network(false), threads in 1usize..3, endpoints: bool) {
            let n = network.rows();
            let all: Vec<_> = (0..n).map(|v| counted(&network, v)).collect();
            let mut expected = vec![0.0; n];
            for s in 0..n {
                for t in (0..n).filter(|&t| t != s && all[s].0[t] != FAR) {
                    for (v, expected) in expected.iter_mut().enumerate() {
                        let inner = v != s && v != t && all[s].0[v] != FAR && all[v].0[t] != FAR;
                        if inner && all[s].0[v] + all[v].0[t] == all[s].0[t] {
                            *expected += all[s].1[v] * all[v].1[t] / all[s].1[t];
                        }
                        if endpoints && (v == s || v == t) {
                            *expected += 1.0;
                        }
                    }
                }
            }
            let sources: Vec<u32> = (0..n as u32).collect();
            let found = betweenness(&pool(threads), &network, &sources, endpoints).unwrap();
            for (a, b) in found.iter().zip(&expected) {
                prop_assert!((a - b).abs() <= 1e-9 * (1.0 + b), "{found:?} {expected:?}");
            }
        }

        /// A link of length k is as good as k links in a row, whose inner nodes are no sources and not asked for.
        #[test]
        fn lengths_equal_links_in_a_row(network in any_network(false), threads in 1usize..3) {
            let n = network.rows();
            let (mut long, mut short, mut nodes) = (Vec::new(), Vec::new(), n as u32);
            for source in 0..n {
                network.each_weighted(source, |target, weight| {
                    long.push((source as u32, target, weight + 1.0));
                    let mut at = source as u32;
                    for _ in 0..weight as u32 {
                        short.push((at, nodes, 1.0));
                        (at, nodes) = (nodes, nodes + 1);
                    }
                    short.push((at, target, 1.0));
                });
            }
            let (long, short) = (rows_of(n, &long, false), rows_of(nodes as usize, &short, false));
            let sources: Vec<u32> = (0..n as u32).collect();
            let found = weighted_betweenness(&pool(threads), &long, &sources, false).unwrap();
            prop_assert!(found.iter().all(|share| share.is_finite()));
            // By links, paths to inner nodes count, too: what leads on from each real node to real nodes alone is
            // found from the definition.
            let all: Vec<_> = (0..n).map(|v| counted(&short, v)).collect();
            for v in 0..n {
                let mut expected = 0.0;
                for s in (0..n).filter(|&s| s != v && all[s].0[v] != FAR) {
                    for t in (0..n).filter(|&t| t != s && t != v && all[v].0[t] != FAR) {
                        if all[s].0[v] + all[v].0[t] == all[s].0[t] {
                            expected += all[s].1[v] * all[v].1[t] / all[s].1[t];
                        }
                    }
                }
                prop_assert!((found[v] - expected).abs() <= 1e-9 * (1.0 + expected), "{found:?} {v}: {expected}");
            }
            // Without weights both are the same.
            let plain = unweighted(&network);
            let (a, b) = (betweenness(&pool(1), &plain, &sources, true), weighted_betweenness(&pool(1), &plain, &sources, true));
            for (a, b) in a.unwrap().iter().zip(&b.unwrap()) {
                prop_assert!((a - b).abs() <= 1e-9 * (1.0 + a));
            }
        }
    }

    #[test]
    fn a_length_of_zero_is_refused() {
        let network = rows_of(2, &[(0, 1, 0.0)], false);
        let error = weighted_betweenness(&pool(1), &network, &[0], false).unwrap_err();
        assert!(error.to_string().contains("from node 0 to node 1 weighs 0"), "{error}");
    }
}
