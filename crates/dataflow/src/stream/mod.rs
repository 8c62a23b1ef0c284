//! Unbounded streams: time, and what happens at a barrier.
//!
//! | module         | contents                                                      |
//! |----------------|---------------------------------------------------------------|
//! | `clock`        | the time of a source                                          |
//! | `handover`     | splits that move to other copies                              |
//! | `at_most_once` | rows that wait where they were read: at most once             |
//! | [`source`]     | where streams come from: splits, their event times, positions |
//! | [`sink`]       | where they go: rows appear when their checkpoint is durable   |

mod at_most_once;
pub(crate) mod clock;
mod handover;
pub mod sink;
pub mod source;

pub use crate::source_progress::SourceReport;
pub use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark};
