//! Splits URLs into a store and an object in it.

use object_store::ObjectStoreScheme;
use object_store::path::Path;
use url::{Position, Url};

use crate::error::StorageError;
use crate::shown::redact_passwords;

/// The parts of a URL.
pub(crate) struct ParsedUrl {
    pub(crate) scheme: ObjectStoreScheme,
    /// The store: everything before the key.
    pub(crate) base: String,
    pub(crate) path: Path,
    pub(crate) is_folder: bool,
}

pub(crate) fn parse(text: &str) -> Result<ParsedUrl, StorageError> {
    let wrong = |reason: String| StorageError::Io(redact_passwords(&format!("{text}: {reason}")));
    let is_folder = text.ends_with('/');
    if text.starts_with("http://") || text.starts_with("https://") {
        let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
        if url.query().is_some() {
            let text = redact_passwords(text);
            return Err(StorageError::Unsupported(format!("{text}: URLs with a query (what follows a question mark)")));
        }
        let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|error| wrong(error.to_string()))?;
        // Some stores have their bucket in the path.
        let segments: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
        let before = &segments[..segments.len().saturating_sub(path.parts().count())];
        let host = &url[..Position::BeforePath];
        let base = std::iter::once(host).chain(before.iter().copied()).collect::<Vec<_>>().join("/");
        return Ok(ParsedUrl { scheme, base, path, is_folder });
    }
    let Some((scheme, rest)) = text.split_once("://") else { return Err(wrong("it is not a URL".into())) };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    let base = format!("{scheme}://{authority}");
    let known = Url::parse(&base).map_err(|error| wrong(error.to_string()));
    let known = ObjectStoreScheme::parse(&known?).map(|(scheme, _)| scheme).map_err(|_| {
        wrong(
            "no store has such a URL; use s3://bucket/..., gs://, az://, abfss://, http://, https://, file:/// or \
             memory:///"
                .into(),
        )
    })?;
    let path = Path::parse(key).map_err(|error| wrong(error.to_string()))?;
    Ok(ParsedUrl { scheme: known, base, path, is_folder })
}

/// The URL of `path` below that of its store, encoded so that decoding gives the path again.
pub fn within(base: &Url, path: &Path, is_folder: bool) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(path.parts().map(|part| part.as_ref().to_owned()));
        if is_folder {
            segments.push("");
        }
    }
    url
}

/// Whether `text` is a URL, rather than the path of a local file.
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| !scheme.is_empty());
    scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)))
}

/// The local path in `text`, which may be written as `file://...`; `None` for URLs of stores.
pub fn local_path(text: &str) -> Result<Option<String>, StorageError> {
    if !is_url(text) {
        return Ok(Some(text.to_owned()));
    }
    if !text.starts_with("file://") {
        return Ok(None);
    }
    // A glob contains characters that would start a query.
    let url = Url::parse(&text.replace('?', "%3F").replace('#', "%23"));
    match url.ok().and_then(|url| url.to_file_path().ok()) {
        Some(path) => Ok(Some(path.to_string_lossy().into_owned())),
        None => {
            let text = redact_passwords(text);
            Err(StorageError::Io(format!("{text} does not name a local file; it should begin with file:///")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive letter or a colon in a name must not make a path a URL, and a URL must not be taken for a path.
    #[test]
    fn what_is_a_url() {
        assert!(is_url("s3://b/k") && is_url("memory:///k") && is_url("https://h/k"));
        assert!(!is_url("/tmp/a://b") && !is_url("a:b") && !is_url("://x") && !is_url("plain"));
        assert_eq!(local_path("file:///a%20b/*.csv?").unwrap().unwrap(), "/a b/*.csv?");
        assert!(local_path("file://host/a").is_err());
        assert_eq!(local_path("s3://b/k").unwrap(), None);
    }

    #[test]
    fn buckets_in_paths() {
        let parsed = parse("https://s3.eu-central-1.amazonaws.com/bucket/a/b").unwrap();
        assert_eq!(
            (parsed.base.as_str(), parsed.path.as_ref()),
            ("https://s3.eu-central-1.amazonaws.com/bucket", "a/b")
        );
        let parsed = parse("http://127.0.0.1:80/a%20b/c").unwrap();
        assert_eq!((parsed.base.as_str(), parsed.path.as_ref()), ("http://127.0.0.1", "a b/c"));
    }
}
