//! Distributes rows to targets: takes rows with known targets, and makes one batch per target out of many input
//! batches.
//!
//! Batches are collected until there is enough for every target, so that small ones never cross the network one by one;
//! then each target's rows are copied into a separate batch. Slices of a common batch would not do: a receiver that
//! keeps one slice would keep the whole batch alive.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::RowGather;
use super::row_subset::{RowSubset, split_by_target};
use crate::batch_bytes;
use crate::error::TaskError;

/// Maximum size of the collected rows before they are sent, regardless of the number of targets.
const COLLECT_BYTES_MAX: u64 = 32 << 20;
/// Row numbers have 32 bits.
const COLLECT_ROWS_MAX: usize = 1 << 30;

/// The collected rows, by target; targets without rows are omitted.
pub enum ScatterOutput {
    /// A batch whose rows all go to one target.
    Whole(u32, RecordBatch),
    /// The rows of each target, to be gathered from the batches.
    Parts(RowGather, Vec<(u32, RowSubset)>),
}

impl ScatterOutput {
    /// Each target's rows as a batch.
    ///
    /// # Errors
    /// If the combined strings are too long for their offsets.
    pub fn into_batches(self) -> Result<Vec<(u32, RecordBatch)>, ArrowError> {
        match self {
            ScatterOutput::Whole(target, batch) => Ok(vec![(target, batch)]),
            ScatterOutput::Parts(gather, parts) => {
                parts.iter().map(|(target, part)| Ok((*target, gather.part(part)?))).collect()
            }
        }
    }
}

/// Collects and distributes the rows of one source copy.
pub struct Scatter {
    schema: SchemaRef,
    targets: u32,
    batches: Vec<RecordBatch>,
    /// The target of each row of `batches`.
    assigned: Vec<u32>,
    bytes: u64,
    flush_bytes: u64,
}

impl Scatter {
    /// An empty scatter for `targets` targets. It is time to send when each target has about `batch_bytes`.
    pub fn new(schema: &SchemaRef, targets: u32, batch_bytes: u64) -> Self {
        let flush_bytes = (batch_bytes * u64::from(targets)).min(COLLECT_BYTES_MAX);
        let schema = SchemaRef::clone(schema);
        Scatter { schema, targets, batches: Vec::new(), assigned: Vec::new(), bytes: 0, flush_bytes }
    }

    /// Takes a batch whose rows go to `targets`. Returns whether it is time to send.
    ///
    /// # Errors
    /// If there is not exactly one target for each row, or if a target does not exist.
    pub fn collect(&mut self, batch: RecordBatch, targets: &[u32]) -> Result<bool, TaskError> {
        if targets.len() != batch.num_rows() {
            let (found, rows) = (targets.len(), batch.num_rows());
            return Err(format!("the partitioner returned {found} targets for {rows} rows").into());
        }
        // A plain comparison instead of `max`, which has to track the last of equal values and would run element by
        // element.
        let target = targets.iter().fold(0, |most, &target| most.max(target));
        if target >= self.targets {
            let copies = self.targets;
            return Err(
                format!("the partitioner returned target {target}, but the task has only {copies} copies").into()
            );
        }
        self.bytes += batch_bytes(&batch);
        self.assigned.extend_from_slice(targets);
        self.batches.push(batch);
        Ok(self.bytes >= self.flush_bytes || self.assigned.len() >= COLLECT_ROWS_MAX)
    }

    /// The average collected size per target.
    pub fn target_bytes(&self) -> u64 {
        self.bytes / u64::from(self.targets.max(1))
    }

    /// Whether nothing has been collected.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the collected rows and starts over.
    pub fn drain(&mut self) -> ScatterOutput {
        let (assigned, mut batches) = (std::mem::take(&mut self.assigned), std::mem::take(&mut self.batches));
        self.bytes = 0;
        if let ([_], [target, others @ ..]) = (&batches[..], &assigned[..])
            && others.iter().all(|other| other == target)
        {
            return ScatterOutput::Whole(*target, batches.remove(0));
        }
        let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
        let some = (0..).zip(split_by_target(self.targets, &assigned, &rows)).filter(|(_, part)| !part.is_empty());
        ScatterOutput::Parts(RowGather::new(&self.schema, &batches), some.collect())
    }
}
