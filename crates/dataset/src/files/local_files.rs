//! Local files written by DataFusion through its store for the local disk. This wrapper remembers the first error of
//! the disk, and creates no more files once it is closed. DataFusion itself only says that something failed when files
//! were finished, and some of its tasks continue after an error.

use std::error::Error as _;
use std::fmt;
use std::future::ready;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tidemill_storage::within;
use tokio::sync::RwLock;
use url::Url;

use crate::engine::Engine;
use crate::error::DataSetError;

/// A folder with its own URL for the lifetime of this value.
pub(crate) struct LocalFolder {
    pub(crate) url: Url,
    files: Arc<LocalFiles>,
    runtime: Arc<RuntimeEnv>,
}

impl LocalFolder {
    /// The URL is the same on all workers.
    pub(crate) fn open(engine: &Engine, folder: &FilePath) -> Result<Self, DataSetError> {
        let wrong = |error: String| DataSetError::Io(format!("{}: {error}", folder.display()));
        let path = Path::from_absolute_path(folder).map_err(|error| wrong(error.to_string()))?;
        let mut hasher = DefaultHasher::new();
        folder.hash(&mut hasher);
        let base = Url::parse(&format!("tidemill-folder-{:016x}://disk", hasher.finish()));
        let base = base.map_err(|error| wrong(error.to_string()))?;
        let (files, runtime) = (Arc::new(LocalFiles::default()), engine.context().runtime_env());
        runtime.register_object_store(&base, Arc::clone(&files) as _);
        Ok(LocalFolder { url: within(&base, &path, true), files, runtime })
    }

    /// Waits for files that are being written; after that, none are. Returns what could not be written first, and why.
    pub(crate) async fn close(&self) -> Option<DataSetError> {
        let gate = &self.files.gate;
        gate.is_closed.store(true, Ordering::SeqCst);
        let _nobody = gate.making.write().await;
        // Later writers find it closed, which is not an error of the disk.
        self.files.fault.get().cloned()
    }
}

impl Drop for LocalFolder {
    fn drop(&mut self) {
        // A canceled write has not closed it, and waiting for files in progress is impossible here.
        self.files.gate.is_closed.store(true, Ordering::SeqCst);
        let _ = self.runtime.deregister_object_store(&self.url);
    }
}

#[derive(Debug, Default)]
struct LocalFiles {
    disk: Arc<LocalFileSystem>,
    fault: Arc<OnceLock<DataSetError>>,
    gate: Arc<FileGate>,
}

/// Guards the creation of files until it is closed.
#[derive(Debug, Default)]
struct FileGate {
    /// Read-locked while a file is being written.
    making: RwLock<()>,
    is_closed: AtomicBool,
}

/// Runs the creation of a file to completion, even if its caller is canceled, or not at all.
async fn make<T: Send + 'static>(
    gate: &Arc<FileGate>,
    path: &Path,
    making: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (gate, path) = (Arc::clone(gate), path.clone());
    let made = tokio::spawn(async move {
        let _making = gate.making.read().await;
        if gate.is_closed.load(Ordering::SeqCst) {
            return Err(over(&path, "the write that it belongs to has failed"));
        }
        making.await
    });
    made.await?
}

fn over(path: &Path, why: &'static str) -> Error {
    Error::Precondition { path: path.to_string(), source: why.into() }
}

fn note(fault: &OnceLock<DataSetError>, path: &Path, error: &Error) {
    // The error of the disk, without the names of the steps that it passed through.
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|cause| cause.source()) {
        cause = Some(deeper);
    }
    let told = cause.map_or_else(|| error.to_string(), ToString::to_string);
    // Only the first error counts; later ones may be consequences.
    let _ = fault.set(DataSetError::Io(format!("/{path}: {told}")));
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("local files")
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (disk, path) = (Arc::clone(&self.disk), location.clone());
        let put = make(&self.gate, location, async move { disk.put_opts(&path, payload, options).await });
        put.await.inspect_err(|error| note(&self.fault, location, error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (disk, path) = (Arc::clone(&self.disk), location.clone());
        let begun = make(&self.gate, location, async move { disk.put_multipart_opts(&path, options).await });
        let upload = begun.await.inspect_err(|error| note(&self.fault, location, error))?;
        let (fault, gate) = (Arc::clone(&self.fault), Arc::clone(&self.gate));
        Ok(Box::new(LocalUpload { upload: Some(upload), path: location.clone(), fault, gate }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.disk.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.disk.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.disk.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.disk.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.disk.copy_opts(from, to, options).await
    }
}

const ENDED: &str = "the file is complete or was abandoned";

/// A long file in progress.
#[derive(Debug)]
struct LocalUpload {
    /// Set until it is complete.
    upload: Option<Box<dyn MultipartUpload>>,
    path: Path,
    fault: Arc<OnceLock<DataSetError>>,
    gate: Arc<FileGate>,
}

#[async_trait]
impl MultipartUpload for LocalUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(upload) = &mut self.upload else { return Box::pin(ready(Err(over(&self.path, ENDED)))) };
        let (part, path, fault) = (upload.put_part(data), self.path.clone(), Arc::clone(&self.fault));
        Box::pin(async move { part.await.inspect_err(|error| note(&fault, &path, error)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let mut upload = self.upload.take().ok_or_else(|| over(&self.path, ENDED))?;
        let completed = make(&self.gate, &self.path, async move { upload.complete().await });
        completed.await.inspect_err(|error| note(&self.fault, &self.path, error))
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.take().ok_or_else(|| over(&self.path, ENDED))?.abort().await
    }
}
