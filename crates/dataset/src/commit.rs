//! Output that appears as a whole: in a folder, or in an object store.
//!
//! | where         | until the end                                    | the end                                                    |
//! |---------------|--------------------------------------------------|------------------------------------------------------------|
//! | local folder  | files in a hidden folder beside it               | the hidden folder is renamed                                |
//! | object store  | uploads that nobody completes ([`HeldStore`])    | a mark `_unfinished` is put, uploads become objects, what was there before is removed, `_SUCCESS` is put, the mark goes |
//!
//! A crash before the end leaves the hidden folder, or uploads, which nobody sees; `read` does not look into hidden folders. A
//! crash during the end, which in a store takes a request for each object, leaves the mark, and `read` refuses what has it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use datafusion::execution::runtime_env::RuntimeEnv;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Handle;
use url::Url;

use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::UNFINISHED;
use crate::held::{HeldStore, Upload, abort, complete};
use crate::stores::{Location, StorageOptions, is_bucket, local_path, within};

/// The object that says that output is whole, as other programs look for it.
const SUCCESS: &str = "_SUCCESS";

/// Where output goes.
pub(crate) enum Target {
    Folder(PathBuf),
    Objects(Location),
}

impl Target {
    /// # Errors
    /// `Unsupported` for a store that cannot be written to.
    pub(crate) fn of(engine: &Engine, dir: &str, storage: &StorageOptions) -> Result<Self> {
        if let Some(path) = local_path(dir)? {
            return Ok(Target::Folder(path.into()));
        }
        let at = engine.locate(dir, storage)?;
        if at.store.uploads.is_none() {
            return Err(DataSetError::Unsupported(format!("writing to {dir}: over HTTP files can only be read")));
        }
        if at.path.as_ref().is_empty() {
            return Err(DataSetError::Query(format!("{dir} cannot be written to as a whole; name a folder in it")));
        }
        Ok(Target::Objects(at))
    }
}

/// Output into a local folder under way. Dropping it before `end` removes what was written.
pub(crate) struct FolderCommit {
    target: PathBuf,
    /// Where files go until the end.
    pub(crate) hidden: PathBuf,
    overwrite: bool,
    done: bool,
}

impl FolderCommit {
    pub(crate) fn begin(target: &Path, overwrite: bool) -> Result<Self> {
        let target = std::path::absolute(target).map_err(|error| failed(target, &error))?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(DataSetError::Query(format!("{} cannot be written to", target.display())));
        };
        if target.exists() && !overwrite {
            return Err(DataSetError::Io(format!("{} exists; overwrite=True replaces it", target.display())));
        }
        let hidden = parent.join(format!(".{}.unfinished-{}", name.to_string_lossy(), std::process::id()));
        std::fs::create_dir_all(&hidden).map_err(|error| failed(&hidden, &error))?;
        Ok(FolderCommit { hidden, target, overwrite, done: false })
    }

    /// Makes the output appear; `extra` is a file to add to it.
    pub(crate) fn end(mut self, extra: Option<(String, Vec<u8>)>) -> Result<()> {
        if let Some((name, bytes)) = extra {
            let path = self.hidden.join(name);
            std::fs::write(&path, bytes).map_err(|error| failed(&path, &error))?;
        }
        let old = self.hidden.with_extension("replaced");
        let replaces = self.overwrite && self.target.exists();
        if replaces {
            std::fs::rename(&self.target, &old).map_err(|error| failed(&self.target, &error))?;
        }
        if let Err(error) = std::fs::rename(&self.hidden, &self.target) {
            if replaces {
                // Best effort: what was there goes back, and the first error is the one to tell.
                let _ = std::fs::rename(&old, &self.target);
            }
            return Err(failed(&self.target, &error));
        }
        self.done = true;
        if replaces {
            let removed = if old.is_dir() { std::fs::remove_dir_all(&old) } else { std::fs::remove_file(&old) };
            removed.map_err(|error| failed(&old, &error))?;
        }
        Ok(())
    }
}

