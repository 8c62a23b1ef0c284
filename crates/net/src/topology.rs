//! Where a worker runs: its host, and the sockets and cores of that host. Workers exchange this when a job starts, to
//! choose transports and, later, to build trees that cross each network link once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use tidemill_machine::{Cpu, Machine};

use crate::environment::LaunchContext;

/// Tells whether two workers share a kernel and see each other's processes, which shared memory through
/// `/proc/<pid>/fd` requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIdentity {
    /// Drawn by the kernel at boot: two machines differ even if they were cloned from one image.
    boot_id: u128,
    /// Containers on one machine have one boot id, but do not see each other's processes.
    pid_namespace: u64,
    /// Opening another process's descriptors requires the rights of the same user namespace.
    user_namespace: u64,
}

impl HostIdentity {
    /// The identity of this process's host.
    pub fn here() -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot_id = boot_id.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        let namespace = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |meta| meta.ino());
        HostIdentity {
            // Without /proc, no memory can be shared: a random identity equals no other.
            boot_id: boot_id.unwrap_or_else(|| u128::from_le_bytes(crate::secret::random_bytes())),
            pid_namespace: namespace("pid"),
            user_namespace: namespace("user"),
        }
    }

    /// The identity of another container on this machine.
    #[cfg(test)]
    pub(crate) fn container(self, pid_namespace: u64) -> Self {
        HostIdentity { pid_namespace, ..self }
    }

    /// Whether both are on one machine and so share its processors, perhaps as containers or as emulated hosts.
    pub(crate) fn is_same_machine(&self, other: &HostIdentity) -> bool {
        self.boot_id == other.boot_id
    }

    /// Whether shared memory with `other` can be expected to work. Opening it shows whether it does.
    pub fn shares_memory_with(&self, other: &HostIdentity) -> bool {
        self == other
    }
}

/// How the workers of a host exchange messages. All workers of a job come to the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostLinks {
    /// Every pair of them uses shared memory; otherwise some or all use TCP.
    pub shared_memory: bool,
    /// Each has its own core, so waiting by polling slows nobody down.
    pub own_cores: bool,
}

impl HostLinks {
    /// The best links: shared memory, and a core for each worker.
    pub const BEST: HostLinks = HostLinks { shared_memory: true, own_cores: true };

    /// What is true of both.
    pub fn and(self, other: HostLinks) -> HostLinks {
        HostLinks {
            shared_memory: self.shared_memory && other.shared_memory,
            own_cores: self.own_cores && other.own_cores,
        }
    }
}

/// Where one worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPlacement {
    /// Its host, as programs identify it.
    pub host: HostIdentity,
    /// Its host, as people know it.
    pub hostname: String,
    /// The location of its host in the network, from the outside in, such as `zone-a/rack-3/host-7`, if it is set.
    pub location: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Processors it may keep busy: those its affinity and its cgroup's quota allow. At least 1.
    pub cores_allowed: usize,
    /// Processors its affinity allows, as Linux numbers them.
    pub processors: Vec<u32>,
    /// How many threads the CPU quota of its container can keep busy, at least 1; all workers of the host share it.
    pub quota: Option<u32>,
    /// How many processors its launcher intends for it, whatever its affinity allows.
    pub granted: Option<u32>,
    /// The socket (physical package) of these processors, if they share one.
    pub socket: Option<u32>,
    /// The core (within the socket) of these processors, if they share one: the worker is pinned.
    pub core: Option<u32>,
}

