//! Trees for keyed reductions: one for each target copy. The rows of its keys go up the tree from all workers that have
//! some, and are combined on the way: first over the workers of a host, then over hosts.
//!
//! All trees have the same steps, and in each step a worker sends at most one message to another, for all trees
//! together. The trees are alike, each turned so that its root is where its copy is; so all workers pass on about the
//! same amount. With P workers, w on each of H hosts:
//!
//! | overlay    | steps        | a worker sends a round in | a host is sent by            |
//! |------------|--------------|---------------------------|------------------------------|
//! | `Serial`   | 1            | P - 1 messages            | every worker, for each copy  |
//! | `Flat`     | 2            | w + H - 2 messages        | one worker of each, for each copy |
//! | `Binomial` | lg w + lg H  | lg w + lg H messages      | lg H hosts                   |
//! | `Levels`   | as its shapes | as its shapes             | as its shape between hosts   |
//!
//! The binomial steps are those of J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems", 1997: in step i a row that has r places to go moves 2^i of them if bit i of r is set.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_collective::tuner::LinkCost;

use super::choice::TreeTimes;
use super::{Overlay, OverlayChoice, Shape, WorkerNetwork};

/// The time that a step takes besides its messages: a stage of the flow wakes up and makes a batch.
const STAGE_S: f64 = 10e-6;
/// In order of preference among those that cost the same.
const CANDIDATES: [Overlay; 5] = [
    Overlay::Serial,
    Overlay::Flat,
    Overlay::Levels { hosts: Shape::Binomial, workers: Shape::Flat },
    Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binomial },
    Overlay::Binomial,
];

/// A step towards the roots of all trees: in one go, or by the places of this bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Within each host, to the worker that collects for a root.
    Workers(Option<u32>),
    /// Between those of different hosts.
    Hosts(Option<u32>),
}

/// The trees that the module describes.
pub(crate) struct KeyedTrees {
    /// The workers that take part, by host.
    hosts: Vec<Vec<u32>>,
    /// By worker, its host among these, and its place there.
    places: Vec<(usize, usize)>,
    /// The steps that rows take; the last one is to the copies.
    steps: Vec<Step>,
    /// By step and worker, the workers that it sends to, itself included; empty if it has nothing to send.
    reach: Vec<Vec<Vec<u32>>>,
}

/// The place a step nearer to `to`, of `count` places in a ring.
fn nearer(at: usize, to: usize, count: usize, bit: Option<u32>) -> usize {
    let away = (at + count - to) % count;
    match bit {
        None => to,
        Some(bit) if away >> bit & 1 == 1 => (at + count - (1 << bit)) % count,
        Some(_) => at,
    }
}

/// The steps in which rows of all members of a group of this size get to one member.
fn bits(shape: Shape, size: usize) -> Vec<Option<u32>> {
    match (shape, size) {
        (_, 0..=1) => Vec::new(),
        (Shape::Binomial, size) => (0..usize::BITS - (size - 1).leading_zeros()).map(Some).collect(),
        _ => vec![None],
    }
}

impl KeyedTrees {
    /// The shapes between and within hosts of an overlay for keyed reductions; `None` for `Serial`.
    ///
    /// # Errors
    /// A description, if keyed reductions cannot use the overlay.
    pub(crate) fn shapes(overlay: Overlay) -> Result<Option<(Shape, Shape)>, String> {
        let known = |shape| matches!(shape, Shape::Flat | Shape::Binomial);
        match overlay {
            Overlay::Serial => Ok(None),
            Overlay::Flat => Ok(Some((Shape::Flat, Shape::Flat))),
            Overlay::Binomial => Ok(Some((Shape::Binomial, Shape::Binomial))),
            Overlay::Levels { hosts, workers } if known(hosts) && known(workers) => Ok(Some((hosts, workers))),
            other => Err(format!(
                "a keyed reduction cannot go along \"{other}\"; use \"serial\", \"flat\" or \"binomial\", or two of the \
                 last two for between hosts and within, such as \"binomial/flat\""
            )),
        }
    }

