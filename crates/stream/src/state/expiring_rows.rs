//! Rows stored until a time has passed: of joined streams, or of incomplete groups. They are in runs, each at least
//! twice as long as the next. Their numbers stay the same until rows that are no longer needed are removed. When memory
//! runs out, runs are written to disk and mapped, which makes no difference to users. A snapshot contains the rows
//! since the last one, or all rows if their numbers have changed.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::{concat_batches, filter_record_batch, interleave};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState, rows};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::{verify, verify_column, verify_rows};

use crate::state::groups::batch;
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::{SavedBuckets, SnapshotTables, buckets_of, tables_by_bucket, together};
use crate::time::window::Micros;

/// Smaller runs stay in memory.
const RUN_BYTES_MIN: usize = 1 << 17;
/// A request for less than this share of a run's rows is verified row by row.
const FEW_SHARE: usize = 64;

/// Rows that were added or merged together.
struct RowRun {
    /// The number of the first row.
    start: u32,
    rows: RecordBatch,
    /// The expiry of each row; empty if rows are kept forever.
    until: ScalarBuffer<Micros>,
    /// Lower bound of the expiries of rows that have not expired.
    earliest: Micros,
    /// The size of its rows, in memory or on disk.
    bytes: usize,
    on_disk: bool,
}

impl RowRun {
    /// A run in memory.
    fn new(start: u32, rows: RecordBatch, until: Vec<Micros>) -> Self {
        let earliest = until.iter().copied().min().unwrap_or(Micros::MAX);
        let bytes = batch_bytes(&rows) as usize + until.len() * size_of::<Micros>();
        RowRun { start, rows, until: until.into(), earliest, bytes, on_disk: false }
    }

    /// The same run on disk, including its expiries.
    fn on_disk(self, disk: &SpillArea) -> Result<Self, TaskError> {
        if self.until.is_empty() {
            return Ok(RowRun { rows: disk.map(&self.rows)?, on_disk: true, ..self });
        }
        let times = Arc::new(Int64Array::new(self.until, None));
        let mut fields = self.rows.schema().fields().to_vec();
        fields.push(Arc::new(Field::new("until", DataType::Int64, false)));
        let mut columns = self.rows.columns().to_vec();
        columns.push(times);
        let mut mapped = disk.map(&RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)?;
        let times = mapped.remove_column(self.rows.num_columns());
        let until = times.as_primitive::<Int64Type>().values().clone();
        let rows = batch(&self.rows.schema(), mapped.columns().to_vec(), mapped.num_rows())?;
        Ok(RowRun { rows, until, on_disk: true, ..self })
    }

    /// Verifies the whole run before it is read: data on disk must be as it was written.
    fn verify(&self) -> Result<(), TaskError> {
        if self.on_disk {
            verify_rows(&self.rows)?;
        }
        self.verify_times()
    }

    fn verify_times(&self) -> Result<(), TaskError> {
        if self.on_disk {
            verify(self.until.inner())?;
        }
        Ok(())
    }

    /// The same before some values of a column are read, given by their indices.
    fn verify_some(&self, column: usize, places: &[usize]) -> Result<()> {
        let column = self.rows.column(column);
        // Verifying a single row reads at least a page, and many rows share one.
        let verified = match places.len() > self.rows.num_rows() / FEW_SHARE {
            true => verify_column(column.as_ref()),
            false => places.iter().try_for_each(|&place| verify_column(column.slice(place, 1).as_ref())),
        };
        verified.map_err(|error| DataFusionError::External(error.into()))
    }
}

/// A store of rows with expiries.
pub(crate) struct ExpiringRows {
    schema: SchemaRef,
    runs: Vec<RowRun>,
    count: u32,
    disk: SpillArea,
}

impl ExpiringRows {
    /// A store for rows with this schema.
    pub(crate) fn new(schema: SchemaRef, disk: &SpillArea) -> Self {
        ExpiringRows { schema, runs: Vec::new(), count: 0, disk: disk.clone() }
    }

