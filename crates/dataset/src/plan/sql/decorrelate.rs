//! Subqueries as joins.
//!
//! DataFusion turns most correlated subqueries into joins itself, and does it well if the only correlation is an
//! equality in a WHERE. For the others (aggregates, limits, grouping sets, unions and windows below EXISTS and IN; NOT
//! IN with nulls; scalar subqueries with other comparisons; lateral joins with LIMIT) it fails, or treats a null as
//! "no". This pass rewrites those before DataFusion sees them, and leaves the rest alone.
//!
//! A correlated subquery is a function of some columns of the outer query. Its *domain* is the set of distinct values
//! of these columns in the outer query. [`SubqueryRewriter::lift`] pushes the domain down to a point below which
//! nothing refers to the outer query, and joins it there. The subquery is thus evaluated for all values at once, and
//! its result contains the domain's columns. The outer query then joins the result by them, with nulls equal to nulls.
//!
//! Source: Neumann and Kemper, *Unnesting Arbitrary Queries* (BTW 2015).

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, NullEquality, ScalarValue, TableReference};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::expr_fn::{count, first_value, max, min};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{
    Exists, InSubquery, SetComparison, SetQuantifier, Sort as SortKey, WindowFunction,
};
use datafusion::logical_expr::logical_plan::{
    Aggregate, Distinct, FetchType, Join, Limit, SkipType, Sort, SubqueryAlias, Union, Window,
};
use datafusion::logical_expr::utils::{enumerate_grouping_sets, grouping_set_to_exprlist, split_conjunction};
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, ExprSchemable, GroupingSet, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, Subquery,
    binary_expr, lit, when,
};

use super::lateral::LATERAL;
use super::one_row::one_row;

/// The plan with subqueries as joins, where DataFusion would not convert them, or would do so incorrectly.
///
/// # Errors
/// `NotImplemented` for a correlated subquery with a step that cannot be evaluated for many outer rows at once.
pub(crate) fn decorrelated(plan: LogicalPlan) -> Result<LogicalPlan> {
    SubqueryRewriter::default().plan(plan)
}

/// The step that contains a subquery in an expression: DataFusion handles some kinds only in some steps.
#[derive(Clone, Copy, PartialEq)]
enum SubqueryStep {
    Filter,
    Projection,
    Other,
}

/// The position of a subquery in the expression of a step.
#[derive(Clone, Copy, PartialEq)]
enum SubqueryPosition {
    /// The whole condition.
    Condition,
    /// Only negated.
    Negated,
    /// Part of a larger expression.
    Within,
}

/// The query that contains subqueries.
struct OuterQuery {
    /// The original query. Domains are taken from it: joining results does not change its values, and including each of
    /// them would double the plan.
    base: LogicalPlan,
    /// The query joined with the results of its subqueries.
    joined: LogicalPlan,
}

/// Rewrites the subqueries of one statement; counts the names it generates.
#[derive(Default)]
struct SubqueryRewriter {
    names: Cell<usize>,
}

/// The columns of the outer query that a subquery depends on, and the table of their distinct values.
#[derive(Clone)]
struct OuterDomain {
    /// Columns of the outer query.
    outer: Vec<Column>,
    /// The subquery's references to them.
    references: Vec<Expr>,
    /// Their distinct values, in columns of `name`, as [`key`] calls them.
    values: LogicalPlan,
    name: TableReference,
}

impl OuterDomain {
    fn columns(&self) -> Vec<Expr> {
        (0..self.outer.len()).map(|at| Expr::Column(self.column(at))).collect()
    }

    fn column(&self, at: usize) -> Column {
        key(&self.name, at)
    }

    /// The expression over the domain's columns instead of the outer query's.
    fn inner(&self, expr: Expr) -> Result<Expr> {
        expr.transform(|expr| {
            Ok(match &expr {
                Expr::OuterReferenceColumn(_, column) => match self.outer.iter().position(|outer| outer == column) {
                    Some(at) => Transformed::yes(Expr::Column(self.column(at))),
                    None => Transformed::no(expr),
                },
                _ => Transformed::no(expr),
            })
        })
        .data()
    }

    /// The conditions that these columns, of the same domain under another name, equal its own.
    fn meets(&self, others: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
        self.columns().into_iter().zip(others).map(|(one, other)| is_same(one, other)).collect()
    }
}

/// A column of a table that is created here. Physical plans drop table names, so the column name must be unique.
fn column_of(table: &TableReference, what: impl Display) -> Column {
    Column::new(Some(table.clone()), format!("{}_{what}", table.table()))
}

/// One of a domain's columns.
fn key(table: &TableReference, at: usize) -> Column {
    column_of(table, at)
}

fn is_same(one: Expr, other: Expr) -> Expr {
    binary_expr(one, Operator::IsNotDistinctFrom, other)
}

fn columns_of(schema: &DFSchema) -> Vec<Column> {
    schema.columns()
}

fn exprs_of(schema: &DFSchema) -> Vec<Expr> {
    columns_of(schema).into_iter().map(Expr::Column).collect()
}

/// `expr`, with the name that a column of a step had before the step changed.
fn called(expr: Expr, column: &Column) -> Expr {
    if matches!(&expr, Expr::Column(same) if same == column) {
        return expr;
    }
    expr.unalias().alias_qualified(column.relation.clone(), column.name.clone())
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(DataFusionError::NotImplemented(format!(
        "a subquery that refers to the outer query and contains {what}; write it as a join"
    )))
}

/// The outer columns that the steps of a subquery refer to, excluding those of nested subqueries.
fn outer_columns(plan: &LogicalPlan) -> Vec<Column> {
    let mut found = Vec::new();
    for expr in plan.all_out_ref_exprs() {
        if let Expr::OuterReferenceColumn(_, column) = expr
            && !found.contains(&column)
        {
            found.push(column);
        }
    }
    found
}

fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(is_subquery(expr))).expect("the closure does not fail")
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_))
}

/// Whether the subquery is correlated only by conditions of its WHERE, over steps through which DataFusion can pull
/// such filters. Below an aggregate, which `may_aggregate` permits, it pulls only equalities.
fn is_plain(plan: &LogicalPlan, may_aggregate: bool) -> bool {
    is_correlated_by_filters(plan, may_aggregate, !may_aggregate)
}

fn is_correlated_by_filters(plan: &LogicalPlan, may_aggregate: bool, any_condition: bool) -> bool {
    let correlated = |exprs: &[Expr]| exprs.iter().any(Expr::contains_outer);
    match plan {
        _ if outer_columns(plan).is_empty() => {
            !plan.exists(|step| Ok(matches!(step, LogicalPlan::Limit(_)))).unwrap_or(true)
        }
        LogicalPlan::Projection(step) => {
            !correlated(&step.expr) && is_correlated_by_filters(&step.input, may_aggregate, any_condition)
        }
        LogicalPlan::SubqueryAlias(step) => is_correlated_by_filters(&step.input, may_aggregate, any_condition),
        LogicalPlan::Filter(step) => {
            let is_equality = |part: &&Expr| match part {
                Expr::BinaryExpr(compared) if compared.op == Operator::Eq => {
                    let sides = [compared.left.as_ref(), compared.right.as_ref()];
                    let is_column = |side: &Expr| matches!(side, Expr::Column(_));
                    let is_outer = |side: &Expr| matches!(side, Expr::OuterReferenceColumn(..));
                    sides.iter().any(|side| is_column(side)) && sides.iter().any(|side| is_outer(side))
                }
                _ => false,
            };
            let outer = split_conjunction(&step.predicate);
            let mut outer = outer.into_iter().filter(|part| part.contains_outer());
            (any_condition || outer.all(|part| is_equality(&part)))
                && !has_subquery(&step.predicate)
                && is_correlated_by_filters(&step.input, false, any_condition)
        }
        LogicalPlan::Aggregate(step) => {
            may_aggregate
                && step.group_expr.is_empty()
                && !correlated(&step.aggr_expr)
                && is_correlated_by_filters(&step.input, false, any_condition)
        }
        LogicalPlan::Join(step) => {
            let mut on = step.filter.iter().chain(step.on.iter().flat_map(|(left, right)| [left, right]));
            step.join_type == JoinType::Inner
                && !on.any(Expr::contains_outer)
                && is_correlated_by_filters(&step.left, false, any_condition)
                && is_correlated_by_filters(&step.right, false, any_condition)
        }
        _ => false,
    }
}

/// Whether the right side of a join is a lateral subquery that reads the left side only in nested subqueries.
/// DataFusion then does not mark it as lateral; see [`super::lateral`].
fn refers_to_left(join: &Join) -> bool {
    fn is_lateral(plan: &LogicalPlan) -> bool {
        match plan {
            LogicalPlan::SubqueryAlias(step) => step.alias.table() == LATERAL || is_lateral(&step.input),
            LogicalPlan::Projection(step) => is_lateral(&step.input),
            _ => false,
        }
    }
    is_lateral(&join.right) && outer_columns(&join.right).iter().any(|column| join.left.schema().has_column(column))
}

/// Whether an expression over `plan` is the same for all rows of one value of the domain.
fn is_fixed(expr: &Expr, plan: &LogicalPlan, domain: &OuterDomain) -> bool {
    expr.column_refs().into_iter().all(|column| {
        if column.relation.as_ref() == Some(&domain.name) {
            return true;
        }
        let Some(at) = plan.schema().maybe_index_of_column(column) else { return false };
        match plan {
            LogicalPlan::Projection(step) => is_fixed(&step.expr[at], &step.input, domain),
            LogicalPlan::SubqueryAlias(step) => {
                let input = Expr::Column(Column::from(step.input.schema().qualified_field(at)));
                is_fixed(&input, &step.input, domain)
            }
            LogicalPlan::Filter(step) => is_fixed(&Expr::Column(column.clone()), &step.input, domain),
            _ => false,
        }
    }) && !expr.is_volatile()
}

/// Whether a query has at most one row, regardless of its tables' contents.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(step) => has_one_row(&step.input),
        LogicalPlan::SubqueryAlias(step) => has_one_row(&step.input),
        LogicalPlan::Filter(step) => has_one_row(&step.input),
        LogicalPlan::Sort(step) => has_one_row(&step.input),
        LogicalPlan::Aggregate(step) => step.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Limit(step) => {
            matches!(step.get_fetch_type(), Ok(FetchType::Literal(Some(0 | 1)))) || has_one_row(&step.input)
        }
        _ => false,
    }
}

impl SubqueryRewriter {
    fn name(&self, what: &str) -> TableReference {
        self.names.set(self.names.get() + 1);
        TableReference::bare(format!("__{what}_{}", self.names.get()))
    }

    fn plan(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_children(|child| self.plan(child).map(Transformed::yes)).data()?;
        self.step(plan)
    }

