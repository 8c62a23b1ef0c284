//! Communities of high modularity: nodes move to the neighboring community with the largest gain, until none gains;
//! then each community becomes a node, and this is repeated. With refinement (Leiden), a community becomes several
//! nodes, each internally connected: so communities are connected, too, and parts of them can move later.
//!
//! Source: V. Blondel, J.-L. Guillaume, R. Lambiotte and E. Lefebvre, Fast unfolding of communities in large networks
//! (2008), with the queue and the refinement of V. Traag, L. Waltman and N. van Eck, From Louvain to Leiden (2019);
//! refinement moves a node to the community with the largest gain, where they choose randomly. The order of nodes
//! depends only on the seed, so results repeat.

use crate::build::{Duplicates, LinkOptions, Links};
use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use std::collections::VecDeque;
use tidemill_kernels::pool::Pool;

/// Options of the search for communities.
#[derive(Clone, Copy, Debug)]
pub struct LouvainOptions {
    /// Greater than 1 for more, smaller communities.
    pub resolution: f64,
    /// A level with a smaller gain is the last.
    pub threshold: f64,
    /// Determines the order of nodes.
    pub seed: u64,
    /// Maximum number of levels.
    pub levels_max: usize,
    /// Whether communities are refined before they become nodes: the Leiden method.
    pub refined: bool,
}

/// Communities, and their quality.
#[derive(Clone, Debug)]
pub struct Communities {
    /// The community of each node, numbered from 0 in the order of their smallest nodes.
    pub labels: Vec<u32>,
    /// Their modularity.
    pub modularity: f64,
    /// The number of levels.
    pub levels: usize,
}

/// A network of communities: the links between them, without loops, and twice the weight within each.
struct Level {
    links: CompressedRows,
    inner: Vec<f64>,
}

/// Communities of symmetric `links`.
///
/// # Errors
/// `BadWeight` with the first weight that is negative or NaN.
pub fn louvain(pool: &Pool, links: &CompressedRows, options: LouvainOptions) -> Result<Communities, NetworkError> {
    links.check_square()?;
    links.check_weights()?;
    let n = links.rows();
    let mut labels: Vec<u32> = (0..n as u32).collect();
    let mut level = coarsen(pool, links, None, &labels, n)?;
    let total: f64 = total_weight(&level);
    let mut best = modularity_of(&level, &labels, options.resolution, total);
    let mut levels = 0;
    // The level's node that contains each node, and the communities of the level's nodes.
    let mut nodes = labels.clone();
    let mut communities = labels.clone();
    while levels < options.levels_max && total > 0.0 {
        let mut moved = move_nodes(&level, communities, options, levels as u64, total);
        let count = renumber(&mut moved);
        let gained = modularity_of(&level, &moved, options.resolution, total);
        if gained - best <= options.threshold {
            break;
        }
        best = gained;
        labels.iter_mut().zip(&nodes).for_each(|(label, &node)| *label = moved[node as usize]);
        levels += 1;
        if options.refined {
            let mut refined = refine(&level, &moved, options, levels as u64, total);
            let count = renumber(&mut refined);
            communities = vec![0; count];
            refined.iter().zip(&moved).for_each(|(&node, &label)| communities[node as usize] = label);
            nodes.iter_mut().for_each(|node| *node = refined[*node as usize]);
            level = coarsen(pool, &level.links, Some(&level.inner), &refined, count)?;
        } else {
            communities = (0..count as u32).collect();
            nodes.iter_mut().for_each(|node| *node = moved[*node as usize]);
            level = coarsen(pool, &level.links, Some(&level.inner), &moved, count)?;
        }
    }
    if options.refined {
        // The last moves may have disconnected a community; separate parts have a higher modularity.
        split(links, &mut labels);
    }
    renumber(&mut labels);
    let modularity = modularity(links, &labels, options.resolution)?;
    Ok(Communities { labels, modularity, levels })
}

