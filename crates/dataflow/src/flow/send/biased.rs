//! A lock that costs nothing in the common case, in which its user runs on the thread that will end the user's turn.
//!
//! What waits for the end of a turn has two users: its sender, and whoever ends the turn. Usually both are on one
//! thread, which does one after the other. Taking a lock for every small message would then be most of the message's
//! cost: an atomic exchange waits until everything written before it is in the cache.
//!
//! Invariant: no two threads access the value concurrently. There is one user at a time, and the next user sees
//! everything the previous one wrote, as with a `&mut` that is passed on. At most one turn that the user has entered
//! is still open. Ending it takes the lock, on the thread that `home` names; if `home` is 0, on any thread. So on the
//! home thread the user and the turn's end cannot overlap, and on other threads the user takes the lock too.
//! `tests/loom.rs` model-checks this, which is why this file uses only this crate's `sync`.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicUsize, MutPtr, Mutex, MutexGuard, Ordering, UnsafeCell, lock};

/// The lock that the module describes.
pub(crate) struct BiasedLock<T> {
    /// The thread that ends the turn which the user last entered; 0 if any thread may.
    home: AtomicUsize,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: like a mutex; see the module.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    pub(crate) fn new(value: T) -> Self {
        BiasedLock { home: AtomicUsize::new(0), mutex: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    /// For any caller: waits until nobody else holds it.
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        let guard = lock(&self.mutex);
        BiasedGuard { value: self.value.get_mut(), biased: self, _guard: guard }
    }

    /// For the user, on thread `me`: works on the value without the lock if the turn ends on this thread. `None` means
    /// that the caller has to lock.
    ///
    /// # Safety
    /// `me` is this thread's own number, and not 0. There is one user at a time: the caller has exclusive access to
    /// something, such as a `&mut` that all users go through, and holds no guard of [`BiasedLock::lock`].
    #[inline]
    pub(crate) unsafe fn with_owner_thread<R>(&self, me: usize, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.home.load(Ordering::Relaxed) != me {
            return None;
        }
        let value = self.value.get_mut();
        // SAFETY: see the module.
        Some(work(unsafe { value.deref() }))
    }
}

/// The value, locked.
pub(crate) struct BiasedGuard<'a, T> {
    // Dropped before the lock.
    value: MutPtr<T>,
    biased: &'a BiasedLock<T>,
    _guard: MutexGuard<'a, ()>,
}

impl<T> BiasedGuard<'_, T> {
    /// Called when the user enters a turn, after the end of the previous one. The turn ends on the thread with number
    /// `me`, or on any thread if that is 0.
    pub(crate) fn settle(&self, me: usize) {
        self.biased.home.store(me, Ordering::Relaxed);
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: see the module.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: see the module.
        unsafe { self.value.deref() }
    }
}
