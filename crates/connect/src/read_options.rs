//! Options of sources, which most of them have.

use serde::Deserialize;

use crate::bad_records::OnError;

/// How far a source reads, and what it does with bad records.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReadOptions {
    /// End when everything that is there has been read; of a connection, when the server closes it.
    pub(crate) stop_at_end: bool,
    pub(crate) on_error: OnError,
}
