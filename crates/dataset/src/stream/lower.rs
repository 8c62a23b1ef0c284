//! Lowering: the plan of a query over streams becomes a graph of tasks that never end by themselves. DataFusion plans it for
//! one partition, as if it were a table; each node of the plan then becomes a step of a task or a task of its own.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, is_not_null, lit};
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable, replace_children_if_necessary};
use futures::future::BoxFuture;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::exchange::{Direct, Gather, Partition};
use tidemill_dataflow::graph::PortRef;
use tidemill_dataflow::stream::sink::Guarantee;
use tidemill_dataflow::stream::source::time_column;
use tidemill_dataflow::{Graph, TaskId, TaskSpec};

use super::aggregate::{FirstHalf, SecondHalf, WindowAggregation};
use super::complete::{CompleteTask, Completion};
use super::counts::{CountAggregation, CountTask};
use super::distinct::{Distinct, DistinctTask, Remembered};
use super::groups::Aggregation;
use super::join::{JoinTask, StreamJoin};
use super::keyed::{Keyed, KeyedTask};
use super::late::{KeepLateRows, LATE, LateOutput, LateRows, MakeLateSink};
use super::memory::table_stream;
use super::now::NowOfBatch;
use super::process::{ProcessExec, ProcessTask};
use super::sessions::{self, SessionAggregation, SessionTimes};
use super::spans::Spans;
use super::steps::{PlanStep, Steps, StepsTask};
use super::table::{StreamExec, StreamSink};
use super::times::{Place, TimeOf, Times, following};
use super::triggered::{TriggeredAggregation, TriggeredTask};
use super::window::{Early, Micros, WindowCall, WindowFunction, WindowKind};
use crate::dataset::{DataSet, SLICE_ROWS};
use crate::distribute::only_value;
use crate::error::{DataSetError, Result};
use crate::group::GroupExec;

/// The port that rows leave a task by.
const ROWS: &str = "rows";

/// Rows on their way: the tasks they leave, each with the steps that are still to be done.
struct Flowing {
    from: Vec<Branch>,
    schema: SchemaRef,
    times: Times,
}

struct Branch {
    task: TaskId,
    steps: Steps,
    /// Of the task.
    copies: u32,
}

/// The two tasks of a windowed aggregation.
struct Halves {
    /// What goes from the first to the second.
    parts: SchemaRef,
    first: Box<dyn Fn(String, Steps) -> TaskSpec>,
    second: TaskSpec,
    /// What the second keeps.
    state: StateSchema,
}

/// The graph of a query, and the names of its sources with what they give.
pub(crate) struct Lowered {
    pub graph: Graph,
    pub sources: Vec<(String, Guarantee)>,
    /// The names of those that tell no time, though steps behind them wait for it.
    pub untimed: Vec<String>,
    /// The sinks.
    pub sinks: Vec<StreamSink>,
}

/// Where rows go.
pub(crate) struct Sinks<'a> {
    pub rows: &'a StreamSink,
    /// Rows that come too late for a window.
    pub late: Option<&'a MakeLateSink>,
    /// Counts those that go nowhere.
    pub left_out: &'a LateRows,
}

/// Makes the graph of a query over streams.
pub(crate) struct Lower<'a> {
    graph: Graph,
    context: Arc<TaskContext>,
    /// Of every task that nothing else limits.
    copies: u32,
    tasks: u32,
    /// The names of sources, and what they give.
    sources: Vec<(String, Guarantee)>,
    /// A step behind what is lowered now waits for time.
    waits: bool,
    /// See [`Lowered::untimed`].
    untimed: Vec<String>,
    late: &'a LateRows,
    /// Windows whose late rows are wanted.
    late_from: Vec<(Branch, SchemaRef)>,
}

/// Plans `set` for one partition, without rules that would take a windowed aggregation apart. With `late_rows` windows know all
/// columns of their rows.
pub(crate) async fn plan(set: &DataSet, late_rows: bool) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
    let (state, logical) = set.frame().clone().into_parts();
    let state = session(state, late_rows);
    let context = state.task_ctx();
    let plan = hold_tables(state.create_physical_plan(&logical).await?, &context).await?;
    Ok((plan, context))
}

/// The plan with its tables, which have an end, in memory: streams are joined with them. A subquery that stands for one value has it.
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
                    return Err(until_the_end(
                        "a subquery of it that stands for one value; join with windows of it instead",
                    )
                    .into());
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

pub(crate) fn has_stream(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any: &dyn Any = plan.as_ref();
    any.is::<StreamExec>() || plan.children().into_iter().any(has_stream)
}

fn session(state: SessionState, late_rows: bool) -> SessionState {
    let config = state
        .config()
        .clone()
        .with_target_partitions(1)
        // Sides are chosen here, which a filter made by one for the other does not allow.
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let mut rules = state.optimizers().to_vec();
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    let builder = SessionStateBuilder::new_from_existing(state).with_config(config).with_optimizer_rules(rules);
    let mut builder = builder.with_analyzer_rule(Arc::new(NowOfBatch));
    if late_rows {
        builder = builder.with_analyzer_rule(Arc::new(KeepLateRows));
    }
    builder.build()
}

