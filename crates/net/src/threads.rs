//! Native threads that belong to nobody else: they take no signals, and a wait at start-up can be given up by the
//! caller.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec};

/// How long a wait goes on at most before the caller's check is asked again.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a thread that never runs a signal handler. A signal that arrives at a process goes to any of its threads that
/// takes it; one that interrupts nobody's wait would be noticed late by a program whose main thread sleeps.
pub(crate) fn spawn_native(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The new thread inherits the mask, so there is no moment at which it takes signals.
    // SAFETY: both sets are plain memory that the calls fill in or read; errors are only possible for bad arguments.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let thread = thread::Builder::new().name(name).spawn(work);
    // SAFETY: restores what was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    thread
}

type Check = Rc<dyn Fn() -> bool>;

thread_local! {
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Runs `work`, in which joining a job, opening transports and waits of the endpoint can be given up: while they wait
/// on this thread, `check` is asked several times a second, and when it says `true` they end with an error. For Ctrl-C
/// in a host language.
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

/// Whether this thread's caller wants its wait to end; for waits that look at it now and then.
pub fn is_interrupted() -> bool {
    check_interrupt().is_err()
}

/// An error if this thread's caller wants its wait to end; and how long to wait until asking again.
pub(crate) fn check_interrupt() -> io::Result<Option<Duration>> {
    let Some(check) = CHECK.with_borrow(Clone::clone) else { return Ok(None) };
    if check() { Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")) } else { Ok(Some(CHECK_INTERVAL)) }
}

/// Polls until something is ready (`true`) or `deadline` has come.
///
/// # Errors
/// Also when the caller wants the wait to end.
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
        assert_eq!(asked.get(), 3, "asked after its scope");
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
