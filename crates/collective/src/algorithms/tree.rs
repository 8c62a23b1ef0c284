//! Overlays: trees of ranks, with bcast and reduce along any of them, a chunk at a time.
//!
//! | shape       | depth        | children         | subtree of a node                        |
//! |-------------|--------------|------------------|------------------------------------------|
//! | `flat`      | 1            | P - 1            | itself                                   |
//! | `binary`    | lg P         | 2                | consecutive, halves of its range         |
//! | `binomial`  | lg P         | up to lg P       | consecutive; the canonical order         |
//! | `chain`     | P - 1        | 1                | everything after it                      |
//! | `two_level` | lg H + lg L  | both binomial    | its host's, then later hosts'            |
//!
//! With m chunks, a bcast or reduce takes depth + m - 1 steps, and a rank sends n elements to each child; a chunk
//! travels down (or up) while the next one follows. A reduction combines its own part, the first child, the second
//! child, and so on. Every shape lists children so that this is rank order counted from the top of the tree. An
//! operation that needs rank order therefore climbs to rank 0, which passes the result to the root. That is one more
//! step of n elements, except for `flat`, where the root holds everything and combines it in the canonical order.
//!
//! Scratch: reduce uses two chunks for itself and one for each child after the first; `flat` n(P - 1), or c(P - 1).
//! Restrictions: `two_level` keeps rank order only if each host's ranks are consecutive.
//! Source: MPICH and Open MPI `coll/base` trees; pipelining after Worringen, "Pipelining and overlapping for MPI
//! collective operations" (2003).

use super::builder::ScheduleBuilder;
use super::groups::{self, RankGroups};
use super::{Algorithm, ScheduleParams};
use crate::schedule::BufferRange;

/// A rank's neighbors in an overlay. Children are in the order in which their subtrees combine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankTree {
    pub(crate) parent: Option<u32>,
    pub(crate) children: Vec<u32>,
}

impl RankTree {
    /// The neighbors of `p.rank` in the tree of this shape with `top` at its top.
    pub(crate) fn new(shape: Algorithm, p: &ScheduleParams, top: u32) -> RankTree {
        // Shapes are made for a tree topped by position 0; positions count ranks from `top` around the circle.
        let position = (p.rank + p.size - top) % p.size;
        let tree = match shape {
            Algorithm::Flat => flat(position, p.size),
            Algorithm::Binary => binary(position, p.size),
            Algorithm::Binomial => binomial(position, p.size),
            Algorithm::Chain => RankTree {
                parent: position.checked_sub(1),
                children: if position + 1 < p.size { vec![position + 1] } else { Vec::new() },
            },
            Algorithm::TwoLevel => return two_level(p, top),
            _ => unreachable!("{shape} is not a tree"),
        };
        tree.renamed(|position| ((u64::from(position) + u64::from(top)) % u64::from(p.size)) as u32)
    }

    /// The neighbors of `rank` in the tree given by `parents`. Children start with the next higher rank, so that the
    /// ranks at the tops of several stars do not all send to the same rank first.
    pub(crate) fn from_parents(parents: &[Option<u32>], rank: u32) -> RankTree {
        let children = (0..).zip(parents).filter(|(_, parent)| **parent == Some(rank)).map(|(child, _)| child);
        let mut children: Vec<u32> = children.collect();
        let higher = children.partition_point(|&child| child < rank);
        children.rotate_left(higher);
        RankTree { parent: parents[rank as usize], children }
    }

    fn renamed(self, name: impl Fn(u32) -> u32) -> RankTree {
        RankTree { parent: self.parent.map(&name), children: self.children.into_iter().map(name).collect() }
    }
}

fn flat(position: u32, size: u32) -> RankTree {
    match position {
        0 => RankTree { parent: None, children: (1..size).collect() },
        _ => RankTree { parent: Some(0), children: Vec::new() },
    }
}

/// A node owns the positions from itself up to some end; its children own the two halves of what follows it.
fn binary(position: u32, size: u32) -> RankTree {
    let (mut node, mut end, mut parent) = (0, size, None);
    loop {
        let rest = end - node - 1;
        let middle = node + 1 + rest.div_ceil(2);
        if node == position {
            let children = [(node + 1, middle), (middle, end)];
            return RankTree { parent, children: children.iter().filter(|c| c.0 < c.1).map(|c| c.0).collect() };
        }
        parent = Some(node);
        (node, end) = if position < middle { (node + 1, middle) } else { (middle, end) };
    }
}

