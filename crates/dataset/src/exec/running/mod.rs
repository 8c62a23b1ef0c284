//! Window functions over ordered rows, whole batches at a time.
//!
//! DataFusion's step keeps a state for each partition and computes one row's value after the other, which dominates the
//! cost if partitions are small. Since rows come sorted, this module finds the starts of partitions and peers (rows
//! that are equal in the order) for a whole batch, and each function processes all rows of the batch in a loop.
//!
//! | module       | contents                                                                                  |
//! |--------------|-------------------------------------------------------------------------------------------|
//! | `functions`  | `row_number`, `rank`, `dense_rank`, `lag`, `lead`                                         |
//! | `aggregates` | `sum`, `count`, `min`, `max` of a frame from the partition's first row to the current one |
//!
//! DataFusion handles steps with any other function or frame.

mod aggregates;
mod functions;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBufferBuilder, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{concat, concat_batches};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, SendableRecordBatchStream};
use futures::stream::Fuse;
use futures::{StreamExt, TryStreamExt, stream};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::{Governor, Reservation};

use crate::exec::replaced_exec::StepReplacement;
use crate::exec::spill::failed;
use crate::exec::stream_step::has_stream;

/// The owner of the memory in messages.
const NAME: &str = "window functions";

/// Replaces a [`BoundedWindowAggExec`]; its name in plans is `RunningExec`.
#[derive(Clone)]
pub(crate) struct InOrder {
    pub(crate) governor: Governor,
}

impl StepReplacement for InOrder {
    type Step = BoundedWindowAggExec;
    const NAME: &'static str = "RunningExec";

    fn fits(&self, window: &BoundedWindowAggExec) -> bool {
        let functions = window.window_expr();
        let is_sorted = matches!(window.input_order_mode, InputOrderMode::Sorted) && !has_stream(window.input());
        let schema = window.input().schema();
        let is_flat = |key: &Arc<dyn PhysicalExpr>| key.data_type(&schema).is_ok_and(|kind| !kind.is_nested());
        let keys = functions
            .iter()
            .flat_map(|function| function.partition_by().iter().chain(function.order_by().iter().map(|by| &by.expr)));
        let has_one_order = functions.iter().all(|function| {
            function.order_by() == functions[0].order_by() && function.partition_by() == functions[0].partition_by()
        });
        is_sorted
            && has_one_order
            && keys.into_iter().all(is_flat)
            && functions.iter().all(|of| function(of, &schema).is_some())
    }

    fn execute(
        &self,
        window: &BoundedWindowAggExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let (exprs, schema) = (window.window_expr().to_vec(), window.input().schema());
        let rows = RunningWindows {
            input: window.input().execute(partition, context)?.fuse(),
            functions: exprs.iter().map(|expr| function(expr, &schema).expect("looked at before")).collect(),
            exprs,
            schema: window.schema(),
            before: None,
            held: Vec::new(),
            held_rows: 0,
            wanted_rows: 1,
            reservation: self.governor.reservation(NAME),
        };
        let metrics = BaselineMetrics::new(metrics, partition);
        let rows = stream::try_unfold(rows, |mut rows| async move {
            Ok::<_, DataFusionError>(rows.next().await?.map(|batch| (batch, rows)))
        });
        let rows = rows.inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(window.schema(), rows)))
    }
}

/// A function over ordered rows, with its state from earlier rows.
trait RunningFunction: Send {
    /// The number of leading rows with known values if more rows follow.
    fn ready(&self, places: &PeerBounds) -> usize {
        places.rows
    }

    /// Whether all peers share one value, and so must be evaluated together.
    fn is_shared(&self) -> bool {
        false
    }

    /// The values of the first `count` rows; `arg` contains the argument of the function, if it has one. The following
    /// rows come in the next call.
    fn values(&mut self, arg: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef>;
}

/// `None` for an unsupported one.
fn function(expr: &Arc<dyn WindowExpr>, input: &Schema) -> Option<Box<dyn RunningFunction>> {
    functions::of(expr).or_else(|| aggregates::of(expr, input))
}

/// The starts of partitions and peers among some rows.
struct PeerBounds {
    rows: usize,
    /// Which rows are the first in their partition.
    partitions: BooleanBuffer,
    /// Which rows are the first among their peers.
    peers: BooleanBuffer,
}

impl PeerBounds {
    /// For rows with these values of the partition and order columns, after a row with those of `before`.
    fn of(partition_by: &[ArrayRef], order_by: &[ArrayRef], rows: usize, before: Option<&WindowKeys>) -> Result<Self> {
        let begins = |columns: &[ArrayRef], before: Option<&[ArrayRef]>| -> Result<BooleanBuffer> {
            let mut all = BooleanBuffer::new_unset(rows);
            for (at, column) in columns.iter().enumerate() {
                all = &all | &changes(column, before.map(|before| &before[at]))?;
            }
            Ok(all)
        };
        let mut partitions = begins(partition_by, before.map(|keys| keys.partition_by.as_slice()))?;
        if before.is_none() && rows > 0 {
            partitions = &partitions | &(0..rows).map(|row| row == 0).collect::<BooleanBuffer>();
        }
        let peers = &partitions | &begins(order_by, before.map(|keys| keys.order_by.as_slice()))?;
        Ok(PeerBounds { rows, partitions, peers })
    }

    /// The first row of the last group of peers.
    fn last_peers(&self) -> usize {
        (0..self.rows).rev().find(|&row| self.peers.value(row)).unwrap_or(0)
    }

