//! The coordinator decides when a barrier is sent, and when its checkpoint is complete. It has no clock, no store and
//! no connections: a thin driver on worker 0 feeds it events and carries out its actions, and so does a simulation.
//!
//! One checkpoint is in progress at a time. It exists as soon as its manifest does, and is announced only then. If it
//! takes too long, or a copy cannot save its state, it is abandoned with a warning, and the next one begins; what
//! copies have saved meanwhile stays part of their state, because later changes build on it. The checkpoint that stops
//! the job is its last: sources have ended at it, so if it fails, the run fails, and the next run resumes from the
//! checkpoint before.
//!
//! A barrier that has not passed all copies within a time becomes unaligned: it overtakes rows. This excludes barriers
//! that stop the job, or move buckets: nothing may be in flight after them.
//!
//! A barrier that moves buckets is never abandoned: some copies would have moved buckets, and others not. The next
//! barrier waits until all copies of the tasks involved have reported their move. So what the old owner saved of a
//! bucket is known before what the new one saves. If this exceeds the timeout of a checkpoint, there is a warning,
//! because no checkpoints are made meanwhile.
//!
//! A job is scaled in the same way, if its workers suffice: some become spare, or are no longer. Manifests say so once
//! all has moved; until then, a job that resumes from one distributes buckets and splits anew.
//!
//! Splits of sources move in the same way. Here only the copies that lose or gain some report. The checkpoint at which
//! they move has them with their old owners, the next one, which follows at once, with the new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidemill_batch::route_map::RouteMap;

use crate::manifest::{CopyReport, Manifest, PartEntry, PartKey, ReportBody, TaskState};
use crate::marks::{Barrier, BarrierControl};
use crate::rebalance::{MoveReport, Rebalance, SplitMoves};
use crate::schema::StateSchema;

/// What a copy has saved.
type CopyParts = Vec<(PartKey, PartEntry)>;

/// Time since the run began.
pub type Now = Duration;

/// The durable epoch announced when the job has ended, and everything is to be committed.
pub const ALL: u64 = u64::MAX;

/// An event.
#[derive(Clone, Debug)]
pub enum CoordinatorEvent {
    /// Time has passed.
    Tick,
    /// A copy reports.
    Report(CopyReport),
    /// Someone requests a barrier with this control. For those that move buckets, [`CoordinatorAction::Answer`] has the
    /// same `id`.
    Request {
        /// Identifies the answer.
        id: u64,
        /// The control of the barrier.
        control: BarrierControl,
    },
    /// The manifest of an epoch was written, or writing it failed.
    Stored {
        /// The epoch.
        epoch: u64,
        /// The failure, if any.
        result: Result<(), StoreFailure>,
    },
}

/// Why a manifest could not be written.
#[derive(Clone, Debug)]
pub struct StoreFailure {
    /// The store's message.
    pub reason: String,
    /// Another job writes there, so this one must end.
    pub fenced: bool,
}

fn refuse(id: u64, reason: String, actions: &mut Vec<CoordinatorAction>) {
    actions.push(CoordinatorAction::Answer { id, outcome: Err(reason) });
}

/// An action to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorAction {
    /// Ask all sources to send this barrier.
    Inject(Barrier),
    /// Let the barrier of this epoch overtake rows.
    Unalign(u64),
    /// Write this manifest, and report it with [`CoordinatorEvent::Stored`].
    Store(Box<Manifest>),
    /// Announce that this epoch is durable.
    Durable(u64),
    /// The outcome of a requested rebalance, or why it was refused.
    Answer {
        /// The id of the [`CoordinatorEvent::Request`].
        id: u64,
        /// What has moved.
        outcome: Result<MoveReport, String>,
    },
    /// Print a warning.
    Warn(String),
    /// End the run with this error.
    Fail(String),
    /// Nothing is left to do.
    Finished,
}

/// A task, as the coordinator sees it.
#[derive(Clone, Debug)]
pub struct CoordinatedTask {
    /// Its name.
    pub name: String,
    /// Its number of copies.
    pub copies: u32,
    /// Which copy owns which bucket; `None` if the task has no keyed input.
    pub route: Option<Arc<RouteMap>>,
    /// Why its buckets cannot move, if they cannot.
    pub why_not_movable: Option<String>,
    /// Why its splits cannot move, if they cannot; every task but a source has a reason.
    pub why_splits_stay: Option<String>,
    /// Its copies on workers that are spare when the run begins.
    pub spares: BTreeSet<u32>,
    /// The schema of its state, if it has declared one.
    pub schema: Option<StateSchema>,
}

