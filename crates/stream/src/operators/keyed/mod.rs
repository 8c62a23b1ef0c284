//! The engine for functions on the rows of each key: states, timers of both clocks, times to live, snapshots of what
//! has changed, buckets that move, and a disk for keys that nothing has come of for a while.
//!
//! What is kept of keys is in memory. When memory runs out ([`KeyedFunction::spill`]), the half of them that rows or
//! timers touched longest ago goes to disk, with their timers; they come back when something comes of them, or when a
//! timer of theirs goes off.
//!
//! Modules, lowest first:
//!
//! | module     | what is in it                      |
//! |------------|------------------------------------|
//! | `logic`    | what a function is to the engine   |
//! | here       | the engine                         |
//! | `operator` | the operator of a function         |

mod logic;
mod operator;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::{BucketStates, SnapshotPart, rows};
use tidemill_dataflow::memory::Governor;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};

use logic::{END, NEVER};
pub use logic::{KeyContext, KeyLogic, KeyedBatch, KeyedFunction, KeyedSetup, Lifetimes, MakeKeyedFunction, Timer};
pub use operator::KeyOperator;
pub(crate) use operator::KeyedColumns;

use arrow::datatypes::SchemaRef;

use crate::state::key_records::{Key, KeyRecord, RecordCodec, RecordKind};
use crate::state::key_store::{ClockKind, KeyStore, StoredKey};
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::{BucketParts, by_bucket, table_of, tables_of};
use crate::time::window::Micros;

/// States are saved whole again when changes since then take twice as much, and so many bytes more.
const CHANGED_BYTES_MIN: usize = 1 << 20;
/// So are those of a bucket when there are so many changes, however small: every checkpoint names all of them, and a
/// job that resumes reads all.
const CHANGES_MAX: usize = 300;
/// What a key takes in memory besides its state, a timer, and a key that is gone, about, in bytes.
const KEY_BYTES: usize = 300;
const TIMER_BYTES: usize = 100;
const GONE_BYTES: usize = 120;
/// The state of one call in so many is measured, and the average is of so many.
const MEASURE_EVERY: usize = 32;
const MEASURED: usize = 50;
/// So many keys stay in memory, whatever there is of it.
const KEYS_MIN: usize = 64;
/// Keys that come back from disk at once.
const DUE_AT_ONCE: usize = 1000;
/// Records of a snapshot that are encoded at once.
const RECORDS_AT_ONCE: usize = 1 << 12;
const RECORD_BYTES_AT_ONCE: usize = 8 << 20;
/// The only kind of table in a part.
const RECORDS: u8 = 0;

/// What is kept of a key.
struct KeyEntry<S> {
    bucket: u32,
    state: Option<S>,
    timers: BTreeSet<Micros>,
    alarms: BTreeSet<Micros>,
    /// When rows came last, and when that is looked at next. `NEVER`: since time went on last, or before there was any.
    touched: Micros,
    looked_at: Option<Micros>,
    /// When the state is looked at for what has a time to live.
    expires: Option<Micros>,
    /// Whether a snapshot may not build on what was saved before.
    is_whole: bool,
    /// Counts calls of all keys: of the last of this key.
    called: u64,
}

impl<S> KeyEntry<S> {
    fn new(bucket: u32) -> Self {
        KeyEntry {
            bucket,
            state: None,
            timers: BTreeSet::new(),
            alarms: BTreeSet::new(),
            touched: NEVER,
            looked_at: None,
            expires: None,
            is_whole: true,
            called: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.state.is_none() && self.timers.is_empty() && self.alarms.is_empty()
    }

    /// Whether something of it is due at a time of the stream.
    fn is_due_at(&self, at: Micros) -> bool {
        self.timers.contains(&at) || self.looked_at == Some(at) || self.expires == Some(at)
    }
}

/// What snapshots have of a bucket: a whole, and changes since.
#[derive(Clone, Copy, Debug, Default)]
struct SavedBytes {
    whole: usize,
    changed: usize,
    changes: usize,
}

/// How the engine is made.
pub struct KeyedOptions {
    /// The columns of the keys.
    pub keys: SchemaRef,
    /// A key is forgotten when the stream's time has gone on for so many microseconds since rows of it came last.
    pub ttl: Option<i64>,
    /// Whether there are snapshots.
    pub saves: bool,
    /// The machine's clock, in microseconds since 1970; `None`: the system's.
    pub clock: Option<Box<dyn Fn() -> i64 + Send>>,
}

/// What is kept of a key in memory, to be looked at.
pub struct KeyedEntry<'a, S> {
    /// The key's columns, in one row.
    pub key: Result<RecordBatch, TaskError>,
    /// The bucket that it is saved in.
    pub bucket: u32,
    /// Its state, if it has one.
    pub state: Option<&'a S>,
    /// Timers by the stream's time, in microseconds.
    pub timers: Vec<i64>,
    /// Timers by the machine's clock, in microseconds since 1970.
    pub alarms: Vec<i64>,
    /// When rows of it came last, by the stream's time; `i64::MIN`: since time went on last.
    pub touched: i64,
}

