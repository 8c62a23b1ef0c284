//! A copy's end of an edge to a reduction by rounds: each message that the copy sends becomes one row, so that the
//! n-th row belongs to round n wherever rows are combined later.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{MessageReducer, Reduction};

use super::lane::Lane;
use crate::error::TaskError;

/// The end that the module describes.
pub(super) struct LocalMessages {
    reducer: MessageReducer,
    pub lane: Arc<Lane>,
}

impl LocalMessages {
    pub(super) fn new(schema: &SchemaRef, reduction: &Reduction, lane: Arc<Lane>) -> Self {
        LocalMessages { reducer: MessageReducer::new(reduction, schema), lane }
    }

    /// Adds a message, or a part of one.
    pub(super) fn push(&mut self, part: &RecordBatch) -> Result<(), TaskError> {
        self.reducer.push(part)
    }

    /// Sends the row of the message whose parts have been added, if any.
    pub(super) async fn end_message(&mut self) -> Result<(), TaskError> {
        match self.reducer.finish()? {
            Some(row) => self.lane.send(row).await,
            None => Ok(()),
        }
    }
}
