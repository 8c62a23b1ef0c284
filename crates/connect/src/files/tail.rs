//! One file that may grow, or an object, which does not: whole lines from where it was left, never a part of one.
//!
//! A path may come to have another file, when logs are rotated. A file is known by its device, its inode and when it
//! was made, for an inode comes again soon after a file is removed; and by the bytes before the offset, which a
//! checkpoint has a hash of: devices are numbered anew when a machine starts, and a folder that is copied has other
//! inodes. A file stays open while it is read, so that what was written just before it lost its name, and shortly
//! after, is read to its end.

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

/// Read at a time; of a store more, as each request takes a while.
const BLOCK_BYTES: usize = 1 << 20;
const OBJECT_BLOCK_BYTES: usize = 8 << 20;
/// A line that is longer is a file that has no lines.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;
/// Before an offset, by which a file is known again.
const MARK_BYTES: usize = 256;
/// How long a file that has lost its name is still looked at: who writes it opens the next one a little later.
const GRACE: Duration = Duration::from_secs(2);

/// What holds a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum FileBytes {
    /// The file system.
    File,
    /// A store; asked by a thread that may wait.
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

/// A file, and how far it has been read.
#[derive(Debug)]
pub(crate) struct FileTail {
    pub(crate) path: String,
    held: FileBytes,
    pub(crate) position: FilePosition,
    /// The position is that of a checkpoint, and the file was not looked at yet.
    restored: bool,
    /// The size it had last.
    size: u64,
    /// Of the file system, while it is kept open.
    file: Option<File>,
    /// What was read last, at most as much as a mark is of.
    last: Vec<u8>,
    /// Since when its path is not the open file's any more.
    nameless: Option<Instant>,
    grace: Duration,
}

/// What a file has now.
#[derive(Debug)]
pub(crate) enum TailPiece {
    /// Lines, and the offset behind them.
    Lines(WholeLines),
    /// Nothing that is whole.
    Nothing,
    /// It is not there any more, or another one is at its path, and all that it had has been read.
    Gone,
}

/// Whole lines.
#[derive(Debug)]
pub(crate) struct WholeLines {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
    /// Of the first byte.
    pub(crate) offset: u64,
}

impl WholeLines {
    /// The lines, without their ends, and where each begins in the file.
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

    /// The same from its beginning.
    pub(crate) fn rewound(&self) -> Self {
        FileTail::new(self.path.clone(), self.held.clone(), FilePosition::at(0))
    }

    /// Does not keep the file open: there are too many.
    pub(crate) fn close(&mut self) {
        // One without a name cannot be opened again.
        if self.nameless.is_none() {
            self.file = None;
        }
    }

    /// The next lines, about a megabyte of them. A last line without an end counts if `ended`: the file is as long as
    /// it will be.
    ///
    /// # Errors
    /// When the file has become shorter than what was read, or was written over, or went away with lines that had not
    /// been read; the system's.
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
                        // It is as long as it will be.
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

    /// How many bytes an object has; `None`: it is not there.
    fn object_size(&self) -> Result<Option<u64>, TaskError> {
        let FileBytes::Object { objects, path, waiter } = &self.held else { unreachable!("it is a file") };
        Ok(waiter.wait(objects.size(path))??)
    }

    /// How many bytes the file has, and whether its path is no longer its own. `None`: it is not there, or another one
    /// is.
    fn file_size(&mut self) -> Result<Option<(u64, bool)>, TaskError> {
        // Before the file is asked: what is written to it until then is seen below.
        let named = match std::fs::metadata(&self.path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.failed(&error)),
        };
        let named_id = named.as_ref().map(FileId::of);
        if let Some(file) = &self.file {
            // A server of files may have forgotten it: then what is at the path tells.
            if let Ok(metadata) = file.metadata() {
                // It is what it is, also if a layer above gives it another number now.
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
            // There is nothing to open it for.
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
            // While a file is not open, its inode says less than its bytes: it comes again, or is another one in a
            // copied folder.
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

    /// Whether what stands before the offset is what was read there, as far as that is known.
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

    /// Keeps what was read last in mind.
    fn mark(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(&bytes[bytes.len().saturating_sub(MARK_BYTES)..]);
        self.last.drain(..self.last.len().saturating_sub(MARK_BYTES));
        self.position.mark = Some(PrefixHash::of(&self.last));
    }

    /// Appends some bytes; fewer, if there are not as many any more.
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
        /// A line that is cut, doubled or lost, wherever writing pauses and whenever a reader takes the place of
        /// another.
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

    /// Lines over several blocks, and blocks of several lines.
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

    /// As a checkpoint keeps it.
    fn saved(tail: &FileTail) -> FilePosition {
        serde_json::from_slice(&serde_json::to_vec(&tail.position).unwrap()).unwrap()
    }

    fn tail(path: &std::path::Path, position: FilePosition) -> FileTail {
        FileTail { grace: Duration::ZERO, ..FileTail::new(path.to_str().unwrap().into(), FileBytes::File, position) }
    }

    /// What is lost must not be passed over.
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

    /// A file that is cut and written anew would be read from its middle.
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

    /// The last lines of a file that is renamed or removed, also those that come behind its new name, whether or not
    /// another one has its path; and that other one, which is longer, would be read from its middle.
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

    /// A file that took another's place while nobody looked is not that one; one whose folder was copied, or whose
    /// device has another number, still is.
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

    /// Positions are in checkpoints: those of earlier releases are numbers, and these must stay as they are.
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
