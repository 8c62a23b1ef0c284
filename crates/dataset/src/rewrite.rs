//! What the analyzer's rules of this crate have in common.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// A step of a plan, each of its expressions made anew by `change`, which is told its place among them and the columns that it may
/// name. Columns of the step are called as before.
pub(crate) fn rewrite_exprs(
    node: LogicalPlan,
    mut change: impl FnMut(usize, Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let mut schema = merge_schema(&node.inputs());
    if let LogicalPlan::TableScan(scan) = &node {
        schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
    }
    let (names, mut places) = (NamePreserver::new(&node), 0..);
    let changed = node.map_expressions(|expr| {
        let name = names.save(&expr);
        let place = places.next().expect("a range without an end");
        Ok(change(place, expr, &schema)?.update_data(|expr| name.restore(expr)))
    })?;
    match changed.transformed {
        true => changed.map_data(LogicalPlan::recompute_schema),
        false => Ok(changed),
    }
}
