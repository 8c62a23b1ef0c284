//! Variables of `tidemill run`, which you can also set by hand.

use super::reader::VariableReader;
use super::{EnvironmentError, GIVE_ROOT_AND_SECRET, Launcher, LauncherVariables, MeetingPoint};

/// Returns what `TIDEMILL_RANK` and related variables say, if they are set.
pub(super) fn read(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
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
                remedy: format!("start the program with `tidemill run -n N`, or {GIVE_ROOT_AND_SECRET}"),
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

#[cfg(test)]
mod tests {
    use super::super::examples::{OPEN_MPI, SRUN, TORCH, bad, good, secret};
    use super::super::{Launcher, MeetingPoint};

    #[test]
    fn the_contract_of_tidemill_run() {
        let common = format!("TIDEMILL_SIZE=4 TIDEMILL_JOB=j TIDEMILL_ROOT=10.0.0.1:99 {}", secret());
        let launch =
            good(&format!("{common} TIDEMILL_RANK=0 TIDEMILL_LISTEN_FD=5 TIDEMILL_LOCAL_RANK=0 TIDEMILL_LOCAL_SIZE=2"));
        assert_eq!((launch.launcher, launch.job.as_str(), launch.local_size), (Launcher::Tidemill, "j", Some(2)));
        let MeetingPoint::Given { root, listen_fd, .. } = launch.meeting else { panic!() };
        assert_eq!((root.as_str(), listen_fd), ("10.0.0.1:99", Some(5)));
        // The others may inherit the variable, but only rank 0 has the descriptor.
        let launch = good(&format!("{common} TIDEMILL_RANK=3 TIDEMILL_LISTEN_FD=5"));
        assert!(matches!(launch.meeting, MeetingPoint::Given { listen_fd: None, .. }));
        assert_eq!(good("TIDEMILL_RANK=0 TIDEMILL_SIZE=1").meeting, MeetingPoint::Alone);
        // It takes precedence over what a batch system left in the environment.
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
}
