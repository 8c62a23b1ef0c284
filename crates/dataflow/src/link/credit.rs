//! Credit: permission to send, in bytes. Every stream from a copy to a copy has an account at its sender; what the
//! receiver takes comes back. So a consumer that is slow stops its producers, and no queue grows without bound.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tidemill_batch::memory::{Governor, MemoryLevel};
use tidemill_batch::wire::WireKind;

use super::Links;
use crate::unaligned::UnalignedSignal;

/// A window is never smaller, or little would move at all.
pub(crate) const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// A sender's credit for one stream.
pub(crate) struct CreditAccount {
    window_bytes: i64,
    state: Mutex<AccountState>,
}

struct AccountState {
    /// Below zero while one item that is larger than the whole window is under way: it would never go otherwise.
    available: i64,
    /// The receiver wants nothing more: nobody waits any longer.
    stopped: bool,
    waiting: Option<Waker>,
}

impl CreditAccount {
    pub(crate) fn new(window_bytes: u64) -> Arc<Self> {
        let window_bytes = window_bytes as i64;
        let state = AccountState { available: window_bytes, stopped: false, waiting: None };
        Arc::new(CreditAccount { window_bytes, state: Mutex::new(state) })
    }

    pub(crate) fn try_acquire(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        if state.available <= 0 {
            return false;
        }
        state.available -= bytes as i64;
        true
    }

    /// Waits until there is any credit, then takes `bytes`. One waits at a time: a stream has one sender. Who has a
    /// barrier behind it that is unaligned may owe as much again as the window: it would wait with him; or it
    /// `may_owe_all` that it has left to send. What `begin` returns is there while it waits, if it has to.
    pub(crate) async fn acquire<W>(
        &self,
        bytes: u64,
        signal: Option<&UnalignedSignal>,
        may_owe_all: bool,
        begin: impl Fn() -> W,
    ) {
        let mut wait = None;
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.available > 0 || state.stopped {
                state.available -= bytes as i64;
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            if let Some(signal) = signal
                && signal.poll(context).is_ready()
                && (may_owe_all || state.available > -self.window_bytes)
            {
                state.available -= bytes as i64;
                return Poll::Ready(());
            }
            wait.get_or_insert_with(&begin);
            Poll::Pending
        })
        .await;
    }

    /// Ready when [`CreditAccount::acquire`] would not wait, of a sender that may go on with another stream as well.
    pub(crate) fn poll_room(&self, signal: Option<&UnalignedSignal>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.available > 0 || state.stopped {
            return Poll::Ready(());
        }
        state.waiting = Some(context.waker().clone());
        match signal {
            Some(signal) if state.available > -self.window_bytes => signal.poll(context).map(|_| ()),
            _ => Poll::Pending,
        }
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.settle(bytes, 0);
    }

    /// What was estimated to cost `taken` bytes, and has taken them, costs `cost`.
    pub(crate) fn settle(&self, taken: u64, cost: u64) {
        let mut state = self.state.lock();
        state.available += taken as i64 - cost as i64;
        let waker = if state.available > 0 { state.waiting.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The receiver wants nothing more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let waker = state.waiting.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the receiver wants nothing more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }
}

/// How much of a stream's window is in use: less while the receiving worker's memory runs out, so that sources slow
/// down before anything else has to happen; all of it again afterwards.
pub(crate) struct CreditValve {
    governor: Governor,
    full_bytes: u64,
    open_bytes: AtomicU64,
}

impl CreditValve {
    pub(crate) fn new(governor: &Governor, window_bytes: u64) -> Arc<Self> {
        let governor = governor.clone();
        Arc::new(CreditValve { governor, full_bytes: window_bytes, open_bytes: AtomicU64::new(window_bytes) })
    }

    /// How much credit to give back for `bytes` that were taken. One thread at a time may overshoot a little; the
    /// window never closes.
    fn pass(&self, bytes: u64) -> u64 {
        let open = self.open_bytes.load(Ordering::Relaxed);
        if self.governor.level() == MemoryLevel::Ok {
            if open == self.full_bytes {
                return bytes;
            }
            let more = bytes.min(self.full_bytes - open);
            self.open_bytes.store(open + more, Ordering::Relaxed);
            return bytes + more;
        }
        let less = bytes.min(open.saturating_sub(WINDOW_BYTES_MIN));
        self.open_bytes.store(open - less, Ordering::Relaxed);
        bytes - less
    }

    /// Credit goes back to other workers in lots of this size: often enough that the sender is never left with none.
    fn lot_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Relaxed) / 4
    }
}

/// What the receiver owes to the sender of a stream on another worker.
pub(crate) struct CreditDebt {
    links: Arc<Links>,
    /// The worker that sent the blocks to this one: for a broadcast not always the one they come from.
    worker: u32,
    edge: u32,
    source: u32,
    target: u32,
    owed: AtomicU64,
    valve: Arc<CreditValve>,
}

impl CreditDebt {
    pub(crate) fn new(links: &Arc<Links>, worker: u32, stream: (u32, u32, u32), valve: Arc<CreditValve>) -> Arc<Self> {
        let (edge, source, target) = stream;
        Arc::new(CreditDebt { links: Arc::clone(links), worker, edge, source, target, owed: AtomicU64::new(0), valve })
    }

