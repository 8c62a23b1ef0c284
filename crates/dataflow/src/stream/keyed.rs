//! Functions on the rows of each key, with a state and timers of the key's own: how a Rust task waits for a time by
//! key. What is kept of a key is saved with its bucket, and moves with it to another copy. All of it is in memory. The
//! example `timers` of this crate is a whole program with one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{Array, AsArray, BinaryArray, Int64Builder, ListBuilder, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::row::{RowConverter, SortField};
use bytes::Bytes;
use tidemill_batch::keys::KeyHasher;
use tidemill_batch::memory::Reservation;
use tidemill_batch::route_map::{BUCKETS, RouteMap};
use tidemill_checkpoint::{EventTime, Part, Restored, Snapshot, rows};

use crate::error::TaskError;
use crate::operator::{Emit, Flow, Operator, Released};
use crate::run::TaskContext;

/// Between two looks at the machine's clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(20);
/// Timers that go off before what they bring is sent.
const TIMERS_MAX: usize = 1 << 10;
/// So many changes of a bucket are saved before all of it is saved again.
const CHANGES_MAX: u32 = 64;
/// What a key and a timer take in memory besides their bytes, about.
const KEY_BYTES: usize = 160;
const TIMER_BYTES: usize = 96;
/// By this name copies share the time that they have come to.
const TIME: &str = "time";

/// When something is to be done for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The stream's time has come to it: every earlier row has come.
    Event(EventTime),
    /// The machine's clock has: microseconds since 1970-01-01 UTC.
    Clock(i64),
}

/// What is done with the rows of each key. Each copy has one; what it keeps of a key is in the key's state, not in
/// itself.
pub trait KeyLogic: Send {
    /// Rows of a key have come, in their order.
    ///
    /// # Errors
    /// Fails the task.
    fn on_rows(&mut self, rows: &RecordBatch, key: &mut KeyContext<'_>, emit: &mut Emit) -> Result<(), TaskError>;

    /// A timer of a key goes off: one that has been set for a time which has passed at once, and at the end of the
    /// stream all that had been set before.
    ///
    /// # Errors
    /// Fails the task.
    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_>, emit: &mut Emit) -> Result<(), TaskError>;
}

/// What is kept of a key; one of which there is nothing is forgotten.
#[derive(Default)]
struct Entry {
    bucket: u32,
    state: Vec<u8>,
    timers: BTreeSet<Timer>,
}

/// A key for the time of a call.
pub struct KeyContext<'a> {
    key: &'a RecordBatch,
    time: EventTime,
    entry: &'a mut Entry,
    /// Timers that were set, or deleted.
    changes: Vec<(Timer, bool)>,
}

impl KeyContext<'_> {
    /// The key's columns, in one row.
    pub fn key(&self) -> &RecordBatch {
        self.key
    }

    /// The stream's time.
    pub fn time(&self) -> EventTime {
        self.time
    }

    /// What is kept of the key: bytes, which mean what the program says. None at first, and to forget it.
    pub fn state(&mut self) -> &mut Vec<u8> {
        &mut self.entry.state
    }

    /// Sets a timer; one that is set already is set once.
    pub fn set(&mut self, timer: Timer) {
        if self.entry.timers.insert(timer) {
            self.changes.push((timer, true));
        }
    }

    /// Deletes a timer; it is no error if there is none.
    pub fn delete(&mut self, timer: Timer) {
        if self.entry.timers.remove(&timer) {
            self.changes.push((timer, false));
        }
    }
}

/// A key's columns as bytes that are equal when they are.
type Key = Arc<[u8]>;

/// What snapshots have of a bucket besides a whole.
type Changes = BTreeMap<u32, u32>;

/// The operator of a [`KeyLogic`]. Its input comes by [`Partition::by_key`](crate::exchange::Partition::by_key) of the
/// same columns.
pub struct KeyOperator<L> {
    logic: L,
    columns: Vec<usize>,
    converter: RowConverter,
    hasher: KeyHasher,
    route: RouteMap,
    /// What is saved of a key: its columns, its state, its timers.
    saved_schema: SchemaRef,
    entries: HashMap<Key, Entry>,
    /// The timers of all keys, of event time and of the clock.
    due: BTreeSet<(Timer, Key)>,
    /// At the end, those that are still to go off.
    ending: Option<VecDeque<(Timer, Key)>>,
    now: EventTime,
    clock: i64,
    /// Keys that have changed since the last snapshot, by their bucket.
    changed: HashMap<Key, u32>,
    /// Buckets of which something is saved.
    saved: Changes,
    saves: bool,
    bytes: usize,
    reservation: Option<Reservation>,
}

