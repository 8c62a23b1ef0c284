//! Copies of tasks in graphs that make checkpoints: sources that go on from a position, and functions that are called
//! for every message and keep a state.
//!
//! A function runs on a thread of Python's own, as in [`super::copy_thread`], but has no ports: the copy is a source or
//! an operator of the engine, which knows barriers, and its thread hands over what the function sends. So a barrier
//! passes between two messages, and what is saved belongs to it exactly:
//! - of a source its last position, and how much it has sent since; from there it sends that again, which is left out;
//! - of another task the state, which its thread pickles between two calls.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_dataflow::checkpoint::Snapshot;
use tidemill_dataflow::graph::TaskSpec;
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{DataflowError, Emitter, Executor, Operator, TaskContext, TaskError, wait_in_copy};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::dataset::NativeTable;
use crate::errors::cancelled;
use crate::wait::detach;

use super::copy_thread::{CopyThread, NativeTaskCopy, TaskCopies, start_thread};
use super::function::GraphFunction;
use super::{graph_error, message};

/// Messages that a function may be ahead of its copy.
const AHEAD_MAX: usize = 4;
/// Batches that an operator emits before it lets receivers slow it down.
const EMIT_MAX: usize = 16;

/// What a function's thread says to its copy.
enum Said {
    /// It sends rows out of a port.
    Rows(usize, RecordBatch),
    /// A source can go on from here.
    Position(Bytes),
    /// The function has returned from all calls that it was asked for.
    Done,
    /// What was asked for.
    State(Bytes),
}

/// What a copy asks its function's thread for.
enum Asked {
    /// To call the function.
    Rows(RecordBatch),
    /// The state.
    State,
}

/// What a copy and its thread share.
struct StreamCopyState {
    context: TaskContext,
    thread: Arc<CopyThread>,
    outputs: Vec<SchemaRef>,
    /// What the checkpoint has that the job goes on from.
    restored: Option<Bytes>,
    header_bytes: usize,
    /// Of a source: its position in the last checkpoint of this run that is durable.
    durable: Mutex<Option<Bytes>>,
    /// Until the function has ended.
    says: Arc<Mutex<Option<mpsc::Sender<Said>>>>,
    asked: Mutex<std_mpsc::Receiver<Asked>>,
}

/// The copy's end of what it and its thread share.
struct CopyEnds {
    state: Arc<StreamCopyState>,
    said: mpsc::Receiver<Said>,
    ended: oneshot::Receiver<Result<(), TaskError>>,
    asks: Option<std_mpsc::Sender<Asked>>,
}

/// The name that a copy's part of a checkpoint has.
fn split_name(context: &TaskContext) -> String {
    format!("copy {}", context.copy())
}

impl CopyEnds {
    /// What a checkpoint has of the copy begins with so many bytes that are not its function's.
    fn new(
        context: &TaskContext,
        crew: &TaskCopies,
        outputs: &[SchemaRef],
        header_bytes: usize,
    ) -> Result<Self, TaskError> {
        let restored = context.restored();
        if restored.is_some_and(|restored| restored.rescaled) {
            return Err(format!(
                "the checkpoint is of another number of copies of task \"{}\", and what each of them kept belongs to it; run \
                 the graph with as many as before (parallelism=), or begin anew in another folder",
                context.task()
            )
            .into());
        }
        let (sender, said) = mpsc::channel(AHEAD_MAX);
        let (asks, asked) = std_mpsc::channel();
        let (end, ended) = oneshot::channel();
        let says = Arc::new(Mutex::new(Some(sender)));
        let thread = crew.begin(context);
        let last_words = Arc::clone(&says);
        thread.on_end(move |result| {
            // Nobody listens when the run is given up.
            drop(end.send(result));
            *last_words.lock() = None;
        });
        let state = StreamCopyState {
            context: context.clone(),
            thread,
            outputs: outputs.to_vec(),
            restored: restored.and_then(|restored| restored.splits.get(&split_name(context)).cloned()),
            header_bytes,
            durable: Mutex::default(),
            says,
            asked: Mutex::new(asked),
        };
        Ok(CopyEnds { state: Arc::new(state), said, ended, asks: Some(asks) })
    }

