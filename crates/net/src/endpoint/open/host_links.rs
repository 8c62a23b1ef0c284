//! What is true for all pairs of workers on one host. Schedules depend on it, so all workers must get the same
//! answer.

use std::collections::BTreeMap;

use super::shared_memory::{MEMORY, PeerAccess};
use crate::Rank;
use crate::topology::{HostIdentity, HostLinks, WorkerPlacement};

/// Returns for each worker what is true for the workers of its host, given what each could open of the others.
pub(super) fn host_links(placements: &[WorkerPlacement], access: &[PeerAccess]) -> Vec<HostLinks> {
    let could = |a: usize, b: usize| access[a].of(Rank(b as u32)) & MEMORY != 0;
    let mut of_host: BTreeMap<HostIdentity, HostLinks> = BTreeMap::new();
    let mut one = |mine: &WorkerPlacement| {
        *of_host.entry(mine.host).or_insert_with(|| {
            let here: Vec<usize> = (0..placements.len()).filter(|&r| placements[r].host == mine.host).collect();
            let pairs = || here.iter().flat_map(|&a| here.iter().map(move |&b| (a, b))).filter(|(a, b)| a != b);
            HostLinks { shared_memory: pairs().all(|(a, b)| could(a, b)), own_cores: has_own_core(placements, mine) }
        })
    };
    placements.iter().map(&mut one).collect()
}

/// Whether each worker of this host has its own core.
fn has_own_core(placements: &[WorkerPlacement], mine: &WorkerPlacement) -> bool {
    // A quota may allow less than the processors, and all workers of the host share it.
    let here = || placements.iter().filter(|p| p.host == mine.host);
    let quota = here().filter_map(|p| p.quota).min().map_or(usize::MAX, |quota| quota as usize);
    // Hosts of one machine (containers, emulated hosts) share its processors.
    let machine = || placements.iter().filter(|p| p.host.is_same_machine(&mine.host));
    let mut processors: Vec<u32> = machine().flat_map(|p| p.processors.iter().copied()).collect();
    processors.sort_unstable();
    processors.dedup();
    // No set of cores may hold more workers than it has cores (Hall's condition, for the sets that workers are bound
    // to).
    let within = |set: &[u32]| machine().filter(|p| p.processors.iter().all(|core| set.contains(core))).count();
    here().count() <= quota
        && machine().count() <= processors.len()
        && machine().all(|p| within(&p.processors) <= p.processors.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that polls on a core that another one needs delays the worker that could end its wait. All workers
    /// must get the same result.
    #[test]
    fn a_core_of_its_own_is_one_that_no_other_worker_has_to_use() {
        let judged = |sets: &[&[u32]], quota: Option<u32>| {
            let one = |set: &&[u32]| WorkerPlacement { processors: set.to_vec(), quota, ..WorkerPlacement::here() };
            let placements: Vec<WorkerPlacement> = sets.iter().map(one).collect();
            let all: Vec<bool> = placements.iter().map(|mine| has_own_core(&placements, mine)).collect();
            assert!(all.iter().all(|own| *own == all[0]), "{sets:?}: {all:?}");
            all[0]
        };
        let four: &[u32] = &[0, 1, 2, 3];
        assert!(judged(&[four; 4], None));
        assert!(!judged(&[four; 5], None));
        assert!(judged(&[four; 2], Some(2)));
        assert!(!judged(&[four; 2], Some(1)), "both share the quota");
        assert!(judged(&[&[0], &[1]], None));
        assert!(!judged(&[&[0], &[1]], Some(1)), "a quota limits bound workers too");
        assert!(!judged(&[&[0], &[0], &[1, 2, 3]], None), "two share core 0");
        assert!(judged(&[&[0, 1], &[0, 1], &[2, 3]], None));
        assert!(!judged(&[&[0, 1], &[0, 1], &[0, 1], &[2, 3]], None));
    }

    /// Emulated hosts have a worker or two each, but all share the same two cores.
    #[test]
    fn hosts_of_one_machine_share_its_cores() {
        let on = |host: u64, quota| WorkerPlacement {
            host: HostIdentity::here().container(host),
            processors: vec![0, 1],
            quota,
            ..WorkerPlacement::here()
        };
        let own = |placements: &[WorkerPlacement]| has_own_core(placements, &placements[0]);
        assert!(own(&[on(1, None), on(2, None)]));
        assert!(!own(&[on(1, None), on(2, None), on(3, None)]));
        assert!(own(&[on(1, Some(1)), on(2, Some(1))]), "each has a quota of its own");
        assert!(!own(&[on(1, Some(1)), on(1, Some(1))]));
    }

    /// Ranks that judge a host differently would choose different schedules, which do not fit together; a pair
    /// without shared memory would be considered a hundred times faster than it is.
    #[test]
    fn a_host_shares_memory_if_every_pair_on_it_does() {
        let here = || WorkerPlacement { processors: vec![0, 1], quota: None, ..WorkerPlacement::here() };
        let access = |row: [u8; 3]| (0..).map(Rank).zip(row).collect();
        let links = |could: [[u8; 3]; 3]| host_links(&[here(), here(), here()], &could.map(access));
        let shared = HostLinks { shared_memory: true, own_cores: false };
        assert_eq!(links([[0, 3, 3], [3, 0, 3], [3, 3, 0]]), [shared; 3]);
        assert_eq!(links([[0, 3, 3], [3, 0, 3], [3, 2, 0]]), [HostLinks { shared_memory: false, ..shared }; 3]);
        assert_eq!(host_links(&[here()], &[PeerAccess::default()]), [HostLinks::BEST], "a single worker lacks nothing");
    }
}
