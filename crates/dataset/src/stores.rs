//! Object stores by URL: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure, HTTP, and memory.
//!
//! What a store has to be told comes from the environment, as its own tools read it (`AWS_ENDPOINT_URL`, `GOOGLE_...`,
//! `AZURE_...`), and from options, which go first. A key in a URL is meant as it stands, also with spaces and `%`, as
//! other tools do; only URLs of HTTP are encoded.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use tidemill_dataflow::without_passwords;
use url::{Position, Url};

use crate::error::{DataSetError, Result};

/// Names and values of what a store has to be told, such as `("aws_region", "eu-central-1")`.
pub type StorageOptions = BTreeMap<String, String>;

/// How long a request is tried again before its error is told; the library's own three minutes look like a hang.
const RETRIES: (usize, Duration) = (6, Duration::from_secs(30));

/// A store that is open.
pub(crate) struct OpenStore {
    /// What people call it, such as `s3://bucket`.
    pub(crate) name: String,
    /// What DataFusion's session calls it.
    url: Url,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// For output; HTTP has none.
    pub(crate) uploads: Option<Arc<dyn MultipartStore>>,
    /// Whether other processes see what is in it.
    pub(crate) shared: bool,
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl OpenStore {
    /// The object's URL, for people.
    pub(crate) fn shown(&self, path: &Path) -> String {
        format!("{}/{path}", self.name)
    }

    /// The object's URL, or that of a folder of objects, for DataFusion.
    pub(crate) fn listing_url(&self, path: &Path, is_folder: bool) -> Result<ListingTableUrl> {
        Ok(ListingTableUrl::parse(within(&self.url, path, is_folder).as_str())?)
    }

    /// An error of the store about `path`.
    pub(crate) fn failed(&self, path: &Path, error: &object_store::Error) -> DataSetError {
        let shown = self.shown(path);
        DataSetError::Io(match error {
            error if is_bucket(error) => format!("{shown}: there is no such bucket"),
            object_store::Error::NotFound { .. } => format!("there is no {shown}"),
            error if is_denied(error) => format!(
                "{shown}: access denied; check the credentials, in the environment or in storage_options ({})",
                without_passwords(&one_line(&error.to_string()))
            ),
            // It may name its own URL.
            other => without_passwords(&format!("{shown}: {}", one_line(&other.to_string()))),
        })
    }
}

/// Whether the store does not let us. Errors of listings are told by their text only.
pub(crate) fn is_denied(error: &object_store::Error) -> bool {
    let text = error.to_string();
    matches!(error, object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. })
        || text.contains("403 Forbidden")
        || text.contains("401 Unauthorized")
}

/// Whether it is the bucket that is not there.
pub(crate) fn is_bucket(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"].iter().any(|name| text.contains(name))
}

/// The URL of `path` below that of its store, so that what decodes it finds the path again.
pub(crate) fn within(base: &Url, path: &Path, is_folder: bool) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(path.parts().map(|part| part.as_ref().to_owned()));
        if is_folder {
            segments.push("");
        }
    }
    url
}

/// What a URL stands for.
#[derive(Debug, Clone)]
pub(crate) struct StoreLocation {
    pub(crate) store: Arc<OpenStore>,
    pub(crate) path: Path,
    /// Whether the URL ends as that of a folder does.
    pub(crate) is_folder: bool,
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.shown(&self.path))
    }
}

/// The stores that a process has opened.
#[derive(Debug, Default)]
pub(crate) struct StoreRegistry(Mutex<HashMap<Url, Known>>);

/// A store, and what the environment said when it was opened.
type Known = (Vec<String>, Arc<OpenStore>);

/// What DataFusion's URLs of stores are called, for errors, which know nothing of an engine.
static NAMES: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// A URL that DataFusion was given, for people.
pub(crate) fn shown(url: &Url) -> String {
    let store = url[..Position::BeforePath].to_owned();
    let path = Path::from_url_path(url.path()).map_or_else(|_| url.path().to_owned(), |path| path.to_string());
    let names = NAMES.lock().expect("nothing panics with it locked");
    format!("{}/{path}", names.get(&store).unwrap_or(&store))
}

/// Whether `text` is a URL, and not the path of a local file.
pub(crate) fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| !scheme.is_empty());
    scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)))
}

