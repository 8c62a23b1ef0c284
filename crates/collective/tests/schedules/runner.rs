//! Runs the schedules of all ranks in one thread: a message queue per pair, rounds started and messages delivered in a
//! seeded random order. Sends are, at random, eager (the data leaves at once) or synchronous (it is read when the
//! receiver takes it, and only then is the send complete), so that a schedule that needs one or the other shows.
//!
//! Elements are `u64`s; what they mean is up to the operation.

use std::collections::VecDeque;

use tidemill_collective::schedule::{BufferId, BufferRange, LocalStep, Schedule, ScheduleMessage};

/// What an element holds that nobody has written.
pub const POISON: u64 = 0xdead_beef_dead_beef;

/// How `Send` and `Recv` of a rank lie in memory.
#[derive(Clone, Copy, Debug)]
pub enum Alias {
    /// Apart.
    None,
    /// `Send` is `Recv` from this element on.
    SendInRecv(usize),
    /// `Recv` is `Send` from this element on (scatter's root).
    RecvInSend(usize),
}

/// The memory of one rank.
pub struct Memory {
    pub send: Vec<u64>,
    pub recv: Vec<u64>,
    scratch: Vec<u64>,
    pub alias: Alias,
}

impl Memory {
    pub fn new(send: Vec<u64>, recv: Vec<u64>, alias: Alias) -> Self {
        Memory { send, recv, scratch: Vec::new(), alias }
    }

    /// Makes every element of the contribution the same.
    pub fn fill_contribution(&mut self, value: u64) {
        match self.alias {
            Alias::SendInRecv(_) => self.recv.fill(value),
            _ => self.send.fill(value),
        }
    }

    /// The range where it really is.
    fn resolve(&self, range: BufferRange) -> BufferRange {
        match (range.buffer, self.alias) {
            (BufferId::Send, Alias::SendInRecv(at)) => {
                BufferRange { buffer: BufferId::Recv, start: at + range.start, ..range }
            }
            (BufferId::Recv, Alias::RecvInSend(at)) => {
                BufferRange { buffer: BufferId::Send, start: at + range.start, ..range }
            }
            _ => range,
        }
    }

    fn read(&self, range: BufferRange) -> Vec<u64> {
        let range = self.resolve(range);
        let buffer = match range.buffer {
            BufferId::Send => &self.send,
            BufferId::Recv => &self.recv,
            BufferId::Scratch => &self.scratch,
        };
        buffer[range.start..range.start + range.len].to_vec()
    }

    fn write(&mut self, range: BufferRange, data: &[u64]) {
        let range = self.resolve(range);
        let buffer = match range.buffer {
            BufferId::Send => &mut self.send,
            BufferId::Recv => &mut self.recv,
            BufferId::Scratch => &mut self.scratch,
        };
        buffer[range.start..range.start + range.len].copy_from_slice(data);
    }

    fn len_of(&self, buffer: BufferId) -> usize {
        match buffer {
            BufferId::Send => self.send.len(),
            BufferId::Recv => self.recv.len(),
            BufferId::Scratch => self.scratch.len(),
        }
    }
}

/// A small generator (splitmix64): the seed is the whole state, so a failure replays.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn overlap(a: BufferRange, b: BufferRange) -> bool {
    a.buffer == b.buffer && a.len > 0 && b.len > 0 && a.start < b.start + b.len && b.start < a.start + a.len
}

/// Checks the invariants of `schedule.rs` on the schedules of all ranks.
pub fn check(schedules: &[Schedule], memory: &[Memory]) {
    let size = schedules.len();
    let mut sends = vec![vec![Vec::new(); size]; size];
    let mut recvs = vec![vec![Vec::new(); size]; size];
    for (rank, schedule) in schedules.iter().enumerate() {
        let m = &memory[rank];
        let inside = |range: BufferRange| {
            let range = m.resolve(range);
            let len = if range.buffer == BufferId::Scratch { schedule.scratch_len } else { m.len_of(range.buffer) };
            assert!(range.start + range.len <= len, "rank {rank}: {range:?} outside its buffer of {len}");
        };
        for (i, round) in schedule.rounds.iter().enumerate() {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for message in &round.messages {
                match *message {
                    ScheduleMessage::Send { to, range } => {
                        inside(range);
                        assert!(to as usize != rank, "rank {rank} sends to itself");
                        sends[rank][to as usize].push(range.len);
                        reads.push(m.resolve(range));
                    }
                    ScheduleMessage::Recv { from, range } => {
                        inside(range);
                        assert!(range.buffer != BufferId::Send, "rank {rank} receives into Send");
                        recvs[from as usize][rank].push(range.len);
                        writes.push(m.resolve(range));
                    }
                }
            }
            for (k, &write) in writes.iter().enumerate() {
                let clash = reads.iter().chain(&writes[..k]).find(|&&other| overlap(write, other));
                assert!(clash.is_none(), "rank {rank} round {i}: receives into {write:?} while {clash:?} is in use");
            }
            for local in &round.local {
                let (LocalStep::Copy { from, into }
                | LocalStep::ReduceLeft { from, into }
                | LocalStep::ReduceRight { from, into }) = *local;
                inside(from);
                inside(into);
                assert_eq!(from.len, into.len, "rank {rank} round {i}: {local:?}");
                assert!(into.buffer != BufferId::Send, "rank {rank} round {i} writes Send: {local:?}");
                let (from, into) = (m.resolve(from), m.resolve(into));
                let same_copy = matches!(local, LocalStep::Copy { .. }) && from == into;
                assert!(same_copy || !overlap(from, into), "rank {rank} round {i}: operands overlap: {local:?}");
            }
        }
    }
    assert_eq!(sends, recvs, "lengths of sends and receives, by sender, receiver and order");
}

