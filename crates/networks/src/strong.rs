//! Strongly connected components by one depth-first search, without recursion.
//!
//! Source: R. Tarjan, Depth-first search and linear graph algorithms (1972).

use crate::error::NetworkError;
use crate::rows::{CompressedRows, NO_NODE};

/// For each node, the smallest node of its strongly connected component.
///
/// # Errors
/// `BadArgument` if the numbers of rows and columns differ.
pub fn strong_components(outgoing: &CompressedRows) -> Result<Vec<u32>, NetworkError> {
    outgoing.check_square()?;
    let n = outgoing.rows();
    let mut labels = vec![NO_NODE; n];
    // When each node was first visited, and the earliest visited open node that it leads to.
    let (mut seen, mut low) = (vec![NO_NODE; n], vec![0u32; n]);
    let (mut path, mut open): (Vec<(u32, usize)>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut count = 0;
    for root in 0..n as u32 {
        if seen[root as usize] != NO_NODE {
            continue;
        }
        path.push((root, 0));
        while let Some((node, next)) = path.last_mut() {
            let v = *node as usize;
            if *next == 0 {
                (seen[v], low[v]) = (count, count);
                count += 1;
                open.push(*node);
            }
            let neighbors = &outgoing.neighbors(v)[*next..];
            let mut deeper = None;
            for &target in neighbors {
                *next += 1;
                if seen[target as usize] == NO_NODE {
                    deeper = Some(target);
                    break;
                }
                if labels[target as usize] == NO_NODE {
                    low[v] = low[v].min(seen[target as usize]);
                }
            }
            if let Some(target) = deeper {
                path.push((target, 0));
                continue;
            }
            path.pop();
            if let Some(&(above, _)) = path.last() {
                low[above as usize] = low[above as usize].min(low[v]);
            }
            if low[v] == seen[v] {
                let start = open.iter().rposition(|&member| member as usize == v).expect("an open node");
                let smallest = open[start..].iter().copied().min().expect("the node itself");
                open.drain(start..).for_each(|member| labels[member as usize] = smallest);
            }
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, rows_of};
    use proptest::prelude::*;

    fn reached(network: &CompressedRows, from: usize) -> Vec<bool> {
        let mut reached = vec![false; network.rows()];
        reached[from] = true;
        let mut queue = vec![from];
        while let Some(v) = queue.pop() {
            for &target in network.neighbors(v) {
                if !std::mem::replace(&mut reached[target as usize], true) {
                    queue.push(target as usize);
                }
            }
        }
        reached
    }

    proptest! {
        /// Two nodes are in the same component if each reaches the other.
        #[test]
        fn components_equal_mutual_reach(network in any_network(false)) {
            let n = network.rows();
            let reach: Vec<Vec<bool>> = (0..n).map(|v| reached(&network, v)).collect();
            let expected: Vec<u32> =
                (0..n).map(|v| (0..n).find(|&u| reach[u][v] && reach[v][u]).expect("itself") as u32).collect();
            prop_assert_eq!(strong_components(&network).unwrap(), expected);
        }
    }

    /// A path of this length would overflow the stack of a recursive search.
    #[test]
    fn a_long_ring() {
        let n = 300_000u32;
        let links: Vec<_> = (0..n).map(|v| (v, (v + 1) % n, 1.0)).collect();
        assert!(strong_components(&rows_of(n as usize, &links, false)).unwrap().iter().all(|&label| label == 0));
    }
}
