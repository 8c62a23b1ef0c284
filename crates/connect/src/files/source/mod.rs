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
//! A shelf may move to another copy while a job runs. What was read ahead of its files is dropped.
//!
//! | module   | contents                                   |
//! |----------|--------------------------------------------|
//! | `reader` | the thread that lists and reads files      |
//! | `spec`   | options, and the source that they describe |

mod reader;
mod spec;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent};
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
    /// Shelves that came from other copies are known from now on.
    Acquired(Vec<u32>),
    /// Their files have been announced.
    Listed(Vec<u32>),
    /// Everything has been read, as of this many commands.
    End { commands: u64 },
}

/// The positions in the files of a shelf, by path.
type ShelfPositions = BTreeMap<String, FilePosition>;

/// What the source tells the thread that reads.
enum ReaderCommand {
    /// Another copy reads these shelves from now on.
    Release(Vec<u32>),
    /// Read these, too.
    Acquire(Vec<(u32, ShelfPositions)>),
}

/// A file that the thread has announced.
struct AnnouncedFile {
    path: String,
    /// Its number for the receiver; `None` if another copy has its shelf.
    number: Option<u32>,
}

/// A shelf that came from another copy, until its files are announced.
struct AcquiredShelf {
    /// How often it came since the thread has last told that it knows. What comes of its files until then was read
    /// before.
    times: u32,
    /// A number that stands for its files, if it is here now.
    number: Option<u32>,
}

/// The source of one copy.
struct FolderSource {
    feed: FeedReceiver<FileEvent>,
    /// The paths in its shelves, with the position in each file.
    shelves: BTreeMap<u32, ShelfPositions>,
    /// By the thread's numbers.
    files: Vec<AnnouncedFile>,
    acquired: BTreeMap<u32, AcquiredShelf>,
    /// Comes before what the thread tells.
    next: VecDeque<SourceEvent>,
    next_number: u32,
    schema: SchemaRef,
    commands: mpsc::Sender<ReaderCommand>,
    /// How many were sent.
    sent: u64,
}

