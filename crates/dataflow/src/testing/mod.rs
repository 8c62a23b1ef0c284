//! Simulated jobs for tests of operators: one seed determines the history of a graph of tasks, from its first run to
//! its end, in one thread and without a clock. Sources, operators, partitioners, the coordinator, alignment, and the
//! content and reading of a store are the real ones. Their environment is modeled: drivers ([`copies`]), streams
//! ([`lanes`]), a worker with all copies, and a sink that shows what is durable ([`job`]).
//!
//! The history may contain checkpoints, crashes and stops at any step, with another number of copies afterwards;
//! snapshots that cannot be written; buckets that move to other copies; too little memory, so that operators spill;
//! ticks of the machine's clock. Each stream is in order by itself, and different streams are in any order.
//!
//! The outcome of the history is what the sinks show: the caller knows what it should be. `checkpoint::simulation`
//! similarly simulates jobs whose operators are a model, with additional failures of stores and workers.

mod copies;
mod job;
mod lanes;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures_util::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use tidemill_checkpoint::{CheckpointStore, Manifest};

use crate::graph::Graph;
use job::SimulatedJob;

/// Once faults stop, a job must end within this many steps. Most need a few thousand.
const STEPS_MAX: usize = 400_000;

/// Choices that a seed determines.
pub trait Dice {
    /// A number below `end > 0`.
    fn below(&mut self, end: usize) -> usize;

    /// True with probability 1 / `times`; never for 0.
    fn once_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }
}

/// What may happen in a history. A rate of n means one step in n; 0 means never.
#[derive(Clone, Debug, Default)]
pub struct StoryPlan {
    /// Tasks have from one to this many copies, drawn anew for each run.
    pub copies_max: u32,
    /// Some runs have only this much memory in all; with 0, no run has a limit.
    pub budget_bytes: u64,
    /// The step at which faults stop.
    pub faults_end: usize,
    /// How often a checkpoint is requested.
    pub checkpoint: usize,
    /// How often the job is stopped at a checkpoint and restarted.
    pub stop: usize,
    /// How often the buckets of a task move at a checkpoint.
    pub rebalance: usize,
    /// How often all copies disappear and the job restarts.
    pub crash: usize,
    /// One in this many snapshots cannot be written.
    pub snapshot_fails: usize,
    /// One in this many steps of an operator that wants ticks is a tick.
    pub tick: usize,
    /// Whether to print the history.
    pub tell: bool,
}

/// The outcome of a history.
#[derive(Clone, Debug, Default)]
pub struct StoryOutcome {
    /// By sink, in the order of the tasks: its rows. Rows of the same key are in order.
    pub rows: Vec<Vec<RecordBatch>>,
    /// The number of steps of copies and the coordinator.
    pub steps: usize,
    /// The number of runs, the last of which ended normally.
    pub runs: usize,
    /// The number of durable checkpoints, without the last.
    pub checkpoints: usize,
    /// The number of parts of buckets that copies have handed to each other.
    pub moved_parts: usize,
    /// The number of bytes written to disk.
    pub spilled_bytes: u64,
}

/// What outlives a job's runs.
struct OutsideWorld {
    plan: StoryPlan,
    store: CheckpointStore,
    /// Whether faults still occur.
    faults: bool,
    /// The newest checkpoint.
    durable: Option<Arc<Manifest>>,
    /// Rows of this run that are not in it yet, by epoch, with their sinks.
    prepared: BTreeMap<u64, Vec<(usize, RecordBatch)>>,
    outcome: StoryOutcome,
}

impl OutsideWorld {
    fn new(plan: &StoryPlan) -> Self {
        let objects = Arc::new(InMemory::new());
        OutsideWorld {
            plan: plan.clone(),
            store: CheckpointStore::objects(objects, Path::from("jobs/story"), "memory"),
            faults: false,
            durable: None,
            prepared: BTreeMap::new(),
            outcome: StoryOutcome::default(),
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.plan.tell {
            println!("{:6} {}", self.outcome.steps, what());
        }
    }

    /// Whether a fault with probability 1 / `times` occurs.
    fn fault(&self, times: usize, dice: &mut dyn Dice) -> bool {
        self.faults && dice.once_in(times)
    }

    /// Handles a durable checkpoint: what sinks have prepared for it appears.
    fn stored(&mut self, manifest: Manifest) {
        let later = self.prepared.split_off(&(manifest.epoch + 1));
        for (sink, rows) in std::mem::replace(&mut self.prepared, later).into_values().flatten() {
            self.outcome.rows[sink].push(rows);
        }
        self.outcome.checkpoints += usize::from(!manifest.finished);
        self.durable = Some(Arc::new(manifest));
    }
}

/// The answer of a store in memory.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("a store in memory answers at once")
}

/// Simulates a job: `graph` makes the graph with the given number of copies per task.
///
/// # Errors
/// The failure of a task, or a message that the job does not end.
pub fn story(
    graph: &dyn Fn(u32) -> Graph,
    plan: &StoryPlan,
    dice: &mut dyn Dice,
) -> Result<StoryOutcome, crate::TaskError> {
    let mut world = OutsideWorld::new(plan);
    loop {
        let copies = 1 + dice.below(plan.copies_max.max(1) as usize) as u32;
        let mut job = SimulatedJob::start(&mut world, &graph(copies), copies, dice)?;
        loop {
            world.outcome.steps += 1;
            world.faults = world.outcome.steps < plan.faults_end;
            if world.outcome.steps > plan.faults_end + STEPS_MAX {
                return Err(
                    format!("faults have stopped, and the job does not come to its end: {}", job.describe()).into()
                );
            }
            if world.fault(plan.crash, dice) {
                world.say(|| "it crashes".into());
                break;
            }
            job.step(&mut world, dice)?;
            if job.is_over() {
                break;
            }
        }
        world.outcome.spilled_bytes += job.spilled_bytes();
        world.prepared.clear();
        if world.durable.as_ref().is_some_and(|durable| durable.finished) {
            return Ok(world.outcome);
        }
    }
}
