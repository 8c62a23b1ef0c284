//! Checkpoints: the state of all copies of a job at one barrier, durable as a whole or not at all. This crate has the
//! protocol and the storage of its results; it knows neither tasks nor connections.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module             | contents                                                                           |
//! |--------------------|------------------------------------------------------------------------------------|
//! | `rebalance`        | requests to move buckets, and their outcome                                        |
//! | [`marks`]          | watermarks and barriers between batches, and the marks of several streams combined |
//! | [`schema`]         | the schema of a task's state                                                       |
//! | `snapshot`         | what a copy saves, and what it resumes with                                        |
//! | `packed`, [`rows`] | rows as bytes                                                                      |
//! | [`manifest`]       | the contents of a checkpoint                                                       |
//! | [`reports`]        | reports of copies on their way to the coordinator, added up                        |
//! | [`coordinator`]    | when barriers are sent and checkpoints are complete: decisions without I/O         |
//! | [`lease`]          | one job at a time in a place of an object store                                    |
//! | [`store`]          | storage of checkpoints: a folder, or any object store                              |
//! | `settings`         | how a job makes checkpoints                                                        |
//!
//! Life of a checkpoint: worker 0's coordinator *injects* a barrier. Every source saves its position and sends the
//! barrier after its rows; every task *aligns* its inputs on it, saves its state and forwards it. A barrier that takes
//! too long is *unaligned*: it overtakes rows, which are saved as *in flight*. Copies write their snapshots to the
//! store in the background, and *report* what they wrote. When all have reported, the coordinator writes the manifest,
//! which creates the checkpoint, and announces that it is *durable*: sinks then commit.

pub mod coordinator;
pub mod lease;
pub mod manifest;
pub mod marks;
pub mod reports;
pub mod rows;
pub mod schema;
pub mod store;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod packed;
mod rebalance;
mod settings;
mod snapshot;

pub use manifest::{Manifest, PartEntry, PartKey, TaskState};
pub use marks::{Barrier, BarrierControl, EventTime, Mark};
pub use rebalance::{MoveReport, Rebalance, SplitMoves};
pub use schema::{StateField, StateSchema};
pub use settings::CheckpointSettings;
pub use snapshot::{BucketStates, DeferredPart, DeferredShared, RestoredState, SharedValues, Snapshot, SnapshotPart};
pub use store::{CheckpointStore, StoreError};
