//! What workers do along the tree of the control plane, as programs: meet, learn of a loss, report a checkpoint.
//!
//! | program        | contents                                                                                    |
//! |----------------|---------------------------------------------------------------------------------------------|
//! | [`rendezvous`] | all prove themselves to rank 0 and join their parents; all cards go up the tree, then down  |
//! | [`loss`]       | news from rank 0 goes down the tree                                                         |
//! | [`checkpoint`] | reports of all copies are added up along the tree; then the commit of the epoch goes down   |

use tidemill_collective::tuner::{CostModel, LinkCost};
use tidemill_net::Rank;
use tidemill_net::control::ControlTree;

use crate::program::{Program, ProgramMessage};

/// The length of a handshake message with its headers; each side sends two.
const HANDSHAKE_BYTES: f64 = 400.0;
/// The length of a message of news.
const NEWS_BYTES: f64 = 100.0;
/// The length of one copy's report.
const REPORT_BYTES: f64 = 300.0;

/// How many other workers rank 0 admits before it looks for the next message of one that it has admitted: longer than
/// that worker takes to send it. In a job, rank 0 takes messages as they come.
const ADMITTED_MEANWHILE: u32 = 64;

/// How much processor time control messages take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlRates {
    /// To send or receive a small message, also one to a worker of the same host.
    pub message_s: f64,
    /// To accept a connection and verify its proof.
    pub handshake_s: f64,
    /// To add one of the reports in a message to a checkpoint.
    pub report_s: f64,
    /// To combine a report with others and pass it on.
    pub pass_s: f64,
}

impl Default for ControlRates {
    /// Round numbers for one core. Those for reports with a part of state follow measurements (`examples/reports.rs`
    /// of `tidemill-checkpoint`), the others those of `tidemill tune --links` on one machine.
    fn default() -> Self {
        ControlRates { message_s: 3e-6, handshake_s: 50e-6, report_s: 1.5e-6, pass_s: 1.5e-6 }
    }
}

