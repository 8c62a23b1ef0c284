//! Copies of tasks: a copy's context and run, waiting, and cancellation.

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

/// What a running copy is.
pub type TaskFuture = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>>;

/// On which threads the copies of a task run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Executor {
    /// The worker's pool, which steals work: for tasks that await.
    #[default]
    Pool,
    /// A thread of its own for every copy: for tasks that block, or compute for long without a break.
    Thread,
}
