//! Marks LATERAL subqueries. DataFusion forgets that a subquery is lateral if only nested subqueries read the table
//! beside it; and a derived table that is not lateral may refer to a table with the same name further out.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, TableFactor, VisitorMut};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// The name of the contents of a lateral subquery.
pub(super) const LATERAL: &str = "__lateral";

/// Replaces `LATERAL (q)` in a statement with `LATERAL (SELECT * FROM (q) AS __lateral)`.
pub(super) struct MarkLateral;

impl VisitorMut for MarkLateral {
    type Break = String;

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<String> {
        if let TableFactor::Derived { lateral: true, subquery, .. } = table {
            let mut marked = all_of_one();
            if let SetExpr::Select(select) = marked.body.as_mut()
                && let TableFactor::Derived { subquery: inner, .. } = &mut select.from[0].relation
            {
                std::mem::swap(inner, subquery);
            }
            *subquery = marked;
        }
        ControlFlow::Continue(())
    }
}

fn all_of_one() -> Box<Query> {
    let parsed = Parser::parse_sql(&GenericDialect, &format!("SELECT * FROM (SELECT 1) AS {LATERAL}"));
    match parsed.map(|mut statements| statements.pop()) {
        Ok(Some(Statement::Query(query))) => query,
        other => unreachable!("{other:?} is not a query"),
    }
}
