//! The schedules of all workers, packed: who sends how many bytes to whom in which round, and which local work
//! follows.
//!
//! A schedule names buffers and offsets in them, which cost nothing; without these a message takes 16 bytes, so the
//! schedules of 16,384 workers fit into memory together.

use tidemill_collective::schedule::{BufferId, LocalStep, Round, Schedule, ScheduleMessage};
use tidemill_collective::tuner::CostModel;

/// Set in `peer` of a sent message.
const SENT: u32 = 1 << 31;
/// Set in `peer` of a sent message that its round does not wait for.
const LATE: u32 = 1 << 30;
/// Set in `peer` of a sent message that nobody waits for.
const FREE: u32 = 1 << 29;
const FLAGS: u32 = SENT | LATE | FREE;

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

    /// Whether it is sent, so that [`ProgramMessage::peer`] is the receiver; otherwise that is the sender.
    pub(crate) fn is_sent(self) -> bool {
        self.peer & SENT != 0
    }

    pub(crate) fn peer(self) -> u32 {
        self.peer & !FLAGS
    }

    /// Whether its round does not wait for it.
    pub(crate) fn is_late(self) -> bool {
        self.peer & (LATE | FREE) != 0
    }

    /// Whether the end of the rank does not wait for it either.
    pub(crate) fn is_free(self) -> bool {
        self.peer & FREE != 0
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

#[derive(Clone, Copy)]
struct ProgramStrand {
    rank: u32,
    rounds_end: usize,
    send_channel: u32,
    recv_channel: u32,
}

/// The strands of rank 0, then of rank 1, ...; each rank has at least one.
#[derive(Default)]
pub(crate) struct Program {
    messages: Vec<ProgramMessage>,
    rounds: Vec<ProgramRound>,
    strands: Vec<ProgramStrand>,
    /// The end of each rank's strands.
    strands_end: Vec<usize>,
}

impl Program {
    pub(crate) fn new(schedules: &[Schedule], item_bytes: usize, model: &CostModel) -> Program {
        let mut program = Program::default();
        schedules.iter().for_each(|schedule| program.push(schedule, item_bytes, model));
        program
    }

    /// Adds the schedule of the next rank.
    pub(crate) fn push(&mut self, schedule: &Schedule, item_bytes: usize, model: &CostModel) {
        for strand in &schedule.strands {
            strand.rounds.iter().for_each(|round| self.push_round(round, item_bytes as f64, model));
            self.end_strand(strand.send_channel, strand.recv_channel);
        }
        if schedule.strands.is_empty() {
            self.end_strand(0, 0);
        }
        self.strands_end.push(self.strands.len());
    }

    fn push_round(&mut self, round: &Round, item_bytes: f64, model: &CostModel) {
        let seconds = |local: &LocalStep| match local {
            LocalStep::Copy { into, .. } => into.len as f64 * item_bytes * model.copy_per_byte_s,
            LocalStep::ReduceLeft { into, .. } | LocalStep::ReduceRight { into, .. } => {
                into.len as f64 * item_bytes * model.reduce_per_byte_s
            }
        };
        self.messages.extend(round.messages.iter().map(|message| match *message {
            ScheduleMessage::Send { to, range } => ProgramMessage::sent(to, range.len as f64 * item_bytes),
            ScheduleMessage::LateSend { to, range } => {
                let flag = if range.buffer == BufferId::Scratch { FREE } else { LATE };
                ProgramMessage::sent(to | flag, range.len as f64 * item_bytes)
            }
            ScheduleMessage::Recv { from, range } => ProgramMessage::received(from, range.len as f64 * item_bytes),
        }));
        let local_s = round.local.iter().map(seconds).sum();
        self.rounds.push(ProgramRound { messages_end: self.messages.len(), local_s });
    }

    fn end_strand(&mut self, send_channel: u32, recv_channel: u32) {
        let rank = self.strands_end.len() as u32;
        self.strands.push(ProgramStrand { rank, rounds_end: self.rounds.len(), send_channel, recv_channel });
    }

    /// Adds the rounds of the next rank: messages, and the seconds of work that end each round.
    pub(crate) fn push_rounds(&mut self, rounds: impl IntoIterator<Item = (Vec<ProgramMessage>, f64)>) {
        for (messages, local_s) in rounds {
            self.messages.extend(messages);
            self.rounds.push(ProgramRound { messages_end: self.messages.len(), local_s });
        }
        self.end_strand(0, 0);
        self.strands_end.push(self.strands.len());
    }

    /// Adds ranks up to `size` that do what rank 0, the only one so far, does, each relative to its own rank on a
    /// circle.
    pub(crate) fn rotate(&mut self, size: u32) {
        assert_eq!(self.strands.len(), 1, "only a rank of one strand is rotated");
        let (messages, rounds) = (self.messages.clone(), self.rounds.clone());
        for rank in 1..size {
            let start = self.messages.len();
            self.messages.extend(messages.iter().map(|message| ProgramMessage {
                peer: ((message.peer() + rank) % size) | (message.peer & FLAGS),
                bytes: message.bytes,
            }));
            let ends = |round: &ProgramRound| ProgramRound { messages_end: start + round.messages_end, ..*round };
            self.rounds.extend(rounds.iter().map(ends));
            self.end_strand(self.strands[0].send_channel, self.strands[0].recv_channel);
            self.strands_end.push(self.strands.len());
        }
    }

    /// The number of messages of all workers, sent and received.
    pub(crate) fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The range of `rank`'s strands among all strands.
    pub(crate) fn strands(&self, rank: usize) -> std::ops::Range<usize> {
        if rank == 0 { 0..self.strands_end[0] } else { self.strands_end[rank - 1]..self.strands_end[rank] }
    }

    /// The number of strands of all ranks.
    pub(crate) fn strand_count(&self) -> usize {
        self.strands.len()
    }

    /// The rank that the strand belongs to.
    pub(crate) fn rank(&self, strand: usize) -> u32 {
        self.strands[strand].rank
    }

    /// The channel of the strand's sends, or of its receives.
    pub(crate) fn channel(&self, strand: usize, sends: bool) -> u32 {
        if sends { self.strands[strand].send_channel } else { self.strands[strand].recv_channel }
    }

    /// The number of rounds of `strand`.
    pub(crate) fn rounds(&self, strand: usize) -> usize {
        self.strands[strand].rounds_end - self.first_round(strand)
    }

    pub(crate) fn messages(&self, strand: usize, round: usize) -> &[ProgramMessage] {
        let at = self.first_round(strand) + round;
        let start = if at == 0 { 0 } else { self.rounds[at - 1].messages_end };
        &self.messages[start..self.rounds[at].messages_end]
    }

    /// The duration of the work that ends the round, in seconds.
    pub(crate) fn local_s(&self, strand: usize, round: usize) -> f64 {
        self.rounds[self.first_round(strand) + round].local_s
    }

    fn first_round(&self, strand: usize) -> usize {
        if strand == 0 { 0 } else { self.strands[strand - 1].rounds_end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_collective::algorithms::schedule;
    use tidemill_collective::{Algorithm, Collective, ScheduleParams};

    /// If a rank did not mirror rank 0, its messages would go to other ranks than in reality.
    #[test]
    fn bruck_looks_the_same_from_every_rank() {
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
