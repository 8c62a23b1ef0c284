//! DataFusion's optimizer rules, with guards around those that are incorrect in the release this builds on. Each guard
//! names the upstream fix; once a release has it, the guard can go.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, FunctionalDependencies, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::logical_plan::{Distinct, Extension, Filter, Join, Projection};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, JoinConstraint, JoinType, LogicalPlan, UserDefinedLogicalNodeCore, lit};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::plan::guards::GuardFilters;
use crate::plan::rewrite::rewrite_exprs;

type Rule = Arc<dyn OptimizerRule + Send + Sync>;
/// Runs a rule, except where it would change the result of a query.
type Guard = fn(&Rule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// The rules for logical plans.
pub(crate) fn logical_rules() -> Vec<Rule> {
    let guard = |rule: Rule| match rule.name() {
        "optimize_projections" => guarded(guarded(rule, steps_in_a_row), without_keys),
        "replace_distinct_aggregate" | "eliminate_duplicated_expr" | "eliminate_join" => guarded(rule, without_keys),
        "push_down_filter" => guarded(rule, above_totals),
        "extract_equijoin_predicate" => guarded(rule, nulls_of_keys),
        "eliminate_cross_join" => guarded(rule, beside_null_keys),
        _ => rule,
    };
    let last: [Rule; 2] = [Arc::new(GuardFilters), Arc::new(KeysInOrder)];
    Optimizer::new().rules.into_iter().map(guard).chain(last).collect()
}

fn guarded(rule: Rule, guard: Guard) -> Rule {
    Arc::new(GuardedRule { rule, guard })
}

/// A rule and its guard, under the rule's name.
#[derive(Debug)]
struct GuardedRule {
    rule: Rule,
    guard: Guard,
}

impl OptimizerRule for GuardedRule {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        (self.guard)(&self.rule, plan, config)
    }
}

/// The rules for physical plans.
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let guarded = |rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>| match rule.name() {
        name if name.starts_with("FilterPushdown") => Arc::new(UniqueNames(rule)) as _,
        _ => rule,
    };
    PhysicalOptimizer::new().rules.into_iter().map(guarded).collect()
}

/// Expands `IN` over a list with columns to comparisons: the simplifier merges lists as if all of their items were
/// constants, so that `i IN (k) AND i NOT IN (2)` becomes `i IN (k)`.
#[derive(Debug)]
pub(crate) struct ListsOfColumns;

impl AnalyzerRule for ListsOfColumns {
    fn name(&self) -> &'static str {
        "lists_of_columns"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let compared = |part: Expr| {
            Ok(match part {
                Expr::InList(InList { expr, list, negated })
                    if list.iter().any(|item| !matches!(item, Expr::Literal(..))) && !expr.is_volatile() =>
                {
                    let equal = list.into_iter().map(|item| expr.as_ref().clone().eq(item));
                    let any = equal.reduce(Expr::or).expect("some item is not a literal");
                    Transformed::yes(if negated { Expr::Not(Box::new(any)) } else { any })
                }
                other => Transformed::no(other),
            })
        };
        plan.transform_up_with_subqueries(|step| rewrite_exprs(step, |_, expr, _| expr.transform_up(compared))).data()
    }
}

/// `optimize_projections` takes two projections with equal expressions for one, so that `x * 2 AS x` twice is applied
/// once (apache/datafusion#24686). It compares what it has merged so far with the next one below, so that among three
/// or more even different ones can become equal. This guard puts a filter that passes every row between such
/// projections.
fn steps_in_a_row(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let apart = plan.transform_up(|step| {
        Ok(match step {
            LogicalPlan::Projection(step) if is_risky(&step) => {
                let (expr, schema) = (step.expr, step.schema);
                let input = Arc::new(LogicalPlan::Filter(Filter::try_new(lit(true), step.input)?));
                Transformed::yes(LogicalPlan::Projection(Projection::try_new_with_schema(expr, input, schema)?))
            }
            other => Transformed::no(other),
        })
    })?;
    let optimized = rule.rewrite(apart.data, config)?;
    if !apart.transformed {
        return Ok(optimized);
    }
    let together = optimized.data.transform_up(|step| {
        Ok(match step {
            LogicalPlan::Filter(step) if step.predicate == lit(true) => {
                Transformed::yes(Arc::unwrap_or_clone(step.input))
            }
            other => Transformed::no(other),
        })
    });
    // Whether anything except the filters has changed is unknown; another pass finds out.
    Ok(Transformed::new(together.data()?, optimized.transformed, optimized.tnr))
}