/// See the module.
pub struct KeyedEngine<L: KeyLogic> {
    logic: L,
    codec: RecordCodec,
    ttl: Option<Micros>,
    saves: bool,
    clock: Box<dyn Fn() -> i64 + Send>,
    disk: SpillArea,
    entries: HashMap<Key, KeyEntry<L::State>>,
    store: KeyStore,
    /// What is due by the stream's time: timers, and keys and states to be looked at; and by the machine's clock.
    due: BTreeSet<(Micros, Key)>,
    alarms: BTreeSet<(Micros, Key)>,
    /// In the store none is earlier.
    stored_alarm: Option<Micros>,
    now: Micros,
    /// Time before the end.
    latest: Micros,
    /// Keys that rows have come of, or that something with a time to live was put into, since time went on last.
    fresh: HashSet<Key>,
    /// Keys that have changed since the last snapshot, and the bucket of each.
    changed: HashMap<Key, u32>,
    saved: BTreeMap<u32, SavedBytes>,
    calls: usize,
    measured: usize,
    state_bytes: f64,
}

fn system_clock() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_micros() as i64
}

impl<L: KeyLogic> KeyedEngine<L> {
    /// The engine of a copy of a task.
    ///
    /// # Errors
    /// When a column cannot be a key.
    pub fn new(logic: L, options: KeyedOptions, context: &CopyContext) -> Result<Self, TaskError> {
        KeyedEngine::with_disk(logic, options, SpillArea::of(context))
    }

    /// One that is of no task, and spills by a governor.
    ///
    /// # Errors
    /// As [`KeyedEngine::new`].
    pub fn alone(logic: L, options: KeyedOptions, governor: &Governor) -> Result<Self, TaskError> {
        KeyedEngine::with_disk(logic, options, SpillArea::alone(governor))
    }

    fn with_disk(logic: L, options: KeyedOptions, disk: SpillArea) -> Result<Self, TaskError> {
        let codec = RecordCodec::new(&options.keys)?;
        let store = KeyStore::new(&codec, &disk);
        Ok(KeyedEngine {
            logic,
            codec,
            ttl: options.ttl,
            saves: options.saves,
            clock: options.clock.unwrap_or_else(|| Box::new(system_clock)),
            disk,
            entries: HashMap::new(),
            store,
            due: BTreeSet::new(),
            alarms: BTreeSet::new(),
            stored_alarm: None,
            now: NEVER,
            latest: NEVER,
            fresh: HashSet::new(),
            changed: HashMap::new(),
            saved: BTreeMap::new(),
            calls: 0,
            measured: 0,
            state_bytes: 0.0,
        })
    }

