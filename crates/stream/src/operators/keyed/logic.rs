//! The engine's interface to a keyed function, which handles rows and timers, and encodes its state.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::BucketStates;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};

use crate::state::key_records::{Key, RecordCodec};
use crate::time::window::Micros;

/// The stream's time before it has one.
pub(super) const NEVER: Micros = Micros::MIN;
/// The stream's time at its end.
pub(super) const END: Micros = Micros::MAX;

/// Rows of several keys, grouped by key.
#[derive(Clone, Debug)]
pub struct KeyedBatch {
    /// The key columns, with one row per key.
    pub keys: RecordBatch,
    /// The bucket of each key, in which its state is saved.
    pub buckets: Vec<u32>,
    /// Where the rows of each key end in `rows`.
    pub ends: Vec<usize>,
    /// Sorted by key, and for each key in the order of arrival.
    pub rows: RecordBatch,
}

/// When a key's function is to be called, in microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// When the stream's time reaches it: all earlier rows have arrived.
    Event(i64),
    /// When the machine's clock reaches it.
    Clock(i64),
}

/// Processes the rows of each key, and encodes its state. Each copy of the task has its own. The data of a key must be
/// in the key's state, so that it can be saved, spilled and moved to another copy.
///
/// In memory, a state can be a value of any type; it is encoded for snapshots, and when memory runs out. A key without
/// a state and without timers is forgotten.
pub trait KeyLogic: Send {
    /// A key's state in memory.
    type State: Send;

    /// A batch arrives: `on_rows` is then called for each of its keys.
    ///
    /// # Errors
    /// Fails the job.
    fn on_batch(&mut self, batch: &KeyedBatch) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// Rows of a key have arrived: a range of `batch.rows`. `number` is the key's number in the batch.
    ///
    /// # Errors
    /// Fails the job.
    fn on_rows(
        &mut self,
        batch: &KeyedBatch,
        number: usize,
        rows: Range<usize>,
        key: &mut KeyContext<'_, Self::State>,
    ) -> Result<(), String>;

    /// A timer of a key fires. A timer set for a time in the past fires immediately; at the end of the stream, all
    /// timers set before fire.
    ///
    /// # Errors
    /// Fails the job.
    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_, Self::State>) -> Result<(), String>;

    /// The output rows since the last call of this.
    ///
    /// # Errors
    /// Fails the job.
    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String>;

    /// A state as bytes: the full state, or (not `whole`) the changes since the last call of `saved`.
    ///
    /// # Errors
    /// Fails the job.
    fn encode(&mut self, state: &Self::State, whole: bool) -> Result<Vec<u8>, String>;

    /// The state is in a snapshot, or the job makes no snapshots.
    ///
    /// # Errors
    /// Fails the job.
    fn saved(&mut self, state: &mut Self::State) -> Result<(), String>;

    /// Decodes a state: a full one, and changes since.
    ///
    /// # Errors
    /// If the bytes are invalid.
    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Self::State, String>;

    /// The approximate size of a state in memory, in bytes. Called now and then.
    ///
    /// # Errors
    /// Fails the job.
    fn bytes(&mut self, state: &Self::State) -> Result<usize, String>;

    /// What in a state has a time to live.
    ///
    /// # Errors
    /// Fails the job.
    fn lifetimes(&mut self, state: &Self::State, now: i64) -> Result<Lifetimes, String> {
        let _ = (state, now);
        Ok(Lifetimes::default())
    }

    /// Time has advanced to `now`, when the lifetimes begin of what was put into the state since it last did. Returns
    /// whether this has changed the state.
    ///
    /// # Errors
    /// Fails the job.
    fn count_from(&mut self, state: &mut Self::State, now: i64) -> Result<bool, String> {
        let _ = (state, now);
        Ok(false)
    }

    /// Removes expired parts from a state; `None` if nothing is left.
    ///
    /// # Errors
    /// Fails the job.
    fn expire(&mut self, state: Self::State, now: i64) -> Result<Option<Self::State>, String> {
        let _ = now;
        Ok(Some(state))
    }
}

