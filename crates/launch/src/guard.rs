//! The guard: a small process that outlives a killed launcher long enough to clean up after it.
//!
//! The kernel kills each worker when the launcher dies, but not the processes that workers have started, and nobody
//! removes the job's files. The guard waits on a pipe whose other end only the launcher holds: if it closes without a
//! farewell, the launcher was killed, and the guard kills the process groups and removes the files. It holds nothing
//! else open and has its own session, so neither Ctrl-C nor a closing terminal reaches it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// Sent instead of a process group: the job has ended, well or badly, but not through the launcher's death.
const FAREWELL: i32 = 0;

/// The launcher's end.
pub struct LaunchGuard {
    pipe: File,
    process: Pid,
}

impl LaunchGuard {
    /// Starts the guard of a job whose only files are those in `crash_dir`: shared memory has no names.
    ///
    /// # Errors
    /// If the process cannot fork or is out of descriptors.
    pub fn start(crash_dir: &Path) -> nix::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: the child runs only `watch`, which never returns. It allocates, which the C library allows after a
        // fork even when the parent has more threads, and takes no other lock.
        match unsafe { fork()? } {
            ForkResult::Parent { child } => Ok(Self { pipe: File::from(write), process: child }),
            ForkResult::Child => {
                // Its copy of the write end would keep the pipe open forever.
                drop(write);
                watch(read, crash_dir)
            }
        }
    }

    /// Adds a group that is killed if the launcher is.
    pub fn add(&self, group: Pid) {
        self.tell(group.as_raw());
    }

    /// Removes an empty group, whose number another process may soon get.
    pub fn remove(&self, group: Pid) {
        self.tell(-group.as_raw());
    }

    fn tell(&self, message: i32) {
        // A dead guard cannot be told anything; the kernel still kills the workers themselves.
        let _ = (&self.pipe).write_all(&message.to_ne_bytes());
    }
}

impl Drop for LaunchGuard {
    fn drop(&mut self) {
        self.tell(FAREWELL);
        while waitpid(self.process, None) == Err(Errno::EINTR) {}
    }
}

/// What the guard process runs.
fn watch(pipe: OwnedFd, crash_dir: &Path) -> ! {
    let _ = nix::unistd::setsid();
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    let _ = nix::unistd::chdir("/");
    close_all_but(pipe.as_raw_fd());
    if let Some(groups) = groups_left_behind(File::from(pipe)) {
        for group in groups {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = std::fs::remove_dir_all(crash_dir);
    }
    // SAFETY: ends this process without running the exit handlers of the Python process it was copied from.
    unsafe { libc::_exit(0) }
}

/// The groups still alive when the pipe closes, or `None` after a farewell.
fn groups_left_behind(mut pipe: impl Read) -> Option<Vec<i32>> {
    let mut groups: Vec<i32> = Vec::new();
    let mut message = [0; 4];
    loop {
        match pipe.read_exact(&mut message) {
            Ok(()) => match i32::from_ne_bytes(message) {
                FAREWELL => return None,
                group if group > 0 => groups.push(group),
                emptied => groups.retain(|&group| group != -emptied),
            },
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Some(groups),
            Err(_) => return None,
        }
    }
}

fn close_all_but(keep: RawFd) {
    let keep = keep as libc::c_uint;
    for (from, to) in [(0, keep.wrapping_sub(1)), (keep + 1, libc::c_uint::MAX)] {
        if keep > 0 || from > 0 {
            // SAFETY: nothing in this process uses those descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(messages: &[i32]) -> Option<Vec<i32>> {
        groups_left_behind(messages.iter().flat_map(|message| message.to_ne_bytes()).collect::<Vec<_>>().as_slice())
    }

    #[test]
    fn only_groups_that_are_left_are_killed() {
        assert_eq!(after(&[]), Some(vec![]));
        assert_eq!(after(&[7, 8, -7]), Some(vec![8]));
        assert_eq!(after(&[7, 8, FAREWELL]), None);
    }
}
