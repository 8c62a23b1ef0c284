//! Betweenness: a breadth-first search from each source counts shortest paths, and the way back adds up dependencies.
//!
//! Source: U. Brandes, A faster algorithm for betweenness centrality (2001). The way back needs no comparison of
//! levels: what a node passes on is 0 until its level is done, so the sum over all neighbors is that over the next
//! level.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use crate::shared::gather_sum;
use std::sync::Mutex;
use tidemill_kernels::pool::Pool;

/// The sum over `sources` of the shares of shortest paths that lead over each node, by number of links; with
/// `endpoints` also of those that begin or end there. Neither scaled nor halved. Parallel links count as several
/// paths. Threads share the sources, so the last bits depend on how many there are.
///
/// # Errors
/// `BadArgument` for a source that is no node.
pub fn betweenness(
    pool: &Pool,
    outgoing: &CompressedRows,
    sources: &[u32],
    endpoints: bool,
) -> Result<Vec<f64>, NetworkError> {
    outgoing.check_square()?;
    let n = outgoing.rows();
    ensure(sources.iter().all(|&source| (source as usize) < n), "a source is not a node")?;
    let sums = Mutex::new(Vec::new());
    pool.run(|worker| {
        let mut sum = vec![0.0; n];
        let mut search = PathCounts::new(n);
        for &source in sources.iter().skip(worker.thread).step_by(worker.threads) {
            search.add(outgoing, source, endpoints, &mut sum);
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

/// One thread's state; all as at the beginning between sources.
struct PathCounts {
    states: Vec<SearchState>,
    /// How many shortest paths lead from the source to each node.
    counts: Vec<f64>,
    /// (1 + dependency) / count of nodes whose level is done.
    shares: Vec<f64>,
    /// Nodes in the order they are reached.
    order: Vec<u32>,
}

/// A byte for each node, of which more stay in the cache than of levels.
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

    /// Searches from `source`; returns where each level starts in the order, and its end.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool};
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
        /// By the definition: over all pairs, the share of paths on which the node lies.
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
    }
}
