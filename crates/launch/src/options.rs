//! The command line: `tidemill run`, `tidemill info` and one subcommand for each row of the table in `apps`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser};

use crate::apps::{APPS, App};

/// The parsed command line.
pub enum CliRequest {
    /// `tidemill run`: any program.
    Run(RunArgs),
    /// `tidemill info`: this machine; with `--job`, a small job that measures its transports.
    Info(InfoArgs),
    /// `tidemill <app>`: a ready-made application.
    App(&'static App, AppArgs),
}

impl CliRequest {
    /// The options of the job, if one is started.
    pub fn options(&self) -> Option<&JobOptions> {
        match self {
            CliRequest::Run(run) => Some(&run.options),
            CliRequest::App(_, app) => Some(&app.options),
            CliRequest::Info(info) => info.job.then_some(&info.options),
        }
    }
}

/// How a job is started; the same for `run` and for every application.
#[derive(Args, Clone, Debug, Default)]
pub struct JobOptions {
    /// Number of workers [default: one per available core]
    #[arg(short = 'n', long = "workers", value_name = "N", value_parser = parse_workers)]
    pub workers: Option<usize>,

    /// Start this many workers: those beyond -n are spare, until `tidemill scale` has a stream use them, without a stop
    #[arg(long, value_name = "N", value_parser = parse_workers)]
    pub max_workers: Option<usize>,

    /// Threads of each worker [default: cores / workers, at least 1]
    #[arg(long, value_name = "T", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,

    /// Memory of each worker, such as 512MiB or 2GiB, or none for no limit; beyond it, queries and exchanges spill to
    /// disk [default: 80 % of the machine's memory, shared by its workers]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<MemoryOption>,

    /// Folder to spill to [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,

    /// Address where running streams serve Prometheus metrics, such as 127.0.0.1:9100; loopback if no host is given
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,

    /// Leave placing workers to the system's scheduler; by default each gets an equal share of the cores to itself, if
    /// there are enough
    #[arg(long, action = ArgAction::SetTrue)]
    pub no_bind: bool,

    /// Spread the workers evenly over the emulated hosts of this cluster, which `tidemill hosts up` has made
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,

    /// How workers on this host communicate [default: auto, the fastest that works]
    #[arg(long, value_enum, value_name = "KIND")]
    pub transport: Option<TransportKind>,

    /// When workers connect over TCP [default: on-demand]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub connect: Option<ConnectTime>,

    /// Report which worker waits for which when a wait takes longer than this; 0 turns it off [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub stall_warning: Option<Duration>,

    /// Time workers get to end after being told to, before they are killed
    /// [default: 2 after a failure, 10 after a signal]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub grace: Option<Duration>,

    /// Restart all workers when one fails, at most N times [default: 0]; programs resume from their checkpoints
    #[arg(long, alias = "restart", value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub restarts: u32,

    /// Do not put [rank] in front of each line
    #[arg(long, action = ArgAction::SetTrue)]
    pub no_prefix: bool,

    /// Emulated hosts that get no workers. `tidemill drain --restart` asks a running job to leave one.
    #[arg(skip)]
    pub without: Vec<String>,
}

/// Values of `--transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// Shared memory on one host, TCP between hosts
    Auto,
    /// Shared memory only; rejects a job that spans hosts
    Shm,
    /// TCP only, even on one host
    Tcp,
}

impl TransportKind {
    /// The value of `TIDEMILL_TRANSPORT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Values of `--connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConnectTime {
    /// A pair connects when one of them first sends something to the other
    OnDemand,
    /// All pairs connect at the start, so that a firewall between any two is found then
    All,
}

impl ConnectTime {
    /// The value of `TIDEMILL_CONNECT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::All => "all",
        }
    }
}

/// Values of `--memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOption {
    Bytes(u64),
    Unlimited,
}

impl MemoryOption {
    /// The value of `TIDEMILL_MEMORY`.
    pub fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Unlimited => "none".into(),
        }
    }
}

/// Arguments of `tidemill run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub options: JobOptions,

    /// A Python file, `-m module`, or any other program; its arguments are passed on unchanged
    // One trailing list, so that nothing after the program is parsed as one of our options; `-m` is its first word.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Arguments of `tidemill info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print JSON for programs instead of text for people
    #[arg(long)]
    pub json: bool,

    /// Start a small job and measure latency and bandwidth between its workers
    #[arg(long)]
    pub job: bool,

    #[command(flatten)]
    pub options: JobOptions,
}

/// Arguments of an application: job options may be anywhere, and the rest are the application's.
#[derive(Debug)]
pub struct AppArgs {
    pub options: JobOptions,
    pub args: Vec<OsString>,
}

