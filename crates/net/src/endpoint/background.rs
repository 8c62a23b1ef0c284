//! The background thread: drives the engine while requests are pending and no call does.
//!
//! It parks when there is nothing to do, so that a worker that computes is not interrupted, and is woken by the first
//! request after that. It never touches Python.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use super::EndpointState;
use crate::WakeReason;

/// Between looks while calls are driving, or requests follow each other closely.
const TICK: Duration = Duration::from_millis(1);
/// So many requests within a tick cost less when they find the thread awake than when each wakes it.
const CLOSELY: u32 = 4;

#[derive(Default)]
pub(super) struct BackgroundDriver {
    parked: AtomicBool,
    /// How often since the last look.
    wanted: AtomicU32,
    stopped: AtomicBool,
    thread: Mutex<Option<(Thread, JoinHandle<()>)>>,
}

impl BackgroundDriver {
    pub(super) fn start(shared: &Arc<EndpointState>) {
        let weak = Arc::downgrade(shared);
        let handle = crate::threads::spawn_native("tidemill-progress".into(), move || run(&weak))
            .expect("a worker can start a thread");
        *shared.background.thread.lock() = Some((handle.thread().clone(), handle));
    }

    /// Something is pending. Costs one load when the thread is awake anyway.
    #[inline]
    pub(super) fn want(&self, _shared: &EndpointState) {
        // Not one atomic addition: of two at once one may be lost, which is as good as none.
        self.wanted.store(self.wanted.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.parked.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.parked.store(false, Ordering::SeqCst);
        if let Some((thread, _)) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Whether this is the thread.
    pub(super) fn is_this_thread(&self) -> bool {
        self.thread.lock().as_ref().is_some_and(|(thread, _)| thread.id() == std::thread::current().id())
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let taken = self.thread.lock().take();
        if let Some((thread, handle)) = taken {
            thread.unpark();
            let _ = handle.join();
        }
    }
}

fn run(weak: &Weak<EndpointState>) {
    let mut drives = 0;
    loop {
        let Some(shared) = weak.upgrade() else { return };
        let background = &shared.background;
        if background.stopped.load(Ordering::SeqCst) {
            return;
        }
        let wanted = background.wanted.swap(0, Ordering::Relaxed);
        // Calls that follow each other closely drive enough; to sleep on the doorbell between them would only make the
        // peers pay for waking this thread. What is under way still moves with each tick: perhaps the caller computes
        // now.
        let (pending, driven) = match shared.engine.try_lock() {
            None => (true, true),
            Some(mut engine) => {
                let driven = std::mem::replace(&mut drives, engine.drives()) != engine.drives();
                if !driven || engine.has_pending() {
                    while engine.progress() {}
                    engine.flush();
                }
                (engine.has_pending(), driven)
            }
        };
        if pending && !driven {
            // Nobody drives: sleep until a peer rings, as a call would.
            let armed = shared.doorbell.arm(shared.epoll_fd);
            let moved = shared.engine.try_lock().is_none_or(|mut engine| {
                let moved = engine.progress();
                engine.flush();
                moved
            });
            if !moved && armed.sleep(TICK * 20) != WakeReason::Rung {
                shared.faults.judge_links();
            }
        } else if pending || wanted >= CLOSELY {
            drop(shared);
            std::thread::sleep(TICK);
        } else {
            background.parked.store(true, Ordering::SeqCst);
            // A request posted just before the line above may not have seen it.
            if background.wanted.load(Ordering::SeqCst) == 0 && !background.stopped.load(Ordering::SeqCst) {
                drop(shared);
                std::thread::park_timeout(Duration::from_secs(3600));
            }
            if let Some(shared) = weak.upgrade() {
                shared.background.parked.store(false, Ordering::SeqCst);
            }
        }
    }
}
