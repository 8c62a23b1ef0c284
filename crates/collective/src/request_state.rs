//! What a pending operation waits for, and the memory that communicators keep for the next one.

use tidemill_net::GroupId;

use crate::ReduceOp;
use crate::direct::{DirectOperation, DirectProgress, LargeProgress};
use crate::exec::ScheduleExecution;

/// What a pending operation waits for.
pub(crate) enum RequestState {
    /// Ops of the engine, or a task.
    Group(GroupId),
    /// A blocking collective, stepped by the thread that waits for it.
    Execution(Box<ScheduleExecution>),
    /// A blocking collective in shared memory. Boxed to keep requests small, because programs move many of them.
    Direct(Box<DirectCall<DirectProgress>>),
    /// The same, reading the peers' memory.
    Large(Box<DirectCall<LargeProgress>>),
}

/// A direct collective in progress.
pub(crate) struct DirectCall<P> {
    pub job: DirectOperation,
    pub op: ReduceOp,
    pub progress: P,
}

/// Memory that a communicator's finished blocking collectives leave for the next one, so that small ones allocate
/// nothing.
#[derive(Default)]
pub(crate) struct RequestPool {
    direct: Option<Box<DirectCall<DirectProgress>>>,
    execution: Option<Box<ScheduleExecution>>,
}

impl RequestPool {
    pub(crate) fn direct(&mut self, job: DirectOperation, op: &ReduceOp, progress: DirectProgress) -> RequestState {
        let call = DirectCall { job, op: op.clone(), progress };
        RequestState::Direct(match self.direct.take() {
            Some(mut over) => {
                *over = call;
                over
            }
            None => Box::new(call),
        })
    }

    pub(crate) fn execution(&mut self, execution: ScheduleExecution) -> RequestState {
        RequestState::Execution(match self.execution.take() {
            Some(over) => execution.with_scratch_of(over),
            None => Box::new(execution),
        })
    }

    /// Keeps the memory of an operation that succeeded.
    pub(crate) fn keep(&mut self, state: RequestState) {
        match state {
            RequestState::Direct(mut call) => {
                call.op = ReduceOp::NoOp;
                self.direct = Some(call);
            }
            RequestState::Execution(mut execution) => self.execution = execution.become_spare().then_some(execution),
            RequestState::Group(_) | RequestState::Large(_) => {}
        }
    }
}

impl RequestState {
    pub(crate) fn large(job: DirectOperation, op: &ReduceOp, progress: LargeProgress) -> Self {
        RequestState::Large(Box::new(DirectCall { job, op: op.clone(), progress }))
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, RequestState::Direct(_) | RequestState::Large(_))
    }
}
