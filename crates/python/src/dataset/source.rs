//! Streams that a function of the program reads: for each split an iterator of rows, which starts at the position in a
//! checkpoint.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;
use tidemill_stream::{StreamSource, from_stream};
use tokio::time::{Sleep, sleep};

use super::calls::{self, CallerThread};
use super::engine::{GivenSchema, QueryEngine};
use super::frame::{NativeDataSet, exception_text};
use super::raised;
use super::stream::{Times, guaranteed, times};
use super::table::NativeTable;

/// A stream of the splits that a program names. `factory` makes an object that reads a split from a position on: its
/// `next` returns rows and the position after them, neither if there are none at the moment, or `None` at the end.
/// `acknowledge` is called with splits and positions before which nothing will be read again.
#[pyfunction]
#[pyo3(signature = (engine, name, factory, splits, schema, time, poll_every, guarantee, acknowledge))]
#[expect(clippy::too_many_arguments, reason = "arguments of a private function")]
pub fn stream_of_function(
    py: Python<'_>,
    engine: &QueryEngine,
    name: String,
    factory: Py<PyAny>,
    splits: Vec<String>,
    schema: GivenSchema,
    time: Option<Times>,
    poll_every: f64,
    guarantee: &str,
    acknowledge: Option<Py<PyAny>>,
) -> PyResult<NativeDataSet> {
    let (guarantee, copies_max) = (guaranteed(guarantee)?, splits.len() as u32);
    let schema = schema.resolve(py)?;
    let of = Arc::new(ReadSettings {
        name: name.clone(),
        schema: Arc::clone(&schema),
        factory: Arc::new(factory),
        poll_every: Duration::from_secs_f64(poll_every),
        rereads: guarantee > DeliveryGuarantee::AtMostOnce,
        acknowledge: acknowledge.map(Arc::new),
    });
    let source = StreamSource {
        name,
        schema,
        times: times(time)?,
        copies_max,
        guarantee,
        spec: None,
        bad_to: None,
        bad_folder: None,
        files: None,
        moves_splits: true,
        make: Arc::new(move |context| Ok(Box::new(PythonSource::new(&of, &splits, context)?))),
    };
    let made = from_stream(&engine.engine, source);
    made.map(NativeDataSet).map_err(|error| raised(py, &error))
}

/// How to read splits.
struct ReadSettings {
    name: String,
    schema: SchemaRef,
    factory: Arc<Py<PyAny>>,
    /// The interval of retries for a split without rows.
    poll_every: Duration,
    rereads: bool,
    acknowledge: Option<Arc<Py<PyAny>>>,
}

/// The next item of a split.
enum SplitItem {
    /// Rows, with the position after them.
    Rows(RecordBatch, Bytes),
    Nothing,
    End,
}

/// A reader, and what it has read.
type Call = BoxFuture<'static, Result<(Arc<Py<PyAny>>, SplitItem), String>>;

enum ReaderState {
    Ready,
    Reading(Call),
    Resting(Pin<Box<Sleep>>),
    /// The end; whether it was reported.
    Over(bool),
    /// Another copy has it now. Its number stays taken.
    Gone,
}

struct PythonSplit {
    name: String,
    caller: CallerThread,
    /// The position after the rows already emitted; `None` at the beginning.
    position: Option<Bytes>,
    /// The reader, once it exists.
    reader: Option<Arc<Py<PyAny>>>,
    state: ReaderState,
}

impl PythonSplit {
    fn new(of: &ReadSettings, name: &str, position: Option<Bytes>) -> Self {
        let caller = CallerThread::new(&format!("{}, {name}", of.name));
        PythonSplit { name: name.to_owned(), caller, position, reader: None, state: ReaderState::Ready }
    }

    /// Calls the reader, which may block indefinitely.
    fn read(&mut self, of: &ReadSettings) -> Call {
        let (factory, reader) = (Arc::clone(&of.factory), self.reader.clone());
        let (name, position) = (self.name.clone(), self.position.clone());
        self.caller.call(move |py| {
            let read = || -> PyResult<_> {
                let reader = match reader {
                    Some(reader) => reader,
                    None => {
                        let position = position.map(|position| PyBytes::new(py, &position));
                        Arc::new(factory.call1(py, (name, position))?)
                    }
                };
                type Found<'py> = Option<(Option<PyRef<'py, NativeTable>>, Bound<'py, PyBytes>)>;
                let read = match reader.call_method0(py, "next")?.extract::<Found<'_>>(py)? {
                    None => SplitItem::End,
                    Some((None, _)) => SplitItem::Nothing,
                    Some((Some(table), position)) => {
                        let rows = concat_batches(&table.schema, &table.batches);
                        let rows = rows.map_err(|error| raised(py, &error.into()))?;
                        SplitItem::Rows(rows, Bytes::copy_from_slice(position.as_bytes()))
                    }
                };
                Ok((reader, read))
            };
            read().map_err(|error| exception_text(py, &error))
        })
    }

    /// Its position as checkpoints have it.
    fn saved(&self) -> Bytes {
        let over = if matches!(self.state, ReaderState::Over(_)) { OVER } else { UNDER_WAY };
        [&[over], self.position.as_deref().unwrap_or_default()].concat().into()
    }

    /// Releases its reader, on the thread that called it.
    fn close(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.caller.release(reader);
        }
    }
}

