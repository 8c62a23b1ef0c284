//! What the launcher does when workers end or fail or a signal comes: a plain state machine without clocks, processes
//! or pipes.
//!
//! The first *origin* of trouble decides the job's exit code, and its traceback is shown. A worker that fails because
//! another did (`FailureReport::PeerFailed`) is not an origin. Such a worker often ends first, because the origin is
//! still busy telling the others, so its end only makes the job *suspect* until the origin ends or the grace period
//! is over.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// It returned this code.
    Code(i32),
    /// This signal killed it. A number, because real-time signals have no name.
    Signal(i32),
}

impl WorkerExit {
    /// The exit code that a shell would report for it.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => 128 + number,
        }
    }
}

/// What a worker reported about its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReport {
    /// No report: not Python, `sys.exit(n)`, or killed.
    None,
    /// An exception that the worker itself caused.
    Error,
    /// An exception because another worker failed or vanished.
    PeerFailed,
}

/// An event of a job.
#[derive(Clone, Copy, Debug)]
pub enum JobEvent {
    /// A worker ended.
    Exited { rank: usize, exit: WorkerExit, report: FailureReport },
    /// The user or a scheduler sent the launcher a signal that ends jobs.
    Stop(Signal),
    /// Nobody reads our output any more.
    OutputClosed,
    /// Every worker has ended, and none of the processes that they started is left.
    AllGone,
    /// The deadline may have passed.
    Tick,
}

/// What to do with every process group of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Send this signal.
    Signal(Signal),
}

/// How long workers have to end by themselves.
#[derive(Clone, Copy, Debug)]
pub struct GracePeriods {
    /// After another worker failed.
    pub failure: Duration,
    /// After the user or a scheduler asked for the end.
    pub signal: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobPhase {
    Running,
    /// A worker failed because of another one, which has not ended yet.
    Suspect {
        until: Instant,
    },
    /// Every worker ended well, but processes that they started still run.
    Lingering {
        until: Instant,
    },
    /// The workers were told to end, and are killed when the grace period is over.
    Stopping {
        kill_at: Instant,
    },
    Killed,
    Gone,
}

/// Why the job was ended before all workers had ended by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    Signal(Signal),
    OutputClosed,
}

/// The state of one job.
pub struct JobPolicy {
    phase: JobPhase,
    live: usize,
    grace: GracePeriods,
    cause: Option<EndCause>,
    /// The first failures, in the order in which they were noticed, before the others were told to end.
    origin: Option<(usize, WorkerExit)>,
    secondary: Option<(usize, WorkerExit)>,
    failed: bool,
    signalled: bool,
}

impl JobPolicy {
    /// A job of `size` running workers.
    pub fn new(size: usize, grace: GracePeriods) -> Self {
        Self {
            phase: JobPhase::Running,
            live: size,
            grace,
            cause: None,
            origin: None,
            secondary: None,
            failed: false,
            signalled: false,
        }
    }

    /// Handles `event`, which happened at `now`, and returns what to do.
    pub fn handle(&mut self, now: Instant, event: JobEvent) -> Option<PolicyAction> {
        match event {
            JobEvent::Exited { rank, exit, report } => {
                self.live -= 1;
                if exit == WorkerExit::Code(0) { self.well_ended(now) } else { self.failed(now, rank, exit, report) }
            }
            // A second request means it.
            JobEvent::Stop(Signal::SIGINT) if self.cause == Some(EndCause::Signal(Signal::SIGINT)) => self.kill(),
            JobEvent::Stop(signal) => {
                self.signalled = true;
                if self.cause.is_none() && !self.told_to_end() {
                    self.cause = Some(EndCause::Signal(signal));
                }
                self.stop(now, signal, self.grace.signal)
            }
            JobEvent::OutputClosed => {
                if self.told_to_end() {
                    return None;
                }
                self.cause = Some(EndCause::OutputClosed);
                self.stop(now, Signal::SIGTERM, self.grace.failure)
            }
            JobEvent::AllGone => {
                self.phase = JobPhase::Gone;
                None
            }
            JobEvent::Tick => self.tick(now),
        }
    }

