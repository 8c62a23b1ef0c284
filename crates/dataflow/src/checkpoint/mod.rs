//! Checkpoints: what all copies of a job kept when one barrier passed them, durable as a whole or not at all.
//!
//! | module        | what is in it                                                                  |
//! |---------------|--------------------------------------------------------------------------------|
//! | [`coordinator`] | when a barrier goes out, when its checkpoint is whole: decisions without I/O |
//! | [`manifest`]  | what a checkpoint consists of                                                  |
//! | [`rows`]      | rows as bytes                                                                  |
//! | [`schema`]    | what a task's state consists of                                                |
//! | `in_flight`   | rows that a barrier has overtaken, as bytes and back                           |
//! | [`store`]     | where it lies: a folder, or any object store                                   |
//! | [`lease`]     | one job at a time in a place of an object store                                |
//! | [`hub`]       | a worker's part: barriers for sources, snapshots of copies, news for sinks     |
//! | `news`        | what a worker has heard from the coordinator                                   |
//! | `simulation`  | all of it from one seed, with failures anywhere; for tests                     |
//!
//! A checkpoint's way: worker 0's coordinator *injects* a barrier; every source saves where it stands and sends the barrier
//! behind what it has sent; every task *aligns* its inputs on it, saves what it keeps and sends it on. One that takes too long
//! is *hurried*: it overtakes rows, which are saved as *in flight*. Copies write their
//! snapshots to the store themselves, in the background, and *report* what they wrote. When all have, the coordinator writes
//! the manifest, which makes the checkpoint be there, and tells everybody that it is *durable*: sinks then commit.
//!
//! What a copy keeps is either by bucket (of keys), which moves to whoever owns the bucket when a job goes on with another
//! number of workers, or by split (of a source or sink), which are dealt anew. A bucket may be saved in parts: a whole, and
//! what has changed since.

pub mod coordinator;
pub mod hub;
pub(crate) mod in_flight;
pub mod lease;
pub mod manifest;
mod news;
mod packed;
pub mod rows;
pub mod schema;
#[cfg(test)]
mod simulation;
pub mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

pub use lease::Process;
pub use manifest::{Entry, Key, Manifest, TaskState};
pub use schema::{StateField, StateSchema};
pub use store::{CheckpointStore, StoreError};

use crate::error::TaskError;

pub use hub::CheckpointMade;
pub(crate) use hub::{CopyStates, Heard, Hub};
pub(crate) use in_flight::{Dealing, Replay};

/// How a job makes checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    /// Where they lie.
    pub store: CheckpointStore,
    /// From the beginning of one to the beginning of the next; zero makes none but the last, when sources end.
    pub interval: Duration,
    /// A barrier that takes longer to come through overtakes the rows that hold it up, which become part of the checkpoint;
    /// `None`: it waits.
    pub unaligned_after: Option<Duration>,
    /// A checkpoint that takes longer is given up, and the next one begins.
    pub timeout: Duration,
    /// How many are kept.
    pub keep: usize,
    /// At most once: checkpoints say where sources stand and nothing else, and a row leaves its source when one is durable that has
    /// its place. What is on its way or kept when the job fails is lost, and nothing comes again. There is an interval then.
    pub at_most_once: bool,
    /// Whether the job may go on from the checkpoint before one that is damaged. Sinks may have committed rows since, which come
    /// again then.
    pub may_repeat: bool,
    /// Tasks that the job has no longer, and whose state in a checkpoint before is not wanted: without these it does not begin. Those whose
    /// names go on behind such a name and a comma go with it.
    pub forget: Vec<String>,
}

impl CheckpointSettings {
    /// In `store`, every ten seconds, unaligned after ten more, given up after ten minutes; the last three are kept, and one that is
    /// damaged is left out for the one before.
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

/// Part of a copy's state in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it; what was saved before is not needed any more. No bytes: there is nothing.
    Whole(Bytes),
    /// What has changed since the snapshot before.
    Change(Bytes),
}

/// What a copy keeps, as it is when a barrier passes.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By bucket; those that are not named have not changed.
    pub buckets: Buckets,
    /// By split; those that are not named are gone.
    pub splits: Vec<(String, Bytes)>,
    /// What every copy is to know when the job goes on, of each copy.
    pub shared: Vec<(String, Bytes)>,
    /// Makes further buckets: work that need not be done before the copy goes on.
    pub later: Option<Later>,
}

/// See [`Snapshot::later`].
pub struct Later(pub Box<dyn FnOnce() -> Result<Buckets, TaskError> + Send>);

/// Parts by bucket.
pub type Buckets = Vec<(u32, Part)>;

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// What a copy begins with when its job goes on from a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The epoch that the checkpoint ended.
    pub epoch: u64,
    /// Whether the copy had ended: it has nothing more to do.
    pub ended: bool,
    /// The copies that had, of as many as there are now: what is new is not for them.
    pub ended_copies: BTreeSet<u32>,
    /// What its states consisted of then; `None` if the task did not say.
    pub schema: Option<StateSchema>,
    /// The buckets it owns, each with a whole and the changes since, in order.
    pub buckets: BTreeMap<u32, Vec<Bytes>>,
    /// The splits that were dealt to it.
    pub splits: BTreeMap<String, Bytes>,
    /// The names of those that were dealt to any copy.
    pub split_names: BTreeSet<String>,
    /// What copies share, each name with what each copy had saved by it.
    pub shared: BTreeMap<String, Vec<Bytes>>,
    /// The same by copy, as they were numbered then.
    pub(crate) shared_by: BTreeMap<u32, BTreeMap<String, Bytes>>,
    /// Which of these owned each of `buckets`.
    pub(crate) owners: BTreeMap<u32, u32>,
    /// Rows that were in flight to a copy, as they were numbered then, and one of its ports.
    pub(crate) in_flight: Vec<((u32, u32), Bytes)>,
    /// They are to be dealt anew: there were not as many copies.
    pub(crate) dealt_anew: bool,
    /// The task's states consist of something else now: what is saved next cannot build on what was saved then.
    pub(crate) evolved: bool,
}

impl Restored {
    /// What was shared by a name by the copy that kept a bucket then: what it knew when it saved it.
    pub fn shared_of(&self, bucket: u32, name: &str) -> Option<&Bytes> {
        self.shared_by.get(self.owners.get(&bucket)?)?.get(name)
    }
}