/// The local path that `text` is or, as `file://...`, stands for; `None` for URLs of stores.
pub(crate) fn local_path(text: &str) -> Result<Option<String>> {
    if !is_url(text) {
        return Ok(Some(text.to_owned()));
    }
    if !text.starts_with("file://") {
        return Ok(None);
    }
    // A glob has what would begin a query.
    let url = Url::parse(&text.replace('?', "%3F").replace('#', "%23"));
    match url.ok().and_then(|url| url.to_file_path().ok()) {
        Some(path) => Ok(Some(path.to_string_lossy().into_owned())),
        None => {
            let text = without_passwords(text);
            Err(DataSetError::Io(format!("{text} does not name a local file; it should begin with file:///")))
        }
    }
}

impl StoreRegistry {
    /// What a URL stands for; its store is opened, and made known to DataFusion, if it is new.
    pub(crate) fn locate(&self, text: &str, options: &StorageOptions, runtime: &RuntimeEnv) -> Result<StoreLocation> {
        let ParsedUrl { scheme, base, path, is_folder } = parse(text)?;
        let url = session_url(&base, &scheme, options)?;
        let environment = environment(&scheme);
        let mut stores = self.0.lock().expect("nothing panics with it locked");
        let known = stores.get(&url).filter(|(then, _)| *then == environment);
        let store = match known {
            Some((_, store)) => Arc::clone(store),
            None => {
                let (objects, uploads) = open(&scheme, &base, options)
                    .map_err(|error| DataSetError::Io(without_passwords(&format!("{base}: {}", one_line(&error)))))?;
                let shared = scheme != ObjectStoreScheme::Memory;
                let name = without_passwords(&base);
                let store = Arc::new(OpenStore { name, url: url.clone(), objects, uploads, shared });
                runtime.register_object_store(&url, Arc::clone(&store.objects));
                NAMES
                    .lock()
                    .expect("nothing panics with it locked")
                    .insert(url[..Position::BeforePath].to_owned(), store.name.clone());
                stores.insert(url, (environment, Arc::clone(&store)));
                store
            }
        };
        Ok(StoreLocation { store, path, is_folder })
    }
}

/// A URL in its parts.
pub(crate) struct ParsedUrl {
    pub(crate) scheme: ObjectStoreScheme,
    /// The store: all before the key.
    pub(crate) base: String,
    path: Path,
    is_folder: bool,
}

pub(crate) fn parse(text: &str) -> Result<ParsedUrl> {
    let wrong = |reason: String| DataSetError::Io(without_passwords(&format!("{text}: {reason}")));
    let is_folder = text.ends_with('/');
    if text.starts_with("http://") || text.starts_with("https://") {
        let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
        if url.query().is_some() {
            let text = without_passwords(text);
            return Err(DataSetError::Unsupported(format!("{text}: URLs with a query (what follows a question mark)")));
        }
        let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|error| wrong(error.to_string()))?;
        // Some stores have their bucket in the path.
        let segments: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
        let before = &segments[..segments.len().saturating_sub(path.parts().count())];
        let host = &url[..Position::BeforePath];
        let base = std::iter::once(host).chain(before.iter().copied()).collect::<Vec<_>>().join("/");
        return Ok(ParsedUrl { scheme, base, path, is_folder });
    }
    let (scheme, rest) = text.split_once("://").expect("is_url has seen it");
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

/// What DataFusion's session calls a store: its own name where that says all, and one of name and options otherwise.
/// All workers agree on it, if they were given the same.
fn session_url(base: &str, scheme: &ObjectStoreScheme, options: &StorageOptions) -> Result<Url> {
    let plain = Url::parse(base).ok().filter(|url| {
        // Errors of its own would show a password.
        let plain = url.username().is_empty() && url.password().is_none();
        let whole = plain && url.host_str().is_some_and(|host| !host.is_empty());
        whole && matches!(url.path(), "" | "/") && options.is_empty()
    });
    let url = plain.map_or_else(
        || {
            let mut hasher = DefaultHasher::new();
            (base, options).hash(&mut hasher);
            Url::parse(&format!("tidemill-{:016x}://store", hasher.finish()))
        },
        Ok,
    );
    url.map_err(|error| DataSetError::Internal(without_passwords(&format!("{scheme:?} {base}: {error}"))))
}

