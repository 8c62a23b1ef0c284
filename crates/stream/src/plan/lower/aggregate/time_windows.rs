//! Windows of time and sessions, aggregated in two halves: where the rows are, then at the owner of their key.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_dataflow::TaskSpec;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::exchange::{Direct, Gather, Partition};
use tidemill_dataset::{DataSetError, Result};

use super::window_query::WindowQuery;
use crate::operators::sessions::{MergedSessions, PartialSessions, SessionAggregation, SessionTimes};
use crate::operators::time_windows::{MergedWindows, PartialWindows, WindowAggregation};
use crate::plan::lower::{JobLowering, LateFrom, PlanBranch, ROWS, RowFlow};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::{LATE, LateOutput};
use crate::rows::steps::RowSteps;
use crate::time::times::StreamTimes;
use crate::time::window::{EarlyResults, Micros, WindowKind};
use crate::time::window_assigner::WindowAssigner;

/// The two tasks of a windowed aggregation.
struct WindowTasks {
    name: String,
    keys: Vec<String>,
    /// The rows between the two tasks.
    parts: SchemaRef,
    first: Box<dyn Fn(String, RowSteps) -> TaskSpec>,
    second: TaskSpec,
    /// The state of the second task.
    state: StateSchema,
}

impl WindowTasks {
    /// Tasks for windows of time. `name` is the second one's.
    fn of_time(shape: Arc<WindowAggregation>, name: &str) -> Self {
        WindowTasks {
            name: name.to_owned(),
            keys: shape.of.key_names(),
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

    /// Tasks for sessions.
    fn of_sessions(shape: Arc<SessionAggregation>, name: &str) -> Self {
        WindowTasks {
            name: name.to_owned(),
            keys: shape.of.key_names(),
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

/// Assigns rows to windows of time.
pub(super) fn assigner(query: &WindowQuery<'_>) -> Result<WindowAssigner> {
    let spans = match query.windows.kind.clone() {
        WindowKind::Sliding { size, slide } => WindowAssigner::sliding(size, slide),
        WindowKind::Calendar(calendar) => WindowAssigner::calendar(calendar)?,
        kind => return Err(DataSetError::Internal(format!("windows {kind:?} of time"))),
    };
    Ok(spans.with_step(query.early_step()))
}

impl JobLowering<'_> {
    /// Sliding, tumbling and calendar windows.
    pub(super) fn time_windows(&mut self, query: WindowQuery<'_>) -> Result<RowFlow> {
        let input = self.timed(query.aggregate.input())?;
        let behind = query.behind(&input)?;
        let spans = assigner(&query)?;
        let times = query.result_times(&input, behind, Some(&spans));
        let name = self.name("window");
        let late_rows = self.late_output(&query, &input, &name)?;
        let late_schema = late_rows.as_ref().map(|late| Arc::clone(&late.schema));
        let keyed = late_rows.as_ref().map(|late| Arc::clone(&late.keyed));
        let of = query.groups(query.keys(), &input.schema)?;
        let time = (Arc::clone(&query.time), behind);
        let results = (query.windows.lateness, query.windows.early);
        let late = (self.late.of(&name), late_rows);
        let output = query.plan.schema();
        let shape = WindowAggregation::new(of, time, spans, results, output, query.window_at, late);
        let tasks = WindowTasks::of_time(Arc::new(shape), &name);
        Ok(self.two_halves(&query, input, tasks, times, keyed, late_schema))
    }

    /// Sessions, which end after `gap` without a row.
    pub(super) fn sessions(&mut self, query: WindowQuery<'_>, gap: Micros) -> Result<RowFlow> {
        let input = self.timed(query.aggregate.input())?;
        let behind = query.behind(&input)?;
        if query.early_step().is_some() {
            return Err(DataSetError::Unsupported(
                "sessions with early results by event time (emit_early_event_time=); use early results by the clock \
                 (emit_early_every=) or by rows (emit_early_rows=)"
                    .into(),
            ));
        }
        let times = query.result_times(&input, behind, None);
        let name = self.name("window");
        let late_rows = self.late_output(&query, &input, &name)?;
        let late_schema = late_rows.as_ref().map(|late| Arc::clone(&late.schema));
        // If the result depends on which rows arrive, rows go unaggregated to the task that owns their key.
        let keyed = match (&late_rows, query.windows.early) {
            (Some(late), _) => Some(Arc::clone(&late.keyed)),
            (None, EarlyResults::Rows(_)) => Some(Arc::new(query.keyed_rows(&input.schema)?)),
            (None, _) => None,
        };
        let of = query.groups(query.keys(), &input.schema)?;
        let (lateness, early) = (query.windows.lateness, query.windows.early);
        let of_sessions = SessionTimes { time: Arc::clone(&query.time), behind, gap, lateness, early };
        let output = (query.plan.schema(), query.window_at);
        let late = (self.late.of(&name), late_rows);
        let shape = SessionAggregation::new(of, of_sessions, output, keyed.clone(), late);
        let tasks = WindowTasks::of_sessions(Arc::new(shape), &name);
        Ok(self.two_halves(&query, input, tasks, times, keyed, late_schema))
    }

    /// The output for late rows of a window, if they are wanted.
    pub(super) fn late_output(
        &mut self,
        query: &WindowQuery<'_>,
        input: &RowFlow,
        name: &str,
    ) -> Result<Option<LateOutput>> {
        if query.late.is_empty() {
            return Ok(None);
        }
        self.late_steps.push(name.to_owned());
        if !self.late_to.takes(name) {
            return Ok(None);
        }
        Ok(Some(LateOutput::new(query.keyed_rows(&input.schema)?, query.late.clone(), &input.schema)?))
    }

    /// Adds both tasks. With `keyed`, rows go directly to the second, and there is no first.
    fn two_halves(
        &mut self,
        query: &WindowQuery<'_>,
        input: RowFlow,
        tasks: WindowTasks,
        times: StreamTimes,
        keyed: Option<Arc<KeyedRows>>,
        late: Option<SchemaRef>,
    ) -> RowFlow {
        let WindowTasks { name, keys, parts, first, second, state } = tasks;
        let copies = if keys.is_empty() { 1 } else { self.copies };
        let output = query.plan.schema();
        let second = second.streaming().state(state).detail(query.detail());
        let mut second = second.input("parts").output(ROWS, Arc::clone(&output));
        if let Some(schema) = &late {
            second = second.output(LATE, Arc::clone(schema));
        }
        let second = self.graph.add(second.copies(copies));
        let rows = RowFlow::of(second, copies, output, times, input.sources.clone());
        if let Some(keyed) = keyed {
            self.keyed(input, &keyed, second.into(), &name);
            self.late_from_window(&name, &rows, late);
            return rows;
        }
        for (number, branch) in input.from.into_iter().enumerate() {
            let PlanBranch { task: from, steps, copies: beside } = branch;
            let first = first(format!("{name}, first half {number}"), steps).streaming();
            let first = first.input("rows").output("parts", Arc::clone(&parts)).copies(beside);
            let first = self.graph.add(first);
            self.graph.connect(from.port(ROWS), first, Direct);
            if keys.is_empty() {
                self.graph.connect(first, second, Gather::to(0));
            } else {
                self.graph.connect(first, second, Partition::by_key(keys.clone()));
            }
        }
        rows
    }

    /// Registers the late output of a window, if late rows are wanted and the window itself emits them.
    pub(super) fn late_from_window(&mut self, step: &str, window: &RowFlow, schema: Option<SchemaRef>) {
        let Some(schema) = schema else { return };
        self.late_from.extend(window.from.iter().map(|branch| LateFrom {
            step: step.to_owned(),
            from: branch.clone(),
            schema: Arc::clone(&schema),
            sources: window.sources.clone(),
        }));
    }
}
