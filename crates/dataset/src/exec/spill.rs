//! Where DataFusion's operators (its sorts, aggregations and joins) spill to: files without a name, which are gone
//! however the process ends, of blocks with checksums.
//!
//! DataFusion reads what it has written without looking at it. A byte that a disk returns otherwise would be another
//! value, or an offset into memory that is somebody else's; here it is an error that names the step.

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

/// Of a block; those that are flushed are shorter. One is in memory for each file that is read.
const BLOCK_BYTES: usize = 128 << 10;

/// Makes files in the governor's spill directory.
pub(crate) struct SpillFiles(pub(crate) Governor);

impl TempFileFactory for SpillFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(SpilledBatches(Arc::new(BlockFile::new(&self.0, description).map_err(failed)?))))
    }
}

/// What the disk said, or who holds the memory.
pub(crate) fn failed(error: BatchError) -> DataFusionError {
    let text = error.to_string();
    DataFusionError::from(match error {
        BatchError::Memory { .. } => DataSetError::Memory(text.trim_start_matches("memory: ").into()),
        _ => DataSetError::Io(text),
    })
}

/// The rows of a file that was written.
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
    /// Of the next block.
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

    /// Puts on disk what has been written: others may be waiting to read it.
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

    /// What was written in pieces of any length must come back in order, also what was flushed while the file is being
    /// written.
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
