//! A copy's end of an edge to a reduction without keys: what the copy sends is reduced at once, while it is still in
//! the processor's cache, and nothing goes on before all has come.

use std::sync::Arc;

use arrow::array::RecordBatch;
use tidemill_batch::batch_bytes;
use tidemill_batch::local::{Reducer, Reduction};

use super::lane::{EdgeEnd, Lane};
use crate::error::TaskError;

/// After so much a sender lets others have the thread. With an eighth of it that took 3 to 6 % of a reduction's time.
const TURN_BYTES: u64 = 4 << 20;

/// See the module.
pub(super) struct LocalReduce {
    way: Arc<EdgeEnd>,
    reduction: Reduction,
    /// From the first rows on.
    reducer: Option<Reducer>,
    pub lane: Arc<Lane>,
    /// What was sent since the copy gave its thread back.
    bytes: u64,
}

impl LocalReduce {
    pub(super) fn new(way: &Arc<EdgeEnd>, reduction: &Reduction, lane: Arc<Lane>) -> Self {
        LocalReduce { way: Arc::clone(way), reduction: reduction.clone(), reducer: None, lane, bytes: 0 }
    }

    pub(super) async fn send(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        if self.bytes >= TURN_BYTES {
            self.bytes = 0;
            // Nothing here ever waits: others would not have the thread, and nothing could end the copy.
            tokio::task::yield_now().await;
        }
        self.bytes += batch_bytes(&batch);
        if let Some(reducer) = &mut self.reducer {
            return reducer.push(batch);
        }
        let edge = &self.way.edge;
        let name = format!("{}, copy {}", edge.name, self.way.source);
        let reducer = Reducer::new(&edge.schema, 0, &self.reduction, &edge.governor, &name)?;
        self.reducer.insert(reducer).push(batch)
    }

    /// Numbers, given as bytes, of the only column; `false`: they have to come as a batch.
    #[inline]
    pub(super) fn push_values(&mut self, values: &[u8]) -> bool {
        let Some(reducer) = self.reducer.as_mut().filter(|_| self.bytes < TURN_BYTES) else { return false };
        let added = reducer.push_values(values);
        if added {
            self.bytes += values.len() as u64;
        }
        added
    }

    /// This was all: sends what it has come to.
    pub(super) async fn finish(&mut self) -> Result<(), TaskError> {
        if let Some(reducer) = self.reducer.take() {
            let mut reduced = reducer.finish()?;
            while let Some(batch) = reduced.next_batch()? {
                self.lane.send(batch).await?;
            }
        }
        Ok(())
    }
}
