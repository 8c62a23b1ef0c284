//! The thread that lists files and reads them in turn.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde_json::json;
use tidemill_dataflow::TaskError;
use tokio::runtime::Handle;

use super::super::list::FilePattern;
use super::super::position::FilePosition;
use super::super::tail::{FileTail, TailPiece};
use super::{FileEvent, ReaderCommand, shelf};
use crate::bad_records::{BadRecordHandler, Decoded};
use crate::decode::{RecordDecoder, RecordLayout, compressed};
use crate::idleness::IdleSplit;
use crate::read_ahead::FeedSender;

/// The maximum number of objects missing from a listing that are checked individually each time.
const MISSING_MAX: usize = 1000;

/// Maximum number of files that all copies together keep open, and minimum per copy. The newest files stay open,
/// because those are the ones that get rotated. The others are opened whenever there are more data.
const OPEN_MAX: usize = 256;
const OPEN_MIN: usize = 8;

/// How soon a thread that has read everything notices that nobody wants more.
const WAIT: Duration = Duration::from_millis(50);

/// A file that is being read.
struct FileRead {
    file: u32,
    tail: FileTail,
    /// For CSV with a header: the mapping from lines to rows.
    columns: Option<FileColumns>,
    /// Set if everything available has been read.
    quiet: Option<IdleSplit>,
}

struct FileColumns {
    decoder: RecordDecoder,
    /// The positions of the schema's columns.
    projection: Vec<usize>,
}

/// What the readers of all copies share.
#[derive(Clone)]
pub(super) struct FolderReaderPlan {
    pub(super) place: FilePattern,
    pub(super) layout: RecordLayout,
    pub(super) decoder: RecordDecoder,
    /// For CSV: the first line of each file names its columns.
    pub(super) has_header: bool,
    pub(super) stop_at_end: bool,
    /// Time between listings.
    pub(super) list_interval: Duration,
    /// Time between checks for appended data.
    pub(super) poll_interval: Duration,
}

/// Reads files on a separate thread.
pub(super) struct FolderReader {
    plan: FolderReaderPlan,
    bad: BadRecordHandler,
    /// For requests to a store.
    pool: Handle,
    pub(super) shelves: HashSet<u32>,
    files: Vec<FileRead>,
    /// Paths that are being read or are finished.
    names: HashSet<String>,
    /// Positions from the checkpoint, without the files that are already being read.
    known: BTreeMap<String, FilePosition>,
    /// A file has lost its path: there may be a new one there.
    some_gone: bool,
    open_max: usize,
}

impl FolderReader {
    /// A reader for one of `copies`, without shelves so far.
    pub(super) fn new(plan: FolderReaderPlan, bad: BadRecordHandler, pool: Handle, copies: u32) -> Self {
        FolderReader {
            plan,
            bad,
            pool,
            shelves: HashSet::new(),
            files: Vec::new(),
            names: HashSet::new(),
            known: BTreeMap::new(),
            some_gone: false,
            open_max: (OPEN_MAX / copies as usize).max(OPEN_MIN),
        }
    }

    /// The schema of the rows.
    pub(super) fn schema(&self) -> SchemaRef {
        SchemaRef::clone(self.plan.decoder.schema())
    }

