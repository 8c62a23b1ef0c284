//! What the launcher tells this worker in environment variables. Reading them has no side effects.
//!
//! Each launcher has a module. The first one whose variables are set wins:
//!
//! | module     | launcher                              | variables                                                 |
//! |------------|---------------------------------------|-----------------------------------------------------------|
//! | `tidemill` | `tidemill run`, or by hand            | `TIDEMILL_RANK`, `TIDEMILL_SIZE`, `TIDEMILL_ROOT`, `TIDEMILL_SECRET`, `TIDEMILL_JOB` |
//! | `open_mpi` | Open MPI's `mpirun`                   | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`            |
//! | `hydra`    | MPICH's and Intel's `mpiexec` (hydra) | `PMI_RANK`, `PMI_SIZE`, `PMI_FD`                          |
//! | `slurm`    | Slurm's `srun`                        | `SLURM_PROCID`, `SLURM_STEP_ID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` |
//! | `torch`    | torchrun, Kubernetes                  | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`        |
//! |            | none                                  | a job of one worker                                       |
//!
//! The host's location in the network is `TIDEMILL_LOCATION`, or else Slurm's `SLURM_TOPOLOGY_ADDR`.
//!
//! With any launcher that sets a rank and a size, `TIDEMILL_ROOT` and `TIDEMILL_SECRET` can give the meeting point.
//! Starting N jobs of one worker instead of one job of N workers, a common mistake with MPI, is an error here.

mod error;
mod hydra;
mod open_mpi;
mod reader;
mod slurm;
mod tidemill;
mod torch;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

pub use error::EnvironmentError;
use reader::VariableReader;

use crate::secret::JobSecret;
use crate::{FAILURE_TIMEOUT, Rank};

/// The variables of a process.
pub type Variables = BTreeMap<String, String>;

/// How long workers wait for each other by default (`TIDEMILL_JOIN_TIMEOUT`, in seconds).
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What started this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: the program was started by hand.
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
        /// `host:port`; several, separated by commas, are tried in order.
        root: String,
        /// The job's secret.
        secret: JobSecret,
        /// On rank 0: a listening socket inherited from the launcher.
        listen_fd: Option<RawFd>,
    },
    /// Rank 0's address was given without a secret: anybody who can connect and knows the job's public parameters can
    /// join.
    Unprotected {
        /// `host:port`.
        root: String,
    },
    /// All workers are on this host: they meet at a socket that only processes of this user may use.
    SameHost {
        /// A descriptor from the launcher whose other end is one process for all workers of the job. It tells two
        /// jobs apart where the environment does not.
        witness: Option<RawFd>,
    },
    /// Through the launcher's PMIx server.
    Pmix,
    /// Through the launcher's PMI-1 server, over a descriptor of this process.
    Pmi1 {
        /// The descriptor.
        fd: RawFd,
    },
}

/// What the launcher set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchContext {
    /// The launcher of this worker.
    pub launcher: Launcher,
    /// This worker's number.
    pub rank: Rank,
    /// How many workers the job has.
    pub size: u32,
    /// This worker's number on its host, if the launcher set it.
    pub local_rank: Option<u32>,
    /// How many workers the host has, if the launcher set it.
    pub local_size: Option<u32>,
    /// The job's name.
    pub job: String,
    /// How the workers meet.
    pub meeting: MeetingPoint,
    /// How long workers wait for each other at the start.
    pub join_timeout: Duration,
    /// Silence after which a worker counts as lost.
    pub failure_timeout: Duration,
    /// The location of this host in the network: a path from the outside in, such as `zone-a/rack-3/host-7`, if one
    /// is given.
    pub location: Option<String>,
    /// How many processors this worker is meant to use (`srun --cpus-per-task`). Its affinity may allow more.
    pub granted: Option<u32>,
    /// The largest number of workers connected to one worker in the tree of the control plane, if given. Rank 0's
    /// value counts.
    pub control_fanout: Option<u32>,
}

impl LaunchContext {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// [`EnvironmentError`], which names the variable and the remedy.
    pub fn from_process() -> Result<LaunchContext, EnvironmentError> {
        // Other variables may hold any bytes; ours are text.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        LaunchContext::from_environment(&std::env::vars_os().filter_map(text).collect())
    }

