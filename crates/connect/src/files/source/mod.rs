//! Files as a stream. Every file is a split with its own time. Files are read in turn, a block at a time, from the
//! first line; then appended data are read, and new files.
//!
//! If a path refers to a new file, as when logs are rotated, the new one is read from its beginning once the old one
//! has been read to its end: see `tail`.
//!
//! Objects of a store do not change, so each is finished once it has been read; a key prefix is listed like a folder.
//! Checkpoints contain an object's name as long as the object exists. (Modification times could not replace the names:
//! an object that is uploaded in parts has the time at which the upload began, but appears when it ends.)
//!
//! Files belong to *shelves*, by a hash of their names. Copies own shelves, and checkpoints save shelves. So a file
//! that arrives later has its place however the job resumes, and thousands of finished files do not make the manifest
//! long.
//!
//! | module   | contents                                   |
//! |----------|--------------------------------------------|
//! | `reader` | the thread that lists and reads files      |
//! | `spec`   | options, and the source that they describe |

mod reader;
mod spec;

use std::collections::BTreeMap;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};

use self::reader::FolderReader;
use super::position::FilePosition;
use crate::hash;
use crate::read_ahead::FeedReceiver;

pub(crate) use spec::source;

/// More copies than this would have nothing to read.
const SHELVES: u32 = 64;
/// Number of blocks that are read ahead.
const QUEUE: usize = 4;

fn shelf(path: &str) -> u32 {
    (hash::of_name(path) % u64::from(SHELVES)) as u32
}

/// Messages from the reading thread.
enum FileEvent {
    /// New files. Copies number files in the order in which they are announced.
    New(Vec<String>),
    Rows {
        file: u32,
        rows: RecordBatch,
        bad: Option<RecordBatch>,
        /// The position after the rows.
        position: FilePosition,
    },
    CaughtUp {
        file: u32,
        /// The time of the check.
        at: Instant,
    },
    Over {
        file: u32,
        /// The file no longer exists: a later file at its path is a new one.
        is_gone: bool,
    },
    /// Objects that are finished and no longer exist.
    Gone(Vec<String>),
    /// There are no files to read. This counts as an idle file, so that the copy does not hold back event time.
    Nothing { at: Instant, is_new: bool, file: u32 },
}

/// The source of one copy.
struct FolderSource {
    feed: FeedReceiver<FileEvent>,
    /// The paths in its shelves, with the position in each file.
    shelves: BTreeMap<u32, BTreeMap<String, FilePosition>>,
    files: Vec<String>,
}

impl FolderSource {
    fn new(mut reader: FolderReader, context: &TaskContext) -> Result<Self, TaskError> {
        let mut shelves: BTreeMap<u32, BTreeMap<String, FilePosition>> = BTreeMap::new();
        match context.restored().filter(|restored| !restored.splits.is_empty()) {
            Some(restored) => {
                for (name, bytes) in &restored.splits {
                    let (shelf, positions) =
                        name.parse().ok().zip(serde_json::from_slice(bytes).ok()).ok_or_else(|| {
                            format!("the checkpoint has a split \"{name}\" that no files source made")
                        })?;
                    shelves.insert(shelf, positions);
                }
            }
            None => {
                let mine = (0..SHELVES).filter(|shelf| shelf % context.copies() == context.copy());
                shelves.extend(mine.map(|shelf| (shelf, BTreeMap::new())));
            }
        }
        reader.shelves = shelves.keys().copied().collect();
        let known: BTreeMap<String, FilePosition> =
            shelves.values().flatten().map(|(path, position)| (path.clone(), *position)).collect();
        let name = format!("{}-{}", context.task(), context.copy());
        let feed = FeedReceiver::start(name, QUEUE, move |feeder| reader.run(known, feeder))?;
        Ok(FolderSource { feed, shelves, files: Vec::new() })
    }
}

impl Source for FolderSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        loop {
            return Poll::Ready(Ok(match ready!(self.feed.poll(context))? {
                None => SourceEvent::End,
                Some(FileEvent::New(paths)) => {
                    for path in &paths {
                        self.shelves.entry(shelf(path)).or_default().entry(path.clone()).or_default();
                    }
                    self.files.extend(paths);
                    continue;
                }
                Some(FileEvent::Rows { file, rows, bad, position }) => {
                    let path = &self.files[file as usize];
                    self.shelves.entry(shelf(path)).or_default().insert(path.clone(), position);
                    if rows.num_rows() == 0 && bad.is_none() {
                        continue;
                    }
                    SourceEvent::Rows { split: file, rows, bad }
                }
                Some(FileEvent::CaughtUp { file, at }) => SourceEvent::Idle { split: file, at },
                Some(FileEvent::Over { file, is_gone }) => {
                    let path = &self.files[file as usize];
                    if is_gone && let Some(positions) = self.shelves.get_mut(&shelf(path)) {
                        positions.remove(path);
                    }
                    SourceEvent::SplitEnded { split: file }
                }
                Some(FileEvent::Gone(paths)) => {
                    for path in &paths {
                        if let Some(positions) = self.shelves.get_mut(&shelf(path)) {
                            positions.remove(path);
                        }
                    }
                    continue;
                }
                Some(FileEvent::Nothing { at, is_new, file }) => {
                    if is_new {
                        self.files.push("no file".into());
                    }
                    SourceEvent::Idle { split: file, at }
                }
            }));
        }
    }

    fn split_name(&self, split: u32) -> String {
        self.files.get(split as usize).cloned().unwrap_or_else(|| "no file".into())
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = |(shelf, positions): (&u32, &BTreeMap<String, FilePosition>)| {
            Ok((shelf.to_string(), Bytes::from(serde_json::to_vec(positions)?)))
        };
        self.shelves.iter().map(saved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::shelf;

    /// Checkpoints contain shelves: a file must not move to a different shelf with the next release.
    #[test]
    fn shelves_stay() {
        assert_eq!(["a", "logs/2026-01-01.jsonl", "ü"].map(shelf), [31, 42, 46]);
    }
}
