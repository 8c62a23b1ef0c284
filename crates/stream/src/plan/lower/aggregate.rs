//! Groups: in windows of time or of rows, or each key once.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use tidemill_dataflow::TaskSpec;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::exchange::{Direct, Gather, Partition};
use tidemill_dataset::extend::{DistinctTtl, grouped_by_numbers};
use tidemill_dataset::{DataSetError, Result};

use super::{JobLowering, LateFrom, PlanBranch, ROWS, RowFlow, passes, until_the_end};
use crate::operators::count_triggers::{TriggeredAggregation, TriggeredTask};
use crate::operators::count_windows::{CountAggregation, CountTask, KeyTtl};
use crate::operators::distinct::{DistinctQuery, DistinctTask};
use crate::operators::sessions::{MergedSessions, PartialSessions, SessionAggregation, SessionTimes};
use crate::operators::time_windows::{MergedWindows, PartialWindows, WindowAggregation};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::{LATE, LateOutput};
use crate::rows::steps::RowSteps;
use crate::state::groups::GroupAggregation;
use crate::time::times::{StreamTimes, TimeColumn, TimeOf};
use crate::time::window::{EarlyResults, Micros, WindowCall, WindowFunction, WindowKind};
use crate::time::window_assigner::WindowAssigner;

/// The two tasks of a windowed aggregation.
struct WindowTasks {
    /// What goes from the first to the second.
    parts: SchemaRef,
    first: Box<dyn Fn(String, RowSteps) -> TaskSpec>,
    second: TaskSpec,
    /// What the second keeps.
    state: StateSchema,
}

impl WindowTasks {
    /// For windows of time. `name` is the second task's.
    fn of_time(shape: Arc<WindowAggregation>, name: &str) -> Self {
        WindowTasks {
            parts: Arc::clone(&shape.part_schema),
            state: shape.state(),
            first: {
                let shape = Arc::clone(&shape);
                Box::new(move |name, steps| {
                    let shape = Arc::clone(&shape);
                    TaskSpec::operator(name, move |copy| Ok(PartialWindows::new(&shape, steps.clone(), copy)))
                })
            },
            second: TaskSpec::operator(name.to_owned(), move |copy| {
                MergedWindows::new(&shape, RowSteps::default(), copy)
            }),
        }
    }

    /// For sessions.
    fn of_sessions(shape: Arc<SessionAggregation>, name: &str) -> Self {
        WindowTasks {
            parts: Arc::clone(&shape.part_schema),
            state: shape.state(),
            first: {
                let shape = Arc::clone(&shape);
                Box::new(move |name, steps| {
                    let shape = Arc::clone(&shape);
                    TaskSpec::operator(name, move |_| Ok(PartialSessions::new(&shape, steps.clone())))
                })
            },
            second: TaskSpec::operator(name.to_owned(), move |copy| MergedSessions::new(&shape, copy)),
        }
    }
}

/// What an aggregation that takes the first row of each group wants of it beside its keys, if it is one.
fn firsts(aggregate: &AggregateExec) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let first = |(function, filter): (&Arc<AggregateFunctionExpr>, &Option<Arc<dyn PhysicalExpr>>)| {
        let any = function.fun().name() == "first_value" && function.order_bys().is_empty() && filter.is_none();
        function.expressions().into_iter().next().filter(|_| any)
    };
    aggregate.aggr_expr().iter().zip(aggregate.filter_expr()).map(first).collect()
}

