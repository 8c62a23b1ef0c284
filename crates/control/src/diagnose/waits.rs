//! Who waits for what, as fractions of the sources' time.

use crate::{
    layout::{ClusterLayout, TaskRole},
    observe::{Rates, TaskRates},
};

/// Fractions of time spent waiting, 0 to 1.
#[derive(Debug)]
pub(super) struct Waits {
    /// By sources, for any reason.
    pub(super) sources: f64,
    /// By the task that waits most for others to receive its output.
    blocked_max: f64,
    /// Whether any link is full.
    pub(super) link_is_full: bool,
    /// By host: whether it sends.
    sends: Vec<bool>,
    /// By sending and receiving host: waits for room on the link, and for credit of copies behind it.
    pairs: Vec<(usize, usize, f64, f64)>,
    local: Vec<f64>,
}

impl Waits {
    pub(super) fn of(layout: &ClusterLayout, rates: &Rates) -> Self {
        let blocked = rates.tasks.iter().map(mean_blocked);
        let sources = blocked.clone().zip(&layout.tasks).filter(|(_, task)| task.role == TaskRole::Source);
        let hosts_full = rates.limits.iter().any(|limits| limits.in_full || limits.out_full);
        let mut sends = vec![false; rates.hosts.len()];
        for link in rates.links.iter().filter(|link| link.bytes_s > 0.0) {
            sends[link.from as usize] = true;
        }
        Self {
            sources: sources.map(|(blocked, _)| blocked).fold(0.0, f64::max),
            blocked_max: blocked.fold(0.0, f64::max),
            link_is_full: hosts_full || rates.link_full.contains(&true),
            sends,
            pairs: (rates.links.iter())
                .map(|link| (link.from as usize, link.to as usize, link.link_wait, link.credit_wait))
                .collect(),
            local: rates.limits.iter().map(|limits| limits.local_credit_wait).collect(),
        }
    }

    /// Several senders of a host may wait at once, but none waits longer than the one that waits most.
    fn bounded(&self, wait: f64) -> f64 {
        wait.min(if self.blocked_max > 0.0 { self.blocked_max } else { 1.0 })
    }

    fn mean(&self, waits: impl Iterator<Item = (usize, f64)>, but: Option<usize>) -> f64 {
        let senders = (0..self.sends.len()).filter(|host| self.sends[*host] && Some(*host) != but).count();
        let sum: f64 = waits.map(|(_, wait)| wait.min(1.0)).sum();
        self.bounded(sum / senders.max(1) as f64).min(1.0)
    }

    /// Waits for what a host receives.
    pub(super) fn inbound(&self, host: usize) -> f64 {
        let waits = self.pairs.iter().filter(|pair| pair.1 == host).map(|pair| (pair.0, pair.2 + pair.3));
        self.mean(waits, Some(host))
    }

    /// Waits for what a host sends.
    pub(super) fn outbound(&self, host: usize) -> f64 {
        let wait: f64 = self.pairs.iter().filter(|pair| pair.0 == host).map(|pair| pair.2 + pair.3).sum();
        self.mean([(host, wait)].into_iter(), None)
    }

    /// Waits for the link between two hosts.
    pub(super) fn link(&self, from: usize, to: usize) -> f64 {
        let pair = self.pairs.iter().filter(|pair| (pair.0, pair.1) == (from, to));
        self.mean(pair.map(|pair| (pair.0, pair.2 + pair.3)), None)
    }

    /// Waits for copies on a host that do not receive what is sent.
    pub(super) fn copies(&self, host: usize) -> f64 {
        let others = self.pairs.iter().filter(|pair| pair.1 == host).map(|pair| (pair.0, pair.3));
        let wait = self.mean(others.chain([(host, self.local[host])]), None);
        // Waits within a worker only show up in its tasks.
        if self.link_is_full { wait } else { wait.max(self.sources) }
    }

    /// Waits for copies of a task on all hosts.
    pub(super) fn task(&self, layout: &ClusterLayout, rates: &Rates, task: usize) -> f64 {
        let inputs = layout.tasks[task].inputs.iter().filter_map(|input| rates.tasks.get(*input as usize));
        let blocked = inputs.map(mean_blocked).reduce(f64::max).unwrap_or(self.sources);
        match self.link_is_full {
            true => {
                let hosts = rates.hosts.len().max(1) as f64;
                blocked.min((0..rates.hosts.len()).map(|host| self.copies(host)).sum::<f64>() / hosts)
            }
            false => blocked,
        }
    }
}

/// The fraction of time in which a task's copies wait for others to receive their output.
pub(super) fn mean_blocked(task: &TaskRates) -> f64 {
    mean(task, |worker| worker.blocked)
}

/// The mean over a task's copies.
pub(super) fn mean(task: &TaskRates, of: impl Fn(&crate::report::TaskWorkerReport) -> f64) -> f64 {
    let copies: f64 = task.workers.iter().map(|worker| f64::from(worker.copies)).sum();
    task.workers.iter().map(|worker| f64::from(worker.copies) * of(worker)).sum::<f64>() / copies.max(1.0)
}