/// Whether a projection could be confused with the one below it, or be merged with that into one that could.
fn is_risky(step: &Projection) -> bool {
    let LogicalPlan::Projection(below) = step.input.as_ref() else { return false };
    below.expr == step.expr || matches!(below.input.as_ref(), LogicalPlan::Projection(_))
}

/// Some rules drop grouping keys, sort keys, DISTINCTs and joins that a key of the rows makes redundant. DataFusion's
/// notion of keys is wrong after a join: a column that was unique in one table is assumed to determine the columns of
/// the other table, too. A GROUP BY over both then loses rows. So these rules see plans without keys.
fn without_keys(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let keyless = match rule.apply_order() {
        // The rule walks the plan itself.
        None => plan.transform_up(keyless).data()?,
        Some(_) if plan.inputs().iter().any(|input| has_keys(input)) => below_without_keys(plan)?.data,
        Some(_) => plan,
    };
    rule.rewrite(keyless, config)
}

fn has_keys(plan: &LogicalPlan) -> bool {
    !plan.schema().functional_dependencies().is_empty()
}

/// A step whose inputs have no keys, whichever of the steps below determine the schemas of the inputs.
fn below_without_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.map_children(|input| match &input {
        _ if !has_keys(&input) => Ok(Transformed::no(input)),
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => below_without_keys(input),
        _ => keyless(input),
    })
}

fn keyless(mut plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = match &mut plan {
        LogicalPlan::Projection(step) => &mut step.schema,
        LogicalPlan::Aggregate(step) => &mut step.schema,
        LogicalPlan::Window(step) => &mut step.schema,
        LogicalPlan::SubqueryAlias(step) => &mut step.schema,
        LogicalPlan::Join(step) => &mut step.schema,
        LogicalPlan::Unnest(step) => &mut step.schema,
        _ => return Ok(Transformed::no(plan)),
    };
    if schema.functional_dependencies().is_empty() {
        return Ok(Transformed::no(plan));
    }
    *schema = Arc::new(schema.as_ref().clone().with_functional_dependencies(FunctionalDependencies::empty())?);
    Ok(Transformed::yes(plan))
}

