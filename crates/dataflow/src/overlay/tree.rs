//! The trees of overlays: which worker sends to which.

use super::{Overlay, Shape};

/// A tree over the workers of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTree {
    /// The workers that each worker sends to, in order.
    pub children: Vec<Vec<u32>>,
    /// The worker that sends to each worker; `None` for the root and for workers that take no part.
    pub parent: Vec<Option<u32>>,
}

impl Shape {
    /// The position that sends to `position`, in a tree whose root is position 0.
    fn parent(self, position: usize) -> usize {
        match self {
            Shape::Flat => 0,
            Shape::Binary => (position - 1) / 2,
            // Clears the highest bit: children that lead large subtrees come first.
            Shape::Binomial => position & !(1 << position.ilog2()),
            Shape::Chain => position - 1,
        }
    }
}

impl Overlay {
    /// The trees that messages from `root` to `members` take in turn: one or two. `hosts` gives the host of every
    /// worker. `root` need not be a member.
    pub fn trees(self, root: u32, members: &[u32], hosts: &[u32]) -> Vec<WorkerTree> {
        if self != Overlay::Double {
            return vec![self.tree(root, members, hosts)];
        }
        let groups = by_host(root, members, hosts);
        let mut reversed = groups.clone();
        reversed[0][1..].reverse();
        reversed[1..].reverse();
        reversed[1..].iter_mut().for_each(|group| group.reverse());
        [groups, reversed].map(|groups| WorkerTree::one_of_two(&groups, hosts.len())).into()
    }

    /// The first of the [trees](Overlay::trees).
    pub fn tree(self, root: u32, members: &[u32], hosts: &[u32]) -> WorkerTree {
        let mut tree = WorkerTree::empty(hosts.len());
        let groups = by_host(root, members, hosts);
        match self {
            Overlay::Serial => tree.link_shape(Shape::Flat, &groups.concat()),
            Overlay::Flat => tree.link_levels(Shape::Flat, Shape::Flat, &groups),
            Overlay::Binomial => tree.link_levels(Shape::Binomial, Shape::Binomial, &groups),
            Overlay::Levels { hosts, workers } => tree.link_levels(hosts, workers, &groups),
            Overlay::Chain => tree.link_shape(Shape::Chain, &groups.concat()),
            Overlay::Ring => tree.link_ring(&groups),
            Overlay::Binary => (0..groups.len()).for_each(|at| tree.link_binary(&groups, at)),
            Overlay::Double => return WorkerTree::one_of_two(&groups, hosts.len()),
        }
        tree
    }
}

/// The participating workers by host: the root's host first, and the root first in it.
fn by_host(root: u32, members: &[u32], hosts: &[u32]) -> Vec<Vec<u32>> {
    let mut groups = vec![vec![root]];
    let mut group_of = vec![None; hosts.iter().max().map_or(0, |&host| host as usize + 1)];
    group_of[hosts[root as usize] as usize] = Some(0);
    let mut sorted: Vec<u32> = members.iter().copied().filter(|&worker| worker != root).collect();
    sorted.sort_unstable();
    sorted.dedup();
    for worker in sorted {
        let at = *group_of[hosts[worker as usize] as usize].get_or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(worker);
    }
    groups
}

impl WorkerTree {
    fn empty(workers: usize) -> Self {
        WorkerTree { children: vec![Vec::new(); workers], parent: vec![None; workers] }
    }

    /// A binary tree in which the root sends to at most one other host, and to one worker on its own host: so it sends
    /// everything once, whichever of the two trees is used.
    fn one_of_two(groups: &[Vec<u32>], workers: usize) -> Self {
        let mut tree = WorkerTree::empty(workers);
        let (own, others) = groups.split_at(1);
        let beneath = others.first().map(|group| group[0]);
        tree.link_group(&own[0], beneath.as_slice(), 1);
        (0..others.len()).for_each(|at| tree.link_binary(others, at));
        tree
    }

    fn link(&mut self, parent: u32, child: u32) {
        self.children[parent as usize].push(child);
        self.parent[child as usize] = Some(parent);
    }

    fn link_shape(&mut self, shape: Shape, order: &[u32]) {
        (1..order.len()).for_each(|at| self.link(order[shape.parent(at)], order[at]));
    }

