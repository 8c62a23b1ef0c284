//! Reads a file that may grow, or an object, which does not: whole lines from a position on, never part of a line.
//!
//! A path may come to refer to a new file, when logs are rotated. A file is identified by device, inode and creation
//! time, because an inode is soon reused after a file is removed. It is also identified by the bytes before the offset,
//! whose hash is in the checkpoint: devices are renumbered when a machine restarts, and a copied folder has other
//! inodes. A file stays open while it is read, so that data written shortly before and after it lost its name are read,
//! too.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tidemill_dataflow::TaskError;
use tidemill_storage::ObjectFolder;

use super::position::{FileId, FilePosition, PrefixHash};
use crate::read_ahead::PoolWaiter;

/// Bytes per read; more for a store, where each request takes a while.
const BLOCK_BYTES: usize = 1 << 20;
const OBJECT_BLOCK_BYTES: usize = 8 << 20;
/// A file with a longer line is treated as not having lines.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;
/// Number of bytes before an offset that identify a file.
const MARK_BYTES: usize = 256;
/// How long to watch a file that has lost its name: its writer opens the next one a little later.
const GRACE: Duration = Duration::from_secs(2);

/// Where a file's bytes are stored.
#[derive(Clone, Debug)]
pub(crate) enum FileBytes {
    /// The file system.
    File,
    /// An object store, accessed by a thread that may block.
    Object { objects: ObjectFolder, path: Path, waiter: PoolWaiter },
}

impl FileBytes {
    fn block_bytes(&self) -> usize {
        match self {
            FileBytes::File => BLOCK_BYTES,
            FileBytes::Object { .. } => OBJECT_BLOCK_BYTES,
        }
    }
}

/// A file, with the position up to which it has been read.
#[derive(Debug)]
pub(crate) struct FileTail {
    pub(crate) path: String,
    held: FileBytes,
    pub(crate) position: FilePosition,
    /// The position comes from a checkpoint, and the file has not been checked yet.
    restored: bool,
    /// The last known size.
    size: u64,
    /// The open file, while it is kept open.
    file: Option<File>,
    /// The last bytes that were read, at most as many as identify a file.
    last: Vec<u8>,
    /// The time since which its path has referred to something else.
    nameless: Option<Instant>,
    grace: Duration,
}

/// What a file has to offer now.
#[derive(Debug)]
pub(crate) enum TailPiece {
    /// Lines, which end at the new position.
    Lines(WholeLines),
    /// No complete line.
    Nothing,
    /// The file no longer exists, or another one is at its path, and everything in it has been read.
    Gone,
}

/// Whole lines.
#[derive(Debug)]
pub(crate) struct WholeLines {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
    /// The offset of the first byte.
    pub(crate) offset: u64,
}

impl WholeLines {
    /// The lines without their line ends, and the offset at which each begins.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|range| (self.offset + range.start as u64, &self.bytes[range.clone()]))
    }
}

impl FileTail {
    pub(crate) fn new(path: String, held: FileBytes, position: FilePosition) -> Self {
        FileTail {
            path,
            held,
            position,
            restored: true,
            size: position.offset,
            file: None,
            last: Vec::new(),
            nameless: None,
            grace: GRACE,
        }
    }

    /// The same file from its beginning.
    pub(crate) fn rewound(&self) -> Self {
        FileTail::new(self.path.clone(), self.held.clone(), FilePosition::at(0))
    }

    /// Closes the file, if too many are open.
    pub(crate) fn close(&mut self) {
        // A file without a name could not be opened again.
        if self.nameless.is_none() {
            self.file = None;
        }
    }

