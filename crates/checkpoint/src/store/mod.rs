//! Storage of checkpoints: a folder, or any object store.
//!
//! ```text
//! epochs/00000000000000000042            the manifest of epoch 42, which exists if and only if the checkpoint does
//! state/RUN/42-3-0                       what copy 0 of task 3 saved at epoch 42, its parts one after the other
//! claims/00000000000000000007            the claim of the seventh run
//! made                                   there was a manifest, so that a place that lost them does not count as new
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
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tidemill_batch::BatchError;
use tidemill_batch::memory::{Governor, MapWriter, verify};
use tidemill_storage::lease::ProcessIdentity;
use tidemill_storage::{ObjectStores, StorageError, StorageOptions, StoreLocation, local_path, redact_passwords};

use self::signing::SigningKey;
use crate::lease::{Lease, LeaseDenial, LeaseKey, LeaseView, held_by};
use crate::manifest::{Manifest, PartEntry, PartKey};

/// Maximum number of other runs' claims that a claim may collide with.
const CLAIMS_MAX: u64 = 100;
/// Maximum size of the file that names the holder of a lock.
const LOCK_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of parts that are read at once, unless a single one is larger.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Why checkpoints cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store failed or refused a request.
    #[error("checkpoints in {place}: {reason}")]
    Io {
        /// The place of the checkpoints.
        place: String,
        /// The store's message.
        reason: String,
    },
    /// A checkpoint, or part of one, differs from what was written, or is missing.
    #[error("checkpoints in {place}: {reason}")]
    Damaged {
        /// The place of the checkpoints.
        place: String,
        /// The problem.
        reason: String,
    },
    /// A checkpoint is not signed with the job's key, so it is not read any further.
    #[error("checkpoints in {place}: {reason}")]
    Untrusted {
        /// The place of the checkpoints.
        place: String,
        /// The problem.
        reason: String,
    },
    /// Another job holds the place, or has claimed it or written the epoch.
    #[error("checkpoints in {place}: another job writes there; each job needs a place of its own{}", held(.by))]
    Taken {
        /// The place of the checkpoints.
        place: String,
        /// Describes the other job; empty if it is not known.
        by: String,
    },
}

impl StoreError {
    /// The same error with a consequence appended.
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

/// The checkpoints of a job. Clones share the same place.
#[derive(Clone)]
pub struct CheckpointStore {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// A path or a URL, for messages.
    place: String,
    folder: Option<PathBuf>,
    /// The client for renewing the lease.
    leases: Option<Arc<dyn ObjectStore>>,
    /// Whether the note that a manifest has existed was written.
    marked: Arc<AtomicBool>,
    /// The key for signing manifests, or why it cannot be determined.
    signing: Result<SigningKey, String>,
}

impl std::fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CheckpointStore").field(&self.place).finish()
    }
}

/// Keeps other jobs out of a place, or tries to, until it is dropped or the process ends.
pub struct StoreHold(JobLock);

enum JobLock {
    Folder(#[expect(dead_code, reason = "the lock goes with the file")] File),
    Lease(Lease),
    /// There is no means to do so.
    Nothing,
}

impl StoreHold {
    /// Whether others are kept out from now on; `None` as long as this is not known.
    pub fn outcome(&self) -> Option<Result<(), LeaseDenial>> {
        match &self.0 {
            JobLock::Lease(lease) => lease.outcome(),
            JobLock::Folder(_) | JobLock::Nothing => Some(Ok(())),
        }
    }

    /// Why others cannot be kept out, if so.
    pub fn unconditional(&self) -> Option<String> {
        match &self.0 {
            JobLock::Lease(lease) => lease.unconditional(),
            JobLock::Folder(_) | JobLock::Nothing => None,
        }
    }

    /// The lease, if there is one, which may be lost.
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

/// The holder of a folder's lock, as stored in the file.
#[derive(serde::Serialize, serde::Deserialize)]
struct LockHolder {
    job: String,
    process: ProcessIdentity,
}

/// The checkpoints that a store can restore.
#[derive(Debug, Default)]
pub struct RestoreCandidates {
    /// The newest first: by claim, then by epoch.
    pub manifests: Vec<Manifest>,
    /// The epochs with a damaged manifest, and the problem.
    pub damaged: Vec<(u64, String)>,
}

impl RestoreCandidates {
    /// The newest epoch in use.
    pub fn epoch(&self) -> u64 {
        let whole = self.manifests.iter().map(|manifest| manifest.epoch);
        whole.chain(self.damaged.iter().map(|(epoch, _)| *epoch)).max().unwrap_or(0)
    }

