//! Sorts data larger than memory: batches are collected, sorted and, when memory runs out, spilled as runs, which are
//! merged.
//!
//! In memory, keys are sorted together with the places of their rows. They are distributed into ranges that fit into a
//! processor's cache, and sorted there. Rows with equal keys keep their input order.

use std::cmp::Ordering;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::row::Rows;

use super::compact::CompactKeys;
use super::merge::{KWayMerge, MergeStep};
use super::order::{PREFIX_BYTES, RowOrder, prefix};
use crate::batch_bytes;
use crate::error::BatchError;
use crate::gather::{RowGather, RowIndex};
use crate::memory::{Governor, Reservation, SpillFile, SpillReader, SpillWriter};

/// Maximum number of rows in a sorted batch.
const ROWS_MAX: usize = 8192;
/// Approximate size of a sorted batch; a merge holds one per run.
const BLOCK_BYTES: usize = 256 << 10;
/// Runs merged at once, if there is enough memory.
const FAN_IN_MAX: usize = 128;
/// The minimum, if there is not.
const FAN_IN_MIN: usize = 8;
/// Memory of a merge per run: a block as read, its batch, and the batch's keys.
const RUN_BYTES: u64 = 3 * BLOCK_BYTES as u64;
/// The fan-in if a single row is as long as a block, or longer.
const FAN_IN_OF_LONG_ROWS: usize = 2;
/// Approximate size of a merged batch: a consumer should not need room for as many long rows as short ones.
const MERGED_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// The fraction of the budget that a merge may hold.
const MERGE_SHARE: u64 = 8;
/// A batch up to this fraction of the budget is taken whole: file readers deliver 8192 rows at once, however long they
/// are.
const PIECE_SHARE: u64 = 32;
/// Rows whose keys stay in a processor's cache while they are sorted.
const NEAR_ROWS: usize = 4096;
/// Minimum number of rows in a range.
const RANGE_ROWS: usize = 512;
/// Rows are distributed into at most two to the power of this ranges at once.
const DIGIT_BITS_MAX: u32 = 11;
/// Memory per row for its place, and for a copy of it while places are dealt.
const PLACE_BYTES: u64 = 2 * size_of::<RowRef>() as u64;

/// The place of a row, with the first bytes of its key.
#[derive(Clone, Copy)]
struct RowRef {
    /// A `u128`, stored like this because its alignment would waste space.
    prefix: [u64; 2],
    at: RowIndex,
}

impl RowRef {
    fn new(prefix: u128, batch: usize, row: usize) -> Self {
        RowRef { prefix: [(prefix >> 64) as u64, prefix as u64], at: RowIndex { batch: batch as u32, row: row as u32 } }
    }

    fn prefix(&self) -> u128 {
        u128::from(self.prefix[0]) << 64 | u128::from(self.prefix[1])
    }
}

/// Sorts rows; what does not fit into the budget goes to disk.
pub struct Sorter {
    schema: SchemaRef,
    order: RowOrder,
    governor: Governor,
    reservation: Reservation,
    batches: Vec<RecordBatch>,
    /// One per row. The places of rows with plain keys are made only when the rows are sorted, since compact keys
    /// depend on all values.
    places: Vec<RowRef>,
    /// Keys of each batch that has any longer than their prefix.
    keys: Vec<Option<Rows>>,
    /// Levels of runs: runs of rows from memory, then runs merged from those, and so on. This limits both how often a
    /// row is merged and how many files are open.
    runs: Vec<Vec<SpillFile>>,
    /// The most that it may hold in memory.
    share_bytes: u64,
    /// Size of the largest batch on disk.
    block_bytes: u64,
    spilled: SpillCounts,
}

