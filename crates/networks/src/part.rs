//! The rows of some nodes, with the nodes beyond them as ghosts.

use crate::error::NetworkError;
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::{SharedSlice, for_chunks};
use tidemill_kernels::pool::Pool;

impl CompressedRows {
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
    use crate::testing::{any_network, pool};
    use proptest::prelude::*;

    proptest! {
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
