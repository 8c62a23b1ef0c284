//! Sleep and wake-up of a worker, across processes and threads.
//!
//! The owner arms its [`Doorbell`], checks once more for work, and sleeps: on a futex, or, if it also waits for file
//! descriptors, in `ppoll` on them and a pipe. A sender of work rings its [`DoorbellHandle`], which costs a fence and
//! a load while the owner is awake. `word.rs` explains why no wake-up is lost.
//!
//! A thread that polls for work anyway can be a [`StandIn`] for those that sleep in [`Doorbell::arm_relieved`]: while
//! it does, messages do not wake them.
//!
//! ```text
//! loop {
//!     if poll() { break }                       // for a while, with one spin-loop pause between polls
//!     let armed = doorbell.arm(epoll_fd);
//!     if poll() { break }                       // dropping `armed` withdraws the announcement
//!     if armed.sleep(timeout) == WakeReason::Interrupted { check for signals }
//! }
//! ```

mod stand_in;
pub(crate) mod word;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use stand_in::StandIn;

use crate::segment::{PAGE_BYTES, Segment, SegmentError, SegmentRef, check, open_descriptor};
use crate::sync::{Ordering, fence};

/// Why a sleep ended. Spurious wake-ups are possible; look for work after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WakeReason {
    /// Someone rang, or the descriptor is ready.
    Rung,
    /// Nobody rang in time.
    TimedOut,
    /// A signal handler ran; the caller should check what it requires.
    Interrupted,
}

/// The place where a worker sleeps. Several of its threads may sleep at once; a ring wakes them all.
#[derive(Debug)]
pub struct Doorbell {
    word: SegmentRef<AtomicU32>,
    pipe_read: OwnedFd,
    pipe_write: Arc<OwnedFd>,
    sleepers: Mutex<SleeperCount>,
}

#[derive(Debug, Default)]
struct SleeperCount {
    count: u32,
    /// The pipe may hold a byte.
    pipe_used: bool,
    /// How many stand-ins are awake.
    stand_ins: u32,
    /// Whether a stand-in sleeps.
    stand_in_sleeps: bool,
}

impl Doorbell {
    /// A doorbell for the threads of this process.
    ///
    /// # Errors
    /// If memory or descriptors run out.
    pub fn in_process() -> Result<Self, SegmentError> {
        Self::on(Arc::new(Segment::private(PAGE_BYTES)?).shared(0))
    }

    /// A doorbell whose word is in shared memory. `word` starts as zero and belongs to this doorbell.
    pub(crate) fn on(word: SegmentRef<AtomicU32>) -> Result<Self, SegmentError> {
        let (pipe_read, pipe_write) =
            pipe().map_err(|source| SegmentError::Memory { action: "make a pipe beside", len: 0, source })?;
        Ok(Self { word, pipe_read, pipe_write: Arc::new(pipe_write), sleepers: Mutex::default() })
    }

    /// The descriptor of the pipe's write end, for [`DoorbellHandle::open`] in another process.
    pub(crate) fn pipe_fd(&self) -> RawFd {
        self.pipe_write.as_raw_fd()
    }

    /// A handle for other threads of this process.
    pub fn bell(&self) -> DoorbellHandle {
        DoorbellHandle { word: self.word.clone(), pipe: self.pipe_write.clone() }
    }

    /// Announces that the caller is about to sleep, on the futex or, if `fd` is given, until `fd` is readable too.
    /// The caller must look for work once more before it sleeps.
    pub fn arm(&self, fd: Option<RawFd>) -> SleepGuard<'_> {
        self.arm_as(fd, word::INSISTS)
    }

    /// Like [`Doorbell::arm`], for a caller that need not handle messages itself: they wake it only if there is no
    /// [`StandIn`].
    pub(crate) fn arm_relieved(&self, fd: Option<RawFd>) -> SleepGuard<'_> {
        self.arm_as(fd, 0)
    }

    fn arm_as(&self, fd: Option<RawFd>, insists: u32) -> SleepGuard<'_> {
        let mut sleepers = self.sleepers.lock();
        sleepers.count += 1;
        sleepers.pipe_used |= fd.is_some();
        let bits = if fd.is_some() { word::ON_PIPE } else { word::ON_WORD };
        SleepGuard { doorbell: self, fd, ticket: word::announce(&self.word, bits | insists) }
    }

    /// The caller starts looking for work on behalf of others that sleep.
    pub(crate) fn stand_in(&self) -> StandIn<'_> {
        StandIn::begin(self)
    }
}

