//! Runs the schedules of all workers on the links of a cluster, event by event.
//!
//! A round ends when its sends have left (from [`crate::Cluster::rendezvous_bytes_min`] on: have arrived) and its
//! receives have arrived; then its local work runs. The strands of a rank run concurrently. Late sends are awaited at
//! the rank's end, or not at all. A worker that dies sends nothing from then on, and a worker that waits for it never
//! ends.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::links::{Flight, Links, Reach};
use crate::program::{Program, ProgramMessage};

/// Runs `program`, whose rank r begins at `starts_s[r]` and dies at `dies_s[r]` (empty: nobody dies). Returns when
/// each has ended; dead ranks and those that wait for them never end.
///
/// # Panics
/// If nobody dies and a worker still waits forever: a bug of the algorithm.
pub(crate) fn run(links: &mut Links, program: &Program, starts_s: &[f64], dies_s: &[f64]) -> Vec<f64> {
    let mut run = EventRun {
        links,
        program,
        dies_s,
        strands: vec![StrandState::default(); program.strand_count()],
        pairs: HashMap::default(),
        events: BinaryHeap::new(),
        event_count: 0,
        ends_s: starts_s.to_vec(),
    };
    for (rank, &start_s) in starts_s.iter().enumerate().filter(|(_, start_s)| start_s.is_finite()) {
        program.strands(rank).for_each(|strand| run.at(start_s, Event::BeginRound(strand as u32)));
    }
    while let Some(Reverse((SimTime(now), _, EventOrder(event)))) = run.events.pop() {
        match event {
            Event::BeginRound(strand) => run.begin_round(strand as usize, now),
            Event::ReachLink(flight, letter) => {
                let reach = run.links.pass(flight);
                run.travel(letter, reach);
            }
        }
    }
    // A rank that has not reached the end of a strand never ends.
    for strand in 0..program.strand_count() {
        if !run.strands[strand].ended {
            run.ends_s[program.rank(strand) as usize] = f64::INFINITY;
        }
    }
    if dies_s.is_empty() {
        for (rank, end_s) in run.ends_s.iter().enumerate() {
            let round = run.strands[program.strands(rank).start].round;
            assert!(end_s.is_finite() || !starts_s[rank].is_finite(), "deadlock: rank {rank} is in round {round}");
        }
    }
    run.ends_s
}

/// Seconds, ordered; never NaN.
#[derive(Clone, Copy, PartialEq)]
struct SimTime(f64);

impl Eq for SimTime {}

impl PartialOrd for SimTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SimTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy)]
enum Event {
    /// The strand has finished its previous round.
    BeginRound(u32),
    /// The first byte of a message has reached a link.
    ReachLink(Flight, Letter),
}

/// A message in transit.
#[derive(Clone, Copy)]
struct Letter {
    to: u32,
    /// The strand that sent it.
    sender: u32,
    channel: u32,
    /// What else waits for its arrival.
    awaited: Awaited,
}

/// What waits for a message to arrive, besides its receiver.
#[derive(Clone, Copy, PartialEq)]
enum Awaited {
    Nobody,
    Round,
    End,
}

/// Lets an event stand beside a time and a number in the queue, which alone decide the order.
#[derive(Clone, Copy)]
struct EventOrder(Event);

impl PartialEq for EventOrder {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EventOrder {}

impl PartialOrd for EventOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EventOrder {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

#[derive(Clone, Default)]
struct StrandState {
    round: u32,
    ended: bool,
    /// When the current round's sends are done on the processor and on the link.
    sent_s: (f64, f64),
    /// How many receives of the round have no message yet, plus awaited sends that have not arrived; and the
    /// (arrival, overhead) of what has been received.
    missing: u32,
    arrived: Vec<(f64, f64)>,
}

/// Between two ranks on a channel: messages that wait for a receive, or a strand's receives that wait for a message.
/// Removed when empty.
enum Pair {
    Arrivals(VecDeque<f64>),
    Waiting { strand: u32, count: u32 },
}

/// The pair of ranks as one number, and the channel.
type PairKey = (u64, u32);

/// Hashes a pair of ranks; nobody chooses them to collide.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, value: u32) {
        // The channel is mostly 0, which then costs nothing.
        self.0 ^= u64::from(value).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

struct EventRun<'a, 'b> {
    links: &'a mut Links<'b>,
    program: &'a Program,
    dies_s: &'a [f64],
    strands: Vec<StrandState>,
    pairs: HashMap<PairKey, Pair, BuildHasherDefault<PairHasher>>,
    /// Future events, by time, then by number.
    events: BinaryHeap<Reverse<(SimTime, u64, EventOrder)>>,
    event_count: u64,
    ends_s: Vec<f64>,
}

fn pair_key(from: u32, to: u32, channel: u32) -> PairKey {
    ((u64::from(from) << 32) | u64::from(to), channel)
}

impl EventRun<'_, '_> {
    fn at(&mut self, time: f64, event: Event) {
        self.events.push(Reverse((SimTime(time), self.event_count, EventOrder(event))));
        self.event_count += 1;
    }

    fn dies_s(&self, rank: u32) -> f64 {
        self.dies_s.get(rank as usize).copied().unwrap_or(f64::INFINITY)
    }

