//! The endpoint: a worker's single handle on its peers. It wraps the [`Engine`] in a lock and adds waiting.
//!
//! A blocking call drives progress itself, so a small message needs no handover between threads: the call polls for a
//! moment, then yields its core, then sleeps on the worker's doorbell, which peers ring. A background thread drives
//! progress only while requests are pending and no call blocks.

mod background;
mod contexts;
mod core;
mod core_spreading;
mod engine;
mod faults;
mod matching;
mod missing_transports;
mod open;
mod ops;
mod stall;
mod transfer;
mod watch;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

pub use engine::{CallMismatch, Engine, EngineTask, Envelope, ProbedMessage};
pub use faults::FaultRegistry;
pub use matching::MatchPattern;
pub use open::{EndpointSettings, OpenError, TransportChoice};
pub use ops::{GroupId, MemoryRegion, ReceiveStatus};
pub use stall::CallDescriber;
pub use watch::EndpointWatch;

/// Feeds bytes to the decoders of what peers send. See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    open::fuzz(bytes);
    missing_transports::fuzz(bytes);
    stall::fuzz(bytes);
}

use crate::control::{ControlHandle, MessageTarget};
use crate::fork::ForkOrigin;
use crate::topology::{HostLinks, WorkerPlacement};
use crate::{Doorbell, LinkInfo, NetError, Rank, WakeReason, notice};

/// How often a waiting call polls before it first yields its core, if every worker has its own core.
const POLLS_OWN_CORE: u32 = 4000;
/// The same if workers share cores: the peer may be waiting for this core, and each poll delays it.
const POLLS_SHARED_CORE: u32 = 1;
/// How often a waiting call yields before it sleeps.
const YIELDS: u32 = 200;
/// How often [`Endpoint::poll_briefly`] and a wait that gives way poll: a microsecond or two.
const POLLS_BRIEF: u32 = 60;
/// How often a wait that gives way yields.
const YIELDS_BRIEF: u32 = 4;
/// After this many polls in vain, sleeping peers are woken for what was sent between polls.
const POLLS_BEFORE_BELLS: u32 = 32;
/// A sleep ends after this long even if nothing happens, to check for signals and stalls.
const SLICE: Duration = Duration::from_millis(100);

/// How long a worker other than rank 0 stays, after it has left, for the workers connected through it.
const STAY_MAX: Duration = Duration::from_secs(2);

/// Releases the lock of a host language, if this thread holds it, while it runs its argument; otherwise returns
/// `false` and runs nothing.
pub type LockWait = fn(&mut (dyn FnMut() + Send)) -> bool;

static LOCK_WAIT: OnceLock<LockWait> = OnceLock::new();

/// Sets how threads of a host language with its own lock (Python's GIL) wait for an endpoint that another thread
/// uses. That thread may be waiting for that same lock, to run a user's function. Only the first call has an effect.
pub fn set_lock_wait(around: LockWait) {
    let _ = LOCK_WAIT.set(around);
}

/// Whether such a lock is set.
pub fn has_lock_wait() -> bool {
    LOCK_WAIT.get().is_some()
}

/// A worker's handle on the job's other workers. Clones share it; dropping the last one leaves the job.
#[derive(Clone)]
pub struct Endpoint(Arc<EndpointState>, #[expect(dead_code, reason = "for its end")] Arc<JobMembership>);

/// Leaves the job when no [`Endpoint`] is left, on one of the program's threads, which can wait for the others. The
/// endpoint's own threads hold only [`EndpointState`], since they deliver news about the others.
struct JobMembership(Arc<EndpointState>);

impl Drop for JobMembership {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.0);
        // One thread may drop all workers of a process one after the other, and reaches the next only when this one
        // is gone.
        let leave = move || shared.leave(!shared.in_process);
        if !self.0.background.is_this_thread() {
            return leave();
        }
        // A task held the last one. The task has just ended, with the engine locked.
        if let Err(error) = crate::threads::spawn_native("tidemill-leave".into(), leave) {
            notice!(self.0.rank, "cannot start a thread to leave the job: {error}");
        }
    }
}

