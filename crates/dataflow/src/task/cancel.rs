//! Cancellation: one flag that every copy of a run checks whenever it is polled, and that wakes them all.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidemill_net::endpoint::{EndpointWatch, has_lock_wait};

use super::turn::{LongTurn, Turn};
use crate::error::DataflowError;
use crate::link::Links;
use crate::observation::CopyClock;

/// Before it sleeps, a waiting copy polls for a while: initially, at least and at most for these durations. Polling
/// pays off only for waits no longer than that.
const WATCH_FIRST: Duration = Duration::from_micros(8);
const WATCH_MIN: Duration = Duration::from_micros(2);
const WATCH_MAX: Duration = Duration::from_micros(128);
/// If a thread that yields its core gets it back only after longer than this, the core is shared with others that have
/// more use for it.
const CROWDED: Duration = Duration::from_micros(20);
/// How many times the thread spins between two yields if there are no messages to poll for.
const POLLS: u32 = 60;
/// A sleep on the worker's doorbell ends after this long at the latest.
const SLICE: Duration = Duration::from_millis(100);

/// The flag of a run.
#[derive(Default)]
pub(crate) struct CancelFlag {
    raised: AtomicBool,
    /// The links that deliver the messages that copies wait for.
    links: Option<Arc<Links>>,
    /// Whether a long wait has been explained.
    explained: AtomicBool,
    waiting: Mutex<Vec<Arc<Mutex<Option<Waker>>>>>,
}

thread_local! {
    /// The flag of the run whose copy is being polled on this thread.
    static CURRENT: RefCell<Option<Arc<CancelFlag>>> = const { RefCell::new(None) };
    /// How long this thread's next wait looks before it sleeps.
    static WATCH: Cell<Duration> = const { Cell::new(WATCH_FIRST) };
}

/// Records whose copy is being polled, until it is dropped.
struct CurrentFlag(Option<Arc<CancelFlag>>);

impl CurrentFlag {
    fn enter(cancel: &Arc<CancelFlag>) -> Self {
        CurrentFlag(CURRENT.replace(Some(Arc::clone(cancel))))
    }
}

impl Drop for CurrentFlag {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// One copy's view of the flag.
#[derive(Clone)]
pub(crate) struct CancelToken {
    cancel: Arc<CancelFlag>,
    slot: Arc<Mutex<Option<Waker>>>,
}

impl CancelFlag {
    /// The flag of a run over these links.
    pub(crate) fn of_run(links: &Arc<Links>) -> Arc<Self> {
        Arc::new(CancelFlag { links: Some(Arc::clone(links)), ..CancelFlag::default() })
    }

    pub(crate) fn token(self: &Arc<Self>) -> CancelToken {
        let slot = Arc::default();
        self.waiting.lock().push(Arc::clone(&slot));
        CancelToken { cancel: Arc::clone(self), slot }
    }

    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        let wakers: Vec<Waker> = self.waiting.lock().iter().filter_map(|slot| slot.lock().take()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// How long a copy waits before the wait is explained; `None` if never.
    fn patience(&self) -> Option<Duration> {
        let patience = self.links.as_ref()?.endpoint().stall_warning();
        (!patience.is_zero()).then_some(patience)
    }
}

impl CancelToken {
    /// Whether the run is given up.
    pub(crate) fn is_raised(&self) -> bool {
        self.cancel.is_raised()
    }

    /// Runs a future of a copy that has its own thread. If it has to wait, it looks for messages for a moment and
    /// receives them itself, so a message that comes soon wakes nobody. Then it sleeps, and a message wakes no other
    /// thread first.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on_after(future, Some(&self.cancel), CopyClock::pause, None)
    }

    /// [`CancelToken::block_on`] for a future that may never complete. If it takes as long as calls may take before
    /// they are explained, calls `explain` with the duration, for the first such wait of a run.
    pub(crate) fn block_on_explained<F: Future>(&self, future: F, explain: impl Fn(Duration)) -> F::Output {
        let Some(patience) = self.cancel.patience() else { return self.block_on(future) };
        let explain = || {
            if !self.cancel.explained.swap(true, Ordering::Relaxed) {
                explain(patience);
            }
        };
        block_on_after(future, Some(&self.cancel), CopyClock::pause, Some((patience, &explain)))
    }

