//! Rows into a folder, exactly once: each copy writes a file for each checkpoint.
//!
//! | when          | the file                                        |
//! |---------------|-------------------------------------------------|
//! | rows come     | `.part-COPY-UNIQUE.open`                        |
//! | *prepare*     | synced, `.part-EPOCH-COPY-UNIQUE.ready`         |
//! | *commit*      | `part-EPOCH-COPY-UNIQUE.jsonl`                  |
//!
//! Names that begin with a dot are not there for readers. A rename is the commit: where it has been done already, nothing is
//! left to do. What an earlier run left behind is removed when the job goes on: files that are open, and those that are ready
//! and that the checkpoint it goes on from does not know. Until it is committed a file is locked, which ends with the process: where
//! one is, another job writes there, whose rows would be removed.

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
use tidemill_dataflow::{TaskContext, TaskError, without_passwords};
use tokio::task::spawn_blocking;

use super::upload::Uploads;
use crate::encode::RowFormat;
use crate::error::ConnectError;
use crate::objects::OpenObjects;
use crate::{Guarantee, SinkSpec, hash, options};

const NAME: &str = "files sink";
/// Written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// How long an earlier run, on another host too, may take to end.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between looks whether it has.
const PAUSE: Duration = Duration::from_millis(100);
/// The remedy where two jobs write to one folder.
const OWN: &str = "each job needs a folder of its own, or another `prefix`";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// A local folder, or the URL of one in an object store, for this sink alone (or for those with another prefix).
    path: PathBuf,
    /// What that store has to be told.
    #[serde(default)]
    storage_options: BTreeMap<String, String>,
    #[serde(default)]
    format: RowFormat,
    /// What names of files begin with.
    #[serde(default = "part")]
    prefix: String,
}

fn part() -> String {
    "part".into()
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef, open: &OpenObjects) -> Result<SinkSpec, ConnectError> {
    let options: Options = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let url = options.path.to_str().filter(|path| path.contains("://"));
    let objects = url.map(|url| open(url, &options.storage_options)).transpose().map_err(wrong)?;
    if objects.is_none() && options.path.exists() && !options.path.is_dir() {
        return Err(wrong(format!("`path` is {}, a file: it has to be a folder", options.path.display())));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if options.prefix.is_empty() || !options.prefix.chars().all(is_plain) || options.prefix.starts_with('_') {
        return Err(wrong(format!("`prefix` is {:?}: it has to be letters, digits and _", options.prefix)));
    }
    // What cannot be written is found out before there are rows.
    let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
    options.format.encode(&empty, true, &mut Vec::new()).map_err(|error| wrong(error.to_string()))?;
    Ok(SinkSpec {
        name: format!("files {}", without_passwords(&options.path.to_string_lossy())),
        copies_max: 0,
        guarantee: Guarantee::ExactlyOnce,
        make: Arc::new(move |context| {
            Ok(match &objects {
                Some(objects) => {
                    Box::new(Uploads::new(objects.clone(), options.format, &options.prefix, context)) as Box<dyn Sink>
                }
                None => Box::new(Files::new(options.clone(), context)?),
            })
        }),
    })
}

/// What a checkpoint keeps: the file's names, in the folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ready {
    ready: String,
    whole: String,
}

struct Files {
    options: Options,
    copy: u32,
    /// Of this run.
    unique: String,
    /// Files of this run so far.
    files: u64,
    open: Option<Open>,
    /// Not yet committed, by name: each is open for its lock.
    ready: BTreeMap<String, Arc<File>>,
    context: TaskContext,
}

struct Open {
    path: PathBuf,
    file: Arc<File>,
    buffer: Vec<u8>,
}

impl Files {
    fn new(options: Options, context: &TaskContext) -> Result<Self, TaskError> {
        let folder = &options.path;
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let (copy, context) = (context.copy(), context.clone());
        let (unique, ready) = (hash::unique(), BTreeMap::new());
        Ok(Files { options, copy, unique, files: 0, open: None, ready, context })
    }

