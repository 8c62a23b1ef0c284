//! Rows that are kept until a time has passed: of streams that are joined, of groups that are not complete. They lie in runs,
//! each at least twice as long as the next, and have numbers, which stay until those that are not needed any more are thrown
//! out. A snapshot has the rows that came since the last one, or all of them when numbers have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, interleave, take_record_batch};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{Buckets, Later, Part, Restored, rows};
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};

use super::window::Micros;

/// Rows that came together, or were put together since.
struct Run {
    /// The number of the first.
    start: u32,
    rows: RecordBatch,
    /// Of each row; empty when all are kept for ever.
    until: Vec<Micros>,
    /// No row that is not over yet is over before that.
    earliest: Micros,
}

/// See the module.
pub(crate) struct Kept {
    schema: SchemaRef,
    runs: Vec<Run>,
    count: u32,
}

impl Kept {
    /// Of rows with this schema.
    pub(crate) fn new(schema: SchemaRef) -> Self {
        Kept { schema, runs: Vec::new(), count: 0 }
    }

    /// How many there are, over or not: the number of the next.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn bytes(&self) -> usize {
        let run = |run: &Run| run.rows.get_array_memory_size() + run.until.len() * size_of::<Micros>();
        self.runs.iter().map(run).sum()
    }

    /// Adds rows, each until a time that has not passed; `until` is empty unless there are such times.
    pub(crate) fn add(&mut self, rows: RecordBatch, until: Vec<Micros>) -> Result<(), TaskError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let start = self.count;
        let more = u32::try_from(rows.num_rows()).ok().and_then(|more| start.checked_add(more));
        self.count = more.ok_or("more than four billion rows are kept by one thread: use more workers")?;
        let earliest = until.iter().copied().min().unwrap_or(Micros::MAX);
        self.runs.push(Run { start, rows, until, earliest });
        while let [.., larger, smaller] = self.runs.as_slice()
            && larger.rows.num_rows() < 2 * smaller.rows.num_rows()
        {
            let (Some(smaller), Some(larger)) = (self.runs.pop(), self.runs.pop()) else { break };
            let rows = concat_batches(&self.schema, [&larger.rows, &smaller.rows])?;
            let mut until = larger.until;
            until.extend(smaller.until);
            self.runs.push(Run { rows, until, earliest: larger.earliest.min(smaller.earliest), ..larger });
        }
        Ok(())
    }

    /// The numbers of the rows that have been over since `time` passed, and were not when this was asked last.
    pub(crate) fn over(&mut self, before: Micros, time: Micros) -> Vec<u32> {
        let mut over = Vec::new();
        for run in self.runs.iter_mut().filter(|run| run.earliest < time) {
            run.earliest = Micros::MAX;
            for (number, &until) in (run.start..).zip(&run.until) {
                if until >= time {
                    run.earliest = run.earliest.min(until);
                } else if until >= before {
                    over.push(number);
                }
            }
        }
        over
    }

    /// Some values of a column.
    pub(crate) fn gather(&self, column: usize, numbers: &[u32]) -> Result<ArrayRef> {
        let place = |&number: &u32| {
            let run = self.runs.partition_point(|run| run.start <= number) - 1;
            (run, (number - self.runs[run].start) as usize)
        };
        let places: Vec<_> = numbers.iter().map(place).collect();
        let columns: Vec<&dyn Array> = self.runs.iter().map(|run| run.rows.column(column).as_ref()).collect();
        match columns.as_slice() {
            [] => Ok(arrow::array::new_empty_array(self.schema.field(column).data_type())),
            columns => Ok(interleave(columns, &places)?),
        }
    }

    /// Throws out what is over, and what `wanted` does not name. Those that stay get new numbers, in the same order; returns
    /// the old ones.
    pub(crate) fn clear(&mut self, time: Micros, wanted: impl Fn(u32) -> bool) -> Result<Vec<u32>> {
        let mut stay = Vec::new();
        let (mut parts, mut untils) = (Vec::new(), Vec::new());
        for run in std::mem::take(&mut self.runs) {
            let lives =
                |at: usize| run.until.get(at).is_none_or(|&until| until >= time) && wanted(run.start + at as u32);
            let mask: Vec<bool> = (0..run.rows.num_rows()).map(lives).collect();
            stay.extend(mask.iter().zip(run.start..).filter(|(lives, _)| **lives).map(|(_, number)| number));
            untils.extend(run.until.iter().zip(&mask).filter(|(_, lives)| **lives).map(|(until, _)| *until));
            parts.push(filter_record_batch(&run.rows, &mask.into())?);
        }
        let rows = concat_batches(&self.schema, &parts)?;
        self.count = stay.len() as u32;
        if !stay.is_empty() {
            let earliest = untils.iter().copied().min().unwrap_or(Micros::MAX);
            self.runs.push(Run { start: 0, rows, until: untils, earliest });
        }
        Ok(stay)
    }

    /// The rows from number `from` on, as they lie.
    pub(crate) fn since(&self, from: u32) -> Vec<RecordBatch> {
        let of = |run: &Run| {
            let skip = from.saturating_sub(run.start) as usize;
            (skip < run.rows.num_rows()).then(|| run.rows.slice(skip, run.rows.num_rows() - skip))
        };
        self.runs.iter().filter_map(of).collect()
    }
}

