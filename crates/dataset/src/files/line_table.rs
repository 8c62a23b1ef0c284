//! Text files as a table with a single column `line`. Lines are views into the blocks in which they were read, so their
//! bytes are copied only once, from the file.

use std::sync::Arc;

use arrow::array::StringViewBuilder;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::encoding::FileEncoding;
use crate::files::file_table::{FilePartition, PiecesTable};
use crate::files::lines::{ByteRange, deal, lines_until, read_blocks};
use crate::files::paths::InputFile;

/// Lines per batch: DataFusion's own batch size.
const BATCH_LINES: usize = 8192;

/// A table of all lines of `files`, in their order within each partition.
pub(crate) fn read(engine: &Engine, files: Vec<InputFile>, packing: FileEncoding) -> Result<DataSet> {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8View, false)]));
    let groups = deal(files.clone(), !packing.is_plain(), engine.partitions())?;
    let partitions = groups.into_iter().map(|pieces| {
        let lines = LineRanges { schema: Arc::clone(&schema), pieces, packing };
        Arc::new(lines) as Arc<dyn FilePartition>
    });
    let table = PiecesTable::new(Arc::clone(&schema), files, partitions.collect());
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

#[derive(Debug)]
struct LineRanges {
    schema: SchemaRef,
    pieces: Vec<ByteRange>,
    packing: FileEncoding,
}

impl FilePartition for LineRanges {}

impl PartitionStream for LineRanges {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading continues while one is processed, but not further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 2);
        let sender = builder.tx();
        let (schema, pieces, packing) = (Arc::clone(&self.schema), self.pieces.clone(), self.packing);
        builder.spawn_blocking(move || {
            for piece in pieces {
                let mut wanted = true;
                let emit = |batch| {
                    wanted = sender.blocking_send(Ok(batch)).is_ok();
                    wanted
                };
                read_piece(&piece, packing, &schema, emit).map_err(DataFusionError::from)?;
                if !wanted {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}

/// Passes the lines of `piece` to `emit` until it returns false.
fn read_piece(
    piece: &ByteRange,
    packing: FileEncoding,
    schema: &SchemaRef,
    mut emit: impl FnMut(RecordBatch) -> bool,
) -> Result<()> {
    read_blocks(piece, packing, &|| true, |block, block_start, _| {
        let not_text = |at| -> DataSetError {
            match lines_until(&piece.file, packing, at) {
                Ok(before) => DataSetError::Data(format!("{}: line {} is not UTF-8", piece.file, before + 1)),
                Err(error) => error,
            }
        };
        emit_lines(block, block_start, piece, schema, &mut emit, not_text)
    })
}

/// Passes the lines of `block` that begin before the end of the piece to `emit`. Returns whether there may be more.
fn emit_lines(
    block: Vec<u8>,
    block_start: u64,
    piece: &ByteRange,
    schema: &SchemaRef,
    emit: &mut impl FnMut(RecordBatch) -> bool,
    not_text: impl Fn(u64) -> DataSetError,
) -> Result<bool> {
    let mut ends = memchr::memchr_iter(b'\n', &block).collect::<Vec<usize>>();
    if block.last().is_some_and(|&last| last != b'\n') {
        ends.push(block.len());
    }
    let buffer = Buffer::from_vec(block);
    let mut start = 0;
    for some in ends.chunks(BATCH_LINES) {
        let mut lines = StringViewBuilder::with_capacity(some.len());
        let id = lines.append_block(buffer.clone());
        let mut is_last = false;
        for &end in some {
            if block_start + start as u64 >= piece.end {
                is_last = true;
                break;
            }
            let stop = if end > start && buffer[end - 1] == b'\r' { end - 1 } else { end };
            lines
                .try_append_view(id, start as u32, (stop - start) as u32)
                .map_err(|_| not_text(block_start + start as u64))?;
            start = end + 1;
        }
        let lines = lines.finish();
        if !arrow::array::Array::is_empty(&lines) {
            let batch = RecordBatch::try_new(Arc::clone(schema), vec![Arc::new(lines)])?;
            if !emit(batch) {
                return Ok(false);
            }
        }
        if is_last {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use arrow::array::{Array, StringViewArray};

    use crate::files::lines::BLOCK_BYTES;

    fn lines_of(file: &Path, start: u64, end: u64) -> Result<Vec<String>> {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8View, false)]));
        let mut lines = Vec::new();
        let piece = ByteRange { file: InputFile::Local(file.to_owned()), start, end };
        read_piece(&piece, FileEncoding::NONE, &schema, |batch| {
            let column = batch.column(0).as_any().downcast_ref::<StringViewArray>().unwrap().clone();
            lines.extend(column.iter().map(|line| line.unwrap().to_owned()));
            true
        })?;
        Ok(lines)
    }

    /// However a file is divided, every line is read once and in order, including empty ones and a last line without a
    /// line end.
    #[test]
    fn every_cut_gives_every_line_once() {
        let file = std::env::temp_dir().join(format!("tidemill-lines-{}", std::process::id()));
        for text in ["", "\n", "one", "a\n\nbb\r\nccc\n", "a\nb\nlast without end", "\n\n\n", "ä\nöü\n"] {
            std::fs::write(&file, text).unwrap();
            let expected: Vec<String> = text.lines().map(str::to_owned).collect();
            let size = text.len() as u64;
            for first in 0..=size {
                for second in first..=size {
                    let mut lines = Vec::new();
                    for (start, end) in [(0, first), (first, second), (second, size)] {
                        if start < end {
                            lines.extend(lines_of(&file, start, end).unwrap());
                        }
                    }
                    assert_eq!(lines, expected, "{text:?} cut at {first} and {second}");
                }
            }
        }
        std::fs::remove_file(&file).unwrap();
    }

    /// Lines longer than a block, and files of many blocks.
    #[test]
    fn long_lines_grow_their_block() {
        let file = std::env::temp_dir().join(format!("tidemill-long-{}", std::process::id()));
        let long = "x".repeat(3 * BLOCK_BYTES);
        let text = format!("short\n{long}\n{}end", "line\n".repeat(BLOCK_BYTES / 4));
        std::fs::write(&file, &text).unwrap();
        let size = text.len() as u64;
        let mut lines = lines_of(&file, 0, size / 2).unwrap();
        lines.extend(lines_of(&file, size / 2, size).unwrap());
        std::fs::remove_file(&file).unwrap();
        assert!(lines.iter().map(String::as_str).eq(text.lines()));
    }

    #[test]
    fn bytes_that_are_no_text_are_named() {
        let file = std::env::temp_dir().join(format!("tidemill-bytes-{}", std::process::id()));
        std::fs::write(&file, b"good\nb\xffd\n").unwrap();
        let error = lines_of(&file, 0, 9).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        assert!(error.to_string().ends_with(": line 2 is not UTF-8"), "{error}");
    }
}
