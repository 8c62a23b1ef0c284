//! Merges sorted streams. A state machine without I/O: it reports which stream's next batch it needs, and the caller
//! supplies it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::row::Rows;

use super::order::{PREFIX_BYTES, RowOrder, prefix};
use crate::batch_bytes;
use crate::gather::{RowGather, RowIndex};

/// What a merge needs or returns next.
pub enum MergeStep {
    /// The next batch of this stream, or the news that it has ended.
    Need(usize),
    /// Sorted rows.
    Batch(RecordBatch),
    /// All streams have ended.
    Done,
}

/// A stream's current row. The greatest entry is the one that comes first in the output, because the heap is a
/// max-heap.
struct HeapEntry {
    prefix: u128,
    rows: Arc<Rows>,
    row: usize,
    stream: usize,
}

impl HeapEntry {
    fn key(&self) -> &[u8] {
        self.rows.row(self.row).data()
    }
}

impl Ord for HeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = || match self.key().len().max(other.key().len()) <= PREFIX_BYTES {
            true => Ordering::Equal,
            false => other.key().cmp(self.key()),
        };
        // Equal rows go in the order of their streams, so the result does not depend on arrival order.
        other.prefix.cmp(&self.prefix).then_with(by_key).then_with(|| other.stream.cmp(&self.stream))
    }
}

impl PartialOrd for HeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HeapEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for HeapEntry {}

/// See the module.
pub struct KWayMerge {
    order: RowOrder,
    heap: BinaryHeap<HeapEntry>,
    /// Streams whose next batch is needed before the merge can continue.
    needed: Vec<usize>,
    /// The current batch of each stream, by its index in `held`.
    current: Vec<usize>,
    held: Vec<RecordBatch>,
    picks: Vec<RowIndex>,
    /// Average bytes per row of each stream's current batch, and bytes of the picked rows.
    row_bytes: Vec<u64>,
    picked_bytes: u64,
    rows_max: usize,
    bytes_max: u64,
}

impl KWayMerge {
    /// A merge of `streams` streams into batches of at most `rows_max` rows and about `bytes_max` bytes.
    pub fn new(order: RowOrder, streams: usize, rows_max: usize, bytes_max: u64) -> Self {
        KWayMerge {
            order,
            heap: BinaryHeap::with_capacity(streams),
            needed: (0..streams).collect(),
            current: vec![usize::MAX; streams],
            held: Vec::new(),
            picks: Vec::with_capacity(rows_max),
            row_bytes: vec![0; streams],
            picked_bytes: 0,
            rows_max,
            bytes_max,
        }
    }

    /// Answers [`MergeStep::Need`].
    ///
    /// # Errors
    /// If the batch lacks the columns by which rows are merged.
    pub fn offer(&mut self, stream: usize, batch: Option<RecordBatch>) -> Result<(), ArrowError> {
        match batch {
            Some(batch) if batch.num_rows() == 0 => return Ok(()),
            Some(batch) => {
                let rows = Arc::new(self.order.rows(&batch)?);
                self.row_bytes[stream] = batch_bytes(&batch) / batch.num_rows() as u64;
                self.current[stream] = self.held.len();
                self.held.push(batch);
                self.heap.push(HeapEntry { prefix: prefix(rows.row(0).data()), rows, row: 0, stream });
            }
            None => {}
        }
        self.needed.retain(|&needed| needed != stream);
        Ok(())
    }

    /// The next step.
    ///
    /// # Errors
    /// If the combined strings of a batch are too long for their offsets.
    pub fn step(&mut self) -> Result<MergeStep, ArrowError> {
        loop {
            if let Some(&stream) = self.needed.last() {
                return Ok(MergeStep::Need(stream));
            }
            if self.picks.len() >= self.rows_max || self.picked_bytes >= self.bytes_max {
                return self.flush();
            }
            let Some(mut first) = self.heap.peek_mut() else {
                return if self.picks.is_empty() { Ok(MergeStep::Done) } else { self.flush() };
            };
            self.picks.push(RowIndex { batch: self.current[first.stream] as u32, row: first.row as u32 });
            self.picked_bytes += self.row_bytes[first.stream];
            if first.row + 1 < first.rows.num_rows() {
                first.row += 1;
                first.prefix = prefix(first.key());
            } else {
                self.needed.push(PeekMut::pop(first).stream);
            }
        }
    }

    fn flush(&mut self) -> Result<MergeStep, ArrowError> {
        let batch = RowGather::new(self.held[0].schema_ref(), &self.held).rows(&self.picks)?;
        self.picks.clear();
        self.picked_bytes = 0;
        // Keeps only the batches that are still current for some stream.
        let mut kept = Vec::with_capacity(self.heap.len());
        for entry in &self.heap {
            kept.push(self.held[self.current[entry.stream]].clone());
            self.current[entry.stream] = kept.len() - 1;
        }
        self.held = kept;
        Ok(MergeStep::Batch(batch))
    }
}
