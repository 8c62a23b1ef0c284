//! What a worker counts about itself during a run, and in which form worker 0 receives it.
//!
//! | module     | contents                                                             |
//! |------------|----------------------------------------------------------------------|
//! | `clocks`   | times of waits, links and copies, which count while they last        |
//! | `sketch`   | the keys that many rows have                                         |
//! | `counters` | a worker's counters as a table, and what has changed in it, in bytes |

mod clocks;
mod counters;
mod sketch;

pub(crate) use clocks::{CopyClock, LinkClock, OutsideWork, WaitClock};
pub(crate) use counters::{COUNTED_TEXT_MAX, CounterTable};
pub(crate) use sketch::{KeySketch, SampledRows};
