//! Comparisons of floats: all NaNs are one value, the largest, and the two zeros are equal.
//!
//! DataFusion's keys are bits, and NaN has many representations: 0.0 / 0.0 gives one with a sign, which it sorts before
//! all numbers. Once types are known, a rule wraps the keys of groups, joins, sorts, windows and comparisons in
//! [`CanonicalFloats`]. The columns themselves keep their values, except for those that a group's rows have in common.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{
    AggregateFunction, Between, BinaryExpr, Case, InList, InSubquery, ScalarFunction, Sort, WindowFunction,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Distinct, Expr, ExprSchemable, Join, JoinConstraint, LogicalPlan, LogicalPlanBuilder, Operator,
    ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use tidemill_dataflow::floats::{FloatEquality, has_floats, with_same};

use crate::plan::rewrite::rewrite_exprs;

/// The rule, see the module.
#[derive(Debug)]
pub(crate) struct CompareFloats;

impl AnalyzerRule for CompareFloats {
    fn name(&self) -> &'static str {
        "compare_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(compare_in)?.data)
    }
}

fn compare_in(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::Distinct(Distinct::All(input)) = &node {
        return Ok(match one_each(input)? {
            Some(input) => Transformed::yes(LogicalPlan::Distinct(Distinct::All(Arc::new(input)))),
            None => Transformed::no(node),
        });
    }
    // Which of the node's expressions are keys by which its rows are grouped or ordered.
    let is_key: Box<dyn Fn(usize) -> bool> = match &node {
        LogicalPlan::Sort(_) | LogicalPlan::Repartition(_) => Box::new(|_| true),
        LogicalPlan::Aggregate(of) => {
            let keys = of.group_expr.len();
            Box::new(move |at| at < keys)
        }
        LogicalPlan::Join(of) => {
            let keys = 2 * of.on.len();
            Box::new(move |at| at < keys)
        }
        LogicalPlan::Distinct(Distinct::On(of)) => {
            let (keys, others) = (of.on_expr.len(), of.select_expr.len());
            Box::new(move |at| at < keys || at >= keys + others)
        }
        _ => Box::new(|_| false),
    };
    let is_join = matches!(node, LogicalPlan::Join(_));
    let made = rewrite_exprs(node, |at, expr, schema| {
        let changed = expr.transform_up(|part| compare(part, schema))?;
        match is_key(at) {
            true => changed.transform_data(|expr| key_as(expr, schema, !is_join)),
            false => Ok(changed),
        }
    })?;
    Ok(made.update_data(|node| match node {
        // A USING key must be a column. By now it is known what the names of such columns refer to.
        LogicalPlan::Join(join) if join.join_constraint == JoinConstraint::Using => {
            LogicalPlan::Join(Join { join_constraint: JoinConstraint::On, ..join })
        }
        other => other,
    }))
}

/// The same rows, with equal bits for equal rows; `None` if that is already so.
fn one_each(input: &Arc<LogicalPlan>) -> Result<Option<LogicalPlan>> {
    if !input.schema().fields().iter().any(|field| has_floats(field.data_type())) {
        return Ok(None);
    }
    let columns = input.schema().iter().map(|(relation, field)| {
        let column = Expr::Column(Column::new(relation.cloned(), field.name()));
        match has_floats(field.data_type()) {
            true => call(FloatEquality::NaNsAndZeros, column, true).alias_qualified(relation.cloned(), field.name()),
            false => column,
        }
    });
    Ok(Some(LogicalPlanBuilder::new_from_arc(Arc::clone(input)).project(columns.collect::<Vec<_>>())?.build()?))
}

fn call(same: FloatEquality, expr: Expr, keeps_name: bool) -> Expr {
    let function = CanonicalFloats { same, keeps_name, signature: Signature::any(1, Volatility::Immutable) };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), vec![expr]))
}

/// Whether an expression's values are or contain floats with several representations. Expressions of an outer query are
/// left to the code that decorrelates the query.
fn differs(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let is_canonical = matches!(expr, Expr::ScalarFunction(of) if of.func.inner().is::<CanonicalFloats>());
    Ok(!is_canonical && !expr.contains_outer() && has_floats(&expr.get_type(schema)?))
}

/// An expression as a key.
fn key(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    key_as(expr, schema, true)
}

/// An operand of a comparison. A join may have it as an additional column.
fn operand(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    key_as(expr, schema, false)
}

