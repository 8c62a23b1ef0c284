//! Requests of `tidemill drain`, `tidemill balance` and `tidemill scale` to a running stream: a file next to worker 0's
//! status file, answered by another file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tidemill_control::{
    ClusterLayout, Plan, Problem, Rates, SplitPlan, TaskLayout, assign, plan_splits, share_with, spare_workers,
};
use tidemill_dataflow::rebalance::PendingRebalance;
use tidemill_dataflow::stream::BarrierControl;
use tidemill_dataflow::{LookTimer, RunProgress};

/// The requests to one run. A drained host gets no keys for the rest of the run, unless that is undone.
pub struct MoveRequests {
    /// The status file, next to which requests are; `None` if there is none.
    file: Option<PathBuf>,
    timer: LookTimer,
    /// Drained hosts, by their number in the layout.
    pub drained: BTreeSet<u32>,
    under_way: Option<MoveUnderWay>,
    /// Waits for a checkpoint that says where splits are.
    deferred: Option<MoveRequest>,
    /// The number of workers that are active since the run was scaled, until it is taken.
    scaled_to: Option<u32>,
}

/// Moving buckets and splits, and the request for it.
struct MoveUnderWay {
    id: String,
    moving: RequestedMove,
    pending: PendingRebalance,
}

/// A request.
struct MoveRequest {
    id: String,
    kind: RequestKind,
    dry_run: bool,
}

enum RequestKind {
    Drain(String),
    Undo(String),
    Balance,
    /// To this number of workers that are not spare.
    Scale(usize),
}

/// A planned move, and the hosts that are drained afterwards.
struct RequestedMove {
    layout: ClusterLayout,
    plan: Plan,
    splits: SplitPlan,
    drained: BTreeSet<u32>,
    /// The host to be emptied.
    emptied: Option<u32>,
    /// The numbers of active workers before and after, if these change.
    scaled: Option<(usize, usize)>,
}

impl MoveRequest {
    fn parse(text: &[u8]) -> Option<MoveRequest> {
        let found: Value = serde_json::from_slice(text).ok()?;
        let id = found["id"].as_str()?.to_owned();
        let is_name = !id.is_empty() && id.len() <= MoveRequests::ID_MAX && id.bytes().all(|b| b.is_ascii_hexdigit());
        let host = || found["host"].as_str().map(str::to_owned);
        let kind = match found["kind"].as_str()? {
            "drain" => RequestKind::Drain(host()?),
            "undo" => RequestKind::Undo(host()?),
            "balance" => RequestKind::Balance,
            "scale" => RequestKind::Scale(usize::try_from(found["workers"].as_u64()?).ok().filter(|to| *to > 0)?),
            _ => return None,
        };
        is_name.then(|| MoveRequest { id, kind, dry_run: found["dry_run"].as_bool().unwrap_or(false) })
    }
}

impl MoveRequests {
    const EVERY: Duration = Duration::from_millis(100);
    /// Longer requests are invalid.
    const BYTES_MAX: u64 = 64 << 10;
    const ID_MAX: usize = 64;

    pub fn new(file: Option<PathBuf>) -> Self {
        let requests = MoveRequests {
            file,
            timer: LookTimer::new(Self::EVERY),
            drained: BTreeSet::new(),
            under_way: None,
            deferred: None,
            scaled_to: None,
        };
        // Left over from a process with the same process ID.
        drop(requests.asked().map(fs::remove_file));
        requests
    }