/// Whether a node of a plan only says in which partitions rows are.
fn passes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any: &dyn Any = plan.as_ref();
    any.is::<CoalescePartitionsExec>() || any.is::<RepartitionExec>() || any.is::<CooperativeExec>()
}

/// Columns as expressions.
fn columns_of(columns: &[usize]) -> Vec<Arc<dyn PhysicalExpr>> {
    columns.iter().map(|&column| Arc::new(Column::new("", column)) as _).collect()
}

/// What a projection or a filter gives: expressions over the rows that come to it. `None` for other steps.
fn chosen(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let any: &dyn Any = plan.as_ref();
    if let Some(project) = any.downcast_ref::<ProjectionExec>() {
        return Some(project.projection_expr().iter().map(|by| Arc::clone(&by.expr)).collect());
    }
    let filter = any.downcast_ref::<FilterExec>()?;
    let schema = filter.input().schema();
    let column = |column: usize| Arc::new(Column::new(schema.field(column).name(), column)) as Arc<dyn PhysicalExpr>;
    Some(match filter.projection().as_ref() {
        Some(columns) => columns.iter().copied().map(column).collect(),
        None => (0..schema.fields().len()).map(column).collect(),
    })
}

/// What tells time after a step.
fn after_step(plan: &Arc<dyn ExecutionPlan>, rows: &Flowing) -> Times {
    if let Some(exprs) = chosen(plan) {
        return rows.times.project(&exprs);
    }
    // A function of the program, or rows that become several: what keeps its name and type is the same.
    let schema = plan.schema();
    let same = |of: &TimeOf| {
        let field = rows.schema.field(of.place.column);
        let (at, found) = schema.column_with_name(field.name())?;
        let place = Place { column: at, ..of.place.clone() };
        (found.data_type() == field.data_type()).then_some(TimeOf { place, behind: of.behind })
    };
    Times { places: rows.times.places.iter().filter_map(same).collect(), ..rows.times.clone() }
}

/// What is done to whole groups of rows: a node that looks at partitions of rows, and nodes below it that do so or sort for it.
struct Chain<'p> {
    /// The node whose rows they are.
    leaf: &'p Arc<dyn ExecutionPlan>,
    /// The projections and filters among them, the last first.
    choices: Vec<&'p Arc<dyn ExecutionPlan>>,
    /// The keys that all have in common, over the rows of the leaf: what has these alike is looked at together.
    keys: Vec<Arc<dyn PhysicalExpr>>,
}

impl<'p> Chain<'p> {
    fn of(plan: &'p Arc<dyn ExecutionPlan>, keys: &[Arc<dyn PhysicalExpr>]) -> Self {
        let mut below = plan.children()[0];
        let mut chain = Chain { leaf: below, choices: Vec::new(), keys: keys.to_vec() };
        // Projections and filters belong to it only if there is more below them: they are better done where rows come from.
        let (mut choices, mut keys) = (Vec::new(), keys.to_vec());
        loop {
            let any: &dyn Any = below.as_ref();
            let mut belongs = any.is::<SortExec>();
            if let Some(exprs) = chosen(below) {
                let Some(before) = keys.iter().map(|key| over(key, &exprs)).collect() else { return chain };
                keys = before;
                choices.push(below);
            } else if let Some(theirs) = partitions(below) {
                let all = keys.len().min(theirs.len());
                keys.retain(|key| theirs.contains(key));
                if keys.len() < all || keys.is_empty() {
                    return chain;
                }
                belongs = true;
            } else if !belongs && !passes(below) {
                return chain;
            }
            below = below.children()[0];
            if belongs {
                chain = Chain { leaf: below, choices: choices.clone(), keys: keys.clone() };
            }
        }
    }

    /// What tells time behind it, of what does before.
    fn times(&self, times: &Times) -> Times {
        let same = |of: &TimeOf| {
            let is = |key| following(key).is_some_and(|of_key| of_key.is_place(&of.place));
            self.keys.iter().any(is)
        };
        let places = times.places.iter().filter(|of| same(of)).cloned().collect();
        let times = Times { places, ..times.clone() };
        self.choices.iter().rev().filter_map(|step| chosen(step)).fold(times, |times, exprs| times.project(&exprs))
    }
}

/// An expression over what `exprs` give, over what these are of; `None` if it is of something else.
fn over(expr: &Arc<dyn PhysicalExpr>, exprs: &[Arc<dyn PhysicalExpr>]) -> Option<Arc<dyn PhysicalExpr>> {
    let mut known = true;
    let put = Arc::clone(expr).transform_down(|part| {
        let any: &dyn Any = part.as_ref();
        let Some(column) = any.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
        match exprs.get(column.index()) {
            Some(by) => Ok(Transformed::new(Arc::clone(by), true, TreeNodeRecursion::Jump)),
            None => {
                known = false;
                Ok(Transformed::no(part))
            }
        }
    });
    put.ok().map(|put| put.data).filter(|_| known)
}

