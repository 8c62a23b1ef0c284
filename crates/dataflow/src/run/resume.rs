//! Where a run starts: afresh, or from a checkpoint that all workers can read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use tidemill_batch::local::RoundUnit;
use tidemill_batch::memory::Governor;
use tidemill_batch::route_map::{BUCKETS, RouteMap};
use tidemill_checkpoint::coordinator::{CoordinatedTask, StartPoint};
use tidemill_checkpoint::store::{RestoreCandidates, StoreHold};
use tidemill_checkpoint::{CheckpointSettings, CheckpointStore, Manifest, RestoredState, StoreError, TaskState};
use tidemill_collective::{Communicator, ReduceOp};
use tidemill_net::{CallDescriber, Engine, Rank, notice};
use tokio::runtime::Handle;

use super::layout::AT_MOST_ONCE;
use super::share_bytes;
use crate::checkpoint::client::{self, SplitDeal, SplitsOf};
use crate::checkpoint::{ResumePlan, open_rounds};
use crate::error::DataflowError;
use crate::flow::{FlowEdge, FlowGraph, FlowTask};
use crate::rebalance::StateKind;

/// What worker 0 found.
#[derive(serde::Serialize, serde::Deserialize)]
enum RestorePoint {
    /// Nothing was ever written there.
    Nothing { run: String, claim: u64 },
    /// The newest checkpoint that has not been refused yet.
    Checkpoint { run: String, claim: u64, manifest: Box<Manifest> },
    /// The run cannot start.
    Error { reason: String },
}

/// How reading its part of a checkpoint went on a worker. The outcome that is listed first here, on any worker, counts.
#[derive(Clone, Copy)]
enum RestoreOutcome {
    /// The store cannot be read now. Skipping its checkpoint would count again what has been counted.
    Refused,
    /// Something is damaged, and will still be the next time.
    Damaged,
    Whole,
}

impl RestoreOutcome {
    fn of<T>(result: &Result<T, StoreError>) -> Self {
        match result {
            Ok(_) => RestoreOutcome::Whole,
            Err(StoreError::Damaged { .. }) => RestoreOutcome::Damaged,
            Err(_) => RestoreOutcome::Refused,
        }
    }
}

