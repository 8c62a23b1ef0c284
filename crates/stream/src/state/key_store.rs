//! A store of idle keys on disk, with all of their state: the memory they use does not grow with their states.
//!
//! Keys that are stored together form a run: a mapped file with a row for each key, sorted by bucket. Rows are numbered
//! across runs, and an index by hash finds the row of a key. When a key is taken out again, its row stays in its file
//! until half of the run is gone; then the rest moves to a new run. Each run also has the order in which its keys are
//! due.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt32Type};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::memory::verify_rows;

use crate::state::key_records::{Key, KeyRecord, RecordCodec, RecordKind};
use crate::state::keys::HashIndex;
use crate::state::operator_memory::SpillArea;
use crate::state::sorted_states::SMALL_BYTES;
use crate::time::window::Micros;

/// More small runs than this are merged.
const SMALL_RUNS_MAX: usize = 32;
/// Smaller index tables stay in memory.
const INDEX_BYTES_MAX: usize = 1 << 20;
/// Approximate memory of a run, in bytes.
const RUN_BYTES: usize = 1 << 10;

/// The clock by which something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockKind {
    /// The stream's time.
    Event,
    /// The machine's clock.
    Wall,
}

/// A key on disk.
pub(crate) struct StoredKey {
    pub key: Key,
    pub bucket: u32,
    /// When it must be checked, by the stream's time; `None` if not before it gets input.
    pub due: Option<Micros>,
    /// The same by the machine's clock.
    pub alarm: Option<Micros>,
    /// Whether these changes are in no snapshot yet.
    pub changed: bool,
    pub record: KeyRecord,
}

// The columns of a run before those of the record.
const KEY: usize = 0;
const BUCKET: usize = 1;
const DUE: usize = 2;
const ALARM: usize = 3;
const CHANGED: usize = 4;
const RECORD: usize = 5;

/// Rows in the order in which they are due.
struct DueOrder {
    rows: RecordBatch,
    /// The number of leading rows that were removed.
    passed: usize,
}

impl DueOrder {
    fn of(run: &RecordBatch, column: usize, disk: &SpillArea) -> Result<Self, TaskError> {
        let times = run.column(column).as_primitive::<Int64Type>();
        let mut rows: Vec<u32> = (0..times.len()).filter(|&row| times.is_valid(row)).map(|row| row as u32).collect();
        rows.sort_by_key(|&row| times.value(row as usize));
        let rows: ArrayRef = Arc::new(UInt32Array::from(rows));
        Ok(DueOrder { rows: disk.map(&RecordBatch::try_from_iter([("row", rows)])?)?, passed: 0 })
    }

    /// The first row that was not removed.
    fn first(&mut self, is_live: impl Fn(u32) -> bool) -> Result<Option<u32>, TaskError> {
        while self.passed < self.rows.num_rows() {
            let one = self.rows.slice(self.passed, 1);
            verify_rows(&one)?;
            let row = one.column(0).as_primitive::<UInt32Type>().value(0);
            if is_live(row) {
                return Ok(Some(row));
            }
            self.passed += 1;
        }
        Ok(None)
    }
}

struct KeyRun {
    /// The number of its first row.
    first: u32,
    rows: RecordBatch,
    bytes: usize,
    /// A bit for each row that was not removed.
    live: Vec<u64>,
    live_count: usize,
    /// Whether a snapshot contains all changes that the run had when it was written.
    is_saved: bool,
    due: [DueOrder; 2],
}

impl KeyRun {
    fn is_live(live: &[u64], row: u32) -> bool {
        live[row as usize / 64] >> (row % 64) & 1 == 1
    }

    fn slice(&self, row: u32, count: usize) -> Result<RecordBatch, TaskError> {
        let rows = self.rows.slice(row as usize, count);
        verify_rows(&rows)?;
        Ok(rows)
    }

    /// The due time of its first key, and its row.
    fn first_due(&mut self, kind: ClockKind) -> Result<Option<(Micros, u32)>, TaskError> {
        let live = &self.live;
        let Some(row) = self.due[kind as usize].first(|row| KeyRun::is_live(live, row))? else { return Ok(None) };
        let column = if kind == ClockKind::Event { DUE } else { ALARM };
        Ok(Some((self.slice(row, 1)?.column(column).as_primitive::<Int64Type>().value(0), row)))
    }

    fn remove(&mut self, row: u32) {
        self.live[row as usize / 64] &= !(1 << (row % 64));
        self.live_count -= 1;
    }