    /// Whether there are no checkpoints.
    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.damaged.is_empty()
    }
}

/// A manifest, if it can be read, and the problem with it or with what it refers to.
pub type ManifestCheck = (Option<Manifest>, Option<StoreError>);

impl CheckpointStore {
    /// Opens a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// If the folder can be neither found nor created.
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

    /// Opens a folder, which is created if checkpoints are to be written, or the place of a URL.
    ///
    /// # Errors
    /// `Io` if it cannot be opened, if the store does not support conditional creation, or if it is the memory of one
    /// process; otherwise like [`ObjectStores::locate`].
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

    /// Uses an object store, under `prefix`; `url` is its name in messages.
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

    /// Keeps other jobs out with a lease, a small object that the job rewrites every three seconds. `client` must be a
    /// separate client of the same store, since it is used in a thread with its own runtime.
    #[must_use]
    pub fn with_leases(self, client: Arc<dyn ObjectStore>) -> Self {
        CheckpointStore { leases: Some(client), ..self }
    }

    /// The place, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Begins to keep others out for a run of `job` with the name `owner`. `wake` is called when [`StoreHold::outcome`]
    /// changes.
    ///
    /// # Errors
    /// `Taken` if another job holds the folder; errors of the lock or of starting a thread.
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
                // Only for messages, so errors are ignored; if the disk is full, other writes will report it.
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
    /// Those of the store.
    pub async fn epochs(&self) -> Result<Vec<u64>, StoreError> {
        self.numbers("epochs").await
    }

    /// Claims the place for a `run`. Returns the claim, which is higher than `known`, the highest of any manifest,
    /// because claims may have been lost while manifests were not.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn claim(&self, known: u64, run: &str) -> Result<u64, StoreError> {
        let claims = self.numbers("claims").await?;
        let next = claims.first().map_or(known, |&last| last.max(known)).saturating_add(1);
        // Another run may claim in between, but not this many times by chance.
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

    /// Checks that this is the place that worker 0 has claimed for the `run`: a folder of this name may be a different
    /// one on each host.
    ///
    /// # Errors
    /// Those of the store; `Taken`.
    pub async fn has_claim(&self, claim: u64, run: &str) -> Result<bool, StoreError> {
        if self.find(&self.claim_path(claim)).await?.is_some_and(|found| found == run.as_bytes()) {
            return Ok(true);
        }
        self.is_claimed(claim).await.map(|()| false)
    }

    /// Checks that no later run has claimed the place.
    ///
    /// # Errors
    /// Those of the store; `Taken`.
    pub async fn is_claimed(&self, claim: u64) -> Result<(), StoreError> {
        match self.numbers("claims").await?.first() {
            Some(&last) if last > claim => Err(self.taken_by_another().await),
            _ => Ok(()),
        }
    }

    /// Rewrites the manifest that the run with `claim` resumes from under its own claim, with a free epoch. Only then
    /// may its contents be committed: otherwise, a third run could resume from what a second still writes.
    ///
    /// # Errors
    /// Those of the store; `Taken`.
    pub async fn adopt(&self, manifest: Manifest, claim: u64, epoch: u64) -> Result<Manifest, StoreError> {
        let old = manifest.epoch;
        let manifest = Manifest { claim, epoch, ..manifest };
        self.replace(old, &manifest).await?;
        Ok(manifest)
    }

    /// Replaces a manifest, after everything that `sinks` had prepared at it was committed, by one without it. So a run
    /// that resumes from there need not have the same sinks. Returns the new one; `None` if they had prepared nothing.
    ///
    /// # Errors
    /// Those of the store; `Taken`. Afterwards the old or the new manifest exists, or both.
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

    /// Makes a manifest durable that replaces an equivalent older one, and deletes the latter so that only one counts
    /// among those retained.
    async fn replace(&self, old: u64, manifest: &Manifest) -> Result<(), StoreError> {
        self.make_durable(manifest).await?;
        self.delete(&self.manifest_path(old)).await
    }

    /// Writes a manifest. On success it is durable, which requires that no later run has started, since that one may
    /// not have seen it.
    ///
    /// # Errors
    /// Those of the store; `Taken`.
    pub async fn make_durable(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.put_manifest(manifest).await?;
        self.is_claimed(manifest.claim).await
    }