impl CoordinatedTask {
    /// Sets the version of its schema when the task resumes from a checkpoint: it follows that of the saved states.
    pub fn set_version_after(&mut self, manifest: &Manifest) {
        let then = manifest.tasks.get(&self.name).and_then(|state| state.schema.as_ref());
        if let (Some(now), Some(then)) = (&mut self.schema, then) {
            // Without compatible states, the schema may be anything, and starts anew.
            now.version = now.version_after(then).unwrap_or(1);
        }
    }

    /// The route map that it resumes with, if `spares` are the spare workers: that of the checkpoint, unless others
    /// were spare then, or it leads to spare workers.
    pub fn route_in(&self, manifest: &Manifest, spares: &BTreeSet<u32>) -> Option<Arc<RouteMap>> {
        let own = self.route.as_ref()?;
        let then = Some(manifest.route(&self.name, self.copies, own)).filter(|_| manifest.spares == *spares);
        let then = then.filter(|then| !then.copies().any(|copy| self.spares.contains(&copy)));
        Some(then.unwrap_or_else(|| Arc::clone(own)))
    }
}

/// Where a run begins.
#[derive(Clone, Debug, Default)]
pub struct StartPoint {
    /// The checkpoint that it resumes from.
    pub from: Option<Arc<Manifest>>,
    /// The newest epoch with a manifest, even a damaged one, since its number is taken.
    pub newest: u64,
    /// The claim to write into manifests.
    pub claim: u64,
    /// The workers that are spare.
    pub spares: BTreeSet<u32>,
}

struct PendingCheckpoint {
    barrier: Barrier,
    since: Now,
    unaligned: bool,
    missing: BTreeSet<(u32, u32)>,
    failed: Option<String>,
}

/// A rebalance in progress.
struct MoveInProgress {
    id: u64,
    /// By task, the number of buckets with a new owner.
    buckets: BTreeMap<u32, u32>,
    /// Sources whose splits move.
    sources: BTreeSet<u32>,
    /// Copies that have yet to report that they received the buckets or splits that they gain.
    missing: BTreeSet<(u32, u32)>,
    moved: MoveReport,
    /// Tasks that the barrier has reached: either all copies of a task get it, or none.
    begun: BTreeSet<u32>,
    /// The spare workers once all has moved, if they are other ones.
    spares: Option<BTreeSet<u32>>,
}

/// Intervals and timeouts.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointTiming {
    /// From the start of a checkpoint to the start of the next; zero makes only requested ones and the last.
    pub interval: Duration,
    /// After this time, a barrier overtakes rows; `None`: never.
    pub unaligned_after: Option<Duration>,
    /// After this time, a checkpoint is abandoned.
    pub timeout: Duration,
}

/// Decides on barriers and checkpoints; see the module.
pub struct Coordinator {
    job: String,
    claim: u64,
    timing: CheckpointTiming,
    members: Vec<CoordinatedTask>,
    states: Vec<TaskState>,
    spares: BTreeSet<u32>,
    /// The spare workers behind the checkpoint of this epoch, at which all has moved.
    next_spares: Option<(u64, BTreeSet<u32>)>,
    running: BTreeSet<(u32, u32)>,
    /// The last epoch that was started.
    epoch: u64,
    begun: Now,
    pending: Option<PendingCheckpoint>,
    /// Copies that have saved their state at the pending barrier and ended since, with what they kept, which belongs to
    /// the next epoch.
    ended_behind: Vec<((u32, u32), CopyParts)>,
    storing: Option<(u64, bool)>,
    moving: Option<MoveInProgress>,
    /// A warning was given that the current barrier, which moves buckets, blocks others.
    told: bool,
    requests: Vec<(u64, BarrierControl)>,
    /// Sources end although the job has not reached its end, or have already ended.
    stopping: bool,
    over: bool,
}

