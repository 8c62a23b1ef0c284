//! Variables of Slurm's `srun`.

use super::reader::VariableReader;
use super::{EnvironmentError, GIVE_ROOT_AND_SECRET, Launcher, LauncherVariables, MeetingPoint, location_path, torch};

/// Returns what `srun` set, if it started this worker.
pub(super) fn read(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let tasks = match env.number("SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => Some(tasks),
        None => env.number("SLURM_NTASKS")?,
    };
    let Some(size) = tasks else { return Ok(None) };
    let rank = env.number("SLURM_PROCID")?;
    let (Some(rank), Some(step)) = (rank, env.text("SLURM_STEP_ID").or_else(|| env.text("SLURM_STEPID"))) else {
        // A batch script or an allocation's shell, where something other than srun may have started this worker.
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
        None => match (env.pmi_fd()?, torch::master(env)?) {
            (Some(fd), _) => MeetingPoint::Pmi1 { fd },
            (None, Some(root)) => MeetingPoint::Unprotected { root },
            (None, None) => {
                return Err(EnvironmentError::NoMeeting {
                    reason: "srun offers neither PMIx nor PMI".into(),
                    remedy: format!("use `srun --mpi=pmix` or `srun --mpi=pmi2`, or {GIVE_ROOT_AND_SECRET}"),
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

/// Returns how many tasks of the step run on this host. `SLURM_STEP_TASKS_PER_NODE` is a list such as `2(x3),1`:
/// three hosts with two tasks each, then one host with one.
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

/// Returns how many processors `srun --cpus-per-task` grants to each worker.
pub(super) fn granted(env: &VariableReader<'_>) -> Result<Option<u32>, EnvironmentError> {
    Ok(env.number("SLURM_CPUS_PER_TASK")?.filter(|&cpus| cpus > 0))
}

/// Returns this host's location in the network according to Slurm. An invalid path is ignored, not an error.
pub(super) fn location(env: &VariableReader<'_>) -> Option<String> {
    let address = env.text("SLURM_TOPOLOGY_ADDR")?;
    // `spine.rack3.node7` for `switch.switch.node`. The last part, the host name, may itself contain dots. A level
    // without a switch is an empty part.
    let pattern = env.text("SLURM_TOPOLOGY_ADDR_PATTERN");
    let count = pattern.map_or(usize::MAX, |pattern| pattern.split('.').count());
    let parts: Vec<&str> = address.splitn(count, '.').filter(|part| !part.is_empty()).collect();
    location_path(&parts).filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::examples::{HYDRA, OPEN_MPI, SAME_HOST, SRUN, bad, good};
    use super::super::{Launcher, MeetingPoint};

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
        // The number of workers on this host decides how many threads each of them starts.
        for (node, tasks) in [("0", Some(2)), ("2", Some(2)), ("3", Some(1)), ("4", None)] {
            let text = format!("{many} PMIX_NAMESPACE=s SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID={node}");
            assert_eq!(good(&text).local_size, tasks, "node {node}");
        }
        let odd = good(&format!("{many} PMIX_NAMESPACE=s SLURM_STEP_TASKS_PER_NODE=2(x SLURM_NODEID=0"));
        assert_eq!((odd.local_size, odd.granted), (None, None));
        assert_eq!(good(&format!("{SRUN} SLURM_STEP_NUM_NODES=1 SLURM_CPUS_PER_TASK=6")).granted, Some(6));
        // An allocation's value does not apply to the workers of another launcher.
        assert_eq!(good(&format!("{OPEN_MPI} SLURM_CPUS_PER_TASK=6")).granted, None);
        // A step of one task within a larger job is a job of one worker.
        let single = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4";
        assert_eq!(good(single).meeting, MeetingPoint::Alone);
    }

    /// A wrong location would send copies to the far end of the network.
    #[test]
    fn location_of_the_host() {
        let location = |text: &str| good(text).location;
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
}
