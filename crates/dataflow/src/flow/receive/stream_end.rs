//! One copy's end of the stream from one source copy: checks, decodes and counts what arrives.

use std::sync::Arc;

use tidemill_batch::wire::BatchDecoder;
use tidemill_checkpoint::Mark;

use super::edge::EdgeRuntime;
use super::inlet::StreamPacket;
use super::input::StreamElement;
use crate::error::DataflowError;
use crate::metrics;

/// The error message when `who` ends after `rounds` messages and others have sent more.
pub(crate) fn unequal_rounds(who: &str, rounds: u64) -> String {
    format!(
        "rounds of unequal length: {who} ended after {rounds} messages, and others have sent more; let every copy send \
         equally many, or go on without those that have ended (rounds \"partial\")"
    )
}

/// The end that the module describes.
pub(super) struct StreamEnd {
    pub(super) edge: Arc<EdgeRuntime>,
    pub(super) source: u32,
    pub(super) decoder: Option<BatchDecoder>,
    pub(super) blocks: u64,
    pub(super) rows: u64,
    pub(super) over: bool,
}

impl StreamEnd {
    /// Unpacks a packet: an item or, once, the end.
    pub(super) fn unpack(&mut self, target: u32, packet: StreamPacket) -> Result<Option<StreamElement>, DataflowError> {
        let wrong = |end: &StreamEnd, reason: String| {
            let reason = format!("from copy {} to copy {target}: {reason}", end.source);
            Err(DataflowError::Edge { edge: end.edge.name.clone(), reason })
        };
        match packet {
            StreamPacket::Batch(batch, _guard) => {
                self.count(batch.num_rows() as u64);
                Ok(Some(StreamElement::Batch(batch)))
            }
            StreamPacket::Block(frame, _guard) => {
                if let Err(error) = frame.verify() {
                    return wrong(self, error.to_string());
                }
                let header = &frame.header;
                if header.seq != self.blocks {
                    return wrong(
                        self,
                        format!("block {} arrived, but block {} was expected", header.seq, self.blocks),
                    );
                }
                if self.decoder.is_none() {
                    self.decoder = Some(BatchDecoder::new(&self.edge.schema)?);
                }
                let decoder = self.decoder.as_mut().expect("just made");
                let batch = match decoder.decode(frame.body(), header.rows as usize) {
                    Ok(batch) => batch,
                    Err(error) => return wrong(self, error.to_string()),
                };
                self.count(header.rows);
                Ok(Some(StreamElement::Batch(batch)))
            }
            StreamPacket::Mark { mark, blocks } => {
                if blocks != self.blocks {
                    return wrong(
                        self,
                        format!("a mark that follows block {blocks} arrived after block {}", self.blocks),
                    );
                }
                Ok(Some(StreamElement::Mark(mark)))
            }
            StreamPacket::End { blocks, rows } => {
                if (blocks, rows) != (self.blocks, self.rows) {
                    let (got_blocks, got_rows) = (self.blocks, self.rows);
                    return wrong(
                        self,
                        format!("{rows} rows in {blocks} blocks were sent, but {got_rows} in {got_blocks} arrived"),
                    );
                }
                if std::mem::replace(&mut self.over, true) {
                    return wrong(self, "it ended twice".into());
                }
                Ok(None)
            }
        }
    }

    /// Refuses a mark for a task that does not handle marks. Ignoring time is harmless, but ignoring a barrier would
    /// lose the task's state.
    pub(super) fn refuse(&self, mark: &Mark) -> Result<(), DataflowError> {
        match mark {
            Mark::Barrier(_) => Err(DataflowError::Edge {
                edge: self.edge.name.clone(),
                reason: "a checkpoint reached a task that does not know how to save its state".into(),
            }),
            Mark::Watermark(_) | Mark::Idle => Ok(()),
        }
    }

    /// The error if it has ended after `rounds` rounds and others have sent more.
    pub(super) fn unequal(&self, rounds: u64) -> DataflowError {
        let who = format!("copy {} of task \"{}\"", self.source, self.edge.source_task);
        DataflowError::Edge { edge: self.edge.name.clone(), reason: unequal_rounds(&who, rounds) }
    }

    /// Stops the sender, since nobody receives any more.
    pub(super) fn stop(&self, target: u32) {
        if !self.over {
            self.edge.stop(self.source, target);
        }
    }

    fn count(&mut self, rows: u64) {
        self.blocks += 1;
        self.rows += rows;
        metrics::add(&self.edge.metrics.rows_received, rows);
    }
}
