//! Rows that cannot be read.

use std::sync::Mutex;

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadRow {
    /// Path or URL.
    pub file: String,
    /// From 1 on; the first of the row.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// The row as it stands there, at most 64 KiB of it.
    pub text: String,
}

/// The bad rows that this process has met, until somebody asks.
#[derive(Debug, Default)]
pub(crate) struct BadRows(Mutex<(u64, Option<BadRow>)>);

impl BadRows {
    /// Counts one.
    pub(crate) fn note(&self, row: &BadRow) {
        let mut seen = self.0.lock().expect("nothing panics with it locked");
        seen.0 += 1;
        if seen.1.as_ref().is_none_or(|first| row < first) {
            seen.1 = Some(row.clone());
        }
    }

    /// How many there were, and the first by file and line; from now on none.
    pub(crate) fn take(&self) -> (u64, Option<BadRow>) {
        std::mem::take(&mut *self.0.lock().expect("nothing panics with it locked"))
    }
}
