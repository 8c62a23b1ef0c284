//! One worker process: its program and environment, and how its life is tied to the launcher's.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{AccessFlags, access};
use tidemill_machine::CpuSet;

use crate::hosts::HostEntry;

/// The program that every worker runs.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerProgram {
    file: PathBuf,
    args: Vec<OsString>,
}

/// Why the workers cannot be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The program does not exist.
    NotFound(PathBuf),
    /// The file exists, but is not a program.
    NotExecutable(PathBuf),
    /// `-m` without a module, or an option that `tidemill run` does not have.
    Usage(String),
    /// The cluster of emulated hosts does not exist.
    NoCluster(String),
    /// The system refused an operation.
    System { what: &'static str, source: io::Error },
}

impl StartError {
    /// The exit code that a shell would return.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::Usage(_) => 2,
            Self::NoCluster(_) | Self::System { .. } => 1,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(file) if file.components().count() > 1 || is_python(file) => {
                write!(f, "no such file: {}", file.display())
            }
            Self::NotFound(file) => write!(
                f,
                "no program {0} in PATH; start a program in this folder as ./{0}, or a Python module as -m {0}",
                file.display()
            ),
            Self::NotExecutable(file) if file.is_dir() => write!(f, "{} is a folder, not a program", file.display()),
            Self::NotExecutable(file) => write!(
                f,
                "{0} cannot be executed: make it executable (chmod +x {0}; a script also needs a #! line), or name its \
                 interpreter first: tidemill run python3 {0}",
                file.display()
            ),
            Self::Usage(message) | Self::NoCluster(message) => f.write_str(message),
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl WorkerProgram {
    /// Finds the program of a command line: `app.py args`, `-m module args` or `program args`. `python` runs the first
    /// two.
    ///
    /// # Errors
    /// If the program does not exist, or is not executable.
    pub fn find(command: &[OsString], python: &Path) -> Result<Self, StartError> {
        let (first, rest) = command.split_first().ok_or_else(|| StartError::Usage("no program given".into()))?;
        if first == "-m" {
            if rest.is_empty() {
                return Err(StartError::Usage("-m needs the name of a Python module".into()));
            }
            return Ok(Self { file: python.to_owned(), args: command.to_vec() });
        }
        if first.as_bytes().starts_with(b"-") {
            return Err(StartError::Usage(format!(
                "unknown option {}; `tidemill run --help` lists them",
                first.to_string_lossy()
            )));
        }
        let file = PathBuf::from(first);
        if is_python(&file) {
            return match file.metadata() {
                Ok(found) if found.is_dir() => Err(StartError::NotExecutable(file)),
                Ok(_) => Ok(Self { file: python.to_owned(), args: command.to_vec() }),
                Err(_) => Err(StartError::NotFound(file)),
            };
        }
        Ok(Self { file: search(&file)?, args: rest.to_vec() })
    }
}

fn is_python(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "py")
}

/// Searches like a shell: a name with a slash is a file, any other is looked up in `PATH`.
fn search(name: &Path) -> Result<PathBuf, StartError> {
    let runs = |file: &Path| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    if name.as_os_str().as_bytes().contains(&b'/') {
        return match name.metadata() {
            Err(_) => Err(StartError::NotFound(name.to_owned())),
            Ok(_) if runs(name) => Ok(name.to_owned()),
            Ok(_) => Err(StartError::NotExecutable(name.to_owned())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let candidates: Vec<PathBuf> =
        std::env::split_paths(&path).map(|folder| folder.join(name)).filter(|file| file.is_file()).collect();
    match candidates.iter().find(|file| runs(file)) {
        Some(file) => Ok(file.clone()),
        None => Err(candidates
            .into_iter()
            .next()
            .map_or_else(|| StartError::NotFound(name.to_owned()), StartError::NotExecutable)),
    }
}

/// Where a worker's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinSource {
    /// Nothing to read, for every rank but 0.
    Null,
    /// The launcher's own file or pipe: what the worker does not read stays for the next reader.
    Inherit,
    /// A pipe that the launcher fills from the terminal, which workers, as background processes, may not read.
    Pipe,
}

/// What one worker gets besides the program.
pub struct WorkerSetting<'a> {
    /// The variables that tell it its identity.
    pub environment: &'a [(&'static str, OsString)],
    /// Its standard input.
    pub input: StdinSource,
    /// The listener of rank 0, which it inherits under the same number.
    pub listener: Option<BorrowedFd<'a>>,
    /// The limit on open files that the launcher was started with.
    pub open_files: Option<(u64, u64)>,
    /// The cores that it is bound to.
    pub cores: Option<CpuSet>,
    /// The emulated host that it runs on, if any.
    pub host: Option<&'a Arc<HostEntry>>,
}

