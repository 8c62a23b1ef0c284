//! Storage of checkpoints: a folder, or any object store.
//!
//! ```text
//! epochs/00000000000000000042            the manifest of epoch 42; it is there when the checkpoint is
//! state/RUN/42-3-0                       what copy 0 of task 3 saved at epoch 42, its parts one after the other
//! claims/00000000000000000007            a run has begun, the seventh that did
//! made                                   there is, or was, a manifest: a place that lost them does not count as new
//! lock, or in an object store lease      the owner of the place
//! ```
//!
//! One job at a time owns the place: in a folder it holds a lock on a file, in an object store a `lease`. A second one
//! is refused. If there are two nevertheless, because a store lacks conditional writes or somebody has removed the
//! lease, the claims keep checkpoints correct:
//!
//! Of two runs that write to one place, the later one wins. Each makes a *claim* before it lists the place, writes
//! manifests that name their owner, and after each manifest checks for a later claim before it considers the manifest
//! durable. So a run that was presumed dead has either written a manifest before its successor listed the place, which
//! then resumes from it, or it finds the successor's claim, and ends. A manifest that it leaves behind precedes all of
//! the successor's, whatever its epoch, because the successor's first manifest is the one that it resumes from, under
//! its own name. A manifest is created, never replaced. Objects are removed when no retained manifest refers to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tidemill_batch::BatchError;
use tidemill_batch::memory::{Governor, MapWriter, verify};
use tidemill_storage::lease::ProcessIdentity;
use tidemill_storage::{ObjectStores, StorageError, StorageOptions, StoreLocation, local_path, redact_passwords};

use self::signing::SigningKey;
use crate::lease::{Lease, LeaseDenial, LeaseKey, LeaseView, held_by};
use crate::manifest::{Manifest, PartEntry, PartKey};

/// Claims of others that a claim may meet.
const CLAIMS_MAX: u64 = 100;
/// Of a file that says who holds its lock.
const LOCK_BYTES_MAX: u64 = 64 << 10;
/// Bytes of parts that are read at once, unless one is larger.
const READ_BYTES_MAX: u64 = 8 << 20;

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
    /// A checkpoint is not signed with the job's key: it is not even looked at.
    #[error("checkpoints in {place}: {reason}")]
    Untrusted {
        /// Where they lie.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Another job holds the place, or has claimed it or written the epoch.
    #[error("checkpoints in {place}: another job writes there; each job needs a place of its own{}", held(.by))]
    Taken {
        /// Where they lie.
        place: String,
        /// Which job, in words; nothing, if it is not known.
        by: String,
    },
}

impl StoreError {
    /// The same, with what else went wrong because of it.
    fn with(mut self, more: &str) -> Self {
        if let StoreError::Io { reason, .. } | StoreError::Damaged { reason, .. } = &mut self {
            *reason = format!("{reason}; and {more}");
        }
        self
    }
}

fn held(by: &str) -> String {
    if by.is_empty() { String::new() } else { format!(" (it is held by {by})") }
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct CheckpointStore {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// For messages: a path or a URL.
    place: String,
    folder: Option<PathBuf>,
    /// The client that renews the lease.
    leases: Option<Arc<dyn ObjectStore>>,
    /// It is known to say that there has been a manifest.
    marked: Arc<AtomicBool>,
    /// What manifests are signed with, or why that cannot be told.
    signing: Result<SigningKey, String>,
}

impl std::fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CheckpointStore").field(&self.place).finish()
    }
}

/// What keeps other jobs out of a place, or tries to: until it is dropped, or the process ends.
pub struct StoreHold(JobLock);

enum JobLock {
    Folder(#[expect(dead_code, reason = "the lock goes with the file")] File),
    Lease(Lease),
    /// There is nothing that could.
    Nothing,
}

impl StoreHold {
    /// Whether others are kept out from now on; `None` yet.
    pub fn outcome(&self) -> Option<Result<(), LeaseDenial>> {
        match &self.0 {
            JobLock::Lease(lease) => lease.outcome(),
            JobLock::Folder(_) | JobLock::Nothing => Some(Ok(())),
        }
    }

