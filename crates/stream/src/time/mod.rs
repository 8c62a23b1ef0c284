//! Event time: windows, and the time columns of a plan.
//!
//! Each module uses only those above it in this table, except that `window_assigner` and `window` use each other.
//!
//! | module            | contents                                 |
//! |-------------------|------------------------------------------|
//! | `current_time`    | the time of day                          |
//! | `window_assigner` | the time spans of windows                |
//! | `window`          | which windows a row belongs to           |
//! | `time_bound`      | a program's declarations on time columns |
//! | `times`           | the time columns of a plan               |

pub(crate) mod current_time;
pub(crate) mod time_bound;
pub(crate) mod times;
pub(crate) mod window;
pub(crate) mod window_assigner;
