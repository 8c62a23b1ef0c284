//! Functions of programs that all copies of a task enter together, for the rows of a window or an epoch, with a
//! communicator: bulk-synchronous solvers inside a running stream.
//!
//! | module       | contents                                                      |
//! |--------------|---------------------------------------------------------------|
//! | `spread`     | routing of rows to copies                                     |
//! | `turns`      | how copies agree on the window they call the function for     |
//! | `row_turns`  | how they agree on calls for a number of rows                  |
//! | `task`       | the operator: stores rows and calls the function              |
//! | `simulation` | a simulation from one seed, with failures anywhere; for tests |

mod row_turns;
#[cfg(test)]
mod simulation;
pub(crate) mod spread;
pub(crate) mod task;
mod turns;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use datafusion::logical_expr::Expr;
use tidemill_collective::Communicator;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};
use tidemill_dataset::{DataSet, DataSetError};

use crate::operators::function_table::{FunctionExec, FunctionQuery, column_places, function_step};
use crate::time::window::{EarlyResults, WindowKind, WindowRule};

/// One copy's part of a function that all copies of a task call together.
///
/// A call may leave work behind that goes on by itself while rows come, such as a reduction. There is at most one such
/// call: the copy waits for it before the next one, before it meets the others at a barrier, and at the end.
pub trait BspFunction: Send {
    /// Called when all copies have reached the end of a window or an epoch. `rows` are this copy's, in the order of
    /// their times, or else of their arrival. The function may make any calls on `comm`, the same on all copies.
    ///
    /// # Errors
    /// Fails the job.
    fn call(
        &mut self,
        comm: &Communicator,
        rows: RecordBatch,
        of: CallSpan,
    ) -> std::result::Result<CallOutput, TaskError>;

    /// Called from time to time after a call that is pending, whatever other copies do. If it `waits`, it returns once
    /// the call has ended.
    ///
    /// # Errors
    /// Fails the job.
    fn poll(&mut self, waits: bool) -> std::result::Result<CallOutput, TaskError> {
        let _ = waits;
        Ok(CallOutput::default())
    }

    /// Called once on all copies together, after the last call, if the stream has ended.
    ///
    /// # Errors
    /// Fails the job.
    fn finish(&mut self) -> std::result::Result<Vec<RecordBatch>, TaskError> {
        Ok(Vec::new())
    }

    /// Returns this copy's state, to be saved in a checkpoint. No call is pending.
    ///
    /// # Errors
    /// Fails the job.
    fn save(&mut self) -> std::result::Result<Bytes, TaskError>;
}

/// What a call has returned so far.
#[derive(Debug, Default)]
pub struct CallOutput {
    /// New rows.
    pub rows: Vec<RecordBatch>,
    /// More may come: [`BspFunction::poll`] gives it.
    pub is_pending: bool,
    /// With windows of time, what [`BspFunction::call`] sets until the next call: a time in microseconds. The function
    /// is called for the first window that ends after it, even if no copy has rows for that.
    pub timer: Option<i64>,
}

/// The rows that a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSpan {
    /// The rows since the previous barrier.
    Epoch,
    /// A time window from its start to its end, in microseconds.
    Time(i64, i64),
    /// A range of rows, numbered over all copies: from the first to the one after the last.
    Rows(i64, i64),
}

/// The inputs for making the function of one copy.
pub struct BspSetup<'a> {
    /// The copy.
    pub context: &'a CopyContext,
    /// Its communicator.
    pub comm: &'a Communicator,
    /// The states in the checkpoint, one for each copy at that time; empty in a new job.
    pub restored: Vec<Bytes>,
}

/// Makes the function for one copy.
pub type MakeBspFunction =
    Arc<dyn Fn(&BspSetup<'_>) -> std::result::Result<Box<dyn BspFunction>, TaskError> + Send + Sync>;

/// Policy for windows that end while the function is busy with an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBusy {
    /// They wait, and so do the sources, when enough waits.
    #[default]
    Wait,
    /// They are dropped.
    Drop,
    /// They are dropped, except the last.
    Latest,
}

/// Options of a BSP function.
pub struct BspOptions {
    /// Its name in plans and errors.
    pub name: String,
    /// The columns whose equal values go to one copy. If empty, rows are spread by all their values.
    pub by: Vec<String>,
    /// Windows over a time column, or of a number of rows of all copies, made by [`WindowRule::of`]. `None`: the
    /// function is called at every barrier, and at the end.
    pub window: Option<Expr>,
    /// The schema of the rows it returns.
    pub schema: SchemaRef,
    /// The time column of these rows: for time windows, they have no time before the end of the previous window; for
    /// windows of rows, no time before the latest of their rows. `None`: their times are unknown.
    pub time: Option<String>,
    /// The number of copies; by default the same as for other steps.
    pub copies: Option<u32>,
    /// What happens to windows that end while the function is busy.
    pub on_busy: OnBusy,
}

