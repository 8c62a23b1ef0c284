//! Lowering: the plan of a query over streams becomes a graph of tasks that never end by themselves. DataFusion plans it for
//! one partition, as if it were a table; each node of the plan then becomes a step of a task or a task of its own.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::JoinType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable, replace_children_if_necessary};
use futures::future::BoxFuture;
use tidemill_dataflow::exchange::{Direct, Gather, Partition};
use tidemill_dataflow::{Graph, TaskId, TaskSpec};

use super::aggregate::{FirstHalf, SecondHalf, WindowAggregation};
use super::groups::Aggregation;
use super::memory::table_stream;
use super::sessions::{self, SessionAggregation};
use super::steps::{Steps, StepsTask};
use super::table::{StreamExec, StreamSink};
use super::window::{WindowFunction, WindowKind};
use crate::dataset::{DataSet, SLICE_ROWS};
use crate::error::{DataSetError, Result};

/// Rows on their way: the tasks they leave, each with the steps that are still to be done.
struct Flowing {
    from: Vec<Branch>,
    schema: SchemaRef,
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
    states: SchemaRef,
    first: Box<dyn Fn(String, Steps) -> TaskSpec>,
    second: TaskSpec,
}

/// Makes the graph of a query over streams.
pub(crate) struct Lower {
    graph: Graph,
    context: Arc<TaskContext>,
    /// Of every task that nothing else limits.
    copies: u32,
    tasks: u32,
}

/// Plans `set` for one partition, without rules that would take a windowed aggregation apart.
pub(crate) async fn plan(set: &DataSet) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
    let (state, logical) = set.frame().clone().into_parts();
    let state = session(state);
    let context = state.task_ctx();
    let plan = hold_tables(state.create_physical_plan(&logical).await?, &context).await?;
    Ok((plan, context))
}

/// The plan with its tables, which have an end, in memory: streams are joined with them.
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
        let mut inputs = Vec::new();
        for input in plan.children() {
            inputs.push(hold_tables(Arc::clone(input), context).await?);
        }
        if inputs.is_empty() { Ok(plan) } else { replace_children_if_necessary(plan, inputs) }
    })
}

fn has_stream(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any: &dyn Any = plan.as_ref();
    any.is::<StreamExec>() || plan.children().into_iter().any(has_stream)
}

fn session(state: SessionState) -> SessionState {
    let config = state
        .config()
        .clone()
        .with_target_partitions(1)
        // Sides are chosen here, which a filter made by one for the other does not allow.
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let mut rules = state.optimizers().to_vec();
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    SessionStateBuilder::new_from_existing(state).with_config(config).with_optimizer_rules(rules).build()
}

/// Whether a node of a plan only says in which partitions rows are.
fn passes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any: &dyn Any = plan.as_ref();
    any.is::<CoalescePartitionsExec>() || any.is::<RepartitionExec>() || any.is::<CooperativeExec>()
}

