//! Jobs in a simulation, for tests of operators: one seed determines the story of a graph of tasks, from its first run
//! to its end, in one thread and without a clock. Sources, operators, partitioners, the coordinator, alignment, what a
//! store holds and how it is read again are the real ones. Their environment is modeled: drivers ([`copies`]), streams
//! ([`lanes`]), a worker with all copies, and a sink that shows what is durable ([`job`]).
//!
//! The story may have checkpoints, crashes and stops at any step, with another number of copies afterwards; snapshots
//! that cannot be written; buckets that move to other copies; too little memory, so that operators spill; ticks of the
//! machine's clock. Streams are each in order by itself, and in any order between them.
//!
//! What the story ends with is what the sinks show: the caller knows what that should be. `checkpoint::simulation`
//! tells the same kind of story of jobs whose operators are a model, with failures of stores and workers besides.

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

/// Once faults stop a job must end within so many steps. Most need some thousands.
const STEPS_MAX: usize = 400_000;

/// Choices that a seed determines.
pub trait Dice {
    /// A number below `end > 0`.
    fn below(&mut self, end: usize) -> usize;

    /// True once in `times`; never, for 0.
    fn once_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }
}

/// What may happen in a story. Rates are of one step in so many; 0 is never.
#[derive(Clone, Debug, Default)]
pub struct StoryPlan {
    /// Tasks have from one to so many copies, drawn anew for each run.
    pub copies_max: u32,
    /// Some runs have so little memory in all; 0: none has.
    pub budget_bytes: u64,
    /// The step at which faults stop.
    pub faults_end: usize,
    /// A checkpoint is asked for.
    pub checkpoint: usize,
    /// The job is stopped at a checkpoint, and begins again.
    pub stop: usize,
    /// The buckets of a task move at a checkpoint.
    pub rebalance: usize,
    /// All copies are gone, and the job begins again.
    pub crash: usize,
    /// Of the snapshots one in so many cannot be written.
    pub snapshot_fails: usize,
    /// Of the steps of an operator that wants to hear of time one in so many is a tick.
    pub tick: usize,
    /// Whether the story is printed.
    pub tell: bool,
}

/// What has come of a story.
#[derive(Clone, Debug, Default)]
pub struct StoryOutcome {
    /// By sink, in the order of their tasks: its rows, those of a key in their order.
    pub rows: Vec<Vec<RecordBatch>>,
    /// Steps that copies and the coordinator have made.
    pub steps: usize,
    /// Runs, of which the last has come to its end.
    pub runs: usize,
    /// Durable checkpoints that are not the last.
    pub checkpoints: usize,
    /// Parts of buckets that copies have handed to each other.
    pub moved_parts: usize,
    /// Bytes that have gone to disk.
    pub spilled_bytes: u64,
}

/// What outlives a job's runs.
struct OutsideWorld {
    plan: StoryPlan,
    store: CheckpointStore,
    /// Whether things still go wrong.
    faults: bool,
    /// The newest checkpoint.
    durable: Option<Arc<Manifest>>,
    /// Rows that are not in it yet, by epoch, with their sinks: of this run.
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

    /// Whether something goes wrong that does so once in `times`.
    fn fault(&self, times: usize, dice: &mut dyn Dice) -> bool {
        self.faults && dice.once_in(times)
    }

    /// A checkpoint is durable: what sinks have prepared for it appears.
    fn stored(&mut self, manifest: Manifest) {
        let later = self.prepared.split_off(&(manifest.epoch + 1));
        for (sink, rows) in std::mem::replace(&mut self.prepared, later).into_values().flatten() {
            self.outcome.rows[sink].push(rows);
        }
        self.outcome.checkpoints += usize::from(!manifest.finished);
        self.durable = Some(Arc::new(manifest));
    }
}

/// What a store in memory answers.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("a store in memory answers at once")
}

/// Tells the story of a job: `graph` makes the one that has so many copies of its tasks.
///
/// # Errors
/// What a task fails with, or that the job does not come to its end.
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
