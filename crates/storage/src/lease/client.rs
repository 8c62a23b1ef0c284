//! Sends the requests of a [`LeaseClaimant`] to the store, and tells it the time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use super::process::ProcessIdentity;
use super::protocol::{ClaimStep, LeaseClaimant, LeaseRecord, LeaseTerms, StoreAnswer, StoreRequest};

/// A request that takes longer than this counts as failed. It may still be executed later.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A store without versions cannot have conditions on them.
const NO_VERSION: &str = "it does not return versions of the objects it writes";

/// Describes an error of the store.
type DescribeError = Box<dyn Fn(&Error) -> String + Send + Sync>;

/// The driver of a claimant, see the module.
pub struct LeaseClient {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    says: DescribeError,
    claimant: LeaseClaimant,
    began: Instant,
    anyhow: bool,
}

/// The outcome of a step.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// The store's answer.
    Answer(StoreAnswer),
    /// There is nothing to do for this long.
    Wait(Duration),
    /// Another owner holds the object.
    Lost(Option<Box<LeaseRecord>>),
    /// The store does not answer, and the object was never held.
    Failed(String),
}

impl LeaseClient {
    /// Claims the object at `path` for `owner`, which is unique, and for the job with this name, if it has one. `says`
    /// describes errors.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        path: Path,
        (owner, job): (&str, &str),
        says: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        let claimant = LeaseClaimant::new(LeaseRecord::of(owner, job, ProcessIdentity::this()), LeaseTerms::USUAL);
        LeaseClient { objects, path, says: Box::new(says), claimant, began: Instant::now(), anyhow: false }
    }

    /// The same, but writes the record even if the store does not support conditions; it then keeps no one out.
    pub fn unconditional(self) -> Self {
        LeaseClient { anyhow: true, ..self }
    }

    /// Performs the next step. `is_gone` decides whether the owner of a record, if readable, is gone: see [`is_gone`].
    pub async fn step(&mut self, is_gone: impl Fn(Option<&LeaseRecord>) -> bool) -> ClaimOutcome {
        let ask = match self.claimant.step(self.began.elapsed(), at_ms()) {
            ClaimStep::Ask(ask) => ask,
            ClaimStep::Wait(until) => return ClaimOutcome::Wait(until.saturating_sub(self.began.elapsed())),
            ClaimStep::Lost(record) => return ClaimOutcome::Lost(record),
            ClaimStep::Failed(reason) => return ClaimOutcome::Failed(reason),
        };
        let answer = self.ask(ask).await;
        self.claimant.on_answer(self.began.elapsed(), answer.clone(), is_gone);
        ClaimOutcome::Answer(answer)
    }

    /// The record that it waits for, if it can be read, and how long that lasts without renewal.
    pub fn waits_for(&self) -> Option<(Option<&LeaseRecord>, Duration)> {
        let record = self.claimant.waits_for()?;
        Some((record, record.map_or(LeaseTerms::USUAL.lasts, LeaseRecord::lasts)))
    }

    /// Why the last renewal of the record failed.
    pub fn trouble(&self) -> Option<&str> {
        self.claimant.trouble()
    }

    /// Whether it has ever held the object; whether it still does depends on the time (`HELD`).
    pub fn has_held(&self) -> bool {
        self.claimant.held().is_some()
    }

    /// Renews at the next step, regardless of the last renewal.
    pub fn renew_now(&mut self) {
        self.claimant.renew_now();
    }

    /// Releases the object, if it is held.
    pub async fn give_back(&mut self) {
        let Some(ask) = self.claimant.give_back(at_ms()) else { return };
        let StoreRequest::Replace(free, _) = &ask else { return };
        let free = free.clone();
        // A pending renewal may or may not have been written.
        if matches!(self.ask(ask).await, StoreAnswer::Refused)
            && let StoreAnswer::Found(Some(record), version) = self.ask(StoreRequest::Read).await
            && record.owner == free.owner
        {
            self.ask(StoreRequest::Replace(free, version)).await;
        }
    }

    /// Whether the store rejects a write that it should, given that the record exists and differs from `stale`: some
    /// stores execute every write. If not, why.
    ///
    /// # Errors
    /// A description, if the store does not answer.
    pub async fn heeds_conditions(&self, stale: UpdateVersion) -> Result<Option<String>, String> {
        let record = self.claimant.record(at_ms());
        for (ask, wrong) in [
            (StoreRequest::Create(record.clone()), "it creates an object that already exists"),
            (StoreRequest::Replace(record, stale), "it replaces a version that no longer exists"),
        ] {
            match self.ask(ask).await {
                StoreAnswer::Refused => {}
                StoreAnswer::Written(_) => return Ok(Some(wrong.into())),
                StoreAnswer::Unconditional(reason) => return Ok(Some(reason)),
                StoreAnswer::Failed(reason) => return Err(reason),
                StoreAnswer::Nothing | StoreAnswer::Found(..) => unreachable!("nothing was read"),
            }
        }
        Ok(None)
    }

    async fn ask(&self, ask: StoreRequest) -> StoreAnswer {
        match tokio::time::timeout(ANSWER_MAX, ask_store(&*self.objects, &self.path, ask, self.anyhow)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => StoreAnswer::Failed((self.says)(&error)),
            Err(_) => StoreAnswer::Failed(format!("the store did not answer within {ANSWER_MAX:?}")),
        }
    }
}

