//! A thread that reads ahead, for what cannot be read without blocking: it gives into a bounded queue, and ends when
//! nobody takes from it any more. What it asks of others meanwhile is given up then, too.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_dataflow::TaskError;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// How soon a resting thread finds out that nobody wants more.
const SLICE: Duration = Duration::from_millis(50);

/// The end that takes.
pub(crate) struct FeedReceiver<T> {
    items: mpsc::Receiver<Result<T, TaskError>>,
    ended: Arc<AtomicBool>,
    name: String,
    /// Dropped, it says that nobody wants more.
    _wants: watch::Sender<()>,
}

/// The end that gives.
pub(crate) struct FeedSender<T> {
    items: mpsc::Sender<Result<T, TaskError>>,
    wanted: watch::Receiver<()>,
}

/// Waits on the feed's thread for what a pool drives.
#[derive(Clone, Debug)]
pub(crate) struct PoolWaiter {
    pool: Handle,
    wanted: watch::Receiver<()>,
}

impl PoolWaiter {
    /// What comes of `work`, as long as somebody takes from the feed. Then nothing of the pool is used any more, which
    /// may end before what a store or server that does not answer is asked would.
    ///
    /// # Errors
    /// When nobody does any more, which nobody need be told.
    pub(crate) fn wait<R>(&self, work: impl Future<Output = R>) -> Result<R, TaskError> {
        let mut wanted = self.wanted.clone();
        self.pool.block_on(async {
            tokio::select! {
                biased;
                // Nothing is ever sent.
                _ = wanted.changed() => Err("nobody reads any more".into()),
                done = work => Ok(done),
            }
        })
    }
}

impl<T: Send + 'static> FeedReceiver<T> {
    /// Runs `body` on a thread of its own, at most `queue` items ahead.
    ///
    /// # Errors
    /// When there can be no further thread.
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
                // Nobody may be there to hear it.
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
    /// Gives an item, when there is room. False: nobody wants more.
    #[must_use]
    pub(crate) fn give(&self, item: T) -> bool {
        self.items.blocking_send(Ok(item)).is_ok()
    }

    /// For what is asked of others with the threads of `pool`.
    pub(crate) fn waiter(&self, pool: &Handle) -> PoolWaiter {
        PoolWaiter { pool: pool.clone(), wanted: self.wanted.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a store that does not answer is asked outlived the run; when the pool ended, the thread panicked in the
    /// middle of it.
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
