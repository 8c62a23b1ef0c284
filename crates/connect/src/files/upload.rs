//! Writes rows to an object store, exactly once: each copy makes one object per checkpoint.
//!
//! | when      | the object                                             |
//! |-----------|--------------------------------------------------------|
//! | rows come | a multipart upload, which is invisible                 |
//! | *prepare* | the last part; the checkpoint contains the part list   |
//! | *commit*  | the upload is completed: `part-COPY-UNIQUE.jsonl`      |
//!
//! Its name is unique, so if the upload is gone and the object exists, the upload was completed earlier. Uploads of a
//! failed run remain, invisible, until the store's own rules remove unfinished uploads.

use std::collections::BTreeMap;
use std::future::ready;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::path::Path;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};
use tidemill_storage::{ObjectFolder, UploadedParts};

use super::folders::PartitionFolders;
use super::prepared;
use crate::encode::{FileEncoder, RowFormat};
use crate::hash;

/// Size of a part, except for the last: stores reject parts below 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// The sink of one copy.
pub(super) struct UploadSink {
    objects: ObjectFolder,
    format: RowFormat,
    folders: PartitionFolders,
    /// The prefix of object names: the option, the copy and the run.
    name: String,
    /// Number of objects of this run so far.
    made: u64,
    /// Open uploads by folder.
    open: BTreeMap<String, OpenUpload>,
}

struct OpenUpload {
    path: Path,
    encoder: FileEncoder,
    begun: Option<UploadedParts>,
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
    /// Uploads what is ready.
    async fn put(&mut self, objects: &ObjectFolder) -> Result<(), TaskError> {
        let path = &self.path;
        let open = match &mut self.begun {
            Some(open) => open,
            None => {
                let upload = objects.ask(path, || objects.uploads.create_multipart(path)).await?;
                self.begun.insert(UploadedParts { path: path.clone(), upload, parts: Vec::new() })
            }
        };
        let (bytes, at) = (Bytes::from(self.encoder.take()), open.parts.len());
        let part = objects.ask(path, || objects.uploads.put_part(path, &open.upload, at, bytes.clone().into())).await?;
        open.parts.push(part.content_id);
        Ok(())
    }
}

impl Sink for UploadSink {
    /// Detects a place that is not writable before there are rows.
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
        match prepared::decode::<UploadedParts>(&prepared) {
            Ok(all) => Box::pin(async move {
                for uploaded in &all {
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

async fn commit(objects: &ObjectFolder, uploaded: &UploadedParts) -> Result<(), TaskError> {
    let path = &uploaded.path;
    if objects.ask(path, || objects.complete(uploaded)).await? {
        return Ok(());
    }
    let object = objects.store.shown(path);
    Err(format!("{object}: neither the upload nor the object exists: rows of the checkpoint are lost").into())
}