    /// The remaining rows of a range of buckets.
    fn live_in(&self, buckets: Range<u32>) -> Result<Vec<u32>, TaskError> {
        let of = self.rows.project(&[BUCKET])?;
        verify_rows(&of)?;
        let of = of.column(0).as_primitive::<UInt32Type>().values();
        let place = |bucket| of.partition_point(|&of| of < bucket) as u32;
        Ok((place(buckets.start)..place(buckets.end)).filter(|&row| KeyRun::is_live(&self.live, row)).collect())
    }

    /// All remaining rows.
    fn all_live(&self) -> Vec<u32> {
        (0..self.rows.num_rows() as u32).filter(|&row| KeyRun::is_live(&self.live, row)).collect()
    }
}

/// A store of idle keys.
pub(crate) struct KeyStore {
    disk: SpillArea,
    schema: SchemaRef,
    runs: Vec<KeyRun>,
    index: HashIndex,
    /// The number of the next row.
    next: u32,
}

impl KeyStore {
    pub(crate) fn new(codec: &RecordCodec, disk: &SpillArea) -> Self {
        let mut fields = vec![
            Field::new("key", DataType::Binary, false),
            Field::new("bucket", DataType::UInt32, false),
            Field::new("due", DataType::Int64, true),
            Field::new("alarm", DataType::Int64, true),
            Field::new("changed", DataType::Boolean, false),
        ];
        fields.extend(codec.schema().fields().iter().map(|field| field.as_ref().clone()));
        let schema = Arc::new(Schema::new(fields));
        KeyStore { disk: disk.clone(), schema, runs: Vec::new(), index: HashIndex::default(), next: 0 }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(|run| run.live_count).sum()
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| RUN_BYTES + run.live.len() * 8).sum::<usize>() + self.index.bytes()
    }

    /// Stores keys that are not in the store.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(crate) fn put(
        &mut self,
        keys: impl IntoIterator<Item = Result<StoredKey, TaskError>>,
        codec: &RecordCodec,
    ) -> Result<(), TaskError> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for key in keys {
            let key = key?;
            bytes += key.key.len() + key.record.bytes();
            some.push(key);
            if bytes > self.disk.run_bytes() {
                self.put_run(std::mem::take(&mut some), codec)?;
                bytes = 0;
            }
        }
        self.put_run(some, codec)?;
        self.compact()
    }

    fn put_run(&mut self, mut keys: Vec<StoredKey>, codec: &RecordCodec) -> Result<(), TaskError> {
        if keys.is_empty() {
            return Ok(());
        }
        keys.sort_by_key(|key| key.bucket);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(BinaryArray::from_iter_values(keys.iter().map(|key| &key.key))),
            Arc::new(UInt32Array::from_iter_values(keys.iter().map(|key| key.bucket))),
            Arc::new(Int64Array::from_iter(keys.iter().map(|key| key.due))),
            Arc::new(Int64Array::from_iter(keys.iter().map(|key| key.alarm))),
            Arc::new(BooleanArray::from_iter(keys.iter().map(|key| Some(key.changed)))),
        ];
        let records: Vec<_> = keys.into_iter().map(|key| (key.key, key.record)).collect();
        columns.extend(codec.encode(&records)?.columns().iter().cloned());
        self.add_run(&RecordBatch::try_new(Arc::clone(&self.schema), columns)?, false)
    }

    /// Adds rows, sorted by bucket, as a run.
    fn add_run(&mut self, rows: &RecordBatch, is_saved: bool) -> Result<(), TaskError> {
        let count = rows.num_rows();
        if self.next.checked_add(count as u32).is_none() {
            self.renumber()?;
        }
        let hashes = hashes(rows)?;
        let mut live = vec![u64::MAX; count.div_ceil(64)];
        if !count.is_multiple_of(64) {
            live[count / 64] = (1 << (count % 64)) - 1;
        }
        let due = [DueOrder::of(rows, DUE, &self.disk)?, DueOrder::of(rows, ALARM, &self.disk)?];
        let mapped = self.disk.map(rows)?;
        let bytes = batch_bytes(rows) as usize;
        self.index.add(hashes.into_iter(), self.next..)?;
        if self.index.bytes() > INDEX_BYTES_MAX {
            self.index.spill(&self.disk)?;
        }
        self.runs.push(KeyRun { first: self.next, rows: mapped, bytes, live, live_count: count, is_saved, due });
        self.next += count as u32;
        Ok(())
    }

    /// The run that contains the row with this number, and its index there, unless it was removed.
    fn place(&self, number: u32) -> Option<(usize, u32)> {
        let run = self.runs.partition_point(|run| run.first <= number).checked_sub(1)?;
        let row = number - self.runs[run].first;
        let of = &self.runs[run];
        ((row as usize) < of.rows.num_rows() && KeyRun::is_live(&of.live, row)).then_some((run, row))
    }

    /// Takes out those of the keys that are in the store.
    pub(crate) fn take(&mut self, keys: &[Key], codec: &RecordCodec) -> Result<Vec<StoredKey>, TaskError> {
        if self.runs.is_empty() || keys.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: ArrayRef = Arc::new(BinaryArray::from_iter_values(keys));
        let hashes = hashes(&RecordBatch::try_from_iter([("key", Arc::clone(&wanted))])?)?;
        let found = self.index.find(&[wanted], &hashes, |_, numbers| {
            let mut keys = Vec::with_capacity(numbers.len());
            for &number in numbers {
                keys.push(match self.place(number) {
                    // The row was removed: an empty key stands for it, since it equals no other key.
                    None => Vec::new(),
                    Some((run, row)) => {
                        let key = self.runs[run].rows.slice(row as usize, 1).project(&[KEY])?;
                        verify_rows(&key)
                            .map_err(|error| datafusion::error::DataFusionError::External(Box::new(error)))?;
                        key.column(0).as_binary::<i32>().value(0).to_vec()
                    }
                });
            }
            Ok(Arc::new(BinaryArray::from_iter_values(keys)))
        })?;
        let places: Vec<_> = found.into_iter().flatten().filter_map(|number| self.place(number)).collect();
        let taken = places.into_iter().map(|(run, row)| self.take_row(run, row, codec)).collect();
        self.compact()?;
        taken
    }

    fn take_row(&mut self, run: usize, row: u32, codec: &RecordCodec) -> Result<StoredKey, TaskError> {
        let run = &mut self.runs[run];
        let rows = run.slice(row, 1)?;
        let time = |column: usize| {
            let times = rows.column(column).as_primitive::<Int64Type>();
            times.is_valid(0).then(|| times.value(0))
        };
        let records = codec.decode(&rows.project(&record_columns(&rows))?)?;
        let (key, record) = records.into_iter().next().ok_or("a key on disk has no record")?;
        let stored = StoredKey {
            key,
            bucket: rows.column(BUCKET).as_primitive::<UInt32Type>().value(0),
            due: time(DUE),
            alarm: time(ALARM),
            changed: !run.is_saved && rows.column(CHANGED).as_boolean().value(0),
            record,
        };
        run.remove(row);
        Ok(stored)
    }

    /// When the first key is due.
    pub(crate) fn first_due(&mut self, kind: ClockKind) -> Result<Option<Micros>, TaskError> {
        let mut first = None;
        for run in &mut self.runs {
            first = [first, run.first_due(kind)?.map(|(at, _)| at)].into_iter().flatten().min();
        }
        Ok(first)
    }

    /// Takes out up to this many due keys.
    pub(crate) fn take_due(
        &mut self,
        kind: ClockKind,
        now: Micros,
        most: usize,
        codec: &RecordCodec,
    ) -> Result<Vec<StoredKey>, TaskError> {
        let mut due = Vec::new();
        for run in 0..self.runs.len() {
            while due.len() < most {
                let Some((at, row)) = self.runs[run].first_due(kind)? else { break };
                if at > now {
                    break;
                }
                due.push(self.take_row(run, row, codec)?);
            }
        }
        self.compact()?;
        Ok(due)
    }

    /// Calls `each` with records of the wanted buckets as rows, and the bucket of each row: either those that have
    /// changed, including removals, or all that were not removed.
    pub(crate) fn records(
        &self,
        changed: bool,
        wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(&RecordBatch, &[u32]) -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        for run in self.runs.iter().filter(|run| !(changed && run.is_saved)) {
            let per_row = run.bytes.div_ceil(run.rows.num_rows().max(1)).max(1);
            for some in run.all_live().chunks((self.disk.run_bytes() / per_row).max(1)) {
                let (first, last) = (some[0], some[some.len() - 1]);
                let rows = run.slice(first, (last - first + 1) as usize)?;
                let buckets = rows.column(BUCKET).as_primitive::<UInt32Type>();
                let is_changed = rows.column(CHANGED).as_boolean();
                let kinds = rows.column(rows.num_columns() - 1).as_primitive::<arrow::datatypes::UInt8Type>();
                let places = some.iter().map(|row| row - first).filter(|&row| {
                    let row = row as usize;
                    let has =
                        if changed { is_changed.value(row) } else { kinds.value(row) != RecordKind::Removed as u8 };
                    has && wanted(buckets.value(row))
                });
                let places: Vec<u32> = places.collect();
                if places.is_empty() {
                    continue;
                }
                let of: Vec<u32> = places.iter().map(|&row| buckets.value(row as usize)).collect();
                let records = rows.project(&record_columns(&rows))?;
                each(&take_record_batch(&records, &UInt32Array::from(places))?, &of)?;
            }
        }
        Ok(())
    }

    /// The buckets that contain something.
    pub(crate) fn buckets(&self) -> Result<std::collections::BTreeSet<u32>, TaskError> {
        let mut all = std::collections::BTreeSet::new();
        self.records(
            false,
            |_| true,
            |_, of| {
                all.extend(of);
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// Marks everything as saved, after a snapshot.
    pub(crate) fn saved(&mut self) -> Result<(), TaskError> {
        for run in self.runs.iter_mut().filter(|run| !run.is_saved) {
            run.is_saved = true;
            let columns = run.rows.project(&[run.rows.num_columns() - 1])?;
            verify_rows(&columns)?;
            let kinds = columns.column(0).as_primitive::<arrow::datatypes::UInt8Type>().clone();
            for row in run.all_live() {
                if kinds.value(row as usize) == RecordKind::Removed as u8 {
                    run.remove(row);
                }
            }
        }
        self.compact()
    }

    /// Removes all keys of a bucket.
    pub(crate) fn remove(&mut self, bucket: u32) -> Result<(), TaskError> {
        for run in &mut self.runs {
            for row in run.live_in(bucket..bucket + 1)? {
                run.remove(row);
            }
        }
        self.compact()
    }

    /// Rewrites runs of which much was removed, and merges small ones.
    fn compact(&mut self) -> Result<(), TaskError> {
        self.runs.retain(|run| run.live_count > 0);
        let is_sparse = |run: &KeyRun| run.live_count * 2 < run.rows.num_rows() && run.bytes >= SMALL_BYTES;
        let is_small = |run: &KeyRun| run.bytes < SMALL_BYTES;
        if self.runs.iter().filter(|run| is_small(run)).count() > SMALL_RUNS_MAX {
            for saved in [false, true] {
                self.rewrite(|run| is_small(run) && run.is_saved == saved, saved)?;
            }
        }
        while let Some(run) = self.runs.iter().find(|run| is_sparse(run)) {
            let (first, saved) = (run.first, run.is_saved);
            self.rewrite(|run| run.first == first, saved)?;
        }
        if self.runs.is_empty() {
            self.index = HashIndex::default();
            self.next = 0;
        } else if self.index.len() > 4 * self.len() + (1 << 16) {
            self.renumber()?;
        }
        Ok(())
    }

    /// Moves the remaining rows of some runs to one new run.
    fn rewrite(&mut self, which: impl Fn(&KeyRun) -> bool, is_saved: bool) -> Result<(), TaskError> {
        let mut pieces = Vec::new();
        for run in self.runs.iter().filter(|run| which(run)) {
            let rows = run.slice(0, run.rows.num_rows())?;
            pieces.push(take_record_batch(&rows, &UInt32Array::from(run.all_live()))?);
        }
        self.runs.retain(|run| !which(run));
        if pieces.is_empty() {
            return Ok(());
        }
        let rows = concat_batches(&self.schema, &pieces)?;
        let buckets = rows.column(BUCKET).as_primitive::<UInt32Type>().values();
        let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
        order.sort_by_key(|&row| buckets[row as usize]);
        let rows = take_record_batch(&rows, &UInt32Array::from(order))?;
        self.add_run(&rows, is_saved)
    }

    /// Renumbers the rows, and removes missing ones from the index.
    fn renumber(&mut self) -> Result<(), TaskError> {
        let mut firsts = Vec::with_capacity(self.runs.len());
        let mut next = 0;
        for run in &self.runs {
            firsts.push(next);
            next += run.rows.num_rows() as u32;
        }
        let mut index = std::mem::take(&mut self.index);
        index.renumber_all(self.len(), |number| self.place(number).map(|(run, row)| firsts[run] + row))?;
        self.index = index;
        for (run, first) in self.runs.iter_mut().zip(firsts) {
            run.first = first;
        }
        self.next = next;
        Ok(())
    }
}

fn record_columns(rows: &RecordBatch) -> Vec<usize> {
    (RECORD..rows.num_columns()).collect()
}

/// The hash of each row's key.
fn hashes(rows: &RecordBatch) -> Result<Vec<u64>, TaskError> {
    let mut hashes = Vec::new();
    KeyHasher::new(vec![KEY]).hash(rows, &mut hashes)?;
    Ok(hashes)
}
