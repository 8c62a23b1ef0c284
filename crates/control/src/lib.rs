//! The controller: why a job is slow, which host is the reason, and which buckets to move.
//!
//! Everything here is a function or a state machine without clocks, sockets, threads or environment: layouts and
//! counters go in, sentences and route maps come out. `dataflow` counts and moves; `python` shows.
//!
//! Modules, lowest first:
//!
//! | module         | contents                                                      |
//! |----------------|---------------------------------------------------------------|
//! | [`layout`]     | hosts, workers, tasks, and which copy owns which bucket       |
//! | [`sample`]     | what each worker has counted since the run began              |
//! | [`report`]     | rates, causes and decisions, as users see them                |
//! | `testing`      | shared by tests                                               |
//! | [`observe`]    | turns counters into rates, and capacities of hosts and links  |
//! | [`assign`]     | which copy should own which bucket                            |
//! | `splits`       | which copy of a source should read which split                |
//! | [`diagnose`]   | what slows a job down, in sentences                           |
//! | [`controller`] | whether to act, and whether that helped                       |

pub mod assign;
pub mod controller;
pub mod diagnose;
pub mod layout;
pub mod observe;
pub mod report;
pub mod sample;
mod splits;
#[cfg(test)]
mod testing;

pub use assign::{AssignError, Load, Plan, Problem, assign, share_with};
pub use controller::{Action, Controller, Limits, Mode};
pub use diagnose::diagnose;
pub use layout::{ClusterLayout, HostLayout, TaskLayout, TaskRole, spare_workers};
pub use observe::{HostLimits, Observer, Rates, TaskRates};
pub use report::{
    BucketReport, Cause, CauseKind, ClusterReport, Decision, HeavyKeyReport, HostLinkReport, HostReport, Outcome,
    Remedy, TaskReport, TaskWorkerReport,
};
pub use sample::{BucketCounters, HeavyKey, LinkCounters, TaskCounters, TcpCounters, WorkerSample};
pub use splits::{SplitPlan, plan_splits};
