//! A table in memory as a stream: slices arrive as fast as possible or at a rate, and the stream can resume anywhere.
//! For trying out queries, for tests, and for benchmarks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::stream::source::{Source, SourceEvent, WatermarkStrategy};
use tidemill_dataflow::{TaskContext, TaskError};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::plan::table::StreamSource;

/// Minimum number of splits over which slices are distributed; there is at least one for each copy that reads them. The
/// number stays the same when a job resumes with another number of copies.
const SPLITS_MIN: usize = 8;

/// The rows of a table, in batches of at most `slice_rows`. `rows_per_s` is the rate of all copies together; 0 means as
/// fast as possible. Every worker passes the same table.
pub fn table_stream(
    name: &str,
    schema: SchemaRef,
    batches: &[RecordBatch],
    times: Option<WatermarkStrategy>,
    slice_rows: usize,
    rows_per_s: f64,
) -> StreamSource {
    let slice = |batch: &RecordBatch| -> Vec<RecordBatch> {
        let step = slice_rows.max(1);
        let piece = |from| batch.slice(from, step.min(batch.num_rows() - from));
        (0..batch.num_rows()).step_by(step).map(piece).collect()
    };
    let slices: Arc<Vec<RecordBatch>> = Arc::new(batches.iter().flat_map(slice).collect());
    let make = move |context: &TaskContext| -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(TableStream::new(Arc::clone(&slices), context, rows_per_s)?))
    };
    StreamSource {
        name: name.to_owned(),
        schema,
        times,
        copies_max: 0,
        guarantee: DeliveryGuarantee::ExactlyOnce,
        spec: None,
        bad_to: None,
        bad_folder: None,
        files: None,
        make: Arc::new(make),
    }
}

struct TableStream {
    slices: Arc<Vec<RecordBatch>>,
    /// The number of each split, with its next slice; finished splits remain in the list.
    splits: Vec<(usize, usize)>,
    /// The number of splits over all copies.
    all: usize,
    /// The splits that were reported as finished.
    told: Vec<bool>,
    /// Seconds per row of this copy.
    row_s: f64,
    begun: Option<Instant>,
    rows: u64,
    pause: Option<Pin<Box<Sleep>>>,
}

impl TableStream {
    fn new(slices: Arc<Vec<RecordBatch>>, context: &TaskContext, rows_per_s: f64) -> Result<Self, TaskError> {
        let all = match context.restored() {
            Some(restored) => restored.split_names.len(),
            None => SPLITS_MIN.max(context.copies() as usize),
        };
        let splits: Vec<(usize, usize)> = match context.restored() {
            Some(restored) => {
                let split = |(name, saved): (&String, &Bytes)| -> Result<(usize, usize), TaskError> {
                    let ([next, rows], []) = saved.as_chunks() else {
                        return Err("the checkpoint has a split that no table stream saved".into());
                    };
                    let next = u64::from_le_bytes(*next) as usize;
                    if u64::from_le_bytes(*rows) != rows_before(&slices, next) {
                        let reason = "the checkpoint was made from a table with different batches, or with a \
                            different batch size: they must not change";
                        return Err(reason.into());
                    }
                    Ok((name.parse()?, next))
                };
                restored.splits.iter().map(split).collect::<Result<_, _>>()?
            }
            None => {
                let mine = |split: &usize| split % context.copies() as usize == context.copy() as usize;
                (0..all).filter(mine).map(|split| (split, split)).collect()
            }
        };
        let row_s = if rows_per_s > 0.0 { f64::from(context.copies()) / rows_per_s } else { 0.0 };
        let told = vec![false; splits.len()];
        Ok(TableStream { slices, splits, all, told, row_s, begun: None, rows: 0, pause: None })
    }
}

/// The number of rows in the slices before `next`.
fn rows_before(slices: &[RecordBatch], next: usize) -> u64 {
    slices.iter().take(next).map(|slice| slice.num_rows() as u64).sum()
}

impl Source for TableStream {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        // A finished split no longer holds back the watermark.
        let over = |at: &usize| !self.told[*at] && self.splits[*at].1 >= self.slices.len();
        if let Some(at) = (0..self.splits.len()).find(over) {
            self.told[at] = true;
            return Poll::Ready(Ok(SourceEvent::SplitEnded { split: at as u32 }));
        }
        // The split that is furthest behind, so that slices come in the order of the table.
        let behind = (0..self.splits.len()).filter(|&at| self.splits[at].1 < self.slices.len());
        if let Some(at) = behind.min_by_key(|&at| self.splits[at].1) {
            let next = &mut self.splits[at].1;
            let rows = &self.slices[*next];
            if self.row_s > 0.0 {
                let due = *self.begun.get_or_insert_with(Instant::now)
                    + Duration::from_secs_f64((self.rows + rows.num_rows() as u64) as f64 * self.row_s);
                if due > Instant::now() {
                    self.pause = Some(Box::pin(sleep_until(due)));
                    return self.poll_next(context);
                }
            }
            *next += self.all;
            self.rows += rows.num_rows() as u64;
            return Poll::Ready(Ok(SourceEvent::rows(at as u32, rows.clone())));
        }
        Poll::Ready(Ok(SourceEvent::End))
    }

    fn split_name(&self, split: u32) -> String {
        format!("share {}", self.splits.get(split as usize).map_or(split as usize, |(share, _)| *share))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let place = |next: usize| [next as u64, rows_before(&self.slices, next)].map(u64::to_le_bytes).concat().into();
        Ok(self.splits.iter().map(|&(split, next)| (split.to_string(), place(next))).collect())
    }
}
