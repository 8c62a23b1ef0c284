//! Errors of a graph and of its run, as the caller of a run and the tasks in it see them.

use std::fmt;

use arrow::error::ArrowError;
use tidemill_batch::BatchError;
pub use tidemill_batch::TaskError;
use tidemill_collective::CollectiveError;
use tidemill_net::{NetError, Rank};

/// One problem of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Two tasks have the same name, or two ports of a task do.
    #[error("two {what} are called \"{name}\"")]
    Duplicate {
        /// `"tasks"` or `"ports of ..."`.
        what: String,
        /// The name.
        name: String,
    },
    /// An edge names a port that the task does not have.
    #[error("task \"{task}\" has no {side} port {port}; it has {has}")]
    NoSuchPort {
        /// The task.
        task: String,
        /// `"input"` or `"output"`.
        side: &'static str,
        /// What was asked for.
        port: String,
        /// The existing ports.
        has: String,
    },
    /// No edge leads to or from a port.
    #[error("{side} port \"{port}\" of task \"{task}\" is not connected")]
    Unconnected {
        /// The task.
        task: String,
        /// `"input"` or `"output"`.
        side: &'static str,
        /// The port.
        port: String,
    },
    /// Tasks wait for each other.
    #[error("tasks form a cycle: {}; an edge that leads back must be added with `feedback`", tasks.join(" -> "))]
    Cycle {
        /// The cycle; the first task again at the end.
        tasks: Vec<String>,
    },
    /// The port does not accept what an edge delivers, or the exchange cannot move it.
    #[error("edge {edge}: {reason}")]
    Edge {
        /// The edge.
        edge: String,
        /// The problem.
        reason: String,
    },
    /// A task has invalid settings.
    #[error("task \"{task}\": {reason}")]
    Task {
        /// The task.
        task: String,
        /// The problem.
        reason: String,
    },
}

/// All problems of a graph; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphErrors {
    /// The graph's name.
    pub graph: String,
    /// The problems, in the order in which they were found.
    pub errors: Vec<GraphError>,
}

impl std::error::Error for GraphErrors {}

impl fmt::Display for GraphErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph \"{}\" cannot run:", self.graph)?;
        self.errors.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// An error of a graph or of its run. Cheap to clone, since everyone who waits receives the same fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataflowError {
    /// The graph is invalid; nothing has run.
    #[error(transparent)]
    Graph(#[from] GraphErrors),
    /// The tasks could not be placed on the workers; nothing has run.
    #[error("placement: {0}")]
    Placement(String),
    /// The workers built different graphs; nothing has run.
    #[error("the workers' graphs differ: {ours} on worker {our_worker}, but {theirs} on worker {their_worker}")]
    Differs {
        /// The first part that differs, here.
        ours: String,
        /// This worker.
        our_worker: Rank,
        /// The same part there, as a hash, since graphs are not sent around.
        theirs: String,
        /// A worker whose graph differs.
        their_worker: Rank,
    },
    /// A task copy failed, or the exchange beneath it. The same on every worker.
    #[error("task \"{task}\", copy {copy} on worker {worker}: {message}")]
    Task {
        /// The task's name.
        task: String,
        /// The number of the copy.
        copy: u32,
        /// The worker on which it ran.
        worker: Rank,
        /// Its error message.
        message: String,
    },
    /// An exchange delivered something that was not sent, or sent something to a destination that does not exist.
    #[error("edge {edge}: {reason}")]
    Edge {
        /// The edge, as `source.port -> target.port (exchange)`.
        edge: String,
        /// What was found.
        reason: String,
    },
    /// Processing batches failed: memory, the spill directory, or an Arrow kernel.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The system refused to start a thread.
    #[error("{0}")]
    Thread(String),
    /// A job that makes checkpoints cannot start.
    #[error("{0}")]
    Checkpoint(String),
    /// A worker could not open its part of the communicator of a task's copies.
    #[error("task \"{task}\": worker {worker} cannot open the communicator of its copies: {reason}")]
    CopyComm {
        /// The task.
        task: String,
        /// The worker.
        worker: Rank,
        /// The error on that worker.
        reason: String,
    },
    /// The run was given up; another copy's error says why.
    #[error("the run was cancelled because another task failed")]
    Cancelled,
    /// The job or a worker failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A call on a communicator failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl From<ArrowError> for DataflowError {
    fn from(error: ArrowError) -> Self {
        DataflowError::Batch(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers of a run's error do not care in which crate it began.
    #[test]
    fn errors_of_batches_read_the_same_in_a_run() {
        let text = String::from;
        let memory =
            BatchError::Memory { wants: text("a"), bytes: 1, budget_bytes: 2, holder: text("b"), held_bytes: 3 };
        let spill = BatchError::Spill { dir: text("/tmp"), reason: text("full") };
        for error in [memory, spill, BatchError::Arrow(text("c"))] {
            assert_eq!(DataflowError::from(error.clone()).to_string(), error.to_string());
        }
    }
}
