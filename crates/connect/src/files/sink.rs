//! Writes rows to a folder, exactly once: each copy writes one file per checkpoint.
//!
//! | when          | the file                                        |
//! |---------------|-------------------------------------------------|
//! | rows arrive   | `.part-COPY-UNIQUE.open`                        |
//! | *prepare*     | synced, `.part-EPOCH-COPY-UNIQUE.ready`         |
//! | *commit*      | `part-EPOCH-COPY-UNIQUE.jsonl`                  |
//!
//! With `partition_by`, this happens in each folder `column=value` for which there are rows.
//!
//! Readers ignore names that begin with a dot. The commit is a rename: if it has been done already, nothing is left to
//! do. When the job resumes, it removes leftovers of an earlier run: open files, and ready files that its checkpoint
//! does not know. A file is locked until it is committed, and the lock ends with the process. A locked file means that
//! another job writes to the same folder, whose rows would otherwise be removed.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::future::ready;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_dataflow::stream::sink::{Sink, split_name};
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_storage::{ObjectStores, StorageOptions, is_url, local_path, redact_passwords};
use tokio::task::spawn_blocking;

use super::folders::PartitionFolders;
use super::list::writable;
use super::prepared;
use super::upload::UploadSink;
use crate::encode::{FileEncoder, RowFormat};
use crate::error::{ConnectError, with_remedy};
use crate::{DeliveryGuarantee, SinkSpec, hash, options};

const NAME: &str = "files sink";
/// Bytes per write.
const BUFFER_BYTES: usize = 1 << 20;
/// How long an earlier run, possibly on another host, may take to end.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time between checks whether it has ended.
const PAUSE: Duration = Duration::from_millis(100);
/// The remedy if two jobs write to the same folder.
const OWN: &str = "each job needs a folder of its own, or another `prefix`";

#[derive(Clone, Debug, Deserialize)]
struct FileSinkOptions {
    /// A local folder, or the URL of one in an object store, used only by this sink (or by sinks with other prefixes).
    path: PathBuf,
    /// Options of that store.
    #[serde(default)]
    storage_options: StorageOptions,
    #[serde(default)]
    format: RowFormat,
    /// The prefix of file names.
    #[serde(default = "part")]
    prefix: String,
    /// Columns that name folders and are left out of the files.
    #[serde(default)]
    partition_by: Vec<String>,
}

fn part() -> String {
    "part".into()
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef, stores: &ObjectStores) -> Result<SinkSpec, ConnectError> {
    let mut options: FileSinkOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let objects = match options.path.to_str().filter(|path| is_url(path)) {
        None => None,
        Some(url) => match local_path(url).map_err(|error| wrong(error.to_string()))? {
            None => Some(writable(url, &options.storage_options, stores).map_err(wrong)?),
            Some(path) => {
                options.path = path.into();
                None
            }
        },
    };
    if objects.is_none() && options.path.exists() && !options.path.is_dir() {
        return Err(wrong(format!("`path` is {}, a file, but it must be a folder", options.path.display())));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if options.prefix.is_empty() || !options.prefix.chars().all(is_plain) || options.prefix.starts_with('_') {
        return Err(wrong(format!("`prefix` is {:?}, but it must consist of letters, digits and _", options.prefix)));
    }
    // Types that cannot be written are detected before there are rows.
    let folders = PartitionFolders::new(&options.partition_by, schema).map_err(wrong)?;
    let tried = FileEncoder::new(options.format, &folders.schema).and_then(|mut encoder| {
        encoder.write(&RecordBatch::new_empty(SchemaRef::clone(&folders.schema)))?;
        encoder.finish()
    });
    tried.map_err(|error| wrong(error.to_string()))?;
    Ok(SinkSpec {
        name: format!("files {}", redact_passwords(&options.path.to_string_lossy())),
        copies_max: 0,
        guarantee: DeliveryGuarantee::ExactlyOnce,
        make: Arc::new(move |context| {
            Ok(match &objects {
                Some(objects) => {
                    let (objects, prefix) = (objects.clone(), &options.prefix);
                    Box::new(UploadSink::new(objects, options.format, &folders, prefix, context)) as Box<dyn Sink>
                }
                None => Box::new(FolderSink::new(options.clone(), folders.clone(), context)?),
            })
        }),
    })
}

/// A file in a checkpoint: its names, relative to the sink's folder, including the partition folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FinishedFile {
    ready: String,
    whole: String,
}