    fn begin_round(&mut self, strand: usize, now: f64) {
        let program = self.program;
        let rank = program.rank(strand);
        let dies_s = self.dies_s(rank);
        if now >= dies_s {
            return;
        }
        let round = self.strands[strand].round as usize;
        if round == program.rounds(strand) {
            self.strands[strand].ended = true;
            self.ends_by(rank, now);
            return;
        }
        // Count one more than there are, so that a message that arrives at once does not end the round before all of
        // it has begun.
        self.strands[strand].missing += 1;
        let (mut busy_until, mut sent) = (now, now);
        for &message in program.messages(strand, round) {
            let peer = message.peer();
            if message.is_sent() {
                let overhead_s = self.links.overhead_s(rank, peer);
                busy_until = self.links.overhead(rank, busy_until, overhead_s);
                if busy_until < dies_s {
                    sent = sent.max(self.send(strand, message, busy_until));
                }
            } else {
                self.expect(peer, strand);
            }
        }
        let sent_s = &mut self.strands[strand].sent_s;
        // A send may have arrived already.
        *sent_s = (busy_until, sent_s.1.max(sent));
        self.one_less(strand);
    }

    /// Sends a message at `now`. Returns until when the round has to wait for it to leave.
    fn send(&mut self, strand: usize, message: ProgramMessage, now: f64) -> f64 {
        let (rank, to) = (self.program.rank(strand), message.peer());
        let (left, reach) = self.links.leave(rank, to, message.bytes(), now);
        let waits = message.bytes() >= self.links.cluster().rendezvous_bytes_min as f64;
        let awaited = match (waits, message.is_free(), message.is_late()) {
            (_, true, _) | (false, ..) => Awaited::Nobody,
            (true, false, true) => Awaited::End,
            (true, false, false) => Awaited::Round,
        };
        if message.is_late() && !message.is_free() {
            self.ends_by(rank, left);
        }
        self.strands[strand].missing += u32::from(awaited == Awaited::Round);
        let channel = self.program.channel(strand, true);
        self.travel(Letter { to, sender: strand as u32, channel, awaited }, reach);
        if message.is_late() { now } else { left }
    }

    fn ends_by(&mut self, rank: u32, at_s: f64) {
        let end_s = &mut self.ends_s[rank as usize];
        *end_s = end_s.max(at_s);
    }

    /// Registers a receive from `from` in the current round of a strand.
    fn expect(&mut self, from: u32, strand: usize) {
        let to = self.program.rank(strand);
        let overhead_s = self.links.overhead_s(from, to);
        let state = &mut self.strands[strand];
        match self.pairs.entry(pair_key(from, to, self.program.channel(strand, false))) {
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Pair::Arrivals(arrivals) => {
                    let arrival = arrivals.pop_front().expect("empty pairs are removed");
                    if arrivals.is_empty() {
                        entry.remove();
                    }
                    state.arrived.push((arrival, overhead_s));
                }
                Pair::Waiting { count, .. } => {
                    *count += 1;
                    state.missing += 1;
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Pair::Waiting { strand: strand as u32, count: 1 });
                state.missing += 1;
            }
        }
    }

    fn travel(&mut self, letter: Letter, reach: Reach) {
        match reach {
            Reach::Flying(flight) => self.at(flight.first_s, Event::ReachLink(flight, letter)),
            Reach::Arrived(at_s) => self.arrive(letter, at_s),
        }
    }

    /// Gives the message to its receive, available from `arrival` on.
    fn arrive(&mut self, letter: Letter, arrival: f64) {
        let from = self.program.rank(letter.sender as usize);
        match letter.awaited {
            Awaited::Nobody => {}
            Awaited::End => self.ends_by(from, arrival),
            Awaited::Round => {
                let sender = &mut self.strands[letter.sender as usize];
                sender.sent_s.1 = sender.sent_s.1.max(arrival);
                self.one_less(letter.sender as usize);
            }
        }
        let strand = match self.pairs.entry(pair_key(from, letter.to, letter.channel)) {
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Pair::Arrivals(arrivals) => return arrivals.push_back(arrival),
                Pair::Waiting { strand, count: 1 } => {
                    let strand = *strand;
                    entry.remove();
                    strand
                }
                Pair::Waiting { strand, count } => {
                    *count -= 1;
                    *strand
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Pair::Arrivals(VecDeque::from([arrival])));
                return;
            }
        };
        let overhead_s = self.links.overhead_s(from, letter.to);
        self.strands[strand as usize].arrived.push((arrival, overhead_s));
        self.one_less(strand as usize);
    }

    /// Counts down the messages that the strand's round waits for.
    fn one_less(&mut self, strand: usize) {
        self.strands[strand].missing -= 1;
        if self.strands[strand].missing == 0 {
            self.end_round(strand);
        }
    }

    /// All messages of the strand's round have arrived: receives them in order of arrival, then does the local work.
    fn end_round(&mut self, strand: usize) {
        let rank = self.program.rank(strand);
        let state = &mut self.strands[strand];
        let round = state.round as usize;
        let mut arrived = std::mem::take(&mut state.arrived);
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut now, sent) = std::mem::take(&mut state.sent_s);
        state.round += 1;
        for &(arrival, overhead_s) in &arrived {
            now = self.links.overhead(rank, now.max(arrival), overhead_s);
        }
        arrived.clear();
        self.strands[strand].arrived = arrived;
        let local_s = self.program.local_s(strand, round);
        now = self.links.compute(now.max(sent), local_s);
        self.at(now, Event::BeginRound(strand as u32));
    }
}
