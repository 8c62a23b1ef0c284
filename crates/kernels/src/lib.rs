//! Numeric kernels that run on a worker's own threads: SIMD on stable Rust, chosen at run time.
//!
//! | module     | what                                                                  |
//! |------------|-----------------------------------------------------------------------|
//! | [`pool`]   | long-running pinned threads that meet at spin barriers                |
//! | [`simd`]   | the vector operations, once for each instruction set                  |
//! | [`kmeans`] | Lloyd's algorithm, dense and with exact pruning, and its seeding      |
//! | [`mds`]    | the passes over distances that multidimensional scaling consists of   |
//!
//! Nothing here sends or receives: a kernel works on the rows of one worker, and its caller combines the results of all
//! workers with a collective.

pub mod kmeans;
pub mod mds;
mod memory;
pub mod pool;
mod random;
pub mod simd;
mod sync;

pub use simd::{Element, Isa};
