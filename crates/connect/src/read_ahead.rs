//! A thread that reads ahead, for blocking reads. It writes to a bounded queue, and ends when the receiver is dropped.
//! Requests that it waits for are abandoned then, too.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_dataflow::TaskError;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// How soon a resting thread notices that the receiver is gone.
const SLICE: Duration = Duration::from_millis(50);

/// The receiving end.
pub(crate) struct FeedReceiver<T> {
    items: mpsc::Receiver<Result<T, TaskError>>,
    ended: Arc<AtomicBool>,
    name: String,
    /// Dropping it signals that no more items are wanted.
    _wants: watch::Sender<()>,
}

/// The sending end.
pub(crate) struct FeedSender<T> {
    items: mpsc::Sender<Result<T, TaskError>>,
    wanted: watch::Receiver<()>,
}

/// Waits on the feed's thread for futures that a pool drives.
#[derive(Clone, Debug)]
pub(crate) struct PoolWaiter {
    pool: Handle,
    wanted: watch::Receiver<()>,
}

impl PoolWaiter {
    /// The result of `work`, as long as the feed has a receiver. Without a receiver, nothing of the pool is used any
    /// more: the pool may end before a store or server answers.
    ///
    /// # Errors
    /// If there is no receiver any more. The error need not be reported.
    pub(crate) fn wait<R>(&self, work: impl Future<Output = R>) -> Result<R, TaskError> {
        let mut wanted = self.wanted.clone();
        self.pool.block_on(async {
            tokio::select! {
                biased;
                // Nothing is ever sent.
                _ = wanted.changed() => Err("the reader is gone".into()),
                done = work => Ok(done),
            }
        })
    }
}

impl<T: Send + 'static> FeedReceiver<T> {
    /// Runs `body` on a separate thread, at most `queue` items ahead.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start<F>(name: String, queue: usize, body: F) -> Result<Self, TaskError>
    where
        F: FnOnce(&FeedSender<T>) -> Result<(), TaskError> + Send + 'static,
    {
        let (sender, items) = mpsc::channel(queue);
        let ended = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&ended);
        let (wants, wanted) = watch::channel(());
        let feeder = FeedSender { items: sender, wanted };
        let work = move || {
            match body(&feeder) {
                Ok(()) => done.store(true, Ordering::Release),
                // The receiver may be gone.
                Err(error) => drop(feeder.items.blocking_send(Err(error))),
            }
        };
        thread::Builder::new()
            .name(name.clone())
            .spawn(work)
            .map_err(|error| format!("cannot start a thread for {name}: {error}"))?;
        Ok(FeedReceiver { items, ended, name, _wants: wants })
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

impl<T> FeedSender<T> {
    /// Sends an item once there is room. Returns false if no more are wanted.
    #[must_use]
    pub(crate) fn give(&self, item: T) -> bool {
        self.items.blocking_send(Ok(item)).is_ok()
    }

    /// A waiter for requests that the threads of `pool` drive.
    pub(crate) fn waiter(&self, pool: &Handle) -> PoolWaiter {
        PoolWaiter { pool: pool.clone(), wanted: self.wanted.clone() }
    }

    /// Whether there still is a receiver.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.items.is_closed()
    }

    /// Sleeps for a while. Returns false if no more items are wanted.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A request to a store that did not answer used to outlive the run; when the pool ended, the thread panicked in
    /// the middle of it.
    #[test]
    fn waiting_ends_with_the_feed() {
        let pool = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let handle = pool.handle().clone();
        let (tell, told) = std::sync::mpsc::channel();
        let feed = FeedReceiver::<()>::start("asks".into(), 1, move |feeder| {
            let answer = feeder.waiter(&handle).wait(async { tokio::time::sleep(Duration::from_secs(3600)).await });
            tell.send(answer.is_err())?;
            Ok(())
        });
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
        drop(feed.unwrap());
        pool.shutdown_background();
        assert!(told.recv_timeout(Duration::from_secs(30)).unwrap());
    }
}