/// The amounts a sort has written to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillCounts {
    /// Number of files.
    pub runs: usize,
    /// Rows, each counted as often as it was written.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Sorter {
    /// A sort of rows with this schema, which holds as much memory as `reservation` can get.
    pub fn new(schema: &SchemaRef, order: RowOrder, governor: &Governor, reservation: Reservation) -> Self {
        Sorter {
            schema: SchemaRef::clone(schema),
            order,
            governor: governor.clone(),
            reservation,
            batches: Vec::new(),
            places: Vec::new(),
            keys: Vec::new(),
            runs: Vec::new(),
            share_bytes: u64::MAX,
            block_bytes: 0,
            spilled: SpillCounts::default(),
        }
    }

    /// The same, but holds at most `share_bytes` even if there is room for more, to leave some for others.
    #[must_use]
    pub fn with_limit(mut self, share_bytes: u64) -> Self {
        self.share_bytes = share_bytes;
        self
    }

    /// Takes rows.
    ///
    /// # Errors
    /// `Memory` if there is no room for a single row; `Spill` if the disk is full or fails.
    pub fn push(&mut self, batch: RecordBatch) -> Result<(), BatchError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let rows = self.piece_rows(&batch);
        if batch.num_rows() <= rows {
            return self.take(batch);
        }
        (0..batch.num_rows())
            .step_by(rows)
            .try_for_each(|at| self.take(batch.slice(at, rows.min(batch.num_rows() - at))))
    }

    /// The number of a batch's rows to take at once.
    fn piece_rows(&self, batch: &RecordBatch) -> usize {
        match self.governor.settings().budget_bytes {
            0 => usize::MAX,
            budget => {
                let row_bytes = (batch_bytes(batch) / batch.num_rows() as u64).max(1);
                ((budget / PIECE_SHARE).max(BLOCK_BYTES as u64) / row_bytes).max(1) as usize
            }
        }
    }

    fn take(&mut self, batch: RecordBatch) -> Result<(), BatchError> {
        let keys = if self.order.plain().is_some() { None } else { Some(self.order.rows(&batch)?) };
        let keys_bytes = keys.as_ref().filter(|keys| has_long(keys)).map_or(0, |keys| keys.size() as u64);
        let bytes = batch_bytes(&batch) + keys_bytes + PLACE_BYTES * batch.num_rows() as u64;
        if self.reservation.bytes() + bytes > self.share_bytes || !self.reservation.try_grow(bytes) {
            self.spill()?;
            if !self.reservation.grow_to_floor(bytes) {
                self.reservation.grow(bytes)?;
            }
        }
        if let Some(keys) = keys {
            self.add_places(self.batches.len(), keys);
        }
        self.batches.push(batch);
        Ok(())
    }

    fn add_places(&mut self, batch: usize, keys: Rows) {
        self.places.extend(keys.iter().enumerate().map(|(row, key)| RowRef::new(prefix(key.data()), batch, row)));
        self.keys.push(has_long(&keys).then_some(keys));
    }

    fn spill(&mut self) -> Result<(), BatchError> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let mut sorted = self.sort_memory()?;
        let mut writer = SpillWriter::new(&self.governor, &self.schema)?;
        let mut block_bytes = self.block_bytes;
        while let Some(batch) = sorted.next_batch()? {
            block_bytes = block_bytes.max(batch_bytes(&batch));
            writer.write(&batch)?;
        }
        self.block_bytes = block_bytes;
        drop(sorted);
        self.reservation.free();
        let mut run = writer.finish()?;
        self.count(&run);
        for level in 0.. {
            if self.runs.len() == level {
                self.runs.push(Vec::new());
            }
            self.runs[level].push(run);
            if self.runs[level].len() < self.fan_in() {
                break;
            }
            let full = std::mem::take(&mut self.runs[level]);
            run = self.merged(full)?;
        }
        Ok(())
    }

    fn count(&mut self, run: &SpillFile) {
        let SpillCounts { runs, rows, bytes } = self.spilled;
        self.spilled = SpillCounts { runs: runs + 1, rows: rows + run.rows(), bytes: bytes + run.bytes() };
    }

    /// Memory that a merge holds per run.
    fn run_bytes(&self) -> u64 {
        if self.has_long_rows() { 3 * self.block_bytes } else { RUN_BYTES }
    }

    fn has_long_rows(&self) -> bool {
        self.block_bytes > 2 * MERGED_BYTES
    }

    /// The number of runs to merge at once.
    fn fan_in(&self) -> usize {
        match self.governor.settings().budget_bytes {
            0 => FAN_IN_MAX,
            budget => {
                let least = if self.has_long_rows() { FAN_IN_OF_LONG_ROWS } else { FAN_IN_MIN };
                ((budget / MERGE_SHARE / self.run_bytes()) as usize).clamp(least, FAN_IN_MAX)
            }
        }
    }

    /// A merge of runs. Its memory is no longer available to others.
    fn merging(&self, runs: Vec<SpillFile>) -> Result<MergedRuns, BatchError> {
        let bytes: u64 = runs.iter().map(|run| self.run_bytes().min(4 * run.bytes())).sum();
        self.reservation.force_grow(bytes.min(self.governor.settings().budget_bytes / MERGE_SHARE));
        MergedRuns::new(self.order.clone(), runs)
    }

    fn merged(&mut self, runs: Vec<SpillFile>) -> Result<SpillFile, BatchError> {
        let mut merging = self.merging(runs)?;
        let mut writer = SpillWriter::new(&self.governor, &self.schema)?;
        while let Some(batch) = merging.next_batch()? {
            writer.write(&batch)?;
        }
        drop(merging);
        self.reservation.free();
        let run = writer.finish()?;
        self.count(&run);
        Ok(run)
    }

    /// Makes the places of rows whose keys are plain numbers.
    fn find_places(&mut self) -> Result<(), BatchError> {
        let Some(columns) = self.order.plain() else { return Ok(()) };
        let Some(mut compact) = CompactKeys::of(&self.batches, columns) else {
            // Keys this long are rare, so no memory was reserved for them.
            for number in 0..self.batches.len() {
                let keys = self.order.rows(&self.batches[number])?;
                self.reservation.force_grow(keys.size() as u64);
                self.add_places(number, keys);
            }
            return Ok(());
        };
        self.places.reserve_exact(self.batches.iter().map(RecordBatch::num_rows).sum());
        let mut keys = Vec::new();
        for (number, batch) in self.batches.iter().enumerate() {
            compact.keys(batch, &mut keys);
            self.places.extend(keys.iter().enumerate().map(|(row, &key)| RowRef::new(key, number, row)));
        }
        Ok(())
    }

    fn sort_memory(&mut self) -> Result<MemoryRun, BatchError> {
        self.find_places()?;
        let (batches, mut places) = (std::mem::take(&mut self.batches), std::mem::take(&mut self.places));
        let keys = std::mem::take(&mut self.keys);
        if keys.iter().all(Option::is_none) {
            sort_places(&mut places, &|a, b| a.prefix().cmp(&b.prefix()));
        } else {
            // A row without an entry here has a short key: no longer key begins with its prefix.
            let key =
                |place: &RowRef| keys[place.at.batch as usize].as_ref().map(|rows| rows.row(place.at.row as usize));
            sort_places(&mut places, &|a, b| {
                a.prefix().cmp(&b.prefix()).then_with(|| match (key(a), key(b)) {
                    (Some(a), Some(b)) => a.data().cmp(b.data()),
                    _ => Ordering::Equal,
                })
            });
        }
        let bytes: u64 = batches.iter().map(batch_bytes).sum();
        let rows_max = block_rows(bytes, places.len());
        Ok(MemoryRun { gather: RowGather::new(&self.schema, &batches), places, next: 0, rows_max, picks: Vec::new() })
    }

    /// All rows in order. Memory it holds stays reserved until the result is dropped. If that is most of the available
    /// memory, rows go to disk instead, because the consumer needs some, too.
    ///
    /// # Errors
    /// As [`Sorter::push`].
    pub fn finish(mut self) -> Result<SortedBatches, BatchError> {
        let limit = self.governor.limit_bytes();
        if self.runs.is_empty() && (limit == 0 || self.governor.reserved_bytes() <= limit / 2) {
            let in_memory = self.sort_memory()?;
            let source = MergeInput::Memory(in_memory);
            return Ok(SortedBatches { source, spilled: self.spilled, _reservation: self.reservation });
        }
        self.spill()?;
        // The shortest runs first.
        let (mut runs, fan_in) =
            (std::mem::take(&mut self.runs).into_iter().flatten().collect::<Vec<_>>(), self.fan_in());
        while runs.len() > fan_in {
            let few = (runs.len() - fan_in + 1).min(fan_in);
            let rest = runs.split_off(few);
            let run = self.merged(runs)?;
            runs = rest;
            runs.push(run);
        }
        let merging = self.merging(runs)?;
        Ok(SortedBatches { source: MergeInput::Runs(merging), spilled: self.spilled, _reservation: self.reservation })
    }
}