impl WorkerPlacement {
    /// The placement of this process. Reads a few files of /proc and /sys; leaves unset what cannot be read and what
    /// only the launcher knows.
    pub fn here() -> Self {
        let machine = Machine::here();
        let only = |what: fn(&Cpu) -> Option<u32>| {
            let (first, others) = machine.cpus().split_first()?;
            what(first).filter(|_| others.iter().all(|other| what(other) == what(first)))
        };
        let socket = only(|cpu| cpu.socket);
        // Core numbers are relative to a socket: across sockets, equal numbers mean nothing.
        let core = socket.and(only(|cpu| cpu.core));
        WorkerPlacement {
            host: HostIdentity::here(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            location: None,
            pid: std::process::id(),
            cores_allowed: machine.usable(),
            processors: machine.allowed().iter().map(|cpu| cpu as u32).collect(),
            quota: machine.quota_threads().map(|threads| u32::try_from(threads).unwrap_or(u32::MAX - 1)),
            granted: None,
            socket,
            core,
        }
    }

    /// Encodes it for [`WorkerPlacement::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.host.boot_id.to_le_bytes());
        bytes.extend_from_slice(&self.host.pid_namespace.to_le_bytes());
        bytes.extend_from_slice(&self.host.user_namespace.to_le_bytes());
        let number = |n: Option<u32>| n.unwrap_or(u32::MAX);
        let known = [self.socket, self.core, self.quota, self.granted].map(number);
        for n in [self.pid, self.cores_allowed as u32].into_iter().chain(known) {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        let location = self.location.as_deref().unwrap_or_default();
        bytes.extend_from_slice(format!("{}\n{location}\n{}", ranges(&self.processors), self.hostname).as_bytes());
        bytes
    }

    /// Decodes the output of [`WorkerPlacement::encode`]; `None` for anything else.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let host = HostIdentity {
            boot_id: u128::from_le_bytes(take(&mut bytes)?),
            pid_namespace: u64::from_le_bytes(take(&mut bytes)?),
            user_namespace: u64::from_le_bytes(take(&mut bytes)?),
        };
        let mut number = || take(&mut bytes).map(u32::from_le_bytes);
        let (pid, cores_allowed) = (number()?, number()?);
        let (socket, core, quota, granted) = (number()?, number()?, number()?, number()?);
        let (processors, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let (location, hostname) = rest.split_once('\n')?;
        let known = |n: u32| (n != u32::MAX).then_some(n);
        Some(WorkerPlacement {
            host,
            hostname: hostname.into(),
            location: (!location.is_empty()).then(|| location.into()),
            pid,
            cores_allowed: cores_allowed.max(1) as usize,
            processors: parse_ranges(processors)?,
            quota: known(quota),
            granted: known(granted),
            socket: known(socket),
            core: known(core),
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

/// A worker's part of the processors of its host, on which other workers may run as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// How many processors its affinity allows.
    pub processors: usize,
    /// How many workers may use some of them, this one included.
    pub workers: usize,
    /// The index of this worker among them, from 0.
    pub index: usize,
    /// How many threads each worker can have while every thread has a processor and the container's quota is not
    /// exceeded. May be 0.
    pub room: usize,
    /// How many threads it should have unless the user sets a number. At least 1.
    pub threads: usize,
}

impl HostShare {
    /// The share of worker `rank` of a job. Workers that a launcher has bound to their own processors share them with
    /// nobody, but all workers of a host share its quota.
    pub fn of(placements: &[WorkerPlacement], rank: usize) -> HostShare {
        let mine = &placements[rank];
        let here = || placements.iter().enumerate().filter(|(_, other)| other.host == mine.host);
        let meets = |other: &WorkerPlacement| other.processors.iter().any(|cpu| mine.processors.contains(cpu));
        let beside = || here().filter(|&(other, placement)| other == rank || meets(placement));
        let quota = here().filter_map(|(_, other)| other.quota).min();
        HostShare::new(
            mine,
            beside().count(),
            beside().filter(|&(other, _)| other < rank).count(),
            here().count(),
            quota,
        )
    }

    /// The share of this process, which has not joined a job, according to what the launcher says about other workers
    /// on the host. `bound`: the launcher has bound each worker to its own processors.
    pub fn of_process(here: &WorkerPlacement, launch: Option<&LaunchContext>, bound: bool) -> HostShare {
        let said = launch.and_then(|launch| Some((launch.local_rank?, launch.local_size?)));
        let (index, workers) = said.filter(|(index, workers)| index < workers).unwrap_or((0, 1));
        let here = WorkerPlacement { granted: launch.and_then(|launch| launch.granted), ..here.clone() };
        let beside = if bound { (1, 0) } else { (workers as usize, index as usize) };
        HostShare::new(&here, beside.0, beside.1, workers as usize, here.quota)
    }

    fn new(mine: &WorkerPlacement, workers: usize, index: usize, on_host: usize, quota: Option<u32>) -> HostShare {
        let processors = mine.processors.len();
        let room = quota.map_or(usize::MAX, |quota| quota as usize / on_host).min(processors / workers);
        let threads = room.min(mine.granted.map_or(usize::MAX, |granted| granted as usize)).max(1);
        HostShare { processors, workers, index, room, threads }
    }
}

/// For each worker, a description of its host and the workers on it; empty if all share one host.
pub(crate) fn hosts(placements: &[WorkerPlacement]) -> Vec<String> {
    let mut workers: BTreeMap<HostIdentity, Vec<u32>> = BTreeMap::new();
    for (rank, placement) in (0..).zip(placements) {
        workers.entry(placement.host).or_default().push(rank);
    }
    if workers.len() < 2 {
        return Vec::new();
    }
    let words = |placement: &WorkerPlacement| match workers[&placement.host].as_slice() {
        [rank] => format!("host {} has worker {rank}", placement.hostname),
        ranks => format!("host {} has workers {}", placement.hostname, ranges(ranks)),
    };
    placements.iter().map(words).collect()
}

/// Formats a list of processors as Linux does: `0-3,8`.
fn ranges(sorted: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = sorted;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count();
        let last = rest[run - 1];
        parts.push(if run == 1 { first.to_string() } else { format!("{first}-{last}") });
        rest = &rest[run..];
    }
    parts.join(",")
}

fn parse_ranges(text: &str) -> Option<Vec<u32>> {
    /// More processors than any machine has: a peer's text must not size an allocation.
    const PROCESSORS_MAX: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= PROCESSORS_MAX || first > last || all.len() + (last - first) as usize >= PROCESSORS_MAX as usize {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A worker must find that it shares memory with itself, whatever the machine lacks.
    #[test]
    fn this_process_shares_memory_with_itself() {
        let here = WorkerPlacement::here();
        assert!(here.host.shares_memory_with(&HostIdentity::here()));
        assert!(here.cores_allowed >= 1 && !here.hostname.is_empty());
        let located = WorkerPlacement {
            location: Some("zone-a/rack-3/host-7".into()),
            quota: Some(2),
            granted: Some(3),
            ..here.clone()
        };
        for placement in [here, located] {
            assert_eq!(WorkerPlacement::decode(&placement.encode()), Some(placement));
        }
    }

    /// A spinning thread without its own processor keeps the thread that it waits for from running.
    #[test]
    fn workers_of_a_host_share_its_processors_and_its_quota() {
        let here = WorkerPlacement { quota: None, granted: None, ..WorkerPlacement::here() };
        let on = |cpus: std::ops::Range<u32>| WorkerPlacement { processors: cpus.collect(), ..here.clone() };
        let share = |all: &[WorkerPlacement], rank: usize| {
            let HostShare { processors, workers, index, room, threads } = HostShare::of(all, rank);
            (processors, workers, index, room, threads)
        };
        // srun without a plugin that binds: every worker may use the whole host.
        let unbound = [on(0..64), on(0..64), on(0..64)];
        assert_eq!(share(&unbound, 2), (64, 3, 2, 21, 21));
        // The same with --cpus-per-task=4.
        assert_eq!(share(&unbound.map(|one| WorkerPlacement { granted: Some(4), ..one }), 1), (64, 3, 1, 21, 4));
        // Bound by the launcher: nobody else uses these processors.
        assert_eq!(share(&[on(0..32), on(32..64)], 1), (32, 1, 0, 32, 32));
        assert_eq!(share(&[on(0..8), on(8..64), on(8..64)], 2), (56, 2, 1, 28, 28));
        // More workers than processors.
        assert_eq!(share(&[on(0..1), on(0..1)], 1), (1, 2, 1, 0, 1));
        // All workers of a container share one quota, bound or not.
        let limited = |cpus| WorkerPlacement { quota: Some(2), ..on(cpus) };
        assert_eq!(share(&[limited(0..64)], 0), (64, 1, 0, 2, 2));
        assert_eq!(share(&[limited(0..32), limited(32..64)], 0), (32, 1, 0, 1, 1));
        assert_eq!(share(&[limited(0..16), limited(16..32), limited(32..64)], 2), (32, 1, 0, 0, 1));
        // Workers elsewhere do not count.
        let host = HostIdentity { pid_namespace: here.host.pid_namespace + 1, ..here.host };
        assert_eq!(share(&[on(0..4), WorkerPlacement { host, ..on(0..4) }], 1), (4, 1, 0, 4, 4));
    }

    /// A program may compute before it joins its job.
    #[test]
    fn a_launcher_says_who_else_is_on_the_host() {
        let here =
            WorkerPlacement { processors: (0..64).collect(), quota: Some(8), granted: None, ..WorkerPlacement::here() };
        let share = |text: &str, bound: bool| {
            let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
            let variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let launch = LaunchContext::from_environment(&variables).unwrap();
            let share = HostShare::of_process(&here, Some(&launch), bound);
            (share.workers, share.index, share.room, share.threads)
        };
        assert_eq!(share("", false), (1, 0, 8, 8));
        let open_mpi =
            "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4";
        assert_eq!(share(open_mpi, false), (4, 1, 2, 2));
        assert_eq!(share(open_mpi, true), (1, 0, 2, 2));
        let srun = "SLURM_JOB_ID=7 SLURM_STEP_ID=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=1";
        assert_eq!(share(srun, false), (2, 1, 4, 4));
        assert_eq!(share(&format!("{srun} SLURM_CPUS_PER_TASK=3"), false), (2, 1, 4, 3));
        assert_eq!(HostShare::of_process(&here, None, false).workers, 1);
    }

    /// A user who reads that a worker is lost wants to know its host, and which other workers were lost with it.
    #[test]
    fn a_host_is_named_with_its_workers() {
        let on = |pid_namespace: u64| {
            let here = WorkerPlacement::here();
            let host = HostIdentity { pid_namespace, ..here.host };
            WorkerPlacement { host, hostname: format!("h{pid_namespace}"), ..here }
        };
        assert_eq!(hosts(&[on(1), on(1)]), [""; 0]);
        let two = "host h1 has workers 0,2-3";
        assert_eq!(hosts(&[on(1), on(2), on(1), on(1)]), [two, "host h2 has worker 1", two, two]);
    }

    proptest! {
        /// Catches an off-by-one at the ends of runs.
        #[test]
        fn ranges_survive_the_way_there_and_back(set in prop::collection::btree_set(0u32..300, 0..80)) {
            let list: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(parse_ranges(&ranges(&list)), Some(list));
        }

        /// Bytes come from a peer: they must cause neither a panic nor a disproportionate allocation.
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Some(placement) = WorkerPlacement::decode(&bytes) {
                prop_assert!(placement.processors.len() <= 1 << 16);
            }
        }
    }
}
