//! What a function on the rows of each key is to the engine: it is called with rows and timers, and encodes what it
//! keeps.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::BucketStates;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};

use crate::state::key_records::{Key, RecordCodec};
use crate::time::window::Micros;

/// No time yet: before the stream has any.
pub(super) const NEVER: Micros = Micros::MIN;
/// The stream's time at its end.
pub(super) const END: Micros = Micros::MAX;

/// Rows of several keys, those of each together.
#[derive(Clone, Debug)]
pub struct KeyedBatch {
    /// The columns of the keys, a row each.
    pub keys: RecordBatch,
    /// The bucket of each key, which its state is saved in.
    pub buckets: Vec<u32>,
    /// Where the rows of each key end among `rows`.
    pub ends: Vec<usize>,
    /// In the order of the keys; of each, in the order in which they came.
    pub rows: RecordBatch,
}

/// When a key's function is to be called, in microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// When the stream's time has come to it: every earlier row has come.
    Event(i64),
    /// When the machine's clock has.
    Clock(i64),
}

/// What to do with the rows of each key, and how to save what is kept of them. Each copy of the task has one. What it
/// keeps of a key is in the key's state, so that it can be saved, spilled, and moved to another copy.
///
/// A state can be a value in memory of any kind: it is encoded when a snapshot has it or when memory runs out. A key of
/// which there is neither a state nor a timer is forgotten.
pub trait KeyLogic: Send {
    /// What is kept of a key while it is in memory.
    type State: Send;

    /// A batch comes: `on_rows` is called for each of its keys.
    ///
    /// # Errors
    /// Fails the job.
    fn on_batch(&mut self, batch: &KeyedBatch) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// Rows of a key have come: those of `batch.rows` in a range. The key is the one with this number in the batch.
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

    /// A timer of a key goes off: one that has been set for a time which has passed at once, and at the end of the
    /// stream all that had been set before.
    ///
    /// # Errors
    /// Fails the job.
    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_, Self::State>) -> Result<(), String>;

    /// The rows that it has made since this was called last.
    ///
    /// # Errors
    /// Fails the job.
    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String>;

    /// A state as bytes: all of it, or (not `whole`) what has changed since `saved` was called last.
    ///
    /// # Errors
    /// Fails the job.
    fn encode(&mut self, state: &Self::State, whole: bool) -> Result<Vec<u8>, String>;

    /// A snapshot has the state, or there are no snapshots.
    ///
    /// # Errors
    /// Fails the job.
    fn saved(&mut self, state: &mut Self::State) -> Result<(), String>;

    /// The state that was encoded: a whole, and changes since.
    ///
    /// # Errors
    /// When the bytes make no sense.
    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Self::State, String>;

    /// About how many bytes a state takes in memory. Asked for now and then.
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

    /// Time has gone on to what was put into a state since it did last: that lives from now on. Whether the state has
    /// changed by that.
    ///
    /// # Errors
    /// Fails the job.
    fn count_from(&mut self, state: &mut Self::State, now: i64) -> Result<bool, String> {
        let _ = (state, now);
        Ok(false)
    }

    /// Removes from a state what has lived for long enough; `None`: nothing is left.
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
    /// Whether something was put since time went on last, so that it is not known yet from when it lives.
    pub has_fresh: bool,
    /// When the first has to go, or has to be looked at again; `None`: nothing has a time to live.
    pub expires: Option<i64>,
}

/// A key for the time of a call.
pub struct KeyContext<'a, S> {
    pub(super) codec: &'a RecordCodec,
    pub(super) key: &'a Key,
    pub(super) time: Option<i64>,
    pub(super) now: i64,
    /// What is kept of the key. `None` at first, and to forget it.
    pub state: Option<S>,
    /// Say what in the state has a time to live, if anything has.
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

    /// The stream's time; `None` before there is any. At the end it is that of the latest row, or of the timer where
    /// that is later.
    pub fn time(&self) -> Option<i64> {
        self.time
    }

    /// The stream's time as the engine has it: `i64::MIN` before there is any, and `i64::MAX` at the end.
    pub fn raw_time(&self) -> i64 {
        self.now
    }

    /// Sets a timer; one that is set already is set once.
    pub fn set(&mut self, timer: Timer) {
        self.changes.push((timer, true));
    }

    /// Deletes a timer; it is no error if there is none.
    pub fn delete(&mut self, timer: Timer) {
        self.changes.push((timer, false));
    }
}

/// A function on keys with what it keeps of them. Each copy of its task has one, and calls come one at a time; an error
/// is told with its text.
pub trait KeyedFunction: Send {
    /// Rows have come; returns the rows that go on.
    ///
    /// # Errors
    /// Fails the job.
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String>;

    /// Time has passed, in microseconds: every row with an earlier event time has come. Returns rows, and whether there
    /// is more to do at that time: then this is called again.
    ///
    /// # Errors
    /// Fails the job.
    fn time(&mut self, now: i64) -> Result<(Vec<RecordBatch>, bool), String>;

    /// When it wants `ring` to be called, in microseconds of the machine's clock since 1970; `None`: not before another
    /// call.
    fn next_alarm(&self) -> Option<i64>;

    /// The machine's clock has come to [`KeyedFunction::next_alarm`]. Returns rows, and whether there is more to do:
    /// then this is called again.
    ///
    /// # Errors
    /// Fails the job.
    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String>;

    /// What it keeps in memory, in bytes, about.
    ///
    /// # Errors
    /// Fails the job.
    fn bytes(&self) -> Result<usize, String>;

    /// Memory runs out: puts part of what it keeps on disk.
    ///
    /// # Errors
    /// Fails the job.
    fn spill(&mut self) -> Result<(), String>;

    /// What it keeps, by bucket: what has changed since the last snapshot, or all, also of buckets that have become
    /// empty.
    ///
    /// # Errors
    /// Fails the job.
    fn snapshot(&mut self, whole: bool) -> Result<BucketStates, String>;

    /// Lets go of what it keeps in these buckets, for another's `restore`.
    ///
    /// # Errors
    /// Fails the job.
    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String>;

    /// Takes what was kept at a time, by bucket: a whole, and the changes since.
    ///
    /// # Errors
    /// Fails the job.
    fn restore(&mut self, now: i64, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String>;
}

/// What a copy of a keyed task is made with.
pub struct KeyedSetup<'a> {
    /// The task's copy.
    pub context: &'a CopyContext,
    /// The columns of the keys.
    pub keys: SchemaRef,
}

/// Makes one for a copy.
pub type MakeKeyedFunction = Arc<dyn Fn(&KeyedSetup<'_>) -> Result<Box<dyn KeyedFunction>, TaskError> + Send + Sync>;
