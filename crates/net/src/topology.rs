//! Where a worker runs: which host, and which sockets and cores of it. Exchanged when a job starts, to choose transports
//! and, later, to build trees that cross each network link once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Tells whether two workers share a kernel and see each other's processes, which is what shared memory by way of
/// `/proc/<pid>/fd` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIdentity {
    /// Drawn by the kernel at boot: two machines differ even if they were cloned from one image.
    boot_id: u128,
    /// Containers on one machine have one boot id, but do not see each other's processes.
    pid_namespace: u64,
    /// Opening another process's descriptors takes the rights of one user namespace.
    user_namespace: u64,
}

impl HostIdentity {
    /// This process's.
    pub fn here() -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot_id = boot_id.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        let namespace = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |meta| meta.ino());
        HostIdentity {
            // Without /proc nobody shares anything: a random identity equals none.
            boot_id: boot_id.unwrap_or_else(|| u128::from_le_bytes(crate::rendezvous::random_bytes())),
            pid_namespace: namespace("pid"),
            user_namespace: namespace("user"),
        }
    }

    /// Whether shared memory with `other` can be expected to work. What really works is tried when it is opened.
    pub fn shares_memory_with(&self, other: &HostIdentity) -> bool {
        self == other
    }
}

/// What the workers of a host have for messages among them. All workers of a job judge alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostLinks {
    /// Every pair of them uses shared memory; else some, or all, use TCP.
    pub shared_memory: bool,
    /// They have a core each: then waiting by polling takes nothing from anybody.
    pub own_cores: bool,
}

impl HostLinks {
    /// As good as can be.
    pub const BEST: HostLinks = HostLinks { shared_memory: true, own_cores: true };

    /// What holds for both hosts.
    pub fn and(self, other: HostLinks) -> HostLinks {
        HostLinks {
            shared_memory: self.shared_memory && other.shared_memory,
            own_cores: self.own_cores && other.own_cores,
        }
    }
}

/// Where one worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its host, for machines.
    pub host: HostIdentity,
    /// Its host, for people.
    pub hostname: String,
    /// Where its host is in the network, from the outside in, such as `zone-a/rack-3/host-7`; `None` where nobody has said it.
    pub location: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Processors it may keep busy: allowed by its affinity and its cgroup's quota. At least 1.
    pub cores_allowed: usize,
    /// Processors its affinity allows, as Linux numbers them.
    pub processors: Vec<u32>,
    /// The socket (physical package) of these processors, if it is one.
    pub socket: Option<u32>,
    /// The core (within the socket) of these processors, if it is one: the worker is pinned.
    pub core: Option<u32>,
}

impl Placement {
    /// This process's. Reads a few files of /proc and /sys; what cannot be read is left open, and so is the location, which only
    /// the launcher knows.
    pub fn here() -> Self {
        let processors = allowed_processors();
        let only = |what: &str| {
            let all: BTreeSet<Option<u32>> = processors.iter().map(|&cpu| topology_number(cpu, what)).collect();
            if all.len() == 1 { all.into_iter().next().flatten() } else { None }
        };
        let socket = only("physical_package_id");
        // Core numbers are the socket's: without one socket, equal numbers mean nothing.
        let core = socket.and(only("core_id"));
        Placement {
            host: HostIdentity::here(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            location: None,
            pid: std::process::id(),
            cores_allowed: std::thread::available_parallelism().map_or(1, usize::from),
            processors,
            socket,
            core,
        }
    }

    /// As bytes for [`Placement::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.host.boot_id.to_le_bytes());
        bytes.extend_from_slice(&self.host.pid_namespace.to_le_bytes());
        bytes.extend_from_slice(&self.host.user_namespace.to_le_bytes());
        let number = |n: Option<u32>| n.unwrap_or(u32::MAX);
        for n in [self.pid, self.cores_allowed as u32, number(self.socket), number(self.core)] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        let location = self.location.as_deref().unwrap_or_default();
        bytes.extend_from_slice(format!("{}\n{location}\n{}", ranges(&self.processors), self.hostname).as_bytes());
        bytes
    }

    /// What [`Placement::encode`] made; `None` for anything else.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let host = HostIdentity {
            boot_id: u128::from_le_bytes(take(&mut bytes)?),
            pid_namespace: u64::from_le_bytes(take(&mut bytes)?),
            user_namespace: u64::from_le_bytes(take(&mut bytes)?),
        };
        let mut number = || take(&mut bytes).map(u32::from_le_bytes);
        let (pid, cores_allowed, socket, core) = (number()?, number()?, number()?, number()?);
        let (processors, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let (location, hostname) = rest.split_once('\n')?;
        let known = |n: u32| (n != u32::MAX).then_some(n);
        Some(Placement {
            host,
            hostname: hostname.into(),
            location: (!location.is_empty()).then(|| location.into()),
            pid,
            cores_allowed: cores_allowed.max(1) as usize,
            processors: parse_ranges(processors)?,
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

fn allowed_processors() -> Vec<u32> {
    let set = rustix::thread::sched_getaffinity(None);
    let allowed = |set: rustix::thread::CpuSet| {
        let all = 0..rustix::thread::CpuSet::MAX_CPU;
        all.filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect()
    };
    set.map(allowed).unwrap_or_default()
}

fn topology_number(cpu: u32, what: &str) -> Option<u32> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
    // Virtual machines say -1 where they do not know.
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Of each worker in words its host and who runs there; nothing where all share one.
pub(crate) fn hosts(placements: &[Placement]) -> Vec<String> {
    let mut workers: BTreeMap<HostIdentity, Vec<u32>> = BTreeMap::new();
    for (rank, placement) in (0..).zip(placements) {
        workers.entry(placement.host).or_default().push(rank);
    }
    if workers.len() < 2 {
        return Vec::new();
    }
    let words = |placement: &Placement| match workers[&placement.host].as_slice() {
        [rank] => format!("host {} has worker {rank}", placement.hostname),
        ranks => format!("host {} has workers {}", placement.hostname, ranges(ranks)),
    };
    placements.iter().map(words).collect()
}

/// `0-3,8`: as Linux writes lists of processors.
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

    /// A worker must find itself on its own host, whatever the machine lacks.
    #[test]
    fn this_process_shares_memory_with_itself() {
        let here = Placement::here();
        assert!(here.host.shares_memory_with(&HostIdentity::here()));
        assert!(here.cores_allowed >= 1 && !here.hostname.is_empty());
        let located = Placement { location: Some("zone-a/rack-3/host-7".into()), ..here.clone() };
        for placement in [here, located] {
            assert_eq!(Placement::decode(&placement.encode()), Some(placement));
        }
    }

    /// Who reads that a worker is lost looks for its host, and for the others that are lost with it.
    #[test]
    fn a_host_is_told_with_its_workers() {
        let on = |pid_namespace: u64| {
            let here = Placement::here();
            let host = HostIdentity { pid_namespace, ..here.host };
            Placement { host, hostname: format!("h{pid_namespace}"), ..here }
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

        /// Bytes come from a peer: no panic and no allocation out of proportion.
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Some(placement) = Placement::decode(&bytes) {
                prop_assert!(placement.processors.len() <= 1 << 16);
            }
        }
    }
}
