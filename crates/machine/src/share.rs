//! Divides the CPUs of a host among its workers, and a worker's CPUs among its threads.

use crate::{Cpu, Machine};

/// The scope that a worker's share must not exceed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShareScope {
    Node,
    Socket,
    Machine,
}

/// The unit that is not divided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShareUnit {
    Core,
    Cpu,
}

/// Strictest first: splitting one core's two hardware threads between workers costs less than a worker on two sockets.
const WAYS: [(ShareScope, ShareUnit); 5] = [
    (ShareScope::Node, ShareUnit::Core),
    (ShareScope::Socket, ShareUnit::Core),
    (ShareScope::Node, ShareUnit::Cpu),
    (ShareScope::Socket, ShareUnit::Cpu),
    (ShareScope::Machine, ShareUnit::Core),
];

impl Machine {
    /// The CPUs of worker `index` out of `workers` that share the allowed ones, in the order in which its threads
    /// should take them: the first hardware threads of all its cores come before any second one. `None` if there are
    /// fewer CPUs than workers.
    ///
    /// Each worker gets at least the number of CPUs divided by the number of workers, rounded down. If that is possible
    /// without it, no share crosses NUMA nodes, or at least not sockets, and no two workers share a core. Up to
    /// `workers - 1` CPUs may remain unassigned.
    #[must_use]
    pub fn share(&self, index: usize, workers: usize) -> Option<Vec<usize>> {
        if index >= workers || self.cpus.len() < workers {
            return None;
        }
        let least = self.cpus.len() / workers;
        let fits = |shares: &Vec<Vec<Cpu>>| shares.iter().all(|share| share.len() >= least);
        let shares = WAYS.iter().find_map(|&(within, whole)| self.cut(workers, within, whole).filter(fits));
        let shares = shares.or_else(|| self.cut(workers, ShareScope::Machine, ShareUnit::Cpu))?;
        let mut mine = shares.into_iter().nth(index)?;
        mine.sort_by_key(|cpu| cpu.thread);
        Some(mine.into_iter().map(|cpu| cpu.number).collect())
    }

    /// One CPU for each of `threads` threads of worker `index` out of `workers`; `None` if its share has fewer.
    #[must_use]
    pub fn places(&self, index: usize, workers: usize, threads: usize) -> Option<Vec<usize>> {
        let mut share = self.share(index, workers).filter(|share| share.len() >= threads)?;
        share.truncate(threads);
        Some(share)
    }

    fn cut(&self, workers: usize, within: ShareScope, whole: ShareUnit) -> Option<Vec<Vec<Cpu>>> {
        let groups: Vec<&[Cpu]> = self
            .cpus
            .chunk_by(|a, b| match within {
                ShareScope::Node => (a.socket, a.node) == (b.socket, b.node),
                ShareScope::Socket => a.socket == b.socket,
                ShareScope::Machine => true,
            })
            .collect();
        let counts = apportion(&groups.iter().map(|group| group.len()).collect::<Vec<_>>(), workers)?;
        let mut shares = Vec::with_capacity(workers);
        for (group, workers) in groups.into_iter().zip(counts) {
            let units: Vec<&[Cpu]> =
                group.chunk_by(|a, b| whole == ShareUnit::Core && a.first_sibling == b.first_sibling).collect();
            for index in 0..workers {
                let mine = &units[index * units.len() / workers..(index + 1) * units.len() / workers];
                shares.push(mine.concat());
            }
        }
        Some(shares)
    }
}

/// The number of workers for each group of CPUs such that each worker can have its part of all CPUs within one group;
/// `None` if that is impossible.
fn apportion(sizes: &[usize], workers: usize) -> Option<Vec<usize>> {
    let least = sizes.iter().sum::<usize>() / workers;
    let mut counts = vec![0; sizes.len()];
    for _ in 0..workers {
        // The group where one more worker leaves the most for each; ties go to the first.
        let each = |group: usize| sizes[group] as f64 / (counts[group] + 1) as f64;
        let free = (0..sizes.len()).filter(|&group| sizes[group] / (counts[group] + 1) >= least);
        let best = free.reduce(|best, group| if each(group) > each(best) { group } else { best })?;
        counts[best] += 1;
    }
    Some(counts)
}