/// Whether certainly no process renews this record: its process ran on this machine and is gone.
pub fn is_gone(record: Option<&LeaseRecord>) -> bool {
    record.is_some_and(|record| record.process.is_gone(&ProcessIdentity::this()))
}

/// The time of day.
fn at_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

/// Sends a request to a store. If the store does not support conditions, records for `anyhow` are written without.
pub(super) async fn ask_store(
    objects: &dyn ObjectStore,
    path: &Path,
    ask: StoreRequest,
    anyhow: bool,
) -> Result<StoreAnswer, Error> {
    let (record, mode) = match ask {
        StoreRequest::Read => return read(objects, path).await,
        StoreRequest::Create(record) => (record, PutMode::Create),
        StoreRequest::Replace(record, version) => (record, PutMode::Update(version)),
    };
    let bytes = Bytes::from(serde_json::to_vec(&record).expect("a record is made of numbers and texts"));
    let put = |mode| objects.put_opts(path, bytes.clone().into(), PutOptions { mode, ..PutOptions::default() });
    let reason: String = match mode {
        PutMode::Update(UpdateVersion { e_tag: None, version: None }) => NO_VERSION.into(),
        mode => match put(mode).await {
            Ok(put) if put.e_tag.is_none() && put.version.is_none() => NO_VERSION.into(),
            Ok(put) => return Ok(StoreAnswer::Written(put.into())),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => return Ok(StoreAnswer::Refused),
            Err(error @ Error::NotImplemented { .. }) => error.to_string(),
            // Servers that do not know the header.
            Err(error) if error.to_string().contains("NotImplemented") => error.to_string(),
            Err(error) => return Err(error),
        },
    };
    match anyhow {
        true => Ok(StoreAnswer::Written(put(PutMode::Overwrite).await?.into())),
        false => Ok(StoreAnswer::Unconditional(reason)),
    }
}

/// Reads the record at `path`: returns `Nothing` or `Found`.
///
/// # Errors
/// Those of the store.
pub async fn read(objects: &dyn ObjectStore, path: &Path) -> Result<StoreAnswer, Error> {
    let found = match objects.get(path).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(StoreAnswer::Nothing),
        Err(error) => return Err(error),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    Ok(StoreAnswer::Found(LeaseRecord::read(&found.bytes().await?), version))
}

#[cfg(test)]
mod tests {
    use object_store::local::LocalFileSystem;

    use super::*;

    /// In a store without conditions, a record may be written for others to read, whoever else writes it; but not one
    /// that has to keep them out.
    #[tokio::test]
    async fn stores_without_conditions_have_records_anyhow() {
        let folder = tempfile::tempdir().unwrap();
        let objects: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
        let asker =
            |owner| LeaseClient::new(Arc::clone(&objects), Path::from("mark"), (owner, ""), ToString::to_string);
        let mut first = asker("first").unconditional();
        let mut written = 0;
        while written < 3 {
            if let ClaimOutcome::Answer(StoreAnswer::Written(_)) = first.step(|_| false).await {
                written += 1;
                first.renew_now();
            }
        }
        let Ok(StoreAnswer::Found(Some(record), _)) = read(&*objects, &Path::from("mark")).await else {
            panic!("none")
        };
        assert_eq!((record.owner.as_str(), record.renewal), ("first", 2));
        let mut second = asker("second");
        assert!(matches!(second.step(|_| true).await, ClaimOutcome::Answer(StoreAnswer::Found(..))));
        assert!(matches!(second.step(|_| true).await, ClaimOutcome::Answer(StoreAnswer::Unconditional(_))));
    }
}
