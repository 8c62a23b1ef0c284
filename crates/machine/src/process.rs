//! The CPU time of this process, and how long its threads were runnable without a CPU.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of threads to inspect: each is a file to read.
const THREADS_MAX: usize = 512;

/// Accumulates the times of this process between calls.
#[derive(Debug)]
pub struct ProcessTimes {
    root: PathBuf,
    /// The last value for each thread.
    waits: HashMap<u64, u64>,
    wait_ns: u64,
}

impl Default for ProcessTimes {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl ProcessTimes {
    /// The times of the process on a recorded machine.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        ProcessTimes { root: root.to_owned(), waits: HashMap::new(), wait_ns: 0 }
    }

    /// CPU time used by this process, in nanoseconds; 0 if the system does not report it.
    #[must_use]
    pub fn cpu_ns() -> u64 {
        imp::cpu_ns()
    }

    /// The total time that threads of this process have waited for a CPU, in nanoseconds. For threads that have ended,
    /// counts the last known value. 0 if the system does not report it. Reads one file per thread, for 512 threads at
    /// most.
    pub fn wait_ns(&mut self) -> u64 {
        let Ok(threads) = fs::read_dir(self.root.join("proc/self/task")) else { return self.wait_ns };
        let mut seen = HashMap::new();
        for thread in threads.flatten().take(THREADS_MAX) {
            let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
            // Time on a CPU, time waiting for one, and the number of time slices.
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let waited = text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
            if let (Some(number), Some(waited)) = (number, waited) {
                // A thread that has waited less than before is a new one that reuses the number.
                let before = self.waits.get(&number).copied().filter(|before| *before <= waited).unwrap_or(0);
                self.wait_ns = self.wait_ns.saturating_add(waited - before);
                seen.insert(number, waited);
            }
        }
        self.waits = seen;
        self.wait_ns
    }
}

#[cfg(target_os = "linux")]
mod imp {
    pub(super) fn cpu_ns() -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it only writes to `time`, which outlives the call.
        match unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } {
            0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
            _ => 0,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) fn cpu_ns() -> u64 {
        0
    }
}