    /// The keys in memory.
    pub fn entries(&self) -> impl Iterator<Item = KeyedEntry<'_, L::State>> {
        self.entries.iter().map(|(key, entry)| KeyedEntry {
            key: self.codec.columns([key]),
            bucket: entry.bucket,
            state: entry.state.as_ref(),
            timers: entry.timers.iter().copied().collect(),
            alarms: entry.alarms.iter().copied().collect(),
            touched: entry.touched,
        })
    }

    /// How many times something is due at in memory, by the stream's time and by the machine's clock.
    pub fn due(&self) -> (usize, usize) {
        (self.due.len(), self.alarms.len())
    }

    /// How many keys are on disk.
    pub fn stored(&self) -> usize {
        self.store.len()
    }

    fn on_rows(&mut self, batch: &KeyedBatch) -> Result<(), TaskError> {
        self.logic.on_batch(batch)?;
        let keys = self.codec.keys(batch.keys.columns())?;
        let absent: Vec<Key> = keys.iter().filter(|key| !self.entries.contains_key(*key)).cloned().collect();
        for stored in self.store.take(&absent, &self.codec)? {
            self.unspill(stored)?;
        }
        let mut start = 0;
        let ends = batch.buckets.iter().zip(&batch.ends);
        for (number, (key, (&bucket, &end))) in keys.into_iter().zip(ends).enumerate() {
            let mut entry = self.entries.remove(&key).unwrap_or_else(|| KeyEntry::new(bucket));
            if self.ttl.is_some() {
                // How late its rows are is known when time has gone on to them: counted from the time before them,
                // which may be long ago, the key could be forgotten as soon as they have come.
                entry.touched = NEVER;
                self.fresh.insert(Arc::clone(&key));
                self.look_at(&mut entry, &key);
            }
            self.call(key, entry, KeyCall::Rows(batch, number, start..end))?;
            start = end;
        }
        self.call_due()
    }

    /// Calls the function for a key, whose entry has been taken out.
    fn call(&mut self, key: Key, mut entry: KeyEntry<L::State>, call: KeyCall<'_>) -> Result<(), TaskError> {
        let mut time = if self.now == END { self.latest } else { self.now };
        if let (END, KeyCall::Timer(Timer::Event(at))) = (self.now, &call) {
            // The end has no time of its own that could be reckoned with.
            time = time.max(*at);
        }
        let mut context = KeyContext {
            codec: &self.codec,
            key: &key,
            time: (time != NEVER).then_some(time),
            now: self.now,
            state: entry.state.take(),
            lifetimes: Lifetimes::default(),
            changes: Vec::new(),
        };
        // A new state has nothing of what snapshots have of the one before it.
        entry.is_whole |= context.state.is_none();
        match call {
            KeyCall::Rows(batch, number, rows) => self.logic.on_rows(batch, number, rows, &mut context)?,
            KeyCall::Timer(timer) => self.logic.on_timer(timer, &mut context)?,
        }
        let KeyContext { state, lifetimes, changes, .. } = context;
        entry.state = state;
        if let Some(state) = entry.state.as_ref().filter(|_| self.calls.is_multiple_of(MEASURE_EVERY)) {
            self.measured = (self.measured + 1).min(MEASURED);
            self.state_bytes += (self.logic.bytes(state)? as f64 - self.state_bytes) / self.measured as f64;
        }
        self.calls += 1;
        entry.called = self.calls as u64;
        if lifetimes.has_fresh {
            self.fresh.insert(Arc::clone(&key));
        }
        for (timer, is_set) in changes {
            // At the end none goes off that is set then.
            let goes_off = is_set && self.now < END;
            match timer {
                Timer::Event(at) if is_set => {
                    entry.timers.insert(at);
                    if goes_off {
                        self.due.insert((at, Arc::clone(&key)));
                    }
                }
                Timer::Event(at) => {
                    if entry.timers.remove(&at) && !entry.is_due_at(at) {
                        self.due.remove(&(at, Arc::clone(&key)));
                    }
                }
                Timer::Clock(at) if is_set => {
                    entry.alarms.insert(at);
                    if goes_off {
                        self.alarms.insert((at, Arc::clone(&key)));
                    }
                }
                Timer::Clock(at) => {
                    if entry.alarms.remove(&at) {
                        self.alarms.remove(&(at, Arc::clone(&key)));
                    }
                }
            }
        }
        if self.now < END {
            self.expire_later(&mut entry, &key, lifetimes.expires);
        }
        self.put_back(key, entry)
    }

    /// Notes that a key has changed, and keeps it if there is anything to keep.
    fn put_back(&mut self, key: Key, mut entry: KeyEntry<L::State>) -> Result<(), TaskError> {
        self.change(&key, &mut entry)?;
        match entry.is_empty() {
            true => self.forget_due(&key, &entry),
            false => _ = self.entries.insert(key, entry),
        }
        Ok(())
    }

    fn change(&mut self, key: &Key, entry: &mut KeyEntry<L::State>) -> Result<(), TaskError> {
        if self.saves {
            self.changed.insert(Arc::clone(key), entry.bucket);
        } else if let Some(state) = &mut entry.state {
            self.logic.saved(state)?;
        }
        Ok(())
    }

    /// Nothing of a key is due any more.
    fn forget_due(&mut self, key: &Key, entry: &KeyEntry<L::State>) {
        for &at in entry.timers.iter().chain(&entry.looked_at).chain(&entry.expires) {
            self.due.remove(&(at, Arc::clone(key)));
        }
        for &at in &entry.alarms {
            self.alarms.remove(&(at, Arc::clone(key)));
        }
        self.fresh.remove(key);
    }

    /// When rows came last, or the time before them if that is not known yet.
    fn touched(&self, entry: &KeyEntry<L::State>) -> Micros {
        if entry.touched == NEVER { self.now } else { entry.touched }
    }

    /// Sees to it that a key is forgotten when nothing has come for too long.
    fn look_at(&mut self, entry: &mut KeyEntry<L::State>, key: &Key) {
        if let (None, Some(ttl)) = (entry.looked_at, self.ttl) {
            let at = self.touched(entry).saturating_add(ttl);
            entry.looked_at = Some(at);
            self.due.insert((at, Arc::clone(key)));
        }
    }

    /// Sees to it that what has a time to live is removed in time.
    fn expire_later(&mut self, entry: &mut KeyEntry<L::State>, key: &Key, expires: Option<Micros>) {
        let Some(at) = expires else { return };
        if entry.expires.is_none_or(|before| at < before) {
            let before = entry.expires.replace(at);
            if let Some(before) = before.filter(|&before| !entry.is_due_at(before)) {
                self.due.remove(&(before, Arc::clone(key)));
            }
            self.due.insert((at, Arc::clone(key)));
        }
    }

    /// Calls the function for timers that have gone off; forgets what has lived for long enough.
    fn call_due(&mut self) -> Result<(), TaskError> {
        // At the end: a function that sets its next timer each time would never end.
        let mut last: VecDeque<(Micros, Key)> = match self.now {
            END => std::mem::take(&mut self.due).into_iter().collect(),
            _ => VecDeque::new(),
        };
        loop {
            let first = match self.now {
                END => last.pop_front(),
                now => match self.due.first() {
                    Some((at, _)) if *at <= now => self.due.pop_first(),
                    _ => None,
                },
            };
            let Some((at, key)) = first else { return Ok(()) };
            if let Some(mut entry) = self.entries.remove(&key) {
                if entry.timers.remove(&at) {
                    self.call(Arc::clone(&key), entry, KeyCall::Timer(Timer::Event(at)))?;
                } else {
                    self.entries.insert(Arc::clone(&key), entry);
                }
            }
            // It may be several at once.
            self.outlive(at, &key)?;
        }
    }

    /// Forgets a key, or some of its state, if its time has come.
    fn outlive(&mut self, at: Micros, key: &Key) -> Result<(), TaskError> {
        if self.now == END {
            return Ok(());
        }
        let Some(mut entry) = self.entries.remove(key) else { return Ok(()) };
        if let Some(ttl) = self.ttl.filter(|_| entry.looked_at == Some(at)) {
            entry.looked_at = None;
            if self.touched(&entry).saturating_add(ttl) <= self.now {
                self.forget_due(key, &entry);
                return self.change(key, &mut entry);
            }
            self.look_at(&mut entry, key);
        }
        if entry.expires == Some(at) {
            entry.expires = None;
            let mut expires = None;
            if let Some(state) = entry.state.take() {
                entry.state = self.logic.expire(state, self.now)?;
                if let Some(state) = &entry.state {
                    expires = self.logic.lifetimes(state, self.now)?.expires;
                }
            }
            self.expire_later(&mut entry, key, expires);
            return self.put_back(Arc::clone(key), entry);
        }
        self.entries.insert(Arc::clone(key), entry);
        Ok(())
    }

    /// Calls the function for alarms that have gone off.
    fn call_alarms(&mut self, now: Micros) -> Result<(), TaskError> {
        let mut last: VecDeque<(Micros, Key)> = match now {
            END => std::mem::take(&mut self.alarms).into_iter().collect(),
            _ => VecDeque::new(),
        };
        loop {
            let first = match now {
                END => last.pop_front(),
                _ => match self.alarms.first() {
                    Some((at, _)) if *at <= now => self.alarms.pop_first(),
                    _ => None,
                },
            };
            let Some((at, key)) = first else { return Ok(()) };
            if let Some(mut entry) = self.entries.remove(&key) {
                match entry.alarms.remove(&at) {
                    true => self.call(key, entry, KeyCall::Timer(Timer::Clock(at)))?,
                    false => _ = self.entries.insert(key, entry),
                }
            }
        }
    }

    fn on_time(&mut self, now: Micros) -> Result<bool, TaskError> {
        // A job that resumes may be told a time again that was before its rows.
        let goes_on = now > self.now;
        self.now = self.now.max(now);
        if self.now < END {
            self.latest = self.now;
        }
        let mut more = self.bring(ClockKind::Event, self.now)?;
        if goes_on && self.now < END {
            for key in std::mem::take(&mut self.fresh) {
                let Some(mut entry) = self.entries.remove(&key) else { continue };
                if entry.touched == NEVER {
                    entry.touched = self.now;
                }
                if let Some(state) = &mut entry.state
                    && self.logic.count_from(state, self.now)?
                {
                    self.change(&key, &mut entry)?;
                }
                self.entries.insert(key, entry);
            }
        }
        if self.now == END {
            // Before anything goes off: of what goes back to disk meanwhile nothing is due any more.
            more |= self.bring(ClockKind::Wall, END)?;
        }
        self.call_due()?;
        if self.now == END {
            self.call_alarms(END)?;
        }
        Ok(more)
    }

    fn on_clock(&mut self) -> Result<bool, TaskError> {
        let now = (self.clock)();
        let more = self.bring(ClockKind::Wall, now)?;
        self.stored_alarm = self.store.first_due(ClockKind::Wall)?;
        self.call_alarms(now)?;
        Ok(more)
    }

    /// Brings keys back from disk that something is due of. Whether there were any.
    fn bring(&mut self, kind: ClockKind, now: Micros) -> Result<bool, TaskError> {
        let due = self.store.take_due(kind, now, DUE_AT_ONCE, &self.codec)?;
        let any = !due.is_empty();
        due.into_iter().try_for_each(|stored| self.unspill(stored))?;
        Ok(any)
    }

    /// Keeps in memory what was on disk.
    fn unspill(&mut self, stored: StoredKey) -> Result<(), TaskError> {
        if stored.changed {
            self.changed.insert(Arc::clone(&stored.key), stored.bucket);
        }
        if stored.record.kind == RecordKind::Removed {
            return Ok(());
        }
        let parts: Vec<Vec<u8>> = stored.record.state.into_iter().collect();
        let record = KeyRecord { state: None, ..stored.record };
        self.add(stored.key, stored.bucket, record, &parts, stored.changed)
    }

    /// Keeps what was saved of a key.
    fn add(
        &mut self,
        key: Key,
        bucket: u32,
        record: KeyRecord,
        parts: &[Vec<u8>],
        is_unsaved: bool,
    ) -> Result<(), TaskError> {
        let mut entry = KeyEntry::new(bucket);
        entry.touched = record.touched;
        entry.is_whole = is_unsaved;
        entry.timers = record.timers.into_iter().collect();
        entry.alarms = record.alarms.into_iter().collect();
        self.due.extend(entry.timers.iter().map(|&at| (at, Arc::clone(&key))));
        self.alarms.extend(entry.alarms.iter().map(|&at| (at, Arc::clone(&key))));
        if self.ttl.is_some() {
            if entry.touched == NEVER {
                self.fresh.insert(Arc::clone(&key));
            }
            self.look_at(&mut entry, &key);
        }
        if !parts.is_empty() {
            let state = self.logic.decode(parts)?;
            let lifetimes = self.logic.lifetimes(&state, self.now)?;
            if lifetimes.has_fresh {
                self.fresh.insert(Arc::clone(&key));
            }
            self.expire_later(&mut entry, &key, lifetimes.expires);
            entry.state = Some(state);
        }
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Puts on disk the so many keys that were called for longest ago, and which keys are gone.
    ///
    /// # Errors
    /// When the disk is full or fails, or a state cannot be encoded.
    pub fn spill_keys(&mut self, count: usize) -> Result<(), TaskError> {
        let mut oldest: Vec<(u64, Key)> =
            self.entries.iter().map(|(key, entry)| (entry.called, Arc::clone(key))).collect();
        if count < oldest.len() && count > 0 {
            oldest.select_nth_unstable(count - 1);
        }
        oldest.truncate(count);
        let gone: Vec<Key> = self.changed.keys().filter(|key| !self.entries.contains_key(*key)).cloned().collect();
        // One after the other, so that what is encoded does not take as much memory again.
        let KeyedEngine { logic, codec, entries, store, due, alarms, changed, fresh, ttl, now, .. } = self;
        let spilled = oldest.into_iter().map(|(_, key)| key).chain(gone).map(|key| {
            let is_changed = changed.remove(&key);
            let Some(entry) = entries.remove(&key) else {
                let bucket = is_changed.unwrap_or_default();
                return Ok(StoredKey {
                    key,
                    bucket,
                    due: None,
                    alarm: None,
                    changed: true,
                    record: KeyRecord::REMOVED,
                });
            };
            for &at in entry.timers.iter().chain(&entry.looked_at).chain(&entry.expires) {
                due.remove(&(at, Arc::clone(&key)));
            }
            for &at in &entry.alarms {
                alarms.remove(&(at, Arc::clone(&key)));
            }
            // When it comes back it counts as touched then: it may stay for longer, but goes no sooner.
            fresh.remove(&key);
            let (mut next_due, mut next_alarm) = (None, None);
            // At the end no timer goes off that is still there.
            if *now < END {
                next_alarm = entry.alarms.first().copied();
                next_due = entry.timers.first().copied();
                let touched = if entry.touched == NEVER { *now } else { entry.touched };
                let looked_at = ttl.map(|ttl| entry.looked_at.unwrap_or(touched.saturating_add(ttl)));
                let lifetimes = entry.state.as_ref().map(|state| logic.lifetimes(state, *now)).transpose()?;
                let expires = lifetimes.and_then(|lifetimes| lifetimes.expires);
                next_due = [next_due, looked_at, expires].into_iter().flatten().min();
            }
            let record = record_of(logic, &entry, true)?;
            Ok(StoredKey {
                key,
                bucket: entry.bucket,
                due: next_due,
                alarm: next_alarm,
                changed: is_changed.is_some(),
                record,
            })
        });
        store.put(spilled, codec)?;
        self.stored_alarm = self.store.first_due(ClockKind::Wall)?;
        Ok(())
    }

    fn spill_half(&mut self) -> Result<(), TaskError> {
        let count = self.entries.len() / 2;
        if count < KEYS_MIN && self.changed.len().saturating_sub(self.entries.len()) < KEYS_MIN {
            return Ok(());
        }
        self.spill_keys(count)
    }

    /// The buckets of which too many changes have been saved. To save any whole all keys are looked through, so if
    /// there is one, those that will soon be are among them.
    fn long(&self) -> BTreeSet<u32> {
        if self.saved.values().all(|saved| saved.changes < CHANGES_MAX) {
            return BTreeSet::new();
        }
        self.saved.iter().filter(|(_, saved)| saved.changes >= CHANGES_MAX / 2).map(|(bucket, _)| *bucket).collect()
    }

    fn parts(&mut self, whole: bool) -> Result<BucketStates, TaskError> {
        let changed_bytes: usize = self.saved.values().map(|saved| saved.changed).sum();
        let whole_bytes: usize = self.saved.values().map(|saved| saved.whole).sum();
        let whole = whole || changed_bytes > 2 * whole_bytes + CHANGED_BYTES_MIN;
        let renewed = match whole {
            true => {
                let mut all = self.store.buckets()?;
                all.extend(self.entries.values().map(|entry| entry.bucket).chain(self.saved.keys().copied()));
                all
            }
            false => self.long(),
        };
        let (mut wholes, mut changes) = (BucketParts::new(&self.disk), BucketParts::new(&self.disk));
        if !whole {
            let mut records = RecordWriter::new(&self.codec, &mut changes);
            for (key, &bucket) in self.changed.iter().filter(|(_, bucket)| !renewed.contains(bucket)) {
                let record = match self.entries.get(key) {
                    Some(entry) => record_of(&mut self.logic, entry, false)?,
                    None => KeyRecord::REMOVED,
                };
                records.add(bucket, key, record)?;
            }
            records.finish()?;
            self.store.records(
                true,
                |bucket| !renewed.contains(&bucket),
                |rows, of| add_rows(&mut changes, rows, of),
            )?;
        }
        if !renewed.is_empty() {
            let mut records = RecordWriter::new(&self.codec, &mut wholes);
            for (key, entry) in self.entries.iter().filter(|(_, entry)| renewed.contains(&entry.bucket)) {
                records.add(entry.bucket, key, record_of(&mut self.logic, entry, true)?)?;
            }
            records.finish()?;
            self.store.records(
                false,
                |bucket| renewed.contains(&bucket),
                |rows, of| add_rows(&mut wholes, rows, of),
            )?;
        }
        let mut buckets = BucketStates::new();
        let wholes: BTreeMap<u32, Bytes> = wholes.finish()?.into_iter().collect();
        for &bucket in &renewed {
            match wholes.get(&bucket) {
                Some(bytes) => {
                    self.saved.insert(bucket, SavedBytes { whole: bytes.len(), ..SavedBytes::default() });
                    buckets.push((bucket, SnapshotPart::Whole(bytes.clone())));
                }
                None => {
                    self.saved.remove(&bucket);
                    buckets.push((bucket, SnapshotPart::Whole(Bytes::new())));
                }
            }
        }
        for (bucket, bytes) in changes.finish()? {
            let saved = self.saved.entry(bucket).or_default();
            saved.changed += bytes.len();
            saved.changes += 1;
            buckets.push((bucket, SnapshotPart::Change(bytes)));
        }
        for (key, _) in self.changed.drain() {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.is_whole = false;
                if let Some(state) = &mut entry.state {
                    self.logic.saved(state)?;
                }
            }
        }
        self.store.saved()?;
        Ok(buckets)
    }

    fn release_parts(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        let leaving: BTreeSet<u32> = buckets.iter().copied().collect();
        let mut parts = BucketParts::new(&self.disk);
        let keys: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| leaving.contains(&entry.bucket))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in keys {
            let Some(entry) = self.entries.remove(&key) else { continue };
            self.forget_due(&key, &entry);
            let record = record_of(&mut self.logic, &entry, true)?;
            let mut records = RecordWriter::new(&self.codec, &mut parts);
            records.add(entry.bucket, &key, record)?;
            records.finish()?;
        }
        self.changed.retain(|_, bucket| !leaving.contains(bucket));
        self.store.records(false, |bucket| leaving.contains(&bucket), |rows, of| add_rows(&mut parts, rows, of))?;
        for &bucket in buckets {
            self.saved.remove(&bucket);
            self.store.remove(bucket)?;
        }
        parts.finish()
    }

    fn restore_bucket(&mut self, now: Micros, bucket: u32, parts: &[Bytes]) -> Result<(), TaskError> {
        self.now = now;
        if now < END {
            self.latest = now;
        }
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        let (whole, changes) = lengths.split_at(lengths.len().min(1));
        let saved = SavedBytes { whole: whole.iter().sum(), changed: changes.iter().sum(), changes: changes.len() };
        self.saved.insert(bucket, saved);
        // Of each key its last record, and the parts of its state.
        let mut found: HashMap<Key, (KeyRecord, Vec<Vec<u8>>)> = HashMap::new();
        for part in parts {
            for (_, table) in tables_of(part)? {
                for (key, mut record) in self.codec.decode(&rows::decode(self.codec.schema(), &table)?)? {
                    let state = record.state.take();
                    let mut states = match record.kind {
                        RecordKind::Removed => {
                            found.remove(&key);
                            continue;
                        }
                        RecordKind::Whole => Vec::new(),
                        RecordKind::Change => found.remove(&key).map(|(_, states)| states).unwrap_or_default(),
                    };
                    match state {
                        Some(state) => states.push(state),
                        // It keeps nothing but timers now.
                        None => states.clear(),
                    }
                    found.insert(key, (record, states));
                }
            }
        }
        for (key, (record, states)) in found {
            self.add(key, bucket, record, &states, false)?;
        }
        Ok(())
    }
}

