//! Trees of minimum weighted degree: slow ends of links become leaves.
//!
//! A byte from host u to host v takes max(1/out(u), 1/in(v)). A tree grows from its root. Out of all pairs of a host
//! that may still take children and a host outside the tree, the cheapest pair is joined. The cost of a pair is the
//! time of the new edge plus that of the inner host's existing edges. In the reduction tree, data flow toward the root,
//! so a host with a slow input costs most as an inner host; in the broadcast tree, a host with a slow output does.
//!
//! Many pairs cost the same (a host with a slow input sends as fast as any other), and the choice determines which
//! hosts have to take children later. So ties go to the better inner host, then to the lowest rank.
//!
//! Source: a dissertation on communication in distributed stream processing, with corrections: the cost of the new edge
//! counts, and each cost is computed afresh.

use std::cmp::Ordering;

use super::{HostRate, OverlayPart};

/// The order in which the hosts of a growing tree take children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeRule {
    /// Hosts with the fewest hops to the root first: flat trees, best if many hosts are slow.
    FewestHops,
    /// The cheapest hosts first: deep trees, best if few hosts are slow.
    LeastCost,
}

/// The form of a weighted tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeShape {
    /// Maximum number of children of a host; 1 makes a chain.
    pub degree: u32,
    /// Which hosts take children first.
    pub rule: TreeRule,
}

/// The streams of other trees that hosts already have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostStreams {
    input: Vec<u32>,
    output: Vec<u32>,
}

impl HostStreams {
    /// No streams.
    pub(crate) fn none(hosts: usize) -> HostStreams {
        HostStreams { input: vec![0; hosts], output: vec![0; hosts] }
    }

    /// The streams of a part.
    pub(crate) fn of(part: &OverlayPart) -> HostStreams {
        let mut streams = HostStreams::none(part.reduce.len());
        for (host, (up, down)) in part.reduce.iter().zip(&part.broadcast).enumerate() {
            if let Some(parent) = *up {
                streams.output[host] += 1;
                streams.input[parent as usize] += 1;
            }
            if let Some(parent) = *down {
                streams.output[parent as usize] += 1;
                streams.input[host] += 1;
            }
        }
        streams
    }
}

/// Both trees from one root: the broadcast avoids the directed edges of the reduction where possible.
pub(crate) fn trees(rates: &[HostRate], root: u32, shape: TreeShape, others: &HostStreams) -> OverlayPart {
    let input: Vec<f64> = rates.iter().map(|rate| 1.0 / rate.input).collect();
    let output: Vec<f64> = rates.iter().map(|rate| 1.0 / rate.output).collect();
    let reduce = grow(&TreeEnds { inner: &input, new: &output, others: &others.input }, root, shape, None);
    let ends = TreeEnds { inner: &output, new: &input, others: &others.output };
    let broadcast = grow(&ends, root, shape, Some(&reduce));
    OverlayPart { share: 1, reduce, broadcast }
}

/// The time of a tree's edges at either end, in seconds per byte.
struct TreeEnds<'a> {
    /// At the inner host, which has several edges.
    inner: &'a [f64],
    /// At the host that is added.
    new: &'a [f64],
    /// Streams of other trees that share a direction with those of the inner host.
    others: &'a [u32],
}

/// A host outside the tree that could become a child of a host in it.
#[derive(Clone, Copy)]
struct TreeEdge {
    parent: usize,
    child: usize,
    /// The reduction already uses this edge.
    is_used: bool,
    hops: u32,
    cost: f64,
    /// The time per byte of the child as an inner host.
    child_s: f64,
}

impl TreeEdge {
    fn compare(&self, other: &TreeEdge, rule: TreeRule) -> Ordering {
        let (hops, cost) = (self.hops.cmp(&other.hops), self.cost.total_cmp(&other.cost));
        let order = match rule {
            TreeRule::FewestHops => hops.then(cost),
            TreeRule::LeastCost => cost.then(hops),
        };
        self.is_used
            .cmp(&other.is_used)
            .then(order)
            .then(self.child_s.total_cmp(&other.child_s))
            .then(self.child.cmp(&other.child))
            .then(self.parent.cmp(&other.parent))
    }
}

