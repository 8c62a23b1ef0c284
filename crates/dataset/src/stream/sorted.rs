//! States on disk, sorted by the bucket of their key: what does not fit in memory at once does so a few buckets at a time.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::route_map::BUCKETS;

use super::groups::{Aggregation, Groups};
use super::held::Disk;
use super::kept::{buckets_of_key, in_order};

/// All buckets.
pub(crate) const ALL: Range<u32> = 0..BUCKETS;

/// States on disk. Clones are the same.
#[derive(Clone)]
pub(crate) struct Sorted {
    states: RecordBatch,
    /// Where each bucket begins, and where the last ends.
    starts: Arc<[u32]>,
    row_bytes: usize,
}

impl Sorted {
    /// Puts states on disk, given the bucket of each: in pieces, none of which is too large to be put together in memory.
    pub(crate) fn new(states: &RecordBatch, of: &[u32], disk: &Disk) -> Result<Vec<Sorted>, TaskError> {
        let (order, _) = in_order(of, |_| true);
        let row_bytes = (batch_bytes(states) as usize).div_ceil(order.len().max(1)).max(1);
        let mut pieces = Vec::new();
        for rows in order.chunks((disk.run_bytes() / row_bytes).max(1)) {
            let mut starts = vec![0; BUCKETS as usize + 1];
            rows.iter().for_each(|&row| starts[of[row as usize] as usize + 1] += 1);
            for bucket in 1..starts.len() {
                starts[bucket] += starts[bucket - 1];
            }
            let states = disk.map(&take_record_batch(states, &UInt32Array::from(rows.to_vec()))?)?;
            pieces.push(Sorted { states, starts: starts.into(), row_bytes });
        }
        Ok(pieces)
    }

    pub(crate) fn rows(&self) -> usize {
        self.states.num_rows()
    }

    /// All of them.
    pub(crate) fn states(&self) -> &RecordBatch {
        &self.states
    }

    /// Those of some buckets.
    pub(crate) fn of(&self, buckets: &Range<u32>) -> RecordBatch {
        let (start, end) = (self.starts[buckets.start as usize], self.starts[buckets.end as usize]);
        self.states.slice(start as usize, (end - start) as usize)
    }
}

/// Ranges that are all buckets together, each of one bucket or with no more than `bytes` of these states.
pub(crate) fn ranges<'a>(states: impl IntoIterator<Item = &'a Sorted>, bytes: usize) -> Vec<Range<u32>> {
    let mut of = vec![0_usize; BUCKETS as usize];
    for piece in states {
        for (sum, ends) in of.iter_mut().zip(piece.starts.windows(2)) {
            *sum += (ends[1] - ends[0]) as usize * piece.row_bytes;
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

/// Levels of states, each at least twice as many as the next. Of a level every key is there once, more or less.
#[derive(Default)]
pub(crate) struct Levels(Vec<Vec<Sorted>>);

impl Levels {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rows(&self) -> usize {
        self.pieces().map(Sorted::rows).sum()
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Sorted> {
        self.0.iter().flatten()
    }

    pub(crate) fn into_levels(self) -> Vec<Vec<Sorted>> {
        self.0
    }

    /// Adds a level, and puts together those that are of about the same size: so what a key's states take on disk does not
    /// grow with how often it comes.
    pub(crate) fn add(&mut self, level: Vec<Sorted>, of: &Arc<Aggregation>, disk: &Disk) -> Result<(), TaskError> {
        let rows = |level: &[Sorted]| level.iter().map(Sorted::rows).sum::<usize>();
        if rows(&level) == 0 {
            return Ok(());
        }
        self.0.push(level);
        while let [.., larger, smaller] = self.0.as_slice()
            && rows(larger) < 2 * rows(smaller)
        {
            let both: Vec<Sorted> = self.0.drain(self.0.len() - 2..).flatten().collect();
            let mut merged = Vec::new();
            for range in ranges(&both, disk.run_bytes()) {
                let mut groups = Groups::new(of)?;
                for states in both.iter().map(|piece| piece.of(&range)).filter(|states| states.num_rows() > 0) {
                    groups.merge(&states)?;
                }
                let states = groups.take_states()?;
                merged.extend(Sorted::new(&states, &buckets_of_key(&states, 0, of.keys.len())?, disk)?);
            }
            self.0.push(merged);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn states(values: impl Iterator<Item = i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)]).unwrap()
    }

    /// A state that is in no range of buckets would be missing from its window, one in two would count twice.
    #[test]
    fn every_state_is_in_one_range() {
        let disk = Disk::with_runs_of(800);
        let all = states((0..5000).map(|n| n * 7919 % 5000));
        let of: Vec<u32> = (0..5000).map(|n| (n * 31 % 200) as u32 * 5).collect();
        let pieces = Sorted::new(&all, &of, &disk).unwrap();
        assert!(pieces.len() >= 50 && pieces.iter().all(|piece| piece.rows() <= 100));
        let mut seen: Vec<i64> = Vec::new();
        let ranges = ranges(&pieces, 2000);
        assert!(ranges.len() >= 20, "{ranges:?}");
        let mut end = 0;
        for range in ranges {
            assert_eq!(range.start, end);
            end = range.end;
            let before = seen.len();
            for piece in &pieces {
                seen.extend(piece.of(&range).column(0).as_primitive::<Int64Type>().values());
            }
            assert!((seen.len() - before) * 8 <= 2000);
            let inside =
                |n: &i64| all.column(0).as_primitive::<Int64Type>().values().iter().position(|m| m == n).unwrap();
            assert!(seen[before..].iter().all(|n| range.contains(&of[inside(n)])));
        }
        assert_eq!(end, BUCKETS);
        seen.sort_unstable();
        assert_eq!(seen, (0..5000).collect::<Vec<_>>());
    }
}
