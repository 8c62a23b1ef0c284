//! Puts a schedule together, round by round.

use super::ScheduleParams;
use crate::schedule::{BufferId, BufferRange, LocalStep, Round, Schedule, ScheduleMessage, Strand};

/// Collects the messages and local work of the current round; drops empty rounds.
///
/// A builder can act for a subset of the ranks ([`ScheduleBuilder::among`]), so that algorithms compose: the inner
/// algorithm sees a smaller communicator.
pub(crate) struct ScheduleBuilder {
    schedule: Schedule,
    strand: Strand,
    round: Round,
    /// Rank of the communicator for each rank the algorithm knows; empty: the same numbers.
    members: Vec<u32>,
    /// `Send` of the algorithm is `Recv` of the schedule (a later phase works on the result of an earlier one).
    send_is_recv: bool,
    /// Only messages count (for barriers).
    silent: bool,
}

impl ScheduleBuilder {
    pub(crate) fn new() -> Self {
        ScheduleBuilder {
            schedule: Schedule::default(),
            strand: Strand::default(),
            round: Round::default(),
            members: Vec::new(),
            send_is_recv: false,
            silent: false,
        }
    }

    /// A builder that omits local work: a collective on empty vectors reduces to its synchronization.
    pub(crate) fn silent() -> Self {
        ScheduleBuilder { silent: true, ..ScheduleBuilder::new() }
    }

    pub(crate) fn send(&mut self, to: u32, range: BufferRange) {
        let message = ScheduleMessage::Send { to: self.member(to), range: self.place(range) };
        self.round.messages.push(message);
    }

    /// A send that its round does not wait for; see [`ScheduleMessage::LateSend`].
    pub(crate) fn send_late(&mut self, to: u32, range: BufferRange) {
        let message = ScheduleMessage::LateSend { to: self.member(to), range: self.place(range) };
        self.round.messages.push(message);
    }

    pub(crate) fn recv(&mut self, from: u32, range: BufferRange) {
        let message = ScheduleMessage::Recv { from: self.member(from), range: self.place(range) };
        self.round.messages.push(message);
    }

    pub(crate) fn copy(&mut self, from: BufferRange, into: BufferRange) {
        debug_assert_eq!(from.len, into.len, "copy of unequal ranges");
        let (from, into) = (self.place(from), self.place(into));
        if from != into {
            self.local(LocalStep::Copy { from, into });
        }
    }

    /// Copies our own contribution to its place in the result, unless an in-place call already has it there.
    pub(crate) fn copy_own(&mut self, p: &ScheduleParams, into: BufferRange) {
        if !p.in_place || into.buffer != BufferId::Recv {
            self.copy(p.own(), into);
        }
    }

    /// `into = from op into`.
    pub(crate) fn reduce_left(&mut self, from: BufferRange, into: BufferRange) {
        debug_assert_eq!(from.len, into.len, "reduction of unequal ranges");
        let (from, into) = (self.place(from), self.place(into));
        self.local(LocalStep::ReduceLeft { from, into });
    }

    /// `into = into op from`.
    pub(crate) fn reduce_right(&mut self, from: BufferRange, into: BufferRange) {
        debug_assert_eq!(from.len, into.len, "reduction of unequal ranges");
        let (from, into) = (self.place(from), self.place(into));
        self.local(LocalStep::ReduceRight { from, into });
    }

    /// Ends the round: later work waits for its messages and follows its local work.
    pub(crate) fn next_round(&mut self) {
        if !self.round.messages.is_empty() || !self.round.local.is_empty() {
            self.strand.rounds.push(std::mem::take(&mut self.round));
        }
    }

    /// Ends the strand: later work belongs to the next one, which waits for nothing before it.
    pub(crate) fn next_strand(&mut self, recv_channel: u32, send_channel: u32) {
        self.next_round();
        if !self.strand.rounds.is_empty() {
            self.schedule.strands.push(std::mem::take(&mut self.strand));
        }
        (self.strand.recv_channel, self.strand.send_channel) = (recv_channel, send_channel);
    }

    /// `len` elements of scratch that nothing else uses.
    pub(crate) fn scratch(&mut self, len: usize) -> BufferRange {
        let start = self.schedule.scratch_len;
        self.schedule.scratch_len += len;
        BufferRange { buffer: BufferId::Scratch, start, len }
    }

