//! Operators: tasks that keep state.
//!
//! None of these modules uses another.
//!
//! | module      | what is in it                                                |
//! |-------------|--------------------------------------------------------------|
//! | `aggregate` | aggregates of windows                                        |
//! | `complete`  | groups that are complete when a time has passed              |
//! | `counts`    | aggregates of so many rows of each key                       |
//! | `distinct`  | each key once                                                |
//! | `join`      | joins of two streams                                         |
//! | `process`   | functions of programs over the rows of each key              |
//! | `sessions`  | aggregates of sessions                                       |
//! | `triggered` | aggregates of windows with a result after every so many rows |

pub(crate) mod aggregate;
pub(crate) mod complete;
pub(crate) mod counts;
pub(crate) mod distinct;
pub(crate) mod join;
pub(crate) mod process;
pub(crate) mod sessions;
pub(crate) mod triggered;
