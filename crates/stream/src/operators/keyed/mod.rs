//! The engine of keyed functions: states, timers by both clocks, times to live, incremental snapshots, moving buckets,
//! and spilling of idle keys to disk.
//!
//! Keys are in memory. When memory runs out ([`KeyedFunction::spill`]), the half of them that were idle longest go to
//! disk with their timers; they return when they get rows, or when one of their timers fires.
//!
//! Modules, lowest first:
//!
//! | module      | contents                          |
//! |-------------|-----------------------------------|
//! | `logic`     | the interface of functions        |
//! | `entry`     | a key's entry in memory           |
//! | here        | the engine                        |
//! | `snapshots` | its snapshots, and moving buckets |
//! | `operator`  | the operator of a function        |

mod entry;
mod logic;
mod operator;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::BucketStates;
use tidemill_dataflow::memory::Governor;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};

use entry::{KeyEntry, SavedBytes};
use logic::{END, NEVER};
pub use logic::{KeyContext, KeyLogic, KeyedBatch, KeyedFunction, KeyedSetup, Lifetimes, MakeKeyedFunction, Timer};
pub use operator::KeyOperator;
pub(crate) use operator::KeyedColumns;

use crate::state::key_records::{Key, KeyRecord, RecordCodec, RecordKind};
use crate::state::key_store::{ClockKind, KeyStore, StoredKey};
use crate::state::operator_memory::SpillArea;
use crate::time::window::Micros;

/// The approximate memory of a key besides its state, of a timer, and of a removed key, in bytes.
const KEY_BYTES: usize = 300;
const TIMER_BYTES: usize = 100;
const GONE_BYTES: usize = 120;
/// Every so many calls, the size of one state is measured; the average is over so many measurements.
const MEASURE_EVERY: usize = 32;
const MEASURED: usize = 50;
/// Minimum number of keys in memory, however little memory there is.
const KEYS_MIN: usize = 64;
/// The number of keys that are brought back from disk at once.
const DUE_AT_ONCE: usize = 1000;

/// Options of the engine.
pub struct KeyedOptions {
    /// The columns of the keys.
    pub keys: SchemaRef,
    /// A key is forgotten when the stream's time has advanced by this many microseconds since its last rows.
    pub ttl: Option<i64>,
    /// The machine's clock, in microseconds since 1970; `None`: the system's.
    pub clock: Option<Box<dyn Fn() -> i64 + Send>>,
}

/// A key in memory, for inspection.
pub struct KeyedEntry<'a, S> {
    /// The key's columns, in one row.
    pub key: Result<RecordBatch, TaskError>,
    /// The bucket that the key is saved in.
    pub bucket: u32,
    /// Its state, if it has one.
    pub state: Option<&'a S>,
    /// Timers by the stream's time, in microseconds.
    pub timers: Vec<i64>,
    /// Timers by the machine's clock, in microseconds since 1970.
    pub alarms: Vec<i64>,
    /// When rows last came, by the stream's time; `i64::MIN` if after time last advanced.
    pub touched: i64,
}

/// The engine of keyed functions.
pub struct KeyedEngine<L: KeyLogic> {
    logic: L,
    codec: RecordCodec,
    ttl: Option<Micros>,
    saves: bool,
    clock: Box<dyn Fn() -> i64 + Send>,
    disk: SpillArea,
    entries: HashMap<Key, KeyEntry<L::State>>,
    store: KeyStore,
    /// What is due by the stream's time (timers, and checks of keys and states), and by the machine's clock.
    due: BTreeSet<(Micros, Key)>,
    alarms: BTreeSet<(Micros, Key)>,
    /// The earliest alarm of keys on disk.
    stored_alarm: Option<Micros>,
    now: Micros,
    /// The last event time before the end.
    latest: Micros,
    /// Keys that got rows, or new parts with a time to live, since time last advanced.
    fresh: HashSet<Key>,
    /// Keys that have changed since the last snapshot, each with its bucket.
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
    /// If a column cannot be a key.
    pub fn new(logic: L, options: KeyedOptions, context: &CopyContext) -> Result<Self, TaskError> {
        KeyedEngine::with_disk(logic, options, context.saves(), SpillArea::of(context))
    }