pub(crate) struct EndpointState {
    rank: Rank,
    size: u32,
    engine: Mutex<Engine>,
    /// How many threads want the engine while a spinning call holds it.
    contenders: AtomicU32,
    faults: Arc<FaultRegistry>,
    doorbell: Arc<Doorbell>,
    /// Readable when a transport that rings no doorbell has work.
    epoll_fd: Option<std::os::fd::RawFd>,
    polls: u32,
    /// Set if workers of this host share cores, and also memory through which they can tell each other where they
    /// run.
    spread: Option<core_spreading::CoreSpreading>,
    placements: Vec<WorkerPlacement>,
    host_links: Vec<HostLinks>,
    control: ControlHandle,
    settings: EndpointSettings,
    /// By rank: why it is not reached by the best transport.
    lacks: Vec<Option<String>>,
    stall: stall::StallReporter,
    background: background::BackgroundDriver,
    /// A reference to itself, for threads that outlive a call.
    this: std::sync::Weak<EndpointState>,
    in_process: bool,
    origin: ForkOrigin,
    closed: Mutex<bool>,
    /// How many numbers this worker has given out.
    numbered: AtomicU32,
}

/// One call's wait, over as many slices as it takes.
#[derive(Default)]
pub struct CallWait {
    since: Option<Instant>,
    warned: bool,
    gives_way: bool,
}

impl CallWait {
    /// A wait that soon yields its core and soon sleeps, because other threads of this worker need it. A dataflow
    /// takes a quarter less time per record than with a wait that keeps polling. While one of these threads
    /// [watches](Endpoint::watch), messages do not wake this wait.
    pub fn giving_way() -> CallWait {
        CallWait { gives_way: true, ..CallWait::default() }
    }
}

impl Endpoint {
    /// This worker's number.
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// The number of workers in the job.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// Where each worker runs.
    pub fn placements(&self) -> &[WorkerPlacement] {
        &self.0.placements
    }

    /// How the endpoint was opened.
    pub fn settings(&self) -> &EndpointSettings {
        &self.0.settings
    }

    /// What has gone wrong in the job.
    pub fn faults(&self) -> &FaultRegistry {
        &self.0.faults
    }

    /// Whether this process may communicate: a forked child of a worker may not, since its memory and sockets are its
    /// parent's. Every call begins with this check, which costs one load.
    ///
    /// # Errors
    /// [`NetError::Forked`] in a forked child.
    #[inline]
    pub fn check_process(&self) -> Result<(), NetError> {
        if self.0.origin.is_here() { Ok(()) } else { Err(NetError::Forked) }
    }

