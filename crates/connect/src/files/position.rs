//! How far a file has been read, and by what it is known again.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::hash;

/// Which file it is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Since 1970, where the file system keeps it.
    pub(super) born_ns: Option<u64>,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
            born_ns: born.and_then(|born| born.as_nanos().try_into().ok()),
        }
    }

    /// Whether it is the same for all that is known: not every look tells when a file was made.
    pub(super) fn is(self, other: FileId) -> bool {
        let born_together = self.born_ns.zip(other.born_ns).is_none_or(|(one, two)| one == two);
        (self.device, self.inode) == (other.device, other.inode) && born_together
    }

    /// Whether it surely is, but for the device, which may have another number since the machine was started.
    pub(super) fn is_like(self, other: FileId) -> bool {
        self.born_ns.is_some() && (self.inode, self.born_ns) == (other.inode, other.born_ns)
    }
}

/// What stood before an offset: so many bytes, and their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefixHash {
    pub(super) len: u32,
    pub(super) hash: u64,
}

impl PrefixHash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        PrefixHash { len: bytes.len() as u32, hash: hash::of_bytes(bytes) }
    }
}

/// How far a file has been read, and which one, if it is known. Checkpoints of earlier releases have the offset alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SavedPosition", into = "SavedPosition")]
pub(crate) struct FilePosition {
    /// Behind the last line that was read.
    pub(crate) offset: u64,
    pub(super) id: Option<FileId>,
    pub(super) mark: Option<PrefixHash>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SavedPosition {
    Offset(u64),
    /// Offset; device, inode and birth; bytes of the mark and their hash.
    File(u64, (u64, u64, Option<u64>), Option<(u32, u64)>),
}

impl From<SavedPosition> for FilePosition {
    fn from(saved: SavedPosition) -> Self {
        match saved {
            SavedPosition::Offset(offset) => FilePosition::at(offset),
            SavedPosition::File(offset, (device, inode, born_ns), mark) => FilePosition {
                offset,
                id: Some(FileId { device, inode, born_ns }),
                mark: mark.map(|(len, hash)| PrefixHash { len, hash }),
            },
        }
    }
}

impl From<FilePosition> for SavedPosition {
    fn from(FilePosition { offset, id, mark }: FilePosition) -> Self {
        match id {
            None => SavedPosition::Offset(offset),
            Some(FileId { device, inode, born_ns }) => {
                SavedPosition::File(offset, (device, inode, born_ns), mark.map(|PrefixHash { len, hash }| (len, hash)))
            }
        }
    }
}

impl FilePosition {
    /// Of whichever file it is.
    pub(crate) fn at(offset: u64) -> Self {
        FilePosition { offset, ..FilePosition::default() }
    }
}