    /// The trees from `senders` to the copies on `targets`; `hosts` has the host of every worker.
    pub(crate) fn new(overlay: Overlay, senders: &[u32], targets: &[u32], hosts: &[u32]) -> Self {
        let members: BTreeSet<u32> = senders.iter().chain(targets).copied().collect();
        let mut on_host: Vec<(u32, Vec<u32>)> = Vec::new();
        let mut places = vec![(0, 0); hosts.len()];
        for worker in members {
            let host = hosts[worker as usize];
            let at = on_host.iter().position(|(of, _)| *of == host).unwrap_or_else(|| {
                on_host.push((host, Vec::new()));
                on_host.len() - 1
            });
            places[worker as usize] = (at, on_host[at].1.len());
            on_host[at].1.push(worker);
        }
        let hosts: Vec<Vec<u32>> = on_host.into_iter().map(|(_, workers)| workers).collect();
        let largest = hosts.iter().map(Vec::len).max().unwrap_or(0);
        let mut steps: Vec<Step> = match KeyedTrees::shapes(overlay) {
            Ok(Some((between, within))) => bits(within, largest)
                .into_iter()
                .map(Step::Workers)
                .chain(bits(between, hosts.len()).into_iter().map(Step::Hosts))
                .collect(),
            _ => Vec::new(),
        };
        if steps.is_empty() {
            steps.push(Step::Hosts(None));
        }
        let mut trees = KeyedTrees { hosts, places, steps, reach: Vec::new() };
        trees.reach = trees.find_reach(senders, targets);
        trees
    }

    /// The worker on host `host` that collects for `target`; each collects for others.
    fn collector(&self, host: usize, target: u32) -> u32 {
        let (target_host, at) = self.places[target as usize];
        let workers = &self.hosts[host];
        if host == target_host { target } else { workers[(at + target_host) % workers.len()] }
    }

    /// Where the rows that `worker` has for `target` go in a step; they may stay.
    pub(crate) fn next(&self, step: usize, worker: u32, target: u32) -> u32 {
        if step + 1 == self.steps.len() {
            return target;
        }
        let (host, at) = self.places[worker as usize];
        match self.steps[step] {
            Step::Workers(bit) => {
                let (_, to) = self.places[self.collector(host, target) as usize];
                let workers = &self.hosts[host];
                workers[nearer(at, to, workers.len(), bit)]
            }
            Step::Hosts(bit) => match nearer(host, self.places[target as usize].0, self.hosts.len(), bit) {
                stays if stays == host => worker,
                next => self.collector(next, target),
            },
        }
    }

