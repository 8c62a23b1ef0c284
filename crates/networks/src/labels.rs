//! Label propagation: all nodes take the most frequent label of their neighbors at the same time.
//!
//! Source: LDBC Graphalytics, "community detection using label propagation", after U. Raghavan, R. Albert and S. Kumara
//! (2007), made deterministic: the smallest of several most frequent labels.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use crate::shared::SharedSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_kernels::pool::Pool;

/// Labels after at most `iterations_max` rounds, and the number of rounds: they end when no label changes. With
/// `incoming`, the neighbors over links of both directions count. A node without neighbors keeps its label.
///
/// # Errors
/// `BadArgument` if there is not one label per node, each less than the number of nodes.
pub fn label_propagation(
    pool: &Pool,
    outgoing: &CompressedRows,
    incoming: Option<&CompressedRows>,
    labels: &[u32],
    iterations_max: usize,
) -> Result<(Vec<u32>, usize), NetworkError> {
    outgoing.check_square()?;
    let n = outgoing.rows();
    ensure(incoming.is_none_or(|rows| rows.rows() == n && rows.columns() == n), "incoming must be the transpose")?;
    ensure(labels.len() == n, "there must be one label for each node")?;
    ensure(labels.iter().all(|&label| (label as usize) < n), "labels must be nodes")?;
    let (mut labels, mut next) = (labels.to_vec(), vec![0; n]);
    let mut counters: Vec<LabelCounts> = (0..pool.threads()).map(|_| LabelCounts::new(n)).collect();
    for iteration in 0..iterations_max {
        let changed = AtomicUsize::new(0);
        let chunks = outgoing.chunks(1 << 13);
        let shared = SharedSlice::new(&mut next);
        pool.each(&mut counters, |_, counter| {
            while let Some((_, range)) = chunks.next() {
                let mut mine = 0;
                for node in range {
                    counter.add(&labels, outgoing.neighbors(node));
                    if let Some(incoming) = incoming {
                        counter.add(&labels, incoming.neighbors(node));
                    }
                    let label = counter.take().unwrap_or(labels[node]);
                    mine += usize::from(label != labels[node]);
                    // SAFETY: chunks do not overlap.
                    unsafe { shared.set(node, label) };
                }
                changed.fetch_add(mine, Ordering::Relaxed);
            }
        });
        std::mem::swap(&mut labels, &mut next);
        if changed.into_inner() == 0 {
            return Ok((labels, iteration + 1));
        }
    }
    Ok((labels, iterations_max))
}

/// The number of occurrences of each label, and the labels that occurred.
struct LabelCounts {
    counts: Vec<u32>,
    seen: Vec<u32>,
}

impl LabelCounts {
    fn new(n: usize) -> Self {
        LabelCounts { counts: vec![0; n], seen: Vec::new() }
    }

    fn add(&mut self, labels: &[u32], neighbors: &[u32]) {
        for &neighbor in neighbors {
            let label = labels[neighbor as usize];
            let count = &mut self.counts[label as usize];
            if *count == 0 {
                self.seen.push(label);
            }
            *count += 1;
        }
    }

    /// The most frequent label; resets the counts.
    fn take(&mut self) -> Option<u32> {
        let best = self.seen.iter().copied().max_by_key(|&l| (self.counts[l as usize], std::cmp::Reverse(l)));
        for label in self.seen.drain(..) {
            self.counts[label as usize] = 0;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn labels_equal_a_sorted_count(network in any_network(false), threads in 1usize..3, both: bool, rounds in 0usize..6) {
            let n = network.rows();
            let incoming = network.transpose(&pool(1));
            let mut expected: Vec<u32> = (0..n as u32).collect();
            for _ in 0..rounds {
                let before = expected.clone();
                for v in 0..n {
                    let mut around: Vec<u32> = network.neighbors(v).iter().map(|&u| before[u as usize]).collect();
                    if both {
                        around.extend(incoming.neighbors(v).iter().map(|&u| before[u as usize]));
                    }
                    around.sort_unstable();
                    // The first of the longest runs is the smallest label.
                    let runs = around.chunk_by(|a, b| a == b).rev();
                    expected[v] = runs.max_by_key(|run| run.len()).map_or(before[v], |run| run[0]);
                }
            }
            let labels: Vec<u32> = (0..n as u32).collect();
            let found = label_propagation(&pool(threads), &network, both.then_some(&incoming), &labels, rounds).unwrap();
            prop_assert_eq!(found.0, expected);
        }
    }
}
