//! The atomics of the lock-free files (`ring.rs`, `doorbell.rs`, `claim.rs`), in one place so that tests can replace
//! them.
//!
//! Of this crate, those three files use only this module and `frame.rs`. `tests/loom.rs` compiles them a second time
//! against its own `sync`, which uses loom's types, and explores their interleavings. So the model checker runs in
//! the ordinary test build, without a second build of every dependency under `--cfg loom`.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