/// Makes each connected part of a community a separate one, named after its first node.
fn split(links: &CompressedRows, labels: &mut [u32]) {
    let n = labels.len();
    let mut parts = vec![u32::MAX; n];
    let mut reached = Vec::new();
    for first in 0..n {
        if parts[first] != u32::MAX {
            continue;
        }
        parts[first] = first as u32;
        reached.push(first);
        while let Some(node) = reached.pop() {
            for (target, weight) in links.weighted(node) {
                let target = target as usize;
                if parts[target] == u32::MAX && labels[target] == labels[node] && weight > 0.0 {
                    parts[target] = first as u32;
                    reached.push(target);
                }
            }
        }
    }
    labels.copy_from_slice(&parts);
}

/// The modularity of `labels` on symmetric `links`; 0 without links. A loop counts at both of its ends.
///
/// # Errors
/// `BadArgument` if there is not one label per node, each less than the number of nodes.
pub fn modularity(links: &CompressedRows, labels: &[u32], resolution: f64) -> Result<f64, NetworkError> {
    links.check_square()?;
    let n = links.rows();
    ensure(
        labels.len() == n && labels.iter().all(|&label| (label as usize) < n),
        "labels must be nodes, one for each",
    )?;
    let (mut within, mut sums, mut total) = (0.0, vec![0.0; n], 0.0);
    for node in 0..n {
        for (target, weight) in links.weighted(node) {
            let weight = if target as usize == node { 2.0 * weight } else { weight };
            sums[labels[node] as usize] += weight;
            total += weight;
            if labels[node] == labels[target as usize] {
                within += weight;
            }
        }
    }
    Ok(combined(within, &sums, total, resolution))
}

fn combined(within: f64, sums: &[f64], total: f64, resolution: f64) -> f64 {
    if total == 0.0 {
        return 0.0;
    }
    within / total - resolution * sums.iter().map(|sum| (sum / total) * (sum / total)).sum::<f64>()
}

fn degrees(level: &Level) -> Vec<f64> {
    (0..level.inner.len())
        .map(|node| level.inner[node] + level.links.weighted(node).map(|link| link.1).sum::<f64>())
        .collect()
}

fn total_weight(level: &Level) -> f64 {
    degrees(level).iter().sum()
}

fn modularity_of(level: &Level, labels: &[u32], resolution: f64, total: f64) -> f64 {
    let (mut within, mut sums) = (0.0, vec![0.0; labels.len()]);
    for (node, degree) in degrees(level).into_iter().enumerate() {
        sums[labels[node] as usize] += degree;
        let inner = level.links.weighted(node).filter(|&(target, _)| labels[target as usize] == labels[node]);
        within += level.inner[node] + inner.map(|link| link.1).sum::<f64>();
    }
    combined(within, &sums, total, resolution)
}

