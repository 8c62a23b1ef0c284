//! Merging sorted streams. A state machine without I/O: it says of which stream it needs the next batch, and is given it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::row::Rows;

use super::gather::{Gather, Pick};
use super::order::{Order, PREFIX_BYTES, prefix};

/// What a merge wants or gives.
pub(crate) enum Step {
    /// The next batch of this stream, or that it has ended.
    Need(usize),
    /// Sorted rows.
    Batch(RecordBatch),
    /// All streams have ended.
    Done,
}

/// The row a stream stands at. The greatest entry is the one that comes first, for the heap is a max-heap.
struct Entry {
    prefix: u128,
    rows: Arc<Rows>,
    row: usize,
    stream: usize,
}

impl Entry {
    fn key(&self) -> &[u8] {
        self.rows.row(self.row).data()
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = || match self.key().len().max(other.key().len()) <= PREFIX_BYTES {
            true => Ordering::Equal,
            false => other.key().cmp(self.key()),
        };
        // Equal rows in the order of their streams: the outcome does not depend on who came first.
        other.prefix.cmp(&self.prefix).then_with(by_key).then_with(|| other.stream.cmp(&self.stream))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// See the module.
pub(crate) struct Merge {
    order: Order,
    heap: BinaryHeap<Entry>,
    /// Streams whose next batch is needed before anything else can be said.
    needed: Vec<usize>,
    /// The batch in `held` that each stream stands in.
    current: Vec<usize>,
    held: Vec<RecordBatch>,
    picks: Vec<Pick>,
    rows_max: usize,
}

impl Merge {
    /// A merge of so many streams into batches of at most `rows_max` rows.
    pub(crate) fn new(order: Order, streams: usize, rows_max: usize) -> Self {
        Merge {
            order,
            heap: BinaryHeap::with_capacity(streams),
            needed: (0..streams).collect(),
            current: vec![usize::MAX; streams],
            held: Vec::new(),
            picks: Vec::with_capacity(rows_max),
            rows_max,
        }
    }

    /// Answers [`Step::Need`].
    pub(crate) fn offer(&mut self, stream: usize, batch: Option<RecordBatch>) -> Result<(), ArrowError> {
        match batch {
            Some(batch) if batch.num_rows() == 0 => return Ok(()),
            Some(batch) => {
                let rows = Arc::new(self.order.rows(&batch)?);
                self.current[stream] = self.held.len();
                self.held.push(batch);
                self.heap.push(Entry { prefix: prefix(rows.row(0).data()), rows, row: 0, stream });
            }
            None => {}
        }
        self.needed.retain(|&needed| needed != stream);
        Ok(())
    }

    pub(crate) fn step(&mut self) -> Result<Step, ArrowError> {
        loop {
            if let Some(&stream) = self.needed.last() {
                return Ok(Step::Need(stream));
            }
            if self.picks.len() >= self.rows_max {
                return self.flush();
            }
            let Some(mut first) = self.heap.peek_mut() else {
                return if self.picks.is_empty() { Ok(Step::Done) } else { self.flush() };
            };
            self.picks.push(Pick { batch: self.current[first.stream] as u32, row: first.row as u32 });
            if first.row + 1 < first.rows.num_rows() {
                first.row += 1;
                first.prefix = prefix(first.key());
            } else {
                self.needed.push(PeekMut::pop(first).stream);
            }
        }
    }

    fn flush(&mut self) -> Result<Step, ArrowError> {
        let batch = Gather::new(self.held[0].schema_ref(), &self.held).rows(&self.picks)?;
        self.picks.clear();
        // Only the batches that streams still stand in are kept.
        let mut kept = Vec::with_capacity(self.heap.len());
        for entry in &self.heap {
            kept.push(self.held[self.current[entry.stream]].clone());
            self.current[entry.stream] = kept.len() - 1;
        }
        self.held = kept;
        Ok(Step::Batch(batch))
    }
}
