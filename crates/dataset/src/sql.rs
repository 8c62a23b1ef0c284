//! Queries as they are planned. What would be planned otherwise than SQL means it, or left out in silence, is an error, which names
//! what to write instead.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, JoinConstraint, JoinOperator, Query, Select, SetExpr, SetOperator, SetQuantifier,
    TableFactor, UnaryOperator, Value, Visit, Visitor, visit_expressions_mut,
};

use crate::durations::NEGATIVE;
use crate::error::{DataSetError, Result};

/// What a query says, ready to be planned.
///
/// # Errors
/// `Query` if it does not parse, or is refused.
pub(crate) fn parsed(state: &SessionState, query: &str) -> Result<Statement> {
    let dialect = state.config().options().sql_parser.dialect;
    let mut parsed = state.sql_to_statement(query, &dialect)?;
    if let Statement::Statement(statement) = &mut parsed {
        if let ControlFlow::Break(reason) = statement.visit(&mut Checks) {
            return Err(DataSetError::Query(reason.to_owned()));
        }
        let _ = visit_expressions_mut(statement, |expr| {
            with_two_operands(expr);
            ControlFlow::<()>::Continue(())
        });
    }
    Ok(parsed)
}

/// Makes `-d` an operator of two: only of those planners are asked what they mean, and DataFusion knows no minus of a duration.
/// It looks itself at literals, for the numbers and intervals that they are.
fn with_two_operands(expr: &mut Expr) {
    if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: of } = expr
        && !matches!(of.as_ref(), Expr::Value(_) | Expr::Interval(_))
    {
        let right = Box::new(std::mem::replace(of.as_mut(), Expr::value(Value::Null)));
        let left = Box::new(Expr::value(Value::Null));
        *expr = Expr::BinaryOp { left, op: BinaryOperator::Custom(NEGATIVE.into()), right };
    }
}

struct Checks;

impl Visitor for Checks {
    type Break = &'static str;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<&'static str> {
        sets(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<&'static str> {
        if select.prewhere.is_some() {
            return ControlFlow::Break("there is no PREWHERE; write WHERE, of which files are asked first, too");
        }
        for join in select.from.iter().flat_map(|table| &table.joins) {
            if let JoinOperator::Right(by) | JoinOperator::RightOuter(by) | JoinOperator::FullOuter(by) =
                &join.join_operator
                && matches!(by, JoinConstraint::Using(_) | JoinConstraint::Natural)
            {
                return ControlFlow::Break(
                    "in a RIGHT or FULL JOIN with USING, or a NATURAL one, keys of rows that only the second table has \
                     would be null; write ON a.key = b.key, and coalesce(a.key, b.key)",
                );
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<&'static str> {
        match table {
            TableFactor::Table { sample: Some(_), .. } | TableFactor::Derived { sample: Some(_), .. } => {
                ControlFlow::Break("there is no TABLESAMPLE; DataSet.sample takes a part of the rows")
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn sets(body: &SetExpr) -> ControlFlow<&'static str> {
    let SetExpr::SetOperation { op, set_quantifier, left, right } = body else { return ControlFlow::Continue(()) };
    if matches!(op, SetOperator::Except | SetOperator::Minus | SetOperator::Intersect)
        && matches!(set_quantifier, SetQuantifier::All | SetQuantifier::AllByName)
    {
        return ControlFlow::Break(
            "EXCEPT ALL and INTERSECT ALL would not count how often a row is there; number equal rows on both sides, by \
             row_number() over (partition by all columns), and leave out ALL",
        );
    }
    sets(left)?;
    sets(right)
}
