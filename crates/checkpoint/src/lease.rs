//! The lease on a place in an object store: while one job holds it, others are refused. (In a folder, a lock does
//! this.)
//!
//! The protocol is [`tidemill_storage::lease`]. The lease on checkpoints runs on its own thread with its own client, so
//! that nothing in the job can keep it from renewing. A job that cannot renew in time, because the store is unreachable
//! or the process was stopped, commits nothing until it has renewed, and ends if another job has taken the place
//! meanwhile. The lease keeps others out; the claims in `store` keep checkpoints correct if it fails.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, UpdateVersion};
use parking_lot::Mutex;
use tidemill_storage::lease::{self, ANSWER_MAX, ClaimOutcome, LeaseClient, LeaseRecord, StoreAnswer, is_gone};
use tokio::sync::oneshot;

/// Maximum time for returning a lease. If it fails, the lease expires by itself.
const GIVE_BACK_MAX: Duration = Duration::from_secs(3);

/// The place of a lease.
#[derive(Clone)]
pub(crate) struct LeaseKey {
    /// Used only here: the thread that renews the lease drives its connections.
    pub objects: Arc<dyn ObjectStore>,
    pub path: Path,
    /// For messages.
    pub name: String,
}

/// Why the lease could not be obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDenial {
    /// Another job holds it; describes the job if it is known.
    Held(String),
    /// The store does not respond as it should.
    Failed(String),
}

/// The result of requesting a lease.
type Outcome = Result<(), LeaseDenial>;

/// What the thread reports.
#[derive(Default)]
struct LeaseStatus {
    /// The result of the request, once there is one.
    outcome: Mutex<Option<Outcome>>,
    /// Set if the store writes unconditionally, so that leases are impossible.
    unconditional: Mutex<Option<String>>,
    /// The start of the last successful write, by the monotonic clock and by the wall clock, which also counts while
    /// the machine sleeps.
    held: Mutex<Option<(Instant, SystemTime)>>,
    trouble: Mutex<Option<String>>,
    lost: Mutex<Option<String>>,
}

/// A lease, or a request for one. Dropping it gives the lease up.
pub(crate) struct Lease {
    shared: Arc<LeaseStatus>,
    /// Dropping this ends the thread.
    stop: Option<oneshot::Sender<()>>,
    /// Completes when the thread has ended.
    ended: Option<oneshot::Receiver<()>>,
}

/// A handle for checking whether the lease is held.
#[derive(Clone)]
pub struct LeaseView(Arc<LeaseStatus>);

impl Lease {
    /// Requests the lease for a run of `job`. `wake` is called when [`Lease::outcome`] has the result.
    ///
    /// # Errors
    /// If the thread cannot be started; a message.
    pub(crate) fn want(
        place: LeaseKey,
        job: &str,
        owner: &str,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, String> {
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let shared: Arc<LeaseStatus> = Arc::default();
        let asker = LeaseClient::new(Arc::clone(&place.objects), place.path.clone(), (owner, job), ToString::to_string);
        let mut keeper = LeaseKeeper { place, asker, shared: Arc::clone(&shared), stale: None, told: false };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let work = move || {
            runtime.block_on(keeper.keep(stopped, &wake));
            // Pending requests are no longer needed, and their connections must not delay the end.
            runtime.shutdown_background();
            let _ = end.send(());
        };
        let thread = std::thread::Builder::new().name("tidemill-lease".into()).spawn(work);
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Lease { shared, stop: Some(stop), ended: Some(ended) })
    }

    /// The result of the request; `None` as long as there is none.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.shared.outcome.lock().clone()
    }

    /// Why leases are impossible in this store, if so: then jobs cannot be kept apart.
    pub(crate) fn unconditional(&self) -> Option<String> {
        self.shared.unconditional.lock().clone()
    }

    pub(crate) fn view(&self) -> LeaseView {
        LeaseView(Arc::clone(&self.shared))
    }

    /// Returns the lease, so that the next job need not wait for it to expire.
    pub(crate) async fn give_back(mut self) {
        self.stop = None;
        if let Some(ended) = self.ended.take() {
            // An error means that the thread has ended anyway.
            let _ = ended.await;
        }
    }
}

impl LeaseView {
    /// The job that has taken the lease, in which case the run must end.
    fn lost(&self) -> Option<String> {
        self.0.lost.lock().clone()
    }