    /// Locks the engine, to post ops and look at their state. Hold the lock briefly.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Engine> {
        self.0.lock()
    }

    /// Runs `step` and progress in turn for a microsecond or two. Returns `None` if not done yet; continue with
    /// [`Endpoint::wait_slice`]. Python calls this before it releases the GIL.
    ///
    /// # Errors
    /// What `step` returns; the job's fault, if there is one.
    #[inline]
    pub fn poll_briefly<R>(
        &self,
        step: impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<Option<R>, NetError> {
        self.0.poll_briefly(self.lock(), step)
    }

    /// Runs `step` and progress in turn: polls, yields, sleeps. Returns `None` after a signal or a slice of 100 ms:
    /// check for signals and call again with the same `wait`. `caller` describes what is being waited for, in case it
    /// takes long.
    ///
    /// # Errors
    /// What `step` returns; the job's fault, if there is one.
    pub fn wait_slice<R>(
        &self,
        wait: &mut CallWait,
        caller: &dyn CallDescriber,
        mut step: impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<Option<R>, NetError> {
        let shared = &*self.0;
        let (polls_max, yields_max) =
            if wait.gives_way { (POLLS_BRIEF.min(shared.polls), YIELDS_BRIEF) } else { (shared.polls, YIELDS) };
        let mut engine = shared.lock();
        let (mut polls, mut yields) = (0, 0);
        loop {
            if let Some(result) = shared.attempt(&mut engine, &mut step) {
                return result.map(Some);
            }
            if engine.progress() {
                polls = 0;
                continue;
            }
            polls += 1;
            // What progress has sent may be what a sleeping peer needs; a peer that polls would have answered by now.
            if polls == POLLS_BEFORE_BELLS.min(polls_max) {
                engine.flush();
            }
            if polls < polls_max {
                std::hint::spin_loop();
                if shared.contenders.load(Ordering::Relaxed) > 0 {
                    MutexGuard::bump(&mut engine);
                }
            } else if yields < yields_max {
                yields += 1;
                drop(engine);
                if let Some(spread) = &shared.spread {
                    spread.yielding();
                }
                std::thread::yield_now();
                engine = shared.lock();
            } else {
                break;
            }
        }
        drop(engine);
        self.sleep_slice(wait, caller, &mut step)
    }

    /// Waits until `step` is done.
    ///
    /// # Errors
    /// What `step` returns; the job's fault, if there is one; [`NetError::Interrupted`] if the caller interrupts it
    /// ([`interruptible`](crate::interruptible)).
    pub fn wait<R>(
        &self,
        caller: &dyn CallDescriber,
        mut step: impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<R, NetError> {
        let mut wait = CallWait::default();
        loop {
            if let Some(result) = self.wait_slice(&mut wait, caller, &mut step)? {
                return Ok(result);
            }
            crate::threads::check_interrupt().map_err(|_| NetError::Interrupted)?;
        }
    }

    #[cold]
    fn sleep_slice<R>(
        &self,
        wait: &mut CallWait,
        caller: &dyn CallDescriber,
        step: &mut impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<Option<R>, NetError> {
        let shared = &*self.0;
        let since = *wait.since.get_or_insert_with(Instant::now);
        let _entry = shared.stall.enter(caller, since);
        let deadline = Instant::now() + SLICE;
        caller.falls_asleep();
        let result = loop {
            let armed = match wait.gives_way {
                true => shared.doorbell.arm_relieved(shared.epoll_fd),
                false => shared.doorbell.arm(shared.epoll_fd),
            };
            // After the announcement, this look sees everything that came before it, and everything that comes later
            // rings.
            let mut engine = shared.lock();
            let moved = engine.progress();
            if let Some(result) = shared.attempt(&mut engine, step) {
                break result.map(Some);
            }
            engine.note_drive();
            engine.flush();
            // The step may have moved something that only the step itself can continue: nobody would ring for that.
            let moved = moved | std::mem::take(&mut engine.moved_aside);
            drop(engine);
            if moved {
                continue;
            }
            match armed.sleep(deadline.saturating_duration_since(Instant::now())) {
                WakeReason::Rung => {}
                WakeReason::Interrupted => break Ok(None),
                WakeReason::TimedOut => {
                    shared.faults.judge_links();
                    break Ok(None);
                }
            }
        };
        caller.is_awake();
        let patience = shared.settings.stall_warning;
        if !wait.warned && !patience.is_zero() && since.elapsed() > patience {
            wait.warned = true;
            shared.warn_of_stall(caller, since.elapsed());
        }
        result
    }

    /// Makes sure that posted ops that are still pending when the call returns make progress.
    #[inline]
    pub fn leave_to_background(&self) {
        self.0.background.want(&self.0);
    }

    /// How long a wait may last before it is reported; zero means that it is never reported.
    pub fn stall_warning(&self) -> Duration {
        self.0.settings.stall_warning
    }

    /// Wakes this worker's own sleeping calls, so that they check their `step` again. Costs a fence if none sleeps.
    #[inline]
    pub fn rouse(&self) {
        self.0.doorbell.bell().ring();
    }

    /// Tells every worker that this worker's program failed; their blocked and later calls raise the error.
    pub fn report_failure(&self, traceback: &str) {
        let traceback = stall::shortened(traceback);
        let error = NetError::PeerFailed { rank: self.0.rank, traceback: traceback.clone().into_owned() };
        self.0.faults.fail_telling(error, || {
            // Without a control plane there is nobody to tell.
            let _ =
                self.0.control.send(MessageTarget::All, &stall::StallMessage::Failed(traceback.into_owned()).encode());
        });
    }

    /// A number that no other call of this method, on any worker, returns. The `i`th call on rank r returns `i * size
    /// + r`; `None` if that is too large.
    pub fn unique(&self) -> Option<u32> {
        let mine = self.0.numbered.fetch_add(1, Ordering::Relaxed);
        mine.checked_mul(self.0.size)?.checked_add(self.0.rank.0)
    }

    /// How often a waiting call polls before it yields; few times if workers share cores.
    pub fn polls(&self) -> u32 {
        self.0.polls
    }

    /// How the workers of `rank`'s host exchange messages; the same on all workers.
    pub fn host_links(&self, rank: Rank) -> HostLinks {
        self.0.host_links[rank.index()]
    }

    /// Whether messages to `peer` go through shared memory (or it is this worker).
    pub fn shares_memory_with(&self, peer: Rank) -> bool {
        self.0.engine.lock().route(peer).is_none_or(|(name, _)| name != "tcp")
    }

    /// What the kernel knows about the connection to `peer`; `None` if there is none, because they have not connected
    /// yet or share memory.
    pub fn link_info(&self, peer: Rank) -> Option<LinkInfo> {
        self.0.engine.lock().link_info(peer)
    }

    /// Whether this worker can read `peer`'s memory (or it is this worker).
    pub fn reads_memory_of(&self, peer: Rank) -> bool {
        self.0.engine.lock().route(peer).is_none_or(|(_, limits)| limits.single_copy)
    }

    /// Why `peer`, on this host, is not reached by the best transport: no shared memory, or no single copies.
    pub fn lack(&self, peer: Rank) -> Option<&str> {
        self.0.lacks.get(peer.index())?.as_deref()
    }

    /// One look: a little progress, then `step`.
    ///
    /// # Errors
    /// What `step` returns; the job's fault, if there is one.
    pub fn try_once<R>(
        &self,
        mut step: impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<Option<R>, NetError> {
        let mut engine = self.lock();
        engine.note_drive();
        engine.progress();
        let result = self.0.attempt(&mut engine, &mut step);
        engine.flush();
        result.transpose()
    }

    /// Leaves the job. Returns when everything sent has been received or its receivers have left too, unless there is
    /// a failure or a signal; on rank 0, when the others have left too. Receives and collectives that are still
    /// pending end with [`NetError::Closed`]. Idempotent.
    pub fn leave(&self) {
        self.0.leave(true);
    }
}

impl EndpointState {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Engine> {
        match self.engine.try_lock() {
            Some(engine) => engine,
            None => self.lock_contended(),
        }
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, Engine> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let engine = loop {
            // Release the engine before returning: getting the host's lock back may take long.
            let waited = LOCK_WAIT.get().is_some_and(|around| around(&mut || drop(self.engine.lock())));
            if !waited {
                break self.engine.lock();
            }
            if let Some(engine) = self.engine.try_lock() {
                break engine;
            }
        };
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// See [`Endpoint::poll_briefly`].
    #[inline]
    fn poll_briefly<R>(
        &self,
        mut engine: MutexGuard<'_, Engine>,
        mut step: impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Result<Option<R>, NetError> {
        for poll in 0..POLLS_BRIEF.min(self.polls) {
            if let Some(result) = self.attempt(&mut engine, &mut step) {
                return result.map(Some);
            }
            if poll == 0 {
                engine.note_drive();
            }
            if !engine.progress() {
                std::hint::spin_loop();
            }
        }
        engine.flush();
        Ok(None)
    }

    /// Checks once whether a call is done, considering faults. It gives a result only while the job is sound, so that
    /// a call that met a different one never returns garbage.
    #[inline]
    fn attempt<R>(
        &self,
        engine: &mut Engine,
        step: &mut impl FnMut(&mut Engine) -> Option<Result<R, NetError>>,
    ) -> Option<Result<R, NetError>> {
        if engine.is_suspect() {
            self.inquire(engine);
        }
        if engine.is_waiting_for_verdict() {
            return self.faults.fatal().map(Err);
        }
        match step(engine) {
            Some(result) => {
                engine.flush();
                if engine.is_suspect() {
                    // The step itself found a mismatch, in a message that arrived before its receive.
                    self.inquire(engine);
                    return self.faults.fatal().map(Err);
                }
                Some(result)
            }
            None if engine.is_dead() => Some(Err(self.faults.fatal().unwrap_or(NetError::Closed))),
            None => None,
        }
    }

    /// `patient`: do not give up what was sent while its receiver may still receive it.
    fn leave(&self, patient: bool) {
        // In a forked child the locks may be held forever, and the job is its parent's.
        if !self.origin.is_here() {
            return;
        }
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return;
        }
        self.background.stop();
        self.lock().begin_leaving();
        self.hand_over(patient);
        let _ = self.control.leave();
        self.stay_for_others();
        self.lock().close();
    }

    /// Drives the engine until nobody needs anything from this worker any more. The others bound this: a receiver
    /// receives a message, leaves, or is lost. A long wait is explained like any other.
    fn hand_over(&self, patient: bool) {
        let since = Instant::now();
        let (mut warned, mut announced) = (false, false);
        loop {
            let armed = self.doorbell.arm(self.epoll_fd);
            let mut engine = self.lock();
            if engine.has_left() {
                return;
            }
            let unnoticed = engine.leaves_unnoticed();
            let finishing = engine.leaving == engine::LeavePhase::Finishing;
            let owed = engine.owes();
            drop(engine);
            if !patient && !finishing {
                std::thread::yield_now();
                if since.elapsed() > SLICE {
                    return;
                }
                continue;
            }
            // Nothing reports when the kernel has delivered the last bytes.
            let woken = armed.sleep(if finishing { Duration::from_millis(1) } else { SLICE });
            if woken == WakeReason::Interrupted {
                let ranks: Vec<Rank> = owed.into_iter().flatten().collect();
                if !ranks.is_empty() {
                    notice!(
                        self.rank,
                        "a signal interrupted the wait at the end of the program: what rank(s) {} have not received \
                         is lost",
                        crate::control::ranks(&ranks)
                    );
                }
                return;
            }
            if woken == WakeReason::TimedOut {
                self.faults.judge_links();
            }
            if unnoticed && !announced && since.elapsed() > SLICE {
                announced = true;
                let _ = self.control.send(MessageTarget::All, &stall::StallMessage::Leaving.encode());
            }
            let patience = self.settings.stall_warning;
            if !warned && !patience.is_zero() && since.elapsed() > patience {
                warned = true;
                self.warn_of_stall(&DeliveryWait, since.elapsed());
            }
        }
    }

    /// Others may learn of each other's failures through this worker. All do so through rank 0, which stays until
    /// they have left too. Those behind an inner worker of a large job can connect to rank 0 instead, but if all
    /// programs end at about the same time they need not. A signal ends this wait.
    fn stay_for_others(&self) {
        let subtree = self.control.subtree();
        if self.in_process || subtree.len() == 1 {
            return;
        }
        let since = Instant::now();
        let is_over = || {
            let behind = |rank: &&Rank| **rank != self.rank && subtree.contains(&rank.0);
            self.faults.departed().iter().filter(behind).count() + 1 == subtree.len()
                || self.faults.fatal().is_some()
                || self.rank.0 != 0 && since.elapsed() > STAY_MAX
        };
        while !is_over() {
            let armed = self.doorbell.arm(None);
            if is_over() || armed.sleep(SLICE) == WakeReason::Interrupted {
                return;
            }
        }
    }
}

/// Describes the wait of a worker whose program has ended until everything it sent is received.
struct DeliveryWait;

impl CallDescriber for DeliveryWait {
    fn describe(&self, text: &mut String) {
        text.push_str("the end of the program, which waits until everything it sent is received");
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        engine.owes()
    }
}
