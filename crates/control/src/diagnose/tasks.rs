//! Tasks: the interpreter, heavy keys, slow steps and sinks.

use super::{
    View, cause,
    waits::{mean, mean_blocked},
    words,
};
use crate::{
    layout::TaskRole,
    report::{Cause, CauseKind},
};

/// A worker's interpreter is full if functions run in it, or wait for it, for this fraction of the time.
const INTERPRETER: f64 = 0.9;
/// A task is always working from this fraction on.
const BUSY: f64 = 0.85;
/// A task waits for others from this fraction on.
const BLOCKED: f64 = 0.15;

/// Causes against which moving buckets may help.
pub(super) fn keyed(view: &View<'_>) -> Vec<Cause> {
    let tasks = 0..view.rates.tasks.len();
    tasks.clone().filter_map(|at| interpreter(view, at)).chain(tasks.filter_map(|at| heavy_key(view, at))).collect()
}

/// The load of a worker's interpreter from functions of all tasks.
fn interpreter_of(view: &View<'_>, worker: u32) -> f64 {
    let entries = view.rates.tasks.iter().flat_map(|task| task.workers.iter().zip(&task.interpreter));
    entries.filter(|(entry, _)| entry.worker == worker).map(|(_, share)| *share).sum()
}

fn interpreter(view: &View<'_>, at: usize) -> Option<Cause> {
    if view.layout.tasks[at].role != TaskRole::Step {
        return None;
    }
    let task = &view.rates.tasks[at];
    let (worker, share) =
        task.workers.iter().zip(&task.interpreter).max_by(|a, b| a.1.total_cmp(b.1)).map(|(w, s)| (w.worker, *s))?;
    let all = interpreter_of(view, worker);
    if all < INTERPRETER || share < 0.5 * all {
        return None;
    }
    let host = view.host_of(worker)?;
    let weight = view.waits.copies(host).min(view.waits.task(view.layout, view.rates, at).max(0.0));
    let sentence = format!(
        "Step {} is bound by the interpreter of worker {worker} on {}: functions run in it or wait for it {} of the \
         time; senders wait {} of the time.",
        view.task(at),
        view.host(host),
        words::percent(all.min(1.0)),
        words::percent(weight)
    );
    let line = |worker: &crate::report::TaskWorkerReport| {
        let all = words::percent(interpreter_of(view, worker.worker));
        format!("worker {}: {all} in the interpreter, {:.0} rows/s", worker.worker, worker.rows_s)
    };
    let evidence = task.workers.iter().map(line).collect();
    let cause = cause(CauseKind::Interpreter, weight, sentence);
    Some(Cause { host: Some(host as u32), task: Some(at as u32), evidence, ..cause })
}

/// A bucket with more than half of a copy's average load, most of it from one key.
fn heavy_key(view: &View<'_>, at: usize) -> Option<Cause> {
    let (layout, task) = (&view.layout.tasks[at], &view.rates.tasks[at]);
    let load = if task.work.iter().sum::<f64>() > 0.0 { &task.work } else { &task.rows_s };
    let all: f64 = load.iter().sum();
    let rows: f64 = task.rows_s.iter().sum();
    let key = task.heavy_keys.iter().find(|key| {
        let bucket = key.bucket as usize;
        let of_bucket = task.rows_s[bucket] / rows.max(1e-9);
        load[bucket] > 0.5 * all / layout.copy_workers.len().max(1) as f64 && key.share > 0.5 * of_bucket
    })?;
    let owner = *layout.owners.get(key.bucket as usize)?;
    let worker = *layout.copy_workers.get(owner as usize)?;
    let host = view.host_of(worker)?;
    let busy = task.workers.iter().find(|entry| entry.worker == worker)?.busy;
    let work = task.work[key.bucket as usize];
    // One of several copies may be full while the others are not.
    if busy < BUSY && work < BUSY {
        return None;
    }
    let weight = view.waits.copies(host);
    let sentence = format!(
        "Key {:?} has {} of the rows of {}; the copy on {} that has it works {} of the time, and senders wait {} of the \
         time for it. Its bucket cannot be divided: aggregate before {2}, or add something to the key and combine the \
         results in a second step.",
        key.key,
        words::percent(key.share),
        view.task(at),
        view.host(host),
        words::percent(busy.max(work.min(1.0))),
        words::percent(weight)
    );
    let line = |key: &crate::report::HeavyKeyReport| {
        format!("{:?}: {} of the rows, bucket {}", key.key, words::percent(key.share), key.bucket)
    };
    let evidence = task.heavy_keys.iter().map(line).collect();
    let cause = cause(CauseKind::HeavyKey, weight, sentence);
    Some(Cause { host: Some(host as u32), task: Some(at as u32), evidence, ..cause })
}

/// Steps and sinks that always work, on all hosts, and wait for nobody, except for those that `known` explains.
pub(super) fn slow(view: &View<'_>, known: &[Cause]) -> Vec<Cause> {
    let explained = |at: usize| {
        known.iter().any(|cause| {
            let cpu = matches!(cause.kind, CauseKind::CpuSkew | CauseKind::CpuFull);
            cause.task == Some(at as u32) || (cpu && cause.task.is_none())
        })
    };
    let mut causes = Vec::new();
    for (at, task) in view.rates.tasks.iter().enumerate() {
        let role = view.layout.tasks[at].role;
        let busy = mean(task, |worker| worker.busy);
        let least = task.workers.iter().map(|worker| worker.busy).reduce(f64::min).unwrap_or(0.0);
        let blocked = mean_blocked(task);
        // A sink waits for the system behind it.
        let slow = match role {
            TaskRole::Source => false,
            TaskRole::Step => busy > BUSY && least > 0.8 * BUSY && blocked < BLOCKED,
            TaskRole::Sink => busy + blocked > BUSY,
        };
        if !slow || explained(at) {
            continue;
        }
        let weight = view.waits.task(view.layout, view.rates, at);
        let rows_s: f64 = task.workers.iter().map(|worker| worker.rows_s).sum();
        let (kind, what) = match role {
            TaskRole::Sink => (CauseKind::SlowSink, "Sink"),
            _ => (CauseKind::SlowStep, "Step"),
        };
        let python = task.interpreter.iter().sum::<f64>() > 0.5 * task.workers.len() as f64;
        let sentence = format!(
            "{what} {} takes {rows_s:.0} rows/s and no more: {} {} of the time on all hosts, and what comes before \
             it waits {} of the time. {} would help.",
            view.task(at),
            if python { "its Python function runs" } else { "it works" },
            words::percent((busy + if role == TaskRole::Sink { blocked } else { 0.0 }).min(1.0)),
            words::percent(weight),
            match kind {
                CauseKind::SlowSink => "A faster sink, or more copies of it,",
                _ => "A faster function, or more copies of it,",
            }
        );
        let line = |worker: &crate::report::TaskWorkerReport| {
            let (busy, blocked) = (words::percent(worker.busy), words::percent(worker.blocked));
            format!("worker {}: busy {busy}, blocked {blocked}, {:.0} rows/s", worker.worker, worker.rows_s)
        };
        let evidence = task.workers.iter().map(line).collect();
        causes.push(Cause { task: Some(at as u32), evidence, ..cause(kind, weight, sentence) });
    }
    causes
}
