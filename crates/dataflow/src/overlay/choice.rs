//! Which overlay an edge has that does not say: the cheapest by the tuner's cost model, for links as they were measured
//! and messages of a size and at a rate that are guessed or told. What really goes along an edge is not known before it
//! runs, and an edge does not change its tree.
//!
//! At a rate that is known, the best overlay is the one with the lowest latency of those that keep up: the time of one
//! message, and the time it waits behind others for the busiest worker or link. Where none keeps up, it is the one that
//! carries most. So lone messages take a tree, and many a chain or two trees.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::{Overlay, Shape, WorkerNetwork, WorkerTree};

/// How large a message is taken to be, unless told.
pub const MESSAGE_BYTES: u64 = 16 << 10;
/// How many are taken to follow each other without a pause: with one alone only latency would count, with very many
/// only the busiest link.
const MESSAGES: f64 = 4.0;
/// In the order in which they are preferred where they cost the same; the last one for broadcasts alone.
const CANDIDATES: [Overlay; 8] = [
    Overlay::Binomial,
    Overlay::Binary,
    Overlay::Levels { hosts: Shape::Binomial, workers: Shape::Flat },
    Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binary },
    Overlay::Flat,
    Overlay::Ring,
    Overlay::Chain,
    Overlay::Double,
];

/// What is known of an edge's overlay before it is known where its copies run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayChoice {
    /// This one.
    Set(Overlay),
    /// The cheapest for messages of about so many bytes, some of which follow each other.
    ForMessages(u64),
    /// The one with the lowest latency for messages that come at about this rate.
    ForRate {
        /// Bytes of a message.
        bytes: u64,
        /// Messages in a second; 0: each has come through when the next one comes.
        per_s: u64,
    },
}

impl Default for OverlayChoice {
    fn default() -> Self {
        OverlayChoice::ForMessages(MESSAGE_BYTES)
    }
}

impl OverlayChoice {
    /// The overlay from `root` to `members`. The same on every worker.
    pub fn choose(self, root: u32, members: &[u32], network: &WorkerNetwork) -> Overlay {
        self.choose_among(&CANDIDATES, root, members, network)
    }

    /// The overlay from `members` to `root`, and perhaps back: one that is a single tree, unless another was set.
    pub fn choose_upward(self, root: u32, members: &[u32], network: &WorkerNetwork) -> Overlay {
        self.choose_among(&CANDIDATES[..CANDIDATES.len() - 1], root, members, network)
    }

    fn choose_among(self, candidates: &[Overlay], root: u32, members: &[u32], network: &WorkerNetwork) -> Overlay {
        self.cheapest(candidates, |overlay, bytes| {
            TreeTimes::of(&overlay.trees(root, members, &network.hosts), root, network, bytes)
        })
    }

    /// The one of `candidates` along which messages take least; `times` says what one of so many bytes takes. The first
    /// of those that cost the same.
    pub(super) fn cheapest(self, candidates: &[Overlay], times: impl Fn(Overlay, f64) -> TreeTimes) -> Overlay {
        let (bytes, per_s) = match self {
            OverlayChoice::Set(overlay) => return overlay,
            OverlayChoice::ForMessages(bytes) => (bytes, None),
            OverlayChoice::ForRate { bytes, per_s } => (bytes, Some(per_s as f64)),
        };
        let cost = |&overlay: &Overlay| {
            let times = times(overlay, bytes as f64);
            per_s.map_or((0.0, times.last_of_some_s()), |per_s| times.at_rate(per_s))
        };
        let costs = candidates.iter().map(|overlay| (cost(overlay), *overlay));
        let cheaper = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        costs.min_by(|a, b| cheaper(&a.0, &b.0)).expect("there are candidates").1
    }

    /// The overlay that was chosen, with why.
    pub(crate) fn explain(self, overlay: Overlay, root: u32, members: &[u32], hosts: &[u32]) -> String {
        let messages = match self {
            OverlayChoice::Set(_) => return format!("along {overlay}, as set"),
            OverlayChoice::ForMessages(bytes) => format!("messages of {bytes} bytes"),
            OverlayChoice::ForRate { bytes, per_s: 0 } => format!("lone messages of {bytes} bytes"),
            OverlayChoice::ForRate { bytes, per_s } => format!("{per_s} messages of {bytes} bytes a second"),
        };
        let part: BTreeSet<u32> = members.iter().copied().chain([root]).collect();
        let on: BTreeSet<u32> = part.iter().map(|&worker| hosts[worker as usize]).collect();
        let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (workers, hosts) = (plural(part.len(), "worker"), plural(on.len(), "host"));
        format!("along {overlay}, chosen for {messages} between {workers} on {hosts}")
    }

