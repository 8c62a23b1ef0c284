//! A descriptor with which one thread wakes another that waits on descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::fork::PrivateFd;

/// Readable from `ring` until `hush`.
pub(crate) struct Bell(PrivateFd<OwnedFd>);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(PrivateFd::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes whoever waits for it, now or later.
    pub(crate) fn ring(&self) {
        // The write fails only if the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it, however often it has rung.
    pub(crate) fn hush(&self) {
        // The read fails if the bell is already silent. A ring that arrives just afterwards costs one needless look.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
