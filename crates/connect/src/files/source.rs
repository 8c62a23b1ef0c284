//! Files as a stream: every file is a split of its own time, read a block at a time in turn with the others, from its
//! first line on; then what is appended to it, and files that come.
//!
//! A path that comes to have another file, as logs are rotated, is read from that one's beginning, as soon as the one
//! before has been read to its end: see `tail`.
//!
//! Objects of a store do not change, so each is over when it has been read; a prefix of keys is listed as a folder is.
//! One is known, and is in checkpoints, for as long as it is there. (Times of objects tell nothing that would do
//! instead of their names: one that is uploaded in parts has the time at which that began, and is seen when it ends.)
//!
//! Files belong to *shelves*, by a hash of their names, and shelves are what copies have and checkpoints save. So a
//! file that comes later has its place whoever goes on from the checkpoint, and thousands of files that are over make
//! no manifest long.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_dataflow::stream::source::{Next, Source};
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_storage::{ObjectStores, StorageOptions, without_passwords};
use tokio::runtime::Handle;

use super::list::FilePattern;
use super::tail::{FilePosition, FileTail, TailPiece};
use crate::bad_records::{BadRecordHandler, BadRecords, Decoded, OnError};
use crate::decode::{RecordDecoder, RecordLayout, compressed};
use crate::error::ConnectError;
use crate::format::{self, LineFormat};
use crate::idleness::IdleSplit;
use crate::read_ahead::{FeedReceiver, FeedSender};
use crate::{Guarantee, SourceSpec, hash, options};

const NAME: &str = "files source";
/// More copies would have nothing to read.
const SHELVES: u32 = 64;
/// Of objects that are not listed any more, so many are asked for at each listing.
const MISSING_MAX: usize = 1000;
/// Blocks that are read ahead.
const QUEUE: usize = 4;
/// So many files are kept open by all copies together, and some by each: those that came last, for they are those that
/// are rotated. The others are opened whenever they have more.
const OPEN_MAX: usize = 256;
const OPEN_MIN: usize = 8;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSourceOptions {
    /// A file, a folder with everything below, or a glob; or the URL of an object, or of all whose keys begin with it.
    path: String,
    /// What the store of a URL has to be told.
    #[serde(default)]
    storage_options: StorageOptions,
    #[serde(default)]
    format: LineFormat,
    /// Ends when all that is there at some moment has been read.
    #[serde(default)]
    stop_at_end: bool,
    /// Between looks for new files; by default a second, and five for objects.
    list_interval_ms: Option<u64>,
    /// Between looks for what was appended.
    #[serde(default = "tenth")]
    poll_interval_ms: u64,
    #[serde(default)]
    on_error: OnError,
    /// Of CSV: the first line of each file names its columns, in any order; others than the schema's are passed over.
    #[serde(default = "yes")]
    has_header: bool,
    /// Of CSV.
    #[serde(default = "options::comma")]
    delimiter: char,
}

fn tenth() -> u64 {
    100
}

fn yes() -> bool {
    true
}

pub(crate) fn source(
    spec: &Value,
    schema: Option<SchemaRef>,
    stores: &ObjectStores,
) -> Result<SourceSpec, ConnectError> {
    let options: FileSourceOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let place = FilePattern::of(&options.path, &options.storage_options, stores).map_err(wrong)?;
    let layout = options.format.layout(options.delimiter).map_err(wrong)?;
    let schema = format::schema(NAME, layout, "line", schema)?;
    if options.poll_interval_ms == 0 {
        return Err(wrong("`poll_interval_ms` must be at least 1".into()));
    }
    let decoder = RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    Ok(SourceSpec {
        name: format!("files {}", without_passwords(&options.path)),
        schema,
        copies_max: SHELVES,
        guarantee: Guarantee::ExactlyOnce,
        bad,
        bad_schema: options.on_error.schema(),
        bad_folder: options.on_error.folder(),
        files: place.local_files(),
        make: Arc::new(move |context| {
            let copy = format!("{}-{}", context.task(), context.copy());
            let bad = BadRecordHandler::new(options.on_error.clone(), &counted, copy);
            let reader = FolderReader {
                options: options.clone(),
                place: place.clone(),
                pool: Handle::current(),
                layout,
                decoder: decoder.clone(),
                bad,
                shelves: HashSet::new(),
                files: Vec::new(),
                names: HashSet::new(),
                known: BTreeMap::new(),
                some_gone: false,
                open_max: (OPEN_MAX / context.copies() as usize).max(OPEN_MIN),
            };
            Ok(Box::new(FolderSource::new(reader, context)?))
        }),
    })
}

