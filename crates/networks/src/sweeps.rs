//! Steps on the rows of a part that use each other's results immediately, with given values of ghosts: the work of a
//! worker between two exchanges. Columns `0..rows` are the part's own nodes, the others are ghosts.

use crate::error::{NetworkError, ensure};
use crate::pagerank::{BaseScores, StepChange, check_lengths, row_sum};
use crate::rows::{CompressedRows, NO_NODE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// PageRank in place: row by row, `values` become base + damping * the sum over links of weight * contribution, and the
/// node's own contribution immediately becomes value * `inverse`. Ends when the largest change of a sweep is less than
/// `tolerance`, or after `sweeps_max`. Returns the number of sweeps, and the change of the last.
///
/// # Errors
/// `BadArgument` if lengths differ.
pub fn pagerank_sweeps(
    incoming: &CompressedRows,
    contributions: &mut [f64],
    inverse: &[f64],
    base: BaseScores<'_>,
    damping: f64,
    values: &mut [f64],
    ends: (usize, f64),
) -> Result<(usize, StepChange), NetworkError> {
    check_lengths(incoming, contributions, base, values)?;
    ensure(inverse.len() == incoming.rows(), "there must be one inverse for each row")?;
    ensure(incoming.columns() >= incoming.rows(), "a part has a column for each row")?;
    let (sweeps_max, tolerance) = ends;
    let mut change = StepChange::default();
    for sweep in 0..sweeps_max {
        change = StepChange::default();
        for row in 0..incoming.rows() {
            let value = base.of(row) + damping * row_sum(incoming, row, contributions);
            let difference = (value - values[row]).abs();
            change.l1 += difference;
            change.largest = change.largest.max(difference);
            values[row] = value;
            contributions[row] = value * inverse[row];
        }
        if change.largest < tolerance {
            return Ok((sweep + 1, change));
        }
    }
    Ok((sweeps_max, change))
}

/// The changes of a relaxation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lowered {
    /// The columns that were lowered, ascending.
    pub columns: Vec<u32>,
    /// Own nodes whose links have yet to be visited.
    pub active: Vec<u32>,
    /// The number of links visited.
    pub links: u64,
}

/// A set of columns, in the order in which they were first added.
struct ColumnSet {
    inside: Vec<bool>,
    members: Vec<u32>,
}

impl ColumnSet {
    fn new(columns: usize) -> Self {
        ColumnSet { inside: vec![false; columns], members: Vec::new() }
    }

    #[inline(always)]
    fn insert(&mut self, column: u32) {
        if !std::mem::replace(&mut self.inside[column as usize], true) {
            self.members.push(column);
        }
    }

    fn take(&mut self) -> Vec<u32> {
        self.members.iter().for_each(|&column| self.inside[column as usize] = false);
        std::mem::take(&mut self.members)
    }

    fn sorted(mut self) -> Vec<u32> {
        self.members.sort_unstable();
        self.members
    }
}