    /// Handles requests now and then.
    pub fn look(&mut self, run: &RunProgress, rates: &Rates) {
        if run.worker() != 0 || !self.timer.is_due() {
            return;
        }
        self.settle(Some(run));
        if self.under_way.is_none()
            && let (was_deferred, Some(request)) =
                (self.deferred.is_some(), self.deferred.take().or_else(|| self.next()))
        {
            let lacks_splits = |task: &TaskLayout| task.moves_splits && task.splits.is_empty();
            if !matches!(request.kind, RequestKind::Undo(_)) && run.layout().tasks.iter().any(lacks_splits) {
                if !was_deferred {
                    run.request(BarrierControl::Checkpoint);
                }
                self.deferred = Some(request);
                return;
            }
            match self.handle(run, &request, rates) {
                Ok(Some(told)) => self.answer(&request.id, &told),
                Ok(None) => {}
                Err(reason) => self.answer(&request.id, &json!({"error": reason})),
            }
        }
    }

    /// Answers a request once all has moved, and a checkpoint of `run` has splits where they are now.
    fn settle(&mut self, run: Option<&RunProgress>) {
        let Some(under_way) = &mut self.under_way else { return };
        let Some(outcome) = under_way.pending.outcome() else { return };
        if let (Ok(_), Some((_, active))) = (&outcome, under_way.moving.scaled) {
            self.scaled_to = u32::try_from(active).ok();
        }
        let is_kept = |run: &RunProgress, epoch: u64| run.durable().is_none_or(|durable| durable > epoch);
        if let (Ok(moved), Some(run)) = (&outcome, run)
            && moved.splits > 0
            && !is_kept(run, moved.epoch)
        {
            return;
        }
        let Some(MoveUnderWay { id, moving, .. }) = self.under_way.take() else { return };
        let told = match outcome {
            Err(reason) => json!({"error": reason}),
            Ok(moved) => {
                let mut told = moving.told(false);
                told["buckets"] = json!(moved.buckets);
                told["moved_splits"] = json!(moved.splits);
                told["bytes"] = json!(moved.bytes);
                told["epoch"] = json!(moved.epoch);
                told["waited_s"] = json!(moved.waited.as_secs_f64());
                self.drained = moving.drained;
                told
            }
        };
        self.answer(&id, &told);
    }

    /// Carries out a request. Returns the answer, if it is already known.
    fn handle(&mut self, run: &RunProgress, request: &MoveRequest, rates: &Rates) -> Result<Option<Value>, String> {
        let layout = run.layout();
        if let RequestKind::Scale(workers) = request.kind {
            return self.scale(run, request, (layout, workers), rates);
        }
        let (mut drained, mut emptied) = (self.drained.clone(), None);
        match &request.kind {
            RequestKind::Balance | RequestKind::Scale(_) => {}
            RequestKind::Drain(host) => {
                let host = host_named(&layout, host)?;
                drained.insert(host);
                emptied = Some(host);
            }
            RequestKind::Undo(name) => {
                if !self.drained.remove(&host_named(&layout, name)?) {
                    return Err(format!("host {name:?} is not drained; {}", described(&layout, &self.drained)));
                }
                let said = format!("host {name} gets keys and splits again at the next balance: tidemill balance");
                return Ok(Some(json!({"said": said})));
            }
        }
        check_owners(&layout, &drained)?;
        let layout = layout.without(drained.iter().copied());
        let problem = Problem::of(&layout, rates);
        let asked = match emptied {
            Some(_) => problem.clone(),
            None => problem.clone().of_buckets_alone(),
        };
        let is_keyed = layout.tasks.iter().any(|task| !task.owners.is_empty());
        let mut plan = match is_keyed {
            true => assign(&asked).map_err(|error| error.to_string())?,
            false => Plan::default(),
        };
        // The gain must count everything that the job does.
        (plan.before, plan.after) = (problem.load(), problem.load_with(&plan.owners).unwrap_or_default());
        let splits = plan_splits(&layout, emptied.is_none());
        let moving = RequestedMove { plan, splits, layout, drained, emptied, scaled: None };
        if moving.plan.buckets == 0 && moving.splits.is_empty() {
            let said = match emptied {
                Some(host) => {
                    let host = &moving.layout.hosts[host as usize].name;
                    format!("nothing to move: host {host} has no keys, and reads no split that another can")
                }
                None => "nothing to move: keys are spread as evenly as moving buckets can, and so are splits".into(),
            };
            if !request.dry_run {
                self.drained.clone_from(&moving.drained);
            }
            return Ok(Some(json!({"said": said, "stays": moving.stays()})));
        }
        if request.dry_run {
            return Ok(Some(moving.told(true)));
        }
        let pending = run.move_all(&moving.layout, &moving.plan.owners, moving.splits.clone());
        self.under_way = Some(MoveUnderWay { id: request.id.clone(), moving, pending });
        Ok(None)
    }

