//! Signals as bytes in a pipe, so that one `poll` waits for them together with everything else.
//!
//! A handler can interrupt any instruction, so it only writes its signal's number to a pipe. The handlers and the
//! pipe live as long as a `SignalPipe`; when it is dropped, the earlier handlers (Python's) are restored.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The write end of the pipe, for the handler; -1 while no `SignalPipe` exists.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Signals that ask a job to end, and are passed on.
pub const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that are passed on and mean nothing to the launcher.
pub const PASSING: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// The caught signals.
pub struct SignalPipe {
    read: OwnedFd,
    _write: OwnedFd,
    earlier: Vec<(Signal, SigAction)>,
}

extern "C" fn note(number: libc::c_int) {
    let errno = Errno::last();
    let byte = number as u8;
    // The pipe is full only if many signals already wait, and then one more adds nothing.
    // SAFETY: `write` is async-signal-safe, and one byte of a live local is read.
    unsafe { libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    errno.set();
}

impl SignalPipe {
    /// Starts catching. At most one may exist at a time.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn catch() -> nix::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        let mut signals = Self { read, _write: write, earlier: Vec::new() };
        // Without SA_RESTART a signal also ends a write to a terminal that was stopped with Ctrl-S.
        let ours = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
        for signal in ENDING.into_iter().chain(PASSING).chain([Signal::SIGTSTP, Signal::SIGCHLD]) {
            // SAFETY: `note` is async-signal-safe; see there.
            let earlier = unsafe { sigaction(signal, &ours)? };
            // `nohup` and the background jobs of a shell ignore some signals; so do we and the workers.
            if matches!(earlier.handler(), SigHandler::SigIgn) && signal != Signal::SIGCHLD {
                // SAFETY: restores the earlier action.
                unsafe { sigaction(signal, &earlier)? };
            } else {
                signals.earlier.push((signal, earlier));
            }
        }
        Ok(signals)
    }

    /// The descriptor that is readable once a signal has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// The signals that came since the last call.
    pub fn take(&self) -> Vec<Signal> {
        let mut numbers = [0u8; 64];
        let count = nix::unistd::read(&self.read, &mut numbers).unwrap_or(0);
        numbers[..count].iter().filter_map(|&number| Signal::try_from(i32::from(number)).ok()).collect()
    }

    /// Waits for `pause`, or until a signal asks the job to end.
    pub fn ending_within(&self, pause: Duration) -> Option<Signal> {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // An error comes from a signal, whose number is then in the pipe.
            let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], timeout);
            let ending = self.take().into_iter().find(|signal| ENDING.contains(signal));
            if ending.is_some() || left.is_zero() {
                return ending;
            }
        }
    }
}

impl Drop for SignalPipe {
    fn drop(&mut self) {
        for (signal, earlier) in &self.earlier {
            // SAFETY: restores the earlier action.
            let _ = unsafe { sigaction(*signal, earlier) };
        }
        PIPE.store(-1, Ordering::Relaxed);
    }
}
