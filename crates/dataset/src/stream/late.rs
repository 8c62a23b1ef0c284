//! Rows that come too late, and rows without a time. The step that leaves them out counts them; late ones of windows go to a sink of
//! their own, if the job has one. A query does not say which columns rows have beside those that it uses, so then a rule adds all of them to the window's
//! call, which the planner leaves alone.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::PhysicalExpr;

use super::groups::batch;
use super::keyed::Keyed;
use super::shared::PartTable;
use super::table::StreamSink;
use super::window::is_time_window;
use crate::error::DataSetError;

/// Makes the sink for rows that come too late, given what they are.
pub type MakeLateSink = Arc<dyn Fn(&SchemaRef) -> std::result::Result<StreamSink, DataSetError> + Send + Sync>;

/// How many rows each step of a job has left out in this process because they came too late, or had no time; may be read while it
/// runs.
#[derive(Debug, Default)]
pub struct LateRows(Mutex<Vec<(String, LateCount)>>);

impl LateRows {
    /// By the name of the step, those that have left out any: how many that came too late, and how many without a time.
    pub fn counts(&self) -> Vec<(String, u64, u64)> {
        let counts = self.0.lock().expect("nothing panics with it locked");
        let of = |count: &LateCount| (count.late.load(Ordering::Relaxed), count.untimed.load(Ordering::Relaxed));
        let counts = counts.iter().map(|(step, count)| (step.clone(), of(count)));
        counts.filter(|(_, of)| *of != (0, 0)).map(|(step, (late, untimed))| (step, late, untimed)).collect()
    }

    /// The count of a step.
    pub(crate) fn of(&self, step: &str) -> LateCount {
        let count = LateCount::default();
        self.0.lock().expect("nothing panics with it locked").push((step.to_owned(), count.clone()));
        count
    }
}

/// The rows that one step has left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateCount {
    late: Arc<AtomicU64>,
    untimed: Arc<AtomicU64>,
}

impl LateCount {
    /// They came too late.
    pub(crate) fn add(&self, rows: usize) {
        self.late.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// They have no time.
    pub(crate) fn add_untimed(&self, rows: usize) {
        // Most often there are none, and copies would pass its memory around for nothing.
        if rows > 0 {
            self.untimed.fetch_add(rows as u64, Ordering::Relaxed);
        }
    }
}

/// Late rows that go on: a window whose late rows are wanted gets rows, not what was made of them where they were read.
pub(crate) struct LateOutput {
    /// What comes to the task that owns the key.
    pub keyed: Arc<Keyed>,
    /// What goes on of a late row.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    pub schema: SchemaRef,
}

/// The port that late rows leave a window by.
pub(crate) const LATE: &str = "late";
/// Its number.
pub(crate) const LATE_PORT: usize = 1;

impl LateOutput {
    /// `columns` are those of the input that a window's call names.
    pub(crate) fn new(keyed: Keyed, columns: Vec<Arc<dyn PhysicalExpr>>, input: &SchemaRef) -> Result<Self> {
        let field =
            |column: &Arc<dyn PhysicalExpr>| -> Result<Field> { Ok(column.return_field(input)?.as_ref().clone()) };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Result<Vec<_>>>()?));
        Ok(LateOutput { keyed: Arc::new(keyed), columns, schema })
    }

    /// What goes on of rows that came with their keys.
    pub(crate) fn of(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.columns.iter().map(|column| column.evaluate(rows)?.into_array(rows.num_rows()));
        batch(&self.schema, columns.collect::<Result<_>>()?, rows.num_rows())
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeepLateRows;

impl AnalyzerRule for KeepLateRows {
    fn name(&self) -> &'static str {
        "keep_late_rows"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan
            .transform_up_with_subqueries(|node| {
                let LogicalPlan::Aggregate(aggregate) = node else { return Ok(Transformed::no(node)) };
                // Windows of results of windows are not for rows that came from outside.
                if !aggregate.group_expr.iter().any(is_time_window) || has_window(&aggregate.input) {
                    return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
                }
                let columns: Vec<Expr> = aggregate.input.schema().columns().into_iter().map(Expr::Column).collect();
                let keys =
                    aggregate.group_expr.into_iter().map(|key| with_columns(key, &columns)).collect::<Result<_>>()?;
                let aggregate = Aggregate::try_new(aggregate.input, keys, aggregate.aggr_expr)?;
                Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
            })?
            .data)
    }
}

fn has_window(plan: &LogicalPlan) -> bool {
    let found = plan.exists(|node| {
        Ok(match node {
            LogicalPlan::Aggregate(of) => of.group_expr.iter().any(is_time_window),
            // What the query has in common with others was cut out of it.
            LogicalPlan::TableScan(scan) => source_as_provider(&scan.source).is_ok_and(|table| {
                let any: &dyn Any = table.as_ref();
                any.downcast_ref::<PartTable>().is_some_and(|part| has_window(&part.plan))
            }),
            _ => false,
        })
    });
    found.unwrap_or(false)
}

/// A key, its window's call with more arguments, by the name that it had.
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
