//! Who am I: what the launcher left in the environment, read without touching anything else.
//!
//! In this order, the first that applies wins:
//!
//! | launcher                            | variables                                                               |
//! |-------------------------------------|-------------------------------------------------------------------------|
//! | `tidemill run`, or by hand          | `TIDEMILL_RANK`, `TIDEMILL_SIZE`, `TIDEMILL_ROOT`, `TIDEMILL_SECRET`, `TIDEMILL_JOB` |
//! | Open MPI's `mpirun`                 | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`                          |
//! | MPICH's and Intel's `mpiexec` (hydra) | `PMI_RANK`, `PMI_SIZE`, `PMI_FD`                                      |
//! | Slurm's `srun`                      | `SLURM_PROCID`, `SLURM_STEP_ID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` |
//! | torchrun, Kubernetes                | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`                      |
//! | none                                | a job of one worker                                                     |
//!
//! Where the host is in the network comes from `TIDEMILL_LOCATION`, else from Slurm's `SLURM_TOPOLOGY_ADDR`.
//!
//! `TIDEMILL_ROOT` with `TIDEMILL_SECRET` serve any launcher that says the rank and the size but nothing to meet by.
//! The mistake that every MPI user has made once, N jobs of one instead of one job of N, is an error here.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;
use std::time::Duration;

use crate::secret::JobSecret;
use crate::{FAILURE_TIMEOUT, Rank};

/// The variables of a process.
pub type Variables = BTreeMap<String, String>;

/// How long workers wait for each other, unless told otherwise (`TIDEMILL_JOIN_TIMEOUT`, in seconds).
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What started this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nothing: a program started by hand.
    None,
    /// `tidemill run`, or its variables set by hand.
    Tidemill,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Hydra, the `mpiexec` of MPICH and Intel MPI.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
    /// `RANK`, `WORLD_SIZE` and `MASTER_ADDR`: torchrun, Kubernetes operators.
    Torch,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::None => "no launcher",
            Launcher::Tidemill => "tidemill run",
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Hydra => "mpiexec (hydra)",
            Launcher::Slurm => "srun",
            Launcher::Torch => "RANK, WORLD_SIZE and MASTER_ADDR",
        })
    }
}

/// How a worker learns where rank 0 listens and what the secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeetingPoint {
    /// A job of one worker needs neither.
    Alone,
    /// Both were given.
    Given {
        /// `host:port`; several, separated by commas, are tried in turn.
        root: String,
        /// The job's secret.
        secret: JobSecret,
        /// On rank 0: a listening socket inherited from the launcher.
        listen_fd: Option<RawFd>,
    },
    /// Rank 0 was given, a secret was not: everybody who can connect and knows the job's public parameters gets in.
    Unprotected {
        /// `host:port`.
        root: String,
    },
    /// All workers are on this host: a socket that only this user's processes may use.
    SameHost {
        /// A descriptor of the launcher's whose other end is one process for all workers of the job, where the
        /// environment does not tell two jobs apart.
        witness: Option<RawFd>,
    },
    /// Through the launcher's PMIx server.
    Pmix,
    /// Through the launcher's PMI-1 server, a descriptor of this process.
    Pmi1 {
        /// The descriptor.
        fd: RawFd,
    },
}

/// What the launcher said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchContext {
    /// Who started this worker.
    pub launcher: Launcher,
    /// This worker's number.
    pub rank: Rank,
    /// How many workers the job has.
    pub size: u32,
    /// This worker's number on its host, if the launcher said.
    pub local_rank: Option<u32>,
    /// How many workers the host has, if the launcher said.
    pub local_size: Option<u32>,
    /// The job's name.
    pub job: String,
    /// How the workers meet.
    pub meeting: MeetingPoint,
    /// How long workers wait for each other at the start.
    pub join_timeout: Duration,
    /// Silence after which a worker counts as lost.
    pub failure_timeout: Duration,
    /// Where this host is in the network: a path from the outside in, such as `zone-a/rack-3/host-7`, if anybody said
    /// so.
    pub location: Option<String>,
    /// How many processors are meant for this worker: `srun --cpus-per-task`. Its affinity may allow more.
    pub granted: Option<u32>,
}

