//! Decides whether to act, waits for the result, and undoes an action that made things worse.
//!
//! ```text
//! watching --(something has waited for seconds, and moving helps)--> moving --> judging --> watching
//!                                                                     |          | worse
//!                                                                  (failed)   returning --> watching
//! ```
//! It acts if the sources' rate has fallen by a tenth below its long-term mean, or if they wait for much of the time,
//! and only if moving buckets should bring more. A source that has less to send makes nobody wait, so it is not a
//! reason to act. The number of actions is limited; after one that made things worse, the next has to wait, twice as
//! long each time.

mod trend;

use std::collections::VecDeque;

use self::trend::Trend;
use crate::{
    assign::Problem,
    diagnose::diagnose,
    layout::ClusterLayout,
    observe::Observer,
    report::{BucketReport, Cause, CauseKind, ClusterReport, Decision, Outcome, Remedy, TaskReport},
    sample::WorkerSample,
};

/// Seconds between two diagnoses.
const DIAGNOSE_S: f64 = 0.9;
/// A wait for more than this fraction of the sources' time is a reason by itself,
const WEIGHT_MIN: f64 = 0.3;
/// if it lasts for this many seconds,
const LASTING_S: f64 = 3.0;
/// or this many if the rate has also fallen.
const LASTING_FALLEN_S: f64 = 2.0;
/// After this many seconds, rates that never become steady are used as they are.
const LASTING_S_MAX: f64 = 8.0;
/// After something has become slower, rates must be of the new state for this many seconds. That it has is a reason
/// that need not last longer, if it is no older than the second number.
const SETTLED_S: f64 = 0.9;
const NEWLY_S: f64 = 10.0;
/// For this many seconds, a reason may disappear and still count as the same.
const GAP_S: f64 = 1.5;
/// The gain required of an action, and the fraction of it that each action of the last hour adds.
const GAIN_MIN: f64 = 0.05;
const GAIN_MIN_MORE: f64 = 0.25;
/// The factor by which each action of the last hour lengthens the time between two: links that never settle are not
/// chased.
const INTERVAL_MORE: f64 = 1.35;
/// An action is judged after this many seconds, or later if the rate is not steady then.
const JUDGE_S: f64 = 5.0;
const JUDGE_S_MAX: f64 = 15.0;
/// A rate that is lower by this fraction is worse if the previous owners would do better now,
const WORSE: f64 = 0.05;
/// or by this one if known capacities still allow what the previous owners did.
const MUCH_WORSE: f64 = 0.15;
/// For this many seconds nothing is done after an action made things worse or failed, at first and at most.
const BACK_OFF_S: f64 = 60.0;
const BACK_OFF_S_MAX: f64 = 3600.0;
/// After this many seconds without a report, a move counts as failed.
const MOVE_S_MAX: f64 = 120.0;
/// Advice is not repeated for this many seconds.
const ADVICE_S: f64 = 60.0;
/// After this many seconds, a lower rate that nobody waits for becomes the usual one.
const USUAL_S: f64 = 30.0;
/// How many decisions are kept.
const DECISIONS_MAX: usize = 100;

/// What a controller does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It only says what slows the job down.
    Off,
    /// It also says what it would do.
    #[default]
    Advise,
    /// It acts.
    On,
}

impl Mode {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Advise => "advise",
            Self::On => "on",
        }
    }
}

/// How much a controller may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The minimum number of seconds between two actions.
    pub interval_s: f64,
    /// The most actions per hour.
    pub actions_per_hour: usize,
    /// The most bytes of state that one action moves.
    pub state_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { interval_s: 10.0, actions_per_hour: 20, state_bytes: u64::MAX }
    }
}

/// What to do; report its result to [`Controller::moved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Assign buckets to these owners: by task, as an index into the layout's, the copy that owns each bucket.
    Move(Vec<(u32, Vec<u32>)>),
}

/// The owners of buckets, by task.
type Owners = Vec<(u32, Vec<u32>)>;

#[derive(Clone, Debug, Default)]
enum Phase {
    #[default]
    Watching,
    /// Buckets have been moving since this time.
    Moving(f64, Attempt),
    /// They had moved at this time.
    Judging(f64, Attempt),
    /// They have been moving back since this time.
    Returning(f64, Attempt),
}

