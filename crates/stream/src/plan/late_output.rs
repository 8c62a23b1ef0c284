//! Where late rows go: to separate sinks, if the job has them. A query's plan contains only the columns that it uses,
//! so a rule adds all other columns to the window's call or to the join's condition, which the planner does not change.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, Join, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use tidemill_dataset::DataSetError;
use tidemill_dataset::extend::reads_stream;
use tidemill_dataset::extend::window_names::is_time_window;

use crate::plan::common_subplans::PartTable;
use crate::plan::passing::PassingTable;
use crate::plan::table::StreamSink;
use crate::rows::late_rows::LateColumns;

/// Makes the sink for late rows, given their schema.
pub type MakeLateSink = Arc<dyn Fn(&SchemaRef) -> std::result::Result<StreamSink, DataSetError> + Send + Sync>;

/// Where late rows go.
#[derive(Clone, Default)]
pub enum LateTo {
    /// They are dropped and counted.
    #[default]
    Nowhere,
    /// One sink for the late rows of all windows over input rows, which must have the same schema.
    Windows(MakeLateSink),
    /// A sink for each named step: a window, or a side of a join.
    Steps(BTreeMap<String, MakeLateSink>),
}

/// The prefix of the names of joins.
pub(crate) const JOIN: &str = "join";

impl LateTo {
    /// Whether late rows of this step have a sink.
    pub(crate) fn takes(&self, step: &str) -> bool {
        match self {
            LateTo::Nowhere => false,
            LateTo::Windows(_) => !step.starts_with(JOIN),
            LateTo::Steps(steps) => steps.contains_key(step),
        }
    }

    /// The rule that makes steps keep all columns of their rows, if it is needed.
    pub(crate) fn rule(&self) -> Option<KeepLateRows> {
        match self {
            LateTo::Nowhere => None,
            LateTo::Windows(_) => Some(KeepLateRows { windows: true, joins: false }),
            LateTo::Steps(steps) => {
                let joins = steps.keys().any(|step| step.starts_with(JOIN));
                Some(KeepLateRows { windows: steps.keys().any(|step| !step.starts_with(JOIN)), joins })
            }
        }
    }
}

/// Adds all columns of the input to the calls of windows and the conditions of joins.
#[derive(Debug)]
pub(crate) struct KeepLateRows {
    windows: bool,
    joins: bool,
}

impl AnalyzerRule for KeepLateRows {
    fn name(&self) -> &'static str {
        "keep_late_rows"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| match node {
            // Windows over the results of other windows do not take rows from outside.
            LogicalPlan::Aggregate(aggregate)
                if self.windows && aggregate.group_expr.iter().any(is_time_window) && !has_window(&aggregate.input) =>
            {
                let columns: Vec<Expr> = aggregate.input.schema().columns().into_iter().map(Expr::Column).collect();
                let keys =
                    aggregate.group_expr.into_iter().map(|key| with_columns(key, &columns)).collect::<Result<_>>()?;
                let aggregate = Aggregate::try_new(aggregate.input, keys, aggregate.aggr_expr)?;
                Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
            }
            LogicalPlan::Join(join)
                if self.joins
                    && !join.on.is_empty()
                    && [&join.left, &join.right].into_iter().all(|side| is_stream(side)) =>
            {
                let sides = [&join.left, &join.right].into_iter();
                let all = LateColumns::of(sides.flat_map(|side| side.schema().columns()).map(Expr::Column).collect());
                let filter = join.filter.map_or(all.clone(), |filter| filter.and(all));
                Ok(Transformed::yes(LogicalPlan::Join(Join { filter: Some(filter), ..join })))
            }
            node => Ok(Transformed::no(node)),
        });
        Ok(rewritten?.data)
    }
}

/// Whether the rows come from a stream, or from a part that several queries share, which is a stream.
fn is_stream(plan: &LogicalPlan) -> bool {
    reads_stream(plan) || plan.exists(|node| Ok(PartTable::cut_at(node).is_some())).unwrap_or(false)
}

fn has_window(plan: &LogicalPlan) -> bool {
    let found = plan.exists(|node| {
        Ok(match node {
            LogicalPlan::Aggregate(of) => of.group_expr.iter().any(is_time_window),
            // The plan of a part shared with other queries, or below a name, is hidden in a table.
            node => {
                PartTable::cut_at(node).or_else(|| PassingTable::below(node)).is_some_and(|below| has_window(&below))
            }
        })
    });
    found.unwrap_or(false)
}

/// A key with these columns added to the arguments of its window's call, under its original name.
fn with_columns(key: Expr, columns: &[Expr]) -> Result<Expr> {
    if !is_time_window(&key) {
        return Ok(key);
    }
    let name = key.schema_name().to_string();
    let call = key.transform_down(|node| {
        let Expr::ScalarFunction(mut call) = node else { return Ok(Transformed::no(node)) };
        call.args.extend_from_slice(columns);
        Ok(Transformed::new(Expr::ScalarFunction(call), true, TreeNodeRecursion::Stop))
    })?;
    Ok(match call.data {
        Expr::Alias(alias) => Expr::Alias(alias),
        call => call.alias(name),
    })
}