    /// Why others are not kept out after all.
    pub fn unconditional(&self) -> Option<String> {
        match &self.0 {
            JobLock::Lease(lease) => lease.unconditional(),
            JobLock::Folder(_) | JobLock::Nothing => None,
        }
    }

    /// The lease, where it may be lost.
    pub fn lease(&self) -> Option<LeaseView> {
        match &self.0 {
            JobLock::Lease(lease) => Some(lease.view()),
            JobLock::Folder(_) | JobLock::Nothing => None,
        }
    }

    /// Lets the next job in.
    pub async fn give_back(self) {
        if let JobLock::Lease(lease) = self.0 {
            lease.give_back().await;
        }
    }
}

/// Who holds a folder's lock, as it lies in the file.
#[derive(serde::Serialize, serde::Deserialize)]
struct LockHolder {
    job: String,
    process: ProcessIdentity,
}

/// What a store has to go on from.
#[derive(Debug, Default)]
pub struct RestoreCandidates {
    /// The newest first: by claim, then by epoch.
    pub manifests: Vec<Manifest>,
    /// Epochs whose manifest is damaged, with what is wrong.
    pub damaged: Vec<(u64, String)>,
}

impl RestoreCandidates {
    /// The newest epoch that is taken.
    pub fn epoch(&self) -> u64 {
        let whole = self.manifests.iter().map(|manifest| manifest.epoch);
        whole.chain(self.damaged.iter().map(|(epoch, _)| *epoch)).max().unwrap_or(0)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.damaged.is_empty()
    }
}

/// A manifest, if it can be read, and what is wrong with it or what it refers to.
pub type ManifestCheck = (Option<Manifest>, Option<StoreError>);

impl CheckpointStore {
    /// In a folder, which is made if it is not there.
    ///
    /// # Errors
    /// When it can be neither found nor made.
    pub fn folder(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let folder = folder.into();
        let failed = |reason: String| StoreError::Io { place: folder.display().to_string(), reason };
        if folder.exists() && !folder.is_dir() {
            return Err(failed("it is a file, but must be a folder".into()));
        }
        std::fs::create_dir_all(&folder).map_err(|error| failed(error.to_string()))?;
        let objects = LocalFileSystem::new_with_prefix(&folder).map_err(|error| failed(error.to_string()))?;
        Ok(CheckpointStore {
            objects: Arc::new(objects),
            prefix: Path::default(),
            place: folder.display().to_string(),
            folder: Some(folder),
            leases: None,
            marked: Arc::default(),
            signing: SigningKey::of_environment(),
        })
    }

    /// In a folder, which is made if checkpoints are to be written, or in what a URL stands for.
    ///
    /// # Errors
    /// `Io` when it cannot be opened, is none of the stores that write an object only where there is none, or is the
    /// memory of one process; else as [`ObjectStores::locate`].
    pub fn open(
        stores: &ObjectStores,
        place: &str,
        options: &StorageOptions,
        writes: bool,
    ) -> Result<Self, StorageError> {
        let failed = |reason: &str| StorageError::Io(redact_passwords(&format!("{place}: {reason}")));
        if let Some(folder) = local_path(place)? {
            if !writes && !FilePath::new(&folder).is_dir() {
                return Err(failed("there is no such folder"));
            }
            return CheckpointStore::folder(folder).map_err(|error| StorageError::Io(error.to_string()));
        }
        let StoreLocation { store, path, .. } = stores.locate(place, options)?;
        if !store.shared {
            return Err(failed("checkpoints in memory are lost when the process ends"));
        }
        if store.uploads.is_none() {
            return Err(failed("checkpoints need a folder or an object store: s3://, gs://, az://"));
        }
        let shown = redact_passwords(place.trim_end_matches('/'));
        let checkpoints = CheckpointStore::objects(Arc::clone(&store.objects), path, shown);
        if !writes {
            return Ok(checkpoints);
        }
        Ok(checkpoints.with_leases(ObjectStores::own_client(place, options)?))
    }

