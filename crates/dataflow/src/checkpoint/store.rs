//! Where checkpoints lie: a folder, or any object store.
//!
//! ```text
//! epochs/00000000000000000042            the manifest of epoch 42; it is there when the checkpoint is
//! state/RUN/42-3-0                       what copy 0 of task 3 saved at epoch 42, its parts one after the other
//! claims/00000000000000000007            a run has begun, the seventh that did
//! lock, or in an object store lease      whose place it is
//! ```
//!
//! One job at a time has the place: in a folder it holds a lock on a file, in an object store a `lease`. A second one is
//! refused. Should there be two all the same, where a store knows no conditions or somebody has removed the lease, the claims keep
//! checkpoints right:
//!
//! Of two runs that write to one place the later one is right: each makes a *claim* before it looks what is there, writes
//! manifests that say whose they are, and looks behind each whether there is a later claim before it takes it for durable.
//! So a run that was taken for dead either has written a manifest before its successor looked, which then goes on from it, or
//! finds the successor's claim, and ends; a manifest that it leaves behind comes before all of the successor's, whatever its
//! epoch, for the successor's first is the one that it goes on from, made its own. A manifest is created, never replaced. Objects are
//! removed when no manifest that is kept refers to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use twox_hash::XxHash3_64;

use super::lease::{Denied, Lease, LeaseView, Place, Process, held_by};
use super::manifest::{Entry, Key, Manifest};
use crate::error::DataflowError;
use crate::memory::{Governor, MapWriter, verify};

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
    /// Another job holds the place, or has claimed it or written the epoch.
    #[error("checkpoints in {place}: another job writes there; each job needs a place of its own{}", held(.by))]
    Taken {
        /// Where they lie.
        place: String,
        /// Which job, in words; nothing, if it is not known.
        by: String,
    },
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
}

impl std::fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CheckpointStore").field(&self.place).finish()
    }
}

/// What keeps other jobs out of a place, or tries to: until it is dropped, or the process ends.
pub(crate) enum Hold {
    Folder(#[expect(dead_code, reason = "the lock goes with the file")] File),
    Lease(Lease),
    /// There is nothing that could.
    Nothing,
}

impl Hold {
    /// Whether others are kept out from now on; `None` yet.
    pub(crate) fn outcome(&self) -> Option<Result<(), Denied>> {
        match self {
            Hold::Lease(lease) => lease.outcome(),
            Hold::Folder(_) | Hold::Nothing => Some(Ok(())),
        }
    }

    /// Why others are not kept out after all.
    pub(crate) fn unconditional(&self) -> Option<String> {
        match self {
            Hold::Lease(lease) => lease.unconditional(),
            Hold::Folder(_) | Hold::Nothing => None,
        }
    }

    /// The lease, where it may be lost.
    pub(crate) fn lease(&self) -> Option<LeaseView> {
        match self {
            Hold::Lease(lease) => Some(lease.view()),
            Hold::Folder(_) | Hold::Nothing => None,
        }
    }