impl JobLowering<'_> {
    pub(super) fn aggregate(&mut self, plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<RowFlow> {
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
        let of_numbers = || grouped_by_numbers(lower.as_ref());
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
                "an aggregate of ordered rows, such as array_agg(... order by ...); sort its result instead",
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
        let goes_by_time = |call: &WindowCall| !matches!(call.windows.kind, WindowKind::Count { ttl: None, .. });
        let input = match found.as_ref().is_some_and(|(_, call)| goes_by_time(call)) {
            true => self.timed(aggregate.input())?,
            false => self.below(aggregate.input())?,
        };
        let Some((window_at, WindowCall { windows, time, late })) = found else {
            let keys: Vec<_> = groups.iter().map(|(key, _)| Arc::clone(key)).collect();
            if let Some(more) = firsts(aggregate) {
                return self.distinct(plan, input, &keys, more);
            }
            let times = input.times.project(&keys);
            if times.places.is_empty() {
                return refused(
                    "a group_by without a window has no result before the end; add tm.stream.window(...) to its keys",
                );
            }
            return self.complete(plan, aggregate.input(), input, keys, times);
        };
        if let WindowKind::Count { size, slide, ttl: None } = windows.kind {
            return self.counted(plan, aggregate, input, window_at, (size, slide, None));
        }
        let Some(behind) = input.times.behind(&time, &input.schema) else {
            let of = fmt_sql(time.as_ref());
            let why = match input.times.lost {
                true => "windows of rows, and joins without a time bound, give rows that may have any time",
                false => "it is not the column that time= of the source names, and does not follow it",
            };
            return Err(DataSetError::Unsupported(format!(
                "a window of {of}: nothing says how far it lags behind the stream's time, so rows would be late \
                 ({why}). Name it in time=, or give its maximum lag: tm.stream.bounded_delay(..., \"1h\") in Python, \
                 behind({of}, '1 hour') in SQL"
            )));
        };
        if let WindowKind::Count { size, slide, ttl: Some(ttl) } = windows.kind {
            let ttl = Some(KeyTtl { time, behind, ttl });
            return self.counted(plan, aggregate, input, window_at, (size, slide, ttl));
        }
        let step = if let EarlyResults::Time(step) = windows.early { Some(step) } else { None };
        let spans = match windows.kind.clone() {
            WindowKind::Sliding { size, slide } => Some(WindowAssigner::sliding(size, slide).with_step(step)),
            WindowKind::Calendar(calendar) => Some(WindowAssigner::calendar(calendar)?.with_step(step)),
            WindowKind::Session { .. } if step.is_some() => {
                return Err(DataSetError::Unsupported(
                    "sessions with early results by event time (emit_early_event_time=): they have them by the clock \
                     (emit_early_every=) or by rows (emit_early_rows=)"
                        .into(),
                ));
            }
            WindowKind::Count { .. } | WindowKind::Session { .. } => None,
        };
        let longest = spans.as_ref().map(WindowAssigner::longest);
        // What comes of a window comes before the watermark passes its end, corrections within the lateness.
        let field = |name: &str, behind: Micros| TimeOf {
            place: TimeColumn { column: window_at, field: Some(name.to_owned()) },
            behind,
        };
        let end = behind.saturating_add(windows.lateness - 1);
        let mut places = vec![field("end", end)];
        places.extend(longest.map(|longest| field("start", end.saturating_add(longest))));
        let times = StreamTimes { places, untimed: input.times.untimed, lost: false };
        let mut keys: Vec<_> =
            groups.iter().enumerate().filter(|(at, _)| *at != window_at).map(|(_, key)| key.clone()).collect();
        let functions = aggregate.aggr_expr().to_vec();
        let keyed =
            || KeyedRows::new(&input.schema, keys.iter().map(|(key, _)| Arc::clone(key)).collect(), false, None);
        let name = self.name("window");
        if !late.is_empty() {
            self.late_steps.push(name.clone());
        }
        let late_rows = match !late.is_empty() && self.late_to.takes(&name) {
            true => Some(LateOutput::new(keyed()?, late, &input.schema)?),
            false => None,
        };
        // Where it matters which rows they are, they come as they are to whoever owns their key.
        let keyed = match (&late_rows, windows.early) {
            (Some(of), _) => Some(Arc::clone(&of.keyed)),
            (None, EarlyResults::Rows(_)) => Some(Arc::new(keyed()?)),
            (None, _) => None,
        };
        let spans = match (windows.early, spans, &keyed) {
            (EarlyResults::Rows(_), Some(_), _) if windows.lateness > 0 => {
                return refused(
                    "windows, but for sessions, that take late rows (allowed_lateness=) and give results by rows (emit_early_rows=)",
                );
            }
            (EarlyResults::Rows(every), Some(spans), Some(keyed)) => {
                let keyed = Arc::clone(keyed);
                keys.insert(0, TriggeredAggregation::window_key());
                let of = GroupAggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
                let (output, late) = (plan.schema(), self.late.of(&name));
                let shape =
                    TriggeredAggregation { of, time, behind, spans, every, keyed, output, window_at, late, late_rows };
                return Ok(self.triggered(plan, input, shape, &name, times));
            }
            (_, spans, _) => spans,
        };
        let late_schema = late_rows.as_ref().map(|of| Arc::clone(&of.schema));
        let of = GroupAggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
        let keys = of.key_names();
        let detail = displayable(plan.as_ref()).one_line().to_string();
        let late = (self.late.of(&name), late_rows);
        let halves = match (windows.kind, spans) {
            (_, Some(spans)) => {
                let given = (windows.lateness, windows.early);
                let time = (time, behind);
                let shape = WindowAggregation::new(of, time, spans, given, plan.schema(), window_at, late);
                WindowTasks::of_time(Arc::new(shape), &name)
            }
            (WindowKind::Session { gap }, _) => {
                let (lateness, early) = (windows.lateness, windows.early);
                let of_sessions = SessionTimes { time, behind, gap, lateness, early };
                let output = (plan.schema(), window_at);
                let shape = SessionAggregation::new(of, of_sessions, output, keyed.clone(), late);
                WindowTasks::of_sessions(Arc::new(shape), &name)
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
        let rows = RowFlow::of(second, copies, plan.schema(), times, input.sources.clone());
        if let Some(keyed) = keyed {
            self.keyed(input, &keyed, second.into(), &name);
            self.late_from_window(&name, &rows, late_schema);
        } else {
            for (number, branch) in input.from.into_iter().enumerate() {
                let PlanBranch { task: from, steps, copies: beside } = branch;
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
        Ok(rows)
    }

    /// Late rows of a window leave it, if they are wanted, where its results do.
    fn late_from_window(&mut self, step: &str, window: &RowFlow, schema: Option<SchemaRef>) {
        let Some(schema) = schema else { return };
        self.late_from.extend(window.from.iter().map(|branch| LateFrom {
            step: step.to_owned(),
            from: branch.clone(),
            schema: Arc::clone(&schema),
            sources: window.sources.clone(),
        }));
    }

    /// An aggregation of windows that gives results by rows.
    fn triggered(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        input: RowFlow,
        shape: TriggeredAggregation,
        name: &str,
        times: StreamTimes,
    ) -> RowFlow {
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
        let rows = RowFlow::of(task, copies, plan.schema(), times, input.sources.clone());
        self.keyed(input, &keyed, task.into(), name);
        self.late_from_window(name, &rows, late);
        rows
    }

    /// An aggregation of windows that are so many rows of a key.
    fn counted(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        aggregate: &AggregateExec,
        input: RowFlow,
        window_at: usize,
        (size, slide, ttl): (i64, i64, Option<KeyTtl>),
    ) -> Result<RowFlow> {
        let groups = aggregate.group_expr().expr().iter().enumerate().filter(|(at, _)| *at != window_at);
        let keys: Vec<_> = groups.map(|(_, key)| key.clone()).collect();
        let exprs = keys.iter().map(|(key, _)| Arc::clone(key)).collect();
        let keyed = KeyedRows::new(&input.schema, exprs, false, None)?;
        let functions = aggregate.aggr_expr().to_vec();
        let of = GroupAggregation::new(keys, functions, aggregate.filter_expr().to_vec(), &input.schema)?;
        let copies = if of.keys.is_empty() { 1 } else { self.copies };
        let name = self.name("window");
        let untimed = self.late.of(&name);
        let lengths = (size, slide);
        let shape = Arc::new(CountAggregation::new(of, lengths, ttl, keyed, (plan.schema(), window_at), untimed));
        let detail = displayable(plan.as_ref()).one_line().to_string();
        let (keyed, state) = (Arc::clone(&shape.keyed), shape.state());
        let task = TaskSpec::operator(name.clone(), move |copy| CountTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(copies);
        let task = self.graph.add(task);
        // Which time the rows of a window have had, nobody knows.
        let times = StreamTimes { places: Vec::new(), untimed: input.times.untimed, lost: !input.times.untimed };
        let sources = input.sources.clone();
        self.keyed(input, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, copies, plan.schema(), times, sources))
    }

    /// Each key once.
    fn distinct(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        rows: RowFlow,
        groups: &[Arc<dyn PhysicalExpr>],
        more: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<RowFlow> {
        let gives: Vec<_> = groups.iter().cloned().chain(more).collect();
        let keys: Vec<_> = groups.iter().filter(|key| DistinctTtl::of(key).is_none()).cloned().collect();
        let ttl = groups.iter().find_map(DistinctTtl::of);
        let ttl = match (ttl, rows.times.places.first()) {
            (Some(ttl), Some(time)) => Some((time.clone(), ttl)),
            (Some(_), None) => {
                return Err(DataSetError::Unsupported(
                    "distinct with ttl= on a stream whose rows have no event time: set time= on its source, and keep \
                     that column"
                        .into(),
                ));
            }
            (None, _) => None,
        };
        let of_keys = if ttl.is_some() { Vec::new() } else { rows.times.project(&keys).places };
        let times = rows.times.project(&gives);
        let late = rows.times.places.first().filter(|_| !of_keys.is_empty()).cloned();
        let keyed = Arc::new(KeyedRows::new(&rows.schema, keys, false, late)?);
        let (name, detail) = (self.name("distinct"), displayable(plan.as_ref()).one_line().to_string());
        let untimed = self.late.of(&name);
        let shape =
            DistinctQuery { keyed: Arc::clone(&keyed), times: of_keys, ttl, untimed, gives, output: plan.schema() };
        let shape = Arc::new(shape);
        let (state, sources) = (shape.state(), rows.sources.clone());
        let task =
            TaskSpec::operator(name.clone(), move |copy| DistinctTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(self.copies);
        let task = self.graph.add(task);
        self.keyed(rows, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, self.copies, plan.schema(), times, sources))
    }
}
