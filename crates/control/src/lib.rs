//! The controller: why a job is slow, which host it is, and which buckets to move.
//!
//! Everything here is a function or a state machine without clock, socket, thread or environment: layout and counters
//! go in, sentences and route maps come out. `dataflow` counts and moves; `python` shows.
//!
//! Modules, lowest first:
//!
//! | module         | what is in it                                                 |
//! |----------------|---------------------------------------------------------------|
//! | [`layout`]     | hosts, workers, tasks, and which copy owns which bucket       |
//! | [`sample`]     | what each worker has counted since the run began              |
//! | [`report`]     | rates, causes and decisions, as people read them              |
//! | `testing`      | what tests share                                              |
//! | [`observe`]    | from counters to rates, and to what hosts and links can carry |
//! | [`assign`]     | which copy should own which bucket                            |
//! | [`diagnose`]   | what holds a job up, in sentences                             |
//! | [`controller`] | whether to act, and whether it was any good                   |

pub mod assign;
pub mod controller;
pub mod diagnose;
pub mod layout;
pub mod observe;
pub mod report;
pub mod sample;
#[cfg(test)]
mod testing;

pub use assign::{AssignError, Load, Plan, Problem, assign};
pub use controller::{Action, Controller, Limits, Mode};
pub use diagnose::diagnose;
pub use layout::{ClusterLayout, HostLayout, TaskLayout, TaskRole};
pub use observe::{HostLimits, Observer, Rates, TaskRates};
pub use report::{
    BucketReport, Cause, CauseKind, ClusterReport, Decision, HeavyKeyReport, HostLinkReport, HostReport, Outcome,
    Remedy, TaskReport, TaskWorkerReport,
};
pub use sample::{BucketCounters, HeavyKey, LinkCounters, TaskCounters, TcpCounters, WorkerSample};
