//! Where checkpoints lie: a folder, or any object store.
//!
//! ```text
//! epochs/00000000000000000042            the manifest of epoch 42; it is there when the checkpoint is
//! state/RUN/42-3-0                       what copy 0 of task 3 saved at epoch 42, its parts one after the other
//! claims/00000000000000000007            a run has begun, the seventh that did
//! ```
//!
//! Of two runs that write to one place the later one is right: each makes a *claim* before it looks what is there, writes
//! manifests that say whose they are, and looks behind each whether there is a later claim before it takes it for durable.
//! So a run that was taken for dead either has written a manifest before its successor looked, which then goes on from it, or
//! finds the successor's claim, and ends; a manifest that it leaves behind comes before all of the successor's, whatever its
//! epoch, for the successor's first is the one that it goes on from, made its own. (In a folder there are no two: who runs holds a lock on it.) A manifest is created, never replaced. Objects are
//! removed when no manifest that is kept refers to them.

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

/// Claims of others that a claim may meet.
const CLAIMS_MAX: u64 = 100;

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
    /// A checkpoint, or part of one, is not what was written, or not there.
    #[error("checkpoints in {place}: {reason}")]
    Damaged {
        /// Where they lie.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Another job has claimed the place or written the epoch, or holds the lock.
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

/// What a store has to go on from.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The newest first: by claim, then by epoch.
    pub manifests: Vec<Manifest>,
    /// Epochs whose manifest is damaged, with what is wrong.
    pub damaged: Vec<(u64, String)>,
}