fn prefix(scheme: &ObjectStoreScheme) -> Option<&'static str> {
    match scheme {
        ObjectStoreScheme::AmazonS3 => Some("AWS_"),
        ObjectStoreScheme::GoogleCloudStorage => Some("GOOGLE_"),
        ObjectStoreScheme::MicrosoftAzure => Some("AZURE_"),
        _ => None,
    }
}

/// What the environment says of such stores: it may change while the process runs.
fn environment(scheme: &ObjectStoreScheme) -> Vec<String> {
    let Some(prefix) = prefix(scheme) else { return Vec::new() };
    let mut found: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value.to_str()?)))
        .filter(|entry| entry.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// A store, and the same for objects in parts, if it has any.
pub(crate) type Opened = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

pub(crate) fn open(scheme: &ObjectStoreScheme, base: &str, options: &StorageOptions) -> Result<Opened, String> {
    let retry = RetryConfig { max_retries: RETRIES.0, retry_timeout: RETRIES.1, ..RetryConfig::default() };
    /// Configures and builds; the three clouds have the same methods and no trait.
    macro_rules! cloud {
        ($builder:ty, $key:ty) => {{
            let mut builder = <$builder>::from_env().with_url(base).with_retry(retry);
            for (name, value) in options {
                builder = builder.with_config(option::<$key>(base, name)?, value);
            }
            let store = Arc::new(builder.build().map_err(|error| error.to_string())?);
            Ok((Arc::clone(&store) as Arc<dyn ObjectStore>, Some(store as Arc<dyn MultipartStore>)))
        }};
    }
    match scheme {
        ObjectStoreScheme::AmazonS3 => cloud!(AmazonS3Builder, AmazonS3ConfigKey),
        ObjectStoreScheme::GoogleCloudStorage => cloud!(GoogleCloudStorageBuilder, GoogleConfigKey),
        ObjectStoreScheme::MicrosoftAzure => cloud!(MicrosoftAzureBuilder, AzureConfigKey),
        ObjectStoreScheme::Http => {
            let mut client = ClientOptions::new().with_allow_http(true);
            for (name, value) in options {
                client = client.with_config(option::<ClientConfigKey>(base, name)?, value);
            }
            let builder = HttpBuilder::new().with_url(base).with_retry(retry).with_client_options(client);
            Ok((Arc::new(builder.build().map_err(|error| error.to_string())?), None))
        }
        ObjectStoreScheme::Memory => {
            let store = Arc::new(InMemory::new());
            Ok((Arc::clone(&store) as Arc<dyn ObjectStore>, Some(store)))
        }
        other => Err(format!("no store for {other:?}")),
    }
}

fn option<K: FromStr>(base: &str, name: &str) -> Result<K, String> {
    name.to_ascii_lowercase().parse().map_err(|_| format!("{base} has no storage option {name:?}"))
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineConfig};

    fn engine() -> Engine {
        Engine::new(&EngineConfig { threads: 1, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
    }

    fn options(pairs: &[(&str, &str)]) -> StorageOptions {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// A drive letter or a colon in a name must not make a path a URL, nor may a URL be taken for a path.
    #[test]
    fn what_is_a_url() {
        assert!(is_url("s3://b/k") && is_url("memory:///k") && is_url("https://h/k"));
        assert!(!is_url("/tmp/a://b") && !is_url("a:b") && !is_url("://x") && !is_url("plain"));
        assert_eq!(local_path("file:///a%20b/*.csv?").unwrap().unwrap(), "/a b/*.csv?");
        assert!(local_path("file://host/a").is_err());
        assert_eq!(local_path("s3://b/k").unwrap(), None);
    }

    /// A key has to come out of DataFusion's URL as it went in, and people have to see their own URL.
    #[test]
    fn keys_are_kept() {
        let engine = engine();
        let with = options(&[("region", "x"), ("ACCESS_KEY_ID", "a"), ("secret_access_key", "b")]);
        for key in ["a/b.csv", "with space/ü%20?*[1]#.csv", "k=v/f"] {
            for with in [&with, &StorageOptions::new()] {
                let text = format!("s3://bucket/{key}");
                let found = engine.locate(&text, with).unwrap();
                assert_eq!(found.path.as_ref(), key);
                let listed = found.store.listing_url(&found.path, false).unwrap();
                assert_eq!(listed.prefix().as_ref(), key);
                assert_eq!(shown(listed.get_url()), text);
            }
        }
        let folder = engine.locate("s3://bucket/a/", &with).unwrap();
        assert!(folder.is_folder && folder.store.listing_url(&folder.path, true).unwrap().is_collection());
    }

    /// What one reader was given must not reach another's store.
    #[test]
    fn options_make_stores_of_their_own() {
        let engine = engine();
        let one = engine.locate("s3://bucket/a", &options(&[("region", "x")])).unwrap();
        let two = engine.locate("s3://bucket/a", &options(&[("region", "y")])).unwrap();
        assert_ne!(one.store.url, two.store.url);
        let again = engine.locate("s3://bucket/b", &options(&[("region", "x")])).unwrap();
        assert!(Arc::ptr_eq(&one.store, &again.store));
        // Containers of one account, of which DataFusion's own names would make one.
        let key = options(&[("account_key", "YQ==")]);
        let of = |text: &str| engine.locate(text, &key).unwrap().store.url.clone();
        assert_ne!(of("abfss://one@account.dfs.core.windows.net/a"), of("abfss://two@account.dfs.core.windows.net/a"));
    }

    #[test]
    fn wrong_urls_and_options_are_named() {
        let engine = engine();
        let error = |text: &str, with: &[(&str, &str)]| engine.locate(text, &options(with)).unwrap_err().to_string();
        assert!(error("s4://b/k", &[]).starts_with("s4://b/k: no store has such a URL"));
        assert!(error("s3://b/k", &[("reigon", "x")]).contains("s3://b has no storage option \"reigon\""));
        assert!(error("s3://b/a//b", &[]).contains("s3://b/a//b: "));
        assert!(error("https://host/a?b=c", &[]).contains("URLs with a query"));
    }

    /// What is shown ends in logs, which others read.
    #[test]
    fn passwords_are_not_shown() {
        let (engine, none) = (engine(), StorageOptions::new());
        let mut told = Vec::new();
        for text in [
            "https://u:SECRET@h/x",
            "https://:SECRET@h/x",
            "s3://u:SECRET@b/x",
            "s3://u:SECRET@b/a//b",
            "s4://u:SECRET@b/x",
        ] {
            match engine.locate(text, &none) {
                Ok(at) => {
                    let error = object_store::Error::Generic { store: "test", source: format!("GET {text}").into() };
                    told.extend([at.to_string(), format!("{at:?}"), at.store.failed(&at.path, &error).to_string()]);
                    told.push(shown(at.store.listing_url(&at.path, false).unwrap().get_url()));
                }
                Err(error) => told.push(error.to_string()),
            }
            told.push(engine.locate(text, &options(&[("reigon", "x")])).unwrap_err().to_string());
            told.push(match engine.checkpoint_store(text, &none, true) {
                Ok(store) => store.place().to_owned(),
                Err(error) => error.to_string(),
            });
            told.push(match engine.object_place(text, &none) {
                Ok(place) => place.name,
                Err(error) => error.to_string(),
            });
        }
        for text in told {
            assert!(text.contains(":***@") && !text.contains("SECRET"), "{text}");
        }
    }

    /// Two jobs in one place, or one that finds its checkpoints gone, would count twice.
    #[test]
    fn places_for_checkpoints() {
        let engine = engine();
        let none = StorageOptions::new();
        let place =
            |text: &str, writes| engine.checkpoint_store(text, &none, writes).map(|store| store.place().to_owned());
        assert_eq!(place("s3://bucket/jobs/a/", true).unwrap(), "s3://bucket/jobs/a");
        let new =
            std::env::temp_dir().join(format!("tidemill-checkpoints-{}", std::process::id())).display().to_string();
        assert!(place(&new, false).unwrap_err().to_string().contains("there is no such folder"));
        assert_eq!(place(&format!("file://{new}"), true).unwrap(), new);
        assert_eq!(place(&new, false).unwrap(), new);
        std::fs::remove_dir_all(&new).unwrap();
        let streamed = |text: &str| engine.object_place(text, &none).map(|place| (place.name, place.path.to_string()));
        assert_eq!(streamed("s3://bucket/a/b/").unwrap(), ("s3://bucket".into(), "a/b".into()));
        for text in ["memory:///a", "https://host/a"] {
            assert!(streamed(text).unwrap_err().to_string().contains("streams need a folder or an object store"));
        }
        assert!(place("memory:///a", true).unwrap_err().to_string().contains("lost when the process ends"));
        assert!(place("https://host/a", true).unwrap_err().to_string().contains("need a folder or an object store"));
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
