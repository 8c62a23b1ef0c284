//! Output that appears atomically: in a folder, or in an object store.
//!
//! | target       | before the end                                       | the end                                                                                                                 |
//! |--------------|------------------------------------------------------|-------------------------------------------------------------------------------------------------------------------------|
//! | local folder | files in a hidden folder beside it                   | the hidden folder is renamed, or swapped with the old one                                                               |
//! | object store | uncompleted uploads ([`UncommittedStore`])           | write a marker `_unfinished`, complete the uploads, remove the old objects, write `_SUCCESS`, remove the marker         |
//!
//! A crash before the end leaves the hidden folder or the uploads, which are invisible: `read` does not look into
//! hidden folders, and the next write to the same place removes them. The end in a store takes one request per object;
//! a crash in between leaves the marker, and `read` rejects folders that contain it. [`settle`] removes the marker and
//! the objects once it is certain that the writer is dead.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use datafusion::execution::runtime_env::RuntimeEnv;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tidemill_storage::{ObjectFolder, StorageOptions, UploadedParts, is_bucket, local_path, within};
use tokio::runtime::Handle;
use url::Url;

use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::local_files::LocalFolder;
use crate::files::output::OutputFormat;
use crate::files::output_lease::{OutputLease, key_at};
use crate::files::paths::{is_there, resolved};
use crate::files::uncommitted::{UncommittedStore, abort, complete};

/// The object that marks complete output, as expected by other programs.
const SUCCESS: &str = "_SUCCESS";

/// The target of output.
pub(crate) enum OutputTarget {
    Folder(PathBuf),
    Objects(ObjectFolder),
}

impl OutputTarget {
    /// # Errors
    /// `Unsupported` for a read-only store.
    pub(crate) fn of(engine: &Engine, dir: &str, storage: &StorageOptions) -> Result<Self> {
        if let Some(path) = local_path(dir)? {
            return Ok(OutputTarget::Folder(path.into()));
        }
        let at = engine.locate(dir, storage)?;
        let Some(folder) = at.folder() else {
            return Err(DataSetError::Unsupported(format!("writing to {at}: files can only be read over HTTP")));
        };
        if at.path.as_ref().is_empty() {
            return Err(DataSetError::Query(format!("{at} cannot be written as a whole; name a folder in it")));
        }
        Ok(OutputTarget::Objects(folder))
    }
}

/// The error of output into `folder`. If a disk is full, it names the folders on that disk and the remedy.
pub(crate) fn when_full(error: DataSetError, folder: &Path, engine: &Engine) -> DataSetError {
    /// `ENOSPC` and `EDQUOT`. Errors here are text: from a store, or from another worker.
    const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];
    let text = error.to_string();
    // A spill error already says this.
    if text.contains("--spill-dir") || !FULL.iter().any(|full| text.contains(full)) {
        return error;
    }
    DataSetError::Io(format!(
        "{text}; {} cannot be written there: free space, write to another folder, or change where queries spill from \
         {} with --spill-dir",
        folder.display(),
        engine.governor().settings().spill_dir.display()
    ))
}

/// Output into a local folder in progress. Dropping it before `end` removes everything written.
pub(crate) struct FolderCommit {
    target: PathBuf,
    /// The folder for files until the end.
    pub(crate) hidden: PathBuf,
    /// Locked as long as this write is in progress: an unlocked folder was left behind by a killed write.
    _lock: File,
    overwrite: bool,
    done: bool,
}