    /// The steps; behind all but the last one workers combine.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The workers that receive something in a step, in order.
    pub(crate) fn combining(&self, step: usize) -> Vec<u32> {
        let all: BTreeSet<u32> = self.reach[step].iter().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// The workers that `worker` sends to in a step, in order; it may be one of them.
    pub(crate) fn reach(&self, step: usize, worker: u32) -> &[u32] {
        &self.reach[step][worker as usize]
    }

    fn find_reach(&self, senders: &[u32], targets: &[u32]) -> Vec<Vec<Vec<u32>>> {
        let workers = self.places.len();
        let mut reach = vec![vec![Vec::new(); workers]; self.steps.len()];
        for target in targets.iter().copied().collect::<BTreeSet<_>>() {
            let mut have = senders.to_vec();
            for (step, reach) in reach.iter_mut().enumerate() {
                have.sort_unstable();
                have.dedup();
                for worker in &mut have {
                    let next = self.next(step, *worker, target);
                    reach[*worker as usize].push(next);
                    *worker = next;
                }
            }
        }
        for reached in reach.iter_mut().flatten() {
            reached.sort_unstable();
            reached.dedup();
        }
        reach
    }

    /// The time of a round in which each of `senders` has `bytes` for all copies together. How many keys two of them
    /// share is unknown: half of them are taken to be the same.
    fn times(&self, senders: &[u32], targets: &[u32], network: &WorkerNetwork, bytes: f64) -> TreeTimes {
        let (workers, model) = (self.places.len(), &network.model);
        let share = bytes / targets.len().max(1) as f64;
        // By worker, the share of its copies together: their rows take the same way.
        let mut shares = BTreeMap::<u32, f64>::new();
        targets.iter().for_each(|&target| *shares.entry(target).or_default() += share);
        let mut total = vec![0.0f64; workers + 2 * self.hosts.len()];
        let mut first_s = 0.0;
        // By worker with target copies, the number of senders whose rows each worker has.
        let mut have = vec![vec![0.0f64; workers]; shares.len()];
        have.iter_mut().for_each(|have| senders.iter().for_each(|&worker| have[worker as usize] = 1.0));
        for step in 0..self.steps.len() {
            // First the workers, then the links out of and into each host.
            let mut busy = vec![0.0f64; total.len()];
            let mut latency_s = 0.0f64;
            let (mut sent, mut next_have) = (vec![0.0f64; workers], vec![vec![0.0f64; workers]; shares.len()]);
            for worker in 0..workers as u32 {
                for ((&target, share), (have, next_have)) in shares.iter().zip(have.iter().zip(&mut next_have)) {
                    let of = have[worker as usize];
                    if of > 0.0 {
                        let next = self.next(step, worker, target) as usize;
                        next_have[next] += of;
                        sent[next] += share * (1.0 + of) / 2.0;
                    }
                }
                for &to in self.reach(step, worker) {
                    let bytes = std::mem::take(&mut sent[to as usize]);
                    // The receiver combines everything, also its own rows.
                    busy[to as usize] += bytes * (model.reduce_per_byte_s + model.copy_per_byte_s);
                    if to == worker {
                        continue;
                    }
                    let (from, into) = (self.places[worker as usize].0, self.places[to as usize].0);
                    let link: LinkCost = if from == into { model.same_host } else { model.other_host };
                    latency_s = latency_s.max(link.latency_s);
                    busy[worker as usize] += link.overhead_s;
                    busy[to as usize] += link.overhead_s;
                    if from == into {
                        busy[worker as usize] += bytes * link.per_byte_s;
                    } else {
                        busy[workers + 2 * from] += bytes * link.per_byte_s;
                        busy[workers + 2 * into + 1] += bytes * link.per_byte_s;
                    }
                }
            }
            first_s += busy.iter().copied().fold(0.0, f64::max) + latency_s + STAGE_S;
            total.iter_mut().zip(busy).for_each(|(total, busy)| *total += busy);
            have = next_have;
        }
        TreeTimes { first_s, busiest_s: total.into_iter().fold(0.0, f64::max) }
    }
}

impl OverlayChoice {
    /// The overlay of a keyed reduction from copies on `senders` to those on `targets`, where a message is what a
    /// worker has for all of them. On one host a tree gains nothing: all workers reach each other at once.
    pub(crate) fn choose_keyed(self, senders: &[u32], targets: &[u32], network: &WorkerNetwork) -> Overlay {
        let on: BTreeSet<u32> = senders.iter().chain(targets).map(|&worker| network.hosts[worker as usize]).collect();
        let candidates = if on.len() == 1 { &CANDIDATES[..1] } else { &CANDIDATES[..] };
        let workers: BTreeSet<u32> = senders.iter().copied().collect();
        let workers: Vec<u32> = workers.into_iter().collect();
        self.cheapest(candidates, |overlay, bytes| {
            let trees = KeyedTrees::new(overlay, &workers, targets, &network.hosts);
            trees.times(&workers, targets, network, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidemill_collective::tuner::CostModel;

    use super::super::MESSAGE_BYTES;
    use super::*;

    fn overlays() -> Vec<Overlay> {
        let shapes = [Shape::Flat, Shape::Binomial];
        let levels = shapes.into_iter().flat_map(|hosts| shapes.map(|workers| Overlay::Levels { hosts, workers }));
        [Overlay::Serial, Overlay::Flat, Overlay::Binomial].into_iter().chain(levels).collect()
    }

    proptest! {
        /// Finds a row that does not arrive, or goes to a worker without a stream from its sender; and a host that
        /// sends the rows of a copy to another one more than once.
        #[test]
        fn every_row_arrives_and_leaves_a_host_once(
            hosts in prop::collection::vec(0u32..6, 1..20),
            senders in prop::collection::vec(0usize..20, 1..20), targets in prop::collection::vec(0usize..20, 1..20),
        ) {
            let of = |picks: &[usize]| picks.iter().map(|at| (at % hosts.len()) as u32).collect::<Vec<u32>>();
            let (senders, targets) = (of(&senders), of(&targets));
            for overlay in overlays() {
                let trees = KeyedTrees::new(overlay, &senders, &targets, &hosts);
                for &target in &targets {
                    let mut have: BTreeSet<u32> = senders.iter().copied().collect();
                    let mut crossings = BTreeSet::new();
                    for step in 0..trees.steps() {
                        let mut next_have = BTreeSet::new();
                        for &worker in &have {
                            let next = trees.next(step, worker, target);
                            prop_assert!(trees.reach(step, worker).contains(&next), "{overlay}");
                            prop_assert!(trees.combining(step).contains(&next), "{overlay}");
                            let (from, to) = (hosts[worker as usize], hosts[next as usize]);
                            let is_new = from == to || crossings.insert((from, to));
                            prop_assert!(is_new || overlay == Overlay::Serial, "{overlay}: twice from {from} to {to}");
                            next_have.insert(next);
                        }
                        have = next_have;
                    }
                    prop_assert_eq!(have, BTreeSet::from([target]), "{}", overlay);
                }
            }
        }
    }

    fn chosen(hosts: u32, near: u32, bytes: u64) -> Overlay {
        let all: Vec<u32> = (0..hosts * near).collect();
        let hosts = all.iter().map(|worker| worker / near).collect();
        let network = WorkerNetwork { hosts, model: CostModel::TYPICAL };
        OverlayChoice::ForMessages(bytes).choose_keyed(&all, &all, &network)
    }

    /// With few senders another stage costs more than it saves; small messages of many are all overhead; large ones go
    /// between hosts as rarely as possible.
    #[test]
    fn size_and_number_decide() {
        assert_eq!(chosen(1, 16, MESSAGE_BYTES), Overlay::Serial);
        assert_eq!(chosen(2, 1, MESSAGE_BYTES), Overlay::Serial);
        assert!(matches!(chosen(8, 8, MESSAGE_BYTES), Overlay::Flat | Overlay::Levels { .. }));
        assert!(matches!(chosen(64, 4, 1 << 10), Overlay::Levels { hosts: Shape::Binomial, .. } | Overlay::Binomial));
        assert!(matches!(chosen(64, 4, 64 << 20), Overlay::Flat | Overlay::Levels { hosts: Shape::Flat, .. }));
    }

    /// In a step of a binomial tree a worker sends to at most one other, wherever the copies are.
    #[test]
    fn steps_of_a_binomial_tree_are_narrow() {
        for workers in [2, 3, 7, 16] {
            let all: Vec<u32> = (0..workers).collect();
            let trees = KeyedTrees::new(Overlay::Binomial, &all, &all, &all);
            assert_eq!(trees.steps(), (workers as f64).log2().ceil() as usize);
            for step in 0..trees.steps() {
                let others = |&worker: &u32| trees.reach(step, worker).iter().filter(|to| **to != worker).count();
                assert!(all.iter().map(others).all(|count| count <= 1), "{workers} {step}");
            }
        }
    }
}