/// A binomial tree over the groups of the canonical order; the second rank of a pair hangs below the first.
fn binomial(position: u32, size: u32) -> RankTree {
    let groups = RankGroups::new(size);
    let group = groups.of(position);
    if groups.leader(group) != position {
        return RankTree { parent: Some(position - 1), children: Vec::new() };
    }
    let mut children: Vec<u32> = groups.partner(position).into_iter().collect();
    let mut distance = 1;
    while distance < groups.count && group & distance == 0 {
        children.push(groups.first(group + distance));
        distance *= 2;
    }
    RankTree { parent: (group != 0).then(|| groups.first(group - distance)), children }
}

/// A binomial tree over hosts, each represented by a leader (`top`, or the host's lowest rank), and one within each
/// host.
fn two_level(p: &ScheduleParams, top: u32) -> RankTree {
    let hosts = HostGroups::new(p, top);
    let (host, member) = hosts.find(p.rank);
    let members = &hosts.members[host];
    let mut tree = binomial(member as u32, members.len() as u32).renamed(|position| members[position as usize]);
    if member == 0 {
        let between = binomial(host as u32, hosts.members.len() as u32).renamed(|host| hosts.members[host as usize][0]);
        tree.parent = between.parent;
        tree.children.extend(between.children);
    }
    tree
}

/// The ranks of each host. The first host is that of `top`, the others follow in the order of their lowest rank; the
/// first member of each is its leader.
pub(crate) struct HostGroups {
    pub(crate) members: Vec<Vec<u32>>,
}

impl HostGroups {
    pub(crate) fn new(p: &ScheduleParams, top: u32) -> HostGroups {
        let host_of = |rank: u32| p.hosts.get(rank as usize).copied().unwrap_or(0);
        let mut names: Vec<u32> = vec![host_of(top)];
        let mut members: Vec<Vec<u32>> = vec![vec![top]];
        let mut index = std::collections::HashMap::from([(names[0], 0)]);
        // Neighboring ranks are usually on one host, so they need no index lookup.
        let mut last = (names[0], 0);
        for rank in (0..p.size).filter(|&rank| rank != top) {
            let name = host_of(rank);
            if name != last.0 {
                let host = *index.entry(name).or_insert_with(|| {
                    names.push(name);
                    members.push(Vec::new());
                    members.len() - 1
                });
                last = (name, host);
            }
            let host = last.1;
            members[host].push(rank);
        }
        HostGroups { members }
    }

    /// Host and place on it of `rank`.
    pub(crate) fn find(&self, rank: u32) -> (usize, usize) {
        let mut places = self.members.iter().enumerate();
        let found = places.find_map(|(host, members)| Some((host, members.iter().position(|&m| m == rank)?)));
        found.expect("every rank is on a host")
    }

    /// Whether each host's ranks are consecutive, so that combining by host keeps rank order.
    pub(crate) fn are_consecutive(p: &ScheduleParams) -> bool {
        let changes = p.hosts.windows(2).filter(|pair| pair[0] != pair[1]).count();
        changes + 1 == HostGroups::new(p, 0).members.len()
    }
}

/// Bcast of `data`, present at `p.root`, along a tree.
pub(crate) fn bcast(b: &mut ScheduleBuilder, shape: Algorithm, p: &ScheduleParams, data: BufferRange) {
    let RankTree { parent, children } = RankTree::new(shape, p, p.root);
    let chunks = data.chunks(p.chunk);
    // Leaves have nothing to wait for between chunks, so they post all of them at once. An inner node receives a chunk
    // while it passes on the previous one, to the largest subtree first. It does not wait for those sends, or one slow
    // leaf would hold up everything else below its parent.
    let mut previous = None;
    for chunk in chunks {
        if let Some(parent) = parent {
            b.recv(parent, chunk);
        }
        let ready = if parent.is_some() { previous.replace(chunk) } else { Some(chunk) };
        for &child in children.iter().rev() {
            match (ready, parent) {
                (Some(ready), Some(_)) => b.send_late(child, ready),
                (Some(ready), None) => b.send(child, ready),
                (None, _) => {}
            }
        }
        if parent.is_some() && !children.is_empty() {
            b.next_round();
        }
    }
    if let Some(last) = previous {
        for &child in children.iter().rev() {
            b.send(child, last);
        }
    }
    b.next_round();
}

