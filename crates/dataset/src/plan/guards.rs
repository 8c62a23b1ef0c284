//! Guards for expressions that can fail: in `y > 0 AND 10 / y > 4`, the division must not see rows in which `y` is 0.
//!
//! DataFusion evaluates both sides of AND and OR for all rows, and reorders conditions of a filter. SQL allows that,
//! but users write guards because they want them to work. So the operands of expressions that can fail become null
//! where the guard makes the result irrelevant: `10 / CASE WHEN y > 0 THEN y END > 4`. The condition itself stays as it
//! was: joins still find their keys, and scans still prune by guards.

use std::collections::HashSet;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, TableReference};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{BinaryExpr, Case, Cast};
use datafusion::logical_expr::utils::{conjunction, disjunction, split_binary, split_conjunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::plan::numbers::is_checked;
use crate::plan::rewrite::rewrite_exprs;

/// Guards conditions by the conditions to their left.
#[derive(Debug)]
pub(crate) struct GuardConditions;

impl AnalyzerRule for GuardConditions {
    fn name(&self) -> &'static str {
        "guard_conditions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            if !node.expressions().iter().any(may_guard) {
                return Ok(Transformed::no(node));
            }
            let is_condition = matches!(node, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
            rewrite_exprs(node, |_, expr, schema| {
                let expr = within(expr, schema)?;
                match is_condition {
                    true => expr.transform_data(|expr| conditions(expr, schema, true)),
                    false => Ok(expr),
                }
            })
        })
        .data()
    }
}

/// Guards filter conditions that were separate in the query by those that they have been merged with. The last of the
/// optimizer's rules.
#[derive(Debug)]
pub(crate) struct GuardFilters;

impl OptimizerRule for GuardFilters {
    fn name(&self) -> &'static str {
        "guard_filters"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Filter(filter) if split_conjunction(&filter.predicate).len() > 1 => {
                rewrite_exprs(plan, |_, expr, schema| conditions(expr, schema, false))
            }
            _ => Ok(Transformed::no(plan)),
        }
    }
}

/// Whether an expression has both a guard and something to guard, by a quick check that needs no types.
fn may_guard(expr: &Expr) -> bool {
    let (mut guards, mut guarded) = (false, false);
    expr.apply(|part| {
        match part {
            Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. }) => guards = true,
            Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, .. }) | Expr::Cast(_) => {
                guarded = true
            }
            Expr::ScalarFunction(call) if is_checked(call) || parses(call.name()) => guarded = true,
            Expr::AggregateFunction(call) if call.params.filter.is_some() => guards = true,
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("the closure does not fail");
    guards && guarded
}

/// The conditions of a filter, each guarded by the previous ones (`in_order`), or by all others.
fn conditions(expr: Expr, schema: &DFSchema, in_order: bool) -> Result<Transformed<Expr>> {
    let parts: Vec<Expr> = split_conjunction(&expr).into_iter().cloned().collect();
    if parts.len() == 1 {
        return Ok(Transformed::no(expr));
    }
    let sound = parts.iter().map(|part| can_guard(part, schema)).collect::<Result<Vec<_>>>()?;
    let mut changed = false;
    let mut made = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        if sound[at] || !can_fail(part, schema)? {
            made.push(part.clone());
            continue;
        }
        let relations = relations(part);
        // Guards on other tables would hide a key from a join.
        let keeps_key = |guard: &Expr| !is_key(part) || self::relations(guard).is_subset(&relations);
        let guards = parts
            .iter()
            .enumerate()
            .filter(|(other, guard)| sound[*other] && *other != at && (!in_order || *other < at) && keeps_key(guard));
        let guard = conjunction(guards.map(|(_, guard)| guard.clone()));
        let guarded = match guard {
            Some(guard) => guarded(part.clone(), &guard, schema)?,
            None => Transformed::no(part.clone()),
        };
        changed |= guarded.transformed;
        made.push(guarded.data);
    }
    Ok(match changed {
        true => Transformed::yes(conjunction(made).expect("there are parts")),
        false => Transformed::no(expr),
    })
}

/// An expression in which AND, OR and the filters of aggregates guard their parts.
fn within(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|part| match part {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            if !can_fail(&right, schema)? {
                return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })));
            }
            let mut guards = Vec::new();
            for part in split_binary(&left, op) {
                if can_guard(part, schema)? {
                    guards.push(part.clone());
                }
            }
            let guard = match op {
                Operator::And => conjunction(guards).map(Expr::is_not_false),
                _ => disjunction(guards).map(Expr::is_not_true),
            };
            let right = match guard {
                Some(guard) => guarded(*right, &guard, schema)?,
                None => Transformed::no(*right),
            };
            Ok(right.update_data(|right| Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(right) })))
        }
        Expr::AggregateFunction(mut call) => {
            let Some(filter) = call.params.filter.clone().filter(|filter| can_guard(filter, schema).unwrap_or(false))
            else {
                return Ok(Transformed::no(Expr::AggregateFunction(call)));
            };
            let mut changed = false;
            for arg in &mut call.params.args {
                let made = guarded(std::mem::take(arg), &filter, schema)?;
                changed |= made.transformed;
                *arg = made.data;
            }
            let call = Expr::AggregateFunction(call);
            Ok(if changed { Transformed::yes(call) } else { Transformed::no(call) })
        }
        other => Ok(Transformed::no(other)),
    })
}