    /// In an object store, beneath `prefix`; `url` stands for it in messages.
    pub fn objects(objects: Arc<dyn ObjectStore>, prefix: Path, url: impl Into<String>) -> Self {
        CheckpointStore {
            objects,
            prefix,
            place: url.into(),
            folder: None,
            leases: None,
            marked: Arc::default(),
            signing: SigningKey::of_environment(),
        }
    }

    /// The same, in which a job keeps others out by a lease: a small object that it writes anew every three seconds.
    /// That is done by `client`, another one of the same store: it is used within a thread and a runtime of its own.
    #[must_use]
    pub fn with_leases(self, client: Arc<dyn ObjectStore>) -> Self {
        CheckpointStore { leases: Some(client), ..self }
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Begins to keep others out for a run of `job`, which `owner` names. [`StoreHold::outcome`] says what comes of it,
    /// and `wake` is called when that changes.
    ///
    /// # Errors
    /// `Taken` when another job holds the folder; when there cannot be a lock or a thread.
    pub fn hold(&self, job: &str, owner: &str, wake: impl Fn() + Send + 'static) -> Result<StoreHold, StoreError> {
        match (&self.folder, &self.leases) {
            (Some(folder), _) => self.lock(folder, job).map(|file| StoreHold(JobLock::Folder(file))),
            (None, Some(client)) => {
                let place =
                    LeaseKey { objects: Arc::clone(client), path: self.path("lease"), name: self.place.clone() };
                Lease::want(place, job, owner, wake)
                    .map(|lease| StoreHold(JobLock::Lease(lease)))
                    .map_err(|reason| self.failed(reason))
            }
            (None, None) => Ok(StoreHold(JobLock::Nothing)),
        }
    }

    fn lock(&self, folder: &FilePath, job: &str) -> Result<File, StoreError> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(folder.join("lock"));
        let mut file = file.map_err(|error| self.failed(error))?;
        match file.try_lock() {
            Ok(()) => {
                let holder = LockHolder { job: job.into(), process: ProcessIdentity::this() };
                let holder = serde_json::to_vec(&holder).expect("it is made of numbers and texts");
                // Only for people: a full disk is told by what needs it.
                let _ = file.set_len(0).and_then(|()| file.write_all(&holder));
                Ok(file)
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut bytes = Vec::new();
                let _ = file.take(LOCK_BYTES_MAX).read_to_end(&mut bytes);
                let holder = serde_json::from_slice(&bytes).map_or_else(
                    |_| String::new(),
                    |LockHolder { job, process }| format!("job \"{job}\", process {} on {}", process.pid, process.host),
                );
                Err(self.taken(holder))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    /// Why a run may not write, as an error of this store.
    pub fn denied(&self, denied: LeaseDenial) -> StoreError {
        match denied {
            LeaseDenial::Held(by) => self.taken(by),
            LeaseDenial::Failed(reason) => self.failed(reason),
        }
    }

    /// The epochs that have a manifest, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn epochs(&self) -> Result<Vec<u64>, StoreError> {
        self.numbers("epochs").await
    }

    /// Claims the place for a `run`. Returns the claim, which is higher than `known`, the highest of any manifest:
    /// claims may have been lost where manifests have not.
    ///
    /// # Errors
    /// The store's.
    pub async fn claim(&self, known: u64, run: &str) -> Result<u64, StoreError> {
        let claims = self.numbers("claims").await?;
        let next = claims.first().map_or(known, |&last| last.max(known)).saturating_add(1);
        // Another's may come between; so many at once are no accident.
        for claim in next..next.saturating_add(CLAIMS_MAX) {
            if self.create(&self.claim_path(claim), Bytes::copy_from_slice(run.as_bytes())).await? {
                for old in claims {
                    self.delete(&self.claim_path(old)).await?;
                }
                return Ok(claim);
            }
        }
        Err(self.taken_by_another().await)
    }

    /// Whether this is the place that worker 0 has claimed for the `run`: a folder of that name may be another one on
    /// each host.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub async fn has_claim(&self, claim: u64, run: &str) -> Result<bool, StoreError> {
        if self.find(&self.claim_path(claim)).await?.is_some_and(|found| found == run.as_bytes()) {
            return Ok(true);
        }
        self.is_claimed(claim).await.map(|()| false)
    }

    /// Whether no later run has claimed the place.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub async fn is_claimed(&self, claim: u64) -> Result<(), StoreError> {
        match self.numbers("claims").await?.first() {
            Some(&last) if last > claim => Err(self.taken_by_another().await),
            _ => Ok(()),
        }
    }

