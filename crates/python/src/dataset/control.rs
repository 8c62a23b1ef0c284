//! The controller of a stream's run: its options, what `tidemill drain` and `balance` ask for, and what is kept of it
//! beside the checkpoints, from which a job that starts again goes on and which `tidemill why` shows.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Value, json};
use tidemill_control::{ClusterLayout, Decision, Limits, Mode, Outcome};
use tidemill_dataflow::checkpoint::CheckpointStore;
use tidemill_dataflow::{LookTimer, RunController, RunProgress};
use tidemill_dataset::{ActionHandle, DataSetError};
use tidemill_net::notice;

use super::engine::QueryEngine;
use super::finish;
use super::requests::MoveRequests;

/// Its name among the notes of a store.
const NOTE: &str = "controller";
/// Decisions that are kept, of all runs.
const DECISIONS_MAX: usize = 1000;
/// Actions count for so long.
const COUNTED_S: f64 = 3600.0;

/// `tidemill.stream.Controller`, lengths of time in seconds.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ControllerOptions {
    mode: String,
    interval: f64,
    actions_per_hour: usize,
    state_bytes: Option<u64>,
}

impl ControllerOptions {
    fn controller(&self) -> PyResult<RunController> {
        let word = &self.mode;
        let mode = [Mode::Off, Mode::Advise, Mode::On].into_iter().find(|mode| mode.name() == word);
        let mode =
            mode.ok_or_else(|| PyValueError::new_err(format!("mode is \"off\", \"advise\" or \"on\", not {word:?}")))?;
        let state_bytes = self.state_bytes.unwrap_or(u64::MAX);
        let limits = Limits { interval_s: self.interval, actions_per_hour: self.actions_per_hour, state_bytes };
        Ok(RunController::new(mode, limits))
    }
}

/// See the module. It lives as long as the run.
pub(super) struct RunControl {
    pub(super) controller: RunController,
    requests: MoveRequests,
    record: Option<ControlRecord>,
    /// The last decision that the job's log has, and where it stood.
    told: Option<(f64, Outcome)>,
    /// A decision, as JSON, for each line that was printed and that the program's log does not have yet.
    decided: Vec<String>,
}

impl RunControl {
    /// Of a run whose status file that is, and whose checkpoints are kept there. Worker 0 keeps the record.
    pub(super) fn open(
        py: Python<'_>,
        engine: &QueryEngine,
        options: Option<&ControllerOptions>,
        store: Option<CheckpointStore>,
        status_file: Option<PathBuf>,
        worker: u32,
    ) -> PyResult<Self> {
        let advises = || Ok(RunController::new(Mode::default(), Limits::default()));
        let mut controller = options.map_or_else(advises, ControllerOptions::controller)?;
        let store = store.filter(|_| worker == 0);
        let record = store.and_then(|store| ControlRecord::open(py, engine, store, &mut controller));
        Ok(RunControl { controller, requests: MoveRequests::new(status_file), record, told: None, decided: Vec::new() })
    }

    /// Looks at the run, and has it do what is decided or asked for.
    pub(super) fn look(&mut self, engine: &QueryEngine, run: &RunProgress) {
        if let Some(record) = &mut self.record {
            record.look(engine, run, &self.controller, &mut self.requests.drained);
        }
        self.controller.look(run, &self.requests.drained);
        self.tell();
        self.requests.look(run, self.controller.rates());
    }

    /// Tells the job's log what is moved, and what came of it.
    fn tell(&mut self) {
        let Some(last) = self.controller.decisions().last() else { return };
        let now = (last.at_s, last.outcome.clone());
        if self.told.as_ref() == Some(&now) {
            return;
        }
        let percent = |gain: f64| format!("{:+.0} %", 100.0 * gain);
        let measured = last.measured.map_or_else(String::new, |gain| format!(" ({} measured)", percent(gain)));
        if !matches!(last.outcome, Outcome::Advised | Outcome::Judging) {
            self.decided.push(json!(last).to_string());
        }
        match &last.outcome {
            Outcome::Moving => notice!("the controller moves {} buckets: {}", last.buckets, last.sentence),
            Outcome::Kept => notice!("the controller keeps its move of {} buckets{measured}", last.buckets),
            Outcome::RolledBack => {
                notice!("the controller has moved {} buckets back: the job was slower{measured}", last.buckets);
            }
            Outcome::Failed(reason) => notice!("the controller could not move {} buckets: {reason}", last.buckets),
            Outcome::Advised | Outcome::Judging => {}
        }
        self.told = Some(now);
    }

    /// The decisions that lines were printed of since the last call, as JSON.
    pub(super) fn take_decided(&mut self) -> Vec<String> {
        std::mem::take(&mut self.decided)
    }

    /// Waits for what is being kept.
    pub(super) fn close(&mut self, py: Python<'_>) {
        if let Some(writing) = self.record.as_mut().and_then(|record| record.writing.take())
            && let Err(error) = finish(py, writing)
        {
            tell_lost(&error);
        }
    }
}

/// The job goes on: what its checkpoints need is elsewhere.
fn tell_lost(error: &dyn std::fmt::Display) {
    notice!("decisions of the controller cannot be kept beside the checkpoints: {error}");
}

