//! The simulated network: predicts what programs and collectives cost on machines that are not available, and
//! provides a transport on which one seed replays a whole job.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module       | what                                                                          |
//! |--------------|-------------------------------------------------------------------------------|
//! | `random`     | Random choices that a seed replays                                            |
//! | `cluster`    | The machines of a simulation, and their faults                                |
//! | `links`      | Links and their queues in virtual time                                        |
//! | `program`    | The schedules of all workers, packed                                          |
//! | `events`     | Runs schedules on links, event by event                                       |
//! | `shifts`     | Runs all-to-all exchanges on links, step by step                              |
//! | `direct`     | Collectives without messages                                                  |
//! | `zipf`       | Skewed keys                                                                   |
//! | [`cost`]     | The schedules of all ranks in virtual time, under a [`CostModel`]             |
//! | `simulation` | A program of many workers: work, collectives, exchanges                       |
//! | `control`    | What workers do along the tree of the control plane                           |
//! | `workload`   | Programs to simulate                                                          |
//! | `network`    | A network in one thread and in virtual time, for [`tidemill_net::Transport`]s |

mod cluster;
mod control;
mod cost;
mod direct;
mod events;
mod links;
mod network;
mod program;
mod random;
mod shifts;
mod simulation;
mod workload;
mod zipf;

pub use cluster::{BadCluster, Cluster, Failure, Jitter, SlowHost};
pub use control::ControlRates;
pub use cost::{RunCost, cost, rank_ends_s};
pub use links::{Busy, Traffic};
pub use network::{SimNetwork, SimOptions, SimTransport};
pub use random::{SplitMix64, share_of_seeds};
pub use simulation::{CollectiveStep, ExchangeStep, Outcome, SimulateError, Simulation};
pub use tidemill_collective::tuner::{CostModel, LinkCost};
pub use workload::{WorkRates, Workload, WorkloadKind};
