//! What workers do along the tree of the control plane, as programs: meet, learn of a loss, report a checkpoint.
//!
//! | program        | contents                                                                                    |
//! |----------------|---------------------------------------------------------------------------------------------|
//! | [`rendezvous`] | all join at rank 0, then at their parents; all cards go up the tree, then down     |
//! | [`loss`]       | news from rank 0 goes down the tree                                                         |
//! | [`checkpoint`] | reports of all copies are added up along the tree; then the commit of the epoch goes down   |

use tidemill_net::Rank;
use tidemill_net::control::ControlTree;

use crate::program::{Program, ProgramMessage};

/// The length of a handshake message with its headers; each side sends two.
const HANDSHAKE_BYTES: f64 = 400.0;
/// The length of a message of news.
const NEWS_BYTES: f64 = 100.0;
/// The length of one copy's report.
const REPORT_BYTES: f64 = 300.0;

/// How much processor time control messages take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlRates {
    /// To accept a connection and verify its proof.
    pub handshake_s: f64,
    /// To add one of the reports in a message to a checkpoint.
    pub report_s: f64,
    /// To combine a report with others and pass it on.
    pub pass_s: f64,
}

impl Default for ControlRates {
    /// Round numbers for one core. Those for reports with a part of state follow measurements (`examples/reports.rs`
    /// of `tidemill-checkpoint`); the one for handshakes does not.
    fn default() -> Self {
        ControlRates { handshake_s: 50e-6, report_s: 1.5e-6, pass_s: 1.5e-6 }
    }
}

/// The rounds of one worker.
type Rounds = Vec<(Vec<ProgramMessage>, f64)>;

/// A worker's place in the tree.
struct Place {
    parent: Option<u32>,
    children: Vec<u32>,
}

/// A program with a part for each worker.
fn program(tree: &ControlTree, part: impl Fn(u32, &Place) -> Rounds) -> Program {
    let mut program = Program::default();
    for rank in 0..tree.size() {
        let parent = tree.parent(Rank(rank)).map(|parent| parent.0);
        let place = Place { parent, children: tree.children(Rank(rank)).map(|child| child.0).collect() };
        program.push_rounds(part(rank, &place));
    }
    program
}

/// The number of workers in the subtree of `rank`.
fn subtree_len(tree: &ControlTree, rank: u32) -> f64 {
    tree.subtree(Rank(rank)).len() as f64
}

/// Up the tree: `bytes` of each worker, on each of which rank 0 spends `root_s` and the others spend `pass_s`.
fn up(tree: &ControlTree, rank: u32, place: &Place, bytes: f64, (pass_s, root_s): (f64, f64)) -> Rounds {
    let from = place.children.iter().map(|&child| ProgramMessage::received(child, bytes * subtree_len(tree, child)));
    let work_s = if rank == 0 { root_s } else { pass_s } * (subtree_len(tree, rank) - 1.0);
    let mut rounds = vec![(from.collect(), work_s)];
    let sent = |parent| ProgramMessage::sent(parent, bytes * subtree_len(tree, rank));
    rounds.extend(place.parent.map(|parent| (vec![sent(parent)], 0.0)));
    rounds
}

/// Down the tree: the same bytes to all.
fn down(place: &Place, bytes: f64) -> Rounds {
    let from = place.parent.map(|parent| (vec![ProgramMessage::received(parent, bytes)], 0.0));
    let to = place.children.iter().map(|&child| ProgramMessage::sent(child, bytes)).collect();
    from.into_iter().chain([(to, 0.0)]).collect()
}

/// A caller's or an answerer's part of handshakes; each takes the answerer `handshake_s`.
fn handshakes(callers: &[u32], answerer: Option<u32>, handshake_s: f64) -> Rounds {
    let ask = |rank| ProgramMessage::sent(rank, HANDSHAKE_BYTES);
    let hear = |rank| ProgramMessage::received(rank, HANDSHAKE_BYTES);
    match answerer {
        Some(answerer) => vec![(vec![ask(answerer)], 0.0), (vec![hear(answerer)], 0.0)],
        None => vec![
            (callers.iter().map(|&rank| hear(rank)).collect(), handshake_s * callers.len() as f64),
            (callers.iter().map(|&rank| ask(rank)).collect(), 0.0),
        ],
    }
}

/// All workers meet, and each receives a card of `card_bytes` from every other.
pub(crate) fn rendezvous(tree: &ControlTree, card_bytes: f64, rates: &ControlRates) -> Program {
    let size = tree.size();
    program(tree, |rank, place| {
        let all: Vec<u32> = (1..size).collect();
        let mut rounds = handshakes(&all, (rank > 0).then_some(0), rates.handshake_s);
        // A worker whose parent is not rank 0 calls its parent next.
        if place.parent.is_some_and(|parent| parent > 0) {
            rounds.append(&mut handshakes(&[], place.parent, rates.handshake_s));
        }
        if rank > 0 && !place.children.is_empty() {
            rounds.append(&mut handshakes(&place.children, None, rates.handshake_s));
        }
        rounds.append(&mut up(tree, rank, place, card_bytes, (0.0, 0.0)));
        rounds.append(&mut down(place, card_bytes * f64::from(size)));
        rounds
    })
}

/// All workers learn of something from rank 0.
pub(crate) fn loss(tree: &ControlTree) -> Program {
    program(tree, |_, place| down(place, NEWS_BYTES))
}

/// Each worker reports for `copies` copies, and learns that the epoch is durable.
pub(crate) fn checkpoint(tree: &ControlTree, copies: f64, rates: &ControlRates) -> Program {
    program(tree, |rank, place| {
        let work_s = (rates.pass_s * copies, rates.report_s * copies);
        let mut rounds = up(tree, rank, place, REPORT_BYTES * copies, work_s);
        rounds.append(&mut down(place, NEWS_BYTES));
        rounds
    })
}

#[cfg(test)]
mod tests {
    use tidemill_collective::tuner::TuneTable;

    use crate::{Cluster, CostModel, Workload, WorkloadKind};

    fn end_s(kind: WorkloadKind, workers: u32, fanout: Option<u32>) -> f64 {
        let cluster = Cluster::even(workers, workers.div_ceil(16), 1).unwrap();
        let outcome = Workload { fanout, ..Workload::new(kind) }.run(&cluster, &TuneTable::default()).unwrap();
        outcome.end_s.iter().copied().fold(0.0, f64::max)
    }

    /// If a tree did not end, or was slower than the star where it matters, this simulator would give wrong advice.
    #[test]
    fn trees_beat_the_star_beyond_256_workers() {
        for workers in [1u32, 2, 17, 256, 300, 4096] {
            let star = Some(workers.saturating_sub(1).max(1));
            for kind in [WorkloadKind::Rendezvous, WorkloadKind::Loss, WorkloadKind::Checkpoint] {
                let (tree_s, star_s) = (end_s(kind, workers, None), end_s(kind, workers, star));
                assert!(if workers <= 256 { tree_s == star_s } else { tree_s < star_s }, "{kind:?}, {workers}");
            }
        }
    }

    /// Sending news to all workers in turn takes the sender as long as all its messages.
    #[test]
    fn a_star_takes_as_long_as_its_messages() {
        let messages_s = 1000.0 * CostModel::TYPICAL.other_host.overhead_s;
        let star_s = end_s(WorkloadKind::Loss, 1001, Some(1000));
        assert!((0.9 * messages_s..1.1 * messages_s).contains(&star_s), "{star_s}");
    }
}
