//! Runs the schedules of all workers on the links of a cluster, event by event.
//!
//! Sends are eager: a round ends when its sends have left and its receives have arrived, and then does its local work.
//! A worker that dies sends nothing from then on; who waits for it never ends.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::links::{Flight, Links, Reach};
use crate::program::Program;

/// Runs `program`, whose rank r begins at `starts_s[r]` and dies at `dies_s[r]` (empty: nobody dies); returns when each
/// has ended, which is never for the dead and for those who wait for them.
///
/// # Panics
/// When nobody dies and a worker still waits forever: a bug of the algorithm.
pub(crate) fn run(links: &mut Links, program: &Program, starts_s: &[f64], dies_s: &[f64]) -> Vec<f64> {
    let mut run = EventRun {
        links,
        program,
        dies_s,
        ranks: vec![RankState::default(); program.size()],
        pairs: HashMap::default(),
        events: BinaryHeap::new(),
        event_count: 0,
        ends_s: vec![f64::INFINITY; program.size()],
    };
    for (rank, &start_s) in starts_s.iter().enumerate().filter(|(_, start_s)| start_s.is_finite()) {
        run.at(start_s, Event::BeginRound(rank as u32));
    }
    while let Some(Reverse((SimTime(now), _, EventOrder(event)))) = run.events.pop() {
        match event {
            Event::BeginRound(rank) => run.begin_round(rank, now),
            Event::ReachLink(flight) => {
                let reach = run.links.pass(flight);
                run.travel(flight.from, flight.to, reach);
            }
        }
    }
    if dies_s.is_empty() {
        for (rank, end_s) in run.ends_s.iter().enumerate() {
            let round = run.ranks[rank].round;
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
    /// The rank is done with its last round.
    BeginRound(u32),
    /// The first byte of a message has come to a link.
    ReachLink(Flight),
}

/// Can stand beside a time and a number in the queue: these two decide.
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
struct RankState {
    round: u32,
    /// When the current round's sends are through, on the processor and on the link.
    sent_s: (f64, f64),
    /// Receives of the round still without a message, and (arrival, overhead) of the others.
    missing: u32,
    arrived: Vec<(f64, f64)>,
}

/// Between two ranks: messages that wait for a receive, or receives that wait for a message. Removed when empty.
enum Pair {
    Arrivals(VecDeque<f64>),
    Waiting(u32),
}

/// Hashes a pair of ranks, which nobody chooses to collide.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
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
    ranks: Vec<RankState>,
    pairs: HashMap<u64, Pair, BuildHasherDefault<PairHasher>>,
    /// What is to happen, by time, then by number.
    events: BinaryHeap<Reverse<(SimTime, u64, EventOrder)>>,
    event_count: u64,
    ends_s: Vec<f64>,
}

fn pair_key(from: u32, to: u32) -> u64 {
    (u64::from(from) << 32) | u64::from(to)
}

impl EventRun<'_, '_> {
    fn at(&mut self, time: f64, event: Event) {
        self.events.push(Reverse((SimTime(time), self.event_count, EventOrder(event))));
        self.event_count += 1;
    }

    fn dies_s(&self, rank: u32) -> f64 {
        self.dies_s.get(rank as usize).copied().unwrap_or(f64::INFINITY)
    }

    fn begin_round(&mut self, rank: u32, now: f64) {
        let (program, dies_s) = (self.program, self.dies_s(rank));
        if now >= dies_s {
            return;
        }
        let (index, round) = (rank as usize, self.ranks[rank as usize].round as usize);
        if round == program.rounds(index) {
            self.ends_s[index] = now;
            return;
        }
        let (mut busy_until, mut sent) = (now, now);
        for &message in program.messages(index, round) {
            let peer = message.peer();
            if message.is_sent() {
                let overhead_s = self.links.overhead_s(rank, peer);
                busy_until = self.links.overhead(rank, busy_until, overhead_s);
                if busy_until < dies_s {
                    let (left, reach) = self.links.leave(rank, peer, message.bytes(), busy_until);
                    sent = sent.max(left);
                    self.travel(rank, peer, reach);
                }
            } else {
                self.expect(peer, rank);
            }
        }
        self.ranks[index].sent_s = (busy_until, sent);
        if self.ranks[index].missing == 0 {
            self.end_round(rank);
        }
    }

    /// The current round of `to` has a receive from `from`.
    fn expect(&mut self, from: u32, to: u32) {
        let overhead_s = self.links.overhead_s(from, to);
        let state = &mut self.ranks[to as usize];
        match self.pairs.entry(pair_key(from, to)) {
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Pair::Arrivals(arrivals) => {
                    let arrival = arrivals.pop_front().expect("empty pairs are removed");
                    if arrivals.is_empty() {
                        entry.remove();
                    }
                    state.arrived.push((arrival, overhead_s));
                }
                Pair::Waiting(count) => {
                    *count += 1;
                    state.missing += 1;
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Pair::Waiting(1));
                state.missing += 1;
            }
        }
    }

    fn travel(&mut self, from: u32, to: u32, reach: Reach) {
        match reach {
            Reach::Flying(flight) => self.at(flight.first_s, Event::ReachLink(flight)),
            Reach::Arrived(at_s) => self.arrive(from, to, at_s),
        }
    }

    /// The receive that takes a message has it from `arrival` on.
    fn arrive(&mut self, from: u32, to: u32, arrival: f64) {
        match self.pairs.entry(pair_key(from, to)) {
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Pair::Arrivals(arrivals) => return arrivals.push_back(arrival),
                Pair::Waiting(1) => drop(entry.remove()),
                Pair::Waiting(count) => *count -= 1,
            },
            Entry::Vacant(entry) => {
                entry.insert(Pair::Arrivals(VecDeque::from([arrival])));
                return;
            }
        }
        let overhead_s = self.links.overhead_s(from, to);
        let state = &mut self.ranks[to as usize];
        state.arrived.push((arrival, overhead_s));
        state.missing -= 1;
        if state.missing == 0 {
            self.end_round(to);
        }
    }

    /// All messages of the rank's round are accounted for: takes them in the order of arrival, then does the local
    /// work.
    fn end_round(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let round = state.round as usize;
        let mut arrived = std::mem::take(&mut state.arrived);
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut now, sent) = state.sent_s;
        state.round += 1;
        for &(arrival, overhead_s) in &arrived {
            now = self.links.overhead(rank, now.max(arrival), overhead_s);
        }
        arrived.clear();
        self.ranks[rank as usize].arrived = arrived;
        let local_s = self.program.local_s(rank as usize, round);
        now = self.links.compute(now.max(sent), local_s);
        self.at(now, Event::BeginRound(rank));
    }
}