    /// The checkpoints that a run can resume from.
    ///
    /// # Errors
    /// Those of the store.
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
                    // It may be the newest: resuming without it would repeat rows that were already committed.
                    Err(error) => return Err(error),
                }
            }
            if missing {
                // Another run may have adopted and removed it. In this case, the new one is listed now, and refers to
                // everything that the old one did.
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
    /// Those of the store; `Damaged`.
    pub async fn manifest(&self, epoch: u64) -> Result<Manifest, StoreError> {
        let found = self.find_manifest(epoch).await?;
        found.ok_or_else(|| self.damaged(format!("epoch {epoch} is missing")))
    }

    /// The same; `None` if it does not exist.
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

    /// Verifies everything that a manifest refers to.
    ///
    /// # Errors
    /// Those of the store; an error if a part is damaged or missing.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries: Vec<&PartEntry> = manifest.entries().collect();
        self.read(&entries, |_, _| Ok(())).await
    }

    /// An epoch's manifest, and the problem with the checkpoint, for a list; with `whole`, everything it refers to is
    /// read. `None` if it was removed since it was listed, since a running job removes old checkpoints.
    ///
    /// # Errors
    /// Those of the store, if the epochs cannot be listed again.
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

    /// Creates the manifest, and with it the checkpoint.
    ///
    /// # Errors
    /// Those of the store; `Taken` if the epoch already has a manifest.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.manifest_path(manifest.epoch);
        let bytes = Bytes::from(self.signing()?.sign(manifest.encode()));
        // A store's client retries if a response is lost, and then finds its own object.
        if self.create(&path, bytes.clone()).await? || self.get(&path).await? == bytes {
            // Afterwards: without a manifest nothing was committed, and the place can still count as new.
            if !self.marked.load(Ordering::Relaxed) {
                self.create(&self.path("made"), Bytes::new()).await?;
                self.marked.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        Err(self.taken_by_another().await)
    }

    /// The note with this name next to the checkpoints, as last written; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store; `Untrusted`.
    pub async fn note(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let Some(bytes) = self.find(&self.path(&format!("notes/{name}"))).await? else { return Ok(None) };
        let opened = self.signing()?.open(&bytes).map_err(|reason| self.untrusted(format!("note {name}: {reason}")))?;
        Ok(Some(Bytes::copy_from_slice(opened)))
    }

    /// Writes a note next to the checkpoints, which belongs to no epoch and replaces the one with this name.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_note(&self, name: &str, bytes: Vec<u8>) -> Result<(), StoreError> {
        let path = self.path(&format!("notes/{name}"));
        let bytes = Bytes::from(self.signing()?.sign(bytes));
        self.objects.put(&path, bytes.into()).await.map_err(|error| self.failed(error))?;
        self.sync(&path).await
    }

    /// The names of all notes whose names begin with the folder `within`, in alphabetical order.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn note_names(&self, within: &str) -> Result<Vec<String>, StoreError> {
        let (notes, folder) = (self.path("notes"), self.path(&format!("notes/{within}")));
        let found: Vec<_> = self.objects.list(Some(&folder)).try_collect().await.map_err(|error| self.failed(error))?;
        let name = |object: &ObjectMeta| {
            let parts = object.location.prefix_match(&notes)?;
            Some(parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
        };
        let mut names: Vec<String> = found.iter().filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a note, if it is there.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_note(&self, name: &str) -> Result<(), StoreError> {
        self.delete(&self.path(&format!("notes/{name}"))).await
    }

    /// Whether there has ever been a manifest.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn had_checkpoints(&self) -> Result<bool, StoreError> {
        Ok(self.find(&self.path("made")).await?.is_some())
    }

    /// Writes the parts that a copy has saved, one after the other, as one object. Returns their locations.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_state(
        &self,
        file: String,
        parts: Vec<(PartKey, Bytes, bool)>,
    ) -> Result<Vec<(PartKey, PartEntry)>, StoreError> {
        let signing = self.signing()?;
        let mut entries = Vec::with_capacity(parts.len());
        let mut offset = 0;
        // Not concatenated: parts that do not fit in memory are on disk until the store has them.
        let mut payload = Vec::new();
        for (key, part, whole) in parts {
            // The checksum must cover what was saved, not what a disk may have made of it since.
            verify(&part).map_err(|error| StoreError::Io { place: self.place.clone(), reason: error.to_string() })?;
            let (len, sum) = (part.len() as u64, signing.sum(&part));
            entries.push((key, PartEntry { file: file.clone(), offset, len, sum, whole }));
            offset += len;
            payload.extend((len > 0).then_some(part));
        }
        if !payload.is_empty() {
            let path = self.path(&file);
            // A file appears at once, complete, however long it takes to write.
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

    /// Reads and checks parts, in the order of `entries`.
    ///
    /// # Errors
    /// Those of the store; `Damaged`, also if a part is missing.
    pub async fn parts(&self, entries: &[&PartEntry]) -> Result<Vec<Bytes>, StoreError> {
        let mut parts = vec![Bytes::new(); entries.len()];
        let take = |at: usize, bytes| {
            parts[at] = bytes;
            Ok(())
        };
        self.read(entries, take).await?;
        Ok(parts)
    }

    /// Like [`CheckpointStore::parts`], but in the spill directory if the parts may not fit in memory.
    ///
    /// # Errors
    /// The same, and those of the spill directory.
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

    /// Reads and checks parts, a few at a time. `take` gets each with its index in `entries`, except empty ones.
    async fn read(
        &self,
        entries: &[&PartEntry],
        mut take: impl FnMut(usize, Bytes) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let signing = self.signing()?;
        let files: BTreeSet<&str> = entries.iter().filter(|entry| entry.len > 0).map(|e| e.file.as_str()).collect();
        for file in files {
            // Stores reject reads of zero bytes.
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
            // Each store reports a missing range in its own way; a truncated object is recognized by its length.
            Err(error) => {
                let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                let whole = self.objects.head(&path).await.map_or(true, |object| object.size >= end);
                Err(if whole { self.unreadable(error) } else { self.damaged(format!("{file} is truncated")) })
            }
        }
    }

    /// Removes all valid manifests except the newest `keep`, and the objects up to epoch `last` that these do not refer
    /// to.
    ///
    /// # Errors
    /// Those of the store; whatever could be removed until then is gone.
    pub async fn prune(&self, keep: usize, last: u64) -> Result<(), StoreError> {
        let RestoreCandidates { mut manifests, damaged } = self.restore_candidates().await?;
        if manifests.is_empty() {
            // Without a manifest, it is not known what is needed.
            return Ok(());
        }
        let old = manifests.split_off(keep.max(1).min(manifests.len()));
        let needed: BTreeSet<&str> = manifests.iter().flat_map(Manifest::files).collect();
        let oldest = manifests.iter().map(|manifest| manifest.epoch).min().unwrap_or(0);
        // Damaged manifests are useless, but recent ones may still be of interest to somebody.
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

    /// The numbers in the names of objects of a kind, the highest first.
    async fn numbers(&self, kind: &str) -> Result<Vec<u64>, StoreError> {
        let found: Vec<_> =
            self.objects.list(Some(&self.path(kind))).try_collect().await.map_err(|e| self.failed(e))?;
        let mut numbers: Vec<u64> =
            found.iter().filter_map(|object| object.location.filename()?.parse().ok()).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Ok(numbers)
    }

    /// Creates an object. Returns false if it already exists.
    async fn create(&self, path: &Path, bytes: Bytes) -> Result<bool, StoreError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(path, bytes.into(), options).await {
            Ok(_) => self.sync(path).await.map(|()| true),
            Err(Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// An object's bytes; `None` if it does not exist.
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

    /// Syncs a file, which may so far be in memory only; objects in a store are already durable.
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
        /// `ENOSPC` and `EDQUOT`; here, errors of the file system are available only as text.
        const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];
        let mut reason = reason.to_string();
        if FULL.iter().any(|full| reason.contains(full)) {
            reason.push_str("; free space there, or keep fewer checkpoints");
        }
        StoreError::Io { place: self.place.clone(), reason }
    }

    /// An object that should exist could not be read.
    fn unreadable(&self, error: Error) -> StoreError {
        match error {
            Error::NotFound { .. } => self.damaged(error.to_string()),
            error => self.failed(error),
        }
    }

    /// An error that a checkpoint here differs from what was written, with this reason.
    pub fn damaged(&self, reason: String) -> StoreError {
        StoreError::Damaged { place: self.place.clone(), reason }
    }

    /// An error that another run has created an object that only one run can.
    async fn taken_by_another(&self) -> StoreError {
        // Not through the lease's own client, which is used only in its own runtime.
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
