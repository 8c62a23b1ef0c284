//! Spanning forests of minimum or maximum weight: every tree takes its best link to another tree, until none is left.
//!
//! Source: O. Boruvka (1926). Links of equal weight are ordered by their index, so the forest is unique and has no
//! cycles.

use crate::error::NetworkError;
use crate::rows::CompressedRows;
use std::cmp::Ordering;

/// A link between trees: the trees at its ends, its weight, and its index in the rows.
#[derive(Clone, Copy)]
struct TreeLink {
    ends: [u32; 2],
    weight: f64,
    place: usize,
}

impl TreeLink {
    fn cmp(&self, other: &TreeLink) -> Ordering {
        self.weight.total_cmp(&other.weight).then(self.place.cmp(&other.place))
    }
}

/// The indices, ascending, of the links of a spanning forest of minimum weight (maximum with `maximum`). Links must be
/// symmetric; of each pair, only the one to the larger node counts. Without weights, all weights are equal.
///
/// # Errors
/// `BadWeight` if a weight is NaN.
pub fn spanning_forest(links: &CompressedRows, maximum: bool) -> Result<Vec<usize>, NetworkError> {
    links.check_square()?;
    let n = links.rows();
    let mut left = Vec::with_capacity(links.links() / 2);
    for node in 0..n {
        for ((target, weight), place) in links.weighted(node).zip(links.range(node)) {
            if weight.is_nan() {
                let need = "weights of a spanning forest must be numbers";
                return Err(NetworkError::BadWeight { source: node, target, weight, need });
            }
            if target as usize > node {
                let weight = if maximum { -weight } else { weight };
                // 0 and -0 are the same weight.
                left.push(TreeLink { ends: [node as u32, target], weight: weight + 0.0, place });
            }
        }
    }
    let mut trees: Vec<u32> = (0..n as u32).collect();
    let mut best = vec![usize::MAX; n];
    let mut forest = Vec::new();
    while !left.is_empty() {
        for (at, link) in left.iter().enumerate() {
            for end in link.ends {
                let best = &mut best[end as usize];
                if *best == usize::MAX || link.cmp(&left[*best]).is_lt() {
                    *best = at;
                }
            }
        }
        for tree in 0..n as u32 {
            let best = std::mem::replace(&mut best[tree as usize], usize::MAX);
            if best != usize::MAX {
                let [a, b] = left[best].ends.map(|end| root(&mut trees, end));
                // Two trees may have taken the same link.
                if a != b {
                    trees[a.max(b) as usize] = a.min(b);
                    forest.push(left[best].place);
                }
            }
        }
        left.retain_mut(|link| {
            link.ends = link.ends.map(|end| root(&mut trees, end));
            link.ends[0] != link.ends[1]
        });
    }
    forest.sort_unstable();
    Ok(forest)
}

/// The root of a tree, with path compression.
fn root(trees: &mut [u32], node: u32) -> u32 {
    let mut at = node;
    while trees[at as usize] != at {
        trees[at as usize] = trees[trees[at as usize] as usize];
        at = trees[at as usize];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, rows_of};
    use proptest::prelude::*;

    proptest! {
        /// Kruskal's algorithm: the best link first, if it connects two trees.
        #[test]
        fn forests_equal_sorted_links(network in any_network(true), maximum: bool) {
            let mut all: Vec<_> = (0..network.rows())
                .flat_map(|v| network.weighted(v).zip(network.range(v)).map(move |((t, w), place)| (w, place, v, t as usize)))
                .filter(|&(_, _, v, t)| v < t)
                .collect();
            all.sort_by(|a, b| (if maximum { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) }).then(a.1.cmp(&b.1)));
            let mut labels: Vec<usize> = (0..network.rows()).collect();
            let mut expected = Vec::new();
            for (_, place, v, t) in all {
                let (from, to) = (labels[v], labels[t]);
                if from != to {
                    expected.push(place);
                    labels.iter_mut().filter(|label| **label == from).for_each(|label| *label = to);
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(spanning_forest(&network, maximum).unwrap(), expected);
        }
    }

    #[test]
    fn weights_must_be_numbers() {
        let error = spanning_forest(&rows_of(2, &[(0, 1, f64::NAN)], true), false).unwrap_err().to_string();
        assert_eq!(error, "the link from node 0 to node 1 weighs NaN; weights of a spanning forest must be numbers");
        assert_eq!(spanning_forest(&rows_of(2, &[(0, 1, -3.0)], true), false).unwrap(), [0]);
    }
}
