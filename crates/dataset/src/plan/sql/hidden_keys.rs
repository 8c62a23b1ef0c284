//! Columns by which a query is ordered but that it does not output. DataFusion collects the columns of an expression in
//! a hash set, so workers would plan the same query differently.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::error::Result;
use datafusion::logical_expr::logical_plan::{Projection, Sort};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The plan with such columns ordered by name.
pub(super) fn in_one_order(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match reordered(&node)? {
        Some(made) => Ok(Transformed::yes(made)),
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// `None` if there is nothing to do.
fn reordered(node: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Projection(shown) = node else { return Ok(None) };
    let LogicalPlan::Sort(sort) = shown.input.as_ref() else { return Ok(None) };
    let LogicalPlan::Projection(rows) = sort.input.as_ref() else { return Ok(None) };
    let mut exprs = rows.expr.clone();
    let Some(hidden) = exprs.get_mut(shown.expr.len()..) else { return Ok(None) };
    if hidden.len() < 2 || !hidden.iter().all(|expr| matches!(expr, Expr::Column(_))) {
        return Ok(None);
    }
    hidden.sort_by_cached_key(Expr::to_string);
    let rows = LogicalPlan::Projection(Projection::try_new(exprs, Arc::clone(&rows.input))?);
    let sorted = LogicalPlan::Sort(Sort { expr: sort.expr.clone(), input: Arc::new(rows), fetch: sort.fetch });
    Ok(Some(LogicalPlan::Projection(Projection::try_new(shown.expr.clone(), Arc::new(sorted))?)))
}
