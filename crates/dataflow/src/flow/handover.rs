//! The edge on which the copies of a task hand buckets over to each other (see [`crate::rebalance`]).

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tidemill_batch::route_map::RouteMap;

use super::{Input, Output};
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

/// The sender names the target copy, so there is nothing to decide.
pub(crate) struct BucketPartitioner;

impl Partitioner for BucketPartitioner {
    fn start(&self, _: &PartitionerContext) -> Box<dyn RowAssigner> {
        Box::new(BucketPartitioner)
    }
}

impl RowAssigner for BucketPartitioner {
    fn assign(&mut self, _: &RecordBatch, _: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        Err("buckets are handed over to the copy that the sender names".into())
    }
}