    /// Lets the next job in.
    pub(crate) async fn give_back(self) {
        if let Hold::Lease(lease) = self {
            lease.give_back().await;
        }
    }
}

/// Who holds a folder's lock, as it lies in the file.
#[derive(serde::Serialize, serde::Deserialize)]
struct Holder {
    job: String,
    process: Process,
}

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

/// A manifest, if it can be read, and what is wrong with it or what it refers to.
pub type Look = (Option<Manifest>, Option<StoreError>);

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
            leases: None,
        })
    }

    /// In an object store, beneath `prefix`; `url` stands for it in messages.
    pub fn objects(objects: Arc<dyn ObjectStore>, prefix: Path, url: impl Into<String>) -> Self {
        CheckpointStore { objects, prefix, place: url.into(), folder: None, leases: None }
    }

    /// The same, in which a job keeps others out by a lease: a small object that it writes anew every three seconds. That is done by
    /// `client`, another one of the same store: it is used within a thread and a runtime of its own.
    #[must_use]
    pub fn with_leases(self, client: Arc<dyn ObjectStore>) -> Self {
        CheckpointStore { leases: Some(client), ..self }
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Begins to keep others out for a run of `job`, which `owner` names. [`Hold::outcome`] says what comes of it, and `wake` is called
    /// when that changes.
    ///
    /// # Errors
    /// `Taken` when another job holds the folder; when there cannot be a lock or a thread.
    pub(crate) fn hold(&self, job: &str, owner: &str, wake: impl Fn() + Send + 'static) -> Result<Hold, StoreError> {
        match (&self.folder, &self.leases) {
            (Some(folder), _) => self.lock(folder, job).map(Hold::Folder),
            (None, Some(client)) => {
                let place = Place { objects: Arc::clone(client), path: self.path("lease"), name: self.place.clone() };
                Lease::want(place, job, owner, wake).map(Hold::Lease).map_err(|reason| self.failed(reason))
            }
            (None, None) => Ok(Hold::Nothing),
        }
    }

    fn lock(&self, folder: &FilePath, job: &str) -> Result<File, StoreError> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(folder.join("lock"));
        let mut file = file.map_err(|error| self.failed(error))?;
        match file.try_lock() {
            Ok(()) => {
                let holder = Holder { job: job.into(), process: Process::this() };
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
                    |Holder { job, process }| format!("job \"{job}\", process {} on {}", process.pid, process.host),
                );
                Err(self.taken(holder))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    /// Why a run may not write, as an error of this store.
    pub(crate) fn denied(&self, denied: Denied) -> StoreError {
        match denied {
            Denied::Held(by) => self.taken(by),
            Denied::Failed(reason) => self.failed(reason),
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
        Err(self.taken_by_another().await)
    }

    /// Whether no later run has claimed the place.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub(crate) async fn is_claimed(&self, claim: u64) -> Result<(), StoreError> {
        match self.numbers("claims").await?.first() {
            Some(&last) if last > claim => Err(self.taken_by_another().await),
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
        self.replace(old, &manifest).await?;
        Ok(manifest)
    }

    /// Everything that `sinks` had prepared at a manifest is committed: makes one be there in its stead that has nothing of them. So
    /// whoever goes on from there need not have the same sinks. Returns it; `None` if they had prepared nothing.
    ///
    /// # Errors
    /// The store's; `Taken`. Then there is the one, or the other, or both.
    pub(crate) async fn settle(&self, manifest: &Manifest, sinks: &[String]) -> Result<Option<Manifest>, StoreError> {
        let mut settled = Manifest { epoch: manifest.epoch + 1, ..manifest.clone() };
        let of_sinks = settled.tasks.iter_mut().filter(|(name, _)| sinks.contains(name));
        let had: usize = of_sinks.map(|(_, state)| std::mem::take(&mut state.splits).len()).sum();
        if had == 0 {
            return Ok(None);
        }
        self.replace(manifest.epoch, &settled).await?;
        Ok(Some(settled))
    }

    /// Makes a manifest durable that says the same as an older one, which is not to count twice among those that are kept.
    async fn replace(&self, old: u64, manifest: &Manifest) -> Result<(), StoreError> {
        self.make_durable(manifest).await?;
        self.delete(&self.manifest_path(old)).await
    }

    /// Writes a manifest. If this succeeds it is durable: it counts only if no later run has begun, which may not have seen it.
    ///
    /// # Errors
    /// The store's; `Taken`.
    pub(crate) async fn make_durable(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.put_manifest(manifest).await?;
        self.is_claimed(manifest.claim).await
    }

    /// What there is to go on from.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn kept(&self) -> Result<Kept, StoreError> {
        let mut epochs = self.epochs().await?;
        loop {
            let mut kept = Kept::default();
            let mut missing = false;
            for &epoch in &epochs {
                match self.find_manifest(epoch).await {
                    Ok(Some(manifest)) => kept.manifests.push(manifest),
                    Ok(None) => {
                        missing = true;
                        kept.damaged.push((epoch, format!("epoch {epoch} is listed, and not there")));
                    }
                    Err(StoreError::Damaged { reason, .. }) => kept.damaged.push((epoch, reason)),
                    // It may be the newest: to go on without it would count again what has been counted.
                    Err(error) => return Err(error),
                }
            }
            if missing {
                // Another run may have made its own of one and removed it; then that is listed now, and all that the old one held is needed.
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
        found.ok_or_else(|| self.damaged(format!("epoch {epoch} is not there")))
    }

    /// The same; `None` when there is none.
    async fn find_manifest(&self, epoch: u64) -> Result<Option<Manifest>, StoreError> {
        let Some(bytes) = self.find(&self.manifest_path(epoch)).await? else { return Ok(None) };
        let manifest = Manifest::decode(&bytes).and_then(|manifest| match manifest.epoch == epoch {
            true => Ok(manifest),
            false => Err(format!("it is of epoch {}", manifest.epoch)),
        });
        manifest.map(Some).map_err(|reason| self.damaged(format!("epoch {epoch}: {reason}")))
    }

    /// Whether everything that a manifest refers to is there and as it was written.
    ///
    /// # Errors
    /// The store's; when a part is damaged or not there.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries: Vec<&Entry> = manifest.entries().collect();
        self.read(&entries, |_, _| Ok(())).await
    }

    /// An epoch's manifest, and what is wrong with the checkpoint, for a list; `whole` says that all it refers to is read. `None` for
    /// one that has gone since it was listed: a job that runs clears away what is old.
    ///
    /// # Errors
    /// The store's, when the epochs cannot be listed again.
    pub async fn look(&self, epoch: u64, whole: bool) -> Result<Option<Look>, StoreError> {
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
    pub(crate) async fn put_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.manifest_path(manifest.epoch);
        let bytes = Bytes::from(manifest.encode());
        // A store's client tries again when an answer is lost, and then finds its own.
        if self.create(&path, bytes.clone()).await? || self.get(&path).await? == bytes {
            return Ok(());
        }
        Err(self.taken_by_another().await)
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
        let mut entries = Vec::with_capacity(parts.len());
        let mut offset = 0;
        // Not put together: what does not fit in memory lies on disk until the store has it.
        let mut payload = Vec::new();
        for (key, part, whole) in parts {
            // The checksum is to be of what was saved, not of what a disk made of it since.
            verify(&part).map_err(|error| StoreError::Io { place: self.place.clone(), reason: error.to_string() })?;
            let (len, sum) = (part.len() as u64, XxHash3_64::oneshot(&part));
            entries.push((key, Entry { file: file.clone(), offset, len, sum, whole }));
            offset += len;
            payload.extend((len > 0).then_some(part));
        }
        if !payload.is_empty() {
            let path = self.path(&file);
            let payload = PutPayload::from_iter(payload);
            self.objects.put(&path, payload).await.map_err(|error| self.failed(error))?;
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
    pub(crate) async fn parts_within(&self, entries: &[&Entry], governor: &Governor) -> Result<Vec<Bytes>, StoreError> {
        let bytes = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.len));
        if governor.settings().budget_bytes == 0 || bytes <= READ_BYTES_MAX {
            return self.parts(entries).await;
        }
        let mut places = vec![0..0; entries.len()];
        let failed = |error: DataflowError| StoreError::Io { place: self.place.clone(), reason: error.to_string() };
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

    /// Reads parts, a few at a time, and checks them. `take` is given each with its place among `entries`; not those without bytes.
    async fn read(
        &self,
        entries: &[&Entry],
        mut take: impl FnMut(usize, Bytes) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
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
                    if bytes.len() as u64 != entries[at].len || XxHash3_64::oneshot(&bytes) != entries[at].sum {
                        return Err(self.damaged(format!("{file} is damaged")));
                    }
                    take(at, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Reads some parts of one object.
    async fn ranges(&self, file: &str, entries: &[&Entry], wanted: &[usize]) -> Result<Vec<Bytes>, StoreError> {
        let range = |&at: &usize| entries[at].offset..entries[at].offset.saturating_add(entries[at].len);
        let ranges: Vec<_> = wanted.iter().map(range).collect();
        let path = self.path(file);
        match self.objects.get_ranges(&path, &ranges).await {
            Ok(found) => Ok(found),
            // A range that is not there is told in each store's own way; one that is shorter, by its length.
            Err(error) => {
                let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                let whole = self.objects.head(&path).await.map_or(true, |object| object.size >= end);
                Err(if whole { self.unreadable(error) } else { self.damaged(format!("{file} is cut short")) })
            }
        }
    }

    /// Removes all but the newest `keep` manifests that are whole, and what none of these refers to of `last` or before.
    ///
    /// # Errors
    /// The store's; what could be removed is.
    pub(crate) async fn prune(&self, keep: usize, last: u64) -> Result<(), StoreError> {
        let Kept { mut manifests, damaged } = self.kept().await?;
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
        self.find(path).await?.ok_or_else(|| self.damaged(format!("{path} is not there")))
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

    pub(crate) fn damaged(&self, reason: String) -> StoreError {
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

    fn taken(&self, by: String) -> StoreError {
        StoreError::Taken { place: self.place.clone(), by }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::future::Future;
    use std::ops::Range;
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures_util::stream::BoxStream;
    use object_store::memory::InMemory;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutPayload,
        PutResult, Result as StoreResult,
    };
    use parking_lot::Mutex;
    use tempfile::TempDir;

    use super::super::manifest::TaskState;
    use super::*;

    fn wait<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    /// Both kinds; the folder goes with its guard.
    fn stores() -> Vec<(CheckpointStore, Option<TempDir>)> {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = CheckpointStore::folder(folder.path().join("new")).unwrap();
        let in_memory = CheckpointStore::objects(Arc::new(InMemory::new()), Path::from("some/job"), "memory");
        vec![(in_folder, Some(folder)), (in_memory, None)]
    }

    fn manifest(claim: u64, epoch: u64, parts: Vec<(Key, Entry)>) -> Manifest {
        let mut task = TaskState { copies: 1, ..TaskState::default() };
        task.apply(0, parts);
        Manifest { job: "job".into(), claim, epoch, at_ms: 7, finished: false, tasks: [("count".into(), task)].into() }
    }

    fn bucket(bucket: u32, bytes: &[u8]) -> (Key, Bytes, bool) {
        (Key::Bucket(bucket), Bytes::copy_from_slice(bytes), true)
    }

    async fn save(store: &CheckpointStore, claim: u64, epoch: u64) -> Result<Manifest, StoreError> {
        let file = format!("state/run{claim}/{epoch}-0-0");
        let parts = store.put_state(file, vec![bucket(1, &[epoch as u8; 9]), bucket(2, &[])]).await?;
        let manifest = manifest(claim, epoch, parts);
        store.put_manifest(&manifest).await?;
        Ok(manifest)
    }

    async fn objects(store: &CheckpointStore, kind: &str) -> Vec<String> {
        let found: Vec<_> = store.objects.list(Some(&store.path(kind))).try_collect().await.unwrap();
        let mut names: Vec<_> = found.iter().map(|object| object.location.filename().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    fn epochs(kept: &Kept) -> Vec<(u64, u64)> {
        kept.manifests.iter().map(|manifest| (manifest.claim, manifest.epoch)).collect()
    }

    /// A manifest that was replaced, or an older one that came first, would be a job that goes on from elsewhere.
    #[test]
    fn manifests_are_created_and_the_newest_comes_first() {
        for (store, _folder) in stores() {
            wait(async {
                assert!(store.kept().await.unwrap().is_empty());
                for (claim, epoch) in [(1, 9), (2, 3), (1, 10), (2, 4)] {
                    save(&store, claim, epoch).await.unwrap();
                }
                assert_eq!(store.epochs().await.unwrap(), [10, 9, 4, 3]);
                let kept = store.kept().await.unwrap();
                assert_eq!((epochs(&kept), kept.epoch()), (vec![(2, 4), (2, 3), (1, 10), (1, 9)], 10));
                assert_eq!(store.manifest(4).await.unwrap(), kept.manifests[0]);

                store.put_manifest(&kept.manifests[0]).await.expect("the same again: the first answer was lost");
                let other = store.put_manifest(&manifest(2, 10, Vec::new())).await;
                assert!(matches!(other, Err(StoreError::Taken { .. })), "{other:?}");
                assert_eq!(store.manifest(10).await.unwrap(), kept.manifests[2]);

                let bytes = manifest(9, 9, Vec::new()).encode();
                for (epoch, bytes) in [(11, &bytes[..20]), (12, &bytes[..])] {
                    store.objects.put(&store.manifest_path(epoch), bytes.to_vec().into()).await.unwrap();
                }
                let kept = store.kept().await.unwrap();
                assert_eq!((epochs(&kept).len(), kept.damaged.len(), kept.epoch()), (4, 2, 12));
            });
        }
    }

    /// A checkpoint that a running job has cleared away while it was looked at would be told as damaged, and one that is damaged
    /// not at all.
    #[test]
    fn what_has_gone_is_not_damaged() {
        for (store, _folder) in stores() {
            wait(async {
                for epoch in 1..=3 {
                    save(&store, 1, epoch).await.unwrap();
                }
                let listed = store.epochs().await.unwrap();
                store.prune(2, 3).await.unwrap();
                store.objects.delete(&store.path("state/run1/2-0-0")).await.unwrap();
                store.objects.put(&store.manifest_path(4), b"cut".to_vec().into()).await.unwrap();
                let mut told = Vec::new();
                for &epoch in listed.iter().chain(&[4]) {
                    for whole in [true, false] {
                        let look = store.look(epoch, whole).await.unwrap();
                        told.push(look.map(|(manifest, damage)| (manifest.is_some(), damage.is_some())));
                    }
                }
                let (fine, damaged, gone) = (Some((true, false)), Some((true, true)), None);
                assert_eq!(told, [fine, fine, damaged, fine, gone, gone, Some((false, true)), Some((false, true))]);
            });
        }
    }

    /// Of two runs that both believe to be alone each would commit what the other counts, too.
    #[test]
    fn a_later_claim_ends_an_earlier_run() {
        for (store, _folder) in stores() {
            wait(async {
                let taken = |result| matches!(result, Err(StoreError::Taken { .. }));
                let first = store.claim(0).await.unwrap();
                save(&store, first, 5).await.unwrap();
                store.is_claimed(first).await.unwrap();
                let second = store.claim(first).await.unwrap();
                assert!(second > first && taken(store.is_claimed(first).await));
                store.is_claimed(second).await.unwrap();

                let found = store.kept().await.unwrap().manifests.remove(0);
                let own = store.adopt(found.clone(), second, 6).await.unwrap();
                assert_eq!((own.claim, own.epoch, &own.tasks), (second, 6, &found.tasks));
                save(&store, first, 7).await.unwrap();
                assert_eq!(epochs(&store.kept().await.unwrap()), [(second, 6), (first, 7)], "what it leaves is older");
                assert!(taken(store.adopt(found, first, 8).await.map(drop)));

                assert_eq!(store.claim(40).await.unwrap(), 41, "claims may be lost where manifests are not");
                assert_eq!(objects(&store, "claims").await.len(), 1);
            });
        }
    }

    /// What is cleared away too early is a checkpoint that cannot be gone on from; what never is fills the disk.
    #[test]
    fn pruning_keeps_what_is_needed() {
        for (store, _folder) in stores() {
            wait(async {
                let old = save(&store, 1, 1).await.unwrap();
                save(&store, 1, 2).await.unwrap();
                // Epoch 3 builds on 1; 4 was never made; 5 is under way.
                let mut parts = store.put_state("state/run1/3-0-0".into(), vec![bucket(8, b"three")]).await.unwrap();
                parts.extend(old.tasks["count"].buckets[&1].iter().map(|entry| (Key::Bucket(1), entry.clone())));
                store.put_manifest(&manifest(1, 3, parts)).await.unwrap();
                for file in ["state/run0/2-0-0", "state/run1/4-0-0", "state/run1/5-0-0-end"] {
                    store.put_state(file.into(), vec![bucket(3, b"new")]).await.unwrap();
                }
                store.objects.put(&store.manifest_path(4), "damaged".into()).await.unwrap();

                store.prune(1, 4).await.unwrap();
                assert_eq!(store.epochs().await.unwrap(), [4, 3], "one that is damaged does not count");
                assert_eq!(objects(&store, "state").await, ["1-0-0", "3-0-0", "5-0-0-end"]);
                let kept = store.manifest(3).await.unwrap();
                let parts = store.parts(&kept.tasks["count"].buckets[&1].iter().collect::<Vec<_>>()).await.unwrap();
                assert_eq!(parts, [Bytes::copy_from_slice(&[1; 9])]);

                save(&store, 1, 6).await.unwrap();
                store.prune(1, 6).await.unwrap();
                assert_eq!(
                    (store.epochs().await.unwrap(), objects(&store, "state").await),
                    (vec![6], vec!["6-0-0".into()])
                );
            });
        }
    }

    /// State that is not what was saved would be counted on.
    #[test]
    fn damaged_state_is_noticed() {
        for (store, _folder) in stores() {
            wait(async {
                let parts = vec![bucket(1, b"one"), bucket(2, b""), bucket(3, b"three")];
                let entries = store.put_state("state/run/1-0-0".into(), parts).await.unwrap();
                let entries: Vec<&Entry> = entries.iter().map(|(_, entry)| entry).collect();
                assert_eq!(store.parts(&entries).await.unwrap(), ["one", "", "three"].map(Bytes::from));
                let path = store.path("state/run/1-0-0");
                for bytes in ["onethre", "one", "onetHree", "oneandtwo"] {
                    store.objects.put(&path, bytes.into()).await.unwrap();
                    let read = store.parts(&entries).await;
                    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{bytes}: {read:?}");
                }
                store.objects.delete(&path).await.unwrap();
                assert!(matches!(store.parts(&entries).await, Err(StoreError::Damaged { .. })));
                assert!(matches!(store.manifest(1).await, Err(StoreError::Damaged { .. })));
            });
        }
    }

    /// Two jobs in one folder; or a folder that stays locked when its job is gone; or one whose holder nobody can find.
    #[test]
    fn a_folder_is_for_one_job() {
        let stores = stores();
        let (folder, memory) = (&stores[0].0, &stores[1].0);
        let hold = |store: &CheckpointStore, job| store.hold(job, "run", || {});
        let lock = hold(folder, "first").unwrap();
        assert_eq!(lock.outcome(), Some(Ok(())));
        match hold(folder, "second").map(|_| ()) {
            Err(StoreError::Taken { by, .. }) => {
                assert!(by.starts_with(&format!("job \"first\", process {} on ", std::process::id())), "{by}");
            }
            other => panic!("{other:?}"),
        }
        drop(lock);
        drop(hold(folder, "a third, whose name is longer").unwrap());
        let lock = hold(folder, "4").unwrap();
        assert!(hold(folder, "second").is_err_and(|error| error.to_string().contains("job \"4\", process")));
        drop(lock);
        assert!(
            matches!(hold(memory, "first"), Ok(Hold::Nothing)) && matches!(hold(memory, "second"), Ok(Hold::Nothing))
        );
    }

    type Work = Box<dyn FnOnce() + Send>;

    /// A store in memory that, when its fuse has burnt down, first has some work done, once, or refuses what it is asked, and everything after.
    struct Refusing {
        inner: Arc<InMemory>,
        left: AtomicI64,
        meanwhile: Mutex<Option<Work>>,
    }

    impl Refusing {
        fn new(fuse: i64) -> Self {
            Refusing { inner: Arc::new(InMemory::new()), left: AtomicI64::new(fuse), meanwhile: Mutex::default() }
        }

        fn ask(&self) -> StoreResult<()> {
            if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
                return Ok(());
            }
            if let Some(work) = self.meanwhile.lock().take() {
                self.left.store(i64::MAX, Ordering::SeqCst);
                // It waits by a runtime of its own, which there cannot be within another one.
                std::thread::spawn(work).join().unwrap();
                return Ok(());
            }
            Err(Error::Generic { store: "refusing", source: "the fuse has burnt down".into() })
        }
    }

    impl fmt::Debug for Refusing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Refusing").finish_non_exhaustive()
        }
    }

    impl fmt::Display for Refusing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("refusing")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for Refusing {
        async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
            self.ask()?;
            self.inner.put_opts(at, bytes, options).await
        }

        async fn put_multipart_opts(
            &self,
            at: &Path,
            options: PutMultipartOptions,
        ) -> StoreResult<Box<dyn MultipartUpload>> {
            self.inner.put_multipart_opts(at, options).await
        }

        async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
            self.ask()?;
            self.inner.get_opts(at, options).await
        }

        async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
            self.ask()?;
            self.inner.get_ranges(at, ranges).await
        }

        fn delete_stream(&self, paths: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
            match self.ask() {
                Ok(()) => self.inner.delete_stream(paths),
                Err(error) => Box::pin(futures_util::stream::once(async { Err(error) })),
            }
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
            match self.ask() {
                Ok(()) => self.inner.list(prefix),
                Err(error) => Box::pin(futures_util::stream::once(async { Err(error) })),
            }
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
            self.inner.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
            self.inner.copy_opts(from, to, options).await
        }
    }

    /// A manifest that cannot be read just now is not damaged. Wherever a store stops answering, in the middle of clearing
    /// away too, the newest checkpoint that was made is whole, and the next run finds it.
    #[test]
    fn whenever_the_store_refuses_the_newest_checkpoint_is_whole() {
        for fuse in 0.. {
            let refusing = Arc::new(Refusing::new(fuse));
            let store = CheckpointStore::objects(Arc::clone(&refusing) as _, Path::from("job"), "refusing");
            let mut made = 0;
            let work = async {
                for claim in 1..=2 {
                    let claim = store.claim(claim - 1).await?;
                    if let Some(found) = store.kept().await?.manifests.into_iter().next() {
                        made = store.adopt(found, claim, made + 1).await?.epoch;
                    }
                    for _ in 0..3 {
                        made = save(&store, claim, made + 1).await?.epoch;
                        store.prune(2, made).await?;
                    }
                }
                Ok::<(), StoreError>(())
            };
            let result = wait(work);
            assert!(matches!(result, Ok(()) | Err(StoreError::Io { .. })), "{result:?}");
            refusing.left.store(i64::MAX, Ordering::SeqCst);
            wait(async {
                let kept = store.kept().await.unwrap();
                assert_eq!(kept.damaged, []);
                assert!(kept.epoch() >= made, "epoch {made} was made, {} is there", kept.epoch());
                for manifest in kept.manifests.iter().take(2) {
                    let entries: Vec<&Entry> = manifest.tasks["count"].buckets.values().flatten().collect();
                    store.parts(&entries).await.unwrap();
                }
            });
            if result.is_ok() {
                assert!(fuse > 40, "the fuse never burnt down in the middle");
                return;
            }
        }
    }

    /// A run that stood still while it cleared away, at whatever moment, and was taken for dead, must not remove what the next one goes on
    /// from: it looks for what is needed while that one makes it its own.
    #[test]
    fn whoever_clears_away_late_leaves_what_others_need() {
        for pruned in [false, true] {
            for moment in 0.. {
                let slow = Arc::new(Refusing::new(i64::MAX));
                let store = CheckpointStore::objects(Arc::clone(&slow) as _, Path::from("job"), "slow");
                let next = CheckpointStore::objects(Arc::clone(&slow.inner) as _, Path::from("job"), "next");
                wait(async {
                    let claim = store.claim(0).await.unwrap();
                    save(&store, claim, 1).await.unwrap();
                    save(&store, claim, 2).await.unwrap();
                    let takes_over = async move {
                        let claim = next.claim(claim).await.unwrap();
                        let found = next.kept().await.unwrap().manifests.remove(0);
                        let own = next.adopt(found, claim, 3).await.unwrap();
                        if pruned {
                            // A part of what it has begun with is as it was.
                            let mut parts =
                                next.put_state("state/run2/4-0-0".into(), vec![bucket(8, b"four")]).await.unwrap();
                            let kept = own.tasks["count"].buckets[&1].iter();
                            parts.extend(kept.map(|entry| (Key::Bucket(1), entry.clone())));
                            next.put_manifest(&manifest(claim, 4, parts)).await.unwrap();
                            next.prune(1, 4).await.unwrap();
                        }
                    };
                    *slow.meanwhile.lock() = Some(Box::new(|| wait(takes_over)));
                    slow.left.store(moment, Ordering::SeqCst);
                    store.prune(1, 2).await.unwrap();
                });
                if slow.meanwhile.lock().is_some() {
                    assert!(moment > 5, "clearing away was over before another run came");
                    break;
                }
                wait(async {
                    let kept = store.kept().await.unwrap();
                    assert_eq!(kept.manifests[0].epoch, if pruned { 4 } else { 3 });
                    store.verify(&kept.manifests[0]).await.unwrap_or_else(|error| panic!("moment {moment}: {error}"));
                });
            }
        }
    }
}
