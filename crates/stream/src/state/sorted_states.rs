//! Frozen states, sorted by the bucket of their key, in memory or on disk. They are merged and saved a few buckets at a
//! time, so that the table of these fits in the processor's cache, and so that not everything needs to fit in memory.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{BatchCoalescer, concat_batches, take_record_batch};
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::verify_rows;
use tidemill_dataflow::route_map::BUCKETS;

use crate::state::groups::{GroupAggregation, GroupStates};
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::{buckets_of_key, in_order};

/// All buckets.
pub(crate) const ALL: Range<u32> = 0..BUCKETS;

/// The number of levels of similar size that are merged into one. With more, states would be copied less often, but
/// more keys would be stored several times.
const TOGETHER: usize = 4;
/// Maximum number of pieces of a level in memory; handovers of other copies add pieces.
const PIECES: usize = 16;
/// Smaller states are not worth a file, and go to disk together with others.
pub(crate) const SMALL_BYTES: usize = 1 << 17;
/// Larger states are sorted and merged outside of the operator if possible.
pub(crate) const LATER_BYTES: usize = 1 << 20;
/// Size of states that are merged at a time: a share of a processor's cache.
pub(crate) const CACHED_BYTES: usize = 1 << 20;

/// States sorted by bucket. Clones share the same states.
#[derive(Clone)]
pub(crate) struct SortedStates {
    states: RecordBatch,
    /// The bucket of each state.
    of: Arc<[u16]>,
    row_bytes: usize,
    on_disk: bool,
}

impl SortedStates {
    /// Sorts states, keys first, in memory.
    pub(crate) fn new(states: RecordBatch, of: &GroupAggregation) -> Result<Self> {
        let buckets = buckets_of_key(&states, 0, of.keys.len())?;
        if buckets.is_sorted() {
            return Ok(SortedStates::in_memory(states, buckets.into_iter()));
        }
        let (order, starts) = in_order(&buckets, |_| true);
        let counts = (0..).zip(starts.windows(2)).map(|(bucket, ends)| (bucket, ends[1] - ends[0]));
        let sorted = counts.flat_map(|(bucket, count)| std::iter::repeat_n(bucket, count as usize));
        Ok(SortedStates::in_memory(take_record_batch(&states, &UInt32Array::from(order))?, sorted))
    }

    /// Sorts states, keys first, and writes them to disk, in pieces like those of [`SortedStates::on_disk`]. Only one
    /// piece at a time is copied, because there is no memory for a second copy of everything when state is spilled.
    pub(crate) fn new_on_disk(
        states: RecordBatch,
        of: &GroupAggregation,
        disk: &SpillArea,
    ) -> Result<Vec<SortedStates>, TaskError> {
        let row_bytes = bytes_per_row(&states);
        let step = (disk.run_bytes() / row_bytes).max(1);
        let buckets = buckets_of_key(&states, 0, of.keys.len())?;
        if states.num_rows() <= step || buckets.is_sorted() {
            return SortedStates::new(states, of)?.on_disk(disk);
        }
        let (order, _) = in_order(&buckets, |_| true);
        let piece = |places: &[u32]| {
            let rows = take_record_batch(&states, &UInt32Array::from(places.to_vec()))?;
            let of = places.iter().map(|&place| buckets[place as usize] as u16).collect();
            Ok(SortedStates { states: disk.map(&rows)?, of, row_bytes, on_disk: true })
        };
        order.chunks(step).map(piece).collect()
    }

    fn in_memory(states: RecordBatch, of: impl Iterator<Item = u32>) -> Self {
        let row_bytes = bytes_per_row(&states);
        SortedStates { states, of: of.map(|bucket| bucket as u16).collect(), row_bytes, on_disk: false }
    }

