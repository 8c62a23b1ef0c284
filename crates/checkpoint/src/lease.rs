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

/// For so long a lease is tried to be given back. Otherwise it goes by itself.
const GIVE_BACK_MAX: Duration = Duration::from_secs(3);

/// The place that a lease is on.
#[derive(Clone)]
pub(crate) struct LeaseKey {
    /// Of nobody else: its connections are driven by the thread that renews.
    pub objects: Arc<dyn ObjectStore>,
    pub path: Path,
    /// For messages.
    pub name: String,
}

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDenial {
    /// Another has the place; who, if it is known.
    Held(String),
    /// The store does not answer as it should.
    Failed(String),
}

/// What has come of the wish for one.
type Outcome = Result<(), LeaseDenial>;

/// What the thread tells.
#[derive(Default)]
struct LeaseStatus {
    /// When wishing has come to its end.
    outcome: Mutex<Option<Outcome>>,
    /// The store writes whatever is asked: there can be no lease.
    unconditional: Mutex<Option<String>>,
    /// When what was written last was begun to be, by the clock that is never set and the one that counts while the
    /// machine sleeps.
    held: Mutex<Option<(Instant, SystemTime)>>,
    trouble: Mutex<Option<String>>,
    lost: Mutex<Option<String>>,
}

/// A lease, or the wish for one; dropping it gives it up.
pub(crate) struct Lease {
    shared: Arc<LeaseStatus>,
    /// Dropped, it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    /// Heard of when the thread has ended.
    ended: Option<oneshot::Receiver<()>>,
}

/// For who only wants to know whether it is held.
#[derive(Clone)]
pub struct LeaseView(Arc<LeaseStatus>);

impl Lease {
    /// Begins to want the place for a run of `job`. [`Lease::outcome`] says what has come of it, and `wake` is called
    /// when it does.
    ///
    /// # Errors
    /// In words, when there can be no thread.
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
            // What waits for an answer is nobody's any more; its connections must not hold up the end.
            runtime.shutdown_background();
            let _ = end.send(());
        };
        let thread = std::thread::Builder::new().name("tidemill-lease".into()).spawn(work);
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Lease { shared, stop: Some(stop), ended: Some(ended) })
    }

    /// What has come of wanting it; `None` yet.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.shared.outcome.lock().clone()
    }

    /// Why there can be no lease in this store, if there can be none: two jobs are not told apart.
    pub(crate) fn unconditional(&self) -> Option<String> {
        self.shared.unconditional.lock().clone()
    }

    pub(crate) fn view(&self) -> LeaseView {
        LeaseView(Arc::clone(&self.shared))
    }

    /// Gives it back, so that the next need not wait until it is certain that nobody renews it.
    pub(crate) async fn give_back(mut self) {
        self.stop = None;
        if let Some(ended) = self.ended.take() {
            // The thread may have been killed with its process: then nobody hears of it either.
            let _ = ended.await;
        }
    }
}

impl LeaseView {
    /// Who has taken it, and that the run must end.
    fn lost(&self) -> Option<String> {
        self.0.lost.lock().clone()
    }

    /// Whether nobody else can have it.
    ///
    /// # Errors
    /// `Held`, when another has taken it; `Failed`, while it could not be renewed in time.
    pub fn check(&self) -> Result<(), LeaseDenial> {
        if let Some(by) = self.lost() {
            return Err(LeaseDenial::Held(by));
        }
        if self.0.unconditional.lock().is_some() {
            return Ok(());
        }
        let held = *self.0.held.lock();
        // A clock that is set back is no reason to hold it longer: the other one goes on.
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

/// Who holds the lease that lies there, for people; nothing where nobody does, or that cannot be read just now.
pub(crate) async fn held_by(objects: &dyn ObjectStore, path: &Path) -> String {
    match tokio::time::timeout(ANSWER_MAX, lease::read(objects, path)).await {
        Ok(Ok(StoreAnswer::Found(record, _))) if record.as_ref().is_none_or(|record| !record.free) => {
            holder(record.as_deref())
        }
        _ => String::new(),
    }
}

/// Who holds it, for people.
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

/// The thread's part.
struct LeaseKeeper {
    place: LeaseKey,
    asker: LeaseClient,
    shared: Arc<LeaseStatus>,
    /// What was written first: to see whether the store refuses to replace it once more.
    stale: Option<UpdateVersion>,
    /// It has said that it waits.
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
        // Whoever comes next waits if it cannot be told.
        let _ = tokio::time::timeout(GIVE_BACK_MAX, self.asker.give_back()).await;
    }

    /// There can be no lease: what it has written keeps nobody out, and is not to be waited for.
    async fn do_without(&self, reason: String) {
        if self.stale.is_some() {
            let _ = tokio::time::timeout(GIVE_BACK_MAX, self.place.objects.delete(&self.place.path)).await;
        }
        *self.shared.unconditional.lock() = Some(reason);
    }

    /// Says, once, whom it waits for.
    fn tell(&mut self) {
        if let Some((record, lasts)) = self.asker.waits_for()
            && !std::mem::replace(&mut self.told, true)
        {
            eprintln!(
                "tidemill: checkpoints in {}: held by {}; if it does not renew within {lasts:?}, this job begins",
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
            // It is called again when the lease is lost.
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

    /// Two jobs in one place; or a job that waits, or is refused, though nobody has it.
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

    /// Somebody else's object is written over a lease: the holder must not think that it has it still.
    #[test]
    fn whoever_finds_something_else_has_lost_it() {
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

    /// A store in memory that writes whatever it is asked to.
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

    /// There two jobs would each think that they have the place; a job that is refused there could not run at all.
    #[test]
    fn stores_without_conditions_have_none() {
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
                let reason = lease.unconditional().expect("it knows no conditions");
                assert!(reason.contains(why), "{reason}");
                give_back(lease);
            }
        }
    }
}