/// Parses `args`, the first of which is the name of the command.
///
/// # Errors
/// The text to print instead: usage errors, and the output of `--help` and `--version`.
pub fn parse(args: Vec<OsString>) -> Result<CliRequest, clap::Error> {
    if let Some(file) = args.get(1).filter(|word| word.as_encoded_bytes().ends_with(b".py")) {
        let text = format!("start programs with `run`: tidemill run {}\n", file.to_string_lossy());
        return Err(clap::Error::raw(clap::error::ErrorKind::InvalidSubcommand, text));
    }
    let request = requested(&command().try_get_matches_from(args)?)?;
    if let Some(&JobOptions { workers: Some(workers), max_workers: Some(most), .. }) = request.options()
        && workers > most
    {
        let text = format!("-n {workers} is more than --max-workers {most}: --max-workers counts all workers\n");
        return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, text));
    }
    Ok(request)
}

fn requested(matches: &ArgMatches) -> Result<CliRequest, clap::Error> {
    match matches.subcommand() {
        Some(("run", found)) => Ok(CliRequest::Run(RunArgs::from_arg_matches(found)?)),
        Some(("info", found)) => Ok(CliRequest::Info(InfoArgs::from_arg_matches(found)?)),
        Some((name, found)) => {
            let app = APPS.iter().find(|app| app.name == name).expect("every other subcommand comes from the table");
            let words = found.get_many::<OsString>(WORDS).into_iter().flatten().cloned().collect();
            let (ours, args) = take_ours(words);
            let command = JobOptions::augment_args(Command::new(app.name).disable_help_flag(true).no_binary_name(true));
            let options = JobOptions::from_arg_matches(&command.try_get_matches_from(ours)?)?;
            Ok(CliRequest::App(app, AppArgs { options, args }))
        }
        None => unreachable!("clap requires a subcommand"),
    }
}

fn command() -> Command {
    // `about` comes last: the attributes of the structs would overwrite it.
    let run = RunArgs::augment_args(Command::new("run"))
        .about("Start the workers of a job and wait until they end")
        .override_usage(
            "tidemill run [OPTIONS] app.py [ARGS]...\n       tidemill run [OPTIONS] -m module [ARGS]...\n       \
             tidemill run [OPTIONS] program [ARGS]...",
        )
        .after_help(RUN_HELP);
    let info =
        InfoArgs::augment_args(Command::new("info")).about("Describe this machine and its limits, and report problems");
    let mut command = Command::new("tidemill")
        .version(crate::VERSION)
        .about("Streaming, batch and bulk-synchronous programs in one job on one set of workers.")
        .after_help(
            "Examples:\n  tidemill run -n 4 app.py --steps 100\n  tidemill kmeans -n 2 points.csv\n  tidemill info",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(run)
        .subcommand(info);
    for app in APPS {
        // `--help` belongs to the application, which knows its own options.
        command = command.subcommand(
            Command::new(app.name).about(app.about).disable_help_flag(true).arg(
                Arg::new(WORDS)
                    .num_args(0..)
                    .value_parser(value_parser!(OsString))
                    .allow_hyphen_values(true)
                    .trailing_var_arg(true),
            ),
        );
    }
    command
}

const WORDS: &str = "words";

/// Splits the words after an application's name into our options (with their values) and the rest. Everything after
/// `--` belongs to the rest.
fn take_ours(words: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
    let known = JobOptions::augment_args(Command::new("known"));
    // For each of our options, whether its value is a separate word.
    let wants_value = |word: &str| {
        known.get_arguments().find_map(|arg| {
            let takes_value = arg.get_action().takes_values();
            let long = arg.get_long().map(|name| format!("--{name}"));
            let short = arg.get_short().map(|name| format!("-{name}"));
            let is = |name: Option<String>| name.is_some_and(|name| word == name);
            // `--name=value`, `-nVALUE`
            let attached =
                long.as_deref().is_some_and(|name| word.strip_prefix(name).is_some_and(|v| v.starts_with('=')))
                    || short.as_deref().is_some_and(|name| takes_value && word.len() > 2 && word.starts_with(name));
            if attached { Some(false) } else { (is(long) || is(short)).then_some(takes_value) }
        })
    };
    let (mut ours, mut rest) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.push(word);
            break;
        }
        match word.to_str().and_then(wants_value) {
            Some(value_follows) => {
                ours.push(word);
                ours.extend(value_follows.then(|| words.next()).flatten());
            }
            None => rest.push(word),
        }
    }
    rest.extend(words);
    (ours, rest)
}

/// The job options, for the help of applications, which do not know them.
pub const APP_HELP: &str = "
job options, in any position (see `tidemill run --help`):
  -n N, --max-workers N, --threads T, --memory SIZE, --spill-dir DIR, --metrics ADDRESS, --no-bind, --transport KIND, --connect WHEN, --stall-warning SECONDS,
  --grace SECONDS, --restarts N, --no-prefix";

const RUN_HELP: &str = "\
Each output line of a worker is prefixed with its rank; standard input goes to rank 0. Ctrl-C and SIGTERM are passed on;
a second Ctrl-C kills at once. When a worker fails, the others are stopped, its traceback is printed once, and its exit
code (128 + signal if one killed it) becomes that of the job.

