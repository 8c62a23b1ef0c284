//! Exchanges in which every rank does the same at each step, for so many workers that their P² messages would not fit
//! into a queue of events, nor their schedules into memory.
//!
//! In each step every rank sends to the rank some distance above it and receives from the one at the same distance
//! below. Steps run one after the other, and a link takes all messages of a step before any of the next, in the order
//! in which their senders were ready when last sorted; so no event queue is needed, and a message costs a few
//! nanoseconds. If all ranks keep pace, the result equals the event simulation's (the tests compare both). A rank that
//! lags by more than a step delays messages on its host's link that would really pass before its own.

use tidemill_collective::tuner::CostModel;
use tidemill_collective::{Algorithm, Collective};

use crate::links::Links;

/// The parameters of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shifts {
    steps: u32,
    /// Whether the distance grows by 1 from step to step, until every rank has met every other; otherwise it is
    /// always 1.
    widening: bool,
    /// Bytes of each message.
    bytes: f64,
    /// Whether a step begins when the previous one has ended for the ranks concerned; otherwise all messages are sent
    /// at once.
    in_step: bool,
    /// The duration of the work that ends each of the first `work_steps` steps, in seconds.
    work_s: f64,
    work_steps: u32,
    /// The duration of the work before each send, in seconds: the rest of the program continues while messages
    /// travel.
    between_s: f64,
    /// Set for an exchange of rows.
    flows: Option<Flows>,
}

/// A flow from every rank to every other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flows {
    /// How many bytes each rank sends.
    pub(crate) bytes: f64,
    /// Each rank's received share relative to an even one; empty: all are even.
    pub(crate) shares: Vec<f64>,
    /// How many bytes of a flow may be in transit before its receiver has received them. They travel in two halves:
    /// one is in transit while the credit for the other comes back.
    pub(crate) window: f64,
    /// The length of a frame; each frame costs an overhead.
    pub(crate) frame_bytes: f64,
    /// The duration of each sender's work that produces the rows, in seconds.
    pub(crate) make_s: f64,
    /// The duration of the receiver's work per byte, in seconds.
    pub(crate) take_per_byte_s: f64,
}

impl Flows {
    /// How many bytes each rank sends to `rank`.
    pub(crate) fn bytes_to(&self, rank: usize, ranks: usize) -> f64 {
        self.bytes / ranks as f64 * self.shares.get(rank).copied().unwrap_or(1.0)
    }

    /// How many turns the longest of them takes.
    fn turns(&self, ranks: usize) -> f64 {
        let most = self.shares.iter().copied().fold(if self.shares.is_empty() { 1.0 } else { 0.0 }, f64::max);
        (self.bytes / ranks as f64 * most / (self.window / 2.0)).ceil().max(1.0)
    }

    /// The length of the piece of a flow to `rank` in turn `turn`; 0 if the flow has ended.
    fn piece(&self, rank: usize, ranks: usize, turn: u32) -> f64 {
        let piece = self.window / 2.0;
        let sent = if turn == 0 { 0.0 } else { f64::from(turn) * piece };
        (self.bytes_to(rank, ranks) - sent).min(piece).max(0.0)
    }

    /// How many overheads a message of `bytes` costs.
    fn frames(&self, bytes: f64) -> f64 {
        (bytes / self.frame_bytes).ceil().max(1.0)
    }
}

