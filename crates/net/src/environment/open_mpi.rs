//! Variables of Open MPI's `mpirun`.

use super::reader::VariableReader;
use super::{EnvironmentError, Launcher, LauncherVariables, MeetingPoint};

/// Returns what `mpirun` set, if it started this worker.
pub(super) fn read(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
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
        // Two jobs of one user on one host usually have different namespaces; the server's address makes sure.
        job: format!("ompi {} {}", space.unwrap_or("-"), env.text("PMIX_SERVER_URI2").unwrap_or("-")),
        meeting,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{OPEN_MPI, SAME_HOST, good};
    use super::super::{Launcher, MeetingPoint};

    #[test]
    fn mpirun_on_one_host_and_on_several() {
        let launch = good(&format!("{OPEN_MPI} OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2"));
        assert_eq!(
            (launch.launcher, launch.rank.0, launch.size, launch.local_rank),
            (Launcher::OpenMpi, 2, 4, Some(2))
        );
        assert_eq!(launch.meeting, SAME_HOST);
        assert_eq!(good(&format!("{OPEN_MPI} OMPI_COMM_WORLD_LOCAL_SIZE=2")).meeting, MeetingPoint::Pmix);
        // mpirun inside a batch job.
        assert_eq!(good(&format!("{OPEN_MPI} SLURM_NTASKS=8 SLURM_JOB_ID=1")).launcher, Launcher::OpenMpi);
    }
}