struct FolderSink {
    options: FileSinkOptions,
    folders: PartitionFolders,
    copy: u32,
    /// Unique to this run.
    unique: String,
    /// Number of files of this run so far.
    files: u64,
    /// Open files by folder.
    open: BTreeMap<String, OpenFile>,
    /// Uncommitted files by name; each stays open to hold its lock.
    ready: BTreeMap<String, Arc<File>>,
    context: TaskContext,
}

struct OpenFile {
    path: PathBuf,
    file: Arc<File>,
    number: u64,
    encoder: FileEncoder,
}

impl FolderSink {
    fn new(options: FileSinkOptions, folders: PartitionFolders, context: &TaskContext) -> Result<Self, TaskError> {
        let folder = &options.path;
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let (copy, context) = (context.copy(), context.clone());
        let (unique, ready) = (hash::unique(), BTreeMap::new());
        Ok(FolderSink { options, folders, copy, unique, files: 0, open: BTreeMap::new(), ready, context })
    }

    /// Removes what an earlier run of this copy left behind.
    async fn begin(&mut self) -> Result<(), TaskError> {
        let begun = Instant::now();
        loop {
            let (folder, prefix, context) =
                (self.options.path.clone(), self.options.prefix.clone(), self.context.clone());
            let depth = self.folders.depth();
            let look = move || {
                clear(&folder, &prefix, depth, &|copy, ready| {
                    // The first copy takes care of copies that no longer exist.
                    let is_mine = copy == context.copy() || (copy >= context.copies() && context.copy() == 0);
                    is_mine && ready.is_none_or(|epoch| !is_prepared(&context, epoch, copy))
                })
            };
            match spawn_blocking(look).await?? {
                None => return Ok(()),
                Some(_) if begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                Some(path) => return Err(format!("{}: another job writes there; {OWN}", path.display()).into()),
            }
        }
    }

    async fn write(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        for (folder, rows) in self.folders.split(rows)? {
            if !self.open.contains_key(&folder) {
                let open = self.create(&folder)?;
                self.open.insert(folder.clone(), open);
            }
            // With many folders, each may buffer less.
            let most = BUFFER_BYTES / self.open.len().div_ceil(64);
            let open = self.open.get_mut(&folder).expect("just put there");
            open.encoder.write(&rows)?;
            if open.encoder.ready() >= most {
                open.flush(false).await?;
            }
        }
        Ok(())
    }

    fn create(&mut self, folder: &str) -> Result<OpenFile, TaskError> {
        self.files += 1;
        let name = format!(".{}-{}-{}{}.open", self.options.prefix, self.copy, self.unique, self.files);
        let within = self.options.path.join(folder);
        if !folder.is_empty() {
            fs::create_dir_all(&within).map_err(|error| failed(&within, &error))?;
        }
        let path = within.join(name);
        let file = Arc::new(File::create_new(&path).map_err(|error| failed(&path, &error))?);
        // On a file system without locks, nothing keeps another job out.
        let _ = file.try_lock();
        let encoder = FileEncoder::new(self.options.format, &self.folders.schema)?;
        Ok(OpenFile { path, file, number: self.files, encoder })
    }