    /// Carries out a request for another number of active workers, or says why that needs a restart.
    fn scale(
        &mut self,
        run: &RunProgress,
        request: &MoveRequest,
        (layout, to): (ClusterLayout, usize),
        rates: &Rates,
    ) -> Result<Option<Value>, String> {
        let from = layout.active();
        if to == from {
            return Ok(Some(json!({"said": format!("{} already", counted(from))})));
        }
        if let Some(reason) = why_restart(&layout, to) {
            return Ok(Some(json!({"restart": reason})));
        }
        let spares = spare_workers(&layout.worker_hosts, to);
        let joined = layout.spares.difference(&spares).copied().collect();
        let layout = layout.without(self.drained.iter().copied()).with_spares(spares);
        if (0..layout.worker_hosts.len() as u32).all(|worker| layout.is_closed(worker)) {
            let drained = described(&layout, &self.drained);
            return Err(format!("its {} would all be on drained hosts; {drained}", counted(to)));
        }
        let problem = Problem::of(&layout, rates);
        let mut plan = match to > from {
            true => share_with(&problem, &joined),
            false => assign(&problem).map_err(|error| error.to_string())?,
        };
        (plan.before, plan.after) = (problem.load(), problem.load_with(&plan.owners).unwrap_or_default());
        let splits = plan_splits(&layout, to > from);
        let drained = self.drained.clone();
        let moving = RequestedMove { plan, splits, layout, drained, emptied: None, scaled: Some((from, to)) };
        if request.dry_run {
            return Ok(Some(moving.told(true)));
        }
        let pending = run.scale(&moving.layout, &moving.plan.owners, moving.splits.clone());
        self.under_way = Some(MoveUnderWay { id: request.id.clone(), moving, pending });
        Ok(None)
    }

    /// The number of active workers, once after the run was scaled.
    pub fn take_scaled(&mut self) -> Option<u32> {
        self.scaled_to.take()
    }

    fn asked(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|file| file.with_extension("move"))
    }

    /// Removes and parses a request.
    fn next(&self) -> Option<MoveRequest> {
        let asked = self.asked()?;
        let found = fs::symlink_metadata(&asked).ok()?;
        let text = (found.is_file() && found.len() <= Self::BYTES_MAX).then(|| fs::read(&asked).ok()).flatten();
        drop(fs::remove_file(&asked));
        MoveRequest::parse(&text?)
    }

    /// The requester polls for the answer; if it cannot be written, the requester times out.
    fn answer(&self, id: &str, told: &Value) {
        if let Some(file) = &self.file {
            let new = file.with_extension(format!("{id}.draft"));
            drop(fs::write(&new, told.to_string()).and_then(|()| fs::rename(&new, answer_file(file, id))));
        }
    }
}

impl Drop for MoveRequests {
    fn drop(&mut self) {
        // Since the run has ended, all requests have an outcome.
        self.settle(None);
        drop(self.asked().map(fs::remove_file));
    }
}

fn answer_file(status: &Path, id: &str) -> PathBuf {
    status.with_extension(format!("{id}.moved"))
}

