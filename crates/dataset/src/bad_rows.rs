//! Unreadable rows.

use std::sync::Mutex;

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadRow {
    /// Path or URL.
    pub file: String,
    /// The first line of the row, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// The raw row, at most 64 KiB of it.
    pub text: String,
}

/// The bad rows that this process has met since the last query of the counter.
#[derive(Debug, Default)]
pub(crate) struct BadRows(Mutex<(u64, Option<BadRow>)>);

impl BadRows {
    /// Counts a bad row.
    pub(crate) fn note(&self, row: &BadRow) {
        let mut seen = self.0.lock().expect("nothing panics with it locked");
        seen.0 += 1;
        if seen.1.as_ref().is_none_or(|first| row < first) {
            seen.1 = Some(row.clone());
        }
    }

    /// The number of bad rows, and the first of them by file and line. Resets the counter.
    pub(crate) fn take(&self) -> (u64, Option<BadRow>) {
        std::mem::take(&mut *self.0.lock().expect("nothing panics with it locked"))
    }
}