impl Coordinator {
    /// For the tasks of a flow, in their order.
    pub fn new(job: &str, members: Vec<CoordinatedTask>, timing: CheckpointTiming, begin: &StartPoint) -> Self {
        let from = begin.from.as_deref();
        let state = |member: &CoordinatedTask| {
            let old = from.and_then(|from| from.tasks.get(&member.name)).cloned().unwrap_or_default();
            // Splits are redistributed, so copies save all of theirs again, and ended copies report their end again.
            let (ended, splits, shared, in_flight) = Default::default();
            let route = from.and_then(|from| member.route_in(from, &begin.spares)).or_else(|| member.route.clone());
            // With spare workers, the number of copies does not determine the graph's map.
            let is_kept = |route: &RouteMap| old.route.as_ref() == Some(route) || !member.spares.is_empty();
            let route = route.as_deref().filter(|route| is_kept(route)).cloned();
            let schema = member.schema.clone();
            TaskState { copies: member.copies, route, schema, ended, splits, shared, in_flight, ..old }
        };
        let copies =
            |(task, member): (usize, &CoordinatedTask)| (0..member.copies).map(move |copy| (task as u32, copy));
        Coordinator {
            job: job.to_owned(),
            claim: begin.claim,
            timing,
            states: members.iter().map(state).collect(),
            spares: begin.spares.clone(),
            next_spares: None,
            running: members.iter().enumerate().flat_map(copies).collect(),
            members,
            epoch: from.map_or(0, |from| from.epoch).max(begin.newest),
            begun: Duration::ZERO,
            pending: None,
            ended_behind: Vec::new(),
            storing: None,
            moving: None,
            told: false,
            requests: Vec::new(),
            // Commits that a finished job has yet to make need no further checkpoint.
            stopping: from.is_some_and(|from| from.finished),
            over: false,
        }
    }

    /// Returns the actions for an event. `at_ms` is the time of day, for manifests.
    pub fn handle(&mut self, now: Now, at_ms: u64, event: CoordinatorEvent) -> Vec<CoordinatorAction> {
        let mut actions = Vec::new();
        match event {
            CoordinatorEvent::Tick => {}
            CoordinatorEvent::Request { id, control } => match &control {
                BarrierControl::Rebalance(rebalance) if let Err(reason) = self.check(rebalance) => {
                    refuse(id, reason, &mut actions)
                }
                _ => self.requests.push((id, control)),
            },
            CoordinatorEvent::Report(report) => self.report(report, &mut actions),
            CoordinatorEvent::Stored { epoch, result } => self.stored(epoch, result, &mut actions),
        }
        self.abandon_late(now, &mut actions);
        self.warn_late(now, &mut actions);
        self.unalign_late(now, &mut actions);
        self.complete(at_ms, &mut actions);
        self.begin(now, &mut actions);
        actions
    }

