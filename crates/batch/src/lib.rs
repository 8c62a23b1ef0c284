//! Batches on one worker: operations on Arrow `RecordBatch`es in place. This crate knows neither tasks nor other
//! workers.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | what is in it                                                              |
//! |-----------------|----------------------------------------------------------------------------|
//! | `error`         | [`BatchError`], [`TaskError`]                                              |
//! | `prefetch`, `simd_dispatch` | memory asked for ahead of its use; loops for the widest vectors of the processor |
//! | `min_max`       | the least and the greatest value of a column                               |
//! | [`floats`]      | floats as keys: one NaN, one zero                                          |
//! | [`keys`], [`route_map`] | the hash of a key, its bucket, and the bucket's owner              |
//! | [`schema`]      | columns by name; which batches may go where                                |
//! | `batch_bytes`   | how much a batch weighs                                                    |
//! | [`frame_buffers`] | memory that frames are written to and land in                              |
//! | [`wire`]        | batches as bytes: frames and their encoding                                |
//! | [`gather`]      | rows of several batches put together, or dealt to targets                  |
//! | [`memory`]      | the worker's budget, and the disk beyond it                                |
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
