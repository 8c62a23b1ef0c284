//! Measures how long copies work on rows by the buckets of their keys, that is, what owning a bucket costs. The time
//! of a batch is divided among the buckets of some of its rows; one batch in sixteen is sampled and represents those
//! before it.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;

use super::edge::EdgeRuntime;
use crate::flow::EdgeMover;
use crate::metrics::BucketCounts;

const EVERY: u64 = 16;
const ROWS_MAX: usize = 32;

/// The meter of one input port.
#[derive(Default)]
pub(super) struct PortMeter {
    /// How many batches have been delivered, and how many of them are accounted for.
    given: u64,
    told: u64,
    running: Option<MeterRun>,
}

struct MeterRun {
    since: Instant,
    of: Arc<BucketCounts>,
    buckets: Vec<u32>,
}

impl PortMeter {
    /// Starts the clock for a batch that this edge has delivered.
    pub(super) fn begin(&mut self, edge: &EdgeRuntime, batch: &RecordBatch) {
        let EdgeMover::Partition(partitioner) = &edge.mover else { return };
        self.given += 1;
        // Includes the first one, since there may be no other.
        if self.given % EVERY != 1 {
            return;
        }
        let rows = batch.num_rows().min(ROWS_MAX);
        // At a different place each time, since rows may be in the order of their keys.
        let first = (self.given as usize).wrapping_mul(7919) % (batch.num_rows() - rows + 1);
        if let Some((count, buckets)) = partitioner.buckets(&batch.slice(first, rows)) {
            let of = Arc::clone(edge.metrics.buckets(count));
            self.running = Some(MeterRun { since: Instant::now(), of, buckets });
        }
    }

    /// Stops the clock: the caller asks for more, so it has processed what was delivered before.
    pub(super) fn end(&mut self) {
        if let Some(MeterRun { since, of, buckets }) = self.running.take() {
            let batches = self.given - std::mem::replace(&mut self.told, self.given);
            let each = since.elapsed().as_nanos() as u64 * batches / buckets.len().max(1) as u64;
            buckets.into_iter().for_each(|bucket| of.work(bucket as usize, each));
        }
    }
}