    /// Runs `future` until it is done or the run is given up; then drops it. Each poll is a turn.
    pub(crate) async fn guard<F: Future>(&self, future: F) -> Result<F::Output, DataflowError> {
        let mut future = pin!(future);
        poll_fn(|context| {
            {
                let mut slot = self.slot.lock();
                if slot.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                    *slot = Some(context.waker().clone());
                }
            }
            // Checked after the waker is in place: either this check sees the flag, or the thread that raises it sees
            // the waker.
            if self.cancel.is_raised() {
                return Poll::Ready(Err(DataflowError::Cancelled));
            }
            let _current = CurrentFlag::enter(&self.cancel);
            let _turn = Turn::begin();
            future.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Polls `future` once, within the current turn, and registers no waker that outlasts the call.
    pub(crate) fn poll_once<F: Future>(
        &self,
        future: Pin<&mut F>,
        turn: &mut LongTurn,
    ) -> Poll<Result<F::Output, DataflowError>> {
        if self.cancel.is_raised() {
            return Poll::Ready(Err(DataflowError::Cancelled));
        }
        let _current = CurrentFlag::enter(&self.cancel);
        turn.within(|| future.poll(&mut Context::from_waker(Waker::noop()))).map(Ok)
    }
}

/// Runs a future on this thread in the middle of a copy's work. If the copy's run is given up, the future is dropped,
/// so that others' work for it, which may never end, no longer keeps the run from ending.
///
/// # Errors
/// `Cancelled`.
pub fn wait_in_copy<F: Future>(future: F) -> Result<F::Output, DataflowError> {
    // If Tokio ends a copy's turn early because much was done in it, the copy continues only after it has returned
    // its thread; but here that happens only after the future is done.
    let future = tokio::task::unconstrained(future);
    let Some(cancel) = CURRENT.with_borrow(Clone::clone) else { return Ok(block_on(future)) };
    let token = cancel.token();
    let outcome = block_on(token.guard(future));
    cancel.waiting.lock().retain(|slot| !Arc::ptr_eq(slot, &token.slot));
    outcome
}

struct UnparkWaker {
    thread: Thread,
    woken: AtomicBool,
    /// The links on whose doorbell the thread sleeps while `on_doorbell`.
    links: Option<Arc<Links>>,
    on_doorbell: AtomicBool,
}

impl UnparkWaker {
    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }
}

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        match &self.links {
            // Otherwise it checks `woken` before it sleeps there.
            Some(links) if self.on_doorbell.load(Ordering::SeqCst) => links.endpoint().rouse_watch(),
            _ => {}
        }
        self.thread.unpark();
    }
}

/// A wait of a copy, from its start until the copy has been woken.
struct CopyWait<'a> {
    waker: &'a UnparkWaker,
    begun: Instant,
    /// Set if it receives messages itself.
    watch: Option<EndpointWatch<'a>>,
    /// Whether this thread shares its core.
    crowded: bool,
}

impl<'a> CopyWait<'a> {
    fn begin(waker: &'a UnparkWaker) -> Self {
        // If no messages come from other workers, only someone in this process can wake it.
        let links = waker.links.as_ref().filter(|links| links.workers() > 1);
        let watch = links.map(|links| links.endpoint().watch());
        CopyWait { waker, begun: Instant::now(), watch, crowded: false }
    }

    /// Looks until it is woken, for as long as that has recently paid off. Does not look if only other threads of
    /// this process can wake it and the host language has a lock: it would contend for that lock as soon as it
    /// noticed them.
    fn look(&mut self) {
        if self.watch.is_none() && has_lock_wait() {
            return;
        }
        let until = self.begun + WATCH.get();
        loop {
            self.look_briefly();
            let now = Instant::now();
            if self.waker.is_woken() || now >= until {
                return;
            }
            // The thread that will wake it may need this core.
            std::thread::yield_now();
            if now.elapsed() > CROWDED {
                self.crowded = true;
                return;
            }
        }
    }

