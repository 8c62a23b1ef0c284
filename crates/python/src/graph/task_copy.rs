//! One copy of a task as Python sees it: its function runs on a Python thread, and uses the ports from there.
//!
//! For the run, the copy is a future that waits for the function's end. When the run is aborted, the future is dropped
//! and the ports are closed: calls that wait at a port fail at once, and functions that wait elsewhere block nobody.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use pyo3::ffi;
use pyo3::prelude::*;
use tidemill_dataflow::flow::{SMALL_BYTES_MAX, batch_bytes};
use tidemill_dataflow::graph::TaskFactory;
use tidemill_dataflow::{DataflowError, Inputs, LongTurn, Output, StreamElement, TaskContext, TaskError};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::comm::Comm;
use crate::dataset::{NativeTable, PendingCall};
use crate::errors::{cancelled, cancelled_class};
use crate::wait::{detach, set_given_up};

use super::function::GraphFunction;
use super::{failure_text, graph_error, message};

/// How long functions may take to notice by themselves that their run has ended, before an exception is raised in them.
const NOTICE_TIME: Duration = Duration::from_secs(1);
/// How long they may take after that, before they are abandoned.
const LAST_TIME: Duration = Duration::from_millis(500);
/// How long small messages may wait for others.
const TURN_TIME: Duration = Duration::from_millis(1);

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

