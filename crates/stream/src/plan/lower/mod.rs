//! Lowering: the plan of a query over streams becomes a graph of tasks that run until they are stopped. DataFusion
//! plans the query for one partition, as if it were a table; each node of the plan then becomes a step of a task, or a
//! task of its own.
//!
//! | module      | contents                                 |
//! |-------------|------------------------------------------|
//! | `plan`      | plans of queries, before lowering        |
//! | `source`    | sources, and tables among streams        |
//! | `join`      | joins                                    |
//! | `aggregate` | windows, and distinct keys               |
//! | `ranked`    | steps over whole groups, such as ranks   |
//! | `bsp`       | functions that all copies enter together |

mod aggregate;
mod bsp;
mod join;
mod plan;
mod ranked;
mod source;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use tidemill_dataflow::exchange::{Direct, Gather, Partition};
use tidemill_dataflow::graph::PortRef;
use tidemill_dataflow::{Graph, TaskId, TaskSpec};
use tidemill_dataset::extend::{StreamStepExec, has_stream};
use tidemill_dataset::{DataSetError, Result};

pub(crate) use self::plan::{PlannedQueries, plan};
pub(crate) use self::source::SourceTask;

use self::ranked::partitions;
use crate::operators::bsp::BspExec;
use crate::operators::process::{ProcessExec, process_task};
use crate::plan::common_subplans::PartExec;
use crate::plan::late_output::{LateTo, MakeLateSink};
use crate::plan::passing::PassingStep;
use crate::plan::table::{StreamExec, StreamOutput, StreamSink};
use crate::rows::keyed::{KeyedRows, KeyedTask};
use crate::rows::late_rows::{LATE, LateRows};
use crate::rows::steps::{RowSteps, StepsTask};
use crate::time::times::{StreamTimes, TimeColumn, TimeOf};
use crate::time::window::Micros;

/// The output port for rows.
const ROWS: &str = "rows";
/// The output port of sources for bad records.
const BAD: &str = "bad";

/// Rows between tasks: the tasks that emit them, each with the steps that have yet to be applied.
#[derive(Clone)]
struct RowFlow {
    from: Vec<PlanBranch>,
    schema: SchemaRef,
    times: StreamTimes,
    /// The indices of the sources they come from; tables do not count.
    sources: BTreeSet<usize>,
}

impl RowFlow {
    /// The output of a task.
    fn of(task: TaskId, copies: u32, schema: SchemaRef, times: StreamTimes, sources: BTreeSet<usize>) -> Self {
        RowFlow { from: vec![PlanBranch { task, steps: RowSteps::default(), copies }], schema, times, sources }
    }
}

#[derive(Clone)]
struct PlanBranch {
    task: TaskId,
    steps: RowSteps,
    /// The number of copies of the task.
    copies: u32,
}

/// A sink of a graph, and the indices of its sources.
pub(crate) struct SinkTask {
    pub sink: StreamSink,
    pub sources: BTreeSet<usize>,
}

/// The graph of a job.
pub(crate) struct LoweredJob {
    pub graph: Graph,
    pub sources: Vec<SourceTask>,
    pub sinks: Vec<SinkTask>,
    /// The names of the tasks whose rows several queries use.
    pub shared: Vec<String>,
}

/// The queries of a job, and the destinations of rows.
pub(crate) struct JobSinks<'a> {
    pub rows: &'a [StreamOutput],
    /// Where late rows go.
    pub late: &'a LateTo,
    /// Counts late rows that are dropped.
    pub left_out: &'a LateRows,
}

/// An output of late rows with a sink.
struct LateFrom {
    /// The step that they are late for.
    step: String,
    from: PlanBranch,
    schema: SchemaRef,
    sources: BTreeSet<usize>,
}

/// Builds the graph of a job.
pub(crate) struct JobLowering<'a> {
    graph: Graph,
    context: Arc<TaskContext>,
    /// The number of copies of each task without another limit.
    copies: u32,
    tasks: u32,
    /// The name that the program gives to the next stateful step, going from the top of the plan down.
    given: Option<String>,
    /// All names given by the program so far.
    names: Vec<Arc<str>>,
    sources: Vec<SourceTask>,
    /// The sinks of bad records.
    bad_sinks: Vec<SinkTask>,
    late: &'a LateRows,
    late_to: &'a LateTo,
    /// The outputs of late rows that have sinks.
    late_from: Vec<LateFrom>,
    /// The steps that can have late rows.
    late_steps: Vec<String>,
    /// The parts that several queries share.
    parts: &'a [Arc<dyn ExecutionPlan>],
    /// The flows made of each part: one, or several if a query contains the part several times.
    flowing: Vec<Vec<RowFlow>>,
    /// How many times the query being lowered has used each part.
    had: Vec<usize>,
    /// The tasks whose rows several queries use.
    shared: BTreeSet<TaskId>,
}

