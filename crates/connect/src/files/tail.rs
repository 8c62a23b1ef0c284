//! One file that may grow, or an object, which does not: whole lines from where it was left, never a part of one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tidemill_dataflow::TaskError;
use tokio::runtime::Handle;

use crate::objects::Objects;

/// Read at a time; of a store more, as each request takes a while.
const BLOCK_BYTES: usize = 1 << 20;
const OBJECT_BLOCK_BYTES: usize = 8 << 20;
/// A line that is longer is a file that has no lines.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;

/// What holds a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// The file system.
    File,
    /// A store; asked by a thread that may wait.
    Object { objects: Objects, path: Path, pool: Handle },
}

impl Held {
    /// How many bytes there are; `None`: it is not there.
    fn size(&self, name: &str) -> Result<Option<u64>, TaskError> {
        match self {
            Held::File => match std::fs::metadata(name) {
                Ok(metadata) => Ok(Some(metadata.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(format!("{name}: {error}").into()),
            },
            Held::Object { objects, path, pool } => {
                let head = async || match objects.store.head(path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    found => found.map(|object| Some(object.size)),
                };
                pool.block_on(objects.ask(path, head))
            }
        }
    }

    /// Appends some bytes; fewer, if there are not as many any more.
    fn read(&self, name: &str, start: u64, len: usize, out: &mut Vec<u8>) -> Result<(), TaskError> {
        match self {
            Held::File => {
                let mut read = || -> io::Result<usize> {
                    let mut file = File::open(name)?;
                    file.seek(SeekFrom::Start(start))?;
                    file.take(len as u64).read_to_end(out)
                };
                read().map(drop).map_err(|error| format!("{name}: {error}").into())
            }
            Held::Object { objects, path, pool } => {
                let range = start..start + len as u64;
                let bytes = pool.block_on(objects.ask(path, || objects.store.get_range(path, range.clone())))?;
                out.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn block_bytes(&self) -> usize {
        match self {
            Held::File => BLOCK_BYTES,
            Held::Object { .. } => OBJECT_BLOCK_BYTES,
        }
    }
}

/// A file, and how far it has been read.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) path: String,
    held: Held,
    /// Behind the last line that was read.
    pub(crate) offset: u64,
    /// The size it had last.
    size: u64,
}

/// What a file has now.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Lines, and the offset behind them.
    Lines(Lines),
    /// Nothing that is whole.
    Nothing,
    /// It is not there any more.
    Gone,
}

/// Whole lines.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
    /// Of the first byte.
    pub(crate) offset: u64,
}

impl Lines {
    /// The lines, without their ends, and where each begins in the file.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|range| (self.offset + range.start as u64, &self.bytes[range.clone()]))
    }
}

impl Tail {
    pub(crate) fn new(path: String, held: Held, offset: u64) -> Self {
        Tail { path, held, offset, size: offset }
    }

    /// The same from its beginning.
    pub(crate) fn rewound(&self) -> Self {
        Tail::new(self.path.clone(), self.held.clone(), 0)
    }

    /// The next lines, about a megabyte of them. A last line without an end counts if `ended`: the file is as long as it will
    /// be.
    ///
    /// # Errors
    /// When the file has become shorter than what was read, or went away with lines that had not been read; the system's.
    pub(crate) fn read(&mut self, ended: bool) -> Result<Piece, TaskError> {
        let Some(size) = self.held.size(&self.path)? else {
            if self.size > self.offset {
                let left = self.size - self.offset;
                return Err(self.failed(&format!("it went away with {left} bytes that had not been read")));
            }
            return Ok(Piece::Gone);
        };
        if size < self.offset {
            let offset = self.offset;
            return Err(self.failed(&format!(
                "it has {size} bytes, and {offset} have been read: it was cut or replaced; put new rows into a new file"
            )));
        }
        self.size = size;
        if size == self.offset {
            return Ok(Piece::Nothing);
        }
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let left = (size - self.offset) as usize - before;
            let start = self.offset + before as u64;
            self.held.read(&self.path, start, left.min(self.held.block_bytes()), &mut bytes)?;
            let is_all = bytes.len() == before || bytes.len() as u64 == size - self.offset;
            let end = match memchr::memrchr(b'\n', &bytes[before..]) {
                Some(_) if is_all && ended => bytes.len(),
                Some(end) => before + end + 1,
                None if is_all && ended => bytes.len(),
                None if is_all => return Ok(Piece::Nothing),
                None if bytes.len() > LINE_BYTES_MAX => {
                    let offset = self.offset;
                    return Err(
                        self.failed(&format!("the line at byte {offset} is longer than {LINE_BYTES_MAX} bytes"))
                    );
                }
                None => continue,
            };
            bytes.truncate(end);
            let offset = self.offset;
            self.offset += end as u64;
            return Ok(Piece::Lines(Lines { ranges: ranges(&bytes), bytes, offset }));
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

    fn all(tail: &mut Tail, ended: bool) -> Vec<String> {
        let mut lines = Vec::new();
        while let Piece::Lines(some) = tail.read(ended).unwrap() {
            lines.extend(some.iter().map(|(_, line)| String::from_utf8(line.to_vec()).unwrap()));
        }
        lines
    }

    proptest! {
        /// A line that is cut, doubled or lost, wherever writing pauses and whenever a reader takes the place of another.
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
            let mut tail = Tail::new(path.to_str().unwrap().into(), Held::File, 0);
            let mut found = Vec::new();
            let mut from = 0;
            for to in cuts.into_iter().chain([text.len()]) {
                file.write_all(&text.as_bytes()[from..to]).unwrap();
                from = to;
                found.extend(all(&mut tail, false));
                prop_assert!(tail.offset == 0 || text.as_bytes()[tail.offset as usize - 1] == b'\n');
                tail = Tail::new(tail.path, Held::File, tail.offset);
            }
            found.extend(all(&mut tail, true));
            let expected: Vec<String> = text.lines().map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect();
            let found: Vec<String> = found.iter().map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(tail.offset, text.len() as u64);
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
        let mut tail = Tail::new(path.to_str().unwrap().into(), Held::File, 0);
        assert_eq!(all(&mut tail, false), lines[..5]);
        assert_eq!(all(&mut tail, true), lines[5..]);
    }

    /// What is lost must not be passed over.
    #[test]
    fn files_that_shrink_or_vanish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut tail = Tail::new(path.to_str().unwrap().into(), Held::File, 0);
        assert_eq!(all(&mut tail, false), ["one", "two"]);
        std::fs::remove_file(&path).unwrap();
        assert!(tail.read(false).unwrap_err().to_string().contains("3 bytes that had not been read"));
        let mut tail = Tail::new(tail.path, Held::File, 8);
        assert!(matches!(tail.read(false).unwrap(), Piece::Gone));
        std::fs::write(&path, "one\n").unwrap();
        assert!(tail.read(false).unwrap_err().to_string().contains("it has 4 bytes, and 8 have been read"));
    }
}
