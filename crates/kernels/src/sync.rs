//! The synchronization types of `pool/gate.rs`. `tests/loom.rs` compiles that file a second time against its own
//! `sync`, made of loom's types, and tries every interleaving.

pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
};
