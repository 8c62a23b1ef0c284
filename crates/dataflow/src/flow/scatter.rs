//! Rows to targets: asks the partitioner where each row goes, and makes one batch for each target out of many.
//!
//! Batches are collected until there is enough for every target, so that small ones never cross the wire one by one; then
//! all rows are put in the order of their targets in one pass (a counting sort and a `take` per column), and each target
//! gets its stretch, without another copy.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::SchemaRef;

use super::batch_bytes;
use crate::error::TaskError;
use crate::metrics::EdgeMetrics;
use crate::route_map::RouteMap;

/// What is collected at most before it goes out, however many targets there are.
const COLLECT_BYTES_MAX: u64 = 32 << 20;
/// Rows are numbered in 32 bits.
const COLLECT_ROWS_MAX: usize = 1 << 30;

/// Decides which copy gets a row. One per edge; its copies have an [`Assign`] each.
pub trait Partitioner: Send + Sync {
    /// The decision for one source copy.
    fn start(&self, seat: &Seat) -> Box<dyn Assign>;

    /// The map that rows go by, if they go by the buckets of keys.
    fn route(&self) -> Option<&Arc<RouteMap>> {
        None
    }
}

/// Where a partitioner's part sits.
#[derive(Clone)]
pub struct Seat {
    /// The source copy.
    pub source: u32,
    /// How many target copies there are.
    pub targets: u32,
    /// The edge's counters on this worker.
    pub metrics: Arc<EdgeMetrics>,
    /// The map to begin with, where it is another than the partitioner's own: buckets have moved.
    pub route: Option<Arc<RouteMap>>,
}

/// One source copy's decision.
pub trait Assign: Send {
    /// Where the rows of `batch` go. For [`Assignment::ByRow`] appends one target for each row to `targets`, which is
    /// empty.
    ///
    /// # Errors
    /// When it cannot tell; fails the task.
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<Assignment, TaskError>;

    /// Buckets have moved: rows go by `route` from now on. Asked only where there was a [`Partitioner::route`].
    fn reroute(&mut self, route: &Arc<RouteMap>) {
        let _ = route;
    }
}

/// An answer of [`Assign::assign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// All rows to one copy.
    Whole(u32),
    /// As appended.
    ByRow,
}

/// Collects and distributes for one source copy.
pub(crate) struct Scatter {
    schema: SchemaRef,
    targets: u32,
    batches: Vec<RecordBatch>,
    /// The target of each row of `batches`.
    assigned: Vec<u32>,
    bytes: u64,
    flush_bytes: u64,
}

impl Scatter {
    pub(crate) fn new(schema: &SchemaRef, targets: u32, batch_bytes: u64) -> Self {
        let flush_bytes = (batch_bytes * u64::from(targets)).min(COLLECT_BYTES_MAX);
        let schema = SchemaRef::clone(schema);
        Scatter { schema, targets, batches: Vec::new(), assigned: Vec::new(), bytes: 0, flush_bytes }
    }

    /// Takes a batch whose rows go to `targets`. Returns whether it is time to send.
    pub(crate) fn collect(&mut self, batch: RecordBatch, targets: &[u32]) -> Result<bool, TaskError> {
        if targets.len() != batch.num_rows() {
            let (found, rows) = (targets.len(), batch.num_rows());
            return Err(format!("the partitioner named {found} targets for {rows} rows").into());
        }
        if let Some(target) = targets.iter().find(|&&target| target >= self.targets) {
            return Err(format!("the partitioner named copy {target} of {}", self.targets).into());
        }
        self.bytes += batch_bytes(&batch);
        self.assigned.extend_from_slice(targets);
        self.batches.push(batch);
        Ok(self.bytes >= self.flush_bytes || self.assigned.len() >= COLLECT_ROWS_MAX)
    }

    /// What has been collected, by target; targets without rows are left out.
    pub(crate) fn drain(&mut self) -> Result<Vec<(u32, RecordBatch)>, TaskError> {
        let assigned = std::mem::take(&mut self.assigned);
        let mut batches = std::mem::take(&mut self.batches);
        self.bytes = 0;
        let all = match batches.len() {
            0 => return Ok(Vec::new()),
            1 => batches.remove(0),
            _ => concat_batches(&self.schema, &batches)?,
        };
        drop(batches);
        let mut starts = vec![0u32; self.targets as usize + 1];
        assigned.iter().for_each(|&target| starts[target as usize + 1] += 1);
        (0..self.targets as usize).for_each(|target| starts[target + 1] += starts[target]);
        let mut next = starts.clone();
        let mut order = vec![0u32; assigned.len()];
        for (row, &target) in assigned.iter().enumerate() {
            let place = &mut next[target as usize];
            order[*place as usize] = row as u32;
            *place += 1;
        }
        let order = UInt32Array::from(order);
        let columns = all.columns().iter().map(|column| take(column, &order, None)).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(assigned.len()));
        let sorted = RecordBatch::try_new_with_options(all.schema(), columns, &options)?;
        let piece = |target: u32| {
            let (from, to) = (starts[target as usize] as usize, starts[target as usize + 1] as usize);
            (to > from).then(|| (target, sorted.slice(from, to - from)))
        };
        Ok((0..self.targets).filter_map(piece).collect())
    }
}
