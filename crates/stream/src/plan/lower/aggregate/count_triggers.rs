//! Windows of time that emit results by rows.

use std::sync::Arc;

use tidemill_dataflow::TaskSpec;
use tidemill_dataset::Result;

use super::time_windows::assigner;
use super::window_query::WindowQuery;
use crate::operators::count_triggers::{TriggeredAggregation, TriggeredTask};
use crate::plan::lower::{JobLowering, ROWS, RowFlow, until_the_end};
use crate::rows::late_rows::LATE;

impl JobLowering<'_> {
    /// Each `every` rows of a window give a result. It depends on which rows these are, so rows are not aggregated
    /// before they reach the task that owns their key.
    pub(super) fn count_triggers(&mut self, query: WindowQuery<'_>, every: i64) -> Result<RowFlow> {
        let input = self.timed(query.aggregate.input())?;
        let behind = query.behind(&input)?;
        if query.windows.lateness > 0 {
            return Err(until_the_end(
                "windows other than sessions that both take late rows (allowed_lateness=) and give results by rows \
                 (emit_early_rows=)",
            ));
        }
        let spans = assigner(&query)?;
        let times = query.result_times(&input, behind, Some(&spans));
        let name = self.name("window");
        let late_rows = self.late_output(&query, &input, &name)?;
        let keyed = match &late_rows {
            Some(late) => Arc::clone(&late.keyed),
            None => Arc::new(query.keyed_rows(&input.schema)?),
        };
        let mut keys = query.keys();
        keys.insert(0, TriggeredAggregation::window_key());
        let shape = TriggeredAggregation {
            of: query.groups(keys, &input.schema)?,
            time: Arc::clone(&query.time),
            behind,
            spans,
            every,
            output: query.plan.schema(),
            window_at: query.window_at,
            late: self.late.of(&name),
            late_rows,
        };
        let state = shape.state();
        let late = shape.late_rows.as_ref().map(|late| Arc::clone(&late.schema));
        let copies = if keyed.keys().is_empty() { 1 } else { self.copies };
        let shape = Arc::new(shape);
        let task = TaskSpec::operator(name.clone(), move |copy| TriggeredTask::new(&shape, copy)).streaming();
        let task = task.state(state).detail(query.detail()).input("rows");
        let mut task = task.output(ROWS, query.plan.schema()).copies(copies);
        if let Some(schema) = &late {
            task = task.output(LATE, Arc::clone(schema));
        }
        let task = self.graph.add(task);
        let rows = RowFlow::of(task, copies, query.plan.schema(), times, input.sources.clone());
        self.keyed(input, &keyed, task.into(), &name);
        self.late_from_window(&name, &rows, late);
        Ok(rows)
    }
}
