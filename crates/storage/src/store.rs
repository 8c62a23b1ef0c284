//! An open store, places in it, and the meaning of its errors.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use url::Url;

use crate::address::within;
use crate::error::StorageError;
use crate::shown::{one_line, redact_passwords};

/// How long a store may be unreachable.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between attempts; within each, the store's client retries several times.
const PAUSE: Duration = Duration::from_secs(1);

/// An open store.
pub struct OpenStore {
    /// Its name for users, such as `s3://bucket`.
    pub name: String,
    /// Identifies the store and its options, also in DataFusion's sessions.
    pub url: Url,
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// Its multipart uploads; `None` if the store is read-only, as over HTTP.
    pub uploads: Option<Arc<dyn MultipartStore>>,
    /// Whether other processes see its contents.
    pub shared: bool,
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl OpenStore {
    /// The URL of an object, for users.
    pub fn shown(&self, path: &Path) -> String {
        format!("{}/{path}", self.name)
    }

    /// The URL of an object, or of a folder of objects, below [`OpenStore::url`].
    pub fn url_of(&self, path: &Path, is_folder: bool) -> Url {
        within(&self.url, path, is_folder)
    }

    /// Converts an error of the store about `path`.
    pub fn failed(&self, path: &Path, error: &Error) -> StorageError {
        let shown = self.shown(path);
        StorageError::Io(match error {
            error if is_bucket(error) => format!("{shown}: there is no such bucket"),
            Error::NotFound { .. } => format!("there is no {shown}"),
            error if is_denied(error) => format!(
                "{shown}: access denied; check the credentials, in the environment or in storage_options ({})",
                redact_passwords(&one_line(&error.to_string()))
            ),
            // The message may contain the store's internal URL.
            other => redact_passwords(&format!("{shown}: {}", one_line(&other.to_string()))),
        })
    }
}

/// Whether the store denies access. Listing errors show it only in their text.
pub fn is_denied(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || text.contains("403 Forbidden")
        || text.contains("401 Unauthorized")
}

/// Whether the bucket does not exist.
pub fn is_bucket(error: &Error) -> bool {
    let text = error.to_string();
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"].iter().any(|name| text.contains(name))
}

/// The location that a URL refers to.
#[derive(Debug, Clone)]
pub struct StoreLocation {
    /// The store.
    pub store: Arc<OpenStore>,
    /// An object, or a prefix of keys.
    pub path: Path,
    /// Whether the URL ends with a slash.
    pub is_folder: bool,
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.shown(&self.path))
    }
}

impl StoreLocation {
    /// The same as a writable place; `None` if the store is read-only.
    pub fn folder(&self) -> Option<ObjectFolder> {
        let uploads = Arc::clone(self.store.uploads.as_ref()?);
        Some(ObjectFolder { store: Arc::clone(&self.store), uploads, path: self.path.clone() })
    }
}

/// A writable place in a store.
#[derive(Clone)]
pub struct ObjectFolder {
    /// The store.
    pub store: Arc<OpenStore>,
    /// Its multipart uploads.
    pub uploads: Arc<dyn MultipartStore>,
    /// An object, or a prefix of keys.
    pub path: Path,
}

impl fmt::Debug for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.shown(&self.path))
    }
}

impl fmt::Display for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.shown(&self.path))
    }
}

impl ObjectFolder {
    /// The size of an object in bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`ObjectFolder::ask`].
    pub async fn size(&self, path: &Path) -> Result<Option<u64>, StorageError> {
        let head = async || match self.store.objects.head(path).await {
            Err(Error::NotFound { .. }) => Ok(None),
            found => found.map(|object| Some(object.size)),
        };
        self.ask(path, head).await
    }

    /// Sends a request about `path`, and retries for up to a minute while the store may be unreachable.
    ///
    /// # Errors
    /// `Io`, naming the object.
    pub async fn ask<T, F>(&self, path: &Path, request: impl Fn() -> F) -> Result<T, StorageError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let begun = Instant::now();
        loop {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) if may_pass(&error) && begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(self.store.failed(path, &error)),
            }
        }
    }
}

/// Whether the error may be temporary.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. }) && !is_denied(error) && !is_bucket(error)
}