    pub(super) fn run(
        mut self,
        known: BTreeMap<String, FilePosition>,
        commands: &mpsc::Receiver<ReaderCommand>,
        feeder: &FeedSender<FileEvent>,
    ) -> Result<(), TaskError> {
        self.known = known;
        // How many commands were carried out; whether the end was announced since; shelves to be listed.
        let (mut heard, mut has_ended, mut acquired) = (0, false, Vec::new());
        let mut nothing: Option<(u32, IdleSplit)> = None;
        let mut looked = None;
        let mut number = 0;
        let waiter = feeder.waiter(&self.pool);
        loop {
            // Another copy may give up shelves for this one, even behind its end.
            if let Some(command) = next_command(commands, has_ended) {
                (heard, has_ended) = (heard + 1, false);
                if !self.obey(command, &mut acquired, feeder) {
                    return Ok(());
                }
                continue;
            }
            if has_ended && feeder.is_wanted() {
                continue;
            } else if has_ended {
                return Ok(());
            }
            let round = Instant::now();
            let is_due = looked.is_none_or(|at: Instant| at.elapsed() >= self.plan.list_interval);
            if std::mem::take(&mut self.some_gone) || is_due {
                let paths = self.plan.place.files(&waiter)?;
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
                // Listing a large folder may take long: it gets at most a tenth of the time.
                looked = Some(Instant::now() + round.elapsed() * 9);
                if !self.plan.place.grows() && !self.forget(&paths, feeder)? {
                    return Ok(());
                }
                let new: Vec<String> = paths
                    .into_iter()
                    .filter(|path| !self.names.contains(path) && self.shelves.contains(&shelf(path)))
                    .collect();
                if !new.is_empty() {
                    self.names.extend(new.iter().cloned());
                    // The last number goes to the file that is read first: a receiver that sees it knows that the
                    // others exist, and does not let time advance past them.
                    let numbers = (number..number + new.len() as u32).rev();
                    number += new.len() as u32;
                    for (path, file) in new.iter().zip(numbers) {
                        let held = self.plan.place.held(path, &waiter);
                        let tail = FileTail::new(path.clone(), held, self.known.remove(path).unwrap_or_default());
                        self.files.push(FileRead { file, tail, columns: None, quiet: None });
                    }
                    if !feeder.give(FileEvent::New(new.into_iter().rev().collect())) {
                        return Ok(());
                    }
                }
            }
            if !acquired.is_empty() && !feeder.give(FileEvent::Listed(std::mem::take(&mut acquired))) {
                return Ok(());
            }
            if !self.plan.stop_at_end {
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
            if self.plan.stop_at_end {
                if !feeder.give(FileEvent::End { commands: heard }) {
                    return Ok(());
                }
                has_ended = true;
                continue;
            }
            let pause = self.plan.poll_interval.max(round.elapsed() * 9);
            if !feeder.rest(pause) {
                return Ok(());
            }
        }
    }

    /// Carries out a command. Returns false if no more data are wanted.
    fn obey(&mut self, command: ReaderCommand, acquired: &mut Vec<u32>, feeder: &FeedSender<FileEvent>) -> bool {
        match command {
            ReaderCommand::Release(shelves) => {
                let stays = |path: &String| !shelves.contains(&shelf(path));
                self.shelves.retain(|shelf| !shelves.contains(shelf));
                self.files.retain(|reading| stays(&reading.tail.path));
                self.names.retain(stays);
                self.known.retain(|path, _| stays(path));
                true
            }
            ReaderCommand::Acquire(shelves) => {
                let numbers: Vec<u32> = shelves.iter().map(|(shelf, _)| *shelf).collect();
                self.shelves.extend(&numbers);
                self.known.extend(shelves.into_iter().flat_map(|(_, positions)| positions));
                acquired.extend(&numbers);
                // So that their files are listed at once.
                self.some_gone = true;
                feeder.give(FileEvent::Acquired(numbers))
            }
        }
    }

    /// Forgets objects that no longer exist, since they cannot be read again. This limits the names in a checkpoint to
    /// the number of objects in the store. `listed` is sorted. Returns whether more data are wanted.
    fn forget(&mut self, listed: &[String], feeder: &FeedSender<FileEvent>) -> Result<bool, TaskError> {
        let read: HashSet<&String> = self.files.iter().map(|reading| &reading.tail.path).collect();
        let is_missing = |path: &&String| listed.binary_search(path).is_err() && !read.contains(path);
        let missing = self.names.iter().chain(self.known.keys()).filter(is_missing).take(MISSING_MAX);
        let gone = self.plan.place.gone(missing.cloned().collect(), &feeder.waiter(&self.pool))?;
        if gone.is_empty() {
            return Ok(true);
        }
        for path in &gone {
            self.names.remove(path);
            self.known.remove(path);
        }
        Ok(feeder.give(FileEvent::Gone(gone)))
    }

    /// Reads a block of every file that has one. Returns whether there was any; `None` if no more data are wanted.
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
                ReadOutcome::Gone if !self.plan.place.grows() => {
                    over.push(number);
                    FileEvent::Over { file, is_gone: false }
                }
                ReadOutcome::Gone => {
                    over.push(number);
                    // There may be a new file at its path. Checked at once, even if the job should end after everything
                    // has been read.
                    progress = true;
                    self.some_gone = true;
                    self.names.remove(&reading.tail.path);
                    FileEvent::Over { file, is_gone: true }
                }
                ReadOutcome::Nothing if self.plan.stop_at_end || !self.plan.place.grows() => {
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
        let has_header = matches!(self.plan.layout, RecordLayout::Csv { .. }) && self.plan.has_header;
        let ended = self.plan.stop_at_end || !self.plan.place.grows();
        if has_header && reading.columns.is_none() && reading.tail.position.offset > 0 {
            // The file continues after its header.
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
            // A byte-order mark, which some programs write at the start of a file.
            let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| at == 0).unwrap_or(line);
            if self.plan.layout != RecordLayout::Text && is_blank(line) {
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
        let decoder = reading.columns.as_ref().map_or(&self.plan.decoder, |columns| &columns.decoder);
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

    /// The mapping from lines below `header` to rows.
    fn columns(&self, path: &str, header: &[u8]) -> Result<FileColumns, TaskError> {
        let failed = |reason: String| -> TaskError { format!("{path}: {reason}").into() };
        if let Some(reason) = compressed(header) {
            return Err(failed(reason.into()));
        }
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let RecordLayout::Csv { delimiter } = self.plan.layout else { unreachable!("nothing else has a header") };
        let names = csv_values(header, delimiter).map_err(failed)?;
        let wanted = self.plan.decoder.schema();
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
        let decoder = RecordDecoder::new(self.plan.layout, Arc::new(schema)).map_err(failed)?;
        Ok(FileColumns { decoder, projection })
    }
}

/// The next command, if there is one; if there is nothing else to do, it waits a moment.
fn next_command(commands: &mpsc::Receiver<ReaderCommand>, waits: bool) -> Option<ReaderCommand> {
    if waits { commands.recv_timeout(WAIT).ok() } else { commands.try_recv().ok() }
}

/// The result of reading from a file.
enum ReadOutcome {
    /// Rows, and the position after them.
    Rows(Decoded, FilePosition),
    Nothing,
    Gone,
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// The values of a line, as text.
fn csv_values(line: &[u8], delimiter: u8) -> Result<Vec<String>, String> {
    let format = arrow::csv::reader::Format::default().with_header(true).with_delimiter(delimiter);
    let (schema, _) = format.infer_schema(line, Some(0)).map_err(|error| error.to_string())?;
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, PutPayload};
    use tidemill_storage::{ObjectStores, StorageOptions};

    use super::super::{QUEUE, SHELVES};
    use super::*;
    use crate::bad_records::OnError;
    use crate::format;
    use crate::read_ahead::FeedReceiver;

    /// Objects used to stay in all checkpoints once read. One that is forgotten while it exists would be read again.
    #[test]
    fn objects_are_known_as_long_as_they_are_there() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let objects = ObjectStores::default().locate("memory:///in", &StorageOptions::new()).unwrap().folder().unwrap();
        let store = Arc::clone(&objects.store.objects);
        let put = |name: &str| {
            runtime.block_on(store.put(&name.into(), PutPayload::from_static(b"1\n"))).unwrap();
        };
        let layout = RecordLayout::Text;
        let schema = format::schema("files", layout, "line", None).unwrap();
        let plan = FolderReaderPlan {
            place: FilePattern::Objects(objects),
            layout,
            decoder: RecordDecoder::new(layout, schema).unwrap(),
            has_header: false,
            stop_at_end: false,
            list_interval: Duration::ZERO,
            poll_interval: Duration::ZERO,
        };
        let bad = BadRecordHandler::new(OnError::Raise, &Arc::default(), "bad".into());
        let mut reader = FolderReader::new(plan, bad, runtime.handle().clone(), 1);
        reader.shelves = (0..SHELVES).collect();
        put("in/a");
        put("in/b");
        // An object of a checkpoint that disappeared before the job resumed.
        let known = BTreeMap::from([("memory:///in/z".to_owned(), FilePosition::at(2))]);
        let (_commands, heard) = mpsc::channel();
        let mut feed =
            FeedReceiver::start("reader".into(), QUEUE, move |feeder| reader.run(known, &heard, feeder)).unwrap();
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
        // A new object with the same name.
        put("in/a");
        told(&|event| new(event, &["memory:///in/a"]));
    }

    #[test]
    fn headers_are_read_as_values_are() {
        assert_eq!(csv_values(b"a;\"b;c\";d", b';').unwrap(), ["a", "b;c", "d"]);
    }
}