impl Drop for FolderCommit {
    fn drop(&mut self) {
        if !self.done {
            // The error that led here is the one to tell.
            let _ = std::fs::remove_dir_all(&self.hidden);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> DataSetError {
    DataSetError::Io(format!("{}: {error}", path.display()))
}

/// The URL of a local folder.
pub(crate) fn folder_url(path: &Path) -> Result<Url> {
    Url::from_directory_path(path).map_err(|()| DataSetError::Io(format!("{} is not an absolute path", path.display())))
}

/// A name that no other write has.
pub(crate) fn write_id() -> String {
    let mut hasher = DefaultHasher::new();
    (SystemTime::now(), std::process::id(), std::thread::current().id()).hash(&mut hasher);
    // Keys of its own for each process.
    let secret = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), hasher.finish());
    format!("{secret:016x}")
}

/// One worker's part of output into a store: a folder for DataFusion, in which nothing appears. Dropping it removes what was
/// written, if it has not been taken.
pub(crate) struct HeldFolder {
    pub(crate) url: Url,
    pub(crate) store: Arc<HeldStore>,
    pub(crate) at: Location,
    runtime: Arc<RuntimeEnv>,
}

impl HeldFolder {
    /// `id` is that of the write, the same on all workers.
    pub(crate) fn open(engine: &Engine, at: &Location, id: &str) -> Result<Self> {
        let store = HeldStore::new(&at.store)
            .ok_or_else(|| DataSetError::Internal(format!("{at} takes no uploads, and was not refused")))?;
        let base = Url::parse(&format!("tidemill-held-{id}://store"))
            .map_err(|error| DataSetError::Internal(error.to_string()))?;
        let (store, runtime) = (Arc::new(store), engine.context().runtime_env());
        runtime.register_object_store(&base, Arc::clone(&store) as _);
        Ok(HeldFolder { url: within(&base, &at.path, true), store, at: at.clone(), runtime })
    }

    /// Adds a file.
    pub(crate) fn add(&self, name: &str, bytes: Vec<u8>) -> impl Future<Output = Result<()>> + Send + use<> {
        let (held, at, path) = (Arc::clone(&self.store), self.at.clone(), self.at.path.clone().join(name));
        async move {
            let put = held.put(&path, bytes.into()).await;
            put.map(|_| ()).map_err(|error| at.store.failed(&path, &error))
        }
    }
}

impl Drop for HeldFolder {
    fn drop(&mut self) {
        let _ = self.runtime.deregister_object_store(&self.url);
        let discarded = self.store.discard();
        if let Ok(threads) = Handle::try_current() {
            // An action that was cancelled: nobody waits for this any more.
            threads.spawn(discarded);
        }
    }
}

/// The end of output into a store; one worker's.
pub(crate) struct ObjectCommit {
    at: Location,
    overwrite: bool,
    id: String,
}

impl ObjectCommit {
    /// # Errors
    /// `Io` if there is something already, or the store does not say.
    pub(crate) async fn begin(at: &Location, overwrite: bool, id: &str) -> Result<Self> {
        let commit = ObjectCommit { at: at.clone(), overwrite, id: id.to_owned() };
        // Asked also with `overwrite`: who may not list it hears so before anything is made.
        let exists = !commit.existing(1).await?.is_empty();
        if !overwrite && (exists || at.store.objects.head(&at.path).await.is_ok()) {
            return Err(commit.exists());
        }
        Ok(commit)
    }

    fn exists(&self) -> DataSetError {
        DataSetError::Io(format!("{} exists; overwrite=True replaces it", self.at))
    }

    /// What is at the target, but the mark; not much more than `count_max`.
    async fn existing(&self, count_max: usize) -> Result<Vec<Key>> {
        let Location { store, path, .. } = &self.at;
        let mut found = Vec::new();
        let mark = path.clone().join(UNFINISHED);
        let mut listed = store.objects.list(Some(path));
        while found.len() < count_max {
            match listed.try_next().await {
                Ok(Some(meta)) if meta.location == mark && !self.overwrite => {}
                Ok(Some(meta)) => found.push(meta.location),
                Ok(None) => break,
                Err(error @ Error::NotFound { .. }) if !is_bucket(&error) => break,
                Err(error) => return Err(store.failed(path, &error)),
            }
        }
        Ok(found)
    }

    /// Makes objects of the uploads of all workers, and removes what was there.
    ///
    /// # Errors
    /// `Io`. Then no object of the uploads is left, and what was there still is; unless the store refuses that too.
    pub(crate) async fn end(self, uploads: Vec<Upload>, rows: u64) -> Result<()> {
        let store = &self.at.store;
        let ended = match self.mark().await {
            Ok(()) => self.appear(&uploads, rows).await,
            Err(error) => Err(error),
        };
        if ended.is_err() {
            abort(store, uploads).await;
        }
        ended
    }

    /// Puts the mark. Without `overwrite` one write of several wins, where the store can tell.
    async fn mark(&self) -> Result<()> {
        let (store, mark) = (&self.at.store, self.at.path.clone().join(UNFINISHED));
        let put = |mode| {
            let options = PutOptions { mode, ..PutOptions::default() };
            store.objects.put_opts(&mark, self.id.clone().into(), options)
        };
        let mode = if self.overwrite { PutMode::Overwrite } else { PutMode::Create };
        let done = match put(mode).await {
            Err(Error::NotImplemented { .. }) => put(PutMode::Overwrite).await,
            done => done,
        };
        match done {
            Ok(_) => Ok(()),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Err(DataSetError::Io(format!(
                "{}: another write is about to end there, or its writer died; overwrite=True goes over it, or remove {}",
                self.at,
                store.shown(&mark)
            ))),
            Err(error) => Err(store.failed(&mark, &error)),
        }
    }