/// The bucket of each row, by the columns of its key.
pub(crate) fn buckets_of(rows: &RecordBatch, keys: &[usize]) -> Result<Vec<u32>> {
    let mut hashes = Vec::new();
    KeyHasher::new(keys.to_vec()).hash(rows, &mut hashes)?;
    let route = RouteMap::even(BUCKETS, 1);
    Ok(hashes.into_iter().map(|hash| route.bucket(hash)).collect())
}

/// The rows of the buckets that are wanted, by bucket, as bytes; `of` has the bucket of each row.
pub(crate) fn by_bucket(rows: &RecordBatch, of: &[u32], wanted: impl Fn(u32) -> bool) -> Result<Vec<(u32, Bytes)>> {
    let mut order: Vec<u32> = (0..rows.num_rows() as u32).filter(|&row| wanted(of[row as usize])).collect();
    order.sort_by_key(|&row| of[row as usize]);
    let sorted = take_record_batch(rows, &UInt32Array::from(order.clone()))?;
    let mut parts = Vec::new();
    let mut from = 0;
    while from < order.len() {
        let bucket = of[order[from] as usize];
        let to = from + order[from..].partition_point(|&row| of[row as usize] == bucket);
        parts.push((bucket, rows::encode(&sorted.slice(from, to - from))?));
        from = to;
    }
    Ok(parts)
}

/// Parts of a snapshot: of each bucket tables of several kinds.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<u32, Vec<u8>>);

impl Tables {
    /// Adds rows to the buckets they are of.
    pub(crate) fn add(&mut self, kind: u8, rows: &RecordBatch, of: &[u32]) -> Result<()> {
        self.add_wanted(kind, rows, of, |_| true)
    }

    fn add_wanted(&mut self, kind: u8, rows: &RecordBatch, of: &[u32], wanted: impl Fn(u32) -> bool) -> Result<()> {
        for (bucket, bytes) in by_bucket(rows, of, wanted)? {
            let part = self.0.entry(bucket).or_default();
            part.push(kind);
            part.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            part.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Adds those rows that are of some buckets. Returns which are not.
    pub(crate) fn add_some(&mut self, kind: u8, rows: &RecordBatch, of: &[u32], buckets: &[u32]) -> Result<Vec<bool>> {
        let wanted: BTreeSet<u32> = buckets.iter().copied().collect();
        self.add_wanted(kind, rows, of, |bucket| wanted.contains(&bucket))?;
        Ok(of.iter().map(|bucket| !wanted.contains(bucket)).collect())
    }

    /// By bucket, as bytes.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = (u32, Bytes)> {
        self.0.into_iter().map(|(bucket, bytes)| (bucket, bytes.into()))
    }

    /// By bucket, as bytes: all there is if `whole`, and then nothing of buckets that had something before.
    pub(crate) fn parts(self, whole: bool, saved: &Saved) -> Buckets {
        saved.parts(self.into_bytes(), whole)
    }
}

/// Buckets of which something is saved.
#[derive(Clone, Default)]
pub(crate) struct Saved(Arc<Mutex<BTreeSet<u32>>>);

impl Saved {
    /// What is saved now, by bucket: all there is if `whole`, and then nothing of buckets that had something before.
    pub(crate) fn parts(&self, made: impl IntoIterator<Item = (u32, Bytes)>, whole: bool) -> Buckets {
        let part = if whole { Part::Whole } else { Part::Change };
        let mut parts: Buckets = made.into_iter().map(|(bucket, bytes)| (bucket, part(bytes))).collect();
        let mut saved = self.0.lock().expect("nothing panics with it locked");
        let made: BTreeSet<u32> = parts.iter().map(|(bucket, _)| *bucket).collect();
        if whole {
            parts.extend(saved.difference(&made).map(|&bucket| (bucket, Part::Whole(Bytes::new()))));
            *saved = made;
        } else {
            saved.extend(made);
        }
        parts
    }

