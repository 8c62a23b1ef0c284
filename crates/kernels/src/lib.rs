//! Numeric kernels that run on a worker's own threads: SIMD on stable Rust, chosen at run time.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module     | contents                                                            |
//! |------------|---------------------------------------------------------------------|
//! | `memory`   | Aligned memory for large buffers                                    |
//! | [`simd`]   | The vector operations, once for each instruction set                |
//! | `random`   | Random numbers by seed, stream and index                            |
//! | `sync`     | The atomics of the gate, which loom replaces                        |
//! | [`pool`]   | Long-running pinned threads with spin barriers                      |
//! | [`kmeans`] | Lloyd's algorithm, dense and with exact pruning, and its seeding    |
//! | [`mds`]    | The passes over distances in multidimensional scaling               |
//!
//! This crate does not communicate: a kernel works on the rows of one worker, and its caller combines the results of
//! all workers with a collective.

pub mod kmeans;
pub mod mds;
mod memory;
pub mod pool;
mod random;
pub mod simd;
mod sync;

pub use simd::{FloatElement, Isa};
