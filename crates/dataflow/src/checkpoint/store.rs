//! Where checkpoints lie: a folder, or any object store.
//!
//! ```text
//! epochs/00000000000000000042            the manifest of epoch 42; it is there when the checkpoint is
//! state/RUN/42-3-0                       what copy 0 of task 3 saved at epoch 42, its parts one after the other
//! ```
//!
//! A manifest is created, never replaced: of two jobs that write to one place the second finds its next epoch taken, and ends.
//! In a folder that cannot even begin: the job that runs holds a lock on it. Objects are removed when no manifest that is kept
//! refers to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use twox_hash::XxHash3_64;

use super::manifest::{Entry, Key, Manifest};

/// Why checkpoints cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store refused.
    #[error("checkpoints in {place}: {reason}")]
    Io {
        /// Where they lie.
        place: String,
        /// What the store said.
        reason: String,
    },
    /// Another job has written the epoch, or holds the lock.
    #[error("checkpoints in {place}: another job writes there; each job needs a place of its own")]
    Taken {
        /// Where they lie.
        place: String,
    },
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct CheckpointStore {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// For messages: a path or a URL.
    place: String,
    folder: Option<PathBuf>,
}

impl std::fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CheckpointStore").field(&self.place).finish()
    }
}

/// Nobody else may use a folder while one of these is held.
pub(crate) struct FolderLock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl CheckpointStore {
    /// In a folder, which is made if it is not there.
    ///
    /// # Errors
    /// When it can be neither found nor made.
    pub fn folder(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let folder = folder.into();
        let failed = |reason: String| StoreError::Io { place: folder.display().to_string(), reason };
        std::fs::create_dir_all(&folder).map_err(|error| failed(error.to_string()))?;
        let objects = LocalFileSystem::new_with_prefix(&folder).map_err(|error| failed(error.to_string()))?;
        Ok(CheckpointStore {
            objects: Arc::new(objects),
            prefix: Path::default(),
            place: folder.display().to_string(),
            folder: Some(folder),
        })
    }

    /// In an object store, beneath `prefix`; `url` stands for it in messages.
    pub fn objects(objects: Arc<dyn ObjectStore>, prefix: Path, url: impl Into<String>) -> Self {
        CheckpointStore { objects, prefix, place: url.into(), folder: None }
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Takes the folder for this job, until the lock is dropped or the process ends. Other stores have none.
    ///
    /// # Errors
    /// `Taken` when another job holds it.
    pub(crate) fn lock(&self) -> Result<Option<FolderLock>, StoreError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let file = File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
        let file = file.map_err(|error| self.failed(error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FolderLock(file))),
            Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::Taken { place: self.place.clone() }),
            Err(std::fs::TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    /// The epochs that have a manifest, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn epochs(&self) -> Result<Vec<u64>, StoreError> {
        let found: Vec<_> =
            self.objects.list(Some(&self.path("epochs"))).try_collect().await.map_err(|e| self.failed(e))?;
        let mut epochs: Vec<u64> = found.iter().filter_map(|object| object.location.filename()?.parse().ok()).collect();
        epochs.sort_unstable_by(|a, b| b.cmp(a));
        Ok(epochs)
    }

    /// The manifest of an epoch.
    ///
    /// # Errors
    /// The store's; when it is damaged.
    pub async fn manifest(&self, epoch: u64) -> Result<Manifest, StoreError> {
        let bytes = self.get(&self.manifest_path(epoch)).await?;
        Manifest::decode(&bytes).map_err(|reason| self.failed(format!("epoch {epoch}: {reason}")))
    }

