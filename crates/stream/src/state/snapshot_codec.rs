//! The contents of snapshots: tables of rows as bytes, by the bucket of their keys, and the record of buckets with
//! saved state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{BucketStates, RestoredState, SnapshotPart, rows};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::memory::{MapWriter, verify, verify_rows};
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};

use crate::state::operator_memory::SpillArea;

/// Bytes of rows that are collected before they are divided among the parts of a snapshot.
const DEAL_BYTES_MAX: usize = 16 << 20;

/// The bucket of each row, by its key columns.
pub(crate) fn buckets_of(rows: &RecordBatch, keys: &[usize]) -> Result<Vec<u32>> {
    let mut hashes = Vec::new();
    KeyHasher::new(keys.to_vec()).hash(rows, &mut hashes)?;
    let route = RouteMap::even(BUCKETS, 1);
    Ok(hashes.into_iter().map(|hash| route.bucket(hash)).collect())
}

/// The bucket of each row's key, which follows `before` other columns.
pub(crate) fn buckets_of_key(states: &RecordBatch, before: usize, keys: usize) -> Result<Vec<u32>> {
    if keys == 0 {
        return Ok(vec![0; states.num_rows()]);
    }
    buckets_of(states, &(before..before + keys).collect::<Vec<_>>())
}

/// The rows of the wanted buckets, by bucket, as bytes. `of` is the bucket of each row.
pub(crate) fn by_bucket(rows: &RecordBatch, of: &[u32], wanted: impl Fn(u32) -> bool) -> Result<Vec<(u32, Bytes)>> {
    let (order, starts) = in_order(of, wanted);
    let sorted = match order.len() == of.len() && of.is_sorted() {
        true => rows.clone(),
        false => take_record_batch(rows, &UInt32Array::from(order))?,
    };
    let mut parts = Vec::new();
    for (bucket, ends) in (0..).zip(starts.windows(2)) {
        let (from, to) = (ends[0] as usize, ends[1] as usize);
        if from < to {
            parts.push((bucket, rows::encode(&sorted.slice(from, to - from))?));
        }
    }
    Ok(parts)
}

/// The rows of the wanted buckets, in the order of buckets and then of rows, and the start of each bucket among them,
/// followed by the end of the last. (A counting sort: there are few buckets, and possibly millions of rows.)
pub(crate) fn in_order(of: &[u32], wanted: impl Fn(u32) -> bool) -> (Vec<u32>, Vec<u32>) {
    let wanted: Vec<bool> = (0..BUCKETS).map(wanted).collect();
    let mut starts = vec![0; BUCKETS as usize + 1];
    of.iter().filter(|&&bucket| wanted[bucket as usize]).for_each(|&bucket| starts[bucket as usize + 1] += 1);
    for bucket in 1..starts.len() {
        starts[bucket] += starts[bucket - 1];
    }
    let mut next = starts.clone();
    let mut order = vec![0; starts[BUCKETS as usize] as usize];
    for (row, &bucket) in (0..).zip(of).filter(|(_, bucket)| wanted[**bucket as usize]) {
        let place = &mut next[bucket as usize];
        order[*place as usize] = row;
        *place += 1;
    }
    (order, starts)
}

/// Joins batches until they are large enough to be divided among buckets.
pub(crate) fn together<'a>(
    schema: &'a SchemaRef,
    mut batches: &'a [RecordBatch],
    disk: &SpillArea,
) -> impl Iterator<Item = Result<RecordBatch>> + use<'a> {
    let most = disk.run_bytes().min(DEAL_BYTES_MAX);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |batch: &&RecordBatch| {
            let first = bytes == 0;
            bytes += batch_bytes(batch) as usize;
            first || bytes <= most
        };
        let (some, rest) = batches.split_at(batches.iter().take_while(fits).count());
        batches = rest;
        if let Err(error) = some.iter().try_for_each(verify_rows) {
            return Some(Err(DataFusionError::External(error.into())));
        }
        match some {
            [] => None,
            [one] => Some(Ok(one.clone())),
            some => Some(concat_batches(schema, some).map_err(Into::into)),
        }
    })
}

/// Bytes by bucket, in memory or, if they are large, on disk.
#[derive(Default)]
pub(crate) struct BucketParts {
    disk: SpillArea,
    memory: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
    /// The bytes that were in memory before; `pieces` are their places by bucket.
    file: Option<MapWriter>,
    places: BTreeMap<u32, Vec<Range<usize>>>,
}

impl BucketParts {
    pub(crate) fn new(disk: &SpillArea) -> Self {
        BucketParts { disk: disk.clone(), ..BucketParts::default() }
    }

