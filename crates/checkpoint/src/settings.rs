//! How a job makes checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use crate::store::{CheckpointStore, StoreError};

/// How a job makes checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    /// Where checkpoints are stored.
    pub store: CheckpointStore,
    /// From the start of one to the start of the next; zero makes only the last one, when sources end.
    pub interval: Duration,
    /// A barrier that takes longer than this overtakes the rows that delay it, which become part of the checkpoint;
    /// `None`: it always waits.
    pub unaligned_after: Option<Duration>,
    /// A checkpoint that takes longer is abandoned, and the next one begins.
    pub timeout: Duration,
    /// The number of checkpoints to retain.
    pub keep: usize,
    /// At most once: checkpoints contain only the positions of sources, and a row leaves its source only after a
    /// checkpoint with its position is durable. When the job fails, rows in flight and in operators are lost, and none
    /// is repeated. Requires an interval.
    pub at_most_once: bool,
    /// Whether the job may resume from the checkpoint before a damaged one. Sinks may have committed rows since, which
    /// then are repeated.
    pub may_repeat: bool,
    /// Removed tasks whose state in an earlier checkpoint is to be dropped; without these, the job does not start. Also
    /// covers tasks whose names consist of such a name followed by a comma and more.
    pub forget: Vec<String>,
}

impl CheckpointSettings {
    /// In `store`, every ten seconds, unaligned after ten more, abandoned after ten minutes. The last three are
    /// retained, and a damaged one is skipped in favor of the one before.
    pub fn new(store: CheckpointStore) -> Self {
        let unaligned_after = Some(Duration::from_secs(10));
        let timeout = Duration::from_secs(600);
        let interval = Duration::from_secs(10);
        let (keep, at_most_once, may_repeat, forget) = (3, false, true, Vec::new());
        CheckpointSettings { store, interval, unaligned_after, timeout, keep, at_most_once, may_repeat, forget }
    }

    /// In a folder of this machine, or one that all workers share.
    ///
    /// # Errors
    /// If the folder can be neither found nor created.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        CheckpointStore::folder(folder).map(Self::new)
    }
}