/// What runs before this one have left, and this one leaves to the next.
struct ControlRecord {
    store: CheckpointStore,
    timer: LookTimer,
    /// When this run began, in seconds since 1970.
    begun_s: f64,
    /// Of runs before this one.
    earlier: Vec<Value>,
    /// Hosts that a run before this one had drained, by name, until they are known by number.
    drained: Vec<String>,
    /// What the text was last made of.
    seen: Option<RecordedState>,
    /// What was last written, or is being written.
    text: String,
    writing: Option<ActionHandle<()>>,
}

/// What the text of a record depends on: a decision that another one has followed does not change any more.
#[derive(Clone, PartialEq)]
struct RecordedState {
    last: Option<(f64, Outcome, Option<f64>)>,
    drained: BTreeSet<u32>,
}

impl RecordedState {
    fn of(controller: &RunController, drained: &BTreeSet<u32>) -> Self {
        let last = controller.decisions().last();
        let last = last.map(|decision| (decision.at_s, decision.outcome.clone(), decision.measured));
        RecordedState { last, drained: drained.clone() }
    }
}

fn now_s() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

fn list(of: &Value, name: &str) -> Vec<Value> {
    of[name].as_array().cloned().unwrap_or_default()
}

/// What is kept in a store; `Null` if nothing is.
pub(super) async fn kept(store: CheckpointStore) -> Result<Value, DataSetError> {
    let note = store.note(NOTE).await.map_err(|error| DataSetError::Io(error.to_string()))?;
    let Some(text) = note else { return Ok(Value::Null) };
    let damaged = |error| DataSetError::Io(format!("{}: notes/{NOTE}: {error}", store.place()));
    serde_json::from_slice(&text).map_err(damaged)
}

impl ControlRecord {
    const EVERY: Duration = Duration::from_secs(1);

    /// `None` if what is kept cannot be read: nothing is to take its place.
    fn open(
        py: Python<'_>,
        engine: &QueryEngine,
        store: CheckpointStore,
        controller: &mut RunController,
    ) -> Option<Self> {
        let kept = py.detach(|| engine.engine.run(kept(store.clone()))).inspect_err(|error| tell_lost(error)).ok()?;
        let (begun_s, earlier) = (now_s(), list(&kept, "decisions"));
        let was_done = |decision: &&Value| decision["outcome"] != json!(Outcome::Advised);
        let ago_s = earlier.iter().filter(was_done).filter_map(|decision| Some(begun_s - decision["at_s"].as_f64()?));
        controller.count_earlier(ago_s.filter(|ago_s| (0.0..COUNTED_S).contains(ago_s)));
        let drained = list(&kept, "drained").iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect();
        let text = kept.to_string();
        Some(ControlRecord {
            store,
            timer: LookTimer::new(Self::EVERY),
            begun_s,
            earlier,
            drained,
            seen: None,
            text,
            writing: None,
        })
    }

    /// Drains what was drained before, and keeps what is new.
    fn look(
        &mut self,
        engine: &QueryEngine,
        run: &RunProgress,
        controller: &RunController,
        drained: &mut BTreeSet<u32>,
    ) {
        if !self.timer.is_due() {
            return;
        }
        match self.writing.as_ref().map(|writing| writing.wait(Duration::ZERO)) {
            Some(None) => return,
            Some(Some(Err(error))) => tell_lost(&error),
            Some(Some(Ok(()))) | None => {}
        }
        self.writing = None;
        if self.drained.is_empty() && self.seen.as_ref() == Some(&RecordedState::of(controller, drained)) {
            return;
        }
        let layout = run.layout();
        if layout.hosts.is_empty() {
            return;
        }
        self.drain_again(&layout, drained);
        self.seen = Some(RecordedState::of(controller, drained));
        let text = self.text(&layout, controller, drained);
        if text != self.text {
            self.text.clone_from(&text);
            let store = self.store.clone();
            self.writing = Some(engine.engine.start(async move {
                store.put_note(NOTE, text.into_bytes()).await.map_err(|error| DataSetError::Io(error.to_string()))
            }));
        }
    }

    /// A host that is not there any more has no keys to keep away from it.
    fn drain_again(&mut self, layout: &ClusterLayout, drained: &mut BTreeSet<u32>) {
        for name in self.drained.drain(..) {
            let found = (0..).zip(&layout.hosts).find(|(_, host)| host.name == name);
            drained.extend(found.map(|(at, _)| at));
        }
        // All of them cannot be: somebody has to own the keys.
        if drained.len() == layout.hosts.len() {
            drained.clear();
        }
    }

    fn text(&self, layout: &ClusterLayout, controller: &RunController, drained: &BTreeSet<u32>) -> String {
        let decisions = controller.decisions().map(|decision| recorded(decision, self.begun_s));
        let mut decisions: Vec<Value> = self.earlier.iter().cloned().chain(decisions).collect();
        decisions.drain(..decisions.len().saturating_sub(DECISIONS_MAX));
        let drained: Vec<&str> = drained.iter().map(|&host| layout.hosts[host as usize].name.as_str()).collect();
        match decisions.is_empty() && drained.is_empty() {
            // Nothing need be kept of a job in which nothing has happened.
            true => Value::Null.to_string(),
            false => json!({"decisions": decisions, "drained": drained}).to_string(),
        }
    }
}

/// A decision of a run that began then, with its time in seconds since 1970.
fn recorded(decision: &Decision, begun_s: f64) -> Value {
    let mut recorded = json!(decision);
    recorded["at_s"] = json!(begun_s + decision.at_s);
    recorded
}