    /// Checks that no other job can hold the lease.
    ///
    /// # Errors
    /// `Held` if another job has taken it; `Failed` as long as it was not renewed in time.
    pub fn check(&self) -> Result<(), LeaseDenial> {
        if let Some(by) = self.lost() {
            return Err(LeaseDenial::Held(by));
        }
        if self.0.unconditional.lock().is_some() {
            return Ok(());
        }
        let held = *self.0.held.lock();
        // The monotonic clock ensures that setting the wall clock back does not extend the lease.
        let age = held.map_or(Duration::MAX, |(at, by_day)| at.elapsed().max(by_day.elapsed().unwrap_or_default()));
        if age < lease::HELD {
            return Ok(());
        }
        let why = self.0.trouble.lock().clone().unwrap_or_else(|| "this process was not running".into());
        Err(LeaseDenial::Failed(format!(
            "the lease on it was not renewed for {:.0?}, so another job may take it, and nothing is committed until \
             it is renewed: {why}",
            Duration::from_secs(age.as_secs())
        )))
    }
}

/// Describes the holder of a lease for messages; empty if there is none, or if it cannot be read at the moment.
pub(crate) async fn held_by(objects: &dyn ObjectStore, path: &Path) -> String {
    match tokio::time::timeout(ANSWER_MAX, lease::read(objects, path)).await {
        Ok(Ok(StoreAnswer::Found(record, _))) if record.as_ref().is_none_or(|record| !record.free) => {
            holder(record.as_deref())
        }
        _ => String::new(),
    }
}

/// Describes the holder for messages.
fn holder(record: Option<&LeaseRecord>) -> String {
    let Some(LeaseRecord { job, process, lasts_ms, at_ms, .. }) = record else {
        return "a lease there has a version that this Tidemill cannot read".into();
    };
    let until = at_ms.saturating_add(*lasts_ms) / 1000;
    let (h, m, s) = (until / 3600 % 24, until / 60 % 60, until % 60);
    format!(
        "job \"{job}\", process {} on {}, with a lease until {h:02}:{m:02}:{s:02} UTC by its clock",
        process.pid, process.host
    )
}

/// The part of the thread.
struct LeaseKeeper {
    place: LeaseKey,
    asker: LeaseClient,
    shared: Arc<LeaseStatus>,
    /// The version of the first write, to test whether the store refuses to replace it again.
    stale: Option<UpdateVersion>,
    /// A message said that the job waits.
    told: bool,
}

