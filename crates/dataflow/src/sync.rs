//! What `flow/send/biased.rs` synchronizes with. `tests/loom.rs` compiles that file a second time against a `sync` of
//! its own, made of loom's types, and tries every interleaving.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Locks; loom's can be poisoned, and this one cannot.
pub(crate) fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock()
}

/// With what loom wants to be told.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }
}

/// A way to the value, for as long as it is kept.
pub(crate) struct MutPtr<T>(*mut T);

impl<T> MutPtr<T> {
    /// # Safety
    /// As of a pointer: nobody else is at the value.
    #[expect(clippy::mut_from_ref, reason = "as loom has it")]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: the caller's.
        unsafe { &mut *self.0 }
    }
}
