//! Batches on one worker: operations on Arrow `RecordBatch`es in place. This crate does not know about tasks or other
//! workers.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | contents                                                                   |
//! |-----------------|----------------------------------------------------------------------------|
//! | `error`         | [`BatchError`], [`TaskError`]                                              |
//! | `prefetch`, `simd_dispatch` | software prefetching; loops for the widest vectors of the processor |
//! | `min_max`       | the minimum and maximum of a column                                        |
//! | [`floats`]      | floats as keys: one NaN, one zero                                          |
//! | [`keys`], [`route_map`] | the hash of a key, its bucket, and the bucket's owner              |
//! | [`schema`]      | columns by name; schema compatibility                                      |
//! | `batch_bytes`   | the size of a batch                                                        |
//! | [`frame_buffers`] | memory for outgoing and received frames                                    |
//! | [`wire`]        | batches as bytes: frames and their encoding                                |
//! | [`gather`]      | gathers rows of several batches, or distributes them to targets            |
//! | [`memory`]      | the worker's memory budget, and spilling beyond it                         |
//! | [`local`]       | sorting, merging, reducing and joining, within the budget                  |

pub mod floats;
pub mod frame_buffers;
pub mod gather;
pub mod keys;
pub mod local;
pub mod memory;
pub mod route_map;
pub mod schema;
pub mod wire;

mod batch_bytes;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod min_max;
mod prefetch;
mod simd_dispatch;

pub use batch_bytes::batch_bytes;
pub use error::{BatchError, TaskError};
pub use min_max::min_max;
pub use prefetch::prefetch;
pub use route_map::RouteMap;
