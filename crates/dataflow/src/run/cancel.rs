//! Giving up: one flag that every copy of a run looks at whenever it is polled, and that wakes them all.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use parking_lot::Mutex;

use crate::error::DataflowError;
use crate::flow::Turn;

/// The flag of a run.
#[derive(Default)]
pub(crate) struct Cancel {
    raised: AtomicBool,
    waiting: Mutex<Vec<Arc<Mutex<Option<Waker>>>>>,
}

/// One copy's view of the flag.
#[derive(Clone)]
pub(crate) struct CancelToken {
    cancel: Arc<Cancel>,
    slot: Arc<Mutex<Option<Waker>>>,
}

impl Cancel {
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
}

impl CancelToken {
    /// Runs `future` until it is done or the run is given up; then it is dropped. Each time it is polled is a turn.
    pub(crate) async fn guard<F: Future>(&self, future: F) -> Result<F::Output, DataflowError> {
        let mut future = pin!(future);
        poll_fn(|context| {
            {
                let mut slot = self.slot.lock();
                if slot.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                    *slot = Some(context.waker().clone());
                }
            }
            // After the waker is in place: either this look sees the flag, or the flag's raiser sees the waker.
            if self.cancel.is_raised() {
                return Poll::Ready(Err(DataflowError::Cancelled));
            }
            let _turn = Turn::begin();
            future.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
