//! Marks that travel in streams between batches, and the combination of several streams' marks.
//!
//! | module       | what is in it                                                              |
//! |--------------|----------------------------------------------------------------------------|
//! | `mark`       | watermarks and barriers                                                    |
//! | `watermarks` | the time of several streams together                                       |
//! | `align`      | a barrier, when all streams have brought it                                |
//! | `confluence` | both, in the order in which a reader of several streams sees them          |

mod align;
mod confluence;
mod mark;
mod watermarks;

pub use confluence::{Gate, MarkMerger};
pub use mark::{Barrier, Control, EventTime, Mark};
pub use watermarks::Watermarks;
