//! How far a file has been read, and how the file is recognized later.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::hash;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The creation time since 1970, if the file system stores it.
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

    /// Whether it is the same file as far as known: not every query returns the creation time.
    pub(super) fn is(self, other: FileId) -> bool {
        let born_together = self.born_ns.zip(other.born_ns).is_none_or(|(one, two)| one == two);
        (self.device, self.inode) == (other.device, other.inode) && born_together
    }

    /// Whether it is certainly the same file, except for the device, whose number may change when the machine restarts.
    pub(super) fn is_like(self, other: FileId) -> bool {
        self.born_ns.is_some() && (self.inode, self.born_ns) == (other.inode, other.born_ns)
    }
}

/// The bytes before an offset: their number and their hash.
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

/// How far a file has been read, and which file it is, if known. Checkpoints of earlier releases only have the offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SavedPosition", into = "SavedPosition")]
pub(crate) struct FilePosition {
    /// The end of the last line that was read.
    pub(crate) offset: u64,
    pub(super) id: Option<FileId>,
    pub(super) mark: Option<PrefixHash>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SavedPosition {
    Offset(u64),
    /// Offset; device, inode and creation time; length and hash of the bytes before the offset.
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
    /// A position in a file of unknown identity.
    pub(crate) fn at(offset: u64) -> Self {
        FilePosition { offset, ..FilePosition::default() }
    }
}
