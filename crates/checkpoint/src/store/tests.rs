//! The store under failures: requests that fail, concurrent requests, and missing objects.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutPayload,
    PutResult, Result as StoreResult, UploadPart,
};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;
use crate::manifest::TaskState;

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Both kinds of stores; the folder is deleted with its guard.
fn stores() -> Vec<(CheckpointStore, Option<TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = CheckpointStore::folder(folder.path().join("new")).unwrap();
    let in_memory = CheckpointStore::objects(Arc::new(InMemory::new()), Path::from("some/job"), "memory");
    vec![(in_folder, Some(folder)), (in_memory, None)]
}

fn manifest(claim: u64, epoch: u64, parts: Vec<(PartKey, PartEntry)>) -> Manifest {
    let mut task = TaskState { copies: 1, ..TaskState::default() };
    task.apply(0, parts);
    let (spares, tasks) = (BTreeSet::new(), [("count".into(), task)].into());
    Manifest { job: "job".into(), claim, epoch, at_ms: 7, finished: false, spares, tasks }
}

fn bucket(bucket: u32, bytes: &[u8]) -> (PartKey, Bytes, bool) {
    (PartKey::Bucket(bucket), Bytes::copy_from_slice(bytes), true)
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

fn epochs(kept: &RestoreCandidates) -> Vec<(u64, u64)> {
    kept.manifests.iter().map(|manifest| (manifest.claim, manifest.epoch)).collect()
}

/// If a manifest were replaced, or an older one came first, the job would resume from the wrong state.
#[test]
fn manifests_are_created_and_the_newest_comes_first() {
    for (store, _folder) in stores() {
        wait(async {
            assert!(store.restore_candidates().await.unwrap().is_empty());
            for (claim, epoch) in [(1, 9), (2, 3), (1, 10), (2, 4)] {
                save(&store, claim, epoch).await.unwrap();
            }
            assert_eq!(store.epochs().await.unwrap(), [10, 9, 4, 3]);
            let kept = store.restore_candidates().await.unwrap();
            assert_eq!((epochs(&kept), kept.epoch()), (vec![(2, 4), (2, 3), (1, 10), (1, 9)], 10));
            assert_eq!(store.manifest(4).await.unwrap(), kept.manifests[0]);

            store.put_manifest(&kept.manifests[0]).await.expect("a retry after a lost response");
            let other = store.put_manifest(&manifest(2, 10, Vec::new())).await;
            assert!(matches!(other, Err(StoreError::Taken { .. })), "{other:?}");
            assert_eq!(store.manifest(10).await.unwrap(), kept.manifests[2]);

            let bytes = manifest(9, 9, Vec::new()).encode();
            for (epoch, bytes) in [(11, &bytes[..20]), (12, &bytes[..])] {
                store.objects.put(&store.manifest_path(epoch), bytes.to_vec().into()).await.unwrap();
            }
            let kept = store.restore_candidates().await.unwrap();
            assert_eq!((epochs(&kept).len(), kept.damaged.len(), kept.epoch()), (4, 2, 12));
        });
    }
}

/// A checkpoint that a running job removes while it is read must not be reported as damaged, but damaged ones must.
#[test]
fn removed_checkpoints_are_not_damaged() {
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
                    let look = store.inspect(epoch, whole).await.unwrap();
                    told.push(look.map(|(manifest, damage)| (manifest.is_some(), damage.is_some())));
                }
            }
            let (fine, damaged, gone) = (Some((true, false)), Some((true, true)), None);
            assert_eq!(told, [fine, fine, damaged, fine, gone, gone, Some((false, true)), Some((false, true))]);
        });
    }
}

/// If two runs both believe to be alone, each would commit what the other counts, too.
#[test]
fn a_later_claim_ends_an_earlier_run() {
    for (store, _folder) in stores() {
        wait(async {
            let taken = |result| matches!(result, Err(StoreError::Taken { .. }));
            let first = store.claim(0, "run").await.unwrap();
            save(&store, first, 5).await.unwrap();
            store.is_claimed(first).await.unwrap();
            let second = store.claim(first, "run").await.unwrap();
            assert!(second > first && taken(store.is_claimed(first).await));
            assert!(
                store.has_claim(second, "run").await.unwrap() && taken(store.has_claim(first, "run").await.map(drop))
            );
            assert!(!store.has_claim(second, "another run").await.unwrap(), "a folder of another host");
            store.is_claimed(second).await.unwrap();

            let found = store.restore_candidates().await.unwrap().manifests.remove(0);
            let own = store.adopt(found.clone(), second, 6).await.unwrap();
            assert_eq!((own.claim, own.epoch, &own.tasks), (second, 6, &found.tasks));
            save(&store, first, 7).await.unwrap();
            assert_eq!(
                epochs(&store.restore_candidates().await.unwrap()),
                [(second, 6), (first, 7)],
                "what it leaves behind is older"
            );
            assert!(taken(store.adopt(found, first, 8).await.map(drop)));

            assert_eq!(store.claim(40, "run").await.unwrap(), 41, "claims may be lost while manifests are not");
            assert_eq!(objects(&store, "claims").await.len(), 1);
        });
    }
}