impl Drop for PythonSplit {
    fn drop(&mut self) {
        self.close();
    }
}

/// The source of one copy.
struct PythonSource {
    of: Arc<ReadSettings>,
    splits: Vec<PythonSplit>,
    /// Saved states of finished splits that are no longer named; if named again, they are not read again.
    over: Vec<(String, Bytes)>,
    /// Whether the last split was reported. A receiver that sees it knows that the others exist: time must not advance
    /// without a split that has not emitted anything yet.
    told: bool,
    /// The split that is asked first; it rotates for fairness.
    turn: usize,
    acknowledging: DurabilityListener,
}

/// Splits and their positions.
type Places = BTreeMap<String, Bytes>;

/// Acknowledges durable positions, if the program wants them.
#[derive(Default)]
struct DurabilityListener {
    /// The positions of splits at the barriers of epochs that are not durable yet.
    epochs: VecDeque<(u64, Places)>,
    /// Positions to acknowledge next, and those acknowledged last.
    due: Places,
    told: Places,
    telling: Option<BoxFuture<'static, Result<(), String>>>,
}

impl DurabilityListener {
    fn durable(&mut self, epoch: u64) {
        while let Some((_, places)) = self.epochs.pop_front_if(|(passed, _)| *passed <= epoch) {
            self.due.extend(places);
        }
    }

    /// Acknowledges positions; ready when there are no more.
    fn poll(&mut self, of: &ReadSettings, context: &mut Context<'_>) -> Poll<Result<(), TaskError>> {
        loop {
            if let Some(telling) = &mut self.telling {
                ready!(telling.as_mut().poll(context))?;
                self.telling = None;
            }
            let mut due = std::mem::take(&mut self.due);
            due.retain(|split, position| self.told.get(split) != Some(position));
            let Some(acknowledge) = of.acknowledge.clone().filter(|_| !due.is_empty()) else {
                return Poll::Ready(Ok(()));
            };
            self.told.extend(due.clone());
            self.telling = Some(Box::pin(calls::call(move |py| {
                let places: Vec<_> = due.into_iter().map(|(split, place)| (split, PyBytes::new(py, &place))).collect();
                acknowledge.call1(py, (places,)).map(drop).map_err(|error| exception_text(py, &error))
            })));
        }
    }
}

/// The first byte of a saved position: whether the split was finished. The position itself is empty at the beginning.
const UNDER_WAY: u8 = 0;
const OVER: u8 = 1;

/// The epoch that a source is given when its end is durable.
const ALL: u64 = u64::MAX;

impl PythonSource {
    fn new(of: &Arc<ReadSettings>, named: &[String], context: &TaskContext) -> Result<Self, TaskError> {
        let (mut splits, mut past) = (Vec::new(), Vec::new());
        let restored = context.restored();
        for (name, saved) in restored.iter().flat_map(|restored| &restored.splits) {
            let Some((over, position)) = saved.split_first() else {
                return Err(format!("{}: the checkpoint has no state for the split {name:?}", of.name).into());
            };
            if named.contains(name) {
                let position = (!position.is_empty()).then(|| saved.slice(1..));
                splits.push(PythonSplit::new(of, name, position));
            } else if *over != OVER {
                return Err(format!(
                    "{}: the checkpoint has the unfinished split {name:?}, which splits= does not name: the rest of \
                     it would be lost; name it",
                    of.name
                )
                .into());
            } else {
                past.push((name.clone(), saved.clone()));
            }
        }
        let is_new = |name: &&String| restored.is_none_or(|restored| !restored.split_names.contains(*name));
        let new: Vec<&String> = named.iter().filter(is_new).collect();
        // A copy that has ended does not start again.
        let ended = |copy: &u32| restored.is_some_and(|restored| restored.ended_copies.contains(copy));
        let mut reading: Vec<u32> = context.active_copies().iter().copied().filter(|copy| !ended(copy)).collect();
        if reading.is_empty() {
            reading = (0..context.copies()).filter(|copy| !ended(copy)).collect();
        }
        if let (true, Some(split)) = (reading.is_empty(), new.first()) {
            return Err(format!(
                "{}: splits= names {split:?}, but the source had already finished: read that split as a separate \
                 source",
                of.name
            )
            .into());
        }
        let mine = |at: usize| reading[at % reading.len()] == context.copy();
        splits.extend(
            new.iter().enumerate().filter(|(at, _)| mine(*at)).map(|(_, name)| PythonSplit::new(of, name, None)),
        );
        let acknowledging = DurabilityListener::default();
        Ok(PythonSource { of: Arc::clone(of), splits, over: past, told: false, turn: 0, acknowledging })
    }

