//! Where a run that makes checkpoints begins.

use std::collections::HashMap;

use tidemill_checkpoint::coordinator::{CoordinatedTask, StartPoint};
use tidemill_checkpoint::store::StoreHold;
use tidemill_checkpoint::{CheckpointSettings, RestoredState};

/// What a run that makes checkpoints begins with.
pub(crate) struct ResumePlan {
    pub settings: CheckpointSettings,
    /// Names what this run writes.
    pub run: String,
    pub job: String,
    pub members: Vec<CoordinatedTask>,
    /// The tasks that keep nothing but what they have prepared until it is committed.
    pub sinks: Vec<String>,
    pub begin: StartPoint,
    /// By task and copy, of this worker's.
    pub restored: HashMap<(u32, u32), RestoredState>,
    /// Worker 0's: what keeps other jobs out.
    pub hold: Option<StoreHold>,
    /// Worker 0's: the checkpoint that it goes on from, as it was numbered, and when it was made.
    pub found: Option<(u64, u64)>,
}
