//! Expressions under user-visible names: operators, functions looked up in the engine's registries, windows.
//!
//! An expression does not know the data; types and columns are checked when it is used with a `DataSet`. Without an
//! alias, its output is named after its leftmost column, so `col("a") + 1` is still called `a`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ScalarValue, plan_err};
use datafusion::error::DataFusionError;
use datafusion::functions_window::nth_value::{first_value_udwf, last_value_udwf};
use datafusion::logical_expr::expr::{
    AggregateFunction, Alias, Case, ScalarFunction, Sort, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::{
    Expr, Operator, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition, binary_expr, cast, lit,
};
use datafusion::prelude::SessionContext;

use crate::error::{DataSetError, Result};
use crate::plan::frames::of_frame;

/// The column with exactly this name.
pub fn column(name: &str) -> Expr {
    Expr::Column(Column::from_name(name))
}

/// `left op right`, where `op` is Python's operator.
///
/// `/` is true division, `//` and `%` round toward minus infinity, as they do in Python.
///
/// # Errors
/// `Unsupported` for an unknown operator.
pub fn binary(op: &str, left: Expr, right: Expr) -> Result<Expr> {
    let operator = match op {
        "+" => Operator::Plus,
        "-" => Operator::Minus,
        "*" => Operator::Multiply,
        "/" => return Ok(binary_expr(cast(left, DataType::Float64), Operator::Divide, right)),
        "//" => {
            let rest = remainder(&left, &right);
            let quotient = binary_expr(left - rest.clone(), Operator::Divide, right.clone());
            // A literal 1 that leaves nearly all types unchanged.
            return rounded_down(&rest, &right, quotient.clone() - lit(1u8), quotient);
        }
        "%" => {
            let rest = remainder(&left, &right);
            return rounded_down(&rest, &right, rest.clone() + right.clone(), rest.clone());
        }
        "==" => Operator::Eq,
        "!=" => Operator::NotEq,
        "<" => Operator::Lt,
        "<=" => Operator::LtEq,
        ">" => Operator::Gt,
        ">=" => Operator::GtEq,
        "&" => Operator::And,
        "|" => Operator::Or,
        "||" => Operator::StringConcat,
        "is_not_distinct" => Operator::IsNotDistinctFrom,
        other => return Err(DataSetError::Unsupported(format!("operator {other:?}"))),
    };
    Ok(binary_expr(left, operator, right))
}

/// SQL's remainder, with the sign of the dividend.
fn remainder(left: &Expr, right: &Expr) -> Expr {
    binary_expr(left.clone(), Operator::Modulo, right.clone())
}

/// `below` if SQL, which rounds toward zero, has rounded up; otherwise `same`. No intermediate value overflows if the
/// result does not, and infinity is a valid divisor.
fn rounded_down(rest: &Expr, right: &Expr, below: Expr, same: Expr) -> Result<Expr> {
    let is_negative = |expr: &Expr| expr.clone().lt(lit(0i64));
    let differ = binary_expr(is_negative(rest), Operator::NotEq, is_negative(right));
    let rounded_up = rest.clone().not_eq(lit(0i64)).and(differ);
    Ok(case(vec![(rounded_up, below)], Some(same)))
}

/// A scalar function of DataFusion, by its SQL name.
///
/// # Errors
/// `UnknownFunction`, naming the most similar one.
pub fn call(context: &SessionContext, name: &str, args: Vec<Expr>) -> Result<Expr> {
    let state = context.state_ref();
    let state = state.read();
    let known = state.scalar_functions();
    let found =
        known.get(name).ok_or_else(|| DataSetError::unknown_function(name, known.keys().map(String::as_str)))?;
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(found), args)))
}

/// An aggregate function of DataFusion, by its SQL name.
///
/// # Errors
/// `UnknownFunction`, naming the most similar one.
pub fn aggregate(
    context: &SessionContext,
    name: &str,
    args: Vec<Expr>,
    distinct: bool,
    filter: Option<Expr>,
    order_by: Vec<Sort>,
) -> Result<Expr> {
    let state = context.state_ref();
    let state = state.read();
    let known = state.aggregate_functions();
    let found =
        known.get(name).ok_or_else(|| DataSetError::unknown_function(name, known.keys().map(String::as_str)))?;
    let filter = filter.map(Box::new);
    let made = AggregateFunction::new_udf(Arc::clone(found), args, distinct, filter, order_by, None);
    Ok(Expr::AggregateFunction(made))
}

