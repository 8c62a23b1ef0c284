//! Words for people that no error carries: a line each on standard error, `tidemill: rank 3: ...`.

use std::fmt;
use std::io::Write;

use crate::Rank;

/// See [`notice!`](crate::notice!).
#[doc(hidden)]
pub fn write(rank: Option<Rank>, text: fmt::Arguments<'_>) {
    let who = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
    // One write, so that lines of several workers do not mix; and not `eprintln`, which panics when nobody reads.
    let _ = std::io::stderr().write_all(format!("tidemill: {who}{text}\n").as_bytes());
}

/// Tells the user what has happened on this worker: `notice!(rank, "...", ...)`, or `notice!("...", ...)` where no rank is
/// known. For what a user can act on; nothing is said of what is in order.
#[macro_export]
macro_rules! notice {
    ($text:literal $($arguments:tt)*) => { $crate::notice::write(None, format_args!($text $($arguments)*)) };
    ($rank:expr, $($text:tt)+) => { $crate::notice::write(Some($rank), format_args!($($text)+)) };
}
