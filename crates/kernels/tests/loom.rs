//! Model checking: every interleaving of the threads that meet at the pool's gate that the memory model allows.
//!
//! The file is compiled here a second time, against `sync` below instead of the crate's own. So this is an ordinary
//! test, without `--cfg loom` and the full rebuild that it requires.

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};
}
#[path = "../src/pool/gate.rs"]
mod gate;

use gate::ThreadGate;
use loom::sync::Arc;
use loom::thread;

/// Two sleepers and one advancer: none sleeps forever.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let gate = Arc::new(ThreadGate::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || gate.wait_for(1, 1))
            })
            .collect();
        gate.advance();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// A waiter sees everything written before an advance, asleep or not.
#[test]
fn an_advance_publishes() {
    loom::model(|| {
        let gate = Arc::new(ThreadGate::new());
        let cell = Arc::new(loom::cell::UnsafeCell::new(0));
        let writer = {
            let (gate, cell) = (Arc::clone(&gate), Arc::clone(&cell));
            thread::spawn(move || {
                // SAFETY: the reader looks only after the advance; loom fails the test if that is not so.
                cell.with_mut(|value| unsafe { *value = 7 });
                assert_eq!(gate.advance(), 1);
            })
        };
        gate.wait_for(1, 1);
        // SAFETY: the writer is done with it, as above.
        assert_eq!(cell.with(|value| unsafe { *value }), 7);
        writer.join().unwrap();
    });
}