    /// The schema of the rows.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The number of rows, expired or not, which is also the number of the next row.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().filter(|run| !run.on_disk).map(|run| run.bytes).sum()
    }

    /// Bytes in memory or on disk.
    pub(crate) fn bytes_anywhere(&self) -> usize {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    /// Moves runs to disk, except the smallest.
    pub(crate) fn spill(&mut self) -> Result<(), TaskError> {
        let least = RUN_BYTES_MIN.min(self.disk.run_bytes() / 2);
        for run in std::mem::take(&mut self.runs) {
            let run = if run.on_disk || run.bytes < least { run } else { run.on_disk(&self.disk)? };
            self.push(run)?;
        }
        Ok(())
    }

    /// Adds rows with their expiries, which must not have passed; `until` is empty if rows do not expire.
    pub(crate) fn add(&mut self, rows: RecordBatch, until: Vec<Micros>) -> Result<(), TaskError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let start = self.count;
        let more = u32::try_from(rows.num_rows()).ok().and_then(|more| start.checked_add(more));
        self.count = more.ok_or("one thread keeps more than four billion rows: use more workers")?;
        self.push(RowRun::new(start, rows, until))
    }

    /// Adds the newest run, and merges runs of about the same length: those in memory, and those on disk.
    fn push(&mut self, run: RowRun) -> Result<(), TaskError> {
        self.runs.push(run);
        while let [.., larger, smaller] = self.runs.as_slice()
            && larger.rows.num_rows() < 2 * smaller.rows.num_rows()
            && larger.on_disk == smaller.on_disk
            && larger.bytes.saturating_add(smaller.bytes) <= self.disk.run_bytes()
        {
            let (Some(smaller), Some(larger)) = (self.runs.pop(), self.runs.pop()) else { break };
            larger.verify()?;
            smaller.verify()?;
            let rows = concat_batches(&self.schema, [&larger.rows, &smaller.rows])?;
            let until = [larger.until.as_ref(), smaller.until.as_ref()].concat();
            let earliest = larger.earliest.min(smaller.earliest);
            let run = RowRun { earliest, ..RowRun::new(larger.start, rows, until) };
            self.runs.push(if larger.on_disk { run.on_disk(&self.disk)? } else { run });
        }
        Ok(())
    }

    /// The numbers of the rows whose expiry is in `before..time`.
    pub(crate) fn over(&mut self, before: Micros, time: Micros) -> Vec<u32> {
        let mut over = Vec::new();
        for run in self.runs.iter_mut().filter(|run| run.earliest < time) {
            run.earliest = Micros::MAX;
            for (number, &until) in (run.start..).zip(run.until.iter()) {
                if until >= time {
                    run.earliest = run.earliest.min(until);
                } else if until >= before {
                    over.push(number);
                }
            }
        }
        over
    }

    /// The expiries of all rows.
    pub(crate) fn times(&self) -> Result<impl Iterator<Item = Micros>, TaskError> {
        self.runs.iter().try_for_each(RowRun::verify_times)?;
        Ok(self.runs.iter().flat_map(|run| run.until.iter().copied()))
    }

    /// The numbers of the rows whose expiry is in a range, in the order of their expiry, including expired ones.
    pub(crate) fn within(&self, times: Range<Micros>) -> Result<Vec<u32>, TaskError> {
        let mut found: Vec<(Micros, u32)> = Vec::new();
        for run in &self.runs {
            run.verify_times()?;
            let numbered = run.until.iter().copied().zip(run.start..);
            found.extend(numbered.filter(|(time, _)| times.contains(time)));
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, number)| number).collect())
    }

    /// Some values of a column.
    pub(crate) fn gather(&self, column: usize, numbers: &[u32]) -> Result<ArrayRef> {
        // Pass only the runs that contain these rows, since there may be many on disk.
        let mut used: Vec<&RowRun> = Vec::new();
        let mut place_of: Vec<Option<usize>> = vec![None; self.runs.len()];
        let place = |&number: &u32| {
            let run = self.runs.partition_point(|run| run.start <= number) - 1;
            let place = *place_of[run].get_or_insert_with(|| {
                used.push(&self.runs[run]);
                used.len() - 1
            });
            (place, (number - self.runs[run].start) as usize)
        };
        let places: Vec<_> = numbers.iter().map(place).collect();
        if used.iter().any(|run| run.on_disk) {
            let mut rows_of = vec![Vec::new(); used.len()];
            places.iter().for_each(|&(run, row)| rows_of[run].push(row));
            let mut looked_at = used.iter().zip(&rows_of).filter(|(run, _)| run.on_disk);
            looked_at.try_for_each(|(run, rows)| run.verify_some(column, rows))?;
        }
        let columns: Vec<&dyn Array> = used.iter().map(|run| run.rows.column(column).as_ref()).collect();
        match columns.as_slice() {
            [] => Ok(arrow::array::new_empty_array(self.schema.field(column).data_type())),
            columns => Ok(interleave(columns, &places)?),
        }
    }

    /// Removes expired rows, and rows that are not `wanted`. The others get new numbers, in the same order; returns
    /// their old numbers.
    pub(crate) fn clear(&mut self, time: Micros, wanted: impl Fn(u32) -> bool) -> Result<Vec<u32>, TaskError> {
        let mut stay = Vec::new();
        self.retain(time, wanted, |number| stay.push(number))?;
        Ok(stay)
    }

    /// The same without a list, which may not fit in memory: `stays` gets the old number of each remaining row.
    fn retain(
        &mut self,
        time: Micros,
        wanted: impl Fn(u32) -> bool,
        mut stays: impl FnMut(u32),
    ) -> Result<(), TaskError> {
        let mut start = 0;
        for run in std::mem::take(&mut self.runs) {
            run.verify()?;
            let lives =
                |at: usize| run.until.get(at).is_none_or(|&until| until >= time) && wanted(run.start + at as u32);
            let mask: Vec<bool> = (0..run.rows.num_rows()).map(lives).collect();
            let numbers = mask.iter().zip(run.start..).filter(|(lives, _)| **lives).map(|(_, number)| number);
            let left = numbers.inspect(|&number| stays(number)).count();
            if left == mask.len() {
                self.push(RowRun { start, ..run })?;
            } else if left > 0 {
                let until = run.until.iter().zip(&mask).filter(|(_, lives)| **lives).map(|(until, _)| *until).collect();
                let rest = RowRun::new(start, filter_record_batch(&run.rows, &mask.into())?, until);
                self.push(if run.on_disk { rest.on_disk(&self.disk)? } else { rest })?;
            }
            start += left as u32;
        }
        self.count = start;
        Ok(())
    }

    /// The rows from number `from` on, as they are stored.
    pub(crate) fn since(&self, from: u32) -> Vec<RecordBatch> {
        let of = |run: &RowRun| {
            let skip = from.saturating_sub(run.start) as usize;
            (skip < run.rows.num_rows()).then(|| run.rows.slice(skip, run.rows.num_rows() - skip))
        };
        self.runs.iter().filter_map(of).collect()
    }
}

