//! `RANK`, `WORLD_SIZE` and `MASTER_ADDR`, which torchrun and Kubernetes operators set.

use super::reader::VariableReader;
use super::{EnvironmentError, Launcher, LauncherVariables, MeetingPoint};

/// Returns what torchrun set, or another launcher that sets the same variables.
pub(super) fn read(env: &VariableReader<'_>) -> Result<Option<LauncherVariables>, EnvironmentError> {
    let (rank, size) = match (env.number("RANK"), env.number("WORLD_SIZE")) {
        (Ok(Some(rank)), Ok(Some(size))) => (rank, size),
        // RANK alone may mean something else; WORLD_SIZE is unlikely to.
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
        // A secret was given, so workers may run where this host's meeting point does not reach, such as in
        // containers.
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

/// Returns `MASTER_ADDR:MASTER_PORT`, or the next port if torchrun's own store listens on that one.
pub(super) fn master(env: &VariableReader<'_>) -> Result<Option<String>, EnvironmentError> {
    let Some(host) = env.text("MASTER_ADDR") else { return Ok(None) };
    let Some(port) = env.parse::<u16>("MASTER_PORT", "a port number")? else { return Ok(None) };
    let taken = env.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = if taken { port.checked_add(1).unwrap_or(port - 1) } else { port };
    Ok(Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{SAME_HOST, SRUN, TORCH, bad, good, secret};
    use super::super::{Launcher, MeetingPoint};

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
}
