//! Snapshots of the engine, and moving buckets: for each bucket a full state and changes since, as records of keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{BucketStates, SnapshotPart, rows};

use super::KeyedEngine;
use super::entry::SavedBytes;
use super::logic::{END, KeyLogic};
use crate::state::key_records::{Key, KeyRecord, RecordCodec, RecordKind};
use crate::state::snapshot_codec::{BucketParts, by_bucket, table_of, tables_of};
use crate::time::window::Micros;

/// States are saved in full again when the changes since then take twice as much, plus this many bytes.
const CHANGED_BYTES_MIN: usize = 1 << 20;
/// A bucket is also saved in full after this many changes, however small, since every checkpoint lists all of them, and
/// a job that resumes reads them all.
pub(super) const CHANGES_MAX: usize = 300;
/// Records of a snapshot that are encoded at once.
const RECORDS_AT_ONCE: usize = 1 << 12;
const RECORD_BYTES_AT_ONCE: usize = 8 << 20;
/// The only kind of table in a part.
const RECORDS: u8 = 0;

impl<L: KeyLogic> KeyedEngine<L> {
    /// The buckets with too many saved changes. Saving any of them in full means going through all keys, so if there is
    /// one, buckets that are close to it are included.
    fn long(&self) -> BTreeSet<u32> {
        if self.saved.values().all(|saved| saved.changes < CHANGES_MAX) {
            return BTreeSet::new();
        }
        self.saved.iter().filter(|(_, saved)| saved.changes >= CHANGES_MAX / 2).map(|(bucket, _)| *bucket).collect()
    }

    pub(super) fn parts(&mut self, whole: bool) -> Result<BucketStates, TaskError> {
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
                    Some(entry) => entry.record(&mut self.logic, false)?,
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
                records.add(entry.bucket, key, entry.record(&mut self.logic, true)?)?;
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

    pub(super) fn release_parts(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        let leaving: BTreeSet<u32> = buckets.iter().copied().collect();
        let mut parts = BucketParts::new(&self.disk);
        let mut records = RecordWriter::new(&self.codec, &mut parts);
        let mut gone = Vec::new();
        for (key, entry) in self.entries.iter().filter(|(_, entry)| leaving.contains(&entry.bucket)) {
            records.add(entry.bucket, key, entry.record(&mut self.logic, true)?)?;
            gone.push(Arc::clone(key));
        }
        records.finish()?;
        for key in gone {
            let entry = self.entries.remove(&key).expect("just seen");
            self.forget_due(&key, &entry);
        }
        self.changed.retain(|_, bucket| !leaving.contains(bucket));
        self.store.records(false, |bucket| leaving.contains(&bucket), |rows, of| add_rows(&mut parts, rows, of))?;
        for &bucket in buckets {
            self.saved.remove(&bucket);
            self.store.remove(bucket)?;
        }
        parts.finish()
    }

    pub(super) fn restore_bucket(&mut self, now: Micros, bucket: u32, parts: &[Bytes]) -> Result<(), TaskError> {
        self.now = now;
        if now < END {
            self.latest = now;
        }
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        let (whole, changes) = lengths.split_at(lengths.len().min(1));
        let saved = SavedBytes { whole: whole.iter().sum(), changed: changes.iter().sum(), changes: changes.len() };
        self.saved.insert(bucket, saved);
        // For each key its last record, and the parts of its state.
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
                        // The key has only timers now.
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

/// Adds records as rows to the parts of their buckets.
fn add_rows(parts: &mut BucketParts, rows: &RecordBatch, of: &[u32]) -> Result<(), TaskError> {
    for (bucket, bytes) in by_bucket(rows, of, |_| true)? {
        parts.add(bucket, &[&table_of(RECORDS, &bytes)])?;
    }
    Ok(())
}

/// Collects records, and adds them to the parts of their buckets many at a time.
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
