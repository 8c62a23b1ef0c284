//! Decimals combined with floats. DataFusion converts both to decimals with fifteen decimal places, which cannot
//! represent NaN and 1e300 and round small floats to 0. Here both become floats, as in the standard; but a float
//! literal next to a decimal is taken exactly, so that `price = 1.1` is true for 1.10.

use std::cell::Cell;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{BinaryExpr, InSubquery, ScalarFunction};
use datafusion::logical_expr::logical_plan::Union;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::plan::rewrite::{compared, rewrite_exprs, rewrite_keys};

/// Functions whose arguments have a common type.
const ALIKE: [&str; 6] = ["coalesce", "greatest", "ifnull", "least", "nullif", "nvl"];
/// Digits of a decimal.
const DIGITS_MAX: i32 = 38;

/// The rule, see the module. It runs before DataFusion's own, which determines the common type.
#[derive(Debug)]
pub(crate) struct DecimalsAsFloats;

impl AnalyzerRule for DecimalsAsFloats {
    fn name(&self) -> &'static str {
        "decimals_as_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        // Once the type of a column has changed, the steps above must be updated.
        let is_stale = Cell::new(false);
        let step = |node: LogicalPlan| {
            let node = if is_stale.get() { node.recompute_schema()? } else { node };
            let made = match node {
                LogicalPlan::Union(union) => united(union)?,
                node => rewrite_exprs(node, |_, expr, schema| expr.transform_up(|part| met(part, schema)))?
                    .transform_data(|node| Ok(rewrite_keys(node, |mut keys, schema| as_floats(&mut keys, schema))))?,
            };
            is_stale.set(is_stale.get() || made.transformed);
            Ok(made)
        };
        Ok(plan.transform_up_with_subqueries(step)?.data)
    }
}

fn met(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if compares(op) => {
            let changed = as_floats(&mut [&mut *left, &mut *right], schema);
            Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op, right }), changed)
        }
        mut one @ (Expr::Between(_) | Expr::InList(_)) => {
            let changed = as_floats(&mut compared(&mut one), schema);
            Transformed::new_transformed(one, changed)
        }
        Expr::Case(mut case) => {
            let mut changed = false;
            if let Some(of) = &mut case.expr {
                let whens = case.when_then_expr.iter_mut().map(|(when, _)| &mut **when);
                let mut all: Vec<&mut Expr> = std::iter::once(&mut **of).chain(whens).collect();
                changed = as_floats(&mut all, schema);
            }
            let thens = case.when_then_expr.iter_mut().map(|(_, then)| &mut **then);
            let mut all: Vec<&mut Expr> = thens.chain(case.else_expr.as_deref_mut()).collect();
            changed |= as_floats(&mut all, schema);
            Transformed::new_transformed(Expr::Case(case), changed)
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args }) if ALIKE.contains(&func.name()) => {
            let changed = as_floats(&mut args.iter_mut().collect::<Vec<_>>(), schema);
            Transformed::new_transformed(Expr::ScalarFunction(ScalarFunction { func, args }), changed)
        }
        Expr::InSubquery(mut one) => {
            let InSubquery { expr, subquery, .. } = &mut one;
            let Ok(ours) = expr.get_type(schema) else { return Ok(Transformed::no(Expr::InSubquery(one))) };
            let theirs = subquery.subquery.schema().field(0).data_type().clone();
            let changed = if ours.is_decimal() && theirs.is_floating() {
                **expr = cast(std::mem::take(&mut **expr), DataType::Float64);
                true
            } else if ours.is_floating() && theirs.is_decimal() {
                let casts = vec![true; subquery.subquery.schema().fields().len()];
                subquery.subquery = Arc::new(with_floats(&subquery.subquery, &casts)?);
                true
            } else {
                false
            };
            Transformed::new_transformed(Expr::InSubquery(one), changed)
        }
        other => Transformed::no(other),
    })
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// The inputs of a union, whose columns match by position.
fn united(union: Union) -> Result<Transformed<LogicalPlan>> {
    let kind_of =
        |input: &LogicalPlan, at: usize| input.schema().fields().get(at).map(|field| field.data_type().clone());
    let mixed: Vec<bool> = (0..union.schema.fields().len())
        .map(|at| {
            let any = |is: fn(&DataType) -> bool| {
                union.inputs.iter().any(|input| kind_of(input, at).is_some_and(|of| is(&of)))
            };
            any(DataType::is_decimal) && any(DataType::is_floating)
        })
        .collect();
    if !mixed.contains(&true) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let inputs =
        union.inputs.iter().map(|input| Ok(Arc::new(with_floats(input, &mixed)?))).collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?)))
}