impl FolderCommit {
    pub(crate) fn begin(target: &Path, overwrite: bool) -> Result<Self> {
        let target = resolved(target).map_err(|error| failed(target, &error))?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(DataSetError::Query(format!("{} cannot be written to", target.display())));
        };
        std::fs::create_dir_all(parent).map_err(|error| failed(parent, &error))?;
        // Only one write starts at a time, so that none takes another's folder, not locked yet, for a leftover.
        let beginning = lock(parent)?;
        clear(parent, name, &target);
        if target.exists() && !overwrite {
            return Err(DataSetError::Io(format!("{} exists; overwrite=True replaces it", target.display())));
        }
        let hidden = parent.join(prefix(name, UNDER_WAY) + &write_id());
        // Always a new folder: anything in an existing one would appear with this output.
        std::fs::create_dir(&hidden).map_err(|error| failed(&hidden, &error))?;
        let lock = lock(&hidden)?;
        drop(beginning);
        Ok(FolderCommit { hidden, target, _lock: lock, overwrite, done: false })
    }

    /// Makes the output appear; `extra` is a file to add. The old output is removed only after the new one is on disk,
    /// so that one of them survives a power failure.
    pub(crate) fn end(mut self, extra: Option<(String, Vec<u8>)>) -> Result<()> {
        if let Some((name, bytes)) = extra {
            let path = self.hidden.join(name);
            std::fs::write(&path, bytes).map_err(|error| failed(&path, &error))?;
        }
        if self.overwrite && self.target.exists() {
            sync(&self.hidden)?;
            let old = self.replace()?;
            self.done = true;
            discard(&old);
        } else {
            std::fs::rename(&self.hidden, &self.target).map_err(|error| failed(&self.target, &error))?;
            self.done = true;
        }
        Ok(())
    }

    /// Replaces the old output with the new one, atomically if the file system supports that. Returns where the old one
    /// is now.
    fn replace(&self) -> Result<PathBuf> {
        let (hidden, target) = (&self.hidden, &self.target);
        if renameat_with(CWD, hidden, CWD, target, RenameFlags::EXCHANGE).is_ok() {
            return Ok(hidden.clone());
        }
        let hidden_name = hidden.file_name().unwrap_or_default().to_string_lossy();
        let old = hidden.with_file_name(hidden_name.replace(UNDER_WAY, REPLACED));
        std::fs::rename(target, &old).map_err(|error| failed(target, &error))?;
        if let Err(error) = std::fs::rename(hidden, target) {
            // Best effort: restores the old output, and reports the first error.
            let _ = std::fs::rename(&old, target);
            return Err(failed(target, &error));
        }
        Ok(old)
    }
}

impl Drop for FolderCommit {
    fn drop(&mut self) {
        if !self.done {
            // The original error is the one to report.
            let _ = std::fs::remove_dir_all(&self.hidden);
        }
    }
}

/// Output in progress, and output that has made room for it: `.NAME.unfinished-ID` and `.NAME.replaced-ID` beside the
/// target.
const UNDER_WAY: &str = ".unfinished-";
const REPLACED: &str = ".replaced-";

/// Locks a folder until the file is dropped. Where folders cannot be locked, nothing is ever taken for a leftover.
fn lock(folder: &Path) -> Result<File> {
    let file = File::open(folder).map_err(|error| failed(folder, &error))?;
    let _ = file.lock();
    Ok(file)
}

fn prefix(name: &OsStr, state: &str) -> String {
    format!(".{}{state}", name.to_string_lossy())
}

/// Removes leftovers of killed writes to `target` beside it, and restores output that one of them had moved away.
fn clear(parent: &Path, name: &OsStr, target: &Path) {
    let (under_way, replaced) = (prefix(name, UNDER_WAY), prefix(name, REPLACED));
    let is_locked = |path: &Path| File::open(path).is_ok_and(|folder| folder.try_lock().is_err());
    // Without a parent folder there is nothing to clear; creating it will report the error.
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        if found.starts_with(&under_way) && !is_locked(&entry.path()) {
            discard(&entry.path());
        } else if let Some(id) = found.strip_prefix(&replaced)
            && !is_locked(&parent.join(under_way.clone() + id))
        {
            match target.exists() {
                true => discard(&entry.path()),
                // Its writer was killed between two steps. If it cannot be restored, it stays where it is.
                false => drop(std::fs::rename(entry.path(), target)),
            }
        }
    }
}

/// Removes what is no longer needed. A failure only costs space, and must not fail output that already exists.
fn discard(path: &Path) {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            eprintln!("tidemill: {} is no longer needed, but cannot be removed: {error}", path.display());
        }
        _ => {}
    }
}

/// Syncs a folder to disk, with everything in it.
fn sync(path: &Path) -> Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|error| failed(path, &error))? {
            sync(&entry.map_err(|error| failed(path, &error))?.path())?;
        }
    }
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> DataSetError {
    DataSetError::Io(format!("{}: {error}", path.display()))
}

/// The hidden folder in the form that writers need: a path for our own formats, which write their files themselves; for
/// DataFusion's formats, a store that remembers errors of the disk.
pub(crate) enum StagedFiles {
    Own(Url),
    Stored(LocalFolder),
}