/// Why a function is called for a key.
enum KeyCall<'a> {
    Rows(&'a KeyedBatch, usize, Range<usize>),
    Timer(Timer),
}

/// What is saved of a key.
fn record_of<L: KeyLogic>(logic: &mut L, entry: &KeyEntry<L::State>, whole: bool) -> Result<KeyRecord, TaskError> {
    let whole = whole || entry.is_whole;
    Ok(KeyRecord {
        kind: if whole { RecordKind::Whole } else { RecordKind::Change },
        state: entry.state.as_ref().map(|state| logic.encode(state, whole)).transpose()?,
        timers: entry.timers.iter().copied().collect(),
        alarms: entry.alarms.iter().copied().collect(),
        touched: entry.touched,
    })
}

/// Adds records as rows to the parts of their buckets.
fn add_rows(parts: &mut BucketParts, rows: &RecordBatch, of: &[u32]) -> Result<(), TaskError> {
    for (bucket, bytes) in by_bucket(rows, of, |_| true)? {
        parts.add(bucket, &[&table_of(RECORDS, &bytes)])?;
    }
    Ok(())
}

/// Gathers records, and adds them to the parts of their buckets many at a time.
struct RecordWriter<'a> {
    codec: &'a RecordCodec,
    parts: &'a mut BucketParts,
    records: Vec<(Key, KeyRecord)>,
    buckets: Vec<u32>,
    bytes: usize,
}

