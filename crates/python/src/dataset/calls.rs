//! Calls of the program's functions by queries: none may be running when the interpreter ends, and a blocking one must
//! not keep an abandoned action from ending.
//!
//! A function runs on a thread that may block, while a future waits for it. When the future is dropped, the call is
//! *abandoned*: an exception is raised in it as soon as it is in Python code, and the wait for its end is short.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::{Condvar, Mutex};
use pyo3::ffi;
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::errors::cancelled_class;

/// How long an abandoned call may take to end by itself, and after it was interrupted.
const NOTICE_TIME: Duration = Duration::from_millis(200);
const LAST_TIME: Duration = Duration::from_millis(500);

struct CallRegistry {
    /// The process whose threads run the calls: a forked child has none of its parent's.
    process: u32,
    running: usize,
    ending: bool,
    /// Abandoned calls; those that have ended are removed when the list is next read.
    left: Vec<Arc<Life>>,
}

static STATE: Mutex<CallRegistry> =
    Mutex::new(CallRegistry { process: 0, running: 0, ending: false, left: Vec::new() });
static CHANGED: Condvar = Condvar::new();

/// The state that a call's thread and its future share.
type Life = Mutex<CallStage>;

#[derive(Clone, Copy, Default, PartialEq)]
enum CallStage {
    #[default]
    Waiting,
    /// In the function, on the thread with this Python thread identifier.
    Running(u64),
    Ended,
}

/// A call in progress.
pub struct PendingCall(());

impl PendingCall {
    /// `None` if the program is ending. Must be called without the GIL.
    pub fn begin() -> Option<PendingCall> {
        let mut state = STATE.lock();
        if state.process != std::process::id() {
            *state = CallRegistry { process: std::process::id(), running: 0, ending: false, left: Vec::new() };
        }
        if state.ending {
            return None;
        }
        state.running += 1;
        Some(PendingCall(()))
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        if state.process == std::process::id() {
            state.running -= 1;
            CHANGED.notify_all();
        }
    }
}

/// Abandons a call when its future is dropped.
struct AbandonGuard(Arc<Life>);

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        let mut life = self.0.lock();
        match *life {
            // Its thread will see that it must not start.
            CallStage::Waiting => *life = CallStage::Ended,
            CallStage::Running(_) => state.left.push(Arc::clone(&self.0)),
            CallStage::Ended => {}
        }
    }
}

/// Calls Python on a thread that may block. Dropping the future abandons the call, which then ends when [`interrupt`]
/// is called, if it can be ended at all. Requires a Tokio runtime.
pub async fn call<T: Send + 'static>(
    work: impl FnOnce(Python<'_>) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let leave = AbandonGuard(Arc::default());
    let life = Arc::clone(&leave.0);
    let called = tokio::task::spawn_blocking(move || run(&life, work));
    called.await.unwrap_or_else(|error| {
        // The function panicked or never started, so nothing is left to end.
        *leave.0.lock() = CallStage::Ended;
        Err(error.to_string())
    })
}

/// The call itself, on its thread.
fn run<T>(life: &Life, work: impl FnOnce(Python<'_>) -> Result<T, String>) -> Result<T, String> {
    let Some(_call) = PendingCall::begin() else { return Err("the program is ending".to_owned()) };
    Python::attach(|py| {
        // SAFETY: this only returns the Python identifier of this thread.
        let thread = unsafe { ffi::PyThread_get_thread_ident() } as u64;
        {
            let mut life = life.lock();
            if *life == CallStage::Ended {
                return Err("no one is waiting for it any more".to_owned());
            }
            *life = CallStage::Running(thread);
        }
        let outcome = work(py);
        *life.lock() = CallStage::Ended;
        // Discard an exception that was sent too late.
        // SAFETY: the GIL is held; the identifier is this thread's own.
        unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, std::ptr::null_mut()) };
        outcome
    })
}

