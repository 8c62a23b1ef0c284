//! Text files as one column `line`. A file is cut into byte ranges that threads read apart; lines are views into the blocks
//! they were read in, so that their bytes are copied once, from the file.
//!
//! A line belongs to the range that its first byte lies in. Line ends are `\n` or `\r\n`, and are not part of the line.

use std::io::Read;
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
use crate::files::file_table::{Part, PiecesTable};
use crate::files::packing::Packing;
use crate::files::paths::File;

/// Bytes read at a time. A longer line grows its block.
const BLOCK_BYTES: usize = 1 << 20;
/// Lines of a batch: DataFusion's own batch size.
const BATCH_LINES: usize = 8192;
/// A longer line is an error: it is hardly text, and an Arrow view cannot point further.
const LINE_BYTES_MAX: usize = 1 << 30;

/// A table of all lines of `files`, in their order within each partition.
pub(crate) fn read(engine: &Engine, files: Vec<File>, packing: Packing) -> Result<DataSet> {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8View, false)]));
    let groups = deal(files.clone(), !packing.is_plain(), engine.partitions())?;
    let partitions = groups.into_iter().map(|pieces| {
        let lines = Lines { schema: Arc::clone(&schema), pieces, packing };
        Arc::new(lines) as Arc<dyn Part>
    });
    let table = PiecesTable::new(Arc::clone(&schema), files, partitions.collect());
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

/// A range of a file's bytes, after decompression; `end` is `u64::MAX` where it ends with the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) file: File,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The pieces of files for each partition: `whole` files, where one cannot be read but from its beginning.
pub(crate) fn deal(files: Vec<File>, whole: bool, partitions_max: usize) -> Result<Vec<Vec<Piece>>> {
    if whole { Ok(by_files(files, partitions_max)) } else { by_bytes(&files, partitions_max) }
}

/// As equal parts of all bytes as there are partitions.
fn by_bytes(files: &[File], partitions_max: usize) -> Result<Vec<Vec<Piece>>> {
    let sizes = files.iter().map(File::size_bytes).collect::<Result<Vec<u64>>>()?;
    let each = sizes.iter().sum::<u64>().div_ceil(partitions_max as u64).max(BLOCK_BYTES as u64);
    let mut groups = vec![Vec::new()];
    let mut left = each;
    for (file, &size) in files.iter().zip(&sizes) {
        let mut start = 0;
        while start < size {
            if left == 0 {
                groups.push(Vec::new());
                left = each;
            }
            let end = size.min(start + left);
            groups.last_mut().expect("never empty").push(Piece { file: file.clone(), start, end });
            left -= end - start;
            start = end;
        }
    }
    Ok(groups)
}

/// Whole files: a compressed one can only be read from its beginning.
fn by_files(files: Vec<File>, partitions_max: usize) -> Vec<Vec<Piece>> {
    let each = files.len().div_ceil(partitions_max).max(1);
    let whole = |file: &File| Piece { file: file.clone(), start: 0, end: u64::MAX };
    files.chunks(each).map(|some| some.iter().map(whole).collect()).collect()
}

/// Pieces that a compressed file is cut into at most: each decompresses all that is before it, too.
const CUTS_MAX: usize = 4;
/// Files that are shorter are not worth the second look, in compressed bytes.
const CUT_BYTES_MIN: u64 = 1 << 18;
/// To skip a byte takes this part of the time that it takes to read it.
const SKIPPED: f64 = 0.25;

/// Cuts compressed files of this machine into as many pieces as there may be partitions, each a partition of its own; nothing if that is
/// not worth it.
///
/// Nobody can begin in the middle of such a file, but only decompressing has to begin at its start: rows are decoded by whoever has
/// the piece.
pub(crate) fn cut(files: &[File], packing: Packing, partitions_max: usize) -> Result<Vec<Piece>> {
    let cuts = (partitions_max / files.len().max(1)).min(CUTS_MAX);
    let is_fast = packing.is_fast();
    let is_local = files.iter().all(|file| matches!(file, File::Local(_)));
    if cuts < 2 || !is_fast || !is_local {
        return Ok(Vec::new());
    }
    let mut pieces = Vec::new();
    for file in files {
        if file.size_bytes()? < CUT_BYTES_MIN {
            return Ok(Vec::new());
        }
        let expanded = expanded_bytes(file, packing)? as f64;
        // Each piece is shorter than the one before by what it skips, so that all take as long.
        let lengths: Vec<f64> = (0..cuts).map(|i| (1.0 - SKIPPED).powi(i as i32)).collect();
        let (all, mut start, mut done) = (lengths.iter().sum::<f64>(), 0, 0.0);
        for (i, length) in lengths.iter().enumerate() {
            done += length / all;
            let end = if i + 1 == cuts { u64::MAX } else { (expanded * done) as u64 };
            pieces.push(Piece { file: file.clone(), start, end });
            start = end;
        }
    }
    Ok(pieces)
}

