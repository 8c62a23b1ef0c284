//! Rows of one key come together, one key after the other: a row's key never comes again once another has come. Rows
//! are sorted by their keys where they arrive, on disk if need be.

use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::RowOrder;
use tidemill_batch::route_map::BUCKETS;

use super::partition::describe_buckets;
use super::rounds::map_rounds;
use super::sort::sort_stage;
use super::{EdgeSignature, Exchange, Partition};
use crate::flow::{ExchangeStage, FlowPort, Lowering, TaskFactory};
use crate::task::Executor;

/// See the module.
#[derive(Clone)]
pub struct KeyedGather {
    keys: Vec<String>,
    buckets: u32,
}

impl KeyedGather {
    /// Gathers rows with equal values in `keys`.
    pub fn new<S: Into<String>>(keys: impl IntoIterator<Item = S>) -> Self {
        KeyedGather { keys: keys.into_iter().map(Into::into).collect(), buckets: BUCKETS }
    }

    /// With so many buckets of keys, as [`Partition::buckets`].
    #[must_use]
    pub fn buckets(self, count: u32) -> Self {
        KeyedGather { buckets: count, ..self }
    }

    fn partition(&self) -> Partition {
        Partition::by_key(self.keys.clone()).buckets(self.buckets)
    }
}

impl Exchange for KeyedGather {
    fn describe(&self) -> String {
        format!("keyed gather by {}{}", self.keys.join(", "), describe_buckets(self.buckets))
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = self.partition().check(ends)?;
        RowOrder::of_groups(&schema, &self.keys).map_err(|error| error.to_string())?;
        Ok(schema)
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let schema = SchemaRef::clone(lowering.target_schema());
        let order = RowOrder::of_groups(&schema, &self.keys).expect("checked before");
        let after = match lowering.rounds() {
            None => sort_stage(lowering, "group", target, order),
            Some(_) => group_rounds(lowering, target, order),
        };
        let mover = self.partition().mover(&schema, lowering.workers_of(target).len() as u32);
        lowering.connect(source, after.input(0), mover);
        lowering.connect_direct(after.output(0), target);
    }
}

/// A stage beside `target` that puts the rows of each round in order, by itself.
fn group_rounds(lowering: &mut Lowering<'_>, target: FlowPort, order: RowOrder) -> ExchangeStage {
    let factory: TaskFactory = Arc::new(move |inputs, outputs, context| {
        let order = order.clone();
        Box::pin(async move {
            map_rounds(inputs.into_only(), outputs.into_only(), &context, |round| {
                let rows = order.rows(&round)?;
                let mut sorted: Vec<u32> = (0..round.num_rows() as u32).collect();
                sorted.sort_by(|&one, &other| rows.row(one as usize).cmp(&rows.row(other as usize)));
                Ok(take_record_batch(&round, &UInt32Array::from(sorted))?)
            })
            .await
        })
    });
    let (workers, schema) = (lowering.workers_of(target).to_vec(), SchemaRef::clone(lowering.target_schema()));
    let stage = lowering.stage("group rounds", workers, 1, vec![schema], Executor::Thread, factory);
    lowering.set_streaming(stage);
    stage
}
