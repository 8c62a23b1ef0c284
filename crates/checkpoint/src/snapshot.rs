//! What a copy saves when a barrier passes it, and what it begins with when its job goes on.
//!
//! What a copy keeps is either by bucket (of keys), which moves to whoever owns the bucket when a job goes on with
//! another number of workers, or by split (of a source or sink), which are dealt anew. A bucket may be saved in parts:
//! a whole, and what has changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use tidemill_batch::TaskError;

use crate::schema::StateSchema;

/// Part of a copy's state in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPart {
    /// All of it; what was saved before is not needed any more. No bytes: there is nothing.
    Whole(Bytes),
    /// What has changed since the snapshot before.
    Change(Bytes),
}

/// What a copy keeps, as it is when a barrier passes.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By bucket; those that are not named have not changed.
    pub buckets: BucketStates,
    /// By split; those that are not named are gone.
    pub splits: Vec<(String, Bytes)>,
    /// What every copy is to know when the job goes on, of each copy.
    pub shared: Vec<(String, Bytes)>,
    /// Makes further buckets: work that need not be done before the copy goes on.
    pub later: Option<DeferredPart>,
}

/// See [`Snapshot::later`].
pub struct DeferredPart(pub Box<dyn FnOnce() -> Result<BucketStates, TaskError> + Send>);

/// Parts by bucket.
pub type BucketStates = Vec<(u32, SnapshotPart)>;

impl fmt::Debug for DeferredPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// What a copy begins with when its job goes on from a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredState {
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
    pub shared_by: BTreeMap<u32, BTreeMap<String, Bytes>>,
    /// Which of these owned each of `buckets`.
    pub owners: BTreeMap<u32, u32>,
    /// Rows that were in flight to a copy, as they were numbered then, and one of its ports.
    pub in_flight: Vec<((u32, u32), Bytes)>,
    /// They are to be dealt anew: there were not as many copies.
    pub rescaled: bool,
    /// The task's states consist of something else now: what is saved next cannot build on what was saved then.
    pub evolved: bool,
}

impl RestoredState {
    /// What was shared by a name by the copy that kept a bucket then: what it knew when it saved it.
    pub fn shared_of(&self, bucket: u32, name: &str) -> Option<&Bytes> {
        self.shared_by.get(self.owners.get(&bucket)?)?.get(name)
    }
}