fn has_long(keys: &Rows) -> bool {
    keys.lengths().any(|bytes| bytes > PREFIX_BYTES)
}

/// Sorts places with a comparison that starts with their prefixes; equal ones keep their order.
fn sort_places(places: &mut [RowRef], compare: &impl Fn(&RowRef, &RowRef) -> Ordering) {
    let mut spare = if places.len() > NEAR_ROWS { places.to_vec() } else { Vec::new() };
    sort_range(places, &mut spare, compare);
}

/// The same, but first distributes each part that does not fit into the cache by the bits in which prefixes differ.
/// `spare` has the same length if it is needed.
fn sort_range(places: &mut [RowRef], spare: &mut [RowRef], compare: &impl Fn(&RowRef, &RowRef) -> Ordering) {
    if places.len() <= NEAR_ROWS {
        return places.sort_by(compare);
    }
    let prefixes = places.iter().map(RowRef::prefix);
    let (low, high) = prefixes.fold((u128::MAX, 0), |(low, high), prefix| (low.min(prefix), high.max(prefix)));
    if low == high {
        return places.sort_by(compare);
    }
    let bits = u128::BITS - (high - low).leading_zeros();
    let digit_bits = (places.len() / RANGE_ROWS).ilog2().clamp(1, DIGIT_BITS_MAX).min(bits);
    let digit = |place: &RowRef| ((place.prefix() - low) >> (bits - digit_bits)) as usize;
    let mut ends = vec![0; 1 << digit_bits];
    places.iter().for_each(|place| ends[digit(place)] += 1);
    let mut start = 0;
    for end in &mut ends {
        (*end, start) = (start, start + *end);
    }
    for place in places.iter() {
        let to = &mut ends[digit(place)];
        spare[*to] = *place;
        *to += 1;
    }
    places.copy_from_slice(spare);
    let mut start = 0;
    for end in ends {
        if end > start {
            sort_range(&mut places[start..end], &mut spare[start..end], compare);
        }
        start = end;
    }
}