/// Why the environment makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable that others ask for is missing.
    #[error("{present} is set but {missing} is not; {remedy}")]
    Missing {
        /// What is there.
        present: String,
        /// What is not.
        missing: String,
        /// What to do.
        remedy: String,
    },
    /// A variable's value cannot be understood.
    #[error("{name}={value} is not {expected}")]
    Malformed {
        /// The variable.
        name: String,
        /// Its value; secrets are not shown.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The rank is not below the size.
    #[error("{launcher} set rank {rank} for {size} workers; ranks run from 0 to size - 1")]
    RankOutOfRange {
        /// Who says so.
        launcher: Launcher,
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// The launcher meant many workers, but this would be a job of one.
    #[error(
        "{evidence}, but this process would form a job of one worker. {remedy}; or, if you want a job of one worker, \
         set TIDEMILL_RANK=0 and TIDEMILL_SIZE=1"
    )]
    ManyJobsOfOne {
        /// What shows it.
        evidence: String,
        /// What to do.
        remedy: String,
    },
    /// The launcher offers nothing by which workers on several hosts could meet.
    #[error("workers on several hosts have no meeting point: {reason}; {remedy}")]
    NoMeeting {
        /// What is missing.
        reason: String,
        /// What to do.
        remedy: String,
    },
}

/// Reads variables and remembers what they are called, for error messages.
struct VariableReader<'a>(&'a Variables);

impl<'a> VariableReader<'a> {
    /// The value, if it is set and not empty.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn parse<T: FromStr>(&self, name: &str, expected: &'static str) -> Result<Option<T>, EnvironmentError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let malformed = |_| EnvironmentError::Malformed { name: name.into(), value: value.into(), expected };
        value.parse().map(Some).map_err(malformed)
    }

    fn number(&self, name: &str) -> Result<Option<u32>, EnvironmentError> {
        self.parse(name, "a non-negative integer")
    }

    fn seconds(&self, name: &str, default: Duration) -> Result<Duration, EnvironmentError> {
        let expected = "a positive number of seconds";
        let Some(seconds) = self.parse::<f64>(name, expected)? else { return Ok(default) };
        let valid = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
        let value = || seconds.to_string();
        valid.ok_or_else(|| EnvironmentError::Malformed { name: name.into(), value: value(), expected })
    }

    /// A rank and a size that must come together.
    fn pair(&self, rank: &str, size: &str, remedy: &str) -> Result<Option<(u32, u32)>, EnvironmentError> {
        let missing = |present: &str, missing: &str| {
            Err(EnvironmentError::Missing { present: present.into(), missing: missing.into(), remedy: remedy.into() })
        };
        match (self.number(rank)?, self.number(size)?) {
            (Some(rank), Some(size)) => Ok(Some((rank, size))),
            (None, None) => Ok(None),
            (Some(_), None) => missing(rank, size),
            (None, Some(_)) => missing(size, rank),
        }
    }

    fn secret(&self) -> Result<Option<JobSecret>, EnvironmentError> {
        let Some(text) = self.text("TIDEMILL_SECRET") else { return Ok(None) };
        JobSecret::from_hex(text).map(Some).ok_or_else(|| EnvironmentError::Malformed {
            name: "TIDEMILL_SECRET".into(),
            value: "(not shown)".into(),
            expected: "64 hexadecimal digits",
        })
    }

    /// What was given to meet by, for launchers that have nothing, or nothing better.
    fn given(&self) -> Result<Option<MeetingPoint>, EnvironmentError> {
        let (Some(root), Some(secret)) = (self.text("TIDEMILL_ROOT"), self.secret()?) else { return Ok(None) };
        Ok(Some(MeetingPoint::Given { root: root.into(), secret, listen_fd: None }))
    }
}

impl LaunchContext {
    /// What the environment of this process says.
    ///
    /// # Errors
    /// [`EnvironmentError`], which names the variable and the remedy.
    pub fn from_process() -> Result<LaunchContext, EnvironmentError> {
        // Other variables may be any bytes; ours are text.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        LaunchContext::from_environment(&std::env::vars_os().filter_map(text).collect())
    }