    /// Appends to a bucket's bytes.
    pub(crate) fn add(&mut self, bucket: u32, pieces: &[&[u8]]) -> Result<(), TaskError> {
        let part = self.memory.entry(bucket).or_default();
        for piece in pieces {
            part.extend_from_slice(piece);
            self.bytes += piece.len();
        }
        if self.bytes > self.disk.run_bytes() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), TaskError> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(MapWriter::new(self.disk.governor())?),
        };
        for (bucket, part) in std::mem::take(&mut self.memory) {
            let start = file.len();
            file.write(&part)?;
            self.places.entry(bucket).or_default().push(start..file.len());
        }
        self.bytes = 0;
        Ok(())
    }

    /// The bytes of each bucket.
    pub(crate) fn finish(mut self) -> Result<Vec<(u32, Bytes)>, TaskError> {
        if self.file.is_none() {
            return Ok(self.memory.into_iter().map(|(bucket, bytes)| (bucket, bytes.into())).collect());
        }
        self.flush()?;
        let pieces = self.file.expect("looked at above").finish()?;
        // Copy everything again so that each bucket is contiguous.
        let mut file = MapWriter::new(self.disk.governor())?;
        let mut ends = Vec::new();
        for (bucket, places) in self.places {
            let start = file.len();
            for place in places {
                verify(&pieces[place.clone()])?;
                file.write(&pieces[place])?;
            }
            ends.push((bucket, start..file.len()));
        }
        let all = file.finish()?;
        Ok(ends.into_iter().map(|(bucket, place)| (bucket, all.slice(place))).collect())
    }
}

/// Parts of a snapshot: for each bucket, tables of several kinds.
#[derive(Default)]
pub(crate) struct SnapshotTables(BucketParts);

impl SnapshotTables {
    pub(crate) fn new(disk: &SpillArea) -> Self {
        SnapshotTables(BucketParts::new(disk))
    }

    /// Adds rows to the parts of their buckets.
    pub(crate) fn add(&mut self, kind: u8, rows: &RecordBatch, of: &[u32]) -> Result<(), TaskError> {
        self.add_wanted(kind, rows, of, |_| true)
    }

    /// Adds the rows of wanted buckets.
    pub(crate) fn add_wanted(
        &mut self,
        kind: u8,
        rows: &RecordBatch,
        of: &[u32],
        wanted: impl Fn(u32) -> bool,
    ) -> Result<(), TaskError> {
        for (bucket, bytes) in by_bucket(rows, of, wanted)? {
            self.0.add(bucket, &[&[kind], &(bytes.len() as u64).to_le_bytes(), &bytes])?;
        }
        Ok(())
    }

    /// Adds the rows of some buckets. Returns which rows are in others.
    pub(crate) fn add_some(
        &mut self,
        kind: u8,
        rows: &RecordBatch,
        of: &[u32],
        buckets: &[u32],
    ) -> Result<Vec<bool>, TaskError> {
        let wanted: BTreeSet<u32> = buckets.iter().copied().collect();
        self.add_wanted(kind, rows, of, |bucket| wanted.contains(&bucket))?;
        Ok(of.iter().map(|bucket| !wanted.contains(bucket)).collect())
    }

    /// The parts as bytes, by bucket.
    pub(crate) fn finish(self) -> Result<Vec<(u32, Bytes)>, TaskError> {
        self.0.finish()
    }

    /// The parts of a snapshot, by bucket. If `whole`, they are full, and empty for other buckets that were saved
    /// before.
    pub(crate) fn parts(self, whole: bool, saved: &SavedBuckets) -> Result<BucketStates, TaskError> {
        Ok(saved.parts(self.finish()?, whole))
    }
}

/// Buckets for which something is saved.
#[derive(Clone, Default)]
pub(crate) struct SavedBuckets(Arc<Mutex<BTreeSet<u32>>>);

impl SavedBuckets {
    /// The parts of a snapshot, by bucket. If `whole`, they are full, and empty for other buckets that were saved
    /// before.
    pub(crate) fn parts(&self, made: impl IntoIterator<Item = (u32, Bytes)>, whole: bool) -> BucketStates {
        let part = if whole { SnapshotPart::Whole } else { SnapshotPart::Change };
        let mut parts: BucketStates = made.into_iter().map(|(bucket, bytes)| (bucket, part(bytes))).collect();
        let mut saved = self.0.lock().expect("nothing panics with it locked");
        let made: BTreeSet<u32> = parts.iter().map(|(bucket, _)| *bucket).collect();
        if whole {
            parts.extend(saved.difference(&made).map(|&bucket| (bucket, SnapshotPart::Whole(Bytes::new()))));
            *saved = made;
        } else {
            saved.extend(made);
        }
        parts
    }

    /// The parts of a snapshot, by bucket: full or empty ones for `renewed` buckets, and changes for others.
    pub(crate) fn some_parts(
        &self,
        renewed: &BTreeSet<u32>,
        wholes: Vec<(u32, Bytes)>,
        changes: Vec<(u32, Bytes)>,
    ) -> BucketStates {
        let mut saved = self.0.lock().expect("nothing panics with it locked");
        let made: BTreeSet<u32> = wholes.iter().map(|(bucket, _)| *bucket).collect();
        let emptied: Vec<u32> = renewed.difference(&made).copied().filter(|bucket| saved.remove(bucket)).collect();
        saved.extend(made);
        saved.extend(changes.iter().map(|(bucket, _)| *bucket));
        let emptied = emptied.into_iter().map(|bucket| (bucket, Bytes::new()));
        let wholes = wholes.into_iter().chain(emptied).map(|(bucket, bytes)| (bucket, SnapshotPart::Whole(bytes)));
        wholes.chain(changes.into_iter().map(|(bucket, bytes)| (bucket, SnapshotPart::Change(bytes)))).collect()
    }

