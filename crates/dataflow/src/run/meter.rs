//! Every worker reads its counters twice a second, and sends the changes to worker 0. A run that ends before the
//! first reading costs nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::buffer::Buffer;
use parking_lot::Mutex;
use tidemill_batch::wire::{ReceivedFrame, WireHeader, WireKind};
use tidemill_control::{BucketCounters, HeavyKey, TaskCounters, WorkerSample};
use tidemill_machine::ProcessTimes;

use super::layout::RunLayout;
use crate::flow::EdgeRuntime;
use crate::link::Links;
use crate::observation::{CopyClock, CounterTable};
use crate::work::StepWorks;

const EVERY: Duration = Duration::from_millis(500);
/// With many workers, each reads less often, so that worker 0 receives at most one message per this interval.
const EVERY_WORKER: Duration = Duration::from_millis(4);
/// The most buckets of an edge that are reported separately: with more, the value of each says little.
const BUCKETS_MAX: usize = 1 << 16;
/// The most frequent keys of a task that a worker reports.
const HEAVY_KEYS: usize = 8;
/// After this many readings, a row counts half as evidence for a frequent key.
const HALF_LIFE: u64 = 16;

/// What is measured in a run.
#[derive(Default)]
pub(crate) struct Measurements {
    pub layout: OnceLock<RunLayout>,
    /// The clocks of this worker's copies, with their tasks.
    clocks: Mutex<Vec<(u32, Arc<CopyClock>)>>,
    own: Mutex<Option<WorkerSample>>,
    /// The reports of others, on worker 0.
    told: Mutex<BTreeMap<u32, CounterTable>>,
}

impl Measurements {
    /// Creates the clock of one more copy of a task.
    pub(crate) fn clock(&self, task: u32) -> Arc<CopyClock> {
        let clock = Arc::<CopyClock>::default();
        self.clocks.lock().push((task, Arc::clone(&clock)));
        clock
    }

    fn tasks(&self) -> usize {
        self.layout.get().map_or(0, |layout| layout.tasks().len())
    }

    /// On worker 0: handles the counters of another worker.
    pub(crate) fn hear(&self, frame: &ReceivedFrame, workers: u32) -> Result<(), String> {
        frame.verify().map_err(|error| error.to_string())?;
        let worker = frame.header.source;
        if worker >= workers {
            return Err(format!("counters of worker {worker}, which is not in the run"));
        }
        self.told.lock().entry(worker).or_default().apply(&frame.body(), workers, self.tasks() as u32)
    }

    /// The newest sample of this worker, and on worker 0 of all.
    pub(crate) fn samples(&self) -> Vec<WorkerSample> {
        let own = self.own.lock().clone();
        let told = self.told.lock();
        own.into_iter().chain(told.iter().map(|(&worker, table)| table.sample(worker))).collect()
    }
}

/// What the counters of a run are read from.
pub(crate) struct MeasuredRun<'a> {
    pub links: &'a Links,
    pub edges: &'a [Arc<EdgeRuntime>],
    pub works: &'a StepWorks,
    pub measurements: &'a Measurements,
}

/// Reads the counters of this worker now and then.
pub(crate) struct Meter {
    begun: Instant,
    every: Duration,
    due: Instant,
    looks: u64,
    process: ProcessTimes,
    /// The table as worker 0 has it.
    table: CounterTable,
    /// The last message to worker 0.
    sent: Option<Buffer>,
}

impl Meter {
    pub(crate) fn new(workers: u32) -> Self {
        let (begun, every) = (Instant::now(), EVERY.max(EVERY_WORKER * workers));
        let (process, table) = (ProcessTimes::default(), CounterTable::default());
        Meter { begun, every, due: begun + every, looks: 0, process, table, sent: None }
    }

    /// Reads the counters if it is time.
    pub(crate) fn look(&mut self, run: &MeasuredRun<'_>) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + self.every;
        self.looks += 1;
        let sample = self.sample(run);
        // Behind a link that accepts nothing, messages would pile up; the next message will report these changes too.
        if run.links.me != 0 && self.sent.as_ref().is_none_or(|sent| sent.strong_count() == 1) {
            // Buckets are most of it, and hardly change in half a second.
            let message = self.table.update(&sample, self.looks % 2 == 1);
            let header = WireHeader::new(WireKind::Measured, run.links.run);
            self.sent = Some(run.links.report(header, &[Buffer::from(message)]));
        }
        *run.measurements.own.lock() = Some(sample);
    }

