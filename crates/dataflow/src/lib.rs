//! Batches between tasks, as they come: task graphs over Arrow `RecordBatch`es, run by the workers of a communicator.
//!
//! | module        | what is in it                                                                       |
//! |---------------|-------------------------------------------------------------------------------------|
//! | [`graph`]     | tasks, ports, edges: what every worker builds in the same way, checked before it runs |
//! | [`placement`] | which worker runs which copy                                                        |
//! | [`exchange`]  | how what leaves one task reaches another, one file each                             |
//! | [`flow`]      | what a graph is lowered to: copies, movers, queues                                  |
//! | `link`        | all edges' traffic between two workers: frames, credit                              |
//! | `wire`        | what crosses workers                                                                |
//! | [`keys`], [`route_map`] | the hash of a key, its bucket, the bucket's owner                         |
//! | [`floats`]    | floats as keys: one NaN, one zero                                                   |
//! | [`operator`]  | tasks without a loop of their own                                                   |
//! | [`rebalance`] | buckets move to other copies while the stream goes on                               |
//! | [`stream`]    | streams without an end: time, barriers, sources and sinks                           |
//! | [`checkpoint`] | what all copies kept at a barrier, durable as a whole                              |
//! | [`memory`]    | the worker's budget, and the disk beyond it                                         |
//! | `local`       | sorting, merging, reducing and joining where rows are, within the budget            |
//! | `run`         | the runner                                                                          |
//!
//! One batch's way: a copy's `send` asks the edge's mover where rows go, takes credit from the stream's account, puts a small
//! batch that is not the first of its turn together with those behind it (`flow/lane.rs`, `flow/turn.rs`), and either hands it
//! to the queue of a copy of this worker as it is, or encodes it into a frame and gives it to the link. The receiver's pump lets
//! it land in aligned memory and puts it into the queue of its copy, which verifies and decodes it when it takes it; that gives
//! the credit back.

pub mod checkpoint;
pub mod exchange;
pub mod floats;
pub mod flow;
pub mod graph;
pub mod keys;
mod local;
pub mod memory;
pub mod metrics;
pub mod operator;
pub mod overlay;
pub mod placement;
pub mod rebalance;
pub mod route_map;
pub mod stream;

mod ends;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod prefetch;
mod run;
mod shown;
mod sync;
mod widest;
mod wire;

pub use ends::ends;
pub use error::{DataflowError, TaskError};
pub use flow::{Input, InputStream, Inputs, Item, LongTurn, Output, Outputs};
pub use graph::{Executor, Graph, GraphError, GraphErrors, Parallelism, PortRef, Resources, TaskId, TaskSpec};
pub use local::order::Order;
pub use local::sort::{Sorted, Sorter};
pub use metrics::{EdgeReport, RunReport};
pub use operator::{Emit, Operator};
pub use overlay::Overlay;
pub use placement::{Plan, WorkerInfo};
pub use prefetch::prefetch;
pub use route_map::RouteMap;
pub use run::{Look, Progress, Runner, Settings, TaskContext, WorkerStatus, wait_in_copy};
pub use shown::without_passwords;
