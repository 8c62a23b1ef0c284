//! Runs a program of many workers in virtual time, phase by phase: work of each, collectives, exchanges.
//!
//! Collectives run the schedules that a job would run, chosen by the tuner. Each worker's phase begins when its
//! previous one has ended, so slow workers lag behind and delay only those that wait for them. Phases are simulated
//! one after the other: what an early worker sends in the next phase waits for the links after everything of this
//! one.

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

/// The length of an element in simulated collectives.
const ITEM_BYTES: usize = 8;

/// The most messages, sent and received, of a schedule that runs event by event: about 1 GB of memory.
const MESSAGES_MAX: usize = 40 << 20;

/// From this many messages on, an exchange in which every rank does the same runs step by step.
const STEPWISE_MESSAGES_MIN: u64 = 1 << 20;

/// The length of a frame of an exchange; each frame costs an overhead.
const FRAME_BYTES: f64 = 65536.0;

/// The most messages of an exchange: simulating them takes some minutes.
const FLOW_MESSAGES_MAX: u64 = 4 << 30;

/// The most flows with a window: memory holds what each may send.
const WINDOWS_MAX: u64 = 32 << 20;

/// Why something cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The description of the cluster is invalid.
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
        /// The requested algorithm.
        algorithm: Algorithm,
        /// The reason.
        reason: &'static str,
    },
    /// The window is too narrow for the flows.
    #[error(
        "a window of {window_bytes} bytes cuts the flows of {workers} workers into {messages} messages, which is too \
         much; choose a wider window or fewer workers"
    )]
    NarrowWindow {
        /// The window.
        window_bytes: u64,
        /// Number of workers.
        workers: u32,
        /// The resulting number of messages.
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
        /// The requested algorithm.
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
    /// The collective.
    pub collective: Collective,
    /// The length of the vector, or of one rank's blocks together.
    pub bytes: u64,
    /// The algorithm; `None`: the tuner chooses.
    pub algorithm: Option<Algorithm>,
}

/// An exchange of rows: a flow from every worker to every other one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangeStep {
    /// The length of each worker's rows.
    pub bytes: u64,
    /// The duration of each worker's work that produces the rows while others travel, in seconds.
    pub make_s: f64,
    /// The duration of the receiver's work per byte, in seconds.
    pub take_per_byte_s: f64,
    /// The exponent of Zipf's law for the buckets of keys; 0: all workers receive the same amount.
    pub skew: f64,
    /// How many bytes a sender may have in transit to a receiver; `None`: no limit.
    pub window_bytes: Option<u64>,
}

/// The result of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When each worker ended; for a worker that died, when it died, and for those that waited for it, when the
    /// failure timeout ended.
    pub end_s: Vec<f64>,
    /// Whether the worker did not reach the end of the program.
    pub unfinished: Vec<bool>,
    /// How much was sent.
    pub traffic: Traffic,
    /// How long the busiest of each kind was busy.
    pub busy: Busy,
    /// The work of the worker with the most, in seconds, without communication.
    pub work_s: f64,
    /// How collectives ran, one entry for each kind, in the order of their first calls.
    pub choices: Vec<(Collective, AlgorithmChoice)>,
}

/// The packed schedules of the last collective: steps of a loop share them.
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

/// The workers of a cluster, and how far they are in their program.
pub struct Simulation<'a> {
    links: Links<'a>,
    table: &'a TuneTable,
    now_s: Vec<f64>,
    dies_s: Vec<f64>,
    work_s: Vec<f64>,
    packed: Option<Packed>,
    choices: Vec<(Collective, AlgorithmChoice)>,
    /// From this many messages on, an exchange runs step by step.
    stepwise_messages_min: u64,
}

impl<'a> Simulation<'a> {
    /// Starts all workers at time 0. `table` chooses algorithms.
    ///
    /// # Errors
    /// [`BadCluster`] if the cluster names something that does not exist.
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

    /// Runs step by step wherever possible.
    pub(crate) fn prefer_steps(&mut self) {
        self.stepwise_messages_min = 0;
    }

    /// The number of workers.
    pub fn workers(&self) -> u32 {
        self.links.cluster().workers()
    }

    /// All workers work, for `seconds(rank)` without jitter.
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

    /// All workers call a collective.
    ///
    /// # Errors
    /// If the requested algorithm cannot run it, or its schedules do not fit into memory.
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

    /// All workers do their part of a program.
    pub(crate) fn run(&mut self, program: &Program) {
        self.now_s = events::run(&mut self.links, program, &self.now_s, &self.dies_s);
    }

    /// Every worker sends a flow to every other.
    ///
    /// # Errors
    /// If the skew is invalid, or the window is too narrow for so many workers.
    pub fn exchange(&mut self, step: &ExchangeStep) -> Result<(), SimulateError> {
        let &ExchangeStep { bytes, make_s, take_per_byte_s, skew, window_bytes } = step;
        let (workers, ranks) = (self.workers(), self.now_s.len());
        if !(skew >= 0.0 && skew.is_finite()) {
            return Err(BadCluster(format!("a skew of {skew} is not at least 0")).into());
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
            // What a worker makes for itself is not sent, but is produced and received with the rest.
            let received = |(sum, own_s): (&mut f64, &f64)| *sum += make_s + own_s * f64::from(workers - 1);
            self.work_s.iter_mut().zip(&own_s).for_each(received);
            self.now_s = shifts.run(&mut self.links, &self.now_s, &self.dies_s);
            self.work(|rank| own_s[rank as usize]);
        } else {
            self.work(|_| make_s + own_s[0]);
        }
        Ok(())
    }

    /// The result so far.
    pub fn finish(self) -> Outcome {
        let cluster = self.links.cluster();
        let first_death_s = self.dies_s.iter().copied().fold(f64::INFINITY, f64::min);
        let given_up_s = first_death_s + cluster.failure_timeout_s;
        // The loss ends the whole job when it becomes known, so nobody continues after that.
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
        // Bruck's schedule has P steps of local work, which are the same on every rank.
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