    /// What the description of an exchange says of it: nothing, unless it was set.
    pub(crate) fn describe(self) -> String {
        match self {
            OverlayChoice::Set(overlay) => format!(" along {overlay}"),
            OverlayChoice::ForMessages(MESSAGE_BYTES) => String::new(),
            OverlayChoice::ForMessages(bytes) => format!(" of messages of {bytes} bytes"),
            OverlayChoice::ForRate { bytes, per_s } => format!(" of {per_s} messages of {bytes} bytes a second"),
        }
    }
}

/// What a message takes along some trees.
pub(super) struct TreeTimes {
    /// Seconds until everybody has a message that nothing goes before.
    pub(super) first_s: f64,
    /// Seconds that the busiest worker or link is busy with a message.
    pub(super) busiest_s: f64,
}

impl TreeTimes {
    /// Workers of a host share its link; several trees share all.
    fn of(trees: &[WorkerTree], root: u32, network: &WorkerNetwork, bytes: f64) -> Self {
        let hosts = &network.hosts;
        let hosts_end = hosts.iter().max().map_or(0, |&host| host as usize + 1);
        // How long each worker, and the link of each host, is busy with a message of each tree.
        let mut busy = (vec![0.0f64; hosts.len()], vec![0.0f64; hosts_end]);
        let first_s = trees.iter().map(|tree| first_s(tree, root, network, bytes, &mut busy)).fold(0.0, f64::max);
        let busiest_s = busy.0.iter().chain(&busy.1).fold(0.0f64, |most, &busy_s| most.max(busy_s));
        TreeTimes { first_s, busiest_s: busiest_s / trees.len() as f64 }
    }

    /// Seconds until everybody has the last of some messages that follow each other.
    fn last_of_some_s(&self) -> f64 {
        self.first_s + (MESSAGES - 1.0) * self.busiest_s
    }

    /// By how much messages at this rate are too many, in the rate that can be carried; and seconds until everybody has
    /// one, with the wait of a queue whose server always takes the same time (M/D/1).
    fn at_rate(&self, per_s: f64) -> (f64, f64) {
        let load = self.busiest_s * per_s;
        if load >= 1.0 {
            return (load, self.first_s);
        }
        (0.0, self.first_s + self.busiest_s * load / (2.0 * (1.0 - load)))
    }
}

/// Seconds until everybody has a message that nothing goes before; adds what workers and links are busy with it.
fn first_s(
    tree: &WorkerTree,
    root: u32,
    WorkerNetwork { hosts, model }: &WorkerNetwork,
    bytes: f64,
    (worker_s, link_s): &mut (Vec<f64>, Vec<f64>),
) -> f64 {
    let (near, far) = (model.same_host, model.other_host);
    // When the link of each host is free again.
    let mut free_s = vec![0.0f64; link_s.len()];
    let mut last_s = 0.0f64;
    // Who has it first sends first. Times of this sign are in order as their bits are.
    let mut waiting = BinaryHeap::from([Reverse((0u64, root))]);
    while let Some(Reverse((at, worker))) = waiting.pop() {
        let (mut now_s, host) = (f64::from_bits(at), hosts[worker as usize] as usize);
        last_s = last_s.max(now_s);
        for &child in &tree.children[worker as usize] {
            let is_near = hosts[child as usize] as usize == host;
            let link = if is_near { near } else { far };
            let transmission_s = bytes * link.per_byte_s;
            now_s += link.overhead_s;
            worker_s[worker as usize] += link.overhead_s;
            worker_s[child as usize] += link.overhead_s;
            let sent_s = if is_near {
                now_s += transmission_s;
                worker_s[worker as usize] += transmission_s;
                now_s
            } else {
                free_s[host] = now_s.max(free_s[host]) + transmission_s;
                link_s[host] += transmission_s;
                free_s[host]
            };
            waiting.push(Reverse(((sent_s + link.latency_s + link.overhead_s).to_bits(), child)));
        }
    }
    last_s
}

#[cfg(test)]
mod tests {
    use tidemill_collective::tuner::{CostModel, LinkCost};

    use super::*;

