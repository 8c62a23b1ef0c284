//! Options that most sources share.

use serde::Deserialize;

use crate::bad_records::OnError;

/// How far a source reads, and how it handles bad records.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReadOptions {
    /// End when all existing data have been read; for a connection, when the server closes it.
    pub(crate) stop_at_end: bool,
    pub(crate) on_error: OnError,
}
