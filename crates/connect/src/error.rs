//! Errors in the description of a source or sink, and the remedy for a full disk.

use std::io::{Error, ErrorKind};

/// An error in a description, see the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kind does not exist.
    #[error("unknown kind of {role}: {kind}; use one of {known}")]
    Kind {
        /// Source or sink.
        role: &'static str,
        /// The requested kind.
        kind: String,
        /// All kinds that exist.
        known: String,
    },
    /// An option is wrong, missing, or unknown.
    #[error("{connector}: {reason}")]
    Option {
        /// Kind and role.
        connector: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl ConnectError {
    pub(crate) fn option(connector: &str, reason: impl Into<String>) -> Self {
        ConnectError::Option { connector: connector.to_owned(), reason: reason.into() }
    }
}

/// Why records could not be decoded, and which one, if that is known.
pub(crate) struct DecodeFailure {
    pub(crate) reason: String,
    pub(crate) at: Option<usize>,
}

/// The text of a write error, with the remedy if the disk is full.
pub(crate) fn with_remedy(error: &Error) -> String {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!(
                "{error}; free space there and start the job again: with checkpoint= it resumes from its last \
                 checkpoint"
            )
        }
        _ => error.to_string(),
    }
}
