//! An input of a join that is read elsewhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream,
};
use futures::{TryStreamExt, stream};
use tokio::sync::oneshot;

use crate::exec::step::one_input;

/// Stands above `input`, with the same properties, and outputs rows that were passed in.
pub(super) struct ReplayExec {
    input: Arc<dyn ExecutionPlan>,
    /// Rows by partition.
    rows: Mutex<HashMap<usize, SendableRecordBatchStream>>,
}

impl ReplayExec {
    pub(super) fn over(input: &Arc<dyn ExecutionPlan>) -> Arc<Self> {
        Arc::new(ReplayExec { input: Arc::clone(input), rows: Mutex::default() })
    }

    pub(super) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Sets the rows that the partition outputs when it is executed.
    pub(super) fn give(&self, partition: usize, rows: SendableRecordBatchStream) {
        self.rows.lock().expect("nothing panics with it locked").insert(partition, rows);
    }
}

/// Receives the rows for a stream that already exists.
pub(super) type Promise = oneshot::Sender<SendableRecordBatchStream>;

/// A stream of rows that are supplied later, but before the first is requested.
pub(super) fn promised(schema: SchemaRef) -> (Promise, SendableRecordBatchStream) {
    let (promise, kept) = oneshot::channel();
    let kept = async { kept.await.map_err(|_| DataFusionError::Internal("one side of a join never arrived".into())) };
    (promise, Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(kept).try_flatten())))
}

impl fmt::Debug for ReplayExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("input", &self.input).finish_non_exhaustive()
    }
}

impl DisplayAs for ReplayExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl ExecutionPlan for ReplayExec {
    fn name(&self) -> &'static str {
        "Slot"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    one_input!(self, input => Ok(ReplayExec::over(&input)));

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.rows.lock().expect("nothing panics with it locked").remove(&partition);
        rows.ok_or_else(|| DataFusionError::Internal(format!("partition {partition} of a join did not get its rows")))
    }
}
