//! Aggregations: in windows of time or of rows, or distinct keys.
//!
//! | module           | contents                                             |
//! |------------------|------------------------------------------------------|
//! | `window_query`   | an aggregation's windows, as the plan describes them |
//! | `count_windows`  | count windows                                        |
//! | `count_triggers` | windows of time that emit results by rows            |
//! | `time_windows`   | other windows of time, and sessions                  |
//! | `distinct`       | the first row of each key                            |

mod count_triggers;
mod count_windows;
mod distinct;
mod time_windows;
mod window_query;

use std::any::Any;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::sorts::sort::SortExec;
use tidemill_dataset::Result;
use tidemill_dataset::extend::grouped_by_numbers;

use self::distinct::firsts;
use self::window_query::WindowQuery;
use super::{JobLowering, RowFlow, passes, until_the_end};
use crate::time::window::{EarlyResults, WindowKind};

impl JobLowering<'_> {
    /// Lowers an aggregation by the kind of its window.
    pub(super) fn aggregate(&mut self, plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<RowFlow> {
        let lower = lower_half(plan, aggregate);
        let any: &dyn Any = lower.as_ref();
        let of_numbers = || grouped_by_numbers(lower.as_ref());
        let Some(aggregate) = any.downcast_ref::<AggregateExec>().or_else(of_numbers) else {
            return Err(until_the_end("an aggregate in parts"));
        };
        check_supported(aggregate)?;
        let Some(query) = WindowQuery::of(plan, aggregate)? else { return self.without_window(plan, aggregate) };
        match query.windows.kind {
            WindowKind::Count { size, slide, ttl } => self.count_windows(query, (size, slide), ttl),
            WindowKind::Sliding { .. } | WindowKind::Calendar(_) => match query.windows.early {
                EarlyResults::Rows(every) => self.count_triggers(query, every),
                _ => self.time_windows(query),
            },
            WindowKind::Session { gap } => self.sessions(query, gap),
        }
    }

    /// Groups without a window: the first row of each key, or groups whose keys tell when they are complete.
    fn without_window(&mut self, plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<RowFlow> {
        let input = self.below(aggregate.input())?;
        let keys: Vec<_> = aggregate.group_expr().expr().iter().map(|(key, _)| Arc::clone(key)).collect();
        if let Some(more) = firsts(aggregate) {
            return self.distinct(plan, input, &keys, more);
        }
        let times = input.times.project(&keys);
        if times.places.is_empty() {
            return Err(until_the_end(
                "a group_by without a window has no result before the end; add tm.stream.window(...) to its keys",
            ));
        }
        self.complete(plan, aggregate.input(), input, keys, times)
    }
}

/// The node that aggregates input rows: the lower one, if the aggregation is planned in two halves.
fn lower_half(plan: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Arc<dyn ExecutionPlan> {
    match aggregate.mode() {
        AggregateMode::Final | AggregateMode::FinalPartitioned => Arc::clone(skip_passing(aggregate.input())),
        _ => Arc::clone(plan),
    }
}

/// The first node from `plan` down that changes rows.
fn skip_passing(mut plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    while passes(plan) {
        plan = plan.children()[0];
    }
    plan
}

/// Rejects what streams do not support with any window.
fn check_supported(aggregate: &AggregateExec) -> Result<()> {
    let below: &dyn Any = skip_passing(aggregate.input()).as_ref();
    if below.is::<SortExec>() && aggregate.aggr_expr().iter().any(|function| !function.order_bys().is_empty()) {
        return Err(until_the_end(
            "an aggregate of ordered rows, such as array_agg(... order by ...); sort its result instead",
        ));
    }
    if !aggregate.group_expr().is_single() {
        return Err(until_the_end("grouping sets"));
    }
    Ok(())
}