fn key_as(expr: Expr, schema: &DFSchema, keeps_name: bool) -> Result<Transformed<Expr>> {
    match expr {
        Expr::Alias(alias) => Expr::Alias(alias).map_children(|expr| key_as(expr, schema, keeps_name)),
        Expr::GroupingSet(sets) => Expr::GroupingSet(sets).map_children(|expr| {
            let name = NamePreserver::new_for_projection().save(&expr);
            Ok(key(expr, schema)?.update_data(|expr| name.restore(expr)))
        }),
        expr if differs(&expr, schema)? => Ok(Transformed::yes(match value_of(&expr, &expr.get_type(schema)?) {
            // Where a constant is required, it must remain one.
            Some(value) => Expr::Literal(one(&value, FloatEquality::NaNsAndZeros)?, None),
            None => call(FloatEquality::NaNsAndZeros, expr, keeps_name),
        })),
        expr => Ok(Transformed::no(expr)),
    }
}

fn keys(exprs: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    exprs.into_iter().map(|expr| Ok(key(expr, schema)?.data)).collect()
}

fn sorts(sorts: Vec<Sort>, schema: &DFSchema) -> Result<Vec<Sort>> {
    sorts.into_iter().map(|by| Ok(Sort { expr: key(by.expr, schema)?.data, ..by })).collect()
}

/// A constant, as a value of the given type.
fn value_of(expr: &Expr, data_type: &DataType) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => value.cast_to(data_type).ok(),
        Expr::Cast(cast) => value_of(&cast.expr, data_type),
        _ => None,
    }
}

fn one(value: &ScalarValue, same: FloatEquality) -> Result<ScalarValue> {
    ScalarValue::try_from_array(&with_same(&value.to_array()?, same)?, 0)
}

/// A number that is not NaN.
fn number_of(expr: &Expr, data_type: &DataType) -> Option<ScalarValue> {
    let is_number = |value: &ScalarValue| match value {
        ScalarValue::Float16(Some(x)) => !x.is_nan(),
        ScalarValue::Float32(Some(x)) => !x.is_nan(),
        ScalarValue::Float64(Some(x)) => !x.is_nan(),
        _ => false,
    };
    value_of(expr, data_type).filter(is_number)
}

/// A part of an expression that compares values.
fn compare(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(Transformed::yes(match expr {
        Expr::BinaryExpr(of) if compares(of.op) => {
            return compare_two(of, schema);
        }
        Expr::Between(of) if differs(&of.expr, schema)? => {
            let data_type = of.expr.get_type(schema)?;
            if [&of.low, &of.high].iter().all(|bound| number_of(bound, &data_type).is_some()) {
                // NaN is above all or below all numbers, never between them.
                return Ok(Transformed::no(Expr::Between(of)));
            }
            let same = |expr: Box<Expr>| -> Result<Box<Expr>> { Ok(Box::new(operand(*expr, schema)?.data)) };
            Expr::Between(Between::new(same(of.expr)?, of.negated, same(of.low)?, same(of.high)?))
        }
        Expr::InList(of) if differs(&of.expr, schema)? => {
            let data_type = of.expr.get_type(schema)?;
            let zero = ScalarValue::new_zero(&data_type).ok();
            let is_plain = |value: &Expr| {
                number_of(value, &data_type).is_some_and(|value| one(&value, FloatEquality::NaNsAndZeros).ok() != zero)
            };
            if of.list.iter().all(is_plain) {
                return Ok(Transformed::no(Expr::InList(of)));
            }
            let list = of.list.into_iter().map(|item| Ok(operand(item, schema)?.data)).collect::<Result<_>>()?;
            Expr::InList(InList::new(Box::new(operand(*of.expr, schema)?.data), list, of.negated))
        }
        Expr::Case(Case { expr: Some(of), when_then_expr, else_expr }) if differs(&of, schema)? => {
            let when = |(value, then): (Box<Expr>, Box<Expr>)| -> Result<_> {
                Ok((Box::new(operand(*value, schema)?.data), then))
            };
            let branches = when_then_expr.into_iter().map(when).collect::<Result<_>>()?;
            Expr::Case(Case::new(Some(Box::new(operand(*of, schema)?.data)), branches, else_expr))
        }
        Expr::InSubquery(mut of) => {
            let Some(rows) = one_each(&of.subquery.subquery)?.filter(|_| of.subquery.outer_ref_columns.is_empty())
            else {
                return Ok(Transformed::no(Expr::InSubquery(of)));
            };
            of.subquery.subquery = Arc::new(rows);
            Expr::InSubquery(InSubquery::new(Box::new(operand(*of.expr, schema)?.data), of.subquery, of.negated))
        }
        Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
            params.args = arguments(func.name(), params.distinct, params.args, schema)?;
            params.order_by = sorts(params.order_by, schema)?;
            Expr::AggregateFunction(AggregateFunction { func, params })
        }
        Expr::WindowFunction(of) => {
            let WindowFunction { fun, mut params } = *of;
            params.args = arguments(fun.name(), params.distinct, params.args, schema)?;
            params.partition_by = keys(params.partition_by, schema)?;
            params.order_by = sorts(params.order_by, schema)?;
            Expr::from(WindowFunction { fun, params })
        }
        Expr::ScalarFunction(of) => return function(of, schema),
        other => return Ok(Transformed::no(other)),
    }))
}

