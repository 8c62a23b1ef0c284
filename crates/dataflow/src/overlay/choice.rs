//! Which overlay an edge has that does not say: the cheapest by the tuner's cost model, for links as they were measured
//! and messages of a size that is guessed or told. What really goes along an edge is not known before it runs, and an
//! edge does not change its tree.

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
    /// The cheapest for messages of about so many bytes.
    ForMessages(u64),
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
        let bytes = match self {
            OverlayChoice::Set(overlay) => return overlay,
            OverlayChoice::ForMessages(bytes) => bytes as f64,
        };
        let cost = |overlay: &Overlay| cost_s(&overlay.trees(root, members, &network.hosts), root, network, bytes);
        let costs = candidates.iter().map(|overlay| (cost(overlay), *overlay));
        costs.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are candidates").1
    }

    /// The overlay that was chosen, with why.
    pub(crate) fn explain(self, overlay: Overlay, root: u32, members: &[u32], hosts: &[u32]) -> String {
        let OverlayChoice::ForMessages(bytes) = self else { return format!("along {overlay}, as set") };
        let part: BTreeSet<u32> = members.iter().copied().chain([root]).collect();
        let on: BTreeSet<u32> = part.iter().map(|&worker| hosts[worker as usize]).collect();
        let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (workers, hosts) = (plural(part.len(), "worker"), plural(on.len(), "host"));
        format!("along {overlay}, chosen for messages of {bytes} bytes between {workers} on {hosts}")
    }

    /// What the description of an exchange says of it: nothing, unless it was set.
    pub(crate) fn describe(self) -> String {
        match self {
            OverlayChoice::Set(overlay) => format!(" along {overlay}"),
            OverlayChoice::ForMessages(MESSAGE_BYTES) => String::new(),
            OverlayChoice::ForMessages(bytes) => format!(" of messages of {bytes} bytes"),
        }
    }
}

/// Seconds until everybody has the last of some messages that follow each other: the time the first takes, and for each
/// other what the busiest worker or link is busy with one. Workers of a host share its link; several trees share all.
fn cost_s(trees: &[WorkerTree], root: u32, network: &WorkerNetwork, bytes: f64) -> f64 {
    let hosts = &network.hosts;
    let hosts_end = hosts.iter().max().map_or(0, |&host| host as usize + 1);
    // How long each worker, and the link of each host, is busy with a message of each tree.
    let mut busy = (vec![0.0f64; hosts.len()], vec![0.0f64; hosts_end]);
    let first_s = trees.iter().map(|tree| first_s(tree, root, network, bytes, &mut busy)).fold(0.0, f64::max);
    let busiest_s = busy.0.iter().chain(&busy.1).fold(0.0f64, |most, &busy_s| most.max(busy_s)) / trees.len() as f64;
    first_s + (MESSAGES - 1.0) * busiest_s
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

    #[test]
    fn a_choice_says_why() {
        let all = [0, 1, 2, 3];
        let text = OverlayChoice::default().explain(Overlay::Flat, 0, &all, &[0, 0, 1, 1]);
        assert_eq!(text, "along flat, chosen for messages of 16384 bytes between 4 workers on 2 hosts");
        let set = OverlayChoice::Set(Overlay::Ring);
        assert_eq!(set.explain(Overlay::Ring, 0, &all, &[0; 4]), "along ring, as set");
    }
}
