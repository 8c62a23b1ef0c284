//! The mark of output that is about to appear in a store: who has put it, and whether its writer lives.
//!
//! Output appears there object by object, with the mark beside it. The mark names the process that writes, which puts it again every few
//! seconds, each time on the condition that the version lies there that it knows. So who finds a mark is certain that its writer is dead,
//! if it was a process of this machine and is gone, or else if the mark has not changed for [`LASTS`]; and a writer whose mark was taken,
//! as it had only stood still, finds out and stops. Clocks are not compared. (The lease on checkpoints of streams works the same way; it
//! is held while a job runs, the mark for the moments at the end of a write.)

use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion};
use tidemill_dataflow::checkpoint::Process;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::error::{DataSetError, Result};
use crate::files::UNFINISHED;
use crate::stores::{Location, is_bucket};

/// How often it is put again.
const RENEWED: Duration = Duration::from_secs(3);
/// One that has not changed for so long is nobody's. A renewal may fail, or wait for a slow store, some times before.
const LASTS: Duration = Duration::from_secs(15);
/// How often another's is looked at.
const LOOKED_AT: Duration = Duration::from_millis(500);

/// A mark that this process has put.
pub(crate) struct Mark {
    at: Location,
    key: Key,
    /// Whether there was one when it was put: what it stands beside was not whole.
    pub(crate) was_there: bool,
    id: String,
    process: Process,
    lies: Mutex<Lies>,
}

/// What lies in the store.
struct Lies {
    version: UpdateVersion,
    /// Counts up, so that no two versions are the same.
    renewal: u64,
    since: Instant,
    /// It is about to be removed, and not put again.
    is_last: bool,
}

/// A mark that somebody has put.
struct Found {
    text: String,
    version: UpdateVersion,
}

impl Found {
    async fn at(at: &Location, key: &Key) -> Result<Option<Self>> {
        let found = async {
            let found = at.store.objects.get(key).await?;
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let text = String::from_utf8_lossy(&found.bytes().await?).into_owned();
            Ok::<_, Error>(Found { text, version })
        };
        match found.await {
            Ok(found) => Ok(Some(found)),
            Err(error @ Error::NotFound { .. }) if !is_bucket(&error) => Ok(None),
            Err(error) => Err(at.store.failed(key, &error)),
        }
    }

    /// Whether its writer is certainly dead; of other machines, and where older versions have written, nothing is certain.
    fn is_of_the_dead(&self) -> bool {
        let process = self.text.lines().nth(1).and_then(|line| line.parse::<Process>().ok());
        process.is_some_and(|process| process.is_gone(&Process::this()))
    }
}

/// Where the mark of output lies.
pub(crate) fn key_at(at: &Location) -> Key {
    at.path.clone().join(UNFINISHED)
}