    /// Whether everything that a manifest refers to is there and as it was written.
    ///
    /// # Errors
    /// The store's; when a part is damaged or not there.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries: Vec<&Entry> = manifest.entries().collect();
        self.parts(&entries).await.map(drop)
    }

    /// Makes a checkpoint be there.
    ///
    /// # Errors
    /// The store's; `Taken` when the epoch has a manifest already.
    pub(crate) async fn put_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.manifest_path(manifest.epoch);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(&path, manifest.encode().into(), options).await {
            Ok(_) => self.sync(&path).await,
            Err(Error::AlreadyExists { .. }) => Err(StoreError::Taken { place: self.place.clone() }),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Writes what a copy has saved, parts one after the other, as one object. Returns where each lies.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn put_state(
        &self,
        file: String,
        parts: Vec<(Key, Bytes, bool)>,
    ) -> Result<Vec<(Key, Entry)>, StoreError> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|(_, part, _)| part.len()).sum());
        let mut entries = Vec::with_capacity(parts.len());
        for (key, part, whole) in parts {
            let (offset, len, sum) = (bytes.len() as u64, part.len() as u64, XxHash3_64::oneshot(&part));
            entries.push((key, Entry { file: file.clone(), offset, len, sum, whole }));
            bytes.extend_from_slice(&part);
        }
        if !bytes.is_empty() {
            let path = self.path(&file);
            self.objects.put(&path, bytes.into()).await.map_err(|error| self.failed(error))?;
            self.sync(&path).await?;
        }
        Ok(entries)
    }

    /// Reads parts, in the order of `entries`, and checks them.
    ///
    /// # Errors
    /// The store's; when a part is damaged or not there.
    pub(crate) async fn parts(&self, entries: &[&Entry]) -> Result<Vec<Bytes>, StoreError> {
        let mut parts = vec![Bytes::new(); entries.len()];
        let files: BTreeSet<&str> = entries.iter().filter(|entry| entry.len > 0).map(|e| e.file.as_str()).collect();
        for file in files {
            let of_file: Vec<usize> = (0..entries.len()).filter(|&at| entries[at].file == file).collect();
            let ranges: Vec<_> =
                of_file.iter().map(|&at| entries[at].offset..entries[at].offset + entries[at].len).collect();
            let found = self.objects.get_ranges(&self.path(file), &ranges).await.map_err(|error| self.failed(error))?;
            for (at, bytes) in of_file.into_iter().zip(found) {
                if bytes.len() as u64 != entries[at].len || XxHash3_64::oneshot(&bytes) != entries[at].sum {
                    return Err(self.failed(format!("{file} is damaged")));
                }
                parts[at] = bytes;
            }
        }
        Ok(parts)
    }

    /// Removes all but the newest `keep` manifests, and what none of these refers to of `last` or before.
    ///
    /// # Errors
    /// The store's; what could be removed is.
    pub(crate) async fn prune(&self, keep: usize, last: u64) -> Result<(), StoreError> {
        let epochs = self.epochs().await?;
        let (kept, old) = epochs.split_at(keep.max(1).min(epochs.len()));
        let mut needed = BTreeSet::new();
        for &epoch in kept {
            // One that is damaged is no use, and what it needs is not known.
            if let Ok(manifest) = self.manifest(epoch).await {
                needed.extend(manifest.files().into_iter().map(str::to_owned));
            }
        }
        for &epoch in old {
            self.delete(&self.manifest_path(epoch)).await?;
        }
        let found: Vec<_> =
            self.objects.list(Some(&self.path("state"))).try_collect().await.map_err(|e| self.failed(e))?;
        for object in found {
            let path = object.location;
            let of = path.filename().and_then(|name| name.split('-').next()?.parse::<u64>().ok());
            let name = path
                .prefix_match(&self.prefix)
                .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"));
            if of.is_some_and(|epoch| epoch <= last) && name.is_some_and(|name| !needed.contains(&name)) {
                self.delete(&path).await?;
            }
        }
        Ok(())
    }

    async fn get(&self, path: &Path) -> Result<Bytes, StoreError> {
        let found = self.objects.get(path).await.map_err(|error| self.failed(error))?;
        found.bytes().await.map_err(|error| self.failed(error))
    }

    async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        match self.objects.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// A file that was put may be in memory only; a store's object is not.
    async fn sync(&self, path: &Path) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let file = folder.join(FilePath::new(path.as_ref()));
        let sync = move || -> std::io::Result<()> {
            File::open(&file)?.sync_all()?;
            file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        let synced = tokio::task::spawn_blocking(sync).await;
        synced.map_err(|error| self.failed(error))?.map_err(|error| self.failed(error))
    }

    fn manifest_path(&self, epoch: u64) -> Path {
        self.path(&format!("epochs/{epoch:020}"))
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, reason: impl ToString) -> StoreError {
        StoreError::Io { place: self.place.clone(), reason: reason.to_string() }
    }
}
