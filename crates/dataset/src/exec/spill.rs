//! The spill files of DataFusion's operators (its sorts, aggregations and joins): unnamed files, which disappear
//! however the process ends, made of blocks with checksums.
//!
//! DataFusion does not check what it reads back. A byte corrupted by a disk would become a wrong value, or an offset
//! outside of the buffer; here it is an error that names the step.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, TryStreamExt, stream};
use tidemill_dataflow::BatchError;
use tidemill_dataflow::memory::{self as spilled, BlockFile, Governor};

use crate::error::DataSetError;

/// Size of a block; flushed blocks are shorter. One block is in memory for each file that is read.
const BLOCK_BYTES: usize = 128 << 10;

/// Creates files in the governor's spill directory.
pub(crate) struct SpillFiles(pub(crate) Governor);

impl TempFileFactory for SpillFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(SpilledBatches(Arc::new(BlockFile::new(&self.0, description).map_err(failed)?))))
    }
}

/// Converts an error of the disk or of the memory governor.
pub(crate) fn failed(error: BatchError) -> DataFusionError {
    let text = error.to_string();
    DataFusionError::from(match error {
        BatchError::Memory { .. } => DataSetError::Memory(text.trim_start_matches("memory: ").into()),
        _ => DataSetError::Io(text),
    })
}

/// The rows of a file that has been written.
pub(crate) fn rows_of(part: &spilled::SpillFile) -> Result<SendableRecordBatchStream> {
    let mut reader = part.read().map_err(failed)?;
    let batches = std::iter::from_fn(move || reader.next_batch().transpose());
    let batches = stream::iter(batches).map_err(failed);
    Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(part.schema()), batches))))
}

struct SpilledBatches(Arc<BlockFile>);

impl SpillFile for SpilledBatches {
    fn size(&self) -> Option<u64> {
        Some(self.0.bytes())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let blocks = stream::try_unfold((Arc::clone(&self.0), 0), |(file, at)| async move {
            let reader = Arc::clone(&file);
            let block = tokio::task::spawn_blocking(move || reader.read(at)).await;
            let block = block.map_err(|error| DataSetError::Internal(error.to_string()))?.map_err(failed)?;
            Ok::<_, DataFusionError>(block.map(|block| (block, (file, at + 1))))
        });
        Ok(Box::pin(blocks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(BatchSpiller { file: Arc::clone(&self.0), block: Vec::new() }))
    }
}

struct BatchSpiller {
    file: Arc<BlockFile>,
    /// The contents of the next block.
    block: Vec<u8>,
}

impl Write for BatchSpiller {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.block.len());
        if taken == BLOCK_BYTES {
            self.file.append(&bytes[..taken]).map_err(io::Error::other)?;
            return Ok(taken);
        }
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    /// Writes buffered data to disk, because other tasks may wait to read it.
    fn flush(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.file.append(&self.block).map_err(io::Error::other)?;
            self.block.clear();
        }
        Ok(())
    }
}

impl SpillWriter for BatchSpiller {
    fn finish(&mut self) -> Result<()> {
        self.flush()?;
        self.block = Vec::new();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tidemill_dataflow::memory::MemorySettings;

    use super::*;

    /// Pieces of any length must come back in order, including those flushed while the file is still being written.
    #[test]
    fn what_is_written_is_read() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let file = SpillFiles(Governor::new(MemorySettings::default())).create_temp_file("test").unwrap();
        let all: Vec<u8> = (0..1_000_000_u32).map(|n| (n * 7 / 3) as u8).collect();
        let read = |file: &Arc<dyn SpillFile>| {
            let blocks = file.read_stream().unwrap();
            runtime.block_on(blocks.try_collect::<Vec<Bytes>>()).unwrap().concat()
        };
        let mut writer = file.open_writer().unwrap();
        let (mut rest, mut written) = (all.as_slice(), 0);
        for len in [1, 0, 70_000, 70_000, 300_000, 64] {
            let (piece, others) = rest.split_at(len);
            writer.write_all(piece).unwrap();
            writer.flush().unwrap();
            (rest, written) = (others, written + len);
            assert_eq!(read(&file), all[..written]);
        }
        writer.write_all(rest).unwrap();
        writer.finish().unwrap();
        assert_eq!((read(&file), file.size()), (all, Some(1_000_000)));
    }
}
