//! Blocks of bytes on disk, for callers with their own format. A block is appended and read back as a whole, and
//! compared with its checksum. Checksums stay in memory, where a disk error cannot damage them together with the data.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use super::Governor;
use super::spill::{damaged, nameless_file, spill_error};
use crate::error::BatchError;

/// An unnamed file in the governor's spill directory. Only one caller writes at a time; others may read what has been
/// written.
#[derive(Debug)]
pub struct BlockFile {
    governor: Governor,
    /// The operator that writes it, for errors.
    owner: String,
    file: File,
    blocks: Mutex<Vec<BlockExtent>>,
}

#[derive(Clone, Copy, Debug)]
struct BlockExtent {
    end: u64,
    sum: u64,
}

impl BlockFile {
    /// An empty file; `owner` appears in errors.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(governor: &Governor, owner: impl Into<String>) -> Result<Self, BatchError> {
        let file = nameless_file(governor)?;
        Ok(BlockFile { governor: governor.clone(), owner: owner.into(), file, blocks: Mutex::default() })
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.blocks.lock().last().map_or(0, |block| block.end)
    }

    /// Appends a block.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn append(&self, block: &[u8]) -> Result<(), BatchError> {
        let (start, len) = (self.bytes(), block.len() as u64);
        self.file.write_all_at(block, start).map_err(|error| spill_error(&self.governor, &error))?;
        self.governor.0.spilled_bytes.fetch_add(len, Ordering::Relaxed);
        // Readers see a block once it is complete.
        self.blocks.lock().push(BlockExtent { end: start + len, sum: XxHash3_64::oneshot(block) });
        Ok(())
    }

    /// Block number `at`; `None` past the last one.
    ///
    /// # Errors
    /// If the disk fails, or returns data other than what was written.
    pub fn read(&self, at: usize) -> Result<Option<Bytes>, BatchError> {
        let (start, BlockExtent { end, sum }) = {
            let blocks = self.blocks.lock();
            let Some(&block) = blocks.get(at) else { return Ok(None) };
            (at.checked_sub(1).map_or(0, |before| blocks[before].end), block)
        };
        let mut bytes = vec![0; (end - start) as usize];
        let read = self.file.read_exact_at(&mut bytes, start);
        if read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof) {
            return Err(damaged(&self.governor, &format!("{}: the file ends early", self.owner)));
        }
        read.map_err(|error| spill_error(&self.governor, &error))?;
        if XxHash3_64::oneshot(&bytes) != sum {
            return Err(damaged(&self.governor, &format!("{}: the checksum of block {at} is wrong", self.owner)));
        }
        Ok(Some(bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemorySettings;

    /// A changed byte must be an error of its block, and of no other.
    #[test]
    fn damage_is_an_error_of_its_block() {
        let file = BlockFile::new(&Governor::new(MemorySettings::default()), "sort").unwrap();
        file.append(b"one").unwrap();
        file.append(b"two two").unwrap();
        assert_eq!(file.bytes(), 10);
        assert_eq!(file.read(0).unwrap().as_deref(), Some(b"one".as_slice()));
        file.file.write_all_at(b"T", 3).unwrap();
        let error = file.read(1).unwrap_err().to_string();
        assert!(error.contains("sort: the checksum of block 1 is wrong"), "{error}");
        assert!(file.read(0).is_ok() && file.read(2).unwrap().is_none());
        file.file.set_len(2).unwrap();
        assert!(file.read(0).unwrap_err().to_string().contains("ends early"));
    }
}
