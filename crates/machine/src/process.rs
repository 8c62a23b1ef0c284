//! CPU time of this process, and how long its threads were ready to run and had no CPU.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Threads that are looked at, at most: each is a file to read.
const THREADS_MAX: usize = 512;

/// Adds up the times of this process from look to look.
#[derive(Debug)]
pub struct ProcessTimes {
    root: PathBuf,
    /// By thread, as last seen.
    waits: HashMap<u64, u64>,
    wait_ns: u64,
}

impl Default for ProcessTimes {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl ProcessTimes {
    /// Of the process of a recorded machine.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        ProcessTimes { root: root.to_owned(), waits: HashMap::new(), wait_ns: 0 }
    }

    /// CPU time that this process has taken, in nanoseconds; 0 where the system does not say.
    #[must_use]
    pub fn cpu_ns() -> u64 {
        imp::cpu_ns()
    }

    /// How long threads of this process have waited for a CPU, in nanoseconds and all together; of those that have
    /// ended what was seen of them. 0 where the system does not say. Reads a file for each thread, of 512 at most.
    pub fn wait_ns(&mut self) -> u64 {
        let Ok(threads) = fs::read_dir(self.root.join("proc/self/task")) else { return self.wait_ns };
        let mut seen = HashMap::new();
        for thread in threads.flatten().take(THREADS_MAX) {
            let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
            // Time on a CPU, time without one, and how often it got one.
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let waited = text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
            if let (Some(number), Some(waited)) = (number, waited) {
                // One that has waited less than before is another thread with the number of one that has ended.
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
        // SAFETY: it writes to `time` only, which lives until it returns.
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
