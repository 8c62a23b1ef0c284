//! Object stores: opened by URL and options, and shared by everything that reads or writes them.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module     | what is in it                                                      |
//! |------------|--------------------------------------------------------------------|
//! | `shown`    | URLs and errors as people see them, without passwords              |
//! | `error`    | `StorageError`: every message stands alone                         |
//! | `address`  | URLs in their parts, and URLs of objects                           |
//! | `client`   | clients of stores, made from a URL, options and the environment    |
//! | `store`    | an open store, places in it, and what its errors mean              |
//! | `uploads`  | objects whose parts are uploaded, and which appear when completed  |
//! | `registry` | the stores that a process has opened                               |
//! | [`lease`]  | who holds an object: one at a time, wherever the others are        |
//!
//! What a store has to be told comes from the environment, as its own tools read it (`AWS_ENDPOINT_URL`, `GOOGLE_...`,
//! `AZURE_...`), and from options, which take precedence. A key in a URL is taken literally, even with spaces and `%`,
//! as other tools do; only HTTP URLs are encoded.
//!
//! ```
//! use tidemill_storage::{ObjectStores, StorageOptions};
//! let stores = ObjectStores::default();
//! let options = StorageOptions::from([("region".to_owned(), "eu-central-1".to_owned())]);
//! let at = stores.locate("s3://bucket/logs/2026", &options)?;
//! assert_eq!((at.path.as_ref(), at.to_string().as_str()), ("logs/2026", "s3://bucket/logs/2026"));
//! // The same URL and options share one client.
//! assert!(std::sync::Arc::ptr_eq(&at.store, &stores.locate("s3://bucket/other", &options)?.store));
//! # Ok::<(), tidemill_storage::StorageError>(())
//! ```

mod address;
mod client;
mod error;
pub mod lease;
mod registry;
mod shown;
mod store;
mod uploads;

pub use address::{is_url, local_path, within};
pub use client::StorageOptions;
pub use error::StorageError;
pub use registry::{ObjectStores, shown_url};
pub use shown::redact_passwords;
pub use store::{ObjectFolder, OpenStore, StoreLocation, is_bucket, is_denied};
pub use uploads::UploadedParts;
