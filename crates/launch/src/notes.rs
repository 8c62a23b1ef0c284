//! The launcher's own messages: prefixes, and the final message about a failed job.

use nix::sys::signal::Signal;

use crate::cgroup::OomScope;
use crate::crash::CrashReport;
use crate::info::machine::bytes;
use crate::policy::{FailureReport, JobPolicy, WorkerExit};
use crate::sink::OutputSink;

/// `[rank] `, in color on a terminal that has colors.
pub fn prefix(rank: usize, sink: &OutputSink) -> Vec<u8> {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if sink.is_terminal() && !plain {
        format!("\x1b[3{}m[{rank}]\x1b[0m ", 1 + rank % 6).into_bytes()
    } else {
        format!("[{rank}] ").into_bytes()
    }
}

/// The message that workers (or, if they have `ended`, processes that they had started) did not end in time.
pub fn killed(ranks: &[usize], ended: bool) -> Vec<u8> {
    let text = if ended {
        format!("tidemill: killed what {} left running\n", workers(ranks))
    } else {
        format!("tidemill: killed {}, still running after being told to end\n", workers(ranks))
    };
    text.into_bytes()
}

/// The lines about how a job ended: nothing if it ended well, otherwise the origin's traceback, once, and what
/// happened. `killed` says where the kernel has meanwhile killed processes because of memory.
pub fn farewell(
    policy: &JobPolicy,
    workers_: &[(Option<WorkerExit>, Option<&CrashReport>)],
    killed: Option<OomScope>,
    prefix: impl Fn(usize) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    let mut show = |rank: usize, crash: &CrashReport| {
        for line in crash.traceback.lines() {
            lines.push([prefix(rank).as_slice(), line.as_bytes(), b"\n"].concat());
        }
    };
    let Some((origin, exit)) = policy.origin() else {
        // After Ctrl-C, one traceback shows where the job was.
        if policy.exit_code() != 0
            && let Some((rank, crash)) = workers_.iter().enumerate().find_map(|(r, (_, crash))| Some((r, (*crash)?)))
        {
            show(rank, crash);
        }
        return lines;
    };
    let crash = workers_[origin].1;
    if let Some(crash) = crash {
        show(origin, crash);
    }
    let others = match workers_.len() - 1 {
        0 => String::new(),
        1 => "; the other worker was stopped".into(),
        count => format!("; the other {count} workers were stopped"),
    };
    lines.push(format!("tidemill: worker {origin} {}{others}\n", describe(exit, killed)).into_bytes());

    let also: Vec<(usize, &CrashReport)> = workers_
        .iter()
        .enumerate()
        .filter_map(|(rank, (_, crash))| Some((rank, (*crash)?)))
        .filter(|(rank, crash)| *rank != origin && crash.report == FailureReport::Error)
        .collect();
    let (same, different): (Vec<_>, Vec<_>) =
        also.into_iter().partition(|(_, other)| crash.is_some_and(|crash| crash.summary == other.summary));
    if !same.is_empty() {
        let ranks: Vec<usize> = same.iter().map(|(rank, _)| *rank).collect();
        lines.push(format!("tidemill: {} failed in the same way\n", workers(&ranks)).into_bytes());
    }
    for (rank, other) in different {
        lines.push(format!("tidemill: worker {rank} also failed: {}\n", other.summary).into_bytes());
    }
    lines
}

fn describe(exit: WorkerExit, killed: Option<OomScope>) -> String {
    match exit {
        WorkerExit::Code(code) => format!("failed with exit code {code}"),
        WorkerExit::Signal(number) => {
            let name = Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |s| s.to_string());
            let hint = match Signal::try_from(number) {
                Ok(Signal::SIGKILL) => return format!("was killed by {name}{}", out_of_memory(killed)),
                Ok(Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGILL) => {
                    " (PYTHONFAULTHANDLER=1 in the environment shows where)"
                }
                _ => "",
            };
            format!("was killed by {name}{hint}")
        }
    }
}

/// Why a worker may have been killed if no one sent a signal.
fn out_of_memory(killed: Option<OomScope>) -> String {
    const FEWER: &str = "use fewer workers (-n), or lower --memory, which leaves more to the program";
    match killed {
        Some(OomScope::Here(Some((file, limit)))) => format!(
            " by the kernel's out-of-memory killer: this container may use {} (cgroup {file}); raise that limit, {FEWER}",
            bytes(limit)
        ),
        Some(OomScope::Here(None)) => {
            format!(" by the kernel's out-of-memory killer: the machine has no memory left; {FEWER}")
        }
        Some(OomScope::Somewhere) => {
            format!(
                ", probably by the kernel's out-of-memory killer, which has killed on this machine (see `dmesg`); {FEWER}"
            )
        }
        None => " (if nobody sent that signal, the system ran out of memory: see `dmesg`)".into(),
    }
}

fn workers(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    if ranks.len() == 1 { format!("worker {}", names[0]) } else { format!("workers {}", names.join(", ")) }
}
