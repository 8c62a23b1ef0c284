//! Variables of hydra, the `mpiexec` of MPICH and Intel MPI.

use super::reader::VariableReader;
use super::{EnvironmentError, GIVE_ROOT_AND_SECRET, Launcher, LauncherVariables, MeetingPoint};

/// Returns what hydra set, if it started this worker.
pub(super) fn read(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    // srun with PMI-2 sets PMI_RANK and PMI_SIZE as well; hydra started by srun also sets its own variables.
    let by_hydra = env.has("HYDI_CONTROL_FD") || env.has("MPI_LOCALNRANKS");
    if env.has("SLURM_STEP_ID") && env.has("SLURM_PROCID") && !by_hydra {
        return Ok(None);
    }
    let remedy = "start the program with `mpiexec -n N`";
    let Some((rank, size)) = env.pair("PMI_RANK", "PMI_SIZE", remedy)? else { return Ok(None) };
    let local_size = env.number("MPI_LOCALNRANKS")?;
    let fd = env.pmi_fd()?;
    let meeting = match (env.given()?, fd) {
        (Some(given), _) => given,
        (None, Some(fd)) if local_size == Some(size) => MeetingPoint::SameHost { witness: Some(fd) },
        (None, Some(fd)) => MeetingPoint::Pmi1 { fd },
        (None, None) if size == 1 => MeetingPoint::Alone,
        (None, None) => {
            return Err(EnvironmentError::NoMeeting {
                reason: "PMI_RANK is set but PMI_FD is not".into(),
                remedy: GIVE_ROOT_AND_SECRET.into(),
            });
        }
    };
    Ok(Some(LauncherVariables {
        launcher: Launcher::Hydra,
        rank,
        size,
        local_rank: env.number("MPI_LOCALRANKID")?,
        local_size,
        // Nothing in hydra's environment names the job: the witness or names from PMI tell jobs apart.
        job: "hydra".into(),
        meeting,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{HYDRA, SRUN, bad, good};
    use super::super::{Launcher, MeetingPoint};

    #[test]
    fn mpiexec_on_one_host_and_on_several() {
        assert_eq!(good(HYDRA).meeting, MeetingPoint::Pmi1 { fd: 9 });
        let one_host = HYDRA.replace("NRANKS=2", "NRANKS=4");
        assert_eq!(good(&one_host).meeting, MeetingPoint::SameHost { witness: Some(9) });
        assert!(bad("PMI_RANK=1 PMI_SIZE=2").contains("TIDEMILL_ROOT"));
        // mpiexec with variables of srun around it.
        assert_eq!(good(&format!("{HYDRA} {SRUN}")).launcher, Launcher::Hydra);
    }
}
