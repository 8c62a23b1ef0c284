//! Core numbers by peeling: the node of minimum degree is removed first, and its neighbors lose a link.
//!
//! Source: V. Batagelj and M. Zaversnik, An O(m) algorithm for cores decomposition of networks (2003).

use crate::error::NetworkError;
use crate::rows::CompressedRows;

/// For each node, the largest k such that it is in a subnetwork where all nodes have at least k links. Links must be
/// symmetric, without loops; duplicates count.
///
/// # Errors
/// `BadArgument` if the numbers of rows and columns differ.
pub fn core_numbers(links: &CompressedRows) -> Result<Vec<u32>, NetworkError> {
    links.check_square()?;
    let n = links.rows();
    let mut order = crate::triangles::by_degree(links);
    let mut degrees: Vec<u32> = (0..n).map(|node| links.degree(node) as u32).collect();
    let mut places = vec![0u32; n];
    order.iter().enumerate().for_each(|(place, &node)| places[node as usize] = place as u32);
    // The start of the nodes of each degree.
    let most = degrees.iter().max().map_or(0, |&most| most as usize);
    let mut starts = vec![0u32; most + 2];
    degrees.iter().for_each(|&degree| starts[degree as usize + 1] += 1);
    for degree in 0..=most {
        starts[degree + 1] += starts[degree];
    }
    for at in 0..n {
        let node = order[at] as usize;
        for &neighbor in links.neighbors(node) {
            let other = neighbor as usize;
            if degrees[other] <= degrees[node] {
                continue;
            }
            // Move to the front of the nodes of its degree, whose range then starts after it.
            let start = &mut starts[degrees[other] as usize];
            let front = order[*start as usize];
            order.swap(places[other] as usize, *start as usize);
            places[front as usize] = places[other];
            places[other] = *start;
            *start += 1;
            degrees[other] -= 1;
        }
    }
    Ok(degrees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::any_network;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cores_equal_repeated_removal(network in any_network(true)) {
            let links: Vec<_> = (0..network.rows())
                .flat_map(|v| network.weighted(v).map(move |(t, w)| (v as u32, t, w)))
                .filter(|link| link.0 != link.1)
                .collect();
            let n = network.rows();
            let network = crate::testing::rows_of(n, &links, false);
            let mut expected = vec![0; n];
            for k in 1..=network.links() {
                let mut inside = vec![true; n];
                while let Some(v) = (0..n).find(|&v| {
                    inside[v] && network.neighbors(v).iter().filter(|&&t| inside[t as usize]).count() < k
                }) {
                    inside[v] = false;
                }
                (0..n).filter(|&v| inside[v]).for_each(|v| expected[v] = k as u32);
                if !inside.contains(&true) {
                    break;
                }
            }
            prop_assert_eq!(core_numbers(&network).unwrap(), expected);
        }
    }
}