    /// Tells the sender that nothing more is wanted.
    pub(crate) fn stop(&self) {
        self.links.notify_sender(self.worker, WireKind::Stop, (self.edge, self.source, self.target), 0);
    }

    fn add(&self, bytes: u64) {
        let give = self.valve.pass(bytes);
        let owed = self.owed.fetch_add(give, Ordering::AcqRel) + give;
        if owed >= self.valve.lot_bytes() {
            let owed = self.owed.swap(0, Ordering::AcqRel);
            if owed > 0 {
                self.links.notify_sender(self.worker, WireKind::Credit, (self.edge, self.source, self.target), owed);
            }
        }
    }
}

/// Gives its bytes back to their sender when it is dropped. Dropped wherever the batch is, perhaps while the engine is
/// locked: it never locks the engine itself.
pub(crate) struct CreditGuard {
    bytes: u64,
    /// What it has cost its sender: more than its bytes where rows take long.
    credit: u64,
    owner: CreditOwner,
}

enum CreditOwner {
    Local(Arc<CreditAccount>, Arc<CreditValve>),
    Remote(Arc<CreditDebt>),
}

impl CreditGuard {
    #[cfg(test)]
    pub(crate) fn local(account: &Arc<CreditAccount>, valve: &Arc<CreditValve>, bytes: u64) -> Self {
        Self::weighed(account, valve, bytes, bytes)
    }

    /// Of a batch of this process, for which so much credit was taken.
    pub(crate) fn weighed(account: &Arc<CreditAccount>, valve: &Arc<CreditValve>, bytes: u64, credit: u64) -> Self {
        CreditGuard { bytes, credit, owner: CreditOwner::Local(Arc::clone(account), Arc::clone(valve)) }
    }

    pub(crate) fn remote(debt: &Arc<CreditDebt>, bytes: u64) -> Self {
        CreditGuard { bytes, credit: bytes, owner: CreditOwner::Remote(Arc::clone(debt)) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for CreditGuard {
    fn drop(&mut self) {
        match &self.owner {
            CreditOwner::Local(account, valve) => account.release(valve.pass(self.credit)),
            CreditOwner::Remote(debt) => debt.add(self.credit),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_batch::memory::MemorySettings;

    use super::*;
    use crate::task::block_on;

    /// Credit that got lost would stop a stream for ever; credit that multiplies would not stop it at all.
    #[test]
    fn a_waiting_sender_goes_on_when_credit_returns() {
        let account = CreditAccount::new(100);
        let acquire =
            |account: Arc<CreditAccount>, bytes| async move { account.acquire(bytes, None, false, || ()).await };
        let passes = futures_util::FutureExt::now_or_never(acquire(Arc::clone(&account), 150)).is_some();
        assert!(passes, "a large item passes a window that is untouched");
        assert!(!account.try_acquire(1));
        let waiter = std::thread::spawn({
            let account = Arc::clone(&account);
            move || block_on(acquire(account, 10))
        });
        let valve = CreditValve::new(&Governor::new(MemorySettings::default()), 100);
        drop(CreditGuard::local(&account, &valve, 49));
        assert!(!account.try_acquire(1), "one byte is still missing");
        drop(CreditGuard::local(&account, &valve, 101));
        waiter.join().unwrap();
        assert!(account.try_acquire(90));
        assert!(!account.try_acquire(1));
    }

    /// A barrier that waited with a sender for credit would overtake in vain; a window without an end would fill the
    /// memory.
    #[test]
    fn an_unaligned_barrier_may_owe_a_window_more() {
        let account = CreditAccount::new(100);
        let epochs = tokio::sync::watch::Sender::new(0);
        let signal = UnalignedSignal::new(epochs.subscribe());
        let acquire = |bytes| {
            let acquired = account.acquire(bytes, Some(&signal), false, || ());
            futures_util::FutureExt::now_or_never(acquired).is_some()
        };
        assert!(acquire(100) && !acquire(1));
        epochs.send_replace(1);
        assert!(acquire(60) && acquire(60) && !acquire(1));
        signal.pass(1);
        account.release(121);
        assert!(acquire(1) && !acquire(1));
    }

    /// A window that stayed small would leave a stream slow for ever; one that closed would stop it.
    #[test]
    fn windows_shrink_and_grow_with_memory() {
        let settings = MemorySettings { budget_bytes: 1000, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let full = 4 * WINDOW_BYTES_MIN;
        let valve = CreditValve::new(&governor, full);
        assert_eq!(valve.pass(10_000), 10_000);
        let reservation = governor.reservation("sort");
        assert!(reservation.try_grow(750));
        let kept: u64 = (0..100).map(|_| 10_000 - valve.pass(10_000)).sum();
        assert_eq!(kept, full - WINDOW_BYTES_MIN);
        assert!(valve.lot_bytes() < WINDOW_BYTES_MIN);
        drop(reservation);
        let given: u64 = (0..100).map(|_| valve.pass(10_000) - 10_000).sum();
        assert_eq!(given, kept);
    }
}