/// A separate thread for successive calls that may block indefinitely, because a runtime has too few threads for all of
/// them. It ends when this is dropped and its current call has ended.
pub struct CallerThread {
    name: String,
    works: Option<Sender<Work>>,
}

type Work = Box<dyn FnOnce() + Send>;

impl CallerThread {
    /// The thread starts with the first call.
    pub fn new(name: &str) -> Self {
        // A null byte would end the name.
        CallerThread { name: name.replace('\0', " "), works: None }
    }

    /// [`call`] on this thread.
    pub fn call<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Python<'_>) -> Result<T, String> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, String>> {
        let leave = AbandonGuard(Arc::default());
        let (life, (answer, answered)) = (Arc::clone(&leave.0), oneshot::channel());
        // The future may have been dropped.
        let sent = self.send(Box::new(move || drop(answer.send(run(&life, work)))));
        Box::pin(async move {
            let outcome = match sent {
                Ok(()) => answered.await.unwrap_or_else(|_| Err("its thread has died".into())),
                Err(error) => Err(error),
            };
            *leave.0.lock() = CallStage::Ended;
            outcome
        })
    }

    /// Drops a Python object on the thread that used it, after all calls.
    pub fn release(&mut self, object: Arc<Py<PyAny>>) {
        let release = move || {
            if let Some(_call) = PendingCall::begin() {
                Python::attach(|_| drop(object));
            }
        };
        if self.works.is_some() {
            drop(self.send(Box::new(release)));
        }
    }

    fn send(&mut self, work: Work) -> Result<(), String> {
        let works = match &self.works {
            Some(works) => works,
            None => {
                let (sender, works) = mpsc::channel::<Work>();
                let body = move || works.into_iter().for_each(|work| work());
                let started = thread::Builder::new().name(self.name.clone()).spawn(body);
                started.map_err(|error| format!("cannot start a thread for {}: {error}", self.name))?;
                self.works.insert(sender)
            }
        };
        works.send(work).map_err(|_| format!("the thread of {} has died", self.name))
    }
}

/// Waits for abandoned calls to end, up to a time. Returns how many have not.
fn left_after(at_most: Duration) -> usize {
    let until = Instant::now() + at_most;
    let mut state = STATE.lock();
    loop {
        if state.process != std::process::id() {
            return 0;
        }
        state.left.retain(|life| *life.lock() != CallStage::Ended);
        if state.left.is_empty() || CHANGED.wait_until(&mut state, until).timed_out() {
            return state.left.len();
        }
    }
}

/// Ends abandoned calls, with an exception if they do not end by themselves within a moment.
pub fn interrupt(py: Python<'_>) {
    if py.detach(|| left_after(NOTICE_TIME)) == 0 {
        return;
    }
    let Ok(class) = cancelled_class(py) else { return };
    let left = STATE.lock().left.clone();
    for life in left {
        // With the GIL held, the identifier is valid: the thread needs the GIL to record its end.
        if let CallStage::Running(thread) = *life.lock() {
            // SAFETY: the GIL is held, the class lives.
            unsafe { ffi::PyThreadState_SetAsyncExc(thread as _, class.as_ptr()) };
        }
    }
    py.detach(|| left_after(LAST_TIME));
}

/// Called when the program ends: prevents further calls, and waits for running ones, except for abandoned ones that do
/// not end.
#[pyfunction]
pub fn end_calls(py: Python<'_>) -> PyResult<()> {
    /// How long Ctrl-C may go unnoticed.
    const SLICE: Duration = Duration::from_millis(50);
    STATE.lock().ending = true;
    interrupt(py);
    loop {
        let over = py.detach(|| {
            let mut state = STATE.lock();
            state.left.retain(|life| *life.lock() != CallStage::Ended);
            if state.running > state.left.len() && state.process == std::process::id() {
                CHANGED.wait_for(&mut state, SLICE);
            }
            state.running <= state.left.len() || state.process != std::process::id()
        });
        if over {
            return Ok(());
        }
        py.check_signals()?;
    }
}
