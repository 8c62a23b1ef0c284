//! Rows into an object store, exactly once: each copy makes an object for each checkpoint.
//!
//! | when      | the object                                             |
//! |-----------|--------------------------------------------------------|
//! | rows come | an upload in parts, which nobody sees                  |
//! | *prepare* | the last part; what the parts are is in the checkpoint |
//! | *commit*  | the upload is completed: `part-COPY-UNIQUE.jsonl`      |
//!
//! Its name is its own, so where an upload is gone and the object is there, it was completed before. What a run that
//! fails has begun stays, unseen, until the store's own rules remove uploads that do not end.

use std::collections::BTreeMap;
use std::future::ready;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_storage::ObjectFolder;

use super::folders::PartitionFolders;
use super::prepared;
use crate::encode::{FileEncoder, RowFormat};
use crate::hash;

/// Of a part, but for the last one: stores take none that are smaller than 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// What a checkpoint keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UploadedFile {
    object: String,
    upload: String,
    /// What the store calls the parts, in order.
    parts: Vec<String>,
}

/// The sink of one copy.
pub(super) struct UploadSink {
    objects: ObjectFolder,
    format: RowFormat,
    folders: PartitionFolders,
    /// What names of objects begin with: the option, the copy, the run.
    name: String,
    /// Objects of this run so far.
    made: u64,
    /// By folder.
    open: BTreeMap<String, OpenUpload>,
}

struct OpenUpload {
    path: Path,
    encoder: FileEncoder,
    begun: Option<UploadedFile>,
}

impl UploadSink {
    pub(super) fn new(
        objects: ObjectFolder,
        format: RowFormat,
        folders: &PartitionFolders,
        prefix: &str,
        context: &TaskContext,
    ) -> Self {
        let name = format!("{prefix}-{}-{}", context.copy(), hash::unique());
        UploadSink { objects, format, folders: folders.clone(), name, made: 0, open: BTreeMap::new() }
    }

    async fn write(&mut self, rows: RecordBatch) -> Result<(), TaskError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        for (folder, rows) in self.folders.split(rows)? {
            if !self.open.contains_key(&folder) {
                self.made += 1;
                let mut path = self.objects.path.clone();
                for part in folder.split('/').filter(|part| !part.is_empty()) {
                    path = path.join(part);
                }
                let path = path.join(format!("{}{}.{}", self.name, self.made, self.format.ending()));
                let encoder = FileEncoder::new(self.format, &self.folders.schema)?;
                self.open.insert(folder.clone(), OpenUpload { path, encoder, begun: None });
            }
            let open = self.open.get_mut(&folder).expect("just put there");
            open.encoder.write(&rows)?;
            if open.encoder.ready() >= PART_BYTES {
                open.put(&self.objects).await?;
            }
        }
        Ok(())
    }

    async fn prepare(&mut self) -> Result<Bytes, TaskError> {
        let mut all = Vec::new();
        for (_, mut open) in std::mem::take(&mut self.open) {
            open.encoder.finish()?;
            if open.encoder.ready() > 0 {
                open.put(&self.objects).await?;
            }
            all.extend(open.begun);
        }
        Ok(prepared::encode(all)?)
    }
}

impl OpenUpload {
    /// Uploads what there is.
    async fn put(&mut self, objects: &ObjectFolder) -> Result<(), TaskError> {
        let path = &self.path;
        let open = match &mut self.begun {
            Some(open) => open,
            None => {
                let upload = objects.ask(path, || objects.uploads.create_multipart(path)).await?;
                self.begun.insert(UploadedFile { object: path.to_string(), upload, parts: Vec::new() })
            }
        };
        let (bytes, at) = (Bytes::from(self.encoder.take()), open.parts.len());
        let part = objects.ask(path, || objects.uploads.put_part(path, &open.upload, at, bytes.clone().into())).await?;
        open.parts.push(part.content_id);
        Ok(())
    }
}

impl Sink for UploadSink {
    /// A place that cannot be written to is found out before there are rows.
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            let (objects, path) = (&self.objects, self.objects.path.clone().join(format!("{}0", self.name)));
            let upload = objects.ask(&path, || objects.uploads.create_multipart(&path)).await?;
            Ok(objects.ask(&path, || objects.uploads.abort_multipart(&path, &upload)).await?)
        })
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(UploadSink::write(self, rows))
    }

    fn prepare(&mut self, _: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(UploadSink::prepare(self))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        match prepared::decode(&prepared) {
            Ok(all) => Box::pin(async move {
                for uploaded in all {
                    commit(&self.objects, uploaded).await?;
                }
                Ok(())
            }),
            Err(error) => {
                let text = format!("the checkpoint has data that no object sink prepared: {error}");
                Box::pin(ready(Err(text.into())))
            }
        }
    }
}

async fn commit(objects: &ObjectFolder, uploaded: UploadedFile) -> Result<(), TaskError> {
    let UploadedFile { object, upload, parts } = uploaded;
    let path = Path::parse(object)?;
    let parts: Vec<PartId> = parts.into_iter().map(|content_id| PartId { content_id }).collect();
    let complete = async || match objects.uploads.complete_multipart(&path, &upload, parts.clone()).await {
        Ok(_) => Ok(true),
        // Perhaps it was completed before.
        Err(error) => match objects.store.objects.head(&path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) if is_gone(&error) => Ok(false),
            Err(_) => Err(error),
        },
    };
    match objects.ask(&path, complete).await? {
        true => Ok(()),
        false => Err(format!(
            "{}: neither the upload nor the object exists: rows of the checkpoint are lost",
            objects.store.shown(&path)
        )
        .into()),
    }
}

fn is_gone(error: &Error) -> bool {
    let told = ["NoSuchUpload", "not found"].iter().any(|text| error.to_string().contains(text));
    told || matches!(error, Error::NotFound { .. })
}

#[cfg(test)]
mod tests {
    use tidemill_storage::{ObjectStores, StorageOptions};

    use super::*;

    /// A commit that is done again must change nothing, and one of what is lost must not pass for done.
    #[tokio::test]
    async fn commits_may_be_repeated() {
        let objects =
            ObjectStores::default().locate("memory:///out", &StorageOptions::new()).unwrap().folder().unwrap();
        let path = Path::from("out/part-0-u1.jsonl");
        let upload = objects.uploads.create_multipart(&path).await.unwrap();
        let part = objects.uploads.put_part(&path, &upload, 0, Bytes::from_static(b"x\n").into()).await.unwrap();
        let uploaded = UploadedFile { object: path.to_string(), upload, parts: vec![part.content_id] };
        assert!(objects.store.objects.head(&path).await.is_err(), "nothing appears before the checkpoint is durable");
        commit(&objects, uploaded.clone()).await.unwrap();
        commit(&objects, uploaded.clone()).await.unwrap();
        assert_eq!(objects.store.objects.get(&path).await.unwrap().bytes().await.unwrap(), "x\n");
        objects.store.objects.delete(&path).await.unwrap();
        assert!(commit(&objects, uploaded).await.unwrap_err().to_string().contains("are lost"));
    }
}