/// The state that a copy's thread, its future and its run share.
pub struct TaskCopyState {
    context: TaskContext,
    inputs: Mutex<Option<Inputs>>,
    outputs: Vec<Mutex<Option<Output>>>,
    /// Lasts until the function waits at a port, or for [`TURN_TIME`], because other long operations of the function
    /// are not visible.
    turn: Mutex<LongTurn>,
    turn_ends: AtomicBool,
    runtime: Handle,
    /// The ports must no longer be used.
    closed: AtomicBool,
    thread: Arc<CopyThread>,
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

/// Closes the ports of a copy whose future is dropped.
struct PortCloser(Arc<TaskCopyState>);

impl Drop for PortCloser {
    fn drop(&mut self) {
        self.0.thread.leave();
        self.0.close();
    }
}

/// Makes a task of a Python callable that, given a [`NativeCopy`], starts a thread which calls [`NativeCopy::begin`],
/// the function, and [`NativeCopy::end`].
pub fn factory(start: &GraphFunction, crew: &Arc<TaskCopies>) -> TaskFactory {
    let (start, crew) = (start.clone(), Arc::clone(crew));
    Arc::new(move |inputs, outputs, context| {
        let start = start.clone();
        let (sender, ended) = oneshot::channel();
        let thread = crew.begin(&context);
        let shared = Arc::new(TaskCopyState {
            context,
            inputs: Mutex::new(Some(inputs)),
            outputs: outputs.into_ports().into_iter().map(|output| Mutex::new(Some(output))).collect(),
            turn: Mutex::default(),
            turn_ends: AtomicBool::new(false),
            runtime: Handle::current(),
            closed: AtomicBool::new(false),
            thread,
        });
        let of = Arc::downgrade(&shared);
        shared.thread.on_end(move |result| {
            // Before the run gets the result: ports that are still open would look like an output that never ends.
            of.upgrade().iter().for_each(|shared| shared.close());
            // If the run was aborted, nobody receives this.
            drop(sender.send(result));
        });
        Box::pin(async move {
            let leave = PortCloser(shared);
            let copy = NativeCopy(Arc::clone(&leave.0));
            start_thread(start, copy, Arc::clone(&leave.0.thread)).await;
            ended.await.unwrap_or_else(|_| Err("its thread ended without an answer".into()))
        })
    })
}

/// Calls Python's `start`, which starts the thread of a copy's function, with the copy as Python sees it.
pub async fn start_thread<C>(start: GraphFunction, copy: C, thread: Arc<CopyThread>)
where
    C: for<'py> IntoPyObject<'py> + Send + 'static,
{
    // Starting a thread requires the GIL, so this must not run on a thread that tasks and exchanges share.
    let started = tokio::task::spawn_blocking(move || {
        let Some(_call) = PendingCall::begin() else { return Err("the program is ending".to_owned()) };
        Python::attach(|py| {
            let started = start.get(py).and_then(|start| start.call1((copy,)));
            started.map(drop).map_err(|error| failure_text(py, &error))
        })
    });
    let started = started.await.unwrap_or_else(|error| Err(error.to_string()));
    if let Err(text) = started {
        thread.finish(Err(text.into()), None);
    }
}

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

impl TaskCopyState {
    /// Closes the ports, each as soon as it is not in use.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(mut inputs) = self.inputs.try_lock() {
            *inputs = None;
        }
        for output in &self.outputs {
            if let Some(mut output) = output.try_lock() {
                *output = None;
            }
        }
    }

    /// Uses a port, unless it is closed; one thread at a time.
    fn using<P, R>(
        &self,
        port: &Mutex<Option<P>>,
        work: impl FnOnce(&mut P) -> Result<R, TaskError>,
    ) -> Result<R, TaskError> {
        self.using_locked(port.lock(), work)
    }

    fn using_locked<P, R>(
        &self,
        mut port: MutexGuard<'_, Option<P>>,
        work: impl FnOnce(&mut P) -> Result<R, TaskError>,
    ) -> Result<R, TaskError> {
        if self.thread.is_given_up() {
            return Err(DataflowError::Cancelled.into());
        }
        let open = port.as_mut().ok_or("the task's function has returned: its ports are closed")?;
        let result = work(open);
        if self.closed.load(Ordering::SeqCst) {
            *port = None;
        }
        result
    }

    /// Sends small batches, holding the GIL unless it must wait: releasing it for each batch would take longer than
    /// everything else.
    fn send_small(
        self: &Arc<Self>,
        py: Python<'_>,
        output: &mut Output,
        batches: &[RecordBatch],
    ) -> Result<(), TaskError> {
        for batch in batches {
            let batch = message::fitted(batch, output.schema())?;
            output.send_in_turn(batch, &self.turn, |wait| detach(py, wait))?;
        }
        if !self.turn.lock().is_idle() && !self.turn_ends.swap(true, Ordering::SeqCst) {
            let shared = Arc::clone(self);
            self.runtime.spawn(async move {
                sleep(TURN_TIME).await;
                shared.turn_ends.store(false, Ordering::SeqCst);
                shared.turn.lock().end();
            });
        }
        Ok(())
    }

    fn receive(&self, port: Option<usize>) -> Result<Option<(usize, StreamElement)>, TaskError> {
        self.turn.lock().end();
        self.using(&self.inputs, |inputs| match port {
            Some(port) => Ok(inputs.port(port).recv_blocking()?.map(|item| (port, item))),
            None => loop {
                match inputs.recv_any_blocking(|_| true)? {
                    Some((port, Some(item))) => return Ok(Some((port, item))),
                    Some((_, None)) => {}
                    None => return Ok(None),
                }
            },
        })
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

/// The batches to send for a table: its own, or a single one if each message is a round.
fn messages<'a>(output: &Output, table: &'a NativeTable) -> Result<Cow<'a, [RecordBatch]>, TaskError> {
    if !output.has_rounds() || table.batches.len() == 1 {
        return Ok(Cow::Borrowed(&table.batches));
    }
    Ok(Cow::Owned(vec![concat_batches(&table.schema, &table.batches)?]))
}

/// A running copy of a task.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeCopy(Arc<TaskCopyState>);

impl NativeCopy {
    fn raised(&self, py: Python<'_>, error: &TaskError) -> PyErr {
        match error.downcast_ref() {
            Some(DataflowError::Cancelled) => cancelled(py),
            Some(error) => super::raised(py, error),
            None => graph_error(py, error.to_string(), None),
        }
    }
}

#[pymethods]
impl NativeCopy {
    #[getter]
    fn task(&self) -> &str {
        self.0.context.task()
    }

