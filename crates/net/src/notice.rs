//! Messages for the user that no error carries: one line each on standard error, `tidemill: rank 3: ...`.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::Mutex;

use crate::Rank;

/// Messages kept for [`take`]; `None` until someone calls [`keep`].
static KEPT: Mutex<Option<VecDeque<String>>> = Mutex::new(None);
/// Past this many, the oldest messages are dropped: nobody is collecting them.
const KEPT_MAX: usize = 1000;

/// From now on, keeps messages for [`take`] as well as writing them to standard error.
pub fn keep() {
    KEPT.lock().expect("nothing panics with it locked").get_or_insert_default();
}

/// The messages since the last call, if they are [kept](keep).
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
    // A single write, so that lines of several workers do not mix; not `eprintln`, which panics when nobody reads.
    let _ = std::io::stderr().write_all(format!("tidemill: {who}{text}\n").as_bytes());
}

/// Tells the user what has happened on this worker: `notice!(rank, "...", ...)`, or `notice!("...", ...)` where the
/// rank is unknown. Only for what a user can act on.
#[macro_export]
macro_rules! notice {
    ($text:literal $($arguments:tt)*) => { $crate::notice::write(None, format_args!($text $($arguments)*)) };
    ($rank:expr, $($text:tt)+) => { $crate::notice::write(Some($rank), format_args!($($text)+)) };
}
