//! One task copy from its start to its end: runs its future, ends its outputs, and reports the outcome to the run.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tidemill_checkpoint::Snapshot;
use tidemill_collective::CollectiveError;
use tidemill_net::NetError;

use super::copy_comms::CopyComm;
use super::fault::RunFault;
use super::state::RunState;
use crate::checkpoint::CopyStates;
use crate::error::{DataflowError, TaskError};
use crate::flow::Outlet;
use crate::observation::CopyClock;
use crate::task::CancelToken;
use crate::task::TaskFuture;

/// A copy that is about to run.
pub(crate) struct TaskCopy {
    pub task: String,
    pub copy: u32,
    pub state: Arc<RunState>,
    pub cancel: CancelToken,
    /// Measures where its time goes.
    pub clock: Arc<CopyClock>,
    /// The communicator of the task's copies.
    pub comm: Option<CopyComm>,
    /// Its part in checkpoints.
    pub states: Option<Arc<CopyStates>>,
    /// How many outlets its outputs were given.
    pub outlets: usize,
    /// Where they are returned.
    pub returned: Arc<Mutex<Vec<Outlet>>>,
}

impl TaskCopy {
    /// Runs the copy. `start` makes its future; a panic is an error like any other.
    pub(crate) async fn run(self, start: impl FnOnce() -> TaskFuture) {
        let work = async {
            let body = std::panic::catch_unwind(AssertUnwindSafe(start)).map_err(panicked)?;
            CatchUnwind(body).await?;
            // Other copies may wait there for this one, which has ended. If it failed, all learn why.
            self.comm.iter().for_each(CopyComm::end);
            self.end_outputs().await?;
            if let Some(states) = &self.states {
                // Sources and sinks have reported their end themselves, with their state.
                states.end(Snapshot::default()).await?;
            }
            Ok::<(), TaskError>(())
        };
        let result: Result<(), TaskError> =
            self.clock.time(self.cancel.guard(work)).await.unwrap_or_else(|cancelled| Err(cancelled.into()));
        // A cancelled copy did not fail, nor did one whose call on a communicator was interrupted.
        if let Err(error) = result
            && !is_cancelled(&error)
            && !(self.cancel.is_raised() && is_interrupted(&error))
        {
            let rank = self.state.links.rank(self.state.links.me).0;
            self.state.fail(RunFault { rank, task: self.task.clone(), copy: self.copy, message: error.to_string() });
        }
        self.returned.lock().clear();
        self.state.copy_done();
    }

    async fn end_outputs(&self) -> Result<(), TaskError> {
        let mut outlets = std::mem::take(&mut *self.returned.lock());
        if outlets.len() < self.outlets && outlets.iter().all(|outlet| !outlet.is_ended()) {
            return Err("it returned but kept an output open: its stream can never end".into());
        }
        for outlet in &mut outlets {
            outlet.finish().await?;
        }
        Ok(())
    }
}

fn is_cancelled(error: &TaskError) -> bool {
    matches!(error.downcast_ref(), Some(DataflowError::Cancelled))
}

fn is_interrupted(error: &TaskError) -> bool {
    let of_call = error.downcast_ref().map(|error| matches!(error, CollectiveError::Net(NetError::Interrupted)));
    of_call.unwrap_or_else(|| matches!(error.downcast_ref(), Some(NetError::Interrupted)))
}

fn panicked(payload: Box<dyn Any + Send>) -> TaskError {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "something".into());
    format!("panicked: {text}").into()
}

/// Turns a panic of the future into an error.
struct CatchUnwind(TaskFuture);

impl Future for CatchUnwind {
    type Output = Result<(), TaskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let body = self.0.as_mut();
        match std::panic::catch_unwind(AssertUnwindSafe(|| pin!(body).poll(context))) {
            Ok(poll) => poll,
            Err(payload) => Poll::Ready(Err(panicked(payload))),
        }
    }
}