/// What in a state has a time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Whether something was put after time last advanced, so that the beginning of its life is not known yet.
    pub has_fresh: bool,
    /// When the first part expires, or must be checked again; `None` if nothing has a time to live.
    pub expires: Option<i64>,
}

/// A key during a call.
pub struct KeyContext<'a, S> {
    pub(super) codec: &'a RecordCodec,
    pub(super) key: &'a Key,
    pub(super) time: Option<i64>,
    pub(super) now: i64,
    /// The key's state: `None` at first, and to forget it.
    pub state: Option<S>,
    /// Set this if something in the state has a time to live.
    pub lifetimes: Lifetimes,
    pub(super) changes: Vec<(Timer, bool)>,
}

impl<S> KeyContext<'_, S> {
    /// The key's columns, in one row.
    ///
    /// # Errors
    /// None known.
    pub fn columns(&self) -> Result<RecordBatch, String> {
        self.codec.columns([self.key]).map_err(|error| error.to_string())
    }

    /// The stream's time; `None` before it has one. At the end, the time of the latest row, or of the timer if that is
    /// later.
    pub fn time(&self) -> Option<i64> {
        self.time
    }

    /// The stream's time in the engine's terms: `i64::MIN` before it has one, and `i64::MAX` at the end.
    pub fn raw_time(&self) -> i64 {
        self.now
    }

    /// Sets a timer; setting the same timer twice has no further effect.
    pub fn set(&mut self, timer: Timer) {
        self.changes.push((timer, true));
    }

    /// Deletes a timer; it is not an error if it does not exist.
    pub fn delete(&mut self, timer: Timer) {
        self.changes.push((timer, false));
    }
}

/// A keyed function with the state of its keys. Each copy of its task has one, and calls do not overlap. The text of an
/// error is reported.
pub trait KeyedFunction: Send {
    /// Rows have arrived; returns the output rows.
    ///
    /// # Errors
    /// Fails the job.
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String>;

    /// Event time has advanced to `now`, in microseconds: every earlier row has arrived. Returns output rows, and
    /// whether there is more to do at that time; if so, this is called again.
    ///
    /// # Errors
    /// Fails the job.
    fn time(&mut self, now: i64) -> Result<(Vec<RecordBatch>, bool), String>;

    /// When `ring` must be called, in microseconds of the machine's clock since 1970; `None` if not before another
    /// call.
    fn next_alarm(&self) -> Option<i64>;

    /// The machine's clock has reached [`KeyedFunction::next_alarm`]. Returns output rows, and whether there is more to
    /// do; if so, this is called again.
    ///
    /// # Errors
    /// Fails the job.
    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String>;

    /// The approximate size of its state in memory, in bytes.
    ///
    /// # Errors
    /// Fails the job.
    fn bytes(&self) -> Result<usize, String>;

    /// Memory is low: moves part of the state to disk.
    ///
    /// # Errors
    /// Fails the job.
    fn spill(&mut self) -> Result<(), String>;

    /// The state by bucket: the changes since the last snapshot, or everything, including buckets that have become
    /// empty.
    ///
    /// # Errors
    /// Fails the job.
    fn snapshot(&mut self, whole: bool) -> Result<BucketStates, String>;

    /// Hands over its state in these buckets, for another copy's `restore`.
    ///
    /// # Errors
    /// Fails the job.
    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String>;

    /// Adds state from a given time, by bucket: a full one, and changes since.
    ///
    /// # Errors
    /// Fails the job.
    fn restore(&mut self, now: i64, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String>;
}

/// The inputs for making the function of a copy.
pub struct KeyedSetup<'a> {
    /// The task's copy.
    pub context: &'a CopyContext,
    /// The columns of the keys.
    pub keys: SchemaRef,
}

/// Makes the function of a copy.
pub type MakeKeyedFunction = Arc<dyn Fn(&KeyedSetup<'_>) -> Result<Box<dyn KeyedFunction>, TaskError> + Send + Sync>;
