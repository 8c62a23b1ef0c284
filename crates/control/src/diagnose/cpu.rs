//! CPUs of hosts.

use super::{View, cause, waits::mean, words};
use crate::report::{Cause, CauseKind};

/// A host is full if this fraction of its CPUs is used.
const FULL: f64 = 0.85;
/// Work is uneven if the maximum is this many times the mean.
const SKEW: f64 = 1.2;
/// Copies are full if they work for at least the fraction `BUSY` of the time, and others have spare time if they work
/// for less than `HAS_TIME`.
const BUSY: f64 = 0.9;
const HAS_TIME: f64 = 0.75;

pub(super) fn causes(view: &View<'_>) -> Vec<Cause> {
    let mut causes: Vec<Cause> =
        (0..view.rates.hosts.len()).filter(|at| view.rates.limits[*at].cpus_taken).map(|at| taken(view, at)).collect();
    match skewed_host(view).or_else(|| skewed_copies(view)) {
        Some(skew) if causes.iter().all(|cause| cause.host != skew.host) => causes.push(skew),
        _ => causes.extend(full(view)),
    }
    causes
}

/// The fraction of time for which threads that could run wait for a CPU.
fn waiting(view: &View<'_>, host: usize) -> f64 {
    let host = &view.rates.hosts[host];
    host.cpus_waited / (host.cpus_used + host.cpus_waited).max(1e-9)
}

fn load(view: &View<'_>, host: usize) -> f64 {
    view.rates.hosts[host].cpus_used / view.cpus(host)
}

fn cpus_of_hosts(view: &View<'_>) -> Vec<String> {
    let line = |at: usize| {
        format!(
            "{}: {} of {} CPUs used, {} threads wait for one",
            view.host(at),
            words::cpus(view.rates.hosts[at].cpus_used),
            words::cpus(view.layout.hosts[at].cores),
            words::cpus(view.rates.hosts[at].cpus_waited)
        )
    };
    (0..view.rates.hosts.len()).map(line).collect()
}

fn taken(view: &View<'_>, at: usize) -> Cause {
    let share = waiting(view, at) / view.rates.hosts.len() as f64;
    let weight = view.waits.copies(at).max(share);
    let sentence = format!(
        "Other programs take CPUs of {}: the job gets {} of its {}, and threads that could run wait {} of the time.",
        view.host(at),
        words::cpus(view.rates.hosts[at].cpus_used),
        words::cpus(view.layout.hosts[at].cores),
        words::percent(waiting(view, at))
    );
    let cause = cause(CauseKind::CpuTaken, weight, sentence);
    Cause { host: Some(at as u32), evidence: cpus_of_hosts(view), ..cause }
}

/// A host that is nearly full and does more work than others.
fn skewed_host(view: &View<'_>) -> Option<Cause> {
    let hosts = &view.rates.hosts;
    let mean = hosts.iter().map(|host| host.cpus_used).sum::<f64>() / hosts.len().max(1) as f64;
    let at = (0..hosts.len()).max_by(|a, b| load(view, *a).total_cmp(&load(view, *b)))?;
    if hosts[at].cpus_used <= SKEW * mean || load(view, at) < FULL {
        return None;
    }
    let weight = view.waits.copies(at);
    let sentence = format!(
        "{} has {} times the work of a host on average and uses {} of its {} CPUs; senders wait {} of the time for it.",
        view.host(at),
        words::cpus(hosts[at].cpus_used / mean),
        words::cpus(hosts[at].cpus_used),
        words::cpus(view.cpus(at)),
        words::percent(weight)
    );
    let cause = cause(CauseKind::CpuSkew, weight, sentence);
    Some(Cause { host: Some(at as u32), evidence: cpus_of_hosts(view), ..cause })
}

/// Copies of a task that always work while those on other hosts do not.
fn skewed_copies(view: &View<'_>) -> Option<Cause> {
    for (at, task) in view.rates.tasks.iter().enumerate() {
        if view.layout.tasks[at].owners.is_empty() || task.workers.len() < 2 {
            continue;
        }
        let most = task.workers.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))?;
        let all: f64 = task.workers.iter().map(|worker| f64::from(worker.copies)).sum();
        let copies = f64::from(most.copies);
        let others = (mean(task, |worker| worker.busy) * all - most.busy * copies) / (all - copies).max(1.0);
        let Some(host) = view.host_of(most.worker).filter(|_| most.busy > BUSY && others < HAS_TIME) else { continue };
        let weight = view.waits.copies(host);
        let sentence = format!(
            "Copies of {} on {} work {} of the time, those of other workers {}; senders wait {} of the time for them.",
            view.task(at),
            view.host(host),
            words::percent(most.busy),
            words::percent(others),
            words::percent(weight)
        );
        let line = |worker: &crate::report::TaskWorkerReport| {
            format!("worker {}: busy {}, {:.0} rows/s", worker.worker, words::percent(worker.busy), worker.rows_s)
        };
        let evidence = task.workers.iter().map(line).collect();
        let cause = cause(CauseKind::CpuSkew, weight, sentence);
        return Some(Cause { host: Some(host as u32), task: Some(at as u32), evidence, ..cause });
    }
    None
}

fn full(view: &View<'_>) -> Option<Cause> {
    let hosts = view.rates.hosts.len();
    let is_full = |at: usize| view.rates.hosts[at].cpus_used >= FULL * view.layout.hosts[at].cores;
    if hosts == 0 || !(0..hosts).all(is_full) {
        return None;
    }
    let waits = (0..hosts).map(|at| view.waits.copies(at).max(waiting(view, at)));
    let weight = waits.sum::<f64>() / hosts as f64;
    let used: f64 = view.rates.hosts.iter().map(|host| host.cpus_used).sum();
    let cores: f64 = view.layout.hosts.iter().map(|host| host.cores).sum();
    let sentence = format!(
        "All hosts' CPUs are full: {} of {} are used. More hosts or cheaper functions would help.",
        words::cpus(used),
        words::cpus(cores)
    );
    Some(Cause { evidence: cpus_of_hosts(view), ..cause(CauseKind::CpuFull, weight, sentence) })
}