/// Starts one worker as the leader of its own process group. If the launcher is killed, the kernel kills the worker
/// too.
///
/// # Errors
/// `NotExecutable` if the kernel does not accept the file as a program; `System` if a resource runs out.
pub fn start(program: &WorkerProgram, setting: &WorkerSetting<'_>) -> Result<Child, StartError> {
    let mut command = Command::new(&program.file);
    command
        .args(&program.args)
        // The launcher may itself run inside a worker, whose listener, terminal and cores are not ours.
        .env_remove("TIDEMILL_LISTEN_FD")
        .env_remove("TIDEMILL_TERMINAL")
        .env_remove("TIDEMILL_BOUND")
        .env_remove("TIDEMILL_ACTIVE_WORKERS")
        .envs(setting.environment.iter().map(|(name, value)| (OsStr::new(name), value)))
        .stdin(match setting.input {
            StdinSource::Null => Stdio::null(),
            StdinSource::Inherit => Stdio::inherit(),
            StdinSource::Pipe => Stdio::piped(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let listener = setting.listener.map(|fd| fd.as_raw_fd());
    let (open_files, cores, launcher) = (setting.open_files, setting.cores.clone(), std::process::id());
    let host = setting.host.cloned();
    let moved = setting.host.map(|host| host.adopt_children()).transpose();
    let _elsewhere = moved.map_err(|source| StartError::System { what: "start a worker on its host", source })?;
    let work = move || {
        prepare(launcher, listener, open_files, cores.as_ref(), host.is_some())?;
        host.as_ref().map_or(Ok(()), |host| host.enter())
    };
    // SAFETY: between fork and exec only system calls run: no allocation, no lock.
    unsafe { command.pre_exec(work) };
    command.spawn().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOEXEC | libc::EACCES) => StartError::NotExecutable(program.file.clone()),
        _ => StartError::System { what: "start a worker", source },
    })
}

/// Runs in the new process before its program does.
fn prepare(
    launcher: u32,
    listener: Option<RawFd>,
    open_files: Option<(u64, u64)>,
    cores: Option<&CpuSet>,
    elsewhere: bool,
) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    // The launcher may have died before the line above: then no signal will ever come. From an emulated host the
    // launcher is invisible and has no number; there, its guard ends what is left.
    if !elsewhere && std::os::unix::process::parent_id() != launcher {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if let Some((soft, hard)) = open_files {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    if let Some(cores) = cores {
        // If the system refuses, the worker stays where it is, which is slower at worst.
        let _ = cores.bind_current_thread();
    }
    // Python ignores SIGXFSZ, and children inherit that.
    // SAFETY: SIG_DFL runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    if let Some(fd) = listener {
        // SAFETY: fcntl on a descriptor that the launcher keeps open until after this call.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(words: &[&str]) -> Result<WorkerProgram, StartError> {
        WorkerProgram::find(&words.iter().map(OsString::from).collect::<Vec<_>>(), Path::new("/py"))
    }

    #[test]
    fn modules_and_python_files_run_under_the_interpreter() {
        let module = find(&["-m", "a.b", "-n", "2"]).expect("a module is not looked up here");
        assert_eq!(
            (module.file, module.args),
            (PathBuf::from("/py"), ["-m", "a.b", "-n", "2"].map(OsString::from).into())
        );
    }

    #[test]
    fn programs_come_from_the_path() {
        let shell = find(&["sh", "-c", "exit 3"]).expect("every POSIX system has sh");
        assert!(shell.file.is_absolute());
        assert_eq!(shell.args, ["-c", "exit 3"].map(OsString::from));
    }

    /// The message must say what to do, and the exit code must be the shell's.
    #[test]
    fn programs_that_cannot_run_are_explained() {
        for (words, code, text) in [
            (&["no-such-program"][..], 127, "PATH"),
            (&["./no/such"], 127, "no such file"),
            (&["missing.py"], 127, "no such file"),
            (&["/etc/passwd"], 126, "chmod +x"),
            (&["/etc/"], 126, "folder"),
            (&["--theads", "2"], 2, "unknown option --theads"),
            (&["-m"], 2, "module"),
        ] {
            let error = find(words).expect_err("must not be found");
            assert_eq!(error.exit_code(), code, "{words:?}");
            assert!(error.to_string().contains(text), "{words:?}: {error}");
        }
    }
}
