//! The stores that a process has opened: readers and writers of one URL with the same options share a client.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme};
use url::{Position, Url};

use crate::address::{ParsedUrl, parse};
use crate::client::{StorageOptions, environment, open};
use crate::error::StorageError;
use crate::shown::redact_passwords;
use crate::store::{OpenStore, StoreLocation};

/// The stores that a process has opened. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ObjectStores(Arc<Mutex<HashMap<Url, Known>>>);

/// A store, and the environment's settings when it was opened.
type Known = (Vec<String>, Arc<OpenStore>);

/// The original URLs for internal store URLs, for errors that know only the latter.
static NAMES: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// The user's form of a URL made by [`OpenStore::url_of`].
pub fn shown_url(url: &Url) -> String {
    let store = url[..Position::BeforePath].to_owned();
    let path = Path::from_url_path(url.path()).map_or_else(|_| url.path().to_owned(), |path| path.to_string());
    let names = NAMES.lock().expect("nothing panics with it locked");
    format!("{}/{path}", names.get(&store).unwrap_or(&store))
}

impl ObjectStores {
    /// The location that a URL refers to. Opens its store if it is new, or if the environment's settings have changed;
    /// does not contact it.
    ///
    /// # Errors
    /// `Io` for a URL without a store and for wrong options; `Unsupported` for HTTP URLs with a query.
    pub fn locate(&self, text: &str, options: &StorageOptions) -> Result<StoreLocation, StorageError> {
        let ParsedUrl { scheme, base, path, is_folder } = parse(text)?;
        let url = store_url(&base, &scheme, options)?;
        let environment = environment(&scheme);
        let mut stores = self.0.lock().expect("nothing panics with it locked");
        let known = stores.get(&url).filter(|(then, _)| *then == environment);
        let store = match known {
            Some((_, store)) => Arc::clone(store),
            None => {
                let (objects, uploads) = open(&scheme, &base, options)?;
                let shared = scheme != ObjectStoreScheme::Memory;
                let name = redact_passwords(&base);
                let store = Arc::new(OpenStore { name, url: url.clone(), objects, uploads, shared });
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

    /// A separate client of the URL's store: for a thread with its own runtime.
    ///
    /// # Errors
    /// As [`ObjectStores::locate`].
    pub fn own_client(text: &str, options: &StorageOptions) -> Result<Arc<dyn ObjectStore>, StorageError> {
        let ParsedUrl { scheme, base, .. } = parse(text)?;
        open(&scheme, &base, options).map(|(objects, _)| objects)
    }
}

/// The URL that identifies a store with its options: the store's own URL if that is sufficient, else one made of a hash
/// of both. All workers with the same inputs make the same URL.
fn store_url(base: &str, scheme: &ObjectStoreScheme, options: &StorageOptions) -> Result<Url, StorageError> {
    let plain = Url::parse(base).ok().filter(|url| {
        // The library's own errors would show a password.
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
    url.map_err(|error| StorageError::Internal(redact_passwords(&format!("{scheme:?} {base}: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn options(pairs: &[(&str, &str)]) -> StorageOptions {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// A key must survive the round trip through the store's URL, and users must see their own URL.
    #[test]
    fn keys_are_kept() {
        let stores = ObjectStores::default();
        let with = options(&[("region", "x"), ("ACCESS_KEY_ID", "a"), ("secret_access_key", "b")]);
        for key in ["a/b.csv", "with space/ü%20?*[1]#.csv", "k=v/f"] {
            for with in [&with, &StorageOptions::new()] {
                let text = format!("s3://bucket/{key}");
                let found = stores.locate(&text, with).unwrap();
                assert_eq!(found.path.as_ref(), key);
                let url = found.store.url_of(&found.path, false);
                assert_eq!(Path::from_url_path(url.path()).unwrap().as_ref(), key);
                assert_eq!(shown_url(&url), text);
            }
        }
        let folder = stores.locate("s3://bucket/a/", &with).unwrap();
        assert!(folder.is_folder && folder.store.url_of(&folder.path, true).path().ends_with('/'));
    }

    /// Options of one reader must not affect another's store.
    #[test]
    fn options_make_stores_of_their_own() {
        let stores = ObjectStores::default();
        let one = stores.locate("s3://bucket/a", &options(&[("region", "x")])).unwrap();
        let two = stores.locate("s3://bucket/a", &options(&[("region", "y")])).unwrap();
        assert_ne!(one.store.url, two.store.url);
        let again = stores.locate("s3://bucket/b", &options(&[("region", "x")])).unwrap();
        assert!(Arc::ptr_eq(&one.store, &again.store));
        // Containers of one account, which share a host.
        let key = options(&[("account_key", "YQ==")]);
        let of = |text: &str| stores.locate(text, &key).unwrap().store.url.clone();
        assert_ne!(of("abfss://one@account.dfs.core.windows.net/a"), of("abfss://two@account.dfs.core.windows.net/a"));
    }

    #[test]
    fn wrong_urls_and_options_are_named() {
        let stores = ObjectStores::default();
        let error = |text: &str, with: &[(&str, &str)]| stores.locate(text, &options(with)).unwrap_err().to_string();
        assert_eq!(error("/a/b", &[]), "/a/b: it is not a URL");
        assert!(error("s4://b/k", &[]).starts_with("s4://b/k: no store has such a URL"));
        assert!(error("s3://b/k", &[("reigon", "x")]).contains("s3://b has no storage option \"reigon\""));
        assert!(error("s3://b/a//b", &[]).contains("s3://b/a//b: "));
        assert!(error("https://host/a?b=c", &[]).contains("URLs with a query"));
    }

    /// Displayed text ends up in logs, which others read.
    #[test]
    fn passwords_are_not_shown() {
        let (stores, none) = (ObjectStores::default(), StorageOptions::new());
        let mut told = Vec::new();
        for text in [
            "https://u:SECRET@h/x",
            "https://:SECRET@h/x",
            "s3://u:SECRET@b/x",
            "s3://u:SECRET@b/a//b",
            "s4://u:SECRET@b/x",
        ] {
            match stores.locate(text, &none) {
                Ok(at) => {
                    let error = object_store::Error::Generic { store: "test", source: format!("GET {text}").into() };
                    told.extend([at.to_string(), format!("{at:?}"), at.store.failed(&at.path, &error).to_string()]);
                    told.push(shown_url(&at.store.url_of(&at.path, false)));
                }
                Err(error) => told.push(error.to_string()),
            }
            told.push(stores.locate(text, &options(&[("reigon", "x")])).unwrap_err().to_string());
            if let Err(error) = ObjectStores::own_client(text, &options(&[("reigon", "x")])) {
                told.push(error.to_string());
            }
        }
        for text in told {
            assert!(text.contains(":***@") && !text.contains("SECRET"), "{text}");
        }
    }
}
