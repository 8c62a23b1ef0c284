//! Connected components by trees of nodes: sampling a few links of each node finds most of the largest component, whose
//! other links can then be skipped.
//!
//! Source: M. Sutton, T. Ben-Nun and A. Barak, Optimizing parallel graph connectivity computation via subgraph sampling
//! (2018). A tree's root is always its smallest node, so the result does not depend on threads.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use crate::shared::atomics;
use crate::shared::for_chunks;
use std::sync::atomic::{AtomicU32, Ordering};
use tidemill_kernels::pool::Pool;

/// The smallest node of each node's component; links connect in both directions. `incoming` can be the transpose, or
/// `outgoing` itself if it is symmetric: then most links of the largest component are skipped.
///
/// # Errors
/// `BadArgument` if `incoming` has another number of nodes.
pub fn components(
    pool: &Pool,
    outgoing: &CompressedRows,
    incoming: Option<&CompressedRows>,
) -> Result<Vec<u32>, NetworkError> {
    const FIRST_LINKS: usize = 2;
    outgoing.check_square()?;
    let n = outgoing.rows();
    ensure(incoming.is_none_or(|rows| rows.rows() == n && rows.columns() == n), "incoming must be the transpose")?;
    let mut labels: Vec<u32> = (0..n as u32).collect();
    let trees = atomics(&mut labels);
    for first in 0..FIRST_LINKS {
        for_chunks(pool, n, 1 << 12, |_, range| {
            for node in range {
                if let Some(&target) = outgoing.neighbors(node).get(first) {
                    join(trees, node as u32, target);
                }
            }
        });
        compress(pool, trees);
    }
    let skipped = incoming.and_then(|_| most_frequent(trees));
    for_chunks(pool, n, 1 << 10, |_, range| {
        for node in range {
            if skipped.is_some_and(|skipped| trees[node].load(Ordering::Relaxed) == skipped) {
                continue;
            }
            for &target in outgoing.neighbors(node).iter().skip(FIRST_LINKS) {
                join(trees, node as u32, target);
            }
            // A skipped node's links are seen from their other ends, which requires incoming links.
            if let Some(incoming) = incoming.filter(|&incoming| !std::ptr::eq(incoming, outgoing)) {
                incoming.neighbors(node).iter().for_each(|&source| join(trees, node as u32, source));
            }
        }
    });
    compress(pool, trees);
    Ok(labels)
}

/// Merges the trees of two nodes.
#[inline(always)]
fn join(trees: &[AtomicU32], a: u32, b: u32) {
    let mut a = trees[a as usize].load(Ordering::Relaxed);
    let mut b = trees[b as usize].load(Ordering::Relaxed);
    while a != b {
        let (high, low) = (a.max(b), a.min(b));
        let above = trees[high as usize].load(Ordering::Relaxed);
        if above == low {
            return;
        }
        let hung = above == high
            && trees[high as usize].compare_exchange(high, low, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if hung {
            return;
        }
        a = trees[trees[high as usize].load(Ordering::Relaxed) as usize].load(Ordering::Relaxed);
        b = trees[low as usize].load(Ordering::Relaxed);
    }
}

/// Attaches every node directly to its root.
fn compress(pool: &Pool, trees: &[AtomicU32]) {
    for_chunks(pool, trees.len(), 1 << 14, |_, range| {
        for tree in &trees[range] {
            let mut at = tree.load(Ordering::Relaxed);
            loop {
                let above = trees[at as usize].load(Ordering::Relaxed);
                if above == at {
                    break;
                }
                at = above;
            }
            tree.store(at, Ordering::Relaxed);
        }
    });
}

/// The most frequent root in a sample. A wrong guess only costs time.
fn most_frequent(trees: &[AtomicU32]) -> Option<u32> {
    const SAMPLES: usize = 1024;
    let step = trees.len().div_ceil(SAMPLES).max(1);
    let mut sample: Vec<u32> = trees.iter().step_by(step).map(|tree| tree.load(Ordering::Relaxed)).collect();
    sample.sort_unstable();
    sample.chunk_by(|a, b| a == b).max_by_key(|run| run.len()).map(|run| run[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of};
    use proptest::prelude::*;

    fn naive(network: &CompressedRows) -> Vec<u32> {
        let mut labels: Vec<u32> = (0..network.rows() as u32).collect();
        for _ in 0..network.rows() {
            for v in 0..network.rows() {
                for &target in network.neighbors(v) {
                    let low = labels[v].min(labels[target as usize]);
                    (labels[v], labels[target as usize]) = (low, low);
                }
            }
        }
        labels
    }

    proptest! {
        #[test]
        fn components_equal_lowered_labels(network in any_network(false), threads in 1usize..4) {
            let pool = pool(threads);
            let expected = naive(&network);
            prop_assert_eq!(&components(&pool, &network, None).unwrap(), &expected);
            prop_assert_eq!(&components(&pool, &network, Some(&network.transpose(&pool))).unwrap(), &expected);
        }

        #[test]
        fn symmetric_links_are_skipped(network in any_network(true)) {
            prop_assert_eq!(components(&pool(1), &network, Some(&network)).unwrap(), naive(&network));
        }
    }

    /// Threads that join the same trees at the same time.
    #[test]
    fn a_long_chain() {
        let n = 50_000u32;
        let links: Vec<_> = (0..n - 3).map(|v| (v, v + 3, 1.0)).collect();
        let network = rows_of(n as usize, &links, false);
        let expected: Vec<u32> = (0..n).map(|v| v % 3).collect();
        assert!(components(&pool(3), &network, None).unwrap() == expected);
    }
}
