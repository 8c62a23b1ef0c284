//! A program of many workers in virtual time, phase by phase: work of each, collectives, exchanges.
//!
//! Collectives run the schedules that a job would run, chosen by the tuner. A phase begins, for each worker, when its
//! last one has ended, so the slow ones lag behind and hold up only those who wait for them. Phases are simulated one
//! after the other: what an early worker sends in the next phase waits for the links after everything of this one.

use tidemill_collective::algorithms::{UnsupportedAlgorithm, schedule};
use tidemill_collective::tuner::{AlgorithmChoice, TuneQuery, TuneTable};
use tidemill_collective::{Algorithm, Collective, ScheduleParams};

use crate::cluster::{BadCluster, Cluster};
use crate::direct::DirectCall;
use crate::events;
use crate::links::{Busy, Links, Traffic};
use crate::program::Program;
use crate::shifts::{Flows, Shifts};
use crate::zipf;

/// Bytes of an element in the collectives that are simulated.
const ITEM_BYTES: usize = 8;

/// Messages, sent and received, of a schedule that is run event by event: some 1 GB of memory.
const MESSAGES_MAX: usize = 40 << 20;

/// Messages from which an exchange in which everybody does the same goes step by step.
const STEPWISE_MESSAGES_MIN: u64 = 1 << 20;

/// Bytes of a frame of an exchange: each costs an overhead.
const FRAME_BYTES: f64 = 65536.0;

/// Messages of an exchange that is run: some minutes.
const FLOW_MESSAGES_MAX: u64 = 4 << 30;

/// Flows that have a window: what each may send is kept in memory.
const WINDOWS_MAX: u64 = 32 << 20;

/// Why something cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The cluster cannot be.
    #[error(transparent)]
    Cluster(#[from] BadCluster),
    /// The algorithm does not run the collective.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedAlgorithm),
    /// The algorithm, which sends no messages, cannot run the collective here.
    #[error("{collective} by {algorithm} cannot be simulated: {reason}; choose another algorithm")]
    NotDirect {
        /// The collective.
        collective: Collective,
        /// How it was to be run.
        algorithm: Algorithm,
        /// Why not.
        reason: &'static str,
    },
    /// A window that flows do not fit into.
    #[error(
        "a window of {window_bytes} bytes cuts the flows of {workers} workers into {messages} messages, which is too \
         much; choose a wider window or fewer workers"
    )]
    NarrowWindow {
        /// The window.
        window_bytes: u64,
        /// Number of workers.
        workers: u32,
        /// Messages.
        messages: u64,
    },
    /// The schedules do not fit into memory.
    #[error(
        "{collective} by {algorithm} on {ranks} workers has more than {} million messages, which do not fit into \
         memory; choose another algorithm, such as {other}, or fewer workers", MESSAGES_MAX >> 21
    )]
    TooManyMessages {
        /// The collective.
        collective: Collective,
        /// How it was to be run.
        algorithm: Algorithm,
        /// Number of workers.
        ranks: u32,
        /// An algorithm with fewer messages.
        other: Algorithm,
    },
}

/// A collective that all workers call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectiveStep {
    /// Which one.
    pub collective: Collective,
    /// Bytes of the vector, or of one rank's blocks together.
    pub bytes: u64,
    /// How; `None`: as the tuner chooses.
    pub algorithm: Option<Algorithm>,
}

/// An exchange of rows: a flow from every worker to every other one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangeStep {
    /// Bytes of rows of each worker.
    pub bytes: u64,
    /// Seconds of each worker's work, which makes the rows while others travel.
    pub make_s: f64,
    /// Seconds of the receiver's work for each byte.
    pub take_per_byte_s: f64,
    /// The exponent of Zipf's law for the buckets of keys; 0: all workers get as much.
    pub skew: f64,
    /// Bytes that a sender may have under way to a receiver; `None`: all.
    pub window_bytes: Option<u64>,
}

/// What a program took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When each worker ended; who died, when that was, and who waited for them, when the failure timeout was over.
    pub end_s: Vec<f64>,
    /// Whether the worker did not come to the end of the program.
    pub unfinished: Vec<bool>,
    /// What was sent.
    pub traffic: Traffic,
    /// What the busiest of each kind was busy with.
    pub busy: Busy,
    /// Seconds of work of the worker that had the most, communication apart.
    pub work_s: f64,
    /// How collectives were run, one of each kind, in the order of the first call.
    pub choices: Vec<(Collective, AlgorithmChoice)>,
}

/// The packed schedules of the last collective: steps of a loop have the same ones.
struct Packed {
    step: CollectiveStep,
    choice: AlgorithmChoice,
    plan: PackedPlan,
}

enum PackedPlan {
    Events(Program),
    Steps(Shifts),
    Direct(DirectCall),
}

