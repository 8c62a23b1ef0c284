//! What a worker counts of itself while a run lasts, and in which form worker 0 learns of it.
//!
//! | module     | what is in it                                                       |
//! |------------|----------------------------------------------------------------------|
//! | `clocks`   | times of waits, of links and of copies, which count while they last  |
//! | `sketch`   | the keys that many rows have                                         |
//! | `counters` | a worker's counters as a table, and what has changed in it, in bytes |

mod clocks;
mod counters;
mod sketch;

pub(crate) use clocks::{CopyClock, LinkClock, OutsideWork, WaitClock};
pub(crate) use counters::{COUNTED_TEXT_MAX, CounterTable};
pub(crate) use sketch::{KeySketch, SampledRows};
