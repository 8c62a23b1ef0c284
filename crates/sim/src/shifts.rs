//! Exchanges in which everybody does the same at each step: for so many workers that the messages, P² of them, would
//! not fit into a queue of events, nor their schedules into memory.
//!
//! In each step every rank sends to the rank some distance above it and receives from the one as far below. Steps are
//! taken one after the other and a link takes the messages of a step before those of the next, in the order in which
//! their senders were ready at the last look; so there is no queue of events and a message costs some nanoseconds.
//! Where everybody keeps pace that is what the events would say (the tests compare both); a rank that lags behind by
//! more than a step holds up messages of its host's link that in truth would pass before its own.

use tidemill_collective::tuner::CostModel;
use tidemill_collective::{Algorithm, Collective};

use crate::links::Links;

/// How an exchange goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shifts {
    steps: u32,
    /// The distance grows by 1 from step to step, until everybody has had everybody; else it is always 1.
    widening: bool,
    /// Bytes of each message.
    bytes: f64,
    /// A step begins when the one before has ended everywhere it concerns; else all messages are sent at once.
    in_step: bool,
    /// Seconds of work that ends each of the first `work_steps` steps.
    work_s: f64,
    work_steps: u32,
    /// Seconds of work before each send: the rest of the program goes on while messages travel.
    between_s: f64,
    /// Of an exchange of rows.
    flows: Option<Flows>,
}

/// A flow from everybody to everybody else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flows {
    /// Bytes that each sends.
    pub(crate) bytes: f64,
    /// How many times its even share each gets; empty: that share.
    pub(crate) shares: Vec<f64>,
    /// Bytes of a flow that may be under way until its receiver has taken them. It goes in pieces of half of that: one
    /// is under way while credit for the other comes back.
    pub(crate) window: f64,
    /// Bytes of a frame: each costs an overhead.
    pub(crate) frame_bytes: f64,
    /// Seconds of each sender's work, which makes the rows.
    pub(crate) make_s: f64,
    /// Seconds of the receiver's work for each byte.
    pub(crate) take_per_byte_s: f64,
}

impl Flows {
    /// Bytes from each to `rank`.
    pub(crate) fn bytes_to(&self, rank: usize, ranks: usize) -> f64 {
        self.bytes / ranks as f64 * self.shares.get(rank).copied().unwrap_or(1.0)
    }

    /// In how many turns the longest of them goes.
    fn turns(&self, ranks: usize) -> f64 {
        let most = self.shares.iter().copied().fold(if self.shares.is_empty() { 1.0 } else { 0.0 }, f64::max);
        (self.bytes / ranks as f64 * most / (self.window / 2.0)).ceil().max(1.0)
    }

    /// The piece of a flow to `rank` that goes in turn `turn`; of one that is over, none.
    fn piece(&self, rank: usize, ranks: usize, turn: u32) -> f64 {
        let piece = self.window / 2.0;
        let sent = if turn == 0 { 0.0 } else { f64::from(turn) * piece };
        (self.bytes_to(rank, ranks) - sent).min(piece).max(0.0)
    }

    /// What a message of so many bytes counts as, in overheads.
    fn frames(&self, bytes: f64) -> f64 {
        (bytes / self.frame_bytes).ceil().max(1.0)
    }
}

impl Shifts {
    /// The same as the schedule of `algorithm`, where that is of this kind. `bytes`: of the vector or of one rank's
    /// blocks together.
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

    /// Everybody to everybody, a flow each. A sender goes round its receivers, and sends each as much as its window
    /// takes; where that is not free yet it waits, as a task does whose rows one receiver does not take.
    pub(crate) fn flows(ranks: u32, flows: Flows) -> Shifts {
        let others = ranks.saturating_sub(1);
        // More turns than that are refused by whoever asks for them.
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

    /// Messages in all.
    pub(crate) fn messages(&self, ranks: u32) -> u64 {
        u64::from(self.steps) * u64::from(ranks)
    }

    /// How far above the sender the receiver of a step is.
    fn distance(&self, step: u32, ranks: usize) -> usize {
        if self.widening { step as usize % (ranks - 1) + 1 } else { 1 }
    }

    /// Runs it from `starts_s` on; returns when each rank has ended: never for who dies (`dies_s`; empty: nobody) and
    /// who waits for them.
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
        // Sorting costs more than a step, and who is early stays early for a while.
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

    /// Everybody takes what has arrived, and works.
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

/// Where the ranks are, in seconds.
struct ShiftRun {
    /// The processor is free.
    ready_s: Vec<f64>,
    /// All that was received is seen to, if nothing else kept the processor.
    received_s: Vec<f64>,
    /// All that was sent has left.
    left_s: Vec<f64>,
    /// The message of this step is there.
    arrival_s: Vec<f64>,
    /// What receiving takes of the processor.
    received_work_s: Vec<f64>,
    /// The processor has waited for credit, and has seen meanwhile to what it received.
    idle_s: Vec<f64>,
    /// Where flows have a window: by sender and distance, when the sender hears that its last two messages were taken.
    credit_s: Vec<[f64; 2]>,
}

impl ShiftRun {
    /// The end of a rank that sends everything before it looks at what has come.
    fn end_s(&self, rank: usize, dies_s: f64) -> f64 {
        let processor_s = self.ready_s[rank] + (self.received_work_s[rank] - self.idle_s[rank]).max(0.0);
        let end_s = processor_s.max(self.received_s[rank]).max(self.left_s[rank]);
        if end_s < dies_s { end_s } else { f64::INFINITY }
    }
}