    /// Another copy has these now, and says what is saved of them.
    pub(crate) fn forget(&self, buckets: &[u32]) {
        let mut saved = self.0.lock().expect("nothing panics with it locked");
        buckets.iter().for_each(|bucket| {
            saved.remove(bucket);
        });
    }

    /// What is saved is what the job goes on from.
    pub(crate) fn restore(&self, restored: &Restored) {
        *self.0.lock().expect("nothing panics with it locked") = restored.buckets.keys().copied().collect();
    }
}

/// Rows of one kind that are kept, and what of them is saved.
pub(crate) struct KeptState {
    pub kept: Kept,
    /// The columns that say which bucket a row is of.
    keys: Vec<usize>,
    /// Rows before that are in the last snapshot.
    since: u32,
    /// Numbers have changed: the next snapshot is whole.
    renumbered: bool,
    saved: Saved,
}

impl KeptState {
    pub(crate) fn new(kept: Kept, keys: Vec<usize>) -> Self {
        KeptState { kept, keys, since: 0, renumbered: false, saved: Saved::default() }
    }

    /// The rows that were saved, with the bucket that they are of.
    pub(crate) fn restore(&self, restored: &Restored) -> Result<Vec<(u32, RecordBatch)>, TaskError> {
        self.saved.restore(restored);
        self.rows_of(restored.buckets.iter().flat_map(|(&bucket, parts)| parts.iter().map(move |part| (bucket, part))))
    }

    /// What is kept now has been restored.
    pub(crate) fn restored(&mut self) {
        self.since = self.kept.count();
    }

    /// Lets go of what is in these buckets, for another copy.
    pub(crate) fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>> {
        let mut moved = Tables::default();
        let mut stays = Vec::new();
        for rows in self.kept.since(0) {
            let of = buckets_of(&rows, &self.keys)?;
            stays.extend(moved.add_some(0, &rows, &of, buckets)?);
        }
        // Nothing is over by that time.
        self.kept.clear(Micros::MIN, |number| stays[number as usize])?;
        self.renumbered = true;
        self.saved.forget(buckets);
        Ok(moved.into_bytes().collect())
    }

    /// What another copy has let go of.
    pub(crate) fn acquired(&self, parts: &[(u32, Bytes)]) -> Result<Vec<(u32, RecordBatch)>, TaskError> {
        self.rows_of(parts.iter().map(|(bucket, part)| (*bucket, part)))
    }

    fn rows_of<'a>(&self, parts: impl Iterator<Item = (u32, &'a Bytes)>) -> Result<Vec<(u32, RecordBatch)>, TaskError> {
        let mut found = Vec::new();
        for (bucket, part) in parts {
            for (_, bytes) in tables_of(part)? {
                found.push((bucket, rows::decode(&self.kept.schema, &bytes)?));
            }
        }
        Ok(found)
    }

    /// Throws out what is over.
    pub(crate) fn clear(&mut self, time: Micros) -> Result<()> {
        self.kept.clear(time, |_| true)?;
        self.renumbered = true;
        Ok(())
    }

    /// Keeps these for ever instead of what is kept.
    pub(crate) fn replace(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        self.kept = Kept::new(Arc::clone(&self.kept.schema));
        self.renumbered = true;
        self.kept.add(rows, Vec::new())
    }

    /// What goes into a snapshot.
    pub(crate) fn snapshot(&mut self, whole: bool) -> Option<Later> {
        let whole = std::mem::take(&mut self.renumbered) || whole;
        let rows = self.kept.since(if whole { 0 } else { self.since });
        self.since = self.kept.count();
        if !whole && rows.is_empty() {
            return None;
        }
        let (keys, saved) = (self.keys.clone(), self.saved.clone());
        Some(Later(Box::new(move || {
            let mut tables = Tables::default();
            for rows in rows {
                tables.add(0, &rows, &buckets_of(&rows, &keys)?)?;
            }
            Ok(tables.parts(whole, &saved))
        })))
    }
}

