//! Late rows, and rows without a time. The step that drops them counts them; late rows of windows and joins can be
//! kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataset::extend::call_of;

use crate::rows::keyed::KeyedRows;
use crate::state::groups::batch;

/// The number of rows that each step of a job has dropped in this process because they were late or had no time. Can be
/// read while the job runs.
#[derive(Debug, Default)]
pub struct LateRows(Mutex<Vec<(String, LateCount)>>);

impl LateRows {
    /// By the name of the step, for steps that have dropped rows: the number of late rows, of rows without a time, and
    /// of rows whose windows ended while the step was busy.
    pub fn counts(&self) -> Vec<(String, u64, u64, u64)> {
        let counts = self.0.lock().expect("nothing panics with it locked");
        let of = |count: &LateCount| {
            [&count.late, &count.untimed, &count.skipped].map(|count| count.load(Ordering::Relaxed))
        };
        let counts = counts.iter().map(|(step, count)| (step.clone(), of(count)));
        let counts = counts.filter(|(_, of)| *of != [0; 3]);
        counts.map(|(step, [late, untimed, skipped])| (step, late, untimed, skipped)).collect()
    }

    /// The counter of a step.
    pub(crate) fn of(&self, step: &str) -> LateCount {
        let count = LateCount::default();
        self.0.lock().expect("nothing panics with it locked").push((step.to_owned(), count.clone()));
        count
    }
}

/// The rows that one step has dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateCount {
    late: Arc<AtomicU64>,
    untimed: Arc<AtomicU64>,
    skipped: Arc<AtomicU64>,
}

impl LateCount {
    /// Counts late rows.
    pub(crate) fn add(&self, rows: usize) {
        self.late.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts rows whose windows ended while the step was busy.
    pub(crate) fn add_skipped(&self, rows: usize) {
        self.skipped.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts rows without a time.
    pub(crate) fn add_untimed(&self, rows: usize) {
        // There are usually none; copies would then contend for the counter's memory for nothing.
        if rows > 0 {
            self.untimed.fetch_add(rows as u64, Ordering::Relaxed);
        }
    }
}

/// The late output of a window. If late rows are wanted, a window gets input rows instead of partial aggregates.
pub(crate) struct LateOutput {
    /// The rows that the task owning the key gets.
    pub keyed: Arc<KeyedRows>,
    /// The columns of late rows.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    pub schema: SchemaRef,
}

/// The output port of windows for late rows.
pub(crate) const LATE: &str = "late";
/// The number of this port.
pub(crate) const LATE_PORT: usize = 1;

impl LateOutput {
    /// `columns` are the input columns named in a window's call.
    pub(crate) fn new(keyed: KeyedRows, columns: Vec<Arc<dyn PhysicalExpr>>, input: &SchemaRef) -> Result<Self> {
        let field =
            |column: &Arc<dyn PhysicalExpr>| -> Result<Field> { Ok(column.return_field(input)?.as_ref().clone()) };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Result<Vec<_>>>()?));
        Ok(LateOutput { keyed: Arc::new(keyed), columns, schema })
    }

    /// The late output for rows that arrived with their keys.
    pub(crate) fn of(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.columns.iter().map(|column| column.evaluate(rows)?.into_array(rows.num_rows()));
        batch(&self.schema, columns.collect::<Result<_>>()?, rows.num_rows())
    }
}

/// A term in a join's condition that keeps all columns of both sides. Always true.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LateColumns {
    signature: Signature,
}

const LATE_COLUMNS: &str = "tidemill_late_columns";

impl LateColumns {
    /// The call with these columns.
    pub(crate) fn of(columns: Vec<Expr>) -> Expr {
        // Volatile, so that no rule evaluates it to a constant.
        let signature = Signature::variadic_any(Volatility::Volatile);
        ScalarUDF::from(LateColumns { signature }).call(columns)
    }

    /// Whether a part of a condition is such a term.
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
