//! The `tidemill` command.
//!
//! `tidemill run` starts the workers of a job on this host and waits until the last has ended; `tidemill info`
//! describes the machine. The Python console script passes its arguments to [`main`] and exits with the returned code,
//! so everything here runs inside a Python process that is otherwise idle.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module     | what                                                                    |
//! |------------|-------------------------------------------------------------------------|
//! | `cgroup`   | The limits of control groups, and kills because of memory               |
//! | `policy`   | What to do when a worker fails or a signal comes: decisions without I/O |
//! | `apps`     | The table of ready-made applications                                    |
//! | `hosts`    | Clusters of emulated hosts, and how a worker starts on one              |
//! | `crash`    | The reports that failing workers leave                                  |
//! | `lines`    | Whole lines, each with its rank as prefix                               |
//! | `options`  | The command line                                                        |
//! | `sink`     | Bytes to a terminal, pipe or file without ever blocking the event loop  |
//! | `terminal` | Sends keyboard input to rank 0                                          |
//! | `contract` | The environment that gives a worker its identity                        |
//! | `guard`    | The process that ends the workers if the launcher itself is killed      |
//! | `info`     | Version, processors, limits, and their problems                         |
//! | `notes`    | Messages of the launcher itself                                         |
//! | `restarts` | How often a failed job is restarted                                     |
//! | `scale`    | Requests for other workers, and what becomes of them                    |
//! | `signals`  | Signals as bytes in a pipe                                              |
//! | `worker`   | One worker process: program, environment, start                         |
//! | `job`      | The event loop: pipes, signals and exits of one job                     |

mod apps;
mod cgroup;
mod contract;
mod crash;
mod guard;
mod hosts;
mod info;
mod job;
mod lines;
mod notes;
mod options;
mod policy;
mod restarts;
mod scale;
mod signals;
mod sink;
mod terminal;
mod worker;

use std::ffi::OsString;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::PathBuf;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use options::{CliRequest, ConnectTime};

/// The version of Tidemill, as `tidemill --version` prints it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the `tidemill` command and returns its exit code.
///
/// `args` begins with the name of the command, as `sys.argv` does. `python` is the interpreter that runs `.py` files
/// and modules. Signal handlers are replaced while a job runs, and restored before this returns. Call it from the
/// main thread, because Linux ends the workers when the *thread* that started them ends.
///
/// Exit codes: 0; the code of the first failing worker (128 + its signal if one killed it); 126 or 127 if the program
/// cannot be started; 2 for a wrong command line.
pub fn main(args: Vec<OsString>, python: PathBuf) -> i32 {
    occupy_standard_descriptors();
    let request = match options::parse(args.clone()) {
        Ok(request) => request,
        Err(error) => {
            // Only a closed terminal can make this fail, and then there is nobody to tell.
            let _ = error.print();
            return error.exit_code();
        }
    };
    if let Err(code) = request.options().map_or(Ok(()), |options| job::become_owner(options, &args, &python)) {
        return code;
    }
    match request {
        CliRequest::Run(run) => job::run(&run.options, &run.command, &python),
        CliRequest::App(app, app_args) => job::run_app(&app_args.options, app, app_args.args, &python),
        CliRequest::Info(mut info) if info.job => {
            // A measurement between workers needs two of them.
            info.options.workers.get_or_insert(2);
            // Users who ask want to know about a firewall between any two of them.
            info.options.connect.get_or_insert(ConnectTime::All);
            // Only one of them prints anything, which may be JSON for another program.
            info.options.no_prefix = true;
            let args = if info.json { vec!["--json".into()] } else { vec![] };
            job::run_app(&info.options, apps::JOB_INFO, args, &python)
        }
        CliRequest::Info(info) => info::print(info.json),
    }
}

/// A shell may start us with standard descriptors closed (`>&-`). Our own pipes must not take their numbers;
/// otherwise what a worker prints would go elsewhere.
fn occupy_standard_descriptors() {
    // Without O_CLOEXEC: rank 0 inherits standard input.
    while let Ok(file) = open("/dev/null", OFlag::O_RDWR, Mode::empty()) {
        if file.as_raw_fd() > 2 {
            return;
        }
        // Stays open until the process ends.
        let _ = file.into_raw_fd();
    }
}
