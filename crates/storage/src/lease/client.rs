//! Who asks the store what a [`LeaseClaimant`] wants to be asked, and tells it the time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use super::process::ProcessIdentity;
use super::protocol::{ClaimStep, LeaseClaimant, LeaseRecord, LeaseTerms, StoreAnswer, StoreRequest};

/// What is asked of the store for so long has failed. It may be done all the same, later.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Of a store without versions there are no conditions on them.
const NO_VERSION: &str = "it does not give versions to what it writes";

/// The words for an error of the store.
type DescribeError = Box<dyn Fn(&Error) -> String + Send + Sync>;

/// See the module.
pub struct LeaseClient {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    says: DescribeError,
    claimant: LeaseClaimant,
    began: Instant,
    anyhow: bool,
}

/// What has come of a step.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// What the store said.
    Answer(StoreAnswer),
    /// There is nothing to do for so long.
    Wait(Duration),
    /// Another holds the place.
    Lost(Option<Box<LeaseRecord>>),
    /// The store does not answer, and the place was never held.
    Failed(String),
}

impl LeaseClient {
    /// Wants the object at `path` for `owner`, which nobody else is, of a job with this name, if it has one. `says` has
    /// the words for errors.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        path: Path,
        (owner, job): (&str, &str),
        says: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        let claimant = LeaseClaimant::new(LeaseRecord::of(owner, job, ProcessIdentity::this()), LeaseTerms::USUAL);
        LeaseClient { objects, path, says: Box::new(says), claimant, began: Instant::now(), anyhow: false }
    }

    /// The same, whose record lies there also where the store knows no conditions; it keeps nobody out then.
    pub fn unconditional(self) -> Self {
        LeaseClient { anyhow: true, ..self }
    }

    /// What is next. `is_gone` says whose record, if this version can read it, is nobody's: see [`is_gone`].
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

    /// Whose record it waits for, if it can be read, and how long that lasts when it is not renewed.
    pub fn waits_for(&self) -> Option<(Option<&LeaseRecord>, Duration)> {
        let record = self.claimant.waits_for()?;
        Some((record, record.map_or(LeaseTerms::USUAL.lasts, LeaseRecord::lasts)))
    }

    /// Why the record could not be renewed the last time.
    pub fn trouble(&self) -> Option<&str> {
        self.claimant.trouble()
    }

    /// Whether it has ever had the object; whether it still has it is a matter of time (`HELD`).
    pub fn has_held(&self) -> bool {
        self.claimant.held().is_some()
    }

    /// Renews at the next step, whenever the last time was.
    pub fn renew_now(&mut self) {
        self.claimant.renew_now();
    }

    /// Gives the place back, if it has it.
    pub async fn give_back(&mut self) {
        let Some(ask) = self.claimant.give_back(at_ms()) else { return };
        let StoreRequest::Replace(free, _) = &ask else { return };
        let free = free.clone();
        // A renewal that was under way may have been written, or not.
        if matches!(self.ask(ask).await, StoreAnswer::Refused)
            && let StoreAnswer::Found(Some(record), version) = self.ask(StoreRequest::Read).await
            && record.owner == free.owner
        {
            self.ask(StoreRequest::Replace(free, version)).await;
        }
    }

    /// Whether the store refuses what it should, as the record is there and another than `stale`: some write whatever
    /// they are asked to. If not, why.
    ///
    /// # Errors
    /// In words, when it does not answer.
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

/// Of whose record it is certain that nobody renews it: the process was one of this machine.
pub fn is_gone(record: Option<&LeaseRecord>) -> bool {
    record.is_some_and(|record| record.process.is_gone(&ProcessIdentity::this()))
}

/// The time of day.
fn at_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

/// Asks a store. If it knows no conditions, what is to be there `anyhow` is written without.
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

/// What lies at `path`: `Nothing` or `Found`.
///
/// # Errors
/// The store's.
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

    /// Where a store knows no conditions, a record may be there for others to read, whoever else writes it; but not one
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
