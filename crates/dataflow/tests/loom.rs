//! Model checking: explores every interleaving of a sender and the thread that ends its turn that the memory model
//! allows.
//!
//! The file is compiled here a second time, against `sync` below instead of the crate's own. So this is an ordinary
//! test, without `--cfg loom` and the rebuild that it would cause.

mod sync {
    pub(crate) use loom::cell::{MutPtr, UnsafeCell};
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
        mutex.lock().unwrap()
    }
}
#[path = "../src/flow/send/biased.rs"]
mod biased;

use biased::BiasedLock;
use loom::sync::Arc;
use loom::thread;

type Shared = Arc<BiasedLock<u32>>;

/// The sender; there is only one.
struct Sender(Shared);

impl Sender {
    fn send(&mut self, me: usize) {
        let send = |sent: &mut u32| *sent += 1;
        // SAFETY: there is one sender, and it is here. Loom fails the test if that is not enough.
        let at_home = unsafe { self.0.with_owner_thread(me, send) };
        at_home.unwrap_or_else(|| send(&mut self.0.lock()));
    }
}

/// What a sender shares with the thread that ends its turns, one of which has begun: on thread `home`, or on any.
fn in_turn(home: usize) -> (Shared, Sender) {
    let shared: Shared = Arc::new(BiasedLock::new(0));
    shared.lock().settle(home);
    (Arc::clone(&shared), Sender(shared))
}

fn end_turn(shared: &Shared) -> u32 {
    std::mem::take(&mut *shared.lock())
}

/// A sender moves to another thread in the middle of its turn, and may come back: each message is sent once.
#[test]
fn a_sender_may_leave_its_turn() {
    loom::model(|| {
        let (shared, mut sender) = in_turn(1);
        sender.send(1);
        let away = thread::spawn(move || {
            sender.send(2);
            // If the first turn is over, it enters another one there, and uses it.
            let held = sender.0.lock();
            if *held == 0 {
                held.settle(2);
            }
            drop(held);
            sender.send(2);
            let ended = end_turn(&sender.0);
            (sender, ended)
        });
        let first = end_turn(&shared);
        let (mut sender, second) = away.join().unwrap();
        shared.lock().settle(1);
        sender.send(1);
        assert_eq!(first + second + end_turn(&shared), 4);
    });
}

/// If others may end a turn, nobody knows on which thread: its sender is never alone.
#[test]
fn a_turn_may_be_ended_by_others() {
    loom::model(|| {
        let (shared, mut sender) = in_turn(0);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || end_turn(&shared))
        };
        sender.send(1);
        sender.send(1);
        let mut sent = other.join().unwrap();
        sent += end_turn(&shared);
        assert_eq!(sent, 2);
    });
}