fn block_rows(bytes: u64, rows: usize) -> usize {
    let row_bytes = (bytes as usize / rows.max(1)).max(1);
    (BLOCK_BYTES / row_bytes).clamp(1, ROWS_MAX)
}

struct MemoryRun {
    gather: RowGather,
    places: Vec<RowRef>,
    next: usize,
    rows_max: usize,
    /// Kept to reuse its memory.
    picks: Vec<RowIndex>,
}

impl MemoryRun {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        let end = self.places.len().min(self.next + self.rows_max);
        if self.next == end {
            return Ok(None);
        }
        self.picks.clear();
        self.picks.extend(self.places[self.next..end].iter().map(|place| place.at));
        self.next = end;
        Ok(Some(self.gather.rows(&self.picks)?))
    }
}

struct MergedRuns {
    merge: KWayMerge,
    readers: Vec<SpillReader>,
}

impl MergedRuns {
    fn new(order: RowOrder, runs: Vec<SpillFile>) -> Result<Self, BatchError> {
        let readers: Vec<SpillReader> = runs.iter().map(SpillFile::read).collect::<Result<_, _>>()?;
        Ok(MergedRuns { merge: KWayMerge::new(order, readers.len(), ROWS_MAX, MERGED_BYTES), readers })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        loop {
            match self.merge.step()? {
                MergeStep::Need(stream) => {
                    let batch = self.readers[stream].next_batch()?;
                    self.merge.offer(stream, batch)?;
                }
                MergeStep::Batch(batch) => return Ok(Some(batch)),
                MergeStep::Done => return Ok(None),
            }
        }
    }
}

enum MergeInput {
    Memory(MemoryRun),
    Runs(MergedRuns),
}

/// Sorted rows, batch by batch.
pub struct SortedBatches {
    source: MergeInput,
    spilled: SpillCounts,
    _reservation: Reservation,
}