    /// Starts the function's thread; what fails is how it ends.
    fn start(&self, start: &GraphFunction) {
        let copy = NativeStreamCopy(Arc::clone(&self.state));
        let (start, state) = (start.clone(), Arc::clone(&self.state));
        let start = async move { start_thread(start, &state.context, &state.thread, copy).await };
        drop(Handle::current().spawn(start));
    }

    /// Waits for what the function says next; `None`: it has ended.
    fn hear(&mut self) -> Result<Option<Said>, TaskError> {
        match wait_in_copy(self.said.recv())? {
            Some(said) => Ok(Some(said)),
            None => match wait_in_copy(&mut self.ended)? {
                Ok(result) => result.map(|()| None),
                Err(_) => Err(DataflowError::Cancelled.into()),
            },
        }
    }
}

/// Whether a source's messages are rounds, which may be without rows, or it is their rows that count.
#[derive(Clone, Copy)]
enum SentUnit {
    Messages,
    Rows,
}

/// A source that a function is.
struct FunctionSource {
    ends: CopyEnds,
    start: Option<GraphFunction>,
    unit: SentUnit,
    /// Pickled; empty: none was set.
    position: Bytes,
    /// What was sent since, and how much of what comes now was sent before the checkpoint.
    sent: u64,
    repeated: u64,
    /// Positions in checkpoints that are not durable yet.
    saved: VecDeque<(u64, Bytes)>,
}

/// Before a position in a checkpoint: how much was sent since.
const SENT_BYTES: usize = 8;

impl FunctionSource {
    fn new(ends: CopyEnds, start: GraphFunction, unit: SentUnit) -> Result<Self, TaskError> {
        let (mut position, mut sent) = (Bytes::new(), 0);
        if let Some(saved) = &ends.state.restored {
            let count = saved.first_chunk::<SENT_BYTES>().ok_or("the checkpoint's position of a source is damaged")?;
            (position, sent) = (saved.slice(SENT_BYTES..), u64::from_le_bytes(*count));
        }
        let (start, saved) = (Some(start), VecDeque::new());
        Ok(FunctionSource { ends, start, unit, position, sent, repeated: sent, saved })
    }

    /// What is left of a message when that is left out which was sent before the checkpoint.
    fn new_rows(&mut self, rows: RecordBatch) -> Option<RecordBatch> {
        let units = match self.unit {
            SentUnit::Messages => 1,
            SentUnit::Rows => rows.num_rows() as u64,
        };
        let known = self.repeated.min(units);
        self.repeated -= known;
        self.sent += units - known;
        match (self.unit, known) {
            (_, known) if known == units => None,
            (SentUnit::Rows, known) if known > 0 => Some(rows.slice(known as usize, (units - known) as usize)),
            _ => Some(rows),
        }
    }

    /// The function has come to a position, or its end.
    fn check_repeated(&self, what: &str) -> Result<(), TaskError> {
        match self.repeated {
            0 => Ok(()),
            missing => Err(format!(
                "the source {what}, but has sent {missing} fewer {} than before the checkpoint: from a position on it must \
                 send the same again",
                match self.unit {
                    SentUnit::Messages => "messages",
                    SentUnit::Rows => "rows",
                }
            )
            .into()),
        }
    }
}

