//! Rows that come too late, and rows without a time. The step that leaves them out counts them; late ones of windows and joins go to sinks of
//! their own, if the job has some. A query does not say which columns rows have beside those that it uses, so then a rule adds all of them to the window's
//! call, or to the join's condition, which the planner leaves alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{
    Aggregate, ColumnarValue, Expr, Join, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::PhysicalExpr;

use crate::error::DataSetError;
use crate::stream::plan::named::NamedTable;
use crate::stream::plan::shared::PartTable;
use crate::stream::plan::table::{StreamSink, of_stream};
use crate::stream::rows::keyed::Keyed;
use crate::stream::state::groups::batch;
use crate::stream::time::calls::call_of;
use crate::stream::time::window::is_time_window;

/// Makes the sink for rows that come too late, given what they are.
pub type MakeLateSink = Arc<dyn Fn(&SchemaRef) -> std::result::Result<StreamSink, DataSetError> + Send + Sync>;

/// Where rows go that come too late, and are not left out.
#[derive(Clone, Default)]
pub enum LateTo {
    /// They are left out, and counted.
    #[default]
    Nowhere,
    /// Those of all windows of rows that come from outside, which are of one kind.
    Windows(MakeLateSink),
    /// Those of steps by their names: windows, and sides of joins.
    Steps(BTreeMap<String, MakeLateSink>),
}

/// What the names of joins begin with.
pub(crate) const JOIN: &str = "join";

impl LateTo {
    /// Whether it takes rows of a step.
    pub(crate) fn takes(&self, step: &str) -> bool {
        match self {
            LateTo::Nowhere => false,
            LateTo::Windows(_) => !step.starts_with(JOIN),
            LateTo::Steps(steps) => steps.contains_key(step),
        }
    }

    /// What steps are to know all columns of their rows.
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
            // Windows of results of windows are not for rows that came from outside.
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

/// Whether rows come from a stream, or from what several queries have in common, which is one.
fn is_stream(plan: &LogicalPlan) -> bool {
    of_stream(plan) || plan.exists(|node| Ok(PartTable::cut_at(node).is_some())).unwrap_or(false)
}

/// In a join's condition, that all columns of its sides are wanted. It is true.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LateColumns {
    signature: Signature,
}

const LATE_COLUMNS: &str = "tidemill_late_columns";

impl LateColumns {
    fn of(columns: Vec<Expr>) -> Expr {
        // Volatile, lest a rule takes it for what it is.
        let signature = Signature::variadic_any(Volatility::Volatile);
        ScalarUDF::from(LateColumns { signature }).call(columns)
    }

    /// Whether a part of a condition is one.
    pub(crate) fn is(expr: &Arc<dyn PhysicalExpr>) -> bool {
        call_of(expr, LATE_COLUMNS).is_some()
    }
}

impl ScalarUDFImpl for LateColumns {
    fn name(&self) -> &str {
        LATE_COLUMNS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))))
    }
}

fn has_window(plan: &LogicalPlan) -> bool {
    let found = plan.exists(|node| {
        Ok(match node {
            LogicalPlan::Aggregate(of) => of.group_expr.iter().any(is_time_window),
            // What the query has in common with others was cut out of it, and what has a name lies below that.
            node => {
                PartTable::cut_at(node).or_else(|| NamedTable::named_at(node)).is_some_and(|below| has_window(&below))
            }
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
