//! Rows that wait for the end of their slice of event time: in memory as long as there is room, then on disk.
//!
//! What spills is all that is in memory, as one run with the slices in order. Slices are taken in order, too, so each
//! run is read once from its start to its end. Runs lie in mapped files, encoded as in checkpoints, which take them as
//! they are. Small runs of about the same length are merged, so that there are few.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_batch::batch_bytes;
use tidemill_batch::memory::{Governor, MapWriter, Reservation, trim, verify};
use tidemill_checkpoint::rows;

use crate::checkpoint::in_flight;
use crate::error::TaskError;

/// Batches are joined until they have so many rows or bytes.
const JOINED_ROWS: usize = 8192;
const JOINED_BYTES: u64 = 1 << 20;
/// As many runs become one, if that has at most so many bytes: nothing else happens to the stream meanwhile.
const MERGED_RUNS: usize = 16;
const MERGED_BYTES_MAX: usize = 256 << 20;
/// About what a batch takes besides its rows, and each of its columns: most, where batches have few rows.
const BATCH_OVERHEAD_BYTES: u64 = 64;
const COLUMN_OVERHEAD_BYTES: u64 = 320;
/// Rows in memory that a checkpoint encodes are written to a file, too, if they have more bytes.
const ENCODED_BYTES_MAX: usize = 1 << 20;
/// Minimum size of a run after which freed memory is returned to the system.
const TRIM_BYTES_MIN: usize = 1 << 20;

/// The rows, see the module.
pub(super) struct SliceRows {
    schema: SchemaRef,
    governor: Governor,
    reservation: Reservation,
    memory: BTreeMap<i64, Vec<RecordBatch>>,
    /// Older rows, in the order in which they came. The levels do not rise.
    runs: Vec<SliceRun>,
}

/// Rows on disk.
#[derive(Clone)]
pub(super) struct SliceRun {
    /// The slice of each batch that is left.
    slices: VecDeque<i64>,
    /// The batches, each encoded and behind its length.
    bytes: Bytes,
    /// How often they have been merged.
    level: u32,
}

/// All rows at some time, see [`SliceRows::frozen`].
pub(super) struct FrozenSlices {
    schema: SchemaRef,
    governor: Governor,
    runs: Vec<SliceRun>,
    memory: BTreeMap<i64, Vec<RecordBatch>>,
}

impl SliceRows {
    /// No rows yet, of this schema.
    pub(super) fn new(schema: &SchemaRef, governor: &Governor, reservation: Reservation) -> Self {
        let (schema, governor) = (SchemaRef::clone(schema), governor.clone());
        SliceRows { schema, governor, reservation, memory: BTreeMap::new(), runs: Vec::new() }
    }

