//! One copy of a task as Python sees it: its function runs on a thread ([`super::copy_thread`]), and uses the ports
//! from there.
//!
//! For the run, the copy is a future that waits for the function's end. When the run is aborted, the future is dropped
//! and the ports are closed: calls that wait at a port fail at once, and functions that wait elsewhere block nobody.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use tidemill_dataflow::flow::{SMALL_BYTES_MAX, batch_bytes};
use tidemill_dataflow::graph::TaskFactory;
use tidemill_dataflow::{DataflowError, Inputs, LongTurn, Output, StreamElement, TaskContext, TaskError};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::dataset::NativeTable;
use crate::errors::cancelled;
use crate::wait::detach;

use super::copy_thread::{CopyThread, NativeTaskCopy, TaskCopies, start_thread};
use super::function::GraphFunction;
use super::{graph_error, message};

/// How long small messages may wait for others.
const TURN_TIME: Duration = Duration::from_millis(1);

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

/// Closes the ports of a copy whose future is dropped.
struct PortCloser(Arc<TaskCopyState>);

impl Drop for PortCloser {
    fn drop(&mut self) {
        self.0.thread.leave();
        self.0.close();
    }
}

/// Makes a task of a Python callable that, given a [`NativeCopy`], starts a thread which calls
/// [`NativeTaskCopy::begin`], the function, and [`NativeTaskCopy::end`].
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
            start_thread(start, &leave.0.context, &leave.0.thread, copy).await;
            ended.await.unwrap_or_else(|_| Err("its thread ended without an answer".into()))
        })
    })
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

/// The batches to send for a table: its own, or a single one if each message is a round.
fn messages<'a>(output: &Output, table: &'a NativeTable) -> Result<Cow<'a, [RecordBatch]>, TaskError> {
    if !output.has_rounds() || table.batches.len() == 1 {
        return Ok(Cow::Borrowed(&table.batches));
    }
    Ok(Cow::Owned(vec![concat_batches(&table.schema, &table.batches)?]))
}

/// A running copy of a task.
#[pyclass(frozen, extends = NativeTaskCopy, module = "tidemill._tidemill")]
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
    /// A table without rows, with the columns that arrive at an input port.
    fn empty(&self, py: Python<'_>, port: usize) -> PyResult<NativeTable> {
        let schema = self.0.using(&self.0.inputs, |inputs| Ok(inputs.port(port).schema().cloned()));
        let schema = schema.map_err(|error| self.raised(py, &error))?;
        let schema = schema.ok_or_else(|| graph_error(py, format!("input port {port} is not connected"), None))?;
        Ok(NativeTable { schema, batches: Vec::new() })
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
