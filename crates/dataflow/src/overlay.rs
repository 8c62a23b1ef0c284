//! Overlays: trees of workers along which one-to-many and many-to-one traffic runs, hosts first.
//!
//! | kind       | depth on P hosts | a worker sends at most |
//! |------------|------------------|------------------------|
//! | `Flat`     | 1                | P - 1 times            |
//! | `Binary`   | lg P             | 2 times                |
//! | `Binomial` | lg P             | lg P times             |
//! | `Chain`    | P - 1            | once                   |
//!
//! The tree is built twice: over one worker of each host, then, in every host, over its workers. So a host is sent a
//! batch once however many workers it runs.

use serde::{Deserialize, Serialize};

/// The shape of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlay {
    /// The root sends to all.
    Flat,
    /// Everybody passes on to two.
    Binary,
    /// The root halves its work in every round.
    #[default]
    Binomial,
    /// Everybody passes on to the next.
    Chain,
}

/// A tree over the workers of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTree {
    /// Whom each worker sends to, in order.
    pub children: Vec<Vec<u32>>,
    /// Whom each worker is sent by; `None` for the root and for workers that take no part.
    pub parent: Vec<Option<u32>>,
}

impl Overlay {
    /// The position whom `position` is sent by, in a tree whose root is position 0.
    fn parent(self, position: usize) -> usize {
        match self {
            Overlay::Flat => 0,
            Overlay::Binary => (position - 1) / 2,
            // Without its highest bit: children that lead large subtrees come first.
            Overlay::Binomial => position & !(1 << position.ilog2()),
            Overlay::Chain => position - 1,
        }
    }

    /// The tree from `root` over `members`; `hosts` has the host of every worker. `root` need not be a member.
    pub fn tree(self, root: u32, members: &[u32], hosts: &[u32]) -> WorkerTree {
        // By host, the root's first and the root first in it; members of one host stay together.
        let mut groups: Vec<(u32, Vec<u32>)> = vec![(hosts[root as usize], vec![root])];
        let mut sorted: Vec<u32> = members.iter().copied().filter(|&worker| worker != root).collect();
        sorted.sort_unstable();
        sorted.dedup();
        for worker in sorted {
            let host = hosts[worker as usize];
            match groups.iter_mut().find(|(h, _)| *h == host) {
                Some((_, group)) => group.push(worker),
                None => groups.push((host, vec![worker])),
            }
        }
        let mut tree = WorkerTree { children: vec![Vec::new(); hosts.len()], parent: vec![None; hosts.len()] };
        let mut link = |order: &[u32]| {
            for position in 1..order.len() {
                let (child, parent) = (order[position], order[self.parent(position)]);
                tree.children[parent as usize].push(child);
                tree.parent[child as usize] = Some(parent);
            }
        };
        let leaders: Vec<u32> = groups.iter().map(|(_, group)| group[0]).collect();
        link(&leaders);
        groups.iter().for_each(|(_, group)| link(group));
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(tree: &WorkerTree, root: u32) -> Vec<u32> {
        let (mut all, mut at) = (vec![root], 0);
        while at < all.len() {
            all.extend(&tree.children[all[at] as usize]);
            at += 1;
        }
        all.sort_unstable();
        all
    }

    /// A worker left out would wait for ever; one reached twice would count rows twice; a host sent to twice is waste.
    #[test]
    fn trees_reach_everybody_once_and_hosts_once() {
        for kind in [Overlay::Flat, Overlay::Binary, Overlay::Binomial, Overlay::Chain] {
            for workers in 1..14u32 {
                for per_host in 1..4u32 {
                    let hosts: Vec<u32> = (0..workers).map(|w| w / per_host).collect();
                    let all: Vec<u32> = (0..workers).collect();
                    for root in 0..workers {
                        let tree = kind.tree(root, &all, &hosts);
                        assert_eq!(reached(&tree, root), all, "{kind:?} {root}");
                        let crossing = (0..workers).filter(|&w| {
                            tree.parent[w as usize].is_some_and(|p| hosts[p as usize] != hosts[w as usize])
                        });
                        assert_eq!(crossing.count() as u32, workers.div_ceil(per_host) - 1, "{kind:?} {root}");
                    }
                }
            }
        }
    }

    /// The shapes are what their names say.
    #[test]
    fn shapes() {
        let all: Vec<u32> = (0..8).collect();
        let children = |kind: Overlay| kind.tree(0, &all, &[0, 1, 2, 3, 4, 5, 6, 7]).children;
        assert_eq!(children(Overlay::Flat)[0], [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(children(Overlay::Binary)[1], [3, 4]);
        assert_eq!(children(Overlay::Binomial)[..2], [vec![1, 2, 4], vec![3, 5]]);
        assert!(children(Overlay::Chain)[..7].iter().enumerate().all(|(w, next)| *next == [w as u32 + 1]));
        // A root that takes no part itself still sends; a subset stays a subset.
        let tree = Overlay::Binary.tree(5, &[1, 2], &[0; 8]);
        assert_eq!(reached(&tree, 5), [1, 2, 5]);
    }
}