impl ResumePlan {
    /// Collective: all workers start from the same checkpoint, the newest that is not damaged anywhere.
    ///
    /// # Errors
    /// On every worker: `Checkpoint`, if there are checkpoints but none to resume from; the job's fault.
    pub(crate) fn agree(
        comm: &Communicator,
        pool: &Handle,
        governor: &Governor,
        flow: &FlowGraph,
        job: &str,
        settings: &CheckpointSettings,
        spares: &BTreeSet<u32>,
    ) -> Result<ResumePlan, DataflowError> {
        check_tasks(flow, settings)?;
        let mut resume = ResumePlan::new(flow, job, settings, spares);
        let is_first = comm.rank() == 0;
        let run =
            format!("{:x}-{:x}", SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos()), std::process::id());
        let (mut failed, mut older, mut none) = (None, Vec::new().into_iter(), true);
        if is_first {
            match resume.open_store(comm, pool, &run) {
                Ok(kept) => (none, older) = (kept.is_empty(), kept.manifests.into_iter()),
                Err(reason) => failed = Some(reason),
            }
        }
        loop {
            let found = is_first.then(|| match &failed {
                Some(reason) => RestorePoint::Error { reason: reason.clone() },
                None => resume.next(pool, &run, &mut older, none),
            });
            match share(comm, found)? {
                RestorePoint::Error { reason } => return Err(DataflowError::Checkpoint(reason)),
                RestorePoint::Nothing { run, claim } => {
                    resume.join(comm, pool, run, claim)?;
                    return Ok(resume);
                }
                RestorePoint::Checkpoint { run, claim, manifest } => {
                    resume.join(comm, pool, run, claim)?;
                    if resume.restore(comm, pool, governor, flow, manifest)? {
                        return Ok(resume);
                    }
                }
            }
        }
    }

    /// The plan of a job that has found nothing yet.
    fn new(flow: &FlowGraph, job: &str, settings: &CheckpointSettings, spares: &BTreeSet<u32>) -> ResumePlan {
        let is_sink = |task: &&FlowTask| task.keeps == StateKind::Nothing;
        let mut members = flow.members(spares);
        if settings.at_most_once {
            for member in members.iter_mut().filter(|member| member.why_splits_stay.is_none()) {
                member.why_splits_stay = Some(AT_MOST_ONCE.into());
            }
        }
        ResumePlan {
            settings: settings.clone(),
            run: String::new(),
            job: job.to_owned(),
            members,
            sinks: flow.tasks.iter().filter(is_sink).map(|task| task.name.clone()).collect(),
            begin: StartPoint { spares: spares.clone(), ..StartPoint::default() },
            restored: HashMap::new(),
            hold: None,
            found: None,
        }
    }

    /// Collective: adopts worker 0's run as this worker's, if it has none yet.
    fn join(&mut self, comm: &Communicator, pool: &Handle, run: String, claim: u64) -> Result<(), DataflowError> {
        if !self.run.is_empty() {
            return Ok(());
        }
        self.run = run;
        self.check_shared(comm, pool, claim)
    }

    /// Collective: every worker reads its part of a checkpoint. Returns whether the job resumes from it; if not, it
    /// may resume from an older one.
    fn restore(
        &mut self,
        comm: &Communicator,
        pool: &Handle,
        governor: &Governor,
        flow: &FlowGraph,
        manifest: Box<Manifest>,
    ) -> Result<bool, DataflowError> {
        let read = pool.block_on(self.read(&manifest, flow, governor, comm.rank()));
        let mut worst = [0u8];
        comm.allreduce(&[RestoreOutcome::of(&read) as u8], &mut worst, &ReduceOp::Min)?;
        let is_refused = worst[0] == RestoreOutcome::Refused as u8;
        let damage = match read {
            Ok(restored) if worst[0] == RestoreOutcome::Whole as u8 => {
                self.restored = restored;
                self.announce_start();
                for member in &mut self.members {
                    member.route = member.route_in(&manifest, &self.begin.spares);
                    member.set_version_after(&manifest);
                }
                self.begin.from = Some(Arc::from(manifest));
                return Ok(true);
            }
            Err(error) if is_refused => return Err(DataflowError::Checkpoint(error.to_string())),
            Ok(_) if is_refused => {
                return Err(DataflowError::Checkpoint(format!(
                    "checkpoint {} could not be read by another worker",
                    manifest.epoch
                )));
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        // Workers that have read their parts do not know the problem. If it may be skipped, they report nothing.
        if damage.is_some() || !self.settings.may_repeat {
            let reason = damage.as_deref().unwrap_or("another worker cannot read its part");
            self.describe_skipped(manifest.epoch, reason).map_err(DataflowError::Checkpoint)?;
        }
        Ok(false)
    }

    /// Collective: checks that all workers write to the same place. If each had its own, no job could ever resume.
    fn check_shared(&self, comm: &Communicator, pool: &Handle, claim: u64) -> Result<(), DataflowError> {
        let place = self.settings.store.place();
        let sees = pool.block_on(self.settings.store.has_claim(claim, &self.run));
        let mut all = vec![0_u8; comm.size() as usize];
        comm.allgather(&[u8::from(matches!(sees, Ok(true)))], &mut all)?;
        let Some(worker) = all.iter().position(|&sees| sees == 0) else { return Ok(()) };
        Err(DataflowError::Checkpoint(match sees {
            Err(error) => error.to_string(),
            Ok(_) => format!(
                "checkpoints in {place}: worker {worker} does not find what worker 0 wrote there; use a folder that \
                 all hosts share under the same name, or an object store"
            ),
        }))
    }

    /// On worker 0: claims the place for this run, and finds what is there.
    fn open_store(&mut self, comm: &Communicator, pool: &Handle, run: &str) -> Result<RestoreCandidates, String> {
        let restore_candidates =
            |store: &CheckpointStore| pool.block_on(store.restore_candidates()).map_err(|error| error.to_string());
        let store = self.settings.store.clone();
        // A job that does not belong in this place must not end the job that does.
        let before = restore_candidates(&store)?;
        let newest = before.manifests.first();
        newest.map_or(Ok(()), |newest| self.fits(newest))?;
        if before.is_empty() && pool.block_on(store.had_checkpoints()).map_err(|error| error.to_string())? {
            let place = store.place();
            return Err(format!(
                "checkpoints in {place}: a job has written some there, but epochs/, which lists them, is missing or \
                 empty; starting fresh would write again what its sinks already have. Restore epochs/; or, if \
                 duplicate rows are acceptable, delete all of {place} or use another place"
            ));
        }
        let known = newest.map_or(0, |newest| newest.claim);
        self.hold = Some(self.hold(comm, run)?);
        self.begin.claim = pool.block_on(store.claim(known, run)).map_err(|error| error.to_string())?;
        // Again: what the previous run wrote until this one made its claim counts.
        let kept = restore_candidates(&store)?;
        self.begin.newest = kept.epoch();
        let newest = kept.manifests.iter().map(|manifest| manifest.epoch).max();
        for (epoch, reason) in &kept.damaged {
            match newest {
                Some(newest) if newest > *epoch => notice!("checkpoint {epoch} is damaged: {reason}"),
                _ => self.describe_skipped(*epoch, reason)?,
            }
        }
        Ok(kept)
    }

    /// On worker 0: reports where the job resumes.
    fn announce_start(&self) {
        if let Some((epoch, at_ms)) = self.found {
            let (job, place) = (&self.job, self.settings.store.place());
            let now_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
            let age_s = now_ms.saturating_sub(at_ms) as f64 / 1e3;
            notice!("job \"{job}\" resumes from checkpoint {epoch} of {place}, made {age_s:.1} s ago");
        }
    }

    /// On worker 0: keeps other jobs out from now on, and waits until it is certain that an earlier holder of the
    /// place does nothing more.
    fn hold(&self, comm: &Communicator, run: &str) -> Result<StoreHold, String> {
        let (store, endpoint) = (&self.settings.store, comm.endpoint().clone());
        let wake = endpoint.clone();
        let hold = store.hold(&self.job, run, move || wake.rouse()).map_err(|error| error.to_string())?;
        // A fault of the job, or an interruption, ends the wait.
        let outcome = endpoint.wait(&HoldDescriber, |_| hold.outcome().map(Ok)).map_err(|error| error.to_string())?;
        outcome.map_err(|denied| store.denied(denied).to_string())?;
        if let Some(reason) = hold.unconditional() {
            notice!(
                "checkpoints in {}: this store cannot keep a second job out ({reason}): make sure that none writes \
                 there, as it would end this one",
                store.place()
            );
        }
        Ok(hold)
    }

    /// Explains what resuming from the checkpoint before this one means, if there is one.
    ///
    /// # Errors
    /// A description, if that is not allowed.
    fn describe_skipped(&self, epoch: u64, reason: &str) -> Result<(), String> {
        let again = "rows that sinks have committed since the previous checkpoint come again";
        if self.settings.may_repeat {
            notice!("checkpoint {epoch} is skipped: {reason}; {again}");
            return Ok(());
        }
        Err(format!(
            "checkpoint {epoch} is damaged: {reason}; without it {again}, which the job must not do: restore it, or \
             remove epochs/{epoch:020} there to continue without it"
        ))
    }

    /// On worker 0: the next older checkpoint, if it fits the job; claims it for this run.
    fn next(
        &mut self,
        pool: &Handle,
        run: &str,
        older: &mut impl Iterator<Item = Manifest>,
        none: bool,
    ) -> RestorePoint {
        let run = run.to_owned();
        match older.next() {
            Some(manifest) => {
                if let Err(reason) = self.fits(&manifest) {
                    return RestorePoint::Error { reason };
                }
                // For a job that had finished, this is reported separately.
                self.found = (!manifest.finished).then_some((manifest.epoch, manifest.at_ms));
                let manifest = self.after_end(self.without_dropped_state(manifest));
                let StartPoint { claim, newest, .. } = &mut self.begin;
                *newest += 1;
                match pool.block_on(self.settings.store.adopt(manifest, *claim, *newest)) {
                    Ok(manifest) => RestorePoint::Checkpoint { run, claim: *claim, manifest: Box::new(manifest) },
                    Err(error) => RestorePoint::Error { reason: error.to_string() },
                }
            }
            None if none => RestorePoint::Nothing { run, claim: self.begin.claim },
            None => RestorePoint::Error {
                // Silently starting afresh would count twice what had been counted.
                reason: format!(
                    "checkpoints in {}: none can be read; remove them to start fresh",
                    self.settings.store.place()
                ),
            },
        }
    }

    /// On worker 0: a checkpoint without the state that the job wants to drop.
    fn without_dropped_state(&self, mut manifest: Manifest) -> Manifest {
        let (place, epoch) = (self.settings.store.place(), manifest.epoch);
        manifest.tasks.retain(|name, state| {
            let forgotten = drops_state(&self.settings, name);
            let lost = match state.schema.is_none() && state.has_only_prepared() && !has_rounds(state) {
                true => "what was prepared but not committed by",
                false => "the state of",
            };
            if forgotten && keeps(state, manifest.finished) {
                notice!("checkpoint {epoch} in {place}: {lost} \"{name}\" is forgotten");
            }
            !forgotten
        });
        manifest
    }

    /// On worker 0: a checkpoint as the job resumes from it. The sources of a finished job resume where they ended,
    /// if no step has kept anything, since steps have already delivered what they kept.
    fn after_end(&self, mut manifest: Manifest) -> Manifest {
        if !manifest.finished {
            return manifest;
        }
        let (job, place, epoch) = (&self.job, self.settings.store.place(), manifest.epoch);
        let ended = format!("job \"{job}\" had finished, at checkpoint {epoch} in {place}");
        if self.members.iter().any(|member| member.schema.is_some()) {
            notice!(
                "{ended}: nothing to do, since its windows and other steps have delivered all that they kept; start fresh in \
                 another place, or stop a job that should resume before it ends (`tidemill stop`, stop_when=)"
            );
            return manifest;
        }
        notice!("{ended}: its sources resume from there");
        manifest.finished = false;
        manifest.tasks.values_mut().for_each(|task| task.ended.clear());
        manifest
    }

    /// Whether a checkpoint belongs to this job.
    fn fits(&self, manifest: &Manifest) -> Result<(), String> {
        let place = self.settings.store.place();
        if manifest.job != self.job {
            return Err(format!(
                "checkpoints in {place}: they belong to job \"{}\", not to \"{}\"; each job needs a place of its own",
                manifest.job, self.job
            ));
        }
        let known = |name: &String| self.members.iter().any(|member| &member.name == name);
        let kept = manifest.tasks.iter().filter(|(_, state)| keeps(state, manifest.finished));
        let lost = kept.map(|(name, _)| name).find(|name| !known(name) && !drops_state(&self.settings, name));
        if let Some(name) = lost {
            // Steps that keep anything have a schema; sinks have none.
            let state = &manifest.tasks[name];
            let remedy: String = match state.schema.is_none() && state.has_only_prepared() {
                // The stages of a reduction depend on where copies run.
                true if has_rounds(state) => {
                    "; rounds were open there, in a stage that the reduction has on other workers or hosts: run the job on as many \
                     workers, on as many hosts, as it had, with as many copies of the task that sends (parallelism=), or start fresh \
                     in another place"
                        .into()
                }
                true => {
                    "; what it has prepared may not be committed yet: start the program as it was, and end it with `tidemill stop` \
                     or stop_when=, which leaves nothing to commit"
                        .into()
                }
                false => {
                    format!(
                        "; checkpoints identify a step by the name that step_name() gives it, or by its kind and its number in the program, \
                         and a source by what it reads: start the program with the steps and sources that it had; if this one now has another \
                         name or number, give it the old one with step_name(\"{name}\"); if it is gone, drop its state with \
                         drop_state=[\"{name}\"], or start fresh in another place"
                    )
                }
            };
            return Err(format!(
                "checkpoints in {place}: they hold state of a task \"{name}\", which the job no longer has{remedy}"
            ));
        }
        for member in &self.members {
            // Of a finished job, only the schemas are kept.
            let kept = |state: &&TaskState| manifest.finished && state.schema.is_some() || !state.buckets.is_empty();
            let Some(state) = manifest.tasks.get(&member.name).filter(kept) else {
                if manifest.finished && member.schema.is_some() {
                    return Err(format!(
                        "checkpoints in {place}: they belong to a job that has finished and had no task \"{}\"; start \
                         fresh in another place",
                        member.name
                    ));
                }
                continue;
            };
            check_state(member, state).map_err(|reason| {
                format!(
                    "checkpoints in {place}: they hold state of a task \"{}\" that the job cannot take: {reason}",
                    member.name
                )
            })?;
        }
        Ok(())
    }

    /// What this worker's copies start with.
    async fn read(
        &self,
        manifest: &Manifest,
        flow: &FlowGraph,
        governor: &Governor,
        me: u32,
    ) -> Result<HashMap<(u32, u32), RestoredState>, StoreError> {
        let mut restored = HashMap::new();
        for (at, task) in flow.tasks.iter().enumerate() {
            let copies = task.workers.len() as u32;
            let route = self.members[at].route_in(manifest, &self.begin.spares);
            let route = route.unwrap_or_else(|| Arc::new(RouteMap::even(BUCKETS, copies)));
            let splits_of = if task.keeps == StateKind::Nothing { SplitsOf::Sink } else { SplitsOf::Source };
            let named = (task.name.as_str(), splits_of);
            let anew = client::deals_anew(manifest, named, &self.begin.spares, &self.members[at].spares);
            let active = flow.active_copies(at, &self.begin.spares);
            let deal = SplitDeal { active: &active, anew };
            for copy in (0..copies).filter(|&copy| task.workers[copy as usize] == me) {
                let (store, ids) = (&self.settings.store, (copy, copies));
                let mut read = client::restore(store, manifest, named, ids, deal, &route, governor).await?;
                read.evolved =
                    task.state.as_ref().zip(read.schema.as_ref()).is_some_and(|(now, then)| !now.is_same(then));
                restored.insert((at as u32, copy), read);
            }
        }
        Ok(restored)
    }
}

/// Checks that checkpoints can be made of a job's tasks, and that none of them has a state that is to be dropped.
fn check_tasks(flow: &FlowGraph, settings: &CheckpointSettings) -> Result<(), DataflowError> {
    if let Some(edge) = flow.edges.iter().find(|edge| edge.feedback) {
        return Err(DataflowError::Checkpoint(format!(
            "edge {} leads back, and a job with a loop makes no checkpoints: what circulates in it would be lost; run the \
             loop in a separate graph, which a function of the job can spawn, or run the job without checkpoints",
            edge.name
        )));
    }
    let by_rows = |edge: &&FlowEdge| matches!(edge.round_unit, RoundUnit::Rows(_));
    if let Some(edge) = flow.edges.iter().find(by_rows) {
        return Err(DataflowError::Checkpoint(format!(
            "edge {} goes by rounds of rows, and checkpoints do not record how far a sender is in one: use messages of \
             that many rows as rounds, or the checkpoints' epochs",
            edge.name
        )));
    }
    let mut names = HashSet::new();
    for task in &flow.tasks {
        if !task.streaming {
            return Err(DataflowError::Checkpoint(format!(
                "task \"{}\" keeps rows until its input ends, or does not know how to save its state",
                task.name
            )));
        }
        if !names.insert(&task.name) {
            let reason = format!("two tasks are named \"{}\", but checkpoints identify tasks by name", task.name);
            return Err(DataflowError::Checkpoint(reason));
        }
    }
    if let Some(task) = flow.tasks.iter().find(|task| drops_state(settings, &task.name)) {
        return Err(DataflowError::Checkpoint(format!(
            "drop_state= names \"{}\", which the job still has; to start that step from nothing, give it another step_name()",
            task.name
        )));
    }
    Ok(())
}

/// Whether a task keeps anything, or delivered what it kept when its job finished.
fn keeps(state: &TaskState, finished: bool) -> bool {
    let has_nothing = state.buckets.is_empty() && state.splits.is_empty() && state.in_flight.is_empty();
    !has_nothing || finished && state.schema.is_some() || has_rounds(state) && !finished
}

/// Whether a task has kept rounds that were open.
fn has_rounds(state: &TaskState) -> bool {
    state.shared.values().flatten().any(|(name, _)| open_rounds::is_of_rounds(name))
}

/// Whether a job wants to drop the state of a task.
fn drops_state(settings: &CheckpointSettings, task: &str) -> bool {
    let of =
        |name: &String| task.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "));
    settings.forget.iter().any(of)
}

/// Describes what worker 0 is doing, for stall reports.
struct HoldDescriber;

impl CallDescriber for HoldDescriber {
    fn describe(&self, text: &mut String) {
        text.push_str("a job that makes checkpoints");
    }

    fn waiting_for(&self, _engine: &Engine) -> Vec<Option<Rank>> {
        Vec::new()
    }
}

/// Whether a task can resume from its earlier states.
fn check_state(member: &CoordinatedTask, state: &TaskState) -> Result<(), String> {
    match (&member.schema, &state.schema) {
        // It does not declare what it keeps, and checks it itself.
        (None, _) => Ok(()),
        (Some(now), Some(then)) => {
            now.version_after(then)?;
            // The state saved by copies that had ended stays as it is; the others' state would be of another kind.
            let some = !state.ended.is_empty() && (state.ended.len() as u32) < state.copies;
            match some && !now.is_same(then) {
                true => Err(
                    "its fields have changed, and some of its copies had finished: continue with the program as it was"
                        .into(),
                ),
                false => Ok(()),
            }
        }
        (Some(_), None) => {
            Err("it does not list its fields: an earlier version wrote it; start fresh in another place".into())
        }
    }
}

/// Gives every worker what worker 0 has.
fn share(comm: &Communicator, found: Option<RestorePoint>) -> Result<RestorePoint, DataflowError> {
    let json = |found| serde_json::to_vec(&found).expect("it is made of numbers and texts");
    let bytes = share_bytes(comm, 0, found.map(json).unwrap_or_default())?;
    Ok(serde_json::from_slice(&bytes).expect("worker 0 runs the same program"))
}