/// An announced sleeper. Dropping it withdraws the announcement.
#[derive(Debug)]
#[must_use]
pub struct SleepGuard<'a> {
    doorbell: &'a Doorbell,
    fd: Option<RawFd>,
    ticket: u32,
}

impl SleepGuard<'_> {
    /// Sleeps until someone rings, the descriptor is ready, a signal handler has run, or `timeout` passes.
    pub fn sleep(self, timeout: Duration) -> WakeReason {
        // There is always a timeout: without one, SA_RESTART handlers would not interrupt a futex wait.
        let timeout = timeout.min(Duration::from_secs(3600));
        let word = &self.doorbell.word;
        let Some(fd) = self.fd else { return sleep_on(word, self.ticket, word::ON_WORD, timeout) };
        let timeout = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [entry(self.doorbell.pipe_read.as_raw_fd()), entry(fd)];
        // SAFETY: two entries, a valid time, no signal mask.
        match check(unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &timeout, std::ptr::null()) }) {
            Ok(0) => WakeReason::TimedOut,
            Ok(_) => WakeReason::Rung,
            Err(error) => woken_by(&error),
        }
    }
}

/// Sleeps on the word until somebody wakes one of `bits`, unless the word is no longer `ticket`.
fn sleep_on(word: &AtomicU32, ticket: u32, bits: u32, timeout: Duration) -> WakeReason {
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for a time; this clock exists everywhere.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
    let nanos = until.tv_nsec + i64::from(timeout.subsec_nanos());
    until.tv_sec += timeout.as_secs() as i64 + nanos / 1_000_000_000;
    until.tv_nsec = nanos % 1_000_000_000;
    let at: *const AtomicU32 = word;
    let none = std::ptr::null::<u32>();
    // SAFETY: the word stays mapped during the call, and `until` is a valid time. The futex is not private, because
    // ringers may be other processes.
    let waited = unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT_BITSET, ticket, &until, none, bits) };
    match check(waited as i32) {
        Ok(_) => WakeReason::Rung,
        Err(error) => woken_by(&error),
    }
}

fn woken_by(error: &io::Error) -> WakeReason {
    match error.raw_os_error() {
        Some(libc::EINTR) => WakeReason::Interrupted,
        Some(libc::ETIMEDOUT) => WakeReason::TimedOut,
        Some(libc::EAGAIN) => WakeReason::Rung, // The word had changed before we slept.
        _ => panic!("cannot sleep: {error}"),   // Bad address or descriptor: our bug.
    }
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        let doorbell = self.doorbell;
        let mut sleepers = doorbell.sleepers.lock();
        sleepers.count -= 1;
        // The last one cleans up, so that it takes neither an announcement nor a byte from another sleeper. A ringer
        // that has cleared the bits but not yet written its byte causes one spurious wake-up later.
        if sleepers.count == 0 {
            word::withdraw(&doorbell.word);
            if std::mem::take(&mut sleepers.pipe_used) {
                let mut bytes = [0u8; 64];
                let fd = doorbell.pipe_read.as_raw_fd();
                // SAFETY: `bytes` is writable. The pipe does not block.
                while unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) } == bytes.len() as isize {}
            }
        }
    }
}

/// Wakes the owner of a [`Doorbell`].
#[derive(Clone, Debug)]
pub struct DoorbellHandle {
    word: SegmentRef<AtomicU32>,
    pipe: Arc<OwnedFd>,
}

impl DoorbellHandle {
    /// A handle on a doorbell in another process, given its word and its pipe's descriptor there.
    pub(crate) fn open(word: SegmentRef<AtomicU32>, pid: u32, pipe_fd: RawFd) -> Result<Self, SegmentError> {
        // Also opened for reading, although we never read: the pipe then always has a reader, and no write raises
        // SIGPIPE.
        let pipe = open_descriptor(pid, pipe_fd, libc::O_RDWR | libc::O_NONBLOCK)?;
        Ok(Self { word, pipe: Arc::new(pipe) })
    }