impl Shifts {
    /// The equivalent of `algorithm`'s schedule, if it has this form. `bytes`: of the vector, or of one rank's blocks
    /// together.
    pub(crate) fn of(
        collective: Collective,
        algorithm: Algorithm,
        ranks: u32,
        bytes: f64,
        model: &CostModel,
    ) -> Option<Shifts> {
        let last = ranks.saturating_sub(1);
        let bytes = bytes / f64::from(ranks.max(1));
        let plain = Shifts {
            steps: last,
            widening: true,
            bytes,
            in_step: true,
            work_s: 0.0,
            work_steps: 0,
            between_s: 0.0,
            flows: None,
        };
        let work_s = bytes * model.reduce_per_byte_s;
        match (collective, algorithm) {
            (Collective::Allreduce, Algorithm::Ring) => {
                Some(Shifts { steps: 2 * last, widening: false, work_s, work_steps: last, ..plain })
            }
            (Collective::Allgather, Algorithm::Ring) => Some(Shifts { widening: false, ..plain }),
            (Collective::Alltoall, Algorithm::Pairwise) => Some(plain),
            (Collective::Allgather | Collective::Alltoall, Algorithm::Linear) => {
                Some(Shifts { in_step: false, ..plain })
            }
            _ => None,
        }
    }

    /// A flow from every rank to every other. A sender visits its receivers in turn, and sends each as much as its
    /// window allows; if the window is full it waits, like a task whose rows one receiver does not take.
    pub(crate) fn flows(ranks: u32, flows: Flows) -> Shifts {
        let others = ranks.saturating_sub(1);
        // The caller refuses more turns than this.
        let steps = (f64::from(others) * flows.turns(ranks as usize)).min(f64::from(u32::MAX)) as u32;
        Shifts {
            steps,
            widening: true,
            bytes: 0.0,
            in_step: false,
            work_s: 0.0,
            work_steps: 0,
            between_s: if steps == 0 { 0.0 } else { flows.make_s / f64::from(steps) },
            flows: Some(flows),
        }
    }

    /// The total number of messages.
    pub(crate) fn messages(&self, ranks: u32) -> u64 {
        u64::from(self.steps) * u64::from(ranks)
    }

    /// How far above the sender the receiver of a step is.
    fn distance(&self, step: u32, ranks: usize) -> usize {
        if self.widening { step as usize % (ranks - 1) + 1 } else { 1 }
    }

    /// Runs it from `starts_s` on. Returns when each rank has ended; ranks that die (`dies_s`; empty: nobody) and
    /// those that wait for them never end.
    pub(crate) fn run(&self, links: &mut Links, starts_s: &[f64], dies_s: &[f64]) -> Vec<f64> {
        let ranks = starts_s.len();
        let mut state = ShiftRun {
            ready_s: starts_s.to_vec(),
            received_s: starts_s.to_vec(),
            left_s: starts_s.to_vec(),
            arrival_s: vec![0.0; ranks],
            received_work_s: vec![0.0; ranks],
            idle_s: vec![0.0; ranks],
            credit_s: Vec::new(),
        };
        if self.flows.is_some() && self.steps as usize > ranks - 1 {
            state.credit_s = vec![[0.0; 2]; ranks * (ranks - 1)];
        }
        let dies_s = |rank: usize| dies_s.get(rank).copied().unwrap_or(f64::INFINITY);
        let mut order: Vec<u32> = (0..ranks as u32).collect();
        // Sorting costs more than a step, and an early rank stays early for a while.
        let sort_every = ranks as u32 / 256 + 1;
        for step in 0..self.steps {
            if step % sort_every == 0 {
                order.sort_by(|&a, &b| state.ready_s[a as usize].total_cmp(&state.ready_s[b as usize]));
            }
            for &rank in &order {
                self.send(links, &mut state, rank, step, dies_s(rank as usize));
            }
            if self.in_step {
                self.end_step(links, &mut state, step, &dies_s);
            }
        }
        if self.in_step {
            return state.ready_s;
        }
        (0..ranks).map(|rank| state.end_s(rank, dies_s(rank))).collect()
    }

