//! Which processors a thread may run on. Linux only; elsewhere nothing is bound and one processor is reported per core.

use std::fmt;
use std::str::FromStr;

/// How threads are bound to processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Each thread on a processor of its own.
    Core,
    /// The same until other programs take these processors: then wherever the operating system likes. Bound threads that share their
    /// processors wait for each other at every barrier, and are several times slower than free ones.
    Auto,
    /// Each thread on any processor of one socket.
    Socket,
    /// Wherever the operating system likes.
    #[default]
    None,
}

impl FromStr for Affinity {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "core" => Ok(Affinity::Core),
            "auto" => Ok(Affinity::Auto),
            "socket" => Ok(Affinity::Socket),
            "none" => Ok(Affinity::None),
            _ => Err(format!("affinity must be \"auto\", \"core\", \"socket\" or \"none\", not {name:?}")),
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Affinity::Core => "core",
            Affinity::Auto => "auto",
            Affinity::Socket => "socket",
            Affinity::None => "none",
        })
    }
}

/// A set of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuSet(Vec<usize>);

impl CpuSet {
    /// The processors this thread may use now.
    pub(crate) fn current() -> CpuSet {
        imp::current()
    }

    /// Binds the calling thread. A refusal (a container may forbid it) only costs speed, so it is not an error.
    pub(crate) fn bind_current_thread(&self) {
        if !self.0.is_empty() {
            imp::bind(&self.0);
        }
    }
}

/// How many processors this process may use.
#[must_use]
pub fn usable_cpus() -> usize {
    CpuSet::current().0.len().max(1)
}

/// Where each of `threads` threads of a worker goes, given the workers before it on this host own `first` threads.
/// `None` leaves them unbound: asked for, or because threads would share a processor while others idle.
pub(crate) fn place(affinity: Affinity, threads: usize, first: usize, usable: &CpuSet) -> Option<Vec<CpuSet>> {
    let cpus = &usable.0;
    if affinity == Affinity::None || first + threads > cpus.len() {
        return None;
    }
    let own = &cpus[first..first + threads];
    Some(match affinity {
        Affinity::Core | Affinity::Auto => own.iter().map(|&cpu| CpuSet(vec![cpu])).collect(),
        _ => own
            .iter()
            .map(|&cpu| {
                let socket = imp::socket(cpu);
                CpuSet(cpus.iter().copied().filter(|&other| imp::socket(other) == socket).collect())
            })
            .collect(),
    })
}

#[cfg(target_os = "linux")]
mod imp {
    use super::CpuSet;

    const CPUS_MAX: usize = 8 * size_of::<libc::cpu_set_t>();

    pub(super) fn current() -> CpuSet {
        // SAFETY: all-zero is a valid (empty) `cpu_set_t`; the call writes at most its size; the macro only reads bits.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
                return CpuSet((0..std::thread::available_parallelism().map_or(1, usize::from)).collect());
            }
            CpuSet((0..CPUS_MAX).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect())
        }
    }

    pub(super) fn bind(cpus: &[usize]) {
        // SAFETY: as above; every number is below `CPUS_MAX`, because `current` made it.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for &cpu in cpus {
                libc::CPU_SET(cpu, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }

    pub(super) fn socket(cpu: usize) -> usize {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::CpuSet;

    pub(super) fn current() -> CpuSet {
        CpuSet((0..std::thread::available_parallelism().map_or(1, usize::from)).collect())
    }

    pub(super) fn bind(_cpus: &[usize]) {}

    pub(super) fn socket(_cpu: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_neighbouring_workers_get_different_cores() {
        let usable = CpuSet(vec![2, 3, 6, 7]);
        let first = place(Affinity::Core, 2, 0, &usable).unwrap();
        let second = place(Affinity::Core, 2, 2, &usable).unwrap();
        assert_eq!(first, [CpuSet(vec![2]), CpuSet(vec![3])]);
        assert_eq!(second, [CpuSet(vec![6]), CpuSet(vec![7])]);
    }

    #[test]
    fn nobody_is_bound_when_threads_outnumber_processors() {
        let usable = CpuSet(vec![0, 1]);
        assert_eq!(place(Affinity::Core, 2, 1, &usable), None);
        assert_eq!(place(Affinity::None, 1, 0, &usable), None);
    }

    #[test]
    fn binding_to_the_present_set_changes_nothing() {
        let before = CpuSet::current();
        before.bind_current_thread();
        assert_eq!(CpuSet::current(), before);
    }
}
