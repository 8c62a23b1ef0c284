//! What a running stream reports to the program: dropped rows, checkpoints, and steps that delay them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use serde_json::Value;
use tidemill_dataflow::{LookTimer, RunProgress};
use tidemill_net::notice;
use tidemill_stream::LateRows;

use super::control::RunControl;
use super::engine::QueryEngine;

/// The interval between messages about dropped rows.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Bad records that this process has dropped, and rows that were late or had no time: totals for the end, and messages
/// now and then.
pub(super) struct DroppedRows {
    pub(super) count: u64,
    pub(super) first: Option<String>,
    pub(super) late: Arc<LateRows>,
    late_told: BTreeMap<String, [u64; 3]>,
    timer: LookTimer,
}

impl DroppedRows {
    /// Counts from now on: drops of previous runs are not reported again. The job counts its `late` rows itself.
    pub(super) fn new(engine: &QueryEngine, late: &Arc<LateRows>) -> Self {
        engine.take_bad_records();
        let (late, late_told) = (Arc::clone(late), BTreeMap::new());
        DroppedRows { count: 0, first: None, late, late_told, timer: LookTimer::after(TELL_INTERVAL) }
    }

    pub(super) fn look(&mut self, engine: &QueryEngine) {
        if self.timer.is_due() {
            self.tell(engine);
        }
    }

    /// Prints drops since the last time.
    pub(super) fn tell(&mut self, engine: &QueryEngine) {
        if let (more @ 1.., Some(first)) = self.take(engine) {
            let records = if more == 1 { "1 record was" } else { &format!("{more} records were") };
            notice!("{records} left out; the first: {first}");
        }
        for (step, late, untimed, skipped) in self.late.counts() {
            let told = self.late_told.insert(step.clone(), [late, untimed, skipped]).unwrap_or_default();
            if let more @ 1.. = late - told[0] {
                let came = if more == 1 { "1 row came" } else { &format!("{more} rows came") };
                notice!("{came} too late for {step}: left out");
            }
            if let more @ 1.. = untimed - told[1] {
                let had = if more == 1 { "1 row had" } else { &format!("{more} rows had") };
                notice!("{had} no time for {step}: left out");
            }
            if let more @ 1.. = skipped - told[2] {
                let rows = if more == 1 { "1 row" } else { &format!("{more} rows") };
                notice!("{rows} of windows that ended while {step} was busy: left out");
            }
        }
    }

    pub(super) fn take(&mut self, engine: &QueryEngine) -> (u64, Option<String>) {
        let (more, first) = engine.take_bad_records();
        self.count += more;
        if self.first.is_none() {
            self.first.clone_from(&first);
        }
        (more, first)
    }
}

/// Passes the job's messages and checkpoints to a logging function of Python.
pub(super) struct RunLogger {
    function: Py<PyAny>,
    durable: u64,
    timer: LookTimer,
}

impl RunLogger {
    const EVERY: Duration = Duration::from_millis(200);

    pub(super) fn new(function: Py<PyAny>) -> Self {
        notice::keep();
        RunLogger { function, durable: 0, timer: LookTimer::after(Self::EVERY) }
    }

    pub(super) fn look(&mut self, py: Python<'_>, run: &RunProgress, control: &mut RunControl) -> PyResult<()> {
        if !self.timer.is_due() {
            return Ok(());
        }
        let durable = run.durable().filter(|&durable| run.worker() == 0 && durable > self.durable);
        let made = durable.zip(run.checkpoint());
        if let Some((epoch, _)) = made {
            self.durable = epoch;
        }
        self.tell(py, made.map(|(epoch, made)| (epoch, made.took_ms as f64 / 1e3, made.bytes)), control)
    }

    pub(super) fn tell(
        &mut self,
        py: Python<'_>,
        made: Option<(u64, f64, u64)>,
        control: &mut RunControl,
    ) -> PyResult<()> {
        let said = notice::take();
        if !said.is_empty() || made.is_some() {
            self.function.call1(py, (said, made, control.take_decided()))?;
        }
        Ok(())
    }
}

/// Warns when the newest checkpoint is long overdue, and names the slow step. On worker 0, which knows the checkpoints.
pub(super) struct OverdueMonitor {
    every: Option<Duration>,
    last: u64,
    since: Instant,
    /// The age at which it warns next.
    next: Duration,
}

impl OverdueMonitor {
    /// A checkpoint is overdue after this many intervals.
    const TIMES: u32 = 5;
    /// Checkpoints with short intervals may be late for harmless reasons, so never warn before this.
    const LEAST: Duration = Duration::from_secs(5);

    pub(super) fn new(every: Option<Duration>) -> Self {
        let mut new = OverdueMonitor { every, last: 0, since: Instant::now(), next: Duration::ZERO };
        new.again();
        new
    }

    fn again(&mut self) {
        self.since = Instant::now();
        self.next = (self.every.unwrap_or_default() * Self::TIMES).max(Self::LEAST);
    }

    pub(super) fn look(&mut self, run: &RunProgress) {
        let (Some(every), Some(durable)) = (self.every, run.durable()) else { return };
        if run.worker() != 0 {
            return;
        }
        if durable != self.last {
            self.last = durable;
            self.again();
        }
        let age = self.since.elapsed();
        if age < self.next {
            return;
        }
        self.next = age * 2;
        let newest = match durable {
            0 => format!("no checkpoint for {:.0} s", age.as_secs_f64()),
            epoch => format!("the newest checkpoint, {epoch}, is {:.0} s old", age.as_secs_f64()),
        };
        let slow = slowest(run).map_or_else(String::new, |slow| format!("; the step that works most is {slow}"));
        notice!("{newest}, and one is due every {every:?}{slow}; `tidemill top` shows all steps");
    }
}

/// The busiest step, among all workers that have reported; functions of the program take precedence over the steps that
/// contain them.
fn slowest(run: &RunProgress) -> Option<String> {
    let mut steps: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut add = |step: &str, busy_ns: u64, rows: u64| {
        let of = steps.entry(step.to_owned()).or_default();
        (of.0, of.1, of.2) = (of.0 + busy_ns, of.1 + rows, of.2.max(busy_ns));
    };
    run.works().iter().for_each(|work| add(&work.step, work.busy_ns, work.rows));
    for worker in run.statuses() {
        let Ok(told) = serde_json::from_slice::<Value>(&worker.status) else { continue };
        for work in told["steps"].as_array().into_iter().flatten() {
            let number = |key: &str| work[key].as_u64().unwrap_or(0);
            add(work["step"].as_str().unwrap_or_default(), number("busy_ns"), number("rows"));
        }
    }
    // A function's time is part of its step's, but users know the function.
    let weight = |step: &str, busy: u64| if step.contains(" in ") { busy + busy / 4 } else { busy };
    let (step, (busy_ns, rows, _)) = steps.into_iter().max_by_key(|(step, (busy, ..))| weight(step, *busy))?;
    let each = if rows > 0 { format!(", {:.3} ms a row", busy_ns as f64 / 1e6 / rows as f64) } else { String::new() };
    (busy_ns > 0).then(|| format!("{step}: busy for {:.1} s{each}", busy_ns as f64 / 1e9))
}
