//! Where rows go: what an exchange tells of each of them, or of a whole batch.

use std::sync::Arc;

use arrow::array::RecordBatch;
use tidemill_batch::route_map::RouteMap;

use crate::error::TaskError;
use crate::metrics::EdgeMetrics;

/// Decides which copy gets a row. One per edge; its copies have a [`RowAssigner`] each.
pub trait Partitioner: Send + Sync {
    /// The decision for one source copy.
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner>;

    /// The target copies that source copy `source` ever sends to, in order, if it does not send to all: there are no
    /// streams to the others.
    fn reach(&self, source: u32) -> Option<&[u32]> {
        let _ = source;
        None
    }

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
pub struct PartitionerContext {
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
pub trait RowAssigner: Send {
    /// Where the rows of `batch` go. For [`RowAssignment::ByRow`] appends one target for each row to `targets`, which
    /// is empty.
    ///
    /// # Errors
    /// When it cannot tell; fails the task.
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError>;

    /// Where the next batch goes as a whole, if any copy can have it: then [`RowAssigner::assign`] is not asked. If
    /// that copy has no room, and another one has, the batch goes there.
    fn assign_unseen(&mut self) -> Option<u32> {
        None
    }

    /// That batch went to `target` instead.
    fn reassigned(&mut self, target: u32) {
        let _ = target;
    }

    /// What it has counted is to be known to others now.
    fn flush_metrics(&mut self) {}

    /// Buckets have moved: rows go by `route` from now on. Asked only where there was a [`Partitioner::route`].
    fn reroute(&mut self, route: &Arc<RouteMap>) {
        let _ = route;
    }
}

/// An answer of [`RowAssigner::assign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAssignment {
    /// All rows to one copy.
    Whole(u32),
    /// As appended.
    ByRow,
}
