//! What a task copy knows about itself and the run.

use std::cell::RefCell;
use std::sync::Arc;

use tidemill_batch::memory::{Governor, Reservation};
use tidemill_checkpoint::RestoredState;
use tidemill_collective::Communicator;

use crate::checkpoint::{CheckpointView, CopyStates};
use crate::observation::CopyClock;
use crate::source_progress::SourceTrackers;
use crate::work::{ProgramThread, StepWork, StepWorks};

thread_local! {
    /// Set while this thread runs functions of the program for a copy.
    static PROGRAM: RefCell<Option<Arc<ProgramThread>>> = const { RefCell::new(None) };
}

/// Passed to every copy of a task. Clones share it.
#[derive(Clone)]
pub struct TaskContext(pub(crate) Arc<ContextState>);

pub(crate) struct ContextState {
    pub task: String,
    pub copy: u32,
    pub copies: u32,
    /// Those that are not on spare workers, when the run begins.
    pub active: Vec<u32>,
    pub worker: u32,
    pub workers: u32,
    pub comm: Option<Communicator>,
    pub governor: Governor,
    pub checkpoints: Option<CheckpointView>,
    pub states: Option<Arc<CopyStates>>,
    pub sources: Arc<SourceTrackers>,
    pub works: Arc<StepWorks>,
    /// Measures where the copy's time goes.
    pub clock: Arc<CopyClock>,
}

impl TaskContext {
    /// The task's name.
    pub fn task(&self) -> &str {
        &self.0.task
    }

    /// The number of this copy, from 0.
    pub fn copy(&self) -> u32 {
        self.0.copy
    }

    /// The number of copies of the task.
    pub fn copies(&self) -> u32 {
        self.0.copies
    }

    /// The copies of the task that take part when the run begins, in order: all but those on spare workers. What is
    /// distributed to copies at the start, such as the splits of a source, goes to these.
    pub fn active_copies(&self) -> &[u32] {
        &self.0.active
    }

    /// Whether the item with this number is this copy's if items are dealt in turn to
    /// [the active copies](Self::active_copies).
    pub fn is_dealt(&self, item: usize) -> bool {
        self.0.active.get(item % self.0.active.len().max(1)) == Some(&self.0.copy)
    }

    /// The worker it runs on, as a rank of the communicator in which the graph runs.
    pub fn worker(&self) -> u32 {
        self.0.worker
    }

    /// The number of workers in the run.
    pub fn workers(&self) -> u32 {
        self.0.workers
    }

    /// The governor of the worker's memory.
    pub fn governor(&self) -> &Governor {
        &self.0.governor
    }

    /// A reservation of the worker's memory in the copy's name.
    pub fn reservation(&self) -> Reservation {
        self.0.governor.reservation(format!("{}, copy {}", self.0.task, self.0.copy))
    }

    /// This copy's state at the checkpoint from which its job resumes; `None` if it starts afresh, or makes no
    /// checkpoints.
    pub fn restored(&self) -> Option<&RestoredState> {
        self.0.checkpoints.as_ref()?.restored.as_deref()
    }

    /// Whether the job makes checkpoints.
    pub fn makes_checkpoints(&self) -> bool {
        self.0.checkpoints.is_some()
    }

    /// Whether each row may appear at most once, whatever is lost for that.
    pub fn at_most_once(&self) -> bool {
        self.0.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.at_most_once)
    }

    /// Whether the state of operators is saved; in at-most-once mode it is not.
    pub fn saves(&self) -> bool {
        self.makes_checkpoints() && !self.at_most_once()
    }

    /// The counter for the working time of a step of this copy: the task itself, or a function of the program within
    /// it.
    pub fn work(&self, step: &str) -> Arc<StepWork> {
        self.0.works.of(step)
    }

    /// The calling thread, a new one, runs functions of the program for this copy until [`TaskContext::leave_thread`]:
    /// the copy is busy while the thread does not wait, at the copy's ports or in [`TaskContext::pause`].
    pub fn enter_thread(&self) {
        self.0.clock.enter();
        PROGRAM.set(Some(self.0.works.thread(&self.0.task)));
    }

    /// The calling thread no longer works for a copy.
    pub fn leave_thread() {
        CopyClock::leave();
        PROGRAM.take().iter().for_each(|thread| thread.end());
    }

    /// Runs a call in which the calling thread waits for its copy, and which is not the copy's work.
    pub fn pause<T>(wait: impl FnOnce() -> T) -> T {
        let _pause = CopyClock::pause();
        wait()
    }

    /// Its part in checkpoints, if the job makes any.
    pub(crate) fn states(&self) -> Option<&CopyStates> {
        self.0.states.as_deref()
    }

    /// The trackers of the time of this worker's sources.
    pub(crate) fn sources(&self) -> &Arc<SourceTrackers> {
        &self.0.sources
    }

    /// Whether the copy had ended when the checkpoint was made.
    pub(crate) fn was_finished(&self) -> bool {
        self.restored().is_some_and(|restored| restored.ended)
    }

    /// The communicator of the task's copies, ranked by copy, for tasks that asked for it
    /// ([`TaskSpec::with_comm`](crate::TaskSpec::with_comm)). Its calls block: use it in copies with their own
    /// thread.
    pub fn comm(&self) -> Option<&Communicator> {
        self.0.comm.as_ref()
    }
}