    fn network(hosts: Vec<u32>) -> WorkerNetwork {
        WorkerNetwork { hosts, model: CostModel::TYPICAL }
    }

    fn all_and_network(hosts: u32, workers: u32) -> (Vec<u32>, WorkerNetwork) {
        let all: Vec<u32> = (0..hosts * workers).collect();
        let hosts = all.iter().map(|worker| worker / workers).collect();
        (all, network(hosts))
    }

    fn chosen(hosts: u32, workers: u32, bytes: u64) -> Overlay {
        let (all, network) = all_and_network(hosts, workers);
        OverlayChoice::ForMessages(bytes).choose(0, &all, &network)
    }

    /// On a slow link a message is large that is small on a fast one.
    #[test]
    fn links_decide() {
        let (all, mut network) = all_and_network(8, 4);
        let chosen = |network: &WorkerNetwork| OverlayChoice::ForMessages(2 << 10).choose_upward(0, &all, network);
        assert!(!matches!(chosen(&network), Overlay::Ring | Overlay::Chain), "{}", chosen(&network));
        network.model.other_host = LinkCost { per_byte_s: 1e-5, ..network.model.other_host };
        assert!(matches!(chosen(&network), Overlay::Binary | Overlay::Ring | Overlay::Chain), "{}", chosen(&network));
    }

    /// Where nothing differs, nothing changes; large messages go where no link carries them often; small ones where
    /// few follow each other.
    #[test]
    fn size_decides() {
        assert_eq!(chosen(1, 2, MESSAGE_BYTES), Overlay::Binomial);
        assert_eq!(chosen(2, 1, 100), Overlay::Binomial);
        assert!(matches!(chosen(8, 4, 64 << 20), Overlay::Double | Overlay::Chain));
        assert!(!matches!(chosen(8, 4, 100), Overlay::Chain | Overlay::Ring));
        assert!(!matches!(chosen(64, 4, MESSAGE_BYTES), Overlay::Flat | Overlay::Chain));
    }

    /// A chain is slow for a message alone; a tree from which a worker sends thrice carries a third.
    #[test]
    fn the_rate_decides() {
        let (all, network) = all_and_network(16, 2);
        let times = |overlay: Overlay, bytes: u64| {
            TreeTimes::of(&overlay.trees(0, &all, &network.hosts), 0, &network, bytes as f64)
        };
        let at = |bytes, per_s| OverlayChoice::ForRate { bytes, per_s }.choose(0, &all, &network);
        let bytes = 256 << 10;
        let lone = at(bytes, 0);
        assert!(!matches!(lone, Overlay::Chain | Overlay::Ring | Overlay::Flat), "{lone}");
        let first_s = |overlay| times(overlay, bytes).first_s;
        assert!(CANDIDATES.iter().all(|&other| first_s(lone) <= first_s(other)), "{lone}");
        // Nearly what a link carries, which only those keep up with that send once.
        let link_s = bytes as f64 * network.model.other_host.per_byte_s;
        let many = at(bytes, (0.9 / link_s) as u64);
        assert!(matches!(many, Overlay::Chain | Overlay::Double), "{many}");
        assert!(times(many, bytes).first_s > first_s(lone));
        // More than anything carries: what carries most.
        let most = at(bytes, (100.0 / link_s) as u64);
        assert!(
            CANDIDATES.iter().all(|&other| times(most, bytes).busiest_s <= times(other, bytes).busiest_s),
            "{most}"
        );
        // Of those that keep up the fastest: with some idle time between messages a tree does.
        let some = at(bytes, (0.2 / link_s) as u64);
        assert!(times(some, bytes).first_s < times(Overlay::Chain, bytes).first_s, "{some}");
    }

    #[test]
    fn a_choice_says_why() {
        let all = [0, 1, 2, 3];
        let text = OverlayChoice::default().explain(Overlay::Flat, 0, &all, &[0, 0, 1, 1]);
        assert_eq!(text, "along flat, chosen for messages of 16384 bytes between 4 workers on 2 hosts");
        let rate = OverlayChoice::ForRate { bytes: 100, per_s: 5000 }.explain(Overlay::Chain, 0, &all, &[0, 0, 1, 1]);
        assert_eq!(rate, "along chain, chosen for 5000 messages of 100 bytes a second between 4 workers on 2 hosts");
        let set = OverlayChoice::Set(Overlay::Ring);
        assert_eq!(set.explain(Overlay::Ring, 0, &all, &[0; 4]), "along ring, as set");
    }
}
