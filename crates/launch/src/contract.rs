//! What a worker learns from its environment, which `tidemill.init()` in Python and the rendezvous in Rust read.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use tidemill_machine::{CpuSet, Machine};

use crate::hosts::{EmulatedCluster, WorkerPlace, places};
use crate::options::JobOptions;
use crate::terminal;

/// The thread counts of numerical libraries. Unless the user sets them, each worker uses its share of the cores.
const LIBRARY_THREADS: [&str; 5] =
    ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS"];

/// What is the same for every worker of a job.
pub struct JobContract {
    /// The job's name.
    pub job: String,
    /// The number of workers.
    pub size: usize,
    /// How many of them are not spare.
    pub active: usize,
    secret: String,
    threads: u32,
    /// The machine that its workers share, if each is to have its own part.
    machine: Option<Machine>,
    /// The place of each worker if not all are on this host, and its location in the network.
    places: Vec<(WorkerPlace, OsString)>,
    common: Vec<(&'static str, OsString)>,
}

impl JobContract {
    /// A new job with its own name and secret; `restart` counts the failed ones before it.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(options: &JobOptions, restart: u32, cluster: Option<&EmulatedCluster>) -> io::Result<Self> {
        let machine = Machine::here();
        let cores = machine.usable();
        let asked = options.workers.unwrap_or(cores);
        let size = match (options.workers, options.max_workers) {
            // A job may have been scaled beyond its maximum.
            (Some(_), Some(most)) => most.max(asked),
            (None, Some(most)) => most,
            (_, None) => asked,
        };
        let active = asked.min(size);
        let threads = options.threads.unwrap_or_else(|| u32::try_from(cores / size).unwrap_or(1).max(1));
        let mut common: Vec<(&'static str, OsString)> = vec![("TIDEMILL_RESTART", restart.to_string().into())];
        if active < size {
            common.push(("TIDEMILL_ACTIVE_WORKERS", active.to_string().into()));
        }
        if let Some(transport) = options.transport {
            common.push(("TIDEMILL_TRANSPORT", transport.name().into()));
        }
        if let Some(connect) = options.connect {
            common.push(("TIDEMILL_CONNECT", connect.name().into()));
        }
        if let Some(wait) = options.stall_warning {
            common.push(("TIDEMILL_STALL_WARNING", wait.as_secs_f64().to_string().into()));
        }
        if let Some(memory) = options.memory {
            common.push(("TIDEMILL_MEMORY", memory.text().into()));
        }
        if let Some(dir) = &options.spill_dir {
            common.push(("TIDEMILL_SPILL_DIR", dir.into()));
        }
        if let Some(address) = &options.metrics {
            common.push(("TIDEMILL_METRICS", address.into()));
        }
        if let Some(columns) = terminal::columns() {
            common.push(("TIDEMILL_TERMINAL", columns.to_string().into()));
        }
        // Writing to a pipe, Python would hold lines back; the user should see them when they are printed.
        let mut defaults: Vec<(&'static str, OsString)> = vec![("PYTHONUNBUFFERED", "1".into())];
        defaults.extend(LIBRARY_THREADS.map(|name| (name, threads.to_string().into())));
        common.extend(defaults.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
        Ok(Self {
            job: random_hex::<8>()?,
            size,
            active,
            secret: random_hex::<32>()?,
            threads,
            machine: (!options.no_bind).then_some(machine),
            places: cluster.map_or_else(Vec::new, |cluster| {
                let located = |place: WorkerPlace| (place, cluster.location(place.host));
                places(size, cluster.hosts.len()).into_iter().map(located).collect()
            }),
            common,
        })
    }

    /// The cores that worker `rank` gets for itself: an equal share of those this process may use, on one socket if
    /// possible. `None` if there are fewer cores than workers, or if binding is switched off. Two workers that wait
    /// for each other on one core would take turns at the scheduler's pace.
    pub fn cores(&self, rank: usize) -> Option<CpuSet> {
        Some(self.machine.as_ref()?.share(rank, self.size)?.into_iter().collect())
    }

    /// The emulated host of worker `rank`, if it runs on one.
    pub fn host(&self, rank: usize) -> Option<usize> {
        self.places.get(rank).map(|(place, _)| place.host)
    }

    /// The variables of one worker.
    pub fn environment(
        &self,
        rank: usize,
        root: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
        crash_dir: &Path,
    ) -> Vec<(&'static str, OsString)> {
        let mut all = self.common.clone();
        let place = self.places.get(rank);
        let (local_rank, local_size) = place.map_or((rank, self.size), |(place, _)| place.local);
        if let Some((_, location)) = place {
            all.push(("TIDEMILL_LOCATION", location.clone()));
        }
        all.extend([
            ("TIDEMILL_RANK", rank.to_string().into()),
            ("TIDEMILL_SIZE", self.size.to_string().into()),
            ("TIDEMILL_LOCAL_RANK", local_rank.to_string().into()),
            ("TIDEMILL_LOCAL_SIZE", local_size.to_string().into()),
            ("TIDEMILL_JOB", self.job.clone().into()),
            // Only this user can read a process's environment; everybody could read arguments.
            ("TIDEMILL_SECRET", self.secret.clone().into()),
            ("TIDEMILL_ROOT", root.to_string().into()),
            ("TIDEMILL_THREADS", self.threads.to_string().into()),
            ("TIDEMILL_CRASH_DIR", crash_dir.into()),
        ]);
        if self.cores(rank).is_some() {
            all.push(("TIDEMILL_BOUND", "1".into()));
        }
        if let Some(fd) = listener {
            all.push(("TIDEMILL_LISTEN_FD", fd.as_raw_fd().to_string().into()));
        }
        all
    }
}

fn random_hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(rank: usize) -> Vec<(&'static str, OsString)> {
        let options = JobOptions { workers: Some(3), threads: Some(2), ..JobOptions::default() };
        let contract = JobContract::new(&options, 0, None).expect("the system has random numbers");
        contract.environment(rank, ([127, 0, 0, 1], 4000).into(), None, Path::new("/c"))
    }

    fn value(of: &[(&'static str, OsString)], name: &str) -> Option<String> {
        of.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn a_worker_learns_its_place() {
        let all = environment(2);
        let got = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "THREADS", "ROOT", "CRASH_DIR"]
            .map(|name| value(&all, &format!("TIDEMILL_{name}")).unwrap_or_default());
        assert_eq!(got, ["2", "3", "2", "3", "2", "127.0.0.1:4000", "/c"]);
        assert_eq!(value(&all, "TIDEMILL_LISTEN_FD"), None);
    }

    /// Spare workers are workers like any other, with a share of the machine.
    #[test]
    fn some_workers_are_spare() {
        let contract = |workers, max_workers| {
            let options = JobOptions { workers, max_workers, threads: Some(1), ..JobOptions::default() };
            JobContract::new(&options, 0, None).expect("the system has random numbers")
        };
        let sizes = |contract: &JobContract| (contract.size, contract.active);
        let active = |contract: &JobContract| {
            let all = contract.environment(1, ([127, 0, 0, 1], 4000).into(), None, Path::new("/c"));
            value(&all, "TIDEMILL_ACTIVE_WORKERS")
        };
        let spare = contract(Some(4), Some(6));
        assert_eq!((sizes(&spare), active(&spare).as_deref()), ((6, 4), Some("4")));
        for (workers, most, size) in [(Some(6), Some(6), 6), (Some(8), Some(6), 8), (Some(3), None, 3)] {
            let contract = contract(workers, most);
            assert_eq!((sizes(&contract), active(&contract)), ((size, size), None));
        }
        let cores = Machine::here().usable();
        assert_eq!(sizes(&contract(None, Some(cores + 1))), (cores + 1, cores));
        assert_eq!(sizes(&contract(None, Some(1))), (1, 1));
    }

    /// A core given to two workers would halve the speed of both, and a core given to none would be wasted.
    #[test]
    fn every_core_goes_to_one_worker() {
        let allowed = Machine::here().allowed();
        for size in 1..=allowed.len() {
            let options = JobOptions { workers: Some(size), ..JobOptions::default() };
            let contract = JobContract::new(&options, 0, None).expect("the system has random numbers");
            let shares: Vec<CpuSet> =
                (0..size).map(|rank| contract.cores(rank).expect("there are enough cores")).collect();
            let all: CpuSet = shares.iter().flat_map(CpuSet::iter).collect();
            assert_eq!(all.len(), shares.iter().map(CpuSet::len).sum::<usize>(), "{size} workers share no core");
            assert!(shares.iter().all(|share| share.len() >= allowed.len() / size && all.len() > allowed.len() - size));
            assert!(all.iter().all(|cpu| allowed.contains(cpu)));
        }
        let unbound = JobOptions { workers: Some(1), no_bind: true, ..JobOptions::default() };
        assert!(JobContract::new(&unbound, 0, None).expect("the system has random numbers").cores(0).is_none());
    }

    /// Two jobs that shared both a name and a secret could join each other.
    #[test]
    fn jobs_differ() {
        let (one, two) = (environment(0), environment(0));
        for (name, digits) in [("TIDEMILL_JOB", 16), ("TIDEMILL_SECRET", 64)] {
            assert_eq!(value(&one, name).unwrap().len(), digits);
            assert_ne!(value(&one, name), value(&two, name));
        }
    }
}
