//! Planning of a job's queries, each for one partition, as if their streams were tables.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::{ExecutionPlan, collect, replace_children_if_necessary};
use futures::future::BoxFuture;
use tidemill_dataset::extend::{has_stream, hidden_in, only_value, reads_stream, table_at};
use tidemill_dataset::{DataSetError, Result};

use super::{SORT, of_query, until_the_end};
use crate::plan::common_subplans::share;
use crate::plan::late_output::LateTo;
use crate::plan::table::StreamOutput;
use crate::time::current_time::NowOfBatch;

/// The planned queries of a job.
pub(crate) struct PlannedQueries {
    pub queries: Vec<Arc<dyn ExecutionPlan>>,
    /// The parts that queries share; each reads only those before it.
    pub parts: Vec<Arc<dyn ExecutionPlan>>,
    pub context: Arc<TaskContext>,
}

/// Plans the queries of a job for one partition, without rules that would split a windowed aggregation. Steps whose
/// late rows have a sink get all columns of their rows. All queries belong to one engine, so any query's session works
/// for all of them.
pub(crate) async fn plan(outputs: &[StreamOutput], late: &LateTo) -> Result<PlannedQueries> {
    let Some((first, _)) = outputs.first() else {
        return Err(DataSetError::Query("a job needs at least one query to write, but got none".into()));
    };
    let (state, _) = first.frame().clone().into_parts();
    let state = session(state, late);
    let context = state.task_ctx();
    for output in outputs {
        let supported = check_steps(output.0.frame().logical_plan()).map_err(DataSetError::from);
        supported.map_err(|error| of_query(error, output, outputs))?;
    }
    let shared = share(outputs.iter().map(|(set, _)| set.frame().logical_plan().clone()).collect())?;
    let (mut queries, mut parts) = (Vec::new(), Vec::new());
    for part in &shared.parts {
        parts.push(planned(&state, part, &context).await?);
    }
    for (query, output) in shared.queries.iter().zip(outputs) {
        let plan = planned(&state, query, &context).await;
        queries.push(plan.map_err(|error| of_query(error, output, outputs))?);
    }
    Ok(PlannedQueries { queries, parts, context })
}

/// Rejects steps that planning removes, so that the stream would silently lack them: a sort that the next step does not
/// need, and a repartitioning.
fn check_steps(plan: &LogicalPlan) -> datafusion::error::Result<()> {
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Sort(sort) if reads_stream(&sort.input) => return Err(until_the_end(SORT).into()),
            LogicalPlan::Repartition(step) if reads_stream(&step.input) => {
                let remedy = "repartition is not supported on a stream: to spread rows over all workers, shuffle them; to \
                              bring rows with equal keys to one worker, process or aggregate them by key";
                return Err(DataSetError::Unsupported(remedy.into()).into());
            }
            _ => {}
        }
        table_at(node).and_then(|table| hidden_in(table.as_ref()).map(check_steps)).transpose()?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

async fn planned(
    state: &SessionState,
    logical: &LogicalPlan,
    context: &Arc<TaskContext>,
) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(hold_tables(state.create_physical_plan(logical).await?, context).await?)
}

/// The plan with its finite tables loaded into memory, because streams are joined with them. Scalar subqueries are
/// replaced by their values.
fn hold_tables<'a>(
    plan: Arc<dyn ExecutionPlan>,
    context: &'a Arc<TaskContext>,
) -> BoxFuture<'a, datafusion::error::Result<Arc<dyn ExecutionPlan>>> {
    Box::pin(async move {
        if !has_stream(&plan) {
            let schema = plan.schema();
            let rows = collect(plan, Arc::clone(context)).await?;
            let table = MemorySourceConfig::try_new(&[rows], schema, None)?;
            return Ok(Arc::new(DataSourceExec::new(Arc::new(table))) as _);
        }
        let any: &dyn Any = plan.as_ref();
        if let Some(asked) = any.downcast_ref::<ScalarSubqueryExec>() {
            for link in asked.subqueries() {
                if has_stream(&link.plan) {
                    return Err(until_the_end("a scalar subquery; join with windows of it instead").into());
                }
                let rows = collect(Arc::clone(&link.plan), Arc::clone(context)).await?;
                asked.results().set(link.index, only_value(&rows, &link.plan.schema())?)?;
            }
            return hold_tables(Arc::clone(asked.input()), context).await;
        }
        let mut inputs = Vec::new();
        for input in plan.children() {
            inputs.push(hold_tables(Arc::clone(input), context).await?);
        }
        if inputs.is_empty() { Ok(plan) } else { replace_children_if_necessary(plan, inputs) }
    })
}

fn session(state: SessionState, late: &LateTo) -> SessionState {
    let config = state
        .config()
        .clone()
        .with_target_partitions(1)
        // Lowering chooses the sides of joins itself, which rules out dynamic filters from one side to the other.
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let mut rules = state.optimizers().to_vec();
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    let builder = SessionStateBuilder::new_from_existing(state).with_config(config).with_optimizer_rules(rules);
    let mut builder = builder.with_analyzer_rule(Arc::new(NowOfBatch));
    if let Some(rule) = late.rule() {
        builder = builder.with_analyzer_rule(Arc::new(rule));
    }
    builder.build()
}
