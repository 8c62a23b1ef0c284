//! Rows of one key become one row, at the copy that owns the key. They are first reduced at the sender, and again over
//! the copies of one worker, so that a key leaves a worker once, however many rows it has. Between several hosts they
//! may also be combined on the way, so that a key leaves a host once.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reducer, Reduction};
use tidemill_batch::route_map::BUCKETS;

use super::keyed_tree::{add_keyed_trees, hasher};
use super::partition::describe_buckets;
use super::rounds::map_rounds;
use super::{EdgeSignature, EdgeWorkers, Exchange, Partition};
use crate::error::TaskError;
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, ExchangeStage, FlowPort, Input, Lowering, StreamElement};
use crate::overlay::{KeyedTrees, Overlay, OverlayChoice};
use crate::task::Executor;
use crate::task::TaskContext;

/// See the module. What arrives are the key columns and the reduced ones, a row for each key, when all sources have
/// ended.
#[derive(Clone)]
pub struct KeyedReduce {
    keys: Vec<String>,
    reduce: Reduction,
    buckets: u32,
    overlay: Option<OverlayChoice>,
}

impl KeyedReduce {
    /// Reduces rows with equal values in `keys`.
    pub fn new<S: Into<String>>(keys: impl IntoIterator<Item = S>, reduce: Reduction) -> Self {
        KeyedReduce { keys: keys.into_iter().map(Into::into).collect(), reduce, buckets: BUCKETS, overlay: None }
    }

    /// With this many buckets of keys, as [`Partition::buckets`].
    #[must_use]
    pub fn buckets(self, count: u32) -> Self {
        KeyedReduce { buckets: count, ..self }
    }

    /// Along this kind of tree to each copy: [`Overlay::Serial`] for none, `Flat`, `Binomial`, or two of their shapes.
    /// By default it is chosen when the graph is placed, with [rounds](super::Rounds); otherwise there is none, since
    /// how much arrives until all sources have ended is unknown, and rows that nothing combines with move twice.
    #[must_use]
    pub fn along(self, overlay: Overlay) -> Self {
        KeyedReduce { overlay: Some(OverlayChoice::Set(overlay)), ..self }
    }

    /// Along trees chosen for workers that send about `bytes` each, in a round or in all.
    #[must_use]
    pub fn for_messages(self, bytes: u64) -> Self {
        KeyedReduce { overlay: Some(OverlayChoice::ForMessages(bytes)), ..self }
    }

    /// Along the trees with the lowest latency for rounds in which a worker sends about `bytes`, at about this rate.
    #[must_use]
    pub fn for_rate(self, bytes: u64, per_s: u64) -> Self {
        KeyedReduce { overlay: Some(OverlayChoice::ForRate { bytes, per_s }), ..self }
    }

    /// How to choose trees.
    fn choice(&self, by_rounds: bool) -> OverlayChoice {
        let unknown = if by_rounds { OverlayChoice::default() } else { OverlayChoice::Set(Overlay::Serial) };
        self.overlay.unwrap_or(unknown)
    }

    fn partition(&self) -> Partition {
        Partition::by_key(self.keys.clone()).buckets(self.buckets)
    }
}

