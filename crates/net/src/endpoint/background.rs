//! The background thread: drives the engine while requests are pending and no call does.
//!
//! It parks when there is nothing to do for a while, so that an idle worker costs nothing, and is woken by the first
//! request after that. It never touches Python.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Shared;
use crate::Woken;

/// Between looks while calls are driving, or nothing is pending but was a moment ago.
const TICK: Duration = Duration::from_millis(1);
/// Nothing pending for this long: park.
const LINGER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Background {
    parked: AtomicBool,
    wanted: AtomicU32,
    stopped: AtomicBool,
    thread: Mutex<Option<(Thread, JoinHandle<()>)>>,
}

impl Background {
    pub(super) fn start(shared: &Arc<Shared>) {
        let weak = Arc::downgrade(shared);
        let handle = crate::threads::spawn_native("tidemill-progress".into(), move || run(&weak))
            .expect("a worker can start a thread");
        *shared.background.thread.lock() = Some((handle.thread().clone(), handle));
    }

    /// Something is pending. Costs one load when the thread is awake anyway.
    #[inline]
    pub(super) fn want(&self, _shared: &Shared) {
        self.wanted.store(1, Ordering::Relaxed);
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

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let taken = self.thread.lock().take();
        if let Some((thread, handle)) = taken {
            thread.unpark();
            // The last owner of the endpoint may be this very thread.
            if handle.thread().id() != std::thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

fn run(weak: &Weak<Shared>) {
    let mut idle_since = Instant::now();
    loop {
        let Some(shared) = weak.upgrade() else { return };
        let background = &shared.background;
        if background.stopped.load(Ordering::SeqCst) {
            return;
        }
        // Calls that follow each other closely drive enough; to sleep on the doorbell between them would only make the
        // peers pay for waking this thread. What is under way still moves with each tick: perhaps the caller computes now.
        let (pending, driven) = match shared.engine.try_lock() {
            None => (true, true),
            Some(mut engine) => {
                let driven = engine.idle_for() < TICK * 8;
                if !driven || engine.has_pending() {
                    while engine.progress() {}
                    engine.flush();
                }
                (engine.has_pending(), driven)
            }
        };
        if pending || background.wanted.swap(0, Ordering::Relaxed) != 0 {
            idle_since = Instant::now();
        }
        if pending && !driven {
            // Nobody drives: sleep until a peer rings, as a call would.
            let armed = shared.doorbell.arm(shared.epoll_fd);
            let moved = shared.engine.try_lock().is_none_or(|mut engine| {
                let moved = engine.progress();
                engine.flush();
                moved
            });
            if !moved && armed.sleep(TICK * 20) != Woken::Rung {
                shared.faults.judge_links();
            }
        } else if pending || idle_since.elapsed() < LINGER {
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
            idle_since = Instant::now();
        }
    }
}
