//! Runs the schedules of all ranks in one thread: a message queue per pair, with rounds started and messages delivered
//! in a seeded random order. Sends are randomly eager (the data leave at once) or synchronous (the data are read when
//! the receiver takes them, and only then is the send complete), so that a schedule that depends on one or the other
//! shows. While a synchronous message waits, nothing may write its data; this also checks late sends.
//!
//! Elements are `u64`s; the operation defines their meaning.

use std::collections::{BTreeMap, VecDeque};

use tidemill_collective::schedule::{BufferId, BufferRange, LocalStep, Round, Schedule, ScheduleMessage};

/// The contents of an element that was never written.
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

    /// Sets every element of the contribution to the same value.
    pub fn fill_contribution(&mut self, value: u64) {
        match self.alias {
            Alias::SendInRecv(_) => self.recv.fill(value),
            _ => self.send.fill(value),
        }
    }

    /// The range in actual memory.
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
    // Lengths by sender, receiver and channel.
    let mut sends: BTreeMap<(usize, usize, u32), Vec<usize>> = BTreeMap::new();
    let mut recvs = sends.clone();
    for (rank, schedule) in schedules.iter().enumerate() {
        let m = &memory[rank];
        let inside = |range: BufferRange| {
            let range = m.resolve(range);
            let len = if range.buffer == BufferId::Scratch { schedule.scratch_len } else { m.len_of(range.buffer) };
            assert!(range.start + range.len <= len, "rank {rank}: {range:?} outside its buffer of {len}");
        };
        let strands = schedule.strands.iter();
        for (strand, i, round) in strands.flat_map(|s| s.rounds.iter().enumerate().map(move |(i, r)| (s, i, r))) {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for message in &round.messages {
                match *message {
                    ScheduleMessage::Send { to, range } | ScheduleMessage::LateSend { to, range } => {
                        inside(range);
                        assert!(to as usize != rank, "rank {rank} sends to itself");
                        sends.entry((rank, to as usize, strand.send_channel)).or_default().push(range.len);
                        reads.push(m.resolve(range));
                    }
                    ScheduleMessage::Recv { from, range } => {
                        inside(range);
                        assert!(range.buffer != BufferId::Send, "rank {rank} receives into Send");
                        recvs.entry((from as usize, rank, strand.recv_channel)).or_default().push(range.len);
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
    assert_eq!(sends, recvs, "lengths of sends and receives, by sender, receiver, channel and order");
}

/// A message in flight: its data, or where to read them when it is taken.
enum Outgoing {
    Eager(Vec<u64>),
    Synchronous { range: BufferRange, late: bool, strand: usize },
}

/// State of a channel between two ranks: messages sent but not taken, and receives (with their strand) without a
/// message.
#[derive(Default)]
struct Pair {
    outgoing: VecDeque<Outgoing>,
    expected: VecDeque<(BufferRange, usize)>,
}

#[derive(Clone, Default)]
struct StrandState {
    round: usize,
    waiting: usize,
}

/// All ranks in progress.
struct Run<'a> {
    schedules: &'a [Schedule],
    memory: &'a mut [Memory],
    op: &'a dyn Fn(u64, u64) -> u64,
    strands: Vec<Vec<StrandState>>,
    /// By sender, receiver and channel.
    pairs: BTreeMap<(usize, usize, u32), Pair>,
    /// Ranges to be read by synchronous messages that have not been taken, by rank.
    in_use: Vec<Vec<BufferRange>>,
    /// Rank and strand.
    ready: Vec<(usize, usize)>,
    /// Pairs that may have a message to deliver.
    deliverable: Vec<(usize, usize, u32)>,
}

/// Runs all schedules to the end. `op(left, right)` combines elements.
///
/// # Panics
/// If the schedules cannot finish, or write data that a message still reads.
pub fn run(schedules: &[Schedule], memory: &mut [Memory], op: &dyn Fn(u64, u64) -> u64, random: &mut Random) {
    for (m, schedule) in memory.iter_mut().zip(schedules) {
        m.scratch = vec![POISON; schedule.scratch_len];
    }
    let of_rank = |(rank, schedule): (usize, &Schedule)| (0..schedule.strands.len()).map(move |strand| (rank, strand));
    let mut run = Run {
        schedules,
        memory,
        op,
        strands: schedules.iter().map(|s| vec![StrandState::default(); s.strands.len()]).collect(),
        pairs: BTreeMap::new(),
        in_use: vec![Vec::new(); schedules.len()],
        ready: schedules.iter().enumerate().flat_map(of_rank).collect(),
        deliverable: Vec::new(),
    };
    loop {
        let choices = run.ready.len() + run.deliverable.len();
        if choices == 0 {
            break;
        }
        let choice = random.below(choices);
        if choice < run.ready.len() {
            let (rank, strand) = run.ready.swap_remove(choice);
            run.begin_round(rank, strand, random.next());
        } else {
            let pair = run.deliverable.swap_remove(choice - run.ready.len());
            run.deliver(pair);
        }
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        for (strand, state) in schedule.strands.iter().zip(&run.strands[rank]) {
            assert_eq!(state.round, strand.rounds.len(), "deadlock: rank {rank} is stuck in this round");
        }
    }
}

impl Run<'_> {
    fn round(&self, rank: usize, strand: usize) -> Option<&Round> {
        self.schedules[rank].strands[strand].rounds.get(self.strands[rank][strand].round)
    }

    fn begin_round(&mut self, rank: usize, strand: usize, eager_bits: u64) {
        let Some(round) = self.round(rank, strand).cloned() else { return };
        let (send_channel, recv_channel) = {
            let strand = &self.schedules[rank].strands[strand];
            (strand.send_channel, strand.recv_channel)
        };
        for (i, message) in round.messages.iter().enumerate() {
            let late = matches!(message, ScheduleMessage::LateSend { .. });
            let key = match *message {
                ScheduleMessage::Send { to, range } | ScheduleMessage::LateSend { to, range } => {
                    let key = (rank, to as usize, send_channel);
                    let outgoing = if eager_bits >> (i % 64) & 1 == 0 {
                        Outgoing::Eager(self.memory[rank].read(range))
                    } else {
                        self.strands[rank][strand].waiting += usize::from(!late);
                        self.in_use[rank].push(self.memory[rank].resolve(range));
                        Outgoing::Synchronous { range, late, strand }
                    };
                    self.pairs.entry(key).or_default().outgoing.push_back(outgoing);
                    key
                }
                ScheduleMessage::Recv { from, range } => {
                    let key = (from as usize, rank, recv_channel);
                    self.strands[rank][strand].waiting += 1;
                    self.pairs.entry(key).or_default().expected.push_back((range, strand));
                    key
                }
            };
            self.deliverable.push(key);
        }
        self.end_round(rank, strand);
    }

    fn deliver(&mut self, key: (usize, usize, u32)) {
        let (from, to, _) = key;
        let pair = self.pairs.get_mut(&key).unwrap();
        if pair.outgoing.is_empty() || pair.expected.is_empty() {
            return;
        }
        let (outgoing, (into, receiving)) = (pair.outgoing.pop_front().unwrap(), pair.expected.pop_front().unwrap());
        let mut sending = None;
        let data = match outgoing {
            Outgoing::Eager(data) => data,
            Outgoing::Synchronous { range, late, strand } => {
                sending = (!late).then_some(strand);
                let read = self.memory[from].resolve(range);
                let at = self.in_use[from].iter().position(|&other| other == read).unwrap();
                self.in_use[from].swap_remove(at);
                self.memory[from].read(range)
            }
        };
        self.write(to, into, &data);
        self.strands[to][receiving].waiting -= 1;
        self.end_round(to, receiving);
        if let Some(strand) = sending {
            self.strands[from][strand].waiting -= 1;
            self.end_round(from, strand);
        }
    }

    /// Ends the strand's round if it has nothing left to wait for.
    fn end_round(&mut self, rank: usize, strand: usize) {
        if self.strands[rank][strand].waiting > 0 {
            return;
        }
        let locals = self.round(rank, strand).expect("a strand that waits is in a round").local.clone();
        for local in locals {
            if matches!(local, LocalStep::Copy { from, into } if self.memory[rank].resolve(from) == self.memory[rank].resolve(into))
            {
                continue;
            }
            let (into, data) = result_of(local, &self.memory[rank], self.op);
            self.write(rank, into, &data);
        }
        self.strands[rank][strand].round += 1;
        self.ready.push((rank, strand));
    }

    fn write(&mut self, rank: usize, range: BufferRange, data: &[u64]) {
        let into = self.memory[rank].resolve(range);
        let reader = self.in_use[rank].iter().find(|&&read| overlap(read, into));
        assert!(reader.is_none(), "rank {rank} writes {into:?} while a message of {reader:?} waits");
        self.memory[rank].write(range, data);
    }
}

/// Where a step writes, and what it writes.
fn result_of(local: LocalStep, memory: &Memory, op: &dyn Fn(u64, u64) -> u64) -> (BufferRange, Vec<u64>) {
    let (LocalStep::Copy { from, into } | LocalStep::ReduceLeft { from, into } | LocalStep::ReduceRight { from, into }) =
        local;
    let (mut from, old) = (memory.read(from), memory.read(into));
    match local {
        LocalStep::Copy { .. } => {}
        LocalStep::ReduceLeft { .. } => from.iter_mut().zip(&old).for_each(|(f, &o)| *f = op(*f, o)),
        LocalStep::ReduceRight { .. } => from.iter_mut().zip(&old).for_each(|(f, &o)| *f = op(o, *f)),
    }
    (into, from)
}