/// A window function of DataFusion (`row_number`, `rank`, `lag`, ...), by its SQL name; `over` sets its window.
///
/// # Errors
/// `UnknownFunction`, naming the most similar one; `Query` for a filter on a function that does not support it.
pub fn window(context: &SessionContext, name: &str, args: Vec<Expr>, filter: Option<Expr>) -> Result<Expr> {
    let state = context.state_ref();
    let state = state.read();
    let known = state.window_functions();
    let found =
        known.get(name).ok_or_else(|| DataSetError::unknown_function(name, known.keys().map(String::as_str)))?;
    let mut made = WindowFunction::new(WindowFunctionDefinition::WindowUDF(Arc::clone(found)), args);
    made.fun = of_frame(made.fun, filter.is_some(), &made.params.window_frame)?;
    made.params.filter = filter.map(Box::new);
    Ok(Expr::from(made))
}

/// First and last row of a window, relative to the current one; `None`: the end of the partition.
pub type RowRange = (Option<i64>, Option<i64>);

/// Evaluates every aggregate and window function in `expr` over a window.
///
/// With an order and without `rows`, the window extends from the partition's first row to the current one and its
/// peers. An aggregate with its own order covers all rows of the partition, in that order.
///
/// # Errors
/// `Query` if nothing in `expr` can have a window, if the first row comes after the last, or if an aggregate has an
/// order and the window has another one, or rows.
pub fn over(expr: Expr, partition_by: &[Expr], order_by: &[Sort], rows: Option<RowRange>) -> Result<Expr> {
    let frame = match rows {
        Some((Some(first), Some(last))) if first > last => {
            return Err(DataSetError::Query(format!("a window cannot end ({last}) before it begins ({first})")));
        }
        Some((first, last)) => WindowFrame::new_bounds(WindowFrameUnits::Rows, bound(first, true), bound(last, false)),
        None => WindowFrame::new((!order_by.is_empty()).then_some(false)),
    };
    let windowed = |fun, args, filter: Option<Box<Expr>>, null_treatment, distinct, own_order: Vec<Sort>| {
        let (order_by, window_frame) = match own_order.is_empty() {
            true => (order_by.to_vec(), frame.clone()),
            false => {
                (own_order, WindowFrame::new_bounds(WindowFrameUnits::Rows, bound(None, true), bound(None, false)))
            }
        };
        let fun = of_frame(fun, filter.is_some(), &window_frame)?;
        Ok::<_, DataFusionError>(Expr::from(WindowFunction {
            fun,
            params: WindowFunctionParams {
                args,
                partition_by: partition_by.to_vec(),
                order_by,
                window_frame,
                filter,
                null_treatment,
                distinct,
            },
        }))
    };
    let name = output_name(&expr);
    let in_order = !order_by.is_empty() || rows.is_some();
    let mut any = false;
    let found = expr.transform_down(|node| {
        Ok(match node {
            Expr::AggregateFunction(AggregateFunction { func, params: p }) => {
                any = true;
                if !p.order_by.is_empty() && in_order {
                    let name = func.name();
                    return plan_err!(
                        "{name} has an order of its own: leave out order_by and rows of over(), or that order"
                    );
                }
                let fun = match func.name() {
                    // As in SQL: the window versions can drop rows, the aggregates cannot. Without an order or rows
                    // there is nothing to drop, and the aggregate needs less memory.
                    "first_value" if in_order && p.filter.is_none() => {
                        WindowFunctionDefinition::WindowUDF(first_value_udwf())
                    }
                    "last_value" if in_order && p.filter.is_none() => {
                        WindowFunctionDefinition::WindowUDF(last_value_udwf())
                    }
                    _ => WindowFunctionDefinition::AggregateUDF(func),
                };
                // Everything inside is an argument of the function, not a function over this window.
                Transformed::new(
                    windowed(fun, p.args, p.filter, p.null_treatment, p.distinct, p.order_by)?,
                    true,
                    TreeNodeRecursion::Jump,
                )
            }
            // A function that already has a window keeps it.
            Expr::WindowFunction(f) if f.params.partition_by.is_empty() && f.params.order_by.is_empty() => {
                any = true;
                let p = f.params;
                Transformed::new(
                    windowed(f.fun, p.args, p.filter, p.null_treatment, p.distinct, Vec::new())?,
                    true,
                    TreeNodeRecursion::Jump,
                )
            }
            other => Transformed::no(other),
        })
    })?;
    if !any {
        return Err(DataSetError::Query(format!(
            "over() needs an aggregate or window function, such as col({name:?}).sum()"
        )));
    }
    Ok(found.data)
}

