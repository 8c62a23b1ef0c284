//! The rows of some nodes, with the nodes beyond them as ghosts.

use crate::build::{LinkOptions, Links};
use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::{SharedSlice, for_chunks};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_kernels::pool::Pool;

/// A set of nodes, with the place of each among its members: a bit and a half for each node that there could be.
struct NodeSet {
    words: Vec<AtomicU64>,
    /// The number of members before each word.
    before: Vec<u32>,
}

impl NodeSet {
    fn new(nodes: usize) -> Self {
        NodeSet { words: (0..nodes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), before: Vec::new() }
    }

    #[inline(always)]
    fn insert(&self, node: u32) {
        let (word, bit) = (&self.words[node as usize / 64], 1 << (node % 64));
        // Most are present already, and a read is cheaper than an atomic write.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The members, ascending, which then have places.
    fn members(&mut self) -> Vec<u32> {
        let mut members = Vec::new();
        self.before.reserve_exact(self.words.len());
        for (at, word) in self.words.iter().enumerate() {
            self.before.push(members.len() as u32);
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                members.push(at as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        members
    }

    /// The place of a member.
    #[inline(always)]
    fn place(&self, node: u32) -> u32 {
        let at = node as usize / 64;
        let lower = self.words[at].load(Ordering::Relaxed) & ((1 << (node % 64)) - 1);
        self.before[at] + lower.count_ones()
    }
}

impl CompressedRows {
    /// Rows of `links` that leave the nodes from `first` on, whose sources are numbered from 0; targets are numbers of
    /// any of `options.columns` nodes. Own nodes become the first columns, and the others that links lead to, the
    /// ghosts, follow in ascending order. Returns the rows and the ghosts. As in `part`, links keep the order of their
    /// targets' numbers.
    ///
    /// # Errors
    /// As of `of_links`; `BadArgument` if there are fewer columns than own nodes.
    pub fn of_block(
        pool: &Pool,
        links: Links<'_>,
        options: &LinkOptions,
        first: usize,
    ) -> Result<(CompressedRows, Vec<u32>), NetworkError> {
        let own = first..first + options.rows;
        ensure(own.end <= options.columns, "a block's own nodes must be among the columns")?;
        let rows = CompressedRows::of_links(pool, links, options)?;
        let mut ghosts = NodeSet::new(options.columns);
        for_chunks(pool, rows.links(), 1 << 16, |_, range| {
            rows.targets()[range].iter().filter(|target| !own.contains(&(**target as usize))).for_each(|&target| {
                ghosts.insert(target);
            });
        });
        let members = ghosts.members();
        let rows = rows.renumbered(options.rows + members.len(), |targets| {
            let links = targets.len();
            let shared = SharedSlice::new(targets);
            for_chunks(pool, links, 1 << 16, |_, range| {
                // SAFETY: chunks do not overlap.
                for target in unsafe { shared.range(range) } {
                    *target = if own.contains(&(*target as usize)) {
                        *target - first as u32
                    } else {
                        options.rows as u32 + ghosts.place(*target)
                    };
                }
            });
        });
        Ok((rows, members))
    }

    /// The rows of `nodes`, where `nodes[i]` is numbered i, and the ghosts, which are the targets not among `nodes`, in
    /// ascending order and numbered after them. Links keep their order within a row, so that sums over rows do not
    /// depend on parts.
    ///
    /// # Errors
    /// `BadArgument` for a node that has no row, or occurs twice.
    pub fn part(&self, pool: &Pool, nodes: &[u32]) -> Result<(CompressedRows, Vec<u32>), NetworkError> {
        let mut numbers = vec![NO_NODE; self.columns()];
        for (number, &node) in nodes.iter().enumerate() {
            if node as usize >= self.rows() || numbers.get(node as usize).is_none_or(|&number| number != NO_NODE) {
                return Err(NetworkError::argument(format!("node {node} of a part has no row, or is named twice")));
            }
            numbers[node as usize] = number as u32;
        }
        let mut offsets = Vec::with_capacity(nodes.len() + 1);
        offsets.push(0);
        let mut total = 0;
        for &node in nodes {
            total += self.degree(node as usize) as i64;
            offsets.push(total);
        }
        let mut is_ghost = vec![false; self.columns()];
        for &node in nodes {
            for &target in self.neighbors(node as usize) {
                is_ghost[target as usize] |= numbers[target as usize] == NO_NODE;
            }
        }
        let ghosts: Vec<u32> = (0..self.columns() as u32).filter(|&node| is_ghost[node as usize]).collect();
        for (number, &ghost) in ghosts.iter().enumerate() {
            numbers[ghost as usize] = (nodes.len() + number) as u32;
        }
        let mut targets = vec![0; total as usize];
        let mut weights = vec![0.0; if self.weights().is_some() { total as usize } else { 0 }];
        let (shared_targets, shared_weights) = (SharedSlice::new(&mut targets), SharedSlice::new(&mut weights));
        for_chunks(pool, nodes.len(), 1 << 10, |_, range| {
            for number in range {
                let (from, to) =
                    (self.range(nodes[number] as usize), offsets[number] as usize..offsets[number + 1] as usize);
                // SAFETY: rows do not overlap.
                let row = unsafe { shared_targets.range(to.clone()) };
                for (target, &old) in row.iter_mut().zip(&self.targets()[from.clone()]) {
                    *target = numbers[old as usize];
                }
                if let Some(weights) = self.weights() {
                    // SAFETY: as above.
                    unsafe { shared_weights.range(to) }.copy_from_slice(&weights[from]);
                }
            }
        });
        let columns = nodes.len() + ghosts.len();
        let weights = self.weights().is_some().then_some(weights);
        Ok((CompressedRows::of_parts(offsets, targets, weights, columns), ghosts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Duplicates;
    use crate::testing::{any_network, pool};
    use proptest::prelude::*;

    proptest! {
        /// A block has the same rows as the part of its nodes.
        #[test]
        fn blocks_are_parts(network in any_network(false), cuts in (0usize..40, 0usize..40), threads in 1usize..3) {
            let n = network.rows();
            let (first, last) = (cuts.0.min(cuts.1).min(n), cuts.0.max(cuts.1).min(n));
            let nodes: Vec<u32> = (first as u32..last as u32).collect();
            let (expected, ghosts) = network.part(&pool(1), &nodes).unwrap();
            let links = network.offsets()[first] as usize..network.offsets()[last] as usize;
            let sources: Vec<u32> = links.clone().map(|link| (network.source(link) - first) as u32).collect();
            let given = Links {
                sources: &sources,
                targets: &network.targets()[links.clone()],
                weights: network.weights().map(|weights| &weights[links]),
            };
            let options = LinkOptions { rows: last - first, duplicates: Duplicates::Keep, ..LinkOptions::square(n) };
            let (block, found) = CompressedRows::of_block(&pool(threads), given, &options, first).unwrap();
            prop_assert_eq!(found, ghosts);
            prop_assert_eq!(block.offsets(), expected.offsets());
            prop_assert_eq!(block.targets(), expected.targets());
            prop_assert_eq!(block.weights(), expected.weights());
            prop_assert_eq!(block.columns(), expected.columns());
        }

        /// Every link of a part, with the original numbers, is a link of the network.
        #[test]
        fn parts_hold_the_links_of_their_nodes(network in any_network(false), odd in 0usize..2) {
            let pool = pool(2);
            let nodes: Vec<u32> = (0..network.rows() as u32).rev().filter(|v| *v as usize % 2 == odd).collect();
            let (part, ghosts) = network.part(&pool, &nodes).unwrap();
            prop_assert!(ghosts.is_sorted());
            let all: Vec<u32> = nodes.iter().chain(&ghosts).copied().collect();
            prop_assert_eq!(part.columns(), all.len());
            for (number, &node) in nodes.iter().enumerate() {
                let back: Vec<_> = part.weighted(number).map(|(t, w)| (all[t as usize], w)).collect();
                prop_assert_eq!(back, network.weighted(node as usize).collect::<Vec<_>>());
            }
        }
    }
}
