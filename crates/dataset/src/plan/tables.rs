//! The tables of a query, including those that represent a step of it: a user function or a stream. DataFusion plans
//! such a step as a table, without knowing what it is.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;

/// A table that represents a step of a query. Plans wrap it in a [`StepProvider`].
pub trait StepTable: TableProvider {
    /// The plan of the step's input, which DataFusion does not see.
    fn input(&self) -> Option<&LogicalPlan> {
        None
    }

    /// The same step over another input with the same columns, if it has an input.
    fn over(&self, _input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        None
    }

    /// Whether it is a stream.
    fn is_stream(&self) -> bool {
        false
    }
}

/// A [`StepTable`] as part of a plan.
#[derive(Debug)]
pub struct StepProvider(pub Arc<dyn StepTable>);

impl StepProvider {
    /// The step that a table represents, if it has this type.
    pub fn step_of<T: StepTable>(table: &dyn TableProvider) -> Option<&T> {
        let step: &dyn Any = table.downcast_ref::<StepProvider>()?.0.as_ref();
        step.downcast_ref()
    }
}

#[async_trait]
impl TableProvider for StepProvider {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        self.0.table_type()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.0.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.scan(session, projection, filters, limit).await
    }
}

/// The table that a plan node reads, if any.
pub fn table_at(node: &LogicalPlan) -> Option<Arc<dyn TableProvider>> {
    let LogicalPlan::TableScan(scan) = node else { return None };
    source_as_provider(&scan.source).ok()
}

/// The plan hidden in a table, if the table represents a step with an input.
pub fn hidden_in(table: &dyn TableProvider) -> Option<&LogicalPlan> {
    table.downcast_ref::<StepProvider>().and_then(|step| step.0.input())
}

/// Calls `visit` with every table that a plan reads, in order, including those below functions.
pub(crate) fn each_table(plan: &LogicalPlan, visit: &mut dyn FnMut(&dyn TableProvider)) {
    let walked = plan.apply_with_subqueries(|node| {
        if let Some(table) = table_at(node) {
            visit(table.as_ref());
            if let Some(hidden) = hidden_in(table.as_ref()) {
                each_table(hidden, visit);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "looking at a plan cannot fail");
}

/// Whether a plan reads a stream.
pub fn reads_stream(plan: &LogicalPlan) -> bool {
    let mut found = false;
    each_table(plan, &mut |table| found |= table.downcast_ref::<StepProvider>().is_some_and(|step| step.0.is_stream()));
    found
}