/// Makes each of `count` communities a node. `inner` is the weight within the nodes; without it, loops count twice.
fn coarsen(
    pool: &Pool,
    links: &CompressedRows,
    inner: Option<&[f64]>,
    labels: &[u32],
    count: usize,
) -> Result<Level, NetworkError> {
    let mut sums = vec![0.0; count];
    let (mut sources, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for node in 0..links.rows() {
        let label = labels[node];
        sums[label as usize] += inner.map_or(0.0, |inner| inner[node]);
        for (target, weight) in links.weighted(node) {
            if labels[target as usize] == label {
                sums[label as usize] += if target as usize == node { 2.0 * weight } else { weight };
            } else {
                sources.push(label);
                targets.push(labels[target as usize]);
                weights.push(weight);
            }
        }
    }
    let options = LinkOptions { duplicates: Duplicates::Sum, ..LinkOptions::square(count) };
    let links = Links { sources: &sources, targets: &targets, weights: Some(&weights) };
    Ok(Level { links: CompressedRows::of_links(pool, links, &options)?, inner: sums })
}

/// A random order of the nodes that depends only on the seed and the round.
fn drawn_order(n: usize, seed: u64, round: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut random = seed ^ round.wrapping_mul(0xD1B5_4A32_D192_ED03);
    for at in (1..n).rev() {
        order.swap(at, (next_random(&mut random) % (at as u64 + 1)) as usize);
    }
    order
}

/// Divides each community into connected parts: single nodes join the part of their community with the largest gain.
fn refine(level: &Level, communities: &[u32], options: LouvainOptions, round: u64, total: f64) -> Vec<u32> {
    let n = level.inner.len();
    let degrees = degrees(level);
    let mut whole = vec![0.0; n];
    (0..n).for_each(|node| whole[communities[node] as usize] += degrees[node]);
    let expected = |part: f64, rest: f64| options.resolution * part * rest / total;
    let mut parts: Vec<u32> = (0..n as u32).collect();
    let mut sums = degrees.clone();
    let mut alone = vec![true; n];
    // By part: the weight of its links to the rest of its community.
    let mut outside: Vec<f64> = (0..n)
        .map(|node| {
            let near = level.links.weighted(node);
            near.filter(|link| communities[link.0 as usize] == communities[node]).map(|link| link.1).sum()
        })
        .collect();
    let well_connected = |outside: f64, sum: f64, whole: f64| outside >= expected(sum, whole - sum) * (1.0 - 1e-12);
    let mut toward = vec![0.0; n];
    let mut seen: Vec<u32> = Vec::new();
    for node in drawn_order(n, options.seed, round) {
        let node = node as usize;
        let whole = whole[communities[node] as usize];
        if !alone[node] || !well_connected(outside[node], degrees[node], whole) {
            continue;
        }
        level.links.each_weighted(node, |target, weight| {
            if communities[target as usize] == communities[node] {
                let part = parts[target as usize];
                if toward[part as usize] == 0.0 {
                    seen.push(part);
                }
                toward[part as usize] += weight;
            }
        });
        let (mut best, mut most) = (node as u32, 0.0);
        for &part in &seen {
            let at = part as usize;
            let gain = toward[at] - expected(degrees[node], sums[at]);
            let better = gain > most || (gain == most && best as usize != node && part < best);
            if better && well_connected(outside[at], sums[at], whole) {
                (best, most) = (part, gain);
            }
        }
        let joined = toward[best as usize];
        seen.drain(..).for_each(|part| toward[part as usize] = 0.0);
        if best as usize != node {
            let to = best as usize;
            parts[node] = best;
            sums[to] += degrees[node];
            outside[to] += outside[node] - 2.0 * joined;
            alone[to] = false;
        }
    }
    parts
}

/// Moves nodes to other communities until none gains; returns the community of each. A node is reconsidered only if a
/// neighbor has moved to another community.
fn move_nodes(level: &Level, mut labels: Vec<u32>, options: LouvainOptions, round: u64, total: f64) -> Vec<u32> {
    /// Nodes hardly ever need more visits; without a limit, rounding could move a node back and forth.
    const LOOKS_MAX: usize = 100;
    let n = level.inner.len();
    let degrees = degrees(level);
    let mut sums = vec![0.0; n];
    (0..n).for_each(|node| sums[labels[node] as usize] += degrees[node]);
    let mut queue = VecDeque::from(drawn_order(n, options.seed, round));
    let mut queued = vec![true; n];
    let mut toward = vec![0.0; n];
    let mut seen: Vec<u32> = Vec::new();
    for _ in 0..n.saturating_mul(LOOKS_MAX) {
        let Some(node) = queue.pop_front() else { break };
        let node = node as usize;
        queued[node] = false;
        let old = labels[node];
        level.links.each_weighted(node, |target, weight| {
            let label = labels[target as usize];
            let toward = &mut toward[label as usize];
            if *toward == 0.0 {
                seen.push(label);
            }
            *toward += weight;
        });
        sums[old as usize] -= degrees[node];
        let share = options.resolution * degrees[node] / total;
        let gain = |label: u32| toward[label as usize] - share * sums[label as usize];
        let (mut best, mut most) = (old, gain(old));
        for &label in &seen {
            let gain = gain(label);
            // Of equal gains, the smallest label wins, so that the order of links does not matter.
            if gain > most || (gain == most && best != old && label < best) {
                (best, most) = (label, gain);
            }
        }
        seen.drain(..).for_each(|label| toward[label as usize] = 0.0);
        sums[best as usize] += degrees[node];
        if best != old {
            labels[node] = best;
            for &target in level.links.neighbors(node) {
                if labels[target as usize] != best && !std::mem::replace(&mut queued[target as usize], true) {
                    queue.push_back(target);
                }
            }
        }
    }
    labels
}

/// SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Numbers labels from 0 in the order of their first nodes; returns the number of labels.
fn renumber(labels: &mut [u32]) -> usize {
    let mut numbers = vec![u32::MAX; labels.len()];
    let mut count = 0;
    for label in labels {
        let number = &mut numbers[*label as usize];
        if *number == u32::MAX {
            *number = count;
            count += 1;
        }
        *label = *number;
    }
    count as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of};
    use proptest::prelude::*;

    const PLAIN: LouvainOptions =
        LouvainOptions { resolution: 1.0, threshold: 1e-7, seed: 0, levels_max: usize::MAX, refined: false };

    proptest! {
        /// The modularity must equal its definition, and never be less than that of single nodes.
        #[test]
        fn modularity_equals_the_definition(network in any_network(true), seed: u64, refined: bool) {
            let options = LouvainOptions { seed, refined, ..PLAIN };
            let found = louvain(&pool(1), &network, options).unwrap();
            let n = network.rows();
            let weight = |a: usize, b: usize| -> f64 {
                let sum: f64 = network.weighted(a).filter(|link| link.0 as usize == b).map(|link| link.1).sum();
                if a == b { 2.0 * sum } else { sum }
            };
            let degree: Vec<f64> = (0..n).map(|a| (0..n).map(|b| weight(a, b)).sum()).collect();
            let total: f64 = degree.iter().sum();
            let of = |labels: &[u32]| -> f64 {
                let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|&(a, b)| labels[a] == labels[b]);
                let sum: f64 = pairs.map(|(a, b)| weight(a, b) - degree[a] * degree[b] / total).sum();
                if total > 0.0 { sum / total } else { 0.0 }
            };
            prop_assert!((found.modularity - of(&found.labels)).abs() < 1e-9);
            let single: Vec<u32> = (0..n as u32).collect();
            prop_assert!(found.modularity >= of(&single) - 1e-9);
            let again = louvain(&pool(2), &network, options).unwrap();
            prop_assert_eq!(found.labels, again.labels);
        }

        /// The purpose of the Leiden method: every community is connected.
        #[test]
        fn refined_communities_are_connected(network in any_network(true), seed: u64) {
            let labels = louvain(&pool(1), &network, LouvainOptions { seed, refined: true, ..PLAIN }).unwrap().labels;
            let n = network.rows();
            let mut reached: Vec<usize> = (0..n).collect();
            // Each node takes the smallest node that it is connected to within its community.
            for _ in 0..n {
                for node in 0..n {
                    for (target, weight) in network.weighted(node) {
                        let target = target as usize;
                        if weight > 0.0 && labels[target] == labels[node] {
                            reached[node] = reached[node].min(reached[target]);
                        }
                    }
                }
            }
            let first = |label: u32| labels.iter().position(|&other| other == label).unwrap();
            for node in 0..n {
                prop_assert_eq!(reached[node], first(labels[node]));
            }
        }
    }

    /// Four cliques on a ring are four communities.
    #[test]
    fn cliques_are_found() {
        let clique = |c: u32| (0..6).flat_map(move |a| (0..a).map(move |b| (c * 6 + a, c * 6 + b, 1.0)));
        let mut links: Vec<_> = (0..4).flat_map(clique).collect();
        links.extend((0..4).map(|c| (c * 6, (c * 6 + 7) % 24, 1.0)));
        for refined in [false, true] {
            let found = louvain(&pool(1), &rows_of(24, &links, true), LouvainOptions { refined, ..PLAIN }).unwrap();
            assert_eq!(found.labels, (0..24).map(|v| v / 6).collect::<Vec<u32>>());
        }
    }
}
