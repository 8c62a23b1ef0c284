//! Clients of stores, built from a URL, options and the environment.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};

use crate::error::StorageError;
use crate::shown::{one_line, redact_passwords};

/// Options of a store by name, such as `("aws_region", "eu-central-1")`.
pub type StorageOptions = BTreeMap<String, String>;

/// How long to retry a request before reporting its error; the library's default of three minutes looks like a hang.
const RETRIES: (usize, Duration) = (6, Duration::from_secs(30));

fn prefix(scheme: &ObjectStoreScheme) -> Option<&'static str> {
    match scheme {
        ObjectStoreScheme::AmazonS3 => Some("AWS_"),
        ObjectStoreScheme::GoogleCloudStorage => Some("GOOGLE_"),
        ObjectStoreScheme::MicrosoftAzure => Some("AZURE_"),
        _ => None,
    }
}

/// The environment's settings for such stores: they may change while the process runs.
pub(crate) fn environment(scheme: &ObjectStoreScheme) -> Vec<String> {
    let Some(prefix) = prefix(scheme) else { return Vec::new() };
    let mut found: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value.to_str()?)))
        .filter(|entry| entry.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// A store, and its interface for multipart uploads, if it has one.
pub(crate) type Opened = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

/// A client of the store `base`, not connected yet.
///
/// # Errors
/// `Io`, naming the store, for an option that it does not have or a value that it does not accept.
pub(crate) fn open(scheme: &ObjectStoreScheme, base: &str, options: &StorageOptions) -> Result<Opened, StorageError> {
    made(scheme, base, options)
        .map_err(|error| StorageError::Io(redact_passwords(&format!("{base}: {}", one_line(&error)))))
}

fn made(scheme: &ObjectStoreScheme, base: &str, options: &StorageOptions) -> Result<Opened, String> {
    let retry = RetryConfig { max_retries: RETRIES.0, retry_timeout: RETRIES.1, ..RetryConfig::default() };
    /// Configures and builds a client; the three clouds have the same methods but no common trait.
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
