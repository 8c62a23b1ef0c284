//! Copies a checkpoint to another place, where a job can resume from it as from its own. The copy remains when the
//! original job removes old checkpoints. (Flink calls this a savepoint.)

use futures_util::TryStreamExt;
use object_store::ObjectStoreExt;

use super::{CheckpointStore, RestoreCandidates, StoreError};
use crate::manifest::Manifest;

/// How many times a running job may remove the newest checkpoint while it is being copied.
const TRIES: usize = 20;

impl CheckpointStore {
    /// Copies the checkpoint of an epoch, or the newest, to a place that has none, and verifies the copy. Returns its
    /// manifest.
    ///
    /// # Errors
    /// Those of the stores; `Damaged` if the checkpoint is damaged or missing, and for the newest, also if a later one
    /// is damaged; `Taken` if a job writes to the other folder.
    pub async fn copy(&self, epoch: Option<u64>, to: &CheckpointStore) -> Result<Manifest, StoreError> {
        let _lock = to.folder.as_ref().map(|folder| to.lock(folder, "a copy of a checkpoint")).transpose()?;
        if !to.epochs().await?.is_empty() {
            return Err(to.failed("it already has checkpoints, and a copy needs a place of its own"));
        }
        let mut tries = 0;
        loop {
            let manifest = match epoch {
                Some(epoch) => self.manifest(epoch).await?,
                None => self.newest().await?,
            };
            let Err(error) = self.copy_all(&manifest, to).await else { return Ok(manifest) };
            let mut cleared = Ok(());
            for file in manifest.files() {
                cleared = cleared.and(to.delete(&to.path(file)).await);
            }
            if let Err(left) = cleared {
                return Err(error.with(&format!("the files already copied could not be deleted: {left}")));
            }
            tries += 1;
            if epoch.is_some() || tries == TRIES || self.epochs().await?.contains(&manifest.epoch) {
                return Err(error);
            }
        }
    }

    async fn newest(&self) -> Result<Manifest, StoreError> {
        let RestoreCandidates { manifests, damaged } = self.restore_candidates().await?;
        let newest = manifests.into_iter().next();
        let newest = newest.ok_or_else(|| self.damaged("it has no checkpoint to copy".into()))?;
        match damaged.into_iter().find(|(epoch, _)| *epoch > newest.epoch) {
            Some((epoch, reason)) => {
                Err(self.damaged(format!("the newest, {epoch}, is damaged ({reason}): choose the epoch to copy")))
            }
            None => Ok(newest),
        }
    }

    async fn copy_all(&self, manifest: &Manifest, to: &CheckpointStore) -> Result<(), StoreError> {
        for file in manifest.files() {
            let path = to.path(file);
            let found = self.objects.get(&self.path(file)).await.map_err(|error| self.unreadable(error))?;
            let bytes = found.meta.size;
            to.upload(&path, bytes, found.into_stream().map_err(|error| self.unreadable(error))).await?;
        }
        to.verify(manifest).await?;
        to.put_manifest(manifest).await
    }
}