    /// Its splits, without those that other copies have now.
    fn there(&self) -> impl Iterator<Item = &PythonSplit> {
        self.splits.iter().filter(|split| !matches!(split.state, ReaderState::Gone))
    }

    /// The positions of its splits that have started.
    fn places(&self) -> Places {
        self.there().filter_map(|split| Some((split.name.clone(), split.position.clone()?))).collect()
    }

    fn poll_split(&mut self, at: usize, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        let (split, number) = (&mut self.splits[at], at as u32);
        loop {
            match &mut split.state {
                ReaderState::Over(true) | ReaderState::Gone => return Poll::Pending,
                ReaderState::Over(told) => {
                    *told = true;
                    return Poll::Ready(Ok(SourceEvent::SplitEnded { split: number }));
                }
                ReaderState::Resting(rest) => {
                    ready!(rest.as_mut().poll(context));
                    split.state = ReaderState::Ready;
                }
                ReaderState::Ready => split.state = ReaderState::Reading(split.read(&self.of)),
                ReaderState::Reading(reading) => {
                    let (reader, read) = ready!(reading.as_mut().poll(context))?;
                    split.reader = Some(reader);
                    match read {
                        SplitItem::End => {
                            split.close();
                            split.state = ReaderState::Over(false);
                        }
                        SplitItem::Nothing => {
                            split.state = ReaderState::Resting(Box::pin(sleep(self.of.poll_every)));
                            return Poll::Ready(Ok(SourceEvent::Idle { split: number, at: Instant::now() }));
                        }
                        SplitItem::Rows(rows, position) => {
                            (split.position, split.state) = (Some(position), ReaderState::Ready);
                            if rows.num_rows() > 0 {
                                return Poll::Ready(Ok(SourceEvent::rows(number, rows)));
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Source for PythonSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let Poll::Ready(Err(error)) = self.acknowledging.poll(&self.of, context) {
            return Poll::Ready(Err(error));
        }
        let count = self.splits.len();
        if !std::mem::replace(&mut self.told, true) && count > 0 {
            let nothing = RecordBatch::new_empty(Arc::clone(&self.of.schema));
            return Poll::Ready(Ok(SourceEvent::rows(count as u32 - 1, nothing)));
        }
        for at in (self.turn..count).chain(0..self.turn) {
            if let Poll::Ready(next) = self.poll_split(at, context) {
                self.turn = (at + 1) % count;
                return Poll::Ready(next);
            }
        }
        match self.splits.iter().all(|split| matches!(split.state, ReaderState::Over(_) | ReaderState::Gone)) {
            true => Poll::Ready(Ok(SourceEvent::End)),
            false => Poll::Pending,
        }
    }

    fn split_name(&self, split: u32) -> String {
        self.splits.get(split as usize).map_or_else(|| format!("split {split}"), |split| split.name.clone())
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let places = self.there().map(|split| (split.name.clone(), split.saved()));
        Ok(places.chain(self.over.iter().cloned()).collect())
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let mut released = Vec::new();
        for (number, split) in (0..).zip(&mut self.splits) {
            let is_open = !matches!(split.state, ReaderState::Over(_) | ReaderState::Gone);
            if is_open && splits.contains(&split.name) {
                let (name, position) = (split.name.clone(), split.saved());
                released.push(ReleasedSplit { name, position, numbers: vec![number] });
                // What a call returns that is under way is read again by the next reader.
                split.state = ReaderState::Gone;
                split.close();
            }
        }
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        let begin = self.splits.len() as u32;
        for (name, saved) in splits {
            let position = saved.get(1..).filter(|position| !position.is_empty()).map(|_| saved.slice(1..));
            self.splits.push(PythonSplit::new(&self.of, &name, position));
        }
        Ok((begin..self.splits.len() as u32).collect())
    }

    fn barrier(&mut self, epoch: u64) {
        if self.of.acknowledge.is_some() {
            self.acknowledging.epochs.push_back((epoch, self.places()));
        }
    }

    fn durable(&mut self, epoch: u64) {
        self.acknowledging.durable(epoch);
        if epoch == ALL {
            self.acknowledging.due = self.places();
        }
    }

    fn is_replayable(&self) -> bool {
        self.of.rereads
    }

    fn finishes_after_commit(&self) -> bool {
        self.of.acknowledge.is_some()
    }

    fn finish_is_idempotent(&self) -> bool {
        self.of.acknowledge.is_some()
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(poll_fn(|context| self.acknowledging.poll(&self.of, context)))
    }
}
