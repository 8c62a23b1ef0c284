//! Keyed reductions along trees, one for each target copy ([`KeyedTrees`]). Each step but the last has a stage, whose
//! copies combine the rows that arrive and send them on toward the copies that own their keys.
//!
//! Rows of all trees that go from one worker to another travel in one message. A step never leads back to an earlier
//! one, so marks, barriers and ends pass through these stages as through any others.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::keys::KeyHasher;
use tidemill_batch::local::Reduction;
use tidemill_batch::route_map::RouteMap;

use super::keyed_reduce::stage_on;
use crate::error::TaskError;
use crate::flow::{EdgeMover, FlowPort, Lowering};
use crate::overlay::KeyedTrees;
use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};

/// Adds the stages between `reduced`, which has at most one copy on a worker, and the last step. Returns the output
/// at which the last step begins, and its mover: `mover` without the streams that it does not need.
pub(super) fn add_keyed_trees(
    lowering: &mut Lowering<'_>,
    trees: KeyedTrees,
    (mut from, keys, reduction): (FlowPort, &[String], &Reduction),
    mover: Arc<dyn Partitioner>,
    hasher: &KeyHasher,
) -> (FlowPort, EdgeMover) {
    let (trees, target_workers) = (Arc::new(trees), Arc::<[u32]>::from(lowering.workers_of(lowering.target())));
    let route = Arc::clone(mover.route().expect("it goes by key"));
    for step in 0..trees.steps() - 1 {
        let senders = lowering.workers_of(from).to_vec();
        let combining = trees.combining(step);
        let copy_on = |worker: u32| combining.binary_search(&worker).expect("it combines") as u32;
        let reach = |&worker: &u32| trees.reach(step, worker).iter().map(|&to| copy_on(to)).collect();
        let hop = ByHop {
            hasher: hasher.clone(),
            route: Arc::clone(&route),
            reach: senders.iter().map(reach).collect(),
            target_workers: Arc::clone(&target_workers),
            trees: Arc::clone(&trees),
            step,
            senders,
            combining: combining.clone(),
        };
        let stage = stage_on(lowering, &format!("combine {}", step + 1), combining, keys, reduction, 1);
        lowering.connect(from, stage.input(0), EdgeMover::Partition(Arc::new(hop)));
        from = stage.output(0);
    }
    let last = trees.steps() - 1;
    let copies_on = |&worker: &u32| -> Vec<u32> {
        let reach = trees.reach(last, worker);
        let copies = (0..).zip(target_workers.iter());
        copies.filter(|(_, worker)| reach.binary_search(worker).is_ok()).map(|(copy, _)| copy).collect()
    };
    let reach = lowering.workers_of(from).iter().map(copies_on).collect();
    (from, EdgeMover::Partition(Arc::new(LastStep { mover, reach })))
}

/// Partitions rows among the copies of a stage, by the worker that is next on the way to the owner of a row's key.
struct ByHop {
    hasher: KeyHasher,
    /// Which copy owns which key, and the worker of each of these copies.
    route: Arc<RouteMap>,
    target_workers: Arc<[u32]>,
    trees: Arc<KeyedTrees>,
    step: usize,
    /// The worker of each copy that sends, and of each that combines.
    senders: Vec<u32>,
    combining: Vec<u32>,
    /// By sender, the copies that it sends to.
    reach: Vec<Vec<u32>>,
}

struct AssignHop {
    hasher: KeyHasher,
    route: Arc<RouteMap>,
    /// By copy of the target, the copy of the stage that is next on the way to it.
    next: Vec<u32>,
    hashes: Vec<u64>,
}

impl Partitioner for ByHop {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        let worker = self.senders[seat.source as usize];
        let next = |&target: &u32| {
            let next = self.trees.next(self.step, worker, target);
            // A copy that never has rows for a target may be on no way to it.
            self.combining.binary_search(&next).map_or(u32::MAX, |copy| copy as u32)
        };
        Box::new(AssignHop {
            hasher: self.hasher.clone(),
            route: Arc::clone(&self.route),
            next: self.target_workers.iter().map(next).collect(),
            hashes: Vec::new(),
        })
    }

    fn reach(&self, source: u32) -> Option<&[u32]> {
        Some(&self.reach[source as usize])
    }
}

impl RowAssigner for AssignHop {
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        self.hasher.hash(batch, &mut self.hashes)?;
        let next = |&hash: &u64| self.next[self.route.copy(self.route.bucket(hash)) as usize];
        targets.extend(self.hashes.iter().map(next));
        Ok(RowAssignment::ByRow)
    }
}

/// The partition of the last step: a stage copy sends only to the target copies that it combined for.
struct LastStep {
    mover: Arc<dyn Partitioner>,
    reach: Vec<Vec<u32>>,
}

impl Partitioner for LastStep {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        self.mover.start(seat)
    }

    fn reach(&self, source: u32) -> Option<&[u32]> {
        Some(&self.reach[source as usize])
    }

    fn route(&self) -> Option<&Arc<RouteMap>> {
        self.mover.route()
    }

    fn buckets(&self, batch: &RecordBatch) -> Option<(u32, Vec<u32>)> {
        self.mover.buckets(batch)
    }
}

/// The hasher of the key columns `keys` in rows with `schema`.
pub(super) fn hasher(schema: &SchemaRef, keys: &[String]) -> KeyHasher {
    KeyHasher::new(tidemill_batch::schema::columns(schema, keys).expect("checked before"))
}
