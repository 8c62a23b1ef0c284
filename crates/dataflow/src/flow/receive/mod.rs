//! The way into a copy: an edge puts what the link brings, or a copy of this worker sends, into the inlet of its
//! target, and an input verifies and decodes what it takes from there, which gives the credit back.

pub(in crate::flow) mod edge;
pub(in crate::flow) mod inlet;
mod input;
mod inputs;
mod meter;
mod stream_end;

pub(crate) use edge::{Edge, EdgeLimits};
pub(crate) use inlet::Inlet;
pub use input::{Input, InputStream, Item};
pub use inputs::Inputs;