/// The tables of a part: their kinds and bytes.
///
/// # Errors
/// When it is cut short.
pub(crate) fn tables_of(part: &Bytes) -> Result<Vec<(u8, Bytes)>, TaskError> {
    let mut tables = Vec::new();
    let mut at = 0;
    while at < part.len() {
        let head = part.get(at..at + 9).ok_or("a part of a checkpoint is cut short")?;
        let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let end = usize::try_from(length).ok().and_then(|length| (at + 9).checked_add(length));
        let end = end.filter(|&end| end <= part.len()).ok_or("a part of a checkpoint is cut short")?;
        tables.push((head[0], part.slice(at + 9..end)));
        at = end;
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;

    use bytes::Bytes;
    use tidemill_dataflow::checkpoint::Part;

    use super::{Kept, Saved, Tables, tables_of};

    fn rows(values: std::ops::Range<i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)]).unwrap()
    }

    /// Numbers lead to their rows however runs were put together, rows are over once, and those that stay stay in order.
    #[test]
    fn rows_are_found_by_number() {
        let mut kept = Kept::new(rows(0..0).schema());
        let mut count = 0;
        for length in [1, 5, 2, 2, 100, 3, 1, 1, 40] {
            let more = count..count + length;
            kept.add(rows(more.clone()), more.map(|n| n % 10).collect()).unwrap();
            count += length;
        }
        assert!(kept.runs.len() < 8, "runs are put together");
        let some = [3, 0, 154, 77, 8];
        let values = kept.gather(0, &some).unwrap();
        assert_eq!(values.as_primitive::<Int64Type>().values(), &[3, 0, 154, 77, 8]);
        let over: Vec<u32> = (0..155).filter(|n| n % 10 < 4).collect();
        assert_eq!(kept.over(i64::MIN, 4), over);
        assert_eq!(kept.over(4, 4), [] as [u32; 0]);
        assert_eq!(kept.over(4, 5).len(), 16);
        let since: usize = kept.since(150).iter().map(RecordBatch::num_rows).sum();
        assert_eq!(since, 5);
        let stayed = kept.clear(5, |number| number != 5).unwrap();
        assert_eq!(stayed, (0..155).filter(|n| n % 10 >= 5 && *n != 5).collect::<Vec<u32>>());
        assert_eq!(kept.count() as usize, stayed.len());
        assert_eq!(kept.gather(0, &[0, 1]).unwrap().as_primitive::<Int64Type>().values(), &[6, 7]);
        assert_eq!(kept.clear(10, |_| true).unwrap(), [] as [u32; 0]);
        assert_eq!((kept.count(), kept.gather(0, &[]).unwrap().len()), (0, 0));
    }

    #[test]
    fn tables_come_back_by_bucket() {
        let mut tables = Tables::default();
        tables.add(0, &rows(0..6), &[3, 1, 3, 1, 1, 3]).unwrap();
        tables.add(7, &rows(9..10), &[1]).unwrap();
        let saved = Saved::default();
        let parts = tables.parts(false, &saved);
        assert_eq!(parts.iter().map(|(bucket, _)| *bucket).collect::<Vec<_>>(), [1, 3]);
        let Part::Change(bytes) = &parts[0].1 else { panic!("not a change") };
        let gone = Tables::default().parts(true, &saved);
        assert_eq!(gone, [1, 3].map(|bucket| (bucket, Part::Whole(Bytes::new()))));
        let of = |bytes| tidemill_dataflow::checkpoint::rows::decode(&rows(0..0).schema(), bytes).unwrap();
        let tables = tables_of(bytes).unwrap();
        assert_eq!(tables.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 7]);
        assert_eq!(of(&tables[0].1).column(0).as_primitive::<Int64Type>().values(), &[1, 3, 4]);
        assert!(tables_of(&bytes.slice(..bytes.len() - 1)).is_err());
    }
}
