//! Common code of our plan steps.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{Partitioning, PlanProperties};

/// Rows per slice of an in-memory table: DataFusion's own batch size.
pub const SLICE_ROWS: usize = 8192;

/// The properties of a step whose rows have no known order and are produced as input arrives. A stream may be endless;
/// the code that lowers its plan looks for steps that would wait for its end.
pub(crate) fn unordered(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    let (equal, partitions) = (EquivalenceProperties::new(schema), Partitioning::UnknownPartitioning(partitions));
    Arc::new(PlanProperties::new(equal, partitions, EmissionType::Incremental, Boundedness::Bounded))
}

/// The batch with the schema of the plan: operators differ in nullability and metadata.
pub(crate) fn as_planned(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(SchemaRef::clone(schema), batch.columns().to_vec(), &options)?)
}

// For use within `impl ExecutionPlan`.

/// Gives a step that replaces a DataFusion step the same requirements on its inputs: otherwise a later rule would
/// remove exchanges and sorts that the step relies on.
macro_rules! required_as_by {
    ($self:ident => $step:expr) => {
        fn input_distribution_requirements(&$self) -> datafusion::physical_plan::InputDistributionRequirements {
            $step.input_distribution_requirements()
        }

        fn required_input_ordering(&$self) -> Vec<Option<datafusion::physical_expr::OrderingRequirements>> {
            $step.required_input_ordering()
        }

        fn benefits_from_input_partitioning(&$self) -> Vec<bool> {
            $step.benefits_from_input_partitioning()
        }
    };
}

/// A step without inputs and expressions.
macro_rules! no_input {
    () => {
        fn children(&self) -> Vec<&std::sync::Arc<dyn ExecutionPlan>> {
            Vec::new()
        }

        $crate::exec::step::no_expressions!();

        fn replace_children(
            self: std::sync::Arc<Self>,
            _: Vec<std::sync::Arc<dyn ExecutionPlan>>,
            _: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<std::sync::Arc<dyn ExecutionPlan>> {
            Ok(self)
        }

        $crate::exec::step::with_new_children!(Keep);
    };
}

/// A step with one `input` and no expressions: how to remake it over another one.
macro_rules! one_input {
    ($self:ident, $input:ident => $made:expr) => {
        fn children(&self) -> Vec<&std::sync::Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }

        $crate::exec::step::no_expressions!();

        fn replace_children(
            $self: std::sync::Arc<Self>,
            mut children: Vec<std::sync::Arc<dyn ExecutionPlan>>,
            _: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> datafusion::common::Result<std::sync::Arc<dyn ExecutionPlan>> {
            let $input = children.pop().ok_or_else(|| {
                datafusion::common::DataFusionError::Internal(format!("{} has one input", $self.name()))
            })?;
            $made
        }

        $crate::exec::step::with_new_children!(Recompute);
    };
}

macro_rules! no_expressions {
    () => {
        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(
                &std::sync::Arc<dyn datafusion::physical_expr::PhysicalExpr>,
            ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> datafusion::common::Result<datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
    };
}

/// Uses `replace_children`, which has superseded it.
macro_rules! with_new_children {
    ($mode:ident) => {
        fn with_new_children(
            self: std::sync::Arc<Self>,
            children: Vec<std::sync::Arc<dyn ExecutionPlan>>,
        ) -> datafusion::common::Result<std::sync::Arc<dyn ExecutionPlan>> {
            use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
            self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::$mode))
        }
    };
}

pub(crate) use {no_expressions, no_input, one_input, required_as_by, with_new_children};