/// The expression, with operands of parts that can fail set to null where `guard` is not true.
fn guarded(expr: Expr, guard: &Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let operand = |operand: Expr| {
        let case = Case::new(None, vec![(Box::new(guard.clone()), Box::new(operand))], None);
        Box::new(Expr::Case(case))
    };
    expr.transform_down(|part| {
        if !fails_itself(&part, schema)? {
            return Ok(Transformed::no(part));
        }
        let made = match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                Expr::BinaryExpr(BinaryExpr { left, op, right: operand(*right) })
            }
            Expr::Cast(Cast { expr, field }) => Expr::Cast(Cast { expr: operand(*expr), field }),
            Expr::ScalarFunction(mut call) => {
                let at = call.args.iter().position(has_columns).unwrap_or(0);
                let arg = std::mem::take(&mut call.args[at]);
                call.args[at] = *operand(arg);
                Expr::ScalarFunction(call)
            }
            other => other,
        };
        Ok(Transformed::new(made, true, TreeNodeRecursion::Jump))
    })
}

fn has_columns(expr: &Expr) -> bool {
    !expr.column_refs().is_empty()
}

fn relations(expr: &Expr) -> HashSet<Option<TableReference>> {
    expr.column_refs().into_iter().map(|column| column.relation.clone()).collect()
}

/// Whether a condition could be the key of a join.
fn is_key(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq | Operator::IsNotDistinctFrom, right }) => {
            has_columns(left) && has_columns(right)
        }
        _ => false,
    }
}

/// Whether an expression may be evaluated one more time, for all rows.
fn can_guard(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let is_plain = |part: &Expr| {
        !matches!(
            part,
            Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::ScalarSubquery(_)
                | Expr::SetComparison(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::OuterReferenceColumn(..)
        )
    };
    Ok(!expr.is_volatile() && !expr.exists(|part| Ok(!is_plain(part)))? && !can_fail(expr, schema)?)
}

fn can_fail(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    expr.exists(|part| fails_itself(part, schema))
}

/// Whether the expression may fail for some values of its operands, and is not guarded yet.
fn fails_itself(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let is_guarded = |operand: &Expr| matches!(operand, Expr::Case(case) if case.else_expr.is_none());
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { right, op: Operator::Divide | Operator::Modulo, .. }) => {
            let is_zero = |value: &ScalarValue| {
                ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| zero == *value) || value.is_null()
            };
            match right.as_ref() {
                Expr::Literal(value, _) => is_zero(value),
                right if is_guarded(right) || !has_columns(right) => false,
                right => !right.get_type(schema)?.is_floating(),
            }
        }
        Expr::Cast(cast) if has_columns(&cast.expr) && !is_guarded(&cast.expr) => {
            !always_casts(&cast.expr.get_type(schema)?, cast.field.data_type())
        }
        Expr::ScalarFunction(call) if is_checked(call) || parses(call.name()) => {
            expr.column_refs().iter().next().is_some() && !call.args.iter().any(is_guarded)
        }
        _ => false,
    })
}

/// Functions that parse strings.
fn parses(name: &str) -> bool {
    name.starts_with("to_date") || name.starts_with("to_timestamp") || name.starts_with("to_time")
}

/// Whether a cast has a result for every value.
fn always_casts(from: &DataType, to: &DataType) -> bool {
    use DataType::{Dictionary, Float32, Float64, LargeUtf8, Null, Utf8, Utf8View};
    let bits = |kind: &DataType| kind.primitive_width().unwrap_or(0);
    match (from, to) {
        _ if from == to => true,
        (Null, _) | (_, Utf8 | LargeUtf8 | Utf8View) => true,
        (Dictionary(_, values), to) => always_casts(values, to),
        (from, Dictionary(_, values)) => always_casts(from, values),
        (from, Float32 | Float64) => from.is_numeric(),
        (from, to) if from.is_integer() && to.is_integer() => {
            let wider = bits(to) > bits(from);
            wider && (to.is_signed_integer() || from.is_unsigned_integer())
        }
        (from, to) => from.is_temporal() && to.is_temporal(),
    }
}
