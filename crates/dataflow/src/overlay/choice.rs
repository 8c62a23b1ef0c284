//! Which overlay an edge has that does not say: the cheapest by the tuner's cost model, for messages of a size that is
//! guessed or told. What really goes along an edge is not known before it runs, and an edge does not change its tree.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use tidemill_collective::tuner::CostModel;

use super::{Overlay, Shape, WorkerTree};

/// How large a message is taken to be, unless told.
pub const MESSAGE_BYTES: u64 = 16 << 10;
/// How many are taken to follow each other without a pause: with one alone only latency would count, with very many
/// only the busiest link.
const MESSAGES: f64 = 4.0;
/// In the order in which they are preferred where they cost the same.
const CANDIDATES: [Overlay; 7] = [
    Overlay::Binomial,
    Overlay::Binary,
    Overlay::Levels { hosts: Shape::Binomial, workers: Shape::Flat },
    Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binary },
    Overlay::Flat,
    Overlay::Ring,
    Overlay::Chain,
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
    /// The overlay from or to `root` and `members`; `hosts` has the host of every worker. The same on every worker.
    pub fn choose(self, root: u32, members: &[u32], hosts: &[u32]) -> Overlay {
        let bytes = match self {
            OverlayChoice::Set(overlay) => return overlay,
            OverlayChoice::ForMessages(bytes) => bytes as f64,
        };
        let cost = |overlay: &Overlay| cost_s(&overlay.tree(root, members, hosts), root, hosts, bytes);
        let costs = CANDIDATES.map(|overlay| (cost(&overlay), overlay));
        costs.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are candidates").1
    }

    /// The same in words, with why.
    pub(crate) fn explain(self, root: u32, members: &[u32], hosts: &[u32]) -> String {
        let overlay = self.choose(root, members, hosts);
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
/// other what the busiest worker or link is busy with one. Workers of a host share its link.
fn cost_s(tree: &WorkerTree, root: u32, hosts: &[u32], bytes: f64) -> f64 {
    let model = CostModel::TYPICAL;
    let (near, far) = (model.same_host, model.other_host);
    let hosts_end = hosts.iter().max().map_or(0, |&host| host as usize + 1);
    // When the link of each host is free again; how long it, and each worker, is busy with a message.
    let (mut free_s, mut link_s) = (vec![0.0f64; hosts_end], vec![0.0f64; hosts_end]);
    let mut worker_s = vec![0.0f64; hosts.len()];
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
    let busiest_s = link_s.iter().chain(&worker_s).fold(0.0f64, |most, &busy_s| most.max(busy_s));
    last_s + (MESSAGES - 1.0) * busiest_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(hosts: u32, workers: u32, bytes: u64) -> Overlay {
        let all: Vec<u32> = (0..hosts * workers).collect();
        let hosts: Vec<u32> = all.iter().map(|worker| worker / workers).collect();
        OverlayChoice::ForMessages(bytes).choose(0, &all, &hosts)
    }

    /// Where nothing differs, nothing changes; large messages go where no link carries them often; small ones where
    /// few follow each other.
    #[test]
    fn size_decides() {
        assert_eq!(chosen(1, 2, MESSAGE_BYTES), Overlay::Binomial);
        assert_eq!(chosen(2, 1, 100), Overlay::Binomial);
        assert!(matches!(chosen(8, 4, 64 << 20), Overlay::Binary | Overlay::Chain | Overlay::Ring));
        assert!(!matches!(chosen(8, 4, 100), Overlay::Chain | Overlay::Ring));
        assert!(!matches!(chosen(64, 4, MESSAGE_BYTES), Overlay::Flat | Overlay::Chain));
    }

    #[test]
    fn a_choice_says_why() {
        let all = [0, 1, 2, 3];
        let text = OverlayChoice::default().explain(0, &all, &[0, 0, 1, 1]);
        assert!(text.ends_with(", chosen for messages of 16384 bytes between 4 workers on 2 hosts"), "{text}");
        assert_eq!(OverlayChoice::Set(Overlay::Ring).explain(0, &all, &[0; 4]), "along ring, as set");
    }
}
