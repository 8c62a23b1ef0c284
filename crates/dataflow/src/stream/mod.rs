//! Streams without an end: time, and what is done at a barrier.
//!
//! | module       | what is in it                                                              |
//! |--------------|----------------------------------------------------------------------------|
//! | `mark`       | watermarks and barriers: what rides between batches                        |
//! | `watermarks` | the time of several streams together                                       |
//! | `align`      | a barrier, when all streams have brought it                                |
//! | [`source`]   | what streams come from: splits, their event times, where they stand        |
//! | [`sink`]     | where they go: rows that appear when their checkpoint is durable           |

mod align;
mod mark;
pub mod sink;
pub mod source;
mod watermarks;

pub(crate) use align::{Alignment, Arrival};
pub use mark::{Barrier, Control, EventTime, Mark};
pub(crate) use watermarks::Watermarks;