    /// The next lines, about a megabyte of them. With `ended`, the file will not grow, and a last line without a line
    /// end counts.
    ///
    /// # Errors
    /// If the file has become shorter than what was read, was overwritten, or disappeared with unread lines; I/O
    /// errors.
    pub(crate) fn read(&mut self, mut ended: bool) -> Result<TailPiece, TaskError> {
        let mut is_over = false;
        let size = match &self.held {
            FileBytes::Object { .. } => self.object_size()?,
            FileBytes::File => match self.file_size()? {
                None => None,
                Some((size, is_nameless)) => {
                    if is_nameless {
                        let since = *self.nameless.get_or_insert_with(Instant::now);
                        is_over = ended || since.elapsed() >= self.grace;
                        // The file will not grow any more.
                        ended |= is_over;
                    }
                    Some(size)
                }
            },
        };
        let offset = self.position.offset;
        let Some(size) = size else {
            if self.size > offset {
                let left = self.size - offset;
                return Err(self.failed(&format!("it disappeared with {left} bytes unread")));
            }
            return Ok(TailPiece::Gone);
        };
        if size < offset {
            return Err(self.failed(&format!(
                "it has {size} bytes, but {offset} have been read: it was truncated or replaced; put new rows into a \
                 new file, and rotate files by renaming them, not by copying and truncating (logrotate: create, not \
                 copytruncate)"
            )));
        }
        self.size = size;
        if size == offset {
            return Ok(if is_over { TailPiece::Gone } else { TailPiece::Nothing });
        }
        if !self.is_marked(size)? {
            return Err(self.failed(&format!(
                "what precedes byte {offset} is not what was read there: it was overwritten; put new rows into a new \
                 file, and rotate files by renaming them, not by copying and truncating (logrotate: create, not \
                 copytruncate)"
            )));
        }
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let left = (size - offset) as usize - before;
            let start = offset + before as u64;
            self.read_some(start, left.min(self.held.block_bytes()), &mut bytes)?;
            let is_all = bytes.len() == before || bytes.len() as u64 == size - offset;
            let end = match memchr::memrchr(b'\n', &bytes[before..]) {
                Some(_) if is_all && ended => bytes.len(),
                Some(end) => before + end + 1,
                None if is_all && ended => bytes.len(),
                None if is_all => return Ok(TailPiece::Nothing),
                None if bytes.len() > LINE_BYTES_MAX => {
                    return Err(
                        self.failed(&format!("the line at byte {offset} is longer than {LINE_BYTES_MAX} bytes"))
                    );
                }
                None => continue,
            };
            bytes.truncate(end);
            self.position.offset += end as u64;
            if matches!(self.held, FileBytes::File) {
                self.mark(&bytes);
            }
            return Ok(TailPiece::Lines(WholeLines { ranges: ranges(&bytes), bytes, offset }));
        }
    }

    /// The size of an object; `None` if it does not exist.
    fn object_size(&self) -> Result<Option<u64>, TaskError> {
        let FileBytes::Object { objects, path, waiter } = &self.held else { unreachable!("it is a file") };
        Ok(waiter.wait(objects.size(path))??)
    }

    /// The size of the file, and whether its path now refers to something else. `None` if the file does not exist or
    /// has been replaced.
    fn file_size(&mut self) -> Result<Option<(u64, bool)>, TaskError> {
        // Checked before the file itself, so that data written until then are seen below.
        let named = match std::fs::metadata(&self.path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.failed(&error)),
        };
        let named_id = named.as_ref().map(FileId::of);
        if let Some(file) = &self.file {
            // A file server may have forgotten the file; then the path decides.
            if let Ok(metadata) = file.metadata() {
                // It is the same file, even if a layer below now gives it a different number.
                let id = FileId::of(&metadata);
                self.position.id = Some(id);
                let is_nameless = !named_id.is_some_and(|named| named.is(id));
                if !is_nameless {
                    self.nameless = None;
                }
                return Ok(Some((metadata.len(), is_nameless)));
            }
            self.file = None;
        }
        let Some(named) = named else { return Ok(None) };
        let is_known = named_id.zip(self.position.id).is_some_and(|(named, known)| named.is(known));
        if !self.restored && is_known && named.len() == self.position.offset {
            // No need to open it.
            return Ok(Some((named.len(), false)));
        }
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let metadata = file.metadata().map_err(|error| self.failed(&error))?;
        let (id, size) = (FileId::of(&metadata), metadata.len());
        self.file = Some(file);
        let is_same = match self.position.id {
            None => true,
            Some(known) if known.is_like(id) => true,
            // For a file that is not open, its bytes are a better identification than its inode, which may be reused,
            // or differ in a copied folder.
            Some(_) => size >= self.position.offset && self.is_marked(size)?,
        };
        if !is_same {
            self.file = None;
            if self.restored {
                eprintln!(
                    "tidemill: {} is a different file from the one that the checkpoint knows, and is read from its \
                     beginning; what the old one held after byte {} is lost",
                    self.path, self.position.offset
                );
            }
            return Ok(None);
        }
        self.position.id = Some(id);
        self.restored = false;
        Ok(Some((size, false)))
    }

    /// Whether the bytes before the offset are those that were read there, as far as known.
    fn is_marked(&self, size: u64) -> Result<bool, TaskError> {
        let Some(mark) = self.position.mark else { return Ok(true) };
        let Some(start) =
            self.position.offset.checked_sub(u64::from(mark.len)).filter(|_| mark.len as usize <= MARK_BYTES)
        else {
            return Ok(false);
        };
        if size < self.position.offset {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        self.read_some(start, mark.len as usize, &mut bytes)?;
        Ok(PrefixHash::of(&bytes) == mark)
    }

    /// Remembers the last bytes read.
    fn mark(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(&bytes[bytes.len().saturating_sub(MARK_BYTES)..]);
        self.last.drain(..self.last.len().saturating_sub(MARK_BYTES));
        self.position.mark = Some(PrefixHash::of(&self.last));
    }

    /// Appends up to `len` bytes, fewer if the file has become shorter.
    fn read_some(&self, start: u64, len: usize, out: &mut Vec<u8>) -> Result<(), TaskError> {
        match &self.held {
            FileBytes::File => {
                let file = self.file.as_ref().expect("it was opened to be read");
                let begin = out.len();
                out.resize(begin + len, 0);
                let mut read = 0;
                while read < len {
                    match file.read_at(&mut out[begin + read..], start + read as u64) {
                        Ok(0) => break,
                        Ok(more) => read += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(self.failed(&error)),
                    }
                }
                out.truncate(begin + read);
                Ok(())
            }
            FileBytes::Object { objects, path, waiter } => {
                let range = start..start + len as u64;
                let bytes =
                    waiter.wait(objects.ask(path, || objects.store.objects.get_range(path, range.clone())))??;
                out.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> TaskError {
        format!("{}: {error}", self.path).into()
    }
}

fn ranges(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', bytes).chain((!bytes.ends_with(b"\n")).then_some(bytes.len())) {
        let is_crlf = end > start && bytes[end - 1] == b'\r';
        ranges.push(start..end - usize::from(is_crlf));
        start = end + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn all(tail: &mut FileTail, ended: bool) -> Vec<String> {
        let mut lines = Vec::new();
        while let TailPiece::Lines(some) = tail.read(ended).unwrap() {
            lines.extend(some.iter().map(|(_, line)| String::from_utf8(line.to_vec()).unwrap()));
        }
        lines
    }

    proptest! {
        /// Catches lines that are cut, duplicated or lost, wherever writing pauses and whenever a new reader takes
        /// over.
        #[test]
        fn lines_come_whole_and_once(
            texts in prop::collection::vec("[a-z]{0,5}\r?", 0..12),
            cuts in prop::collection::vec(0usize..80, 0..6),
            last_is_whole in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("f");
            let mut file = File::create(&path).unwrap();
            let mut text = texts.join("\n");
            if last_is_whole && !texts.is_empty() {
                text.push('\n');
            }
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
            cuts.sort_unstable();
            let mut tail = FileTail::new(path.to_str().unwrap().into(), FileBytes::File, FilePosition::at(0));
            let mut found = Vec::new();
            let mut from = 0;
            for to in cuts.into_iter().chain([text.len()]) {
                file.write_all(&text.as_bytes()[from..to]).unwrap();
                from = to;
                found.extend(all(&mut tail, false));
                let offset = tail.position.offset as usize;
                prop_assert!(offset == 0 || text.as_bytes()[offset - 1] == b'\n');
                let position = saved(&tail);
                tail = FileTail::new(tail.path, FileBytes::File, position);
            }
            found.extend(all(&mut tail, true));
            let expected: Vec<String> = text.lines().map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect();
            let found: Vec<String> = found.iter().map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(tail.position.offset, text.len() as u64);
        }
    }

    /// Lines that span several blocks, and blocks with several lines.
    #[test]
    fn long_lines_are_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let lines: Vec<String> =
            [3, BLOCK_BYTES - 4, BLOCK_BYTES, 3 * BLOCK_BYTES + 7, 0, 1].map(|n| "x".repeat(n)).to_vec();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let mut tail = FileTail::new(path.to_str().unwrap().into(), FileBytes::File, FilePosition::at(0));
        assert_eq!(all(&mut tail, false), lines[..5]);
        assert_eq!(all(&mut tail, true), lines[5..]);
    }

    /// The position as stored in a checkpoint.
    fn saved(tail: &FileTail) -> FilePosition {
        serde_json::from_slice(&serde_json::to_vec(&tail.position).unwrap()).unwrap()
    }

    fn tail(path: &std::path::Path, position: FilePosition) -> FileTail {
        FileTail { grace: Duration::ZERO, ..FileTail::new(path.to_str().unwrap().into(), FileBytes::File, position) }
    }

    /// Lost data must be reported.
    #[test]
    fn files_that_shrink_or_vanish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut first = tail(&path, FilePosition::at(0));
        assert_eq!(all(&mut first, false), ["one", "two"]);
        first.close();
        std::fs::remove_file(&path).unwrap();
        assert!(first.read(false).unwrap_err().to_string().contains("3 bytes unread"));
        let mut second = tail(&path, FilePosition::at(8));
        assert!(matches!(second.read(false).unwrap(), TailPiece::Gone));
        std::fs::write(&path, "one\n").unwrap();
        assert!(second.read(false).unwrap_err().to_string().contains("it has 4 bytes, but 8 have been read"));
    }

    /// A file that is truncated and rewritten would otherwise be read from its middle.
    #[test]
    fn files_that_are_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut tail = tail(&path, FilePosition::at(0));
        assert_eq!(all(&mut tail, false), ["one", "two"]);
        std::fs::write(&path, "1\n2\n3\n4\n5\n").unwrap();
        assert!(tail.read(false).unwrap_err().to_string().contains("what precedes byte 8 is not what was read there"));
    }

    /// The last lines of a renamed or removed file must be read, including those written under its new name, whether or
    /// not a new file has its path. A longer new file would otherwise be read from its middle.
    #[test]
    fn files_that_are_rotated() {
        for is_removed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("f");
            let mut file = File::create(&path).unwrap();
            file.write_all(b"one\n").unwrap();
            let mut tail = FileTail { grace: Duration::from_secs(1000), ..tail(&path, FilePosition::at(0)) };
            assert_eq!(all(&mut tail, false), ["one"]);
            file.write_all(b"two\n").unwrap();
            match is_removed {
                true => std::fs::remove_file(&path).unwrap(),
                false => std::fs::rename(&path, folder.path().join("f.1")).unwrap(),
            }
            std::fs::write(&path, "another\nand more\n").unwrap();
            assert_eq!(all(&mut tail, false), ["two"]);
            file.write_all(b"three\nfou").unwrap();
            tail.close();
            assert_eq!(all(&mut tail, false), ["three"]);
            assert!(matches!(tail.read(false).unwrap(), TailPiece::Nothing));
            tail.grace = Duration::ZERO;
            assert_eq!(all(&mut tail, false), ["fou"]);
            assert!(matches!(tail.read(false).unwrap(), TailPiece::Gone));
        }
    }

    /// A file that replaced another one unnoticed is a new file. A file whose folder was copied, or whose device has a
    /// new number, is still the same.
    #[test]
    fn files_that_a_checkpoint_knows() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("f"), folder.path().join("g"));
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut first = tail(&path, FilePosition::at(0));
        assert_eq!(all(&mut first, false), ["one", "two"]);
        let position = saved(&first);
        assert_eq!(position, first.position);

        std::fs::write(&other, "one\ntwo\nthree\n").unwrap();
        assert_eq!(all(&mut tail(&other, position), false), ["three"]);
        for text in ["1\n2\n3\n4\n5\n6\n", "1\n"] {
            std::fs::remove_file(&other).unwrap();
            std::fs::write(&other, text).unwrap();
            assert!(matches!(tail(&other, position).read(false).unwrap(), TailPiece::Gone));
        }

        let mut moved = position;
        moved.id.as_mut().unwrap().device += 1;
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"three\n").unwrap();
        assert_eq!(all(&mut tail(&path, moved), false), ["three"]);
    }

    /// Checkpoints contain positions: those of earlier releases are numbers, and the current form must not change.
    #[test]
    fn positions_of_all_releases_are_read() {
        let read = |text: &str| serde_json::from_str::<FilePosition>(text).unwrap();
        assert_eq!(read("17"), FilePosition::at(17));
        let id = FileId { device: 1, inode: 2, born_ns: Some(u64::MAX) };
        let position = FilePosition { offset: 17, id: Some(id), mark: Some(PrefixHash { len: 4, hash: 5 }) };
        let text = "[17,[1,2,18446744073709551615],[4,5]]";
        assert_eq!((read(text), serde_json::to_string(&position).unwrap()), (position, text.to_owned()));
        assert_eq!(read("[0,[1,2,null],null]").mark, None);
    }
}