    fn send(&self, links: &mut Links, state: &mut ShiftRun, rank: u32, step: u32, dies_s: f64) {
        let (at, ranks) = (rank as usize, state.ready_s.len());
        let distance = self.distance(step, ranks);
        let to = (at + distance) % ranks;
        let (flow, turn) = (at * (ranks - 1) + distance - 1, step / (ranks as u32 - 1));
        let (bytes, frames) = match &self.flows {
            Some(flows) => {
                let piece = flows.piece(to, ranks, turn);
                (piece, flows.frames(piece))
            }
            None => (self.bytes, 1.0),
        };
        let is_over = self.flows.is_some() && bytes == 0.0 && turn > 0;
        let overhead_s = if is_over { 0.0 } else { frames * links.overhead_s(rank, to as u32) };
        let mut now = state.ready_s[at];
        if now.is_finite() {
            if self.between_s > 0.0 {
                let factor = links.jitter();
                now = links.compute(now, self.between_s * factor);
            }
            if !is_over {
                let credit_s = state.credit_s.get(flow).map_or(0.0, |credits_s| credits_s[turn as usize % 2]);
                state.idle_s[at] += (credit_s - now).max(0.0);
                now = links.overhead(rank, now.max(credit_s), overhead_s);
            }
        }
        state.ready_s[at] = if now < dies_s { now } else { f64::INFINITY };
        if is_over {
            return;
        }
        let arrival = if now < dies_s {
            let (left, reach) = links.leave(rank, to as u32, bytes, now);
            state.left_s[at] = state.left_s[at].max(left);
            links.deliver(reach)
        } else {
            f64::INFINITY
        };
        state.arrival_s[to] = arrival;
        if self.in_step {
            return;
        }
        let take_s = self.flows.as_ref().map_or(0.0, |flows| flows.take_per_byte_s * bytes);
        let taken_s = state.received_s[to].max(arrival) + overhead_s;
        state.received_s[to] = if take_s > 0.0 { links.compute(taken_s, take_s) } else { taken_s };
        state.received_work_s[to] += overhead_s + take_s;
        if let Some(credits_s) = state.credit_s.get_mut(flow) {
            credits_s[turn as usize % 2] = state.received_s[to] + links.latency_s(rank, to as u32);
        }
    }

    /// All ranks receive what has arrived, and work.
    fn end_step(&self, links: &mut Links, state: &mut ShiftRun, step: u32, dies_s: &impl Fn(usize) -> f64) {
        let ranks = state.ready_s.len();
        let distance = self.distance(step, ranks);
        let work_s = if step < self.work_steps { self.work_s } else { 0.0 };
        for rank in 0..ranks {
            let from = (rank + ranks - distance) % ranks;
            let mut now = state.ready_s[rank].max(state.arrival_s[rank]);
            if now.is_finite() {
                let overhead_s = links.overhead_s(from as u32, rank as u32);
                now = links.overhead(rank as u32, now, overhead_s).max(state.left_s[rank]);
                now = links.compute(now, work_s);
            }
            state.ready_s[rank] = if now < dies_s(rank) { now } else { f64::INFINITY };
        }
    }
}

/// The times that ranks have reached, in seconds.
struct ShiftRun {
    /// When the processor is free.
    ready_s: Vec<f64>,
    /// When everything received is processed, if nothing else kept the processor busy.
    received_s: Vec<f64>,
    /// When everything sent has left.
    left_s: Vec<f64>,
    /// When the message of this step arrives.
    arrival_s: Vec<f64>,
    /// The processor time for receiving.
    received_work_s: Vec<f64>,
    /// How long the processor waited for credit, during which it processed what it received.
    idle_s: Vec<f64>,
    /// For flows with a window, by sender and distance: when the sender learns that its last two messages were
    /// received.
    credit_s: Vec<[f64; 2]>,
}

impl ShiftRun {
    /// The end of a rank that sends everything before it processes what has arrived.
    fn end_s(&self, rank: usize, dies_s: f64) -> f64 {
        let processor_s = self.ready_s[rank] + (self.received_work_s[rank] - self.idle_s[rank]).max(0.0);
        let end_s = processor_s.max(self.received_s[rank]).max(self.left_s[rank]);
        if end_s < dies_s { end_s } else { f64::INFINITY }
    }
}
