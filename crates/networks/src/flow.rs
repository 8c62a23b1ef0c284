//! Maximum flow and minimum cut. Capacities that are integers take push-relabel: nodes hold an excess of flow, which
//! moves along links that come closer to the sink, and what cannot reach the sink returns to the source. Others take
//! shortest augmenting paths: there, rounding never leaves an excess that no link has room for.
//!
//! Source: B. Cherkassky and A. Goldberg, On implementing the push-relabel method for the maximum flow problem (1997),
//! whose highest labels, gaps and global relabeling these are; pushing along the tree of the search is OR-Tools'. E.
//! Dinic, Algorithm for solution of a problem of maximum flow in networks with power estimation (1970): a round fills
//! at least one link exactly, even with floats, so there are at most as many rounds as nodes.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;

/// Sums of integers up to this are exact.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

const UNBOUNDED: &str = "the flow is unbounded: links of infinite capacity lead from source to sink";

/// A maximum flow.
#[derive(Clone, Debug)]
pub struct MaximumFlow {
    /// The flow out of the source.
    pub value: f64,
    /// The flow on each link.
    pub flows: Vec<f64>,
    /// Which nodes are on the source's side of a minimum cut.
    pub source_side: Vec<bool>,
}

/// One direction of a link.
#[derive(Clone, Copy, Default)]
struct FlowArc {
    target: u32,
    /// The index of the opposite direction.
    reverse: u32,
    room: f64,
}

/// Both directions of all links, by node.
struct FlowArcs {
    starts: Vec<u32>,
    arcs: Vec<FlowArc>,
    /// The index of each link's arc.
    of_link: Vec<u32>,
}

/// The maximum flow from `source` to `sink`. Weights are capacities; without weights, each is 1. Exact if capacities
/// are integers (or infinite) whose sum is at most 2^53.
///
/// # Errors
/// `BadArgument` if the source or sink is not a node, if they are the same, or if a path of infinite capacity connects
/// them; `BadWeight` with the first capacity that is negative or NaN.
pub fn maximum_flow(outgoing: &CompressedRows, source: usize, sink: usize) -> Result<MaximumFlow, NetworkError> {
    outgoing.check_square()?;
    outgoing.check_weights()?;
    let n = outgoing.rows();
    ensure(source < n && sink < n, "source and sink must be nodes")?;
    ensure(source != sink, "source and sink must differ")?;
    ensure(outgoing.links() < (u32::MAX / 2) as usize, "a network for flows has at most 2,147,483,646 links")?;
    let finite_sum = exact_sum(outgoing);
    // No finite cut has as much room as this, so that a link with it is as good as infinite.
    let mut arcs = FlowArcs::new(outgoing, finite_sum.map_or(f64::INFINITY, |sum| sum + 1.0));
    let value = match finite_sum {
        Some(sum) => {
            let value = PushRelabel::new(&mut arcs).run(source, sink);
            ensure(value <= sum, UNBOUNDED)?;
            value
        }
        None => arcs.augment(source, sink)?,
    };
    let mut flows = Vec::with_capacity(outgoing.links());
    for (link, &arc) in arcs.of_link.iter().enumerate() {
        let capacity = outgoing.weights().map_or(1.0, |weights| weights[link]);
        let arc = arcs.arcs[arc as usize];
        // The flow on a link of infinite capacity is the capacity of its opposite direction, which was initially 0.
        flows.push(if capacity == f64::INFINITY { arcs.arcs[arc.reverse as usize].room } else { capacity - arc.room });
    }
    let mut source_side = vec![false; n];
    source_side[source] = true;
    let mut queue = vec![source];
    while let Some(node) = queue.pop() {
        for arc in &arcs.arcs[arcs.range(node)] {
            let target = arc.target as usize;
            if arc.room > 0.0 && !source_side[target] {
                source_side[target] = true;
                queue.push(target);
            }
        }
    }
    Ok(MaximumFlow { value, flows, source_side })
}

