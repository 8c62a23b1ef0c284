//! Local files as DataFusion writes them: by its store for the local disk, which here keeps what the disk first refused. DataFusion itself
//! tells only that something went wrong when files were ended.

use std::error::Error as _;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path as FilePath;
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
use url::Url;

use crate::engine::Engine;
use crate::error::DataSetError;
use crate::stores::within;

/// A folder under a URL of its own, as long as this is there.
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
        let (files, runtime) = (Arc::<LocalFiles>::default(), engine.context().runtime_env());
        runtime.register_object_store(&base, Arc::clone(&files) as _);
        Ok(LocalFolder { url: within(&base, &path, true), files, runtime })
    }

    /// What could not be written first, and why.
    pub(crate) fn fault(&self) -> Option<DataSetError> {
        self.files.fault.get().cloned()
    }
}

impl Drop for LocalFolder {
    fn drop(&mut self) {
        let _ = self.runtime.deregister_object_store(&self.url);
    }
}

#[derive(Debug, Default)]
struct LocalFiles {
    disk: LocalFileSystem,
    fault: Arc<OnceLock<DataSetError>>,
}

fn note(fault: &OnceLock<DataSetError>, path: &Path, error: &Error) {
    // What the disk said, without the names of the steps that it went through.
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|cause| cause.source()) {
        cause = Some(deeper);
    }
    let told = cause.map_or_else(|| error.to_string(), ToString::to_string);
    // Only the first one counts; what follows may follow from it.
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
        let put = self.disk.put_opts(location, payload, options).await;
        put.inspect_err(|error| note(&self.fault, location, error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.disk.put_multipart_opts(location, options).await;
        let upload = begun.inspect_err(|error| note(&self.fault, location, error))?;
        Ok(Box::new(LocalUpload { upload, path: location.clone(), fault: Arc::clone(&self.fault) }))
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

/// A long file under way.
#[derive(Debug)]
struct LocalUpload {
    upload: Box<dyn MultipartUpload>,
    path: Path,
    fault: Arc<OnceLock<DataSetError>>,
}

#[async_trait]
impl MultipartUpload for LocalUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, path, fault) = (self.upload.put_part(data), self.path.clone(), Arc::clone(&self.fault));
        Box::pin(async move { part.await.inspect_err(|error| note(&fault, &path, error)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await.inspect_err(|error| note(&self.fault, &self.path, error))
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