fn bound(offset: Option<i64>, is_start: bool) -> WindowFrameBound {
    let rows = |n: i64| ScalarValue::UInt64(Some(n.unsigned_abs()));
    match offset {
        None if is_start => WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
        None => WindowFrameBound::Following(ScalarValue::UInt64(None)),
        Some(0) => WindowFrameBound::CurrentRow,
        Some(n) if n < 0 => WindowFrameBound::Preceding(rows(n)),
        Some(n) => WindowFrameBound::Following(rows(n)),
    }
}

/// `when ... then ... otherwise`: the value of the first condition that is true.
pub fn case(branches: Vec<(Expr, Expr)>, otherwise: Option<Expr>) -> Expr {
    let branches = branches.into_iter().map(|(when, then)| (Box::new(when), Box::new(then))).collect();
    Expr::Case(Case::new(None, branches, otherwise.map(Box::new)))
}

/// The name of the result of `expr`: its alias, else its leftmost column, else a name for its kind.
pub fn output_name(expr: &Expr) -> String {
    let mut name = None;
    // A case is named after its result, not after its conditions.
    let root = match expr {
        Expr::Case(case) => case.when_then_expr.first().map_or(expr, |(_, then)| then.as_ref()),
        other => other,
    };
    let walked = root.apply(|node| {
        Ok(match node {
            Expr::Column(column) => {
                name = Some(column.name.clone());
                TreeNodeRecursion::Stop
            }
            Expr::Alias(alias) => {
                name = Some(alias.name.clone());
                TreeNodeRecursion::Stop
            }
            _ => TreeNodeRecursion::Continue,
        })
    });
    debug_assert!(walked.is_ok(), "looking at an expression cannot fail");
    name.unwrap_or_else(|| match root {
        Expr::AggregateFunction(function) => function.func.name().to_owned(),
        Expr::WindowFunction(function) => function.fun.name().to_owned(),
        Expr::ScalarFunction(function) => function.name().to_owned(),
        _ => "literal".to_owned(),
    })
}

/// `expr` with its output name as an explicit alias.
pub fn named(expr: Expr) -> Expr {
    match expr {
        Expr::Alias(_) | Expr::Column(_) => expr,
        other => {
            let name = output_name(&other);
            Expr::Alias(Alias::new(other, None::<String>, name))
        }
    }
}

/// `count(*)`: the number of rows.
///
/// # Errors
/// None in a complete engine.
pub fn count_rows(context: &SessionContext) -> Result<Expr> {
    aggregate(context, "count", vec![lit(1i64)], false, None, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_left() {
        let sum = binary("+", column("a"), column("b")).unwrap();
        assert_eq!(output_name(&sum), "a");
        assert_eq!(output_name(&sum.alias("c")), "c");
        assert_eq!(output_name(&lit(1)), "literal");
        let chosen = case(vec![(column("a").is_null(), column("b"))], None);
        assert_eq!(output_name(&chosen), "b");
        let context = SessionContext::new();
        assert_eq!(output_name(&count_rows(&context).unwrap()), "count");
    }

    #[test]
    fn unknown_functions_are_named() {
        let context = SessionContext::new();
        let error = call(&context, "uper", vec![column("a")]).unwrap_err();
        assert_eq!(error.to_string(), r#"no function "uper" (did you mean "upper"?)"#);
    }

    #[test]
    fn windows_need_something_to_work_on() {
        let error = over(column("a"), &[], &[], None).unwrap_err();
        assert!(error.to_string().contains("over()"), "{error}");
        let context = SessionContext::new();
        let sum = aggregate(&context, "sum", vec![column("a")], false, None, Vec::new()).unwrap();
        assert!(over(sum.clone(), &[column("k")], &[], Some((Some(1), Some(0)))).is_err());
        let windowed = over(sum, &[column("k")], &[], None).unwrap();
        assert!(matches!(windowed, Expr::WindowFunction(_)));
    }
}
