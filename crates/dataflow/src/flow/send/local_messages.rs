//! A copy's end of an edge to a reduction by rounds: each message that the copy sends becomes one row, so that the n-th
//! row is of round n wherever rows are sent together later.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{MessageReducer, Reduction};

use super::lane::Lane;
use crate::error::TaskError;

/// See the module.
pub(super) struct LocalMessages {
    reducer: MessageReducer,
    pub lane: Arc<Lane>,
}

impl LocalMessages {
    pub(super) fn new(schema: &SchemaRef, reduction: &Reduction, lane: Arc<Lane>) -> Self {
        LocalMessages { reducer: MessageReducer::new(reduction, schema), lane }
    }

    pub(super) async fn send(&mut self, message: RecordBatch) -> Result<(), TaskError> {
        let row = self.reducer.reduce(&message)?;
        self.lane.send(row).await
    }
}