    /// Keeps rows of a slice.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(super) fn push(&mut self, slice: i64, rows: RecordBatch) -> Result<(), TaskError> {
        let bytes = held_bytes(&rows);
        self.memory.entry(slice).or_default().push(rows);
        // A run is not worth its file below what every operator may hold.
        match self.reservation.try_grow(bytes) || self.reservation.grow_to_floor(bytes) {
            true => Ok(()),
            false => self.make_room(),
        }
    }

    fn make_room(&mut self) -> Result<(), TaskError> {
        // Batches that are spread over many slices are in small pieces, which take far more than their rows.
        for batches in self.memory.values_mut() {
            let (mut joiner, mut joined) = (BatchJoiner::new(&self.schema), Vec::new());
            for rows in std::mem::take(batches) {
                joined.extend(joiner.push(rows)?);
            }
            joined.extend(joiner.finish()?);
            *batches = joined;
        }
        let held: u64 = self.memory.values().flatten().map(held_bytes).sum();
        if held <= self.reservation.bytes() / 2 {
            self.reservation.shrink(self.reservation.bytes() - held);
            return Ok(());
        }
        let mut writer = RunWriter::new(&self.schema, &self.governor, 0);
        for (slice, batches) in std::mem::take(&mut self.memory) {
            for rows in batches {
                writer.push(slice, rows)?;
            }
        }
        self.reservation.free();
        let run = writer.finish(0)?;
        if run.bytes.len() >= TRIM_BYTES_MIN {
            trim();
        }
        self.runs.push(run);
        self.merge()
    }

    fn merge(&mut self) -> Result<(), TaskError> {
        while let Some(first) = self.runs.len().checked_sub(MERGED_RUNS)
            && self.runs.last().is_some_and(|last| last.level == self.runs[first].level)
        {
            let level = self.runs[first].level;
            if self.runs[first..].iter().map(|run| run.bytes.len()).sum::<usize>() > MERGED_BYTES_MAX {
                break;
            }
            let mut runs = self.runs.split_off(first);
            let mut writer = RunWriter::new(&self.schema, &self.governor, 0);
            while let Some(slice) = runs.iter().filter_map(|run| run.slices.front()).min().copied() {
                for run in &mut runs {
                    while let Some(rows) = run.next_of(slice, &self.schema)? {
                        writer.push(slice, rows)?;
                    }
                }
            }
            self.runs.push(writer.finish(level + 1)?);
        }
        Ok(())
    }

    /// The last slice that has rows.
    pub(super) fn last(&self) -> Option<i64> {
        let spilled = self.runs.iter().filter_map(|run| run.slices.back());
        spilled.chain(self.memory.keys().next_back()).max().copied()
    }

    /// Takes the rows of a slice, which no earlier one may follow.
    ///
    /// # Errors
    /// If the disk fails, or returns data other than what was written.
    pub(super) fn take(&mut self, slice: i64) -> Result<Vec<RecordBatch>, TaskError> {
        let mut taken = Vec::new();
        for run in &mut self.runs {
            while let Some(rows) = run.next_of(slice, &self.schema)? {
                taken.push(rows);
            }
        }
        self.runs.retain(|run| !run.slices.is_empty());
        let memory = self.memory.remove(&slice).unwrap_or_default();
        self.reservation.shrink(memory.iter().map(held_bytes).sum());
        taken.extend(memory);
        Ok(taken)
    }

    /// All rows as they are now. Copies nothing.
    pub(super) fn frozen(&self) -> FrozenSlices {
        FrozenSlices {
            schema: SchemaRef::clone(&self.schema),
            governor: self.governor.clone(),
            runs: self.runs.clone(),
            memory: self.memory.clone(),
        }
    }

    /// Keeps the rows of a part of [`FrozenSlices::parts`]. Parts are restored in their order.
    ///
    /// # Errors
    /// If the part is damaged, or as [`SliceRows::push`].
    pub(super) fn restore(&mut self, slices: Vec<i64>, bytes: Bytes) -> Result<(), TaskError> {
        let mut run = SliceRun { slices: slices.into(), bytes, level: 0 };
        while let Some(&slice) = run.slices.front() {
            let rows = run.next_of(slice, &self.schema)?.expect("it is the first slice of the run");
            self.push(slice, rows)?;
        }
        Ok(())
    }
}

impl FrozenSlices {
    /// The rows, encoded in parts: the slices of a part's batches, and the batches. Those of a slice are in the order
    /// in which they came. Parts on disk stay there.
    ///
    /// # Errors
    /// If a column cannot be encoded, or the disk is full or fails.
    pub(super) fn parts(self) -> Result<Vec<(Vec<i64>, Bytes)>, TaskError> {
        let FrozenSlices { schema, governor, mut runs, memory } = self;
        let is_limited = governor.settings().budget_bytes > 0;
        let mut writer = RunWriter::new(&schema, &governor, if is_limited { ENCODED_BYTES_MAX } else { usize::MAX });
        for (slice, batches) in memory {
            for rows in batches {
                writer.push(slice, rows)?;
            }
        }
        runs.push(writer.finish(0)?);
        Ok(runs.into_iter().filter(|run| !run.slices.is_empty()).map(|run| (run.slices.into(), run.bytes)).collect())
    }
}

