//! Credit: permission to send, in bytes. Every stream from one copy to another has an account at its sender; what the
//! receiver takes comes back as credit. So a slow consumer stops its producers, and no queue grows without bound.
//!
//! A stream's window is as wide as its receiver is fast, because its content delays the barriers behind it; also within
//! a worker, where what is queued in front of a step that sends over a slow link waits for that link. Over a network a
//! sender also needs [room on the link](super::pacer).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidemill_batch::memory::{Governor, MemoryLevel};
use tidemill_batch::wire::WireKind;

use super::{LinkPacer, Links};
use crate::unaligned::UnalignedSignal;

/// A window is never smaller than this; otherwise hardly anything would move.
pub(crate) const WINDOW_BYTES_MIN: u64 = 64 << 10;
/// A window that is never used up.
pub(crate) const NO_WINDOW_BYTES: u64 = 1 << 60;
/// How much of a stream's window is open at first.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
/// If a receiver takes something later than this after its arrival, the stream's window shrinks; if it takes half that
/// time or less, the window grows.
const WINDOW_TIME: Duration = Duration::from_millis(250);

/// A sender's credit for one stream.
pub(crate) struct CreditAccount {
    window_bytes: i64,
    /// The network link that the stream uses.
    link: Option<Arc<LinkPacer>>,
    state: Mutex<AccountState>,
}

struct AccountState {
    /// Below zero while an item larger than the whole window is in transit: it could never be sent otherwise.
    available: i64,
    /// Whether the receiver wants nothing more, so that nobody waits any longer.
    stopped: bool,
    waiting: Option<Waker>,
}

impl CreditAccount {
    pub(crate) fn new(window_bytes: u64) -> Arc<Self> {
        Self::over(None, window_bytes)
    }

    /// The account of a stream, over a network link if it has one.
    pub(crate) fn over(link: Option<&Arc<LinkPacer>>, window_bytes: u64) -> Arc<Self> {
        let available = first_window(window_bytes) as i64;
        let state = AccountState { available, stopped: false, waiting: None };
        Arc::new(CreditAccount { window_bytes: window_bytes as i64, link: link.cloned(), state: Mutex::new(state) })
    }

    /// The largest message on the stream's link.
    pub(crate) fn block_bytes_max(&self) -> u64 {
        self.link.as_ref().map_or(u64::MAX, |link| link.block_bytes_max())
    }