    /// Wakes all threads of the owner that sleep or are about to. Write what they should find before the call.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        self.wake(word::ring_all_fenced(&self.word));
    }

    /// Rings for a message: if a thread stands in for sleepers, it finds the message on their behalf.
    #[inline]
    pub(crate) fn ring_for_message(&self) {
        fence(Ordering::SeqCst);
        self.ring_fenced();
    }

    /// [`DoorbellHandle::ring_for_message`] for callers that made the fence themselves, once for many doorbells.
    #[inline]
    pub(crate) fn ring_fenced(&self) {
        self.wake(word::ring_fenced(&self.word));
    }

    #[inline]
    fn wake(&self, bits: u32) {
        if bits != 0 {
            self.wake_sleepers(bits);
        }
    }

    #[cold]
    fn wake_sleepers(&self, bits: u32) {
        let on_word = bits & (word::ON_WORD | word::STAND_IN);
        if on_word != 0 {
            let at: *const AtomicU32 = &*self.word;
            let none = std::ptr::null::<u32>();
            // SAFETY: the word is mapped. Waking cannot fail for a valid address.
            unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE_BITSET, i32::MAX, none, none, on_word) };
        }
        if bits & word::ON_PIPE != 0 {
            // SAFETY: one readable byte. A full pipe (EAGAIN) wakes just as well; an owner that is gone needs no
            // waking.
            unsafe { libc::write(self.pipe.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just given us both descriptors.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A sleeper must not miss a ring between `arm` and `sleep`, in either way of sleeping.
    #[test]
    fn ring_before_sleep_is_seen() {
        let doorbell = Doorbell::in_process().unwrap();
        let other = pipe().unwrap().0; // Its writer is gone, so it is ready without data (POLLHUP).
        drop(other);
        let (quiet, _keep) = pipe().unwrap();
        for fd in [None, Some(quiet.as_raw_fd())] {
            let armed = doorbell.arm(fd);
            doorbell.bell().ring();
            assert_eq!(armed.sleep(Duration::from_secs(30)), WakeReason::Rung);
            let armed = doorbell.arm(fd);
            assert_eq!(armed.sleep(Duration::from_millis(1)), WakeReason::TimedOut, "the earlier ring is used up");
        }
    }

    /// A descriptor that becomes ready ends the sleep.
    #[test]
    fn descriptor_wakes() {
        let doorbell = Doorbell::in_process().unwrap();
        let (read, write) = pipe().unwrap();
        // SAFETY: one readable byte.
        unsafe { libc::write(write.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
        assert_eq!(doorbell.arm(Some(read.as_raw_fd())).sleep(Duration::from_secs(30)), WakeReason::Rung);
    }

    /// Each of several sleepers, of both kinds, must wake on every ring; a lost ring would hang the test.
    #[test]
    fn ring_wakes_all_sleepers() {
        let doorbell = Doorbell::in_process().unwrap();
        let (quiet, _keep) = pipe().unwrap();
        let (round, asleep) = (AtomicUsize::new(0), AtomicUsize::new(0));
        const SLEEPERS: usize = 4;
        const ROUNDS: usize = 100;
        std::thread::scope(|scope| {
            for sleeper in 0..SLEEPERS {
                let fd = (sleeper % 2 == 1).then_some(quiet.as_raw_fd());
                let (doorbell, round, asleep) = (&doorbell, &round, &asleep);
                scope.spawn(move || {
                    for want in 1..=ROUNDS {
                        asleep.fetch_add(1, Ordering::SeqCst);
                        while round.load(Ordering::SeqCst) < want {
                            let armed = doorbell.arm(fd);
                            if round.load(Ordering::SeqCst) < want {
                                let _ = armed.sleep(Duration::from_secs(3600));
                            }
                        }
                    }
                });
            }
            for next in 1..=ROUNDS {
                while asleep.load(Ordering::SeqCst) < next * SLEEPERS {
                    std::thread::yield_now();
                }
                round.store(next, Ordering::SeqCst);
                doorbell.bell().ring();
            }
        });
    }

    /// Ctrl-C must reach a sleeping worker, in either way of sleeping.
    #[test]
    #[cfg_attr(miri, ignore = "signals")]
    fn signals_interrupt() {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: installs a handler that does nothing, with SA_RESTART as Python and others do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
        }
        let doorbell = Doorbell::in_process().unwrap();
        let (quiet, _keep) = pipe().unwrap();
        for fd in [None, Some(quiet.as_raw_fd())] {
            // SAFETY: a plain call.
            let sleeper = unsafe { libc::pthread_self() };
            let done = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        // SAFETY: the thread lives until `done`, and the handler does nothing.
                        unsafe { libc::pthread_kill(sleeper, libc::SIGUSR2) };
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                assert_eq!(doorbell.arm(fd).sleep(Duration::from_secs(60)), WakeReason::Interrupted);
                done.store(true, Ordering::SeqCst);
            });
        }
    }
}
