//! The build side of a join in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::{AllocationSet, Governor, Reservation};

/// Maximum memory per row in DataFusion's hash table: up to 2.3 slots of 17 bytes, and a link of 4.
const ROW_BYTES: u64 = 44;

/// Pairs of rows that a join without keys compares before it yields, for example to a cancellation.
const PAIRS_IN_A_TURN: u64 = 1 << 26;

/// Shorter batches cost more than the pairs of their rows.
const ROWS_IN_A_TURN_MIN: u64 = 32;

/// Rows that fit into memory together with their future hash table.
pub(super) struct BuildRows {
    batches: Vec<RecordBatch>,
    allocations: AllocationSet,
    /// Memory of `batches` that is freed after they are concatenated.
    batches_bytes: u64,
    reservation: Reservation,
}

impl BuildRows {
    pub(super) fn new(governor: &Governor) -> Self {
        BuildRows {
            batches: Vec::new(),
            allocations: AllocationSet::default(),
            batches_bytes: 0,
            reservation: governor.reservation("join"),
        }
    }

    /// Takes a batch, or returns it if there is no room for it.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<(), RecordBatch> {
        let bytes = batch_bytes(&batch);
        // For an in-memory table that the program owns, only the rows that come out count.
        let held_bytes = self.allocations.add(&batch).min(bytes);
        // The rows exist twice for a moment, when they are concatenated.
        let wanted = held_bytes + bytes + ROW_BYTES * batch.num_rows() as u64;
        // A small amount is always available, because partitions have to fit once they are small.
        if !self.reservation.try_grow(wanted) && !self.reservation.grow_to_floor(wanted) {
            return Err(batch);
        }
        self.batches_bytes += held_bytes;
        self.batches.push(batch);
        Ok(())
    }

    /// Takes a batch regardless of room.
    pub(super) fn push_anyway(&mut self, batch: RecordBatch) {
        if let Err(batch) = self.push(batch) {
            let bytes = batch_bytes(&batch);
            self.reservation.force_grow(2 * bytes + ROW_BYTES * batch.num_rows() as u64);
            self.batches_bytes += bytes;
            self.batches.push(batch);
        }
    }

    /// The rows, whose memory is no longer reserved.
    pub(super) fn into_batches(self) -> Vec<RecordBatch> {
        self.batches
    }

    /// The rows, and the reservation of their memory for the duration of the join.
    pub(super) fn hand_over(self, schema: SchemaRef) -> (SendableRecordBatchStream, Arc<BuildMemory>) {
        let rows = self.batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let held = BuildMemory { reservation: self.reservation, batches_bytes: self.batches_bytes.into(), rows };
        let rows = stream::iter(self.batches.into_iter().map(Ok));
        (Box::pin(RecordBatchStreamAdapter::new(schema, rows)), Arc::new(held))
    }
}

/// The memory of a build side during its join.
pub(super) struct BuildMemory {
    reservation: Reservation,
    batches_bytes: AtomicU64,
    rows: u64,
}

impl BuildMemory {
    /// The rows of the other side. By the time they are first requested, the table exists and its input is gone.
    pub(super) fn probe(
        self: &Arc<Self>,
        rows: SendableRecordBatchStream,
        has_keys: bool,
    ) -> SendableRecordBatchStream {
        let rows = if has_keys { rows } else { in_turns(rows, self.rows) };
        let (held, schema) = (Arc::clone(self), rows.schema());
        let rows = stream::once(async move {
            held.reservation.shrink(held.batches_bytes.swap(0, Ordering::Relaxed));
            Ok::<_, DataFusionError>(rows)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows.try_flatten()))
    }

    /// The rows of the join; holds on to the memory as long as they are read.
    pub(super) fn until_read(self: Arc<Self>, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = rows.schema();
        let rows = rows.map(move |batch| {
            let _held = &self;
            batch
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}

/// Splits batches into sizes that a join without keys can soon compare with all of its build rows. DataFusion's join
/// would process hundreds of whole batches without a pause, even if its rows were no longer wanted.
fn in_turns(rows: SendableRecordBatchStream, build_rows: u64) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let most = (PAIRS_IN_A_TURN / build_rows.max(1)).max(ROWS_IN_A_TURN_MIN) as usize;
    let rows = rows.map_ok(move |batch| {
        let starts = (0..batch.num_rows()).step_by(most);
        stream::iter(starts.map(move |start| Ok(batch.slice(start, most.min(batch.num_rows() - start)))))
    });
    let rows = rows.try_flatten().and_then(|batch| async {
        tokio::task::yield_now().await;
        Ok(batch)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}
