//! A thread that reads ahead, for what cannot be read without blocking: it gives into a bounded queue, and ends when nobody
//! takes from it any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_dataflow::TaskError;
use tokio::sync::mpsc;

/// How soon a resting thread finds out that nobody wants more.
const SLICE: Duration = Duration::from_millis(50);

/// The end that takes.
pub(crate) struct Feed<T> {
    items: mpsc::Receiver<Result<T, TaskError>>,
    ended: Arc<AtomicBool>,
    name: String,
}

/// The end that gives.
pub(crate) struct Feeder<T> {
    items: mpsc::Sender<Result<T, TaskError>>,
}

impl<T: Send + 'static> Feed<T> {
    /// Runs `body` on a thread of its own, at most `queue` items ahead.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub(crate) fn start<F>(name: String, queue: usize, body: F) -> Result<Self, TaskError>
    where
        F: FnOnce(&Feeder<T>) -> Result<(), TaskError> + Send + 'static,
    {
        let (sender, items) = mpsc::channel(queue);
        let ended = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&ended);
        let feeder = Feeder { items: sender };
        let work = move || {
            match body(&feeder) {
                Ok(()) => done.store(true, Ordering::Release),
                // Nobody may be there to hear it.
                Err(error) => drop(feeder.items.blocking_send(Err(error))),
            }
        };
        thread::Builder::new()
            .name(name.clone())
            .spawn(work)
            .map_err(|error| format!("no thread for {name}: {error}"))?;
        Ok(Feed { items, ended, name })
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// The thread's.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<T>, TaskError>> {
        self.items.poll_recv(context).map(|item| match item {
            Some(item) => item.map(Some),
            None if self.ended.load(Ordering::Acquire) => Ok(None),
            None => Err(format!("the thread of {} has died", self.name).into()),
        })
    }
}

impl<T> Feeder<T> {
    /// Gives an item, when there is room. False: nobody wants more.
    #[must_use]
    pub(crate) fn give(&self, item: T) -> bool {
        self.items.blocking_send(Ok(item)).is_ok()
    }

    /// Whether somebody still takes.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.items.is_closed()
    }

    /// Does nothing for a while. False: nobody wants more.
    #[must_use]
    pub(crate) fn rest(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.is_wanted() {
                return self.is_wanted();
            }
            thread::sleep(left.min(SLICE));
        }
    }
}
