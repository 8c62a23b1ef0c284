//! Operators that DataFusion lacks, with the meaning that they have in Python: arithmetic of durations with dates and
//! numbers, and `+` of texts.
//!
//! | expression             | result                                                 |
//! |------------------------|--------------------------------------------------------|
//! | date ± duration        | a date: whole days count, as with `datetime.timedelta` |
//! | duration * or / number | a duration, rounded to its unit                        |
//! | duration / duration    | a number: the ratio                                    |
//! | -duration              | a duration                                             |
//! | text + text            | the concatenation; SQL has `||` for it                 |

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, plan_err};
use datafusion::functions::math::expr_fn::round;
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::type_coercion::{is_interval, is_signed_numeric, is_timestamp};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, binary_expr, cast, lit};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::error::Result;
use crate::plan::expr::output_name;

/// `expr` with these operators in it. Its name stays the same.
pub(crate) fn with_operators(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let name = output_name(&expr);
    let made = expr.transform_up(|part| {
        Ok(match replacement_for(&part, schema) {
            Some(made) => Transformed::yes(made),
            None => Transformed::no(part),
        })
    })?;
    Ok(if made.transformed { made.data.unalias().alias(name) } else { made.data })
}

/// A unary minus, written as an operator with two operands: see [`sql::parsed`](crate::plan::sql::parsed).
pub(crate) const NEGATIVE: &str = "unary -";

/// The operators of durations in SQL, which get their meaning while the query is parsed.
#[derive(Debug)]
pub(crate) struct SqlOperators;

impl ExprPlanner for SqlOperators {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> datafusion::error::Result<PlannerResult<RawBinaryExpr>> {
        let op = match &expr.op {
            BinaryOperator::Custom(op) if op == NEGATIVE => {
                return negative(expr.right, schema).map(PlannerResult::Planned);
            }
            BinaryOperator::Plus => Operator::Plus,
            BinaryOperator::Minus => Operator::Minus,
            BinaryOperator::Multiply => Operator::Multiply,
            BinaryOperator::Divide => Operator::Divide,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        Ok(match of_two(&expr.left, op, &expr.right, schema) {
            Some(made) => {
                let name = binary_expr(expr.left, op, expr.right).schema_name().to_string();
                PlannerResult::Planned(made.alias(name))
            }
            None => PlannerResult::Original(expr),
        })
    }
}

/// `-of` in SQL.
fn negative(of: Expr, schema: &DFSchema) -> datafusion::error::Result<Expr> {
    let of_type = of.get_type(schema)?;
    let made = Expr::Negative(Box::new(of));
    if is_duration(&of_type) {
        let name = made.schema_name().to_string();
        return Ok(replacement_for(&made, schema).unwrap_or(made).alias(name));
    }
    if of_type.is_null() || is_signed_numeric(&of_type) || is_interval(&of_type) || is_timestamp(&of_type) {
        return Ok(made);
    }
    plan_err!("there is no minus of {of_type}, only of signed numbers, durations, intervals and times")
}

fn replacement_for(part: &Expr, schema: &DFSchema) -> Option<Expr> {
    match part {
        Expr::Negative(of) => {
            let of_type = of.get_type(schema).ok().filter(is_duration)?;
            Some(cast(lit(0_i64) - cast((**of).clone(), DataType::Int64), of_type))
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            joined(left, *op, right, schema).or_else(|| of_two(left, *op, right, schema))
        }
        _ => None,
    }
}

/// The concatenation of two texts.
fn joined(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    let is_text = |expr: &Expr| expr.get_type(schema).is_ok_and(|of| of.is_string());
    let both = op == Operator::Plus && is_text(left) && is_text(right);
    both.then(|| binary_expr(left.clone(), Operator::StringConcat, right.clone()))
}

fn of_two(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    // Expressions without a type are reported elsewhere.
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    let left = match left {
        // The dividend of a quotient has been cast to float; see `expr::binary`.
        Expr::Cast(made) if op == Operator::Divide && type_of(&made.expr).is_some_and(|of| is_duration(&of)) => {
            &made.expr
        }
        _ => left,
    };
    let (left_type, right_type) = (type_of(left)?, type_of(right)?);
    if !is_duration(&left_type) && !is_duration(&right_type) {
        return None;
    }
    let (left, right) = (left.clone(), right.clone());
    match (&left_type, op, &right_type) {
        (date, Operator::Plus | Operator::Minus, DataType::Duration(_)) if is_date(date) => {
            Some(moved(left, op, right, date))
        }
        (DataType::Duration(_), Operator::Plus, date) if is_date(date) => Some(moved(right, op, left, date)),
        (DataType::Duration(_), Operator::Multiply, number) if number.is_numeric() => {
            Some(scaled(left, &left_type, op, right, number))
        }
        (number, Operator::Multiply, DataType::Duration(_)) if number.is_numeric() => {
            Some(scaled(right, &right_type, op, left, number))
        }
        (DataType::Duration(_), Operator::Divide, number) if number.is_numeric() => {
            Some(scaled(left, &left_type, op, right, &DataType::Float64))
        }
        (DataType::Duration(unit), Operator::Divide, DataType::Duration(other)) => {
            // The finer unit of the two can represent both.
            let finer = DataType::Duration(*unit.max(other));
            let number = |of| cast(cast(cast(of, finer.clone()), DataType::Int64), DataType::Float64);
            Some(number(left) / number(right))
        }
        _ => None,
    }
}

fn is_duration(of: &DataType) -> bool {
    matches!(of, DataType::Duration(_))
}

fn is_date(of: &DataType) -> bool {
    matches!(of, DataType::Date32 | DataType::Date64)
}

/// A date moved by a duration's whole days, rounded down before they are added or subtracted.
fn moved(date: Expr, op: Operator, by: Expr, of: &DataType) -> Expr {
    let number = |of| cast(cast(of, DataType::Date32), DataType::Int32);
    let micros = cast(cast(by, DataType::Duration(TimeUnit::Microsecond)), DataType::Int64);
    let days = number(cast(micros, DataType::Timestamp(TimeUnit::Microsecond, None)));
    cast(cast(binary_expr(number(date), op, days), DataType::Date32), of.clone())
}

fn scaled(duration: Expr, of: &DataType, op: Operator, by: Expr, by_type: &DataType) -> Expr {
    let ticks = cast(duration, DataType::Int64);
    let made = match by_type.is_integer() {
        true => binary_expr(ticks, op, by),
        false => round(vec![binary_expr(cast(ticks, DataType::Float64), op, cast(by, DataType::Float64))]),
    };
    cast(cast(made, DataType::Int64), of.clone())
}