/// A plan with floats instead of decimals in these columns.
fn with_floats(plan: &LogicalPlan, casts: &[bool]) -> Result<LogicalPlan> {
    let columns = plan.schema().iter().zip(casts).map(|((relation, field), casts)| {
        let column = Expr::Column((relation, field).into());
        match *casts && field.data_type().is_decimal() {
            true => cast(column, DataType::Float64).alias_qualified(relation.cloned(), field.name()),
            false => column,
        }
    });
    LogicalPlanBuilder::from(plan.clone()).project(columns.collect::<Vec<_>>())?.build()
}

/// Converts decimals to floats among expressions that must have a common type, or literals to decimals; false if there
/// is nothing to do.
fn as_floats(exprs: &mut [&mut Expr], schema: &DFSchema) -> bool {
    // Expressions without a type yet are reported elsewhere.
    let types: Vec<Option<DataType>> = exprs.iter().map(|expr| expr.get_type(schema).ok()).collect();
    let is = |at: usize, is: fn(&DataType) -> bool| types[at].as_ref().is_some_and(is);
    let floats: Vec<usize> = (0..exprs.len()).filter(|at| is(*at, DataType::is_floating)).collect();
    let decimals: Vec<usize> = (0..exprs.len()).filter(|at| is(*at, DataType::is_decimal)).collect();
    if floats.is_empty() || decimals.is_empty() {
        return false;
    }
    let written: Option<Vec<(i128, u8, i8)>> = floats.iter().map(|at| exact(exprs[*at])).collect();
    let room = |precision: u8, scale: i8| (i32::from(precision) - i32::from(scale), i32::from(scale));
    let rooms = decimals.iter().filter_map(|at| match &types[*at] {
        Some(DataType::Decimal128(precision, scale)) => Some(room(*precision, *scale)),
        _ => None,
    });
    if let Some(written) = written {
        let all = rooms.chain(written.iter().map(|(_, precision, scale)| room(*precision, *scale)));
        let (before, behind) = all.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        if before + behind <= DIGITS_MAX {
            for (at, (value, precision, scale)) in floats.into_iter().zip(written) {
                *exprs[at] = Expr::Literal(ScalarValue::Decimal128(Some(value), precision, scale), None);
            }
            return true;
        }
    }
    for at in decimals {
        *exprs[at] = cast(std::mem::take(exprs[at]), DataType::Float64);
    }
    true
}

/// The decimal that a float was written as, or a computation with such literals: the value, the number of digits, and
/// the number of decimal places.
fn exact(expr: &Expr) -> Option<(i128, u8, i8)> {
    let (value, scale) = number(expr)?;
    let digits = value.unsigned_abs().to_string().len().max(usize::try_from(scale).ok()? + 1);
    let precision = u8::try_from(digits).ok().filter(|digits| i32::from(*digits) <= DIGITS_MAX)?;
    Some((value, precision, i8::try_from(scale).ok()?))
}

/// A constant as an integer and the number of its decimal places.
fn number(expr: &Expr) -> Option<(i128, u32)> {
    match expr {
        Expr::Literal(ScalarValue::Float64(Some(value)), _) => {
            let text = value.to_string();
            let (before, behind) = text.split_once('.').unwrap_or((&text, ""));
            Some((format!("{before}{behind}").parse().ok()?, u32::try_from(behind.len()).ok()?))
        }
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => Some((i128::from(*value), 0)),
        Expr::Negative(of) => number(of).map(|(value, scale)| (-value, scale)),
        // As floats, `0.06 + 0.01` is less than 0.07.
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let ((left, left_scale), (right, right_scale)) = (number(left)?, number(right)?);
            let scale = left_scale.max(right_scale);
            let aligned = |value: i128, of: u32| value.checked_mul(10_i128.checked_pow(scale - of)?);
            match op {
                Operator::Plus => Some((aligned(left, left_scale)?.checked_add(aligned(right, right_scale)?)?, scale)),
                Operator::Minus => Some((aligned(left, left_scale)?.checked_sub(aligned(right, right_scale)?)?, scale)),
                Operator::Multiply => Some((left.checked_mul(right)?, left_scale + right_scale)),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;

    use super::*;

    #[test]
    fn floats_as_they_were_written() {
        for (value, decimal) in [(1.1, (11, 2, 1)), (-0.001, (-1, 4, 3)), (300.0, (300, 3, 0)), (1e-7, (1, 8, 7))] {
            assert_eq!(exact(&lit(value)), Some(decimal), "{value}");
        }
        assert_eq!(exact(&(lit(0.06) + lit(0.01))), Some((7, 3, 2)));
        assert_eq!(exact(&(lit(1_i64) - lit(0.5))), Some((5, 2, 1)));
        assert_eq!(exact(&(lit(0.5) / lit(2.0))), None);
        for value in [1e300, 1e-300, f64::NAN, f64::INFINITY] {
            assert_eq!(exact(&lit(value)), None, "{value}");
        }
    }
}