    /// Interprets `variables`. A pure function.
    ///
    /// # Errors
    /// [`EnvironmentError`], which names the variable and the remedy.
    ///
    /// # Examples
    /// ```
    /// use tidemill_net::environment::{LaunchContext, Launcher, MeetingPoint};
    /// let variables = [("RANK", "1"), ("SIZE", "4"), ("LOCAL_SIZE", "4")];
    /// let variables = variables.into_iter().map(|(k, v)| (format!("OMPI_COMM_WORLD_{k}"), v.to_string())).collect();
    /// let launch = LaunchContext::from_environment(&variables).unwrap();
    /// assert_eq!((launch.launcher, launch.rank.0, launch.size), (Launcher::OpenMpi, 1, 4));
    /// assert_eq!(launch.meeting, MeetingPoint::SameHost { witness: None });
    /// ```
    pub fn from_environment(variables: &Variables) -> Result<LaunchContext, EnvironmentError> {
        let env = VariableReader(variables);
        let mut found = None;
        for read in [tidemill::read, open_mpi::read, hydra::read, slurm::read, torch::read] {
            if found.is_none() {
                found = read(&env)?;
            }
        }
        let found = found.map_or_else(|| alone(&env), Ok)?;
        let LauncherVariables { launcher, rank, size, local_rank, local_size, job, meeting } = found;
        if rank >= size {
            return Err(EnvironmentError::RankOutOfRange { launcher, rank, size });
        }
        let meeting = if size == 1 { MeetingPoint::Alone } else { chosen_meeting(&env)?.unwrap_or(meeting) };
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
            granted: if launcher == Launcher::Slurm { slurm::granted(&env)? } else { None },
            control_fanout: control_fanout(&env)?,
        })
    }
}

/// Returns the meeting point that `TIDEMILL_BOOTSTRAP` selects instead of the launcher's.
fn chosen_meeting(env: &VariableReader<'_>) -> Result<Option<MeetingPoint>, EnvironmentError> {
    let name = "TIDEMILL_BOOTSTRAP";
    let Some(value) = env.text(name) else { return Ok(None) };
    match value {
        "same-host" => Ok(Some(MeetingPoint::SameHost { witness: env.pmi_fd()? })),
        "pmix" => Ok(Some(MeetingPoint::Pmix)),
        "pmi" => match env.pmi_fd()? {
            Some(fd) => Ok(Some(MeetingPoint::Pmi1 { fd })),
            None => Err(EnvironmentError::Missing {
                present: name.into(),
                missing: "PMI_FD".into(),
                remedy: "this launcher offers no PMI; unset TIDEMILL_BOOTSTRAP".into(),
            }),
        },
        _ => Err(EnvironmentError::Malformed {
            name: name.into(),
            value: value.into(),
            expected: "same-host, pmix or pmi",
        }),
    }
}

/// Returns the fan-out that `TIDEMILL_CONTROL_FANOUT` sets.
fn control_fanout(env: &VariableReader<'_>) -> Result<Option<u32>, EnvironmentError> {
    let (name, expected) = ("TIDEMILL_CONTROL_FANOUT", "a number of workers, at least 2");
    match env.parse(name, expected)? {
        Some(0 | 1) => Err(EnvironmentError::Malformed {
            name: name.into(),
            value: env.text(name).unwrap_or_default().into(),
            expected,
        }),
        fanout => Ok(fanout),
    }
}

/// Returns the location of this host in the network, if it is set.
fn location(env: &VariableReader<'_>, launcher: Launcher) -> Result<Option<String>, EnvironmentError> {
    let Some(value) = env.text("TIDEMILL_LOCATION") else {
        // mpiexec passes the variables of its own host to the workers of all hosts.
        let is_this_host = !matches!(launcher, Launcher::OpenMpi | Launcher::Hydra);
        return Ok(if is_this_host { slurm::location(env) } else { None });
    };
    let parts: Vec<&str> = value.strip_prefix('/').unwrap_or(value).split('/').collect();
    location_path(&parts).map(Some).ok_or_else(|| EnvironmentError::Malformed {
        name: "TIDEMILL_LOCATION".into(),
        value: value.into(),
        expected: "a path of names from the outside in, such as zone-a/rack-3/host-7",
    })
}

/// Joins the parts of a location, if all of them are names.
fn location_path(parts: &[&str]) -> Option<String> {
    let is_name = |part: &&str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
    parts.iter().all(is_name).then(|| parts.join("/"))
}

/// What the variables of one launcher say.
struct LauncherVariables {
    launcher: Launcher,
    rank: u32,
    size: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
    job: String,
    meeting: MeetingPoint,
}

/// The remedy where a launcher offers no way for workers to meet.
const GIVE_ROOT_AND_SECRET: &str = "give every worker rank 0's host:port in TIDEMILL_ROOT and 64 random hexadecimal digits \
                                    (`openssl rand -hex 32`) in TIDEMILL_SECRET";

