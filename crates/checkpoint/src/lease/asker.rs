//! Who asks the store what a [`Claimant`] wants to be asked, and tells it the time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use super::process::Process;
use super::protocol::{Answer, Ask, Claimant, Record, Step, Terms};

/// What is asked of the store for so long has failed. It may be done all the same, later.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Of a store without versions there are no conditions on them.
const NO_VERSION: &str = "it does not give versions to what it writes";

/// The words for an error of the store.
type Says = Box<dyn Fn(&Error) -> String + Send + Sync>;

/// See the module.
pub struct Asker {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    says: Says,
    pub(super) claimant: Claimant,
    began: Instant,
    anyhow: bool,
}

/// What has come of a step.
#[derive(Debug)]
pub enum Told {
    /// What the store said.
    Answer(Answer),
    /// There is nothing to do for so long.
    Wait(Duration),
    /// Another holds the place.
    Lost(Option<Box<Record>>),
    /// The store does not answer, and the place was never held.
    Failed(String),
}

impl Asker {
    /// Wants the object at `path` for `owner`, which nobody else is, of a job with this name, if it has one. `says` has
    /// the words for errors.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        path: Path,
        (owner, job): (&str, &str),
        says: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        let claimant = Claimant::new(Record::of(owner, job, Process::this()), Terms::USUAL);
        Asker { objects, path, says: Box::new(says), claimant, began: Instant::now(), anyhow: false }
    }

    /// The same, whose record lies there also where the store knows no conditions; it keeps nobody out then.
    pub fn anyhow(self) -> Self {
        Asker { anyhow: true, ..self }
    }

    /// What is next. `is_gone` says whose record, if this version can read it, is nobody's: see [`is_gone`].
    pub async fn step(&mut self, is_gone: impl Fn(Option<&Record>) -> bool) -> Told {
        let ask = match self.claimant.step(self.began.elapsed(), at_ms()) {
            Step::Ask(ask) => ask,
            Step::Wait(until) => return Told::Wait(until.saturating_sub(self.began.elapsed())),
            Step::Lost(record) => return Told::Lost(record),
            Step::Failed(reason) => return Told::Failed(reason),
        };
        let answer = self.ask(ask).await;
        self.claimant.heard(self.began.elapsed(), answer.clone(), is_gone);
        Told::Answer(answer)
    }

    /// Whose record it waits for, if it can be read, and how long that lasts when it is not renewed.
    pub fn waits_for(&self) -> Option<(Option<&Record>, Duration)> {
        let record = self.claimant.waits_for()?;
        Some((record, record.map_or(Terms::USUAL.lasts, Record::lasts)))
    }

    /// Renews at the next step, whenever the last time was.
    pub fn renew_now(&mut self) {
        self.claimant.renew_now();
    }

    /// Gives the place back, if it has it.
    pub(super) async fn give_back(&mut self) {
        let Some(ask) = self.claimant.give_back(at_ms()) else { return };
        let Ask::Replace(free, _) = &ask else { return };
        let free = free.clone();
        // A renewal that was under way may have been written, or not.
        if matches!(self.ask(ask).await, Answer::Refused)
            && let Answer::Found(Some(record), version) = self.ask(Ask::Read).await
            && record.owner == free.owner
        {
            self.ask(Ask::Replace(free, version)).await;
        }
    }

    /// Whether the store refuses what it should, as the record is there and another than `stale`: some write whatever
    /// they are asked to. If not, why.
    ///
    /// # Errors
    /// In words, when it does not answer.
    pub(super) async fn heeds_conditions(&self, stale: UpdateVersion) -> Result<Option<String>, String> {
        let record = self.claimant.record(at_ms());
        for (ask, wrong) in [
            (Ask::Create(record.clone()), "it creates an object that already exists"),
            (Ask::Replace(record, stale), "it replaces a version that no longer exists"),
        ] {
            match self.ask(ask).await {
                Answer::Refused => {}
                Answer::Written(_) => return Ok(Some(wrong.into())),
                Answer::Unconditional(reason) => return Ok(Some(reason)),
                Answer::Failed(reason) => return Err(reason),
                Answer::Nothing | Answer::Found(..) => unreachable!("nothing was read"),
            }
        }
        Ok(None)
    }

    async fn ask(&self, ask: Ask) -> Answer {
        match tokio::time::timeout(ANSWER_MAX, ask_store(&*self.objects, &self.path, ask, self.anyhow)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Failed((self.says)(&error)),
            Err(_) => Answer::Failed(format!("the store did not answer within {ANSWER_MAX:?}")),
        }
    }
}

/// Of whose record it is certain that nobody renews it: the process was one of this machine.
pub fn is_gone(record: Option<&Record>) -> bool {
    record.is_some_and(|record| record.process.is_gone(&Process::this()))
}

/// The time of day.
fn at_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

/// Asks a store. If it knows no conditions, what is to be there `anyhow` is written without.
pub(super) async fn ask_store(objects: &dyn ObjectStore, path: &Path, ask: Ask, anyhow: bool) -> Result<Answer, Error> {
    let (record, mode) = match ask {
        Ask::Read => return read(objects, path).await,
        Ask::Create(record) => (record, PutMode::Create),
        Ask::Replace(record, version) => (record, PutMode::Update(version)),
    };
    let bytes = Bytes::from(serde_json::to_vec(&record).expect("a record is made of numbers and texts"));
    let put = |mode| objects.put_opts(path, bytes.clone().into(), PutOptions { mode, ..PutOptions::default() });
    let reason: String = match mode {
        PutMode::Update(UpdateVersion { e_tag: None, version: None }) => NO_VERSION.into(),
        mode => match put(mode).await {
            Ok(put) if put.e_tag.is_none() && put.version.is_none() => NO_VERSION.into(),
            Ok(put) => return Ok(Answer::Written(put.into())),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => return Ok(Answer::Refused),
            Err(error @ Error::NotImplemented { .. }) => error.to_string(),
            // Servers that do not know the header.
            Err(error) if error.to_string().contains("NotImplemented") => error.to_string(),
            Err(error) => return Err(error),
        },
    };
    match anyhow {
        true => Ok(Answer::Written(put(PutMode::Overwrite).await?.into())),
        false => Ok(Answer::Unconditional(reason)),
    }
}

pub(super) async fn read(objects: &dyn ObjectStore, path: &Path) -> Result<Answer, Error> {
    let found = match objects.get(path).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(Answer::Nothing),
        Err(error) => return Err(error),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    Ok(Answer::Found(Record::read(&found.bytes().await?), version))
}
