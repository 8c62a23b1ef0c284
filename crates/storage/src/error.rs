//! Errors of a store, worded for the person who wrote the URL.

/// Why a store cannot be opened, read or written. Every message names the URL, without its password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The URL or an option is wrong, or the store rejected the request.
    #[error("{0}")]
    Io(String),
    /// A feature that Tidemill does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A bug.
    #[error("internal error: {0}")]
    Internal(String),
}