/// Workers of a cluster, and where they are in their program.
pub struct Simulation<'a> {
    links: Links<'a>,
    table: &'a TuneTable,
    now_s: Vec<f64>,
    dies_s: Vec<f64>,
    work_s: Vec<f64>,
    packed: Option<Packed>,
    choices: Vec<(Collective, AlgorithmChoice)>,
    /// Messages from which an exchange goes step by step.
    stepwise_messages_min: u64,
}

impl<'a> Simulation<'a> {
    /// All workers at time 0. `table` chooses algorithms.
    ///
    /// # Errors
    /// [`BadCluster`] when it names what does not exist.
    pub fn new(cluster: &'a Cluster, table: &'a TuneTable) -> Result<Simulation<'a>, SimulateError> {
        cluster.check()?;
        let workers = cluster.host_of.len();
        let mut dies_s = Vec::new();
        if !cluster.failures.is_empty() {
            dies_s = vec![f64::INFINITY; workers];
            for failure in &cluster.failures {
                let at_s: &mut f64 = &mut dies_s[failure.rank as usize];
                *at_s = at_s.min(failure.at_s);
            }
        }
        Ok(Simulation {
            links: Links::new(cluster),
            table,
            now_s: vec![0.0; workers],
            dies_s,
            work_s: vec![0.0; workers],
            packed: None,
            choices: Vec::new(),
            stepwise_messages_min: STEPWISE_MESSAGES_MIN,
        })
    }

    /// Goes step by step wherever that is possible.
    pub(crate) fn prefer_steps(&mut self) {
        self.stepwise_messages_min = 0;
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.links.cluster().workers()
    }

    /// Everybody works, `seconds(rank)` if nothing varies.
    pub fn work(&mut self, seconds: impl Fn(u32) -> f64) {
        for rank in 0..self.now_s.len() {
            let now = self.now_s[rank];
            if !now.is_finite() {
                continue;
            }
            let work_s = seconds(rank as u32) * self.links.jitter();
            self.work_s[rank] += work_s;
            let end_s = self.links.compute(now, work_s);
            self.now_s[rank] = if end_s < self.dies_s(rank) { end_s } else { f64::INFINITY };
        }
    }

    /// Everybody calls a collective.
    ///
    /// # Errors
    /// When the algorithm asked for cannot run it, or its schedules do not fit into memory.
    pub fn collective(&mut self, step: CollectiveStep) -> Result<(), SimulateError> {
        if self.packed.as_ref().is_none_or(|packed| packed.step != step) {
            self.packed = None;
            self.packed = Some(self.pack(step)?);
        }
        let packed = self.packed.as_ref().expect("it has just been packed");
        if !self.choices.iter().any(|&(collective, choice)| (collective, choice) == (step.collective, packed.choice)) {
            self.choices.push((step.collective, packed.choice));
        }
        self.now_s = match &packed.plan {
            PackedPlan::Events(program) => events::run(&mut self.links, program, &self.now_s, &self.dies_s),
            PackedPlan::Steps(shifts) => shifts.run(&mut self.links, &self.now_s, &self.dies_s),
            PackedPlan::Direct(call) => call.run(&mut self.links, &self.now_s, &self.dies_s),
        };
        Ok(())
    }

    /// Everybody does its part of a program.
    pub(crate) fn run(&mut self, program: &Program) {
        self.now_s = events::run(&mut self.links, program, &self.now_s, &self.dies_s);
    }

    /// Everybody sends a flow to everybody else.
    ///
    /// # Errors
    /// When the skew makes no sense, or the window is too narrow for so many workers.
    pub fn exchange(&mut self, step: &ExchangeStep) -> Result<(), SimulateError> {
        let &ExchangeStep { bytes, make_s, take_per_byte_s, skew, window_bytes } = step;
        let (workers, ranks) = (self.workers(), self.now_s.len());
        if !(skew >= 0.0 && skew.is_finite()) {
            return Err(BadCluster(format!("a skew of {skew} is none: 0 or more")).into());
        }
        let shares = if skew == 0.0 { Vec::new() } else { zipf::shares(workers, skew, self.links.cluster().seed) };
        let window = window_bytes.map_or(f64::INFINITY, |window| window.max(1) as f64);
        let flows = Flows { bytes: bytes as f64, shares, window, frame_bytes: FRAME_BYTES, make_s, take_per_byte_s };
        let own_s = |rank: usize| take_per_byte_s * flows.bytes_to(rank, ranks);
        let own_s: Vec<f64> = (0..ranks).map(own_s).collect();
        if workers > 1 {
            let shifts = Shifts::flows(workers, flows);
            let (messages, pairs) = (shifts.messages(workers), u64::from(workers) * u64::from(workers - 1));
            if messages > pairs && (messages > FLOW_MESSAGES_MAX || pairs > WINDOWS_MAX) {
                let window_bytes = window_bytes.unwrap_or(u64::MAX);
                return Err(SimulateError::NarrowWindow { window_bytes, workers, messages });
            }
            // What a worker makes for itself goes nowhere, but is made and taken with the rest.
            let received = |(sum, own_s): (&mut f64, &f64)| *sum += make_s + own_s * f64::from(workers - 1);
            self.work_s.iter_mut().zip(&own_s).for_each(received);
            self.now_s = shifts.run(&mut self.links, &self.now_s, &self.dies_s);
            self.work(|rank| own_s[rank as usize]);
        } else {
            self.work(|_| make_s + own_s[0]);
        }
        Ok(())
    }

    /// What it took until now.
    pub fn finish(self) -> Outcome {
        let cluster = self.links.cluster();
        let first_death_s = self.dies_s.iter().copied().fold(f64::INFINITY, f64::min);
        let given_up_s = first_death_s + cluster.failure_timeout_s;
        // News of a loss ends the whole job, so nobody goes on beyond it.
        let lost = self.now_s.iter().any(|end_s| !end_s.is_finite());
        let unfinished: Vec<bool> = self.now_s.iter().map(|&end_s| lost && end_s >= given_up_s).collect();
        let end_s = |rank: usize| if unfinished[rank] { self.dies_s(rank).min(given_up_s) } else { self.now_s[rank] };
        Outcome {
            end_s: (0..self.now_s.len()).map(end_s).collect(),
            traffic: self.links.traffic,
            busy: self.links.busy(),
            work_s: self.work_s.iter().copied().fold(0.0, f64::max),
            choices: self.choices,
            unfinished,
        }
    }

    fn dies_s(&self, rank: usize) -> f64 {
        self.dies_s.get(rank).copied().unwrap_or(f64::INFINITY)
    }

    fn pack(&self, step: CollectiveStep) -> Result<Packed, SimulateError> {
        let cluster = self.links.cluster();
        let CollectiveStep { collective, bytes, algorithm } = step;
        let ranks = cluster.workers();
        let query = TuneQuery {
            collective,
            bytes: bytes as usize,
            item_bytes: ITEM_BYTES,
            ranks,
            hosts: cluster.hosts(),
            within_host: cluster.within_host,
            commutative: true,
            repeatable: false,
        };
        let choice = match algorithm {
            Some(algorithm) => AlgorithmChoice { algorithm, chunk: self.table.estimate_chunk(&query, algorithm) },
            None => self.table.choose(&query),
        };
        if choice.algorithm.is_direct() {
            let plan = DirectCall::new(collective, choice.algorithm, bytes as f64, cluster)
                .map_err(|reason| SimulateError::NotDirect { collective, algorithm: choice.algorithm, reason })?;
            return Ok(Packed { step, choice, plan: PackedPlan::Direct(plan) });
        }
        if let Some(shifts) = Shifts::of(collective, choice.algorithm, ranks, bytes as f64, &cluster.model)
            && shifts.messages(ranks) >= self.stepwise_messages_min
        {
            return Ok(Packed { step, choice, plan: PackedPlan::Steps(shifts) });
        }
        let program = self.program(collective, bytes, choice)?;
        Ok(Packed { step, choice, plan: PackedPlan::Events(program) })
    }

    fn program(&self, collective: Collective, bytes: u64, choice: AlgorithmChoice) -> Result<Program, SimulateError> {
        let cluster = self.links.cluster();
        let ranks = cluster.workers();
        let elements = (bytes as usize).div_ceil(ITEM_BYTES);
        let in_blocks = matches!(collective, Collective::Allgather | Collective::Alltoall);
        let count = if in_blocks { elements.div_ceil(ranks as usize) } else { elements };
        let hosts = if cluster.hosts() > 1 { &cluster.host_of[..] } else { &[] };
        let mut program = Program::default();
        // A schedule of this has P steps of local work, which are the same on every rank.
        let alike = (collective, choice.algorithm) == (Collective::Alltoall, Algorithm::Bruck) && ranks > 1;
        for rank in 0..if alike { 1 } else { ranks } {
            let params = ScheduleParams { count, chunk: choice.chunk, hosts, ..ScheduleParams::new(rank, ranks) };
            program.push(&schedule(collective, choice.algorithm, &params)?, ITEM_BYTES, &cluster.model);
            if program.message_count() > MESSAGES_MAX {
                let other = match collective {
                    Collective::Allreduce => Algorithm::HalvingDoubling,
                    Collective::Bcast => Algorithm::Binomial,
                    _ => Algorithm::Bruck,
                };
                return Err(SimulateError::TooManyMessages { collective, algorithm: choice.algorithm, ranks, other });
            }
        }
        if alike {
            program.rotate(ranks);
        }
        Ok(program)
    }
}