    /// A step whose inputs have been rewritten.
    fn step(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if let LogicalPlan::Join(join) = &plan {
            if let Some(lateral) = self.lateral(join)? {
                return Ok(lateral);
            }
            // An inner join is a filter over all pairs, and filters may contain subqueries.
            if join.join_type == JoinType::Inner && join.filter.as_ref().is_some_and(has_subquery) {
                let mut join = join.clone();
                let filter = join.filter.take().expect("it has a subquery");
                return self.step(LogicalPlanBuilder::from(LogicalPlan::Join(join)).filter(filter)?.build()?);
            }
        }
        let exprs = plan.expressions();
        if !exprs.iter().any(has_subquery) {
            return Ok(plan);
        }
        let mut input = match plan.inputs().as_slice() {
            [input] => OuterQuery { base: (*input).clone(), joined: (*input).clone() },
            _ => return Ok(plan),
        };
        let before = columns_of(plan.schema());
        let context = match &plan {
            LogicalPlan::Filter(_) => SubqueryStep::Filter,
            LogicalPlan::Projection(_) => SubqueryStep::Projection,
            _ => SubqueryStep::Other,
        };
        let changed = plan.clone().map_expressions(|expr| {
            let mut parts = match context {
                SubqueryStep::Filter => split_conjunction(&expr).into_iter().cloned().collect(),
                _ => vec![expr],
            }
            .into_iter();
            let first = self.expr(parts.next().expect("an expression has a part"), &mut input, context)?;
            let all = parts
                .try_fold(first, |all, part| Ok::<_, DataFusionError>(all.and(self.expr(part, &mut input, context)?)));
            all.map(Transformed::yes)
        })?;
        let exprs = changed.data.expressions();
        let input = Arc::new(input.joined);
        let step = match changed.data {
            LogicalPlan::Filter(_) => {
                let [predicate] = exprs.try_into().expect("a filter has one predicate");
                LogicalPlanBuilder::from(input).filter(predicate)?.build()?
            }
            LogicalPlan::Projection(_) => {
                let named = exprs.into_iter().zip(&before).map(|(expr, column)| called(expr, column));
                return LogicalPlanBuilder::from(input).project(named)?.build();
            }
            LogicalPlan::Aggregate(step) => {
                LogicalPlan::Aggregate(Aggregate::try_new(input, step.group_expr, step.aggr_expr)?)
            }
            LogicalPlan::Sort(step) => LogicalPlan::Sort(Sort { input, ..step }),
            LogicalPlan::Window(step) => LogicalPlan::Window(Window::try_new(step.window_expr, input)?),
            _ => return Ok(plan),
        };
        // Window columns follow all columns of the input, which now has more of them.
        let mut columns = columns_of(step.schema());
        let added = columns.len() - before.len();
        if let LogicalPlan::Window(step) = &step {
            let inputs = before.len() - step.window_expr.len();
            columns.drain(inputs..inputs + added);
        }
        let columns =
            columns.into_iter().zip(&before).filter(|(_, before)| before.name != Aggregate::INTERNAL_GROUPING_ID);
        let columns = columns.map(|(column, before)| called(Expr::Column(column), before));
        LogicalPlanBuilder::from(step).project(columns)?.build()
    }

    /// An expression over `input`, to which the results of its subqueries are joined.
    fn expr(&self, expr: Expr, input: &mut OuterQuery, context: SubqueryStep) -> Result<Expr> {
        let place = match &expr {
            expr if is_subquery(expr) => SubqueryPosition::Condition,
            Expr::Not(inner) if is_subquery(inner) => SubqueryPosition::Negated,
            _ => SubqueryPosition::Within,
        };
        expr.transform_down(|expr| {
            if !is_subquery(&expr) {
                return Ok(Transformed::no(expr));
            }
            let made = self.subquery(expr, input, context, place)?;
            Ok(Transformed::new(made, true, TreeNodeRecursion::Jump))
        })
        .data()
    }

