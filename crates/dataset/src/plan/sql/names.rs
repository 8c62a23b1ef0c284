//! Names of columns that a query does not name itself. For DataFusion, two of them may be the same, and it then rejects
//! the query: `SELECT 1, 1`, or two sums that differ only by a cast.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr as PlanExpr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, Select, SelectItem, Value, VisitorMut,
    visit_expressions_mut,
};

use super::call;
use crate::plan::rewrite::rewrite_exprs;

/// Numbers columns with duplicate names, and gives casts among GROUP BY keys distinct names.
pub(super) struct TellApart;

impl VisitorMut for TellApart {
    type Break = String;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<String> {
        let mut taken: HashSet<String> = HashSet::new();
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { alias, .. } = item
                && !taken.insert(alias.value.clone())
            {
                return ControlFlow::Break(format!("two columns of the query are named {:?}; rename one", alias.value));
            }
        }
        let casts = casts_of_keys(select);
        for item in &mut select.projection {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            // A cast has the name of its argument.
            let name = name_of(expr);
            if taken.insert(name.clone()) {
                if casts.contains(expr) {
                    *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
                }
                continue;
            }
            let number = (1..).find(|number| !taken.contains(&format!("{name}_{number}"))).expect("numbers do not end");
            let alias = format!("{name}_{number}");
            taken.insert(alias.clone());
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', alias) };
        }
        if !casts.is_empty() {
            let from = std::mem::take(&mut select.from);
            let _ = visit_expressions_mut(select, |expr| {
                if casts.contains(expr) {
                    *expr = named(expr.clone());
                }
                ControlFlow::<()>::Continue(())
            });
            select.from = from;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let is_named = function.name.to_string() == NAMED;
        let FunctionArguments::List(list) = &mut function.args else { return ControlFlow::Continue(()) };
        for arg in &mut list.args {
            if !is_named
                && let FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) = arg
                && let Expr::Cast { .. } = arg
            {
                *arg = named(std::mem::replace(arg, Expr::value(Value::Null)));
            }
        }
        ControlFlow::Continue(())
    }
}

/// A cast with a different name.
fn named(cast: Expr) -> Expr {
    let text = Expr::value(Value::SingleQuotedString(cast.to_string()));
    call(NAMED, vec![cast, text])
}

/// The casts among the keys of GROUP BY that have the same name as another key.
fn casts_of_keys(select: &Select) -> Vec<Expr> {
    let GroupByExpr::Expressions(keys, _) = &select.group_by else { return Vec::new() };
    let given = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
        _ => None,
    };
    let mut keys = keys.clone();
    for key in &mut keys {
        while let Expr::Nested(inner) = key {
            *key = inner.as_ref().clone();
        }
        // The position of a selected column.
        if let Expr::Value(value) = key
            && let Value::Number(number, _) = &value.value
            && let Ok(place) = number.parse::<usize>()
            && let Some(expr) = place.checked_sub(1).and_then(|at| select.projection.get(at)).and_then(given)
        {
            *key = expr;
        }
    }
    let is_other = |one: &Expr, other: &Expr| one != other && name_of(one) == name_of(other);
    let mut casts = Vec::new();
    for key in keys.iter().filter(|key| matches!(key, Expr::Cast { .. })) {
        if keys.iter().any(|other| is_other(key, other)) && !casts.contains(key) {
            casts.push(key.clone());
        }
    }
    casts
}

fn name_of(expr: &Expr) -> String {
    match expr {
        Expr::Cast { expr, .. } | Expr::Nested(expr) => name_of(expr),
        Expr::Identifier(name) => name.value.clone(),
        // Columns of two tables may share a name until the query ends; see `DataSet::new`.
        other => other.to_string(),
    }
}

/// Wraps a cast while a query is planned.
const NAMED: &str = "tidemill_named";

/// The function, for planning.
pub(super) fn named_function() -> ScalarUDF {
    ScalarUDF::from(NamedExpr { signature: Signature::any(2, Volatility::Immutable) })
}

/// The plan without the function; the columns keep their names.
pub(super) fn plain(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|step| {
        rewrite_exprs(step, |_, expr, _| {
            expr.transform_up(|part| {
                Ok(match part {
                    PlanExpr::ScalarFunction(ScalarFunction { func, mut args }) if func.name() == NAMED => {
                        Transformed::yes(args.swap_remove(0))
                    }
                    other => Transformed::no(other),
                })
            })
        })
    })
    .data()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NamedExpr {
    signature: Signature,
}

impl ScalarUDFImpl for NamedExpr {
    fn name(&self) -> &str {
        NAMED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[PlanExpr]) -> Result<String> {
        Ok(match &args[1] {
            PlanExpr::Literal(ScalarValue::Utf8(Some(text)), _) => text.clone(),
            other => other.schema_name().to_string(),
        })
    }

    fn display_name(&self, args: &[PlanExpr]) -> Result<String> {
        self.schema_name(args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}
