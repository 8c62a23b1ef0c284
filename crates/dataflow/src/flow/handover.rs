//! The edge on which the copies of a task hand buckets or splits over to each other (see [`crate::rebalance`]).

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tidemill_batch::route_map::RouteMap;

use super::{Input, Output, StreamElement};
use crate::error::TaskError;
use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};
use crate::rebalance::Moves;

/// One copy's ends of the edge on which its task hands over buckets.
pub(crate) struct BucketHandover {
    pub copy: u32,
    /// Which copy owns which bucket.
    pub route: Arc<RouteMap>,
    pub output: Output,
    pub input: Input,
}

impl BucketHandover {
    /// What the edge carries: buckets, and parts of their state.
    pub(crate) fn schema() -> SchemaRef {
        let bucket = Field::new("bucket", DataType::UInt32, false);
        Arc::new(Schema::new(vec![bucket, Field::new("part", DataType::LargeBinary, false)]))
    }

    /// This copy's part in a rebalance.
    pub(crate) fn moves(&self, map: &RouteMap) -> Moves {
        Moves::of(self.copy, &self.route, map)
    }
}

/// One source copy's ends of the edge on which its task hands over splits. Each copy marks there what it does: a
/// barrier first where it will take splits over, so that nobody hands any to a copy that has ended, and then where it
/// has handed all over; idleness while it has no split left to read.
pub(crate) struct SplitHandover {
    pub copy: u32,
    pub output: Output,
    pub input: Input,
    /// By copy: whether it has no split left, as far as known here.
    pub parked: Vec<bool>,
    /// Whether the others were told so of this one.
    pub told_parked: bool,
    /// What was received before this copy had the barrier that it belongs to.
    pub early: Vec<(u32, Option<StreamElement>)>,
    /// Whether this copy has given up splits, or its worker was spare when the run began: then it does not end while
    /// others have some, as it may get some.
    pub may_get: bool,
}

impl SplitHandover {
    pub(crate) fn new((copy, copies): (u32, u32), output: Output, input: Input) -> Self {
        let parked = vec![false; copies as usize];
        SplitHandover { copy, output, input, parked, told_parked: false, early: Vec::new(), may_get: false }
    }

    /// What the edge carries: splits with their positions, how far their time has advanced, and whether they hold time
    /// back.
    pub(crate) fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("split", DataType::Utf8, false),
            Field::new("position", DataType::LargeBinary, false),
            Field::new("time", DataType::Int64, false),
            Field::new("is_active", DataType::Boolean, false),
        ]))
    }
}

/// A copy's ends of its task's edge for handing over.
pub(crate) enum Handover {
    Buckets(BucketHandover),
    Splits(SplitHandover),
}

/// The sender names the target copy, so there is nothing to decide.
pub(crate) struct HandoverPartitioner;

impl Partitioner for HandoverPartitioner {
    fn start(&self, _: &PartitionerContext) -> Box<dyn RowAssigner> {
        Box::new(HandoverPartitioner)
    }
}

impl RowAssigner for HandoverPartitioner {
    fn assign(&mut self, _: &RecordBatch, _: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        Err("buckets and splits are handed over to the copy that the sender names".into())
    }
}