/// A message on its way: read at once, or when it is taken.
enum Outgoing {
    Eager(Vec<u64>),
    Synchronous(BufferRange),
}

/// Runs all schedules to the end. `op(left, right)` combines elements.
///
/// # Panics
/// When the schedules cannot finish.
pub fn run(schedules: &[Schedule], memory: &mut [Memory], op: &dyn Fn(u64, u64) -> u64, random: &mut Random) {
    let size = schedules.len();
    for (m, schedule) in memory.iter_mut().zip(schedules) {
        m.scratch = vec![POISON; schedule.scratch_len];
    }
    let mut outgoing: Vec<VecDeque<Outgoing>> = (0..size * size).map(|_| VecDeque::new()).collect();
    let mut expected: Vec<VecDeque<BufferRange>> = (0..size * size).map(|_| VecDeque::new()).collect();
    let mut round = vec![0; size];
    let mut waiting = vec![0usize; size];
    let mut ready: Vec<usize> = (0..size).collect();
    // Pairs (sender * size + receiver) that may have a message to deliver.
    let mut deliverable: Vec<usize> = Vec::new();
    loop {
        let choices = ready.len() + deliverable.len();
        if choices == 0 {
            break;
        }
        let choice = random.below(choices);
        if let Some(&rank) = ready.get(choice) {
            let Some(current) = schedules[rank].rounds.get(round[rank]) else {
                ready.swap_remove(choice);
                continue;
            };
            let eager_bits = random.next();
            for (i, message) in current.messages.iter().enumerate() {
                match *message {
                    ScheduleMessage::Send { to, range } => {
                        let pair = rank * size + to as usize;
                        if eager_bits >> (i % 64) & 1 == 0 {
                            outgoing[pair].push_back(Outgoing::Eager(memory[rank].read(range)));
                        } else {
                            outgoing[pair].push_back(Outgoing::Synchronous(range));
                            waiting[rank] += 1;
                        }
                        deliverable.push(pair);
                    }
                    ScheduleMessage::Recv { from, range } => {
                        let pair = from as usize * size + rank;
                        expected[pair].push_back(range);
                        waiting[rank] += 1;
                        deliverable.push(pair);
                    }
                }
            }
            if waiting[rank] == 0 {
                finish_round(&schedules[rank].rounds[round[rank]].local, &mut memory[rank], op);
                round[rank] += 1;
            } else {
                ready.swap_remove(choice);
            }
            continue;
        }
        let pair = deliverable.swap_remove(choice - ready.len());
        let (from, to) = (pair / size, pair % size);
        if outgoing[pair].is_empty() || expected[pair].is_empty() {
            continue;
        }
        let mut arrived = [Some(to), None];
        let data = match outgoing[pair].pop_front().unwrap() {
            Outgoing::Eager(data) => data,
            Outgoing::Synchronous(range) => {
                arrived[1] = Some(from);
                memory[from].read(range)
            }
        };
        memory[to].write(expected[pair].pop_front().unwrap(), &data);
        for rank in arrived.into_iter().flatten() {
            waiting[rank] -= 1;
            if waiting[rank] == 0 {
                finish_round(&schedules[rank].rounds[round[rank]].local, &mut memory[rank], op);
                round[rank] += 1;
                ready.push(rank);
            }
        }
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        assert_eq!(round[rank], schedule.rounds.len(), "deadlock: rank {rank} is stuck in this round");
    }
}

fn finish_round(locals: &[LocalStep], memory: &mut Memory, op: &dyn Fn(u64, u64) -> u64) {
    for local in locals {
        let (LocalStep::Copy { from, into }
        | LocalStep::ReduceLeft { from, into }
        | LocalStep::ReduceRight { from, into }) = *local;
        let (mut from, old) = (memory.read(from), memory.read(into));
        match local {
            LocalStep::Copy { .. } => {}
            LocalStep::ReduceLeft { .. } => from.iter_mut().zip(&old).for_each(|(f, &o)| *f = op(*f, o)),
            LocalStep::ReduceRight { .. } => from.iter_mut().zip(&old).for_each(|(f, &o)| *f = op(o, *f)),
        }
        memory.write(into, &from);
    }
}
