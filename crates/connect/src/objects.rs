//! Object stores: what a URL stands for is known to who asks for a connector.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore};
use tidemill_dataflow::TaskError;

/// How long a store may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between tries, each of which the store's client has tried several times.
const PAUSE: Duration = Duration::from_secs(1);

/// A place in an object store.
#[derive(Clone)]
pub struct ObjectFolder {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The same, for objects in parts.
    pub uploads: Arc<dyn MultipartStore>,
    /// What keys begin with, or an object.
    pub path: Path,
    /// The store's URL, for people, such as `s3://bucket`.
    pub name: String,
}

/// Opens what a URL stands for, with options; else says in words why not.
pub type OpenObjects = dyn Fn(&str, &BTreeMap<String, String>) -> Result<ObjectFolder, String> + Send + Sync;

/// For who has no object stores.
///
/// # Errors
/// Always.
pub fn no_objects(url: &str, _: &BTreeMap<String, String>) -> Result<ObjectFolder, String> {
    Err(format!("`path` is {url:?}, but it must be a local path"))
}

impl fmt::Debug for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.path)
    }
}

impl ObjectFolder {
    /// The URL of an object, for people.
    pub(crate) fn shown(&self, path: &Path) -> String {
        format!("{}/{path}", self.name)
    }

    /// Asks the store, again and again while it may be away.
    ///
    /// # Errors
    /// Naming the object.
    pub(crate) async fn ask<T, F>(&self, path: &Path, request: impl Fn() -> F) -> Result<T, TaskError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let begun = Instant::now();
        loop {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) if may_pass(&error) && begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(format!("{}: {error}", self.shown(path)).into()),
            }
        }
    }
}

/// Whether the store may be away, and come back.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. })
        && !["403 Forbidden", "401 Unauthorized", "NoSuchBucket"].iter().any(|text| error.to_string().contains(text))
}
