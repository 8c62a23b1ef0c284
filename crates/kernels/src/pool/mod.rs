//! Long-running threads for kernels: they stay bound to their processors and meet at spin barriers.
//!
//! [`Pool::run`] runs one function on every thread at once and returns when all are done; the caller is thread 0.
//! Between runs the others spin for a moment and then sleep, so an idle pool costs nothing.
//!
//! Invariant: the function lives in the caller's frame. Threads access it only between the opening of the `start` gate
//! and their own arrival at `done`, and `run` returns only after all have arrived, even if one panics.

mod affinity;
mod displaced;
mod gate;

pub use affinity::{CpuAffinity, usable_cpus};

use affinity::{bind, current, place};
use gate::ThreadGate;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use tidemill_machine::{CpuSet, Machine};

/// Whether threads persist between runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolMode {
    /// They persist, and meet at spin barriers (bulk synchronous parallel).
    #[default]
    Bsp,
    /// Each run starts its own threads and waits for their end.
    ForkJoin,
}

/// The configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Number of threads, including the caller; at least 1.
    pub threads: usize,
    /// Whether threads persist between runs.
    pub mode: PoolMode,
    /// How they are bound.
    pub affinity: CpuAffinity,
    /// How many workers share the processors that this one may use, including itself; at least 1.
    pub workers: usize,
    /// The number of this worker among them, from 0: each has its own part of the processors.
    pub index: usize,
    /// Checks of a gate before going to sleep; about 50 ns each. Use 0 if there are more threads than processors.
    pub spins: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { threads: 1, mode: PoolMode::Bsp, affinity: CpuAffinity::None, workers: 1, index: 0, spins: 2000 }
    }
}

/// One thread's view of a run.
#[derive(Clone, Copy)]
pub struct PoolThread<'a> {
    /// Its number, `0..threads`.
    pub thread: usize,
    /// The number of threads.
    pub threads: usize,
    meeting: &'a SpinBarrier,
}

impl PoolThread<'_> {
    /// Waits until every thread of the run has reached this point.
    ///
    /// # Panics
    /// If another thread of the run panicked, because it will never arrive.
    pub fn barrier(&self) {
        self.meeting.meet(self.threads);
    }

    /// This thread's share of `0..n`: contiguous, in thread order, a multiple of `grain` long except the last.
    #[must_use]
    pub fn share(&self, n: usize, grain: usize) -> std::ops::Range<usize> {
        share(n, grain, self.thread, self.threads)
    }
}

/// The share of thread `thread` of `threads` in `0..n`; see [`PoolThread::share`].
#[must_use]
pub fn share(n: usize, grain: usize, thread: usize, threads: usize) -> std::ops::Range<usize> {
    let grains = n.div_ceil(grain);
    let at = |thread: usize| (grains * thread / threads * grain).min(n);
    at(thread)..at(thread + 1)
}

/// A spin barrier for one run at a time.
struct SpinBarrier {
    arrived: std::sync::atomic::AtomicUsize,
    round: ThreadGate,
    broken: AtomicBool,
    spins: u32,
}

impl SpinBarrier {
    fn new(spins: u32) -> Self {
        SpinBarrier { arrived: Default::default(), round: ThreadGate::new(), broken: AtomicBool::new(false), spins }
    }

    fn meet(&self, threads: usize) {
        // Read before `broken`: if a break-up is not visible below, its `advance` is still to come and ends the wait.
        let next = self.round.value() + 1;
        self.check();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed); // ordered before the round by `advance`
            self.round.advance();
        } else {
            self.round.wait_for(next, self.spins);
        }
        self.check();
    }

    fn check(&self) {
        assert!(!self.broken.load(Ordering::Acquire), "another thread of this run panicked");
    }

    /// Releases every thread that waits or will wait in this run.
    fn break_up(&self) {
        self.broken.store(true, Ordering::Release);
        self.round.advance();
    }

    fn mend(&self) {
        self.broken.store(false, Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
    }
}

/// The function of a run, in the caller's frame.
struct PoolJob<'a> {
    function: &'a (dyn Fn(PoolThread<'_>) + Sync),
}

struct PoolState {
    start: ThreadGate,
    done: ThreadGate,
    job: AtomicPtr<PoolJob<'static>>,
    meeting: SpinBarrier,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    threads: usize,
    /// Whether threads are bound to their places.
    bound: AtomicBool,
    /// Whether they are unbound when others take their processors.
    lets_go: bool,
}

impl PoolState {
    /// Runs the function as `thread`, keeping the first panic for the caller.
    fn work(&self, function: &(dyn Fn(PoolThread<'_>) + Sync), thread: usize) {
        let worker = PoolThread { thread, threads: self.threads, meeting: &self.meeting };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| function(worker))) {
            lock(&self.panic).get_or_insert(payload);
            self.meeting.break_up();
        }
        if self.lets_go && self.is_bound() && displaced::is_displaced() {
            self.bound.store(false, Ordering::Relaxed);
        }
    }

    fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that run kernels; see the module.
///
/// ```
/// use tidemill_kernels::pool::{Pool, PoolConfig};
/// let pool = Pool::new(PoolConfig { threads: 3, ..PoolConfig::default() });
/// let mut parts = [0, 0, 0];
/// pool.each(&mut parts, |worker, part| *part = worker.thread * 10);
/// assert_eq!(parts, [0, 10, 20]);
/// ```
pub struct Pool {
    config: PoolConfig,
    shared: Arc<PoolState>,
    handles: Vec<JoinHandle<()>>,
    places: Option<Vec<CpuSet>>,
    /// One run at a time; also holds the number of runs so far.
    runs: Mutex<u64>,
    pid: u32,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Panics
    /// If `threads` is 0, or the operating system refuses a thread.
    #[must_use]
    pub fn new(config: PoolConfig) -> Pool {
        assert!(config.threads > 0, "a pool needs at least one thread");
        let usable = current();
        let places = place(config.affinity, config.threads, (config.index, config.workers), &Machine::here());
        let shared = Arc::new(PoolState {
            start: ThreadGate::new(),
            done: ThreadGate::new(),
            job: AtomicPtr::new(std::ptr::null_mut()),
            meeting: SpinBarrier::new(config.spins),
            panic: Mutex::new(None),
            threads: config.threads,
            bound: AtomicBool::new(places.is_some()),
            lets_go: config.affinity == CpuAffinity::Auto,
        });
        let mut handles = Vec::new();
        if config.mode == PoolMode::Bsp {
            for thread in 1..config.threads {
                let (shared, spins) = (Arc::clone(&shared), config.spins);
                let (place, usable) = (places.as_ref().map(|places| places[thread].clone()), usable.clone());
                let builder = thread::Builder::new().name(format!("tidemill-{thread}"));
                let body = move || {
                    if let Some(place) = &place {
                        bind(place);
                    }
                    serve(&shared, thread, spins, &usable);
                };
                handles.push(builder.spawn(body).expect("the operating system refused a kernel thread"));
            }
        }
        Pool { config, shared, handles, places, runs: Mutex::new(0), pid: std::process::id() }
    }

    /// Number of threads, including the caller.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.config.threads
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Whether the threads are bound to processors.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.shared.is_bound()
    }

    /// Runs `function` on every thread at once. One run at a time: a second caller waits. Must not be called from
    /// within a run, where it would wait for itself.
    ///
    /// # Panics
    /// With the panic of the first thread that panicked, after all threads have finished.
    pub fn run<F: Fn(PoolThread<'_>) + Sync>(&self, function: F) {
        let mut runs = lock(&self.runs);
        let shared = &*self.shared;
        let places = self.places.as_ref().filter(|_| shared.is_bound());
        let bound = places.map(|places| AffinityGuard::to(&places[0]));
        shared.meeting.mend();
        // After a fork only the calling thread exists in the child.
        if self.config.mode == PoolMode::ForkJoin || std::process::id() != self.pid {
            thread::scope(|scope| {
                for thread in 1..shared.threads {
                    let function = &function;
                    scope.spawn(move || {
                        if let Some(places) = places {
                            bind(&places[thread]);
                        }
                        shared.work(function, thread);
                    });
                }
                shared.work(&function, 0);
            });
        } else if shared.threads == 1 {
            shared.work(&function, 0);
        } else {
            *runs += 1;
            let job = PoolJob { function: &function };
            shared.job.store((&raw const job).cast_mut().cast(), Ordering::Release);
            shared.start.advance();
            shared.work(&function, 0);
            // `job` must outlive every use: nothing between `advance` and this wait may return or unwind.
            shared.done.wait_for(*runs * (shared.threads as u64 - 1), self.config.spins);
        }
        drop(bound);
        drop(runs);
        let panic = lock(&shared.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Runs `function` on every thread, each with its own part.
    ///
    /// # Panics
    /// If there is not exactly one part per thread; and as [`Pool::run`].
    pub fn each<P: Send, F: Fn(PoolThread<'_>, &mut P) + Sync>(&self, parts: &mut [P], function: F) {
        assert_eq!(parts.len(), self.threads(), "one part for each thread");
        let parts: Vec<Mutex<&mut P>> = parts.iter_mut().map(Mutex::new).collect();
        self.run(|worker| function(worker, &mut lock(&parts[worker.thread])));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            return; // after a fork there is nobody to join
        }
        self.shared.job.store(std::ptr::null_mut(), Ordering::Release);
        self.shared.start.advance();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// The main loop of a thread other than the caller.
fn serve(shared: &PoolState, thread: usize, spins: u32, usable: &CpuSet) {
    let mut bound = shared.is_bound();
    for run in 1.. {
        shared.start.wait_for(run, spins);
        if bound && !shared.is_bound() {
            bind(usable);
            bound = false;
        }
        let job = shared.job.load(Ordering::Acquire);
        if job.is_null() {
            return;
        }
        // SAFETY: the caller of `run` keeps the job alive until every thread has advanced `done` for this run, which
        // this thread does only after its last use of it.
        let function = unsafe { (*job).function };
        shared.work(function, thread);
        shared.done.advance();
    }
}

/// Binds the calling thread for the duration of a run. It is the user's thread, so its affinity is restored.
struct AffinityGuard(CpuSet);

impl AffinityGuard {
    fn to(place: &CpuSet) -> AffinityGuard {
        let before = current();
        bind(place);
        AffinityGuard(before)
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        bind(&self.0);
    }
}

#[cfg(test)]
mod tests;