/// The parents in a tree. `reduction` contains the edges to avoid.
fn grow(ends: &TreeEnds<'_>, root: u32, shape: TreeShape, reduction: Option<&[Option<u32>]>) -> Vec<Option<u32>> {
    let hosts = ends.inner.len();
    // Each stream of another tree is one more to share the link with.
    let inner_s: Vec<f64> = (0..hosts).map(|host| ends.inner[host] * f64::from(1 + ends.others[host])).collect();
    let mut spent: Vec<f64> = (0..hosts).map(|host| ends.inner[host] * f64::from(ends.others[host])).collect();
    let mut parents = vec![None; hosts];
    let (mut hops, mut children) = (vec![0_u32; hosts], vec![0_u32; hosts]);
    let mut members = vec![root as usize];
    // The hosts outside the tree: better inner hosts first, and among equals those with a faster own end.
    let mut outside: Vec<usize> = (0..hosts).filter(|&host| host != root as usize).collect();
    outside.sort_by(|&a, &b| inner_s[a].total_cmp(&inner_s[b]).then(a.cmp(&b)));
    let mut fast_ends = outside.clone();
    fast_ends.sort_by(|&a, &b| ends.new[a].total_cmp(&ends.new[b]));
    while !outside.is_empty() {
        let mut best: Option<TreeEdge> = None;
        for &parent in members.iter().filter(|&&member| children[member] < shape.degree) {
            let is_used = |child: usize| reduction.is_some_and(|up| up[parent] == Some(child as u32));
            let inner = ends.inner[parent];
            let fastest = fast_ends.iter().copied().find(|&child| !is_used(child)).unwrap_or(fast_ends[0]);
            // All hosts whose own end is no slower than the parent's cost the same.
            let ties = |&child: &usize| ends.new[child] <= inner && !is_used(child);
            let child = outside.iter().copied().find(ties).unwrap_or(fastest);
            let edge = TreeEdge {
                parent,
                child,
                is_used: is_used(child),
                hops: hops[parent],
                cost: spent[parent] + inner.max(ends.new[child]),
                child_s: inner_s[child],
            };
            if best.is_none_or(|best| edge.compare(&best, shape.rule).is_lt()) {
                best = Some(edge);
            }
        }
        let edge = best.expect("the host added last has no children yet");
        parents[edge.child] = Some(edge.parent as u32);
        hops[edge.child] = edge.hops + 1;
        spent[edge.parent] += ends.inner[edge.parent].max(ends.new[edge.child]);
        children[edge.parent] += 1;
        members.push(edge.child);
        outside.retain(|&host| host != edge.child);
        fast_ends.retain(|&host| host != edge.child);
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::super::{Overlay, root};
    use super::*;

    const FAST: HostRate = HostRate { input: 100.0, output: 100.0 };

    fn shapes() -> impl Iterator<Item = TreeShape> {
        let rules = [TreeRule::FewestHops, TreeRule::LeastCost];
        rules.into_iter().flat_map(|rule| [1, 2, 3].map(|degree| TreeShape { degree, rule }))
    }

    fn children(parents: &[Option<u32>], host: u32) -> usize {
        parents.iter().filter(|&&parent| parent == Some(host)).count()
    }

    /// If a host with a slow input received, it would slow down the whole reduction.
    #[test]
    fn slow_ends_are_leaves() {
        for shape in shapes().filter(|shape| shape.degree > 1) {
            for slow in 0..7_u32 {
                let mut rates = [FAST; 7];
                rates[slow as usize].input = 10.0;
                let part = trees(&rates, (slow + 1) % 7, shape, &HostStreams::none(7));
                assert_eq!(children(&part.reduce, slow), 0, "{shape:?} {slow}");
                rates[slow as usize] = HostRate { input: 100.0, output: 10.0 };
                let part = trees(&rates, (slow + 1) % 7, shape, &HostStreams::none(7));
                assert_eq!(children(&part.broadcast, slow), 0, "{shape:?} {slow}");
            }
        }
    }

    /// Even if half of the hosts are slow, all of those can be leaves, provided that ties go to the faster hosts.
    #[test]
    fn ties_go_to_the_better_inner_host() {
        let mut rates = [FAST; 20];
        (0..10).for_each(|host| rates[host].input = 20.0);
        let shape = TreeShape { degree: 2, rule: TreeRule::FewestHops };
        let part = trees(&rates, 10, shape, &HostStreams::none(20));
        assert!((0..10).all(|host| children(&part.reduce, host) == 0), "{:?}", part.reduce);
    }

    #[test]
    fn shapes_are_kept_and_edges_used_once() {
        for shape in shapes() {
            for hosts in 1..12_u32 {
                let part = trees(&vec![FAST; hosts as usize], hosts / 2, shape, &HostStreams::none(hosts as usize));
                assert_eq!(root(&part.reduce), Some(hosts / 2));
                for tree in [&part.reduce, &part.broadcast] {
                    assert!((0..hosts).all(|host| children(tree, host) <= shape.degree as usize));
                }
                for (child, parent) in part.broadcast.iter().enumerate() {
                    let Some(parent) = *parent else { continue };
                    let is_used = part.reduce[parent as usize] == Some(child as u32);
                    // The end of a chain may have no other choice.
                    assert!(!is_used || hosts < 4 || shape.degree == 1, "{shape:?} of {hosts}: {part:?}");
                }
                Overlay::new(hosts, vec![part]).unwrap();
            }
        }
    }

    /// Two trees with the same inner hosts would have half of the rate.
    #[test]
    fn a_second_tree_has_other_inner_hosts() {
        let shape = TreeShape { degree: 2, rule: TreeRule::FewestHops };
        let first = trees(&[FAST; 20], 0, shape, &HostStreams::none(20));
        let second = trees(&[FAST; 20], 19, shape, &HostStreams::of(&first));
        for (one, other) in [(&first.reduce, &second.reduce), (&first.broadcast, &second.broadcast)] {
            let most = (0..20).map(|host| children(one, host) + children(other, host)).max();
            assert!(most <= Some(3), "{one:?} {other:?}");
        }
    }
}