    /// An engine outside of a task, with a governor for spilling. `saves`: whether it makes snapshots.
    ///
    /// # Errors
    /// As [`KeyedEngine::new`].
    pub fn alone(logic: L, options: KeyedOptions, saves: bool, governor: &Governor) -> Result<Self, TaskError> {
        KeyedEngine::with_disk(logic, options, saves, SpillArea::new(governor, 1))
    }

    fn with_disk(logic: L, options: KeyedOptions, saves: bool, disk: SpillArea) -> Result<Self, TaskError> {
        let codec = RecordCodec::new(&options.keys)?;
        let store = KeyStore::new(&codec, &disk);
        Ok(KeyedEngine {
            logic,
            codec,
            ttl: options.ttl,
            saves,
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

    /// The numbers of due times in memory, by the stream's time and by the machine's clock.
    pub fn due(&self) -> (usize, usize) {
        (self.due.len(), self.alarms.len())
    }

    /// The number of keys on disk.
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
                // The time of these rows is known only once time advances. Counting from the time before, which may be
                // long ago, could forget the key as soon as its rows have arrived.
                entry.touched = NEVER;
                self.fresh.insert(Arc::clone(&key));
                self.look_at(&mut entry, &key);
            }
            self.call(key, entry, KeyCall::Rows(batch, number, start..end))?;
            start = end;
        }
        self.call_due()
    }

