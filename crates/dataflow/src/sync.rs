//! The synchronization primitives of `flow/send/biased.rs`. `tests/loom.rs` compiles that file a second time against
//! its own `sync`, made of loom's types, and tries every interleaving.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Locks the mutex; loom's can be poisoned, this one cannot.
pub(crate) fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock()
}

/// An `UnsafeCell` with the interface of loom's.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }
}

/// Access to the value while it is held.
pub(crate) struct MutPtr<T>(*mut T);

impl<T> MutPtr<T> {
    /// # Safety
    /// As for a pointer: nobody else accesses the value.
    #[expect(clippy::mut_from_ref, reason = "as loom has it")]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: as this function requires.
        unsafe { &mut *self.0 }
    }
}
