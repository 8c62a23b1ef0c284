//! Planning of queries. Anything that would be planned contrary to SQL's semantics, or silently ignored, is an error
//! that names an alternative.
//!
//! | module           | contents                                                          |
//! |------------------|-------------------------------------------------------------------|
//! | `dialect`        | precedence of IS DISTINCT FROM, as in the standard                |
//! | `decorrelate`    | subqueries as joins; `one_row` checks scalar subqueries           |
//! | `lateral`        | LATERAL where only nested subqueries read the table beside it     |
//! | `timestamps`     | TIMESTAMP in microseconds                                         |
//! | `between`        | BETWEEN over volatile expressions                                 |
//! | `merged_columns` | the columns of joins with USING, and NATURAL ones                 |
//! | `names`          | names of columns that a query does not name                       |
//! | `hidden_keys`    | columns in ORDER BY that are not output                           |

mod between;
mod decorrelate;
mod dialect;
mod hidden_keys;
mod lateral;
mod merged_columns;
mod names;
mod one_row;
mod timestamps;

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    ObjectName, Query, Select, SetExpr, SetOperator, SetQuantifier, TableFactor, UnaryOperator, Value, Visit, VisitMut,
    Visitor, visit_expressions_mut,
};

use self::between::drawn_once;
use self::decorrelate::decorrelated;
use self::dialect::SqlDialect;
use self::hidden_keys::in_one_order;
use self::lateral::MarkLateral;
use self::merged_columns::{Columns, WriteOut};
use self::names::{TellApart, named_function, plain};
pub(crate) use self::timestamps::fraction_of;
use self::timestamps::in_microseconds;
use crate::error::{DataSetError, Result};
use crate::plan::operators::NEGATIVE;

/// Parses a query, ready for planning.
///
/// # Errors
/// `Query` if it does not parse or is rejected.
pub(crate) fn parsed(state: &SessionState, query: &str, columns: &Columns) -> Result<Statement> {
    let recursion_limit = state.config().options().sql_parser.recursion_limit.get();
    let parser = DFParserBuilder::new(query).with_dialect(&SqlDialect).with_recursion_limit(recursion_limit);
    let mut statements = parser.build()?.parse_statements()?;
    let Some(mut parsed) = statements.pop_front() else {
        return Err(DataSetError::Query("the query is empty; write a SELECT".into()));
    };
    if !statements.is_empty() {
        return Err(DataSetError::Query("there is more than one statement; run one query at a time".into()));
    }
    if let Statement::Statement(statement) = &mut parsed {
        if let ControlFlow::Break(reason) = Visit::visit(&*statement, &mut SqlChecks) {
            return Err(DataSetError::Query(reason.to_owned()));
        }
        if let ControlFlow::Break(reason) = VisitMut::visit(statement, &mut WriteOut::new(columns)) {
            return Err(DataSetError::Query(reason));
        }
        if let ControlFlow::Break(reason) = VisitMut::visit(statement, &mut TellApart) {
            return Err(DataSetError::Query(reason));
        }
        if let ControlFlow::Break(reason) = VisitMut::visit(statement, &mut MarkLateral) {
            return Err(DataSetError::Query(reason));
        }
        let _ = visit_expressions_mut(statement, |expr| {
            with_two_operands(expr);
            in_microseconds(expr);
            ControlFlow::<()>::Continue(())
        });
    }
    Ok(parsed)
}

/// The plan of a statement, corrected where DataFusion's planning deviates from SQL.
///
/// # Errors
/// `Query` for subqueries that cannot be executed.
pub(crate) fn corrected(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(decorrelated(drawn_once(in_one_order(plain(plan)?)?)?)?)
}

/// Functions used during planning.
pub(crate) fn planning_functions() -> impl Iterator<Item = ScalarUDF> {
    std::iter::once(named_function())
}

/// A call of a function.
fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Turns `-d` into an operator with two operands: planners are asked about the meaning of only those, and DataFusion
/// has no minus for durations. Literals are left alone, because DataFusion resolves negative numbers and intervals
/// itself.
fn with_two_operands(expr: &mut Expr) {
    if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: of } = expr
        && !matches!(of.as_ref(), Expr::Value(_) | Expr::Interval(_))
    {
        let right = Box::new(std::mem::replace(of.as_mut(), Expr::value(Value::Null)));
        let left = Box::new(Expr::value(Value::Null));
        *expr = Expr::BinaryOp { left, op: BinaryOperator::Custom(NEGATIVE.into()), right };
    }
}

struct SqlChecks;

impl Visitor for SqlChecks {
    type Break = &'static str;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<&'static str> {
        sets(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<&'static str> {
        if select.prewhere.is_some() {
            return ControlFlow::Break("PREWHERE is not supported; write WHERE, which is also applied to files first");
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<&'static str> {
        match table {
            TableFactor::Table { sample: Some(_), .. } | TableFactor::Derived { sample: Some(_), .. } => {
                ControlFlow::Break("TABLESAMPLE is not supported; DataSet.sample takes a sample of the rows")
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
            "EXCEPT ALL and INTERSECT ALL would not count repeated rows; number equal rows on both sides with \
             row_number() over (partition by all columns), and leave out ALL",
        );
    }
    sets(left)?;
    sets(right)
}