    /// When to send [`JobEvent::Tick`] if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            JobPhase::Suspect { until } | JobPhase::Lingering { until } => Some(until),
            JobPhase::Stopping { kill_at } => Some(kill_at),
            JobPhase::Running | JobPhase::Killed | JobPhase::Gone => None,
        }
    }

    /// The number of workers that have not ended.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Whether the workers were told to end.
    pub fn told_to_end(&self) -> bool {
        matches!(self.phase, JobPhase::Stopping { .. } | JobPhase::Killed)
    }

    /// Whether someone asked for the end, even if a failure had come first.
    pub fn was_signalled(&self) -> bool {
        self.signalled
    }

    /// The worker whose failure ended the job, and how it ended.
    pub fn origin(&self) -> Option<(usize, WorkerExit)> {
        self.origin.or(self.secondary)
    }

    /// The exit code of the whole job.
    pub fn exit_code(&self) -> i32 {
        match (self.cause, self.origin()) {
            // Programs that treat the signal as a polite request and end well have succeeded.
            (Some(EndCause::Signal(_)), None) if !self.failed => 0,
            (Some(EndCause::Signal(signal)), None) => 128 + signal as i32,
            // As if the launcher had died from writing to a closed pipe.
            (Some(EndCause::OutputClosed), None) => 128 + Signal::SIGPIPE as i32,
            (_, Some((_, exit))) => exit.code(),
            (None, None) => 0,
        }
    }

    /// Whether the job ended because a worker failed, and not because it was told to.
    pub fn is_failure(&self) -> bool {
        !self.signalled && self.cause.is_none() && self.origin().is_some()
    }

    fn well_ended(&mut self, now: Instant) -> Option<PolicyAction> {
        if self.live == 0 && self.phase == JobPhase::Running {
            self.phase = JobPhase::Lingering { until: now + self.grace.failure };
        }
        self.nobody_left_to_blame(now)
    }

    fn failed(&mut self, now: Instant, rank: usize, exit: WorkerExit, report: FailureReport) -> Option<PolicyAction> {
        self.failed = true;
        if self.told_to_end() {
            // The job was being ended because of a consequence, and this worker's own exception is the origin.
            if report == FailureReport::Error && self.cause.is_none() && self.origin.is_none() {
                self.origin = Some((rank, exit));
            }
            return None;
        }
        if report == FailureReport::PeerFailed {
            self.secondary.get_or_insert((rank, exit));
            if !matches!(self.phase, JobPhase::Suspect { .. }) {
                self.phase = JobPhase::Suspect { until: now + self.grace.failure };
            }
            return self.nobody_left_to_blame(now);
        }
        self.origin.get_or_insert((rank, exit));
        self.stop(now, Signal::SIGTERM, self.grace.failure)
    }

    /// If every worker has ended while the job was suspect, there is no origin to wait for.
    fn nobody_left_to_blame(&mut self, now: Instant) -> Option<PolicyAction> {
        if self.live > 0 || !matches!(self.phase, JobPhase::Suspect { .. }) {
            return None;
        }
        self.stop(now, Signal::SIGTERM, self.grace.failure)
    }

    fn stop(&mut self, now: Instant, signal: Signal, grace: Duration) -> Option<PolicyAction> {
        match self.phase {
            JobPhase::Killed | JobPhase::Gone => return None,
            // A later request never extends the deadline of an earlier one.
            JobPhase::Stopping { kill_at } => self.phase = JobPhase::Stopping { kill_at: kill_at.min(now + grace) },
            _ => self.phase = JobPhase::Stopping { kill_at: now + grace },
        }
        Some(PolicyAction::Signal(signal))
    }

    fn kill(&mut self) -> Option<PolicyAction> {
        if self.phase == JobPhase::Gone {
            return None;
        }
        self.phase = JobPhase::Killed;
        Some(PolicyAction::Signal(Signal::SIGKILL))
    }

    fn tick(&mut self, now: Instant) -> Option<PolicyAction> {
        match self.phase {
            JobPhase::Suspect { until } | JobPhase::Lingering { until } if now >= until => {
                self.stop(now, Signal::SIGTERM, self.grace.failure)
            }
            JobPhase::Stopping { kill_at } if now >= kill_at => self.kill(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: GracePeriods = GracePeriods { failure: Duration::from_secs(2), signal: Duration::from_secs(10) };
    const TERM: Option<PolicyAction> = Some(PolicyAction::Signal(Signal::SIGTERM));
    const INT: Option<PolicyAction> = Some(PolicyAction::Signal(Signal::SIGINT));
    const KILL: Option<PolicyAction> = Some(PolicyAction::Signal(Signal::SIGKILL));

    fn exited(rank: usize, code: i32, report: FailureReport) -> JobEvent {
        JobEvent::Exited { rank, exit: WorkerExit::Code(code), report }
    }

    struct Scene {
        policy: JobPolicy,
        start: Instant,
    }

    impl Scene {
        fn new(size: usize) -> Self {
            Self { policy: JobPolicy::new(size, GRACE), start: Instant::now() }
        }
        fn at(&mut self, seconds: u64, event: JobEvent) -> Option<PolicyAction> {
            self.policy.handle(self.start + Duration::from_secs(seconds), event)
        }
    }

    #[test]
    fn all_well() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.at(0, exited(0, 0, FailureReport::None)), None);
        assert_eq!(scene.at(9, exited(1, 0, FailureReport::None)), None);
        assert_eq!(scene.at(9, JobEvent::AllGone), None);
        assert_eq!((scene.policy.exit_code(), scene.policy.origin()), (0, None));
    }

    #[test]
    fn first_failure_stops_the_rest_and_gives_the_code() {
        let mut scene = Scene::new(3);
        assert_eq!(scene.at(0, exited(1, 3, FailureReport::None)), TERM);
        assert_eq!(
            scene.at(1, JobEvent::Exited { rank: 0, exit: WorkerExit::Signal(15), report: FailureReport::None }),
            None
        );
        assert_eq!(scene.at(1, JobEvent::Tick), None);
        assert_eq!(scene.at(2, JobEvent::Tick), KILL);
        assert_eq!(
            scene.at(2, JobEvent::Exited { rank: 2, exit: WorkerExit::Signal(9), report: FailureReport::None }),
            None
        );
        assert_eq!((scene.policy.exit_code(), scene.policy.origin()), (3, Some((1, WorkerExit::Code(3)))));
    }

    /// Workers that fail *because* rank 2 failed may end before it; rank 2 must still be named.
    #[test]
    fn the_origin_may_end_last() {
        let mut scene = Scene::new(3);
        assert_eq!(scene.at(0, exited(0, 1, FailureReport::PeerFailed)), None);
        assert_eq!(scene.at(1, exited(1, 1, FailureReport::PeerFailed)), None);
        assert_eq!(scene.at(1, exited(2, 5, FailureReport::Error)), TERM);
        assert_eq!((scene.policy.exit_code(), scene.policy.origin()), (5, Some((2, WorkerExit::Code(5)))));
    }

    #[test]
    fn an_origin_that_never_ends_is_not_waited_for() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.at(0, exited(0, 1, FailureReport::PeerFailed)), None);
        assert_eq!(scene.at(2, JobEvent::Tick), TERM);
        assert_eq!(scene.at(3, exited(1, 7, FailureReport::Error)), None);
        assert_eq!(scene.policy.origin(), Some((1, WorkerExit::Code(7))));
    }

    #[test]
    fn without_an_origin_the_first_consequence_is_named() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.at(0, exited(1, 1, FailureReport::PeerFailed)), None);
        assert_eq!(scene.at(0, exited(0, 0, FailureReport::None)), TERM);
        assert_eq!((scene.policy.exit_code(), scene.policy.origin()), (1, Some((1, WorkerExit::Code(1)))));
    }

    #[test]
    fn interrupt_is_passed_on_then_kills() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.at(0, JobEvent::Stop(Signal::SIGINT)), INT);
        assert_eq!(
            scene.at(1, JobEvent::Exited { rank: 0, exit: WorkerExit::Signal(2), report: FailureReport::None }),
            None
        );
        assert_eq!(scene.at(9, JobEvent::Tick), None);
        assert_eq!(scene.at(10, JobEvent::Tick), KILL);
        assert_eq!((scene.policy.exit_code(), scene.policy.origin()), (130, None));
    }

    #[test]
    fn second_interrupt_kills_at_once() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.at(0, JobEvent::Stop(Signal::SIGINT)), INT);
        assert_eq!(scene.at(1, JobEvent::Stop(Signal::SIGINT)), KILL);
    }

    #[test]
    fn a_signal_that_every_worker_handles_well_is_not_a_failure() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.at(0, JobEvent::Stop(Signal::SIGTERM)), TERM);
        assert_eq!(scene.at(1, exited(0, 0, FailureReport::None)), None);
        assert_eq!(scene.policy.exit_code(), 0);
    }

    /// Ctrl-C while a failed job is being stopped keeps the failure's exit code.
    #[test]
    fn a_failure_stays_the_cause() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.at(0, exited(0, 4, FailureReport::Error)), TERM);
        assert_eq!(scene.at(1, JobEvent::Stop(Signal::SIGINT)), INT);
        assert_eq!(scene.at(2, JobEvent::Tick), KILL);
        assert_eq!(scene.policy.exit_code(), 4);
    }

    #[test]
    fn what_workers_leave_running_is_ended() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.at(0, exited(0, 0, FailureReport::None)), None);
        assert_eq!(scene.at(2, JobEvent::Tick), TERM);
        assert_eq!(scene.at(4, JobEvent::Tick), KILL);
        assert_eq!(scene.policy.exit_code(), 0);
    }

    #[test]
    fn closed_output_ends_the_job() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.at(0, JobEvent::OutputClosed), TERM);
        assert_eq!(scene.at(0, JobEvent::OutputClosed), None);
        assert_eq!(
            scene.at(0, JobEvent::Exited { rank: 0, exit: WorkerExit::Signal(15), report: FailureReport::None }),
            None
        );
        assert_eq!(scene.policy.exit_code(), 141);
    }
}
