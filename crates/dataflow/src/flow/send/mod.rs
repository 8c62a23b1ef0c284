//! Sending from a copy: an output determines the targets of rows, and a lane for each target takes credit, packs
//! small batches and passes them to the target's queue on this worker, or to the link to another.

mod biased;
mod lane;
mod local_messages;
mod local_reduce;
mod output;
mod pack;

pub(crate) use output::Outlet;
pub use output::{Output, Outputs};
pub use pack::SMALL_BYTES_MAX;