/// The sum of finite capacities, if all are integers and no sum of capacities can be rounded, even if infinite ones are
/// replaced by more than that sum.
fn exact_sum(outgoing: &CompressedRows) -> Option<f64> {
    let Some(weights) = outgoing.weights() else { return Some(outgoing.links() as f64) };
    let (mut sum, mut infinite, mut integers) = (0.0, 0.0, true);
    for &weight in weights {
        let finite = weight < f64::INFINITY;
        sum += if finite { weight } else { 0.0 };
        infinite += f64::from(u8::from(!finite));
        integers &= !finite || weight.trunc() == weight;
    }
    (integers && sum + infinite * (sum + 1.0) < EXACT_MAX).then_some(sum)
}

impl FlowArcs {
    /// `infinite` stands for infinite capacities.
    fn new(outgoing: &CompressedRows, infinite: f64) -> Self {
        let n = outgoing.rows();
        let mut starts = vec![0; n + 1];
        for node in 0..n {
            starts[node + 1] += outgoing.degree(node) as u32;
            for &target in outgoing.neighbors(node) {
                starts[target as usize + 1] += 1;
            }
        }
        for node in 0..n {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut arcs = vec![FlowArc::default(); starts[n] as usize];
        let mut of_link = Vec::with_capacity(outgoing.links());
        for node in 0..n {
            for (target, capacity) in outgoing.weighted(node) {
                let there = next[node];
                next[node] += 1;
                let back = next[target as usize];
                next[target as usize] += 1;
                arcs[there as usize] = FlowArc { target, reverse: back, room: capacity.min(infinite) };
                arcs[back as usize] = FlowArc { target: node as u32, reverse: there, room: 0.0 };
                of_link.push(there);
            }
        }
        FlowArcs { starts, arcs, of_link }
    }

    fn range(&self, node: usize) -> std::ops::Range<usize> {
        self.starts[node] as usize..self.starts[node + 1] as usize
    }

    fn push(&mut self, arc: usize, amount: f64) {
        self.arcs[arc].room -= amount;
        let reverse = self.arcs[arc].reverse as usize;
        self.arcs[reverse].room += amount;
    }

    /// Sends flow along shortest paths with room until there is none; returns the amount.
    fn augment(&mut self, source: usize, sink: usize) -> Result<f64, NetworkError> {
        let mut value = 0.0;
        let mut levels = vec![u32::MAX; self.starts.len() - 1];
        while self.levels(source, sink, &mut levels) {
            value += self.fill(source, sink, &levels)?;
        }
        Ok(value)
    }

    /// The distance of each node from the sink over links with residual capacity; false if the source is cut off.
    /// Searched from the sink, so that every path of `fill` leads to it.
    fn levels(&self, source: usize, sink: usize, levels: &mut [u32]) -> bool {
        levels.fill(u32::MAX);
        levels[sink] = 0;
        let mut queue = vec![sink as u32];
        let mut at = 0;
        while at < queue.len() {
            let node = queue[at] as usize;
            at += 1;
            for arc in &self.arcs[self.range(node)] {
                let other = arc.target as usize;
                if levels[other] == u32::MAX && self.arcs[arc.reverse as usize].room > 0.0 {
                    levels[other] = levels[node] + 1;
                    if other == source {
                        return true;
                    }
                    queue.push(other as u32);
                }
            }
        }
        false
    }

    /// Sends what fits along paths that come closer to the sink with each link; returns the amount.
    fn fill(&mut self, source: usize, sink: usize, levels: &[u32]) -> Result<f64, NetworkError> {
        let mut next = self.starts.clone();
        let mut way: Vec<usize> = Vec::new();
        let mut sent = 0.0;
        let mut node = source;
        loop {
            if node == sink {
                let room = way.iter().map(|&arc| self.arcs[arc].room).fold(f64::INFINITY, f64::min);
                ensure(room < f64::INFINITY, UNBOUNDED)?;
                sent += room;
                let mut first_full = way.len();
                for (at, &arc) in way.iter().enumerate().rev() {
                    self.push(arc, room);
                    if self.arcs[arc].room <= 0.0 {
                        first_full = at;
                    }
                }
                node = self.tail(way[first_full]);
                way.truncate(first_full);
                continue;
            }
            let end = self.starts[node + 1];
            let level = levels[node];
            let arc = (next[node]..end).find(|&arc| {
                let arc = self.arcs[arc as usize];
                arc.room > 0.0 && level != u32::MAX && levels[arc.target as usize] == level - 1
            });
            next[node] = arc.unwrap_or(end);
            match (arc, way.pop()) {
                (Some(arc), last) => {
                    way.extend(last);
                    way.push(arc as usize);
                    node = self.arcs[arc as usize].target as usize;
                }
                (None, Some(last)) => {
                    // A dead end: do not try its link again.
                    node = self.tail(last);
                    next[node] += 1;
                }
                (None, None) => return Ok(sent),
            }
        }
    }

    /// The node that an arc starts from.
    fn tail(&self, arc: usize) -> usize {
        self.arcs[self.arcs[arc].reverse as usize].target as usize
    }
}

/// No node, or no arc.
const NONE: u32 = u32::MAX;

/// Nodes with excess, and how far each node is from where the excess goes.
struct PushRelabel<'a> {
    flow: &'a mut FlowArcs,
    /// The flow into each node that has not been passed on.
    excess: Vec<f64>,
    /// A lower bound of the distance to the root over arcs with room. As many as there are nodes: taken as unreachable
    /// until the next global relabeling.
    levels: Vec<u32>,
    /// How many nodes have each level.
    counts: Vec<u32>,
    /// The first arc of each node that may lead down.
    next: Vec<u32>,
    /// By level, the last node with excess; by node, the one before it.
    active: Vec<u32>,
    below: Vec<u32>,
    highest: usize,
    /// The lowest level that lost its last node.
    gap: u32,
    /// The nodes that the last search reached, in its order, each with its arc towards the root.
    reached: Vec<(u32, u32)>,
}