impl Lower {
    /// The graph of a plan whose rows go to `sink`.
    ///
    /// # Errors
    /// `Unsupported` for a step that would have to wait for the end.
    pub(crate) fn graph(
        job: &str,
        plan: &Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        sink: &StreamSink,
        copies: u32,
    ) -> Result<Graph> {
        let mut lower = Lower { graph: Graph::new(job), context, copies, tasks: 0 };
        let rows = lower.node(plan)?;
        let rows = lower.done(rows);
        let most = rows.from.iter().map(|branch| branch.copies).max().unwrap_or(1);
        let sinks = if sink.copies_max == 0 { most } else { most.min(sink.copies_max) };
        let make = (sink.make)(&rows.schema);
        let task = TaskSpec::sink(format!("sink {}", sink.name), move |copy| make(copy));
        let task = lower.graph.add(task.input("rows").copies(sinks));
        lower.connect(&rows, task, sinks);
        Ok(lower.graph)
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
            let mut all = Flowing { from: Vec::new(), schema: plan.schema() };
            for child in plan.children() {
                let rows = self.node(child)?;
                all.from.extend(rows.from);
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
        let mut step = Steps::default();
        if step.add(plan, &self.context) {
            let mut rows = self.node(plan.children()[0])?;
            rows.from.iter_mut().for_each(|branch| {
                branch.steps.add(plan, &self.context);
            });
            rows.schema = plan.schema();
            return Ok(rows);
        }
        Err(DataSetError::Unsupported(format!(
            "on a stream, which does not end: {}",
            displayable(plan.as_ref()).one_line().to_string().trim()
        )))
    }

    fn source(&mut self, stream: &StreamExec) -> Result<Flowing> {
        let source = stream.source.clone();
        let copies = if source.copies_max == 0 { self.copies } else { self.copies.min(source.copies_max) };
        let name = self.name(&format!("source {}", source.name));
        let make = Arc::clone(&source.make);
        let task = TaskSpec::source(name, source.times.clone(), move |copy| make(copy));
        let task = self.graph.add(task.output("rows", Arc::clone(&source.schema)).copies(copies));
        let mut steps = Steps::default();
        if let Some(columns) = &stream.projection {
            steps.project(columns, &source.schema)?;
        }
        Ok(Flowing { from: vec![Branch { task, steps, copies }], schema: stream.schema() })
    }

    /// A join of a stream with a table, batch by batch. The table is the side that is built once.
    fn join(&mut self, plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Result<Flowing> {
        let refused = |what: &str| Err(DataSetError::Unsupported(format!("on a stream, which does not end: {what}")));
        match (has_stream(join.left()), has_stream(join.right())) {
            (true, true) => return refused("a join of two streams"),
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
        rows.from.iter_mut().for_each(|branch| branch.steps.add_plan(&built, 1, &self.context));
        rows.schema = plan.schema();
        Ok(rows)
    }

    /// A table among streams: it comes, and ends.
    fn table(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Flowing> {
        let any: &dyn Any = plan.as_ref();
        let memory = any.downcast_ref::<DataSourceExec>().and_then(|exec| {
            let any: &dyn Any = exec.data_source().as_ref();
            any.downcast_ref::<MemorySourceConfig>()
        });
        let memory = memory.ok_or_else(|| DataSetError::Internal("a table that is not in memory".into()))?;
        let rows: Vec<_> = memory.partitions().iter().flatten().cloned().collect();
        let source = table_stream("table", plan.schema(), &rows, None, SLICE_ROWS, 0.0);
        self.source(&StreamExec::new(source, None)?)
    }

    fn aggregate(&mut self, plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<Flowing> {
        let refused = |what: &str| Err(DataSetError::Unsupported(format!("on a stream, which does not end: {what}")));
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
        let Some(aggregate) = any.downcast_ref::<AggregateExec>() else { return refused("an aggregate in parts") };
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
        let Some((window_at, (windows, time))) = found else {
            return refused("a group_by without a window has no result before the end; add tm.window(...) to its keys");
        };
        let input = self.node(aggregate.input())?;
        let keys: Vec<_> =
            groups.iter().enumerate().filter(|(at, _)| *at != window_at).map(|(_, key)| key.clone()).collect();
        let functions = aggregate.aggr_expr().to_vec();
        let of = Aggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
        let keys = of.key_names();
        let (name, detail) = (self.name("window"), displayable(plan.as_ref()).one_line().to_string());
        let halves = match windows.kind {
            WindowKind::Sliding { size, slide } => {
                let lengths = (size, slide, windows.lateness);
                let shape = Arc::new(WindowAggregation::new(of, time, lengths, plan.schema(), window_at));
                Halves {
                    states: Arc::clone(&shape.pane_schema),
                    first: {
                        let shape = Arc::clone(&shape);
                        Box::new(move |name, steps| {
                            let shape = Arc::clone(&shape);
                            TaskSpec::operator(name, move |_| Ok(FirstHalf::new(&shape, steps.clone())))
                        })
                    },
                    second: TaskSpec::operator(name.clone(), move |copy| {
                        SecondHalf::new(&shape, Steps::default(), copy)
                    }),
                }
            }
            WindowKind::Session { .. } if windows.lateness > 0 => return refused("late rows of session windows"),
            WindowKind::Session { gap } => {
                let shape = Arc::new(SessionAggregation::new(of, time, gap, plan.schema(), window_at));
                Halves {
                    states: Arc::clone(&shape.session_schema),
                    first: {
                        let shape = Arc::clone(&shape);
                        Box::new(move |name, steps| {
                            let shape = Arc::clone(&shape);
                            TaskSpec::operator(name, move |_| Ok(sessions::FirstHalf::new(&shape, steps.clone())))
                        })
                    },
                    second: TaskSpec::operator(name.clone(), move |copy| {
                        sessions::SecondHalf::new(&shape, Steps::default(), copy)
                    }),
                }
            }
        };
        let copies = if keys.is_empty() { 1 } else { self.copies };
        let second = halves.second.streaming().detail(detail).input("states").output("rows", plan.schema());
        let second = self.graph.add(second.copies(copies));
        for (number, branch) in input.from.into_iter().enumerate() {
            let Branch { task: from, steps, copies: beside } = branch;
            let first = (halves.first)(format!("{name}, first half {number}"), steps).streaming();
            let first = first.input("rows").output("states", Arc::clone(&halves.states)).copies(beside);
            let first = self.graph.add(first);
            self.graph.connect(from, first, Direct);
            match keys.is_empty() {
                true => self.graph.connect(first, second, Gather::to(0)),
                false => self.graph.connect(first, second, Partition::by_key(keys.clone())),
            };
        }
        let second = Branch { task: second, steps: Steps::default(), copies };
        Ok(Flowing { from: vec![second], schema: plan.schema() })
    }

    /// The rows with all their steps done.
    fn done(&mut self, rows: Flowing) -> Flowing {
        let Flowing { from, schema } = rows;
        let from = from.into_iter().map(|branch| {
            if branch.steps.is_empty() {
                return branch;
            }
            let Branch { task: from, steps, copies } = branch;
            let task = TaskSpec::operator(self.name("steps"), move |_| Ok(StepsTask(steps.clone())));
            let task = task.streaming().input("rows").output("rows", Arc::clone(&schema)).copies(copies);
            let task = self.graph.add(task);
            self.graph.connect(from, task, Direct);
            Branch { task, steps: Steps::default(), copies }
        });
        let from = from.collect();
        Flowing { from, schema }
    }

    fn connect(&mut self, rows: &Flowing, target: TaskId, copies: u32) {
        for branch in &rows.from {
            match copies {
                copies if copies == branch.copies => self.graph.connect(branch.task, target, Direct),
                1 => self.graph.connect(branch.task, target, Gather::to(0)),
                _ => self.graph.connect(branch.task, target, Partition::round_robin()),
            };
        }
    }
}
