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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shifts {
    steps: u32,
    /// The distance of step k is k + 1; else always 1.
    widening: bool,
    /// Bytes of each message.
    bytes: f64,
    /// A step begins when the one before has ended everywhere it concerns; else all messages are sent at once.
    in_step: bool,
    /// What a message counts as, in overheads.
    frames: f64,
    /// Seconds of work that ends each of the first `work_steps` steps.
    work_s: f64,
    work_steps: u32,
    /// Seconds of work before each send: the rest of the program goes on while messages travel.
    between_s: f64,
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
            frames: 1.0,
            work_s: 0.0,
            work_steps: 0,
            between_s: 0.0,
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

    /// Everybody to everybody, a flow each of `bytes` in frames of `frame_bytes`, while `work_s` of work makes them.
    pub(crate) fn flows(ranks: u32, bytes: f64, frame_bytes: f64, work_s: f64) -> Shifts {
        let steps = ranks.saturating_sub(1);
        Shifts {
            steps,
            widening: true,
            bytes,
            in_step: false,
            frames: (bytes / frame_bytes).ceil().max(1.0),
            work_s: 0.0,
            work_steps: 0,
            between_s: if steps == 0 { 0.0 } else { work_s / f64::from(steps) },
        }
    }

    /// Messages in all.
    pub(crate) fn messages(&self, ranks: u32) -> u64 {
        u64::from(self.steps) * u64::from(ranks)
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
            received_overhead_s: vec![0.0; ranks],
        };
        let dies_s = |rank: usize| dies_s.get(rank).copied().unwrap_or(f64::INFINITY);
        let mut order: Vec<u32> = (0..ranks as u32).collect();
        // Sorting costs more than a step, and who is early stays early for a while.
        let sort_every = ranks as u32 / 256 + 1;
        for step in 0..self.steps {
            if step % sort_every == 0 {
                order.sort_by(|&a, &b| state.ready_s[a as usize].total_cmp(&state.ready_s[b as usize]));
            }
            let distance = if self.widening { step as usize + 1 } else { 1 };
            for &rank in &order {
                let to = (rank as usize + distance) % ranks;
                self.send(links, &mut state, rank, to as u32, dies_s(rank as usize));
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

    fn send(&self, links: &mut Links, state: &mut ShiftRun, rank: u32, to: u32, dies_s: f64) {
        let at = rank as usize;
        let overhead_s = self.frames * links.overhead_s(rank, to);
        let mut now = state.ready_s[at];
        if now.is_finite() {
            if self.between_s > 0.0 {
                let factor = links.jitter();
                now = links.compute(now, self.between_s * factor);
            }
            now = links.overhead(rank, now, overhead_s);
        }
        let arrival = if now < dies_s {
            let (left, reach) = links.leave(rank, to, self.bytes, now);
            state.ready_s[at] = now;
            state.left_s[at] = state.left_s[at].max(left);
            links.deliver(reach)
        } else {
            state.ready_s[at] = f64::INFINITY;
            f64::INFINITY
        };
        let to = to as usize;
        state.arrival_s[to] = arrival;
        if !self.in_step {
            state.received_s[to] = state.received_s[to].max(arrival) + overhead_s;
            state.received_overhead_s[to] += overhead_s;
        }
    }

    /// Everybody takes what has arrived, and works.
    fn end_step(&self, links: &mut Links, state: &mut ShiftRun, step: u32, dies_s: &impl Fn(usize) -> f64) {
        let ranks = state.ready_s.len();
        let distance = if self.widening { step as usize + 1 } else { 1 };
        let work_s = if step < self.work_steps { self.work_s } else { 0.0 };
        for rank in 0..ranks {
            let from = (rank + ranks - distance % ranks) % ranks;
            let mut now = state.ready_s[rank].max(state.arrival_s[rank]);
            if now.is_finite() {
                let overhead_s = self.frames * links.overhead_s(from as u32, rank as u32);
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
    /// What receiving has taken of the processor.
    received_overhead_s: Vec<f64>,
}

impl ShiftRun {
    /// The end of a rank that sends everything before it looks at what has come.
    fn end_s(&self, rank: usize, dies_s: f64) -> f64 {
        let processor_s = self.ready_s[rank] + self.received_overhead_s[rank];
        let end_s = processor_s.max(self.received_s[rank]).max(self.left_s[rank]);
        if end_s < dies_s { end_s } else { f64::INFINITY }
    }
}