/// Lowers `distances` over the part's links, starting from the `active` own nodes; by default from all reached ones.
/// With `rounds_max`, in so many rounds of all active nodes (Bellman-Ford), else nearest first until nothing changes
/// (Dijkstra). `parents` are set to columns. Links without weights have length 1.
///
/// # Errors
/// `BadArgument` if lengths differ or an active node is not an own node; `BadWeight` with the first weight that is
/// negative or NaN.
pub fn relax(
    outgoing: &CompressedRows,
    distances: &mut [f64],
    mut parents: Option<&mut [u32]>,
    active: Option<&[u32]>,
    rounds_max: Option<usize>,
) -> Result<Lowered, NetworkError> {
    outgoing.check_weights()?;
    let (rows, columns) = (outgoing.rows(), outgoing.columns());
    ensure(distances.len() == columns && columns >= rows, "there must be one distance for each column")?;
    ensure(
        parents.as_ref().is_none_or(|parents| parents.len() == columns),
        "there must be one parent for each column",
    )?;
    let start = first_active(rows, active, |node| distances[node] < f64::INFINITY)?;
    let mut changed = ColumnSet::new(columns);
    let mut lowered = Lowered::default();
    // Offers the neighbors of `node` a path over it, and reports lowered ones with `note`.
    let mut offer = |node: u32, distances: &mut [f64], note: &mut dyn FnMut(u32, f64)| {
        let distance = distances[node as usize];
        lowered.links += outgoing.degree(node as usize) as u64;
        for (target, weight) in outgoing.weighted(node as usize) {
            let offer = distance + weight;
            if offer < distances[target as usize] {
                distances[target as usize] = offer;
                if let Some(parents) = &mut parents {
                    parents[target as usize] = node;
                }
                note(target, offer);
            }
        }
    };
    if let Some(rounds_max) = rounds_max {
        let mut next = ColumnSet::new(rows);
        start.iter().for_each(|&node| next.insert(node));
        for _ in 0..rounds_max {
            if next.members.is_empty() {
                break;
            }
            for node in next.take() {
                offer(node, distances, &mut |target, _| {
                    changed.insert(target);
                    if (target as usize) < rows {
                        next.insert(target);
                    }
                });
            }
        }
        lowered.active = next.sorted();
    } else {
        // The bits of non-negative floats have the order of the floats.
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
            start.iter().map(|&node| Reverse((distances[node as usize].to_bits(), node))).collect();
        while let Some(Reverse((bits, node))) = heap.pop() {
            if distances[node as usize].to_bits() == bits {
                offer(node, distances, &mut |target, offer| {
                    changed.insert(target);
                    if (target as usize) < rows {
                        heap.push(Reverse((offer.to_bits(), target)));
                    }
                });
            }
        }
    }
    lowered.columns = changed.sorted();
    Ok(lowered)
}

/// Sets both ends of links to the lower label, starting from the `active` own nodes (by default all), until nothing
/// changes or for `sweeps_max` rounds of all active nodes. Links between own nodes must be symmetric.
///
/// # Errors
/// `BadArgument` if lengths differ or an active node is not an own node.
pub fn lower_labels(
    links: &CompressedRows,
    labels: &mut [i64],
    active: Option<&[u32]>,
    sweeps_max: Option<usize>,
) -> Result<Lowered, NetworkError> {
    let (rows, columns) = (links.rows(), links.columns());
    ensure(labels.len() == columns && columns >= rows, "there must be one label for each column")?;
    let mut changed = ColumnSet::new(columns);
    let mut next = ColumnSet::new(rows);
    first_active(rows, active, |_| true)?.iter().for_each(|&node| next.insert(node));
    let mut lowered = Lowered::default();
    for _ in 0..sweeps_max.unwrap_or(usize::MAX) {
        if next.members.is_empty() {
            break;
        }
        for node in next.take() {
            let neighbors = links.neighbors(node as usize);
            lowered.links += neighbors.len() as u64;
            let own = labels[node as usize];
            let low = neighbors.iter().fold(own, |low, &target| low.min(labels[target as usize]));
            for &target in neighbors.iter().chain([&node]) {
                if labels[target as usize] > low {
                    labels[target as usize] = low;
                    changed.insert(target);
                    // The node itself has just updated its neighbors.
                    if (target as usize) < rows && target != node {
                        next.insert(target);
                    }
                }
            }
        }
    }
    lowered.active = next.sorted();
    lowered.columns = changed.sorted();
    Ok(lowered)
}

