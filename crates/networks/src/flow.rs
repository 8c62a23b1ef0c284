//! Maximum flow and minimum cut: in each round, flow is sent along the shortest paths with residual capacity until each
//! of them has a full link.
//!
//! Source: E. Dinic, Algorithm for solution of a problem of maximum flow in networks with power estimation (1970). A
//! round fills at least one link exactly, even with floats, so there are at most as many rounds as nodes.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;

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

/// Both directions of all links, by node.
struct FlowArcs {
    starts: Vec<usize>,
    targets: Vec<u32>,
    /// The index of the opposite direction.
    reverse: Vec<u32>,
    room: Vec<f64>,
    /// The index of each link's arc.
    of_link: Vec<u32>,
}

/// The maximum flow from `source` to `sink`. Weights are capacities; without weights, each is 1.
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
    let mut arcs = FlowArcs::new(outgoing);
    let mut value = 0.0;
    let mut levels = vec![u32::MAX; n];
    while arcs.levels(source, sink, &mut levels) {
        value += arcs.fill(source, sink, &levels)?;
    }
    let mut flows = Vec::with_capacity(outgoing.links());
    for (link, &arc) in arcs.of_link.iter().enumerate() {
        let capacity = outgoing.weights().map_or(1.0, |weights| weights[link]);
        // The flow on a link of infinite capacity is the capacity of its opposite direction, which was initially 0.
        flows.push(if capacity == f64::INFINITY {
            arcs.room[arcs.reverse[arc as usize] as usize]
        } else {
            capacity - arcs.room[arc as usize]
        });
    }
    let mut source_side = vec![false; n];
    source_side[source] = true;
    let mut queue = vec![source];
    while let Some(node) = queue.pop() {
        for arc in arcs.starts[node]..arcs.starts[node + 1] {
            let target = arcs.targets[arc] as usize;
            if arcs.room[arc] > 0.0 && !source_side[target] {
                source_side[target] = true;
                queue.push(target);
            }
        }
    }
    Ok(MaximumFlow { value, flows, source_side })
}

impl FlowArcs {
    fn new(outgoing: &CompressedRows) -> Self {
        let n = outgoing.rows();
        let mut starts = vec![0; n + 1];
        for node in 0..n {
            starts[node + 1] += outgoing.degree(node);
            for &target in outgoing.neighbors(node) {
                starts[target as usize + 1] += 1;
            }
        }
        for node in 0..n {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let count = starts[n];
        let (mut targets, mut reverse, mut room) = (vec![0; count], vec![0; count], vec![0.0; count]);
        let mut of_link = Vec::with_capacity(outgoing.links());
        for node in 0..n {
            for (target, capacity) in outgoing.weighted(node) {
                let there = next[node];
                next[node] += 1;
                let back = next[target as usize];
                next[target as usize] += 1;
                (targets[there], reverse[there], room[there]) = (target, back as u32, capacity);
                (targets[back], reverse[back]) = (node as u32, there as u32);
                of_link.push(there as u32);
            }
        }
        FlowArcs { starts, targets, reverse, room, of_link }
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
            for arc in self.starts[node]..self.starts[node + 1] {
                let other = self.targets[arc] as usize;
                if levels[other] == u32::MAX && self.room[self.reverse[arc] as usize] > 0.0 {
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
                let room = way.iter().map(|&arc| self.room[arc]).fold(f64::INFINITY, f64::min);
                ensure(
                    room < f64::INFINITY,
                    "the flow is unbounded: links of infinite capacity lead from source to sink",
                )?;
                sent += room;
                let mut first_full = way.len();
                for (at, &arc) in way.iter().enumerate().rev() {
                    self.room[arc] -= room;
                    self.room[self.reverse[arc] as usize] += room;
                    if self.room[arc] <= 0.0 {
                        first_full = at;
                    }
                }
                node = self.targets[self.reverse[way[first_full]] as usize] as usize;
                way.truncate(first_full);
                continue;
            }
            let end = self.starts[node + 1];
            let level = levels[node];
            let arc = (next[node]..end).find(|&arc| {
                self.room[arc] > 0.0 && level != u32::MAX && levels[self.targets[arc] as usize] == level - 1
            });
            next[node] = arc.unwrap_or(end);
            match (arc, way.pop()) {
                (Some(arc), last) => {
                    way.extend(last);
                    way.push(arc);
                    node = self.targets[arc] as usize;
                }
                (None, Some(last)) => {
                    // A dead end: do not try its link again.
                    node = self.targets[self.reverse[last] as usize] as usize;
                    next[node] += 1;
                }
                (None, None) => return Ok(sent),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, rows_of};
    use proptest::prelude::*;

    proptest! {
        /// A flow that respects capacities, is conserved at nodes, and fills a cut is maximum.
        #[test]
        fn flows_fill_a_cut(network in any_network(false)) {
            let n = network.rows();
            if n < 2 {
                return Ok(());
            }
            let found = maximum_flow(&network, 0, n - 1).unwrap();
            let mut balance = vec![0.0; n];
            let mut cut = 0.0;
            for v in 0..n {
                for ((target, capacity), link) in network.weighted(v).zip(network.range(v)) {
                    let flow = found.flows[link];
                    prop_assert!((0.0..=capacity).contains(&flow));
                    balance[v] -= flow;
                    balance[target as usize] += flow;
                    if found.source_side[v] && !found.source_side[target as usize] {
                        cut += capacity;
                    }
                }
            }
            prop_assert!(found.source_side[0] && !found.source_side[n - 1]);
            prop_assert_eq!(found.value, cut);
            prop_assert_eq!((balance[0], balance[n - 1]), (-cut, cut));
            prop_assert!(balance[1..n - 1].iter().all(|&rest| rest == 0.0));
        }
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