impl SliceRun {
    /// Takes the next batch, if it is of this slice.
    fn next_of(&mut self, slice: i64, schema: &SchemaRef) -> Result<Option<RecordBatch>, TaskError> {
        if self.slices.front() != Some(&slice) {
            return Ok(None);
        }
        self.slices.pop_front();
        verify(&self.bytes[..self.bytes.len().min(8)])?;
        Ok(Some(rows::decode(schema, &in_flight::next(&mut self.bytes)?)?))
    }
}

/// Writes a run: slices come in order.
struct RunWriter<'a> {
    governor: &'a Governor,
    joiner: BatchJoiner<'a>,
    /// The slice of the batches in the joiner.
    slice: i64,
    slices: VecDeque<i64>,
    /// What has been encoded, at most `memory_max` bytes of it; what came before is in the file.
    memory: Vec<u8>,
    memory_max: usize,
    file: Option<MapWriter>,
}

impl<'a> RunWriter<'a> {
    fn new(schema: &'a SchemaRef, governor: &'a Governor, memory_max: usize) -> Self {
        RunWriter {
            governor,
            joiner: BatchJoiner::new(schema),
            slice: 0,
            slices: VecDeque::new(),
            memory: Vec::new(),
            memory_max,
            file: None,
        }
    }

    fn push(&mut self, slice: i64, rows: RecordBatch) -> Result<(), TaskError> {
        if slice != self.slice {
            if let Some(rows) = self.joiner.finish()? {
                self.write(&rows)?;
            }
            self.slice = slice;
        }
        match self.joiner.push(rows)? {
            Some(rows) => self.write(&rows),
            None => Ok(()),
        }
    }

    fn write(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        let bytes = rows::encode(rows)?;
        self.memory.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.memory.extend_from_slice(&bytes);
        self.slices.push_back(self.slice);
        if self.memory.len() > self.memory_max {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(MapWriter::new(self.governor)?),
            };
            file.write(&self.memory)?;
            self.memory.clear();
        }
        Ok(())
    }

    fn finish(mut self, level: u32) -> Result<SliceRun, TaskError> {
        if let Some(rows) = self.joiner.finish()? {
            self.write(&rows)?;
        }
        let bytes = match self.file {
            Some(mut file) => {
                file.write(&self.memory)?;
                file.finish()?
            }
            None => self.memory.into(),
        };
        Ok(SliceRun { slices: self.slices, bytes, level })
    }
}

/// Makes larger batches of small ones.
struct BatchJoiner<'a> {
    schema: &'a SchemaRef,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: u64,
}