impl Kept {
    /// The newest epoch that is taken.
    pub(crate) fn epoch(&self) -> u64 {
        let whole = self.manifests.iter().map(|manifest| manifest.epoch);
        whole.chain(self.damaged.iter().map(|(epoch, _)| *epoch)).max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.damaged.is_empty()
    }
}

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
            Err(std::fs::TryLockError::WouldBlock) => Err(self.taken()),
            Err(std::fs::TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    /// The epochs that have a manifest, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn epochs(&self) -> Result<Vec<u64>, StoreError> {
        self.numbers("epochs").await
    }

    /// Claims the place for a run. Returns the claim, which is higher than `known`, the highest of any manifest: claims may
    /// have been lost where manifests have not.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn claim(&self, known: u64) -> Result<u64, StoreError> {
        let claims = self.numbers("claims").await?;
        let next = claims.first().map_or(known, |&last| last.max(known)).saturating_add(1);
        // Another's may come between; so many at once are no accident.
        for claim in next..next.saturating_add(CLAIMS_MAX) {
            if self.create(&self.claim_path(claim), Bytes::new()).await? {
                for old in claims {
                    self.delete(&self.claim_path(old)).await?;
                }
                return Ok(claim);
            }
        }
        Err(self.taken())
    }

    /// Whether no later run has claimed the place.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub(crate) async fn is_claimed(&self, claim: u64) -> Result<(), StoreError> {
        match self.numbers("claims").await?.first() {
            Some(&last) if last > claim => Err(self.taken()),
            _ => Ok(()),
        }
    }

    /// Makes the manifest of an earlier run, which `claim`'s goes on from, its own, with a number that is not taken. Only then
    /// may what it holds be committed: otherwise a third run could go on from what a second still writes.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub(crate) async fn adopt(&self, manifest: Manifest, claim: u64, epoch: u64) -> Result<Manifest, StoreError> {
        let old = manifest.epoch;
        let manifest = Manifest { claim, epoch, ..manifest };
        self.put_manifest(&manifest).await?;
        self.is_claimed(claim).await?;
        // It says the same, and is not to count twice among those that are kept.
        self.delete(&self.manifest_path(old)).await?;
        Ok(manifest)
    }

    /// What there is to go on from.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn kept(&self) -> Result<Kept, StoreError> {
        let mut kept = Kept::default();
        for epoch in self.epochs().await? {
            match self.manifest(epoch).await {
                Ok(manifest) => kept.manifests.push(manifest),
                Err(StoreError::Damaged { reason, .. }) => kept.damaged.push((epoch, reason)),
                // It may be the newest: to go on without it would count again what has been counted.
                Err(error) => return Err(error),
            }
        }
        kept.manifests.sort_by_key(|manifest| std::cmp::Reverse((manifest.claim, manifest.epoch)));
        Ok(kept)
    }

    /// The manifest of an epoch.
    ///
    /// # Errors
    /// The store's; `Damaged`.
    pub async fn manifest(&self, epoch: u64) -> Result<Manifest, StoreError> {
        let bytes = self.get(&self.manifest_path(epoch)).await?;
        Manifest::decode(&bytes).map_err(|reason| self.damaged(format!("epoch {epoch}: {reason}")))
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
        let bytes = Bytes::from(manifest.encode());
        // A store's client tries again when an answer is lost, and then finds its own.
        if self.create(&path, bytes.clone()).await? || self.get(&path).await? == bytes {
            return Ok(());
        }
        Err(self.taken())
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
    /// The store's; `Damaged`, also when a part is not there.
    pub(crate) async fn parts(&self, entries: &[&Entry]) -> Result<Vec<Bytes>, StoreError> {
        let mut parts = vec![Bytes::new(); entries.len()];
        let files: BTreeSet<&str> = entries.iter().filter(|entry| entry.len > 0).map(|e| e.file.as_str()).collect();
        for file in files {
            let of_file: Vec<usize> = (0..entries.len()).filter(|&at| entries[at].file == file).collect();
            let range = |&at: &usize| entries[at].offset..entries[at].offset.saturating_add(entries[at].len);
            let ranges: Vec<_> = of_file.iter().map(range).collect();
            let path = self.path(file);
            let found = match self.objects.get_ranges(&path, &ranges).await {
                Ok(found) => found,
                // A range that is not there is told in each store's own way; one that is shorter, by its length.
                Err(error) => {
                    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                    let whole = self.objects.head(&path).await.map_or(true, |object| object.size >= end);
                    return Err(if whole {
                        self.unreadable(error)
                    } else {
                        self.damaged(format!("{file} is cut short"))
                    });
                }
            };
            for (at, bytes) in of_file.into_iter().zip(found) {
                if bytes.len() as u64 != entries[at].len || XxHash3_64::oneshot(&bytes) != entries[at].sum {
                    return Err(self.damaged(format!("{file} is damaged")));
                }
                parts[at] = bytes;
            }
        }
        Ok(parts)
    }

    /// Removes all but the newest `keep` manifests that are whole, and what none of these refers to of `last` or before.
    ///
    /// # Errors
    /// The store's; what could be removed is.
    pub(crate) async fn prune(&self, keep: usize, last: u64) -> Result<(), StoreError> {
        let Kept { mut manifests, damaged } = self.kept().await?;
        let old = manifests.split_off(keep.max(1).min(manifests.len()));
        let needed: BTreeSet<&str> = manifests.iter().flat_map(Manifest::files).collect();
        let oldest = manifests.iter().map(|manifest| manifest.epoch).min().unwrap_or(0);
        // What is damaged is no use; while it is new somebody may want to see it.
        let damaged = damaged.into_iter().map(|(epoch, _)| epoch).filter(|&epoch| epoch < oldest);
        for epoch in old.iter().map(|manifest| manifest.epoch).chain(damaged) {
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
            if of.is_some_and(|epoch| epoch <= last) && name.is_some_and(|name| !needed.contains(name.as_str())) {
                self.delete(&path).await?;
            }
        }
        Ok(())
    }

    /// The numbers that objects of a kind are named by, the highest first.
    async fn numbers(&self, kind: &str) -> Result<Vec<u64>, StoreError> {
        let found: Vec<_> =
            self.objects.list(Some(&self.path(kind))).try_collect().await.map_err(|e| self.failed(e))?;
        let mut numbers: Vec<u64> =
            found.iter().filter_map(|object| object.location.filename()?.parse().ok()).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Ok(numbers)
    }

    /// Writes an object that is not there. Returns false when it is.
    async fn create(&self, path: &Path, bytes: Bytes) -> Result<bool, StoreError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(path, bytes.into(), options).await {
            Ok(_) => self.sync(path).await.map(|()| true),
            Err(Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn get(&self, path: &Path) -> Result<Bytes, StoreError> {
        let found = self.objects.get(path).await.map_err(|error| self.unreadable(error))?;
        found.bytes().await.map_err(|error| self.unreadable(error))
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

    fn claim_path(&self, claim: u64) -> Path {
        self.path(&format!("claims/{claim:020}"))
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, reason: impl ToString) -> StoreError {
        StoreError::Io { place: self.place.clone(), reason: reason.to_string() }
    }

    /// Something that should be there could not be read.
    fn unreadable(&self, error: Error) -> StoreError {
        match error {
            Error::NotFound { .. } => self.damaged(error.to_string()),
            error => self.failed(error),
        }
    }

    fn damaged(&self, reason: String) -> StoreError {
        StoreError::Damaged { place: self.place.clone(), reason }
    }

    fn taken(&self) -> StoreError {
        StoreError::Taken { place: self.place.clone() }
    }
}
