//! Programs to simulate: single collectives, what the applications of Tidemill do, and what every job does.
//!
//! | workload    | what every worker does                                                                         |
//! |-------------|------------------------------------------------------------------------------------------------|
//! | `allreduce`, `bcast`, `alltoall` | calls the collective `steps` times                                        |
//! | `partition` | hashes its rows while flows carry them to their workers                                        |
//! | `keyed`     | the same, and updates the state of the keys that it receives                                   |
//! | `kmeans`    | each step: distances of its points to all centers; allreduce of sums, weights and a count      |
//! | `mds`       | each step: distances of its points to all points; allgather of L + 1 numbers a point           |
//! | `terasort`  | reads; allgathers samples of keys; flows of records to their ranges; sorts; writes             |
//! | `rendezvous`, `loss`, `checkpoint` | see [`control`]                                                          |
//!
//! A flow is one message for each pair of workers, or as many as its window of credit requires; it costs an overhead
//! for each frame of 64 KiB.

use std::str::FromStr;

use tidemill_collective::tuner::TuneTable;
use tidemill_collective::{Algorithm, Collective};
use tidemill_net::control::ControlTree;

use crate::cluster::{BadCluster, Cluster};
use crate::control::{self, ControlRates};
use crate::simulation::{CollectiveStep, ExchangeStep, Outcome, SimulateError, Simulation};

/// The length of a card: a worker's addresses, host, cores and more.
const CARD_BYTES: u64 = 150;

/// The kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Combines the vectors of all workers, and gives the result to all.
    Allreduce,
    /// Sends a vector from one worker to all.
    Bcast,
    /// Sends a block from every worker to every other.
    Alltoall,
    /// Sends rows to the workers of their keys.
    Partition,
    /// The same, followed by an aggregation by key.
    Keyed,
    /// K-means.
    Kmeans,
    /// Multidimensional scaling.
    Mds,
    /// Sorting records of 100 bytes.
    Terasort,
    /// The start of a job.
    Rendezvous,
    /// The news of a lost worker.
    Loss,
    /// The reports of a checkpoint.
    Checkpoint,
}

impl WorkloadKind {
    /// All of them, by name.
    pub const ALL: [(&'static str, WorkloadKind); 11] = [
        ("allreduce", WorkloadKind::Allreduce),
        ("bcast", WorkloadKind::Bcast),
        ("alltoall", WorkloadKind::Alltoall),
        ("partition", WorkloadKind::Partition),
        ("keyed", WorkloadKind::Keyed),
        ("kmeans", WorkloadKind::Kmeans),
        ("mds", WorkloadKind::Mds),
        ("terasort", WorkloadKind::Terasort),
        ("rendezvous", WorkloadKind::Rendezvous),
        ("loss", WorkloadKind::Loss),
        ("checkpoint", WorkloadKind::Checkpoint),
    ];
}

impl FromStr for WorkloadKind {
    type Err = BadCluster;

    fn from_str(text: &str) -> Result<Self, BadCluster> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text).map(|&(_, kind)| kind);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| BadCluster(format!("unknown workload {text:?}; choose one of: {}", names())))
    }
}

/// How much one worker alone gets done in a second. The defaults are round numbers for one core, not measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkRates {
    /// Operations of k-means: two for each point, center and dimension.
    pub flops_per_s: f64,
    /// Pairs of points that a pass of multidimensional scaling handles.
    pub pairs_per_s: f64,
    /// Bytes of rows hashed and sorted by destination worker.
    pub partition_bytes_per_s: f64,
    /// Bytes of rows that update the state of keys.
    pub update_bytes_per_s: f64,
    /// Bytes of records sorted.
    pub sort_bytes_per_s: f64,
    /// Bytes read from storage.
    pub read_bytes_per_s: f64,
    /// Bytes written to storage.
    pub write_bytes_per_s: f64,
    /// The cost of control messages.
    pub control: ControlRates,
}