    pub(crate) fn rows(&self) -> usize {
        self.states.num_rows()
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.of) + if self.on_disk { 0 } else { self.states_bytes() }
    }

    /// Bytes in memory or on disk.
    pub(crate) fn states_bytes(&self) -> usize {
        self.rows() * self.row_bytes
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.on_disk
    }

    fn places(&self, buckets: &Range<u32>) -> Range<usize> {
        let place = |bucket| self.of.partition_point(|&of| u32::from(of) < bucket);
        place(buckets.start)..place(buckets.end)
    }

    /// The states of a range of buckets, and the bucket of each.
    ///
    /// # Errors
    /// If they are on disk and are not as they were written.
    pub(crate) fn of(&self, buckets: &Range<u32>) -> Result<(RecordBatch, &[u16]), TaskError> {
        let Range { start, end } = self.places(buckets);
        Ok((self.slice(start, end - start)?, &self.of[start..end]))
    }

    /// The states in a range of indices.
    ///
    /// # Errors
    /// As [`SortedStates::of`].
    pub(crate) fn slice(&self, start: usize, rows: usize) -> Result<RecordBatch, TaskError> {
        let states = self.states.slice(start, rows);
        if self.on_disk {
            verify_rows(&states)?;
        }
        Ok(states)
    }

    /// The states of the buckets that go, and the others.
    pub(crate) fn split(self, goes: impl Fn(u16) -> bool) -> Result<(Option<SortedStates>, Option<SortedStates>)> {
        let (mut gone, mut rest, mut start) = (Vec::new(), Vec::new(), 0);
        for run in self.of.chunk_by(|&a, &b| goes(a) == goes(b)) {
            if goes(run[0]) { &mut gone } else { &mut rest }.push(start..start + run.len());
            start += run.len();
        }
        if rest.is_empty() {
            return Ok((Some(self), None));
        }
        if gone.is_empty() {
            return Ok((None, Some(self)));
        }
        let some = |places: Vec<Range<usize>>| -> Result<Option<SortedStates>> {
            let slices: Vec<RecordBatch> =
                places.iter().map(|place| self.states.slice(place.start, place.len())).collect();
            let of = places.into_iter().flat_map(|place| &self.of[place]).map(|&bucket| u32::from(bucket));
            Ok(Some(SortedStates::in_memory(concat_batches(self.states.schema_ref(), &slices)?, of)))
        };
        Ok((some(gone)?, some(rest)?))
    }

    /// The same on disk, in pieces small enough to be merged in memory.
    pub(crate) fn on_disk(self, disk: &SpillArea) -> Result<Vec<SortedStates>, TaskError> {
        if self.on_disk {
            return Ok(vec![self]);
        }
        let step = (disk.run_bytes() / self.row_bytes).max(1);
        let piece = |start: usize| {
            let rows = step.min(self.rows() - start);
            let states = disk.map(&self.states.slice(start, rows))?;
            Ok(SortedStates {
                states,
                of: self.of[start..start + rows].into(),
                row_bytes: self.row_bytes,
                on_disk: true,
            })
        };
        (0..self.rows()).step_by(step).map(piece).collect()
    }
}

fn bytes_per_row(states: &RecordBatch) -> usize {
    (batch_bytes(states) as usize).div_ceil(states.num_rows().max(1)).max(1)
}

/// Moves pieces to disk that are in memory.
pub(crate) fn put_on_disk(pieces: &mut Vec<SortedStates>, disk: &SpillArea) -> Result<(), TaskError> {
    let mapped = std::mem::take(pieces).into_iter().map(|piece| piece.on_disk(disk));
    *pieces = mapped.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok(())
}

/// The same for small pieces only; pieces that may be merged in memory share a file.
pub(crate) fn put_small_on_disk<'a>(
    pieces: impl Iterator<Item = &'a mut SortedStates>,
    disk: &SpillArea,
) -> Result<(), TaskError> {
    let (mut run, mut bytes) = (Vec::new(), 0);
    for piece in pieces.filter(|piece| !piece.on_disk && piece.bytes() < SMALL_BYTES) {
        if bytes + piece.states_bytes() > disk.run_bytes() {
            put_in_one_file(&mut run, disk)?;
            bytes = 0;
        }
        bytes += piece.states_bytes();
        run.push(piece);
    }
    put_in_one_file(&mut run, disk)
}