impl StagedFiles {
    pub(crate) fn of(engine: &Engine, folder: &Path, output: &OutputFormat, partition_by: &[String]) -> Result<Self> {
        if output.part_format(partition_by).is_none() {
            return LocalFolder::open(engine, folder).map(StagedFiles::Stored);
        }
        let url = Url::from_directory_path(folder);
        Ok(StagedFiles::Own(
            url.map_err(|()| DataSetError::Io(format!("{} is not an absolute path", folder.display())))?,
        ))
    }

    pub(crate) fn url(&self) -> &Url {
        match self {
            StagedFiles::Own(url) => url,
            StagedFiles::Stored(folder) => &folder.url,
        }
    }

    /// After an error, ensures that no more files are written to the folder. Returns the first error of the disk, if
    /// known.
    pub(crate) async fn close(&self) -> Option<DataSetError> {
        match self {
            StagedFiles::Own(_) => None,
            StagedFiles::Stored(folder) => folder.close().await,
        }
    }
}

/// A unique name of a write.
pub(crate) fn write_id() -> String {
    let mut hasher = DefaultHasher::new();
    (SystemTime::now(), std::process::id(), std::thread::current().id()).hash(&mut hasher);
    // Keys that are unique to the process.
    let secret = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), hasher.finish());
    format!("{secret:016x}")
}

/// One worker's part of output into a store: a folder for DataFusion in which nothing appears. Dropping it removes
/// everything written that has not been taken.
pub(crate) struct UncommittedFolder {
    pub(crate) url: Url,
    pub(crate) store: Arc<UncommittedStore>,
    pub(crate) at: ObjectFolder,
    runtime: Arc<RuntimeEnv>,
}

impl UncommittedFolder {
    /// `id` identifies the write, and is the same on all workers.
    pub(crate) fn open(engine: &Engine, at: &ObjectFolder, id: &str) -> Result<Self> {
        let base = Url::parse(&format!("tidemill-held-{id}://store"))
            .map_err(|error| DataSetError::Internal(error.to_string()))?;
        let (store, runtime) = (Arc::new(UncommittedStore::new(at)), engine.context().runtime_env());
        runtime.register_object_store(&base, Arc::clone(&store) as _);
        Ok(UncommittedFolder { url: within(&base, &at.path, true), store, at: at.clone(), runtime })
    }

    /// Adds a file.
    pub(crate) fn add(&self, name: &str, bytes: Vec<u8>) -> impl Future<Output = Result<()>> + Send + use<> {
        let (held, at, path) = (Arc::clone(&self.store), self.at.clone(), self.at.path.clone().join(name));
        async move {
            let put = held.put(&path, bytes.into()).await;
            put.map(|_| ()).map_err(|error| at.store.failed(&path, &error).into())
        }
    }
}

impl Drop for UncommittedFolder {
    fn drop(&mut self) {
        let _ = self.runtime.deregister_object_store(&self.url);
        let discarded = self.store.discard();
        if let Ok(threads) = Handle::try_current() {
            // For a canceled action: nothing waits for this any more.
            threads.spawn(discarded);
        }
    }
}

/// The end of output into a store, done by one worker.
pub(crate) struct ObjectCommit {
    at: ObjectFolder,
    overwrite: bool,
    id: String,
}

impl ObjectCommit {
    /// # Errors
    /// `Io` if there already is output, or if the store does not answer.
    pub(crate) async fn begin(at: &ObjectFolder, overwrite: bool, id: &str) -> Result<Self> {
        let commit = ObjectCommit { at: at.clone(), overwrite, id: id.to_owned() };
        // Even with `overwrite`, so that a missing permission to list is reported before anything is written.
        let exists = !existing(at, 1).await?.is_empty();
        if !overwrite && (exists || at.store.objects.head(&at.path).await.is_ok()) {
            return Err(commit.exists());
        }
        Ok(commit)
    }

    fn exists(&self) -> DataSetError {
        DataSetError::Io(format!("{} exists; overwrite=True replaces it", self.at))
    }

