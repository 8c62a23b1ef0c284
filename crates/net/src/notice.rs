//! Words for people that no error carries: a line each on standard error, `tidemill: rank 3: ...`.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::Mutex;

use crate::Rank;

/// What was said, until somebody who wants it takes it; `None`: nobody does.
static KEPT: Mutex<Option<VecDeque<String>>> = Mutex::new(None);
/// Of more the oldest are dropped: who wants them does not come.
const KEPT_MAX: usize = 1000;

/// Keeps what is said from now on for [`take`], beside standard error.
pub fn keep() {
    KEPT.lock().expect("nothing panics with it locked").get_or_insert_default();
}

/// What was said since the last time, if it is [kept](keep).
pub fn take() -> Vec<String> {
    let mut kept = KEPT.lock().expect("nothing panics with it locked");
    kept.as_mut().map(|kept| kept.drain(..).collect()).unwrap_or_default()
}

/// See [`notice!`](crate::notice!).
#[doc(hidden)]
pub fn write(rank: Option<Rank>, text: fmt::Arguments<'_>) {
    if let Some(kept) = KEPT.lock().expect("nothing panics with it locked").as_mut() {
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(text.to_string());
    }
    let who = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
    // One write, so that lines of several workers do not mix; and not `eprintln`, which panics when nobody reads.
    let _ = std::io::stderr().write_all(format!("tidemill: {who}{text}\n").as_bytes());
}

/// Tells the user what has happened on this worker: `notice!(rank, "...", ...)`, or `notice!("...", ...)` where no rank
/// is known. For what a user can act on; nothing is said of what is in order.
#[macro_export]
macro_rules! notice {
    ($text:literal $($arguments:tt)*) => { $crate::notice::write(None, format_args!($text $($arguments)*)) };
    ($rank:expr, $($text:tt)+) => { $crate::notice::write(Some($rank), format_args!($($text)+)) };
}
