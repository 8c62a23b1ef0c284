//! Lists files and objects.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, future, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;
use tidemill_dataflow::TaskError;
use tidemill_storage::{ObjectFolder, ObjectStores, StorageOptions, local_path, redact_passwords};

use super::tail::FileBytes;
use crate::ListFiles;
use crate::read_ahead::PoolWaiter;

/// Maximum number of concurrent requests.
const ASKED_AT_ONCE: usize = 32;

/// How users specify files.
#[derive(Clone, Debug)]
pub(crate) enum FilePattern {
    /// A file, or a folder with everything below it.
    Path(PathBuf),
    /// All files that match.
    Glob(String),
    /// An object, or all objects whose keys begin with it and a slash.
    Objects(ObjectFolder),
}

impl FilePattern {
    /// A path with `*`, `?` or `[` is a glob, unless a file with that literal name exists.
    ///
    /// # Errors
    /// A description, for invalid globs and for URLs of stores that cannot be opened.
    pub(crate) fn of(text: &str, options: &StorageOptions, stores: &ObjectStores) -> Result<Self, String> {
        let Some(path) = local_path(text).map_err(|error| error.to_string())? else {
            return writable(text, options, stores).map(FilePattern::Objects);
        };
        if path.is_empty() {
            return Err("`path` is empty".into());
        }
        if path.contains(['*', '?', '[']) && !Path::new(&path).exists() {
            glob::Pattern::new(&path).map_err(|error| format!("`path` is {text:?}: {error}"))?;
            return Ok(FilePattern::Glob(path));
        }
        Ok(FilePattern::Path(path.into()))
    }

    /// All files, ordered by name. Like other readers, skips names that begin with a dot or an underscore, and
    /// everything in such folders. Does not follow links to folders.
    ///
    /// # Errors
    /// For a folder or store that cannot be read, naming it. A folder, file or object that does not exist yet gives an
    /// empty list.
    pub(crate) fn files(&self, waiter: &PoolWaiter) -> Result<Vec<String>, TaskError> {
        let mut found = match self {
            FilePattern::Objects(objects) => waiter.wait(keys(objects))??,
            local => local.found()?,
        };
        found.sort_unstable();
        Ok(found)
    }

    /// A function that lists the files, if they are local.
    pub(crate) fn local_files(&self) -> Option<ListFiles> {
        let place = self.clone();
        (!matches!(self, FilePattern::Objects(_))).then(|| Arc::new(move || place.found()) as _)
    }

    /// The local files, in any order.
    fn found(&self) -> Result<Vec<String>, TaskError> {
        let mut found = Vec::new();
        match self {
            FilePattern::Objects(_) => {}
            FilePattern::Path(path) if path.is_dir() => folder(path, &mut found)?,
            FilePattern::Path(path) => {
                if path.exists() {
                    found.push(name(path)?);
                }
            }
            FilePattern::Glob(pattern) => {
                let paths = glob::glob(pattern).map_err(|error| format!("{pattern}: {error}"))?;
                for path in paths {
                    let path = path?;
                    if path.is_file() && !is_hidden(&path) {
                        found.push(name(&path)?);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Access to the bytes of the file or object with this name.
    pub(crate) fn held(&self, name: &str, waiter: &PoolWaiter) -> FileBytes {
        match self {
            FilePattern::Objects(objects) => {
                FileBytes::Object { objects: objects.clone(), path: key(objects, name), waiter: waiter.clone() }
            }
            _ => FileBytes::File,
        }
    }

    /// The objects among these that certainly no longer exist. Asks the store for each one, because a listing may omit
    /// objects.
    ///
    /// # Errors
    /// If the results are no longer wanted.
    pub(crate) fn gone(&self, names: Vec<String>, waiter: &PoolWaiter) -> Result<Vec<String>, TaskError> {
        let FilePattern::Objects(objects) = self else { return Ok(Vec::new()) };
        let asked = stream::iter(names).map(async |name| {
            let answer = objects.store.objects.head(&key(objects, &name)).await;
            matches!(answer, Err(object_store::Error::NotFound { .. })).then_some(name)
        });
        waiter.wait(asked.buffer_unordered(ASKED_AT_ONCE).filter_map(future::ready).collect())
    }

    /// Whether existing files may grow.
    pub(crate) fn grows(&self) -> bool {
        !matches!(self, FilePattern::Objects(_))
    }
}

/// The place in a store that a URL refers to; other workers must have access to it, too.
///
/// # Errors
/// A description, if the store cannot be opened or does not allow writing.
pub(super) fn writable(url: &str, options: &StorageOptions, stores: &ObjectStores) -> Result<ObjectFolder, String> {
    let at = stores.locate(url, options).map_err(|error| error.to_string())?;
    let folder = at.folder().filter(|_| at.store.shared);
    folder.ok_or_else(|| {
        let url = redact_passwords(url);
        format!("{url}: streams need a folder or an object store: s3://, gs://, az://")
    })
}

/// The key of an object that was listed under this name.
fn key(objects: &ObjectFolder, name: &str) -> Key {
    let path = name.strip_prefix(&format!("{}/", objects.store.name)).unwrap_or(name);
    Key::parse(path).expect("it was listed")
}

/// The URLs of objects, without those whose path below the folder has a name that begins with a dot or an underscore.
async fn keys(objects: &ObjectFolder) -> Result<Vec<String>, TaskError> {
    let place = &objects.path;
    let list = async || objects.store.objects.list(Some(place)).try_collect::<Vec<_>>().await;
    let listed = objects.ask(place, list).await?;
    let is_seen = |path: &Key| {
        let below = path.prefix_match(place);
        below.is_some_and(|mut parts| parts.all(|part| !part.as_ref().starts_with(['.', '_'])))
    };
    let mut found: Vec<String> = listed
        .iter()
        .map(|object| &object.location)
        .filter(|path| is_seen(path))
        .map(|path| objects.store.shown(path))
        .collect();
    if found.is_empty() && !place.as_ref().is_empty() && objects.size(place).await?.is_some() {
        found.push(objects.store.shown(place));
    }
    Ok(found)
}

fn folder(path: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if is_hidden(&path) {
            continue;
        }
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            folder(&path, found)?;
        } else if kind.is_file() || path.is_file() {
            found.push(name(&path)?);
        }
    }
    Ok(())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

fn name(path: &Path) -> Result<String, String> {
    let name = path.to_str().ok_or_else(|| format!("{}: its name is not UTF-8; rename it", path.display()))?;
    Ok(name.to_owned())
}
