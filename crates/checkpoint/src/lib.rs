//! Checkpoints: the state of all copies of a job at one barrier, durable as a whole or not at all. This crate has the
//! protocol and the storage of its results; it knows neither tasks nor connections.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | what is in it                                                                  |
//! |-----------------|--------------------------------------------------------------------------------|
//! | `rebalance`     | which buckets are to move, and what has come of it                             |
//! | [`marks`]       | watermarks and barriers: what rides between batches, and several streams' together |
//! | [`schema`]      | what a task's state consists of                                                |
//! | `snapshot`      | what a copy saves, and what it begins with                                     |
//! | `packed`, [`rows`] | rows as bytes                                                               |
//! | [`manifest`]    | what a checkpoint consists of                                                  |
//! | [`reports`]     | reports of copies on their way to the coordinator, added up                     |
//! | [`coordinator`] | when a barrier goes out, when its checkpoint is whole: decisions without I/O   |
//! | [`lease`]       | one job at a time in a place of an object store                                |
//! | [`store`]       | where checkpoints lie: a folder, or any object store                           |
//! | `settings`      | how a job makes checkpoints                                                    |
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
pub use rebalance::{MoveReport, Rebalance};
pub use schema::{StateField, StateSchema};
pub use settings::CheckpointSettings;
pub use snapshot::{BucketStates, DeferredPart, RestoredState, Snapshot, SnapshotPart};
pub use store::{CheckpointStore, StoreError};
