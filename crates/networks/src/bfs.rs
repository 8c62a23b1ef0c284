//! Breadth-first search that expands small levels top down, and searches large ones bottom up from unreached nodes.
//!
//! Source: S. Beamer, K. Asanovic and D. Patterson, Direction-optimizing breadth-first search (2012), with its
//! constants.

use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, NO_NODE};
use crate::shared::{Chunks, SharedSlice, atomics, for_chunks};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tidemill_kernels::pool::Pool;

/// Switch to bottom up when the links that leave a level are more than this part of those not yet examined.
const UP_PART: usize = 15;
/// Switch back to top down when a level is smaller than this part of the nodes, and shrinks.
const DOWN_PART: usize = 18;

/// How every node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchTree {
    /// The predecessor of each node on a shortest path, `NO_NODE` if it is not reached; the source is its own. Any of
    /// several.
    pub parents: Vec<u32>,
    /// The distance of each node in links, -1 if it is not reached.
    pub levels: Vec<i32>,
}

/// A bit per node, 64 in a word.
struct NodeBits(Vec<u64>);

impl NodeBits {
    fn new(n: usize) -> Self {
        NodeBits(vec![0; n.div_ceil(64)])
    }

    #[inline(always)]
    fn has(&self, node: u32) -> bool {
        self.0[node as usize / 64] >> (node % 64) & 1 != 0
    }

    fn insert(&mut self, node: u32) {
        self.0[node as usize / 64] |= 1 << (node % 64);
    }
}

/// Searches from `source`. With `incoming`, the transpose (or `outgoing` itself if it is symmetric), large levels are
/// searched bottom up.
///
/// # Errors
/// `BadArgument` if the source is not a node, or if `incoming` has another number of nodes.
pub fn bfs(
    pool: &Pool,
    outgoing: &CompressedRows,
    incoming: Option<&CompressedRows>,
    source: usize,
) -> Result<SearchTree, NetworkError> {
    outgoing.check_square()?;
    let n = outgoing.rows();
    ensure(source < n, "the source is not a node")?;
    ensure(incoming.is_none_or(|rows| rows.rows() == n && rows.columns() == n), "incoming must be the transpose")?;
    let mut tree = SearchTree { parents: vec![NO_NODE; n], levels: vec![-1; n] };
    tree.parents[source] = source as u32;
    tree.levels[source] = 0;
    let mut level = 0;
    let mut queue = vec![source as u32];
    let mut links_left = outgoing.links();
    let mut links_ahead = outgoing.degree(source);
    while !queue.is_empty() {
        if let Some(incoming) = incoming.filter(|_| links_ahead > links_left / UP_PART) {
            let mut front = NodeBits::new(n);
            queue.iter().for_each(|&v| front.insert(v));
            let mut size = queue.len();
            loop {
                let (below, found) = up(pool, incoming, &front, &mut tree, level + 1);
                let shrinks = found < size;
                (front, size) = (below, found);
                level += 1;
                if size == 0 || (shrinks && size <= n / DOWN_PART) {
                    break;
                }
            }
            queue = members(&front);
            // Hardly any links are left, so another bottom-up step would not pay.
            links_ahead = 1;
        } else {
            links_left = links_left.saturating_sub(links_ahead);
            level += 1;
            (queue, links_ahead) = down(pool, outgoing, &queue, &mut tree, level);
        }
    }
    Ok(tree)
}

/// Sets the parent and level of newly reached nodes; returns them and the number of their links.
fn down(pool: &Pool, outgoing: &CompressedRows, queue: &[u32], tree: &mut SearchTree, level: i32) -> (Vec<u32>, usize) {
    const GRAIN: usize = 256;
    let mut next = Vec::new();
    let mut links = 0;
    if pool.threads() == 1 || queue.len() <= GRAIN {
        let parents = &mut tree.parents[..];
        for &node in queue {
            for &target in outgoing.neighbors(node as usize) {
                let parent = &mut parents[target as usize];
                if *parent == NO_NODE {
                    *parent = node;
                    links += outgoing.degree(target as usize);
                    next.push(target);
                }
            }
        }
    } else {
        let parents = atomics(&mut tree.parents);
        let chunks = Chunks::new(queue.len(), GRAIN);
        let found = Mutex::new((Vec::new(), 0));
        pool.run(|_| {
            let (mut mine, mut links) = (Vec::new(), 0);
            while let Some((_, range)) = chunks.next() {
                for &node in &queue[range] {
                    for &target in outgoing.neighbors(node as usize) {
                        if claim(&parents[target as usize], node) {
                            links += outgoing.degree(target as usize);
                            mine.push(target);
                        }
                    }
                }
            }
            let mut found = found.lock().expect("no thread panics with it");
            found.0.append(&mut mine);
            found.1 += links;
        });
        (next, links) = found.into_inner().expect("no thread panics with it");
    }
    for &node in &next {
        tree.levels[node as usize] = level;
    }
    (next, links)
}