Examples:
  tidemill run -n 4 app.py --steps 100
  tidemill run -n 2 --threads 8 -m package.module
  tidemill run -n 2 --memory 2GiB --spill-dir /scratch query.py
  tidemill run -n 2 --transport tcp app.py";

fn parse_memory(text: &str) -> Result<MemoryOption, String> {
    if text == "none" { Ok(MemoryOption::Unlimited) } else { parse_size(text).map(MemoryOption::Bytes) }
}

/// `512MiB`, `2GiB`, `1.5G`: powers of 1024 in every spelling.
fn parse_size(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let power = ["", "k", "m", "g", "t"].iter().position(|&known| known == unit);
    match (number.trim().parse::<f64>(), power) {
        (Ok(number), Some(power)) if number > 0.0 && number.is_finite() => {
            Ok((number * 1024_f64.powi(power as i32)) as u64)
        }
        _ => Err("must be a size such as 512MiB or 2GiB, or none".into()),
    }
}

fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("a job needs at least one worker".into()),
        Ok(count) if count > WORKERS_MAX => Err(format!("at most {WORKERS_MAX} workers can be started on one host")),
        Ok(count) => Ok(count),
        Err(_) => Err("expected an integer".into()),
    }
}

/// A typing mistake must not become a fork bomb.
const WORKERS_MAX: usize = 4096;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected a non-negative number of seconds".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Result<CliRequest, clap::Error> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn run(line: &str) -> RunArgs {
        match request(line) {
            Ok(CliRequest::Run(run)) => run,
            Ok(_) => panic!("{line:?} is not a run"),
            Err(error) => panic!("{line:?}: {error}"),
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        command().debug_assert();
    }

    /// An option after the program belongs to the program, even if it looks like one of ours.
    #[test]
    fn what_follows_the_program_is_untouched() {
        let run = run("tidemill run -n 3 app.py -n 7 --threads x -- y");
        assert_eq!(run.options.workers, Some(3));
        assert_eq!(run.command, ["app.py", "-n", "7", "--threads", "x", "--", "y"]);
    }

    #[test]
    fn a_module_ends_the_options() {
        let run = run("tidemill run --threads 2 -m pack.mod -n 7");
        assert_eq!((run.options.threads, run.options.workers), (Some(2), None));
        assert_eq!(run.command, ["-m", "pack.mod", "-n", "7"]);
    }

    /// An application's options and ours may be mixed: ours are taken out wherever they are.
    #[test]
    fn applications_leave_our_options_to_us() {
        let Ok(CliRequest::App(app, args)) = request("tidemill kmeans -k 8 points.csv -n 2 --out=x --threads 3") else {
            panic!("not an application")
        };
        assert_eq!(app.name, "kmeans");
        assert_eq!((args.options.workers, args.options.threads), (Some(2), Some(3)));
        assert_eq!(args.args, ["-k", "8", "points.csv", "--out=x"]);
        let Ok(CliRequest::App(_, args)) = request("tidemill kmeans --threads=3 -n4 --no-prefix --nothing -- -n 2")
        else {
            panic!("not an application")
        };
        assert_eq!((args.options.workers, args.options.threads, args.options.no_prefix), (Some(4), Some(3), true));
        assert_eq!(args.args, ["--nothing", "--", "-n", "2"]);
    }

    #[test]
    fn an_applications_help_is_its_own() {
        let Ok(CliRequest::App(_, args)) = request("tidemill kmeans --help") else { panic!("not an application") };
        assert_eq!(args.args, ["--help"]);
    }

    /// The command line accepts the same values as the environment.
    #[test]
    fn memory_is_a_size_or_none() {
        for (line, text) in [("--memory 2GiB", "2147483648"), ("--memory=none", "none"), ("--memory none", "none")] {
            let memory = run(&format!("tidemill run {line} a.py")).options.memory;
            assert_eq!(memory.map(MemoryOption::text).as_deref(), Some(text), "{line}");
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for line in [
            "run -n 0 a.py",
            "run -n -1 a.py",
            "run -n x a.py",
            "run -n 5000 a.py",
            "run --max-workers 0 a.py",
            "run -n 4 --max-workers 3 a.py",
            "kmeans -n 4 --max-workers 3",
            "run --threads 0 a.py",
            "run --memory 0 a.py",
            "run --memory 2XB a.py",
            "run --memory nothing a.py",
        ] {
            assert!(request(&format!("tidemill {line}")).is_err(), "{line}");
        }
        for (text, bytes) in [("512MiB", 512 << 20), ("2g", 2 << 30), ("1.5K", 1536), ("7", 7)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for line in ["run --grace nan a.py", "run --grace -1 a.py", "run --stall-warning inf a.py", "run"] {
            assert!(request(&format!("tidemill {line}")).is_err(), "{line}");
        }
    }
}
