//! Workers that are processes: started by every launcher on this machine, and killed.
//!
//! The test binary starts itself as a worker; `worker` does nothing otherwise.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidemill_net::rendezvous::{JobSecret, join_from_environment};
use tidemill_net::topology::WorkerPlacement;
use tidemill_net::{ControlEvent, MessageTarget};

const ROLE: &str = "TIDEMILL_TEST_ROLE";
/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test, but the worker of the other tests. Prints a line for every event.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut control = match join_from_environment() {
        Ok(control) => control,
        Err(error) => {
            println!("refused: {error}");
            return;
        }
    };
    let (rank, size) = (control.rank(), control.size());
    let all = control.allgather(&WorkerPlacement::here().encode()).unwrap();
    let here = all
        .iter()
        .filter_map(|bytes| WorkerPlacement::decode(bytes))
        .filter(|p| p.host == WorkerPlacement::here().host);
    println!("joined: rank {rank} of {size}, {} on this host", here.count());
    let left = std::sync::Arc::new((Mutex::new(0), std::sync::Condvar::new()));
    let seen = std::sync::Arc::clone(&left);
    let handle = control
        .start(Box::new(move |event| {
            match event {
                ControlEvent::Lost { rank, reason } => println!("lost: rank {rank}: {reason}"),
                ControlEvent::Left { rank } => println!("left: rank {rank}"),
                ControlEvent::Message { .. } => {
                    *seen.0.lock().unwrap() += 1;
                    seen.1.notify_all();
                }
            }
            std::io::stdout().flush().unwrap();
        }))
        .unwrap();
    if role == "wait" {
        std::thread::sleep(PATIENCE);
    }
    handle.send(MessageTarget::All, b"done").unwrap();
    let all_done = left.0.lock().unwrap();
    drop(left.1.wait_timeout_while(all_done, PATIENCE, |done| *done + 1 < size).unwrap());
    handle.leave().unwrap();
}

fn worker_command(program: &str, arguments: &[&str]) -> Command {
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new(if program.is_empty() { me.as_os_str() } else { program.as_ref() });
    command.args(arguments);
    if !program.is_empty() {
        command.arg(me);
    }
    command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    command
}

/// Runs a launcher and returns the lines that its workers printed about joining.
fn launch(program: &str, arguments: &[&str], bootstrap: &str) -> Vec<String> {
    let mut command = worker_command(program, arguments);
    let output =
        command.env(ROLE, "leave").env("TIDEMILL_BOOTSTRAP", bootstrap).stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{program}: {}\n{text}", output.status);
    // The harness prints "test worker ... " before them.
    let mut lines: Vec<String> =
        text.lines().filter_map(|line| Some(line[line.find("joined: ")?..].to_owned())).collect();
    lines.sort();
    lines
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn expected(size: usize) -> Vec<String> {
    (0..size).map(|rank| format!("joined: rank {rank} of {size}, {size} on this host")).collect()
}

#[test]
fn open_mpi_starts_workers() {
    if !is_installed("mpirun.openmpi") {
        return;
    }
    for bootstrap in ["", "pmix"] {
        let arguments = ["--allow-run-as-root", "--oversubscribe", "-x", "TIDEMILL_BOOTSTRAP", "-x", ROLE, "-n", "3"];
        assert_eq!(launch("mpirun.openmpi", &arguments, bootstrap), expected(3), "{bootstrap}");
    }
}

#[test]
fn hydra_starts_workers() {
    if !is_installed("mpiexec.hydra") {
        return;
    }
    for bootstrap in ["", "pmi"] {
        assert_eq!(launch("mpiexec.hydra", &["-n", "3"], bootstrap), expected(3), "{bootstrap}");
    }
    // Concurrent jobs of one user do not meet each other.
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..4).map(|_| scope.spawn(|| launch("mpiexec.hydra", &["-n", "3"], ""))).collect();
        jobs.into_iter().for_each(|job| assert_eq!(job.join().unwrap(), expected(3)));
    });
}

