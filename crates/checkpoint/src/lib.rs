//! Checkpoints: what all copies of a job kept when one barrier passed them, durable as a whole or not at all. A
//! protocol and where its results lie: no task and no connection is known here.
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
//! | [`coordinator`] | when a barrier goes out, when its checkpoint is whole: decisions without I/O   |
//! | [`lease`]       | one job at a time in a place of an object store                                |
//! | [`store`]       | where checkpoints lie: a folder, or any object store                           |
//! | `settings`      | how a job makes checkpoints                                                    |
//!
//! A checkpoint's way: worker 0's coordinator *injects* a barrier; every source saves where it stands and sends the
//! barrier behind what it has sent; every task *aligns* its inputs on it, saves what it keeps and sends it on. One that
//! takes too long is *hurried*: it overtakes rows, which are saved as *in flight*. Copies write their snapshots to the
//! store themselves, in the background, and *report* what they wrote. When all have, the coordinator writes the
//! manifest, which makes the checkpoint be there, and tells everybody that it is *durable*: sinks then commit.

pub mod coordinator;
pub mod lease;
pub mod manifest;
pub mod marks;
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

pub use manifest::{Entry, Key, Manifest, TaskState};
pub use marks::{Barrier, Control, EventTime, Mark};
pub use rebalance::{Moved, Rebalance};
pub use schema::{StateField, StateSchema};
pub use settings::CheckpointSettings;
pub use snapshot::{Buckets, Later, Part, Restored, Snapshot};
pub use store::{CheckpointStore, StoreError};