/// How many bytes a file is likely to have after decompression, by what becomes of its first ones: not all say it themselves. If it is wrong,
/// pieces differ in length, and rows are the same.
fn expanded_bytes(file: &File, packing: Packing) -> Result<u64> {
    let size = file.size_bytes()?;
    let looked_at = size.min(CUT_BYTES_MIN);
    let mut source = packing.open(file.open(0)?.take(looked_at))?;
    let (mut block, mut expanded) = (vec![0; BLOCK_BYTES], 0);
    // Where the look ends the rest is missing, and that is an error.
    while let Ok(read @ 1..) = source.read(&mut block) {
        expanded += read as u64;
    }
    Ok((expanded as f64 * size as f64 / looked_at as f64) as u64)
}

#[derive(Debug)]
struct Lines {
    schema: SchemaRef,
    pieces: Vec<Piece>,
    packing: Packing,
}

impl Part for Lines {}

impl PartitionStream for Lines {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading goes on while one is worked on, and no further.
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

/// Gives the lines of `piece` to `emit`, until that returns false.
fn read_piece(
    piece: &Piece,
    packing: Packing,
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

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Gives the bytes of `piece` to `emit`, until that returns false: blocks of whole lines, and where each begins in the file; in the
/// end what is left, which may be nothing. The last block may have lines that begin behind the piece. `is_wanted` is asked while what is before
/// the piece of a compressed file is skipped.
pub(crate) fn read_blocks(
    piece: &Piece,
    packing: Packing,
    is_wanted: &dyn Fn() -> bool,
    mut emit: impl FnMut(Vec<u8>, u64, bool) -> Result<bool>,
) -> Result<()> {
    let failed = |error: std::io::Error| piece.file.not_read(packing, &error);
    // Where the next byte of the source lies in the file (after decompression).
    let mut position = piece.start.saturating_sub(1);
    let mut source = if packing.is_plain() {
        piece.file.open(position)?
    } else {
        let mut source: Box<dyn Read + Send> = Box::new(packing.open(piece.file.open(0)?)?);
        let (mut block, mut left) = (vec![0; BLOCK_BYTES], position);
        while left > 0 {
            let some = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = source.read(&mut block[..some]).map_err(failed)?;
            if read == 0 || !is_wanted() {
                return Ok(());
            }
            left -= read as u64;
        }
        source
    };
    // The line that begins before this piece is another's, unless the byte before the piece ends it.
    let mut skipping = piece.start > 0;
    let mut is_first = piece.start == 0;
    let mut carried: Vec<u8> = Vec::new();
    let mut ended = false;
    while !ended {
        let mut block = std::mem::take(&mut carried);
        let kept = block.len();
        let read = source.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block).map_err(failed)?;
        let mut block_start = position - kept as u64;
        position += read as u64;
        ended = read == 0;
        // Windows programs begin UTF-8 files with a byte-order mark, which is part of no value.
        if std::mem::take(&mut is_first) && block.starts_with(BYTE_ORDER_MARK) {
            block.drain(..BYTE_ORDER_MARK.len());
            block_start += BYTE_ORDER_MARK.len() as u64;
        }
        if skipping {
            let Some(at) = memchr::memchr(b'\n', &block) else {
                // Still inside the line that is not ours; the piece may end within it.
                if position >= piece.end {
                    return Ok(());
                }
                continue;
            };
            block.drain(..=at);
            block_start += at as u64 + 1;
            skipping = false;
        }
        // Whole lines only; the rest waits for its end. What was carried has no line end: a long line is looked through once.
        let end = || memchr::memrchr(b'\n', &block[kept..]).map_or(0, |at| kept + at + 1);
        let whole = if ended { block.len() } else { end() };
        if block.len() - whole > LINE_BYTES_MAX {
            return Err(DataSetError::Data(format!(
                "{}: the line at byte {} is longer than 1 GiB",
                piece.file,
                block_start + whole as u64
            )));
        }
        if whole == 0 && !ended {
            carried = block;
            continue;
        }
        carried = block.split_off(whole);
        if !emit(block, block_start, ended)? {
            return Ok(());
        }
    }
    Ok(())
}

/// The lines of a file that end before `position`, which is one after decompression.
pub(crate) fn lines_until(file: &File, packing: Packing, position: u64) -> Result<u64> {
    let mut source = packing.open(file.open(0)?)?.take(position);
    let mut block = vec![0; BLOCK_BYTES];
    let mut lines = 0;
    loop {
        match source.read(&mut block).map_err(|error| file.not_read(packing, &error))? {
            0 => return Ok(lines),
            read => lines += memchr::memchr_iter(b'\n', &block[..read]).count() as u64,
        }
    }
}

/// Gives the lines of `block` that begin before the piece's end to `emit`. Returns whether there may be more.
fn emit_lines(
    block: Vec<u8>,
    block_start: u64,
    piece: &Piece,
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

    fn lines_of(file: &Path, start: u64, end: u64) -> Result<Vec<String>> {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8View, false)]));
        let mut lines = Vec::new();
        let piece = Piece { file: File::Local(file.to_owned()), start, end };
        read_piece(&piece, Packing::NONE, &schema, |batch| {
            let column = batch.column(0).as_any().downcast_ref::<StringViewArray>().unwrap().clone();
            lines.extend(column.iter().map(|line| line.unwrap().to_owned()));
            true
        })?;
        Ok(lines)
    }

    /// However a file is cut, every line is read once and in order: also empty ones, and the last without an end.
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