impl<L: KeyLogic> KeyOperator<L> {
    /// `keys` are columns of `input`, the schema of the rows that come.
    ///
    /// # Errors
    /// When a column cannot be a key, or what a checkpoint has is not of such keys.
    pub fn new(logic: L, input: &SchemaRef, keys: &[usize], context: &TaskContext) -> Result<Self, TaskError> {
        let mut new = Self::empty(logic, input, keys, context.saves())?;
        new.reservation = Some(context.reservation());
        if let Some(restored) = context.restored() {
            new.restore_all(restored)?;
        }
        new.weigh()?;
        Ok(new)
    }

    fn empty(logic: L, input: &SchemaRef, keys: &[usize], saves: bool) -> Result<Self, TaskError> {
        let key_schema = input.project(keys)?;
        let sorts = key_schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        let times = || DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let kept = [("state", DataType::Binary), ("timers", times()), ("clock timers", times())];
        let saved = key_schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let saved = saved.chain(kept.map(|(name, of)| Field::new(name, of, false)));
        Ok(KeyOperator {
            logic,
            columns: keys.to_vec(),
            converter: RowConverter::new(sorts.collect())?,
            hasher: KeyHasher::new((0..keys.len()).collect()),
            route: RouteMap::even(BUCKETS, 1),
            saved_schema: Arc::new(Schema::new(saved.collect::<Vec<_>>())),
            entries: HashMap::new(),
            due: BTreeSet::new(),
            ending: None,
            now: EventTime::MIN,
            clock: i64::MIN,
            changed: HashMap::new(),
            saved: Changes::new(),
            saves,
            bytes: 0,
            reservation: None,
        })
    }

    fn restore_all(&mut self, restored: &Restored) -> Result<(), TaskError> {
        for time in restored.shared.get(TIME).into_iter().flatten() {
            let time = time.as_ref().try_into().map_err(|_| "a checkpoint's time is no time")?;
            self.now = self.now.max(EventTime(i64::from_le_bytes(time)));
        }
        for (&bucket, parts) in &restored.buckets {
            parts.iter().try_for_each(|part| self.restore(bucket, part))?;
            self.saved.insert(bucket, parts.len() as u32);
        }
        Ok(())
    }

    /// Takes what was saved of keys, in place of what is known of them.
    fn restore(&mut self, bucket: u32, part: &Bytes) -> Result<(), TaskError> {
        let saved = rows::decode(&self.saved_schema, part)?;
        let [keys @ .., state, timers, clocks] = saved.columns() else { return Err("a checkpoint has no keys".into()) };
        let keys = self.converter.convert_columns(keys)?;
        let times = |of: &dyn Array, row: usize, timer: fn(i64) -> Timer| {
            let times = of.as_list::<i32>().value(row);
            times.as_primitive::<Int64Type>().values().iter().map(|&at| timer(at)).collect::<Vec<_>>()
        };
        for row in 0..saved.num_rows() {
            let key = Key::from(keys.row(row).as_ref());
            self.remove(&key);
            let state = state.as_binary::<i32>().value(row).to_vec();
            let mut all = times(timers.as_ref(), row, |at| Timer::Event(EventTime(at)));
            all.extend(times(clocks.as_ref(), row, Timer::Clock));
            let timers: BTreeSet<Timer> = all.into_iter().collect();
            self.due.extend(timers.iter().map(|&timer| (timer, Arc::clone(&key))));
            self.put(key, Entry { bucket, state, timers });
        }
        Ok(())
    }

    fn size(key: &Key, entry: &Entry) -> usize {
        KEY_BYTES + key.len() + entry.state.len() + entry.timers.len() * (TIMER_BYTES + size_of::<Timer>())
    }

    /// Keeps an entry, whose timers are noted, unless it is empty.
    fn put(&mut self, key: Key, entry: Entry) {
        if !entry.state.is_empty() || !entry.timers.is_empty() {
            self.bytes += Self::size(&key, &entry);
            self.entries.insert(key, entry);
        }
    }