impl Default for WorkRates {
    fn default() -> Self {
        WorkRates {
            flops_per_s: 4e9,
            pairs_per_s: 5e8,
            partition_bytes_per_s: 1e9,
            update_bytes_per_s: 5e8,
            sort_bytes_per_s: 2e8,
            read_bytes_per_s: 5e8,
            write_bytes_per_s: 5e8,
            control: ControlRates::default(),
        }
    }
}

/// A program and its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// The kind of program.
    pub kind: WorkloadKind,
    /// The length of the vector, of one worker's blocks together, of one worker's rows or records, or of its card in
    /// a rendezvous.
    pub bytes: u64,
    /// The points of all workers together, in k-means and scaling.
    pub points: u64,
    /// The dimensions of the points of k-means, or of the picture of scaling.
    pub dimensions: u32,
    /// The number of centers of k-means.
    pub clusters: u32,
    /// How often a collective is called, the number of iterations, or the copies per worker in a checkpoint.
    pub steps: u32,
    /// The algorithm of collectives; `None`: the tuner chooses.
    pub algorithm: Option<Algorithm>,
    /// The most children of a worker on the control plane; `None`: as in a job.
    pub fanout: Option<u32>,
    /// How keys are distributed over buckets in exchanges by key: the exponent of Zipf's law, 0 for evenly.
    pub skew: f64,
    /// How many bytes a worker may have in transit to another in an exchange; `None`: no limit.
    pub window_bytes: Option<u64>,
    /// How much workers get done.
    pub rates: WorkRates,
}

impl Workload {
    /// `kind`, in a size that is quick to simulate.
    pub fn new(kind: WorkloadKind) -> Workload {
        Workload {
            kind,
            bytes: if kind == WorkloadKind::Rendezvous { CARD_BYTES } else { 8 << 20 },
            points: 1 << 24,
            dimensions: if kind == WorkloadKind::Mds { 3 } else { 32 },
            clusters: 100,
            steps: 1,
            algorithm: None,
            fanout: None,
            skew: 0.0,
            window_bytes: None,
            rates: WorkRates::default(),
        }
    }

    /// Runs it on `cluster`; `table` chooses algorithms.
    ///
    /// # Errors
    /// If the cluster is invalid, or the algorithm cannot run the collective or needs too much memory.
    pub fn run(&self, cluster: &Cluster, table: &TuneTable) -> Result<Outcome, SimulateError> {
        let is_control = matches!(self.kind, WorkloadKind::Rendezvous | WorkloadKind::Loss | WorkloadKind::Checkpoint);
        let on_control_plane;
        let cluster = if is_control {
            on_control_plane =
                Cluster { model: control::model(&cluster.model, &self.rates.control), ..cluster.clone() };
            &on_control_plane
        } else {
            cluster
        };
        let mut simulation = Simulation::new(cluster, table)?;
        let bytes = self.bytes as f64;
        let rates = &self.rates;
        match self.kind {
            WorkloadKind::Allreduce => self.repeat(&mut simulation, Collective::Allreduce)?,
            WorkloadKind::Bcast => self.repeat(&mut simulation, Collective::Bcast)?,
            WorkloadKind::Alltoall => self.repeat(&mut simulation, Collective::Alltoall)?,
            WorkloadKind::Partition => simulation.exchange(&self.partitioned(self.skew))?,
            WorkloadKind::Keyed => {
                let take_per_byte_s = 1.0 / rates.update_bytes_per_s;
                simulation.exchange(&ExchangeStep { take_per_byte_s, ..self.partitioned(self.skew) })?;
            }
            WorkloadKind::Kmeans => self.kmeans(&mut simulation)?,
            WorkloadKind::Mds => self.mds(&mut simulation)?,
            WorkloadKind::Terasort => self.terasort(&mut simulation)?,
            WorkloadKind::Rendezvous => {
                simulation.run(&control::rendezvous(&self.tree(cluster), bytes, &rates.control))
            }
            WorkloadKind::Loss => simulation.run(&control::loss(&self.tree(cluster))),
            WorkloadKind::Checkpoint => {
                simulation.run(&control::checkpoint(&self.tree(cluster), f64::from(self.steps), &rates.control));
            }
        }
        Ok(simulation.finish())
    }