/// The keys of a node that looks at whole partitions of rows.
fn partitions(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let any: &dyn Any = plan.as_ref();
    let bounded = any.downcast_ref::<BoundedWindowAggExec>().map(BoundedWindowAggExec::partition_keys);
    bounded.or_else(|| any.downcast_ref::<WindowAggExec>().map(WindowAggExec::partition_keys))
}

/// What an aggregation that takes the first row of each group wants of it beside its keys, if it is one.
fn firsts(aggregate: &AggregateExec) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let first = |(function, filter): (&Arc<AggregateFunctionExpr>, &Option<Arc<dyn PhysicalExpr>>)| {
        let any = function.fun().name() == "first_value" && function.order_bys().is_empty() && filter.is_none();
        function.expressions().into_iter().next().filter(|_| any)
    };
    aggregate.aggr_expr().iter().zip(aggregate.filter_expr()).map(first).collect()
}

/// A stream's rows whose key is not in a table, as SQL's NOT IN has it, by joins that take the table first. A null in the table may be
/// any key, so none is known not to be in it; a null in the stream may be any, so it is in every table but an empty one.
fn not_in(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let [(of_stream, of_table)] = join.on() else { return Err(until_the_end("NOT IN with several columns")) };
    if join.filter().is_some() {
        return Err(until_the_end("NOT IN of a query that looks at the stream's rows; use NOT EXISTS"));
    }
    let (mut rows, mut nulls) = (0, 0);
    for batch in in_memory(join.right())? {
        let keys = of_table.evaluate(&batch)?.into_array(batch.num_rows())?;
        (rows, nulls) = (rows + keys.len(), nulls + keys.logical_null_count());
    }
    let wanted: Arc<dyn PhysicalExpr> = match (rows, nulls) {
        (0, _) => lit(true),
        (_, 0) => is_not_null(Arc::clone(of_stream))?,
        _ => lit(false),
    };
    let stream = Arc::new(FilterExec::try_new(wanted, Arc::clone(join.left()))?);
    let join = join.builder().with_null_aware(false).with_new_children(vec![stream, Arc::clone(join.right())])?;
    Ok(join.build()?.swap_inputs(PartitionMode::CollectLeft)?)
}

