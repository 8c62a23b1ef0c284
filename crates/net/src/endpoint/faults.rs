//! What has gone wrong in the job, as one worker knows it. Written by the control plane's thread and by transports,
//! read by every waiting call through one atomic.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{ControlEvent, NetError, Rank};

/// A broken link whose cause nobody has explained after this long is a lost worker.
const VERDICT_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Default)]
struct FaultState {
    fatal: Option<NetError>,
    departed: Vec<Rank>,
    leaving: Vec<Rank>,
    down: Vec<(Rank, String, Instant)>,
}

/// See the module. The epoch changes with every piece of news.
#[derive(Default)]
pub struct FaultRegistry {
    /// Of each worker in words where it runs, and who else does; empty where that says nothing.
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

    /// `wake` is called after every piece of news, to rouse sleeping calls.
    pub(super) fn set_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.on_news.lock() = Some(wake);
    }

    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the job cannot go on, as [`FaultRegistry::fatal`] tells at a lock's cost.
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

    /// Takes note of who is lost or has left; messages are not for here.
    pub(super) fn hear(&self, event: ControlEvent) {
        match event {
            ControlEvent::Lost { rank, reason } => self.fail(NetError::WorkerLost { rank, reason }),
            ControlEvent::Left { rank } => self.depart(rank),
            ControlEvent::Message { .. } => {}
        }
    }

    /// The job cannot go on. The first reason is the one every call reports.
    pub fn fail(&self, mut error: NetError) {
        if let NetError::WorkerLost { rank, reason } = &mut error
            && let Some(host) = self.hosts.get(rank.index())
        {
            // Where a host is gone this is the first of its workers that was missed.
            *reason = format!("{reason} ({host})");
        }
        self.fail_telling(error, || {});
    }

    /// As [`FaultRegistry::fail`], and `tell`s the others. The error is there before they may answer by leaving, which
    /// would else be what this worker's calls report; those are roused only afterwards, for the worker may leave then
    /// itself.
    pub(super) fn fail_telling(&self, error: NetError, tell: impl FnOnce()) {
        self.state.lock().fatal.get_or_insert(error);
        tell();
        self.has_failed.store(true, Ordering::Relaxed);
        self.announce();
    }

    /// A worker's program ended well.
    pub fn depart(&self, rank: Rank) {
        let mut state = self.state.lock();
        if !state.departed.contains(&rank) {
            state.departed.push(rank);
        }
        drop(state);
        self.announce();
    }

    /// A worker's program has ended, and the worker stays until what it sent is received.
    pub(super) fn begin_departure(&self, rank: Rank) {
        self.state.lock().leaving.push(rank);
        self.announce();
    }

    /// A link broke; the control plane is expected to say why.
    pub(super) fn link_down(&self, rank: Rank, reason: String) {
        let mut state = self.state.lock();
        if !state.departed.contains(&rank) {
            state.down.push((rank, reason, Instant::now()));
        }
    }

    /// Turns broken links that stayed unexplained into lost workers. Called from waits, every so often.
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

    /// Why the job cannot go on, if so.
    pub fn fatal(&self) -> Option<NetError> {
        self.state.lock().fatal.clone()
    }

    /// Workers that are leaving, as far as the control plane has said so.
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
    fn who_leaves_on_being_told_hides_no_failure() {
        let faults = FaultRegistry::default();
        let error = NetError::PeerFailed { rank: Rank(0), traceback: "it broke".into() };
        faults.fail_telling(error, || {
            faults.depart(Rank(1));
            assert!(matches!(faults.fatal(), Some(NetError::PeerFailed { rank: Rank(0), .. })));
            assert!(!faults.has_failed(), "nobody here was roused before the others were told");
        });
        assert!(faults.has_failed());
    }
}
