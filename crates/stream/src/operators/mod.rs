//! Operators: stateful tasks.
//!
//! Of these modules, only `process` and `bsp` use others: `keyed` and `function_table`.
//!
//! | module           | contents                                              |
//! |------------------|-------------------------------------------------------|
//! | `time_windows`   | aggregates of windows                                 |
//! | `windowed_plan`  | groups that are complete once a time has passed       |
//! | `count_windows`  | aggregates of count windows                           |
//! | `distinct`       | distinct keys                                         |
//! | `join`           | joins of two streams                                  |
//! | `keyed`          | the engine of keyed functions                         |
//! | `function_table` | functions of programs as steps of a plan              |
//! | `process`        | keyed functions of programs                           |
//! | `bsp`            | functions that all copies enter together              |
//! | `sessions`       | aggregates of sessions                                |
//! | `count_triggers` | aggregates of windows with early results by row count |

pub(crate) mod bsp;
pub(crate) mod count_triggers;
pub(crate) mod count_windows;
pub(crate) mod distinct;
pub(crate) mod function_table;
pub(crate) mod join;
pub(crate) mod keyed;
pub(crate) mod process;
pub(crate) mod sessions;
pub(crate) mod time_windows;
pub(crate) mod windowed_plan;