impl Mark {
    /// Puts the mark of write `id` at output. Without `overwrite` one write of several wins, where the store can tell.
    ///
    /// # Errors
    /// `Io`, where there is one and it is not to be written over, or the store says no.
    pub(crate) async fn put(at: &Location, id: &str, overwrite: bool) -> Result<Self> {
        let mut mark = Mark::new(at, id, UpdateVersion { e_tag: None, version: None });
        mark.was_there = overwrite && Found::at(at, &mark.key).await?.is_some();
        let mode = if overwrite { PutMode::Overwrite } else { PutMode::Create };
        match mark.write(0, mode).await {
            Ok(put) => mark.lies.get_mut().version = put.into(),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                return Err(DataSetError::Io(format!(
                    "{at}: another write is about to end there, or its writer died; overwrite=True goes over it, or remove {}",
                    at.store.shown(&mark.key)
                )));
            }
            Err(error) => return Err(at.store.failed(&mark.key, &error)),
        }
        Ok(mark)
    }

    fn new(at: &Location, id: &str, version: UpdateVersion) -> Self {
        let lies = Lies { version, renewal: 0, since: Instant::now(), is_last: false };
        Mark {
            at: at.clone(),
            key: key_at(at),
            was_there: false,
            id: id.to_owned(),
            process: Process::this(),
            lies: Mutex::new(lies),
        }
    }

    /// Takes the mark of a dead writer for write `id`; `None` if there is none. Waits while its writer may be alive.
    ///
    /// # Errors
    /// `Io`, if the store does not let us.
    pub(crate) async fn take(at: &Location, id: &str) -> Result<Option<Self>> {
        let key = key_at(at);
        let mut seen: Option<(String, Instant)> = None;
        while let Some(found) = Found::at(at, &key).await? {
            let since = match &seen {
                Some((before, since)) if *before == found.text => *since,
                _ => Instant::now(),
            };
            if since.elapsed() >= LASTS || found.is_of_the_dead() {
                let mark = Mark::new(at, id, found.version);
                if mark.renew().await? {
                    return Ok(Some(mark));
                }
            } else if seen.is_none() {
                eprintln!(
                    "tidemill: output is appearing in {at}, or was when its writer died; if nothing changes there within {LASTS:?} it is removed"
                );
            }
            seen = Some((found.text, since));
            sleep(LOOKED_AT).await;
        }
        Ok(None)
    }

    /// What `work` comes to; `None`, when it was given up as the mark is another's by now.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let taken = async {
            sleep(RENEWED).await;
            // What else a store says `work` hears, too; and here it may not say so the next time.
            while !matches!(self.renew().await, Ok(false)) {
                sleep(RENEWED).await;
            }
        };
        match select(pin!(work), pin!(taken)).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        }
    }

    /// Whether it is still there, before what cannot be undone: this process may have stood still.
    ///
    /// # Errors
    /// `Io`, if the store does not say.
    pub(crate) async fn is_ours(&self) -> Result<bool> {
        let is_fresh = self.lies.lock().await.since.elapsed() < 2 * RENEWED;
        if is_fresh { Ok(true) } else { self.renew().await }
    }

    /// Removes it, at the end.
    ///
    /// # Errors
    /// `Io`, if the store does not let us.
    pub(crate) async fn remove(&self) -> Result<()> {
        // Not while it is being put again, which would find that it is not there, and take it for another's.
        self.lies.lock().await.is_last = true;
        match self.at.store.objects.delete(&self.key).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.at.store.failed(&self.key, &error)),
        }
    }

    /// The error of a write that has lost its mark.
    pub(crate) fn taken(&self) -> DataSetError {
        DataSetError::Io(format!(
            "{}: another write has gone over this one, or taken it for dead, as it did not go on for a while; what is there is the other's",
            self.at
        ))
    }

    /// Puts it again. Returns whether it is still there.
    async fn renew(&self) -> Result<bool> {
        let mut lies = self.lies.lock().await;
        if lies.is_last {
            return Ok(true);
        }
        let renewal = lies.renewal + 1;
        let began = Instant::now();
        let mode = match &lies.version {
            // A store that does not tell versions.
            UpdateVersion { e_tag: None, version: None } => PutMode::Overwrite,
            version => PutMode::Update(version.clone()),
        };
        let version = match self.write(renewal, mode).await {
            Ok(put) => put.into(),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {
                // A request that was sent twice may have been heard the first time.
                match Found::at(&self.at, &self.key).await? {
                    Some(found) if found.text == self.text(renewal) => found.version,
                    _ => return Ok(false),
                }
            }
            Err(error) => return Err(self.at.store.failed(&self.key, &error)),
        };
        *lies = Lies { version, renewal, since: began, is_last: false };
        Ok(true)
    }

    fn text(&self, renewal: u64) -> String {
        format!("{} {renewal}\n{}\n", self.id, self.process)
    }

    async fn write(&self, renewal: u64, mode: PutMode) -> Result<PutResult, Error> {
        let text = self.text(renewal);
        let put = |mode| {
            let options = PutOptions { mode, ..PutOptions::default() };
            self.at.store.objects.put_opts(&self.key, text.clone().into(), options)
        };
        match put(mode).await {
            Err(Error::NotImplemented { .. }) => put(PutMode::Overwrite).await,
            done => done,
        }
    }
}
