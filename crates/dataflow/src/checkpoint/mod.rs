//! Checkpoints of a run: workers carry out the decisions of `tidemill-checkpoint`.
//!
//! | module       | what is in it                                                                  |
//! |--------------|--------------------------------------------------------------------------------|
//! | `notifications` | what a worker has heard from the coordinator                                   |
//! | `in_flight`  | rows that a barrier has overtaken, as bytes and back                           |
//! | `open_rounds` | rounds that are open when a barrier passes                                     |
//! | [`client`]   | a worker's part: barriers for sources, snapshots of copies, news for sinks     |
//! | `simulation` | all of it from one seed, with failures anywhere; for tests                     |

pub mod client;
pub(crate) mod in_flight;
mod notifications;
pub(crate) mod open_rounds;
mod resume;
#[cfg(test)]
mod simulation;

pub use client::CheckpointMade;
pub(crate) use client::{CheckpointClient, CheckpointView, CoordinatorInput, CopyStates};
pub(crate) use in_flight::{InFlightReplay, InFlightRouting, share_of};
pub(crate) use resume::ResumePlan;
pub use tidemill_checkpoint::{
    BucketStates, CheckpointSettings, CheckpointStore, DeferredPart, Manifest, PartEntry, PartKey, RestoredState,
    Snapshot, SnapshotPart, StateField, StateSchema, StoreError, TaskState, coordinator, manifest, rows, schema, store,
};