    /// Whether the stream's link is known to be slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_slow())
    }

    /// Whether there is credit, and room on the link. Senders wait for both; those who pass on what others have sent
    /// only need credit.
    fn has_room(&self, state: &AccountState, context: &mut Context<'_>) -> bool {
        state.stopped || state.available > 0 && self.link.as_ref().is_none_or(|link| link.poll_room(context).is_ready())
    }

    pub(crate) fn try_acquire(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        if state.available <= 0 {
            return false;
        }
        state.available -= bytes as i64;
        true
    }

    /// Waits until there is any credit, and room on the link, then takes `bytes`. Only one caller waits at a time,
    /// since a stream has one sender. If an unaligned barrier follows, which would wait with the sender, the sender
    /// may owe as much as another window, or everything it has left to send if it `may_owe_all`. If it has to wait,
    /// it calls `begin`, with whether it waits only for the link, and keeps the result until the wait is over.
    pub(crate) async fn acquire<W>(
        &self,
        bytes: u64,
        signal: Option<&UnalignedSignal>,
        may_owe_all: bool,
        begin: impl Fn(bool) -> W,
    ) {
        let mut wait: Option<(bool, W)> = None;
        poll_fn(|context| {
            let mut state = self.state.lock();
            if self.has_room(&state, context) {
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
            let for_link = state.available > 0;
            drop(state);
            if wait.as_ref().is_none_or(|(begun, _)| *begun != for_link) {
                wait = Some((for_link, begin(for_link)));
            }
            Poll::Pending
        })
        .await;
    }

    /// Ready when [`CreditAccount::acquire`] would not wait, for a sender that could also use another stream.
    pub(crate) fn poll_room(&self, signal: Option<&UnalignedSignal>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if self.has_room(&state, context) {
            return Poll::Ready(());
        }
        state.waiting = Some(context.waker().clone());
        match signal {
            Some(signal) if state.available > -self.window_bytes => signal.poll(context).map(|_| ()),
            _ => Poll::Pending,
        }
    }

    /// Whether there is credit: a sender that waits anyway waits for the link.
    pub(crate) fn has_credit(&self) -> bool {
        self.state.lock().available > 0
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.settle(bytes, 0);
    }

    /// Corrects an estimate: what has taken `taken` bytes costs `cost`.
    pub(crate) fn settle(&self, taken: u64, cost: u64) {
        let mut state = self.state.lock();
        state.available += taken as i64 - cost as i64;
        let waker = if state.available > 0 { state.waiting.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that the receiver wants nothing more.
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

/// How much of a stream's window is open at first.
fn first_window(window_bytes: u64) -> u64 {
    match window_bytes < NO_WINDOW_BYTES {
        true => window_bytes.min(FIRST_WINDOW_BYTES),
        false => window_bytes,
    }
}

/// How much of a stream's window is in use: less while the receiver is late to take what arrives, or while its worker
/// runs out of memory, so that sources slow down before anything else has to happen; and all of it again afterwards.
pub(crate) struct CreditValve {
    governor: Governor,
    full_bytes: u64,
    open_bytes: AtomicU64,
}

impl CreditValve {
    pub(crate) fn new(governor: &Governor, window_bytes: u64) -> Arc<Self> {
        let open_bytes = AtomicU64::new(first_window(window_bytes));
        Arc::new(CreditValve { governor: governor.clone(), full_bytes: window_bytes, open_bytes })
    }

    /// How much credit to return for `bytes` that were taken this long after their arrival. Concurrent threads may
    /// overshoot a little; the window never closes.
    fn pass(&self, bytes: u64, waited: Duration) -> u64 {
        let open = self.open_bytes.load(Ordering::Relaxed);
        let withheld = match self.governor.level() {
            MemoryLevel::Ok if waited <= WINDOW_TIME / 2 => {
                if open == self.full_bytes {
                    return bytes;
                }
                let more = bytes.min(self.full_bytes - open);
                self.open_bytes.store(open + more, Ordering::Relaxed);
                return bytes + more;
            }
            MemoryLevel::Ok if waited <= WINDOW_TIME => return bytes,
            // Whatever waited longer mostly belongs to an earlier window.
            MemoryLevel::Ok => bytes / 2,
            _ => bytes,
        };
        let less = withheld.min(open.saturating_sub(WINDOW_BYTES_MIN));
        self.open_bytes.store(open - less, Ordering::Relaxed);
        bytes - less
    }

    /// Credit returns to other workers in lots of this size: often enough that the sender never runs out.
    fn lot_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Relaxed) / 4
    }
}

/// What the receiver owes the sender of a stream on another worker.
pub(crate) struct CreditDebt {
    links: Arc<Links>,
    /// The worker that sent the blocks to this one; for a broadcast this is not always the worker of the source.
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

    /// Tells the sender that the receiver wants nothing more.
    pub(crate) fn stop(&self) {
        self.links.notify_sender(self.worker, WireKind::Stop, (self.edge, self.source, self.target), 0);
    }

    fn add(&self, bytes: u64, waited: Duration) {
        let give = self.valve.pass(bytes, waited);
        let owed = self.owed.fetch_add(give, Ordering::AcqRel) + give;
        if owed >= self.valve.lot_bytes() {
            let owed = self.owed.swap(0, Ordering::AcqRel);
            if owed > 0 {
                self.links.notify_sender(self.worker, WireKind::Credit, (self.edge, self.source, self.target), owed);
            }
        }
    }
}

/// Returns its bytes to their sender when it is dropped. It is dropped wherever the batch is, perhaps while the
/// engine is locked, so it never locks the engine itself.
pub(crate) struct CreditGuard {
    bytes: u64,
    /// What it has cost its sender: more than its bytes if rows take long.
    credit: u64,
    came: Instant,
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

    /// The guard of a batch of this process, for which this much credit was taken.
    pub(crate) fn weighed(account: &Arc<CreditAccount>, valve: &Arc<CreditValve>, bytes: u64, credit: u64) -> Self {
        let owner = CreditOwner::Local(Arc::clone(account), Arc::clone(valve));
        CreditGuard { bytes, credit, came: Instant::now(), owner }
    }

    pub(crate) fn remote(debt: &Arc<CreditDebt>, bytes: u64) -> Self {
        CreditGuard { bytes, credit: bytes, came: Instant::now(), owner: CreditOwner::Remote(Arc::clone(debt)) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for CreditGuard {
    fn drop(&mut self) {
        match &self.owner {
            CreditOwner::Local(account, valve) => account.release(valve.pass(self.credit, self.came.elapsed())),
            CreditOwner::Remote(debt) => debt.add(self.credit, self.came.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_batch::memory::MemorySettings;

    use super::*;
    use crate::task::block_on;

    /// Lost credit would stop a stream forever; credit that multiplies would not limit it at all.
    #[test]
    fn a_waiting_sender_goes_on_when_credit_returns() {
        let account = CreditAccount::new(100);
        let acquire =
            |account: Arc<CreditAccount>, bytes| async move { account.acquire(bytes, None, false, |_| ()).await };
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

    /// If a barrier waited with a sender for credit, overtaking would be useless; an unlimited window would fill the
    /// memory.
    #[test]
    fn an_unaligned_barrier_may_owe_a_window_more() {
        let account = CreditAccount::new(100);
        let epochs = tokio::sync::watch::Sender::new(0);
        let signal = UnalignedSignal::new(epochs.subscribe());
        let acquire = |bytes| {
            let acquired = account.acquire(bytes, Some(&signal), false, |_| ());
            futures_util::FutureExt::now_or_never(acquired).is_some()
        };
        assert!(acquire(100) && !acquire(1));
        epochs.send_replace(1);
        assert!(acquire(60) && acquire(60) && !acquire(1));
        signal.pass(1);
        account.release(121);
        assert!(acquire(1) && !acquire(1));
    }

    /// A window that stayed small would leave a stream slow forever; one that closed would stop it.
    #[test]
    fn windows_shrink_and_grow_with_memory() {
        let settings = MemorySettings { budget_bytes: 1000, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let full = 4 * WINDOW_BYTES_MIN;
        let valve = CreditValve::new(&governor, full);
        assert_eq!(valve.pass(10_000, Duration::ZERO), 10_000);
        let reservation = governor.reservation("sort");
        assert!(reservation.try_grow(750));
        let kept: u64 = (0..100).map(|_| 10_000 - valve.pass(10_000, Duration::ZERO)).sum();
        assert_eq!(kept, full - WINDOW_BYTES_MIN);
        assert!(valve.lot_bytes() < WINDOW_BYTES_MIN);
        drop(reservation);
        let given: u64 = (0..100).map(|_| valve.pass(10_000, Duration::ZERO) - 10_000).sum();
        assert_eq!(given, kept);
    }

    /// A window that stayed wide in front of a slow receiver would delay barriers. A window that stayed narrow, or
    /// whose size the two ends disagreed about, would slow down a fast receiver.
    #[test]
    fn windows_follow_their_receiver() {
        let governor = Governor::new(MemorySettings { watch_process: false, ..MemorySettings::default() });
        let full = 1 << 20;
        let valve = CreditValve::new(&governor, full);
        let account = CreditAccount::new(full);
        assert_eq!(account.state.lock().available as u64, FIRST_WINDOW_BYTES);
        let mut open = FIRST_WINDOW_BYTES;
        let wider = FIRST_WINDOW_BYTES + 100_000;
        for (times, ms, expected) in [(10, 10, wider), (10, 200, wider), (200, 300, WINDOW_BYTES_MIN), (200, 0, full)] {
            for _ in 0..times {
                open = open + valve.pass(10_000, Duration::from_millis(ms)) - 10_000;
            }
            assert_eq!((open, valve.open_bytes.load(Ordering::Relaxed)), (expected, expected));
        }
    }

    /// A sender that continued without room would put a barrier behind what it sent; one that was not woken would
    /// stop.
    #[test]
    fn a_sender_waits_for_room_on_its_link() {
        let link = Arc::new(LinkPacer::new(None));
        let account = CreditAccount::over(Some(&link), 8 << 20);
        let room = 2 * account.block_bytes_max();
        link.queue(room as usize);
        let waiter = std::thread::spawn({
            let account = Arc::clone(&account);
            move || block_on(account.acquire(10, None, false, |_| ()))
        });
        assert!(account.try_acquire(10), "what is passed on waits for nobody");
        link.discard(1);
        waiter.join().unwrap();
    }
}