impl Exchange for KeyedReduce {
    fn describe(&self) -> String {
        let (keys, buckets) = (self.keys.join(", "), describe_buckets(self.buckets));
        let along = self.overlay.map_or_else(String::new, OverlayChoice::describe);
        format!("keyed reduce by {keys}{buckets}{along}: {}", self.reduce.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = self.partition().check(ends)?;
        if let Some(OverlayChoice::Set(overlay)) = self.overlay {
            KeyedTrees::shapes(overlay)?;
        }
        self.reduce.schema(&schema, &self.keys)
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        if self.overlay.is_none() && ends.rounds.is_none() {
            return None;
        }
        let choice = self.choice(ends.rounds.is_some());
        let overlay = choice.choose_keyed(ends.sources, ends.targets, ends.network);
        let all: Vec<u32> = ends.sources.iter().chain(ends.targets).copied().collect();
        Some(format!("to each copy {}", choice.explain(overlay, all[0], &all, &ends.network.hosts)))
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let schema = SchemaRef::clone(lowering.target_schema());
        let before = stage(lowering, "reduce before", source, &self.keys, &self.reduce);
        let after = stage(lowering, "reduce after", target, &self.keys, &self.reduce);
        lowering.connect_direct(source, before.input(0));
        let reduced = combined(lowering, before.output(0), (&self.keys, &self.reduce));
        let mover = self.partition().mover(&schema, lowering.workers_of(target).len() as u32);
        let trees = lowering.keyed_trees(self.choice(lowering.rounds().is_some()), reduced, target);
        let (reduced, mover) = match mover {
            EdgeMover::Partition(mover) if trees.steps() > 1 => {
                let hasher = hasher(&schema, &self.keys);
                add_keyed_trees(lowering, trees, (reduced, &self.keys, &self.reduce), mover, &hasher)
            }
            mover => (reduced, mover),
        };
        lowering.connect(reduced, after.input(0), mover);
        lowering.connect_direct(after.output(0), target);
    }
}

/// The output that leaves each worker: `reduced`, or, if a worker has several of its copies and there are other workers
/// to send to, a stage that combines those of one worker.
pub(super) fn combined(lowering: &mut Lowering<'_>, reduced: FlowPort, by: (&[String], &Reduction)) -> FlowPort {
    let copies = lowering.workers_of(reduced).to_vec();
    let mut workers = copies.clone();
    workers.sort_unstable();
    workers.dedup();
    if workers.len() == copies.len() || lowering.workers() == 1 {
        return reduced;
    }
    let of_worker = |worker| workers.binary_search(worker).expect("it is one of them") as u32;
    let map = copies.iter().map(|worker| Some(of_worker(worker))).collect();
    let combine = stage_on(lowering, "combine", workers.clone(), by.0, by.1, 1);
    lowering.connect(reduced, combine.input(0), EdgeMover::Map(map));
    combine.output(0)
}

/// A stage beside the copies of `beside` that reduces what its copies get to one row for each key.
pub(super) fn stage(
    lowering: &mut Lowering<'_>,
    label: &str,
    beside: FlowPort,
    keys: &[String],
    reduce: &Reduction,
) -> ExchangeStage {
    let workers = lowering.workers_of(beside).to_vec();
    stage_on(lowering, label, workers, keys, reduce, 1)
}

/// [`stage`] on the given workers, with several inputs that are all reduced together.
pub(super) fn stage_on(
    lowering: &mut Lowering<'_>,
    label: &str,
    workers: Vec<u32>,
    keys: &[String],
    reduce: &Reduction,
    inputs: usize,
) -> ExchangeStage {
    let schema = SchemaRef::clone(lowering.target_schema());
    let (keys, calls) = (keys.len(), reduce.is_function());
    let (reduce, outputs) = (reduce.clone(), vec![SchemaRef::clone(&schema)]);
    if lowering.rounds().is_some() {
        let factory = reduce_rounds(schema, keys, reduce);
        let stage = lowering.stage(label, workers, inputs, outputs, Executor::Thread, factory);
        lowering.set_streaming(stage);
        return stage;
    }
    let factory: TaskFactory = Arc::new(move |inputs, outputs, context| {
        let (schema, reduce) = (SchemaRef::clone(&schema), reduce.clone());
        Box::pin(async move {
            let mut reducer = new_reducer(&schema, keys, &reduce, &context)?;
            for mut input in inputs.into_ports() {
                drain(&mut input, &mut reducer).await?;
            }
            let mut reduced = reducer.finish()?;
            let mut output = outputs.into_only();
            while let Some(batch) = reduced.next_batch()? {
                output.send(batch).await?;
            }
            Ok(())
        })
    });
    // Without keys nothing goes to disk, and a batch that comes from this thread is still in the processor's cache.
    let executor = if keys == 0 && !calls { Executor::Pool } else { Executor::Thread };
    lowering.stage(label, workers, inputs, outputs, executor, factory)
}

/// Reduces each round by itself.
fn reduce_rounds(schema: SchemaRef, keys: usize, reduce: Reduction) -> TaskFactory {
    Arc::new(move |inputs, outputs, context| {
        let (schema, reduce) = (SchemaRef::clone(&schema), reduce.clone());
        Box::pin(async move {
            map_rounds(inputs.into_only(), outputs.into_only(), &context, |round| {
                let mut reducer = new_reducer(&schema, keys, &reduce, &context)?;
                if round.num_rows() > 0 {
                    reducer.push(round)?;
                }
                let (mut reduced, mut batches) = (reducer.finish()?, Vec::new());
                while let Some(batch) = reduced.next_batch()? {
                    batches.push(batch);
                }
                Ok(concat_batches(&schema, &batches)?)
            })
            .await
        })
    })
}

pub(super) fn new_reducer(
    schema: &SchemaRef,
    keys: usize,
    reduce: &Reduction,
    context: &TaskContext,
) -> Result<Reducer, TaskError> {
    let name = format!("{}, copy {}", context.task(), context.copy());
    Ok(Reducer::new(schema, keys, reduce, context.governor(), &name)?)
}

/// Reduces all of an input.
pub(super) async fn drain(input: &mut Input, reducer: &mut Reducer) -> Result<(), TaskError> {
    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
        reducer.push(batch)?;
    }
    Ok(())
}
