//! Explains in sentences why a job is slow, that is, what it waits for.
//!
//! CPUs are examined before networks, because less is certain about links. If nobody waits, there is no cause: a
//! source that has less to send also makes a job slower, and then nothing is wrong.
//!
//! | module  | causes                                                          |
//! |---------|-----------------------------------------------------------------|
//! | `cpu`   | CPUs taken by others, overloaded hosts, full CPUs               |
//! | `tasks` | the interpreter, heavy keys, slow steps and sinks               |
//! | `links` | full inbound and outbound links of hosts, and between hosts     |

mod cpu;
mod links;
mod tasks;
mod waits;
mod words;

use self::waits::Waits;
use crate::{
    assign::{Plan, Problem, assign},
    layout::{ClusterLayout, TaskRole},
    observe::Rates,
    report::{Cause, CauseKind, Remedy},
};

/// Something that others wait for less than this fraction of the time is not a cause.
const WEIGHT_MIN: f64 = 0.05;
/// A smaller gain is not worth moving anything.
const GAIN_MIN: f64 = 0.05;

/// What slows a job down, the heaviest cause first.
pub fn diagnose(layout: &ClusterLayout, rates: &Rates) -> Vec<Cause> {
    // Rates of another layout say nothing about this one.
    if rates.hosts.len() != layout.hosts.len() || rates.tasks.len() != layout.tasks.len() {
        return Vec::new();
    }
    let view = View { layout, rates, waits: Waits::of(layout, rates) };
    let mut causes = cpu::causes(&view);
    causes.extend(tasks::keyed(&view));
    causes.extend(links::causes(&view));
    // Steps are slow by themselves only if none of the causes above explains it.
    let slow = tasks::slow(&view, &causes);
    causes.extend(slow);
    causes.retain(|cause| cause.weight >= WEIGHT_MIN);
    causes.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    prescribe(&view, &mut causes);
    causes
}

/// What the causes are derived from.
struct View<'a> {
    layout: &'a ClusterLayout,
    rates: &'a Rates,
    waits: Waits,
}

impl View<'_> {
    fn host(&self, host: usize) -> &str {
        &self.layout.hosts[host].name
    }

    fn task(&self, task: usize) -> String {
        let TaskRole::Source = self.layout.tasks[task].role else { return self.layout.tasks[task].name.clone() };
        format!("source {}", self.layout.tasks[task].name)
    }

    fn host_of(&self, worker: u32) -> Option<usize> {
        let host = self.layout.worker_hosts.get(worker as usize).map(|host| *host as usize);
        host.filter(|host| *host < self.layout.hosts.len())
    }

    /// How many CPUs a host has for the job.
    fn cpus(&self, host: usize) -> f64 {
        let cpus = self.rates.limits[host].cpus.unwrap_or(self.layout.hosts[host].cores);
        if cpus > 0.0 { cpus } else { f64::INFINITY }
    }
}

fn cause(kind: CauseKind, weight: f64, sentence: String) -> Cause {
    Cause { kind, sentence, evidence: Vec::new(), host: None, task: None, weight, remedy: None }
}

/// Whether moving buckets can help against a cause.
fn is_of_buckets(kind: CauseKind) -> bool {
    !matches!(kind, CauseKind::CpuFull | CauseKind::SlowStep | CauseKind::SlowSink)
}

/// Adds a remedy to the causes, if moving buckets helps.
fn prescribe(view: &View<'_>, causes: &mut [Cause]) {
    if !causes.iter().any(|cause| is_of_buckets(cause.kind)) {
        return;
    }
    let plan = assign(&Problem::of(view.layout, view.rates)).unwrap_or_default();
    let helps = plan.gain() >= GAIN_MIN;
    for cause in causes.iter_mut().filter(|cause| is_of_buckets(cause.kind)) {
        if helps {
            cause.sentence += &format!(" {}", remedy_in_words(view, cause.host, &plan));
            cause.remedy = Some(Remedy {
                owners: plan.owners.clone(),
                buckets: plan.buckets,
                gain: plan.gain(),
                state_bytes: plan.state_bytes,
                pause_ms: (plan.pause_s * 1e3) as u64,
            });
        } else if view.layout.tasks.iter().any(|task| !task.owners.is_empty()) {
            cause.sentence += " Moving buckets would not help much.";
        }
    }
}

/// "Moving 54 of its 128 buckets should give +38 %, costs 40 MB of state and about 90 ms."
fn remedy_in_words(view: &View<'_>, host: Option<u32>, plan: &Plan) -> String {
    let (mut all, mut its, mut its_moved) = (0, 0, 0);
    for (at, task) in view.layout.tasks.iter().enumerate() {
        let new = plan.owners.iter().find(|(task, _)| *task as usize == at).map(|(_, owners)| owners);
        for (bucket, owner) in task.owners.iter().enumerate() {
            let worker = task.copy_workers.get(*owner as usize);
            let on = worker.and_then(|worker| view.host_of(*worker)).map(|host| host as u32);
            all += 1;
            if on == host {
                its += 1;
                its_moved += u32::from(new.is_some_and(|new| new.get(bucket) != Some(owner)));
            }
        }
    }
    let what = match host.is_some() && its_moved == plan.buckets {
        true => format!("{} of its {its} buckets", plan.buckets),
        false => format!("{} of {all} buckets", plan.buckets),
    };
    let pause = format!("about {:.0} ms", (plan.pause_s * 1e3).max(1.0));
    let costs = match plan.state_bytes {
        0 => pause,
        bytes => format!("{} of state and {pause}", words::bytes(bytes as f64)),
    };
    format!("Moving {what} should give +{}, costs {costs}.", words::percent(plan.gain()))
}

#[cfg(test)]
mod tests;