    fn look_briefly(&self) {
        let (Some(watch), Some(links)) = (&self.watch, &self.waker.links) else {
            return (0..POLLS).for_each(|_| std::hint::spin_loop());
        };
        watch.look(|engine| {
            links.pump_if_due(engine);
            self.waker.is_woken()
        });
    }

    /// Sleeps until it may have been woken, or until `timeout`.
    fn sleep(&mut self, timeout: Option<Duration>) {
        let UnparkWaker { links, on_doorbell, .. } = self.waker;
        if let (Some(watch), Some(links)) = (&mut self.watch, links) {
            on_doorbell.store(true, Ordering::SeqCst);
            let slept = watch.sleep(timeout.unwrap_or(SLICE).min(SLICE), |engine| {
                links.pump_if_due(engine);
                self.waker.is_woken()
            });
            on_doorbell.store(false, Ordering::SeqCst);
            if slept {
                return self.look_briefly();
            }
        }
        // Others receive the messages.
        self.watch = None;
        if !self.waker.is_woken() {
            timeout.map_or_else(std::thread::park, std::thread::park_timeout);
        }
    }

    /// Learns from a finished wait how long the next one should look.
    fn learn(&self) {
        let watched = WATCH.get();
        WATCH.set(match self.crowded {
            true => WATCH_MIN,
            false if self.begun.elapsed() <= WATCH_MAX => (2 * watched).min(WATCH_MAX),
            false => (watched / 2).max(WATCH_MIN),
        });
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    block_on_after(future, None, || (), None)
}

/// The same for a copy of the run that `cancel` belongs to: it looks for a moment before it sleeps. The result of
/// `pause` lives while it waits. Once it has slept for the time that comes with `explain`, it calls that function.
fn block_on_after<F: Future, P>(
    future: F,
    cancel: Option<&CancelFlag>,
    pause: impl Fn() -> P,
    explain: Option<(Duration, &dyn Fn())>,
) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(UnparkWaker {
        thread: std::thread::current(),
        woken: AtomicBool::new(false),
        links: cancel.and_then(|cancel| cancel.links.clone()),
        on_doorbell: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        unpark.woken.store(false, Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let _paused = pause();
        let mut wait = CopyWait::begin(&unpark);
        if cancel.is_some() {
            wait.look();
        }
        let mut left = explain.map(|(patience, explain)| (Instant::now() + patience, explain));
        while !unpark.is_woken() {
            let timeout = left.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            match left {
                Some((_, explain)) if timeout.is_some_and(|time| time.is_zero()) => {
                    explain();
                    left = None;
                }
                _ => wait.sleep(timeout),
            }
        }
        if cancel.is_some() {
            wait.learn();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that waits for someone else's work, which does not end, would keep its run alive forever.
    #[test]
    fn a_wait_in_a_copy_ends_with_its_run() {
        let cancel = Arc::new(CancelFlag::default());
        let (token, raiser) = (cancel.token(), Arc::clone(&cancel));
        let raised = std::thread::spawn(move || {
            // Two wait: the copy, and what waits within it.
            while raiser.waiting.lock().len() < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            raiser.raise();
        });
        let waits = block_on(token.guard(async { wait_in_copy(std::future::pending::<()>()) }));
        assert!(matches!(waits, Ok(Err(DataflowError::Cancelled))));
        raised.join().unwrap();
        assert_eq!(cancel.waiting.lock().len(), 1, "what it noted is forgotten");
        assert!(matches!(block_on(token.guard(async {})), Err(DataflowError::Cancelled)));
        assert!(matches!(wait_in_copy(async { 7 }), Ok(7)), "outside of a copy");
    }

    /// If a copy on the pool waits many times in one turn, the pool would suspend it while the pool itself waits for
    /// the copy.
    #[test]
    fn frequent_waits_are_not_suspended() {
        let pool = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let done = pool.block_on(pool.spawn(async {
            (0..1000)
                .filter(|_| wait_in_copy(tokio::task::spawn_blocking(|| ())).is_ok_and(|call| call.is_ok()))
                .count()
        }));
        assert_eq!(done.unwrap(), 1000);
    }
}