fn shelf(path: &str) -> u32 {
    (hash::of_name(path) % u64::from(SHELVES)) as u32
}

/// What the reading thread gives.
enum FileEvent {
    /// Files that it had not told before; copies number files as they hear of them.
    New(Vec<String>),
    Rows {
        file: u32,
        rows: RecordBatch,
        bad: Option<RecordBatch>,
        /// Behind them.
        position: FilePosition,
    },
    CaughtUp {
        file: u32,
        /// When it was looked at.
        at: Instant,
    },
    Over {
        file: u32,
        /// It is not there any more: a file that comes to its path is another one.
        is_gone: bool,
    },
    /// Objects that are over, and not there any more.
    Gone(Vec<String>),
    /// There is no file now that is read. It counts as one that has nothing, so that it holds back nobody's time.
    Nothing { at: Instant, is_new: bool, file: u32 },
}

/// The source of one copy.
struct FolderSource {
    feed: FeedReceiver<FileEvent>,
    /// The paths of its shelves, and how far each was read.
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
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        loop {
            let event = match self.feed.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => event?,
            };
            return Poll::Ready(Ok(match event {
                None => Next::End,
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
                    Next::Rows { split: file, rows, bad }
                }
                Some(FileEvent::CaughtUp { file, at }) => Next::CaughtUp { split: file, at },
                Some(FileEvent::Over { file, is_gone }) => {
                    let path = &self.files[file as usize];
                    if is_gone && let Some(positions) = self.shelves.get_mut(&shelf(path)) {
                        positions.remove(path);
                    }
                    Next::SplitEnd { split: file }
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
                    Next::CaughtUp { split: file, at }
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

/// A file that is read.
struct FileRead {
    file: u32,
    tail: FileTail,
    /// Of CSV with a header: how its lines are rows.
    columns: Option<FileColumns>,
    /// It has been read as far as there is anything.
    quiet: Option<IdleSplit>,
}

struct FileColumns {
    decoder: RecordDecoder,
    /// Where the columns of the schema are.
    projection: Vec<usize>,
}

/// Reads on a thread of its own.
struct FolderReader {
    options: FileSourceOptions,
    place: FilePattern,
    /// For what is asked of a store.
    pool: Handle,
    layout: RecordLayout,
    decoder: RecordDecoder,
    bad: BadRecordHandler,
    shelves: HashSet<u32>,
    files: Vec<FileRead>,
    /// Paths that are read, or are over.
    names: HashSet<String>,
    /// Of the checkpoint; what is read is not in it any more.
    known: BTreeMap<String, FilePosition>,
    /// A file has lost its path: there may be another one at it.
    some_gone: bool,
    open_max: usize,
}

impl FolderReader {
    fn run(mut self, known: BTreeMap<String, FilePosition>, feeder: &FeedSender<FileEvent>) -> Result<(), TaskError> {
        self.known = known;
        let mut nothing: Option<(u32, IdleSplit)> = None;
        let mut looked = None;
        let mut number = 0;
        let waiter = feeder.waiter(&self.pool);
        let list_interval = self.options.list_interval_ms.unwrap_or(if self.place.grows() { 1000 } else { 5000 });
        loop {
            let round = Instant::now();
            let is_due = looked.is_none_or(|at: Instant| at.elapsed() >= Duration::from_millis(list_interval));
            if std::mem::take(&mut self.some_gone) || is_due {
                let paths = self.place.files(&waiter)?;
                if looked.is_none() {
                    let there: HashSet<&String> = paths.iter().collect();
                    let gone: Vec<&String> = self.known.keys().filter(|path| !there.contains(path)).collect();
                    if let Some(first) = gone.first() {
                        let count = gone.len();
                        eprintln!(
                            "tidemill: {count} files that the checkpoint lists no longer exist, such as {first}; what \
                             they held after the checkpoint is lost"
                        );
                    }
                }
                // A listing may take long in a large folder: a tenth of the time is enough for it.
                looked = Some(Instant::now() + round.elapsed() * 9);
                if !self.place.grows() && !self.forget(&paths, feeder)? {
                    return Ok(());
                }
                let new: Vec<String> = paths
                    .into_iter()
                    .filter(|path| !self.names.contains(path) && self.shelves.contains(&shelf(path)))
                    .collect();
                if !new.is_empty() {
                    self.names.extend(new.iter().cloned());
                    // The last number goes to the file that is read first: whoever hears of it knows that there are the
                    // others, and does not go ahead of them in time.
                    let numbers = (number..number + new.len() as u32).rev();
                    number += new.len() as u32;
                    for (path, file) in new.iter().zip(numbers) {
                        let held = self.place.held(path, &waiter);
                        let tail = FileTail::new(path.clone(), held, self.known.remove(path).unwrap_or_default());
                        self.files.push(FileRead { file, tail, columns: None, quiet: None });
                    }
                    if !feeder.give(FileEvent::New(new.into_iter().rev().collect())) {
                        return Ok(());
                    }
                }
            }
            if !self.options.stop_at_end {
                let is_new = nothing.is_none() && self.files.is_empty();
                if is_new {
                    nothing = Some((number, IdleSplit::new(round)));
                    number += 1;
                }
                if let Some((file, quiet)) = &mut nothing
                    && (is_new || quiet.goes_on(round))
                    && !feeder.give(FileEvent::Nothing { at: round, is_new, file: *file })
                {
                    return Ok(());
                }
            }
            let Some(progress) = self.round(feeder)? else { return Ok(()) };
            if progress {
                continue;
            }
            if self.options.stop_at_end {
                return Ok(());
            }
            let pause = Duration::from_millis(self.options.poll_interval_ms).max(round.elapsed() * 9);
            if !feeder.rest(pause) {
                return Ok(());
            }
        }
    }

    /// Of objects that are not there any more nothing needs to be known: they cannot be read again. So a checkpoint has
    /// no more names than the store has objects. `listed` is in order. Says whether anybody wants more.
    fn forget(&mut self, listed: &[String], feeder: &FeedSender<FileEvent>) -> Result<bool, TaskError> {
        let read: HashSet<&String> = self.files.iter().map(|reading| &reading.tail.path).collect();
        let is_missing = |path: &&String| listed.binary_search(path).is_err() && !read.contains(path);
        let missing = self.names.iter().chain(self.known.keys()).filter(is_missing).take(MISSING_MAX);
        let gone = self.place.gone(missing.cloned().collect(), &feeder.waiter(&self.pool))?;
        if gone.is_empty() {
            return Ok(true);
        }
        for path in &gone {
            self.names.remove(path);
            self.known.remove(path);
        }
        Ok(feeder.give(FileEvent::Gone(gone)))
    }

    /// A block of every file that has one. Says whether there was any; nothing, if nobody wants more.
    fn round(&mut self, feeder: &FeedSender<FileEvent>) -> Result<Option<bool>, TaskError> {
        let mut progress = false;
        let mut files = std::mem::take(&mut self.files);
        let mut over = Vec::new();
        let count = files.len();
        for (number, reading) in files.iter_mut().enumerate() {
            if !feeder.is_wanted() {
                return Ok(None);
            }
            let (file, at) = (reading.file, Instant::now());
            let step = self.read(reading)?;
            if number + self.open_max < count {
                reading.tail.close();
            }
            let event = match step {
                ReadOutcome::Rows((rows, bad), position) => {
                    progress = true;
                    reading.quiet = None;
                    FileEvent::Rows { file, rows, bad, position }
                }
                ReadOutcome::Gone if !self.place.grows() => {
                    over.push(number);
                    FileEvent::Over { file, is_gone: false }
                }
                ReadOutcome::Gone => {
                    over.push(number);
                    // Its path may have another file, which is looked for at once, also if this is to end when all has
                    // been read.
                    progress = true;
                    self.some_gone = true;
                    self.names.remove(&reading.tail.path);
                    FileEvent::Over { file, is_gone: true }
                }
                ReadOutcome::Nothing if self.options.stop_at_end || !self.place.grows() => {
                    over.push(number);
                    FileEvent::Over { file, is_gone: false }
                }
                ReadOutcome::Nothing if !IdleSplit::of(&mut reading.quiet, at) => continue,
                ReadOutcome::Nothing => FileEvent::CaughtUp { file, at },
            };
            if !feeder.give(event) {
                return Ok(None);
            }
        }
        for number in over.into_iter().rev() {
            files.remove(number);
        }
        self.files = files;
        Ok(Some(progress))
    }

    fn read(&mut self, reading: &mut FileRead) -> Result<ReadOutcome, TaskError> {
        let has_header = matches!(self.layout, RecordLayout::Csv { .. }) && self.options.has_header;
        let ended = self.options.stop_at_end || !self.place.grows();
        if has_header && reading.columns.is_none() && reading.tail.position.offset > 0 {
            // It goes on behind its header.
            let mut start = reading.tail.rewound();
            if let TailPiece::Lines(lines) = start.read(ended)?
                && let Some((_, header)) = lines.iter().find(|(_, line)| !is_blank(line))
            {
                reading.columns = Some(self.columns(&start.path, header)?);
            }
        }
        let lines = match reading.tail.read(ended)? {
            TailPiece::Lines(lines) => lines,
            TailPiece::Nothing => return Ok(ReadOutcome::Nothing),
            TailPiece::Gone => return Ok(ReadOutcome::Gone),
        };
        let mut records: Vec<(u64, &[u8])> = Vec::new();
        for (at, line) in lines.iter() {
            // A byte-order mark, which some programs begin a file with.
            let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| at == 0).unwrap_or(line);
            if self.layout != RecordLayout::Text && is_blank(line) {
                continue;
            }
            if has_header && reading.columns.is_none() {
                reading.columns = Some(self.columns(&reading.tail.path, line)?);
                continue;
            }
            records.push((at, line));
        }
        let rows = self.rows(reading, &records)?;
        Ok(ReadOutcome::Rows(rows, reading.tail.position))
    }

    fn rows(&mut self, reading: &FileRead, records: &[(u64, &[u8])]) -> Result<Decoded, TaskError> {
        let texts: Vec<&[u8]> = records.iter().map(|(_, line)| *line).collect();
        let decoder = reading.columns.as_ref().map_or(&self.decoder, |columns| &columns.decoder);
        let bad = &mut self.bad;
        let path = &reading.tail.path;
        let rows = decoder.decode(&texts, |at, reason| {
            let place = [("file", json!(path)), ("byte", json!(records[at].0))];
            bad.bad(&place, reason, texts[at])
        })?;
        let bad = bad.flush()?;
        let rows = match &reading.columns {
            Some(columns) => rows.project(&columns.projection)?,
            None => rows,
        };
        Ok((rows, bad))
    }

    /// How lines below `header` are rows.
    fn columns(&self, path: &str, header: &[u8]) -> Result<FileColumns, TaskError> {
        let failed = |reason: String| -> TaskError { format!("{path}: {reason}").into() };
        if let Some(reason) = compressed(header) {
            return Err(failed(reason.into()));
        }
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let names = csv_values(header, self.options.delimiter as u8).map_err(failed)?;
        let wanted = self.decoder.schema();
        let projection = wanted.fields().iter().map(|field| {
            names.iter().position(|name| name == field.name()).ok_or_else(|| {
                failed(format!("its header has no column \"{}\"; it has {}", field.name(), names.join(", ")))
            })
        });
        let projection = projection.collect::<Result<Vec<_>, _>>()?;
        let field = |(at, name): (usize, &String)| match projection.iter().position(|column| *column == at) {
            Some(column) => Field::clone(wanted.field(column)),
            None => Field::new(name, DataType::Utf8, true),
        };
        let schema = Schema::new(names.iter().enumerate().map(field).collect::<Vec<_>>());
        let decoder = RecordDecoder::new(self.layout, Arc::new(schema)).map_err(failed)?;
        Ok(FileColumns { decoder, projection })
    }
}

/// What a look at a file brought.
enum ReadOutcome {
    /// And the position behind them.
    Rows(Decoded, FilePosition),
    Nothing,
    Gone,
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// The values of a line, as texts.
fn csv_values(line: &[u8], delimiter: u8) -> Result<Vec<String>, String> {
    let format = arrow::csv::reader::Format::default().with_header(true).with_delimiter(delimiter);
    let (schema, _) = format.infer_schema(line, Some(0)).map_err(|error| error.to_string())?;
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;

    /// Shelves are in checkpoints: a file must not move to another one with the next release.
    #[test]
    fn shelves_stay() {
        assert_eq!(["a", "logs/2026-01-01.jsonl", "ü"].map(shelf), [31, 42, 46]);
    }

    /// Whatever was read once stayed in all checkpoints. What is forgotten while it is there would be read again.
    #[test]
    fn objects_are_known_as_long_as_they_are_there() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let objects = ObjectStores::default().locate("memory:///in", &StorageOptions::new()).unwrap().folder().unwrap();
        let store = Arc::clone(&objects.store.objects);
        let put = |name: &str| {
            runtime.block_on(store.put(&name.into(), PutPayload::from_static(b"1\n"))).unwrap();
        };
        let options = json!({"path": "memory:///in", "format": "text", "list_interval_ms": 0, "poll_interval_ms": 0});
        let reader = FolderReader {
            options: serde_json::from_value(options).unwrap(),
            place: FilePattern::Objects(objects),
            pool: runtime.handle().clone(),
            layout: RecordLayout::Text,
            decoder: RecordDecoder::new(
                RecordLayout::Text,
                format::schema(NAME, RecordLayout::Text, "line", None).unwrap(),
            )
            .unwrap(),
            bad: BadRecordHandler::new(OnError::Raise, &Arc::default(), "bad".into()),
            shelves: (0..SHELVES).collect(),
            files: Vec::new(),
            names: HashSet::new(),
            known: BTreeMap::new(),
            some_gone: false,
            open_max: OPEN_MIN,
        };
        put("in/a");
        put("in/b");
        // One of a checkpoint, which went away before the job went on.
        let known = BTreeMap::from([("memory:///in/z".to_owned(), FilePosition::at(2))]);
        let mut feed = FeedReceiver::start("reader".into(), QUEUE, move |feeder| reader.run(known, feeder)).unwrap();
        let mut told = |is_wanted: &dyn Fn(&FileEvent) -> bool| {
            loop {
                let event = runtime.block_on(std::future::poll_fn(|context| feed.poll(context))).unwrap().unwrap();
                assert!(!matches!(&event, FileEvent::Gone(gone) if gone.contains(&"memory:///in/b".to_owned())));
                if is_wanted(&event) {
                    return;
                }
            }
        };
        let gone = |event: &FileEvent, name: &str| matches!(event, FileEvent::Gone(gone) if *gone == [name]);
        let new = |event: &FileEvent, names: &[&str]| matches!(event, FileEvent::New(new) if *new == names);
        told(&|event| gone(event, "memory:///in/z"));
        told(&|event| new(event, &["memory:///in/b", "memory:///in/a"]));
        for _ in 0..2 {
            told(&|event| matches!(event, FileEvent::Over { .. }));
        }
        runtime.block_on(store.delete(&"in/a".into())).unwrap();
        told(&|event| gone(event, "memory:///in/a"));
        // Another one, by the same name.
        put("in/a");
        told(&|event| new(event, &["memory:///in/a"]));
    }

    #[test]
    fn headers_are_read_as_values_are() {
        assert_eq!(csv_values(b"a;\"b;c\";d", b';').unwrap(), ["a", "b;c", "d"]);
    }
}