    /// Forgets a key and its timers.
    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.bytes -= Self::size(key, &entry);
        for &timer in &entry.timers {
            self.due.remove(&(timer, Arc::clone(key)));
        }
        Some(entry)
    }

    /// Calls the logic for a key: for rows, or for a timer that has been taken out of the entry.
    fn call(
        &mut self,
        key: Key,
        mut entry: Entry,
        columns: &RecordBatch,
        what: What<'_>,
        emit: &mut Emit,
    ) -> Result<(), TaskError> {
        let mut context = KeyContext { key: columns, time: self.now, entry: &mut entry, changes: Vec::new() };
        match what {
            What::Rows(rows) => self.logic.on_rows(rows, &mut context, emit)?,
            What::Timer(timer) => self.logic.on_timer(timer, &mut context, emit)?,
        }
        for (timer, is_set) in context.changes {
            match is_set {
                true => _ = self.due.insert((timer, Arc::clone(&key))),
                false => _ = self.due.remove(&(timer, Arc::clone(&key))),
            }
        }
        if self.saves {
            self.changed.insert(Arc::clone(&key), entry.bucket);
        }
        self.put(key, entry);
        Ok(())
    }

    /// The entry of a key, without its place among the others.
    fn taken(&mut self, key: &Key, bucket: u32) -> Entry {
        match self.entries.remove(key) {
            Some(entry) => {
                self.bytes -= Self::size(key, &entry);
                entry
            }
            None => Entry { bucket, ..Entry::default() },
        }
    }

    /// The next timer that goes off now.
    fn next_due(&mut self) -> Option<(Timer, Key)> {
        if let Some(ending) = &mut self.ending {
            return ending.pop_front();
        }
        let is_due = |timer: &Timer| match *timer {
            Timer::Event(at) => at <= self.now,
            Timer::Clock(at) => at <= self.clock,
        };
        // Those of event time come first among all.
        let first = self.due.first().filter(|(timer, _)| is_due(timer));
        let clocks = (Timer::Clock(i64::MIN), Key::from([]));
        let first = first.or_else(|| self.due.range(clocks..).next().filter(|(timer, _)| is_due(timer)));
        let first = first.cloned()?;
        self.due.remove(&first);
        Some(first)
    }

    /// Lets timers go off, so many at a time.
    fn go_on(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        for _ in 0..TIMERS_MAX {
            let Some((timer, key)) = self.next_due() else {
                self.weigh()?;
                return Ok(Flow::Done);
            };
            // At the end it may have been deleted since.
            let Some(entry) = self.entries.get(&key).filter(|entry| entry.timers.contains(&timer)) else { continue };
            let bucket = entry.bucket;
            let mut entry = self.taken(&key, bucket);
            entry.timers.remove(&timer);
            let parser = self.converter.parser();
            let columns = self.converter.convert_rows([parser.parse(&key)])?;
            let schema = self.saved_schema.project(&(0..columns.len()).collect::<Vec<_>>())?;
            let columns = RecordBatch::try_new(Arc::new(schema), columns)?;
            self.call(key, entry, &columns, What::Timer(timer), emit)?;
        }
        self.weigh()?;
        Ok(Flow::More)
    }

    /// The clock has come to a time.
    fn ring(&mut self, clock: i64, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.clock = clock;
        self.go_on(emit)
    }

    fn end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.now = EventTime::MAX;
        if self.ending.is_none() {
            self.ending = Some(std::mem::take(&mut self.due).into_iter().collect());
        }
        self.go_on(emit)
    }

    /// Reserves what is held.
    fn weigh(&mut self) -> Result<(), TaskError> {
        let Some(reservation) = &self.reservation else { return Ok(()) };
        let (before, now) = (reservation.bytes(), self.bytes as u64);
        match now > before {
            true => Ok(reservation.grow(now - before)?),
            false => {
                reservation.shrink(before - now);
                Ok(())
            }
        }
    }

    /// What is kept of keys, as bytes; of those that are gone, that they are.
    fn encode(&self, keys: &[Key]) -> Result<Bytes, TaskError> {
        let parser = self.converter.parser();
        let mut columns = self.converter.convert_rows(keys.iter().map(|key| parser.parse(key)))?;
        let entries: Vec<Option<&Entry>> = keys.iter().map(|key| self.entries.get(key)).collect();
        let states = entries.iter().map(|entry| entry.map_or(&[][..], |entry| entry.state.as_slice()));
        columns.push(Arc::new(BinaryArray::from_iter_values(states)));
        let event = |timer: &Timer| if let Timer::Event(EventTime(at)) = timer { Some(*at) } else { None };
        let clock = |timer: &Timer| if let Timer::Clock(at) = timer { Some(*at) } else { None };
        for of in [event as fn(&Timer) -> Option<i64>, clock] {
            let mut times = ListBuilder::new(Int64Builder::new());
            for &entry in &entries {
                let timers = entry.into_iter().flat_map(|entry| entry.timers.iter());
                times.append_value(timers.filter_map(of).map(Some));
            }
            columns.push(Arc::new(times.finish()));
        }
        Ok(rows::encode(&RecordBatch::try_new(Arc::clone(&self.saved_schema), columns)?)?)
    }
}

