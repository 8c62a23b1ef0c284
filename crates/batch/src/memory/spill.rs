//! Spilling: batches in files of the spill directory, compressed and checksummed, read back in order.
//!
//! A file has no name once it is open (`O_TMPFILE`, or unlinked at once), so nothing is left behind, however the worker
//! ends. Its blocks are frames as on the wire, whose bodies are parts of an Arrow IPC stream with LZ4.

use std::fs::File;
use std::io::{BufReader, BufWriter, Error, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Governor;
use crate::error::BatchError;
use crate::wire::{BatchDecoder, BatchEncoder, Frame, HEADER_BYTES, ReceivedFrame, WireHeader, WireKind};

/// Bytes per read or write.
pub(super) const IO_BYTES: usize = 256 << 10;
/// Minimum size of a file after which freed memory is returned to the system.
const TRIM_BYTES_MIN: u64 = 1 << 20;

/// The error of a file in the governor's spill directory, with the remedy.
pub fn spill_error(governor: &Governor, error: &Error) -> BatchError {
    let reason = match (error.kind(), error.raw_os_error()) {
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge, _) => format!(
            "{error}; {}this worker has written {} MiB to it so far and needs more: free space there, choose another \
             directory with --spill-dir, or raise --memory so that less is written",
            room(&governor.settings().spill_dir),
            governor.spilled_bytes().div_ceil(1 << 20)
        ),
        (
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem,
            _,
        ) => {
            format!("{error}; choose a directory that this user can write to with --spill-dir")
        }
        (_, Some(libc::EMFILE)) => {
            format!("{error}; raise the limit with `ulimit -n`, or raise --memory")
        }
        _ => error.to_string(),
    };
    BatchError::Spill { dir: governor.settings().spill_dir.display().to_string(), reason }
}

/// The free space on a directory's disk, for errors; empty if the system does not report it.
fn room(dir: &Path) -> String {
    let mib = |blocks: u64, block_bytes: u64| blocks.saturating_mul(block_bytes) >> 20;
    rustix::fs::statvfs(dir).map_or_else(
        |_| String::new(),
        |disk| {
            let (free, all) = (mib(disk.f_bavail, disk.f_frsize), mib(disk.f_blocks, disk.f_frsize));
            format!("{free} MiB of its disk's {all} MiB are free; ")
        },
    )
}

/// The error of a file that differs from what was written.
pub(super) fn damaged(governor: &Governor, reason: &dyn std::fmt::Display) -> BatchError {
    let reason = format!("the data read differs from the data written: {reason}; is the disk faulty?");
    BatchError::Spill { dir: governor.settings().spill_dir.display().to_string(), reason }
}

/// Raises the limit on open files as far as allowed: spilling can open some hundred files at once, and the soft limit,
/// often 1024, only exists for programs that call `select`.
pub(super) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If this fails, the resulting error will state the remedy.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// An unnamed file in the governor's spill directory, which exists as long as it is open.
///
/// # Errors
/// If it cannot be created there.
pub fn nameless_file(governor: &Governor) -> Result<File, BatchError> {
    tempfile::tempfile_in(&governor.settings().spill_dir).map_err(|error| spill_error(governor, &error))
}

/// A file being written.
pub struct SpillWriter {
    governor: Governor,
    file: BufWriter<File>,
    schema: SchemaRef,
    encoder: BatchEncoder,
    blocks: u64,
    rows: u64,
    bytes: u64,
}

impl SpillWriter {
    /// A new file in the governor's spill directory.
    ///
    /// # Errors
    /// If it cannot be created there.
    pub fn new(governor: &Governor, schema: &SchemaRef) -> Result<Self, BatchError> {
        let file = nameless_file(governor)?;
        Ok(SpillWriter {
            governor: governor.clone(),
            file: BufWriter::with_capacity(IO_BYTES, file),
            schema: SchemaRef::clone(schema),
            encoder: BatchEncoder::compressed(schema)?,
            blocks: 0,
            rows: 0,
            bytes: 0,
        })
    }

    /// Appends a batch.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), BatchError> {
        let header =
            WireHeader { seq: self.blocks, rows: batch.num_rows() as u64, ..WireHeader::new(WireKind::Batch, 0) };
        let frame = Frame::new(&header, &self.encoder.encode(batch)?).into_buffer();
        self.file.write_all(&frame).map_err(|error| spill_error(&self.governor, &error))?;
        self.blocks += 1;
        self.rows += header.rows;
        self.bytes += frame.len() as u64;
        self.governor.0.spilled_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes written, as stored on disk.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends writing.
    ///
    /// # Errors
    /// As [`SpillWriter::write`].
    pub fn finish(self) -> Result<SpillFile, BatchError> {
        let SpillWriter { governor, file, schema, blocks, rows, bytes, .. } = self;
        let file = file.into_inner().map_err(|error| spill_error(&governor, error.error()))?;
        // For a small file, looking for freed memory takes longer than writing the file.
        if bytes >= TRIM_BYTES_MIN {
            super::trim();
        }
        Ok(SpillFile { governor, file: Arc::new(file), schema, blocks, rows, bytes })
    }
}

/// A file that has been written.
pub struct SpillFile {
    governor: Governor,
    file: Arc<File>,
    schema: SchemaRef,
    blocks: u64,
    rows: u64,
    bytes: u64,
}

impl SpillFile {
    /// Number of rows in it.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Its length on disk.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The schema of its batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reads it from the start. The file exists as long as any of its readers.
    ///
    /// # Errors
    /// If batches with its schema cannot be read.
    pub fn read(&self) -> Result<SpillReader, BatchError> {
        let file = BufReader::with_capacity(IO_BYTES, FileCursor { file: Arc::clone(&self.file), at: 0 });
        let (governor, decoder) = (self.governor.clone(), BatchDecoder::new(&self.schema)?);
        Ok(SpillReader { governor, file, decoder, next: 0, blocks: self.blocks, left_bytes: self.bytes })
    }
}