/// An action, and the state before it.
#[derive(Clone, Debug, Default)]
struct Attempt {
    since_s: f64,
    rate: f64,
    owners: Owners,
}

/// Watches a job, and moves its buckets or says which ones to move.
#[derive(Debug, Default)]
pub struct Controller {
    mode: Mode,
    limits: Limits,
    observer: Observer,
    layout: ClusterLayout,
    causes: Vec<Cause>,
    diagnosed_s: Option<f64>,
    trend: Trend,
    /// Since when moving buckets would help at all, and since when something waits much.
    helpful: Lasting,
    urgent: Lasting,
    phase: Phase,
    /// The times of actions within the last hour.
    actions_s: VecDeque<f64>,
    quiet_until_s: f64,
    back_off_s: f64,
    advised: Vec<(CauseKind, Option<u32>, Option<u32>, f64)>,
    decisions: VecDeque<Decision>,
}

/// Since when a condition has been true, and when it was last true.
#[derive(Clone, Copy, Debug, Default)]
struct Lasting(Option<(f64, f64)>);

impl Lasting {
    fn note(&mut self, now_s: f64, is_so: bool) {
        self.0 = match self.0.filter(|(_, last_s)| now_s - last_s <= GAP_S) {
            Some((since_s, _)) if is_so => Some((since_s, now_s)),
            None if is_so => Some((now_s, now_s)),
            earlier => earlier,
        };
    }

    fn lasts(self, now_s: f64, seconds: f64) -> bool {
        self.0.is_some_and(|(since_s, _)| now_s - since_s >= seconds)
    }
}

impl Controller {
    /// A controller without observations.
    pub fn new(mode: Mode, limits: Limits) -> Self {
        Self { mode, limits, back_off_s: BACK_OFF_S, ..Self::default() }
    }

    /// Counts actions of earlier runs, which happened `ago_s` seconds ago, against the limits.
    pub fn count_earlier(&mut self, ago_s: impl IntoIterator<Item = f64>) {
        self.actions_s.extend(ago_s.into_iter().map(|ago_s| -ago_s));
        self.actions_s.make_contiguous().sort_unstable_by(f64::total_cmp);
    }

    /// The controller's mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it knows of the job.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Adds the newest sample of each worker, about twice a second, and returns what to do.
    pub fn step(&mut self, now_s: f64, layout: &ClusterLayout, samples: &[WorkerSample]) -> Vec<Action> {
        self.observer.add(now_s, layout, samples);
        self.layout.clone_from(layout);
        if self.observer.slowed_s() == Some(now_s) {
            self.trend.forget_recent();
            // Decide as soon as rates are of the new state, and of nothing that was seen before.
            (self.helpful, self.urgent) = Default::default();
            self.diagnosed_s = Some(now_s + SETTLED_S - DIAGNOSE_S);
            // What did not help before may help now.
            self.quiet_until_s = now_s;
        }
        self.trend.add(now_s, self.observer.rates().source_rows_s);
        if self.diagnosed_s.is_none_or(|last_s| !(0.0..DIAGNOSE_S).contains(&(now_s - last_s))) {
            self.diagnosed_s = Some(now_s);
            self.causes = diagnose(layout, self.observer.rates());
            let with_remedy = || self.causes.iter().filter(|cause| cause.remedy.is_some());
            let (some, weight) = (with_remedy().next().is_some(), with_remedy().map(|cause| cause.weight).sum::<f64>());
            self.helpful.note(now_s, some);
            self.urgent.note(now_s, weight > WEIGHT_MIN);
            if self.causes.is_empty() && self.trend.fallen_for(now_s) > USUAL_S {
                self.trend.forget_long();
            }
        }
        let action = match std::mem::take(&mut self.phase) {
            Phase::Watching => self.watch(now_s),
            Phase::Judging(since_s, attempt) => self.judge(now_s, since_s, attempt),
            moving @ (Phase::Moving(since_s, _) | Phase::Returning(since_s, _)) => {
                self.phase = moving;
                if now_s - since_s > MOVE_S_MAX {
                    self.moved(now_s, Err("no report that the buckets have moved".to_owned()));
                }
                None
            }
        };
        action.into_iter().collect()
    }