impl<'a> PushRelabel<'a> {
    fn new(flow: &'a mut FlowArcs) -> Self {
        let n = flow.starts.len() - 1;
        PushRelabel {
            flow,
            excess: vec![0.0; n],
            levels: vec![0; n],
            counts: vec![0; n + 1],
            next: vec![0; n],
            active: vec![NONE; n + 1],
            below: vec![NONE; n],
            highest: 0,
            gap: NONE,
            reached: Vec::with_capacity(n),
        }
    }

    /// Finds a maximum flow and returns its value.
    fn run(&mut self, source: usize, sink: usize) -> f64 {
        for arc in self.flow.range(source) {
            let FlowArc { target, room, .. } = self.flow.arcs[arc];
            if target as usize != source && room > 0.0 {
                self.flow.push(arc, room);
                self.excess[target as usize] += room;
            }
        }
        self.drain(sink);
        let value = std::mem::take(&mut self.excess[sink]);
        // What is left cannot reach the sink, and each excess has a way back to the source.
        self.drain(source);
        value
    }

    /// Moves all excess to `root` that can get there.
    fn drain(&mut self, root: usize) {
        // Searching this often finds early what is cut off: on roads that takes a third less time than with four times
        // the work.
        let work_max = self.levels.len() + self.flow.arcs.len() / 4;
        while self.relabel_all(root) {
            let mut work = 0;
            while work <= work_max && self.highest > 0 {
                match self.active[self.highest] {
                    NONE => self.highest -= 1,
                    node => {
                        self.active[self.highest] = self.below[node as usize];
                        work += self.discharge(node as usize, root);
                    }
                }
            }
        }
    }

