//! The background thread: drives the engine while requests are pending and no call drives it.
//!
//! It parks when there is nothing to do, so that it does not disturb a computing worker, and the next request wakes
//! it. It never touches Python.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use super::EndpointState;
use crate::WakeReason;

/// The time between looks while calls drive the engine, or requests come in quick succession.
const TICK: Duration = Duration::from_millis(1);
/// From this many requests per tick on, keeping the thread awake is cheaper than waking it for each.
const CLOSELY: u32 = 4;

#[derive(Default)]
pub(super) struct BackgroundDriver {
    parked: AtomicBool,
    /// Requests since the last look.
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

    /// Announces a pending request. Costs one load if the thread is awake.
    #[inline]
    pub(super) fn want(&self, _shared: &EndpointState) {
        // Not an atomic addition: if one of two concurrent updates is lost, it does not matter.
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

    /// Whether the calling thread is the background thread.
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
        // Calls in quick succession drive the engine often enough; if this thread slept on the doorbell between them,
        // peers would only pay for waking it. Pending operations still move with each tick: the caller may be
        // computing now.
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
            // Nobody drives the engine: sleep until a peer rings, as a call would.
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
