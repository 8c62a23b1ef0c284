//! Native threads of this crate, which take no signals, and waits at start-up that the caller can interrupt.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec};

/// The longest wait before the caller's check runs again.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a thread that never runs a signal handler. The kernel delivers a process's signal to any thread that
/// accepts it; if that thread is not the one waiting, a program whose main thread sleeps would notice the signal
/// late.
pub(crate) fn spawn_native(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The new thread inherits the mask, so it accepts no signals from its first moment.
    // SAFETY: both sets are plain memory that the calls fill in or read; only bad arguments cause errors.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let thread = thread::Builder::new().name(name).spawn(work);
    // SAFETY: restores the previous mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    thread
}

type Check = Rc<dyn Fn() -> bool>;

thread_local! {
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Runs `work`, in which joining a job, opening transports and waits of the endpoint can be interrupted: while they
/// wait on this thread, they call `check` several times a second and end with an error when it returns `true`. For
/// Ctrl-C in a host language.
pub fn interruptible<R>(check: Rc<dyn Fn() -> bool>, work: impl FnOnce() -> R) -> R {
    struct CheckRestore(Option<Check>);
    impl Drop for CheckRestore {
        fn drop(&mut self) {
            CHECK.set(self.0.take());
        }
    }
    let _restore = CheckRestore(CHECK.replace(Some(check)));
    work()
}

/// Whether this thread's caller wants its wait to end; for waits that poll it.
pub fn is_interrupted() -> bool {
    check_interrupt().is_err()
}

/// Returns an error if this thread's caller wants its wait to end, and otherwise how long to wait before asking
/// again.
pub(crate) fn check_interrupt() -> io::Result<Option<Duration>> {
    let Some(check) = CHECK.with_borrow(Clone::clone) else { return Ok(None) };
    if check() { Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")) } else { Ok(Some(CHECK_INTERVAL)) }
}

/// Polls until a descriptor is ready (`true`) or `deadline` passes.
///
/// # Errors
/// Also if the caller wants the wait to end.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = check_interrupt()?.map_or(left, |interval| interval.min(left));
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match rustix::event::poll(fds, Some(&timeout)) {
            Ok(0) if wait < left => {}
            Ok(n) => return Ok(n > 0),
            // A signal: the check above says whether it matters.
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sleeps, unless the caller wants the wait to end.
pub(crate) fn sleep(duration: Duration) -> io::Result<()> {
    poll_until(&mut [], Instant::now() + duration).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_wait_ends_when_the_caller_wants_it_to() {
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let check = Rc::new(move || {
            count.set(count.get() + 1);
            count.get() > 2
        });
        let hour = Duration::from_secs(3600);
        let error = interruptible(check, || sleep(hour)).unwrap_err();
        assert_eq!((error.kind(), asked.get()), (io::ErrorKind::Interrupted, 3));
        sleep(Duration::from_millis(1)).unwrap();
        assert_eq!(asked.get(), 3, "the check ran after its scope");
    }

    #[test]
    fn native_threads_take_no_signals() {
        let mask = |what: &str| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let sigint = 1 << (libc::SIGINT - 1);
        spawn_native("test".into(), move || assert_ne!(mask("SigBlk:") & sigint, 0)).unwrap().join().unwrap();
        assert_eq!(mask("SigBlk:") & sigint, 0, "the caller's mask is as it was");
    }
}