    /// Completes the uploads of all workers, and removes the old objects.
    ///
    /// # Errors
    /// `Io`. In that case no object of the uploads remains and the old objects still exist, unless the store rejects
    /// that, too, or another write has replaced this one.
    pub(crate) async fn end(self, uploads: Vec<UploadedParts>, rows: u64) -> Result<()> {
        let ended = match OutputLease::put(&self.at, &self.id, self.overwrite).await {
            Ok(mark) => match mark.during(self.appear(&mark, &uploads, rows)).await {
                Some(Ok(true)) => Ok(()),
                Some(Err(error)) => Err(error),
                Some(Ok(false)) | None => {
                    // It may get in the other write's way. If it cannot be removed, that write reports that something
                    // exists.
                    let _ = remove(&self.at, keys_of(&uploads)).await;
                    Err(mark.taken())
                }
            },
            Err(error) => Err(error),
        };
        if ended.is_err() {
            abort(&self.at, uploads).await;
        }
        ended
    }

    /// Runs with the marker in place. Returns whether it is still there when all objects exist.
    async fn appear(&self, mark: &OutputLease, uploads: &[UploadedParts], rows: u64) -> Result<bool> {
        let ObjectFolder { store, path, .. } = &self.at;
        let success = path.clone().join(SUCCESS);
        let old = existing(&self.at, usize::MAX).await?;
        if !self.overwrite && !old.is_empty() {
            // It appeared during this write.
            mark.remove().await?;
            return Err(self.exists());
        }
        let was_whole = old.contains(&success);
        if was_whole {
            remove(&self.at, vec![success.clone()]).await?;
        }
        if let Err((at, error)) = complete(&self.at, uploads).await {
            // As far as the store allows. The marker stays if it does not, or if the old output was incomplete, too.
            let removed = remove(&self.at, keys_of(uploads)).await;
            let as_before = match was_whole {
                true => store.objects.put(&success, "".into()).await.is_ok(),
                false => !mark.was_there,
            };
            if removed.is_ok() && as_before {
                let _ = mark.remove().await;
            }
            return Err(store.failed(&at, &error).into());
        }
        remove(&self.at, old.into_iter().filter(|key| *key != success).collect()).await?;
        if !mark.is_ours().await? {
            return Ok(false);
        }
        let told = format!("{{\"rows\": {rows}, \"objects\": {}}}\n", uploads.len());
        store.objects.put(&success, told.into()).await.map_err(|error| store.failed(&success, &error))?;
        mark.remove().await?;
        Ok(true)
    }
}

/// Whether `dir`, a path or a URL, contains complete output. In a store, removes what a writer that died during the end
/// has left, and waits while a writer may be alive.
///
/// # Errors
/// `Io` if this cannot be determined; `Unsupported` for a read-only store.
pub async fn settle(engine: &Engine, dir: &str, storage: &StorageOptions) -> Result<bool> {
    let at = match OutputTarget::of(engine, dir, storage)? {
        OutputTarget::Folder(path) => return is_there(&path),
        OutputTarget::Objects(at) => at,
    };
    let success = at.path.clone().join(SUCCESS);
    let is_whole = async {
        // Unlike `head`, this shows whether the bucket itself is missing.
        match at.store.objects.get(&success).await {
            Ok(_) => Ok(true),
            Err(error @ Error::NotFound { .. }) if !is_bucket(&error) => Ok(false),
            Err(error) => Err(at.store.failed(&success, &error).into()),
        }
    };
    let Some(mark) = OutputLease::take(&at, &write_id()).await? else { return is_whole.await };
    // If both exist, either all objects had appeared, or none of those that were to replace the complete output.
    let settled = mark.during(async {
        let is_whole = is_whole.await?;
        if !is_whole {
            remove(&at, existing(&at, usize::MAX).await?).await?;
        }
        if mark.is_ours().await? {
            mark.remove().await?;
            return Ok(Some(is_whole));
        }
        Ok::<_, DataSetError>(None)
    });
    settled.await.transpose()?.flatten().ok_or_else(|| mark.taken())
}

/// The objects at the target except the marker; not many more than `count_max`.
async fn existing(at: &ObjectFolder, count_max: usize) -> Result<Vec<Key>> {
    let ObjectFolder { store, path, .. } = at;
    let mut found = Vec::new();
    let mark = key_at(at);
    let mut listed = store.objects.list(Some(path));
    while found.len() < count_max {
        match listed.try_next().await {
            Ok(Some(meta)) if meta.location == mark => {}
            Ok(Some(meta)) => found.push(meta.location),
            Ok(None) => break,
            Err(error @ Error::NotFound { .. }) if !is_bucket(&error) => break,
            Err(error) => return Err(store.failed(path, &error).into()),
        }
    }
    Ok(found)
}

