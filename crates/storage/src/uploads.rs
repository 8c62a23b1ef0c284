//! Uploads whose last step is left to another process: the store has all parts of an object, which appears when any
//! process that knows them completes the upload. Checkpoints store the parts, and workers send them to the one that
//! commits.

use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::store::ObjectFolder;

/// An uploaded object, except for the last step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedParts {
    /// Its key, which must be unique: an existing object is taken for this one.
    #[serde(rename = "object", with = "key")]
    pub path: Path,
    /// The store's id of the upload.
    pub upload: MultipartId,
    /// The store's ids of the parts, in order.
    pub parts: Vec<String>,
}

impl ObjectFolder {
    /// Completes the object, unless that was done before. Returns whether the object exists: `false` if the store has
    /// neither the upload nor the object.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn complete(&self, uploaded: &UploadedParts) -> Result<bool, Error> {
        let UploadedParts { path, upload, parts } = uploaded;
        let parts = parts.iter().map(|content_id| PartId { content_id: content_id.clone() }).collect();
        let Err(error) = self.uploads.complete_multipart(path, upload, parts).await else { return Ok(true) };
        // A store that has completed it before, perhaps with a lost answer, no longer knows the upload.
        match self.store.objects.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) if is_gone(&error) => Ok(false),
            Err(_) => Err(error),
        }
    }
}

/// Whether the store has no such upload.
fn is_gone(error: &Error) -> bool {
    let told = ["NoSuchUpload", "not found"].iter().any(|text| error.to_string().contains(text));
    told || matches!(error, Error::NotFound { .. })
}

/// A key as text.
mod key {
    use object_store::path::Path;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(path.as_ref())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        Path::parse(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectStores, StorageOptions};

    /// Completing again must change nothing, and a lost upload must not pass as done.
    #[tokio::test]
    async fn uploads_may_be_completed_again() {
        let at = ObjectStores::default().locate("memory:///out", &StorageOptions::new()).unwrap().folder().unwrap();
        let path = at.path.clone().join("part-0");
        let upload = at.uploads.create_multipart(&path).await.unwrap();
        let part = at.uploads.put_part(&path, &upload, 0, "x\n".into()).await.unwrap();
        let uploaded = UploadedParts { path: path.clone(), upload, parts: vec![part.content_id] };
        assert_eq!(at.size(&path).await.unwrap(), None, "nothing appears before it is completed");
        for _ in 0..2 {
            assert!(at.complete(&uploaded).await.unwrap());
            assert_eq!(at.size(&path).await.unwrap(), Some(2));
        }
        at.store.objects.delete(&path).await.unwrap();
        assert!(!at.complete(&uploaded).await.unwrap());
    }

    /// Checkpoints contain uploads: those of earlier releases must be readable.
    #[test]
    fn uploads_are_kept_as_they_were() {
        let uploaded =
            UploadedParts { path: Path::from("a/b c"), upload: "an id\n".into(), parts: vec!["1".into(), "".into()] };
        let text = r#"{"object":"a/b c","upload":"an id\n","parts":["1",""]}"#;
        assert_eq!(serde_json::to_string(&uploaded).unwrap(), text);
        assert_eq!(serde_json::from_str::<UploadedParts>(text).unwrap(), uploaded);
        assert!(serde_json::from_str::<UploadedParts>(&text.replace("a/b c", "a//b")).is_err());
    }
}