    /// What `variables` say. A pure function.
    ///
    /// # Errors
    /// [`EnvironmentError`], which names the variable and the remedy.
    ///
    /// # Examples
    /// ```
    /// use tidemill_net::environment::{LaunchContext, Launcher, MeetingPoint};
    /// let variables = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")];
    /// let variables = variables.into_iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    /// let launch = LaunchContext::from_environment(&variables).unwrap();
    /// assert_eq!((launch.launcher, launch.rank.0, launch.size), (Launcher::OpenMpi, 1, 4));
    /// assert_eq!(launch.meeting, MeetingPoint::SameHost { witness: None });
    /// ```
    pub fn from_environment(variables: &Variables) -> Result<LaunchContext, EnvironmentError> {
        let env = VariableReader(variables);
        let mut found = None;
        for launcher in [tidemill, open_mpi, hydra, slurm, torch] {
            if found.is_none() {
                found = launcher(&env)?;
            }
        }
        let found = found.map_or_else(|| alone(&env), Ok)?;
        let LauncherVariables { launcher, rank, size, local_rank, local_size, job, meeting } = found;
        if rank >= size {
            return Err(EnvironmentError::RankOutOfRange { launcher, rank, size });
        }
        let meeting = match (size, env.text("TIDEMILL_BOOTSTRAP")) {
            (1, _) => MeetingPoint::Alone,
            (_, None) => meeting,
            (_, Some("same-host")) => MeetingPoint::SameHost { witness: pmi_fd(&env)? },
            (_, Some("pmix")) => MeetingPoint::Pmix,
            (_, Some("pmi")) => MeetingPoint::Pmi1 {
                fd: pmi_fd(&env)?.ok_or_else(|| EnvironmentError::Missing {
                    present: "TIDEMILL_BOOTSTRAP".into(),
                    missing: "PMI_FD".into(),
                    remedy: "this launcher offers no PMI; unset TIDEMILL_BOOTSTRAP".into(),
                })?,
            },
            (_, Some(value)) => {
                let expected = "same-host, pmix or pmi";
                return Err(EnvironmentError::Malformed {
                    name: "TIDEMILL_BOOTSTRAP".into(),
                    value: value.into(),
                    expected,
                });
            }
        };
        Ok(LaunchContext {
            launcher,
            rank: Rank(rank),
            size,
            local_rank,
            local_size,
            job,
            meeting,
            join_timeout: env.seconds("TIDEMILL_JOIN_TIMEOUT", JOIN_TIMEOUT)?,
            failure_timeout: env.seconds("TIDEMILL_FAILURE_TIMEOUT", FAILURE_TIMEOUT)?,
            location: location(&env, launcher)?,
            granted: match launcher {
                Launcher::Slurm => env.number("SLURM_CPUS_PER_TASK")?.filter(|&cpus| cpus > 0),
                _ => None,
            },
        })
    }
}

fn location(env: &VariableReader<'_>, launcher: Launcher) -> Result<Option<String>, EnvironmentError> {
    let path = |parts: &[&str]| {
        let is_name = |part: &&str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
        parts.iter().all(is_name).then(|| parts.join("/"))
    };
    if let Some(value) = env.text("TIDEMILL_LOCATION") {
        let expected = "a path of names from the outside in, such as zone-a/rack-3/host-7";
        let malformed =
            || EnvironmentError::Malformed { name: "TIDEMILL_LOCATION".into(), value: value.into(), expected };
        let parts: Vec<&str> = value.strip_prefix('/').unwrap_or(value).split('/').collect();
        return path(&parts).map(Some).ok_or_else(malformed);
    }
    // mpiexec hands the variables of its own host to the workers of all.
    let is_this_host = !matches!(launcher, Launcher::OpenMpi | Launcher::Hydra);
    let Some(address) = env.text("SLURM_TOPOLOGY_ADDR").filter(|_| is_this_host) else { return Ok(None) };
    // `spine.rack3.node7` for `switch.switch.node`: the last, a host's name, may have dots of its own, and a level
    // without a switch is an empty part.
    let pattern = env.text("SLURM_TOPOLOGY_ADDR_PATTERN");
    let count = pattern.map_or(usize::MAX, |pattern| pattern.split('.').count());
    let parts: Vec<&str> = address.splitn(count, '.').filter(|part| !part.is_empty()).collect();
    Ok(path(&parts).filter(|path| !path.is_empty()))
}

struct LauncherVariables {
    launcher: Launcher,
    rank: u32,
    size: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
    job: String,
    meeting: MeetingPoint,
}

fn tidemill(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let remedy = "start the program with `tidemill run -n N`, or set both";
    let Some((rank, size)) = env.pair("TIDEMILL_RANK", "TIDEMILL_SIZE", remedy)? else { return Ok(None) };
    let listen_fd = if rank == 0 { env.parse("TIDEMILL_LISTEN_FD", "a file descriptor")? } else { None };
    let meeting = match env.given()? {
        _ if size == 1 => MeetingPoint::Alone,
        Some(MeetingPoint::Given { root, secret, .. }) => MeetingPoint::Given { root, secret, listen_fd },
        _ => {
            let name = if env.has("TIDEMILL_ROOT") { "TIDEMILL_SECRET" } else { "TIDEMILL_ROOT" };
            return Err(EnvironmentError::Missing {
                present: "TIDEMILL_RANK".into(),
                missing: name.into(),
                remedy: "start the program with `tidemill run -n N`, or give every worker rank 0's host:port in \
                         TIDEMILL_ROOT and 64 random hexadecimal digits (`openssl rand -hex 32`) in TIDEMILL_SECRET"
                    .into(),
            });
        }
    };
    Ok(Some(LauncherVariables {
        launcher: Launcher::Tidemill,
        rank,
        size,
        local_rank: env.number("TIDEMILL_LOCAL_RANK")?,
        local_size: env.number("TIDEMILL_LOCAL_SIZE")?,
        job: env.text("TIDEMILL_JOB").unwrap_or("tidemill").into(),
        meeting,
    }))
}

