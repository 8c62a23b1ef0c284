//! Triangles: links are directed from nodes of low degree to nodes of high degree, so that no node has many, and each
//! triangle is found once, at its lowest node.
//!
//! The part of a network has the lists of its own nodes, and gets those of ghosts, some at a time: each triangle is
//! then found once, too, at the owner of its lowest node.
//!
//! Source: T. Schank and D. Wagner, Finding, counting and listing all triangles in large graphs (2005).

use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::{Chunks, SharedSlice, fill_with, for_chunks};
use std::ops::Range;
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

    let counts = counted(pool, (n, n), upward, 0..n, upward);
    let mut out = vec![0; n];
    fill_with(pool, &mut out, |node| counts[places[node] as usize]);
    Ok(out)
}

/// Triangles of each column: a low node among `nodes.0`, a middle one that `up` has of it and is among `middles`, and a
/// high one that is in both its list and `up` of the low one. `nodes.1` counts columns; lists ascend.
fn counted<'a>(
    pool: &Pool,
    nodes: (usize, usize),
    up: impl Fn(usize) -> &'a [u32] + Sync,
    middles: Range<usize>,
    list: impl Fn(usize) -> &'a [u32] + Sync,
) -> Vec<i64> {
    let (lows, columns) = nodes;
    let counts = Mutex::new(vec![0i64; columns]);
    let chunks = Chunks::new(lows, 64);
    pool.run(|_| {
        let mut mine = vec![0i64; columns];
        let mut marked = vec![false; columns];
        while let Some((_, range)) = chunks.next() {
            for low in range {
                let neighbors = up(low);
                let between = &neighbors[among(neighbors, &middles)];
                if neighbors.len() < 2 || between.is_empty() {
                    continue;
                }
                neighbors.iter().for_each(|&high| marked[high as usize] = true);
                let mut all = 0;
                for &middle in between {
                    let mut found = 0;
                    for &high in list(middle as usize) {
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
    counts.into_inner().expect("no thread panics with it")
}

/// Where the ascending `neighbors` are in `range`.
fn among(neighbors: &[u32], range: &Range<usize>) -> Range<usize> {
    let before = |end: usize| neighbors.partition_point(|&node| (node as usize) < end);
    before(range.start)..before(range.end)
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
        (&targets[range.clone()], &weights[range])
    };
    let sums = weighed(pool, (n, n), upward, 0..n, upward, weighing);
    Ok((0..n).map(|node| sums[places[node] as usize]).collect())
}

/// As [`counted`], with weights beside the lists.
fn weighed<'a>(
    pool: &Pool,
    nodes: (usize, usize),
    up: impl Fn(usize) -> (&'a [u32], &'a [f64]) + Sync,
    middles: Range<usize>,
    list: impl Fn(usize) -> (&'a [u32], &'a [f64]) + Sync,
    weighing: Weighing,
) -> Vec<f64> {
    let (lows, columns) = nodes;
    let sums = Mutex::new(Vec::new());
    pool.run(|worker| {
        let mut sum = vec![0.0; columns];
        // The weight of the link from the lowest node; NaN where there is none.
        let mut marked = vec![f64::NAN; columns];
        // Not in chunks as they come: sums would differ from run to run.
        for low in (worker.thread..lows).step_by(worker.threads) {
            let (neighbors, weights) = up(low);
            let between = among(neighbors, &middles);
            if neighbors.len() < 2 || between.is_empty() {
                continue;
            }
            neighbors.iter().zip(weights).for_each(|(&high, &weight)| marked[high as usize] = weight);
            for at in between {
                let (middle, side) = (neighbors[at] as usize, weights[at]);
                let (highs, weights) = list(middle);
                for (&high, &weight) in highs.iter().zip(weights) {
                    let high = high as usize;
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
            neighbors.iter().for_each(|&high| marked[high as usize] = f64::NAN);
        }
        sums.lock().expect("no thread panics with it").push((worker.thread, sum));
    });
    let mut sums = sums.into_inner().expect("no thread panics with it");
    sums.sort_unstable_by_key(|&(thread, _)| thread);
    let mut out = vec![0.0; columns];
    for (_, sum) in sums {
        out.iter_mut().zip(sum).for_each(|(out, more)| *out += more);
    }
    out
}

/// The links of a part's own nodes that lead up: to nodes with more links or, of equally many, to higher numbers. Each
/// row ascends by column. `degrees` and `numbers` are those of all columns; links are simple, and keep their weights.
///
/// # Errors
/// `BadArgument` if lengths differ.
pub fn upward_part(
    pool: &Pool,
    links: &CompressedRows,
    degrees: &[i64],
    numbers: &[u32],
) -> Result<CompressedRows, NetworkError> {
    let (rows, columns) = (links.rows(), links.columns());
    ensure(
        degrees.len() == columns && numbers.len() == columns && rows <= columns,
        "there must be one degree and one number for each column",
    )?;
    let height = |column: usize| (degrees[column], numbers[column]);
    let kept = |node: usize| {
        let low = height(node);
        links.range(node).filter(move |&link| height(links.targets()[link] as usize) > low)
    };
    Ok(filtered(pool, rows, columns, links.weights(), kept, |link| links.targets()[link]))
}

/// Rows of lists that came from other parts, of nodes by number, as columns of this part: its own nodes, which have
/// numbers from `first` on, and then its ghosts. Nodes that are none of these are left out.
///
/// # Errors
/// `BadArgument` if offsets do not fit the lists, or ghosts do not ascend.
pub fn lists_of_part(
    pool: &Pool,
    offsets: &[i64],
    numbers: &[u32],
    weights: Option<&[f64]>,
    own: Range<u32>,
    ghosts: &[u32],
) -> Result<CompressedRows, NetworkError> {
    ensure(ghosts.is_sorted(), "ghosts must ascend")?;
    ensure(
        offsets.first() == Some(&0) && offsets.is_sorted() && offsets.last() == Some(&(numbers.len() as i64)),
        "offsets must be those of the lists",
    )?;
    ensure(weights.is_none_or(|weights| weights.len() == numbers.len()), "there must be one weight for each entry")?;
    let nodes = own.len() as u32;
    let column = |number: u32| {
        if own.contains(&number) {
            Some(number - own.start)
        } else {
            ghosts.binary_search(&number).ok().map(|ghost| nodes + ghost as u32)
        }
    };
    let mut columns = vec![NO_NODE; numbers.len()];
    fill_with(pool, &mut columns, |at| column(numbers[at]).unwrap_or(NO_NODE));
    let kept = |row: usize| {
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        range.filter(|&at| columns[at] != NO_NODE)
    };
    let all = nodes as usize + ghosts.len();
    Ok(filtered(pool, offsets.len() - 1, all, weights, kept, |at| columns[at]))
}

/// Rows of the places that `kept` names, ascending by what `target` says of them.
fn filtered<I: Iterator<Item = usize>>(
    pool: &Pool,
    rows: usize,
    columns: usize,
    weights: Option<&[f64]>,
    kept: impl Fn(usize) -> I + Sync,
    target: impl Fn(usize) -> u32 + Sync,
) -> CompressedRows {
    let mut counts = vec![0i64; rows];
    fill_with(pool, &mut counts, |row| kept(row).count() as i64);
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0i64);
    counts.iter().for_each(|count| offsets.push(offsets[offsets.len() - 1] + count));
    let total = offsets[rows] as usize;
    let mut targets = vec![0u32; total];
    let mut kept_weights = weights.map(|_| vec![0.0; total]);
    let shared = SharedSlice::new(&mut targets);
    let shared_weights = kept_weights.as_mut().map(|kept| SharedSlice::new(kept));
    for_chunks(pool, rows, 1 << 10, |_, range| {
        let mut row_of = Vec::new();
        for row in range {
            let places = offsets[row] as usize..offsets[row + 1] as usize;
            row_of.clear();
            row_of.extend(kept(row).map(|at| (target(at), at)));
            row_of.sort_unstable();
            // SAFETY: rows do not overlap.
            let out = unsafe { shared.range(places.clone()) };
            out.iter_mut().zip(&row_of).for_each(|(out, &(target, _))| *out = target);
            if let (Some(weights), Some(shared)) = (weights, &shared_weights) {
                // SAFETY: as above.
                let out = unsafe { shared.range(places) };
                out.iter_mut().zip(&row_of).for_each(|(out, &(_, at))| *out = weights[at]);
            }
        }
    });
    CompressedRows::of_parts(offsets, targets, kept_weights, columns)
}

/// Adds to `counts`, beside columns, the triangles of a part whose middle nodes are the columns from `first` on, which
/// `lists` has. `up` is that of [`upward_part`], and `lists` are rows of it, or those of [`lists_of_part`].
///
/// # Errors
/// `BadArgument` if lengths differ.
pub fn part_triangles(
    pool: &Pool,
    up: &CompressedRows,
    lists: &CompressedRows,
    first: usize,
    counts: &mut [i64],
) -> Result<(), NetworkError> {
    check_lists(up, lists, first, counts.len())?;
    let middles = first..first + lists.rows();
    let nodes = (up.rows(), up.columns());
    let found = counted(pool, nodes, |low| up.neighbors(low), middles, |middle| lists.neighbors(middle - first));
    counts.iter_mut().zip(found).for_each(|(count, found)| *count += found);
    Ok(())
}

/// The same for sums of what `weighing` says.
///
/// # Errors
/// As of [`part_triangles`], and if rows have no weights.
pub fn part_weighted_triangles(
    pool: &Pool,
    up: &CompressedRows,
    lists: &CompressedRows,
    first: usize,
    weighing: Weighing,
    sums: &mut [f64],
) -> Result<(), NetworkError> {
    check_lists(up, lists, first, sums.len())?;
    let (Some(weights), Some(list_weights)) = (up.weights(), lists.weights()) else {
        return Err(NetworkError::argument("weighted triangles need rows with weights"));
    };
    let found = weighed(
        pool,
        (up.rows(), up.columns()),
        |low| (up.neighbors(low), &weights[up.range(low)]),
        first..first + lists.rows(),
        |middle| (lists.neighbors(middle - first), &list_weights[lists.range(middle - first)]),
        weighing,
    );
    sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
    Ok(())
}

fn check_lists(up: &CompressedRows, lists: &CompressedRows, first: usize, values: usize) -> Result<(), NetworkError> {
    let columns = up.columns();
    ensure(
        up.rows() <= columns && lists.columns() == columns && values == columns,
        "lists and values must be those of the part's columns",
    )?;
    ensure(first + lists.rows() <= columns, "lists must be those of columns")
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

    /// Counts, and sums of both kinds, of all nodes from those of `parts` blocks; lists of `piece` ghosts at a time.
    fn of_parts(pool: &Pool, links: &CompressedRows, parts: usize, piece: usize) -> (Vec<i64>, Vec<f64>, Vec<f64>) {
        let n = links.rows();
        let degrees: Vec<i64> = (0..n).map(|node| links.degree(node) as i64).collect();
        let numbers: Vec<u32> = (0..n as u32).collect();
        let whole = upward_part(pool, links, &degrees, &numbers).unwrap();
        let (mut counts, mut products, mut opposites) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
        for part in 0..parts {
            let own = n * part / parts..n * (part + 1) / parts;
            let (rows, ghosts) = links.part(pool, &numbers[own.clone()]).unwrap();
            let columns: Vec<u32> = numbers[own.clone()].iter().chain(&ghosts).copied().collect();
            let heights: Vec<i64> = columns.iter().map(|&node| degrees[node as usize]).collect();
            let up = upward_part(pool, &rows, &heights, &columns).unwrap();
            let mut found = (vec![0; columns.len()], vec![0.0; columns.len()], vec![0.0; columns.len()]);
            let mut add = |lists: &CompressedRows, first: usize| {
                part_triangles(pool, &up, lists, first, &mut found.0).unwrap();
                for (weighing, sums) in [(Weighing::Product, &mut found.1), (Weighing::Opposite, &mut found.2)] {
                    part_weighted_triangles(pool, &up, lists, first, weighing, sums).unwrap();
                }
            };
            add(&up, 0);
            for (at, some) in ghosts.chunks(piece).enumerate() {
                let (mut offsets, mut targets, mut weights) = (vec![0], Vec::new(), Vec::new());
                for &ghost in some {
                    whole.each_weighted(ghost as usize, |target, weight| {
                        targets.push(target);
                        weights.push(weight);
                    });
                    offsets.push(targets.len() as i64);
                }
                let range = own.start as u32..own.end as u32;
                let lists = lists_of_part(pool, &offsets, &targets, Some(&weights), range, &ghosts).unwrap();
                add(&lists, own.len() + at * piece);
            }
            for (at, &node) in columns.iter().enumerate() {
                counts[node as usize] += found.0[at];
                products[node as usize] += found.1[at];
                opposites[node as usize] += found.2[at];
            }
        }
        (counts, products, opposites)
    }

    proptest! {
        /// A wrong piece, owner or direction loses triangles, or counts some twice.
        #[test]
        fn parts_add_up_to_the_whole(
            network in any_network(true), threads in 1usize..3, parts in 1usize..5, piece in 1usize..6
        ) {
            let pool = pool(threads);
            let n = network.rows();
            let mut links = std::collections::BTreeMap::new();
            for (a, b, weight) in (0..n).flat_map(|a| network.weighted(a).map(move |(b, weight)| (a as u32, b, weight + 1.0))) {
                if b < a {
                    links.entry((a, b)).or_insert(weight);
                }
            }
            let links: Vec<_> = links.into_iter().map(|((a, b), weight)| (a, b, weight)).collect();
            let links = rows_of(n, &links, true);
            let (counts, products, opposites) = of_parts(&pool, &links, parts, piece);
            prop_assert_eq!(counts, triangles(&pool, &links).unwrap());
            // All are integers, whose sums are exact.
            prop_assert_eq!(products, weighted_triangles(&pool, &links, Weighing::Product).unwrap());
            prop_assert_eq!(opposites, weighted_triangles(&pool, &links, Weighing::Opposite).unwrap());
        }

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