/// Why a key's logic is called.
enum What<'a> {
    Rows(&'a RecordBatch),
    Timer(Timer),
}

impl<L: KeyLogic> Operator for KeyOperator<L> {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let columns = batch.project(&self.columns)?;
        let keys = self.converter.convert_columns(columns.columns())?;
        let mut hashes = Vec::new();
        self.hasher.hash(&columns, &mut hashes)?;
        // In the order of their first rows.
        let mut of_key: Vec<(Key, Vec<u32>)> = Vec::new();
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        for row in 0..batch.num_rows() {
            let place = *places.entry(keys.row(row).data()).or_insert_with(|| {
                of_key.push((Key::from(keys.row(row).data()), Vec::new()));
                of_key.len() - 1
            });
            of_key[place].1.push(row as u32);
        }
        for (key, rows) in of_key {
            let first = rows[0] as usize;
            let some = take_record_batch(&batch, &UInt32Array::from(rows))?;
            let entry = self.taken(&key, self.route.bucket(hashes[first]));
            self.call(key, entry, &columns.slice(first, 1), What::Rows(&some), emit)?;
        }
        self.go_on(emit)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        if time == EventTime::MAX {
            return self.end(emit);
        }
        self.now = self.now.max(time);
        self.go_on(emit)
    }

    fn ticks(&self) -> Option<Duration> {
        Some(CLOCK_INTERVAL)
    }

    fn on_tick(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.ring(SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as i64), emit)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.end(emit)
    }

    fn more(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.go_on(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<Released, TaskError> {
        let mut lost: BTreeMap<u32, Vec<Key>> = buckets.iter().map(|&bucket| (bucket, Vec::new())).collect();
        for (key, entry) in &self.entries {
            if let Some(keys) = lost.get_mut(&entry.bucket) {
                keys.push(Arc::clone(key));
            }
        }
        let mut parts = Vec::new();
        for (bucket, keys) in lost {
            self.saved.remove(&bucket);
            if !keys.is_empty() {
                parts.push((bucket, self.encode(&keys)?));
                keys.iter().for_each(|key| _ = self.remove(key));
            }
        }
        self.weigh()?;
        Ok(parts.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        parts.iter().try_for_each(|(bucket, part)| self.restore(*bucket, part))?;
        self.weigh()
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut parts: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for (key, bucket) in std::mem::take(&mut self.changed) {
            parts.entry(bucket).or_default().push(key);
        }
        let anew: BTreeSet<u32> = match whole {
            true => self.saved.keys().copied().chain(self.entries.values().map(|entry| entry.bucket)).collect(),
            false => parts.keys().copied().filter(|bucket| self.saved.get(bucket) >= Some(&CHANGES_MAX)).collect(),
        };
        parts.retain(|bucket, _| !whole && !anew.contains(bucket));
        let mut wholes: BTreeMap<u32, Vec<Key>> = anew.into_iter().map(|bucket| (bucket, Vec::new())).collect();
        if !wholes.is_empty() {
            for (key, entry) in &self.entries {
                if let Some(keys) = wholes.get_mut(&entry.bucket) {
                    keys.push(Arc::clone(key));
                }
            }
        }
        let time = (TIME.to_owned(), Bytes::copy_from_slice(&self.now.0.to_le_bytes()));
        let mut snapshot = Snapshot { shared: vec![time], ..Snapshot::default() };
        for (bucket, keys) in wholes {
            let part = match keys.is_empty() {
                true => {
                    self.saved.remove(&bucket);
                    Bytes::new()
                }
                false => {
                    self.saved.insert(bucket, 0);
                    self.encode(&keys)?
                }
            };
            snapshot.buckets.push((bucket, Part::Whole(part)));
        }
        for (bucket, keys) in parts {
            *self.saved.entry(bucket).or_default() += 1;
            snapshot.buckets.push((bucket, Part::Change(self.encode(&keys)?)));
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;
    use bytes::Bytes;
    use tidemill_batch::keys::KeyHasher;
    use tidemill_batch::route_map::{BUCKETS, RouteMap};
    use tidemill_checkpoint::{EventTime, Part, Restored};

    use super::{KeyContext, KeyLogic, KeyOperator, Timer};
    use crate::error::TaskError;
    use crate::operator::{Emit, Flow, Operator};

    /// What has gone off: keys and timers.
    type Log = Arc<Mutex<Vec<(i64, Timer)>>>;

    /// Sets and deletes the timers that rows name, and notes those that go off. Its state is how many rows a key has
    /// had.
    struct Told(Log);

    fn timer(clock: bool, at: i64) -> Timer {
        if clock { Timer::Clock(at) } else { Timer::Event(EventTime(at)) }
    }

    impl KeyLogic for Told {
        fn on_rows(&mut self, rows: &RecordBatch, key: &mut KeyContext<'_>, _: &mut Emit) -> Result<(), TaskError> {
            let number = |column: usize, row: usize| rows.column(column).as_primitive::<Int64Type>().value(row);
            for row in 0..rows.num_rows() {
                assert_eq!(number(0, row), key.key().column(0).as_primitive::<Int64Type>().value(0));
                let timer = timer(number(1, row) % 2 == 1, number(2, row));
                if number(1, row) < 2 {
                    key.set(timer)
                } else {
                    key.delete(timer)
                }
                let count = key.state().first().copied().unwrap_or_default() + 1;
                // Every fifth row forgets them.
                *key.state() = if count < 5 { vec![count] } else { Vec::new() };
            }
            Ok(())
        }

        fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_>, _: &mut Emit) -> Result<(), TaskError> {
            let of = key.key().column(0).as_primitive::<Int64Type>().value(0);
            self.0.lock().unwrap().push((of, timer));
            if timer == Timer::Event(EventTime(13)) {
                key.set(Timer::Event(EventTime(14)));
            }
            Ok(())
        }
    }

    fn batch(rows: &[(i64, i64, i64)]) -> RecordBatch {
        let column =
            |of: fn(&(i64, i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
        let columns = [("key", column(|row| row.0)), ("what", column(|row| row.1)), ("at", column(|row| row.2))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn operator(log: &Log) -> KeyOperator<Told> {
        KeyOperator::empty(Told(Arc::clone(log)), &batch(&[]).schema(), &[0], true).unwrap()
    }

    /// All that an operator does for a call.
    fn all(of: &mut KeyOperator<Told>, call: impl FnOnce(&mut KeyOperator<Told>, &mut Emit) -> Flow) {
        let mut emit = Emit::default();
        let mut flow = call(of, &mut emit);
        while flow == Flow::More {
            flow = of.more(&mut emit).unwrap();
        }
    }

    fn buckets(rows: &RecordBatch) -> Vec<u32> {
        let (mut hashes, route) = (Vec::new(), RouteMap::even(BUCKETS, 1));
        KeyHasher::new(vec![0]).hash(rows, &mut hashes).unwrap();
        hashes.into_iter().map(|hash| route.bucket(hash)).collect()
    }

    /// Whatever is set and deleted, by both clocks, of which the machine's may be set forward and back, while buckets
    /// move between two copies and the job goes on from snapshots: what goes off is what a plain set of timers says,
    /// once each; and nothing is held when there is nothing.
    #[test]
    fn timers_are_those_of_a_plain_set() {
        let mut seed = 5_u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % end) as i64
        };
        let log = Log::default();
        let mut copies = [operator(&log), operator(&log)];
        let mut owners: Vec<usize> = (0..BUCKETS as usize).map(|bucket| bucket % 2).collect();
        let mut saved: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
        let (mut set, mut now, mut clock) = (BTreeSet::<(i64, Timer)>::new(), 0, 0);
        for copy in &mut copies {
            (copy.now, copy.clock) = (EventTime(now), clock);
        }
        let (mut rung, mut moved, mut changes) = (0, 0, 0);
        let is_due = |timer: Timer, now: i64, clock: i64| match timer {
            Timer::Event(EventTime(at)) => at <= now,
            Timer::Clock(at) => at <= clock,
        };
        for step in 0..1500 {
            match below(10) {
                0..5 => {
                    let rows: Vec<_> =
                        (0..below(12)).map(|_| (below(40), below(4), now.min(clock) + below(80) - 10)).collect();
                    for &(key, what, at) in &rows {
                        let one = (key, timer(what % 2 == 1, at));
                        _ = if what < 2 { set.insert(one) } else { set.remove(&one) };
                    }
                    let of = buckets(&batch(&rows));
                    for (number, copy) in copies.iter_mut().enumerate() {
                        let mine = rows.iter().zip(&of).filter(|(_, bucket)| owners[**bucket as usize] == number);
                        let mine: Vec<_> = mine.map(|(row, _)| *row).collect();
                        all(copy, |of, emit| of.on_batch(0, batch(&mine), emit).unwrap());
                    }
                }
                5 => {
                    now += below(9);
                    for copy in &mut copies {
                        all(copy, |of, emit| of.on_watermark(EventTime(now), emit).unwrap());
                    }
                }
                6 => {
                    // Now and then somebody sets it, forward or back.
                    clock += match below(8) {
                        0 => 60,
                        1 => -40,
                        _ => below(9),
                    };
                    for copy in &mut copies {
                        all(copy, |of, emit| of.ring(clock, emit).unwrap());
                    }
                }
                what => {
                    for copy in &mut copies {
                        for (bucket, part) in copy.snapshot(what == 9).unwrap().buckets {
                            match part {
                                Part::Whole(bytes) if bytes.is_empty() => assert!(saved.remove(&bucket).is_some()),
                                Part::Whole(bytes) => _ = saved.insert(bucket, vec![bytes]),
                                Part::Change(bytes) => {
                                    changes += 1;
                                    saved.entry(bucket).or_default().push(bytes);
                                }
                            }
                        }
                    }
                    assert!(saved.values().all(|parts| parts.len() <= 1 + super::CHANGES_MAX as usize));
                    if what == 8 {
                        let lost: Vec<u32> =
                            (0..BUCKETS).filter(|&bucket| owners[bucket as usize] == 0 && below(3) == 0).collect();
                        let parts: Vec<_> = copies[0].release(&lost).unwrap().map(Result::unwrap).collect();
                        moved += parts.len();
                        copies[1].acquire(parts).unwrap();
                        lost.iter().for_each(|&bucket| owners[bucket as usize] = 1);
                        // As the engine does: the next snapshot is of everything.
                        saved.clear();
                        for copy in &mut copies {
                            copy.saved.clear();
                            for (bucket, part) in copy.snapshot(true).unwrap().buckets {
                                let Part::Whole(bytes) = part else { panic!("not a whole") };
                                saved.insert(bucket, vec![bytes]);
                            }
                        }
                    }
                    if step % 5 == 0 {
                        owners = (0..BUCKETS).map(|_| below(2) as usize).collect();
                        for (number, copy) in copies.iter_mut().enumerate() {
                            *copy = operator(&log);
                            let mut restored = Restored::default();
                            restored
                                .shared
                                .insert(super::TIME.into(), vec![Bytes::copy_from_slice(&now.to_le_bytes())]);
                            let mine = saved.iter().filter(|(bucket, _)| owners[**bucket as usize] == number);
                            restored.buckets.extend(mine.map(|(bucket, parts)| (*bucket, parts.clone())));
                            copy.restore_all(&restored).unwrap();
                            copy.clock = clock;
                        }
                    }
                }
            }
            let mut expected: Vec<_> = set.iter().copied().filter(|&(_, timer)| is_due(timer, now, clock)).collect();
            for at in 0..expected.len() {
                let again = (expected[at].0, Timer::Event(EventTime(14)));
                if expected[at].1 == Timer::Event(EventTime(13)) && !expected.contains(&again) {
                    match now >= 14 {
                        true => expected.push(again),
                        false => _ = set.insert(again),
                    }
                }
            }
            expected.iter().for_each(|one| _ = set.remove(one));
            let mut found = std::mem::take(&mut *log.lock().unwrap());
            rung += found.len();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "step {step}");
        }
        assert!(rung > 500 && moved > 50 && changes > 50, "{rung} {moved} {changes}");
        for copy in &mut copies {
            all(copy, |of, emit| of.on_end(emit).unwrap());
            copy.entries.keys().cloned().collect::<Vec<_>>().iter().for_each(|key| _ = copy.remove(key));
            assert_eq!((copy.bytes, copy.due.len()), (0, 0));
        }
        let mut found = std::mem::take(&mut *log.lock().unwrap());
        found.sort_unstable();
        assert_eq!(found, set.into_iter().collect::<Vec<_>>());
    }
}