    /// Receives the report that buckets have moved as the last action asked, or why not.
    pub fn moved(&mut self, now_s: f64, result: Result<(), String>) {
        self.trend.reset();
        let (attempt, is_return) = match std::mem::take(&mut self.phase) {
            Phase::Moving(_, attempt) => (attempt, false),
            Phase::Returning(_, attempt) => (attempt, true),
            other => {
                self.phase = other;
                return;
            }
        };
        match result {
            Ok(()) if is_return => self.conclude(Outcome::RolledBack),
            Ok(()) => {
                self.conclude(Outcome::Judging);
                self.phase = Phase::Judging(now_s, attempt);
            }
            Err(why) => {
                self.conclude(Outcome::Failed(why));
                self.back_off(now_s);
            }
        }
    }

    /// The last hundred decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// The controller's report.
    pub fn report(&self) -> ClusterReport {
        let rates = self.observer.rates();
        ClusterReport {
            span_s: rates.span_s,
            hosts: rates.hosts.clone(),
            links: rates.links.clone(),
            tasks: (0..rates.tasks.len().min(self.layout.tasks.len())).map(|task| self.task_report(task)).collect(),
            causes: self.causes.clone(),
            controller: self.mode.name().to_owned(),
            decisions: self.decisions.iter().cloned().collect(),
        }
    }

    fn task_report(&self, at: usize) -> TaskReport {
        let (rates, task) = (&self.observer.rates().tasks[at], &self.layout.tasks[at]);
        let host_of = |owner: &u32| {
            let worker = task.copy_workers.get(*owner as usize)?;
            self.layout.worker_hosts.get(*worker as usize).copied()
        };
        let buckets = BucketReport {
            hosts: task.owners.iter().map(|owner| host_of(owner).unwrap_or_default()).collect(),
            rows_s: rates.rows_s.iter().map(|rows_s| *rows_s as f32).collect(),
            bytes_s: (0..rates.rows_s.len()).map(|bucket| rates.bytes_s(bucket) as f32).collect(),
            work: rates.work.iter().map(|work| *work as f32).collect(),
            state_bytes: task.state_bytes.clone(),
        };
        TaskReport {
            name: task.name.clone(),
            workers: rates.workers.clone(),
            buckets: (!task.owners.is_empty()).then_some(buckets),
            heavy_keys: rates.heavy_keys.clone(),
        }
    }

    /// Acts, or gives advice, if there is a reason.
    fn watch(&mut self, now_s: f64) -> Option<Action> {
        let slowed_s = self.observer.slowed_s().map_or(f64::INFINITY, |slowed_s| now_s - slowed_s);
        let slowed = (SETTLED_S..NEWLY_S).contains(&slowed_s) && self.helpful.lasts(now_s, 0.0);
        let fallen = self.trend.has_fallen() && self.helpful.lasts(now_s, LASTING_FALLEN_S);
        if self.mode == Mode::Off || !(slowed || fallen || self.urgent.lasts(now_s, LASTING_S)) {
            return None;
        }
        // While rates change, they mix two states, and so would a decision based on them.
        if !self.trend.is_steady() && !self.helpful.lasts(now_s, LASTING_S_MAX) {
            return None;
        }
        let cause = self.causes.iter().find(|cause| cause.remedy.is_some())?.clone();
        let remedy = cause.remedy.clone()?;
        if self.mode == Mode::Advise {
            self.advise(now_s, &cause, &remedy);
            return None;
        }
        self.actions_s.retain(|at_s| now_s - at_s < 3600.0);
        let actions = self.actions_s.len();
        let demanded = GAIN_MIN * (1.0 + GAIN_MIN_MORE * actions as f64);
        let interval_s = self.limits.interval_s * INTERVAL_MORE.powi(actions.saturating_sub(1).min(100) as i32);
        // Going back counts as an action too.
        let allowed = now_s >= self.quiet_until_s
            && self.actions_s.back().is_none_or(|last_s| now_s - last_s >= interval_s)
            && actions + 1 < self.limits.actions_per_hour
            && remedy.state_bytes <= self.limits.state_bytes;
        if !allowed || remedy.gain < demanded {
            return None;
        }
        let old = |(task, _): &(u32, Vec<u32>)| {
            self.layout.tasks.get(*task as usize).map(|layout| (*task, layout.owners.clone()))
        };
        let owners = remedy.owners.iter().filter_map(old).collect();
        let attempt = Attempt { since_s: now_s, rate: self.trend.recent(), owners };
        self.decide(now_s, &cause, &remedy, Outcome::Moving);
        self.phase = Phase::Moving(now_s, attempt);
        self.actions_s.push_back(now_s);
        Some(Action::Move(remedy.owners))
    }

