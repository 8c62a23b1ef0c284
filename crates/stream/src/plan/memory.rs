//! A table in memory as a stream: slices arrive as fast as possible or at a rate, and the stream can resume anywhere.
//! For trying out queries, for tests, and for benchmarks.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent, WatermarkStrategy};
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
        moves_splits: true,
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
    /// Those that another copy has now; their numbers stay taken.
    gone: Vec<bool>,
    /// Of all copies; 0 for as fast as possible.
    rows_per_s: f64,
    /// Seconds per row of this copy.
    row_s: f64,
    begun: Option<Instant>,
    /// Whether the last split was reported: a receiver that sees it knows that the others exist.
    told_last: bool,
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
            Some(restored) => restored.splits.iter().map(|split| place(&slices, split)).collect::<Result<_, _>>()?,
            None => {
                let mine = |split: &usize| context.is_dealt(*split);
                (0..all).filter(mine).map(|split| (split, split)).collect()
            }
        };
        let row_s = if rows_per_s > 0.0 { context.active_copies().len() as f64 / rows_per_s } else { 0.0 };
        let (told, gone) = (vec![false; splits.len()], vec![false; splits.len()]);
        Ok(TableStream {
            slices,
            splits,
            all,
            told,
            gone,
            rows_per_s,
            row_s,
            begun: None,
            told_last: false,
            rows: 0,
            pause: None,
        })
    }
}

/// A split and its next slice, as saved.
fn place(slices: &[RecordBatch], (name, saved): (&String, &Bytes)) -> Result<(usize, usize), TaskError> {
    let ([next, rows], []) = saved.as_chunks() else {
        return Err("the checkpoint has a split that no table stream saved".into());
    };
    let next = u64::from_le_bytes(*next) as usize;
    if u64::from_le_bytes(*rows) != rows_before(slices, next) {
        let reason = "the checkpoint was made from a table with different batches, or with a different batch size: they \
                      must not change";
        return Err(reason.into());
    }
    Ok((name.parse()?, next))
}

impl TableStream {
    /// Whether this copy has more rows of a split.
    fn is_open(&self, at: usize) -> bool {
        !self.gone[at] && self.splits[at].1 < self.slices.len()
    }

    /// Other splits than before have rows: the rate is shared by splits from now on.
    fn pace(&mut self) {
        let open = (0..self.splits.len()).filter(|&at| self.is_open(at)).count();
        if self.rows_per_s > 0.0 {
            self.row_s = self.all as f64 / (open.max(1) as f64 * self.rows_per_s);
        }
        (self.begun, self.rows, self.pause) = (None, 0, None);
    }

    fn saved(&self, at: usize) -> Bytes {
        let next = self.splits[at].1;
        [next as u64, rows_before(&self.slices, next)].map(u64::to_le_bytes).concat().into()
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
        if !std::mem::replace(&mut self.told_last, true)
            && let (Some(last), Some(slice)) = (self.splits.len().checked_sub(1), self.slices.first())
        {
            return Poll::Ready(Ok(SourceEvent::rows(last as u32, slice.slice(0, 0))));
        }
        // A finished split no longer holds back the watermark.
        let over = |at: &usize| !self.told[*at] && !self.gone[*at] && self.splits[*at].1 >= self.slices.len();
        if let Some(at) = (0..self.splits.len()).find(over) {
            self.told[at] = true;
            return Poll::Ready(Ok(SourceEvent::SplitEnded { split: at as u32 }));
        }
        // The split that is furthest behind, so that slices come in the order of the table.
        let behind = (0..self.splits.len()).filter(|&at| self.is_open(at));
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
        let there = (0..self.splits.len()).filter(|&at| !self.gone[at]);
        Ok(there.map(|at| (self.splits[at].0.to_string(), self.saved(at))).collect())
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let mut released = Vec::new();
        for at in 0..self.splits.len() {
            let name = self.splits[at].0.to_string();
            if self.is_open(at) && splits.contains(&name) {
                released.push(ReleasedSplit { name, position: self.saved(at), numbers: vec![at as u32] });
                self.gone[at] = true;
            }
        }
        self.pace();
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        let begin = self.splits.len();
        for split in &splits {
            self.splits.push(place(&self.slices, (&split.0, &split.1))?);
        }
        self.told.resize(self.splits.len(), false);
        self.gone.resize(self.splits.len(), false);
        self.pace();
        Ok((begin as u32..self.splits.len() as u32).collect())
    }
}