    /// Calls the function for a key whose entry was taken out.
    fn call(&mut self, key: Key, mut entry: KeyEntry<L::State>, call: KeyCall<'_>) -> Result<(), TaskError> {
        let mut time = if self.now == END { self.latest } else { self.now };
        if let (END, KeyCall::Timer(Timer::Event(at))) = (self.now, &call) {
            // The time at the end is not a real one to compute with.
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
        // Snapshots of a previous state do not apply to a new one.
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
            // Timers set at the end do not fire.
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

    /// Marks a key as changed, and puts its entry back unless it is empty.
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

    /// Removes everything that is due for a key.
    fn forget_due(&mut self, key: &Key, entry: &KeyEntry<L::State>) {
        for at in entry.due_times() {
            self.due.remove(&(at, Arc::clone(key)));
        }
        for &at in &entry.alarms {
            self.alarms.remove(&(at, Arc::clone(key)));
        }
        self.fresh.remove(key);
    }

    /// Schedules a check whether the key has been idle for too long.
    fn look_at(&mut self, entry: &mut KeyEntry<L::State>, key: &Key) {
        if let (None, Some(ttl)) = (entry.looked_at, self.ttl) {
            let at = entry.touched(self.now).saturating_add(ttl);
            entry.looked_at = Some(at);
            self.due.insert((at, Arc::clone(key)));
        }
    }

    /// Schedules the removal of expired parts of the state.
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

    /// Calls the function for timers that have fired, and removes what has expired.
    fn call_due(&mut self) -> Result<(), TaskError> {
        let mut last = LastDue::new(&mut self.due, self.now);
        while let Some((at, key)) = last.next(&mut self.due, self.now) {
            if let Some(mut entry) = self.entries.remove(&key) {
                match entry.timers.remove(&at) {
                    true => self.call(Arc::clone(&key), entry, KeyCall::Timer(Timer::Event(at)))?,
                    false => _ = self.entries.insert(Arc::clone(&key), entry),
                }
            }
            // Several things may be due at once.
            self.outlive(at, &key)?;
        }
        Ok(())
    }

    /// Forgets a key, or parts of its state, if they have expired.
    fn outlive(&mut self, at: Micros, key: &Key) -> Result<(), TaskError> {
        if self.now == END {
            return Ok(());
        }
        let Some(mut entry) = self.entries.remove(key) else { return Ok(()) };
        if let Some(ttl) = self.ttl.filter(|_| entry.looked_at == Some(at)) {
            entry.looked_at = None;
            if entry.touched(self.now).saturating_add(ttl) <= self.now {
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
        let mut last = LastDue::new(&mut self.alarms, now);
        while let Some((at, key)) = last.next(&mut self.alarms, now) {
            if let Some(mut entry) = self.entries.remove(&key) {
                match entry.alarms.remove(&at) {
                    true => self.call(key, entry, KeyCall::Timer(Timer::Clock(at)))?,
                    false => _ = self.entries.insert(key, entry),
                }
            }
        }
        Ok(())
    }

    fn on_time(&mut self, now: Micros) -> Result<bool, TaskError> {
        // A job that resumes may first get an earlier time than that of its rows.
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
            // Before anything fires, since nothing is due anymore for keys that go back to disk meanwhile.
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

    /// Brings back keys from disk for which something is due. Returns whether there were any.
    fn bring(&mut self, kind: ClockKind, now: Micros) -> Result<bool, TaskError> {
        let due = self.store.take_due(kind, now, DUE_AT_ONCE, &self.codec)?;
        let any = !due.is_empty();
        due.into_iter().try_for_each(|stored| self.unspill(stored))?;
        Ok(any)
    }

    /// Moves a key from disk to memory.
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

    /// Adds a saved key.
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

    /// Moves to disk the `count` keys that were called longest ago, and records which keys were removed.
    ///
    /// # Errors
    /// If the disk is full or fails, or if a state cannot be encoded.
    pub fn spill_keys(&mut self, count: usize) -> Result<(), TaskError> {
        let mut oldest: Vec<(u64, Key)> =
            self.entries.iter().map(|(key, entry)| (entry.called, Arc::clone(key))).collect();
        if count < oldest.len() && count > 0 {
            oldest.select_nth_unstable(count - 1);
        }
        oldest.truncate(count);
        let gone: Vec<Key> = self.changed.keys().filter(|key| !self.entries.contains_key(*key)).cloned().collect();
        // One after the other, so that encoded states do not need as much memory again.
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
            for at in entry.due_times() {
                due.remove(&(at, Arc::clone(&key)));
            }
            for &at in &entry.alarms {
                alarms.remove(&(at, Arc::clone(&key)));
            }
            // When it comes back, it counts as touched then: this can only extend its life.
            fresh.remove(&key);
            let (mut next_due, mut next_alarm) = (None, None);
            // At the end, timers that are still there do not fire.
            if *now < END {
                next_alarm = entry.alarms.first().copied();
                next_due = entry.timers.first().copied();
                let looked_at = ttl.map(|ttl| entry.looked_at.unwrap_or(entry.touched(*now).saturating_add(ttl)));
                let lifetimes = entry.state.as_ref().map(|state| logic.lifetimes(state, *now)).transpose()?;
                let expires = lifetimes.and_then(|lifetimes| lifetimes.expires);
                next_due = [next_due, looked_at, expires].into_iter().flatten().min();
            }
            let record = entry.record(logic, true)?;
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
}

/// What is due at the end, by either clock; each item fires once. Otherwise, a function that always sets its next timer
/// would never end.
struct LastDue(VecDeque<(Micros, Key)>);

impl LastDue {
    /// At the end, takes everything that is due.
    fn new(due: &mut BTreeSet<(Micros, Key)>, now: Micros) -> Self {
        LastDue(if now == END { std::mem::take(due).into_iter().collect() } else { VecDeque::new() })
    }

    /// The next item that is due by `now`.
    fn next(&mut self, due: &mut BTreeSet<(Micros, Key)>, now: Micros) -> Option<(Micros, Key)> {
        if now == END {
            return self.0.pop_front();
        }
        due.first().filter(|(at, _)| *at <= now)?;
        due.pop_first()
    }
}

/// The reason for a call of a key's function.
enum KeyCall<'a> {
    Rows(&'a KeyedBatch, usize, Range<usize>),
    Timer(Timer),
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
