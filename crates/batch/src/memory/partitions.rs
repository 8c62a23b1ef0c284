//! Rows on disk, parted by their key's hash: what does not fit in memory at once fits part by part.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{Governor, SpillFile, SpillWriter};
use crate::batch_bytes;
use crate::error::TaskError;
use crate::gather::Scatter;

/// Parts at once. Each level takes other bits of the hash, and not those that buckets are made of.
const PARTS: u32 = 32;
/// Rows of a block, at most.
const BLOCK_ROWS: usize = 8192;
/// Bytes of a block, about, at most: who reads a part has a block in memory, however long its rows are.
const BLOCK_BYTES: usize = 1 << 20;

/// Leaves the hash of each row's key in the vector.
pub type HashKeys = Box<dyn Fn(&RecordBatch, &mut Vec<u64>) -> Result<(), TaskError> + Send>;

/// See the module.
pub struct SpillPartitions {
    writers: Vec<SpillWriter>,
    hash: HashKeys,
    scatter: Scatter,
    level: u32,
    hashes: Vec<u64>,
}

impl SpillPartitions {
    /// How often what fell into one part can be parted again: the levels are 0 to 5.
    pub const LEVELS: u32 = 6;

    /// Parts for rows of `schema`. At `level` 1 they part what fell into one part at level 0, and so on.
    ///
    /// # Errors
    /// When the files cannot be made.
    pub fn new(governor: &Governor, schema: &SchemaRef, hash: HashKeys, level: u32) -> Result<Self, TaskError> {
        let writers = (0..PARTS).map(|_| SpillWriter::new(governor, schema)).collect::<Result<_, _>>()?;
        Ok(SpillPartitions { writers, hash, scatter: Scatter::new(schema, PARTS, 32 << 10), level, hashes: Vec::new() })
    }

    /// Takes rows.
    ///
    /// # Errors
    /// When the disk is full or fails, or their keys cannot be hashed.
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

    /// The parts, also the empty ones.
    ///
    /// # Errors
    /// As [`SpillPartitions::write`].
    pub fn finish(mut self) -> Result<Vec<SpillFile>, TaskError> {
        self.flush()?;
        Ok(self.writers.into_iter().map(SpillWriter::finish).collect::<Result<_, _>>()?)
    }
}
