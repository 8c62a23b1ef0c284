//! Task graphs over Arrow `RecordBatch`es, run by the workers of a communicator.
//!
//! Modules, lowest first:
//!
//! | module              | contents                                                                          |
//! |---------------------|-----------------------------------------------------------------------------------|
//! | `look_timer`        | when to look again at something                                                   |
//! | `sync`              | the atomics and locks that tests replace                                          |
//! | `observation`       | what a worker counts about itself, and how worker 0 receives it                   |
//! | [`work`]            | how busy the steps of a job are                                                   |
//! | [`metrics`]         | what is counted on every edge                                                     |
//! | [`overlay`]         | trees of workers                                                                  |
//! | [`sorting`]         | sorts and merges outside graphs                                                   |
//! | `error`             | the problems of a graph, and errors of its run                                    |
//! | [`rebalance`]       | buckets move to other copies while the stream runs                                |
//! | `partitioner`       | which copy receives a row                                                         |
//! | `source_progress`   | how far the time of sources has advanced, and which split holds it back           |
//! | `unaligned`         | barriers that overtake rows                                                       |
//! | `link`              | all edges' traffic between two workers: frames, credit                            |
//! | [`checkpoint`]      | the state of all copies at a barrier, durable as a whole                          |
//! | [`task`]            | what a copy knows about itself and its run, and how it is cancelled               |
//! | [`flow`]            | what a graph is lowered to: copies, movers, and both halves of a batch's trip     |
//! | [`operator`]        | tasks without their own loop                                                      |
//! | [`stream`]          | the loops of sources and sinks                                                    |
//! | [`exchange`]        | how the output of one task reaches another, one file each                         |
//! | [`graph`]           | tasks, ports, edges: what every worker builds in the same way, checked before it runs |
//! | [`placement`]       | which worker runs which copy; graphs printed and drawn                            |
//! | `run`               | the runner: lowers a graph, starts copies, moves bytes, resumes from checkpoints  |
//! | `run_controller`    | hands what workers count to the controller, and carries out what it decides       |
//! | [`testing`]         | a whole job from one seed and in one thread: for tests of operators               |
//!
//! Operations on batches within one worker are in `tidemill-batch`; this crate re-exports the names that programs need.
//!
//! The path of a batch: a copy's `send` asks the edge's mover for the targets of rows, takes credit from the stream's
//! account, combines a small batch that is not the first of its turn with those after it (`flow/send/lane.rs`,
//! `task/turn.rs`), and either puts it unchanged into the queue of a copy on this worker, or encodes it into a frame
//! for the link. The receiver's pump reads the frame into aligned memory and puts it into the queue of its copy,
//! which verifies and decodes it when it takes it, and returns the credit.

pub mod checkpoint;
pub mod exchange;
pub mod flow;
pub mod graph;
pub mod metrics;
pub mod operator;
pub mod overlay;
pub mod placement;
pub mod rebalance;
pub mod sorting;
pub mod stream;

mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod look_timer;
mod observation;
mod partitioner;
mod run;
mod run_controller;
mod source_progress;
mod sync;
pub mod task;
#[doc(hidden)]
pub mod testing;
mod unaligned;
pub mod work;

pub use error::{DataflowError, TaskError};
pub use flow::{Input, InputStream, Inputs, LongTurn, Output, Outputs, StreamElement};
pub use graph::{Executor, Graph, GraphError, GraphErrors, Parallelism, PortRef, Resources, TaskId, TaskSpec};
pub use look_timer::LookTimer;
pub use metrics::{EdgeReport, RunReport};
pub use operator::{Emitter, Operator};
pub use overlay::{Overlay, OverlayChoice, Shape, WorkerNetwork};
pub use placement::{PlacementPlan, WorkerInfo};
pub use run::{ProgressCallback, RunProgress, Runner, RunnerSettings, WorkerStatus};
pub use run_controller::RunController;
pub use task::{TaskContext, wait_in_copy};
pub use tidemill_batch::{BatchError, RouteMap, floats, keys, memory, min_max, prefetch, route_map};
pub use tidemill_control::{ClusterLayout, WorkerSample};