    fn sample(&mut self, run: &MeasuredRun<'_>) -> WorkerSample {
        let links = run.links.counters();
        let edges = || run.edges.iter().filter(|edge| !edge.handover);
        let now = Instant::now();
        let at_ns = self.begun.elapsed().as_nanos() as u64;
        let mut tasks: BTreeMap<u32, TaskCounters> = BTreeMap::new();
        for (task, clock) in run.measurements.clocks.lock().iter() {
            let (counters, times) = (tasks.entry(*task).or_default(), clock.times(now));
            counters.task = *task;
            counters.copies += 1;
            counters.busy_ns += times.busy_ns;
            counters.blocked_ns += times.blocked_ns;
            counters.idle_ns += times.idle_ns;
        }
        let layout = run.measurements.layout.get().map_or(&[][..], RunLayout::tasks);
        for counters in tasks.values_mut() {
            let name = layout.get(counters.task as usize).map_or("", |task| &task.name);
            counters.interpreter_ns = run.works.program_ns(name).min(counters.busy_ns);
        }
        for edge in edges() {
            let (source, target) = (edge.tasks.0 as u32, edge.tasks.1 as u32);
            let (sent, received) = edge.metrics.rows();
            tasks.entry(source).and_modify(|task| task.rows_out += sent);
            tasks.entry(target).and_modify(|task| task.rows_in += received);
        }
        WorkerSample {
            worker: run.links.me,
            at_ns,
            cpu_ns: ProcessTimes::cpu_ns(),
            cpu_wait_ns: self.process.wait_ns(),
            links,
            tasks: tasks.into_values().collect(),
            buckets_at_ns: at_ns,
            buckets: buckets(edges()),
            heavy_keys: heavy_keys(edges(), self.looks.is_multiple_of(HALF_LIFE)),
        }
    }
}

/// The buckets of keyed tasks for which this worker has counted anything.
fn buckets<'a>(edges: impl Iterator<Item = &'a Arc<EdgeRuntime>>) -> Vec<BucketCounters> {
    let mut by_task: BTreeMap<u32, Vec<BucketCounters>> = BTreeMap::new();
    for edge in edges {
        let Some(counts) = edge.metrics.buckets.get() else { continue };
        let (rows, bytes, work_ns) = (counts.rows(), counts.bytes(), counts.work_ns());
        if rows.len() > BUCKETS_MAX {
            continue;
        }
        let (task, buckets) = (edge.tasks.1 as u32, by_task.entry(edge.tasks.1 as u32).or_default());
        for bucket in buckets.len()..rows.len() {
            buckets.push(BucketCounters { task, bucket: bucket as u32, ..BucketCounters::default() });
        }
        for (bucket, counters) in buckets.iter_mut().enumerate().take(rows.len()) {
            counters.rows += rows[bucket];
            counters.bytes += bytes[bucket];
            counters.work_ns += work_ns[bucket];
        }
    }
    by_task.into_values().flatten().filter(|bucket| bucket.rows > 0 || bucket.work_ns > 0).collect()
}

/// The most frequent keys of each keyed task that this worker has sent to.
fn heavy_keys<'a>(edges: impl Iterator<Item = &'a Arc<EdgeRuntime>>, halve: bool) -> Vec<HeavyKey> {
    let mut by_task: BTreeMap<u32, (u64, Vec<HeavyKey>)> = BTreeMap::new();
    for edge in edges {
        let Some(counts) = edge.metrics.buckets.get() else { continue };
        let task = edge.tasks.1 as u32;
        let (frequent, rows) = {
            let mut sketch = counts.frequent.lock();
            if halve {
                sketch.halve();
            }
            sketch.frequent()
        };
        let (all_rows, keys) = by_task.entry(task).or_default();
        *all_rows += rows;
        for (bucket, key, rows) in frequent {
            match keys.iter_mut().find(|other| other.bucket == bucket && other.key == key) {
                Some(other) => other.rows += rows,
                None => keys.push(HeavyKey { task, bucket, key, rows, all_rows: 0 }),
            }
        }
    }
    let told = |(all_rows, mut keys): (u64, Vec<HeavyKey>)| {
        keys.sort_by_key(|key| Reverse(key.rows));
        keys.truncate(HEAVY_KEYS);
        keys.into_iter().map(move |key| HeavyKey { all_rows, ..key })
    };
    by_task.into_values().flat_map(told).collect()
}