fn put_in_one_file(run: &mut Vec<&mut SortedStates>, disk: &SpillArea) -> Result<(), TaskError> {
    let Some(first) = run.first() else { return Ok(()) };
    let all = concat_batches(&first.states.schema(), run.iter().map(|piece| &piece.states))?;
    let (all, mut start) = (disk.map(&all)?, 0);
    for piece in run.drain(..) {
        piece.states = all.slice(start, piece.rows());
        piece.on_disk = true;
        start += piece.rows();
    }
    Ok(())
}

/// Divides all buckets into ranges, each of a single bucket or with at most `bytes` of these states.
pub(crate) fn ranges<'a>(states: impl IntoIterator<Item = &'a SortedStates>, bytes: usize) -> Vec<Range<u32>> {
    let mut of = vec![0_usize; BUCKETS as usize];
    for piece in states {
        for run in piece.of.chunk_by(|a, b| a == b) {
            of[run[0] as usize] += run.len() * piece.row_bytes;
        }
    }
    let (mut ranges, mut start, mut sum) = (Vec::new(), 0, 0);
    for (bucket, more) in (0..).zip(of) {
        if sum > 0 && sum + more > bytes {
            ranges.push(start..bucket);
            (start, sum) = (bucket, 0);
        }
        sum += more;
    }
    ranges.push(start..BUCKETS);
    ranges
}

/// A value that is made by whoever needs it first, while others wait; usually outside of the operator.
type Made<T> = LazyLock<Result<T, String>, Box<dyn FnOnce() -> Result<T, String> + Send>>;

/// States that were frozen. Clones share the same states.
#[derive(Clone)]
pub(crate) enum DetachedStates {
    Sorted(SortedStates),
    Unsorted(Arc<UnsortedStates>),
}

pub(crate) struct UnsortedStates {
    rows: usize,
    bytes: usize,
    sorted: Made<SortedStates>,
}

impl DetachedStates {
    pub(crate) fn new(states: RecordBatch, of: &Arc<GroupAggregation>) -> Result<Self> {
        let (rows, bytes) = (states.num_rows(), batch_bytes(&states) as usize);
        if bytes < LATER_BYTES {
            return Ok(DetachedStates::Sorted(SortedStates::new(states, of)?));
        }
        let of = Arc::clone(of);
        let sort = move || SortedStates::new(states, &of).map_err(|error| error.to_string());
        Ok(DetachedStates::Unsorted(Arc::new(UnsortedStates { rows, bytes, sorted: LazyLock::new(Box::new(sort)) })))
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            DetachedStates::Sorted(sorted) => sorted.rows(),
            DetachedStates::Unsorted(cut) => cut.rows,
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            DetachedStates::Sorted(sorted) => sorted.bytes(),
            DetachedStates::Unsorted(cut) => cut.bytes,
        }
    }

    /// The states, sorted.
    pub(crate) fn sorted(&self) -> Result<SortedStates, TaskError> {
        match self {
            DetachedStates::Sorted(sorted) => Ok(sorted.clone()),
            DetachedStates::Unsorted(cut) => Ok((*cut.sorted).clone()?),
        }
    }
}

/// Levels that are being merged outside of the operator. Until then, the original levels are used.
struct LevelMerge {
    places: Range<usize>,
    merged: Arc<Made<Vec<SortedStates>>>,
}

/// Levels of states, older and larger ones first. Within a level, keys are distinct.
#[derive(Default)]
pub(crate) struct StateLevels {
    levels: Vec<Vec<SortedStates>>,
    merging: Option<LevelMerge>,
}