    /// The value of one subquery over `input`.
    fn subquery(
        &self,
        expr: Expr,
        input: &mut OuterQuery,
        context: SubqueryStep,
        place: SubqueryPosition,
    ) -> Result<Expr> {
        let in_filter = context == SubqueryStep::Filter;
        // A filter drops rows for which its condition is null, just like those for which it is false.
        let null_is_false = in_filter && place == SubqueryPosition::Condition;
        match expr {
            Expr::Exists(Exists { subquery, negated }) => {
                let subquery = self.nested(subquery)?;
                if in_filter && self.refers_to(&subquery, input) && is_plain(&subquery.subquery, false) {
                    return Ok(Expr::Exists(Exists { subquery, negated }));
                }
                let found = self.exists(&subquery.subquery, input)?;
                Ok(if negated { found.is_null() } else { found.is_not_null() })
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                let subquery = self.nested(subquery)?;
                let refers = self.refers_to(&subquery, input);
                let uncorrelated = outer_columns(&subquery.subquery).is_empty();
                // DataFusion does not make a key of a constant, and then ignores nulls.
                let plain_value = !expr.column_refs().is_empty() && !has_subquery(&expr);
                if in_filter
                    && place != SubqueryPosition::Within
                    && refers
                    && plain_value
                    && is_plain(&subquery.subquery, false)
                    && (!negated || uncorrelated)
                {
                    return Ok(Expr::InSubquery(InSubquery { expr, subquery, negated }));
                }
                let expr = self.expr(*expr, input, SubqueryStep::Other)?;
                let found = self.is_in(expr, &subquery.subquery, input, null_is_false && !negated)?;
                Ok(if negated { Expr::Not(Box::new(found)) } else { found })
            }
            Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                let subquery = self.nested(subquery)?;
                let expr = self.expr(*expr, input, SubqueryStep::Other)?;
                self.compared(expr, op, quantifier, &subquery.subquery, input, null_is_false)
            }
            Expr::ScalarSubquery(subquery) => {
                let subquery = self.nested(subquery)?;
                let is_plain = outer_columns(&subquery.subquery).is_empty()
                    || (self.refers_to(&subquery, input)
                        && has_one_row(&subquery.subquery)
                        && is_plain(&subquery.subquery, true));
                if context != SubqueryStep::Other && is_plain {
                    return Ok(Expr::ScalarSubquery(subquery));
                }
                self.scalar(&subquery.subquery, input)
            }
            other => Ok(other),
        }
    }

    /// A subquery with its nested subqueries rewritten.
    fn nested(&self, subquery: Subquery) -> Result<Subquery> {
        let plan = self.plan(Arc::unwrap_or_clone(subquery.subquery))?;
        let outer_ref_columns = plan.all_out_ref_exprs();
        Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans })
    }

    /// Whether everything it refers to is in the immediately enclosing query, rather than further out.
    fn refers_to(&self, subquery: &Subquery, input: &OuterQuery) -> bool {
        outer_columns(&subquery.subquery).iter().all(|column| input.base.schema().has_column(column))
    }

    /// The domain of `plan`. Columns of queries further out are outer references in the domain, too.
    fn domain(&self, plan: &LogicalPlan, input: &LogicalPlan) -> Result<OuterDomain> {
        let outer = outer_columns(plan);
        let name = self.name("domain");
        let references = plan.all_out_ref_exprs();
        let values = outer
            .iter()
            .enumerate()
            .map(|(at, column)| Ok(called(value_of(column, &references, input)?, &key(&name, at))));
        let values = values.collect::<Result<Vec<_>>>()?;
        let values = match values.is_empty() {
            true => LogicalPlanBuilder::empty(true).build()?,
            false => LogicalPlanBuilder::from(input.clone()).project(values)?.distinct()?.build()?,
        };
        Ok(OuterDomain { outer, references, values, name })
    }

    /// Joins rows that contain a domain's columns, under `name`, to their outer query.
    fn join_on(
        &self,
        input: &LogicalPlan,
        result: LogicalPlan,
        domain: &OuterDomain,
        name: &TableReference,
        more: Option<Expr>,
        kind: JoinType,
    ) -> Result<LogicalPlan> {
        let conditions =
            domain.outer.iter().enumerate().map(|(at, column)| {
                Ok(is_same(value_of(column, &domain.references, input)?, Expr::Column(key(name, at))))
            });
        let mut conditions = conditions.collect::<Result<Vec<_>>>()?;
        conditions.extend(more);
        if conditions.is_empty() {
            conditions.push(lit(true));
        }
        LogicalPlanBuilder::from(input.clone()).join_on(result, kind, conditions)?.build()
    }

    /// A column that is not null if the subquery has a row.
    fn exists(&self, plan: &LogicalPlan, input: &mut OuterQuery) -> Result<Expr> {
        let domain = self.domain(plan, &input.base)?;
        let lifted = self.lift(plan, &domain)?;
        let name = self.name("exists");
        let mark = column_of(&name, "found");
        let found = match domain.outer.is_empty() {
            true => LogicalPlanBuilder::from(lifted).limit(0, Some(1))?.project(vec![called(lit(true), &mark)])?,
            false => {
                let keys = LogicalPlanBuilder::from(lifted).project(domain.columns())?.distinct()?;
                let mut columns = renamed(domain.columns(), &name);
                columns.push(called(lit(true), &mark));
                keys.project(columns)?
            }
        };
        input.joined = self.join_on(&input.joined, found.build()?, &domain, &name, None, JoinType::Left)?;
        Ok(Expr::Column(mark))
    }

    /// `value` IN the subquery: null if unknown, or with `null_is_false` anything except true.
    fn is_in(&self, value: Expr, plan: &LogicalPlan, input: &mut OuterQuery, null_is_false: bool) -> Result<Expr> {
        let domain = self.domain(plan, &input.base)?;
        let lifted = self.lift(plan, &domain)?;
        let theirs = Expr::Column(columns_of(plan.schema()).swap_remove(0));
        let (counted, matched) = (self.name("in"), self.name("in"));
        let may_be_null = |expr: &Expr, schema: &DFSchema| expr.nullable(schema).unwrap_or(true);
        // Deciding between false and unknown needs the subquery's rows a second time, and the plan would double with
        // each level of subqueries.
        let is_known =
            null_is_false || !may_be_null(&value, input.joined.schema()) && !may_be_null(&theirs, lifted.schema());
        let all = LogicalPlanBuilder::from(lifted.clone())
            .aggregate(domain.columns(), vec![count(lit(1)).alias("n"), count(theirs.clone()).alias("known")])?;
        let mut columns = renamed(domain.columns(), &counted);
        columns.extend(
            ["n", "known"].map(|name| called(Expr::Column(Column::from_name(name)), &column_of(&counted, name))),
        );
        let all = all.project(columns)?.build()?;
        let mut columns = renamed(domain.columns(), &matched);
        columns.push(called(theirs.clone(), &column_of(&matched, "value")));
        let values =
            LogicalPlanBuilder::from(lifted).filter(theirs.is_not_null())?.project(columns)?.distinct()?.build()?;
        let column = |name: &TableReference, column: &str| Expr::Column(column_of(name, column));
        let same = value.clone().eq(column(&matched, "value"));
        let found = column(&matched, "value").is_not_null();
        if is_known {
            input.joined = self.join_on(&input.joined, values, &domain, &matched, Some(same), JoinType::Left)?;
            return Ok(found);
        }
        input.joined = self.join_on(&input.joined, all, &domain, &counted, None, JoinType::Left)?;
        input.joined = self.join_on(&input.joined, values, &domain, &matched, Some(same), JoinType::Left)?;
        let n = column(&counted, "n");
        let unknown = value.is_null().or(n.clone().gt(column(&counted, "known")));
        when(found, lit(true))
            .when(n.clone().is_null().or(n.eq(lit(0i64))), lit(false))
            .when(unknown, lit(ScalarValue::Boolean(None)))
            .otherwise(lit(false))
    }

    /// `value op ANY` or `ALL` of the subquery. The minimum or maximum decides whether any value compares that way.
    fn compared(
        &self,
        value: Expr,
        op: Operator,
        quantifier: SetQuantifier,
        plan: &LogicalPlan,
        input: &mut OuterQuery,
        null_is_false: bool,
    ) -> Result<Expr> {
        if quantifier == SetQuantifier::All {
            let Some(opposite) = op.negate() else { return unsupported("this comparison with ALL") };
            let any = self.compared(value, opposite, SetQuantifier::Any, plan, input, false)?;
            return Ok(Expr::Not(Box::new(any)));
        }
        if op == Operator::Eq {
            return self.is_in(value, plan, input, null_is_false);
        }
        let domain = self.domain(plan, &input.base)?;
        let lifted = self.lift(plan, &domain)?;
        let theirs = Expr::Column(columns_of(plan.schema()).swap_remove(0));
        let name = self.name("any");
        let all = LogicalPlanBuilder::from(lifted).aggregate(
            domain.columns(),
            vec![
                count(lit(1)).alias("n"),
                count(theirs.clone()).alias("known"),
                min(theirs.clone()).alias("least"),
                max(theirs).alias("most"),
            ],
        )?;
        let mut columns = renamed(domain.columns(), &name);
        let named = ["n", "known", "least", "most"];
        columns.extend(named.map(|column| called(Expr::Column(Column::from_name(column)), &column_of(&name, column))));
        let all = all.project(columns)?.build()?;
        input.joined = self.join_on(&input.joined, all, &domain, &name, None, JoinType::Left)?;
        let [n, known, least, most] = named.map(|column| Expr::Column(column_of(&name, column)));
        let compares = match op {
            Operator::Lt | Operator::LtEq => binary_expr(value.clone(), op, most),
            Operator::Gt | Operator::GtEq => binary_expr(value.clone(), op, least),
            Operator::NotEq => value.clone().not_eq(least).or(value.clone().not_eq(most)),
            _ => return unsupported("this comparison with ANY or ALL"),
        };
        let unknown = value.is_null().or(n.clone().gt(known));
        when(compares, lit(true))
            .when(n.clone().is_null().or(n.eq(lit(0i64))), lit(false))
            .when(unknown, lit(ScalarValue::Boolean(None)))
            .otherwise(lit(false))
    }

    /// The value of the subquery's only row, or null.
    fn scalar(&self, plan: &LogicalPlan, input: &mut OuterQuery) -> Result<Expr> {
        let domain = self.domain(plan, &input.base)?;
        let lifted = self.lift(plan, &domain)?;
        let theirs = Expr::Column(columns_of(plan.schema()).swap_remove(0));
        let name = self.name("scalar");
        let value = column_of(&name, "value");
        let mut columns = renamed(domain.columns(), &name);
        let rows = match has_one_row(plan) {
            true => {
                columns.push(called(theirs, &value));
                LogicalPlanBuilder::from(lifted)
            }
            false => {
                let counted = vec![first_value(theirs, Vec::new()).alias("value"), count(lit(1)).alias("n")];
                let only = one_row(Expr::Column(Column::from_name("value")), Expr::Column(Column::from_name("n")));
                columns.push(called(only, &value));
                LogicalPlanBuilder::from(lifted).aggregate(domain.columns(), counted)?
            }
        };
        let rows = rows.project(columns)?.build()?;
        input.joined = self.join_on(&input.joined, rows, &domain, &name, None, JoinType::Left)?;
        Ok(Expr::Column(value))
    }

    /// A join with a subquery that refers to the other side: `a, LATERAL (...)`.
    fn lateral(&self, join: &Join) -> Result<Option<LogicalPlan>> {
        let (plan, alias) = match join.right.as_ref() {
            LogicalPlan::Subquery(subquery) => (&subquery.subquery, None),
            LogicalPlan::SubqueryAlias(aliased) => match aliased.input.as_ref() {
                LogicalPlan::Subquery(subquery) => (&subquery.subquery, Some(aliased.alias.clone())),
                _ if refers_to_left(join) => (&join.right, None),
                _ => return Ok(None),
            },
            _ if refers_to_left(join) => (&join.right, None),
            _ => return Ok(None),
        };
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
            return unsupported("a RIGHT or FULL JOIN LATERAL");
        }
        let plan = match alias {
            Some(alias) => Arc::new(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::clone(plan), alias)?)),
            None => Arc::clone(plan),
        };
        let input = join.left.as_ref();
        let domain = self.domain(&plan, input)?;
        let lifted = self.lift(&plan, &domain)?;
        let mut on = keys_of(join);
        on.extend(join.filter.clone());
        let more = on.into_iter().reduce(Expr::and);
        let joined = self.join_on(input, lifted, &domain, &domain.name.clone(), more, join.join_type)?;
        LogicalPlanBuilder::from(joined).project(exprs_of(&join.schema))?.build().map(Some)
    }

    /// The subquery for all values of the domain at once: its columns, followed by the domain's.
    fn lift(&self, plan: &LogicalPlan, domain: &OuterDomain) -> Result<LogicalPlan> {
        if domain.outer.is_empty() {
            return Ok(plan.clone());
        }
        if outer_columns(plan).is_empty() {
            if matches!(plan, LogicalPlan::EmptyRelation(empty) if empty.produce_one_row && empty.schema.fields().is_empty())
            {
                return Ok(domain.values.clone());
            }
            return LogicalPlanBuilder::from(plan.clone()).cross_join(domain.values.clone())?.build();
        }
        let before = columns_of(plan.schema());
        // The step's own columns under their original names, and the domain's.
        let restored = |step: LogicalPlan, own: Vec<Expr>| {
            let own = own.into_iter().zip(&before).map(|(expr, column)| called(expr, column));
            let columns: Vec<Expr> = own.chain(domain.columns()).collect();
            LogicalPlanBuilder::from(step).project(columns)?.build()
        };
        let inner = |exprs: &[Expr]| exprs.iter().cloned().map(|expr| domain.inner(expr)).collect::<Result<Vec<_>>>();
        match plan {
            LogicalPlan::Projection(step) => restored(self.lift(&step.input, domain)?, inner(&step.expr)?),
            LogicalPlan::Filter(step) => LogicalPlanBuilder::from(self.lift(&step.input, domain)?)
                .filter(domain.inner(step.predicate.clone())?)?
                .build(),
            LogicalPlan::SubqueryAlias(step) => {
                let lifted = self.lift(&step.input, domain)?;
                let own = exprs_of(step.input.schema());
                restored(lifted, own)
            }
            LogicalPlan::Sort(step) => match step.fetch {
                Some(fetch) => self.first_rows(&step.input, &step.expr, 0, Some(fetch), domain),
                // The order does not matter to a subquery that only asks for existence, membership or a value; a limit
                // has used it already.
                None => self.lift(&step.input, domain),
            },
            LogicalPlan::Limit(step) => self.lift_limit(step, domain),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                LogicalPlanBuilder::from(self.lift(input, domain)?).distinct()?.build()
            }
            LogicalPlan::Distinct(Distinct::On(step)) => {
                let sort = step.sort_expr.clone().unwrap_or_else(|| {
                    step.on_expr.iter().map(|expr| SortKey::new(expr.clone(), true, false)).collect()
                });
                let lifted = self.lift(&step.input, domain)?;
                let mut by = domain.columns();
                by.extend(inner(&step.on_expr)?);
                let numbered = self.numbered(lifted, by, &sort, domain)?;
                let first = LogicalPlanBuilder::from(numbered.0).filter(numbered.1.eq(lit(1u64)))?.build()?;
                restored(first, inner(&step.select_expr)?)
            }
            LogicalPlan::Aggregate(step) => self.lift_aggregate(step, domain),
            LogicalPlan::Window(step) => {
                let lifted = self.lift(&step.input, domain)?;
                let windows = inner(&step.window_expr)?.into_iter().map(|expr| by_domain(expr, domain));
                let windows = windows.collect::<Result<Vec<_>>>()?;
                let columns = columns_of(lifted.schema()).len();
                let step = LogicalPlan::Window(Window::try_new(windows, Arc::new(lifted))?);
                let made = columns_of(step.schema());
                let inputs = columns - domain.outer.len();
                let own = made[..inputs].iter().chain(&made[columns..]).cloned().map(Expr::Column).collect();
                restored(step, own)
            }
            LogicalPlan::Union(step) => {
                let lifted = step.inputs.iter().map(|input| {
                    let lifted = self.lift(input, domain)?;
                    // Columns of a union match by position.
                    let columns = columns_of(lifted.schema());
                    let plain = columns
                        .into_iter()
                        .enumerate()
                        .map(|(at, column)| Expr::Column(column).alias(format!("u{at}")));
                    Ok(Arc::new(LogicalPlanBuilder::from(lifted).project(plain)?.build()?))
                });
                let all = LogicalPlan::Union(Union::try_new_with_loose_types(lifted.collect::<Result<Vec<_>>>()?)?);
                let column = |at: usize| Expr::Column(Column::from_name(format!("u{at}")));
                let own = (0..before.len()).map(|at| called(column(at), &before[at]));
                let theirs = (0..domain.outer.len()).map(|at| called(column(before.len() + at), &domain.column(at)));
                LogicalPlanBuilder::from(all).project(own.chain(theirs).collect::<Vec<_>>())?.build()
            }
            LogicalPlan::Join(join) => self.lift_join(join, domain),
            other => {
                unsupported(&format!("a {}", other.display().to_string().split([':', ' ']).next().unwrap_or("step")))
            }
        }
    }

    fn lift_limit(&self, step: &Limit, domain: &OuterDomain) -> Result<LogicalPlan> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (step.get_skip_type()?, step.get_fetch_type()?)
        else {
            return unsupported("a LIMIT that is not a number");
        };
        // The sort may be below a projection that drops the sort columns.
        match step.input.as_ref() {
            LogicalPlan::Projection(projection) if matches!(projection.input.as_ref(), LogicalPlan::Sort(_)) => {
                let limit = LogicalPlan::Limit(Limit { input: Arc::clone(&projection.input), ..step.clone() });
                let mut projection = projection.clone();
                projection.input = Arc::new(limit);
                self.lift(&LogicalPlan::Projection(projection), domain)
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                self.first_rows(&sort.input, &sort.expr, skip, fetch, domain)
            }
            _ => self.first_rows(&step.input, &[], skip, fetch, domain),
        }
    }

    /// Rows `skip` to `skip + fetch` of `plan`, for each value of the domain.
    fn first_rows(
        &self,
        plan: &LogicalPlan,
        order: &[SortKey],
        skip: usize,
        fetch: Option<usize>,
        domain: &OuterDomain,
    ) -> Result<LogicalPlan> {
        let lifted = self.lift(plan, domain)?;
        let columns = exprs_of(lifted.schema());
        let (numbered, number) = self.numbered(lifted, domain.columns(), order, domain)?;
        let mut wanted = number.clone().gt(lit(skip as u64));
        if let Some(fetch) = fetch {
            wanted = wanted.and(number.lt_eq(lit(skip.saturating_add(fetch) as u64)));
        }
        LogicalPlanBuilder::from(numbered).filter(wanted)?.project(columns)?.build()
    }

    fn numbered(
        &self,
        lifted: LogicalPlan,
        by: Vec<Expr>,
        order: &[SortKey],
        domain: &OuterDomain,
    ) -> Result<(LogicalPlan, Expr)> {
        let name = self.name("row").table().to_owned();
        let order = order.iter().map(|key| Ok(SortKey { expr: domain.inner(key.expr.clone())?, ..key.clone() }));
        let mut order = order.collect::<Result<Vec<_>>>()?;
        // Keys that depend only on the outer query are constant among rows that are numbered together.
        order.retain(|key| !is_fixed(&key.expr, &lifted, domain));
        let number = row_number().partition_by(by);
        let number = if order.is_empty() { number } else { number.order_by(order) }.build()?;
        let plan = LogicalPlanBuilder::from(lifted).window(vec![number.alias(name.clone())])?.build()?;
        Ok((plan, Expr::Column(Column::from_name(name))))
    }

    fn lift_aggregate(&self, step: &Aggregate, domain: &OuterDomain) -> Result<LogicalPlan> {
        let before = columns_of(&step.schema);
        let inner = |exprs: &[Expr]| exprs.iter().cloned().map(|expr| domain.inner(expr)).collect::<Result<Vec<_>>>();
        if step.group_expr.is_empty() {
            return self.lift_total(step, domain);
        }
        let groups = enumerate_grouping_sets(step.group_expr.clone())?;
        let Some(Expr::GroupingSet(set)) = groups.first() else {
            let lifted = self.lift(&step.input, domain)?;
            let mut by = inner(&step.group_expr)?;
            by.extend(domain.columns());
            let made = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(lifted), by, inner(&step.aggr_expr)?)?);
            let columns = columns_of(made.schema());
            let groups = step.group_expr.len();
            let own = columns[..groups].iter().chain(&columns[groups + domain.outer.len()..]);
            let own = own.zip(&before).map(|(column, before)| called(Expr::Column(column.clone()), before));
            return LogicalPlanBuilder::from(made).project(own.chain(domain.columns()).collect::<Vec<_>>())?.build();
        };
        // With grouping sets: an empty one has a row even if there is nothing to group.
        let sets = match set {
            GroupingSet::GroupingSets(sets) => sets.clone(),
            GroupingSet::Rollup(exprs) => (0..=exprs.len()).rev().map(|to| exprs[..to].to_vec()).collect(),
            GroupingSet::Cube(exprs) => (0..1usize << exprs.len())
                .map(|bits| {
                    let chosen = exprs.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 0);
                    chosen.map(|(_, expr)| expr.clone()).collect()
                })
                .collect(),
        };
        let all: Vec<Expr> = grouping_set_to_exprlist(&groups)?.into_iter().cloned().collect();
        let (empty, sets): (Vec<_>, Vec<_>) = sets.into_iter().partition(Vec::is_empty);
        let mut parts = Vec::new();
        let number = |at: usize| format!("g{at}");
        if !sets.is_empty() {
            let lifted = self.lift(&step.input, domain)?;
            let sets = sets.iter().map(|set| {
                // First, so that the others keep their bits in the grouping id.
                let mut by = domain.columns();
                by.extend(inner(set)?);
                Ok(by)
            });
            let sets = Expr::GroupingSet(GroupingSet::GroupingSets(sets.collect::<Result<Vec<_>>>()?));
            let made =
                LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(lifted), vec![sets], inner(&step.aggr_expr)?)?);
            let columns = columns_of(made.schema());
            let keys = domain.outer.len();
            // These sets need not contain all of the original keys.
            let made_keys: Vec<Expr> = match &made {
                LogicalPlan::Aggregate(made) => {
                    grouping_set_to_exprlist(&made.group_expr)?.into_iter().cloned().collect()
                }
                _ => unreachable!("it was made an aggregate"),
            };
            let wanted = all.iter().enumerate().map(|(at, key)| {
                let key = domain.inner(key.clone())?;
                let found = made_keys[keys..].iter().position(|made| *made == key);
                let kind = step.schema.field(at).data_type();
                Ok(match found {
                    Some(found) => Expr::Column(columns[keys + found].clone()),
                    None => lit(ScalarValue::try_from(kind)?),
                })
            });
            let mut wanted = wanted.collect::<Result<Vec<_>>>()?;
            wanted.extend(columns[made_keys.len()..].iter().cloned().map(Expr::Column));
            let wanted =
                wanted.into_iter().chain(domain.columns()).enumerate().map(|(at, expr)| expr.alias(number(at)));
            parts.push(Arc::new(LogicalPlanBuilder::from(made).project(wanted.collect::<Vec<_>>())?.build()?));
        }
        for _ in empty {
            let (own, lifted) = match step.aggr_expr.is_empty() {
                true => (Vec::new(), domain.values.clone()),
                false => {
                    let total = Aggregate::try_new(Arc::clone(&step.input), Vec::new(), step.aggr_expr.clone())?;
                    (columns_of(&total.schema), self.lift_total(&total, domain)?)
                }
            };
            let mut wanted = Vec::new();
            for at in 0..all.len() {
                wanted.push(lit(ScalarValue::try_from(step.schema.field(at).data_type())?));
            }
            // All keys are omitted: all bits are set.
            let bits = if all.len() >= 64 { u64::MAX } else { (1u64 << all.len()) - 1 };
            let kind = step.schema.field(all.len()).data_type();
            wanted.push(lit(ScalarValue::UInt64(Some(bits)).cast_to(kind)?));
            wanted.extend(own.into_iter().map(Expr::Column));
            let wanted =
                wanted.into_iter().chain(domain.columns()).enumerate().map(|(at, expr)| expr.alias(number(at)));
            parts.push(Arc::new(LogicalPlanBuilder::from(lifted).project(wanted.collect::<Vec<_>>())?.build()?));
        }
        let all = match parts.len() {
            1 => Arc::unwrap_or_clone(parts.remove(0)),
            _ => LogicalPlan::Union(Union::try_new_with_loose_types(parts)?),
        };
        let column = |at: usize| Expr::Column(Column::from_name(number(at)));
        let own = before.iter().enumerate().map(|(at, before)| called(column(at), before));
        let theirs = (0..domain.outer.len()).map(|at| called(column(before.len() + at), &domain.column(at)));
        LogicalPlanBuilder::from(all).project(own.chain(theirs).collect::<Vec<_>>())?.build()
    }

    /// An aggregate over all rows has a row even if there is no input.
    fn lift_total(&self, step: &Aggregate, domain: &OuterDomain) -> Result<LogicalPlan> {
        let before = columns_of(&step.schema);
        let total = self.again(domain)?;
        let lifted = self.lift(&step.input, &total)?;
        let aggregates = step.aggr_expr.iter().cloned().map(|expr| total.inner(expr)).collect::<Result<Vec<_>>>()?;
        let made = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(lifted), total.columns(), aggregates)?);
        let marker = self.name("some").table().to_owned();
        let mut columns = exprs_of(made.schema());
        columns.push(lit(true).alias(marker.clone()));
        let made_columns = columns_of(made.schema());
        let made = LogicalPlanBuilder::from(made).project(columns)?.build()?;
        let joined = LogicalPlanBuilder::from(domain.values.clone())
            .join_on(made, JoinType::Left, domain.meets(total.columns()))?
            .build()?;
        let own = step.aggr_expr.iter().enumerate().map(|(at, aggregate)| {
            let value = Expr::Column(made_columns[total.outer.len() + at].clone());
            let Expr::AggregateFunction(function) = aggregate.clone().unalias() else {
                return Ok(called(value, &before[at]));
            };
            let of_none = function.func.default_value(step.schema.field(at).data_type())?;
            let value = match of_none.is_null() {
                true => value,
                false => {
                    when(Expr::Column(Column::from_name(marker.clone())).is_null(), lit(of_none)).otherwise(value)?
                }
            };
            Ok(called(value, &before[at]))
        });
        let own = own.collect::<Result<Vec<_>>>()?;
        LogicalPlanBuilder::from(joined).project(own.into_iter().chain(domain.columns()).collect::<Vec<_>>())?.build()
    }

    /// The same domain under another name.
    fn again(&self, domain: &OuterDomain) -> Result<OuterDomain> {
        let name = self.name("domain");
        let values = renamed(domain.columns(), &name);
        let values = LogicalPlanBuilder::from(domain.values.clone()).project(values)?.build()?;
        Ok(OuterDomain { values, name, ..domain.clone() })
    }

    fn lift_join(&self, join: &Join, domain: &OuterDomain) -> Result<LogicalPlan> {
        let other = self.again(domain)?;
        let (left, right) = (self.lift(&join.left, domain)?, self.lift(&join.right, &other)?);
        let mut on = keys_of(join);
        on.extend(join.filter.clone());
        let mut on = on.into_iter().map(|expr| domain.inner(expr)).collect::<Result<Vec<_>>>()?;
        on.extend(domain.meets(other.columns()));
        let joined = LogicalPlanBuilder::from(left).join_on(right, join.join_type, on)?.build()?;
        let keys: Vec<Expr> = match join.join_type {
            JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => domain.columns(),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => other.columns(),
            JoinType::Full => {
                let either = domain.columns().into_iter().zip(other.columns());
                either
                    .map(|(one, other)| when(one.clone().is_not_null(), one).otherwise(other))
                    .collect::<Result<_>>()?
            }
            JoinType::LeftMark | JoinType::RightMark => return unsupported("a mark join"),
        };
        let keys = keys.into_iter().enumerate().map(|(at, key)| called(key, &domain.column(at)));
        let columns: Vec<Expr> = exprs_of(&join.schema).into_iter().chain(keys).collect();
        LogicalPlanBuilder::from(joined).project(columns)?.build()
    }
}