    /// Removes what an earlier run left, of this copy.
    async fn begin(&mut self) -> Result<(), TaskError> {
        let begun = Instant::now();
        loop {
            let (folder, prefix, context) =
                (self.options.path.clone(), self.options.prefix.clone(), self.context.clone());
            let look = move || {
                clear(&folder, &prefix, |copy, ready| {
                    // Of copies that there are no more, the first one takes care.
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

    async fn write(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let is_new = self.open.is_none();
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                self.files += 1;
                let name = format!(".{}-{}-{}{}.open", self.options.prefix, self.copy, self.unique, self.files);
                let path = self.options.path.join(name);
                let file = Arc::new(File::create_new(&path).map_err(|error| failed(&path, &error))?);
                // Where a file system has no locks, nothing keeps another job out.
                let _ = file.try_lock();
                self.open.insert(Open { path, file, buffer: Vec::new() })
            }
        };
        self.options.format.encode(rows, is_new, &mut open.buffer)?;
        match open.buffer.len() >= BUFFER_BYTES {
            true => open.flush(false).await,
            false => Ok(()),
        }
    }

    async fn prepare(&mut self, epoch: u64) -> Result<Bytes, TaskError> {
        let Some(mut open) = self.open.take() else { return Ok(Bytes::new()) };
        open.flush(true).await?;
        let name = format!("{}-{epoch:010}-{}-{}{}", self.options.prefix, self.copy, self.unique, self.files);
        let names =
            Ready { ready: format!(".{name}.ready"), whole: format!("{name}.{}", self.options.format.ending()) };
        self.ready.insert(names.ready.clone(), open.file);
        let (from, to) = (open.path, self.options.path.join(&names.ready));
        let folder = self.options.path.clone();
        spawn_blocking(move || make_ready(&from, &to, &folder)).await??;
        Ok(serde_json::to_vec(&names)?.into())
    }
}

impl Open {
    async fn flush(&mut self, sync: bool) -> Result<(), TaskError> {
        let (file, buffer, path) = (Arc::clone(&self.file), std::mem::take(&mut self.buffer), self.path.clone());
        let write = move || {
            let written = file.as_ref().write_all(&buffer).and_then(|()| if sync { file.sync_all() } else { Ok(()) });
            written.map_err(|error| failed(&path, &error))
        };
        spawn_blocking(write).await?
    }
}

impl Sink for Files {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(Files::begin(self))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move { Files::write(self, &rows).await })
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(Files::prepare(self, epoch))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        let names: Ready = match serde_json::from_slice(&prepared) {
            Ok(names) => names,
            Err(error) => {
                let text = format!("the checkpoint has what no files sink prepared: {error}");
                return Box::pin(ready(Err(text.into())));
            }
        };
        let folder = self.options.path.clone();
        let locked = self.ready.remove(&names.ready);
        let commit = move || {
            let done = commit(&folder, &names);
            drop(locked);
            done
        };
        Box::pin(async move { spawn_blocking(commit).await? })
    }
}

fn make_ready(from: &Path, to: &Path, folder: &Path) -> Result<(), TaskError> {
    match fs::rename(from, to) {
        Ok(()) => sync(folder).map_err(|error| failed(folder, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{} is gone: another job that writes there has removed it; {OWN}", from.display()).into())
        }
        Err(error) => Err(failed(from, &error)),
    }
}

fn commit(folder: &Path, names: &Ready) -> Result<(), TaskError> {
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
    sync(folder).map_err(|error| failed(folder, &error))
}

/// Whether the checkpoint that the job goes on from has what a copy prepared at an epoch.
fn is_prepared(context: &TaskContext, epoch: u64, copy: u32) -> bool {
    context.restored().is_some_and(|restored| restored.split_names.contains(&split_name(epoch, copy)))
}

/// Removes what an earlier run left, of a copy and, if it is ready, of an epoch that `is_left` says. Returns a file that somebody still
/// holds, which stays.
fn clear(
    folder: &Path,
    prefix: &str,
    is_left: impl Fn(u32, Option<u64>) -> bool,
) -> Result<Option<PathBuf>, TaskError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(folder, &error))?;
        let name = entry.file_name();
        if let Some((copy, of)) = name.to_str().and_then(|name| left(name, prefix))
            && is_left(copy, of)
        {
            // For writing, without which some file systems give no lock.
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

/// The copy that a file not yet committed is of, and the epoch, if it is ready.
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

/// Makes renames in a folder outlast a loss of power.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failed(path: &Path, error: &io::Error) -> TaskError {
    format!("{}: {error}", path.display()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that a checkpoint needs must not be cleared away, nor another sink's or job's; one that none needs would stay for ever.
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
        let clear = || clear(folder.path(), "part", |copy, ready| copy == 0 && ready != Some(3)).unwrap();
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

    /// "No such file" names neither why nor what to do.
    #[test]
    fn what_another_job_has_removed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path(".part-0-u1.open"), "x\n").unwrap();
        make_ready(&path(".part-0-u1.open"), &path("ready"), folder.path()).unwrap();
        let error = make_ready(&path(".part-0-u1.open"), &path("ready"), folder.path()).unwrap_err().to_string();
        assert!(error.contains(".part-0-u1.open is gone: another job") && error.contains(OWN), "{error}");
    }

    /// A commit that is done again, and one of what is lost.
    #[test]
    fn commits_may_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let names = Ready { ready: ".part-1-0-u.ready".into(), whole: "part-1-0-u.jsonl".into() };
        fs::write(folder.path().join(&names.ready), "x\n").unwrap();
        commit(folder.path(), &names).unwrap();
        commit(folder.path(), &names).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(&names.whole)).unwrap(), "x\n");
        fs::remove_file(folder.path().join(&names.whole)).unwrap();
        assert!(commit(folder.path(), &names).unwrap_err().to_string().contains("are lost"));
    }
}