/// A store of rows of one kind, and what is saved of it.
pub(crate) struct KeptState {
    pub kept: ExpiringRows,
    /// The columns that determine a row's bucket.
    keys: Vec<usize>,
    /// Rows with smaller numbers are in the last snapshot.
    since: u32,
    /// Row numbers have changed: the next snapshot is full.
    renumbered: bool,
    saved: SavedBuckets,
}

impl KeptState {
    pub(crate) fn new(kept: ExpiringRows, keys: Vec<usize>) -> Self {
        KeptState { kept, keys, since: 0, renumbered: false, saved: SavedBuckets::default() }
    }

    /// The saved tables with their buckets, each to be passed to [`KeptState::rows`].
    pub(crate) fn restore(&self, restored: &RestoredState) -> Result<Vec<(u32, Bytes)>, TaskError> {
        self.saved.restore(restored);
        let parts = restored.buckets.iter().flat_map(|(&bucket, parts)| parts.iter().map(move |part| (bucket, part)));
        tables_by_bucket(parts)
    }

    /// Decodes the rows of a table.
    pub(crate) fn rows(&self, table: &Bytes) -> Result<RecordBatch, TaskError> {
        Ok(rows::decode(&self.kept.schema, table)?)
    }

    /// Marks the current rows as saved, because they were restored.
    pub(crate) fn restored(&mut self) {
        self.since = self.kept.count();
    }

    /// Hands over these buckets to another copy.
    pub(crate) fn release(&mut self, buckets: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        let mut moved = SnapshotTables::new(&self.kept.disk);
        let mut stays = Vec::new();
        for rows in together(&self.kept.schema, &self.kept.since(0), &self.kept.disk) {
            let rows = rows?;
            let of = buckets_of(&rows, &self.keys)?;
            stays.extend(moved.add_some(0, &rows, &of, buckets)?);
        }
        // No row expires by this time.
        self.kept.retain(Micros::MIN, |number| stays[number as usize], |_| {})?;
        self.renumbered = true;
        self.saved.forget(buckets);
        moved.finish()
    }

    /// The tables that another copy has handed over.
    pub(crate) fn acquired(&self, parts: &[(u32, Bytes)]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        tables_by_bucket(parts.iter().map(|(bucket, part)| (*bucket, part)))
    }

    /// Removes expired rows.
    pub(crate) fn clear(&mut self, time: Micros) -> Result<(), TaskError> {
        self.kept.retain(time, |_| true, |_| {})?;
        self.renumbered = true;
        Ok(())
    }

