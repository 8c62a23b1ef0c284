//! Streams without an end: time, and what is done at a barrier.
//!
//! | module       | what is in it                                                              |
//! |--------------|----------------------------------------------------------------------------|
//! | `overtake`   | barriers that do not wait for the rows before them                         |
//! | `clock`      | the time of a source                                                       |
//! | `at_most_once` | rows that wait where they were read: at most once                          |
//! | `standing`   | where sources' time stands, which split holds it back, and when to warn    |
//! | [`source`]   | what streams come from: splits, their event times, where they stand        |
//! | [`sink`]     | where they go: rows that appear when their checkpoint is durable           |

mod at_most_once;
pub(crate) mod clock;
pub mod sink;
pub mod source;

pub use crate::source_progress::SourceReport;
pub use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark};
