//! One job: its workers, their output, and the event loop that runs until the last worker is gone.
//!
//! Everything happens in one thread around one `poll`: signals arrive as bytes in a pipe, ends of workers as
//! `SIGCHLD`, and each output takes only as much as it can without blocking. So nothing here can wait forever for
//! anything else.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::Pid;

use crate::apps::App;
use crate::cgroup::{self, OomKills};
use crate::crash::{CrashDir, CrashReport};
use crate::guard::LaunchGuard;
use crate::hosts::EmulatedCluster;
use crate::lines::OutputStream;
use crate::options::{self, JobOptions};
use crate::policy::{FailureReport, GracePeriods, JobEvent, JobPolicy, PolicyAction, WorkerExit};
use crate::restarts::RestartHistory;
use crate::scale::{JobScale, LaunchOutcome, ScaleRequest};
use crate::signals::{self, SignalPipe};
use crate::sink::OutputSink;
use crate::terminal::KeyboardInput;
use crate::worker::{self, StartError, StdinSource, WorkerProgram, WorkerSetting};
use crate::{contract, notes};

/// How many bytes are read from a worker at once.
const READ_BYTES: usize = 1 << 16;

/// How often to check whether a process group has become empty, which no signal reports.
const GROUP_INTERVAL: Duration = Duration::from_millis(20);

/// How long outputs are read after every process of the job has ended: a daemon may hold one open forever.
const DRAIN: Duration = Duration::from_secs(1);

/// Runs an application as a job.
pub fn run_app(options: &JobOptions, app: &App, args: Vec<OsString>, python: &Path) -> i32 {
    let mut options = options.clone();
    let help = args.iter().any(|word| word == "-h" || word == "--help");
    if help {
        // One worker prints its help, as if it had been started without us.
        (options.workers, options.max_workers, options.no_prefix) = (Some(1), None, true);
    }
    let mut command: Vec<OsString> = vec!["-m".into(), app.module.into()];
    command.extend(args);
    let code = run(&options, &command, python);
    if help && code == 0 {
        // Not `println`, which panics when nobody reads.
        let _ = writeln!(io::stdout(), "{}", options::APP_HELP);
    }
    code
}

/// If the job runs on a cluster of emulated hosts that requires other rights, replaces this process by the same
/// command with those rights. The error is the exit code.
pub fn become_owner(options: &JobOptions, args: &[OsString], python: &Path) -> Result<(), i32> {
    let Some(name) = &options.on else { return Ok(()) };
    let entered = EmulatedCluster::find(name).map_err(StartError::NoCluster).and_then(|cluster| {
        let what = "enter the user namespace of the emulated hosts with nsenter(1)";
        cluster.become_owner(args, python).map_err(|source| StartError::System { what, source })
    });
    entered.map_err(|error| {
        eprintln!("tidemill: {error}");
        error.exit_code()
    })
}

/// Runs `command` as a job and returns its exit code.
pub fn run(options: &JobOptions, command: &[OsString], python: &Path) -> i32 {
    match WorkerProgram::find(command, python).and_then(|program| run_again(options, &program)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidemill: {error}");
            error.exit_code()
        }
    }
}

/// Runs the job. Restarts it with other workers on request, and restarts all of it after a failure of its workers, as
/// often as the options allow.
fn run_again(options: &JobOptions, program: &WorkerProgram) -> Result<i32, StartError> {
    // Outlives each of the job's launches, so that a signal between two of them is noticed too.
    let signals = SignalPipe::catch().map_err(|e| StartError::System { what: "catch signals", source: e.into() })?;
    let mut scale = JobScale::default();
    let code = run_scaled(options, program, &signals, &mut scale);
    scale.over();
    code
}

fn run_scaled(
    options: &JobOptions,
    program: &WorkerProgram,
    signals: &SignalPipe,
    scale: &mut JobScale,
) -> Result<i32, StartError> {
    let (mut options, mut restarts) = (options.clone(), RestartHistory::new(options.restarts));
    let unscaled = options.workers;
    for started in 0.. {
        options.workers = scale.shape.workers.or(unscaled);
        options.without.clone_from(&scale.shape.without);
        let begin = Instant::now();
        let (code, outcome) = match JobLoop::start(&options, started, program, signals, scale) {
            Ok(job) => job.supervise(),
            Err(error) => match scale.failed_to_start() {
                Some(why) => {
                    say(&format!("{error}; {why}"));
                    continue;
                }
                None => return Err(error),
            },
        };
        let (what, pause) = if let Some(why) = scale.ended(&outcome) {
            (why, Duration::ZERO)
        } else {
            let Some(pause) = restarts.after(begin.elapsed()).filter(|_| outcome.failed) else { return Ok(code) };
            let delay = if pause.is_zero() { String::new() } else { format!(" in {:.1} s", pause.as_secs_f64()) };
            (format!("starting the job again{delay} ({} of {})", restarts.failures, options.restarts), pause)
        };
        say(&what);
        if let Some(signal) = signals.ending_within(pause) {
            return Ok(128 + signal as i32);
        }
    }
    unreachable!("nobody restarts a job four billion times")
}