impl<'a> BatchJoiner<'a> {
    fn new(schema: &'a SchemaRef) -> Self {
        BatchJoiner { schema, batches: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Takes a batch. Returns the next one, if that is large enough.
    fn push(&mut self, rows: RecordBatch) -> Result<Option<RecordBatch>, TaskError> {
        self.rows += rows.num_rows();
        self.bytes += batch_bytes(&rows);
        self.batches.push(rows);
        if self.rows < JOINED_ROWS && self.bytes < JOINED_BYTES { Ok(None) } else { self.finish() }
    }

    /// The last batch.
    fn finish(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        (self.rows, self.bytes) = (0, 0);
        let mut batches = std::mem::take(&mut self.batches);
        Ok(match batches.len() {
            0 | 1 => batches.pop(),
            _ => Some(concat_batches(self.schema, &batches)?),
        })
    }
}

/// What a batch takes in memory.
fn held_bytes(rows: &RecordBatch) -> u64 {
    batch_bytes(rows) + BATCH_OVERHEAD_BYTES + rows.num_columns() as u64 * COLUMN_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;
    use tidemill_batch::memory::MemorySettings;

    use super::*;

    fn batch(numbers: impl Iterator<Item = i64>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let texts = numbers.as_primitive::<Int64Type>().values().iter().map(|n| format!("{n:030}"));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).unwrap()
    }

    fn slice_rows() -> (Governor, SliceRows) {
        let settings = MemorySettings { budget_bytes: 2 << 20, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let rows = SliceRows::new(&batch(0..0).schema(), &governor, governor.reservation("slice"));
        (governor, rows)
    }

    /// Each slice has its rows, in the order in which they came, which is that of the numbers.
    fn check(rows: &mut SliceRows, slices: i64, count: i64) {
        for slice in 0..slices {
            let taken = rows.take(slice).unwrap();
            let taken = concat_batches(&rows.schema, &taken).unwrap();
            assert_eq!(taken, batch((0..count).filter(|n| n % slices == slice)), "slice {slice}");
        }
        assert_eq!(rows.last(), None);
        assert_eq!(rows.reservation.bytes(), 0);
    }

    /// Rows that come one by one, for many slices: finds pieces that take far more memory than is counted for them, and
    /// pieces that go to disk instead of being joined.
    #[test]
    fn single_rows_are_joined() {
        let (governor, mut rows) = slice_rows();
        let (count, slices) = (200_000, 80);
        let all = batch(0..count);
        for n in 0..count {
            rows.push(n % slices, all.slice(n as usize, 1)).unwrap();
            let pieces: u64 = if n % 1000 == 0 { rows.memory.values().map(|held| held.len() as u64).sum() } else { 0 };
            assert!(pieces * COLUMN_OVERHEAD_BYTES <= governor.limit_bytes(), "{pieces} pieces");
        }
        assert!(rows.runs.len() < MERGED_RUNS, "{}", rows.runs.len());
        assert!((1..2 * batch_bytes(&all)).contains(&governor.spilled_bytes()), "{}", governor.spilled_bytes());
        check(&mut rows, slices, count);
    }

    /// Many runs: finds one that is never merged, one that is merged again and again, and rows that lose their order.
    #[test]
    fn runs_are_merged() {
        let (governor, mut rows) = slice_rows();
        let (count, slices, length) = (1_800_000, 4, 10_000);
        let (mut written, mut most) = (0, 0);
        for start in (0..count).step_by(length as usize) {
            for slice in 0..slices {
                let of = batch((start..start + length).filter(|n| n % slices == slice));
                written += batch_bytes(&of);
                rows.push(slice, of).unwrap();
            }
            most = most.max(rows.runs.len());
        }
        assert!(written / governor.limit_bytes() > 2 * MERGED_RUNS as u64, "{written} bytes are enough runs");
        assert!((MERGED_RUNS - 1..2 * MERGED_RUNS).contains(&most), "{most}");
        let on_disk: u64 = rows.runs.iter().map(|run| run.bytes.len() as u64).sum();
        assert!(governor.spilled_bytes() < 5 * on_disk / 2, "{} for {on_disk}", governor.spilled_bytes());
        check(&mut rows, slices, count);
    }

    /// A checkpoint refers to what is on disk, however much that is.
    #[test]
    fn runs_are_not_read_for_a_checkpoint() {
        let (governor, mut rows) = slice_rows();
        for start in (0..200_000).step_by(1000) {
            rows.push(start / 1000 % 2, batch(start..start + 1000)).unwrap();
        }
        rows.push(1, batch(0..1)).unwrap();
        rows.runs[0].next_of(0, &rows.schema).unwrap();
        let (runs, spilled) = (rows.runs.clone(), governor.spilled_bytes());
        assert!(runs.len() > 1 && !rows.memory.is_empty());
        let parts = rows.frozen().parts().unwrap();
        assert_eq!(parts.len(), runs.len() + 1);
        for ((slices, bytes), run) in parts.iter().zip(&runs) {
            assert_eq!((slices, bytes.as_ptr_range()), (&Vec::from(run.slices.clone()), run.bytes.as_ptr_range()));
        }
        // What is in memory may take as much again, and so goes to disk.
        let (_, last) = parts.last().unwrap();
        assert!(last.len() <= ENCODED_BYTES_MAX || governor.spilled_bytes() == spilled + last.len() as u64);
    }
}