    fn link_levels(&mut self, hosts: Shape, workers: Shape, groups: &[Vec<u32>]) {
        let first: Vec<u32> = groups.iter().map(|group| group[0]).collect();
        // What goes to other hosts is sent first, since it takes longest.
        self.link_shape(hosts, &first);
        groups.iter().for_each(|group| self.link_shape(workers, group));
    }

    /// Two chains from the root; on a single host each has half of the workers.
    fn link_ring(&mut self, groups: &[Vec<u32>]) {
        let root = groups[0][0];
        let (near, far) = match groups {
            [only] => only[1..].split_at(only.len() / 2),
            _ => (&groups[0][1..], &[][..]),
        };
        let (with_root, others) = groups[1..].split_at(groups.len().div_ceil(2) - 1);
        // Send first to the chain that leaves the host at once: the other passes through all of this host before its
        // first network link.
        for (near, hosts) in [(far, others), (near, with_root)] {
            let line = std::iter::once(root).chain(near.iter().copied()).chain(hosts.iter().flatten().copied());
            self.link_shape(Shape::Chain, &line.collect::<Vec<_>>());
        }
    }

    /// The part of the binary tree that begins on host `at`. Hosts form a binary tree too: of the two hosts below a
    /// host, its first worker sends to one, and its second worker, if there is one, to the other. The remaining
    /// capacity of these and of the workers after them serves workers of their own host. Those come first: they cost
    /// little, and the second worker has to send on.
    fn link_binary(&mut self, groups: &[Vec<u32>], at: usize) {
        let beneath: Vec<u32> = groups.iter().skip(2 * at + 1).take(2).map(|group| group[0]).collect();
        self.link_group(&groups[at], &beneath, 2);
    }

