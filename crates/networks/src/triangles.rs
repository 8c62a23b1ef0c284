//! Triangles: links are directed from nodes of low degree to nodes of high degree, so that no node has many, and each
//! triangle is found once, at its lowest node.
//!
//! Source: T. Schank and D. Wagner, Finding, counting and listing all triangles in large graphs (2005).

use crate::error::NetworkError;
use crate::rows::CompressedRows;
use crate::shared::{Chunks, SharedSlice, fill_with, for_chunks};
use std::sync::Mutex;
use tidemill_kernels::pool::Pool;

/// The number of triangles that each node is in. Links must be symmetric; loops and duplicates are ignored.
///
/// # Errors
/// `BadArgument` if the numbers of rows and columns differ.
pub fn triangles(pool: &Pool, links: &CompressedRows) -> Result<Vec<i64>, NetworkError> {
    links.check_square()?;
    let n = links.rows();
    let order = by_degree(links);
    let mut places = vec![0u32; n];
    order.iter().enumerate().for_each(|(place, &node)| places[node as usize] = place as u32);
    let (starts, ends, targets) = upward(pool, links, &order, &places);
    let upward = |place: usize| &targets[starts[place]..ends[place]];

    let counts = Mutex::new(vec![0i64; n]);
    let chunks = Chunks::new(n, 64);
    pool.run(|_| {
        let mut mine = vec![0i64; n];
        let mut marked = vec![false; n];
        while let Some((_, range)) = chunks.next() {
            for low in range {
                let neighbors = upward(low);
                if neighbors.len() < 2 {
                    continue;
                }
                neighbors.iter().for_each(|&high| marked[high as usize] = true);
                let mut all = 0;
                for &middle in neighbors {
                    let mut found = 0;
                    for &high in upward(middle as usize) {
                        if marked[high as usize] {
                            mine[high as usize] += 1;
                            found += 1;
                        }
                    }
                    mine[middle as usize] += found;
                    all += found;
                }
                mine[low] += all;
                neighbors.iter().for_each(|&high| marked[high as usize] = false);
            }
        }
        let mut counts = counts.lock().expect("no thread panics with it");
        counts.iter_mut().zip(&mine).for_each(|(count, mine)| *count += mine);
    });
    let counts = counts.into_inner().expect("no thread panics with it");
    let mut out = vec![0; n];
    fill_with(pool, &mut out, |node| counts[places[node] as usize]);
    Ok(out)
}

/// What a node's triangles add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// The product of the weights of their three links.
    Product,
    /// The weight of the link between the other two nodes.
    Opposite,
}

/// The sum over the triangles of each node of what `weighing` says. Links must be symmetric, without loops and
/// duplicates. Each thread adds up some, so the last bits depend on how many there are.
///
/// # Errors
/// As of [`triangles`].
pub fn weighted_triangles(pool: &Pool, links: &CompressedRows, weighing: Weighing) -> Result<Vec<f64>, NetworkError> {
    links.check_square()?;
    let n = links.rows();
    let order = by_degree(links);
    let mut places = vec![0u32; n];
    order.iter().enumerate().for_each(|(place, &node)| places[node as usize] = place as u32);
    let (starts, ends, targets) = upward(pool, links, &order, &places);
    let mut weights = vec![0.0; targets.len()];
    for place in 0..n {
        let row = &targets[starts[place]..ends[place]];
        links.each_weighted(order[place] as usize, |target, weight| {
            if let Ok(at) = row.binary_search(&places[target as usize]) {
                weights[starts[place] + at] = weight;
            }
        });
    }
    let upward = |place: usize| {
        let range = starts[place]..ends[place];
        targets[range.clone()].iter().map(|&other| other as usize).zip(weights[range].iter().copied())
    };

    let sums = Mutex::new(Vec::new());
    pool.run(|worker| {
        let mut sum = vec![0.0; n];
        // The weight of the link from the lowest node; NaN where there is none.
        let mut marked = vec![f64::NAN; n];
        // Not in chunks as they come: sums would differ from run to run.
        for low in (worker.thread..n).step_by(worker.threads) {
            upward(low).for_each(|(high, weight)| marked[high] = weight);
            for (middle, side) in upward(low) {
                for (high, weight) in upward(middle) {
                    if marked[high].is_nan() {
                        continue;
                    }
                    let product = side * weight * marked[high];
                    let added = match weighing {
                        Weighing::Product => [product; 3],
                        Weighing::Opposite => [weight, marked[high], side],
                    };
                    [low, middle, high].iter().zip(added).for_each(|(&node, more)| sum[node] += more);
                }
            }
            upward(low).for_each(|(high, _)| marked[high] = f64::NAN);
        }
        sums.lock().expect("no thread panics with it").push((worker.thread, sum));
    });
    let mut sums = sums.into_inner().expect("no thread panics with it");
    sums.sort_unstable_by_key(|&(thread, _)| thread);
    let mut out = vec![0.0; n];
    for (_, sum) in sums {
        (0..n).for_each(|node| out[node] += sum[places[node] as usize]);
    }
    Ok(out)
}

