//! An open store, places in it, and what its errors mean.

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

/// How long a store may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between tries, each of which the store's client has tried several times.
const PAUSE: Duration = Duration::from_secs(1);

/// A store that is open.
pub struct OpenStore {
    /// What people call it, such as `s3://bucket`.
    pub name: String,
    /// Names the store and its options: what DataFusion's sessions call it.
    pub url: Url,
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// Its uploads in parts; `None` where nothing can be written, as over HTTP.
    pub uploads: Option<Arc<dyn MultipartStore>>,
    /// Whether other processes see what is in it.
    pub shared: bool,
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl OpenStore {
    /// The URL of an object, for people.
    pub fn shown(&self, path: &Path) -> String {
        format!("{}/{path}", self.name)
    }

    /// The URL of an object, or of a folder of objects, below [`OpenStore::url`].
    pub fn url_of(&self, path: &Path, is_folder: bool) -> Url {
        within(&self.url, path, is_folder)
    }

    /// An error of the store about `path`.
    pub fn failed(&self, path: &Path, error: &Error) -> StorageError {
        let shown = self.shown(path);
        StorageError::Io(match error {
            error if is_bucket(error) => format!("{shown}: there is no such bucket"),
            Error::NotFound { .. } => format!("there is no {shown}"),
            error if is_denied(error) => format!(
                "{shown}: access denied; check the credentials, in the environment or in storage_options ({})",
                redact_passwords(&one_line(&error.to_string()))
            ),
            // It may name its own URL.
            other => redact_passwords(&format!("{shown}: {}", one_line(&other.to_string()))),
        })
    }
}

/// Whether the store does not let us. Errors of listings are told by their text only.
pub fn is_denied(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || text.contains("403 Forbidden")
        || text.contains("401 Unauthorized")
}

/// Whether it is the bucket that is not there.
pub fn is_bucket(error: &Error) -> bool {
    let text = error.to_string();
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"].iter().any(|name| text.contains(name))
}

/// What a URL stands for.
#[derive(Debug, Clone)]
pub struct StoreLocation {
    /// The store.
    pub store: Arc<OpenStore>,
    /// An object, or what keys begin with.
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
    /// The same as a place to write to; `None` where the store cannot be written to.
    pub fn folder(&self) -> Option<ObjectFolder> {
        let uploads = Arc::clone(self.store.uploads.as_ref()?);
        Some(ObjectFolder { store: Arc::clone(&self.store), uploads, path: self.path.clone() })
    }
}

/// A place in a store that can be written to.
#[derive(Clone)]
pub struct ObjectFolder {
    /// The store.
    pub store: Arc<OpenStore>,
    /// Its uploads in parts.
    pub uploads: Arc<dyn MultipartStore>,
    /// An object, or what keys begin with.
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
    /// How many bytes an object has; `None` if there is none.
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

    /// Sends a request about `path`, again and again while the store may be away, for a minute.
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

/// Whether the store may be away, and come back.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. }) && !is_denied(error) && !is_bucket(error)
}