/// A reader's position in a file that may have other readers.
struct FileCursor {
    file: Arc<File>,
    at: u64,
}

impl Read for FileCursor {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The batches of a file, in order.
pub struct SpillReader {
    governor: Governor,
    file: BufReader<FileCursor>,
    decoder: BatchDecoder,
    next: u64,
    blocks: u64,
    left_bytes: u64,
}

impl SpillReader {
    /// The next batch.
    ///
    /// # Errors
    /// If the disk fails, or returns data other than what was written.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        if self.next == self.blocks {
            return Ok(None);
        }
        let damaged = |reason: &dyn std::fmt::Display| damaged(&self.governor, reason);
        let mut read = |bytes: &mut [u8]| match self.file.read_exact(bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(damaged(&"the file ends early")),
            other => other.map_err(|error| spill_error(&self.governor, &error)),
        };
        let mut header = [0; HEADER_BYTES];
        read(&mut header)?;
        let len = ReceivedFrame::len(&header).map_err(|error| damaged(&error))?;
        // A length from the file must not size an allocation before it is known to be plausible.
        if len as u64 > self.left_bytes {
            return Err(damaged(&"the file ends early"));
        }
        self.left_bytes -= len as u64;
        let mut bytes = MutableBuffer::new(len);
        bytes.extend_from_slice(&header);
        bytes.resize(len, 0);
        read(&mut bytes[HEADER_BYTES..])?;
        let frame = ReceivedFrame::take(&mut Buffer::from(bytes)).map_err(|error| damaged(&error))?;
        frame.verify().map_err(|error| damaged(&error))?;
        if frame.header.seq != self.next {
            return Err(damaged(&format!("found block {} instead of {}", frame.header.seq, self.next)));
        }
        self.next += 1;
        let batch = self.decoder.decode(frame.body(), frame.header.rows as usize);
        batch.map(Some).map_err(|error| damaged(&error))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringArray};
    use arrow::datatypes::Int32Type;

    use super::*;
    use crate::memory::MemorySettings;

    fn governor() -> Governor {
        Governor::new(MemorySettings::default())
    }

    fn batch(seed: i64, rows: i64) -> RecordBatch {
        let n: Int64Array = (0..rows).map(|row| (row % 7 != 0).then_some(seed * 1000 + row)).collect();
        let s: StringArray = (0..rows).map(|row| Some(format!("text {row}"))).collect();
        let d: DictionaryArray<Int32Type> = (0..rows).map(|row| Some(["a", "b"][(row + seed) as usize % 2])).collect();
        let columns: Vec<(&str, ArrayRef, bool)> =
            vec![("n", Arc::new(n), true), ("s", Arc::new(s), true), ("d", Arc::new(d), true)];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn file(batches: &[RecordBatch]) -> SpillFile {
        let mut writer = SpillWriter::new(&governor(), &batches[0].schema()).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap()
    }

    /// Batches must come back unchanged, including dictionaries and empty batches, whatever other readers do; and they
    /// must be smaller on disk.
    #[test]
    fn batches_come_back() {
        let batches: Vec<_> = [(1, 5000), (2, 0), (3, 1), (4, 3000)].map(|(seed, rows)| batch(seed, rows)).into();
        let mut writer = SpillWriter::new(&governor(), &batches[0].schema()).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let raw: u64 = batches.iter().map(crate::batch_bytes).sum();
        assert!(writer.bytes() < raw / 2, "{} of {raw} bytes", writer.bytes());
        let file = writer.finish().unwrap();
        let mut readers = [file.read().unwrap(), file.read().unwrap()];
        drop(file);
        for batch in &batches {
            for reader in &mut readers {
                assert_eq!(reader.next_batch().unwrap().as_ref(), Some(batch));
            }
        }
        assert!(readers[0].next_batch().unwrap().is_none());
    }

    /// A disk that returns wrong bytes causes a clear error, never wrong rows.
    #[test]
    fn damage_is_an_error() {
        for at in [3, 26, 44, 50, 70, 5000] {
            let file = file(&[batch(1, 5000)]);
            let mut byte = [0];
            file.file.read_exact_at(&mut byte, at).unwrap();
            file.file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            let error = file.read().unwrap().next_batch().unwrap_err().to_string();
            assert!(error.contains("differs from the data written"), "{at}: {error}");
        }
        let short = file(&[batch(1, 5000)]);
        short.file.set_len(4000).unwrap();
        assert!(short.read().unwrap().next_batch().unwrap_err().to_string().contains("ends early"));
    }

    /// A full disk causes an error that states the remedy. `/dev/full` acts as a full disk.
    #[test]
    fn a_full_disk_is_a_clear_error() {
        let mut writer = SpillWriter::new(&governor(), &batch(0, 0).schema()).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        writer.file = BufWriter::new(full);
        let error = match writer.write(&batch(1, 50_000)) {
            Err(error) => error,
            Ok(()) => writer.finish().err().expect("nothing fits"),
        };
        assert!(error.to_string().contains("--spill-dir"), "{error}");
        let error = spill_error(&governor(), &Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(error.contains("ulimit -n"), "{error}");
        let missing = MemorySettings { spill_dir: "/nowhere/at/all".into(), ..MemorySettings::default() };
        let error = SpillWriter::new(&Governor::new(missing), &batch(0, 0).schema()).err().unwrap().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
