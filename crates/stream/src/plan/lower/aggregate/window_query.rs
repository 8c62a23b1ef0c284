//! The windows of an aggregation, as the plan describes them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::fmt_sql;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use tidemill_dataset::{DataSetError, Result};

use crate::plan::lower::RowFlow;
use crate::rows::keyed::KeyedRows;
use crate::state::groups::GroupAggregation;
use crate::time::times::{StreamTimes, TimeColumn, TimeOf};
use crate::time::window::{EarlyResults, Micros, WindowCall, WindowFunction, WindowRule};
use crate::time::window_assigner::WindowAssigner;

/// A key of a group, and its name.
type GroupKey = (Arc<dyn PhysicalExpr>, String);

/// An aggregation with a window among its keys.
pub(super) struct WindowQuery<'a> {
    /// The node that gives its result.
    pub plan: &'a Arc<dyn ExecutionPlan>,
    pub aggregate: &'a AggregateExec,
    /// The position of the window among the keys.
    pub window_at: usize,
    pub windows: WindowRule,
    /// The time of a row.
    pub time: Arc<dyn PhysicalExpr>,
    /// The columns of late rows, if they are wanted.
    pub late: Vec<Arc<dyn PhysicalExpr>>,
}

impl<'a> WindowQuery<'a> {
    /// `None` if no key is a window. If several are, the first one counts.
    pub(super) fn of(plan: &'a Arc<dyn ExecutionPlan>, aggregate: &'a AggregateExec) -> Result<Option<Self>> {
        let mut found = None;
        for (window_at, (expr, _)) in aggregate.group_expr().expr().iter().enumerate() {
            if let Some(WindowCall { windows, time, late }) = WindowFunction::of_call(expr)? {
                found.get_or_insert(WindowQuery { plan, aggregate, window_at, windows, time, late });
            }
        }
        Ok(found)
    }

    /// The keys without the window.
    pub(super) fn keys(&self) -> Vec<GroupKey> {
        let groups = self.aggregate.group_expr().expr().iter().enumerate();
        groups.filter(|(at, _)| *at != self.window_at).map(|(_, key)| key.clone()).collect()
    }

    /// The aggregation of each group with these keys.
    pub(super) fn groups(&self, keys: Vec<GroupKey>, input: &SchemaRef) -> Result<GroupAggregation> {
        let (functions, filters) = (self.aggregate.aggr_expr().to_vec(), self.aggregate.filter_expr().to_vec());
        Ok(GroupAggregation::new(keys, functions, filters, input)?)
    }

    /// The rows as sent to the task that owns their key.
    pub(super) fn keyed_rows(&self, input: &SchemaRef) -> Result<KeyedRows> {
        let keys = self.keys().into_iter().map(|(key, _)| key).collect();
        Ok(KeyedRows::new(input, keys, false, None)?)
    }

    /// A description of the task for users.
    pub(super) fn detail(&self) -> String {
        displayable(self.plan.as_ref()).one_line().to_string()
    }

    /// How far future times may lie behind the watermark.
    ///
    /// # Errors
    /// `Unsupported` if that is unknown.
    pub(super) fn behind(&self, input: &RowFlow) -> Result<Micros> {
        input.times.behind(&self.time, &input.schema).ok_or_else(|| {
            let of = fmt_sql(self.time.as_ref());
            let why = if input.times.lost {
                "windows of rows, and joins without a time bound, give rows that may have any time"
            } else {
                "it is not the column that time= of the source names, and does not follow it"
            };
            DataSetError::Unsupported(format!(
                "a window of {of}: nothing says how far it lags behind the stream's time, so rows would be late \
                 ({why}). Name it in time=, or give its maximum lag: tm.stream.bounded_delay(..., \"1h\") in Python, \
                 behind({of}, '1 hour') in SQL"
            ))
        })
    }

    /// The step of event time at which windows give early results.
    pub(super) fn early_step(&self) -> Option<Micros> {
        if let EarlyResults::Time(step) = self.windows.early { Some(step) } else { None }
    }

    /// The times in the results. A window emits its results before the watermark passes its end, and corrections within
    /// the lateness. The start of a window is known from its end only if `spans` assigns the windows.
    pub(super) fn result_times(&self, input: &RowFlow, behind: Micros, spans: Option<&WindowAssigner>) -> StreamTimes {
        let field = |name: &str, behind: Micros| TimeOf {
            place: TimeColumn { column: self.window_at, field: Some(name.to_owned()) },
            behind,
        };
        let end = behind.saturating_add(self.windows.lateness - 1);
        let start = spans.map(|spans| field("start", end.saturating_add(spans.longest())));
        let places = [field("end", end)].into_iter().chain(start).collect();
        StreamTimes { places, untimed: input.times.untimed, lost: false }
    }
}