    #[getter]
    fn copy(&self) -> u32 {
        self.0.context.copy()
    }

    #[getter]
    fn copies(&self) -> u32 {
        self.0.context.copies()
    }

    #[getter]
    fn worker(&self) -> u32 {
        self.0.context.worker()
    }

    #[getter]
    fn workers(&self) -> u32 {
        self.0.context.workers()
    }

    /// Whether the run was aborted.
    #[getter]
    fn cancelled(&self) -> bool {
        self.0.thread.is_given_up()
    }

    /// The communicator of the task's copies, if the task requested one.
    fn comm(&self) -> Option<Comm> {
        self.0.context.comm().map(|comm| Comm::of(comm.clone()))
    }

    /// A table without rows, with the columns that arrive at an input port.
    fn empty(&self, py: Python<'_>, port: usize) -> PyResult<NativeTable> {
        let schema = self.0.using(&self.0.inputs, |inputs| Ok(inputs.port(port).schema().cloned()));
        let schema = schema.map_err(|error| self.raised(py, &error))?;
        let schema = schema.ok_or_else(|| graph_error(py, format!("input port {port} is not connected"), None))?;
        Ok(NativeTable { schema, batches: Vec::new() })
    }

    /// Marks the calling thread as working for the copy: its waits end when the copy's run is aborted.
    fn join_thread(&self) {
        set_given_up(Arc::clone(&self.0.thread.given_up));
    }

    /// The copy's thread, with Python identifier `thread`, is about to call the function; it must not if this returns
    /// `False`.
    fn begin(&self, thread: u64) -> bool {
        self.0.thread.begin(thread)
    }

    /// The function has returned a value, or failed with an error message. Later calls are ignored.
    #[pyo3(signature = (error, value))]
    fn end(&self, py: Python<'_>, error: Option<String>, value: Option<Py<PyAny>>) {
        self.0.thread.end(py, error, value);
    }

    /// The next item at an input port, or at any: the port and rows; `None` at the end.
    #[pyo3(signature = (port = None))]
    fn receive(&self, py: Python<'_>, port: Option<usize>) -> PyResult<Option<(usize, NativeTable)>> {
        let received = detach(py, || self.0.receive(port)).map_err(|error| self.raised(py, &error))?;
        let table = |(port, item): (usize, StreamElement)| {
            let batch = item.into_batch()?;
            Some((port, NativeTable { schema: batch.schema(), batches: vec![batch] }))
        };
        Ok(received.and_then(table))
    }

    /// Sends rows from an output port; waits while a receiver has no capacity.
    fn send(&self, py: Python<'_>, port: usize, table: &NativeTable) -> PyResult<()> {
        let output = &self.0.outputs[port];
        // Larger batches are not combined, and take long enough to be sent without the GIL.
        let is_small = table.batches.iter().map(batch_bytes).sum::<u64>() <= SMALL_BYTES_MAX;
        let sent = if is_small && let Some(output) = output.try_lock() {
            self.0.using_locked(output, |output| {
                let batches = messages(output, table)?;
                self.0.send_small(py, output, &batches)
            })
        } else {
            let send = |output: &mut Output| {
                for batch in messages(output, table)?.iter() {
                    output.send_blocking(message::fitted(batch, output.schema())?)?;
                }
                Ok(())
            };
            detach(py, || self.0.using(output, send))
        };
        sent.map_err(|error| self.raised(py, &error))
    }

    /// Whether any receiver still accepts rows.
    fn wanted(&self, py: Python<'_>, port: usize) -> PyResult<bool> {
        let wanted = || self.0.using(&self.0.outputs[port], |output| Ok(output.is_wanted()));
        detach(py, wanted).map_err(|error| self.raised(py, &error))
    }

    /// Sends what exchanges have buffered.
    fn flush(&self, py: Python<'_>, port: usize) -> PyResult<()> {
        let flush = || self.0.using(&self.0.outputs[port], Output::flush_blocking);
        detach(py, flush).map_err(|error| self.raised(py, &error))
    }
}