/// Lowers the values that links lead to: a target gets the value of its source if that is lower and both are of the
/// same group, starting from the `active` own nodes until nothing changes. Lowest values go first, so that each node is
/// visited once.
///
/// # Errors
/// `BadArgument` if lengths differ or an active node is not an own node.
pub fn lower_along(
    links: &CompressedRows,
    values: &mut [i64],
    groups: &[i64],
    active: &[u32],
) -> Result<Lowered, NetworkError> {
    let (rows, columns) = (links.rows(), links.columns());
    ensure(
        values.len() == columns && groups.len() == columns && columns >= rows,
        "there must be one value and one group for each column",
    )?;
    let mut start: Vec<(i64, u32)> =
        first_active(rows, Some(active), |_| true)?.iter().map(|&node| (values[node as usize], node)).collect();
    start.sort_unstable();
    let mut changed = ColumnSet::new(columns);
    let mut lowered = Lowered::default();
    let mut open = Vec::new();
    for (value, node) in start {
        // If it was lowered meanwhile, it has been visited.
        if values[node as usize] == value {
            open.push(node);
        }
        while let Some(node) = open.pop() {
            let neighbors = links.neighbors(node as usize);
            lowered.links += neighbors.len() as u64;
            for &target in neighbors {
                let at = target as usize;
                if values[at] > value && groups[at] == groups[node as usize] {
                    values[at] = value;
                    changed.insert(target);
                    if at < rows {
                        open.push(target);
                    }
                }
            }
        }
    }
    lowered.columns = changed.sorted();
    Ok(lowered)
}

