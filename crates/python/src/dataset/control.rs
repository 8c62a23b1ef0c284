//! The controller of a stream's run: its options, the requests of `tidemill drain`, `balance` and `scale`, and its
//! record next to the checkpoints, from which a restarted job continues and which `tidemill why` shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
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

/// The name of the record among the notes of a store.
const NOTE: &str = "controller";
/// Maximum number of decisions in the record, over all runs.
const DECISIONS_MAX: usize = 1000;
/// How long actions count.
const COUNTED_S: f64 = 3600.0;

/// `tidemill.stream.Controller`, with durations in seconds.
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

/// The controller, requests and record of a run; lives as long as the run.
pub(super) struct RunControl {
    pub(super) controller: RunController,
    requests: MoveRequests,
    record: Option<ControlRecord>,
    /// The last decision in the job's log, and its outcome then.
    told: Option<(f64, Outcome)>,
    /// The decision, as JSON, for each printed line that the program's log does not have yet.
    decided: Vec<String>,
}

impl RunControl {
    /// For a run with this status file and checkpoint store. Worker 0 keeps the record.
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

    /// The number of active workers, once after the run was scaled without a stop. The launcher is told, so that a job
    /// that fails starts again with as many: the file `active` in its folder `launch`, if there is one.
    pub(super) fn take_scaled(&mut self, launch: Option<&Path>) -> Option<u32> {
        let active = self.requests.take_scaled()?;
        if let Some(file) = launch.map(|folder| folder.join("active")) {
            let new = file.with_extension("new");
            if let Err(error) = fs::write(&new, active.to_string()).and_then(|()| fs::rename(&new, &file)) {
                notice!("a job that fails will start again with as many workers as before it was scaled: {error}");
            }
        }
        Some(active)
    }

    /// Checks the run, and carries out decisions and requests.
    pub(super) fn look(&mut self, engine: &QueryEngine, run: &RunProgress) {
        if let Some(record) = &mut self.record {
            record.look(engine, run, &self.controller, &mut self.requests.drained);
        }
        self.controller.look(run, &self.requests.drained);
        self.tell();
        self.requests.look(run, self.controller.rates());
    }

    /// Logs moves and their outcomes.
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

    /// The decisions that were logged since the last call, as JSON.
    pub(super) fn take_decided(&mut self) -> Vec<String> {
        std::mem::take(&mut self.decided)
    }

    /// Waits until the record is written.
    pub(super) fn close(&mut self, py: Python<'_>) {
        if let Some(writing) = self.record.as_mut().and_then(|record| record.writing.take())
            && let Err(error) = finish(py, writing)
        {
            tell_lost(&error);
        }
    }
}

/// Only a warning, because the checkpoints themselves do not depend on the record.
fn tell_lost(error: &dyn std::fmt::Display) {
    notice!("decisions of the controller cannot be kept beside the checkpoints: {error}");
}

/// The record of previous runs, which this run extends for the next.
struct ControlRecord {
    store: CheckpointStore,
    timer: LookTimer,
    /// When this run began, in seconds since 1970.
    begun_s: f64,
    /// Decisions of previous runs.
    earlier: Vec<Value>,
    /// Hosts that a previous run had drained, by name, until their numbers are known.
    drained: Vec<String>,
    /// The state that the text was last made from.
    seen: Option<RecordedState>,
    /// The text that was last written, or is being written.
    text: String,
    writing: Option<ActionHandle<()>>,
}

/// The state that a record's text depends on: a decision no longer changes once another has followed it.
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

/// The record in a store; `Null` if there is none.
pub(super) async fn kept(store: CheckpointStore) -> Result<Value, DataSetError> {
    let note = store.note(NOTE).await.map_err(|error| DataSetError::Io(error.to_string()))?;
    let Some(text) = note else { return Ok(Value::Null) };
    let damaged = |error| DataSetError::Io(format!("{}: notes/{NOTE}: {error}", store.place()));
    serde_json::from_slice(&text).map_err(damaged)
}

impl ControlRecord {
    const EVERY: Duration = Duration::from_secs(1);

    /// `None` if the record cannot be read: it must not be overwritten.
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

    /// Drains hosts that were drained before, and writes changes of the record.
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

    /// Hosts that no longer exist are ignored, since they have no keys.
    fn drain_again(&mut self, layout: &ClusterLayout, drained: &mut BTreeSet<u32>) {
        for name in self.drained.drain(..) {
            let found = (0..).zip(&layout.hosts).find(|(_, host)| host.name == name);
            drained.extend(found.map(|(at, _)| at));
        }
        // Not all hosts can be drained, because some host must own the keys.
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
            // A job without decisions needs no record.
            true => Value::Null.to_string(),
            false => json!({"decisions": decisions, "drained": drained}).to_string(),
        }
    }
}

/// A decision of a run that began at `begun_s`, with its time in seconds since 1970.
fn recorded(decision: &Decision, begun_s: f64) -> Value {
    let mut recorded = json!(decision);
    recorded["at_s"] = json!(begun_s + decision.at_s);
    recorded
}
