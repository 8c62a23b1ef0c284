//! Collectives without messages: the ranks of one host read each other's contributions from shared memory, or each
//! other's own memory.
//!
//! A call consists of a few phases of copying and combining. Between two phases, every rank checks that all others
//! have arrived, by reading a cache line of each. As with messages, the model ignores that cores share the memory's
//! bandwidth.
//!
//! | collective  | `shared_memory`                | `single_copy`                                            |
//! |-------------|--------------------------------|----------------------------------------------------------|
//! | `allreduce` | copies n, then combines n P    | combines n (P - 1) / P, then copies n (P - 1) / P        |
//! | `bcast`     | the root copies n, then all do | all copy n                                               |
//! | `alltoall`  | copies n, then n               | copies n                                                 |
//! | `allgather` | copies n / P, then n           | copies n                                                 |

use tidemill_collective::{Algorithm, Collective, direct_algorithms};

use crate::cluster::Cluster;
use crate::links::Links;

/// How many bytes a rank hands to the others at once with `shared_memory`: one slot.
const SLOT_BYTES: f64 = 32768.0;

/// The cost of a call for each rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DirectCall {
    /// The duration of each phase, in seconds.
    phases_s: Vec<f64>,
    /// Whether only rank 0 takes part in the first phase, and the others do not wait for each other.
    from_root: bool,
    /// Seconds between two phases, counted from the arrival of the last rank.
    look_s: f64,
}

impl DirectCall {
    /// A call with `bytes` in the vector, or in one rank's blocks together.
    ///
    /// # Errors
    /// The reason why the algorithm cannot run this.
    pub(crate) fn new(
        collective: Collective,
        algorithm: Algorithm,
        bytes: f64,
        cluster: &Cluster,
    ) -> Result<DirectCall, &'static str> {
        if cluster.hosts() > 1 || !cluster.within_host.shared_memory {
            return Err("it needs workers of one host, which share memory");
        }
        if !direct_algorithms(collective).contains(&algorithm) {
            return Err("it does not run this collective");
        }
        let (near, ranks) = (cluster.model.links(cluster.within_host).0, f64::from(cluster.workers()));
        let copy_s = |bytes: f64| bytes * cluster.model.copy_per_byte_s;
        let combine_s = |bytes: f64| bytes * cluster.model.reduce_per_byte_s;
        let others = bytes * (ranks - 1.0) / ranks;
        let is_shared = algorithm == Algorithm::SharedMemory;
        let contribution = if collective == Collective::Allgather { bytes / ranks } else { bytes };
        let in_chunks = matches!(collective, Collective::Allreduce | Collective::Bcast);
        if is_shared && !in_chunks && contribution > SLOT_BYTES {
            return Err("a rank contributes more than the 32 KiB of a slot");
        }
        let phases_s = match (collective, is_shared) {
            (Collective::Allreduce, true) => vec![copy_s(bytes), combine_s(bytes * ranks)],
            (Collective::Allreduce, false) => vec![0.0, combine_s(others), copy_s(others), 0.0],
            (_, true) => vec![copy_s(contribution), copy_s(bytes)],
            (_, false) => vec![0.0, copy_s(bytes), 0.0],
        };
        let from_root = is_shared && collective == Collective::Bcast;
        let lines = if from_root { 1.0 } else { ranks - 1.0 };
        let turns = if is_shared { (bytes / SLOT_BYTES).ceil().max(1.0) } else { 1.0 };
        let look_s = if ranks > 1.0 { turns * (near.latency_s + lines * near.overhead_s) } else { 0.0 };
        Ok(DirectCall { phases_s, from_root, look_s })
    }

    /// Runs it from `starts_s` on. Returns when each rank has ended; a rank that dies before (`dies_s`; empty: nobody
    /// dies) never ends.
    pub(crate) fn run(&self, links: &mut Links, starts_s: &[f64], dies_s: &[f64]) -> Vec<f64> {
        let mut now_s = starts_s.to_vec();
        for (phase, &phase_s) in self.phases_s.iter().enumerate() {
            if phase > 0 {
                let last_s = if self.from_root { now_s[0] } else { now_s.iter().copied().fold(0.0, f64::max) };
                let waits = now_s.iter_mut().skip(usize::from(self.from_root));
                waits.for_each(|now| *now = now.max(last_s) + self.look_s);
            }
            for (rank, now) in now_s.iter_mut().enumerate() {
                // The root does its part in the first phase, the others in the second.
                let is_idle = self.from_root && (rank == 0) != (phase == 0);
                if now.is_finite() && !is_idle {
                    let factor = links.jitter();
                    *now = links.compute(*now, phase_s * factor);
                }
                let dies_s = dies_s.get(rank).copied().unwrap_or(f64::INFINITY);
                *now = if *now < dies_s { *now } else { f64::INFINITY };
            }
        }
        now_s
    }
}