    /// For each of the first rows, the end of its partition, or of all rows.
    fn ends(&self, count: usize) -> Vec<usize> {
        let mut ends = vec![0; count];
        let mut end = self.rows;
        for row in (0..self.rows).rev() {
            if row < count {
                ends[row] = end;
            }
            if self.partitions.value(row) {
                end = row;
            }
        }
        ends
    }
}

/// Which values differ from the previous value; the first is compared with `before`, if given.
fn changes(column: &ArrayRef, before: Option<&ArrayRef>) -> Result<BooleanBuffer> {
    let mut all = BooleanBufferBuilder::new(column.len());
    let Some(rest) = column.len().checked_sub(1) else { return Ok(all.finish()) };
    all.append(match before {
        Some(before) => distinct(before, &column.slice(0, 1))?.value(0),
        None => false,
    });
    all.append_buffer(distinct(&column.slice(0, rest), &column.slice(1, rest))?.values());
    Ok(all.finish())
}

/// Values of the partition and order columns.
struct WindowKeys {
    partition_by: Vec<ArrayRef>,
    order_by: Vec<ArrayRef>,
}

impl WindowKeys {
    fn of(expr: &Arc<dyn WindowExpr>, rows: &RecordBatch) -> Result<Self> {
        let value = |key: &Arc<dyn PhysicalExpr>| key.evaluate(rows)?.into_array(rows.num_rows());
        Ok(WindowKeys {
            partition_by: expr.partition_by().iter().map(value).collect::<Result<_>>()?,
            order_by: expr.order_by().iter().map(|by| value(&by.expr)).collect::<Result<_>>()?,
        })
    }

    /// Those of one row, copied into separate memory.
    fn of_row(&self, row: usize) -> Result<Self> {
        let one = |columns: &[ArrayRef]| -> Result<Vec<ArrayRef>> {
            columns.iter().map(|column| own(column, row, 1)).collect()
        };
        Ok(WindowKeys { partition_by: one(&self.partition_by)?, order_by: one(&self.order_by)? })
    }
}

/// Some values, copied into separate memory: a slice would keep all values alive.
fn own(values: &ArrayRef, from: usize, count: usize) -> Result<ArrayRef> {
    // For a single array, `concat` returns a slice.
    Ok(concat(&[&values.slice(from, count), &values.slice(0, 0)])?)
}

/// The progress of one partition of the step's input.
struct RunningWindows {
    input: Fuse<SendableRecordBatchStream>,
    exprs: Vec<Arc<dyn WindowExpr>>,
    functions: Vec<Box<dyn RunningFunction>>,
    schema: SchemaRef,
    /// The keys of the last row that was output.
    before: Option<WindowKeys>,
    /// Rows that have been read, but not output.
    held: Vec<RecordBatch>,
    held_rows: usize,
    /// The minimum number of rows to collect before evaluating.
    wanted_rows: usize,
    reservation: Reservation,
}

impl RunningWindows {
    /// The next rows, with the values of the functions.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let read = self.input.next().await.transpose()?;
            let is_end = read.is_none();
            if let Some(batch) = read {
                self.hold(batch)?;
            }
            if self.held_rows > 0 && (is_end || self.held_rows >= self.wanted_rows) {
                let rows = self.take_held()?;
                if let Some(batch) = self.evaluated(rows, is_end)? {
                    return Ok(Some(batch));
                }
            }
            if is_end {
                return Ok(None);
            }
        }
    }

    fn hold(&mut self, batch: RecordBatch) -> Result<()> {
        let bytes = batch_bytes(&batch);
        if !self.reservation.try_grow(bytes) && !self.reservation.grow_to_floor(bytes) {
            self.reservation.grow(bytes).map_err(failed)?;
        }
        self.held_rows += batch.num_rows();
        self.held.push(batch);
        Ok(())
    }

    fn take_held(&mut self) -> Result<RecordBatch> {
        let held = std::mem::take(&mut self.held);
        self.held_rows = 0;
        self.reservation.free();
        match <[RecordBatch; 1]>::try_from(held) {
            Ok([only]) => Ok(only),
            Err(held) => Ok(concat_batches(&self.input.get_ref().schema(), &held)?),
        }
    }

    /// The leading rows, with the values of the functions; the others are held back. `None`: all are held back.
    fn evaluated(&mut self, rows: RecordBatch, is_end: bool) -> Result<Option<RecordBatch>> {
        let all = rows.num_rows();
        let keys = WindowKeys::of(&self.exprs[0], &rows)?;
        let places = PeerBounds::of(&keys.partition_by, &keys.order_by, all, self.before.as_ref())?;
        let ready = self.functions.iter().map(|function| function.ready(&places)).min().unwrap_or(all);
        let mut count = if is_end { all } else { ready.min(all) };
        if self.functions.iter().any(|function| function.is_shared()) {
            // Another function may be ready only up to a row among peers.
            while count > 0 && count < all && !places.peers.value(count) {
                count -= 1;
            }
        }
        if count < all {
            self.hold(rows.slice(count, all - count))?;
        }
        if count == 0 {
            // The same rows will be evaluated again, so there should be many new ones by then.
            self.wanted_rows = 2 * all;
            return Ok(None);
        }
        self.wanted_rows = self.held_rows + 1;
        self.before = Some(keys.of_row(count - 1)?);
        let mut columns = rows.slice(0, count).columns().to_vec();
        for (function, expr) in self.functions.iter_mut().zip(&self.exprs) {
            let args = expr.evaluate_args(&rows)?;
            columns.push(function.values(args.first(), &places, count)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?))
    }
}

#[cfg(test)]
mod tests;