/// The rows of a table that is held in memory.
fn in_memory(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<RecordBatch>> {
    let any: &dyn Any = plan.as_ref();
    let memory = any.downcast_ref::<DataSourceExec>().and_then(|exec| {
        let any: &dyn Any = exec.data_source().as_ref();
        any.downcast_ref::<MemorySourceConfig>()
    });
    let memory = memory.ok_or_else(|| DataSetError::Internal("a table that is not in memory".into()))?;
    Ok(memory.partitions().iter().flatten().cloned().collect())
}

fn until_the_end(what: &str) -> DataSetError {
    DataSetError::Unsupported(format!("on a stream, which does not end: {what}"))
}

/// What a step is that has no result before the end, and what to do instead.
fn waiting(plan: &Arc<dyn ExecutionPlan>) -> String {
    let any: &dyn Any = plan.as_ref();
    if any.is::<SortExec>() || any.is::<SortPreservingMergeExec>() {
        "a sort; rank the rows of each window instead, by tm.row_number().over(\"window_end\", order_by=...)".into()
    } else if any.is::<GlobalLimitExec>() || any.is::<LocalLimitExec>() {
        "a limit; stop= of write_stream ends a job".into()
    } else if any.is::<CrossJoinExec>() || any.is::<NestedLoopJoinExec>() {
        "a join without columns that are equal on both sides".into()
    } else {
        format!("a step that has no result before the end, {}", plan.name())
    }
}

impl<'a> Lower<'a> {
    /// The graph of a plan whose rows go to `sinks`.
    ///
    /// # Errors
    /// `Unsupported` for a step that would have to wait for the end; `Query` if late rows are wanted, and there is no window
    /// that they could come to, or they are of several kinds.
    pub(crate) fn graph(
        job: &str,
        plan: &Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        sinks: Sinks<'a>,
        copies: u32,
    ) -> Result<Lowered> {
        let (sources, untimed, late_from) = Default::default();
        let (graph, late) = (Graph::new(job), sinks.left_out);
        let mut lower = Lower { graph, context, copies, tasks: 0, sources, waits: false, untimed, late, late_from };
        let rows = lower.node(plan)?;
        let rows = lower.done(rows);
        lower.sink("sink", sinks.rows, &rows.from, &rows.schema, ROWS);
        let mut all = vec![sinks.rows.clone()];
        if let Some(late) = sinks.late {
            let (from, schemas): (Vec<_>, Vec<_>) = std::mem::take(&mut lower.late_from).into_iter().unzip();
            let Some(schema) = schemas.first() else {
                return Err(DataSetError::Query(
                    "late_to= takes rows that come too late for a window, and the query has none".into(),
                ));
            };
            if let Some(other) = schemas.iter().find(|other| other.fields() != schema.fields()) {
                let names = |schema: &SchemaRef| {
                    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
                };
                return Err(DataSetError::Query(format!(
                    "late_to= takes rows of one kind, and the query has windows of rows ({}) and of rows ({}); give them the same \
                     columns before they are grouped, or write two streams",
                    names(schema),
                    names(other),
                )));
            }
            let sink = late(schema)?;
            lower.sink("late rows, sink", &sink, &from, schema, LATE);
            all.push(sink);
        }
        Ok(Lowered { graph: lower.graph, sources: lower.sources, untimed: lower.untimed, sinks: all })
    }

    /// Adds a sink for what leaves tasks by a port.
    fn sink(&mut self, what: &str, sink: &StreamSink, from: &[Branch], schema: &SchemaRef, port: &'static str) {
        let most = from.iter().map(|branch| branch.copies).max().unwrap_or(1);
        let copies = if sink.copies_max == 0 { most } else { most.min(sink.copies_max) };
        let make = (sink.make)(schema);
        let task = TaskSpec::sink(format!("{what} {}", sink.name), move |copy| make(copy));
        let task = self.graph.add(task.input("rows").copies(copies));
        for branch in from {
            let from = branch.task.port(port);
            match copies {
                copies if copies == branch.copies => self.graph.connect(from, task, Direct),
                1 => self.graph.connect(from, task, Gather::to(0)),
                _ => self.graph.connect(from, task, Partition::round_robin()),
            };
        }
    }

    fn name(&mut self, what: &str) -> String {
        self.tasks += 1;
        format!("{what} {}", self.tasks)
    }

    fn node(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Flowing> {
        let any: &dyn Any = plan.as_ref();
        if let Some(stream) = any.downcast_ref::<StreamExec>() {
            return self.source(stream);
        }
        if passes(plan) {
            return self.node(plan.children()[0]);
        }
        if any.is::<UnionExec>() {
            let times = Times { untimed: true, ..Times::default() };
            let mut all = Flowing { from: Vec::new(), schema: plan.schema(), times };
            for child in plan.children() {
                let rows = self.node(child)?;
                all.from.extend(rows.from);
                all.times = all.times.union(&rows.times);
            }
            return Ok(all);
        }
        if let Some(aggregate) = any.downcast_ref::<AggregateExec>() {
            return self.aggregate(plan, aggregate);
        }
        if let Some(join) = any.downcast_ref::<HashJoinExec>() {
            return self.join(plan, join);
        }
        if !has_stream(plan) {
            return self.table(plan);
        }
        if let Some(process) = any.downcast_ref::<ProcessExec>() {
            return self.process(plan, process);
        }
        if let Some(of) = partitions(plan) {
            return self.ranked(plan, &of);
        }
        let mut step = Steps::default();
        if step.add(plan, &self.context) {
            let mut rows = self.node(plan.children()[0])?;
            rows.from.iter_mut().for_each(|branch| {
                branch.steps.add(plan, &self.context);
            });
            rows.times = after_step(plan, &rows);
            rows.schema = plan.schema();
            return Ok(rows);
        }
        Err(until_the_end(&waiting(plan)))
    }

    fn source(&mut self, stream: &StreamExec) -> Result<Flowing> {
        let source = stream.source.clone();
        let copies = if source.copies_max == 0 { self.copies } else { self.copies.min(source.copies_max) };
        let name = self.name(&format!("source {}", source.name));
        self.sources.push((source.name.clone(), source.guarantee));
        let make = Arc::clone(&source.make);
        let task = match source.times.clone() {
            None if self.waits => {
                self.untimed.push(source.name.clone());
                TaskSpec::source_without_time(name, move |copy| make(copy))
            }
            times => TaskSpec::source(name, times, move |copy| make(copy)),
        };
        let task = self.graph.add(task.output(ROWS, Arc::clone(&source.schema)).copies(copies));
        let mut steps = Steps::default();
        let column = source.times.as_ref().map(|times| time_column(&source.schema, &times.column));
        let mut times = Times::of_source(column.transpose().map_err(DataSetError::Query)?);
        if let Some(columns) = &stream.projection {
            steps.project(columns, &source.schema)?;
            times = times.project(&columns_of(columns));
        }
        Ok(Flowing { from: vec![Branch { task, steps, copies }], schema: stream.schema(), times })
    }

    /// A join of a stream with a table, batch by batch: the table is the side that is built once. Or one of two streams.
    fn join(&mut self, plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Result<Flowing> {
        let refused = |what: &str| Err(until_the_end(what));
        match (has_stream(join.left()), has_stream(join.right())) {
            (true, false) if join.null_aware => return self.node(&not_in(join)?),
            (true, true) => return self.stream_join(plan, join),
            (true, false) => return self.node(&join.swap_inputs(PartitionMode::CollectLeft)?),
            _ => {}
        }
        let keeps_table_rows = !matches!(
            join.join_type(),
            JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
        );
        if keeps_table_rows || join.null_aware {
            return refused("a join that gives rows of the table which find no partner");
        }
        let sides = vec![Arc::clone(join.left()), Arc::clone(join.right())];
        let builder = HashJoinExecBuilder::from(join).with_partition_mode(PartitionMode::CollectLeft);
        let built = builder.with_new_children(sides)?.recompute_properties().build_exec()?;
        let mut rows = self.node(join.right())?;
        rows.from.iter_mut().for_each(|branch| branch.steps.add_plan(&built, join.right(), &self.context));
        let before = match join.join_type() {
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
            _ => join.left().schema().fields().len(),
        };
        rows.times.places.iter_mut().for_each(|of| of.place.column += before);
        if let Some(chosen) = &join.projection {
            rows.times = rows.times.project(&columns_of(chosen));
        }
        rows.schema = plan.schema();
        Ok(rows)
    }

    /// Sends rows, with their keys, to the task that owns them.
    fn keyed(&mut self, rows: Flowing, keyed: &Arc<Keyed>, target: PortRef, name: &str) {
        let late = self.late.of(name);
        for (number, branch) in rows.from.into_iter().enumerate() {
            let Branch { task: from, steps, copies } = branch;
            let (shape, late) = (Arc::clone(keyed), late.clone());
            let by = TaskSpec::operator(format!("{name}, keys {number}"), move |_| {
                let (shape, steps, late) = (Arc::clone(&shape), steps.clone(), late.clone());
                Ok(KeyedTask { shape, steps, now: Micros::MIN, late })
            });
            let by = by.streaming().input("rows").output(ROWS, Arc::clone(&keyed.schema)).copies(copies);
            let by = self.graph.add(by);
            self.graph.connect(from.port(ROWS), by, Direct);
            match keyed.keys().is_empty() {
                true => self.graph.connect(by, target.clone(), Gather::to(0)),
                false => self.graph.connect(by, target.clone(), keyed.partition()),
            };
        }
    }

    fn stream_join(&mut self, plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Result<Flowing> {
        let (left, right) = (self.timed(join.left())?, self.timed(join.right())?);
        let (join, times) = StreamJoin::new(join, [&left.times, &right.times])?;
        let join = Arc::new(join);
        let name = self.name("join");
        let of = Arc::clone(&join);
        let task = TaskSpec::operator(name.clone(), move |copy| JoinTask::new(&of, copy)).streaming();
        let task =
            task.state(join.state()).detail(join.detail()).input("left").input("right").output(ROWS, plan.schema());
        let task = self.graph.add(task.copies(self.copies));
        for (side, (port, rows)) in [("left", left), ("right", right)].into_iter().enumerate() {
            self.keyed(rows, &join.sides[side], task.port(port), &format!("{name} {port}"));
        }
        let branch = Branch { task, steps: Steps::default(), copies: self.copies };
        Ok(Flowing { from: vec![branch], schema: plan.schema(), times })
    }

    /// A node that looks at whole partitions, of which a key tells time: each is complete when that has passed.
    fn ranked(&mut self, plan: &Arc<dyn ExecutionPlan>, keys: &[Arc<dyn PhysicalExpr>]) -> Result<Flowing> {
        let chain = Chain::of(plan, keys);
        let rows = self.timed(chain.leaf)?;
        let times = chain.times(&rows.times);
        self.complete(plan, chain.leaf, rows, chain.keys, times)
    }

    /// [`Lower::node`] for a step that gives results when a time has passed.
    fn timed(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Flowing> {
        let before = std::mem::replace(&mut self.waits, true);
        let rows = self.node(plan);
        self.waits = before;
        rows
    }

    /// A part of the plan that is run over groups of rows when they are complete.
    fn complete(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        leaf: &Arc<dyn ExecutionPlan>,
        rows: Flowing,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        times: Times,
    ) -> Result<Flowing> {
        let mut of_keys = rows.times.project(&keys).places;
        if of_keys.is_empty() {
            return Err(until_the_end(
                "functions with over(), none of whose keys tells when a group is complete; add one that does, such as window_end",
            ));
        }
        let late = rows.times.places.first().cloned();
        let keyed = Arc::new(Keyed::new(&rows.schema, keys, false, late)?);
        of_keys.iter_mut().for_each(|of| of.place.column += keyed.width);
        let (name, detail) = (self.name("groups"), displayable(plan.as_ref()).one_line().to_string());
        let shape = Arc::new(Completion {
            keyed: Arc::clone(&keyed),
            rows: Arc::clone(&rows.schema),
            times: of_keys,
            plan: PlanStep::new(plan, leaf, &self.context),
            late: self.late.of(&name),
        });
        let state = shape.state();
        let task =
            TaskSpec::operator(name.clone(), move |copy| CompleteTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(self.copies);
        let task = self.graph.add(task);
        self.keyed(rows, &keyed, task.into(), &name);
        let branch = Branch { task, steps: Steps::default(), copies: self.copies };
        Ok(Flowing { from: vec![branch], schema: plan.schema(), times })
    }

    /// A function of the program over the rows of each key.
    fn process(&mut self, plan: &Arc<dyn ExecutionPlan>, exec: &ProcessExec) -> Result<Flowing> {
        let rows = self.node(&exec.input)?;
        let times = after_step(plan, &rows);
        let keyed = Arc::new(Keyed::new(&rows.schema, columns_of(&exec.process.keys), false, None)?);
        // By this name states are found again, whatever the function is called.
        let name = self.name("process");
        let (process, projection) = (Arc::clone(&exec.process), exec.projection.clone());
        let (shape, schema) = (Arc::clone(&keyed), Arc::clone(&rows.schema));
        let state = process.state(&keyed);
        let task = TaskSpec::operator(name.clone(), move |copy| {
            ProcessTask::new((&process, &projection), &shape, &schema, copy)
        });
        let task =
            task.streaming().state(state).detail(exec.process.name.clone()).input("rows").output(ROWS, plan.schema());
        let task = self.graph.add(task.copies(self.copies));
        self.keyed(rows, &keyed, task.into(), &name);
        let branch = Branch { task, steps: Steps::default(), copies: self.copies };
        Ok(Flowing { from: vec![branch], schema: plan.schema(), times })
    }

    /// Each key once.
    fn distinct(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        rows: Flowing,
        groups: &[Arc<dyn PhysicalExpr>],
        more: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Flowing> {
        let gives: Vec<_> = groups.iter().cloned().chain(more).collect();
        let keys: Vec<_> = groups.iter().filter(|key| Remembered::of(key).is_none()).cloned().collect();
        let ttl = groups.iter().find_map(Remembered::of);
        let ttl = match (ttl, rows.times.places.first()) {
            (Some(ttl), Some(time)) => Some((time.clone(), ttl)),
            (Some(_), None) => {
                return Err(DataSetError::Unsupported(
                    "distinct with ttl= on a stream whose rows do not tell time: give its source time=, and keep that column".into(),
                ));
            }
            (None, _) => None,
        };
        let of_keys = if ttl.is_some() { Vec::new() } else { rows.times.project(&keys).places };
        let times = rows.times.project(&gives);
        let late = rows.times.places.first().filter(|_| !of_keys.is_empty()).cloned();
        let keyed = Arc::new(Keyed::new(&rows.schema, keys, false, late)?);
        let (name, detail) = (self.name("distinct"), displayable(plan.as_ref()).one_line().to_string());
        let untimed = self.late.of(&name);
        let shape = Distinct { keyed: Arc::clone(&keyed), times: of_keys, ttl, untimed, gives, output: plan.schema() };
        let shape = Arc::new(shape);
        let state = shape.state();
        let task =
            TaskSpec::operator(name.clone(), move |copy| DistinctTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(self.copies);
        let task = self.graph.add(task);
        self.keyed(rows, &keyed, task.into(), &name);
        let branch = Branch { task, steps: Steps::default(), copies: self.copies };
        Ok(Flowing { from: vec![branch], schema: plan.schema(), times })
    }

    /// A table among streams: it comes, and ends.
    fn table(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Flowing> {
        let rows = in_memory(plan)?;
        let source = table_stream("table", plan.schema(), &rows, None, SLICE_ROWS, 0.0);
        // It ends soon: nobody waits for it.
        let before = std::mem::replace(&mut self.waits, false);
        let rows = self.source(&StreamExec::new(source, None)?);
        self.waits = before;
        rows
    }

    fn aggregate(&mut self, plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<Flowing> {
        let refused = |what: &str| Err(until_the_end(what));
        // Planned in two halves, the lower one has what is asked of rows.
        let lower = match aggregate.mode() {
            AggregateMode::Final | AggregateMode::FinalPartitioned => {
                let mut below = aggregate.input();
                while passes(below) {
                    below = below.children()[0];
                }
                Arc::clone(below)
            }
            _ => Arc::clone(plan),
        };
        let any: &dyn Any = lower.as_ref();
        let of_numbers = || any.downcast_ref::<GroupExec>().map(GroupExec::step);
        let Some(aggregate) = any.downcast_ref::<AggregateExec>().or_else(of_numbers) else {
            return refused("an aggregate in parts");
        };
        let mut below = aggregate.input();
        while passes(below) {
            below = below.children()[0];
        }
        let any: &dyn Any = below.as_ref();
        if any.is::<SortExec>() && aggregate.aggr_expr().iter().any(|function| !function.order_bys().is_empty()) {
            return refused(
                "an aggregate of rows in an order, such as array_agg(... order by ...); sort what it gives instead",
            );
        }
        if !aggregate.group_expr().is_single() {
            return refused("grouping sets");
        }
        let groups = aggregate.group_expr().expr();
        let mut found = None;
        for (at, (expr, _)) in groups.iter().enumerate() {
            if let Some(call) = WindowFunction::of_call(expr)? {
                found.get_or_insert((at, call));
            }
        }
        let input = match found.as_ref().is_some_and(|(_, call)| !matches!(call.windows.kind, WindowKind::Count { .. }))
        {
            true => self.timed(aggregate.input())?,
            false => self.node(aggregate.input())?,
        };
        let Some((window_at, WindowCall { windows, time, late })) = found else {
            let keys: Vec<_> = groups.iter().map(|(key, _)| Arc::clone(key)).collect();
            if let Some(more) = firsts(aggregate) {
                return self.distinct(plan, input, &keys, more);
            }
            let times = input.times.project(&keys);
            if times.places.is_empty() {
                return refused(
                    "a group_by without a window has no result before the end; add tm.window(...) to its keys",
                );
            }
            return self.complete(plan, aggregate.input(), input, keys, times);
        };
        if let WindowKind::Count { size, slide } = windows.kind {
            return self.counted(plan, aggregate, input, window_at, (size, slide));
        }
        let Some(behind) = input.times.behind(&time, &input.schema) else {
            let of = fmt_sql(time.as_ref());
            let why = match input.times.lost {
                true => {
                    "windows of rows, and joins that do not bound the time of partners, give rows that may have any time"
                }
                false => "it is not the column that time= of the source names, nor follows it",
            };
            return Err(DataSetError::Unsupported(format!(
                "a window of {of}: nobody knows how far that is behind the stream's time, so rows would be late ({why}). Let time= name \
                 it, or say how far it may be behind: tm.stream.behind(..., \"1h\") in Python, behind({of}, '1 hour') in SQL"
            )));
        };
        let spans = match windows.kind.clone() {
            WindowKind::Sliding { size, slide } => Some(Spans::Sliding { size, slide }),
            WindowKind::Calendar(calendar) => Some(Spans::calendar(calendar)?),
            WindowKind::Count { .. } | WindowKind::Session { .. } => None,
        };
        let longest = spans.as_ref().map(Spans::longest);
        // What comes of a window comes before the watermark passes its end, corrections within the lateness.
        let field = |name: &str, behind: Micros| TimeOf {
            place: Place { column: window_at, field: Some(name.to_owned()) },
            behind,
        };
        let end = behind.saturating_add(windows.lateness - 1);
        let mut places = vec![field("end", end)];
        places.extend(longest.map(|longest| field("start", end.saturating_add(longest))));
        let times = Times { places, untimed: input.times.untimed, lost: false };
        let mut keys: Vec<_> =
            groups.iter().enumerate().filter(|(at, _)| *at != window_at).map(|(_, key)| key.clone()).collect();
        let functions = aggregate.aggr_expr().to_vec();
        let keyed = || Keyed::new(&input.schema, keys.iter().map(|(key, _)| Arc::clone(key)).collect(), false, None);
        let late_rows = match late.is_empty() {
            true => None,
            false => Some(LateOutput::new(keyed()?, late, &input.schema)?),
        };
        // Where it matters which rows they are, they come as they are to whoever owns their key.
        let keyed = match (&late_rows, windows.early) {
            (Some(of), _) => Some(Arc::clone(&of.keyed)),
            (None, Early::Rows(_)) => Some(Arc::new(keyed()?)),
            (None, _) => None,
        };
        let spans = match (windows.early, spans, &keyed) {
            (Early::Rows(_), Some(_), _) if windows.lateness > 0 => {
                return refused(
                    "windows, but for sessions, that take late rows (late=) and give results by rows (early_rows=)",
                );
            }
            (Early::Rows(every), Some(spans), Some(keyed)) => {
                let keyed = Arc::clone(keyed);
                keys.insert(0, TriggeredAggregation::window_key());
                let of = Aggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
                let (name, output) = (self.name("window"), plan.schema());
                let late = self.late.of(&name);
                let shape =
                    TriggeredAggregation { of, time, behind, spans, every, keyed, output, window_at, late, late_rows };
                return Ok(self.triggered(plan, input, shape, &name, times));
            }
            (_, spans, _) => spans,
        };
        let late_schema = late_rows.as_ref().map(|of| Arc::clone(&of.schema));
        let of = Aggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
        let keys = of.key_names();
        let (name, detail) = (self.name("window"), displayable(plan.as_ref()).one_line().to_string());
        let late = (self.late.of(&name), late_rows);
        let halves = match (windows.kind, spans) {
            (_, Some(spans)) => {
                let early = if let Early::Every(every) = windows.early { every } else { 0 };
                let given = (windows.lateness, early);
                let time = (time, behind);
                let shape = WindowAggregation::new(of, time, spans, given, plan.schema(), window_at, late);
                let shape = Arc::new(shape);
                Halves {
                    parts: Arc::clone(&shape.part_schema),
                    state: shape.state(),
                    first: {
                        let shape = Arc::clone(&shape);
                        Box::new(move |name, steps| {
                            let shape = Arc::clone(&shape);
                            TaskSpec::operator(name, move |copy| Ok(FirstHalf::new(&shape, steps.clone(), copy)))
                        })
                    },
                    second: TaskSpec::operator(name.clone(), move |copy| {
                        SecondHalf::new(&shape, Steps::default(), copy)
                    }),
                }
            }
            (WindowKind::Session { gap }, _) => {
                let (lateness, early) = (windows.lateness, windows.early);
                let of_sessions = SessionTimes { time, behind, gap, lateness, early };
                let output = (plan.schema(), window_at);
                let shape = SessionAggregation::new(of, of_sessions, output, keyed.clone(), late);
                let shape = Arc::new(shape);
                Halves {
                    parts: Arc::clone(&shape.part_schema),
                    state: shape.state(),
                    first: {
                        let shape = Arc::clone(&shape);
                        Box::new(move |name, steps| {
                            let shape = Arc::clone(&shape);
                            TaskSpec::operator(name, move |_| Ok(sessions::FirstHalf::new(&shape, steps.clone())))
                        })
                    },
                    second: TaskSpec::operator(name.clone(), move |copy| sessions::SecondHalf::new(&shape, copy)),
                }
            }
            (kind, None) => return Err(DataSetError::Internal(format!("windows {kind:?} of time"))),
        };
        let copies = if keys.is_empty() { 1 } else { self.copies };
        let mut second =
            halves.second.streaming().state(halves.state).detail(detail).input("parts").output(ROWS, plan.schema());
        if let Some(schema) = &late_schema {
            second = second.output(LATE, Arc::clone(schema));
        }
        let second = self.graph.add(second.copies(copies));
        let branch = || Branch { task: second, steps: Steps::default(), copies };
        if let Some(keyed) = keyed {
            self.keyed(input, &keyed, second.into(), &name);
            self.late_from.extend(late_schema.map(|schema| (branch(), schema)));
        } else {
            for (number, branch) in input.from.into_iter().enumerate() {
                let Branch { task: from, steps, copies: beside } = branch;
                let first = (halves.first)(format!("{name}, first half {number}"), steps).streaming();
                let first = first.input("rows").output("parts", Arc::clone(&halves.parts)).copies(beside);
                let first = self.graph.add(first);
                self.graph.connect(from.port(ROWS), first, Direct);
                match keys.is_empty() {
                    true => self.graph.connect(first, second, Gather::to(0)),
                    false => self.graph.connect(first, second, Partition::by_key(keys.clone())),
                };
            }
        }
        Ok(Flowing { from: vec![branch()], schema: plan.schema(), times })
    }

    /// An aggregation of windows that gives results by rows.
    fn triggered(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        input: Flowing,
        shape: TriggeredAggregation,
        name: &str,
        times: Times,
    ) -> Flowing {
        let (keyed, state) = (Arc::clone(&shape.keyed), shape.state());
        let late = shape.late_rows.as_ref().map(|of| Arc::clone(&of.schema));
        let copies = if keyed.keys().is_empty() { 1 } else { self.copies };
        let detail = displayable(plan.as_ref()).one_line().to_string();
        let shape = Arc::new(shape);
        let task = TaskSpec::operator(name.to_owned(), move |copy| TriggeredTask::new(&shape, copy)).streaming();
        let mut task = task.state(state).detail(detail).input("rows").output(ROWS, plan.schema()).copies(copies);
        if let Some(schema) = &late {
            task = task.output(LATE, Arc::clone(schema));
        }
        let task = self.graph.add(task);
        self.keyed(input, &keyed, task.into(), name);
        let branch = || Branch { task, steps: Steps::default(), copies };
        self.late_from.extend(late.map(|schema| (branch(), schema)));
        Flowing { from: vec![branch()], schema: plan.schema(), times }
    }

    /// An aggregation of windows that are so many rows of a key.
    fn counted(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        aggregate: &AggregateExec,
        input: Flowing,
        window_at: usize,
        lengths: (i64, i64),
    ) -> Result<Flowing> {
        let groups = aggregate.group_expr().expr().iter().enumerate().filter(|(at, _)| *at != window_at);
        let keys: Vec<_> = groups.map(|(_, key)| key.clone()).collect();
        let exprs = keys.iter().map(|(key, _)| Arc::clone(key)).collect();
        let keyed = Keyed::new(&input.schema, exprs, false, None)?;
        let functions = aggregate.aggr_expr().to_vec();
        let of = Aggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
        let copies = if of.keys.is_empty() { 1 } else { self.copies };
        let shape = Arc::new(CountAggregation::new(of, lengths, keyed, plan.schema(), window_at));
        let (name, detail) = (self.name("window"), displayable(plan.as_ref()).one_line().to_string());
        let (keyed, state) = (Arc::clone(&shape.keyed), shape.state());
        let task = TaskSpec::operator(name.clone(), move |copy| CountTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(copies);
        let task = self.graph.add(task);
        // Which time the rows of a window have had, nobody knows.
        let times = Times { places: Vec::new(), untimed: input.times.untimed, lost: !input.times.untimed };
        self.keyed(input, &keyed, task.into(), &name);
        Ok(Flowing { from: vec![Branch { task, steps: Steps::default(), copies }], schema: plan.schema(), times })
    }

    /// The rows with all their steps done.
    fn done(&mut self, rows: Flowing) -> Flowing {
        let Flowing { from, schema, times } = rows;
        let from = from.into_iter().map(|branch| {
            if branch.steps.is_empty() {
                return branch;
            }
            let Branch { task: from, steps, copies } = branch;
            let task = TaskSpec::operator(self.name("steps"), move |_| Ok(StepsTask(steps.clone())));
            let task = task.streaming().input("rows").output(ROWS, Arc::clone(&schema)).copies(copies);
            let task = self.graph.add(task);
            self.graph.connect(from.port(ROWS), task, Direct);
            Branch { task, steps: Steps::default(), copies }
        });
        let from = from.collect();
        Flowing { from, schema, times }
    }
}