impl LeaseKeeper {
    async fn keep(&mut self, mut stopped: oneshot::Receiver<()>, wake: &(dyn Fn() + Send)) {
        let outcome = |shared: &LeaseStatus, outcome| {
            shared.outcome.lock().get_or_insert(outcome);
            wake();
        };
        loop {
            let asked = (Instant::now(), SystemTime::now());
            let told = tokio::select! {
                told = self.asker.step(is_gone) => told,
                _ = &mut stopped => break,
            };
            match told {
                ClaimOutcome::Answer(StoreAnswer::Unconditional(reason)) if self.shared.outcome.lock().is_none() => {
                    self.do_without(reason).await;
                    return outcome(&self.shared, Ok(()));
                }
                ClaimOutcome::Answer(answer) => {
                    *self.shared.trouble.lock() = self.asker.trouble().map(str::to_owned);
                    let StoreAnswer::Written(version) = answer else { continue };
                    *self.shared.held.lock() = Some(asked);
                    if self.shared.outcome.lock().is_some() {
                        continue;
                    }
                    let Some(stale) = self.stale.replace(version) else {
                        self.asker.renew_now();
                        continue;
                    };
                    let heeds = tokio::select! {
                        heeds = self.asker.heeds_conditions(stale) => heeds,
                        _ = &mut stopped => break,
                    };
                    match heeds {
                        Ok(None) => outcome(&self.shared, Ok(())),
                        Ok(Some(reason)) => {
                            self.do_without(reason).await;
                            return outcome(&self.shared, Ok(()));
                        }
                        Err(reason) => return outcome(&self.shared, Err(LeaseDenial::Failed(reason))),
                    }
                }
                ClaimOutcome::Wait(pause) => {
                    self.tell();
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = &mut stopped => break,
                    }
                }
                ClaimOutcome::Lost(record) => {
                    let by = holder(record.as_deref());
                    if self.asker.has_held() {
                        *self.shared.lost.lock() = Some(by.clone());
                    }
                    return outcome(&self.shared, Err(LeaseDenial::Held(by)));
                }
                ClaimOutcome::Failed(reason) => return outcome(&self.shared, Err(LeaseDenial::Failed(reason))),
            }
        }
        *self.shared.held.lock() = None;
        // If this fails, the next job waits until the lease expires.
        let _ = tokio::time::timeout(GIVE_BACK_MAX, self.asker.give_back()).await;
    }

    /// Handles a store without leases: deletes what was written, which keeps nobody out, so that nobody waits for it.
    async fn do_without(&self, reason: String) {
        if self.stale.is_some() {
            let _ = tokio::time::timeout(GIVE_BACK_MAX, self.place.objects.delete(&self.place.path)).await;
        }
        *self.shared.unconditional.lock() = Some(reason);
    }

    /// Prints once which job this one waits for.
    fn tell(&mut self) {
        if let Some((record, lasts)) = self.asker.waits_for()
            && !std::mem::replace(&mut self.told, true)
        {
            eprintln!(
                "tidemill: checkpoints in {}: held by {}; if it does not renew within {lasts:?}, this job starts",
                self.place.name,
                holder(record),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use bytes::Bytes;
    use futures_util::stream::BoxStream;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutOptions,
        PutPayload, PutResult, Result,
    };

    use super::*;

    fn want(objects: &Arc<dyn ObjectStore>, job: &str) -> (Lease, Outcome) {
        let place = LeaseKey { objects: Arc::clone(objects), path: Path::from("jobs/lease"), name: "memory".into() };
        let (wake, woken) = std::sync::mpsc::channel();
        let wake = move || {
            // Also called when the lease is lost.
            let _ = wake.send(());
        };
        let lease = Lease::want(place, job, &format!("run of {job}"), wake).unwrap();
        woken.recv().unwrap();
        let outcome = lease.outcome().expect("it says so when there is one");
        (lease, outcome)
    }

    fn give_back(lease: Lease) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(lease.give_back());
    }

    /// Two jobs must not hold one place, and a job must not wait or be refused if nobody holds it.
    #[test]
    fn one_at_a_time() {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (first, outcome) = want(&objects, "first");
        assert_eq!((outcome, first.view().check(), first.unconditional()), (Ok(()), Ok(()), None));
        let (_second, outcome) = want(&objects, "second");
        let wanted = format!("job \"first\", process {} on ", std::process::id());
        assert!(matches!(&outcome, Err(LeaseDenial::Held(by)) if by.starts_with(&wanted)), "{outcome:?}");
        assert_eq!(first.view().check(), Ok(()));
        let view = first.view();
        give_back(first);
        assert!(matches!(view.check(), Err(LeaseDenial::Failed(_))), "it was given back");
        let (third, outcome) = want(&objects, "third");
        assert_eq!((outcome, third.view().check()), (Ok(()), Ok(())));
        give_back(third);
    }

    /// If another object replaces the lease, the holder must not believe that it still has it.
    #[test]
    fn a_replaced_lease_is_lost() {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (first, outcome) = want(&objects, "first");
        assert_eq!(outcome, Ok(()));
        let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
        wait.block_on(objects.put(&Path::from("jobs/lease"), "of another version".into())).unwrap();
        while first.view().lost().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            matches!(first.view().check(), Err(LeaseDenial::Held(by)) if by.contains("a version that this Tidemill cannot"))
        );
    }

    /// An in-memory store that writes unconditionally.
    #[derive(Debug)]
    struct UnconditionalStore(InMemory);

    impl fmt::Display for UnconditionalStore {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("heedless")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for UnconditionalStore {
        async fn put_opts(&self, at: &Path, bytes: PutPayload, _: PutOptions) -> Result<PutResult> {
            self.0.put_opts(at, bytes, PutOptions::default()).await
        }

        async fn put_multipart_opts(&self, at: &Path, of: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
            self.0.put_multipart_opts(at, of).await
        }

        async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
            self.0.get_opts(at, options).await
        }

        async fn get_ranges(&self, at: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
            self.0.get_ranges(at, ranges).await
        }

        fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            self.0.delete_stream(paths)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.0.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.0.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.0.copy_opts(from, to, options).await
        }
    }

    /// In such a store, two jobs would each believe that they hold the place; refusing a job there would mean it could
    /// never run.
    #[test]
    fn stores_without_conditional_writes_have_no_leases() {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let stores: [(Arc<dyn ObjectStore>, _); 2] = [
            (Arc::new(UnconditionalStore(InMemory::new())), "it creates an object that already exists"),
            (Arc::new(local), "Update"),
        ];
        for (objects, why) in stores {
            for job in ["first", "second"] {
                let (lease, outcome) = want(&objects, job);
                assert_eq!((outcome, lease.view().check()), (Ok(()), Ok(())));
                let reason = lease.unconditional().expect("it ignores conditions");
                assert!(reason.contains(why), "{reason}");
                give_back(lease);
            }
        }
    }
}