impl Source for FunctionSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let Some(start) = self.start.take() {
            self.ends.start(&start);
        }
        loop {
            match ready!(self.ends.said.poll_recv(context)) {
                Some(Said::Rows(_, rows)) => {
                    if let Some(rows) = self.new_rows(rows) {
                        return Poll::Ready(Ok(SourceEvent::rows(0, rows)));
                    }
                }
                Some(Said::Position(position)) => {
                    self.check_repeated("has come to another position")?;
                    (self.position, self.sent) = (position, 0);
                }
                Some(Said::Done | Said::State(_)) => {}
                None => {
                    let ended = ready!(Pin::new(&mut self.ends.ended).poll(context));
                    ended.unwrap_or_else(|_| Err(DataflowError::Cancelled.into()))?;
                    self.check_repeated("has ended")?;
                    return Poll::Ready(Ok(SourceEvent::End));
                }
            }
        }
    }

    fn barrier(&mut self, epoch: u64) {
        self.saved.push_back((epoch, self.position.clone()));
    }

    fn durable(&mut self, epoch: u64) {
        while let Some((_, position)) = self.saved.pop_front_if(|(saved, _)| *saved <= epoch) {
            *self.ends.state.durable.lock() = Some(position);
        }
    }

    /// Its copies may wait for each other in their communicator.
    fn runs_again(&self) -> bool {
        self.ends.state.context.comm().is_some()
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = [&self.sent.to_le_bytes()[..], &self.position[..]].concat();
        Ok(vec![(split_name(&self.ends.state.context), saved.into())])
    }
}

impl Drop for FunctionSource {
    fn drop(&mut self) {
        self.ends.state.thread.leave();
    }
}

/// An operator that calls a function for every message.
struct FunctionOperator {
    ends: CopyEnds,
    /// Messages may be taken apart where there are too many rows to be worked on in a moment.
    has_rounds: bool,
    state: Bytes,
}

impl FunctionOperator {
    fn ask(&self, asked: Asked) {
        // A thread that has ended says so when it is listened to.
        if let Some(asks) = &self.ends.asks {
            drop(asks.send(asked));
        }
    }

    fn ended() -> TaskError {
        "its thread ended before its input".into()
    }

    /// Hands on what the function sends until it has returned.
    fn emit(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        for _ in 0..EMIT_MAX {
            match self.ends.hear()?.ok_or_else(Self::ended)? {
                Said::Rows(port, rows) => emit.send_to(port, rows),
                Said::Done => return Ok(EmitStatus::Done),
                Said::Position(_) | Said::State(_) => {}
            }
        }
        Ok(EmitStatus::More)
    }

    fn save(&mut self) -> Result<Snapshot, TaskError> {
        if self.ends.asks.is_some() {
            self.ask(Asked::State);
            self.state = loop {
                if let Said::State(state) = self.ends.hear()?.ok_or_else(Self::ended)? {
                    break state;
                }
            };
        }
        let name = split_name(&self.ends.state.context);
        Ok(Snapshot { splits: vec![(name, self.state.clone())], ..Snapshot::default() })
    }
}

impl Operator for FunctionOperator {
    fn calls_program(&self) -> bool {
        !self.has_rounds
    }

