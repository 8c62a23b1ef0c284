//! Rows on disk, parted by their key's hash: what does not fit in memory at once fits part by part.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{Governor, SpillFile, SpillWriter};
use crate::error::TaskError;
use crate::flow::Scatter;
use crate::keys::KeyHasher;

/// Parts at once. Each level takes other bits of the hash, and not those that buckets are made of.
const PARTS: u32 = 32;
/// Rows of a block, at most.
const BLOCK_ROWS: usize = 8192;

/// See the module.
pub(crate) struct Partitions {
    writers: Vec<SpillWriter>,
    hasher: KeyHasher,
    scatter: Scatter,
    level: u32,
    hashes: Vec<u64>,
}

impl Partitions {
    /// Parts for rows of `schema`. At `level` 1 they part what fell into one part at level 0, and so on.
    pub(crate) fn new(
        governor: &Governor,
        schema: &SchemaRef,
        hasher: KeyHasher,
        level: u32,
    ) -> Result<Self, TaskError> {
        let writers = (0..PARTS).map(|_| SpillWriter::new(governor, schema)).collect::<Result<_, _>>()?;
        Ok(Partitions { writers, hasher, scatter: Scatter::new(schema, PARTS, 32 << 10), level, hashes: Vec::new() })
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), TaskError> {
        for from in (0..batch.num_rows()).step_by(BLOCK_ROWS * 8) {
            let batch = batch.slice(from, (batch.num_rows() - from).min(BLOCK_ROWS * 8));
            self.hasher.hash(&batch, &mut self.hashes)?;
            let shift = 5 * self.level;
            let parts: Vec<u32> = self.hashes.iter().map(|hash| (hash >> shift) as u32 % PARTS).collect();
            if self.scatter.collect(batch, &parts)? {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TaskError> {
        for (part, rows) in self.scatter.drain()? {
            for from in (0..rows.num_rows()).step_by(BLOCK_ROWS) {
                let block = rows.slice(from, (rows.num_rows() - from).min(BLOCK_ROWS));
                self.writers[part as usize].write(&block)?;
            }
        }
        Ok(())
    }

    /// The parts, also the empty ones.
    pub(crate) fn finish(mut self) -> Result<Vec<SpillFile>, TaskError> {
        self.flush()?;
        Ok(self.writers.into_iter().map(SpillWriter::finish).collect::<Result<_, _>>()?)
    }
}