impl FolderSource {
    fn new(mut reader: FolderReader, context: &TaskContext) -> Result<Self, TaskError> {
        let mut shelves: BTreeMap<u32, ShelfPositions> = BTreeMap::new();
        // A copy may have given all of its shelves to others.
        match context.restored().filter(|restored| !restored.split_names.is_empty()) {
            Some(restored) => {
                for (name, bytes) in &restored.splits {
                    let (shelf, positions) = parse_shelf(name, bytes)?;
                    shelves.insert(shelf, positions);
                }
            }
            None => {
                let mine = (0..SHELVES).filter(|shelf| context.is_dealt(*shelf as usize));
                shelves.extend(mine.map(|shelf| (shelf, BTreeMap::new())));
            }
        }
        reader.shelves = shelves.keys().copied().collect();
        let known: BTreeMap<String, FilePosition> =
            shelves.values().flatten().map(|(path, position)| (path.clone(), *position)).collect();
        let name = format!("{}-{}", context.task(), context.copy());
        let (commands, heard) = mpsc::channel();
        let schema = reader.schema();
        let feed = FeedReceiver::start(name, QUEUE, move |feeder| reader.run(known, &heard, feeder))?;
        let (files, acquired, next) = Default::default();
        Ok(FolderSource { feed, shelves, files, acquired, next, next_number: 0, schema, commands, sent: 0 })
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// The positions in the shelf of a path, if what the thread tells of it counts.
    fn positions(&mut self, path: &str) -> Option<&mut ShelfPositions> {
        let shelf = shelf(path);
        let is_known = self.acquired.get(&shelf).is_none_or(|acquired| acquired.times == 0);
        self.shelves.get_mut(&shelf).filter(|_| is_known)
    }

    /// If the thread has ended, the next event is its failure.
    fn command(&mut self, command: ReaderCommand) {
        self.sent += 1;
        drop(self.commands.send(command));
    }

    /// The files of shelves that came from other copies are announced: they stand for themselves from now on.
    fn listed(&mut self, shelves: &[u32]) {
        // A receiver that sees the last one knows that the others exist, and does not let time advance past them.
        if let Some(last) = self.files.iter().filter_map(|file| file.number).max() {
            self.next.push_back(SourceEvent::rows(last, RecordBatch::new_empty(SchemaRef::clone(&self.schema))));
        }
        for shelf in shelves {
            if let Some(acquired) = self.acquired.remove(shelf) {
                // It may have left and come again meanwhile: then this was about the first time.
                if acquired.times > 0 {
                    self.acquired.insert(*shelf, acquired);
                } else if let Some(split) = acquired.number {
                    self.next.push_back(SourceEvent::SplitEnded { split });
                }
            }
        }
    }
}

/// A shelf and its files, as saved.
fn parse_shelf(name: &str, bytes: &Bytes) -> Result<(u32, ShelfPositions), TaskError> {
    let parsed = name.parse().ok().zip(serde_json::from_slice(bytes).ok());
    parsed.ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no files source made").into())
}

impl Source for FolderSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        loop {
            if let Some(next) = self.next.pop_front() {
                return Poll::Ready(Ok(next));
            }
            return Poll::Ready(Ok(match ready!(self.feed.poll(context))? {
                None => SourceEvent::End,
                Some(FileEvent::New(paths)) => {
                    for path in paths {
                        let mut number = None;
                        if let Some(known) = self.positions(&path) {
                            known.entry(path.clone()).or_default();
                            number = Some(self.number());
                        }
                        self.files.push(AnnouncedFile { path, number });
                    }
                    continue;
                }
                Some(FileEvent::Rows { file, rows, bad, position }) => {
                    let AnnouncedFile { path, number } = &self.files[file as usize];
                    let (Some(file), path) = (*number, path.clone()) else { continue };
                    if let Some(positions) = self.positions(&path) {
                        positions.insert(path, position);
                    }
                    if rows.num_rows() == 0 && bad.is_none() {
                        continue;
                    }
                    SourceEvent::Rows { split: file, rows, bad }
                }
                Some(FileEvent::CaughtUp { file, at }) => {
                    let Some(split) = self.files[file as usize].number else { continue };
                    SourceEvent::Idle { split, at }
                }
                Some(FileEvent::Over { file, is_gone }) => {
                    let AnnouncedFile { path, number } = &self.files[file as usize];
                    let (Some(split), path) = (*number, path.clone()) else { continue };
                    if is_gone && let Some(positions) = self.positions(&path) {
                        positions.remove(&path);
                    }
                    SourceEvent::SplitEnded { split }
                }
                Some(FileEvent::Gone(paths)) => {
                    for path in &paths {
                        if let Some(positions) = self.positions(path) {
                            positions.remove(path);
                        }
                    }
                    continue;
                }
                Some(FileEvent::Nothing { at, is_new, file }) => {
                    if is_new {
                        let number = Some(self.number());
                        self.files.push(AnnouncedFile { path: "no file".into(), number });
                    }
                    let Some(split) = self.files[file as usize].number else { continue };
                    SourceEvent::Idle { split, at }
                }
                Some(FileEvent::Acquired(shelves)) => {
                    for shelf in shelves {
                        if let Some(acquired) = self.acquired.get_mut(&shelf) {
                            acquired.times -= 1;
                        }
                    }
                    continue;
                }
                Some(FileEvent::Listed(shelves)) => {
                    self.listed(&shelves);
                    continue;
                }
                Some(FileEvent::End { commands }) if commands < self.sent => continue,
                Some(FileEvent::End { .. }) => SourceEvent::End,
            }));
        }
    }

    fn split_name(&self, split: u32) -> String {
        let found = self.files.iter().find(|file| file.number == Some(split));
        found.map_or_else(|| "no file".into(), |file| file.path.clone())
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = |(shelf, positions): (&u32, &BTreeMap<String, FilePosition>)| {
            Ok((shelf.to_string(), Bytes::from(serde_json::to_vec(positions)?)))
        };
        self.shelves.iter().map(saved).collect()
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let is_named = |shelf: &u32| splits.contains(&shelf.to_string());
        let shelves: Vec<u32> = self.shelves.keys().copied().filter(is_named).collect();
        let mut released = Vec::new();
        for &number in &shelves {
            let positions = self.shelves.remove(&number).expect("just seen");
            let files = self.files.iter_mut().filter(|file| shelf(&file.path) == number);
            let mut numbers: Vec<u32> = files.filter_map(|file| file.number.take()).collect();
            numbers.extend(self.acquired.get_mut(&number).and_then(|acquired| acquired.number.take()));
            let position = Bytes::from(serde_json::to_vec(&positions)?);
            released.push(ReleasedSplit { name: number.to_string(), position, numbers });
        }
        if !shelves.is_empty() {
            self.command(ReaderCommand::Release(shelves));
        }
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        let (mut numbers, mut shelves) = (Vec::new(), Vec::new());
        for (name, bytes) in &splits {
            let (shelf, positions) = parse_shelf(name, bytes)?;
            let number = self.number();
            let acquired = self.acquired.entry(shelf).or_insert(AcquiredShelf { times: 0, number: None });
            acquired.times += 1;
            acquired.number = Some(number);
            numbers.push(number);
            self.shelves.insert(shelf, positions.clone());
            shelves.push((shelf, positions));
        }
        self.command(ReaderCommand::Acquire(shelves));
        Ok(numbers)
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