    fn advise(&mut self, now_s: f64, cause: &Cause, remedy: &Remedy) {
        self.advised.retain(|(.., at_s)| now_s - at_s < ADVICE_S);
        let same = |(kind, host, task, _): &(CauseKind, Option<u32>, Option<u32>, f64)| {
            (*kind, *host, *task) == (cause.kind, cause.host, cause.task)
        };
        if !self.advised.iter().any(same) {
            self.advised.push((cause.kind, cause.host, cause.task, now_s));
            self.decide(now_s, cause, remedy, Outcome::Advised);
        }
    }

    fn decide(&mut self, now_s: f64, cause: &Cause, remedy: &Remedy, outcome: Outcome) {
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            at_s: now_s,
            sentence: cause.sentence.clone(),
            buckets: remedy.buckets,
            predicted: remedy.gain,
            measured: None,
            outcome,
        });
    }

    /// Sets the state of the last decision, which is the only open one while an action is in progress.
    fn conclude(&mut self, outcome: Outcome) {
        if let Some(decision) = self.decisions.back_mut() {
            decision.outcome = outcome;
        }
    }

    fn back_off(&mut self, now_s: f64) {
        self.quiet_until_s = now_s + self.back_off_s;
        self.back_off_s = (2.0 * self.back_off_s).min(BACK_OFF_S_MAX);
    }

    /// Keeps what has moved, or moves it back.
    fn judge(&mut self, now_s: f64, since_s: f64, attempt: Attempt) -> Option<Action> {
        let passed_s = now_s - since_s;
        // Then the rate before tells nothing about the action.
        let slowed_s = self.observer.slowed_s().filter(|slowed_s| *slowed_s > attempt.since_s);
        let judge_s = slowed_s.map_or(JUDGE_S, |slowed_s| (slowed_s + SETTLED_S - since_s).max(0.0));
        if passed_s < judge_s || (passed_s < JUDGE_S_MAX && !self.trend.is_steady()) {
            self.phase = Phase::Judging(since_s, attempt);
            return None;
        }
        let gain = if attempt.rate > 0.0 { self.trend.recent() / attempt.rate - 1.0 } else { 0.0 };
        if let Some(decision) = self.decisions.back_mut().filter(|_| slowed_s.is_none()) {
            decision.measured = Some(gain);
        }
        // If nobody waits, the sources have less to send. If something has become slower in the meantime, neither the
        // new owners nor the old ones were chosen for that, and the next action helps more than going back.
        let waits = gain < -WORSE && !self.causes.is_empty() && slowed_s.is_none();
        if self.mode == Mode::On && waits && self.would_be_better(&attempt, gain) {
            self.back_off(now_s);
            self.actions_s.push_back(now_s);
            let owners = attempt.owners.clone();
            self.phase = Phase::Returning(now_s, attempt);
            return Some(Action::Move(owners));
        }
        self.back_off_s = BACK_OFF_S;
        self.conclude(Outcome::Kept);
        None
    }

    /// Whether the previous owners would do better than the current ones as things are now; not if they do not fit any
    /// more. The rate before is of then: if conditions have changed since, it says nothing about the owners.
    fn would_be_better(&self, attempt: &Attempt, gain: f64) -> bool {
        let problem = Problem::of(&self.layout, self.observer.rates()).without_guesses();
        let Some(previous) = problem.load_with(&attempt.owners) else { return false };
        let (previous, current) = (previous.most(), problem.load().most());
        // Of what is not known, the rate is all that shows.
        let as_before = self.trend.recent() >= (1.0 - WORSE) * attempt.rate * previous;
        previous < current || (gain < -MUCH_WORSE && as_before)
    }
}

#[cfg(test)]
mod tests;