    /// Links the workers of a host, where the first sends to at most `first_sends` others, and the links to other
    /// hosts.
    fn link_group(&mut self, group: &[u32], beneath: &[u32], first_sends: usize) {
        let out: Vec<(usize, u32)> =
            beneath.iter().enumerate().map(|(number, &host)| (number.min(group.len() - 1), host)).collect();
        let mut room = vec![2; group.len()];
        out.iter().for_each(|&(from, _)| room[from] -= 1);
        room[0] = first_sends.min(room[0]);
        let mut from = 0;
        for &worker in &group[1..] {
            while room[from] == 0 {
                from += 1;
            }
            room[from] -= 1;
            self.link(group[from], worker);
        }
        out.iter().for_each(|&(from, host)| self.link(group[from], host));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn overlays() -> Vec<Overlay> {
        let shapes = [Shape::Flat, Shape::Binary, Shape::Binomial, Shape::Chain];
        let levels = shapes.iter().flat_map(|&hosts| shapes.map(|workers| Overlay::Levels { hosts, workers }));
        let own = [Overlay::Serial, Overlay::Flat, Overlay::Binary, Overlay::Binomial, Overlay::Chain, Overlay::Ring];
        own.into_iter().chain([Overlay::Double]).chain(levels).collect()
    }

    /// How often each worker is reached from `root`.
    fn reached(tree: &WorkerTree, root: u32) -> Vec<usize> {
        let mut times = vec![0; tree.children.len()];
        let mut waiting = vec![root];
        while let Some(worker) = waiting.pop() {
            times[worker as usize] += 1;
            if times[worker as usize] == 1 {
                waiting.extend(&tree.children[worker as usize]);
            }
        }
        times
    }

    /// Otherwise a link would carry as much as with one tree.
    #[test]
    fn an_inner_worker_of_one_of_two_trees_is_a_leaf_of_the_other() {
        for (hosts, near) in [(1, 9), (9, 1), (8, 4), (2, 2), (64, 1)] {
            let all: Vec<u32> = (0..hosts * near).collect();
            let hosts_of: Vec<u32> = all.iter().map(|worker| worker / near).collect();
            let trees = Overlay::Double.trees(0, &all, &hosts_of);
            let mut out = vec![0; hosts as usize];
            for &worker in &all {
                let sent: Vec<u32> = trees.iter().flat_map(|tree| &tree.children[worker as usize]).copied().collect();
                // Two messages, one along each tree.
                assert!(sent.len() <= 4, "{worker}: {sent:?}");
                let away = |to: &&u32| hosts_of[**to as usize] != worker / near;
                out[(worker / near) as usize] += sent.iter().filter(away).count();
            }
            assert!(out.iter().all(|&times| times <= 3), "{out:?}");
            let twice = out.iter().filter(|&&times| times > 2).count();
            assert!(twice <= 1, "an odd one may be in the middle of both: {out:?}");
        }
    }

    /// Workers on hosts in any order, the members among them, and the root.
    fn layouts() -> impl Strategy<Value = (Vec<u32>, Vec<u32>, u32)> {
        prop::collection::vec(0u32..9, 1..40).prop_flat_map(|hosts| {
            let workers = hosts.len() as u32;
            (Just(hosts), prop::collection::vec(0..workers, 0..60), 0..workers)
        })
    }

    proptest! {
        /// A worker left out would wait forever; one reached twice would count rows twice. Sending to a host twice,
        /// or sending more often than the shape says, is what overlays exist to avoid.
        #[test]
        fn everybody_is_reached_once_and_hosts_once((hosts, members, root) in layouts()) {
            let mut part = vec![0; hosts.len()];
            members.iter().chain([&root]).for_each(|&worker| part[worker as usize] = 1);
            let host_of = |worker: u32| hosts[worker as usize];
            let trees = overlays().into_iter().flat_map(|overlay| {
                overlay.trees(root, &members, &hosts).into_iter().map(move |tree| (overlay, tree))
            });
            for (overlay, tree) in trees {
                prop_assert_eq!(&reached(&tree, root), &part, "{}", overlay);
                prop_assert_eq!(tree.parent[root as usize], None);
                let mut incoming = [0; 9];
                for (parent, children) in (0u32..).zip(&tree.children) {
                    for &child in children {
                        prop_assert_eq!(tree.parent[child as usize], Some(parent));
                        incoming[host_of(child) as usize] += usize::from(host_of(child) != host_of(parent));
                    }
                    let most = match overlay {
                        Overlay::Chain => 1,
                        Overlay::Ring => 1 + usize::from(parent == root),
                        Overlay::Binary | Overlay::Double => 2,
                        _ => usize::MAX,
                    };
                    prop_assert!(children.len() <= most, "{}: {} sends to {:?}", overlay, parent, children);
                }
                let most = if overlay == Overlay::Serial { usize::MAX } else { 1 };
                prop_assert!(incoming.iter().all(|&times| times <= most), "{}: {:?}", overlay, incoming);
                prop_assert!(overlay == Overlay::Serial || incoming[host_of(root) as usize] == 0);
            }
        }
    }

    /// The shapes match their names.
    #[test]
    fn shapes() {
        let all: Vec<u32> = (0..8).collect();
        let children = |overlay: Overlay| overlay.tree(0, &all, &[0, 1, 2, 3, 4, 5, 6, 7]).children;
        assert_eq!(children(Overlay::Flat)[0], [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(children(Overlay::Binary)[1], [3, 4]);
        assert_eq!(children(Overlay::Binomial)[..2], [vec![1, 2, 4], vec![3, 5]]);
        assert!(children(Overlay::Chain)[..7].iter().enumerate().all(|(w, next)| *next == [w as u32 + 1]));
        assert_eq!(children(Overlay::Ring)[..5], [vec![4, 1], vec![2], vec![3], vec![], vec![5]]);
        // A root that is not a member still sends; a subset stays a subset.
        let tree = Overlay::Binary.tree(5, &[1, 2], &[0; 8]);
        assert_eq!(reached(&tree, 5), [0, 1, 1, 0, 0, 1, 0, 0]);
    }

    /// With several workers per host, a message leaves the host from its first two workers, and near ones come first.
    #[test]
    fn a_binary_tree_leaves_a_host_from_two_workers() {
        let all: Vec<u32> = (0..16).collect();
        let hosts: Vec<u32> = all.iter().map(|worker| worker / 4).collect();
        let tree = Overlay::Binary.tree(0, &all, &hosts);
        assert_eq!(tree.children[..4], [vec![1, 4], vec![2, 8], vec![3], vec![]]);
        assert_eq!(tree.children[4..8], [vec![5, 12], vec![6, 7], vec![], vec![]]);
        let two_shapes = Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binary };
        assert_eq!(two_shapes.tree(0, &all, &hosts).children[0], [4, 8, 12, 1, 2]);
        assert_eq!(Overlay::Serial.tree(0, &all, &hosts).children[0], (1..16).collect::<Vec<_>>());
        assert_eq!(Overlay::Ring.tree(0, &all[..4], &hosts).children[..4], [vec![3, 1], vec![2], vec![], vec![]]);
    }
}
