//! Batches between tasks, as they come: task graphs over Arrow `RecordBatch`es, run by the workers of a communicator.
//!
//! Modules, lowest first:
//!
//! | module              | what is in it                                                                     |
//! |---------------------|-----------------------------------------------------------------------------------|
//! | `sync`              | the atomics and locks that tests replace                                          |
//! | `shown`             | what people are shown of what they have written                                   |
//! | [`work`]            | how busy the steps of a job are                                                   |
//! | [`metrics`]         | what is counted on every edge                                                     |
//! | [`overlay`]         | trees of workers                                                                  |
//! | [`sorting`]         | sorts and merges outside of graphs                                                |
//! | `error`             | what is wrong with a graph, or goes wrong in its run                              |
//! | [`rebalance`]       | buckets move to other copies while the stream runs                                |
//! | `partitioner`       | which copy gets a row                                                             |
//! | `source_progress`   | where the time of sources stands, and which split holds it back                   |
//! | `unaligned`         | barriers that overtake rows                                                       |
//! | `link`              | all edges' traffic between two workers: frames, credit                            |
//! | [`checkpoint`]      | what all copies kept at a barrier, durable as a whole                             |
//! | [`task`]            | what a copy knows of itself and of its run, and how it is cancelled               |
//! | [`flow`]            | what a graph is lowered to: copies, movers, and both halves of a batch's trip     |
//! | [`operator`]        | tasks without a loop of their own                                                 |
//! | [`stream`]          | the loops of sources and sinks                                                    |
//! | [`exchange`]        | how what leaves one task reaches another, one file each                           |
//! | [`graph`]           | tasks, ports, edges: what every worker builds in the same way, checked before it runs |
//! | [`placement`]       | which worker runs which copy; graphs printed and drawn                            |
//! | `run`               | the runner: lowers a graph, starts copies, moves bytes, resumes from checkpoints  |
//!
//! What happens to batches on one worker is in `tidemill-batch`, of which this crate shows the names that programs
//! need.
//!
//! One batch's way: a copy's `send` asks the edge's mover where rows go, takes credit from the stream's account, puts a
//! small batch that is not the first of its turn together with those behind it (`flow/send/lane.rs`, `task/turn.rs`), and
//! either hands it to the queue of a copy of this worker as it is, or encodes it into a frame and gives it to the link.
//! The receiver's pump lets it land in aligned memory and puts it into the queue of its copy, which verifies and
//! decodes it when it takes it; that gives the credit back.

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
mod partitioner;
mod run;
mod shown;
mod source_progress;
mod sync;
pub mod task;
mod unaligned;
pub mod work;

pub use error::{DataflowError, TaskError};
pub use flow::{Input, InputStream, Inputs, Item, LongTurn, Output, Outputs};
pub use graph::{Executor, Graph, GraphError, GraphErrors, Parallelism, PortRef, Resources, TaskId, TaskSpec};
pub use metrics::{EdgeReport, RunReport};
pub use operator::{Emit, Operator};
pub use overlay::Overlay;
pub use placement::{Plan, WorkerInfo};
pub use run::{Look, Progress, Runner, Settings, WorkerStatus};
pub use shown::without_passwords;
pub use task::{TaskContext, wait_in_copy};
pub use tidemill_batch::{BatchError, RouteMap, ends, floats, keys, memory, prefetch, route_map};
