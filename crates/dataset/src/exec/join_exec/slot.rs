//! An input of a join that somebody else reads.

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

/// Stands above `input`, whose properties it has, and gives out the rows that it was given.
pub(super) struct ReplayExec {
    input: Arc<dyn ExecutionPlan>,
    /// By partition.
    rows: Mutex<HashMap<usize, SendableRecordBatchStream>>,
}

impl ReplayExec {
    pub(super) fn over(input: &Arc<dyn ExecutionPlan>) -> Arc<Self> {
        Arc::new(ReplayExec { input: Arc::clone(input), rows: Mutex::default() })
    }

    pub(super) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What the partition gives out when it is executed.
    pub(super) fn give(&self, partition: usize, rows: SendableRecordBatchStream) {
        self.rows.lock().expect("nothing panics with it locked").insert(partition, rows);
    }
}

/// Where rows are handed in for a stream that is there before them.
pub(super) type Promise = oneshot::Sender<SendableRecordBatchStream>;

/// A stream of rows that are handed in later, before it is first asked for one.
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
        rows.ok_or_else(|| DataFusionError::Internal(format!("nobody gave a join's partition {partition} its rows")))
    }
}