impl StateLevels {
    pub(crate) fn rows(&self) -> usize {
        self.pieces().map(SortedStates::rows).sum()
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &SortedStates> {
        self.levels.iter().flatten()
    }

    /// The pieces, to be moved.
    pub(crate) fn pieces_mut(&mut self) -> Result<impl Iterator<Item = &mut SortedStates>, TaskError> {
        self.end_merging(true)?;
        Ok(self.levels.iter_mut().flatten())
    }

    pub(crate) fn into_levels(self) -> Vec<Vec<SortedStates>> {
        self.levels
    }

    /// Adds a level.
    pub(crate) fn add(&mut self, mut level: Vec<SortedStates>) {
        level.retain(|piece| piece.rows() > 0);
        if !level.is_empty() {
            self.levels.push(level);
        }
    }

    /// Adds states to a level that does not contain their keys.
    pub(crate) fn add_to(&mut self, level: usize, pieces: Vec<SortedStates>) -> Result<(), TaskError> {
        self.end_merging(true)?;
        match self.levels.get_mut(level) {
            Some(level) => level.extend(pieces.into_iter().filter(|piece| piece.rows() > 0)),
            None => self.add(pieces),
        }
        Ok(())
    }

    /// The first of the levels that should be merged, because they are of similar size, and on disk or small enough.
    fn alike(&self, disk: &SpillArea) -> Option<usize> {
        let rows = |level: &[SortedStates]| level.iter().map(SortedStates::rows).sum::<usize>();
        let from = self.levels.len().checked_sub(TOGETHER)?;
        let [largest, .., smallest] = &self.levels[from..] else { return None };
        let last = || self.levels[from..].iter().flatten();
        let fits =
            last().any(SortedStates::is_on_disk) || last().map(SortedStates::bytes).sum::<usize>() <= disk.run_bytes();
        (rows(largest) < TOGETHER * rows(smallest) && fits).then_some(from)
    }

    /// Merges levels of similar size, so that the size of a key's states does not grow with the number of its updates,
    /// and so that each state is copied only a few times.
    pub(crate) fn compact(&mut self, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Result<(), TaskError> {
        self.compact_but(0, of, disk)
    }

    /// The same, but results smaller than `small_bytes` are in memory, even if parts of them were on disk.
    pub(crate) fn compact_but(
        &mut self,
        small_bytes: usize,
        of: &Arc<GroupAggregation>,
        disk: &SpillArea,
    ) -> Result<(), TaskError> {
        self.end_merging(true)?;
        while let Some(from) = self.alike(disk) {
            let last = self.levels[from..].iter().flatten();
            let on_disk = last.clone().any(SortedStates::is_on_disk);
            let to_disk = on_disk && last.map(SortedStates::states_bytes).sum::<usize>() >= small_bytes;
            let pieces: Vec<SortedStates> = self.levels.drain(from..).flatten().collect();
            let merged = merged(&pieces, to_disk, of, disk)?;
            self.add(merged);
        }
        for level in &mut self.levels {
            let bytes = level.iter().map(SortedStates::states_bytes).sum::<usize>();
            if level.len() > PIECES && !level.iter().any(SortedStates::is_on_disk) && bytes <= disk.run_bytes() {
                *level = merged(level, false, of, disk)?;
            }
        }
        Ok(())
    }

    /// The same, but long merges in memory run in a separate thread.
    pub(crate) fn compact_later(&mut self, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Result<(), TaskError> {
        self.end_merging(false)?;
        if self.merging.is_some() {
            return Ok(());
        }
        let runtime = tokio::runtime::Handle::try_current().ok();
        let (Some(runtime), Some(from)) = (runtime, self.alike(disk)) else { return self.compact(of, disk) };
        let last = self.levels[from..].iter().flatten();
        if last.clone().any(SortedStates::is_on_disk)
            || last.clone().map(SortedStates::bytes).sum::<usize>() < LATER_BYTES
        {
            return self.compact(of, disk);
        }
        let pieces: Vec<SortedStates> = last.cloned().collect();
        let (of, disk) = (Arc::clone(of), disk.clone());
        let merge = move || merged(&pieces, false, &of, &disk).map_err(|error| error.to_string());
        let merged: Arc<Made<_>> = Arc::new(LazyLock::new(Box::new(merge)));
        let making = Arc::clone(&merged);
        // The result, or an error, is read when it replaces these levels.
        runtime.spawn_blocking(move || making.is_ok());
        self.merging = Some(LevelMerge { places: from..self.levels.len(), merged });
        Ok(())
    }

    /// Replaces levels by their merged ones, if these are ready. If `wait`, waits for them.
    fn end_merging(&mut self, wait: bool) -> Result<(), TaskError> {
        let ends = |merging: &mut LevelMerge| wait || LazyLock::get(&merging.merged).is_some();
        if let Some(LevelMerge { places, merged }) = self.merging.take_if(ends) {
            self.levels.splice(places, [(**merged).clone()?]);
        }
        Ok(())
    }

    /// Moves everything to disk.
    pub(crate) fn spill(&mut self, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Result<(), TaskError> {
        self.end_merging(true)?;
        self.levels.iter_mut().try_for_each(|level| put_on_disk(level, disk))?;
        self.compact(of, disk)
    }
}

/// Merges the states of a range of buckets into a table, which is created if it is missing and there are any.
pub(crate) fn merge_into(
    pieces: &[SortedStates],
    merged: &mut Option<GroupStates>,
    of: &Arc<GroupAggregation>,
    buckets: &Range<u32>,
) -> Result<(), TaskError> {
    for piece in pieces {
        let (states, _) = piece.of(buckets)?;
        if states.num_rows() == 0 {
            continue;
        }
        match merged {
            Some(merged) => merged,
            None => merged.insert(GroupStates::new(of)?),
        }
        .merge(&states)?;
    }
    Ok(())
}

/// Merges states into one for each key.
pub(crate) fn merged(
    pieces: &[SortedStates],
    to_disk: bool,
    of: &Arc<GroupAggregation>,
    disk: &SpillArea,
) -> Result<Vec<SortedStates>, TaskError> {
    // All results are allocated in one piece; pages that are not needed are never touched.
    let most = pieces.iter().map(SortedStates::rows).sum::<usize>().max(1);
    let mut run = BatchCoalescer::new(Arc::clone(&of.state_schema), most);
    let (mut merged, mut buckets, mut bytes) = (Vec::new(), Vec::<u16>::new(), 0);
    let mut finish = |run: &mut BatchCoalescer, buckets: Vec<u16>| -> Result<(), TaskError> {
        run.finish_buffered_batch()?;
        if let Some(states) = run.next_completed_batch() {
            let all = SortedStates::in_memory(states, buckets.into_iter().map(u32::from));
            merged.extend(if to_disk { all.on_disk(disk)? } else { vec![all] });
        }
        Ok(())
    };
    let mut groups = GroupStates::new(of)?;
    for range in ranges(pieces, disk.run_bytes().min(CACHED_BYTES)) {
        for piece in pieces {
            let (states, _) = piece.of(&range)?;
            if states.num_rows() > 0 {
                groups.merge(&states)?;
            }
        }
        let piece = SortedStates::new(groups.take_states()?, of)?;
        bytes += piece.bytes();
        if bytes > disk.run_bytes() && !buckets.is_empty() {
            finish(&mut run, std::mem::take(&mut buckets))?;
            bytes = piece.bytes();
        }
        buckets.extend_from_slice(&piece.of);
        run.push_batch(piece.states)?;
    }
    finish(&mut run, buckets)?;
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    /// Keys without functions: the state of a key is the key itself.
    fn of() -> Arc<GroupAggregation> {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let key = Arc::new(datafusion::physical_expr::expressions::Column::new("n", 0));
        Arc::new(GroupAggregation::new(vec![(key, "n".into())], Vec::new(), Vec::new(), &schema).unwrap())
    }

    fn states(values: impl Iterator<Item = i64>) -> RecordBatch {
        let values: ArrayRef = Arc::new(Int64Array::from_iter(values.map(Some)));
        RecordBatch::try_new(Arc::clone(&of().state_schema), vec![values]).unwrap()
    }

    fn values<'a>(pieces: impl IntoIterator<Item = &'a SortedStates>) -> Vec<i64> {
        let values = |piece: &SortedStates| piece.states.column(0).as_primitive::<Int64Type>().values().to_vec();
        pieces.into_iter().flat_map(values).collect()
    }

    fn in_order(mut values: Vec<i64>) -> Vec<i64> {
        values.sort_unstable();
        values
    }

    /// States sorted onto disk must be the same as those sorted in memory, in pieces that may be merged at once.
    #[test]
    fn states_that_are_sorted_onto_disk_are_the_same() {
        let disk = SpillArea::with_runs_of(800);
        let expected = SortedStates::new(states(0..5000), &of()).unwrap();
        let pieces = SortedStates::new_on_disk(states(0..5000), &of(), &disk).unwrap();
        assert!(pieces.len() >= 50 && pieces.iter().all(|piece| piece.on_disk && piece.rows() <= 100));
        assert_eq!(values(&pieces), values([&expected]));
        let buckets: Vec<u16> = pieces.iter().flat_map(|piece| piece.of.iter().copied()).collect();
        assert_eq!(buckets, expected.of.to_vec());
    }

    /// A window would lack a state that is in no range of buckets, and count one in two ranges twice.
    #[test]
    fn every_state_is_in_one_range() {
        let disk = SpillArea::with_runs_of(800);
        let all = SortedStates::new(states(0..5000), &of()).unwrap();
        let bucket: std::collections::HashMap<i64, u16> =
            values([&all]).into_iter().zip(all.of.iter().copied()).collect();
        let pieces = all.on_disk(&disk).unwrap();
        assert!(pieces.len() >= 50 && pieces.iter().all(|piece| piece.rows() <= 100));
        let mut seen = Vec::new();
        let ranges = ranges(&pieces, 2000);
        assert!(ranges.len() >= 20, "{ranges:?}");
        let mut end = 0;
        for range in ranges {
            assert_eq!(range.start, end);
            end = range.end;
            let before = seen.len();
            for piece in &pieces {
                seen.extend(piece.of(&range).unwrap().0.column(0).as_primitive::<Int64Type>().values());
            }
            assert!((seen.len() - before) * 8 <= 2000);
            assert!(seen[before..].iter().all(|n| range.contains(&u32::from(bucket[n]))));
        }
        assert_eq!(end, BUCKETS);
        assert_eq!(in_order(seen), (0..5000).collect::<Vec<_>>());
    }

    /// A state left with the copy that loses its bucket counts for nobody, and one that moves but also stays counts
    /// twice.
    #[test]
    fn states_that_move_do_not_stay() {
        let all = SortedStates::new(states(0..5000), &of()).unwrap();
        for lost in [0, 1, 2, 511, 1024] {
            let (gone, rest) = all.clone().split(|bucket| u32::from(bucket) * 7 % BUCKETS < lost).unwrap();
            assert_eq!((gone.is_some(), rest.is_some()), (lost > 0, lost < BUCKETS));
            let both: Vec<SortedStates> = gone.into_iter().chain(rest).collect();
            assert!(both.iter().all(|piece| piece.of.is_sorted() && piece.of.len() == piece.rows()));
            assert_eq!(in_order(values(&both)), (0..5000).collect::<Vec<_>>());
        }
    }

    /// A duplicate key takes twice the memory, a lost one is missing, and states out of order cannot be found.
    #[test]
    fn levels_have_every_key() {
        for (disk, on_disk) in [(SpillArea::default(), false), (SpillArea::with_runs_of(3000), true)] {
            let mut levels = StateLevels::default();
            for round in 0..50_i64 {
                let some = SortedStates::new(states((0..700).map(|n| (n * 31 + round * 100) % 3000)), &of()).unwrap();
                levels.add(if on_disk { some.on_disk(&disk).unwrap() } else { vec![some] });
                levels.compact(&of(), &disk).unwrap();
                assert!(levels.levels.len() <= 10, "{}", levels.levels.len());
            }
            let mut all = in_order(values(levels.pieces()));
            assert!(all.len() < 3000 * 3, "{}", all.len());
            all.dedup();
            assert_eq!(all, (0..3000).collect::<Vec<_>>());
            assert!(levels.pieces().all(|piece| piece.is_on_disk() == on_disk));
            for piece in levels.pieces() {
                assert!(piece.of.is_sorted());
                let buckets = buckets_of_key(&piece.states, 0, 1).unwrap();
                assert!(piece.of.iter().zip(buckets).all(|(&of, bucket)| u32::from(of) == bucket));
            }
            // Either everything is merged in memory or nothing is, because more does not fit.
            let (small, mut many) = (SpillArea::with_runs_of(100), StateLevels::default());
            for _ in 0..9 {
                many.add(vec![SortedStates::new(states(0..100), &of()).unwrap()]);
                many.compact(&of(), &small).unwrap();
            }
            assert_eq!(many.rows(), 900);
            many.spill(&of(), &small).unwrap();
            assert!(many.rows() < 400 && many.pieces().all(SortedStates::is_on_disk));
        }
    }

    /// A window would lack states that disappear while levels are merged outside of the operator, or that never return;
    /// and levels that are no longer merged would take more and more memory.
    #[test]
    fn levels_are_merged_while_they_are_used() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let _inside = runtime.enter();
        let (disk, mut levels) = (SpillArea::default(), StateLevels::default());
        let (mut known, mut beside) = (std::collections::HashSet::new(), 0);
        for round in 0..40_i64 {
            let some: Vec<i64> = (0..60_000).map(|n| (n * 31 + round * 5000) % 200_000).collect();
            known.extend(some.iter().copied());
            levels.add(vec![SortedStates::new(states(some.into_iter()), &of()).unwrap()]);
            levels.compact_later(&of(), &disk).unwrap();
            beside += usize::from(levels.merging.is_some());
            match round % 7 {
                3 => levels.end_merging(true).unwrap(),
                5 => levels.add_to(0, Vec::new()).unwrap(),
                _ => {}
            }
            let mut all = in_order(values(levels.pieces()));
            all.dedup();
            assert_eq!(all.len(), known.len());
        }
        assert!(beside > 5, "{beside}");
        levels.compact(&of(), &disk).unwrap();
        assert!(levels.rows() < 2 * known.len(), "{} of {}", levels.rows(), known.len());
        assert!(levels.pieces().all(|piece| piece.of.is_sorted()));
    }

    /// Frozen states must be the same whoever sorts them, and must be counted even before.
    #[test]
    fn frozen_states_are_sorted_once() {
        for rows in [0, 1000, 300_000_i64] {
            let cut = DetachedStates::new(states(0..rows), &of()).unwrap();
            assert_eq!(matches!(cut, DetachedStates::Unsorted(_)), rows == 300_000);
            assert!(cut.rows() == rows as usize && cut.bytes() >= 8 * rows as usize);
            let others: Vec<_> = (0..3).map(|_| cut.clone()).collect();
            let sorted: Vec<SortedStates> = std::thread::scope(|scope| {
                let each: Vec<_> = others.iter().map(|cut| scope.spawn(|| cut.sorted().unwrap())).collect();
                each.into_iter().map(|one| one.join().unwrap()).collect()
            });
            for one in &sorted {
                assert!(Arc::ptr_eq(&one.of, &sorted[0].of) && one.of.is_sorted());
                assert_eq!(in_order(values([one])), (0..rows).collect::<Vec<_>>());
            }
        }
    }
}