fn open_mpi(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let remedy = "start the program with `mpirun -n N`";
    let Some((rank, size)) = env.pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", remedy)? else { return Ok(None) };
    let tasks = env.number("SLURM_STEP_NUM_TASKS")?.unwrap_or(1);
    if size == 1 && tasks > 1 && env.has("SLURM_PROCID") {
        return Err(EnvironmentError::ManyJobsOfOne {
            evidence: format!("srun started {tasks} tasks, and each started an mpirun of one worker"),
            remedy: "Use one launcher: `srun python app.py`, or mpirun without srun".into(),
        });
    }
    let local_size = env.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let meeting = match env.given()? {
        Some(given) => given,
        None if local_size == Some(size) => MeetingPoint::SameHost { witness: None },
        None => MeetingPoint::Pmix,
    };
    let space = env.text("PMIX_NAMESPACE").or_else(|| env.text("OMPI_MCA_ess_base_jobid"));
    Ok(Some(LauncherVariables {
        launcher: Launcher::OpenMpi,
        rank,
        size,
        local_rank: env.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size,
        // Job numbers of two mpirun of one user on one host differ; the server's address makes sure.
        job: format!("ompi {} {}", space.unwrap_or("-"), env.text("PMIX_SERVER_URI2").unwrap_or("-")),
        meeting,
    }))
}

fn pmi_fd(env: &VariableReader<'_>) -> Result<Option<RawFd>, EnvironmentError> {
    env.parse("PMI_FD", "a file descriptor")
}

fn hydra(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    // srun with PMI-2 sets these as well; hydra that was started by srun says more of its own.
    let by_hydra = env.has("HYDI_CONTROL_FD") || env.has("MPI_LOCALNRANKS");
    if env.has("SLURM_STEP_ID") && env.has("SLURM_PROCID") && !by_hydra {
        return Ok(None);
    }
    let remedy = "start the program with `mpiexec -n N`";
    let Some((rank, size)) = env.pair("PMI_RANK", "PMI_SIZE", remedy)? else { return Ok(None) };
    let local_size = env.number("MPI_LOCALNRANKS")?;
    let fd = pmi_fd(env)?;
    let meeting = match (env.given()?, fd) {
        (Some(given), _) => given,
        (None, Some(fd)) if local_size == Some(size) => MeetingPoint::SameHost { witness: Some(fd) },
        (None, Some(fd)) => MeetingPoint::Pmi1 { fd },
        (None, None) if size == 1 => MeetingPoint::Alone,
        (None, None) => {
            return Err(EnvironmentError::NoMeeting {
                reason: "PMI_RANK is set but PMI_FD is not".into(),
                remedy: give_root_and_secret(),
            });
        }
    };
    Ok(Some(LauncherVariables {
        launcher: Launcher::Hydra,
        rank,
        size,
        local_rank: env.number("MPI_LOCALRANKID")?,
        local_size,
        // Nothing in hydra's environment names the job; the witness, or the names that PMI gives, tell jobs apart.
        job: "hydra".into(),
        meeting,
    }))
}

fn give_root_and_secret() -> String {
    "give every worker rank 0's host:port in TIDEMILL_ROOT and 64 random hexadecimal digits (`openssl rand -hex 32`) in \
     TIDEMILL_SECRET"
        .into()
}

fn slurm(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let tasks = match env.number("SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => Some(tasks),
        None => env.number("SLURM_NTASKS")?,
    };
    let Some(size) = tasks else { return Ok(None) };
    let rank = env.number("SLURM_PROCID")?;
    let (Some(rank), Some(step)) = (rank, env.text("SLURM_STEP_ID").or_else(|| env.text("SLURM_STEPID"))) else {
        // In a batch script or an allocation's shell, not started by srun. Another launcher may have been.
        if size > 1 && !(env.has("RANK") && env.has("WORLD_SIZE")) {
            return Err(EnvironmentError::ManyJobsOfOne {
                evidence: format!("Slurm has {size} tasks for this job"),
                remedy: "Start the program with `srun python app.py`, or on one host with `tidemill run -n N app.py`"
                    .into(),
            });
        }
        return Ok(None);
    };
    // torchrun under srun: one srun task per host, several workers in each.
    if env.has("TORCHELASTIC_RUN_ID") {
        return Ok(None);
    }
    let nodes = match env.number("SLURM_STEP_NUM_NODES")? {
        Some(nodes) => Some(nodes),
        None => env.number("SLURM_NNODES")?,
    };
    let meeting = match env.given()? {
        Some(given) => given,
        None if size == 1 => MeetingPoint::Alone,
        None if nodes == Some(1) => MeetingPoint::SameHost { witness: None },
        None if env.has("PMIX_NAMESPACE") => MeetingPoint::Pmix,
        None => match (pmi_fd(env)?, master(env)?) {
            (Some(fd), _) => MeetingPoint::Pmi1 { fd },
            (None, Some(root)) => MeetingPoint::Unprotected { root },
            (None, None) => {
                return Err(EnvironmentError::NoMeeting {
                    reason: "srun offers neither PMIx nor PMI".into(),
                    remedy: format!("use `srun --mpi=pmix` or `srun --mpi=pmi2`, or {}", give_root_and_secret()),
                });
            }
        },
    };
    let job = env.text("SLURM_JOB_ID").or_else(|| env.text("SLURM_JOBID")).unwrap_or("-");
    Ok(Some(LauncherVariables {
        launcher: Launcher::Slurm,
        rank,
        size,
        local_rank: env.number("SLURM_LOCALID")?,
        local_size: if nodes == Some(1) { Some(size) } else { tasks_here(env)? },
        job: format!("slurm {job}.{step}"),
        meeting,
    }))
}

