//! The mark of output that is about to appear in a store: who has put it, and whether its writer lives.
//!
//! Output appears there object by object, with the mark beside it, which is held as the lease on checkpoints is
//! ([`tidemill_storage::lease`]): whoever takes it is certain that its writer is dead, and a writer whose
//! mark was taken, as it had only stood still, finds out and stops. Unlike a lease, it is for readers, too: it is there
//! also in stores that know no conditions, and is removed at the end; and who writes over what is there takes it from
//! whoever has it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt};
use tidemill_storage::ObjectFolder;
use tidemill_storage::lease::{ClaimOutcome, LeaseClient, StoreAnswer, is_gone};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::error::{DataSetError, Result};
use crate::files::paths::UNFINISHED;

/// A mark that this process has put.
pub(crate) struct OutputLease {
    at: ObjectFolder,
    key: Key,
    /// Whether there was one when it was put: what it stands beside was not whole.
    pub(crate) was_there: bool,
    /// None when it is about to be removed, and not put again.
    asker: Mutex<Option<LeaseClient>>,
}

/// Where the mark of output lies.
pub(crate) fn key_at(at: &ObjectFolder) -> Key {
    at.path.clone().join(UNFINISHED)
}

/// Who asks for the mark of write `id`.
fn asker(at: &ObjectFolder, id: &str) -> LeaseClient {
    let (store, key) = (Arc::clone(&at.store), key_at(at));
    let says = move |error: &Error| store.failed(&key, error).to_string();
    LeaseClient::new(Arc::clone(&at.store.objects), key_at(at), (id, "output"), says).unconditional()
}

/// Whether another has taken what was held, or has taken and removed it.
fn is_taken(told: &ClaimOutcome) -> bool {
    matches!(told, ClaimOutcome::Lost(_) | ClaimOutcome::Answer(StoreAnswer::Nothing))
}

impl OutputLease {
    /// Puts the mark of write `id` at output. Without `overwrite` one write of several wins, where the store can tell.
    ///
    /// # Errors
    /// `Io`, where there is one and it is not to be written over, or the store says no.
    pub(crate) async fn put(at: &ObjectFolder, id: &str, overwrite: bool) -> Result<Self> {
        let (mut asker, mut was_there) = (asker(at, id), false);
        loop {
            match asker.step(|_| overwrite).await {
                ClaimOutcome::Answer(StoreAnswer::Written(_)) => return Ok(OutputLease::of(at, was_there, asker)),
                ClaimOutcome::Answer(StoreAnswer::Found(found, _)) => {
                    was_there |= found.is_none_or(|found| found.owner != id)
                }
                ClaimOutcome::Answer(_) => {}
                ClaimOutcome::Wait(pause) if asker.waits_for().is_none() => sleep(pause).await,
                ClaimOutcome::Wait(_) | ClaimOutcome::Lost(_) => {
                    return Err(DataSetError::Io(format!(
                        "{at}: another write is about to finish there, or its writer died; replace it with \
                         overwrite=True, or remove {}",
                        at.store.shown(&key_at(at))
                    )));
                }
                ClaimOutcome::Failed(reason) => return Err(DataSetError::Io(reason)),
            }
        }
    }

    fn of(at: &ObjectFolder, was_there: bool, asker: LeaseClient) -> Self {
        OutputLease { at: at.clone(), key: key_at(at), was_there, asker: Mutex::new(Some(asker)) }
    }

    /// Takes the mark of a dead writer for write `id`; `None` if there is none. Waits while its writer may be alive.
    ///
    /// # Errors
    /// `Io`, if the store does not let us.
    pub(crate) async fn take(at: &ObjectFolder, id: &str) -> Result<Option<Self>> {
        let (mut asker, mut told) = (self::asker(at, id), false);
        loop {
            match asker.step(is_gone).await {
                ClaimOutcome::Answer(StoreAnswer::Nothing) => return Ok(None),
                ClaimOutcome::Answer(StoreAnswer::Written(_)) => return Ok(Some(OutputLease::of(at, true, asker))),
                ClaimOutcome::Answer(_) => {}
                ClaimOutcome::Wait(pause) => {
                    if let Some((_, lasts)) = asker.waits_for()
                        && !std::mem::replace(&mut told, true)
                    {
                        eprintln!(
                            "tidemill: output is appearing in {at}, or was when its writer died; it is removed if \
                             nothing changes there within {lasts:?}"
                        );
                    }
                    sleep(pause).await;
                }
                // Its writer lives, and has put it again.
                ClaimOutcome::Lost(_) => asker = self::asker(at, id),
                ClaimOutcome::Failed(reason) => return Err(DataSetError::Io(reason)),
            }
        }
    }

    /// What `work` comes to; `None`, when it was given up as the mark is another's by now.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let taken = async {
            loop {
                let told = match self.asker.lock().await.as_mut() {
                    Some(asker) => asker.step(is_gone).await,
                    None => ClaimOutcome::Wait(Duration::MAX),
                };
                match told {
                    told if is_taken(&told) => return,
                    ClaimOutcome::Wait(pause) => sleep(pause).await,
                    // What else a store says `work` hears, too; and here it may not say so the next time.
                    _ => {}
                }
            }
        };
        match select(pin!(work), pin!(taken)).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        }
    }

    /// Whether it is still there, before what cannot be undone: this process may have stood still, or another write
    /// gone over it.
    ///
    /// # Errors
    /// `Io`, if the store does not say.
    pub(crate) async fn is_ours(&self) -> Result<bool> {
        let mut asker = self.asker.lock().await;
        let asker = asker.as_mut().expect("it is not asked for when it was removed");
        asker.renew_now();
        loop {
            match asker.step(is_gone).await {
                ClaimOutcome::Answer(StoreAnswer::Written(_)) => return Ok(true),
                ClaimOutcome::Answer(StoreAnswer::Failed(reason)) | ClaimOutcome::Failed(reason) => {
                    return Err(DataSetError::Io(reason));
                }
                told if is_taken(&told) => return Ok(false),
                ClaimOutcome::Wait(pause) => sleep(pause).await,
                // It may be that it was put before, and the answer was lost.
                _ => {}
            }
        }
    }

    /// Removes it, at the end.
    ///
    /// # Errors
    /// `Io`, if the store does not let us.
    pub(crate) async fn remove(&self) -> Result<()> {
        // Not while it is being put again, which would find that it is not there, and take it for another's.
        drop(self.asker.lock().await.take());
        match self.at.store.objects.delete(&self.key).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.at.store.failed(&self.key, &error).into()),
        }
    }

    /// The error of a write that has lost its mark.
    pub(crate) fn taken(&self) -> DataSetError {
        DataSetError::Io(format!(
            "{}: another write replaced this one, or took it for dead because it made no progress for a while; the \
             other's output is there now",
            self.at
        ))
    }
}
