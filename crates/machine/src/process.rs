//! The CPU time of this process and of its threads, and how long they were runnable without a CPU.

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

/// The CPU time of one thread of this process, as any thread can read it. Only meaningful while the thread lives:
/// another thread may reuse its number.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(imp::Clock);

impl ThreadClock {
    /// The clock of the calling thread; `None` if the system has none.
    #[must_use]
    pub fn current() -> Option<ThreadClock> {
        imp::current().map(ThreadClock)
    }

    /// CPU time used by the thread, in nanoseconds; 0 if it has ended.
    #[must_use]
    pub fn cpu_ns(self) -> u64 {
        imp::read(self.0)
    }
}

#[cfg(target_os = "linux")]
mod imp {
    pub(super) type Clock = libc::clockid_t;

    pub(super) fn cpu_ns() -> u64 {
        read(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    pub(super) fn current() -> Option<Clock> {
        let mut clock = 0;
        // SAFETY: the calling thread lives; the call only writes to `clock`.
        let code = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        (code == 0).then_some(clock)
    }

    pub(super) fn read(clock: Clock) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it only writes to `time`, which outlives the call.
        match unsafe { libc::clock_gettime(clock, &raw mut time) } {
            0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
            _ => 0,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) type Clock = std::convert::Infallible;

    pub(super) fn cpu_ns() -> u64 {
        0
    }

    pub(super) fn current() -> Option<Clock> {
        None
    }

    pub(super) fn read(clock: Clock) -> u64 {
        match clock {}
    }
}
