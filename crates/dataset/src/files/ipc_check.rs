//! Checks the sizes that an Arrow IPC file claims, before memory is allocated for them.
//!
//! Arrow's reader trusts lengths: it allocates the claimed size of a block or a compressed buffer, and if the
//! allocation fails, the process aborts. So every length is first compared with the file size, and the length of
//! compressed data with the maximum that its codec can make of the input.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use arrow::ipc::{BodyCompression, CompressionType, Message, RecordBatch, root_as_footer, root_as_message};

use crate::error::Result;
use crate::files::paths::InputFile;

/// At the start of a file, and at its end.
const MAGIC: &[u8; 6] = b"ARROW1";
/// The magic number at the start, with its padding.
const START_BYTES: u64 = 8;
/// The footer's length and the magic number.
const END_BYTES: u64 = 10;
/// Precedes a message's length, except in very old files.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The uncompressed length that precedes a compressed buffer.
const LENGTH_BYTES: u64 = 8;
/// The length of a buffer that was stored uncompressed.
const NOT_COMPRESSED: i64 = -1;
/// Maximum compression ratios: in LZ4 a match of 255 bytes per length byte, in zstd a block of 128 KiB that repeats one
/// byte.
const LZ4_RATIO: u64 = 256;
const ZSTD_RATIO: u64 = 1 << 16;
/// More than any codec needs for the frame of a short buffer.
const SLACK_BYTES: u64 = 1 << 16;

/// The body of a message, and its compressed buffers with their places in the file.
struct CompressedBody {
    codec: CompressionType,
    buffers: Vec<Range<u64>>,
}

/// Checks a file. Call it on a thread that may block. `memory_bytes` is the maximum size of a decompressed batch.
///
/// # Errors
/// `Io` if it cannot be opened; the inner error describes problems of its contents.
pub(crate) fn check(file: &InputFile, memory_bytes: u64) -> Result<Result<(), String>> {
    let size = file.size_bytes()?;
    let mut start = [0; 6];
    if size < START_BYTES + END_BYTES || at(file, 0..6).map(|bytes| start.copy_from_slice(&bytes)).is_err() {
        // Too short to claim anything; the reader reports what is missing.
        return Ok(Ok(()));
    }
    Ok(match start == *MAGIC {
        true => check_file(file, size, memory_bytes),
        false => check_stream(file, size, memory_bytes),
    })
}

fn check_file(file: &InputFile, size: u64, memory_bytes: u64) -> Result<(), String> {
    let end = at(file, size - END_BYTES..size)?;
    let length = i32::from_le_bytes(end[..4].try_into().expect("four bytes"));
    if end[4..] != *MAGIC {
        // Without a footer it can still be read as a stream.
        return check_stream(file, size, memory_bytes);
    }
    let most = size - END_BYTES - START_BYTES;
    let length = u64::try_from(length).ok().filter(|length| *length <= most);
    let length = length.ok_or("its footer is longer than the file")?;
    let footer = at(file, size - END_BYTES - length..size - END_BYTES)?;
    let footer = root_as_footer(&footer).map_err(|error| format!("its footer is damaged: {error}"))?;
    if footer.schema().is_none() {
        return Err("its footer has no schema".into());
    }
    let (dictionaries, batches) = (footer.dictionaries(), footer.recordBatches());
    let blocks = dictionaries.iter().flatten().chain(batches.iter().flatten());
    let (mut heads, mut bodies, mut sum) = (Vec::new(), Vec::new(), 0_u64);
    for block in blocks {
        let (offset, head, body) = (block.offset(), block.metaDataLength(), block.bodyLength());
        let wrong = || format!("a block of {head} and {body} bytes at {offset} lies outside the file of {size} bytes");
        let start = u64::try_from(offset).map_err(|_| wrong())?;
        let (head, body) = (u64::try_from(head).map_err(|_| wrong())?, u64::try_from(body).map_err(|_| wrong())?);
        let length = head.checked_add(body).filter(|_| head >= 8).ok_or_else(wrong)?;
        start.checked_add(length).filter(|end| *end <= size).ok_or_else(wrong)?;
        sum = sum.saturating_add(length);
        heads.push(start..start + head);
        bodies.push(start + head..start + length);
    }
    // Many blocks at one place would be decoded many times.
    if sum > size {
        return Err(format!("its blocks have {sum} bytes, but the file has {size}"));
    }
    let messages = ranges(file, &heads)?;
    let mut compressed = Vec::new();
    for (message, body) in messages.iter().zip(bodies) {
        let skipped = if message[..4] == CONTINUATION { 8 } else { 4 };
        let message = root_as_message(&message[skipped..]).map_err(|error| format!("a message is damaged: {error}"))?;
        if u64::try_from(message.bodyLength()).ok() > Some(body.end - body.start) {
            return Err("a message's body is longer than its block".into());
        }
        compressed.extend(buffers(&message, body)?);
    }
    for batch in compressed {
        let heads = batch.buffers.iter().map(|buffer| buffer.start..buffer.start + LENGTH_BYTES).collect::<Vec<_>>();
        check_lengths(&batch, &ranges(file, &heads)?, memory_bytes)?;
    }
    Ok(())
}

/// Reads consecutive messages.
fn check_stream(file: &InputFile, size: u64, memory_bytes: u64) -> Result<(), String> {
    match file {
        InputFile::Local(path) => {
            let mut source = fs::File::open(path).map_err(text)?;
            walk(size, memory_bytes, |range| {
                source.seek(SeekFrom::Start(range.start))?;
                exactly(&mut source, &range)
            })
        }
        InputFile::Object(_) => {
            let mut source = file.open(0).map_err(text)?;
            let mut position = 0;
            walk(size, memory_bytes, |range| {
                let skipped = range.start.checked_sub(position).ok_or_else(|| io::Error::other("not in order"))?;
                io::copy(&mut source.by_ref().take(skipped), &mut io::sink())?;
                position = range.end;
                exactly(&mut source, &range)
            })
        }
    }
}

