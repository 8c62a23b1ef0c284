//! The edge on which copies of a task hand buckets over to each other (see [`crate::rebalance`]).

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tidemill_batch::route_map::RouteMap;

use super::{Input, Output};
use crate::error::TaskError;
use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};
use crate::rebalance::Moves;

/// One copy's ends of the edge on which its task hands buckets over.
pub(crate) struct BucketHandover {
    pub copy: u32,
    /// Who owns what.
    pub route: Arc<RouteMap>,
    pub output: Output,
    pub input: Input,
}

impl BucketHandover {
    /// What the edge carries: buckets, and parts of what is kept of them.
    pub(crate) fn schema() -> SchemaRef {
        let bucket = Field::new("bucket", DataType::UInt32, false);
        Arc::new(Schema::new(vec![bucket, Field::new("part", DataType::LargeBinary, false)]))
    }

    /// What this copy's part in a rebalance is.
    pub(crate) fn moves(&self, map: &RouteMap) -> Moves {
        Moves::of(self.copy, &self.route, map)
    }
}

/// Who hands over names the copy: nothing is left to be decided.
pub(crate) struct BucketPartitioner;

impl Partitioner for BucketPartitioner {
    fn start(&self, _: &PartitionerContext) -> Box<dyn RowAssigner> {
        Box::new(BucketPartitioner)
    }
}

impl RowAssigner for BucketPartitioner {
    fn assign(&mut self, _: &RecordBatch, _: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        Err("what is handed over goes to who is named".into())
    }
}