/// Adds a step that calls a function for each window of a stream, on all copies together.
///
/// # Errors
/// `UnknownColumn`; `Query` for session windows, or windows over anything but a column.
pub fn bsp(
    rows: &DataSet,
    options: BspOptions,
    function: MakeBspFunction,
) -> std::result::Result<DataSet, DataSetError> {
    let BspOptions { name, by, window, schema, time, copies, on_busy } = options;
    let by = column_places(rows, &by)?;
    let window = match window {
        None => BspWindow::Epochs,
        Some(window) => window_of(&name, rows, &window)?,
    };
    if on_busy != OnBusy::Wait && !matches!(window, BspWindow::Time { .. }) {
        return Err(DataSetError::Query(format!(
            "{name}: on_busy= drops windows of time; other calls drop no rows, so omit on_busy="
        )));
    }
    let time = time.map(|column| time_of(&name, &schema, &column, &window)).transpose()?;
    function_step(rows, BspQuery { name, by, window, function, schema, time, copies, on_busy })
}

/// Parses a window expression.
fn window_of(name: &str, rows: &DataSet, window: &Expr) -> std::result::Result<BspWindow, DataSetError> {
    let wrong = |reason: &str| Err(DataSetError::Query(format!("{name}: {reason}")));
    let Some((rule, time)) = WindowRule::in_call(window) else {
        return wrong(
            "window= takes a window of time, such as tm.stream.window(tm.stream.tumbling(\"10s\"), on=\"time\"), or \
             of a number of rows: tm.stream.window(tm.stream.count_window(1000))",
        );
    };
    if rule.lateness > 0 || rule.early != EarlyResults::Never {
        return wrong("a window of bsp gives its result once: leave out allowed_lateness= and early results");
    }
    match rule.kind {
        WindowKind::Count { size, slide, ttl: None } if size == slide => return Ok(BspWindow::Rows(size)),
        WindowKind::Count { .. } => {
            return wrong(
                "bsp takes windows of rows one after the other: leave out the slide and ttl= of count_window",
            );
        }
        WindowKind::Sliding { .. } | WindowKind::Calendar(_) => {}
        WindowKind::Session { .. } => {
            return wrong(
                "bsp takes tumbling, sliding and calendar windows, and windows of rows: all keys must end theirs at \
                 the same time",
            );
        }
    }
    match time {
        Expr::Column(column) => {
            let column = column_places(rows, &[column.name().to_owned()])?[0];
            Ok(BspWindow::Time { rule, column })
        }
        _ => wrong("the window's time must be a column; compute it by with_columns() before bsp"),
    }
}

/// The index of the time column in the returned rows.
fn time_of(
    name: &str,
    schema: &SchemaRef,
    column: &str,
    window: &BspWindow,
) -> std::result::Result<usize, DataSetError> {
    let wrong = |reason: String| Err(DataSetError::Query(format!("{name}: time={column:?} {reason}")));
    if matches!(window, BspWindow::Epochs) {
        return wrong("needs a window=: results of other calls may have any time".into());
    }
    match schema.column_with_name(column) {
        Some((place, field)) if matches!(field.data_type(), DataType::Timestamp(..)) => Ok(place),
        Some((_, field)) => wrong(format!("must be a timestamp, and schema= says {}", field.data_type())),
        None => {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            wrong(format!("is not among the columns of schema=: {}", names.join(", ")))
        }
    }
}

/// The rows for which a function is called.
pub(crate) enum BspWindow {
    /// Those between two barriers.
    Epochs,
    /// A number of rows of all copies.
    Rows(i64),
    /// Windows over a column of the input.
    Time { rule: WindowRule, column: usize },
}

/// A BSP function in a query.
pub(crate) struct BspQuery {
    pub name: String,
    /// Columns of the input.
    pub by: Vec<usize>,
    pub window: BspWindow,
    pub function: MakeBspFunction,
    pub schema: SchemaRef,
    /// The time column of the output.
    pub time: Option<usize>,
    pub copies: Option<u32>,
    pub on_busy: OnBusy,
}

impl FunctionQuery for BspQuery {
    const KIND: &'static str = "BspExec";
    const RUNS: &'static str = "runs inside a stream";

    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

/// The function's node in a plan.
pub(crate) type BspExec = FunctionExec<BspQuery>;

impl BspExec {
    /// The index of the time column among the projected columns.
    pub(crate) fn time_column(&self) -> Option<usize> {
        let time = self.query.time?;
        match &self.projection {
            Some(columns) => columns.iter().position(|&column| column == time),
            None => Some(time),
        }
    }
}
