//! Copies of tasks: a copy's context, run, waits and cancellation.

mod cancel;
mod context;
mod turn;

use std::future::Future;
use std::pin::Pin;

#[cfg(test)]
pub(crate) use cancel::block_on;
pub use cancel::wait_in_copy;
pub(crate) use cancel::{CancelFlag, CancelToken};
pub(crate) use context::ContextState;
pub use context::TaskContext;
pub use turn::LongTurn;
pub(crate) use turn::{TurnWaiter, join, this_thread};

use crate::error::TaskError;

/// A running copy.
pub type TaskFuture = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>>;

/// The threads on which the copies of a task run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Executor {
    /// The worker's work-stealing pool: for tasks that await.
    #[default]
    Pool,
    /// A separate thread for every copy: for tasks that block, or compute for long without a break.
    Thread,
}
