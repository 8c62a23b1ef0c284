//! Objects that are too large for one request are uploaded in parts, and appear when all parts are there. A single
//! request would have to finish within the client's timeout, and would be limited by the store's maximum size.

use std::error::Error as _;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStoreExt, PutPayloadMut};
use tokio::task::JoinSet;

use super::{CheckpointStore, StoreError};

/// The size of all parts but the last: stores do not accept less than 5 MiB, and a small part is sent in time even over
/// a slow network.
pub(super) const PART_BYTES: u64 = 5 << 20;
/// Maximum number of parts of an object, which is Amazon's limit. Larger objects have larger parts.
const PARTS_MAX: u64 = 10_000;
/// Parts of one object that are sent concurrently.
const UNDER_WAY: usize = 4;

impl CheckpointStore {
    /// Writes an object of `bytes` bytes, which arrive in pieces. If this fails, the object does not exist, and its
    /// parts are deleted if the store still responds.
    ///
    /// # Errors
    /// Those of the store; those of `pieces`.
    pub(super) async fn upload(
        &self,
        path: &Path,
        bytes: u64,
        pieces: impl Stream<Item = Result<Bytes, StoreError>>,
    ) -> Result<(), StoreError> {
        let mut upload = self.objects.put_multipart(path).await.map_err(|error| self.not_sent(&error))?;
        let part_bytes = PART_BYTES.max(bytes.div_ceil(PARTS_MAX)) as usize;
        // Separate tasks, so that they continue while this one waits for pieces.
        let mut under_way = JoinSet::new();
        let mut done = self.send(&mut under_way, &mut *upload, part_bytes, pieces).await;
        if done.is_ok()
            && let Err(error) = upload.complete().await
        {
            // If the response to a completed upload is lost, the store does not know the upload when the request is
            // repeated.
            let is_there = self.objects.head(path).await.is_ok_and(|object| object.size == bytes);
            done = if is_there { Ok(()) } else { Err(self.not_sent(&error)) };
        }
        if done.is_err() {
            under_way.shutdown().await;
            // The first error is reported.
            let _ = upload.abort().await;
        }
        done?;
        self.sync(path).await
    }

    /// Sends the parts.
    async fn send(
        &self,
        under_way: &mut JoinSet<object_store::Result<()>>,
        upload: &mut dyn MultipartUpload,
        part_bytes: usize,
        pieces: impl Stream<Item = Result<Bytes, StoreError>>,
    ) -> Result<(), StoreError> {
        let (mut pieces, mut part) = (pin!(pieces), PutPayloadMut::new());
        while let Some(mut piece) = pieces.try_next().await? {
            while !piece.is_empty() {
                let room = part_bytes - part.content_length();
                part.push(piece.split_to(room.min(piece.len())));
                if part.content_length() == part_bytes {
                    self.wait(under_way, UNDER_WAY).await?;
                    under_way.spawn(upload.put_part(std::mem::take(&mut part).into()));
                }
            }
        }
        if !part.is_empty() {
            under_way.spawn(upload.put_part(part.into()));
        }
        self.wait(under_way, 1).await
    }

    /// Waits until fewer than `limit` parts are being sent.
    async fn wait(&self, under_way: &mut JoinSet<object_store::Result<()>>, limit: usize) -> Result<(), StoreError> {
        while under_way.len() >= limit
            && let Some(sent) = under_way.join_next().await
        {
            sent.map_err(|error| self.failed(error))?.map_err(|error| self.not_sent(&error))?;
        }
        Ok(())
    }

    /// Why bytes could not be sent to the store, with the remedy if the client's timeout was too short.
    pub(super) fn not_sent(&self, error: &Error) -> StoreError {
        let mut texts = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            texts.push(cause.to_string());
            source = cause.source();
        }
        let mut reason = texts[0].clone();
        if texts.iter().any(|text| text.contains("timed out")) {
            reason.push_str(
                "; the request timed out: if the network is slow, raise the limit, storage_options={\"timeout\": \"2 \
                 minutes\"}",
            );
        }
        self.failed(reason)
    }
}