/// Whether this thread is the first to reach the node.
#[inline(always)]
fn claim(parent: &AtomicU32, node: u32) -> bool {
    parent.load(Ordering::Relaxed) == NO_NODE
        && parent.compare_exchange(NO_NODE, node, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Looks for a parent in `front` for every node without one; returns the nodes that found one, and their number.
fn up(
    pool: &Pool,
    incoming: &CompressedRows,
    front: &NodeBits,
    tree: &mut SearchTree,
    level: i32,
) -> (NodeBits, usize) {
    let n = incoming.rows();
    let mut next = NodeBits::new(n);
    let found = AtomicUsize::new(0);
    let (words, parents) = (SharedSlice::new(&mut next.0), SharedSlice::new(&mut tree.parents));
    let levels = SharedSlice::new(&mut tree.levels);
    for_chunks(pool, n.div_ceil(64), 32, |_, range| {
        let nodes = range.start * 64..(range.end * 64).min(n);
        // SAFETY: chunks of whole words do not overlap, nor do their nodes.
        let (words, parents, levels) =
            unsafe { (words.range(range), parents.range(nodes.clone()), levels.range(nodes.clone())) };
        let mut count = 0;
        for (i, node) in nodes.enumerate() {
            if parents[i] != NO_NODE {
                continue;
            }
            for &source in incoming.neighbors(node) {
                if front.has(source) {
                    parents[i] = source;
                    levels[i] = level;
                    words[i / 64] |= 1 << (i % 64);
                    count += 1;
                    break;
                }
            }
        }
        found.fetch_add(count, Ordering::Relaxed);
    });
    (next, found.into_inner())
}

fn members(bits: &NodeBits) -> Vec<u32> {
    let mut members = Vec::new();
    for (word, &bits) in bits.0.iter().enumerate() {
        let mut bits = bits;
        while bits != 0 {
            members.push((word * 64) as u32 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn naive(outgoing: &CompressedRows, source: usize) -> Vec<i32> {
        let mut levels = vec![-1; outgoing.rows()];
        levels[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &target in outgoing.neighbors(node) {
                if levels[target as usize] < 0 {
                    levels[target as usize] = levels[node] + 1;
                    queue.push_back(target as usize);
                }
            }
        }
        levels
    }

    fn check(network: &CompressedRows, source: usize, threads: usize) {
        let pool = pool(threads);
        let incoming = network.transpose(&pool);
        for incoming in [None, Some(&incoming)] {
            let tree = bfs(&pool, network, incoming, source).unwrap();
            assert_eq!(tree.levels, naive(network, source));
            for (node, &parent) in tree.parents.iter().enumerate() {
                if parent == NO_NODE {
                    assert_eq!(tree.levels[node], -1);
                } else if node == source {
                    assert_eq!(parent as usize, source);
                } else {
                    assert!(network.neighbors(parent as usize).contains(&(node as u32)));
                    assert_eq!(tree.levels[node], tree.levels[parent as usize] + 1);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn levels_equal_a_queue(network in any_network(false), threads in 1usize..4) {
            if network.rows() > 0 {
                check(&network, network.rows() / 2, threads);
            }
        }
    }

    /// Large levels, which several threads share, in both directions.
    #[test]
    fn large_levels() {
        let n = 20_000u32;
        let links: Vec<_> = (0..n).flat_map(|v| (1..9).map(move |k| (v / 4 * k % n, v, 1.0))).collect();
        let network = crate::testing::rows_of(n as usize, &links, true);
        check(&network, 1, 1);
        check(&network, 1, 3);
    }

    #[test]
    fn a_source_must_be_a_node() {
        let network = crate::testing::rows_of(2, &[], false);
        assert_eq!(bfs(&pool(1), &network, None, 2).unwrap_err().to_string(), "the source is not a node");
    }
}
