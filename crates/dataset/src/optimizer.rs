//! DataFusion's optimizer rules, with guards around those that are wrong in the release this builds on. Each guard names the
//! upstream fix; when a release has it, the guard goes.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::FunctionalDependencies;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::logical_plan::{Distinct, Filter, Projection};
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::guards::GuardFilters;
use crate::rewrite::rewrite_exprs;

/// The rules for logical plans.
pub(crate) fn logical_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let guarded = |rule: Arc<dyn OptimizerRule + Send + Sync>| match rule.name() {
        "optimize_projections" => Arc::new(WithoutKeys(Arc::new(StepsInARow(rule)))) as _,
        "replace_distinct_aggregate" | "eliminate_duplicated_expr" | "eliminate_join" => {
            Arc::new(WithoutKeys(rule)) as _
        }
        _ => rule,
    };
    let last: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(GuardFilters);
    Optimizer::new().rules.into_iter().map(guarded).chain([last]).collect()
}

/// The rules for physical plans.
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let guarded = |rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>| match rule.name() {
        name if name.starts_with("FilterPushdown") => Arc::new(UniqueNames(rule)) as _,
        _ => rule,
    };
    PhysicalOptimizer::new().rules.into_iter().map(guarded).collect()
}

/// `IN` over a list with columns as comparisons: the simplifier merges lists as if all that is in them were constants, so that
/// `i IN (k) AND i NOT IN (2)` is `i IN (k)`.
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
                    let any = equal.reduce(Expr::or).expect("an item is no literal");
                    Transformed::yes(if negated { Expr::Not(Box::new(any)) } else { any })
                }
                other => Transformed::no(other),
            })
        };
        plan.transform_up_with_subqueries(|step| rewrite_exprs(step, |_, expr, _| expr.transform_up(compared))).data()
    }
}

/// `optimize_projections` takes two projections with equal expressions for one, so that `x * 2 AS x` twice is once
/// (apache/datafusion#24686). It compares what it has merged so far with the next one below, so that among three or more even
/// different ones can come to look equal. Between such projections it finds a filter that lets every row pass.
#[derive(Debug)]
struct StepsInARow(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for StepsInARow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        // The rule walks the plan itself.
        None
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
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
        let optimized = self.0.rewrite(apart.data, config)?;
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
        // Whether anything but the filters has changed is not known; another pass finds out.
        Ok(Transformed::new(together.data()?, optimized.transformed, optimized.tnr))
    }
}

/// Whether a projection could be taken for the one below it, or be merged with that into one that could.
fn is_risky(step: &Projection) -> bool {
    let LogicalPlan::Projection(below) = step.input.as_ref() else { return false };
    below.expr == step.expr || matches!(below.input.as_ref(), LogicalPlan::Projection(_))
}

/// Some rules drop grouping keys, sort keys, DISTINCTs and joins that a key of the rows makes redundant. What DataFusion takes for keys
/// is wrong after a join: a column that was unique in one table is said to determine the columns of the other table too. A GROUP BY over
/// both then loses rows. So these rules see plans without keys.
#[derive(Debug)]
struct WithoutKeys(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for WithoutKeys {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let keyless = match self.0.apply_order() {
            // The rule walks the plan itself.
            None => plan.transform_up(without_keys).data()?,
            Some(_) if plan.inputs().iter().any(|input| has_keys(input)) => below_without_keys(plan)?.data,
            Some(_) => plan,
        };
        self.0.rewrite(keyless, config)
    }
}

fn has_keys(plan: &LogicalPlan) -> bool {
    !plan.schema().functional_dependencies().is_empty()
}

/// A step whose inputs have no keys, whichever steps below the inputs get their schemas from.
fn below_without_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.map_children(|input| match &input {
        _ if !has_keys(&input) => Ok(Transformed::no(input)),
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => below_without_keys(input),
        _ => without_keys(input),
    })
}

fn without_keys(mut plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
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

/// Filters are pushed down by the names of columns, so that one on the second of two columns with the same name prunes by the
/// first (apache/datafusion#25259). They are pushed only from steps below which names are unique.
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
