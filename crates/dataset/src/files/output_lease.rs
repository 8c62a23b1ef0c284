//! The marker of output that is about to appear in a store: it identifies the writer, and shows whether the writer is
//! alive.
//!
//! Output appears there object by object, beside the marker, which works like the lease on checkpoints
//! ([`tidemill_storage::lease`]): a process that takes it over is certain that its writer is dead, and a writer that
//! was only paused finds out that its marker was taken, and stops. Unlike a lease, the marker is also for readers: it
//! exists even in stores that do not support conditions, and is removed at the end. A write that overwrites existing
//! output takes the marker from any holder.

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

/// A marker written by this process.
pub(crate) struct OutputLease {
    at: ObjectFolder,
    key: Key,
    /// Whether there already was a marker: the output beside it was incomplete.
    pub(crate) was_there: bool,
    /// `None` once it is about to be removed, so that it is not renewed.
    asker: Mutex<Option<LeaseClient>>,
}

/// The key of the marker of output.
pub(crate) fn key_at(at: &ObjectFolder) -> Key {
    at.path.clone().join(UNFINISHED)
}

/// The client for the marker of write `id`.
fn asker(at: &ObjectFolder, id: &str) -> LeaseClient {
    let (store, key) = (Arc::clone(&at.store), key_at(at));
    let says = move |error: &Error| store.failed(&key, error).to_string();
    LeaseClient::new(Arc::clone(&at.store.objects), key_at(at), (id, "output"), says).unconditional()
}

/// Whether another process has taken over the marker, or has taken and removed it.
fn is_taken(told: &ClaimOutcome) -> bool {
    matches!(told, ClaimOutcome::Lost(_) | ClaimOutcome::Answer(StoreAnswer::Nothing))
}

impl OutputLease {
    /// Writes the marker of write `id`. Without `overwrite`, one of several concurrent writes wins, if the store
    /// supports that.
    ///
    /// # Errors
    /// `Io` if there is a marker that must not be overwritten, or if the store rejects it.
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

    /// Takes over the marker of a dead writer for write `id`; `None` if there is none. Waits while its writer may be
    /// alive.
    ///
    /// # Errors
    /// `Io` if the store does not allow it.
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
                // Its writer is alive and has renewed it.
                ClaimOutcome::Lost(_) => asker = self::asker(at, id),
                ClaimOutcome::Failed(reason) => return Err(DataSetError::Io(reason)),
            }
        }
    }

    /// The result of `work`; `None` if it was abandoned because another process has taken the marker.
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
                    // `work` sees other errors of the store, too, and here the next renewal may succeed.
                    _ => {}
                }
            }
        };
        match select(pin!(work), pin!(taken)).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        }
    }

    /// Whether the marker is still ours, before an irreversible step: this process may have been paused, or another
    /// write may have replaced it.
    ///
    /// # Errors
    /// `Io` if the store does not answer.
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
                // It may have been renewed earlier, with the answer lost.
                _ => {}
            }
        }
    }

    /// Removes it, at the end.
    ///
    /// # Errors
    /// `Io` if the store does not allow it.
    pub(crate) async fn remove(&self) -> Result<()> {
        // Not during a renewal, which would find it missing and conclude that another process had taken it.
        drop(self.asker.lock().await.take());
        match self.at.store.objects.delete(&self.key).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.at.store.failed(&self.key, &error).into()),
        }
    }

    /// The error of a write that has lost its marker.
    pub(crate) fn taken(&self) -> DataSetError {
        DataSetError::Io(format!(
            "{}: another write replaced this one, or took it for dead because it made no progress for a while; the \
             other's output is there now",
            self.at
        ))
    }
}
