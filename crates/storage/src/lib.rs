//! Object stores: opened by URL and options, and shared by everything that reads or writes them.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module     | contents                                                           |
//! |------------|--------------------------------------------------------------------|
//! | `shown`    | URLs and errors as shown to users, without passwords               |
//! | `error`    | `StorageError`, with self-contained messages                       |
//! | `address`  | splits URLs, and builds those of objects                           |
//! | `client`   | clients of stores, built from a URL, options and the environment   |
//! | `store`    | an open store, places in it, and the meaning of its errors         |
//! | `uploads`  | multipart uploads, whose objects appear when completed             |
//! | `registry` | the stores that a process has opened                               |
//! | [`lease`]  | leases on objects: one holder at a time, across machines           |
//!
//! A store's settings come from the environment, as read by the store's own tools (`AWS_ENDPOINT_URL`, `GOOGLE_...`,
//! `AZURE_...`), and from options, which take precedence. A key in a URL is taken literally, even with spaces and `%`,
//! as in other tools; only HTTP URLs are encoded.
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
