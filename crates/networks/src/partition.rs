//! Parts of equal size with few links between them, by restreamed linear deterministic greedy: nodes are streamed in
//! breadth-first order, each goes to the part that has room and contains most of its neighbors, and the stream is
//! repeated.
//!
//! Sources: I. Stanton and G. Kliot, Streaming graph partitioning for large distributed graphs (2012); J. Nishimura and
//! J. Ugander, Restreaming graph partitioning (2013).

use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::for_chunks;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_kernels::pool::Pool;

/// The part of each node, and the number of `links`, which must be symmetric, between different parts (each direction
/// counts). A part has at most (1 + imbalance) n / parts nodes, rounded up. Returns the best of all passes.
///
/// # Errors
/// `BadArgument` without parts, or for an imbalance that is negative or not finite.
pub fn partition(
    links: &CompressedRows,
    parts: usize,
    passes: usize,
    imbalance: f64,
) -> Result<(Vec<u32>, usize), NetworkError> {
    /// The score of a part without neighbors: the emptiest of these is chosen.
    const NO_NEIGHBORS: f64 = 1e-6;
    links.check_square()?;
    ensure(parts > 0 && parts < NO_NODE as usize, "there must be at least one part")?;
    ensure(imbalance >= 0.0 && imbalance.is_finite(), "imbalance must be a number, 0 or more")?;
    let n = links.rows();
    let order = breadth_first(links);
    let capacity = ((1.0 + imbalance) * n as f64 / parts as f64).ceil().max(1.0);
    let mut part_of = vec![NO_NODE; n];
    let mut best = (vec![0; n], usize::MAX);
    let mut around = vec![0u32; parts];
    let mut loads = vec![0usize; parts];
    for _ in 0..passes.max(1) {
        // Each pass fills the parts from zero: this cuts fewer links than keeping them full, except on grids.
        loads.fill(0);
        for &node in &order {
            for &neighbor in links.neighbors(node as usize) {
                let part = part_of[neighbor as usize];
                if part != NO_NODE && neighbor != node {
                    around[part as usize] += 1;
                }
            }
            let value = |part: usize| (f64::from(around[part]) + NO_NEIGHBORS) * (1.0 - loads[part] as f64 / capacity);
            let mut chosen = 0;
            let mut most = value(0);
            for part in 1..parts {
                let value = value(part);
                if value > most {
                    (chosen, most) = (part, value);
                }
            }
            for &neighbor in links.neighbors(node as usize) {
                if let Some(around) = around.get_mut(part_of[neighbor as usize] as usize) {
                    *around = 0;
                }
            }
            part_of[node as usize] = chosen as u32;
            loads[chosen] += 1;
        }
        let cut = cut_links(links, &part_of, 0..n);
        if cut < best.1 {
            best = (part_of.clone(), cut);
        }
    }
    Ok(best)
}

/// The number of links between nodes of different parts.
///
/// # Errors
/// `BadArgument` if there is not one part per column.
pub fn cut(pool: &Pool, links: &CompressedRows, part_of: &[u32]) -> Result<usize, NetworkError> {
    ensure(
        part_of.len() == links.columns() && links.columns() >= links.rows(),
        "there must be one part for each node",
    )?;
    let cut = AtomicUsize::new(0);
    for_chunks(pool, links.rows(), 1 << 12, |_, range| {
        cut.fetch_add(cut_links(links, part_of, range), Ordering::Relaxed);
    });
    Ok(cut.into_inner())
}

fn cut_links(links: &CompressedRows, part_of: &[u32], nodes: std::ops::Range<usize>) -> usize {
    nodes.map(|v| links.neighbors(v).iter().filter(|&&t| part_of[t as usize] != part_of[v]).count()).sum()
}

/// All nodes in breadth-first order, from the smallest of each component.
fn breadth_first(links: &CompressedRows) -> Vec<u32> {
    let n = links.rows();
    let mut order = Vec::with_capacity(n);
    let mut reached = vec![false; n];
    for root in 0..n {
        if std::mem::replace(&mut reached[root], true) {
            continue;
        }
        let mut at = order.len();
        order.push(root as u32);
        while at < order.len() {
            for &target in links.neighbors(order[at] as usize) {
                if !std::mem::replace(&mut reached[target as usize], true) {
                    order.push(target);
                }
            }
            at += 1;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_balanced(network in any_network(true), parts in 1usize..5, passes in 1usize..4) {
            let (part_of, cut_count) = partition(&network, parts, passes, 0.1).unwrap();
            let n = network.rows();
            let most = (1.1 * n as f64 / parts as f64).ceil() as usize;
            for part in 0..parts as u32 {
                prop_assert!(part_of.iter().filter(|&&p| p == part).count() <= most);
            }
            prop_assert!(part_of.len() == n && part_of.iter().all(|&part| (part as usize) < parts));
            prop_assert_eq!(cut(&pool(2), &network, &part_of).unwrap(), if n == 0 { 0 } else { cut_count });
        }
    }

    /// A grid in four parts with few links between them; a random division would cut three quarters of the links.
    #[test]
    fn grids_are_cut_well() {
        let side = 60u32;
        let links: Vec<_> = (0..side * side)
            .flat_map(|v| [(v, v + 1, v % side + 1 < side), (v, v + side, v / side + 1 < side)])
            .filter(|link| link.2)
            .map(|link| (link.0, link.1, 1.0))
            .collect();
        let network = rows_of((side * side) as usize, &links, true);
        let (_, cut) = partition(&network, 4, 10, 0.05).unwrap();
        assert!(cut * 8 < network.links(), "{cut} of {} links are cut", network.links());
    }
}
