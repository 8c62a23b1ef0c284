//! The Python thread of a copy's function, whatever the copy is for its run: it starts, ends once, and is interrupted
//! if the run ends before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use pyo3::{PyClass, ffi};
use tidemill_dataflow::{DataflowError, TaskContext, TaskError};

use crate::comm::Comm;
use crate::dataset::PendingCall;
use crate::errors::cancelled_class;
use crate::wait::set_given_up;

use super::failure_text;
use super::function::GraphFunction;

/// How long functions may take to notice by themselves that their run has ended, before an exception is raised in them.
const NOTICE_TIME: Duration = Duration::from_secs(1);
/// How long they may take after that, before they are abandoned.
const LAST_TIME: Duration = Duration::from_millis(500);

/// Gives the run the result of a function.
type OnEnd = Box<dyn FnOnce(Result<(), TaskError>) + Send>;

/// The thread of a copy's function, as its run sees it.
pub struct CopyThread {
    task: String,
    copy: u32,
    /// The run was aborted.
    pub given_up: Arc<AtomicBool>,
    life: Mutex<CopyLife>,
    changed: Condvar,
}

#[derive(Default)]
struct CopyLife {
    /// The Python identifier of the thread, while the function runs.
    thread: Option<u64>,
    ended: bool,
    on_end: Option<OnEnd>,
    /// The function's return value.
    value: Option<Py<PyAny>>,
}

/// All copies of a run on this worker.
#[derive(Default)]
pub struct TaskCopies(Mutex<Vec<Arc<CopyThread>>>);

impl CopyThread {
    /// Sets the work to do once the function has ended.
    pub fn on_end(&self, work: impl FnOnce(Result<(), TaskError>) + Send + 'static) {
        self.life.lock().on_end = Some(Box::new(work));
    }

    /// Ends the copy, whatever its function still does.
    pub fn leave(&self) {
        if !self.life.lock().ended {
            self.given_up.store(true, Ordering::SeqCst);
        }
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    fn finish(&self, result: Result<(), TaskError>, value: Option<Py<PyAny>>) {
        let mut life = self.life.lock();
        if life.ended {
            return;
        }
        life.ended = true;
        life.value = value;
        life.thread = None;
        let on_end = life.on_end.take();
        self.changed.notify_all();
        drop(life);
        if let Some(on_end) = on_end {
            on_end(result);
        }
    }

    /// The thread, with Python identifier `thread`, is about to call the function; it must not if this returns `false`.
    pub fn begin(&self, thread: u64) -> bool {
        set_given_up(Arc::clone(&self.given_up));
        let mut life = self.life.lock();
        if self.is_given_up() {
            drop(life);
            self.finish(Err(DataflowError::Cancelled.into()), None);
            return false;
        }
        life.thread = Some(thread);
        true
    }

    /// The function has returned a value, or failed with an error message. Later calls are ignored.
    pub fn end(&self, py: Python<'_>, error: Option<String>, value: Option<Py<PyAny>>) {
        let thread = self.life.lock().thread;
        let result = match error {
            Some(_) if self.is_given_up() => Err(DataflowError::Cancelled.into()),
            Some(error) => Err(error.into()),
            None => Ok(()),
        };
        self.finish(result, value.filter(|value| !value.is_none(py)));
        if let Some(thread) = thread {
            // Discard an exception that `dismiss` may have sent too late.
            // SAFETY: the GIL is held; the identifier is this thread's own.
            unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, std::ptr::null_mut()) };
        }
    }
}

impl TaskCopies {
    /// Adds a copy that starts.
    pub fn begin(&self, context: &TaskContext) -> Arc<CopyThread> {
        let thread = Arc::new(CopyThread {
            task: context.task().to_owned(),
            copy: context.copy(),
            given_up: Arc::default(),
            life: Mutex::default(),
            changed: Condvar::new(),
        });
        self.0.lock().push(Arc::clone(&thread));
        thread
    }