    /// Sets all levels to distances from `root` and moves excess down the tree of shortest paths; false if no node that
    /// reaches `root` is left with any.
    fn relabel_all(&mut self, root: usize) -> bool {
        let n = self.levels.len() as u32;
        self.levels.fill(n);
        self.counts.fill(0);
        self.active.fill(NONE);
        self.gap = n;
        self.reached.clear();
        let mut waiting = self.excess.iter().filter(|&&excess| excess > 0.0).count();
        waiting -= usize::from(self.excess[root] > 0.0);
        self.reached.push((root as u32, NONE));
        self.levels[root] = 0;
        let mut at = 0;
        // Nodes beyond the last one with excess count as out of reach: it has no use for them.
        while waiting > 0
            && let Some(&(node, _)) = self.reached.get(at)
        {
            at += 1;
            let level = self.levels[node as usize] + 1;
            for arc in self.flow.range(node as usize) {
                let FlowArc { target, reverse, .. } = self.flow.arcs[arc];
                let other = target as usize;
                if self.levels[other] != n || self.flow.arcs[reverse as usize].room <= 0.0 {
                    continue;
                }
                if self.excess[other] > 0.0 {
                    // If this fills the arc, another one has to lead to `other`.
                    let emptied = self.flow.arcs[reverse as usize].room >= self.excess[other];
                    let open = self.push(other, reverse as usize);
                    waiting -= usize::from(emptied || open);
                    if !open {
                        continue;
                    }
                }
                self.levels[other] = level;
                self.reached.push((target, reverse));
            }
        }
        // Farthest first, so that excess comes as far as there is room.
        for at in (1..self.reached.len()).rev() {
            let (node, arc) = self.reached[at];
            let node = node as usize;
            self.counts[self.levels[node] as usize] += 1;
            self.next[node] = self.flow.starts[node];
            if self.excess[node] > 0.0 {
                self.push(node, arc as usize);
            }
        }
        self.highest = 0;
        for at in 1..self.reached.len() {
            let node = self.reached[at].0;
            if self.excess[node as usize] > 0.0 {
                self.activate(node as usize);
            }
        }
        self.highest > 0
    }

    /// Pushes what fits from `node` along `arc`; whether the arc has room left.
    fn push(&mut self, node: usize, arc: usize) -> bool {
        let FlowArc { target, room, .. } = self.flow.arcs[arc];
        let amount = room.min(self.excess[node]);
        self.flow.push(arc, amount);
        self.excess[node] -= amount;
        self.excess[target as usize] += amount;
        amount < room
    }

    fn activate(&mut self, node: usize) {
        let level = self.levels[node] as usize;
        self.below[node] = self.active[level];
        self.active[level] = node as u32;
        self.highest = self.highest.max(level);
    }