fn walk(size: u64, memory_bytes: u64, mut read: impl FnMut(Range<u64>) -> io::Result<Vec<u8>>) -> Result<(), String> {
    let mut position = 0;
    // A file that has lost its footer starts like a stream.
    while size - position >= 8 {
        let mut four = |at: u64| read(at..at + 4).map(|bytes| <[u8; 4]>::try_from(bytes).expect("four bytes"));
        let mut length = four(position).map_err(text)?;
        position += 4;
        if position == 4 && length == MAGIC[..4] {
            position = START_BYTES;
            continue;
        }
        if length == CONTINUATION {
            length = four(position).map_err(text)?;
            position += 4;
        }
        let head = i32::from_le_bytes(length);
        if head == 0 {
            return Ok(());
        }
        let wrong = |what: &str, length: i64| format!("{what} of {length} bytes lies outside the file of {size} bytes");
        let end = u64::try_from(head).ok().and_then(|head| position.checked_add(head)).filter(|end| *end <= size);
        let end = end.ok_or_else(|| wrong("a message", head.into()))?;
        let message = read(position..end).map_err(text)?;
        let message = root_as_message(&message).map_err(|error| format!("a message is damaged: {error}"))?;
        let body = message.bodyLength();
        let body_end = u64::try_from(body).ok().and_then(|body| end.checked_add(body)).filter(|end| *end <= size);
        let body_end = body_end.ok_or_else(|| wrong("a message's body", body))?;
        if let Some(batch) = buffers(&message, end..body_end)? {
            let mut order = batch.buffers.clone();
            order.sort_by_key(|buffer| buffer.start);
            let lengths = order.iter().map(|buffer| read(buffer.start..buffer.start + LENGTH_BYTES));
            let lengths = lengths.collect::<io::Result<Vec<_>>>().map_err(text)?;
            check_lengths(&CompressedBody { buffers: order, ..batch }, &lengths, memory_bytes)?;
        }
        position = body_end;
    }
    Ok(())
}

/// The compressed buffers of a message; `None` if there are none. All must lie within its body.
fn buffers(message: &Message<'_>, body: Range<u64>) -> Result<Option<CompressedBody>, String> {
    let dictionary = message.header_as_dictionary_batch();
    let batch: Option<RecordBatch<'_>> =
        dictionary.and_then(|dictionary| dictionary.data()).or_else(|| message.header_as_record_batch());
    let Some(batch) = batch else { return Ok(None) };
    let mut found = Vec::new();
    for buffer in batch.buffers().iter().flatten() {
        let (offset, length) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
        let within = offset.ok().zip(length.ok()).and_then(|(offset, length)| {
            let start = body.start.checked_add(offset)?;
            Some(start..start.checked_add(length).filter(|end| *end <= body.end)?)
        });
        let within = within.ok_or_else(|| {
            format!("a buffer of {} bytes at {} lies outside its batch", buffer.length(), buffer.offset())
        })?;
        found.push(within);
    }
    let Some(codec) = batch.compression().as_ref().map(BodyCompression::codec) else { return Ok(None) };
    found.retain(|buffer| buffer.start < buffer.end);
    if found.iter().any(|buffer| buffer.end - buffer.start < LENGTH_BYTES) {
        return Err("a compressed buffer is too short to contain a length".into());
    }
    Ok(Some(CompressedBody { codec, buffers: found }))
}

fn check_lengths(batch: &CompressedBody, lengths: &[Vec<u8>], memory_bytes: u64) -> Result<(), String> {
    let ratio = if batch.codec == CompressionType::ZSTD { ZSTD_RATIO } else { LZ4_RATIO };
    let mut sum = 0_u64;
    for (buffer, length) in batch.buffers.iter().zip(lengths) {
        let bytes = buffer.end - buffer.start - LENGTH_BYTES;
        let claimed = i64::from_le_bytes(length[..].try_into().expect("eight bytes"));
        if claimed == NOT_COMPRESSED {
            continue;
        }
        let most = bytes.saturating_mul(ratio).saturating_add(SLACK_BYTES);
        let claimed = u64::try_from(claimed).ok().filter(|claimed| *claimed <= most).ok_or_else(|| {
            format!("a buffer of {bytes} bytes claims to decompress to {claimed} bytes, which is impossible")
        })?;
        sum = sum.saturating_add(claimed);
    }
    if sum > memory_bytes {
        return Err(format!(
            "a batch decompresses to {sum} bytes, but only {memory_bytes} bytes of memory are available for it; write \
             smaller batches, or raise --memory"
        ));
    }
    Ok(())
}

fn at(file: &InputFile, range: Range<u64>) -> Result<Vec<u8>, String> {
    Ok(ranges(file, &[range])?.remove(0))
}

fn ranges(file: &InputFile, wanted: &[Range<u64>]) -> Result<Vec<Vec<u8>>, String> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let sum: u64 = wanted.iter().map(|range| range.end - range.start).sum();
    let mut all = vec![0; usize::try_from(sum).map_err(text)?];
    file.read_ranges(wanted, &mut all).map_err(text)?;
    let mut left = all.as_slice();
    Ok(wanted
        .iter()
        .map(|range| left.split_off(..(range.end - range.start) as usize).expect("read").to_vec())
        .collect())
}

fn exactly(source: &mut impl Read, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(io::Error::other)?];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