/// `push_down_filter` moves a condition without columns, such as a comparison with a subquery's value, below a total.
/// The total then returns a row for no input, where the query returns none. It also moves volatile conditions below
/// groups, windows and DISTINCT, which changes how often they are evaluated. Both kinds stay above.
fn above_totals(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let stays = |condition: &Expr, input: &LogicalPlan| match input {
        LogicalPlan::Aggregate(_) => condition.column_refs().is_empty() || condition.is_volatile(),
        LogicalPlan::Window(_) | LogicalPlan::Distinct(_) => condition.is_volatile(),
        _ => false,
    };
    let LogicalPlan::Filter(filter) = plan else { return rule.rewrite(plan, config) };
    let (above, below): (Vec<Expr>, Vec<Expr>) = split_conjunction(&filter.predicate)
        .into_iter()
        .cloned()
        .partition(|condition| stays(condition, &filter.input));
    let Some(above) = conjunction(above) else { return rule.rewrite(LogicalPlan::Filter(filter), config) };
    let Some(below) = conjunction(below) else { return Ok(Transformed::no(LogicalPlan::Filter(filter))) };
    let pushed = rule.rewrite(LogicalPlan::Filter(Filter::try_new(below, Arc::clone(&filter.input))?), config)?;
    if !pushed.transformed {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    pushed.map_data(|input| Ok(LogicalPlan::Filter(Filter::try_new(above, Arc::new(input))?)))
}

/// `extract_equijoin_predicate` turns equalities into keys even in joins that treat two nulls as equal. Such a key must
/// not be null.
fn nulls_of_keys(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let keys = match &plan {
        LogicalPlan::Join(join) if has_null_keys(join) => join.on.len(),
        _ => return rule.rewrite(plan, config),
    };
    Ok(rule.rewrite(plan, config)?.update_data(|plan| match plan {
        LogicalPlan::Join(mut join) => {
            let known = join.on[keys..].iter().map(|(left, _)| left.clone().is_not_null());
            join.filter = conjunction(join.filter.take().into_iter().chain(known));
            LogicalPlan::Join(join)
        }
        other => other,
    }))
}

fn has_null_keys(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty()
}

/// `eliminate_cross_join` flattens inner joins and rebuilds all of them with the null equality of the topmost one. So
/// joins that treat nulls as equal are hidden from it.
fn beside_null_keys(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let hidden = plan.transform_down_with_subqueries(|step| {
        Ok(match step {
            LogicalPlan::Join(join) if join.join_type == JoinType::Inner && has_null_keys(&join) => {
                let inner = LogicalPlan::Join(join).map_children(|input| beside_null_keys(rule, input, config))?.data;
                let node = Arc::new(OpaqueStep(inner));
                Transformed::new(LogicalPlan::Extension(Extension { node }), true, TreeNodeRecursion::Jump)
            }
            other => Transformed::no(other),
        })
    })?;
    let rewritten = rule.rewrite(hidden.data, config)?;
    if !hidden.transformed {
        return Ok(rewritten);
    }
    let shown = rewritten.data.transform_up_with_subqueries(|step| {
        Ok(match &step {
            LogicalPlan::Extension(of) => match of.node.as_any().downcast_ref::<OpaqueStep>() {
                Some(OpaqueStep(inner)) => Transformed::yes(inner.clone()),
                None => Transformed::no(step),
            },
            _ => Transformed::no(step),
        })
    });
    // What has changed within is unknown; another pass finds out.
    Ok(Transformed::new(shown.data()?, rewritten.transformed, rewritten.tnr))
}

/// A step that is opaque to a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
struct OpaqueStep(LogicalPlan);

impl UserDefinedLogicalNodeCore for OpaqueStep {
    fn name(&self) -> &str {
        "Hidden"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }

    fn schema(&self) -> &DFSchemaRef {
        self.0.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hidden: {}", self.0.display())
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, _: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}

/// Turns the keys of a join into columns if a side has several that are not. The planner would do so in the order of a
/// hash set, and workers would plan the same query differently.
#[derive(Debug)]
struct KeysInOrder;

impl OptimizerRule for KeysInOrder {
    fn name(&self) -> &str {
        "keys_in_order"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = &plan else { return Ok(Transformed::no(plan)) };
        let (left, right): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
        let are_many = |keys: &[Expr]| keys.iter().filter(|key| !matches!(key, Expr::Column(_))).count() > 1;
        if !are_many(&left) && !are_many(&right) {
            return Ok(Transformed::no(plan));
        }
        let (left_rows, left) = with_keys(&join.left, left, "__left_key")?;
        let (right_rows, right) = with_keys(&join.right, right, "__right_key")?;
        let columns = Join::try_new(
            left_rows,
            right_rows,
            left.into_iter().zip(right).collect(),
            join.filter.clone(),
            join.join_type,
            JoinConstraint::On,
            join.null_equality,
            join.null_aware,
        )?;
        let given = join.schema.columns().into_iter().map(Expr::Column).collect();
        let rows = Arc::new(LogicalPlan::Join(columns));
        let made = Projection::try_new_with_schema(given, rows, Arc::clone(&join.schema))?;
        Ok(Transformed::yes(LogicalPlan::Projection(made)))
    }
}

/// Rows with their keys appended as columns, and these columns.
fn with_keys(rows: &Arc<LogicalPlan>, keys: Vec<Expr>, name: &str) -> Result<(Arc<LogicalPlan>, Vec<Expr>)> {
    let own: Vec<Expr> = rows.schema().columns().into_iter().map(Expr::Column).collect();
    let (mut exprs, mut columns) = (own, Vec::with_capacity(keys.len()));
    for (at, key) in keys.into_iter().enumerate() {
        columns.push(match key {
            Expr::Column(_) => key,
            key => {
                let column = Column::from_name(format!("{name}_{at}"));
                exprs.push(key.alias(&column.name));
                Expr::Column(column)
            }
        });
    }
    Ok((Arc::new(LogicalPlan::Projection(Projection::try_new(exprs, Arc::clone(rows))?)), columns))
}

/// Filters are pushed down by column name, so that one on the second of two columns with the same name prunes by the
/// first (apache/datafusion#25259). Here they are pushed only from steps below which names are unique.
#[derive(Debug)]
struct UniqueNames(Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for UniqueNames {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.children().into_iter().all(has_unique_names) {
            return self.0.optimize(plan, config);
        }
        let children = plan.children().into_iter().cloned();
        let children = children.map(|child| self.optimize(child, config)).collect::<Result<_>>()?;
        replace_children_if_necessary(plan, children)
    }
}

fn has_unique_names(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::new();
    schema.fields().iter().all(|field| names.insert(field.name().as_str()))
        && plan.children().into_iter().all(has_unique_names)
}