    /// Removes rows that are not `wanted`.
    pub(crate) fn retain(&mut self, wanted: impl Fn(u32) -> bool) -> Result<(), TaskError> {
        self.kept.retain(Micros::MIN, wanted, |_| {})?;
        self.renumbered = true;
        Ok(())
    }

    /// Makes a snapshot.
    pub(crate) fn snapshot(&mut self, whole: bool) -> Option<DeferredPart> {
        let whole = std::mem::take(&mut self.renumbered) || whole;
        let rows = self.kept.since(if whole { 0 } else { self.since });
        self.since = self.kept.count();
        if !whole && rows.is_empty() {
            return None;
        }
        let (keys, saved) = (self.keys.clone(), self.saved.clone());
        let (schema, disk) = (Arc::clone(&self.kept.schema), self.kept.disk.clone());
        Some(DeferredPart(Box::new(move || {
            let mut tables = SnapshotTables::new(&disk);
            for rows in together(&schema, &rows, &disk) {
                let rows = rows?;
                tables.add(0, &rows, &buckets_of(&rows, &keys)?)?;
            }
            tables.parts(whole, &saved)
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;

    use super::ExpiringRows;
    use crate::state::operator_memory::SpillArea;

    fn rows(values: std::ops::Range<i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)]).unwrap()
    }

    /// Numbers identify their rows however runs are merged, each row expires once, and remaining rows stay in order.
    #[test]
    fn rows_are_found_by_number() {
        let mut kept = ExpiringRows::new(rows(0..0).schema(), &SpillArea::default());
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
        let mut within: Vec<u32> = (0..155).filter(|n| (2..5).contains(&(n % 10))).collect();
        within.sort_by_key(|n| n % 10);
        assert_eq!(kept.within(2..5).unwrap(), within);
        let since: usize = kept.since(150).iter().map(RecordBatch::num_rows).sum();
        assert_eq!(since, 5);
        let stayed = kept.clear(5, |number| number != 5).unwrap();
        assert_eq!(stayed, (0..155).filter(|n| n % 10 >= 5 && *n != 5).collect::<Vec<u32>>());
        assert_eq!(kept.count() as usize, stayed.len());
        assert_eq!(kept.gather(0, &[0, 1]).unwrap().as_primitive::<Int64Type>().values(), &[6, 7]);
        assert_eq!(kept.clear(10, |_| true).unwrap(), [] as [u32; 0]);
        assert_eq!((kept.count(), kept.gather(0, &[]).unwrap().len()), (0, 0));
    }

    /// Runs on disk must be the same as in memory, whatever is added, removed, merged and spilled in between.
    #[test]
    fn runs_on_disk_are_the_same() {
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for timed in [true, false] {
            let (disk, schema) = (SpillArea::with_runs_of(200 << 10), rows(0..0).schema());
            let (mut kept, mut model) =
                (ExpiringRows::new(schema.clone(), &disk), ExpiringRows::new(schema, &SpillArea::default()));
            let (mut next, mut now, mut on_disk) = (0, 0, 0);
            for _ in 0..300 {
                match draw(10) {
                    0..6 => {
                        let more = next..next + draw(30_000) as i64;
                        next = more.end;
                        let until: Vec<i64> = more.clone().filter(|_| timed).map(|n| now + n % 100).collect();
                        for kept in [&mut kept, &mut model] {
                            kept.add(rows(more.clone()), until.clone()).unwrap();
                        }
                    }
                    6 => kept.spill().unwrap(),
                    7 => {
                        let before = now;
                        now += draw(30) as i64;
                        assert_eq!(kept.over(before, now), model.over(before, now));
                    }
                    8 => {
                        let gone = draw(4) as u32;
                        let stay = |kept: &mut ExpiringRows| kept.clear(now, |number| number % 5 != gone).unwrap();
                        assert_eq!(stay(&mut kept), stay(&mut model));
                    }
                    _ => {
                        let numbers: Vec<u32> = (0..kept.count()).filter(|_| draw(50) == 0).collect();
                        assert_eq!(&kept.gather(0, &numbers).unwrap(), &model.gather(0, &numbers).unwrap());
                    }
                }
                assert_eq!(kept.count(), model.count());
                on_disk += kept.runs.iter().filter(|run| run.on_disk).count();
            }
            let all = |kept: &ExpiringRows| arrow::compute::concat_batches(&kept.schema, &kept.since(0)).unwrap();
            assert_eq!(all(&kept), all(&model));
            assert!(on_disk > 300, "{on_disk} runs were on disk");
        }
    }
}
