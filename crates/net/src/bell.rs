//! A descriptor by which one thread wakes another that waits for descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::fork::PrivateFd;

/// Readable from a ring until it is hushed.
pub(crate) struct Bell(PrivateFd<OwnedFd>);

impl Bell {
    /// One that is silent.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(PrivateFd::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes whoever waits for it, now or later.
    pub(crate) fn ring(&self) {
        // It fails only where it has rung so often without an answer that it is heard anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it silent, however often it has rung.
    pub(crate) fn hush(&self) {
        // It is silent already if the ring is about to come, which then costs one look in vain.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