    fn report(&mut self, report: CopyReport, actions: &mut Vec<CoordinatorAction>) {
        let id = (report.task, report.copy);
        let Some(state) = self.states.get_mut(report.task as usize) else {
            return self.fail(format!("report for unknown task {}", report.task), actions);
        };
        let arrived = match report.said {
            ReportBody::Saved { epoch, parts } => {
                state.apply(report.copy, parts);
                epoch
            }
            ReportBody::Failed { epoch, reason } => {
                if let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.epoch == epoch) {
                    let name = &self.members[report.task as usize].name;
                    pending.failed.get_or_insert(format!("task \"{name}\", copy {}: {reason}", report.copy));
                }
                epoch
            }
            ReportBody::Moved(moved) => {
                let moving = self.moving.as_mut().filter(|moving| moving.moved.epoch == moved.epoch);
                if let Some(moving) = moving {
                    if moving.begun.insert(id.0) {
                        moving.moved.buckets += moving.buckets.get(&id.0).copied().unwrap_or(0);
                    }
                    moving.missing.remove(&id);
                    moving.moved.splits += moved.splits;
                    moving.moved.bytes += moved.bytes;
                    moving.moved.waited = moving.moved.waited.max(moved.waited);
                }
                return;
            }
            ReportBody::Full { behind } => {
                // The copy may have already passed the current barrier, while its snapshot is still being written.
                let coming = self.pending.as_ref().is_some_and(|pending| pending.barrier.epoch > behind);
                let asked = self.requests.iter().any(|(_, control)| *control == BarrierControl::Checkpoint);
                if !coming && !asked {
                    self.requests.push((0, BarrierControl::Checkpoint));
                }
                return;
            }
            ReportBody::Ended { parts } => {
                if let Some(moving) = &mut self.moving {
                    moving.missing.remove(&id);
                }
                match self.pending.as_mut().map(|pending| pending.missing.remove(&id)) {
                    // It ended before the barrier, so this is a real end, even if the barrier stops the job.
                    Some(true) => self.ended(id, parts),
                    Some(false) => self.ended_behind.push((id, parts)),
                    None => self.ended_later(id, parts),
                }
                return;
            }
        };
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.epoch == arrived) {
            pending.missing.remove(&id);
        }
    }

    fn ended(&mut self, id: (u32, u32), parts: CopyParts) {
        self.running.remove(&id);
        let state = &mut self.states[id.0 as usize];
        state.apply(id.1, parts);
        state.ended.insert(id.1);
    }

    /// A copy has ended after all barriers so far.
    fn ended_later(&mut self, id: (u32, u32), parts: CopyParts) {
        if self.stopping {
            // A pause: the job resumes from what the copy kept at the barrier that stopped it.
            self.running.remove(&id);
        } else {
            self.ended(id, parts);
        }
    }

    fn stored(&mut self, epoch: u64, result: Result<(), StoreFailure>, actions: &mut Vec<CoordinatorAction>) {
        let Some((_, finished)) = self.storing.take_if(|(storing, _)| *storing == epoch) else { return };
        match result {
            Ok(()) => {
                if finished {
                    self.finish(actions);
                } else {
                    actions.push(CoordinatorAction::Durable(epoch));
                }
            }
            Err(failure) if failure.fenced || finished || self.stopping => self.fail(failure.reason, actions),
            Err(failure) => {
                actions.push(CoordinatorAction::Warn(format!(
                    "checkpoint {epoch} could not be written: {}",
                    failure.reason
                )));
            }
        }
    }

    fn abandon_late(&mut self, now: Now, actions: &mut Vec<CoordinatorAction>) {
        let late = |pending: &mut PendingCheckpoint| {
            pending.barrier.control == BarrierControl::Checkpoint
                && now.saturating_sub(pending.since) > self.timing.timeout
        };
        let Some(pending) = self.pending.take_if(late) else { return };
        actions.push(CoordinatorAction::Warn(format!(
            "checkpoint {} was abandoned after {:.0?}: {} had not saved",
            pending.barrier.epoch,
            self.timing.timeout,
            self.describe_copies(pending.missing.iter().copied()),
        )));
    }

    fn warn_late(&mut self, now: Now, actions: &mut Vec<CoordinatorAction>) {
        if self.told || now.saturating_sub(self.begun) <= self.timing.timeout {
            return;
        }
        let waits = match (&self.pending, &self.moving) {
            (
                Some(PendingCheckpoint {
                    barrier: Barrier { control: BarrierControl::Rebalance(_), .. }, missing, ..
                }),
                _,
            ) => {
                format!("{} have not reached it", self.describe_copies(missing.iter().copied()))
            }
            (None, Some(moving)) => {
                format!("{} have not received theirs", self.describe_copies(moving.missing.iter().copied()))
            }
            _ => return,
        };
        self.told = true;
        actions.push(CoordinatorAction::Warn(format!(
            "checkpoint {}, at which buckets or splits move, has taken longer than {:.0?}, and no other can begin until it is \
             over: {waits}",
            self.epoch, self.timing.timeout,
        )));
    }

    /// Describes some copies for messages.
    fn describe_copies(&self, copies: impl ExactSizeIterator<Item = (u32, u32)>) -> String {
        let more = copies.len().saturating_sub(3);
        let who = |(task, copy): (u32, u32)| format!("\"{}\" (copy {copy})", self.members[task as usize].name);
        let shown = copies.take(3).map(who).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    }

    fn describe_tasks<'a>(&self, tasks: impl Iterator<Item = &'a u32>) -> String {
        let names: Vec<_> = tasks.map(|&task| format!("\"{}\"", self.members[task as usize].name)).collect();
        format!("{} {}", if names.len() == 1 { "task" } else { "tasks" }, names.join(", "))
    }

    fn unalign_late(&mut self, now: Now, actions: &mut Vec<CoordinatorAction>) {
        let (Some(pending), Some(after)) = (&mut self.pending, self.timing.unaligned_after) else { return };
        let late = pending.barrier.control == BarrierControl::Checkpoint && now.saturating_sub(pending.since) >= after;
        if late && !std::mem::replace(&mut pending.unaligned, true) {
            actions.push(CoordinatorAction::Unalign(pending.barrier.epoch));
        }
    }

    fn complete(&mut self, at_ms: u64, actions: &mut Vec<CoordinatorAction>) {
        if let Some(moving) = self.moving.take_if(|moving| moving.missing.is_empty()) {
            let moves_nothing = moving.buckets.is_empty() && moving.sources.is_empty();
            let outcome = match moving.begun.is_empty() && !moves_nothing {
                true => Err(format!(
                    "{} ended before anything could move",
                    self.describe_tasks(moving.buckets.keys().chain(&moving.sources))
                )),
                // A task that ended before the barrier has no more state.
                false => Ok(moving.moved),
            };
            if let (Ok(_), Some(spares)) = (&outcome, moving.spares) {
                self.next_spares = Some((moving.moved.epoch, spares));
            }
            if moving.moved.splits > 0 && !self.stopping {
                // Until there is one, a job that resumes gives them back to their old owners.
                self.requests.push((0, BarrierControl::Checkpoint));
            }
            actions.push(CoordinatorAction::Answer { id: moving.id, outcome });
        }
        if let Some(pending) = self.pending.take_if(|pending| pending.missing.is_empty()) {
            let epoch = pending.barrier.epoch;
            if let (Some(reason), BarrierControl::Stop) = (&pending.failed, &pending.barrier.control) {
                self.fail(format!("the job could not be stopped at checkpoint {epoch}: {reason}"), actions);
            } else if let Some(reason) = pending.failed {
                actions.push(CoordinatorAction::Warn(format!("checkpoint {epoch} was abandoned: {reason}")));
            } else {
                self.store(epoch, false, at_ms, actions);
            }
        }
        if self.pending.is_none() {
            for (id, parts) in std::mem::take(&mut self.ended_behind) {
                self.ended_later(id, parts);
            }
        }
        let idle = self.pending.is_none() && self.storing.is_none() && !self.over;
        if idle && self.running.is_empty() {
            if self.stopping {
                // The job resumes from the manifest of the barrier that stopped the sources.
                self.finish(actions);
            } else {
                self.epoch += 1;
                self.store(self.epoch, true, at_ms, actions);
            }
        }
    }

    fn fail(&mut self, reason: String, actions: &mut Vec<CoordinatorAction>) {
        self.over = true;
        actions.push(CoordinatorAction::Fail(reason));
    }

    fn finish(&mut self, actions: &mut Vec<CoordinatorAction>) {
        self.over = true;
        actions.extend([CoordinatorAction::Durable(ALL), CoordinatorAction::Finished]);
    }

    fn store(&mut self, epoch: u64, finished: bool, at_ms: u64, actions: &mut Vec<CoordinatorAction>) {
        let tasks = self.members.iter().zip(&self.states).map(|(member, state)| (member.name.clone(), state.clone()));
        let (job, claim) = (self.job.clone(), self.claim);
        // The checkpoint at which splits move has them where they were.
        if let Some((_, spares)) = self.next_spares.take_if(|(at, _)| *at < epoch) {
            self.spares = spares;
        }
        let (spares, tasks) = (self.spares.clone(), tasks.collect());
        let manifest = Manifest { job, claim, epoch, at_ms, finished, spares, tasks };
        self.storing = Some((epoch, finished));
        actions.push(CoordinatorAction::Store(Box::new(manifest)));
    }

    /// Checks that the buckets and splits of all tasks can move as requested; if not, none do.
    fn check(&self, Rebalance { maps, splits, spares }: &Rebalance) -> Result<(), String> {
        if maps.is_empty() && splits.is_empty() && spares.is_none() {
            return Err("no task is named whose buckets or splits should move".into());
        }
        maps.iter().try_for_each(|(task, map)| self.check_map(task, map))?;
        splits.iter().try_for_each(|(task, moves)| self.check_splits(task, moves))
    }

    fn member_named(&self, task: &str) -> Result<usize, String> {
        self.members.iter().position(|member| member.name == task).ok_or_else(|| {
            let names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
            format!("no task \"{task}\"; the tasks are {}", names.join(", "))
        })
    }

    fn check_splits(&self, task: &str, moves: &SplitMoves) -> Result<(), String> {
        let refused = |reason: &str| Err(format!("the splits of task \"{task}\" cannot move: {reason}"));
        let at = self.member_named(task)?;
        let CoordinatedTask { copies, why_splits_stay, .. } = &self.members[at];
        if let Some(reason) = why_splits_stay {
            return refused(reason);
        }
        if moves.is_empty() || moves.values().any(BTreeMap::is_empty) {
            return refused("none is named");
        }
        for (&from, splits) in moves {
            if let Some((split, _)) = splits.iter().find(|(_, to)| **to == from) {
                return refused(&format!("split {split:?} is to move from copy {from} to copy {from}"));
            }
            for &copy in splits.values().chain([&from]) {
                if copy >= *copies {
                    return refused(&format!("copy {copy} is named, but it has {copies}, counted from 0"));
                }
                if !self.running.contains(&(at as u32, copy)) {
                    return refused(&format!("its copy {copy} has ended"));
                }
            }
        }
        Ok(())
    }

    fn check_map(&self, task: &str, map: &RouteMap) -> Result<(), String> {
        let refused = |reason: &str| Err(format!("the buckets of task \"{task}\" cannot move: {reason}"));
        let at = self.member_named(task)?;
        let CoordinatedTask { copies, route, why_not_movable, .. } = &self.members[at];
        if let Some(reason) = why_not_movable {
            return refused(reason);
        }
        let Some(route) = route else { return refused("they are not partitioned by key") };
        if let Err(reason) = map.fits(route.buckets(), *copies) {
            return refused(&reason);
        }
        let (version, now) = (map.version(), route.version());
        if version <= now {
            let moving = self.moving.as_ref().is_some_and(|moving| moving.buckets.contains_key(&(at as u32)));
            let since = if moving { ", and they are moving by it; wait for the answer, and" } else { ";" };
            return refused(&format!(
                "the map has version {version}, but theirs has version {now}{since} make the new map from that one \
                 (RunProgress::route)"
            ));
        }
        match (0..*copies).find(|&copy| !self.running.contains(&(at as u32, copy))) {
            Some(copy) => refused(&format!("its copy {copy} has ended")),
            None => Ok(()),
        }
    }

    /// Uses the new maps from now on, whatever becomes of the checkpoint.
    fn begin_moving(&mut self, id: u64, Rebalance { maps, splits, spares }: &Rebalance) -> MoveInProgress {
        let moved = MoveReport { epoch: self.epoch, ..MoveReport::default() };
        let (buckets, sources, missing, begun) = Default::default();
        let mut moving = MoveInProgress { id, buckets, sources, missing, moved, begun, spares: spares.clone() };
        for (task, moves) in splits {
            let at = self.member_named(task).expect("checked before") as u32;
            moving.sources.insert(at);
            let copies = moves.iter().flat_map(|(from, splits)| splits.values().chain([from]));
            moving.missing.extend(copies.map(|&copy| (at, copy)));
        }
        for (task, map) in maps {
            let at = self.members.iter().position(|member| &member.name == task).expect("checked before");
            let old = self.members[at].route.replace(Arc::new(map.clone())).expect("checked before");
            self.states[at].route = Some(map.clone());
            let buckets = old.copies().zip(map.copies()).filter(|(old, new)| old != new).count() as u32;
            moving.buckets.insert(at as u32, buckets);
            moving.missing.extend((0..self.members[at].copies).map(|copy| (at as u32, copy)));
        }
        moving
    }

    fn begin(&mut self, now: Now, actions: &mut Vec<CoordinatorAction>) {
        // After the barrier that stops the job there are no others: copies end, but this is not the end of their input.
        if self.over || self.stopping || self.running.is_empty() {
            for (id, control) in std::mem::take(&mut self.requests) {
                if let BarrierControl::Rebalance(_) = control {
                    refuse(id, "the job is ending".into(), actions);
                }
            }
            return;
        }
        if self.pending.is_some() || self.storing.is_some() || self.moving.is_some() {
            return;
        }
        let due = !self.timing.interval.is_zero() && now.saturating_sub(self.begun) >= self.timing.interval;
        let (id, control) = loop {
            if self.requests.is_empty() {
                if !due {
                    return;
                }
                break (0, BarrierControl::Checkpoint);
            }
            let (id, control) = self.requests.remove(0);
            match &control {
                // Check again, since a previous barrier may have changed the map.
                BarrierControl::Rebalance(rebalance) if let Err(reason) = self.check(rebalance) => {
                    refuse(id, reason, actions)
                }
                _ => break (id, control),
            }
        };
        self.stopping |= control == BarrierControl::Stop;
        self.epoch += 1;
        self.begun = now;
        self.told = false;
        if let BarrierControl::Rebalance(rebalance) = &control {
            self.moving = Some(self.begin_moving(id, rebalance));
        }
        let barrier = Barrier { epoch: self.epoch, control };
        let missing = self.running.clone();
        self.pending =
            Some(PendingCheckpoint { barrier: barrier.clone(), since: now, unaligned: false, missing, failed: None });
        actions.push(CoordinatorAction::Inject(barrier));
        // With a delay of zero, the barrier need not wait for the next tick.
        self.unalign_late(now, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> CoordinatedTask {
        let route = Some(Arc::new(RouteMap::even(4, 2)));
        CoordinatedTask {
            name: name.into(),
            copies: 2,
            route,
            why_not_movable: None,
            why_splits_stay: None,
            spares: BTreeSet::new(),
            schema: None,
        }
    }

    /// A partial rebalance would leave tasks with the same keys on different workers; and if the answer came before all
    /// tasks have their buckets, the next map could overtake this one.
    #[test]
    fn buckets_of_several_tasks_move_together_or_not_at_all() {
        let day = Duration::from_secs(86_400);
        let timing = CheckpointTiming { interval: Duration::ZERO, unaligned_after: None, timeout: day };
        let members = vec![member("left"), member("right"), member("other")];
        let mut coordinator = Coordinator::new("job", members, timing, &StartPoint::default());
        let next = RouteMap::even(4, 2).moved(&[(0, 1), (1, 1)]);
        let ask = |coordinator: &mut Coordinator, id, maps: &[(&str, &RouteMap)]| {
            let maps = maps.iter().map(|(task, map)| ((*task).to_owned(), (*map).clone())).collect();
            let control = BarrierControl::Rebalance(Rebalance { maps, ..Rebalance::default() });
            coordinator.handle(Duration::ZERO, 0, CoordinatorEvent::Request { id, control })
        };
        let old = RouteMap::even(4, 2);
        for (maps, reason) in [
            (vec![], "no task is named"),
            (vec![("left", &next), ("middle", &next)], "no task \"middle\"; the tasks are left, right, other"),
            (
                vec![("left", &next), ("right", &old)],
                "the buckets of task \"right\" cannot move: the map has version 1",
            ),
        ] {
            let actions = ask(&mut coordinator, 1, &maps);
            let [CoordinatorAction::Answer { id: 1, outcome: Err(refused) }] = &actions[..] else {
                panic!("{maps:?}: {actions:?}")
            };
            assert!(refused.contains(reason), "{refused}");
        }
        let actions = ask(&mut coordinator, 2, &[("left", &next), ("right", &next)]);
        let [CoordinatorAction::Inject(barrier)] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(["left", "right", "other"].map(|task| barrier.route_of(task)), [Some(&next), Some(&next), None]);
        let late = ask(&mut coordinator, 3, &[("right", &next)]);
        assert!(format!("{late:?}").contains("they are moving by it; wait for the answer"), "{late:?}");
        let mut answers = Vec::new();
        for (task, copy) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
            assert!(answers.is_empty(), "{answers:?}");
            let moved = MoveReport { epoch: 1, bytes: 10, ..MoveReport::default() };
            let report = CopyReport { task, copy, said: ReportBody::Moved(moved) };
            answers = coordinator.handle(Duration::ZERO, 0, CoordinatorEvent::Report(report));
        }
        let outcome = Ok(MoveReport { epoch: 1, buckets: 4, splits: 0, bytes: 40, waited: Duration::ZERO });
        assert_eq!(answers, [CoordinatorAction::Answer { id: 2, outcome }]);
    }

    /// A job that resumes from the checkpoint at which workers join has splits where they were, so it must not be told
    /// that others are spare; and if nothing moves, as in a job without keys, whoever asked must be told all the same.
    #[test]
    fn manifests_name_spare_workers_behind_the_move() {
        let day = Duration::from_secs(86_400);
        let timing = CheckpointTiming { interval: Duration::ZERO, unaligned_after: None, timeout: day };
        let begin = StartPoint { spares: [1, 2].into(), ..StartPoint::default() };
        let mut coordinator = Coordinator::new("job", vec![member("count")], timing, &begin);
        let mut handled = |event| coordinator.handle(Duration::ZERO, 0, event);
        let mut spares = |asked: Option<BTreeSet<u32>>, id, epoch| {
            let control = match asked {
                Some(spares) => BarrierControl::Rebalance(Rebalance { spares: Some(spares), ..Rebalance::default() }),
                None => BarrierControl::Checkpoint,
            };
            let mut actions = handled(CoordinatorEvent::Request { id, control });
            for copy in 0..2 {
                let said = ReportBody::Saved { epoch, parts: Vec::new() };
                actions.extend(handled(CoordinatorEvent::Report(CopyReport { task: 0, copy, said })));
            }
            actions.extend(handled(CoordinatorEvent::Stored { epoch, result: Ok(()) }));
            let manifest = actions.iter().find_map(|action| match action {
                CoordinatorAction::Store(manifest) => Some(manifest.spares.clone()),
                _ => None,
            });
            let answer = actions.into_iter().find_map(|action| match action {
                CoordinatorAction::Answer { id, outcome } => Some((id, outcome.map(|moved| moved.epoch))),
                _ => None,
            });
            (manifest.expect("a checkpoint"), answer)
        };
        assert_eq!(spares(None, 0, 1), ([1, 2].into(), None));
        assert_eq!(spares(Some([2].into()), 7, 2), ([1, 2].into(), Some((7, Ok(2)))));
        assert_eq!(spares(None, 0, 3), ([2].into(), None));
    }

    /// A job that resumes with other spare workers must not use the map of the checkpoint, which may lead to them.
    #[test]
    fn maps_of_other_workers_are_not_resumed() {
        let resumed = |spare_then: &[u32], map: &[u32], spare_now: &[u32]| {
            let mut member = member("count");
            member.spares = spare_now.iter().copied().collect();
            let state = TaskState { copies: 2, route: Some(RouteMap::new(3, map.to_vec())), ..TaskState::default() };
            let manifest = Manifest {
                job: "job".into(),
                claim: 1,
                epoch: 1,
                at_ms: 0,
                finished: false,
                spares: spare_then.iter().copied().collect(),
                tasks: [("count".into(), state)].into(),
            };
            member.route_in(&manifest, &member.spares).is_some_and(|route| route.version() == 3)
        };
        assert!(resumed(&[], &[0, 1, 1, 1], &[]));
        assert!(resumed(&[1], &[0, 0, 0, 0], &[1]));
        assert!(!resumed(&[1], &[0, 0, 0, 0], &[]), "worker 1 would have nothing");
        assert!(!resumed(&[], &[0, 1, 1, 1], &[1]));
        assert!(!resumed(&[1], &[0, 1, 0, 0], &[1]), "it has joined at this very checkpoint");
    }

    /// A rebalance behind slow steps delays all checkpoints; without a warning, nobody would know why a failure goes so
    /// far back.
    #[test]
    fn a_slow_rebalance_is_reported_once() {
        let second = Duration::from_secs(1);
        let timing = CheckpointTiming { interval: 2 * second, unaligned_after: Some(second), timeout: 10 * second };
        let mut coordinator = Coordinator::new("job", vec![member("count")], timing, &StartPoint::default());
        let mut warned = |seconds: u32, event: CoordinatorEvent| -> Vec<String> {
            let actions = coordinator.handle(seconds * second, 0, event);
            let told = |action| if let CoordinatorAction::Warn(text) = action { Some(text) } else { None };
            actions.into_iter().filter_map(told).collect()
        };
        let moved = RouteMap::even(4, 2).moved(&[(0, 1)]);
        let control =
            BarrierControl::Rebalance(Rebalance { maps: [("count".into(), moved)].into(), ..Rebalance::default() });
        let none: [String; 0] = [];
        assert_eq!(warned(0, CoordinatorEvent::Request { id: 1, control }), none);
        assert_eq!(warned(10, CoordinatorEvent::Tick), none);
        let late = warned(11, CoordinatorEvent::Tick);
        let told = "checkpoint 1, at which buckets or splits move, has taken longer than 10s";
        assert!(late[0].starts_with(told) && late[0].ends_with("\"count\" (copy 1) have not reached it"), "{late:?}");
        assert_eq!(warned(60, CoordinatorEvent::Tick), none);
    }
}
