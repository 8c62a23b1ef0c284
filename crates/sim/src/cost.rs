//! What a collective costs: the schedules of all ranks in virtual time.
//!
//! A rank spends `overhead_s` on each message it sends or receives, one after the other. Messages within a host occupy
//! the sending rank's own link, messages between hosts first the sending, then the receiving host's link, which its
//! ranks share; a byte occupies a link for `per_byte_s`, and a message arrives `latency_s` after its last byte was
//! sent. Sends are eager: a round ends when its sends have left and its receives have arrived, and then does its local
//! work. After Alexandrov et al., "LogGP" (1995).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use tidemill_collective::schedule::{LocalStep, Round, Schedule, ScheduleMessage};
use tidemill_collective::tuner::{CostModel, LinkCost};

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunCost {
    /// Seconds until the last rank was done.
    pub seconds: f64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes sent from host to host.
    pub bytes_between_hosts: u64,
}

/// Runs `schedules` (of ranks 0, 1, ...) on elements of `item_bytes`. `hosts` names each rank's host; empty: all on
/// one.
///
/// # Panics
/// When the schedules do not fit together and never end: a bug of the algorithm.
pub fn cost(schedules: &[Schedule], item_bytes: usize, hosts: &[u32], model: &CostModel) -> RunCost {
    assert!(hosts.is_empty() || hosts.len() == schedules.len(), "hosts must name the host of every rank, or be empty");
    let mut run = ScheduleRun {
        schedules,
        item_bytes: item_bytes as f64,
        hosts,
        model,
        ranks: vec![RankState::default(); schedules.len()],
        nics: HashMap::new(),
        pairs: HashMap::new(),
        events: BinaryHeap::new(),
        event_count: 0,
        cost: RunCost::default(),
    };
    (0..schedules.len()).for_each(|rank| run.at(0.0, CostEvent::BeginRound(rank)));
    while let Some(Reverse((SimTime(now), _, event))) = run.events.pop() {
        match event {
            CostEvent::BeginRound(rank) => run.begin_round(rank, now),
            CostEvent::ReachHost { from, to, bytes } => run.enter_host(from, to, bytes, now),
        }
    }
    for (rank, (state, schedule)) in run.ranks.iter().zip(schedules).enumerate() {
        assert!(state.round == schedule.rounds.len(), "deadlock: rank {rank} waits forever in round {}", state.round);
    }
    run.cost
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

#[derive(Clone, Default)]
struct RankState {
    round: usize,
    /// When the rank's own link is free.
    link_free_s: f64,
    /// When the current round's sends are through, on the processor and on the link.
    sent_s: (f64, f64),
    /// Receives of the round still without a message, and (arrival, overhead) of the others.
    missing: usize,
    arrived: Vec<(f64, f64)>,
}

/// When a host's outgoing and incoming link is free.
#[derive(Clone, Copy, Default)]
struct HostNic {
    out_free_s: f64,
    in_free_s: f64,
}

/// Messages from one rank to another that wait for a receive, or receives that wait for a message.
#[derive(Default)]
struct PairQueues {
    arrivals: VecDeque<f64>,
    waiting: usize,
}

struct ScheduleRun<'a> {
    schedules: &'a [Schedule],
    item_bytes: f64,
    hosts: &'a [u32],
    model: &'a CostModel,
    ranks: Vec<RankState>,
    nics: HashMap<u32, HostNic>,
    pairs: HashMap<(usize, usize), PairQueues>,
    /// What is to happen, by time, then by number.
    events: BinaryHeap<Reverse<(SimTime, u64, CostEvent)>>,
    event_count: u64,
    cost: RunCost,
}

/// Ordered only so that it can stand beside a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CostEvent {
    /// The rank is done with its last round.
    BeginRound(usize),
    /// The first byte of a message from another host is there.
    ReachHost { from: usize, to: usize, bytes: u64 },
}

