//! The CPUs that this process may use, and where they are.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::sync::Mutex;

use crate::{CpuSet, quota};

/// One CPU and its place. `None` if the system does not report it: virtual machines omit files, or contain -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number in Linux.
    pub number: usize,
    /// Its socket (physical package).
    pub socket: Option<u32>,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its core, unique only within the socket.
    pub core: Option<u32>,
    /// The lowest CPU of its core: unique on the machine.
    pub(crate) first_sibling: usize,
    /// Its number among the usable hardware threads of its core, from 0.
    pub thread: usize,
}

/// The CPUs that this process may use, and the limit on their time.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub(crate) cpus: Vec<Cpu>,
    online: usize,
    quota: Option<f64>,
}

impl Machine {
    /// This machine, as the calling thread may use it now.
    #[must_use]
    pub fn here() -> Machine {
        /// The last answer: reading hundreds of small files takes milliseconds, and only the mask changes while a
        /// process runs.
        static NEWEST: Mutex<Option<(CpuSet, Machine)>> = Mutex::new(None);
        let root = Path::new("/");
        let Some(mask) = CpuSet::of_current_thread() else { return Machine::read(root, None) };
        // In a forked child, the lock may be held by a thread that does not exist there.
        let Ok(mut newest) = NEWEST.try_lock() else { return Machine::read(root, Some(&mask)) };
        match &*newest {
            Some((of, machine)) if *of == mask => machine.clone(),
            _ => newest.insert((mask.clone(), Machine::read(root, Some(&mask)))).1.clone(),
        }
    }

    /// The machine whose `/proc` and `/sys` are below `root`, as a process with this affinity mask may use it. Without
    /// a mask, all online CPUs.
    ///
    /// Defaults replace missing data: without topology, each CPU is a core, and all are on one socket and one node.
    #[must_use]
    pub fn read(root: &Path, mask: Option<&CpuSet>) -> Machine {
        let folder = root.join("sys/devices/system");
        let online = list(&folder.join("cpu/online")).filter(|set| !set.is_empty());
        let standard = || (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
        let allowed = match (mask, &online) {
            (Some(mask), Some(online)) => {
                let both: CpuSet = mask.iter().filter(|&cpu| online.contains(cpu)).collect();
                // The kernel's mask contains only online CPUs; if the two disagree, the mask wins.
                if both.is_empty() { mask.clone() } else { both }
            }
            (Some(mask), None) => mask.clone(),
            (None, Some(online)) => online.clone(),
            (None, None) => standard(),
        };
        let nodes = nodes(&folder.join("node"));
        let mut cpus: Vec<Cpu> = allowed
            .iter()
            .map(|number| {
                let topology = folder.join(format!("cpu/cpu{number}/topology"));
                let read = |what: &str| read_to_string(topology.join(what)).ok()?.trim().parse().ok();
                let siblings = list(&topology.join("thread_siblings_list"));
                Cpu {
                    number,
                    socket: read("physical_package_id"),
                    node: nodes.get(&number).copied(),
                    core: read("core_id"),
                    first_sibling: siblings.and_then(|set| set.iter().next()).unwrap_or(number),
                    thread: 0,
                }
            })
            .collect();
        // Sockets before nodes, because the nodes of a socket need not have adjacent numbers.
        cpus.sort_by_key(|cpu| (cpu.socket, cpu.node, cpu.core, cpu.first_sibling, cpu.number));
        for core in cpus.chunk_by_mut(|a, b| a.first_sibling == b.first_sibling) {
            core.iter_mut().enumerate().for_each(|(thread, cpu)| cpu.thread = thread);
        }
        Machine { online: online.map_or(cpus.len(), |online| online.len()), quota: quota::read(root), cpus }
    }

    /// The CPUs that the affinity mask allows, by socket, NUMA node, core and number: hardware threads of a core are
    /// adjacent.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The same CPUs as a set.
    #[must_use]
    pub fn allowed(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.number).collect()
    }

    /// The number of online CPUs, allowed or not.
    #[must_use]
    pub fn online(&self) -> usize {
        self.online
    }

    /// The smallest CPU quota of this process's cgroups, in CPUs: 1.5 is the time of one and a half.
    #[must_use]
    pub fn quota(&self) -> Option<f64> {
        self.quota
    }

    /// How many threads the quota can keep busy, at least 1. Rounded down, because threads that spin while they wait
    /// would use up the time of those they wait for.
    #[must_use]
    pub fn quota_threads(&self) -> Option<usize> {
        self.quota.map(|quota| (quota as usize).max(1))
    }

    /// How many threads this process can keep busy: one per allowed CPU, or fewer if the quota says so. At least 1.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.cpus.len().min(self.quota_threads().unwrap_or(usize::MAX)).max(1)
    }

    /// The number of sockets of the allowed CPUs. At least 1.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.cpus.chunk_by(|a, b| a.socket == b.socket).count().max(1)
    }

    /// All allowed CPUs on the socket of `cpu`.
    #[must_use]
    pub fn socket_of(&self, cpu: usize) -> CpuSet {
        let socket = self.cpus.iter().find(|other| other.number == cpu).map(|cpu| cpu.socket);
        self.cpus.iter().filter(|cpu| Some(cpu.socket) == socket).map(|cpu| cpu.number).collect()
    }
}

fn list(file: &Path) -> Option<CpuSet> {
    read_to_string(file).ok()?.parse().ok()
}

/// The NUMA node of each CPU.
fn nodes(folder: &Path) -> BTreeMap<usize, u32> {
    let mut nodes = BTreeMap::new();
    for entry in read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let node = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        if let (Some(node), Some(cpus)) = (node, list(&entry.path().join("cpulist"))) {
            nodes.extend(cpus.iter().map(|cpu| (cpu, node)));
        }
    }
    nodes
}
