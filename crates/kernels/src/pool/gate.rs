//! A number that only grows, and threads that wait for it: first by spinning, then asleep.
//!
//! Invariant: no wake-up is lost. A waiter counts itself in `sleepers` before its last check of `value`; an advancer
//! changes `value` before it checks `sleepers`; the sequentially consistent fences in between make at least one see the
//! other. Model-checked in `tests/loom.rs`, which is why this file uses nothing of the crate except `sync`.

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, spin_loop};
use std::sync::PoisonError;

/// The gate, see the module.
pub(crate) struct ThreadGate {
    value: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl ThreadGate {
    pub(crate) fn new() -> Self {
        ThreadGate {
            value: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// The current number; everything written before the advances that led to it is visible.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Adds one, wakes the sleepers, and returns the new number.
    pub(crate) fn advance(&self) -> u64 {
        let value = self.value.fetch_add(1, Ordering::AcqRel) + 1;
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Taking the lock waits for a sleeper that has checked `value` but has not started to wait.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
        value
    }

    /// Waits until the number is at least `goal`: first with `spins` checks, then asleep.
    pub(crate) fn wait_for(&self, goal: u64, spins: u32) {
        for _ in 0..spins {
            if self.value() >= goal {
                return;
            }
            spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.value() < goal {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}
