//! The processors on which a thread may run. Linux only; elsewhere threads are not bound.

use std::fmt;
use std::str::FromStr;

use tidemill_machine::{CpuSet, Machine};

/// How threads are bound to processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuAffinity {
    /// Each thread on its own processor.
    Core,
    /// The same until other programs take these processors, then wherever the operating system likes. Bound threads
    /// that share their processors wait for each other at every barrier, and are several times slower than unbound
    /// ones.
    Auto,
    /// Each thread on any processor of one socket.
    Socket,
    /// Wherever the operating system likes.
    #[default]
    None,
}

impl FromStr for CpuAffinity {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "core" => Ok(CpuAffinity::Core),
            "auto" => Ok(CpuAffinity::Auto),
            "socket" => Ok(CpuAffinity::Socket),
            "none" => Ok(CpuAffinity::None),
            _ => Err(format!("affinity must be \"auto\", \"core\", \"socket\" or \"none\", not {name:?}")),
        }
    }
}

impl fmt::Display for CpuAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CpuAffinity::Core => "core",
            CpuAffinity::Auto => "auto",
            CpuAffinity::Socket => "socket",
            CpuAffinity::None => "none",
        })
    }
}

/// The processors that this thread may use now; empty if the system does not report them.
pub(crate) fn current() -> CpuSet {
    CpuSet::of_current_thread().unwrap_or_default()
}

/// Binds the calling thread. A refusal (a container may forbid it) only costs speed, so it is not an error.
pub(crate) fn bind(set: &CpuSet) {
    if !set.is_empty() {
        let _ = set.bind_current_thread();
    }
}

/// How many threads this process can keep busy, given its affinity and the CPU quota of its container.
#[must_use]
pub fn usable_cpus() -> usize {
    Machine::here().usable()
}

/// The place of each of `threads` threads of worker `index`, out of `workers` that share the processors of `machine`.
/// `None` leaves them unbound: by request, or because threads would share a processor while others are idle.
pub(crate) fn place(
    affinity: CpuAffinity,
    threads: usize,
    (index, workers): (usize, usize),
    machine: &Machine,
) -> Option<Vec<CpuSet>> {
    if affinity == CpuAffinity::None {
        return None;
    }
    let places = machine.places(index, workers, threads)?.into_iter();
    Some(match affinity {
        CpuAffinity::Socket => places.map(|cpu| machine.socket_of(cpu)).collect(),
        _ => places.map(|cpu| [cpu].into_iter().collect()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_neighboring_workers_get_processors_of_their_own() {
        let machine = Machine::here();
        let cpus = machine.cpus().len();
        for affinity in [CpuAffinity::Core, CpuAffinity::Auto] {
            let all = (0..cpus).flat_map(|index| place(affinity, 1, (index, cpus), &machine).unwrap());
            let mut all: Vec<String> = all.map(|set| set.to_string()).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), cpus);
        }
        let sockets = place(CpuAffinity::Socket, cpus, (0, 1), &machine).unwrap();
        assert!(sockets.iter().all(|set| set.iter().all(|cpu| machine.allowed().contains(cpu))));
    }

    #[test]
    fn nobody_is_bound_when_threads_outnumber_processors() {
        let machine = Machine::here();
        let cpus = machine.cpus().len();
        assert_eq!(place(CpuAffinity::Core, cpus + 1, (0, 1), &machine), None);
        assert_eq!(place(CpuAffinity::Core, cpus, (1, 2), &machine), None);
        assert_eq!(place(CpuAffinity::None, 1, (0, 1), &machine), None);
    }

    #[test]
    fn binding_to_the_present_set_changes_nothing() {
        let before = current();
        bind(&before);
        assert_eq!(current(), before);
    }
}
