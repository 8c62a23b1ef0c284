//! Protects the job from `fork`. A forked child shares the parent's sockets: using them would corrupt the parent's
//! streams, and merely keeping them open would hide the parent's death from its peers.
//!
//! So descriptors that belong to the job are [`PrivateFd`]: in a forked child they are replaced by `/dev/null` before
//! any other code runs, and [`ForkOrigin::check`] makes every later use in the child an error. The numbers stay
//! valid, so destructors in the child close only what they own.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Descriptors from this number on are not replaced in a child. Linux assigns the lowest free number, so only a
/// process with this many open files reaches it; a child then keeps the socket open, and only heartbeats reveal the
/// parent's death.
const FDS_MAX: usize = 1 << 16;

static GUARDED: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
static FORKS: AtomicU32 = AtomicU32::new(0);
static NULL: OnceLock<Option<File>> = OnceLock::new();

/// Installs the fork handler. Idempotent, and cheap after the first call.
fn arm() {
    NULL.get_or_init(|| {
        // SAFETY: `in_child` only loads atomics and calls `dup3` and `close`, all async-signal-safe, as a handler that
        // runs in the child of a threaded process must.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if rc != 0 {
            crate::notice!("pthread_atfork failed ({rc}): a forked child of this process may disrupt the job");
        }
        File::options().read(true).write(true).open("/dev/null").ok()
    });
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let null = NULL.get().and_then(Option::as_ref).map(AsRawFd::as_raw_fd);
    for (word_index, word) in GUARDED.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = (word_index * 64 + bits.trailing_zeros() as usize) as RawFd;
            bits &= bits - 1;
            if let Some(null) = null {
                // SAFETY: `fd` is open and owned by a `PrivateFd` of this process image, which never hands it out by
                // value; `dup3` swaps what it refers to, so the owner's later `close` stays correct.
                unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
            }
        }
    }
}

/// A descriptor that a forked child must not keep. Derefs to what it wraps.
#[derive(Debug)]
pub(crate) struct PrivateFd<T: AsFd>(T);

impl<T: AsFd> PrivateFd<T> {
    pub(crate) fn new(inner: T) -> Self {
        arm();
        let fd = inner.as_fd().as_raw_fd() as usize;
        if fd < FDS_MAX {
            GUARDED[fd / 64].fetch_or(1 << (fd % 64), Ordering::Relaxed);
        }
        PrivateFd(inner)
    }
}

impl<T: AsFd> Drop for PrivateFd<T> {
    fn drop(&mut self) {
        // Before the close: otherwise a child would lose a descriptor that another thread opened in between.
        let fd = self.0.as_fd().as_raw_fd() as usize;
        if fd < FDS_MAX {
            GUARDED[fd / 64].fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
        }
    }
}

impl<T: AsFd> Deref for PrivateFd<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd> DerefMut for PrivateFd<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: AsFd> AsFd for PrivateFd<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process that created an object. One atomic load to check.
#[derive(Clone, Copy, Debug)]
pub struct ForkOrigin(u32);

impl ForkOrigin {
    /// Remembers the calling process.
    pub fn here() -> Self {
        arm();
        ForkOrigin(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the caller is still the process that called [`ForkOrigin::here`].
    #[inline]
    pub fn is_here(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Catches a child that keeps the job's sockets: the peer would not see the parent's death.
    #[test]
    fn a_forked_child_loses_the_socket_and_the_parent_keeps_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = PrivateFd::new(ours);
        let origin = ForkOrigin::here();
        // SAFETY: the child only sleeps and calls `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(origin.is_here());
            // SAFETY: as above.
            unsafe {
                libc::usleep(300_000);
                libc::_exit(code);
            }
        }
        drop(ours);
        // The child lives on, yet the stream ends at once. With a leak, this read would block until the child exits.
        let mut status = 0;
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        // SAFETY: waits for our own child.
        let (alive, _) = unsafe { (libc::waitpid(pid, &mut status, libc::WNOHANG), ()) };
        assert_eq!(alive, 0, "the child had already exited, so the test says nothing");
        // SAFETY: as above.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child took itself for the parent");
        assert!(origin.is_here());
    }
}