/// Removing too much makes a checkpoint unusable; removing too little fills the disk.
#[test]
fn pruning_keeps_what_is_needed() {
    for (store, _folder) in stores() {
        wait(async {
            let old = save(&store, 1, 1).await.unwrap();
            save(&store, 1, 2).await.unwrap();
            // Epoch 3 builds on 1; 4 was never completed; 5 is in progress.
            let mut parts = store.put_state("state/run1/3-0-0".into(), vec![bucket(8, b"three")]).await.unwrap();
            parts.extend(old.tasks["count"].buckets[&1].iter().map(|entry| (PartKey::Bucket(1), entry.clone())));
            store.put_manifest(&manifest(1, 3, parts)).await.unwrap();
            for file in ["state/run0/2-0-0", "state/run1/4-0-0", "state/run1/5-0-0-end"] {
                store.put_state(file.into(), vec![bucket(3, b"new")]).await.unwrap();
            }
            store.objects.put(&store.manifest_path(4), "damaged".into()).await.unwrap();

            store.prune(1, 4).await.unwrap();
            assert_eq!(store.epochs().await.unwrap(), [4, 3], "a damaged one does not count");
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

/// Damaged state must not be used.
#[test]
fn damaged_state_is_noticed() {
    for (store, _folder) in stores() {
        wait(async {
            let parts = vec![bucket(1, b"one"), bucket(2, b""), bucket(3, b"three")];
            let entries = store.put_state("state/run/1-0-0".into(), parts).await.unwrap();
            let entries: Vec<&PartEntry> = entries.iter().map(|(_, entry)| entry).collect();
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

/// Two jobs must not use one folder, a folder must not stay locked after its job, and its holder must be named.
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
        matches!(hold(memory, "first"), Ok(StoreHold(JobLock::Nothing)))
            && matches!(hold(memory, "second"), Ok(StoreHold(JobLock::Nothing)))
    );
}

type Work = Box<dyn FnOnce() + Send>;

/// An in-memory store. After a number of requests (its fuse), it runs some work once, or refuses this and all later
/// requests.
struct Refusing {
    inner: Arc<InMemory>,
    left: AtomicI64,
    meanwhile: Mutex<Option<Work>>,
    uploads: Arc<Uploads>,
}

/// Uploads in parts, which [`Refusing::ask`] does not count.
#[derive(Debug)]
struct Uploads {
    /// The number of requests that are granted: one for each part, and one to complete.
    left: AtomicI64,
    aborted: AtomicI64,
}

#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    uploads: Arc<Uploads>,
}

impl Uploads {
    fn ask(&self) -> StoreResult<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        let late = Late(std::io::Error::other("operation timed out"));
        Err(Error::Generic { store: "refusing", source: Box::new(late) })
    }
}

/// In the form in which the stores' client reports it: not in the first line.
#[derive(Debug, thiserror::Error)]
#[error("error sending request")]
struct Late(#[source] std::io::Error);

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.uploads.ask() {
            Ok(()) => self.inner.put_part(data),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Succeeds even if the response is lost.
    async fn complete(&mut self) -> StoreResult<PutResult> {
        let done = self.inner.complete().await?;
        self.uploads.ask().map(|()| done)
    }

    async fn abort(&mut self) -> StoreResult<()> {
        self.uploads.aborted.fetch_add(1, Ordering::SeqCst);
        self.inner.abort().await
    }
}

impl Refusing {
    fn new(fuse: i64) -> Self {
        let uploads = Arc::new(Uploads { left: AtomicI64::new(i64::MAX), aborted: AtomicI64::new(0) });
        Refusing { inner: Arc::new(InMemory::new()), left: AtomicI64::new(fuse), meanwhile: Mutex::default(), uploads }
    }

    fn ask(&self) -> StoreResult<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        if let Some(work) = self.meanwhile.lock().take() {
            self.left.store(i64::MAX, Ordering::SeqCst);
            // It blocks on its own runtime, which is not possible within another one.
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
        let inner = self.inner.put_multipart_opts(at, options).await?;
        Ok(Box::new(Upload { inner, uploads: Arc::clone(&self.uploads) }))
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

/// A manifest that cannot be read at the moment is not damaged. Wherever the store stops responding, even during
/// pruning, the newest completed checkpoint is intact, and the next run finds it.
#[test]
fn the_newest_checkpoint_survives_a_failing_store() {
    for fuse in 0.. {
        let refusing = Arc::new(Refusing::new(fuse));
        let store = CheckpointStore::objects(Arc::clone(&refusing) as _, Path::from("job"), "refusing");
        let mut made = 0;
        let work = async {
            for claim in 1..=2 {
                let claim = store.claim(claim - 1, "run").await?;
                if let Some(found) = store.restore_candidates().await?.manifests.into_iter().next() {
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
            let kept = store.restore_candidates().await.unwrap();
            assert_eq!(kept.damaged, []);
            assert!(kept.epoch() >= made, "epoch {made} was made, {} is there", kept.epoch());
            for manifest in kept.manifests.iter().take(2) {
                let entries: Vec<&PartEntry> = manifest.tasks["count"].buckets.values().flatten().collect();
                store.parts(&entries).await.unwrap();
            }
        });
        if result.is_ok() {
            assert!(fuse > 40, "the fuse never burnt down in the middle");
            return;
        }
    }
}

/// A run that stops at any point of pruning, and is presumed dead, must not remove what the next one resumes from when
/// it continues: it must find what is needed while the next run adopts it.
#[test]
fn late_pruning_keeps_what_others_need() {
    for pruned in [false, true] {
        for moment in 0.. {
            let slow = Arc::new(Refusing::new(i64::MAX));
            let store = CheckpointStore::objects(Arc::clone(&slow) as _, Path::from("job"), "slow");
            let next = CheckpointStore::objects(Arc::clone(&slow.inner) as _, Path::from("job"), "next");
            wait(async {
                let claim = store.claim(0, "run").await.unwrap();
                save(&store, claim, 1).await.unwrap();
                save(&store, claim, 2).await.unwrap();
                let takes_over = async move {
                    let claim = next.claim(claim, "run").await.unwrap();
                    let found = next.restore_candidates().await.unwrap().manifests.remove(0);
                    let own = next.adopt(found, claim, 3).await.unwrap();
                    if pruned {
                        // One part remains from the beginning.
                        let mut parts =
                            next.put_state("state/run2/4-0-0".into(), vec![bucket(8, b"four")]).await.unwrap();
                        let kept = own.tasks["count"].buckets[&1].iter();
                        parts.extend(kept.map(|entry| (PartKey::Bucket(1), entry.clone())));
                        next.put_manifest(&manifest(claim, 4, parts)).await.unwrap();
                        next.prune(1, 4).await.unwrap();
                    }
                };
                *slow.meanwhile.lock() = Some(Box::new(|| wait(takes_over)));
                slow.left.store(moment, Ordering::SeqCst);
                store.prune(1, 2).await.unwrap();
            });
            if slow.meanwhile.lock().is_some() {
                assert!(moment > 5, "pruning ended before another run started");
                break;
            }
            wait(async {
                let kept = store.restore_candidates().await.unwrap();
                assert_eq!(kept.manifests[0].epoch, if pruned { 4 } else { 3 });
                store.verify(&kept.manifests[0]).await.unwrap_or_else(|error| panic!("moment {moment}: {error}"));
            });
        }
    }
}

/// A copy is independent of the place it came from, and a run can resume from it.
#[test]
fn copies_stand_alone() {
    for ((store, _folder), (other, _other)) in stores().into_iter().zip(stores().into_iter().rev()) {
        wait(async {
            let none = store.copy(None, &other).await.unwrap_err().to_string();
            assert!(none.contains("it has no checkpoint to copy"), "{none}");
            let old = save(&store, 1, 4).await.unwrap();
            let new = save(&store, 2, 3).await.unwrap();
            assert_eq!(store.copy(None, &other).await.unwrap(), new);
            let full = store.copy(Some(4), &other).await.unwrap_err().to_string();
            assert!(full.contains("it already has checkpoints"), "{full}");
            assert_eq!(
                (objects(&other, "epochs").await.len(), objects(&other, "state").await),
                (1, vec!["3-0-0".into()])
            );

            for manifest in [&old, &new] {
                for file in manifest.files() {
                    store.delete(&store.path(file)).await.unwrap();
                }
            }
            let kept = other.restore_candidates().await.unwrap();
            assert_eq!(epochs(&kept), [(2, 3)]);
            other.verify(&kept.manifests[0]).await.unwrap();
            assert_eq!(other.claim(kept.manifests[0].claim, "run3").await.unwrap(), 3);
        });
    }
}

/// Damage is reported, and nothing is left of the copy.
#[test]
fn damaged_checkpoints_are_not_copied() {
    for ((store, _folder), (other, _other)) in stores().into_iter().zip(stores()) {
        wait(async {
            let whole = save(&store, 1, 4).await.unwrap();
            let damaged = save(&store, 1, 5).await.unwrap();
            let file = damaged.files().into_iter().next().unwrap().to_owned();
            store.objects.put(&store.path(&file), vec![7; 9].into()).await.unwrap();
            let error = store.copy(None, &other).await.unwrap_err().to_string();
            assert!(error.contains(&format!("{file} is damaged")), "{error}");
            store.objects.put(&store.manifest_path(5), vec![7; 9].into()).await.unwrap();
            let error = store.copy(None, &other).await.unwrap_err().to_string();
            assert!(error.contains("the newest, 5, is damaged"), "{error}");
            assert!(objects(&other, "state").await.is_empty() && other.epochs().await.unwrap().is_empty());
            assert_eq!(store.copy(Some(4), &other).await.unwrap(), whole);
        });
    }
}

/// Parts of a copy's state without two equal adjacent bytes: more than two parts of an upload.
fn large() -> Vec<(PartKey, Bytes, bool)> {
    let bytes = |len: u64| (0..len).map(|at| (at % 251) as u8).collect::<Vec<u8>>();
    vec![bucket(1, &bytes(upload::PART_BYTES + 7)), bucket(2, b"small"), bucket(3, &bytes(upload::PART_BYTES * 3 / 2))]
}

/// Large state could not be written in one request: it would time out, and stores have a size limit.
#[test]
fn large_state_round_trips() {
    let refusing = Arc::new(Refusing::new(i64::MAX));
    let in_parts = CheckpointStore::objects(Arc::clone(&refusing) as _, Path::from("job"), "refusing");
    for (store, _folder) in stores().into_iter().chain([(in_parts, None)]) {
        wait(async {
            let entries = store.put_state("state/run/1-0-0".into(), large()).await.unwrap();
            let entries: Vec<&PartEntry> = entries.iter().map(|(_, entry)| entry).collect();
            let saved: Vec<Bytes> = large().into_iter().map(|(_, part, _)| part).collect();
            assert!(store.parts(&entries).await.unwrap() == saved, "{store:?}");
        });
    }
    let asked = i64::MAX - refusing.uploads.left.load(Ordering::SeqCst);
    assert_eq!((asked, refusing.uploads.aborted.load(Ordering::SeqCst)), (4, 0), "three parts, and one to complete");
}

/// If a part fails, there must be no incomplete object, and no unfinished upload, which costs money and is invisible.
#[test]
fn a_part_that_fails_leaves_nothing() {
    for granted in 0..=3 {
        let refusing = Arc::new(Refusing::new(i64::MAX));
        let store = CheckpointStore::objects(Arc::clone(&refusing) as _, Path::from("job"), "refusing");
        refusing.uploads.left.store(granted, Ordering::SeqCst);
        wait(async {
            let put = store.put_state("state/run/1-0-0".into(), large()).await;
            let is_there = !objects(&store, "state").await.is_empty();
            let aborted = refusing.uploads.aborted.load(Ordering::SeqCst);
            match put {
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("error sending request; the request timed out: "), "{error}");
                    assert!(error.contains("storage_options={\"timeout\": "), "{error}");
                    assert_eq!((granted < 3, is_there, aborted), (true, false, 1));
                }
                Ok(_) => assert_eq!((granted, is_there, aborted), (3, true, 0), "only the response was lost"),
            }
        });
    }
}

/// Places must be resolved correctly, so that jobs do not share one or miss their checkpoints; and no secrets may
/// appear in messages.
#[test]
fn places_by_url() {
    let (stores, none) = (ObjectStores::default(), StorageOptions::new());
    let place = |text: &str, writes| {
        let opened = CheckpointStore::open(&stores, text, &none, writes);
        opened.map(|store| store.place().to_owned()).map_err(|error| error.to_string())
    };
    assert_eq!(place("s3://bucket/jobs/a/", true).unwrap(), "s3://bucket/jobs/a");
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new").display().to_string();
    assert!(place(&new, false).unwrap_err().contains("there is no such folder"));
    assert_eq!(place(&format!("file://{new}"), true).unwrap(), new);
    assert_eq!(place(&new, false).unwrap(), new);
    assert!(place("memory:///a", true).unwrap_err().contains("lost when the process ends"));
    assert!(place("https://host/a", true).unwrap_err().contains("need a folder or an object store"));
    for text in ["https://u:SECRET@h/x", "s3://u:SECRET@b/x", "s3://u:SECRET@b/a//b", "s4://u:SECRET@b/x"] {
        let told = place(text, true).unwrap_or_else(|error| error);
        assert!(told.contains(":***@") && !told.contains("SECRET"), "{told}");
    }
}