fn compares(op: Operator) -> bool {
    use Operator::*;
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn compare_two(of: BinaryExpr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let BinaryExpr { left, op, right } = of;
    let again = |left: Expr, right: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)));
    if !(differs(&left, schema)? || differs(&right, schema)?) || left.contains_outer() || right.contains_outer() {
        return Ok(Transformed::no(again(*left, *right)));
    }
    let data_type = left.get_type(schema)?;
    let (column, ascending) = match (number_of(&left, &data_type), number_of(&right, &data_type)) {
        (None, Some(_)) => (&left, true),
        (Some(_), None) => (&right, false),
        _ => return Ok(Transformed::yes(again(operand(*left, schema)?.data, operand(*right, schema)?.data))),
    };
    // Compared with a number, a column stays unchanged, because files use that to decide which of their parts to read.
    if matches!(op, Operator::Eq | Operator::NotEq | Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) {
        return Ok(Transformed::no(again(*left, *right)));
    }
    if !matches!(column.as_ref(), Expr::Column(_)) {
        return Ok(Transformed::yes(again(operand(*left, schema)?.data, operand(*right, schema)?.data)));
    }
    let least = Expr::Literal(ScalarValue::Float64(Some(f64::NEG_INFINITY)).cast_to(&data_type)?, None);
    let column = column.as_ref().clone();
    let is_below = matches!(op, Operator::Lt | Operator::LtEq) == ascending;
    let compared = again(*left, *right);
    // In DataFusion, some NaNs are below all numbers.
    Ok(Transformed::yes(match is_below {
        true => compared.and(column.gt_eq(least)),
        false => compared.or(column.lt(least)),
    }))
}

/// Arguments of an aggregate or window function.
fn arguments(name: &str, distinct: bool, args: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    const ORDERED: [&str; 6] =
        ["median", "percentile_cont", "approx_distinct", "approx_median", "approx_percentile_cont", "mode"];
    if distinct || ORDERED.contains(&name) {
        return keys(args, schema);
    }
    if !matches!(name, "min" | "max") {
        return Ok(args);
    }
    args.into_iter()
        .map(|arg| Ok(if differs(&arg, schema)? { call(FloatEquality::NaNs, arg, true) } else { arg }))
        .collect()
}

/// A scalar function that compares values.
fn function(mut of: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let name = of.func.name();
    let is_wanted = matches!(name, "greatest" | "least") || name == "nullif" && of.args.len() == 2;
    if !is_wanted || !of.args.iter().map(|arg| differs(arg, schema)).collect::<Result<Vec<_>>>()?.contains(&true) {
        return Ok(Transformed::no(Expr::ScalarFunction(of)));
    }
    if name == "nullif" {
        let (value, other) = (of.args[0].clone(), of.args[1].clone());
        let equal = key(value.clone(), schema)?.data.eq(key(other, schema)?.data);
        let nothing = Expr::Literal(ScalarValue::try_new_null(&value.get_type(schema)?)?, None);
        return Ok(Transformed::yes(when(equal, nothing).otherwise(value)?));
    }
    of.args = of.args.into_iter().map(|arg| call(FloatEquality::NaNs, arg, true)).collect();
    Ok(Transformed::yes(Expr::ScalarFunction(of)))
}

/// Gives equal floats equal bits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CanonicalFloats {
    same: FloatEquality,
    /// Whether columns are named after its argument.
    keeps_name: bool,
    signature: Signature,
}

impl ScalarUDFImpl for CanonicalFloats {
    fn name(&self) -> &'static str {
        match self.same {
            FloatEquality::NaNs => "one_nan",
            FloatEquality::NaNsAndZeros => "canonical",
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let of = args[0].schema_name();
        Ok(if self.keeps_name { of.to_string() } else { format!("{}({of})", self.name()) })
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        Ok(of[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let of = &args.arg_fields[0];
        Ok(Arc::new(Field::new(of.name(), of.data_type().clone(), of.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match &args.args[0] {
            ColumnarValue::Array(array) => ColumnarValue::Array(with_same(array, self.same)?),
            ColumnarValue::Scalar(value) => ColumnarValue::Scalar(one(value, self.same)?),
        })
    }
}

/// The original expression of a key that may be wrapped only because of its floats.
pub(crate) fn beneath(expr: &Arc<dyn PhysicalExpr>) -> &Arc<dyn PhysicalExpr> {
    match expr.downcast_ref::<ScalarFunctionExpr>() {
        Some(call) if call.fun().inner().is::<CanonicalFloats>() => &call.args()[0],
        _ => expr,
    }
}
