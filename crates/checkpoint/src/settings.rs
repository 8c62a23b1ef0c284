//! How a job makes checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use crate::store::{CheckpointStore, StoreError};

/// How a job makes checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    /// Where they lie.
    pub store: CheckpointStore,
    /// From the beginning of one to the beginning of the next; zero makes none but the last, when sources end.
    pub interval: Duration,
    /// A barrier that takes longer to come through overtakes the rows that hold it up, which become part of the
    /// checkpoint; `None`: it waits.
    pub unaligned_after: Option<Duration>,
    /// A checkpoint that takes longer is given up, and the next one begins.
    pub timeout: Duration,
    /// How many are kept.
    pub keep: usize,
    /// At most once: checkpoints say where sources stand and nothing else, and a row leaves its source when one is
    /// durable that has its place. What is on its way or kept when the job fails is lost, and nothing comes again.
    /// There is an interval then.
    pub at_most_once: bool,
    /// Whether the job may go on from the checkpoint before one that is damaged. Sinks may have committed rows since,
    /// which come again then.
    pub may_repeat: bool,
    /// Tasks that the job has no longer, and whose state in a checkpoint before is not wanted: without these it does
    /// not begin. Those whose names go on behind such a name and a comma go with it.
    pub forget: Vec<String>,
}

impl CheckpointSettings {
    /// In `store`, every ten seconds, unaligned after ten more, given up after ten minutes; the last three are kept,
    /// and one that is damaged is left out for the one before.
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
    /// When it can be neither found nor made.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        CheckpointStore::folder(folder).map(Self::new)
    }
}
