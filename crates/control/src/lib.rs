//! The controller: why a job is slow, which host it is, and which buckets to move.
//!
//! Everything here is a function or a state machine without clock, socket, thread or environment: layout and counters
//! go in, sentences and route maps come out. `dataflow` counts and moves; `python` shows.
//!
//! Modules, lowest first:
//!
//! | module      | what is in it                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | [`layout`]  | hosts, workers, tasks, and which copy owns which bucket                 |
//! | [`sample`]  | what each worker has counted since the run began                        |
//! | [`report`]  | rates, causes and decisions, as people read them                        |

pub mod layout;
pub mod report;
pub mod sample;

pub use layout::{ClusterLayout, HostLayout, TaskLayout, TaskRole};
pub use report::{
    BucketReport, Cause, CauseKind, ClusterReport, Decision, HeavyKeyReport, HostLinkReport, HostReport, Outcome,
    Remedy, TaskReport, TaskWorkerReport,
};
pub use sample::{BucketCounters, HeavyKey, LinkCounters, TaskCounters, TcpCounters, WorkerSample};
