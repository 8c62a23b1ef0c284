//! The reports that failing workers leave in the job's crash folder (`TIDEMILL_CRASH_DIR`).
//!
//! A worker writes `rank-<r>.json` just before it ends: `{"rank": 2, "kind": "error" | "peer_failed" | "interrupt",
//! "summary": "ValueError: x", "traceback": "..."}`. The launcher shows one of them instead of N interleaved
//! tracebacks.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::policy::FailureReport;

/// A longer traceback is cut: an arbitrary program writes the file.
const REPORT_BYTES_MAX: u64 = 4 << 20;

/// The report of one worker.
#[derive(Debug)]
pub struct CrashReport {
    /// The kind of failure.
    pub report: FailureReport,
    /// The last line of the traceback.
    pub summary: String,
    /// The whole traceback.
    pub traceback: String,
}

/// A private folder, which is removed with everything in it when dropped.
pub struct CrashDir {
    path: PathBuf,
}

impl CrashDir {
    /// Creates a folder that only this user can enter.
    ///
    /// # Errors
    /// If the temporary folder is full or not writable.
    pub fn create(job: &str) -> io::Result<Self> {
        // Absolute, because workers and the guard may change their working folder.
        let path = std::path::absolute(std::env::temp_dir())?.join(format!("tidemill-{job}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The report of `rank`, if it left a valid one.
    pub fn read(&self, rank: usize) -> Option<CrashReport> {
        let mut text = String::new();
        let file = fs::File::open(self.path.join(format!("rank-{rank}.json"))).ok()?;
        file.take(REPORT_BYTES_MAX).read_to_string(&mut text).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let report = match value.get("kind")?.as_str()? {
            "peer_failed" => FailureReport::PeerFailed,
            _ => FailureReport::Error,
        };
        Some(CrashReport { report, summary: field("summary"), traceback: field("traceback") })
    }
}

impl Drop for CrashDir {
    fn drop(&mut self) {
        // A finished job should not fail because of something that cannot be removed (another user's file, by now).
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers are arbitrary programs: a half-written or strange report must be ignored.
    #[test]
    fn only_valid_reports_are_read() {
        let folder = CrashDir::create(&format!("test-{}", std::process::id())).expect("temporary folder is writable");
        let write = |rank: usize, text: &str| fs::write(folder.path().join(format!("rank-{rank}.json")), text).unwrap();
        write(0, r#"{"rank": 0, "kind": "error", "summary": "ValueError: x", "traceback": "Traceback"}"#);
        write(1, r#"{"rank": 1, "kind": "peer_failed"}"#);
        write(2, r#"{"rank": 2, "ki"#);
        write(3, "\u{fffd}");
        write(4, "[]");
        let crash = folder.read(0).expect("sound");
        assert_eq!((crash.report, crash.summary.as_str()), (FailureReport::Error, "ValueError: x"));
        assert_eq!(folder.read(1).expect("sound").report, FailureReport::PeerFailed);
        assert!((2..6).all(|rank| folder.read(rank).is_none()));
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