    /// Runs `phase` in separate rounds on a communicator of `members` (its rank i is `members[i]`). Its `Send` is our
    /// `Recv` if `send_is_recv`. Phases do not nest.
    pub(crate) fn among(&mut self, members: Vec<u32>, send_is_recv: bool, phase: impl FnOnce(&mut ScheduleBuilder)) {
        assert!(self.members.is_empty(), "phases of a schedule do not nest");
        self.next_round();
        (self.members, self.send_is_recv) = (members, send_is_recv);
        phase(self);
        self.next_round();
        (self.members, self.send_is_recv) = (Vec::new(), false);
    }

    pub(crate) fn finish(mut self) -> Schedule {
        self.next_strand(0, 0);
        self.schedule
    }

    fn local(&mut self, work: LocalStep) {
        let (LocalStep::Copy { into, .. } | LocalStep::ReduceLeft { into, .. } | LocalStep::ReduceRight { into, .. }) =
            work;
        debug_assert!(into.buffer != BufferId::Send, "schedules only read Send");
        if into.len > 0 && !self.silent {
            self.round.local.push(work);
        }
    }

    fn member(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).copied().unwrap_or(rank)
    }

    fn place(&self, range: BufferRange) -> BufferRange {
        match range.buffer {
            BufferId::Send if self.send_is_recv => BufferRange { buffer: BufferId::Recv, ..range },
            _ => range,
        }
    }
}

impl BufferRange {
    /// `len` elements from the `start`-th of this range.
    pub(crate) fn part(self, start: usize, len: usize) -> BufferRange {
        debug_assert!(start + len <= self.len, "part {start}+{len} outside a range of {}", self.len);
        BufferRange { buffer: self.buffer, start: self.start + start, len }
    }

    /// Piece `index` of `pieces` of (nearly) equal length that make up this range.
    pub(crate) fn piece(self, index: u32, pieces: u32) -> BufferRange {
        let edge = |i: u32| (self.len as u128 * u128::from(i) / u128::from(pieces)) as usize;
        self.part(edge(index), edge(index + 1) - edge(index))
    }

    /// The range in chunks of `chunk` elements, the last one shorter; one chunk if `chunk` is 0 or the range is empty.
    pub(crate) fn chunks(self, chunk: usize) -> impl ExactSizeIterator<Item = BufferRange> + Clone {
        let chunk = if chunk == 0 { self.len.max(1) } else { chunk };
        (0..self.len.div_ceil(chunk).max(1)).map(move |i| self.part(i * chunk, chunk.min(self.len - i * chunk)))
    }
}

/// The same schedule with `Send` first copied to scratch, for algorithms that overwrite `Send` while they still read
/// it.
pub(crate) fn stage_send(mut schedule: Schedule, send_len: usize) -> Schedule {
    let base = schedule.scratch_len;
    let stage = |range: &mut BufferRange| {
        if range.buffer == BufferId::Send {
            *range = BufferRange { buffer: BufferId::Scratch, start: base + range.start, len: range.len };
        }
    };
    assert!(schedule.strands.len() <= 1, "what several strands send is not staged");
    for round in schedule.strands.iter_mut().flat_map(|strand| &mut strand.rounds) {
        for message in &mut round.messages {
            let (ScheduleMessage::Send { range, .. }
            | ScheduleMessage::LateSend { range, .. }
            | ScheduleMessage::Recv { range, .. }) = message;
            stage(range);
        }
        for local in &mut round.local {
            let (LocalStep::Copy { from, .. }
            | LocalStep::ReduceLeft { from, .. }
            | LocalStep::ReduceRight { from, .. }) = local;
            stage(from);
        }
    }
    let from = BufferRange { buffer: BufferId::Send, start: 0, len: send_len };
    let into = BufferRange { buffer: BufferId::Scratch, start: base, len: send_len };
    let copy = Round { messages: Vec::new(), local: vec![LocalStep::Copy { from, into }] };
    if schedule.strands.is_empty() {
        schedule.strands.push(Strand::default());
    }
    schedule.strands[0].rounds.insert(0, copy);
    schedule.scratch_len += send_len;
    schedule
}