#[test]
fn srun_starts_workers() {
    let works = is_installed("srun")
        && Command::new("srun")
            .args(["--immediate=10", "true"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success());
    if !works {
        eprintln!("skipped: no Slurm cluster answers here");
        return;
    }
    let plugins = Command::new("srun").arg("--mpi=list").output().unwrap();
    let plugins = [plugins.stdout, plugins.stderr].concat();
    let plugins = String::from_utf8_lossy(&plugins).into_owned();
    for (plugin, bootstrap) in [("none", ""), ("pmi2", "pmi"), ("pmix", "pmix")] {
        if !plugins.contains(plugin) {
            eprintln!("skipped: srun has no --mpi={plugin}");
            continue;
        }
        let mpi = format!("--mpi={plugin}");
        assert_eq!(launch("srun", &["--overcommit", "-n", "3", &mpi], bootstrap), expected(3), "{plugin}");
    }
}

/// Follows the contract of `tidemill run` by hand: rank 0 inherits the listening socket.
struct Job {
    workers: Vec<Option<(Child, BufReader<ChildStdout>)>>,
}

impl Job {
    fn start(size: usize, failure_timeout: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = listener.local_addr().unwrap().to_string();
        let secret = JobSecret::random().to_hex();
        let fd = listener.as_raw_fd();
        let start = |rank: usize| {
            let mut command = worker_command("", &[]);
            command.env(ROLE, "wait").env("TIDEMILL_ROOT", &root).env("TIDEMILL_SECRET", &secret);
            command.env("TIDEMILL_RANK", rank.to_string()).env("TIDEMILL_SIZE", size.to_string());
            command.env("TIDEMILL_FAILURE_TIMEOUT", failure_timeout);
            if rank == 0 {
                command.env("TIDEMILL_LISTEN_FD", fd.to_string());
                // SAFETY: only a system call between fork and exec.
                unsafe {
                    command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    });
                }
            }
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            Some((child, lines))
        };
        let mut job = Job { workers: (0..size).map(start).collect() };
        for rank in 0..size {
            job.expect(rank, "joined: ");
        }
        job
    }

    /// The rest of the next line of `rank` that begins with `begin`.
    fn expect(&mut self, rank: usize, begin: &str) -> String {
        let lines = &mut self.workers[rank].as_mut().unwrap().1;
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "rank {rank} ended before it said {begin:?}");
            if let Some(at) = line.find(begin) {
                return line[at + begin.len()..].trim_end().to_owned();
            }
            assert!(!line.contains("lost") && !line.contains("refused"), "{line}");
        }
    }

    fn signal(&self, rank: usize, signal: i32) {
        // SAFETY: signals our own child, which is not reaped yet.
        unsafe { libc::kill(self.workers[rank].as_ref().unwrap().0.id() as i32, signal) };
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (child, _) in self.workers.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn everybody_learns_of_a_killed_worker_and_then_of_a_killed_rank_0() {
    let mut job = Job::start(5, "30");
    let start = Instant::now();
    job.signal(3, libc::SIGKILL);
    for rank in [0, 1, 2, 4] {
        // "(reset)" follows if the killed worker had unread data.
        let line = job.expect(rank, "lost: ");
        assert!(line.starts_with("rank 3: its process ended"), "{line}");
    }
    eprintln!("four workers heard of the first kill within {:?}", start.elapsed());
    job.signal(0, libc::SIGKILL);
    for rank in [1, 2, 4] {
        assert!(job.expect(rank, "lost: ").starts_with("rank 0: its process ended"));
    }
    assert!(start.elapsed() < Duration::from_secs(20), "noticed by silence, not by the end of the connections");
}

/// A stopped process keeps its connections open, as does a host without power; only its silence gives it away.
#[test]
fn silence_is_noticed_and_the_main_thread_may_be_busy() {
    let mut job = Job::start(4, "2");
    job.signal(2, libc::SIGSTOP);
    for rank in [0, 1, 3] {
        let reason = job.expect(rank, "lost: rank 2: ");
        assert!(reason.contains("no sign of life"), "{reason}");
    }
    // The main threads of the others sleep the whole time; their control threads answer for them.
    std::thread::sleep(Duration::from_secs(3));
    job.signal(1, libc::SIGKILL);
    assert!(job.expect(3, "lost: ").starts_with("rank 1: its process ended"));
}
