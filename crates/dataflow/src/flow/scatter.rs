//! Rows to targets: asks the partitioner where each row goes, and makes one batch for each target out of many.
//!
//! Batches are collected until there is enough for every target, so that small ones never cross the wire one by one; then
//! each target's are copied into a batch of its own. Not into stretches of one: who keeps a stretch would keep all of it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::batch_bytes;
use crate::error::TaskError;
use crate::local::gather::Gather;
use crate::local::part::{Part, deal};
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

    /// How many buckets there are, and that of each row, if rows go by the buckets of keys.
    fn buckets(&self, batch: &RecordBatch) -> Option<(u32, Vec<u32>)> {
        let _ = batch;
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

    /// Where the next batch goes as a whole, if that does not hang on what is in it: then [`Assign::assign`] is not asked.
    fn assign_unseen(&mut self) -> Option<u32> {
        None
    }

    /// What it has counted is to be known to others now.
    fn tell(&mut self) {}

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

/// What has been collected, by target; targets without rows are left out.
pub(crate) enum Drained {
    /// A batch all of whose rows go to one.
    Whole(u32, RecordBatch),
    Parts(Gather, Vec<(u32, Part)>),
}

impl Drained {
    /// Each target's rows as a batch.
    pub(crate) fn into_batches(self) -> Result<Vec<(u32, RecordBatch)>, ArrowError> {
        match self {
            Drained::Whole(target, batch) => Ok(vec![(target, batch)]),
            Drained::Parts(gather, parts) => {
                parts.iter().map(|(target, part)| Ok((*target, gather.part(part)?))).collect()
            }
        }
    }
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
        // Not by `max`, which tells of equal ones which came last: one by one.
        let target = targets.iter().fold(0, |most, &target| most.max(target));
        if target >= self.targets {
            return Err(format!("the partitioner named copy {target} of {}", self.targets).into());
        }
        self.bytes += batch_bytes(&batch);
        self.assigned.extend_from_slice(targets);
        self.batches.push(batch);
        Ok(self.bytes >= self.flush_bytes || self.assigned.len() >= COLLECT_ROWS_MAX)
    }

    /// What has been collected.
    pub(crate) fn drain(&mut self) -> Drained {
        let (assigned, mut batches) = (std::mem::take(&mut self.assigned), std::mem::take(&mut self.batches));
        self.bytes = 0;
        if let ([_], [target, others @ ..]) = (&batches[..], &assigned[..])
            && others.iter().all(|other| other == target)
        {
            return Drained::Whole(*target, batches.remove(0));
        }
        let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
        let some = (0..).zip(deal(self.targets, &assigned, &rows)).filter(|(_, part)| !part.is_empty());
        Drained::Parts(Gather::new(&self.schema, &batches), some.collect())
    }
}
