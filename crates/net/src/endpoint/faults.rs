//! What has gone wrong in the job, as one worker knows it. The control plane's thread and the transports write it,
//! and every waiting call reads it through one atomic.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{ControlEvent, NetError, Rank};

/// If nobody has explained a broken link after this long, the worker counts as lost.
const VERDICT_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Default)]
struct FaultState {
    fatal: Option<NetError>,
    departed: Vec<Rank>,
    leaving: Vec<Rank>,
    down: Vec<(Rank, String, Instant)>,
}

/// The registry that the module describes. The epoch changes with every news.
#[derive(Default)]
pub struct FaultRegistry {
    /// For each worker, a description of its host and the workers on it; empty if that adds nothing.
    hosts: Vec<String>,
    epoch: AtomicU32,
    has_failed: AtomicBool,
    state: Mutex<FaultState>,
    on_news: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl FaultRegistry {
    pub(super) fn on(hosts: Vec<String>) -> Self {
        FaultRegistry { hosts, ..FaultRegistry::default() }
    }

    /// Sets what is called after every news, to wake sleeping calls.
    pub(super) fn set_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.on_news.lock() = Some(wake);
    }

    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the job cannot continue. [`FaultRegistry::fatal`] gives the reason, at the cost of a lock.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn announce(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        if let Some(wake) = &*self.on_news.lock() {
            wake();
        }
    }

    /// Records workers that are lost or have left; ignores messages.
    pub(super) fn hear(&self, event: ControlEvent) {
        match event {
            ControlEvent::Lost { rank, reason } => self.fail(NetError::WorkerLost { rank, reason }),
            ControlEvent::Left { rank } => self.depart(rank),
            ControlEvent::Message { .. } => {}
        }
    }

    /// Records that the job cannot continue. Every call reports the first reason.
    pub fn fail(&self, mut error: NetError) {
        if let NetError::WorkerLost { rank, reason } = &mut error
            && let Some(host) = self.hosts.get(rank.index())
        {
            // If a whole host is gone, this is only the first of its workers whose loss was noticed.
            *reason = format!("{reason} ({host})");
        }
        self.fail_telling(error, || {});
    }

    /// Like [`FaultRegistry::fail`], but also `tell`s the others. The error is recorded before they can answer by
    /// leaving, which this worker's calls would otherwise report. Calls are woken only afterwards, because this
    /// worker may then leave itself.
    pub(super) fn fail_telling(&self, error: NetError, tell: impl FnOnce()) {
        self.state.lock().fatal.get_or_insert(error);
        tell();
        self.has_failed.store(true, Ordering::Relaxed);
        self.announce();
    }

    /// Records that a worker's program ended without an error.
    pub fn depart(&self, rank: Rank) {
        let mut state = self.state.lock();
        if !state.departed.contains(&rank) {
            state.departed.push(rank);
        }
        drop(state);
        self.announce();
    }

    /// Records that a worker's program has ended, but the worker stays until what it sent is received.
    pub(super) fn begin_departure(&self, rank: Rank) {
        self.state.lock().leaving.push(rank);
        self.announce();
    }

    /// Records a broken link; the control plane should explain it.
    pub(super) fn link_down(&self, rank: Rank, reason: String) {
        let mut state = self.state.lock();
        if !state.departed.contains(&rank) {
            state.down.push((rank, reason, Instant::now()));
        }
    }

    /// Turns broken links that stay unexplained into lost workers. Waiting calls call this regularly.
    pub(super) fn judge_links(&self) {
        let mut state = self.state.lock();
        let FaultState { fatal, departed, down, .. } = &mut *state;
        down.retain(|(rank, _, _)| !departed.contains(rank));
        let overdue = down.iter().find(|(_, _, since)| since.elapsed() > VERDICT_TIMEOUT);
        if let (Some((rank, reason, _)), None) = (overdue, &fatal) {
            let error = NetError::WorkerLost { rank: *rank, reason: reason.clone() };
            drop(state);
            self.fail(error);
        }
    }

    /// The reason why the job cannot continue, if there is one.
    pub fn fatal(&self) -> Option<NetError> {
        self.state.lock().fatal.clone()
    }

    /// Workers that are leaving, according to the control plane.
    pub(super) fn leaving(&self) -> Vec<Rank> {
        self.state.lock().leaving.clone()
    }

    pub(super) fn departed(&self) -> Vec<Rank> {
        self.state.lock().departed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_leaves_when_told_hides_no_failure() {
        let faults = FaultRegistry::default();
        let error = NetError::PeerFailed { rank: Rank(0), traceback: "it broke".into() };
        faults.fail_telling(error, || {
            faults.depart(Rank(1));
            assert!(matches!(faults.fatal(), Some(NetError::PeerFailed { rank: Rank(0), .. })));
            assert!(!faults.has_failed(), "nobody here woke before the others were told");
        });
        assert!(faults.has_failed());
    }
}
