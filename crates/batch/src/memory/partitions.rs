//! Rows on disk, partitioned by the hash of their key: data that does not fit in memory as a whole fits part by part.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{Governor, SpillFile, SpillWriter};
use crate::batch_bytes;
use crate::error::TaskError;
use crate::gather::Scatter;

/// Number of partitions. Each level uses different bits of the hash, and none of those that determine buckets.
const PARTS: u32 = 32;
/// Maximum number of rows in a block.
const BLOCK_ROWS: usize = 8192;
/// Approximate maximum size of a block: a reader holds one in memory, however long its rows are.
const BLOCK_BYTES: usize = 1 << 20;

/// Writes the hash of each row's key to the vector.
pub type HashKeys = Box<dyn Fn(&RecordBatch, &mut Vec<u64>) -> Result<(), TaskError> + Send>;

/// The partitions, see the module.
pub struct SpillPartitions {
    writers: Vec<SpillWriter>,
    hash: HashKeys,
    scatter: Scatter,
    level: u32,
    hashes: Vec<u64>,
}

impl SpillPartitions {
    /// How often the rows of one partition can be partitioned again: the levels are 0 to 5.
    pub const LEVELS: u32 = 6;

    /// Partitions for rows of `schema`. At `level` 1 they divide the rows of one partition at level 0, and so on.
    ///
    /// # Errors
    /// If the files cannot be created.
    pub fn new(governor: &Governor, schema: &SchemaRef, hash: HashKeys, level: u32) -> Result<Self, TaskError> {
        let writers = (0..PARTS).map(|_| SpillWriter::new(governor, schema)).collect::<Result<_, _>>()?;
        Ok(SpillPartitions { writers, hash, scatter: Scatter::new(schema, PARTS, 32 << 10), level, hashes: Vec::new() })
    }

    /// Takes rows.
    ///
    /// # Errors
    /// If the disk is full or fails, or if keys cannot be hashed.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), TaskError> {
        for from in (0..batch.num_rows()).step_by(BLOCK_ROWS * 8) {
            let batch = batch.slice(from, (batch.num_rows() - from).min(BLOCK_ROWS * 8));
            (self.hash)(&batch, &mut self.hashes)?;
            let shift = 5 * self.level;
            let parts: Vec<u32> = self.hashes.iter().map(|hash| (hash >> shift) as u32 % PARTS).collect();
            if self.scatter.collect(batch, &parts)? {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TaskError> {
        for (part, rows) in self.scatter.drain().into_batches()? {
            let row_bytes = batch_bytes(&rows) as usize / rows.num_rows().max(1);
            let block_rows = (BLOCK_BYTES / row_bytes.max(1)).clamp(1, BLOCK_ROWS);
            for from in (0..rows.num_rows()).step_by(block_rows) {
                let block = rows.slice(from, (rows.num_rows() - from).min(block_rows));
                self.writers[part as usize].write(&block)?;
            }
        }
        Ok(())
    }

    /// The partitions, including empty ones.
    ///
    /// # Errors
    /// As [`SpillPartitions::write`].
    pub fn finish(mut self) -> Result<Vec<SpillFile>, TaskError> {
        self.flush()?;
        Ok(self.writers.into_iter().map(SpillWriter::finish).collect::<Result<_, _>>()?)
    }
}
