//! At-most-once mode: rows wait where they were read until a durable checkpoint records that they were read.
//!
//! A job that resumes from a checkpoint starts after all rows that have left their source, since none leaves before
//! the checkpoint with its position. What waits is bounded: a source that has read [`HELD_BYTES`] is not asked for
//! more until a checkpoint is durable, so its speed depends on how often there is one.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::{Array, RecordBatch};
use bytes::Bytes;
use tidemill_checkpoint::Snapshot;

use super::source::SourceEvent;

/// For one copy.
pub(crate) const HELD_BYTES: usize = 64 << 20;

/// The position of a source: its splits, and what its copies share.
#[derive(Clone, Default)]
struct SplitPositions {
    splits: Vec<(String, Bytes)>,
    shared: Vec<(String, Bytes)>,
}

impl SplitPositions {
    fn of(snapshot: &Snapshot) -> Self {
        SplitPositions { splits: snapshot.splits.clone(), shared: snapshot.shared.clone() }
    }
}

/// The buffer that the module describes.
pub(crate) struct AtMostOnceBuffer {
    /// In order of arrival, with the epoch of the first barrier that follows.
    waiting: VecDeque<(Option<u64>, SourceEvent)>,
    bytes: usize,
    /// Its positions at barriers that are not durable yet.
    places: BTreeMap<u64, SplitPositions>,
    /// Its position just after reading the rows that left last.
    left: SplitPositions,
}

impl AtMostOnceBuffer {
    /// The buffer of a source that starts at the position in `snapshot`.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        AtMostOnceBuffer {
            waiting: VecDeque::new(),
            bytes: 0,
            places: BTreeMap::new(),
            left: SplitPositions::of(snapshot),
        }
    }

    /// Whether more may be read.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < HELD_BYTES
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps what was read.
    pub(crate) fn keep(&mut self, next: SourceEvent) {
        self.bytes += bytes_of(&next);
        self.waiting.push_back((None, next));
    }

    /// Records that the barrier of `epoch` follows everything that waits, and that the source's position is in
    /// `snapshot`.
    pub(crate) fn barrier(&mut self, epoch: u64, snapshot: &Snapshot) {
        let new = self.waiting.iter_mut().rev().take_while(|(behind, _)| behind.is_none());
        new.for_each(|(behind, _)| *behind = Some(epoch));
        self.places.insert(epoch, SplitPositions::of(snapshot));
    }

    /// Records that the checkpoint of `epoch` is durable. Returns what no longer waits, in order.
    pub(crate) fn durable(&mut self, epoch: u64) -> Vec<SourceEvent> {
        while let Some(entry) = self.places.first_entry().filter(|entry| *entry.key() <= epoch) {
            self.left = entry.remove();
        }
        let free = self.waiting.iter().take_while(|(behind, _)| behind.is_some_and(|behind| behind <= epoch)).count();
        let free: Vec<SourceEvent> = self.waiting.drain(..free).map(|(_, next)| next).collect();
        self.bytes -= free.iter().map(bytes_of).sum::<usize>();
        free
    }

    /// The position of a job that stops here and will resume, as if what waits had not been read.
    pub(crate) fn stop(self) -> Snapshot {
        Snapshot { splits: self.left.splits, shared: self.left.shared, ..Snapshot::default() }
    }
}

/// The memory of rows; for a slice of something larger, its share.
fn bytes_of(next: &SourceEvent) -> usize {
    let share = |rows: &RecordBatch| -> usize {
        let of = |column: &std::sync::Arc<dyn Array>| {
            let data = column.to_data();
            data.get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
        };
        rows.columns().iter().map(of).sum()
    };
    match next {
        SourceEvent::Rows { rows, bad, .. } => share(rows) + bad.as_ref().map_or(0, share),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use proptest::prelude::*;

    use super::*;

    fn rows(from: i64, count: i64) -> SourceEvent {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + count));
        SourceEvent::rows(0, RecordBatch::try_from_iter([("n", column)]).unwrap())
    }

    fn place(at: i64) -> Snapshot {
        Snapshot { splits: vec![("0".into(), at.to_string().into())], ..Snapshot::default() }
    }

    fn numbers(found: &[SourceEvent]) -> Vec<i64> {
        let of = |next: &SourceEvent| match next {
            SourceEvent::Rows { rows, .. } => rows.column(0).as_primitive::<Int64Type>().values().to_vec(),
            _ => Vec::new(),
        };
        found.iter().flat_map(of).collect()
    }

    proptest! {
        /// A row that leaves before a durable checkpoint covers it is read again after a failure; one that stays
        /// forever, or is behind the position of a stop, is lost without a failure.
        #[test]
        fn rows_leave_behind_their_place(steps in prop::collection::vec((0..3u8, 1..50i64), 0..60)) {
            let mut held = AtMostOnceBuffer::new(&place(0));
            let (mut read, mut epoch, mut durable, mut left) = (0, 0, 0, Vec::new());
            let mut places = vec![0];
            for (step, count) in steps {
                match step {
                    0 => {
                        held.keep(rows(read, count));
                        read += count;
                    }
                    1 => {
                        epoch += 1;
                        held.barrier(epoch, &place(read));
                        places.push(read);
                    }
                    // Some checkpoints are given up.
                    _ => {
                        durable = (durable + count as u64).min(epoch);
                        left.extend(numbers(&held.durable(durable)));
                    }
                }
                let safe = places[durable as usize];
                prop_assert_eq!(&left, &(0..safe).collect::<Vec<_>>());
                prop_assert_eq!(held.is_empty(), safe == read);
                prop_assert_eq!(held.bytes, (read - safe) as usize * 8);
            }
            prop_assert_eq!(held.stop().splits, place(places[durable as usize]).splits);
        }
    }
}