impl<'a> JobLowering<'a> {
    /// The graph of queries, each with its sink.
    ///
    /// # Errors
    /// `Unsupported` for a step that would have to wait for the end; `Query` if late rows have a sink, but no window
    /// can have late rows, or windows have late rows of several schemas.
    pub(crate) fn graph(job: &str, plans: &'a PlannedQueries, sinks: &JobSinks<'a>, copies: u32) -> Result<LoweredJob> {
        let (sources, bad_sinks, late_from, late_steps, shared) = Default::default();
        let mut lower = JobLowering {
            graph: Graph::new(job),
            context: Arc::clone(&plans.context),
            copies,
            tasks: 0,
            given: None,
            names: Vec::new(),
            sources,
            bad_sinks,
            late: sinks.left_out,
            late_to: sinks.late,
            late_from,
            late_steps,
            parts: &plans.parts,
            flowing: vec![Vec::new(); plans.parts.len()],
            had: Vec::new(),
            shared,
        };
        let mut all = Vec::new();
        for (plan, output) in plans.queries.iter().zip(sinks.rows) {
            lower.had = vec![0; plans.parts.len()];
            let rows = lower.node(plan).map_err(|error| of_query(error, output, sinks.rows))?;
            let rows = lower.done(rows, |lower| lower.numbered("steps"));
            lower.sink("sink", &output.1, &rows.from, &rows.schema, ROWS);
            all.push(SinkTask { sink: output.1.clone(), sources: rows.sources });
        }
        match sinks.late {
            LateTo::Nowhere => {}
            LateTo::Windows(make) => all.push(lower.late_sink(make)?),
            LateTo::Steps(steps) => {
                for (step, make) in steps {
                    all.push(lower.late_sink_of(step, make)?);
                }
            }
        }
        all.append(&mut lower.bad_sinks);
        for SourceTask { task, task_name, source, .. } in
            lower.sources.iter().filter(|source| source.lacks_event_time())
        {
            let make = Arc::clone(&source.make);
            let by = TaskSpec::source_without_time(task_name.clone(), move |copy| make(copy));
            let by = lower.source_task(by, source);
            lower.graph.replace(*task, by);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = lower.graph.tasks().find(|task| !seen.insert(*task)) {
            return Err(DataSetError::Query(format!(
                "two steps are called {twice:?}, one of them by step_name(); choose another name there"
            )));
        }
        let shared = lower.shared.iter().map(|&task| lower.graph.task_name(task).to_owned()).collect();
        Ok(LoweredJob { graph: lower.graph, sources: lower.sources, sinks: all, shared })
    }

    /// Adds the sink of late rows of all windows.
    fn late_sink(&mut self, make: &MakeLateSink) -> Result<SinkTask> {
        let all = std::mem::take(&mut self.late_from);
        let Some(LateFrom { schema, .. }) = all.first() else {
            return Err(DataSetError::Query(
                "late_output= takes rows that come too late for a window, and the query has none; those of a join have \
                 sinks by the name of the step, as in late_output={\"join 1 left\": sink}"
                    .into(),
            ));
        };
        if let Some(LateFrom { schema: other, .. }) = all.iter().find(|one| one.schema.fields() != schema.fields()) {
            let names = |schema: &SchemaRef| {
                schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
            };
            return Err(DataSetError::Query(format!(
                "late_output= takes rows of one schema, but the query has windows of rows ({}) and of rows ({}); give \
                 them the same columns before they are grouped, or a sink for each step by its name, as in \
                 late_output={{\"window 1\": sink}}",
                names(schema),
                names(other),
            )));
        }
        let sink = make(schema)?;
        let from: Vec<PlanBranch> = all.iter().map(|one| one.from.clone()).collect();
        self.sink("late rows, sink", &sink, &from, schema, LATE);
        Ok(SinkTask { sink, sources: all.iter().flat_map(|one| one.sources.iter().copied()).collect() })
    }

    /// Adds the sink of late rows of a step.
    fn late_sink_of(&mut self, step: &str, make: &MakeLateSink) -> Result<SinkTask> {
        let (all, others) =
            std::mem::take(&mut self.late_from).into_iter().partition(|one: &LateFrom| one.step == step);
        self.late_from = others;
        let all: Vec<LateFrom> = all;
        let Some(LateFrom { schema, sources, .. }) = all.first() else {
            let known = if self.late_steps.is_empty() { "none".into() } else { self.late_steps.join(", ") };
            return Err(DataSetError::Query(format!(
                "late_output= has a sink for {step:?}, for which no rows come too late; they can for: {known}"
            )));
        };
        let sink = make(schema)?;
        let from: Vec<PlanBranch> = all.iter().map(|one| one.from.clone()).collect();
        self.sink(&format!("rows late for {step}, sink"), &sink, &from, schema, LATE);
        Ok(SinkTask { sink, sources: sources.clone() })
    }

    /// Adds a sink for rows that leave tasks through a port.
    fn sink(&mut self, what: &str, sink: &StreamSink, from: &[PlanBranch], schema: &SchemaRef, port: &'static str) {
        let most = from.iter().map(|branch| branch.copies).max().unwrap_or(1);
        let copies = if sink.copies_max == 0 { most } else { most.min(sink.copies_max) };
        let make = (sink.make)(schema);
        let task = TaskSpec::sink(self.free_name(&format!("{what} {}", sink.name)), move |copy| make(copy));
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

    /// The name of a stateful step: the one given by the program, or its kind and number. Named steps are not counted,
    /// so that other steps keep their numbers when a named step is inserted before them.
    fn name(&mut self, what: &str) -> String {
        self.given.take().unwrap_or_else(|| self.numbered(what))
    }

    fn numbered(&mut self, what: &str) -> String {
        self.tasks += 1;
        format!("{what} {}", self.tasks)
    }

    /// A name that no other task has, because two sinks may have the same name.
    fn free_name(&self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 1;
        while self.graph.tasks().any(|task| task == name) {
            number += 1;
            name = format!("{wanted}, {number}");
        }
        name
    }

    fn node(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        let any: &dyn Any = plan.as_ref();
        if let Some(stream) = StreamStepExec::step_of::<StreamExec>(plan.as_ref()) {
            return self.source(stream, plan.schema());
        }
        if let Some(part) = StreamStepExec::step_of::<PartExec>(plan.as_ref()) {
            return self.part(part, plan.schema());
        }
        if passes(plan) {
            return self.node(plan.children()[0]);
        }
        match StreamStepExec::step_of::<PassingStep>(plan.as_ref()) {
            Some(PassingStep::Named(name)) => return self.named(name, plan.children()[0]),
            Some(PassingStep::Shuffle) => return self.shuffled(plan.children()[0]),
            None => {}
        }
        if any.is::<UnionExec>() {
            self.names_one("a union has several; name each before it")?;
            let times = StreamTimes { untimed: true, ..StreamTimes::default() };
            let mut all = RowFlow { from: Vec::new(), schema: plan.schema(), times, sources: BTreeSet::new() };
            for child in plan.children() {
                let rows = self.node(child)?;
                all.from.extend(rows.from);
                all.times = all.times.union(&rows.times);
                all.sources.extend(rows.sources);
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
        if let Some(process) = StreamStepExec::step_of::<ProcessExec>(plan.as_ref()) {
            return self.process(plan, process);
        }
        if let Some(bsp) = StreamStepExec::step_of::<BspExec>(plan.as_ref()) {
            return self.bsp(plan, bsp);
        }
        if let Some(of) = partitions(plan) {
            return self.ranked(plan, &of);
        }
        let mut step = RowSteps::default();
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

    /// A part that several queries share is lowered once, with all of its steps, and each query has an edge from there.
    /// If a query contains the part several times, as in a self-join, it has several instances, as it has when it runs
    /// alone.
    fn part(&mut self, exec: &PartExec, projected: SchemaRef) -> Result<RowFlow> {
        self.names_one("several queries share that step; name it where they share it, before they branch")?;
        let (part, nth) = (exec.part, self.had[exec.part]);
        self.had[part] += 1;
        let rows = match self.flowing[part].get(nth) {
            Some(rows) => {
                self.shared.extend(rows.from.iter().map(|branch| branch.task));
                rows.clone()
            }
            None => {
                let parts = self.parts;
                let rows = self.node(&parts[part])?;
                let rows = match rows.from.iter().all(|branch| branch.steps.only_choose()) {
                    true => rows,
                    // Not counted with the other steps, whose names are in checkpoints: these must not change when a
                    // query is added.
                    false => self.done(rows, |lower| lower.free_name("shared steps")),
                };
                self.flowing[part].push(rows.clone());
                rows
            }
        };
        let Some(columns) = &exec.projection else { return Ok(rows) };
        let RowFlow { mut from, schema, times, sources } = rows;
        if !columns.iter().copied().eq(0..schema.fields().len()) {
            from.iter_mut().try_for_each(|branch| branch.steps.project(columns, &schema))?;
        }
        let times = times.project(&columns_of(columns));
        Ok(RowFlow { from, schema: projected, times, sources })
    }

    /// Sends rows with their keys to the task that owns them.
    fn keyed(&mut self, rows: RowFlow, keyed: &Arc<KeyedRows>, target: PortRef, name: &str) {
        self.keyed_with_late(rows, keyed, target, name, None);
    }

    /// The same, and also sends late rows to their sink, under their original schema.
    fn keyed_with_late(
        &mut self,
        rows: RowFlow,
        keyed: &Arc<KeyedRows>,
        target: PortRef,
        name: &str,
        late_rows: Option<SchemaRef>,
    ) {
        let late = self.late.of(name);
        let sources = rows.sources.clone();
        for (number, branch) in rows.from.into_iter().enumerate() {
            let PlanBranch { task: from, steps, copies } = branch;
            let (shape, late, wanted) = (Arc::clone(keyed), late.clone(), late_rows.clone());
            let by = TaskSpec::operator(format!("{name}, keys {number}"), move |_| {
                let (shape, steps, late) = (Arc::clone(&shape), steps.clone(), late.clone());
                Ok(KeyedTask { shape, steps, now: Micros::MIN, late, late_rows: wanted.clone() })
            });
            let mut by = by.streaming().input("rows").output(ROWS, Arc::clone(&keyed.schema)).copies(copies);
            if let Some(schema) = &late_rows {
                by = by.output(LATE, Arc::clone(schema));
            }
            let by = self.graph.add(by);
            if let Some(schema) = &late_rows {
                let from = PlanBranch { task: by, steps: RowSteps::default(), copies };
                let (schema, sources) = (Arc::clone(schema), sources.clone());
                self.late_from.push(LateFrom { step: name.to_owned(), from, schema, sources });
            }
            self.graph.connect(from.port(ROWS), by, Direct);
            match keyed.keys().is_empty() {
                true => self.graph.connect(by.port(ROWS), target.clone(), Gather::to(0)),
                false => self.graph.connect(by.port(ROWS), target.clone(), keyed.partition()),
            };
        }
    }

    /// The rows below a name, which goes to the first stateful step below, or else the source.
    fn named(&mut self, name: &Arc<str>, input: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        self.names_one(&format!("it is called {name:?} already"))?;
        let alike = self.names.iter().filter(|other| *other == name);
        if alike.clone().any(|other| !Arc::ptr_eq(other, name)) {
            return Err(DataSetError::Query(format!(
                "two steps are called {name:?} by step_name(); give each a name of its own"
            )));
        }
        // A self-join contains each step of the stream twice.
        self.given = Some(match alike.count() {
            0 => name.to_string(),
            before => format!("{name}, {}", before + 1),
        });
        self.names.push(Arc::clone(name));
        self.node(input)
    }

    fn shuffled(&mut self, input: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        let rows = self.node(input)?;
        let RowFlow { from, schema, times, sources } = self.done(rows, |lower| lower.numbered("steps"));
        let task = TaskSpec::operator(self.numbered("shuffle"), |_| Ok(StepsTask(RowSteps::default())));
        let task = task.streaming().input("rows").output(ROWS, Arc::clone(&schema)).copies(self.copies);
        let task = self.graph.add(task);
        for branch in from {
            self.graph.connect(branch.task.port(ROWS), task, Partition::round_robin());
        }
        Ok(RowFlow::of(task, self.copies, schema, times, sources))
    }

    /// Rejects a name for anything but a single step.
    fn names_one(&self, but: &str) -> Result<()> {
        let Some(name) = &self.given else { return Ok(()) };
        Err(DataSetError::Query(format!(
            "step_name({name:?}) names the last step that keeps something, or a source: {but}"
        )))
    }

    /// [`JobLowering::node`] for the input of a stateful step, which has itself taken the given name.
    fn below(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        let given = self.given.take();
        let rows = self.node(plan)?;
        self.given = given;
        Ok(rows)
    }

    /// The same for a step that emits results when a time has passed.
    fn timed(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        let rows = self.below(plan)?;
        rows.sources.iter().for_each(|&source| self.sources[source].waited = true);
        Ok(rows)
    }

    /// A keyed function of the program.
    fn process(&mut self, plan: &Arc<dyn ExecutionPlan>, exec: &ProcessExec) -> Result<RowFlow> {
        let rows = match exec.query.waits {
            true => self.timed(plan.children()[0])?,
            false => self.below(plan.children()[0])?,
        };
        let times = after_step(plan, &rows);
        let keyed = Arc::new(KeyedRows::new(&rows.schema, columns_of(&exec.query.keys), false, None)?);
        // State is restored by this name, regardless of the function's name.
        let name = self.name("process");
        let process = exec.clone();
        let (shape, schema) = (Arc::clone(&keyed), Arc::clone(&rows.schema));
        let (state, sources) = (process.query.state(&keyed), rows.sources.clone());
        let task = TaskSpec::operator(name.clone(), move |copy| process_task(&process, &shape, &schema, copy));
        let task =
            task.streaming().state(state).detail(exec.query.name.clone()).input("rows").output(ROWS, plan.schema());
        let task = self.graph.add(task.copies(self.copies));
        self.keyed(rows, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, self.copies, plan.schema(), times, sources))
    }

    /// The rows with all of their steps applied, in tasks named by `name`.
    fn done(&mut self, rows: RowFlow, name: impl Fn(&mut Self) -> String) -> RowFlow {
        let RowFlow { from, schema, times, sources } = rows;
        let from = from.into_iter().map(|branch| {
            if branch.steps.is_empty() {
                return branch;
            }
            let PlanBranch { task: from, steps, copies } = branch;
            let task = TaskSpec::operator(name(self), move |_| Ok(StepsTask(steps.clone())));
            let task = task.streaming().input("rows").output(ROWS, Arc::clone(&schema)).copies(copies);
            let task = self.graph.add(task);
            self.graph.connect(from.port(ROWS), task, Direct);
            PlanBranch { task, steps: RowSteps::default(), copies }
        });
        let from = from.collect();
        RowFlow { from, schema, times, sources }
    }
}

/// Adds the name of the query to an error, if there are several queries.
fn of_query(error: DataSetError, (_, sink): &StreamOutput, all: &[StreamOutput]) -> DataSetError {
    if all.len() == 1 { error } else { error.of(&format!("the query of the sink {}", sink.name)) }
}

/// Whether a node only changes how rows are partitioned.
fn passes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any: &dyn Any = plan.as_ref();
    any.is::<CoalescePartitionsExec>() || any.is::<RepartitionExec>() || any.is::<CooperativeExec>()
}

/// Columns as expressions.
fn columns_of(columns: &[usize]) -> Vec<Arc<dyn PhysicalExpr>> {
    columns.iter().map(|&column| Arc::new(Column::new("", column)) as _).collect()
}

/// The expressions that a projection or a filter computes from its input rows. `None` for other steps.
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

/// The time columns after a step.
fn after_step(plan: &Arc<dyn ExecutionPlan>, rows: &RowFlow) -> StreamTimes {
    if let Some(exprs) = chosen(plan) {
        return rows.times.project(&exprs);
    }
    // For a function of the program, or for unnesting: columns with the same name and type are considered unchanged.
    let schema = plan.schema();
    let same = |of: &TimeOf| {
        let field = rows.schema.field(of.place.column);
        let (at, found) = schema.column_with_name(field.name())?;
        let place = TimeColumn { column: at, ..of.place.clone() };
        (found.data_type() == field.data_type()).then_some(TimeOf { place, behind: of.behind })
    };
    StreamTimes { places: rows.times.places.iter().filter_map(same).collect(), ..rows.times.clone() }
}

const SORT: &str =
    "a sort; rank the rows of each window instead, by tm.functions.row_number().over(\"window_end\", order_by=...)";

fn until_the_end(what: &str) -> DataSetError {
    DataSetError::Unsupported(format!("on a stream, which does not end: {what}"))
}

/// Names a step that has no result before the end, and the alternative.
fn waiting(plan: &Arc<dyn ExecutionPlan>) -> String {
    let any: &dyn Any = plan.as_ref();
    if any.is::<SortExec>() || any.is::<SortPreservingMergeExec>() {
        SORT.into()
    } else if any.is::<GlobalLimitExec>() || any.is::<LocalLimitExec>() {
        "a limit; stop_when= of write_stream ends a job".into()
    } else if any.is::<CrossJoinExec>() || any.is::<NestedLoopJoinExec>() {
        "a join without an equality between columns of the two sides".into()
    } else {
        format!("a step that has no result before the end, {}", plan.name())
    }
}