    /// Makes the manifest of an earlier run, which `claim`'s goes on from, its own, with a number that is not taken.
    /// Only then may what it holds be committed: otherwise a third run could go on from what a second still writes.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub async fn adopt(&self, manifest: Manifest, claim: u64, epoch: u64) -> Result<Manifest, StoreError> {
        let old = manifest.epoch;
        let manifest = Manifest { claim, epoch, ..manifest };
        self.replace(old, &manifest).await?;
        Ok(manifest)
    }

    /// Everything that `sinks` had prepared at a manifest is committed: makes one be there in its stead that has
    /// nothing of them. So whoever goes on from there need not have the same sinks. Returns it; `None` if they had
    /// prepared nothing.
    ///
    /// # Errors
    /// The store's; `Taken`. Then there is the one, or the other, or both.
    pub async fn settle(&self, manifest: &Manifest, sinks: &[String]) -> Result<Option<Manifest>, StoreError> {
        let mut settled = Manifest { epoch: manifest.epoch + 1, ..manifest.clone() };
        let of_sinks = settled.tasks.iter_mut().filter(|(name, _)| sinks.contains(name));
        let had: usize = of_sinks.map(|(_, state)| std::mem::take(&mut state.splits).len()).sum();
        if had == 0 {
            return Ok(None);
        }
        self.replace(manifest.epoch, &settled).await?;
        Ok(Some(settled))
    }

    /// Makes a manifest durable that says the same as an older one, which is not to count twice among those that are
    /// kept.
    async fn replace(&self, old: u64, manifest: &Manifest) -> Result<(), StoreError> {
        self.make_durable(manifest).await?;
        self.delete(&self.manifest_path(old)).await
    }