    /// Removes buckets that another copy owns and saves now.
    pub(crate) fn forget(&self, buckets: &[u32]) {
        let mut saved = self.0.lock().expect("nothing panics with it locked");
        buckets.iter().for_each(|bucket| {
            saved.remove(bucket);
        });
    }

    /// Records the buckets that a job has resumed with.
    pub(crate) fn restore(&self, restored: &RestoredState) {
        *self.0.lock().expect("nothing panics with it locked") = restored.buckets.keys().copied().collect();
    }
}

/// The tables of all parts, with their buckets.
pub(crate) fn tables_by_bucket<'a>(
    parts: impl Iterator<Item = (u32, &'a Bytes)>,
) -> Result<Vec<(u32, Bytes)>, TaskError> {
    let mut found = Vec::new();
    for (bucket, part) in parts {
        found.extend(tables_of(part)?.into_iter().map(|(_, table)| (bucket, table)));
    }
    Ok(found)
}

/// A part of one table: its kind and bytes.
pub(crate) fn table_of(kind: u8, bytes: &[u8]) -> Bytes {
    [&[kind], &(bytes.len() as u64).to_le_bytes()[..], bytes].concat().into()
}

/// The tables of a part: their kinds and bytes.
///
/// # Errors
/// If the part is truncated.
pub(crate) fn tables_of(part: &Bytes) -> Result<Vec<(u8, Bytes)>, TaskError> {
    let mut tables = Vec::new();
    let mut at = 0;
    while at < part.len() {
        let head = part.get(at..at + 9).ok_or("a part of a checkpoint is truncated")?;
        let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let end = usize::try_from(length).ok().and_then(|length| (at + 9).checked_add(length));
        let end = end.filter(|&end| end <= part.len()).ok_or("a part of a checkpoint is truncated")?;
        tables.push((head[0], part.slice(at + 9..end)));
        at = end;
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn rows(values: std::ops::Range<i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)]).unwrap()
    }

    #[test]
    fn rows_are_in_the_order_of_buckets() {
        let of: Vec<u32> = (0..5000u32).map(|row| row * row % 1009 % 700).collect();
        let (order, starts) = in_order(&of, |bucket| !bucket.is_multiple_of(3));
        let mut expected: Vec<u32> = (0..5000).filter(|&row| !of[row as usize].is_multiple_of(3)).collect();
        expected.sort_by_key(|&row| of[row as usize]);
        assert_eq!(order, expected);
        for (bucket, ends) in (0..).zip(starts.windows(2)) {
            assert!(order[ends[0] as usize..ends[1] as usize].iter().all(|&row| of[row as usize] == bucket));
        }
        assert_eq!(in_order(&[], |_| true).0, [] as [u32; 0]);
    }

    /// Parts of buckets that were added in pieces, partly through files, are complete and in order.
    #[test]
    fn parts_on_disk_are_whole() {
        let mut parts = BucketParts::new(&SpillArea::with_runs_of(100));
        for n in 0..200_u32 {
            parts.add(n * 7 % 13, &[&n.to_le_bytes(), b"and"]).unwrap();
        }
        let found = parts.finish().unwrap();
        assert_eq!(found.len(), 13);
        for (bucket, bytes) in found {
            let of = (0..200_u32).filter(|n| n * 7 % 13 == bucket);
            let expected: Vec<u8> = of.flat_map(|n| [&n.to_le_bytes()[..], b"and"].concat()).collect();
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn tables_come_back_by_bucket() {
        let mut tables = SnapshotTables::default();
        tables.add(0, &rows(0..6), &[3, 1, 3, 1, 1, 3]).unwrap();
        tables.add(7, &rows(9..10), &[1]).unwrap();
        let saved = SavedBuckets::default();
        let parts = tables.parts(false, &saved).unwrap();
        assert_eq!(parts.iter().map(|(bucket, _)| *bucket).collect::<Vec<_>>(), [1, 3]);
        let SnapshotPart::Change(bytes) = &parts[0].1 else { panic!("not a change") };
        let gone = SnapshotTables::default().parts(true, &saved).unwrap();
        assert_eq!(gone, [1, 3].map(|bucket| (bucket, SnapshotPart::Whole(Bytes::new()))));
        let of = |bytes| tidemill_dataflow::checkpoint::rows::decode(&rows(0..0).schema(), bytes).unwrap();
        let tables = tables_of(bytes).unwrap();
        assert_eq!(tables.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 7]);
        assert_eq!(of(&tables[0].1).column(0).as_primitive::<Int64Type>().values(), &[1, 3, 4]);
        assert!(tables_of(&bytes.slice(..bytes.len() - 1)).is_err());
    }
}