    async fn prepare(&mut self, epoch: u64) -> Result<Bytes, TaskError> {
        let mut all = Vec::new();
        for (folder, mut open) in std::mem::take(&mut self.open) {
            open.encoder.finish()?;
            open.flush(true).await?;
            let name = format!("{}-{epoch:010}-{}-{}{}", self.options.prefix, self.copy, self.unique, open.number);
            let within = |name: String| if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let ready = within(format!(".{name}.ready"));
            let whole = within(format!("{name}.{}", self.options.format.ending()));
            self.ready.insert(ready.clone(), open.file);
            let (from, to) = (open.path, self.options.path.join(&ready));
            let (top, depth) = (self.options.path.clone(), self.folders.depth());
            spawn_blocking(move || make_ready(&from, &to, &top, depth)).await??;
            all.push(FinishedFile { ready, whole });
        }
        Ok(prepared::encode(all)?)
    }
}

impl OpenFile {
    async fn flush(&mut self, sync: bool) -> Result<(), TaskError> {
        let (file, buffer, path) = (Arc::clone(&self.file), self.encoder.take(), self.path.clone());
        let write = move || {
            let written = file.as_ref().write_all(&buffer).and_then(|()| if sync { file.sync_all() } else { Ok(()) });
            written.map_err(|error| failed(&path, &error))
        };
        spawn_blocking(write).await?
    }
}

impl Sink for FolderSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(FolderSink::begin(self))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(FolderSink::write(self, rows))
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(FolderSink::prepare(self, epoch))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        let files: Vec<FinishedFile> = match prepared::decode(&prepared) {
            Ok(files) => files,
            Err(error) => {
                let text = format!("the checkpoint has data that no files sink prepared: {error}");
                return Box::pin(ready(Err(text.into())));
            }
        };
        let folder = self.options.path.clone();
        let locked: Vec<_> = files.iter().map(|names| self.ready.remove(&names.ready)).collect();
        let commit = move || {
            let done = files.iter().try_for_each(|names| commit(&folder, names));
            drop(locked);
            done
        };
        Box::pin(async move { spawn_blocking(commit).await? })
    }
}

/// `top` is the sink's folder, `depth` levels above the file's folder. All folders in between may be new, and must
/// survive a power failure, too.
fn make_ready(from: &Path, to: &Path, top: &Path, depth: usize) -> Result<(), TaskError> {
    match fs::rename(from, to) {
        Ok(()) => {
            let mut folders = to.ancestors().skip(1).take(depth + 1);
            folders.try_for_each(|folder| sync(folder).map_err(|error| failed(top, &error)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{} is gone: another job that writes there removed it; {OWN}", from.display()).into())
        }
        Err(error) => Err(failed(from, &error)),
    }
}

fn commit(folder: &Path, names: &FinishedFile) -> Result<(), TaskError> {
    let (from, to) = (folder.join(&names.ready), folder.join(&names.whole));
    match fs::rename(&from, &to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && to.exists() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text =
                format!("{} and {} are both gone: rows of the checkpoint are lost", from.display(), to.display());
            return Err(text.into());
        }
        Err(error) => return Err(failed(&from, &error)),
    }
    let within = to.parent().unwrap_or(folder);
    sync(within).map_err(|error| failed(within, &error))
}

/// Whether the job's checkpoint contains what a copy prepared at an epoch.
fn is_prepared(context: &TaskContext, epoch: u64, copy: u32) -> bool {
    context.restored().is_some_and(|restored| restored.split_names.contains(&split_name(epoch, copy)))
}

/// Removes what an earlier run of a copy left behind: open files, and ready files of an epoch for which `is_left` is
/// true. Descends `depth` levels into partition folders. Returns a file that is still locked, which stays.
fn clear(
    folder: &Path,
    prefix: &str,
    depth: usize,
    is_left: &dyn Fn(u32, Option<u64>) -> bool,
) -> Result<Option<PathBuf>, TaskError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(folder, &error))?;
        let name = entry.file_name();
        if depth > 0 && name.to_str().is_some_and(|name| name.contains('=')) && entry.path().is_dir() {
            match clear(&entry.path(), prefix, depth - 1, is_left)? {
                None => continue,
                held => return Ok(held),
            }
        }
        if let Some((copy, of)) = name.to_str().and_then(|name| left(name, prefix))
            && is_left(copy, of)
        {
            // Opened for writing, because some file systems do not grant a lock otherwise.
            let file = File::options().write(true).open(entry.path());
            if file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock))) {
                return Ok(Some(entry.path()));
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&entry.path(), &error)),
                _ => {}
            }
        }
    }
    Ok(None)
}