    fn on_batch(&mut self, _: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.ask(Asked::Rows(rows));
        self.emit(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.emit(emit)
    }

    fn snapshot(&mut self, _: bool) -> Result<Snapshot, TaskError> {
        self.save()
    }

    fn on_end(&mut self, _: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.save()?;
        self.ends.asks = None;
        while self.ends.hear()?.is_some() {}
        Ok(EmitStatus::Done)
    }

    fn kept_at_end(&mut self) -> Result<Snapshot, TaskError> {
        self.save()
    }
}

/// A source without ports that runs Python's function, of which `start` starts the thread; `has_rounds`: its messages
/// are rounds.
pub fn source(
    name: &str,
    (start, crew): (GraphFunction, Arc<TaskCopies>),
    outputs: Vec<SchemaRef>,
    has_rounds: bool,
) -> TaskSpec {
    let unit = if has_rounds { SentUnit::Messages } else { SentUnit::Rows };
    TaskSpec::source(name, None, move |context| {
        FunctionSource::new(CopyEnds::new(context, &crew, &outputs, SENT_BYTES)?, start.clone(), unit)
    })
}

/// A task without ports whose copies call Python's function for every message; `has_rounds`: of which each is a round.
pub fn each(
    name: &str,
    (start, crew): (GraphFunction, Arc<TaskCopies>),
    outputs: Vec<SchemaRef>,
    has_rounds: bool,
) -> TaskSpec {
    let task = TaskSpec::operator(name, move |context| {
        let ends = CopyEnds::new(context, &crew, &outputs, 0)?;
        // Also of a copy that had ended: it has the state that the run returns.
        ends.start(&start);
        Ok(FunctionOperator { ends, has_rounds, state: Bytes::new() })
    });
    // It waits for its function, and others do not wait for it.
    task.streaming().executor(Executor::Thread)
}

/// A running copy of a task in a graph that makes checkpoints.
#[pyclass(frozen, extends = NativeTaskCopy, module = "tidemill._tidemill")]
pub struct NativeStreamCopy(Arc<StreamCopyState>);

impl NativeStreamCopy {
    /// Waits for room if there is none; an exception when nobody listens any more.
    fn say(&self, py: Python<'_>, said: Said) -> PyResult<()> {
        let sender = self.0.says.lock().clone();
        let sender = sender
            .ok_or_else(|| graph_error(py, "the task's function has returned: its ports are closed".into(), None))?;
        match sender.try_send(said) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(said)) => {
                detach(py, || TaskContext::pause(|| sender.blocking_send(said))).map_err(|_| cancelled(py))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(cancelled(py)),
        }
    }
}

#[pymethods]
impl NativeStreamCopy {
    /// What the copy kept at the checkpoint that the job goes on from, pickled: the position of a source, if it had set
    /// one, or a state.
    #[getter]
    fn restored<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let saved = self.0.restored.as_ref()?.get(self.0.header_bytes..)?;
        (!saved.is_empty()).then(|| PyBytes::new(py, saved))
    }

    /// The position, pickled, that a source had set before the last checkpoint of this run that is durable; `None` if
    /// there is no such checkpoint, empty if it had set none.
    #[getter]
    fn durable<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.durable.lock().as_ref().map(|position| PyBytes::new(py, position))
    }

    /// Sends rows out of an output port; waits while the copy has not taken those before.
    fn send(&self, py: Python<'_>, port: usize, table: &NativeTable) -> PyResult<()> {
        let fitted = || -> Result<RecordBatch, TaskError> {
            message::fitted(&concat_batches(&table.schema, &table.batches)?, &self.0.outputs[port])
        };
        let rows = fitted().map_err(|error| graph_error(py, error.to_string(), None))?;
        self.say(py, Said::Rows(port, rows))
    }

    /// Whether the copy still takes what is sent.
    fn wanted(&self, _port: usize) -> bool {
        self.0.says.lock().as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Nothing is collected here.
    fn flush(&self, _port: usize) {}

    /// A source can go on from here: what it sent before need not be sent again.
    fn position(&self, py: Python<'_>, pickled: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.say(py, Said::Position(Bytes::copy_from_slice(pickled.as_bytes())))
    }

    /// What to do next: a message to call the function with, or nothing, to say the state; `None` at the end.
    fn next(&self, py: Python<'_>) -> Option<(Option<NativeTable>,)> {
        match detach(py, || TaskContext::pause(|| self.0.asked.lock().recv())) {
            Ok(Asked::Rows(rows)) => Some((Some(NativeTable { schema: rows.schema(), batches: vec![rows] }),)),
            Ok(Asked::State) => Some((None,)),
            Err(_) => None,
        }
    }

    /// The function has returned.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        self.say(py, Said::Done)
    }

    /// The state that was asked for.
    fn state(&self, py: Python<'_>, pickled: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.say(py, Said::State(Bytes::copy_from_slice(pickled.as_bytes())))
    }
}