fn keys_of(uploads: &[UploadedParts]) -> Vec<Key> {
    uploads.iter().map(|upload| upload.path.clone()).collect()
}

/// Removes objects; missing ones are not an error.
async fn remove(at: &ObjectFolder, keys: Vec<Key>) -> Result<()> {
    let keys = futures::stream::iter(keys.into_iter().map(Ok)).boxed();
    let mut removed = at.store.objects.delete_stream(keys);
    while let Some(one) = removed.next().await {
        match one {
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(at.store.failed(&at.path, &error).into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineConfig;
    use crate::files::paths::UNFINISHED;
    use tidemill_storage::lease::ProcessIdentity;

    fn engine() -> Arc<Engine> {
        let config = EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None };
        Arc::new(Engine::new(&config).unwrap())
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    /// Files of a killed write must not appear with those of the next one, whose process may have the same id. They
    /// must not stay forever either, while those of a write in progress must stay.
    #[test]
    fn what_a_killed_write_leaves_goes() {
        let parent = std::env::temp_dir().join(format!("tidemill-{}", write_id()));
        let target = parent.join("out");
        for left in [format!("unfinished-{}", std::process::id()), "unfinished-1".into(), "replaced-2".into()] {
            std::fs::create_dir_all(parent.join(format!(".out.{left}"))).unwrap();
            std::fs::write(parent.join(format!(".out.{left}")).join("stale"), "x").unwrap();
        }
        // The target had been moved away: it is restored, and only replaced by a write that may overwrite.
        assert!(FolderCommit::begin(&target, false).is_err());
        assert_eq!(names(&target), ["stale"]);
        assert_eq!(names(&parent), ["out"]);

        let other = FolderCommit::begin(&target, true).unwrap();
        for name in ["a", "b"] {
            let commit = FolderCommit::begin(&target, true).unwrap();
            std::fs::create_dir(commit.hidden.join("inside")).unwrap();
            commit.end(Some((name.into(), Vec::new()))).unwrap();
            assert_eq!(names(&target), [name, "inside"]);
            assert!(other.hidden.is_dir());
        }
        drop(other);
        assert_eq!(names(&parent), ["out"]);
        std::fs::remove_dir_all(parent).unwrap();
    }

    fn out(engine: &Engine) -> Result<ObjectFolder> {
        let at = engine.locate("memory:///out", &StorageOptions::new())?;
        Ok(at.folder().expect("memory can be written to"))
    }

    async fn keys(at: &ObjectFolder) -> Vec<String> {
        let listed: Vec<_> = at.store.objects.list(None).try_collect().await.unwrap();
        let mut keys: Vec<String> = listed.into_iter().map(|meta| meta.location.to_string()).collect();
        keys.sort();
        keys
    }

    /// Nothing is visible before the end, everything after it, and nothing of an abandoned write.
    #[test]
    fn objects_appear_at_the_end() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = out(&asked)?;
                let commit = ObjectCommit::begin(&at, false, "1").await?;
                let held = UncommittedFolder::open(&asked, &at, "1")?;
                held.add("a", b"x".to_vec()).await?;
                held.add("b", Vec::new()).await?;
                assert!(keys(&at).await.is_empty());
                commit.end(held.store.take().await, 2).await?;
                assert_eq!(keys(&at).await, ["out/_SUCCESS", "out/a", "out/b"]);

                let error = ObjectCommit::begin(&at, false, "2").await.err().unwrap();
                assert_eq!(error.to_string(), "memory:///out exists; overwrite=True replaces it");
                let given_up = UncommittedFolder::open(&asked, &at, "2")?;
                given_up.add("c", b"x".to_vec()).await?;
                given_up.store.discard().await;
                assert!(given_up.add("d", b"x".to_vec()).await.is_err(), "it is closed");
                assert!(given_up.store.take().await.is_empty());

                let commit = ObjectCommit::begin(&at, true, "3").await?;
                let held = UncommittedFolder::open(&asked, &at, "3")?;
                held.add("e", b"x".to_vec()).await?;
                commit.end(held.store.take().await, 1).await?;
                assert_eq!(keys(&at).await, ["out/_SUCCESS", "out/e"]);
                Ok(())
            })
            .unwrap();
    }

    /// If two writes go to the same new folder, one must win, and the other must leave nothing.
    #[test]
    fn one_of_two_wins() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = out(&asked)?;
                let mut writes = Vec::new();
                for id in ["1", "2"] {
                    let commit = ObjectCommit::begin(&at, false, id).await?;
                    let held = UncommittedFolder::open(&asked, &at, id)?;
                    held.add(id, b"x".to_vec()).await?;
                    writes.push((commit, held));
                }
                let (second, first) = (writes.pop().unwrap(), writes.pop().unwrap());
                first.0.end(first.1.store.take().await, 1).await?;
                assert!(second.0.end(second.1.store.take().await, 1).await.is_err());
                assert_eq!(keys(&at).await, ["out/1", "out/_SUCCESS"]);
                Ok(())
            })
            .unwrap();
    }

    /// A store that rejects one object at the end: the objects that have appeared are removed, the old ones stay.
    #[test]
    fn a_refused_end_is_undone() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = out(&asked)?;
                for (id, lost) in [("1", false), ("2", true)] {
                    let commit = ObjectCommit::begin(&at, true, id).await?;
                    let held = UncommittedFolder::open(&asked, &at, id)?;
                    held.add(id, b"x".to_vec()).await?;
                    let mut uploads = held.store.take().await;
                    if lost {
                        uploads.push(UploadedParts {
                            path: at.path.clone().join("lost"),
                            upload: "77".into(),
                            parts: Vec::new(),
                        });
                    }
                    assert_eq!(commit.end(uploads, 1).await.is_err(), lost);
                    assert_eq!(keys(&at).await, ["out/1", "out/_SUCCESS"]);
                }
                Ok(())
            })
            .unwrap();
    }

    /// Once a job was killed at the end of its write, it could never write there again. A live writer must not lose its
    /// output.
    #[test]
    fn what_a_dead_writer_leaves_in_a_store_goes() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let this = ProcessIdentity::this();
        let dead = this.to_string().replace(&format!("\"pid\":{}", this.pid), &format!("\"pid\":{}", child.id()));
        engine
            .run(async move {
                let (dir, none) = ("memory:///out", StorageOptions::new());
                let at = out(&asked)?;
                let put = |name: &'static str, text: String| {
                    let (objects, key) = (Arc::clone(&at.store.objects), at.path.clone().join(name));
                    async move { drop(objects.put(&key, text.into()).await.unwrap()) }
                };
                assert!(!settle(&asked, dir, &none).await?);
                put("a", "x".into()).await;
                put(UNFINISHED, format!("id 0\n{dead}\n")).await;
                assert!(ObjectCommit::begin(&at, false, "1").await.is_err(), "nobody knows by himself");
                assert!(!settle(&asked, dir, &none).await?);
                assert!(keys(&at).await.is_empty());
                ObjectCommit::begin(&at, false, "2").await?.end(Vec::new(), 0).await?;
                put(UNFINISHED, format!("id 0\n{dead}\n")).await;
                assert!(settle(&asked, dir, &none).await?, "it was killed when all was there");
                assert_eq!(keys(&at).await, ["out/_SUCCESS"]);

                remove(&at, existing(&at, 9).await?).await?;
                let mark = OutputLease::put(&at, "3", false).await?;
                put("b", "x".into()).await;
                let waiting = Arc::clone(&asked);
                let settled = asked.threads().spawn(async move { settle(&waiting, dir, &StorageOptions::new()).await });
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                assert!(!settled.is_finished(), "this process lives");
                put(SUCCESS, String::new()).await;
                mark.remove().await?;
                assert!(settled.await.unwrap()?);
                assert_eq!(keys(&at).await, ["out/_SUCCESS", "out/b"]);
                Ok(())
            })
            .unwrap();
    }

    /// A writer that was paused until another replaced its output must stop, and not mark what is there as complete.
    #[test]
    fn a_writer_without_its_mark_stops() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = out(&asked)?;
                let first = OutputLease::put(&at, "1", false).await?;
                assert!(OutputLease::put(&at, "2", false).await.is_err());
                assert_eq!(first.during(async { 3 }).await, Some(3));
                let second = OutputLease::put(&at, "2", true).await?;
                assert!(second.was_there && !first.was_there);
                assert_eq!(first.during(std::future::pending::<()>()).await, None);
                assert!(second.is_ours().await?);
                Ok(())
            })
            .unwrap();
    }
}
