//! The leaf of a stage's plan where another stage's rows arrive.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream,
};
use futures::Stream;

use crate::exec::step::no_input;

/// Arriving rows.
pub(super) type Rows = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// A leaf that replaces the part of the plan beyond a cut, with its properties: the plan above it cannot tell the
/// difference.
pub(super) struct ExchangeInput {
    label: String,
    properties: Arc<PlanProperties>,
    broadcast: bool,
    /// The input of each partition, set by the copy that runs it.
    rows: Mutex<Vec<PartitionInput>>,
}

/// The input of a partition.
enum PartitionInput {
    Empty,
    Given(Rows),
    Taken,
}

impl ExchangeInput {
    pub(super) fn new(label: String, properties: &Arc<PlanProperties>, broadcast: bool) -> Self {
        let partitions = properties.output_partitioning().partition_count();
        let rows = (0..partitions).map(|_| PartitionInput::Empty).collect();
        ExchangeInput { label, properties: Arc::clone(properties), broadcast, rows: Mutex::new(rows) }
    }

    /// Sets the rows of a partition. In a broadcast, every copy on a worker gets the same rows, and the first copy's
    /// are used; the others are dropped here, so that no sender waits for them to be read.
    pub(super) fn give(&self, partition: usize, rows: Rows) {
        let slot = &mut self.rows.lock().expect("nothing panics with it locked")[partition];
        if matches!(slot, PartitionInput::Empty) {
            *slot = PartitionInput::Given(rows);
        }
    }
}

impl fmt::Debug for ExchangeInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").field("label", &self.label).finish_non_exhaustive()
    }
}

impl DisplayAs for ExchangeInput {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl ExecutionPlan for ExchangeInput {
    fn name(&self) -> &'static str {
        "Arrival"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    no_input!();

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let slot = &mut self.rows.lock().expect("nothing panics with it locked")[partition];
        let rows = match std::mem::replace(slot, PartitionInput::Taken) {
            PartitionInput::Given(rows) => rows,
            // A join that runs out of memory tries to read its smaller side again, in pieces.
            PartitionInput::Taken if self.broadcast => {
                let text = "the smaller side of a join, which came from other workers, does not fit in memory";
                return Err(DataFusionError::ResourcesExhausted(text.into()));
            }
            PartitionInput::Taken | PartitionInput::Empty => {
                let text = format!("partition {partition} of \"{}\" has nothing to read", self.label);
                return Err(DataFusionError::Internal(text));
            }
        };
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows))))
    }
}
