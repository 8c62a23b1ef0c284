//! Rows of one key become one row, at the copy that owns the key. They are reduced at the sender first, and what the
//! copies of one worker have made of them once more, so that a key leaves a worker once, however many rows it has.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reducer, Reduction};
use tidemill_batch::route_map::BUCKETS;

use super::partition::describe_buckets;
use super::rounds::map_rounds;
use super::{EdgeSignature, Exchange, Partition};
use crate::error::TaskError;
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, ExchangeStage, FlowPort, Input, Lowering, StreamElement};
use crate::task::Executor;
use crate::task::TaskContext;

/// See the module. What arrives are the key columns and the reduced ones, a row for each key, when all sources have
/// ended.
#[derive(Clone)]
pub struct KeyedReduce {
    keys: Vec<String>,
    reduce: Reduction,
    buckets: u32,
}

impl KeyedReduce {
    /// Reduces rows with equal values in `keys`.
    pub fn new<S: Into<String>>(keys: impl IntoIterator<Item = S>, reduce: Reduction) -> Self {
        KeyedReduce { keys: keys.into_iter().map(Into::into).collect(), reduce, buckets: BUCKETS }
    }

    /// With so many buckets of keys, as [`Partition::buckets`].
    #[must_use]
    pub fn buckets(self, count: u32) -> Self {
        KeyedReduce { buckets: count, ..self }
    }

    fn partition(&self) -> Partition {
        Partition::by_key(self.keys.clone()).buckets(self.buckets)
    }
}

impl Exchange for KeyedReduce {
    fn describe(&self) -> String {
        let (keys, buckets) = (self.keys.join(", "), describe_buckets(self.buckets));
        format!("keyed reduce by {keys}{buckets}: {}", self.reduce.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = self.partition().check(ends)?;
        self.reduce.schema(&schema, &self.keys)
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let schema = SchemaRef::clone(lowering.target_schema());
        let before = stage(lowering, "reduce before", source, &self.keys, &self.reduce);
        let after = stage(lowering, "reduce after", target, &self.keys, &self.reduce);
        lowering.connect_direct(source, before.input(0));
        let reduced = self.combined(lowering, source, before.output(0));
        let mover = self.partition().mover(&schema, lowering.workers_of(target).len() as u32);
        lowering.connect(reduced, after.input(0), mover);
        lowering.connect_direct(after.output(0), target);
    }
}

impl KeyedReduce {
    /// What leaves the workers of `source`, whose copies have been `reduced`: once more together, where a worker has
    /// several of them and there are others to send to.
    fn combined(&self, lowering: &mut Lowering<'_>, source: FlowPort, reduced: FlowPort) -> FlowPort {
        let copies = lowering.workers_of(source).to_vec();
        let mut workers = copies.clone();
        workers.sort_unstable();
        workers.dedup();
        if workers.len() == copies.len() || lowering.workers() == 1 {
            return reduced;
        }
        let of_worker = |worker| workers.binary_search(worker).expect("it is one of them") as u32;
        let map = copies.iter().map(|worker| Some(of_worker(worker))).collect();
        let combine = stage_on(lowering, "combine", workers.clone(), &self.keys, &self.reduce, 1);
        lowering.connect(reduced, combine.input(0), EdgeMover::Map(map));
        combine.output(0)
    }
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
