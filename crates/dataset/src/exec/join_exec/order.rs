//! Restores the order of rows if steps above a join rely on it and the join went to disk.

use std::fmt;
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::metrics::Count;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use futures::StreamExt;
use tidemill_dataflow::memory::{Governor, Reservation};

use super::slot::ReplayExec;
use super::with_memory;

/// Memory that a sort always gets: a few batches, and room to merge what it has spilled.
const SORT_BYTES_MIN: u64 = 16 << 20;
/// The part of it that is kept for merging.
const MERGE_BYTES: usize = 4 << 20;

/// Sorts rows; whatever does not fit next to the partitions being joined goes to disk. Adds the bytes on disk to
/// `spilled_bytes`.
pub(super) fn in_order(
    rows: SendableRecordBatchStream,
    order: &LexOrdering,
    context: &TaskContext,
    governor: &Governor,
    spilled_bytes: Count,
) -> Result<SendableRecordBatchStream> {
    let input: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(rows.schema()));
    let slot = ReplayExec::over(&input);
    slot.give(0, rows);
    let memory = SortMemory { held: governor.reservation("join") };
    let config = context.session_config().clone().with_sort_spill_reservation_bytes(MERGE_BYTES);
    let context = with_memory(context, Arc::new(memory)).with_session_config(config);
    let sort = SortExec::new(order.clone(), slot);
    let sorted = sort.execute(0, Arc::new(context))?;
    let (schema, mut counted) = (sorted.schema(), 0);
    // A sort has spilled everything that it spills before it outputs rows.
    let sorted = sorted.inspect(move |_| {
        let spilled = sort.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0);
        spilled_bytes.add(spilled - counted);
        counted = spilled;
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, sorted)))
}

/// The memory of one sort. It is separate from the memory of other query steps, because a join holds most of that while
/// its rows are sorted.
#[derive(Debug)]
struct SortMemory {
    held: Reservation,
}

impl fmt::Display for SortMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl MemoryPool for SortMemory {
    fn name(&self) -> &'static str {
        "sort of a join"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        self.held.force_grow(additional as u64);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        self.held.shrink(shrink as u64);
    }

    /// If rejected, the sort spills.
    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> Result<()> {
        let wanted = additional as u64;
        if self.held.try_grow(wanted) {
            return Ok(());
        }
        if self.held.bytes() + wanted > SORT_BYTES_MIN {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "the rows of a join must keep their order, but are too long to sort: {wanted} bytes beyond the {} \
                 already held are not available; raise --memory",
                self.held.bytes()
            )));
        }
        self.held.force_grow(wanted);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.held.bytes() as usize
    }
}
