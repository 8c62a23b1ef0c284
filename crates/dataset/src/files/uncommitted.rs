//! A store in which written data do not appear: objects are uploaded in parts, and the last step, which assembles the
//! object, is left to the commit. (Hadoop's S3A "magic" committer does the same.)
//!
//! Until then the parts are invisible. If the process dies, the store's own rules clean up unfinished uploads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tidemill_storage::{ObjectFolder, OpenStore, UploadedParts};
use tokio::sync::RwLock;

use crate::error::DataSetError;

/// Maximum number of concurrent requests to complete uploads, or to remove uploads and objects.
const REQUESTS_MAX: usize = 32;

/// Makes all objects appear; stops at the first error.
pub(crate) async fn complete(at: &ObjectFolder, uploads: &[UploadedParts]) -> Result<(), (Path, Error)> {
    futures::stream::iter(uploads.to_vec())
        .map(|uploaded| async move {
            let path = &uploaded.path;
            match at.complete(&uploaded).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    let source = "the store has removed its upload".into();
                    Err((path.clone(), Error::Generic { store: "upload", source }))
                }
                Err(error) => Err((path.clone(), error)),
            }
        })
        .buffer_unordered(REQUESTS_MAX)
        .try_collect()
        .await
}

/// Removes uploads, as far as the store allows.
pub(crate) async fn abort(at: &ObjectFolder, uploads: Vec<UploadedParts>) {
    let abort = |uploaded: UploadedParts| async move {
        // The original error is the one to report, and remaining uploads are invisible.
        let _ = at.uploads.abort_multipart(&uploaded.path, &uploaded.upload).await;
    };
    futures::stream::iter(uploads).for_each_concurrent(REQUESTS_MAX, abort).await;
}

/// A store that holds back everything written to it.
pub(crate) struct UncommittedStore {
    at: ObjectFolder,
    held: Arc<Mutex<UncommittedObjects>>,
    /// Read-locked by every upload while the store creates it; write-locked to wait for them.
    beginnings: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct UncommittedObjects {
    uploads: BTreeMap<u64, UncommittedObject>,
    begun: u64,
    /// The store's first error; DataFusion does not always pass it on.
    fault: Option<DataSetError>,
    /// No more uploads are accepted: late ones are removed at once.
    closed: bool,
}

#[derive(Debug)]
struct UncommittedObject {
    path: Path,
    id: MultipartId,
    parts: Vec<Option<String>>,
    /// Whether its writer has finished it.
    whole: bool,
}

impl UncommittedStore {
    pub(crate) fn new(at: &ObjectFolder) -> Self {
        UncommittedStore { at: at.clone(), held: Arc::default(), beginnings: Arc::default() }
    }

    /// The first error of the store.
    pub(crate) fn fault(&self) -> Option<DataSetError> {
        self.held().fault.clone()
    }

    /// Returns everything that has been written. Removes unfinished uploads.
    pub(crate) async fn take(&self) -> Vec<UploadedParts> {
        let entries = std::mem::take(&mut self.held().uploads);
        let (whole, rest): (Vec<UncommittedObject>, Vec<UncommittedObject>) =
            entries.into_values().partition(|entry| entry.whole);
        abort(&self.at, rest.into_iter().map(UncommittedObject::into_upload).collect()).await;
        whole.into_iter().map(UncommittedObject::into_upload).collect()
    }