/// How many tasks of the step are on this host: `SLURM_STEP_TASKS_PER_NODE` is a list such as `2(x3),1`, for three
/// hosts with two tasks each and one with one.
fn tasks_here(env: &VariableReader<'_>) -> Result<Option<u32>, EnvironmentError> {
    let (Some(list), Some(node)) = (env.text("SLURM_STEP_TASKS_PER_NODE"), env.number("SLURM_NODEID")?) else {
        return Ok(None);
    };
    let run = |part: &str| {
        let (tasks, hosts) = part.split_once("(x").unwrap_or((part, "1)"));
        Some((tasks.parse::<u32>().ok()?, hosts.strip_suffix(')')?.parse::<u32>().ok()?))
    };
    let mut first = 0u64;
    for part in list.split(',') {
        let Some((tasks, hosts)) = run(part) else { return Ok(None) };
        first += u64::from(hosts);
        if u64::from(node) < first {
            return Ok(Some(tasks));
        }
    }
    Ok(None)
}

/// `MASTER_ADDR:MASTER_PORT`. Behind torchrun's own store, which listens on that very port, the next one is ours.
fn master(env: &VariableReader<'_>) -> Result<Option<String>, EnvironmentError> {
    let Some(host) = env.text("MASTER_ADDR") else { return Ok(None) };
    let Some(port) = env.parse::<u16>("MASTER_PORT", "a port number")? else { return Ok(None) };
    let taken = env.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = if taken { port.checked_add(1).unwrap_or(port - 1) } else { port };
    Ok(Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
}

fn torch(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let (rank, size) = match (env.number("RANK"), env.number("WORLD_SIZE")) {
        (Ok(Some(rank)), Ok(Some(size))) => (rank, size),
        // RANK alone is a common word; WORLD_SIZE is not.
        (_, Ok(Some(size))) if size > 1 => {
            return Err(EnvironmentError::ManyJobsOfOne {
                evidence: format!("WORLD_SIZE={size} is set without RANK"),
                remedy: "Start the program with a launcher that sets RANK too, such as torchrun".into(),
            });
        }
        (Err(error), Ok(Some(_))) | (Ok(Some(_)), Err(error)) => return Err(error),
        _ => return Ok(None),
    };
    let local_size = env.number("LOCAL_WORLD_SIZE")?;
    let host = env.text("MASTER_ADDR");
    let run = env.text("TORCHELASTIC_RUN_ID").unwrap_or("-");
    let restart = env.text("TORCHELASTIC_RESTART_COUNT").unwrap_or("0");
    let port = env.text("MASTER_PORT").unwrap_or("-");
    let here = local_size == Some(size) || host.is_some_and(|h| matches!(h, "localhost" | "127.0.0.1" | "::1"));
    let meeting = match (env.given()?, master(env)?, env.secret()?) {
        (Some(given), ..) => given,
        _ if size == 1 => MeetingPoint::Alone,
        // Who gives a secret may mean workers that a meeting point of this host does not reach, in a container say.
        (None, Some(root), Some(secret)) => MeetingPoint::Given { root, secret, listen_fd: None },
        _ if here => MeetingPoint::SameHost { witness: None },
        (None, Some(root), None) => MeetingPoint::Unprotected { root },
        (None, None, _) => {
            return Err(EnvironmentError::Missing {
                present: "WORLD_SIZE".into(),
                missing: if host.is_some() { "MASTER_PORT".into() } else { "MASTER_ADDR".into() },
                remedy: "set both to an address on which rank 0 can listen".into(),
            });
        }
    };
    Ok(Some(LauncherVariables {
        launcher: Launcher::Torch,
        rank,
        size,
        local_rank: env.number("LOCAL_RANK")?,
        local_size,
        job: format!("torch {run} {restart} {} {port}", host.unwrap_or("-")),
        meeting,
    }))
}

fn alone(env: &VariableReader<'_>) -> Result<LauncherVariables, EnvironmentError> {
    // A launcher that says where to meet meant more than one worker.
    if let Some(name) = ["TIDEMILL_ROOT", "TIDEMILL_LISTEN_FD"].into_iter().find(|name| env.has(name)) {
        return Err(EnvironmentError::Missing {
            present: name.into(),
            missing: "TIDEMILL_RANK and TIDEMILL_SIZE".into(),
            remedy: "set both, or start the program with a launcher that sets a rank and a size".into(),
        });
    }
    let (launcher, meeting, job) = (Launcher::None, MeetingPoint::Alone, "alone".into());
    Ok(LauncherVariables { launcher, rank: 0, size: 1, local_rank: Some(0), local_size: Some(1), job, meeting })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LaunchContext, EnvironmentError> {
        let variables = text.split_whitespace().map(|pair| {
            let (name, value) = pair.split_once('=').expect("NAME=value");
            (name.to_owned(), value.to_owned())
        });
        LaunchContext::from_environment(&variables.collect())
    }

    fn good(text: &str) -> LaunchContext {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn bad(text: &str) -> String {
        read(text).map(|launch| panic!("{text}: {launch:?}")).unwrap_err().to_string()
    }

    fn secret() -> String {
        format!("TIDEMILL_SECRET={}", "ab".repeat(32))
    }

    const SAME_HOST: MeetingPoint = MeetingPoint::SameHost { witness: None };
    const SRUN: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1";
    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=99";
    const HYDRA: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=9 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1";
    const TORCH: &str = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500";

    #[test]
    fn a_bare_environment_is_a_job_of_one() {
        for text in ["", "RANK=3", "HOME=/ SLURM_NTASKS=1 SLURM_JOB_ID=3", "WORLD_SIZE=1"] {
            let launch = good(text);
            assert_eq!((launch.launcher, launch.rank.0, launch.size), (Launcher::None, 0, 1), "{text}");
            assert_eq!(launch.meeting, MeetingPoint::Alone);
        }
    }

    #[test]
    fn the_contract_of_tidemill_run() {
        let common = format!("TIDEMILL_SIZE=4 TIDEMILL_JOB=j TIDEMILL_ROOT=10.0.0.1:99 {}", secret());
        let launch =
            good(&format!("{common} TIDEMILL_RANK=0 TIDEMILL_LISTEN_FD=5 TIDEMILL_LOCAL_RANK=0 TIDEMILL_LOCAL_SIZE=2"));
        assert_eq!((launch.launcher, launch.job.as_str(), launch.local_size), (Launcher::Tidemill, "j", Some(2)));
        let MeetingPoint::Given { root, listen_fd, .. } = launch.meeting else { panic!() };
        assert_eq!((root.as_str(), listen_fd), ("10.0.0.1:99", Some(5)));
        // The others may inherit the variable; the descriptor is rank 0's.
        let launch = good(&format!("{common} TIDEMILL_RANK=3 TIDEMILL_LISTEN_FD=5"));
        assert!(matches!(launch.meeting, MeetingPoint::Given { listen_fd: None, .. }));
        assert_eq!(good("TIDEMILL_RANK=0 TIDEMILL_SIZE=1").meeting, MeetingPoint::Alone);
        // It stands above what a batch system left behind.
        let launch = good(&format!("{common} TIDEMILL_RANK=3 {SRUN} {OPEN_MPI} {TORCH}"));
        assert_eq!((launch.launcher, launch.rank.0), (Launcher::Tidemill, 3));
    }

    #[test]
    fn half_a_contract_names_the_other_half_and_never_the_secret() {
        assert!(bad("TIDEMILL_RANK=1").contains("TIDEMILL_SIZE is not"));
        assert!(bad("TIDEMILL_SIZE=2").contains("TIDEMILL_RANK is not"));
        assert!(bad("TIDEMILL_RANK=1 TIDEMILL_SIZE=2").contains("TIDEMILL_ROOT is not"));
        assert!(bad("TIDEMILL_RANK=1 TIDEMILL_SIZE=2 TIDEMILL_ROOT=a:1").contains("TIDEMILL_SECRET is not"));
        assert!(bad("TIDEMILL_ROOT=a:1").contains("TIDEMILL_RANK and TIDEMILL_SIZE"));
        let text = bad("TIDEMILL_RANK=1 TIDEMILL_SIZE=2 TIDEMILL_ROOT=a:1 TIDEMILL_SECRET=hush");
        assert!(text.contains("64 hexadecimal digits") && !text.contains("hush"), "{text}");
        assert!(bad("TIDEMILL_RANK=-1 TIDEMILL_SIZE=2").contains("TIDEMILL_RANK=-1"));
        assert!(bad("TIDEMILL_RANK=1 TIDEMILL_SIZE=1").contains("rank 1 for 1"));
        assert!(bad("OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4").contains("rank 4 for 4"));
    }

    #[test]
    fn mpirun_and_mpiexec_on_one_host_and_on_several() {
        let launch = good(&format!("{OPEN_MPI} OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2"));
        assert_eq!(
            (launch.launcher, launch.rank.0, launch.size, launch.local_rank),
            (Launcher::OpenMpi, 2, 4, Some(2))
        );
        assert_eq!(launch.meeting, SAME_HOST);
        assert_eq!(good(&format!("{OPEN_MPI} OMPI_COMM_WORLD_LOCAL_SIZE=2")).meeting, MeetingPoint::Pmix);
        assert_eq!(good(HYDRA).meeting, MeetingPoint::Pmi1 { fd: 9 });
        let one_host = HYDRA.replace("NRANKS=2", "NRANKS=4");
        assert_eq!(good(&one_host).meeting, MeetingPoint::SameHost { witness: Some(9) });
        assert!(bad("PMI_RANK=1 PMI_SIZE=2").contains("TIDEMILL_ROOT"));
        // What a user gave beats what the launcher offers.
        let given = format!("TIDEMILL_ROOT=a:1 {}", secret());
        for launcher in [OPEN_MPI, HYDRA, SRUN, TORCH] {
            assert!(matches!(good(&format!("{launcher} {given}")).meeting, MeetingPoint::Given { .. }), "{launcher}");
        }
        // mpirun inside of a batch job or started by srun's environment.
        assert_eq!(good(&format!("{OPEN_MPI} SLURM_NTASKS=8 SLURM_JOB_ID=1")).launcher, Launcher::OpenMpi);
        assert_eq!(good(&format!("{HYDRA} {SRUN}")).launcher, Launcher::Hydra);
    }

    #[test]
    fn srun_with_whatever_it_offers() {
        let one = good(&format!("{SRUN} SLURM_STEP_NUM_NODES=1"));
        assert_eq!((one.launcher, one.rank.0, one.size, one.job.as_str()), (Launcher::Slurm, 1, 4, "slurm 7.2"));
        assert_eq!(one.meeting, SAME_HOST);
        let many = format!("{SRUN} SLURM_STEP_NUM_NODES=2");
        assert_eq!(good(&format!("{many} PMIX_NAMESPACE=s")).meeting, MeetingPoint::Pmix);
        assert_eq!(good(&format!("{many} PMI_FD=8 PMI_RANK=1 PMI_SIZE=4")).meeting, MeetingPoint::Pmi1 { fd: 8 });
        let master = good(&format!("{many} MASTER_ADDR=n1 MASTER_PORT=5"));
        assert_eq!(master.meeting, MeetingPoint::Unprotected { root: "n1:5".into() });
        assert!(bad(&many).contains("--mpi=pmix"));
        // How many workers this host has decides how many threads each of them starts.
        for (node, tasks) in [("0", Some(2)), ("2", Some(2)), ("3", Some(1)), ("4", None)] {
            let text = format!("{many} PMIX_NAMESPACE=s SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID={node}");
            assert_eq!(good(&text).local_size, tasks, "node {node}");
        }
        let odd = good(&format!("{many} PMIX_NAMESPACE=s SLURM_STEP_TASKS_PER_NODE=2(x SLURM_NODEID=0"));
        assert_eq!((odd.local_size, odd.granted), (None, None));
        assert_eq!(good(&format!("{SRUN} SLURM_STEP_NUM_NODES=1 SLURM_CPUS_PER_TASK=6")).granted, Some(6));
        // That of an allocation is not for the workers of another launcher.
        assert_eq!(good(&format!("{OPEN_MPI} SLURM_CPUS_PER_TASK=6")).granted, None);
        // A step of one task within a larger job is what it looks like.
        let single = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4";
        assert_eq!(good(single).meeting, MeetingPoint::Alone);
    }

    /// A wrong place would draw copies to the far end of the network.
    #[test]
    fn where_the_host_is() {
        let location = |text: &str| good(text).location;
        assert_eq!(location("HOME=/"), None);
        assert_eq!(location("TIDEMILL_LOCATION=zone-a/rack-3/host-7").as_deref(), Some("zone-a/rack-3/host-7"));
        assert_eq!(
            location("TIDEMILL_LOCATION=/rack-3/host-7").as_deref(),
            Some("rack-3/host-7"),
            "as Hadoop writes it"
        );
        for value in ["a//b", "/", "a/", "//a"] {
            assert!(bad(&format!("TIDEMILL_LOCATION={value}")).contains("zone-a/rack-3/host-7"), "{value}");
        }
        let topology = "SLURM_TOPOLOGY_ADDR=s[0-1].s4.n7 SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node";
        let step = format!("{SRUN} SLURM_STEP_NUM_NODES=1 {topology}");
        assert_eq!(location(&step).as_deref(), Some("s[0-1]/s4/n7"));
        assert_eq!(location(&step.replace(".n7", ".n7.example.org")).as_deref(), Some("s[0-1]/s4/n7.example.org"));
        assert_eq!(location(&step.replace("SLURM_TOPOLOGY_ADDR_PATTERN", "X")).as_deref(), Some("s[0-1]/s4/n7"));
        let two = step.replace("s[0-1]", "");
        assert_eq!(location(&two).as_deref(), Some("s4/n7"));
        let flat = step.replace("s[0-1].s4.n7", "n7.example.org").replace("switch.switch.", "");
        assert_eq!(location(&flat).as_deref(), Some("n7.example.org"));
        assert_eq!(location(&step.replace("s[0-1].s4.n7", "..")), None, "no reason to refuse the job");
        assert_eq!(location(&format!("{step} TIDEMILL_LOCATION=here")).as_deref(), Some("here"));
        for launcher in [HYDRA, OPEN_MPI] {
            assert_eq!(location(&format!("{launcher} {topology}")), None, "it may be another host's");
        }
    }

    /// The mistake every user makes once, in its usual forms.
    #[test]
    fn many_jobs_of_one_are_refused_with_the_remedy() {
        for (text, remedy) in [
            ("SLURM_NTASKS=4 SLURM_JOB_ID=7", "srun"),
            ("SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_PROCID=0", "srun"),
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2", "one launcher"),
            ("WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "RANK"),
        ] {
            let error = bad(text);
            assert!(error.contains("job of one worker") && error.contains(remedy), "{text}: {error}");
            assert!(error.contains("TIDEMILL_SIZE=1"), "the way out is named: {error}");
            assert_eq!(good(&format!("{text} TIDEMILL_RANK=0 TIDEMILL_SIZE=1")).meeting, MeetingPoint::Alone);
        }
    }

    #[test]
    fn torchrun_and_kubernetes() {
        let launch = good(TORCH);
        assert_eq!((launch.launcher, launch.rank.0, launch.size), (Launcher::Torch, 1, 4));
        assert_eq!(launch.meeting, MeetingPoint::Unprotected { root: "node7:29500".into() });
        assert!(
            matches!(good(&format!("{TORCH} {}", secret())).meeting, MeetingPoint::Given { root, .. } if root == "node7:29500")
        );
        // torchrun's own store listens on the port it announces.
        let store = good(&format!("{TORCH} TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=r"));
        assert_eq!(store.meeting, MeetingPoint::Unprotected { root: "node7:29501".into() });
        assert_eq!(good(&format!("{TORCH} LOCAL_WORLD_SIZE=4")).meeting, SAME_HOST);
        assert_eq!(good(&TORCH.replace("node7", "localhost")).meeting, SAME_HOST);
        assert!(
            matches!(good(&TORCH.replace("node7", "fd00::7")).meeting, MeetingPoint::Unprotected { root } if root == "[fd00::7]:29500")
        );
        assert!(bad("RANK=0 WORLD_SIZE=2").contains("MASTER_ADDR"));
        assert!(bad("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a").contains("MASTER_PORT"));
        assert!(bad(&TORCH.replace("29500", "929500")).contains("port number"));
        assert_eq!(good(&format!("{TORCH} {SRUN} TORCHELASTIC_RUN_ID=r")).launcher, Launcher::Torch);
    }

    #[test]
    fn timeouts_and_overrides() {
        let launch = good("TIDEMILL_FAILURE_TIMEOUT=2.5 TIDEMILL_JOIN_TIMEOUT=7");
        assert_eq!((launch.failure_timeout.as_millis(), launch.join_timeout.as_secs()), (2500, 7));
        for value in ["0", "-1", "soon", "NaN", "1e300"] {
            assert!(bad(&format!("TIDEMILL_FAILURE_TIMEOUT={value}")).contains("seconds"), "{value}");
        }
        assert_eq!(good(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=same-host")).meeting, SAME_HOST);
        assert_eq!(good(&format!("{HYDRA} TIDEMILL_BOOTSTRAP=pmi")).meeting, MeetingPoint::Pmi1 { fd: 9 });
        assert!(bad(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=pmi")).contains("PMI_FD"));
        assert!(bad(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=smoke")).contains("same-host, pmix or pmi"));
        // Empty means unset, as launchers and shells like to do it.
        assert_eq!(good("TIDEMILL_RANK= TIDEMILL_SIZE= RANK= WORLD_SIZE=").meeting, MeetingPoint::Alone);
    }
}