impl RequestedMove {
    /// The buckets of each worker before and after, whether it is spare then, and its host.
    fn told_workers(&self) -> Vec<Value> {
        let workers = self.layout.worker_hosts.len();
        let (mut before, mut after) = (vec![0_u64; workers], vec![0_u64; workers]);
        for (at, task) in (0..).zip(&self.layout.tasks) {
            let new = self.plan.owners.iter().find(|(of, _)| *of == at).map_or(&task.owners, |(_, owners)| owners);
            task.owners.iter().for_each(|owner| before[task.copy_workers[*owner as usize] as usize] += 1);
            new.iter().for_each(|owner| after[task.copy_workers[*owner as usize] as usize] += 1);
        }
        let told = (0..workers).map(|worker| {
            let host = &self.layout.hosts[self.layout.worker_hosts[worker] as usize].name;
            let spare = self.layout.spares.contains(&(worker as u32));
            json!({"worker": worker, "host": host, "before": before[worker], "after": after[worker], "spare": spare})
        });
        told.collect()
    }

    /// The answer in JSON.
    fn told(&self, dry_run: bool) -> Value {
        let moved = self.plan.owners.iter().map(|(task, owners)| {
            let of = &self.layout.tasks[*task as usize];
            let moved = of.owners.iter().zip(owners).filter(|(old, new)| old != new).count();
            json!({"task": of.name, "moved": moved, "buckets": owners.len()})
        });
        let (mut before, mut after) = (vec![0_u64; self.layout.hosts.len()], vec![0_u64; self.layout.hosts.len()]);
        for (at, task) in (0..).zip(&self.layout.tasks) {
            let host = |owner: &u32| self.layout.worker_hosts[task.copy_workers[*owner as usize] as usize] as usize;
            let new = self.plan.owners.iter().find(|(of, _)| *of == at).map_or(&task.owners, |(_, owners)| owners);
            task.owners.iter().for_each(|owner| before[host(owner)] += 1);
            new.iter().for_each(|owner| after[host(owner)] += 1);
        }
        let hosts = (0..).zip(&self.layout.hosts).map(|(at, host)| {
            let drained = self.drained.contains(&at);
            json!({"host": host.name, "before": before[at as usize], "after": after[at as usize], "drained": drained})
        });
        let is_known = self.layout.tasks.iter().any(|task| !task.state_bytes.is_empty());
        json!({
            "dry_run": dry_run,
            "buckets": self.plan.buckets,
            "bytes": is_known.then_some(self.plan.state_bytes),
            "waited_s": self.plan.pause_s,
            "gain": (self.emptied.is_none() && self.scaled.is_none()).then_some(self.plan.gain()),
            "scaled": self.scaled,
            "workers": self.scaled.map(|_| self.told_workers()),
            "tasks": moved.collect::<Vec<_>>(),
            "splits": self.told_splits(),
            "hosts": hosts.collect::<Vec<_>>(),
            "stays": self.stays(),
        })
    }

    /// The splits that move: by source and next host (or worker, if the job is scaled), their names.
    fn told_splits(&self) -> Vec<Value> {
        let mut told = Vec::new();
        for (task, moves) in &self.splits {
            let of = self.layout.tasks.iter().find(|of| of.name == *task).expect("the plan is of this layout");
            let mut names: BTreeMap<u32, Vec<&String>> = BTreeMap::new();
            for (split, to) in moves.values().flatten() {
                let worker = of.copy_workers[*to as usize];
                let place = if self.scaled.is_some() { worker } else { self.layout.worker_hosts[worker as usize] };
                names.entry(place).or_default().push(split);
            }
            for (place, splits) in names {
                let to = match self.scaled {
                    Some(_) => format!("worker {place}"),
                    None => format!("host {}", self.layout.hosts[place as usize].name),
                };
                told.push(json!({"task": task, "to": to, "splits": splits}));
            }
        }
        told
    }