    /// With the mark put.
    async fn appear(&self, uploads: &[Upload], rows: u64) -> Result<()> {
        let Location { store, path, .. } = &self.at;
        let (mark, success) = (path.clone().join(UNFINISHED), path.clone().join(SUCCESS));
        let old = self.existing(usize::MAX).await;
        let old: Vec<Key> = old?.into_iter().filter(|key| *key != mark).collect();
        if !self.overwrite && !old.is_empty() {
            // It came while this was written.
            self.remove(vec![mark]).await?;
            return Err(self.exists());
        }
        let was_whole = old.contains(&success);
        if was_whole {
            self.remove(vec![success.clone()]).await?;
        }
        if let Err((at, error)) = complete(store, uploads).await {
            // As far as the store lets us, and the mark stays if it does not.
            let removed = self.remove(uploads.iter().map(|upload| upload.path.clone()).collect()).await;
            if removed.is_ok() && (!was_whole || store.objects.put(&success, "".into()).await.is_ok()) {
                let _ = self.remove(vec![mark]).await;
            }
            return Err(store.failed(&at, &error));
        }
        self.remove(old.into_iter().filter(|key| *key != success).collect()).await?;
        let told = format!("{{\"rows\": {rows}, \"objects\": {}}}\n", uploads.len());
        store.objects.put(&success, told.into()).await.map_err(|error| store.failed(&success, &error))?;
        self.remove(vec![mark]).await
    }

    /// Removes objects; those that are not there are fine.
    async fn remove(&self, keys: Vec<Key>) -> Result<()> {
        let store = &self.at.store;
        let mut removed = store.objects.delete_stream(futures::stream::iter(keys.into_iter().map(Ok)).boxed());
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(store.failed(&self.at.path, &error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineConfig;

    fn engine() -> Arc<Engine> {
        let config = EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None };
        Arc::new(Engine::new(&config).unwrap())
    }

    async fn keys(at: &Location) -> Vec<String> {
        let listed: Vec<_> = at.store.objects.list(None).try_collect().await.unwrap();
        let mut keys: Vec<String> = listed.into_iter().map(|meta| meta.location.to_string()).collect();
        keys.sort();
        keys
    }

    /// Nothing may be seen before the end, everything after it, and nothing of what is given up.
    #[test]
    fn objects_appear_at_the_end() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = asked.locate("memory:///out", &StorageOptions::new())?;
                let commit = ObjectCommit::begin(&at, false, "1").await?;
                let held = HeldFolder::open(&asked, &at, "1")?;
                held.add("a", b"x".to_vec()).await?;
                held.add("b", Vec::new()).await?;
                assert!(keys(&at).await.is_empty());
                commit.end(held.store.take().await, 2).await?;
                assert_eq!(keys(&at).await, ["out/_SUCCESS", "out/a", "out/b"]);

                let error = ObjectCommit::begin(&at, false, "2").await.err().unwrap();
                assert_eq!(error.to_string(), "memory:///out exists; overwrite=True replaces it");
                let given_up = HeldFolder::open(&asked, &at, "2")?;
                given_up.add("c", b"x".to_vec()).await?;
                given_up.store.discard().await;
                assert!(given_up.add("d", b"x".to_vec()).await.is_err(), "it is closed");
                assert!(given_up.store.take().await.is_empty());

                let commit = ObjectCommit::begin(&at, true, "3").await?;
                let held = HeldFolder::open(&asked, &at, "3")?;
                held.add("e", b"x".to_vec()).await?;
                commit.end(held.store.take().await, 1).await?;
                assert_eq!(keys(&at).await, ["out/_SUCCESS", "out/e"]);
                Ok(())
            })
            .unwrap();
    }

    /// Of two writes into the same new folder one must win, and the other leave nothing.
    #[test]
    fn one_of_two_wins() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = asked.locate("memory:///out", &StorageOptions::new())?;
                let mut writes = Vec::new();
                for id in ["1", "2"] {
                    let commit = ObjectCommit::begin(&at, false, id).await?;
                    let held = HeldFolder::open(&asked, &at, id)?;
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

    /// A store that refuses one object at the end: those that have appeared go, what was there stays.
    #[test]
    fn a_refused_end_is_undone() {
        let engine = engine();
        let asked = Arc::clone(&engine);
        engine
            .run(async move {
                let at = asked.locate("memory:///out", &StorageOptions::new())?;
                for (id, lost) in [("1", false), ("2", true)] {
                    let commit = ObjectCommit::begin(&at, true, id).await?;
                    let held = HeldFolder::open(&asked, &at, id)?;
                    held.add(id, b"x".to_vec()).await?;
                    let mut uploads = held.store.take().await;
                    if lost {
                        uploads.push(Upload { path: at.path.clone().join("lost"), id: "77".into(), parts: Vec::new() });
                    }
                    assert_eq!(commit.end(uploads, 1).await.is_err(), lost);
                    assert_eq!(keys(&at).await, ["out/1", "out/_SUCCESS"]);
                }
                Ok(())
            })
            .unwrap();
    }
}
