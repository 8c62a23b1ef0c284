//! Rows that come too late, and rows without a time. The step that leaves them out counts them; late rows of windows
//! and joins go on, if they are wanted.

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

/// How many rows each step of a job has left out in this process because they came too late, or had no time; may be
/// read while it runs.
#[derive(Debug, Default)]
pub struct LateRows(Mutex<Vec<(String, LateCount)>>);

impl LateRows {
    /// By the name of the step, those that have left out any: how many that came too late, how many without a time, and
    /// how many of windows that ended while the step was busy.
    pub fn counts(&self) -> Vec<(String, u64, u64, u64)> {
        let counts = self.0.lock().expect("nothing panics with it locked");
        let of = |count: &LateCount| {
            [&count.late, &count.untimed, &count.skipped].map(|count| count.load(Ordering::Relaxed))
        };
        let counts = counts.iter().map(|(step, count)| (step.clone(), of(count)));
        let counts = counts.filter(|(_, of)| *of != [0; 3]);
        counts.map(|(step, [late, untimed, skipped])| (step, late, untimed, skipped)).collect()
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
    skipped: Arc<AtomicU64>,
}

impl LateCount {
    /// They came too late.
    pub(crate) fn add(&self, rows: usize) {
        self.late.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Their windows ended while the step was busy.
    pub(crate) fn add_skipped(&self, rows: usize) {
        self.skipped.fetch_add(rows as u64, Ordering::Relaxed);
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
    pub keyed: Arc<KeyedRows>,
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
    pub(crate) fn new(keyed: KeyedRows, columns: Vec<Arc<dyn PhysicalExpr>>, input: &SchemaRef) -> Result<Self> {
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

/// In a join's condition, that all columns of its sides are wanted. It is true.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LateColumns {
    signature: Signature,
}

const LATE_COLUMNS: &str = "tidemill_late_columns";

impl LateColumns {
    /// The call with these columns.
    pub(crate) fn of(columns: Vec<Expr>) -> Expr {
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