impl ScheduleRun<'_> {
    fn at(&mut self, time: f64, event: CostEvent) {
        self.events.push(Reverse((SimTime(time), self.event_count, event)));
        self.event_count += 1;
    }

    fn host(&self, rank: usize) -> u32 {
        self.hosts.get(rank).copied().unwrap_or(0)
    }

    fn link(&self, a: usize, b: usize) -> LinkCost {
        if self.host(a) == self.host(b) { self.model.same_host } else { self.model.other_host }
    }

    fn begin_round(&mut self, rank: usize, now: f64) {
        let schedules = self.schedules;
        let Some(round) = schedules[rank].rounds.get(self.ranks[rank].round) else {
            self.cost.seconds = self.cost.seconds.max(now);
            return;
        };
        let (mut busy_until, mut sent) = (now, now);
        for message in &round.messages {
            match *message {
                ScheduleMessage::Send { to, range } => {
                    busy_until += self.link(rank, to as usize).overhead_s;
                    sent = self.send(rank, to as usize, range.len as f64 * self.item_bytes, busy_until).max(sent);
                }
                ScheduleMessage::Recv { from, .. } => {
                    let pair = self.pairs.entry((from as usize, rank)).or_default();
                    let arrival = pair.arrivals.pop_front();
                    pair.waiting += usize::from(arrival.is_none());
                    let overhead = self.link(from as usize, rank).overhead_s;
                    let state = &mut self.ranks[rank];
                    match arrival {
                        Some(at) => state.arrived.push((at, overhead)),
                        None => state.missing += 1,
                    }
                }
            }
        }
        self.ranks[rank].sent_s = (busy_until, sent);
        if self.ranks[rank].missing == 0 {
            self.end_round(rank);
        }
    }

    /// Puts a message on its way at `now` and returns when the sender's link is done with it.
    fn send(&mut self, from: usize, to: usize, bytes: f64, now: f64) -> f64 {
        let link = self.link(from, to);
        let (source, target) = (self.host(from), self.host(to));
        let duration = bytes * link.per_byte_s;
        self.cost.messages += 1;
        self.cost.bytes += bytes as u64;
        if source == target {
            let left = now.max(self.ranks[from].link_free_s) + duration;
            self.ranks[from].link_free_s = left;
            self.arrive(from, to, left + link.latency_s);
            return left;
        }
        self.cost.bytes_between_hosts += bytes as u64;
        let out = self.nics.entry(source).or_default();
        let left = now.max(out.out_free_s) + duration;
        out.out_free_s = left;
        self.at(left - duration + link.latency_s, CostEvent::ReachHost { from, to, bytes: bytes as u64 });
        left
    }

    /// A message comes through the receiving host's link.
    fn enter_host(&mut self, from: usize, to: usize, bytes: u64, now: f64) {
        let duration = bytes as f64 * self.link(from, to).per_byte_s;
        let into = self.nics.entry(self.host(to)).or_default();
        into.in_free_s = into.in_free_s.max(now) + duration;
        let arrival = into.in_free_s;
        self.arrive(from, to, arrival);
    }

    /// The receive that takes a message has it from `arrival` on.
    fn arrive(&mut self, from: usize, to: usize, arrival: f64) {
        let overhead = self.link(from, to).overhead_s;
        let pair = self.pairs.entry((from, to)).or_default();
        if pair.waiting == 0 {
            pair.arrivals.push_back(arrival);
        } else {
            pair.waiting -= 1;
            self.ranks[to].arrived.push((arrival, overhead));
            self.ranks[to].missing -= 1;
            if self.ranks[to].missing == 0 {
                self.end_round(to);
            }
        }
    }

    /// All messages of the rank's round are accounted for: takes them in the order of arrival, then does the local
    /// work.
    fn end_round(&mut self, rank: usize) {
        let schedules = self.schedules;
        let state = &mut self.ranks[rank];
        let round = &schedules[rank].rounds[state.round];
        let mut arrived = std::mem::take(&mut state.arrived);
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut now, sent) = state.sent_s;
        for (arrival, overhead) in arrived {
            now = now.max(arrival) + overhead;
        }
        state.round += 1;
        now = now.max(sent) + self.local_s(round);
        self.at(now, CostEvent::BeginRound(rank));
    }

    fn local_s(&self, round: &Round) -> f64 {
        let seconds = |local: &LocalStep| match local {
            LocalStep::Copy { into, .. } => into.len as f64 * self.item_bytes * self.model.copy_per_byte_s,
            LocalStep::ReduceLeft { into, .. } | LocalStep::ReduceRight { into, .. } => {
                into.len as f64 * self.item_bytes * self.model.reduce_per_byte_s
            }
        };
        round.local.iter().map(seconds).sum()
    }
}
