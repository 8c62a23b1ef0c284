//! Names of columns that a query does not name itself. Two of them may be the same to DataFusion, which then refuses the query:
//! `SELECT 1, 1`, or two sums that differ only by a cast.

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
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectItem, Value, VisitorMut,
};

use super::call;
use crate::rewrite::rewrite_exprs;

/// Gives columns that would have the name of another one a number, and calls the name of what is cast within calls otherwise.
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
        for item in &mut select.projection {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            // A cast has the name of what it casts.
            let name = name_of(expr);
            if taken.insert(name.clone()) {
                continue;
            }
            let number = (1..).find(|number| !taken.contains(&format!("{name}_{number}"))).expect("numbers do not end");
            let alias = format!("{name}_{number}");
            taken.insert(alias.clone());
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', alias) };
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let FunctionArguments::List(list) = &mut function.args else { return ControlFlow::Continue(()) };
        for arg in &mut list.args {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) = arg
                && let Expr::Cast { .. } = arg
            {
                let text = Expr::value(Value::SingleQuotedString(arg.to_string()));
                *arg = call(NAMED, vec![std::mem::replace(arg, Expr::value(Value::Null)), text]);
            }
        }
        ControlFlow::Continue(())
    }
}

fn name_of(expr: &Expr) -> String {
    match expr {
        Expr::Cast { expr, .. } | Expr::Nested(expr) => name_of(expr),
        Expr::Identifier(name) => name.value.clone(),
        // Columns of two tables may share a name until the query is over; see `DataSet::new`.
        other => other.to_string(),
    }
}

/// What stands around a cast while a query is planned.
const NAMED: &str = "tidemill_named";

/// The function that planning needs to know.
pub(super) fn named_function() -> ScalarUDF {
    ScalarUDF::from(Named { signature: Signature::any(2, Volatility::Immutable) })
}

/// The plan without it: what it named keeps the name.
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
struct Named {
    signature: Signature,
}

impl ScalarUDFImpl for Named {
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