impl SortedBatches {
    /// The amounts the sort has written to disk.
    pub fn spilled(&self) -> SpillCounts {
        self.spilled
    }

    /// The next rows.
    ///
    /// # Errors
    /// `Spill` if the disk fails, or returns data other than what was written.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        match &mut self.source {
            MergeInput::Memory(in_memory) => in_memory.next_batch(),
            MergeInput::Runs(merging) => merging.next_batch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::{Float64Type, Int64Type};
    use proptest::prelude::*;

    use super::*;
    use crate::local::order::SortKey;
    use crate::memory::MemorySettings;

    fn batch(rows: &[(Option<i64>, f64)]) -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0)));
        let x: ArrayRef = Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1)));
        let s: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| format!("{row:?}"))));
        RecordBatch::try_from_iter_with_nullable([("n", n, true), ("x", x, true), ("s", s, true)]).unwrap()
    }

    fn sorter(batches: &[RecordBatch], keys: &[SortKey], budget_bytes: u64) -> (Governor, Sorter) {
        let settings = MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let schema = batches[0].schema();
        let order = RowOrder::new(&schema, keys).unwrap();
        let mut sorter = Sorter::new(&schema, order, &governor, governor.reservation("sort"));
        batches.iter().for_each(|batch| sorter.push(batch.clone()).unwrap());
        (governor, sorter)
    }

    fn drain(mut sorted: SortedBatches) -> Vec<(Option<i64>, f64)> {
        let mut rows = Vec::new();
        while let Some(batch) = sorted.next_batch().unwrap() {
            assert!(batch.num_rows() <= ROWS_MAX);
            let (n, x) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Float64Type>());
            rows.extend((0..batch.num_rows()).map(|row| (n.is_valid(row).then(|| n.value(row)), x.value(row))));
            // The other columns move along.
            let text = batch.column(2).as_string::<i32>();
            (0..batch.num_rows()).for_each(|row| {
                let whole = (n.is_valid(row).then(|| n.value(row)), x.value(row));
                assert_eq!(text.value(row), format!("{whole:?}"));
            });
        }
        rows
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// A comparison with the standard library's sort catches rows that are out of place, lost at the end of a run
        /// or torn apart, both in memory and through many runs.
        #[test]
        fn equals_a_sort_of_the_rows(
            rows in prop::collection::vec(prop::collection::vec((prop::option::of(-50i64..50), -3.0f64..3.0), 0..80), 1..30),
            descending: bool, spill: bool,
        ) {
            let batches: Vec<RecordBatch> = rows.iter().map(|rows| batch(rows)).collect();
            let first = if descending { SortKey::descending("n") } else { SortKey::ascending("n") };
            let budget = if spill { 24 << 10 } else { 0 };
            let (governor, sorter) = sorter(&batches, &[first, SortKey::ascending("x")], budget);
            let mut expected: Vec<(Option<i64>, f64)> = rows.concat();
            expected.sort_by(|a, b| {
                let n = if descending { b.0.cmp(&a.0) } else { a.0.cmp(&b.0) };
                n.then(a.1.total_cmp(&b.1))
            });
            prop_assert_eq!(drain(sorter.finish().unwrap()), expected);
            prop_assert_eq!(governor.reserved_bytes(), 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// Strings that differ only after their prefixes, in some batches and not in others, must still come in order
        /// in either direction, whether keys or only prefixes are kept.
        #[test]
        fn equals_a_sort_of_texts(
            texts in prop::collection::vec(prop::collection::vec("[ab]{0,3}(a{10,14})?[abc]{0,9}", 0..60), 1..12),
            descending: bool, spill: bool,
        ) {
            let batches: Vec<RecordBatch> = texts.iter().map(|texts| {
                let column: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
                RecordBatch::try_from_iter([("t", column)]).unwrap()
            }).collect();
            let key = if descending { SortKey::descending("t") } else { SortKey::ascending("t") };
            // Room for the largest batch with its keys, but not for all batches.
            let (_, sorter) = sorter(&batches, &[key], if spill { 16 << 10 } else { 0 });
            let (mut sorted, mut found) = (sorter.finish().unwrap(), Vec::new());
            while let Some(batch) = sorted.next_batch().unwrap() {
                found.extend(batch.column(0).as_string::<i32>().iter().map(|text| text.unwrap().to_owned()));
            }
            let mut expected: Vec<String> = texts.concat();
            expected.sort();
            if descending {
                expected.reverse();
            }
            prop_assert_eq!(found, expected);
        }
    }

    /// A batch of long rows that is larger than the budget goes to disk in pieces, and comes back in batches of as few
    /// rows as fit: with a limit on their number alone, a merge would hold hundreds of MiB.
    #[test]
    fn rows_that_are_long() {
        let numbers = || (0..200).map(|row| row * 77 % 200);
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
        let text = |number: i64| format!("{number:03}{}", "x".repeat(100_000));
        let s: ArrayRef = Arc::new(StringViewArray::from_iter_values(numbers().map(text)));
        let batch = RecordBatch::try_from_iter([("n", n), ("s", s)]).unwrap();
        let budget = 8 << 20;
        assert!(batch_bytes(&batch) > 2 * budget);
        for key in ["n", "s"] {
            let (governor, sorter) = sorter(std::slice::from_ref(&batch), &[SortKey::ascending(key)], budget);
            assert!(governor.reserved_bytes() <= budget);
            let mut sorted = sorter.finish().unwrap();
            let spilled = sorted.spilled();
            assert!(
                spilled.runs > 1 && spilled.rows >= 200 && spilled.bytes == governor.spilled_bytes(),
                "{spilled:?}"
            );
            let mut found = Vec::new();
            while let Some(batch) = sorted.next_batch().unwrap() {
                assert!(batch_bytes(&batch) < budget / 8 && governor.reserved_bytes() <= budget);
                assert!(batch.get_array_memory_size() < budget as usize / 4, "it holds no more than its own rows");
                found.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
            }
            assert_eq!(found, (0..200).collect::<Vec<_>>());
        }
    }

    /// More rows than are sorted in one go, with keys of all kinds: equal rows keep their order.
    #[test]
    fn many_rows_are_dealt() {
        let keys: [fn(i64) -> i64; 5] =
            [|i| i * 7919 % 50_000, |i| i % 3, |_| 1, |i| if i % 100 == 0 { i << 40 } else { i % 5000 }, |i| -i];
        for (number, key) in keys.into_iter().enumerate() {
            let rows: Vec<(Option<i64>, f64)> = (0..50_000).map(|i| (Some(key(i)), i as f64)).collect();
            let batches: Vec<RecordBatch> = rows.chunks(777).map(batch).collect();
            let mut expected = rows;
            expected.sort_by_key(|row| row.0);
            let by_number = sorter(&batches, &[SortKey::ascending("n")], 0).1;
            assert_eq!(drain(by_number.finish().unwrap()), expected, "{number}");
            // Equal prefixes of longer keys that differ.
            let by_both = sorter(&batches, &[SortKey::ascending("n"), SortKey::ascending("s")], 0).1;
            expected.sort_by_key(|row| (row.0, format!("{row:?}")));
            assert_eq!(drain(by_both.finish().unwrap()), expected, "{number}");
        }
    }

    /// More runs than are merged at once: the merge of merges loses nothing. Each run is an open file, and the number
    /// of those is limited per process.
    #[test]
    fn many_runs_are_merged_in_turns() {
        let rows: Vec<(Option<i64>, f64)> = (0..60_000).map(|i| (Some(i * 7919 % 60_000), i as f64)).collect();
        let batches: Vec<RecordBatch> = rows.chunks(100).map(batch).collect();
        let (governor, sorter) = sorter(&batches, &[SortKey::ascending("n")], 24 << 10);
        assert!(sorter.runs.len() > 2, "{} levels", sorter.runs.len());
        assert!(sorter.runs.iter().all(|runs| runs.len() < sorter.fan_in()));
        let sorted = drain(sorter.finish().unwrap());
        assert_eq!(sorted.len(), 60_000);
        assert!(sorted.iter().enumerate().all(|(at, row)| row.0 == Some(at as i64)));
        assert!(governor.spilled_bytes() > 0);
    }
}