/// All nodes in ascending order of degree; a counting sort.
pub(crate) fn by_degree(links: &CompressedRows) -> Vec<u32> {
    let n = links.rows();
    let most = (0..n).map(|node| links.degree(node)).max().unwrap_or(0);
    let mut starts = vec![0usize; most + 2];
    (0..n).for_each(|node| starts[links.degree(node) + 1] += 1);
    for degree in 0..=most {
        starts[degree + 1] += starts[degree];
    }
    let mut order = vec![0; n];
    for node in 0..n {
        let place = &mut starts[links.degree(node)];
        order[*place] = node as u32;
        *place += 1;
    }
    order
}

/// For each position in the order, the links to later positions: their start and end, and all of them.
fn upward(pool: &Pool, links: &CompressedRows, order: &[u32], places: &[u32]) -> (Vec<usize>, Vec<usize>, Vec<u32>) {
    let n = order.len();
    let mut ends = vec![0usize; n];
    let later = |place: usize| {
        let neighbors = links.neighbors(order[place] as usize).iter();
        neighbors.map(|&node| places[node as usize]).filter(move |&other| other as usize > place)
    };
    fill_with(pool, &mut ends, |place| later(place).count());
    let mut total = 0;
    let mut starts = Vec::with_capacity(n);
    for end in &mut ends {
        starts.push(total);
        total += *end;
        *end = total;
    }
    let mut targets = vec![0u32; total];
    let (shared, shared_ends) = (SharedSlice::new(&mut targets), SharedSlice::new(&mut ends));
    for_chunks(pool, n, 1 << 10, |_, range| {
        for place in range {
            // SAFETY: places and their ranges do not overlap.
            let end = unsafe { &mut shared_ends.range(place..place + 1)[0] };
            // SAFETY: as above.
            let row = unsafe { shared.range(starts[place]..*end) };
            row.iter_mut().zip(later(place)).for_each(|(target, other)| *target = other);
            row.sort_unstable();
            let mut kept = 0;
            for i in 0..row.len() {
                if i == 0 || row[i] != row[i - 1] {
                    row[kept] = row[i];
                    kept += 1;
                }
            }
            *end = starts[place] + kept;
        }
    });
    (starts, ends, targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, rows_of};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_equal_all_triples(network in any_network(true), threads in 1usize..3) {
            let n = network.rows();
            let linked = |a: usize, b: usize| network.neighbors(a).contains(&(b as u32));
            let mut expected = vec![0; n];
            for a in 0..n {
                for b in 0..a {
                    for c in 0..b {
                        if linked(a, b) && linked(b, c) && linked(a, c) {
                            [a, b, c].iter().for_each(|&node| expected[node] += 1);
                        }
                    }
                }
            }
            prop_assert_eq!(triangles(&pool(threads), &network).unwrap(), expected);
        }

        #[test]
        fn sums_equal_all_triples(network in any_network(true), threads in 1usize..3) {
            let n = network.rows();
            let mut matrix = vec![vec![0.0; n]; n];
            let mut links = Vec::new();
            for (a, b, weight) in (0..n).flat_map(|a| network.weighted(a).map(move |(b, weight)| (a, b, weight + 1.0))) {
                let at = b as usize;
                if at < a && matrix[a][at] == 0.0 {
                    (matrix[a][at], matrix[at][a]) = (weight, weight);
                    links.push((a as u32, b, weight));
                }
            }
            let (mut products, mut opposites) = (vec![0.0; n], vec![0.0; n]);
            for a in 0..n {
                for b in 0..a {
                    for c in 0..b {
                        let product = matrix[a][b] * matrix[b][c] * matrix[a][c];
                        if product > 0.0 {
                            [a, b, c].iter().for_each(|&node| products[node] += product);
                            [(a, matrix[b][c]), (b, matrix[a][c]), (c, matrix[a][b])]
                                .iter()
                                .for_each(|&(node, weight)| opposites[node] += weight);
                        }
                    }
                }
            }
            // All are integers, whose sums are exact.
            let (pool, links) = (pool(threads), rows_of(n, &links, true));
            prop_assert_eq!(weighted_triangles(&pool, &links, Weighing::Product).unwrap(), products);
            prop_assert_eq!(weighted_triangles(&pool, &links, Weighing::Opposite).unwrap(), opposites);
        }
    }
}