/// A join's keys as conditions.
fn keys_of(join: &Join) -> Vec<Expr> {
    let op = match join.null_equality {
        NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
        NullEquality::NullEqualsNothing => Operator::Eq,
    };
    join.on.iter().map(|(left, right)| binary_expr(left.clone(), op, right.clone())).collect()
}

/// An outer column in terms of `input`: one of its own columns, or one of a query further out.
fn value_of(column: &Column, references: &[Expr], input: &LogicalPlan) -> Result<Expr> {
    if input.schema().has_column(column) {
        return Ok(Expr::Column(column.clone()));
    }
    let reference =
        references.iter().find(|expr| matches!(expr, Expr::OuterReferenceColumn(_, outer) if outer == column));
    reference
        .cloned()
        .ok_or_else(|| DataFusionError::Plan(format!("the query around a subquery has no column {column}")))
}

/// A domain's columns as those of another table.
fn renamed(columns: Vec<Expr>, name: &TableReference) -> Vec<Expr> {
    let named = columns.into_iter().enumerate();
    named.map(|(at, column)| called(column, &key(name, at))).collect()
}

/// A window function restricted to rows with the same value of the domain.
fn by_domain(expr: Expr, domain: &OuterDomain) -> Result<Expr> {
    expr.transform(|expr| {
        Ok(match expr {
            Expr::WindowFunction(mut function) => {
                let function_ref: &mut WindowFunction = &mut function;
                function_ref.params.partition_by.extend(domain.columns());
                Transformed::new(Expr::WindowFunction(function), true, TreeNodeRecursion::Jump)
            }
            other => Transformed::no(other),
        })
    })
    .data()
}