    /// Removes everything, including uploads that writers may still begin.
    pub(crate) fn discard(&self) -> impl Future<Output = ()> + Send + use<> {
        let entries = {
            let mut held = self.held();
            held.closed = true;
            std::mem::take(&mut held.uploads)
        };
        let (at, beginnings) = (self.at.clone(), Arc::clone(&self.beginnings));
        async move {
            // Uploads that are being created are removed as soon as they exist.
            drop(beginnings.write().await);
            abort(&at, entries.into_values().map(UncommittedObject::into_upload).collect()).await;
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, UncommittedObjects> {
        self.held.lock().expect("nothing panics with it locked")
    }

    async fn begin(&self, path: &Path) -> Result<UncommittedUpload> {
        let under_way = Arc::clone(&self.beginnings).read_owned().await;
        if self.held().closed {
            return Err(given_up());
        }
        let (at, held, path) = (self.at.clone(), Arc::clone(&self.held), path.clone());
        // A separate task: a writer that is dropped while the store creates the upload would leave one that no code
        // knows about.
        let begun = tokio::spawn(async move {
            let _under_way = under_way;
            let made = at.uploads.create_multipart(&path).await;
            let id = made.inspect_err(|error| note(&at.store, &held, &path, error))?;
            let entry = UncommittedObject { path: path.clone(), id: id.clone(), parts: Vec::new(), whole: false };
            let number = {
                let mut held = held.lock().expect("nothing panics with it locked");
                let number = held.begun;
                held.begun += 1;
                if held.closed { None } else { Some((number, held.uploads.insert(number, entry))) }
            };
            let Some((number, _)) = number else {
                let _ = at.uploads.abort_multipart(&path, &id).await;
                return Err(given_up());
            };
            Ok(UncommittedUpload { at, held, number, path, id, parts: 0 })
        });
        begun.await.unwrap_or_else(|error| Err(Error::Generic { store: "held", source: Box::new(error) }))
    }
}

fn given_up() -> Error {
    Error::Generic { store: "held", source: "the write was aborted".into() }
}

impl UncommittedObject {
    fn into_upload(self) -> UploadedParts {
        UploadedParts { path: self.path, upload: self.id, parts: self.parts.into_iter().flatten().collect() }
    }
}

impl fmt::Debug for UncommittedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uncommitted writes to {:?}", self.at.store)
    }
}

impl fmt::Display for UncommittedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for UncommittedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        let mut upload = self.begin(location).await?;
        upload.put_part(payload).await?;
        upload.complete().await
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(self.begin(location).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.at.store.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.at.store.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.at.store.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.at.store.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.at.store.objects.copy_opts(from, to, options).await
    }
}

/// An upload that is never completed here.
struct UncommittedUpload {
    at: ObjectFolder,
    held: Arc<Mutex<UncommittedObjects>>,
    /// The number of its entry; some stores give all uploads the same id.
    number: u64,
    path: Path,
    id: MultipartId,
    parts: usize,
}

impl fmt::Debug for UncommittedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upload of {}", self.path)
    }
}

fn note(store: &OpenStore, held: &Mutex<UncommittedObjects>, path: &Path, error: &Error) {
    let mut held = held.lock().expect("nothing panics with it locked");
    held.fault.get_or_insert_with(|| store.failed(path, error).into());
}

/// Changes the entry of an upload, unless the write has been abandoned.
fn change(held: &Mutex<UncommittedObjects>, number: u64, with: impl FnOnce(&mut UncommittedObject)) {
    let mut held = held.lock().expect("nothing panics with it locked");
    if let Some(entry) = held.uploads.get_mut(&number) {
        with(entry);
    }
}

#[async_trait]
impl MultipartUpload for UncommittedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.parts;
        self.parts += 1;
        change(&self.held, self.number, |entry| entry.parts.push(None));
        let (at, held, number) = (self.at.clone(), Arc::clone(&self.held), self.number);
        let (path, id) = (self.path.clone(), self.id.clone());
        Box::pin(async move {
            let made = at
                .uploads
                .put_part(&path, &id, part, data)
                .await
                .inspect_err(|error| note(&at.store, &held, &path, error))?;
            change(&held, number, |entry| entry.parts[part] = Some(made.content_id));
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        change(&self.held, self.number, |entry| entry.whole = true);
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        self.held.lock().expect("nothing panics with it locked").uploads.remove(&self.number);
        self.at.uploads.abort_multipart(&self.path, &self.id).await
    }
}