impl<'a> RecordWriter<'a> {
    fn new(codec: &'a RecordCodec, parts: &'a mut BucketParts) -> Self {
        RecordWriter { codec, parts, records: Vec::new(), buckets: Vec::new(), bytes: 0 }
    }

    fn add(&mut self, bucket: u32, key: &Key, record: KeyRecord) -> Result<(), TaskError> {
        self.bytes += key.len() + record.bytes();
        self.records.push((Arc::clone(key), record));
        self.buckets.push(bucket);
        if self.records.len() >= RECORDS_AT_ONCE || self.bytes >= RECORD_BYTES_AT_ONCE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TaskError> {
        if !self.records.is_empty() {
            add_rows(self.parts, &self.codec.encode(&self.records)?, &self.buckets)?;
        }
        self.records.clear();
        self.buckets.clear();
        self.bytes = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<(), TaskError> {
        self.flush()
    }
}

fn text(error: TaskError) -> String {
    error.to_string()
}

impl<L: KeyLogic> KeyedFunction for KeyedEngine<L> {
    fn rows(&mut self, batch: KeyedBatch) -> Result<Vec<RecordBatch>, String> {
        self.on_rows(&batch).map_err(text)?;
        self.logic.take_rows()
    }

    fn time(&mut self, now: i64) -> Result<(Vec<RecordBatch>, bool), String> {
        let more = self.on_time(now).map_err(text)?;
        Ok((self.logic.take_rows()?, more))
    }

    fn next_alarm(&self) -> Option<i64> {
        [self.alarms.first().map(|(at, _)| *at), self.stored_alarm].into_iter().flatten().min()
    }

    fn ring(&mut self) -> Result<(Vec<RecordBatch>, bool), String> {
        let more = self.on_clock().map_err(text)?;
        Ok((self.logic.take_rows()?, more))
    }

    fn bytes(&self) -> Result<usize, String> {
        let entries = self.entries.len() * (KEY_BYTES + self.state_bytes as usize);
        let timers = (self.due.len() + self.alarms.len()) * TIMER_BYTES;
        Ok(entries + timers + self.changed.len() * GONE_BYTES + self.store.bytes())
    }

    fn spill(&mut self) -> Result<(), String> {
        self.spill_half().map_err(text)
    }

    fn snapshot(&mut self, whole: bool) -> Result<BucketStates, String> {
        self.parts(whole).map_err(text)
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, String> {
        self.release_parts(buckets).map_err(text)
    }

    fn restore(&mut self, now: i64, buckets: Vec<(u32, Vec<Bytes>)>) -> Result<(), String> {
        buckets.iter().try_for_each(|(bucket, parts)| self.restore_bucket(now, *bucket, parts)).map_err(text)
    }
}
