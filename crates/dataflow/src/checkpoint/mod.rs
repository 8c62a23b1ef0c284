//! Checkpoints of a run: workers carry out the decisions of `tidemill-checkpoint`.
//!
//! | module       | what is in it                                                                  |
//! |--------------|--------------------------------------------------------------------------------|
//! | `news`       | what a worker has heard from the coordinator                                   |
//! | `in_flight`  | rows that a barrier has overtaken, as bytes and back                           |
//! | [`hub`]      | a worker's part: barriers for sources, snapshots of copies, news for sinks     |
//! | `simulation` | all of it from one seed, with failures anywhere; for tests                     |

pub mod hub;
pub(crate) mod in_flight;
mod news;
mod resume;
#[cfg(test)]
mod simulation;

pub use hub::CheckpointMade;
pub(crate) use hub::{CoordinatorInput, CopyStates, Hub};
pub(crate) use in_flight::{Dealing, Replay};
pub(crate) use resume::Resume;
pub use tidemill_checkpoint::{
    Buckets, CheckpointSettings, CheckpointStore, Entry, Key, Later, Manifest, Part, Restored, Snapshot, StateField,
    StateSchema, StoreError, TaskState, coordinator, manifest, rows, schema, store,
};
