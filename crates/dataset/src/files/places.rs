//! Where checkpoints and streams of objects lie.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use tidemill_dataflow::checkpoint::CheckpointStore;
use tidemill_dataflow::without_passwords;

use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::stores::{ParsedUrl, StorageOptions, StoreLocation, local_path, one_line, open, parse};

impl Engine {
    /// Where checkpoints lie: a folder, or what a URL stands for. A folder that is not there is made if they are to be
    /// written.
    ///
    /// # Errors
    /// `Io`, when it cannot be opened, is none of the stores that write an object only where there is none, or is the
    /// memory of one process.
    pub fn checkpoint_store(&self, place: &str, options: &StorageOptions, writes: bool) -> Result<CheckpointStore> {
        let failed = |reason: String| DataSetError::Io(without_passwords(&format!("{place}: {reason}")));
        if let Some(folder) = local_path(place)? {
            if !writes && !std::path::Path::new(&folder).is_dir() {
                return Err(failed("there is no such folder".into()));
            }
            return CheckpointStore::folder(folder).map_err(|error| DataSetError::Io(error.to_string()));
        }
        let StoreLocation { store, path, .. } = self.locate(place, options)?;
        if !store.shared {
            return Err(failed("checkpoints in memory are lost when the process ends".into()));
        }
        if store.uploads.is_none() {
            return Err(failed("checkpoints need a folder or an object store: s3://, gs://, az://".into()));
        }
        let shown = without_passwords(place.trim_end_matches('/'));
        let checkpoints = CheckpointStore::objects(Arc::clone(&store.objects), path, shown);
        if !writes {
            return Ok(checkpoints);
        }
        let ParsedUrl { scheme, base, .. } = parse(place)?;
        let (client, _) = open(&scheme, &base, options).map_err(|error| failed(one_line(&error)))?;
        Ok(checkpoints.with_leases(client))
    }
}

/// A place in an object store, for streams.
pub struct ObjectPlace {
    /// The store.
    pub objects: Arc<dyn ObjectStore>,
    /// The same, for objects in parts.
    pub uploads: Arc<dyn MultipartStore>,
    /// An object, or what keys begin with.
    pub path: Path,
    /// The store's URL, for people.
    pub name: String,
}

impl Engine {
    /// Where a stream of objects comes from or goes to.
    ///
    /// # Errors
    /// `Io`, when it cannot be opened, cannot be listed and written to, or is the memory of one process.
    pub fn object_place(&self, url: &str, options: &StorageOptions) -> Result<ObjectPlace> {
        let StoreLocation { store, path, .. } = self.locate(url, options)?;
        match &store.uploads {
            Some(uploads) if store.shared => Ok(ObjectPlace {
                objects: Arc::clone(&store.objects),
                uploads: Arc::clone(uploads),
                path,
                name: store.name.clone(),
            }),
            _ => Err(DataSetError::Io(format!(
                "{}: streams need a folder or an object store: s3://, gs://, az://",
                without_passwords(url)
            ))),
        }
    }
}
