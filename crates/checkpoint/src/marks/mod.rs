//! Marks, which travel in streams between batches, and the combination of several streams' marks.
//!
//! | module        | contents                                                          |
//! |---------------|-------------------------------------------------------------------|
//! | `mark`        | watermarks and barriers                                           |
//! | `watermarks`  | the combined time of several streams                              |
//! | `align`       | alignment of barriers across streams                              |
//! | `mark_merger` | both, in the order in which a reader of several streams sees them |

mod align;
mod mark;
mod mark_merger;
mod watermarks;

pub use mark::{Barrier, BarrierControl, EventTime, Mark};
pub use mark_merger::{MarkMerger, StreamGate};
pub use watermarks::WatermarkMerger;