/// Reduce to `p.root` along a tree. With `p.in_place` the contribution of the root lies in `Recv`.
pub(crate) fn reduce(b: &mut ScheduleBuilder, shape: Algorithm, p: &ScheduleParams) {
    if shape == Algorithm::Flat {
        return reduce_flat(b, p);
    }
    let top = if p.in_order() { 0 } else { p.root };
    let at_root = p.rank == p.root;
    let RankTree { parent, children } = RankTree::new(shape, p, top);
    // The top keeps the whole result: in Recv at the root, else in scratch.
    let whole = match parent {
        None if at_root => Some(p.result()),
        None => Some(b.scratch(p.count)),
        Some(_) => None,
    };
    match (parent, children.is_empty()) {
        (Some(parent), true) => p.own().chunks(p.chunk).for_each(|chunk| b.send(parent, chunk)),
        _ => reduce_inner(b, p, parent, &children, whole),
    }
    b.next_round();
    if top != p.root {
        // Not chunk by chunk: the root may only receive the result after it has sent all of its own part up the tree.
        match whole {
            Some(whole) => b.send(p.root, whole),
            None if at_root => b.recv(top, p.result()),
            None => {}
        }
    }
    b.next_round();
}

fn reduce_inner(
    b: &mut ScheduleBuilder,
    p: &ScheduleParams,
    parent: Option<u32>,
    children: &[u32],
    whole: Option<BufferRange>,
) {
    let chunk_len = p.own().chunks(p.chunk).next().map_or(0, |chunk| chunk.len);
    // Below the top, a chunk's result is needed only until it is sent, in the next round.
    let slots = match whole {
        Some(_) => Vec::new(),
        None => (0..p.own().chunks(p.chunk).len().min(2)).map(|_| b.scratch(chunk_len)).collect(),
    };
    // If the root's own contribution lies in Recv, the first child needs a separate place, too.
    let overwrites_own = p.in_place && p.rank == p.root && whole.is_some();
    let first_place = overwrites_own.then(|| b.scratch(chunk_len));
    let places: Vec<BufferRange> = children[1..].iter().map(|_| b.scratch(chunk_len)).collect();
    let send_up = |b: &mut ScheduleBuilder, chunk: Option<BufferRange>| {
        if let (Some(parent), Some(chunk)) = (parent, chunk) {
            b.send(parent, chunk);
        }
    };
    let mut previous = None;
    let mut done = 0;
    for (i, own) in p.own().chunks(p.chunk).enumerate() {
        let result = match whole {
            Some(whole) => whole.part(done, own.len),
            None => slots[i % 2].part(0, own.len),
        };
        let first = first_place.map_or(result, |place| place.part(0, own.len));
        b.recv(children[0], first);
        for (&child, place) in children[1..].iter().zip(&places) {
            b.recv(child, place.part(0, own.len));
        }
        send_up(b, previous);
        if overwrites_own {
            b.reduce_right(first, result);
        } else {
            b.reduce_left(own, result);
        }
        for place in &places {
            b.reduce_right(place.part(0, own.len), result);
        }
        b.next_round();
        previous = Some(result);
        done += own.len;
    }
    send_up(b, previous);
}

/// The root receives everything, a chunk at a time, and combines it in the canonical order.
fn reduce_flat(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    if p.rank != p.root {
        p.own().chunks(p.chunk).for_each(|chunk| b.send(p.root, chunk));
        return b.next_round();
    }
    let chunk_len = p.own().chunks(p.chunk).next().map_or(0, |chunk| chunk.len);
    let places: Vec<BufferRange> = (1..p.size).map(|_| b.scratch(chunk_len)).collect();
    let mut done = 0;
    for own in p.own().chunks(p.chunk) {
        let operands = groups::gather_operands(p, own, p.result().part(done, own.len), &places);
        for (rank, &(range, _)) in operands.iter().enumerate().filter(|(rank, _)| *rank != p.rank as usize) {
            b.recv(rank as u32, range);
        }
        let result = groups::combine(b, operands);
        b.copy(result, p.result().part(done, own.len));
        b.next_round();
        done += own.len;
    }
}

/// Reduce to rank 0, then bcast from it.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, shape: Algorithm, p: &ScheduleParams) {
    let p = ScheduleParams { root: 0, ..*p };
    // On ranks other than the root, reduce reads Send and never writes Recv, so in-place calls need nothing else there.
    reduce(b, shape, &p);
    bcast(b, shape, &p, p.result());
}