    /// Writes a manifest. If this succeeds it is durable: it counts only if no later run has begun, which may not have
    /// seen it.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub async fn make_durable(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.put_manifest(manifest).await?;
        self.is_claimed(manifest.claim).await
    }

    /// What there is to go on from.
    ///
    /// # Errors
    /// The store's.
    pub async fn restore_candidates(&self) -> Result<RestoreCandidates, StoreError> {
        let mut epochs = self.epochs().await?;
        loop {
            let mut kept = RestoreCandidates::default();
            let mut missing = false;
            for &epoch in &epochs {
                match self.find_manifest(epoch).await {
                    Ok(Some(manifest)) => kept.manifests.push(manifest),
                    Ok(None) => {
                        missing = true;
                        kept.damaged.push((epoch, format!("epoch {epoch} is listed, but missing")));
                    }
                    Err(StoreError::Damaged { reason, .. }) => kept.damaged.push((epoch, reason)),
                    // It may be the newest: to go on without it would count again what has been counted.
                    Err(error) => return Err(error),
                }
            }
            if missing {
                // Another run may have made its own of one and removed it; then that is listed now, and all that the
                // old one held is needed.
                let now = self.epochs().await?;
                if now != epochs {
                    epochs = now;
                    continue;
                }
            }
            kept.manifests.sort_by_key(|manifest| std::cmp::Reverse((manifest.claim, manifest.epoch)));
            return Ok(kept);
        }
    }

    /// The manifest of an epoch.
    ///
    /// # Errors
    /// The store's; `Damaged`.
    pub async fn manifest(&self, epoch: u64) -> Result<Manifest, StoreError> {
        let found = self.find_manifest(epoch).await?;
        found.ok_or_else(|| self.damaged(format!("epoch {epoch} is missing")))
    }

    /// The same; `None` when there is none.
    async fn find_manifest(&self, epoch: u64) -> Result<Option<Manifest>, StoreError> {
        let Some(bytes) = self.find(&self.manifest_path(epoch)).await? else { return Ok(None) };
        let opened =
            self.signing()?.open(&bytes).map_err(|reason| self.untrusted(format!("epoch {epoch}: {reason}")))?;
        let manifest = Manifest::decode(opened).and_then(|manifest| match manifest.epoch == epoch {
            true => Ok(manifest),
            false => Err(format!("it belongs to epoch {}", manifest.epoch)),
        });
        manifest.map(Some).map_err(|reason| self.damaged(format!("epoch {epoch}: {reason}")))
    }

    /// Whether everything that a manifest refers to is there and as it was written.
    ///
    /// # Errors
    /// The store's; when a part is damaged or not there.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries: Vec<&PartEntry> = manifest.entries().collect();
        self.read(&entries, |_, _| Ok(())).await
    }

    /// An epoch's manifest, and what is wrong with the checkpoint, for a list; `whole` says that all it refers to is
    /// read. `None` for one that has gone since it was listed: a job that runs clears away what is old.
    ///
    /// # Errors
    /// The store's, when the epochs cannot be listed again.
    pub async fn inspect(&self, epoch: u64, whole: bool) -> Result<Option<ManifestCheck>, StoreError> {
        let (manifest, damage) = match self.manifest(epoch).await {
            Ok(manifest) if whole => {
                let damage = self.verify(&manifest).await.err();
                (Some(manifest), damage)
            }
            Ok(manifest) => return Ok(Some((Some(manifest), None))),
            Err(error) => (None, Some(error)),
        };
        if damage.is_some() && !self.epochs().await?.contains(&epoch) {
            return Ok(None);
        }
        Ok(Some((manifest, damage)))
    }

    /// Makes a checkpoint be there.
    ///
    /// # Errors
    /// The store's; `Taken` when the epoch has a manifest already.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.manifest_path(manifest.epoch);
        let bytes = Bytes::from(self.signing()?.sign(manifest.encode()));
        // A store's client tries again when an answer is lost, and then finds its own.
        if self.create(&path, bytes.clone()).await? || self.get(&path).await? == bytes {
            // Behind it: without a manifest nothing was committed, and the place is as good as new.
            if !self.marked.load(Ordering::Relaxed) {
                self.create(&self.path("made"), Bytes::new()).await?;
                self.marked.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        Err(self.taken_by_another().await)
    }

    /// The note with this name beside the checkpoints, as last written; `None` if there is none.
    ///
    /// # Errors
    /// The store's; `Untrusted`.
    pub async fn note(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let Some(bytes) = self.find(&self.path(&format!("notes/{name}"))).await? else { return Ok(None) };
        let opened = self.signing()?.open(&bytes).map_err(|reason| self.untrusted(format!("note {name}: {reason}")))?;
        Ok(Some(Bytes::copy_from_slice(opened)))
    }

    /// Writes a note beside the checkpoints, which belongs to no epoch; it replaces the one with this name.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_note(&self, name: &str, bytes: Vec<u8>) -> Result<(), StoreError> {
        let path = self.path(&format!("notes/{name}"));
        let bytes = Bytes::from(self.signing()?.sign(bytes));
        self.objects.put(&path, bytes.into()).await.map_err(|error| self.failed(error))?;
        self.sync(&path).await
    }

    /// Whether there has ever been a manifest.
    ///
    /// # Errors
    /// The store's.
    pub async fn had_checkpoints(&self) -> Result<bool, StoreError> {
        Ok(self.find(&self.path("made")).await?.is_some())
    }

    /// Writes what a copy has saved, parts one after the other, as one object. Returns where each lies.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_state(
        &self,
        file: String,
        parts: Vec<(PartKey, Bytes, bool)>,
    ) -> Result<Vec<(PartKey, PartEntry)>, StoreError> {
        let signing = self.signing()?;
        let mut entries = Vec::with_capacity(parts.len());
        let mut offset = 0;
        // Not put together: what does not fit in memory lies on disk until the store has it.
        let mut payload = Vec::new();
        for (key, part, whole) in parts {
            // The checksum is to be of what was saved, not of what a disk made of it since.
            verify(&part).map_err(|error| StoreError::Io { place: self.place.clone(), reason: error.to_string() })?;
            let (len, sum) = (part.len() as u64, signing.sum(&part));
            entries.push((key, PartEntry { file: file.clone(), offset, len, sum, whole }));
            offset += len;
            payload.extend((len > 0).then_some(part));
        }
        if !payload.is_empty() {
            let path = self.path(&file);
            // A file appears whole however long it takes to write.
            if self.folder.is_some() || offset <= upload::PART_BYTES {
                let payload = PutPayload::from_iter(payload);
                self.objects.put(&path, payload).await.map_err(|error| self.not_sent(&error))?;
                self.sync(&path).await?;
            } else {
                self.upload(&path, offset, stream::iter(payload.into_iter().map(Ok))).await?;
            }
        }
        Ok(entries)
    }

    /// Reads parts, in the order of `entries`, and checks them.
    ///
    /// # Errors
    /// The store's; `Damaged`, also when a part is not there.
    pub async fn parts(&self, entries: &[&PartEntry]) -> Result<Vec<Bytes>, StoreError> {
        let mut parts = vec![Bytes::new(); entries.len()];
        let take = |at: usize, bytes| {
            parts[at] = bytes;
            Ok(())
        };
        self.read(entries, take).await?;
        Ok(parts)
    }

    /// [`CheckpointStore::parts`], which may be more than fits in memory: then they lie in the spill directory.
    ///
    /// # Errors
    /// As there; the spill directory's.
    pub async fn parts_spillable(&self, entries: &[&PartEntry], governor: &Governor) -> Result<Vec<Bytes>, StoreError> {
        let bytes = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.len));
        if governor.settings().budget_bytes == 0 || bytes <= READ_BYTES_MAX {
            return self.parts(entries).await;
        }
        let mut places = vec![0..0; entries.len()];
        let failed = |error: BatchError| StoreError::Io { place: self.place.clone(), reason: error.to_string() };
        let mut writer = MapWriter::new(governor).map_err(failed)?;
        let take = |at: usize, bytes: Bytes| {
            let start = writer.len();
            writer.write(&bytes).map_err(failed)?;
            places[at] = start..writer.len();
            Ok(())
        };
        self.read(entries, take).await?;
        let all = writer.finish().map_err(failed)?;
        Ok(places.into_iter().map(|place| all.slice(place)).collect())
    }

    /// Reads parts, a few at a time, and checks them. `take` is given each with its place among `entries`; not those
    /// without bytes.
    async fn read(
        &self,
        entries: &[&PartEntry],
        mut take: impl FnMut(usize, Bytes) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let signing = self.signing()?;
        let files: BTreeSet<&str> = entries.iter().filter(|entry| entry.len > 0).map(|e| e.file.as_str()).collect();
        for file in files {
            // Stores refuse to read no bytes.
            let read = |at: &usize| entries[*at].file == file && entries[*at].len > 0;
            let of_file: Vec<usize> = (0..entries.len()).filter(read).collect();
            let mut left = of_file.as_slice();
            while !left.is_empty() {
                let mut bytes = 0_u64;
                let fits = |&&at: &&usize| {
                    let first = bytes == 0;
                    bytes = bytes.saturating_add(entries[at].len);
                    first || bytes <= READ_BYTES_MAX
                };
                let (together, others) = left.split_at(left.iter().take_while(fits).count());
                left = others;
                for (&at, bytes) in together.iter().zip(self.ranges(file, entries, together).await?) {
                    if bytes.len() as u64 != entries[at].len || signing.sum(&bytes) != entries[at].sum {
                        return Err(self.damaged(format!("{file} is damaged")));
                    }
                    take(at, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Reads some parts of one object.
    async fn ranges(&self, file: &str, entries: &[&PartEntry], wanted: &[usize]) -> Result<Vec<Bytes>, StoreError> {
        let range = |&at: &usize| entries[at].offset..entries[at].offset.saturating_add(entries[at].len);
        let ranges: Vec<_> = wanted.iter().map(range).collect();
        let path = self.path(file);
        match self.objects.get_ranges(&path, &ranges).await {
            Ok(found) => Ok(found),
            // A range that is not there is told in each store's own way; one that is shorter, by its length.
            Err(error) => {
                let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                let whole = self.objects.head(&path).await.map_or(true, |object| object.size >= end);
                Err(if whole { self.unreadable(error) } else { self.damaged(format!("{file} is truncated")) })
            }
        }
    }

    /// Removes all but the newest `keep` manifests that are whole, and what none of these refers to of `last` or
    /// before.
    ///
    /// # Errors
    /// The store's; what could be removed is.
    pub async fn prune(&self, keep: usize, last: u64) -> Result<(), StoreError> {
        let RestoreCandidates { mut manifests, damaged } = self.restore_candidates().await?;
        if manifests.is_empty() {
            // Nothing says what is needed.
            return Ok(());
        }
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

    /// An object's bytes; `None` when there is no such object.
    async fn find(&self, path: &Path) -> Result<Option<Bytes>, StoreError> {
        match self.objects.get(path).await {
            Ok(found) => found.bytes().await.map(Some).map_err(|error| self.unreadable(error)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn get(&self, path: &Path) -> Result<Bytes, StoreError> {
        self.find(path).await?.ok_or_else(|| self.damaged(format!("{path} is missing")))
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
        /// `ENOSPC` and `EDQUOT`: here an error of a file system is a text.
        const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];
        let mut reason = reason.to_string();
        if FULL.iter().any(|full| reason.contains(full)) {
            reason.push_str("; free space there, or keep fewer checkpoints");
        }
        StoreError::Io { place: self.place.clone(), reason }
    }

    /// Something that should be there could not be read.
    fn unreadable(&self, error: Error) -> StoreError {
        match error {
            Error::NotFound { .. } => self.damaged(error.to_string()),
            error => self.failed(error),
        }
    }

    /// A checkpoint here is not what was written, for this reason.
    pub fn damaged(&self, reason: String) -> StoreError {
        StoreError::Damaged { place: self.place.clone(), reason }
    }

    /// Another run has made what only one can make.
    async fn taken_by_another(&self) -> StoreError {
        // Not by the lease's own client, which is used within a runtime of its own.
        let by = match self.leases {
            Some(_) => held_by(&*self.objects, &self.path("lease")).await,
            None => String::new(),
        };
        self.taken(by)
    }

    fn signing(&self) -> Result<&SigningKey, StoreError> {
        self.signing.as_ref().map_err(|reason| self.failed(reason))
    }

    fn untrusted(&self, reason: String) -> StoreError {
        StoreError::Untrusted { place: self.place.clone(), reason }
    }

    fn taken(&self, by: String) -> StoreError {
        StoreError::Taken { place: self.place.clone(), by }
    }
}

mod export;
mod signing;
#[cfg(test)]
mod tests;
mod upload;
