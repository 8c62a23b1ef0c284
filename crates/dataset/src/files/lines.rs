//! Text files in pieces: a file is divided into byte ranges that threads read independently, in blocks of whole lines.
//!
//! A line belongs to the range that contains its first byte. Line ends are `\n` or `\r\n`, and are not part of the
//! line.

use std::io::Read;

use crate::error::{DataSetError, Result};
use crate::files::encoding::FileEncoding;
use crate::files::paths::InputFile;

/// Bytes read at a time. A longer line enlarges its block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// A longer line is an error: it is hardly text, and Arrow's views have a limited offset.
const LINE_BYTES_MAX: usize = 1 << 30;

/// A range of a file's bytes after decompression; `end` is `u64::MAX` if it ends with the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) file: InputFile,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The pieces of files for each partition; `whole` files if they can only be read from the beginning.
pub(crate) fn deal(files: Vec<InputFile>, whole: bool, partitions_max: usize) -> Result<Vec<Vec<ByteRange>>> {
    if whole { Ok(by_files(files, partitions_max)) } else { by_bytes(&files, partitions_max) }
}

/// Divides all bytes equally among the partitions.
fn by_bytes(files: &[InputFile], partitions_max: usize) -> Result<Vec<Vec<ByteRange>>> {
    let sizes = files.iter().map(InputFile::size_bytes).collect::<Result<Vec<u64>>>()?;
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
            groups.last_mut().expect("never empty").push(ByteRange { file: file.clone(), start, end });
            left -= end - start;
            start = end;
        }
    }
    Ok(groups)
}

/// Whole files: a compressed one can only be read from its beginning.
fn by_files(files: Vec<InputFile>, partitions_max: usize) -> Vec<Vec<ByteRange>> {
    let each = files.len().div_ceil(partitions_max).max(1);
    let whole = |file: &InputFile| ByteRange { file: file.clone(), start: 0, end: u64::MAX };
    files.chunks(each).map(|some| some.iter().map(whole).collect()).collect()
}

/// Maximum number of pieces of a compressed file: each has to decompress everything before it, too.
const CUTS_MAX: usize = 4;
/// Minimum compressed size for dividing a file.
const CUT_BYTES_MIN: u64 = 1 << 18;
/// The time to skip a byte, relative to the time to read it.
const SKIPPED: f64 = 0.25;

/// Divides local compressed files into as many pieces as there may be partitions, one per partition; empty if that does
/// not pay.
///
/// Reading such a file cannot start in the middle, but only the decompression has to start at the beginning: rows are
/// decoded by the owner of the piece.
pub(crate) fn cut(files: &[InputFile], packing: FileEncoding, partitions_max: usize) -> Result<Vec<ByteRange>> {
    let cuts = (partitions_max / files.len().max(1)).min(CUTS_MAX);
    let is_fast = packing.is_fast();
    let is_local = files.iter().all(|file| matches!(file, InputFile::Local(_)));
    if cuts < 2 || !is_fast || !is_local {
        return Ok(Vec::new());
    }
    let mut pieces = Vec::new();
    for file in files {
        if file.size_bytes()? < CUT_BYTES_MIN {
            return Ok(Vec::new());
        }
        let expanded = expanded_bytes(file, packing)? as f64;
        // Each piece is shorter than the previous one in proportion to what it skips, so that all take the same time.
        let lengths: Vec<f64> = (0..cuts).map(|i| (1.0 - SKIPPED).powi(i as i32)).collect();
        let (all, mut start, mut done) = (lengths.iter().sum::<f64>(), 0, 0.0);
        for (i, length) in lengths.iter().enumerate() {
            done += length / all;
            let end = if i + 1 == cuts { u64::MAX } else { (expanded * done) as u64 };
            pieces.push(ByteRange { file: file.clone(), start, end });
            start = end;
        }
    }
    Ok(pieces)
}

/// Estimates the decompressed size of a file from its first bytes, because not all files record it. If the estimate is
/// wrong, pieces differ in length, but rows are the same.
fn expanded_bytes(file: &InputFile, packing: FileEncoding) -> Result<u64> {
    let size = file.size_bytes()?;
    let looked_at = size.min(CUT_BYTES_MIN);
    let mut source = packing.open(file.open(0)?.take(looked_at))?;
    let (mut block, mut expanded) = (vec![0; BLOCK_BYTES], 0);
    // The sample is truncated, so it ends with an error.
    while let Ok(read @ 1..) = source.read(&mut block) {
        expanded += read as u64;
    }
    Ok((expanded as f64 * size as f64 / looked_at as f64) as u64)
}

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Passes the bytes of `piece` to `emit` until it returns false: blocks of whole lines, with their offsets in the file;
/// at the end the remainder, which may be empty. The last block may contain lines that begin after the piece. Calls
/// `is_wanted` while it skips to the start of a piece of a compressed file.
pub(crate) fn read_blocks(
    piece: &ByteRange,
    packing: FileEncoding,
    is_wanted: &dyn Fn() -> bool,
    mut emit: impl FnMut(Vec<u8>, u64, bool) -> Result<bool>,
) -> Result<()> {
    let failed = |error: std::io::Error| piece.file.not_read(packing, &error);
    // The offset of the next byte of the source in the file (after decompression).
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
    // A line that begins before this piece belongs to another, unless the byte before the piece ends it.
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
        // Windows programs start UTF-8 files with a byte-order mark, which is not part of a value.
        if std::mem::take(&mut is_first) && block.starts_with(BYTE_ORDER_MARK) {
            block.drain(..BYTE_ORDER_MARK.len());
            block_start += BYTE_ORDER_MARK.len() as u64;
        }
        if skipping {
            let Some(at) = memchr::memchr(b'\n', &block) else {
                // Still within another piece's line; this piece may end within it.
                if position >= piece.end {
                    return Ok(());
                }
                continue;
            };
            block.drain(..=at);
            block_start += at as u64 + 1;
            skipping = false;
        }
        // Only whole lines; the remainder waits for its end. The part carried over has no line end, so a long line is
        // searched only once.
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

/// The number of lines of a file that end before `position`, an offset after decompression.
pub(crate) fn lines_until(file: &InputFile, packing: FileEncoding, position: u64) -> Result<u64> {
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
