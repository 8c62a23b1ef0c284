//! What can go wrong with a store, in words for the person who wrote the URL.

/// Why a store cannot be opened, read or written. Every message names the URL, without its password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The URL or an option is wrong, or the store refused.
    #[error("{0}")]
    Io(String),
    /// Something that Tidemill does not do.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A bug.
    #[error("internal error: {0}")]
    Internal(String),
}
