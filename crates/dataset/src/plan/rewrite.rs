//! Common code of this crate's analyzer rules.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// A step of a plan with each of its expressions transformed by `change`, which receives the index of the expression
/// and the columns that it may refer to. Columns of the step keep their names.
pub fn rewrite_exprs(
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

/// The operands that a range or list expression compares; empty for other expressions.
pub(crate) fn compared(expr: &mut Expr) -> Vec<&mut Expr> {
    match expr {
        Expr::Between(Between { expr, low, high, .. }) => vec![&mut **expr, &mut **low, &mut **high],
        Expr::InList(InList { expr, list, .. }) => std::iter::once(&mut **expr).chain(list).collect(),
        _ => Vec::new(),
    }
}

/// A step of a plan with each pair of a join's keys, which are separate expressions, transformed by `change`; that
/// returns whether it has changed them.
pub(crate) fn rewrite_keys(
    mut node: LogicalPlan,
    change: impl Fn([&mut Expr; 2], &DFSchema) -> bool,
) -> Transformed<LogicalPlan> {
    if !matches!(&node, LogicalPlan::Join(join) if !join.on.is_empty()) {
        return Transformed::no(node);
    }
    let schema = merge_schema(&node.inputs());
    let mut changed = false;
    if let LogicalPlan::Join(join) = &mut node {
        for (left, right) in &mut join.on {
            changed |= change([left, right], &schema);
        }
    }
    Transformed::new_transformed(node, changed)
}