fn say(what: &str) {
    // Not `eprintln`, which panics when nobody reads.
    let _ = writeln!(io::stderr(), "tidemill: {what}");
}

struct WorkerProcess {
    child: Child,
    group: Pid,
    exit: Option<WorkerExit>,
    /// Whether the process group still has members; the worker itself is one until it is reaped.
    group_lives: bool,
    crash: Option<CrashReport>,
    outputs: [Option<WorkerOutput>; 2],
}

/// Standard output or error of one worker.
struct WorkerOutput {
    pipe: OwnedFd,
    stream: OutputStream,
    sink: usize,
}

struct JobLoop<'a> {
    guard: LaunchGuard,
    crashes: CrashDir,
    workers: Vec<WorkerProcess>,
    sinks: Vec<OutputSink>,
    stderr_sink: usize,
    keyboard: Option<KeyboardInput>,
    policy: JobPolicy,
    show_prefix: bool,
    drain_until: Option<Instant>,
    killed_at: Option<Instant>,
    noted: bool,
    /// Processes that the kernel had killed because of memory before the job began.
    kills: OomKills,
    /// When an output last accepted bytes.
    last_write: Instant,
    /// How many workers were not spare at the start.
    active: usize,
    signals: &'a SignalPipe,
}

impl<'a> JobLoop<'a> {
    /// Starts the job's workers, for the first time or again after `restart` failures.
    fn start(
        options: &JobOptions,
        restart: u32,
        program: &WorkerProgram,
        signals: &'a SignalPipe,
        scale: &JobScale,
    ) -> Result<Self, StartError> {
        let system = |what| move |source: io::Error| StartError::System { what, source };
        set_child_subreaper(true).map_err(|error| system("become a subreaper")(error.into()))?;
        // Looked up each time: hosts may have been killed.
        let mut cluster =
            options.on.as_deref().map(EmulatedCluster::find).transpose().map_err(StartError::NoCluster)?;
        let left_out = cluster.as_mut().map_or(Ok(()), |cluster| cluster.leave_out(&options.without));
        left_out.map_err(StartError::NoCluster)?;
        let entries = cluster.as_mut().map_or_else(|| Ok(Vec::new()), EmulatedCluster::open_hosts);
        let entries = entries.map_err(system("enter an emulated host"))?;
        let contract =
            contract::JobContract::new(options, restart, cluster.as_ref()).map_err(system("prepare the job"))?;
        let crashes = CrashDir::create(&contract.job).map_err(system("make a temporary folder"))?;
        scale.announce(crashes.path()).map_err(system("write to its temporary folder"))?;
        let guard = LaunchGuard::start(crashes.path()).map_err(|e| system("start the guard")(e.into()))?;
        let listener = match entries.first() {
            Some(host) => host.listen().map_err(system("listen on an emulated host"))?,
            None => TcpListener::bind(("127.0.0.1", 0)).map_err(system("listen on the loopback address"))?,
        };
        let root = listener.local_addr().map_err(system("see where it listens"))?;
        let open_files = make_room_for_files(contract.size);

        let (sinks, sink_of) = OutputSink::standard();
        let show_prefix = !options.no_prefix;
        let grace = GracePeriods {
            failure: options.grace.unwrap_or(Duration::from_secs(2)),
            signal: options.grace.unwrap_or(Duration::from_secs(10)),
        };
        let mut job = Self {
            guard,
            crashes,
            workers: Vec::with_capacity(contract.size),
            sinks,
            stderr_sink: sink_of[1],
            keyboard: None,
            policy: JobPolicy::new(contract.size, grace),
            show_prefix,
            drain_until: None,
            killed_at: None,
            noted: false,
            kills: OomKills::now(),
            last_write: Instant::now(),
            active: contract.active,
            signals,
        };
        let at_terminal = KeyboardInput::is_terminal();
        for rank in 0..contract.size {
            let input = match rank {
                0 if at_terminal => StdinSource::Pipe,
                0 => StdinSource::Inherit,
                _ => StdinSource::Null,
            };
            let listener = (rank == 0).then(|| listener.as_fd());
            let environment = contract.environment(rank, root, listener, job.crashes.path());
            let cores = contract.cores(rank);
            let host = contract.host(rank).map(|host| &entries[host]);
            let setting = WorkerSetting { environment: &environment, input, listener, open_files, cores, host };
            // On an error the job is dropped, which kills and reaps the workers started so far.
            let mut child = worker::start(program, &setting)?;
            if let Some(stdin) = child.stdin.take() {
                job.keyboard = Some(KeyboardInput::new(stdin));
            }
            job.add(rank, child, sink_of);
        }
        // `listener` closes here: should rank 0 die before it listens, the others are refused at once and do not have
        // to wait.
        Ok(job)
    }

