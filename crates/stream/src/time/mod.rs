//! Event time: windows, and which columns of a plan tell time.
//!
//! Each module uses only those above it in this table, but `spans` and `window` use each other.
//!
//! | module   | what is in it                                  |
//! |----------|------------------------------------------------|
//! | `now`    | the time of day                                |
//! | `spans`  | the stretches of time that windows are         |
//! | `window` | which windows a row belongs to                 |
//! | `behind` | what a program says about columns of time      |
//! | `times`  | which columns tell time                        |

pub(crate) mod behind;
pub(crate) mod now;
pub(crate) mod spans;
pub(crate) mod times;
pub(crate) mod window;