/// The costs of messages of the control plane: connections of its own, within a host, too.
pub(crate) fn model(model: &CostModel, rates: &ControlRates) -> CostModel {
    let small = |link: LinkCost| LinkCost { overhead_s: rates.message_s, ..link };
    let (near, far) = (small(model.loopback), small(model.other_host));
    CostModel { same_host: near, loopback: near, other_host: far, ..*model }
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

fn sent(to: u32, bytes: f64) -> (Vec<ProgramMessage>, f64) {
    (vec![ProgramMessage::sent(to, bytes)], 0.0)
}

fn received(from: u32, bytes: f64) -> (Vec<ProgramMessage>, f64) {
    (vec![ProgramMessage::received(from, bytes)], 0.0)
}

/// The answerer's part of a handshake.
fn answered(caller: u32, handshake_s: f64) -> Rounds {
    let ask = vec![ProgramMessage::received(caller, HANDSHAKE_BYTES)];
    vec![(ask, handshake_s), sent(caller, HANDSHAKE_BYTES)]
}

/// Rank 0's part of joining; see `tidemill_net::rendezvous`.
fn admit_all(tree: &ControlTree, rates: &ControlRates) -> Rounds {
    let size = tree.size();
    let place = |rank: u32| (tree.parent(Rank(rank)).map_or(0, |parent| parent.0), subtree_len(tree, rank) > 1.0);
    let mut rounds = Rounds::new();
    for step in 1..size + 2 * ADMITTED_MEANWHILE {
        if let Some(rank) = step.checked_sub(ADMITTED_MEANWHILE).filter(|rank| (1..size).contains(rank))
            && place(rank).1
        {
            rounds.push(received(rank, NEWS_BYTES));
            let waiting = tree.children(Rank(rank)).filter(|child| child.0 < step);
            rounds.extend(waiting.map(|child| sent(child.0, NEWS_BYTES)));
        }
        if step < size {
            rounds.extend(answered(step, rates.handshake_s));
            let (parent, _) = place(step);
            if parent > 0 && parent + ADMITTED_MEANWHILE <= step {
                rounds.push(sent(step, NEWS_BYTES));
            }
        }
        if let Some(rank) = step.checked_sub(2 * ADMITTED_MEANWHILE).filter(|rank| (1..size).contains(rank))
            && let (parent, false) = place(rank)
            && parent > 0
        {
            rounds.push(received(rank, NEWS_BYTES));
        }
    }
    rounds.extend((1..size).filter(|&rank| place(rank).1).map(|rank| received(rank, NEWS_BYTES)));
    let kept = |&rank: &u32| place(rank).0 == 0 || place(rank).1;
    rounds.extend((1..size).filter(kept).map(|rank| sent(rank, NEWS_BYTES)));
    rounds
}

/// The others' part of joining.
fn join(tree: &ControlTree, place: &Place, rates: &ControlRates) -> Rounds {
    let is_inner = !place.children.is_empty();
    let parent = place.parent.filter(|&parent| parent > 0);
    let mut rounds = vec![sent(0, HANDSHAKE_BYTES), received(0, HANDSHAKE_BYTES)];
    if is_inner {
        rounds.push(sent(0, NEWS_BYTES));
    }
    if let Some(parent) = parent {
        rounds.push(received(0, NEWS_BYTES));
        rounds.extend([sent(parent, HANDSHAKE_BYTES), received(parent, HANDSHAKE_BYTES)]);
    }
    rounds.extend(place.children.iter().flat_map(|&child| answered(child, rates.handshake_s)));
    if is_inner || parent.is_some() {
        rounds.push(sent(0, NEWS_BYTES));
    }
    // A leaf has no connection to rank 0 any more, and is told by its parent.
    rounds.push(received(if is_inner { 0 } else { parent.unwrap_or(0) }, NEWS_BYTES));
    let leaves = place.children.iter().filter(|&&child| subtree_len(tree, child) == 1.0);
    rounds.extend(leaves.map(|&leaf| sent(leaf, NEWS_BYTES)));
    rounds
}

/// All workers meet, and each receives a card of `card_bytes` from every other.
pub(crate) fn rendezvous(tree: &ControlTree, card_bytes: f64, rates: &ControlRates) -> Program {
    let size = tree.size();
    program(tree, |rank, place| {
        let mut rounds = if rank == 0 { admit_all(tree, rates) } else { join(tree, place, rates) };
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

    use super::ControlRates;
    use crate::{Cluster, WorkRates, Workload, WorkloadKind};

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
        let messages_s = 1000.0 * ControlRates::default().message_s;
        let star_s = end_s(WorkloadKind::Loss, 1001, Some(1000));
        assert!((0.9 * messages_s..1.1 * messages_s).contains(&star_s), "{star_s}");
    }

    /// A measured cost that did not reach the simulator would leave the constant in its place.
    #[test]
    fn what_messages_and_handshakes_take_are_parameters() {
        let run = |kind, control| {
            let cluster = Cluster::even(1001, 63, 1).unwrap();
            let rates = WorkRates { control, ..WorkRates::default() };
            let workload = Workload { fanout: Some(1000), rates, ..Workload::new(kind) };
            let outcome = workload.run(&cluster, &TuneTable::default()).unwrap();
            outcome.end_s.iter().copied().fold(0.0, f64::max)
        };
        let control = |message_s, handshake_s| ControlRates { message_s, handshake_s, ..ControlRates::default() };
        let news_s = run(WorkloadKind::Loss, control(30e-6, 50e-6));
        assert!((0.95 * 30e-3..1.05 * 30e-3).contains(&news_s), "{news_s}");
        let [short_s, long_s] = [50e-6, 500e-6].map(|s| run(WorkloadKind::Rendezvous, control(3e-6, s)));
        assert!((0.4..0.5).contains(&(long_s - short_s)), "{short_s}, {long_s}");
    }
}