    fn add(&mut self, rank: usize, mut child: Child, sink_of: [usize; 2]) {
        let group = Pid::from_raw(child.id() as i32);
        self.guard.add(group);
        let pipes: [Option<OwnedFd>; 2] = [child.stdout.take().map(Into::into), child.stderr.take().map(Into::into)];
        let mut kind = 0..2;
        let outputs = pipes.map(|pipe| {
            let kind = kind.next().expect("two pipes");
            let sink = sink_of[kind];
            let prefix = if self.show_prefix { notes::prefix(rank, &self.sinks[sink]) } else { Vec::new() };
            pipe.map(|pipe| WorkerOutput { pipe, stream: OutputStream::new(2 * rank + kind, prefix), sink })
        });
        self.workers.push(WorkerProcess { child, group, exit: None, group_lives: true, crash: None, outputs });
    }

    /// The event loop. Returns the exit code, and the outcome for the caller, which may restart the job.
    fn supervise(mut self) -> (i32, LaunchOutcome) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let now = Instant::now();
            if self.is_over(now) {
                return (self.policy.exit_code(), self.outcome());
            }
            let ready = self.wait(now);
            let now = Instant::now();
            if ready.signals {
                for signal in self.signals.take() {
                    self.on_signal(now, signal);
                }
            }
            for (rank, kind) in ready.outputs {
                self.read(rank, kind, now, &mut buffer);
            }
            if let Some(keyboard) = &mut self.keyboard
                && !keyboard.carry(&ready.keyboard)
            {
                self.keyboard = None;
            }
            for sink in ready.sinks {
                self.last_write = now;
                if self.sinks[sink].write().is_err() {
                    self.happens(now, JobEvent::OutputClosed);
                }
            }
            self.show_old_beginnings(now);
            if self.policy.live() == 0 {
                self.look_at_groups(now);
            }
            self.happens(now, JobEvent::Tick);
        }
    }

    fn outcome(&self) -> LaunchOutcome {
        let folder = self.crashes.path();
        let active = JobScale::active(folder);
        LaunchOutcome {
            asked: ScaleRequest::read(folder),
            stopped: ScaleRequest::has_stopped(folder) && self.policy.exit_code() == 0 && !self.policy.was_signalled(),
            failed: self.policy.is_failure(),
            unanswered: JobScale::is_unanswered(folder),
            workers: active.unwrap_or(self.active),
            scaled: active.is_some(),
        }
    }

    /// Whether nothing is left to do. Once all output of the workers is written, prints what went wrong.
    fn is_over(&mut self, now: Instant) -> bool {
        if self.policy.live() > 0 || self.workers.iter().any(|worker| worker.group_lives) {
            return false;
        }
        if self.drain_until.is_none() {
            self.last_write = now;
        }
        if self.drain_until.is_none() || self.sinks.iter().any(|sink| !sink.has_room()) {
            self.policy.handle(now, JobEvent::AllGone);
            self.drain_until = Some(now + DRAIN);
        }
        // A user who interrupts a job whose output nobody reads (in a pager, say) does not want to wait for the
        // reader.
        if self.policy.was_signalled() && now >= self.last_write + DRAIN {
            self.sinks.iter_mut().for_each(OutputSink::abandon);
        }
        if self.drain_until.is_some_and(|until| now >= until) {
            for output in self.workers.iter_mut().flat_map(|worker| &mut worker.outputs) {
                *output = None;
            }
        }
        if self.workers.iter().any(|worker| worker.outputs.iter().any(Option::is_some)) {
            return false;
        }
        if !std::mem::replace(&mut self.noted, true) {
            let crashes: Vec<_> = self.workers.iter().map(|worker| (worker.exit, worker.crash.as_ref())).collect();
            let killed = self.kills.until(OomKills::now(), cgroup::memory_limit());
            let sink = &mut self.sinks[self.stderr_sink];
            for line in notes::farewell(&self.policy, &crashes, killed, |rank| {
                if self.show_prefix { notes::prefix(rank, sink) } else { Vec::new() }
            }) {
                self.sinks[self.stderr_sink].note(&line);
            }
        }
        !self.sinks.iter().any(OutputSink::wants_write)
    }

    fn wait(&self, now: Instant) -> ReadySources {
        let mut what = vec![PollSource::Signals];
        let mut fds = vec![PollFd::new(self.signals.fd(), PollFlags::POLLIN)];
        for (index, sink) in self.sinks.iter().enumerate().filter(|(_, sink)| sink.wants_write()) {
            what.push(PollSource::Sink(index));
            fds.push(PollFd::new(sink.fd(), PollFlags::POLLOUT));
        }
        for (rank, worker) in self.workers.iter().enumerate() {
            for (kind, output) in worker.outputs.iter().enumerate() {
                if let Some(output) = output.as_ref().filter(|output| self.sinks[output.sink].has_room()) {
                    what.push(PollSource::Output(rank, kind));
                    fds.push(PollFd::new(output.pipe.as_fd(), PollFlags::POLLIN));
                }
            }
        }
        for (fd, flags) in self.keyboard.iter().flat_map(KeyboardInput::wants) {
            what.push(PollSource::Keyboard(flags));
            fds.push(PollFd::new(fd, flags));
        }
        let timeout = self.next_deadline(now).map_or(PollTimeout::NONE, |deadline| {
            // Rounded up, so as not to wake just before the deadline and spin until then.
            let millis = deadline.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let mut ready = ReadySources::default();
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            // The signal's byte is in the pipe, and the next round finds it.
            Err(Errno::EINTR) => return ready,
            Err(error) => panic!("poll refuses descriptors that this process holds open: {error}"),
        }
        for (source, fd) in what.into_iter().zip(&fds) {
            if fd.any() == Some(true) {
                match source {
                    PollSource::Signals => ready.signals = true,
                    PollSource::Sink(index) => ready.sinks.push(index),
                    PollSource::Output(rank, kind) => ready.outputs.push((rank, kind)),
                    PollSource::Keyboard(flags) => ready.keyboard.push(flags),
                }
            }
        }
        ready
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let beginnings = self.workers.iter().flat_map(|worker| worker.outputs.iter().flatten());
        let ripe = beginnings.filter_map(|output| self.sinks[output.sink].lines.ripe_at(&output.stream)).min();
        let groups_left = self.policy.live() == 0 && self.workers.iter().any(|worker| worker.group_lives);
        let groups = groups_left.then(|| now + GROUP_INTERVAL);
        let keyboard = self.keyboard.as_ref().and_then(|keyboard| keyboard.look_again_at(now));
        [self.policy.deadline(), ripe, groups, self.drain_until, keyboard].into_iter().flatten().min()
    }

    fn on_signal(&mut self, now: Instant, signal: Signal) {
        match signal {
            Signal::SIGCHLD => self.reap(now),
            Signal::SIGTSTP => {
                self.signal_groups(Signal::SIGSTOP);
                // Returns when the shell continues us.
                let _ = raise(Signal::SIGSTOP);
                self.signal_groups(Signal::SIGCONT);
            }
            passing if signals::PASSING.contains(&passing) => self.signal_groups(passing),
            ending => self.happens(now, JobEvent::Stop(ending)),
        }
    }

    fn happens(&mut self, now: Instant, event: JobEvent) {
        let Some(PolicyAction::Signal(signal)) = self.policy.handle(now, event) else { return };
        if signal == Signal::SIGKILL && matches!(event, JobEvent::Tick) {
            let late: Vec<usize> = (0..self.workers.len()).filter(|&rank| self.workers[rank].group_lives).collect();
            let note = notes::killed(&late, late.iter().all(|&rank| self.workers[rank].exit.is_some()));
            self.sinks[self.stderr_sink].note(&note);
        }
        if signal == Signal::SIGKILL {
            self.killed_at.get_or_insert(now);
        }
        self.signal_groups(signal);
    }

    fn signal_groups(&self, signal: Signal) {
        for worker in self.workers.iter().filter(|worker| worker.group_lives) {
            // An empty group is fine; no other error can occur for our own children.
            let _ = killpg(worker.group, signal);
            if signals::ENDING.contains(&signal) {
                // A stopped process would not notice the signal.
                let _ = killpg(worker.group, Signal::SIGCONT);
            }
        }
    }

    /// Collects everything that has ended: workers, and the processes that they started and left to us as the
    /// subreaper. Otherwise such orphans would stay zombies, in a container perhaps forever, and their group would
    /// never become empty.
    fn reap(&mut self, now: Instant) {
        loop {
            let mut status = 0;
            // SAFETY: writes to a live variable.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            let of_pid = |worker: &WorkerProcess| worker.group.as_raw() == pid && worker.exit.is_none();
            if let Some(rank) = self.workers.iter().position(of_pid) {
                self.ended(rank, ExitStatus::from_raw(status), now);
            }
            self.look_at_groups(now);
        }
    }

    fn ended(&mut self, rank: usize, status: ExitStatus, now: Instant) {
        let worker = &mut self.workers[rank];
        let exit = match (status.code(), status.signal()) {
            (Some(code), _) => WorkerExit::Code(code),
            (None, signal) => WorkerExit::Signal(signal.unwrap_or_default()),
        };
        worker.exit = Some(exit);
        if exit != WorkerExit::Code(0) {
            worker.crash = self.crashes.read(rank);
        }
        let report = worker.crash.as_ref().map_or(FailureReport::None, |crash| crash.report);
        self.look_at_groups(now);
        self.happens(now, JobEvent::Exited { rank, exit, report });
    }

    /// Finds the groups that have become empty. Called right after their worker was reaped, before its number can be
    /// reused.
    fn look_at_groups(&mut self, now: Instant) {
        // Do not wait for what survives even SIGKILL (because of a broken disk, or as another process's zombie).
        let hopeless = self.killed_at.is_some_and(|killed_at| now >= killed_at + DRAIN);
        for worker in self.workers.iter_mut().filter(|worker| worker.exit.is_some() && worker.group_lives) {
            if hopeless || killpg(worker.group, None) == Err(Errno::ESRCH) {
                worker.group_lives = false;
                self.guard.remove(worker.group);
            }
        }
    }

    fn read(&mut self, rank: usize, kind: usize, now: Instant, buffer: &mut [u8]) {
        let Some(output) = &mut self.workers[rank].outputs[kind] else { return };
        let sink = &mut self.sinks[output.sink];
        match nix::unistd::read(&output.pipe, buffer) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(0) | Err(_) => {
                sink.lines.finish(&mut output.stream, &mut sink.pending);
                self.workers[rank].outputs[kind] = None;
            }
            Ok(count) => sink.lines.accept(&mut output.stream, &buffer[..count], now, &mut sink.pending),
        }
        sink.drop_if_closed();
    }

    fn show_old_beginnings(&mut self, now: Instant) {
        for output in self.workers.iter_mut().flat_map(|worker| worker.outputs.iter_mut().flatten()) {
            let sink = &mut self.sinks[output.sink];
            sink.lines.age(&mut output.stream, now, &mut sink.pending);
        }
    }
}

impl Drop for JobLoop<'_> {
    /// However this ends, even by a panic, no process of the job stays behind.
    fn drop(&mut self) {
        self.signal_groups(Signal::SIGKILL);
        for worker in self.workers.iter_mut().filter(|worker| worker.exit.is_none()) {
            let _ = worker.child.wait();
        }
        let _ = set_child_subreaper(false);
    }
}

enum PollSource {
    Signals,
    Sink(usize),
    Output(usize, usize),
    Keyboard(PollFlags),
}

#[derive(Default)]
struct ReadySources {
    signals: bool,
    sinks: Vec<usize>,
    outputs: Vec<(usize, usize)>,
    keyboard: Vec<PollFlags>,
}

/// Raises the limit on open files, since each worker needs two pipes. Returns the limits to restore in the workers,
/// if they were raised.
fn make_room_for_files(workers: usize) -> Option<(u64, u64)> {
    let needed = 64 + 4 * workers as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft >= needed {
        return None;
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).ok()?;
    Some((soft, hard))
}
