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
                ScheduleMessage::Send { to, range } => {
                    ProgramMessage { peer: to | SENT, bytes: range.len as f64 * item_bytes }
                }
                ScheduleMessage::Recv { from, range } => {
                    ProgramMessage { peer: from, bytes: range.len as f64 * item_bytes }
                }
            }));
            let local_s = round.local.iter().map(seconds).sum();
            self.rounds.push(ProgramRound { messages_end: self.messages.len(), local_s });
        }
        self.rounds_end.push(self.rounds.len());
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