/// The initial active nodes.
fn first_active(rows: usize, active: Option<&[u32]>, all: impl Fn(usize) -> bool) -> Result<Vec<u32>, NetworkError> {
    debug_assert!(rows < NO_NODE as usize);
    match active {
        None => Ok((0..rows as u32).filter(|&node| all(node as usize)).collect()),
        Some(active) => {
            ensure(active.iter().all(|&node| (node as usize) < rows), "an active node is not one of the part's own")?;
            Ok(active.to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::components::components;
    use crate::pagerank::{ChangeRule, PagerankOptions, pagerank};
    use crate::paths::shortest_paths;
    use crate::testing::{any_network, pool};
    use proptest::prelude::*;

    /// A part with its nodes: own ones, then ghosts.
    fn parts(network: &CompressedRows) -> Vec<(CompressedRows, Vec<u32>)> {
        let split = |rest: u32| {
            let own: Vec<u32> = (0..network.rows() as u32).filter(|v| v % 3 == rest).collect();
            let (part, ghosts) = network.part(&pool(1), &own).unwrap();
            (part, [own, ghosts].concat())
        };
        (0..3).map(split).collect()
    }

    fn gathered<T: Copy>(all: &[T], nodes: &[u32]) -> Vec<T> {
        nodes.iter().map(|&node| all[node as usize]).collect()
    }

    proptest! {
        /// Parts that exchange until nothing changes reach the distances of the whole network, with any number of
        /// rounds each.
        #[test]
        fn parts_relax_to_shortest_paths(network in any_network(false), rounds in 0usize..3) {
            if network.rows() == 0 {
                return Ok(());
            }
            let rounds = [None, Some(1), Some(4)][rounds];
            let mut all = vec![f64::INFINITY; network.rows()];
            all[0] = 0.0;
            loop {
                let mut changed = false;
                for (part, nodes) in parts(&network) {
                    let mut distances = gathered(&all, &nodes);
                    let mut parents = vec![NO_NODE; nodes.len()];
                    let lowered = relax(&part, &mut distances, Some(&mut parents), None, rounds).unwrap();
                    prop_assert!(rounds.is_some() || lowered.active.is_empty());
                    for (column, (&node, &distance)) in nodes.iter().zip(&distances).enumerate() {
                        prop_assert_eq!(lowered.columns.contains(&(column as u32)), distance < all[node as usize]);
                        prop_assert_eq!(parents[column] != NO_NODE, distance < all[node as usize]);
                    }
                    changed |= !lowered.columns.is_empty();
                    nodes.iter().zip(&distances).for_each(|(&node, &distance)| all[node as usize] = distance);
                }
                if !changed {
                    break;
                }
            }
            prop_assert_eq!(all, shortest_paths(&pool(1), &network, &[0], None, None).unwrap().distances);
        }

        #[test]
        fn parts_lower_labels_to_components(network in any_network(true), sweeps in 0usize..2) {
            let mut all: Vec<i64> = (0..network.rows() as i64).collect();
            loop {
                let mut changed = false;
                for (part, nodes) in parts(&network) {
                    let mut labels = gathered(&all, &nodes);
                    let lowered = lower_labels(&part, &mut labels, None, [None, Some(1)][sweeps]).unwrap();
                    changed |= !lowered.columns.is_empty();
                    nodes.iter().zip(&labels).for_each(|(&node, &label)| all[node as usize] = label);
                }
                if !changed {
                    break;
                }
            }
            let expected = components(&pool(1), &network, None).unwrap();
            prop_assert!(all.into_iter().eq(expected.into_iter().map(i64::from)));
        }

        /// Parts that exchange until nothing changes give each node the lowest value of those in its group from which a
        /// path within the group leads to it.
        #[test]
        fn parts_lower_values_along_paths(network in any_network(false), groups in 1usize..4) {
            let n = network.rows();
            let group = |node: usize| (node * 7 % 5 % groups) as i64;
            let mut all: Vec<i64> = (0..n).map(|node| (node * 37 % 101) as i64).collect();
            let mut expected = all.clone();
            loop {
                let before = expected.clone();
                for node in 0..n {
                    for &target in network.neighbors(node) {
                        if group(node) == group(target as usize) {
                            expected[target as usize] = expected[target as usize].min(expected[node]);
                        }
                    }
                }
                if before == expected {
                    break;
                }
            }
            loop {
                let mut changed = false;
                for (part, nodes) in parts(&network) {
                    let mut values = gathered(&all, &nodes);
                    let groups: Vec<i64> = nodes.iter().map(|&node| group(node as usize)).collect();
                    let active: Vec<u32> = (0..part.rows() as u32).rev().collect();
                    let lowered = lower_along(&part, &mut values, &groups, &active).unwrap();
                    for (column, (&node, &value)) in nodes.iter().zip(&values).enumerate() {
                        prop_assert_eq!(lowered.columns.contains(&(column as u32)), value < all[node as usize]);
                        all[node as usize] = value;
                    }
                    changed |= !lowered.columns.is_empty();
                }
                if !changed {
                    break;
                }
            }
            prop_assert_eq!(all, expected);
        }

        /// Parts that sweep in turn, with the contributions of others held fixed, reach the scores of the whole
        /// network.
        #[test]
        fn parts_sweep_to_pagerank(network in any_network(false)) {
            let (n, pool) = (network.rows(), pool(1));
            let (incoming, outgoing) = (network.transpose(&pool), network.weight_sums(&pool));
            let ones = vec![1.0; n];
            let options = PagerankOptions {
                damping: 0.85, tolerance: 1e-13, iterations_max: 1000, rule: ChangeRule::Largest, start: Some(&ones),
                teleport: Some(&ones), dangling: None, drop_dangling: true,
            };
            let expected = pagerank(&pool, &incoming, &outgoing, options).unwrap().scores;
            let inverse: Vec<f64> = outgoing.iter().map(|&sum| if sum > 0.0 { 1.0 / sum } else { 0.0 }).collect();
            let mut scores = ones.clone();
            for _ in 0..200 {
                for (part, nodes) in parts(&incoming) {
                    let mut contributions: Vec<f64> = nodes.iter().map(|&v| scores[v as usize] * inverse[v as usize]).collect();
                    let own = &nodes[..part.rows()];
                    let mut values = gathered(&scores, own);
                    let base = BaseScores::Uniform(0.15);
                    let inverse = gathered(&inverse, own);
                    pagerank_sweeps(&part, &mut contributions, &inverse, base, 0.85, &mut values, (4, 0.0)).unwrap();
                    own.iter().zip(&values).for_each(|(&node, &value)| scores[node as usize] = value);
                }
            }
            for (a, b) in scores.iter().zip(&expected) {
                prop_assert!((a - b).abs() < 1e-9, "{a} {b}");
            }
        }
    }
}