    /// Rows that are hashed and sent to the workers of their keys.
    fn partitioned(&self, skew: f64) -> ExchangeStep {
        let make_s = self.bytes as f64 / self.rates.partition_bytes_per_s;
        let window_bytes = self.window_bytes;
        ExchangeStep { bytes: self.bytes, make_s, skew, window_bytes, ..ExchangeStep::default() }
    }

    fn tree(&self, cluster: &Cluster) -> ControlTree {
        ControlTree::new(cluster.workers(), self.fanout)
    }

    /// Runs a collective step by step, however few messages it has, to compare both ways.
    ///
    /// # Errors
    /// As [`Workload::run`].
    #[doc(hidden)]
    pub fn run_stepwise(&self, cluster: &Cluster) -> Result<Outcome, SimulateError> {
        let table = TuneTable::default();
        let mut simulation = Simulation::new(cluster, &table)?;
        simulation.prefer_steps();
        match self.kind {
            WorkloadKind::Allreduce => self.repeat(&mut simulation, Collective::Allreduce)?,
            _ => self.repeat(&mut simulation, Collective::Alltoall)?,
        }
        Ok(simulation.finish())
    }

    fn repeat(&self, simulation: &mut Simulation, collective: Collective) -> Result<(), SimulateError> {
        let step = CollectiveStep { collective, bytes: self.bytes, algorithm: self.algorithm };
        (0..self.steps).try_for_each(|_| simulation.collective(step))
    }

    fn kmeans(&self, simulation: &mut Simulation) -> Result<(), SimulateError> {
        let (k, d) = (u64::from(self.clusters), u64::from(self.dimensions));
        let operations = 2.0 * (k * d) as f64;
        let work_s = |points: f64| points * operations / self.rates.flops_per_s;
        // The sums of the clusters, their weights, and how many points changed: `python/tidemill/ml/_lloyd.py`.
        let bytes = 8 * (k * d + k + 1);
        let step = CollectiveStep { collective: Collective::Allreduce, bytes, algorithm: self.algorithm };
        self.iterate(simulation, work_s, step)
    }

    fn mds(&self, simulation: &mut Simulation) -> Result<(), SimulateError> {
        let work_s = |points: f64| points * self.points as f64 / self.rates.pairs_per_s;
        // The positions of the worker's points and the stress of their rows: `python/tidemill/ml/_smacof.py`.
        let bytes = 8 * (u64::from(self.dimensions) + 1) * self.points;
        let step = CollectiveStep { collective: Collective::Allgather, bytes, algorithm: self.algorithm };
        self.iterate(simulation, work_s, step)
    }

    /// Work on each worker's points, followed by a collective, in every step.
    fn iterate(
        &self,
        simulation: &mut Simulation,
        work_s: impl Fn(f64) -> f64,
        step: CollectiveStep,
    ) -> Result<(), SimulateError> {
        let workers = u64::from(simulation.workers());
        let share = |rank: u32| {
            let edge = |rank: u64| u128::from(self.points) * u128::from(rank) / u128::from(workers);
            (edge(u64::from(rank) + 1) - edge(u64::from(rank))) as f64
        };
        for _ in 0..self.steps {
            simulation.work(|rank| work_s(share(rank)));
            simulation.collective(step)?;
        }
        Ok(())
    }

    fn terasort(&self, simulation: &mut Simulation) -> Result<(), SimulateError> {
        let (bytes, rates) = (self.bytes as f64, &self.rates);
        simulation.work(|_| bytes / rates.read_bytes_per_s);
        // A hundred keys of ten bytes from every worker determine where ranges end.
        let bytes_of_all = 1024 * u64::from(simulation.workers());
        let samples = CollectiveStep { collective: Collective::Allgather, bytes: bytes_of_all, algorithm: None };
        simulation.collective(samples)?;
        // Samples of keys make the ranges equal, whatever the keys are.
        simulation.exchange(&self.partitioned(0.0))?;
        simulation.work(|_| bytes / rates.sort_bytes_per_s);
        simulation.work(|_| bytes / rates.write_bytes_per_s);
        Ok(())
    }
}