    /// Ends a run. If it has `failed`, functions that still run are interrupted: at their ports and in communicators at
    /// once, and in Python code by an exception a little later; then they are abandoned. Returns the return values of
    /// functions: task, copy, value.
    pub fn dismiss(&self, py: Python<'_>, failed: bool) -> Vec<(String, u32, Py<PyAny>)> {
        let copies = std::mem::take(&mut *self.0.lock());
        if failed {
            copies.iter().for_each(|copy| copy.given_up.store(true, Ordering::SeqCst));
        }
        // Also after a run that has not failed: of streaming tasks, the threads end behind the copies.
        if !py.detach(|| have_ended(&copies, NOTICE_TIME)) {
            interrupt(py, &copies);
            py.detach(|| have_ended(&copies, LAST_TIME));
        }
        let value = |copy: &Arc<CopyThread>| {
            let value = copy.life.lock().value.take()?;
            Some((copy.task.clone(), copy.copy, value))
        };
        copies.iter().filter_map(value).collect()
    }
}

/// Waits for the functions of all copies.
fn have_ended(copies: &[Arc<CopyThread>], at_most: Duration) -> bool {
    let until = Instant::now() + at_most;
    copies.iter().all(|copy| {
        let mut life = copy.life.lock();
        while !life.ended && !copy.changed.wait_until(&mut life, until).timed_out() {}
        life.ended
    })
}

/// Raises an exception in functions that still run, as soon as they are in Python code.
fn interrupt(py: Python<'_>, copies: &[Arc<CopyThread>]) {
    let Ok(class) = cancelled_class(py) else { return };
    for copy in copies {
        // With the GIL held, the identifier is valid: the thread needs the GIL to record its end.
        if let Some(thread) = copy.life.lock().thread {
            // SAFETY: the GIL is held, the class lives.
            unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, class.as_ptr()) };
        }
    }
}

/// Calls Python's `start`, which starts the thread of a copy's function, with the copy as Python sees it.
pub async fn start_thread<C>(start: GraphFunction, context: &TaskContext, thread: &Arc<CopyThread>, copy: C)
where
    C: PyClass<BaseType = NativeTaskCopy> + Send + 'static,
{
    let base = NativeTaskCopy { context: context.clone(), thread: Arc::clone(thread) };
    // Starting a thread requires the GIL, so this must not run on a thread that tasks and exchanges share.
    let started = tokio::task::spawn_blocking(move || {
        let Some(_call) = PendingCall::begin() else { return Err("the program is ending".to_owned()) };
        Python::attach(|py| {
            let copy = Py::new(py, PyClassInitializer::from(base).add_subclass(copy));
            let started = copy.and_then(|copy| start.get(py)?.call1((copy,)));
            started.map(drop).map_err(|error| failure_text(py, &error))
        })
    });
    let started = started.await.unwrap_or_else(|error| Err(error.to_string()));
    if let Err(text) = started {
        thread.finish(Err(text.into()), None);
    }
}

/// A running copy of a task, without its ports.
#[pyclass(frozen, subclass, module = "tidemill._tidemill")]
pub struct NativeTaskCopy {
    context: TaskContext,
    thread: Arc<CopyThread>,
}

#[pymethods]
impl NativeTaskCopy {
    #[getter]
    fn task(&self) -> &str {
        self.context.task()
    }

    #[getter]
    fn copy(&self) -> u32 {
        self.context.copy()
    }

    #[getter]
    fn copies(&self) -> u32 {
        self.context.copies()
    }

    #[getter]
    fn worker(&self) -> u32 {
        self.context.worker()
    }

    #[getter]
    fn workers(&self) -> u32 {
        self.context.workers()
    }

    /// Whether the run was aborted.
    #[getter]
    fn cancelled(&self) -> bool {
        self.thread.is_given_up()
    }

    /// The communicator of the task's copies, if the task requested one.
    fn comm(&self) -> Option<Comm> {
        self.context.comm().map(|comm| Comm::of(comm.clone()))
    }

    /// Marks the calling thread as working for the copy: its waits end when the copy's run is aborted.
    fn join_thread(&self) {
        set_given_up(Arc::clone(&self.thread.given_up));
    }

    /// The copy's thread, with Python identifier `thread`, is about to call the function; it must not if this returns
    /// `False`.
    fn begin(&self, thread: u64) -> bool {
        let begins = self.thread.begin(thread);
        if begins {
            self.context.enter_thread();
        }
        begins
    }

    /// The function has returned a value, or failed with an error message. Later calls are ignored.
    #[pyo3(signature = (error, value))]
    fn end(&self, py: Python<'_>, error: Option<String>, value: Option<Py<PyAny>>) {
        TaskContext::leave_thread();
        self.thread.end(py, error, value);
    }
}
