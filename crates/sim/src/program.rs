//! The schedules of all workers, packed: who sends how many bytes to whom in which round, and what local work follows.
//!
//! A schedule names buffers and places in them, which cost nothing; without these a message takes 16 bytes, so that the
//! schedules of 16,384 workers fit into memory side by side.

use tidemill_collective::schedule::{LocalStep, Schedule, ScheduleMessage};
use tidemill_collective::tuner::CostModel;

/// Set in `peer` of a message that is sent.
const SENT: u32 = 1 << 31;

/// A message of a round.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMessage {
    peer: u32,
    bytes: f64,
}

impl ProgramMessage {
    pub(crate) fn sent(to: u32, bytes: f64) -> Self {
        ProgramMessage { peer: to | SENT, bytes }
    }

    pub(crate) fn received(from: u32, bytes: f64) -> Self {
        ProgramMessage { peer: from, bytes }
    }

    /// The receiver, if it is sent; else the sender is [`ProgramMessage::peer`].
    pub(crate) fn is_sent(self) -> bool {
        self.peer & SENT != 0
    }

    pub(crate) fn peer(self) -> u32 {
        self.peer & !SENT
    }

    pub(crate) fn bytes(self) -> f64 {
        self.bytes
    }
}

#[derive(Clone, Copy)]
struct ProgramRound {
    messages_end: usize,
    local_s: f64,
}

/// Rounds of rank 0, then of rank 1, ...
#[derive(Default)]
pub(crate) struct Program {
    messages: Vec<ProgramMessage>,
    rounds: Vec<ProgramRound>,
    /// The end of each rank's rounds.
    rounds_end: Vec<usize>,
}

impl Program {
    pub(crate) fn new(schedules: &[Schedule], item_bytes: usize, model: &CostModel) -> Program {
        let mut program = Program::default();
        schedules.iter().for_each(|schedule| program.push(schedule, item_bytes, model));
        program
    }

    /// Adds the schedule of the next rank.
    pub(crate) fn push(&mut self, schedule: &Schedule, item_bytes: usize, model: &CostModel) {
        let item_bytes = item_bytes as f64;
        let seconds = |local: &LocalStep| match local {
            LocalStep::Copy { into, .. } => into.len as f64 * item_bytes * model.copy_per_byte_s,
            LocalStep::ReduceLeft { into, .. } | LocalStep::ReduceRight { into, .. } => {
                into.len as f64 * item_bytes * model.reduce_per_byte_s
            }
        };
        for round in &schedule.rounds {
            self.messages.extend(round.messages.iter().map(|message| match *message {
                ScheduleMessage::Send { to, range } => ProgramMessage::sent(to, range.len as f64 * item_bytes),
                ScheduleMessage::Recv { from, range } => ProgramMessage::received(from, range.len as f64 * item_bytes),
            }));
            let local_s = round.local.iter().map(seconds).sum();
            self.rounds.push(ProgramRound { messages_end: self.messages.len(), local_s });
        }
        self.rounds_end.push(self.rounds.len());
    }

    /// Adds the rounds of the next rank: messages, and the seconds of work that end them.
    pub(crate) fn push_rounds(&mut self, rounds: impl IntoIterator<Item = (Vec<ProgramMessage>, f64)>) {
        for (messages, local_s) in rounds {
            self.messages.extend(messages);
            self.rounds.push(ProgramRound { messages_end: self.messages.len(), local_s });
        }
        self.rounds_end.push(self.rounds.len());
    }

    /// Adds ranks up to `size` that do what rank 0, the only one so far, does, each as seen from its own place around
    /// the circle.
    pub(crate) fn rotate(&mut self, size: u32) {
        let (messages, rounds) = (self.messages.clone(), self.rounds.clone());
        for rank in 1..size {
            let start = self.messages.len();
            self.messages.extend(messages.iter().map(|message| ProgramMessage {
                peer: ((message.peer() + rank) % size) | (message.peer & SENT),
                bytes: message.bytes,
            }));
            let ends = |round: &ProgramRound| ProgramRound { messages_end: start + round.messages_end, ..*round };
            self.rounds.extend(rounds.iter().map(ends));
            self.rounds_end.push(self.rounds.len());
        }
    }

    /// Number of workers.
    pub(crate) fn size(&self) -> usize {
        self.rounds_end.len()
    }

    /// Messages of all workers, sent and received.
    pub(crate) fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// Number of rounds of `rank`.
    pub(crate) fn rounds(&self, rank: usize) -> usize {
        self.rounds_end[rank] - self.first_round(rank)
    }

    pub(crate) fn messages(&self, rank: usize, round: usize) -> &[ProgramMessage] {
        let at = self.first_round(rank) + round;
        let start = if at == 0 { 0 } else { self.rounds[at - 1].messages_end };
        &self.messages[start..self.rounds[at].messages_end]
    }

    /// Seconds of the work that ends the round.
    pub(crate) fn local_s(&self, rank: usize, round: usize) -> f64 {
        self.rounds[self.first_round(rank) + round].local_s
    }

    fn first_round(&self, rank: usize) -> usize {
        if rank == 0 { 0 } else { self.rounds_end[rank - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_collective::algorithms::schedule;
    use tidemill_collective::{Algorithm, Collective, ScheduleParams};

    /// A rank that is not the image of rank 0 would send to others than the real one does.
    #[test]
    fn bruck_looks_alike_from_every_rank() {
        for size in [2, 3, 8, 13] {
            let params = |rank| ScheduleParams { count: 5, ..ScheduleParams::new(rank, size) };
            let of = |rank| schedule(Collective::Alltoall, Algorithm::Bruck, &params(rank)).unwrap();
            let model = CostModel::TYPICAL;
            let real = Program::new(&(0..size).map(of).collect::<Vec<_>>(), 8, &model);
            let mut rotated = Program::new(&[of(0)], 8, &model);
            rotated.rotate(size);
            for rank in 0..size as usize {
                assert_eq!(real.rounds(rank), rotated.rounds(rank));
                for round in 0..real.rounds(rank) {
                    let messages = |program: &Program| -> Vec<_> {
                        program.messages(rank, round).iter().map(|m| (m.peer, m.bytes)).collect()
                    };
                    assert_eq!(messages(&real), messages(&rotated), "rank {rank} of {size}, round {round}");
                    let (one, other) = (real.local_s(rank, round), rotated.local_s(rank, round));
                    assert!((one - other).abs() < 1e-15, "rank {rank} of {size}, round {round}: {one} and {other}");
                }
            }
        }
    }
}
