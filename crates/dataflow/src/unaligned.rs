//! Barriers that overtake rows. While a slow task holds back the tasks before it, a barrier waits behind all the rows
//! that are queued on its way. An *unaligned* barrier passes them: a copy saves its state as soon as the barrier has
//! come on any of its streams, and sends the barrier on. Rows that are ahead of the barrier on their streams but have
//! not been received are *in flight*, and are saved along with the state. A job that resumes from such a checkpoint
//! receives them first.
//!
//! Source: Chandy and Lamport, "Distributed Snapshots" (1985), whose snapshots hold what is in flight; Apache Flink,
//! FLIP-76, where barriers begin to overtake after a time limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// How a copy's inputs or outputs learn of unaligned barriers.
pub(crate) struct UnalignedSignal {
    /// The last epoch with an unaligned barrier.
    epochs: watch::Receiver<u64>,
    /// The last epoch whose barrier has passed here.
    passed: AtomicU64,
    waiting: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl UnalignedSignal {
    pub(crate) fn new(epochs: watch::Receiver<u64>) -> Self {
        UnalignedSignal { epochs, passed: AtomicU64::new(0), waiting: Mutex::default() }
    }

    /// Records that a barrier has passed here.
    pub(crate) fn pass(&self, epoch: u64) {
        self.passed.fetch_max(epoch, Ordering::Relaxed);
        *self.waiting.lock() = None;
    }

    /// The epoch whose barrier is unaligned and has not passed here.
    pub(crate) fn now(&self) -> Option<u64> {
        let epoch = *self.epochs.borrow();
        (epoch > self.passed.load(Ordering::Relaxed)).then_some(epoch)
    }

    /// Waits for one. Only one task at a time may wait.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(epoch) = self.now() {
                return Poll::Ready(epoch);
            }
            let passed = self.passed.load(Ordering::Relaxed);
            let future = waiting.get_or_insert_with(|| {
                let mut epochs = self.epochs.clone();
                async move {
                    if epochs.wait_for(|epoch| *epoch > passed).await.is_err() {
                        // The run is over: no more barriers will be unaligned.
                        std::future::pending().await
                    }
                }
                .boxed()
            });
            if future.poll_unpin(context).is_pending() {
                return Poll::Pending;
            }
            *waiting = None;
        }
    }
}

/// What a stream delivers, as far as a recording cares.
#[derive(Debug)]
pub(crate) enum RecordedItem<T> {
    Rows(T),
    Barrier(u64),
    End,
    /// Another mark.
    Other,
}

/// The rows in flight to one port when a barrier overtook them.
#[derive(Debug)]
pub(crate) struct Recording<T> {
    epoch: u64,
    /// Whether each stream still has to deliver the barrier.
    open: Vec<bool>,
    rows: Vec<T>,
}

impl<T> Recording<T> {
    /// A recording over streams, of which those that are `open` have not delivered the barrier of `epoch`.
    pub(crate) fn new(epoch: u64, open: Vec<bool>) -> Self {
        Recording { epoch, open, rows: Vec::new() }
    }

    /// Records the next item of a stream, in its order. Rows that belong to no stream, since they were already in
    /// flight when the run began, have a number after all streams.
    pub(crate) fn note(&mut self, stream: usize, seen: RecordedItem<T>) {
        let is_open = self.open.get(stream).copied();
        match seen {
            RecordedItem::Rows(rows) if is_open.unwrap_or(true) => self.rows.push(rows),
            // The coordinator has given up the recorded epoch, so nobody needs what follows.
            RecordedItem::Barrier(epoch) if epoch > self.epoch => self.open.fill(false),
            RecordedItem::Barrier(epoch) if epoch == self.epoch => self.open[stream] = false,
            RecordedItem::End if is_open == Some(true) => self.open[stream] = false,
            RecordedItem::Rows(_) | RecordedItem::Barrier(_) | RecordedItem::End | RecordedItem::Other => {}
        }
    }

    /// Whether all streams have delivered the barrier or their ends.
    pub(crate) fn is_over(&self) -> bool {
        !self.open.contains(&true)
    }

    /// The rows in flight, for each stream in its order.
    pub(crate) fn into_rows(self) -> Vec<T> {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A missing row is lost when the job resumes from there; an extra one counts twice.
    #[test]
    fn rows_before_the_barrier_are_in_flight() {
        let mut recording = Recording::new(4, vec![true, false, true]);
        recording.note(9, RecordedItem::Rows("from before"));
        recording.note(0, RecordedItem::Rows("a"));
        recording.note(1, RecordedItem::Rows("behind the barrier"));
        recording.note(0, RecordedItem::Barrier(3));
        recording.note(0, RecordedItem::Rows("b"));
        recording.note(0, RecordedItem::Barrier(4));
        recording.note(0, RecordedItem::Rows("behind the barrier"));
        assert!(!recording.is_over());
        recording.note(2, RecordedItem::Other);
        recording.note(2, RecordedItem::Rows("c"));
        recording.note(2, RecordedItem::End);
        assert!(recording.is_over());
        assert_eq!(recording.into_rows(), ["from before", "a", "b", "c"]);
    }

    #[test]
    fn a_newer_barrier_ends_it() {
        let mut recording = Recording::new(4, vec![true, true]);
        recording.note(0, RecordedItem::<()>::Barrier(5));
        assert!(recording.is_over());
    }

    /// A copy that is not woken would sleep on while the barrier waits; one woken for a barrier that has passed would
    /// look for it in vain.
    #[test]
    fn a_waiting_copy_is_woken_once() {
        let sender = watch::Sender::new(0);
        let signal = UnalignedSignal::new(sender.subscribe());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(signal.poll(&mut context).is_pending());
        sender.send_replace(3);
        assert_eq!(signal.poll(&mut context), Poll::Ready(3));
        signal.pass(3);
        assert_eq!(signal.now(), None);
        assert!(signal.poll(&mut context).is_pending());
        sender.send_replace(5);
        assert_eq!(signal.poll(&mut context), Poll::Ready(5));
        signal.pass(6);
        assert!(signal.poll(&mut context).is_pending());
        drop(sender);
        assert!(signal.poll(&mut context).is_pending());
    }
}