    /// What cannot be moved away from the host to be emptied.
    fn stays(&self) -> Value {
        let Some(host) = self.emptied else { return Value::Null };
        let layout = &self.layout;
        let is_there = |worker: &u32| layout.worker_hosts[*worker as usize] == host;
        let workers = (0..layout.worker_hosts.len() as u32).filter(is_there);
        let stays = |task: &&TaskLayout| task.owners.is_empty() && task.splits.is_empty();
        let tasks = layout.tasks.iter().filter(stays).filter(|task| task.copy_workers.iter().any(is_there));
        json!({
            "host": layout.hosts[host as usize].name,
            "workers": workers.collect::<Vec<_>>(),
            "tasks": tasks.map(|task| &task.name).collect::<Vec<_>>(),
        })
    }
}

fn counted(workers: usize) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

/// Why a job can only be scaled by a restart, if so: it has too few workers, or something on workers that would join or
/// leave cannot move.
fn why_restart(layout: &ClusterLayout, to: usize) -> Option<String> {
    let size = layout.worker_hosts.len();
    if to > size {
        return Some(format!("the job has {}, spare ones included (tidemill run --max-workers)", counted(size)));
    }
    let spares = spare_workers(&layout.worker_hosts, to);
    let changed = |worker: &u32| spares.contains(worker) != layout.spares.contains(worker);
    let stays = |task: &&TaskLayout| task.why_stays.is_some() && task.copy_workers.iter().any(changed);
    let task = layout.tasks.iter().find(stays)?;
    let what = if task.inputs.is_empty() { "splits" } else { "keys" };
    Some(format!("the {what} of {:?} cannot move: {}", task.name, task.why_stays.as_deref().unwrap_or_default()))
}

/// The number of a host.
fn host_named(layout: &ClusterLayout, name: &str) -> Result<u32, String> {
    let mut found = (0..).zip(&layout.hosts).filter(|(_, host)| host.name == name).map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(host), None) => Ok(host),
        (Some(_), Some(_)) => Err(format!("several hosts of this stream are called {name:?}")),
        (None, _) => {
            let names: Vec<&str> = layout.hosts.iter().map(|host| host.name.as_str()).collect();
            Err(format!("no host {name:?}; the hosts of this stream are {}", names.join(", ")))
        }
    }
}

/// Lists drained hosts by name.
fn described(layout: &ClusterLayout, drained: &BTreeSet<u32>) -> String {
    let names: Vec<&str> = drained.iter().map(|&host| layout.hosts[host as usize].name.as_str()).collect();
    if names.is_empty() { "no host is".into() } else { format!("drained are {}", names.join(", ")) }
}

/// Checks that there are keys or splits to move, and owners for them.
fn check_owners(layout: &ClusterLayout, drained: &BTreeSet<u32>) -> Result<(), String> {
    let mut keyed = layout.tasks.iter().filter(|task| !task.owners.is_empty()).peekable();
    if keyed.peek().is_none() && !layout.tasks.iter().any(|task| task.moves_splits) {
        let names: Vec<&str> = layout.tasks.iter().map(|task| task.name.as_str()).collect();
        return Err(format!(
            "this stream has no step whose keys can move, and no source whose splits can; its steps are {}. Steps have \
             keys after group_by, key_by, join, distinct",
            names.join(", ")
        ));
    }
    if drained.len() == layout.hosts.len() {
        let only = layout.hosts.len() == 1;
        return Err(match only {
            true => format!("{} is the only host of this stream: its keys have nowhere to go", layout.hosts[0].name),
            false => "all other hosts are drained: let one of them have keys again first, with tidemill drain HOST \
                      --undo"
                .into(),
        });
    }
    let is_open = |worker: &u32| !drained.contains(&layout.worker_hosts[*worker as usize]);
    match keyed.find(|task| !task.copy_workers.iter().any(is_open)) {
        Some(task) => Err(format!(
            "step {:?} has copies on drained hosts alone, so its keys have nowhere to go; {}",
            task.name,
            described(layout, drained)
        )),
        None => Ok(()),
    }
}