    /// Moves the excess of a node down, raising the node as often as that takes, until it is gone or the root out of
    /// reach. Returns the work in about arcs.
    fn discharge(&mut self, node: usize, root: usize) -> usize {
        let n = self.levels.len() as u32;
        let range = self.flow.range(node);
        let mut work = 0;
        loop {
            let level = self.levels[node];
            for arc in self.next[node] as usize..range.end {
                let FlowArc { target, room, .. } = self.flow.arcs[arc];
                let target = target as usize;
                if room <= 0.0 || self.levels[target] + 1 != level {
                    continue;
                }
                let woken = self.excess[target] == 0.0 && target != root;
                self.push(node, arc);
                if woken {
                    self.activate(target);
                }
                if self.excess[node] == 0.0 {
                    self.next[node] = arc as u32;
                    return work;
                }
            }
            work += range.len() + 12;
            let mut lowest = n;
            for arc in range.clone() {
                let FlowArc { target, room, .. } = self.flow.arcs[arc];
                if room > 0.0 && self.levels[target as usize] < lowest {
                    lowest = self.levels[target as usize];
                    self.next[node] = arc as u32;
                }
            }
            self.counts[level as usize] -= 1;
            if self.counts[level as usize] == 0 {
                self.gap = self.gap.min(level);
            }
            // While no node has the level of the gap, none above it reaches the root.
            let cut_off = lowest + 1 > self.gap && self.counts[self.gap as usize] == 0;
            if self.counts[level as usize] == 0 || cut_off || lowest + 1 >= n {
                self.levels[node] = n;
                return work;
            }
            self.levels[node] = lowest + 1;
            self.counts[lowest as usize + 1] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, rows_of};
    use proptest::prelude::*;

    /// A flow that respects capacities, is conserved at nodes, and fills a cut is maximum.
    fn check(network: &CompressedRows, found: &MaximumFlow) -> Result<(), TestCaseError> {
        let n = network.rows();
        let mut balance = vec![0.0; n];
        let mut cut = 0.0;
        for v in 0..n {
            for ((target, capacity), link) in network.weighted(v).zip(network.range(v)) {
                let flow = found.flows[link];
                prop_assert!((0.0..=capacity).contains(&flow));
                balance[v] -= flow;
                balance[target as usize] += flow;
                if found.source_side[v] && !found.source_side[target as usize] {
                    prop_assert_eq!(flow, capacity);
                    cut += capacity;
                }
            }
        }
        prop_assert!(found.source_side[0] && !found.source_side[n - 1]);
        prop_assert_eq!(found.value, cut);
        prop_assert_eq!((balance[0], balance[n - 1]), (-cut, cut));
        prop_assert!(balance[1..n - 1].iter().all(|&rest| rest == 0.0));
        Ok(())
    }

    proptest! {
        #[test]
        fn flows_fill_a_cut(network in any_network(false)) {
            let n = network.rows();
            if n < 2 {
                return Ok(());
            }
            check(&network, &maximum_flow(&network, 0, n - 1).unwrap())?;
        }

        /// Both algorithms find the same value, also where some capacities are infinite: a label that is too high, or
        /// an excess left behind, would make one smaller.
        #[test]
        fn both_algorithms_agree(network in any_network(false), infinite_from in 5.0..10.0f64) {
            let n = network.rows();
            if n < 2 {
                return Ok(());
            }
            let capacity = |weight: &f64| if *weight >= infinite_from { f64::INFINITY } else { *weight };
            let weights = network.weights().unwrap().iter().map(capacity).collect();
            let network =
                CompressedRows::of_parts(network.offsets().to_vec(), network.targets().to_vec(), Some(weights), n);
            prop_assert!(exact_sum(&network).is_some());
            let found = maximum_flow(&network, 0, n - 1);
            let mut arcs = FlowArcs::new(&network, f64::INFINITY);
            let Ok(value) = arcs.augment(0, n - 1) else {
                prop_assert!(found.unwrap_err().to_string().contains("unbounded"));
                return Ok(());
            };
            let found = found.unwrap();
            prop_assert_eq!(found.value, value);
            check(&network, &found)?;
        }
    }

    /// Sums that a float rounds, and fractions, must not take the algorithm that counts on exact ones.
    #[test]
    fn only_exact_sums_take_push_relabel() {
        let of = |capacities: [f64; 2]| rows_of(2, &[(0, 1, capacities[0]), (0, 1, capacities[1])], false);
        assert_eq!(exact_sum(&of([3.0, 4.0])), Some(7.0));
        assert_eq!(exact_sum(&of([3.0, 0.5])), None);
        assert_eq!(exact_sum(&of([EXACT_MAX, 1.0])), None);
        assert_eq!(exact_sum(&of([EXACT_MAX / 2.0, f64::INFINITY])), None);
        assert_eq!(maximum_flow(&of([3.0, 0.5]), 0, 1).unwrap().value, 3.5);
        assert_eq!(maximum_flow(&of([EXACT_MAX, 2.0]), 0, 1).unwrap().value, EXACT_MAX + 2.0);
    }

    #[test]
    fn unbounded_flows_are_refused() {
        let infinite = f64::INFINITY;
        let open = rows_of(3, &[(0, 1, infinite), (1, 2, infinite)], false);
        assert!(maximum_flow(&open, 0, 2).unwrap_err().to_string().contains("unbounded"));
        let closed = rows_of(3, &[(0, 1, infinite), (1, 2, 2.5)], false);
        assert_eq!(maximum_flow(&closed, 0, 2).unwrap().flows, [2.5, 2.5]);
    }
}
