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
        let incoming = incoming.map(|rows| (rows, labels.as_slice()));
        let changed = round(pool, (outgoing, &labels), incoming, &mut next, &mut counters);
        std::mem::swap(&mut labels, &mut next);
        if changed == 0 {
            return Ok((labels, iteration + 1));
        }
    }
    Ok((labels, iterations_max))
}

/// A round on a part: the labels of its own nodes afterwards, and how many of them changed. Links come with a label
/// for each of their columns, own nodes first; `incoming`, if the links of both directions count, has other ghosts.
///
/// # Errors
/// `BadArgument` if there is not one label per column, each less than `labels_max`, or parts differ in their own nodes.
pub fn label_round(
    pool: &Pool,
    outgoing: (&CompressedRows, &[u32]),
    incoming: Option<(&CompressedRows, &[u32])>,
    labels_max: usize,
) -> Result<(Vec<u32>, usize), NetworkError> {
    let own = outgoing.0.rows();
    for (links, labels) in [Some(outgoing), incoming].into_iter().flatten() {
        ensure(links.rows() == own && links.columns() >= own, "both parts must have the same own nodes")?;
        ensure(labels.len() == links.columns(), "there must be one label for each column")?;
        ensure(labels.iter().all(|&label| (label as usize) < labels_max), "a label is too large")?;
    }
    let mut next = vec![0; own];
    let mut counters: Vec<LabelCounts> = (0..pool.threads()).map(|_| LabelCounts::new(labels_max)).collect();
    let changed = round(pool, outgoing, incoming, &mut next, &mut counters);
    Ok((next, changed))
}

/// Sets `next` to the most frequent labels around each node; returns how many changed.
fn round(
    pool: &Pool,
    outgoing: (&CompressedRows, &[u32]),
    incoming: Option<(&CompressedRows, &[u32])>,
    next: &mut [u32],
    counters: &mut [LabelCounts],
) -> usize {
    let (links, labels) = outgoing;
    let changed = AtomicUsize::new(0);
    let chunks = links.chunks(1 << 13);
    let shared = SharedSlice::new(next);
    pool.each(counters, |_, counter| {
        while let Some((_, range)) = chunks.next() {
            let mut mine = 0;
            for node in range {
                counter.add(labels, links.neighbors(node));
                if let Some((links, labels)) = incoming {
                    counter.add(labels, links.neighbors(node));
                }
                let label = counter.take().unwrap_or(labels[node]);
                mine += usize::from(label != labels[node]);
                // SAFETY: chunks do not overlap.
                unsafe { shared.set(node, label) };
            }
            changed.fetch_add(mine, Ordering::Relaxed);
        }
    });
    changed.into_inner()
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

        /// A round on parts, with what they know of others, is a round on the whole.
        #[test]
        fn rounds_on_parts_are_rounds(network in any_network(false), both: bool) {
            let (n, pool) = (network.rows(), pool(2));
            let incoming = network.transpose(&pool);
            let labels: Vec<u32> = (0..n as u32).map(|node| node * 7 % 5 % n as u32).collect();
            let (expected, _) = label_propagation(&pool, &network, both.then_some(&incoming), &labels, 1).unwrap();
            let mut changed = 0;
            for odd in 0..2 {
                let nodes: Vec<u32> = (0..n as u32).filter(|node| node % 2 == odd).collect();
                let known = |rows: &CompressedRows| {
                    let (part, ghosts) = rows.part(&pool, &nodes).unwrap();
                    let around: Vec<u32> = nodes.iter().chain(&ghosts).map(|&node| labels[node as usize]).collect();
                    (part, around)
                };
                let (one, other) = (known(&network), known(&incoming));
                let reverse = both.then_some((&other.0, other.1.as_slice()));
                let (found, mine) = label_round(&pool, (&one.0, &one.1), reverse, 5).unwrap();
                changed += mine;
                prop_assert_eq!(found, nodes.iter().map(|&node| expected[node as usize]).collect::<Vec<_>>());
            }
            prop_assert_eq!(changed, labels.iter().zip(&expected).filter(|(before, after)| before != after).count());
        }
    }
}
