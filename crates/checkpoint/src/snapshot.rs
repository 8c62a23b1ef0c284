//! What a copy saves when a barrier passes it, and what it starts with when its job resumes.
//!
//! State is either stored by bucket (of keys), which goes to the owner of the bucket when a job resumes with another
//! number of workers, or by split (of a source or sink), which are redistributed. A bucket may be saved in parts: a
//! full one, and changes since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use tidemill_batch::TaskError;

use crate::schema::StateSchema;

/// A part of a copy's state in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPart {
    /// The full state; what was saved before is no longer needed. If empty, there is no state.
    Whole(Bytes),
    /// The changes since the previous snapshot.
    Change(Bytes),
}

/// The state of a copy when a barrier passes.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By bucket; buckets that are not listed have not changed.
    pub buckets: BucketStates,
    /// By split; splits that are not listed no longer exist.
    pub splits: Vec<(String, Bytes)>,
    /// Values that every copy gets when the job resumes, from each copy.
    pub shared: SharedValues,
    /// Makes further buckets, as work that can be done while the copy continues.
    pub later: Option<DeferredPart>,
    /// Makes further shared values in the same way.
    pub later_shared: Option<DeferredShared>,
}

/// See [`Snapshot::later`].
pub struct DeferredPart(pub Box<dyn FnOnce() -> Result<BucketStates, TaskError> + Send>);

/// See [`Snapshot::later_shared`].
pub struct DeferredShared(pub Box<dyn FnOnce() -> Result<SharedValues, TaskError> + Send>);

/// Parts by bucket.
pub type BucketStates = Vec<(u32, SnapshotPart)>;

/// Values by name.
pub type SharedValues = Vec<(String, Bytes)>;

impl fmt::Debug for DeferredPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

impl fmt::Debug for DeferredShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// The state that a copy starts with when its job resumes from a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredState {
    /// The epoch that the checkpoint ended.
    pub epoch: u64,
    /// Whether the copy had ended, and has nothing more to do.
    pub ended: bool,
    /// The copies that had ended, if the number of copies is unchanged: they get no new input.
    pub ended_copies: BTreeSet<u32>,
    /// The schema of the saved states; `None` if the task did not declare it.
    pub schema: Option<StateSchema>,
    /// The buckets that it owns, each with a full part and the changes since, in order.
    pub buckets: BTreeMap<u32, Vec<Bytes>>,
    /// The splits assigned to it.
    pub splits: BTreeMap<String, Bytes>,
    /// The names of the splits assigned to any copy.
    pub split_names: BTreeSet<String>,
    /// What copies share: by name, the values that all copies have saved.
    pub shared: BTreeMap<String, Vec<Bytes>>,
    /// The same by copy, as numbered then.
    pub shared_by: BTreeMap<u32, BTreeMap<String, Bytes>>,
    /// Which of these copies owned each of `buckets`.
    pub owners: BTreeMap<u32, u32>,
    /// Rows that were in flight to a copy, as numbered then, and to one of its ports.
    pub in_flight: Vec<((u32, u32), Bytes)>,
    /// These must be redistributed, because the number of copies has changed.
    pub rescaled: bool,
    /// The schema of the state has changed, so the next snapshot cannot build on the saved one.
    pub evolved: bool,
}

impl RestoredState {
    /// What the former owner of a bucket shared under a name when it saved the bucket.
    pub fn shared_of(&self, bucket: u32, name: &str) -> Option<&Bytes> {
        self.shared_by.get(self.owners.get(&bucket)?)?.get(name)
    }
}