/// A job of one worker that no launcher started.
fn alone(env: &VariableReader<'_>) -> Result<LauncherVariables, EnvironmentError> {
    // A launcher that says where to meet means more than one worker.
    if let Some(name) = ["TIDEMILL_ROOT", "TIDEMILL_LISTEN_FD"].into_iter().find(|name| env.has(name)) {
        return Err(EnvironmentError::Missing {
            present: name.into(),
            missing: "TIDEMILL_RANK and TIDEMILL_SIZE".into(),
            remedy: "set both, or start the program with a launcher that sets a rank and a size".into(),
        });
    }
    Ok(LauncherVariables {
        launcher: Launcher::None,
        rank: 0,
        size: 1,
        local_rank: Some(0),
        local_size: Some(1),
        job: "alone".into(),
        meeting: MeetingPoint::Alone,
    })
}

/// Environments for tests, written as `NAME=value NAME=value`.
#[cfg(test)]
mod examples {
    use super::{EnvironmentError, LaunchContext, MeetingPoint};

    fn read(text: &str) -> Result<LaunchContext, EnvironmentError> {
        let variables = text.split_whitespace().map(|pair| {
            let (name, value) = pair.split_once('=').expect("NAME=value");
            (name.to_owned(), value.to_owned())
        });
        LaunchContext::from_environment(&variables.collect())
    }

    pub(super) fn good(text: &str) -> LaunchContext {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub(super) fn bad(text: &str) -> String {
        read(text).map(|launch| panic!("{text}: {launch:?}")).unwrap_err().to_string()
    }

    pub(super) fn secret() -> String {
        format!("TIDEMILL_SECRET={}", "ab".repeat(32))
    }

    pub(super) const SAME_HOST: MeetingPoint = MeetingPoint::SameHost { witness: None };
    pub(super) const SRUN: &str =
        "SLURM_JOB_ID=7 SLURM_STEP_ID=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1";
    pub(super) const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=99";
    pub(super) const HYDRA: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=9 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1";
    pub(super) const TORCH: &str = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500";
}

#[cfg(test)]
mod tests {
    use super::examples::{HYDRA, OPEN_MPI, SAME_HOST, SRUN, TORCH, bad, good, secret};
    use super::{Launcher, MeetingPoint};

    #[test]
    fn a_bare_environment_is_a_job_of_one() {
        for text in ["", "RANK=3", "HOME=/ SLURM_NTASKS=1 SLURM_JOB_ID=3", "WORLD_SIZE=1"] {
            let launch = good(text);
            assert_eq!((launch.launcher, launch.rank.0, launch.size), (Launcher::None, 0, 1), "{text}");
            assert_eq!(launch.meeting, MeetingPoint::Alone);
        }
    }

    /// A user may know better than the launcher how workers can meet.
    #[test]
    fn a_given_meeting_point_comes_before_the_launchers() {
        let given = format!("TIDEMILL_ROOT=a:1 {}", secret());
        for launcher in [OPEN_MPI, HYDRA, SRUN, TORCH] {
            assert!(matches!(good(&format!("{launcher} {given}")).meeting, MeetingPoint::Given { .. }), "{launcher}");
        }
    }

    #[test]
    fn location_of_the_host() {
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
    }

    /// A mistake every user makes once, in its usual forms.
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
    fn timeouts_and_overrides() {
        let launch = good("TIDEMILL_FAILURE_TIMEOUT=2.5 TIDEMILL_JOIN_TIMEOUT=7");
        assert_eq!((launch.failure_timeout.as_millis(), launch.join_timeout.as_secs()), (2500, 7));
        for value in ["0", "-1", "soon", "NaN", "1e300"] {
            assert!(bad(&format!("TIDEMILL_FAILURE_TIMEOUT={value}")).contains("seconds"), "{value}");
        }
        assert_eq!(good("HOME=/").control_fanout, None);
        assert_eq!(good("TIDEMILL_CONTROL_FANOUT=2").control_fanout, Some(2));
        for value in ["0", "1", "-2", "many"] {
            assert!(bad(&format!("TIDEMILL_CONTROL_FANOUT={value}")).contains("at least 2"), "{value}");
        }
        assert_eq!(good(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=same-host")).meeting, SAME_HOST);
        assert_eq!(good(&format!("{HYDRA} TIDEMILL_BOOTSTRAP=pmi")).meeting, MeetingPoint::Pmi1 { fd: 9 });
        assert!(bad(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=pmi")).contains("PMI_FD"));
        assert!(bad(&format!("{OPEN_MPI} TIDEMILL_BOOTSTRAP=smoke")).contains("same-host, pmix or pmi"));
        // Empty means unset: launchers and shells often clear variables this way.
        assert_eq!(good("TIDEMILL_RANK= TIDEMILL_SIZE= RANK= WORLD_SIZE=").meeting, MeetingPoint::Alone);
    }
}