/// The copy that an uncommitted file belongs to, and the epoch, if the file is ready.
fn left(name: &str, prefix: &str) -> Option<(u32, Option<u64>)> {
    let rest = name.strip_prefix('.')?.strip_prefix(prefix)?.strip_prefix('-')?;
    if let Some(rest) = rest.strip_suffix(".open") {
        let (copy, _) = rest.split_once('-')?;
        return Some((copy.parse().ok()?, None));
    }
    let mut words = rest.strip_suffix(".ready")?.split('-');
    let epoch = words.next()?.parse().ok()?;
    Some((words.next()?.parse().ok()?, Some(epoch)))
}

/// Makes renames in a folder survive a power failure.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failed(path: &Path, error: &io::Error) -> TaskError {
    format!("{}: {}", path.display(), with_remedy(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that a checkpoint needs must not be removed, nor one of another sink or job. A leftover that was not
    /// removed would stay forever.
    #[test]
    fn only_leftovers_are_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            ".part-0-u1.open",
            ".part-1-u1.open",
            ".part-0000000003-0-u1.ready",
            ".part-0000000004-0-u2.ready",
            ".part-0000000004-1-u3.ready",
            ".other-0-u1.open",
            ".part-x-u1.open",
            "part-0000000009-0-u1.jsonl",
        ];
        for name in names {
            File::create(folder.path().join(name)).unwrap();
        }
        let clear = || clear(folder.path(), "part", 0, &|copy, ready| copy == 0 && ready != Some(3)).unwrap();
        let held = [".part-0-u1.open", ".part-0000000004-0-u2.ready"].map(|name| folder.path().join(name));
        let locked = held.each_ref().map(|path| File::open(path).unwrap());
        locked.iter().for_each(|file| file.try_lock().unwrap());
        assert!(clear().is_some_and(|path| held.contains(&path)), "another job writes it");
        assert!(held.iter().all(|path| path.exists()));
        drop(locked);
        assert_eq!(clear(), None);
        let left: Vec<bool> = names.iter().map(|name| folder.path().join(name).exists()).collect();
        assert_eq!(left, [false, true, true, false, true, true, true, true]);
    }

    /// "No such file" gives neither the cause nor the remedy.
    #[test]
    fn what_another_job_has_removed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path(".part-0-u1.open"), "x\n").unwrap();
        make_ready(&path(".part-0-u1.open"), &path("ready"), folder.path(), 0).unwrap();
        let error = make_ready(&path(".part-0-u1.open"), &path("ready"), folder.path(), 0).unwrap_err().to_string();
        assert!(error.contains(".part-0-u1.open is gone: another job") && error.contains(OWN), "{error}");
    }

    /// Repeats a commit, and commits a lost file.
    #[test]
    fn commits_may_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let names = FinishedFile { ready: ".part-1-0-u.ready".into(), whole: "part-1-0-u.jsonl".into() };
        fs::write(folder.path().join(&names.ready), "x\n").unwrap();
        commit(folder.path(), &names).unwrap();
        commit(folder.path(), &names).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(&names.whole)).unwrap(), "x\n");
        fs::remove_file(folder.path().join(&names.whole)).unwrap();
        assert!(commit(folder.path(), &names).unwrap_err().to_string().contains("are lost"));
    }
}
