//! Receiving in a copy: an edge puts batches from the link, or from a copy on this worker, into the inlet of its
//! target; an input takes them from there, verifies and decodes them, and returns the credit.

pub(in crate::flow) mod edge;
pub(in crate::flow) mod inlet;
mod input;
mod inputs;
mod meter;
mod rounds;
mod stream_end;
mod tree_order;

pub(crate) use edge::{EdgeLimits, EdgeRuntime};
pub(crate) use inlet::Inlet;
pub use input::{Input, InputStream, StreamElement};
pub use inputs::Inputs;
pub(crate) use rounds::RoundReplay;
pub(crate) use stream_end::unequal_rounds;
