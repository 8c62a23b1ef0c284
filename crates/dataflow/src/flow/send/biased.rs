//! A lock that costs nothing where it is not needed: where its user is on the thread that will end the user's turn.
//!
//! What waits for the end of a turn is used by two: its sender, and whoever ends the turn. Mostly that is one thread,
//! which does one after the other. Taking a lock there for every small message would be most of what the message costs:
//! an atomic exchange waits until all that has been written before it is in the cache.
//!
//! Invariant: nobody is at the value together with somebody else. The user is one at a time, and hands over with all
//! that it has written, as whoever holds a `&mut` does. There is one turn at most that the user has entered and that is
//! not over; its end takes the lock, and comes on the thread that `home` names, or `home` names none. So on that thread
//! the user does not meet it, and on others it takes the lock, too. Model-checked in `tests/loom.rs`, which is why this
//! file uses nothing of the crate but `sync`.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicUsize, MutPtr, Mutex, MutexGuard, Ordering, UnsafeCell, lock};

/// See the module.
pub(crate) struct BiasedLock<T> {
    /// The thread that ends the turn which the user has last entered; 0 when that may be any.
    home: AtomicUsize,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: as of a mutex; see the module.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    pub(crate) fn new(value: T) -> Self {
        BiasedLock { home: AtomicUsize::new(0), mutex: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    /// For whoever it is: waits until nobody else holds it.
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        let guard = lock(&self.mutex);
        BiasedGuard { value: self.value.get_mut(), biased: self, _guard: guard }
    }

    /// For the user, on thread `me`: without the lock if its turn ends there. `None`: it has to be locked.
    ///
    /// # Safety
    /// `me` is this thread's own number, and not 0. The user is one at a time: whoever calls this has what nobody else
    /// has meanwhile, such as a `&mut` of what all users go through, and keeps nothing that [`BiasedLock::lock`] has
    /// given.
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
    // Let go of before the lock is.
    value: MutPtr<T>,
    biased: &'a BiasedLock<T>,
    _guard: MutexGuard<'a, ()>,
}

impl<T> BiasedGuard<'_, T> {
    /// The user enters a turn, after the end of the last one. Its end comes on this thread, of number `me`; 0: on any.
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
