//! Functions of programs that all copies of a task enter together, over the rows of a window or of an epoch, with a
//! communicator: bulk-synchronous solvers inside a running stream.
//!
//! | module   | what is in it                                          |
//! |----------|--------------------------------------------------------|
//! | `spread` | which copy a row goes to                               |
//! | `turns`  | how copies agree on what they call the function for    |
//! | `task`   | the operator: keeps rows, and calls                    |

pub(crate) mod spread;
pub(crate) mod task;
mod turns;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::logical_expr::Expr;
use tidemill_collective::Communicator;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};
use tidemill_dataset::{DataSet, DataSetError};

use crate::operators::function_table::{FunctionExec, FunctionQuery, column_places, function_step};
use crate::time::window::{EarlyResults, Micros, WindowKind, WindowRule};

/// One copy's part of a function that all copies of a task call together.
pub trait BspFunction: Send {
    /// The copies have all come to the end of `window`, in microseconds, or of an epoch. `rows` are this copy's, in the
    /// order of their times. The function may make any calls on `comm`, the same at all copies.
    ///
    /// # Errors
    /// Fails the job.
    fn call(
        &mut self,
        comm: &Communicator,
        rows: RecordBatch,
        window: Option<(i64, i64)>,
    ) -> std::result::Result<Vec<RecordBatch>, TaskError>;

    /// Returns this copy's state, to be saved in a checkpoint.
    ///
    /// # Errors
    /// Fails the job.
    fn save(&mut self) -> std::result::Result<Bytes, TaskError>;
}

/// The inputs for making the function of one copy.
pub struct BspSetup<'a> {
    /// The copy.
    pub context: &'a CopyContext,
    /// Its communicator.
    pub comm: &'a Communicator,
    /// The states that the checkpoint has, one for each copy at that time; empty in a new job.
    pub restored: Vec<Bytes>,
}

/// Makes the function of one copy.
pub type MakeBspFunction =
    Arc<dyn Fn(&BspSetup<'_>) -> std::result::Result<Box<dyn BspFunction>, TaskError> + Send + Sync>;

/// Policy for windows that end while the function is busy with an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBusy {
    /// They wait, and so do the sources, when enough waits.
    #[default]
    Wait,
    /// They are left out.
    Drop,
    /// They are left out, but for the last.
    Latest,
}

/// How a function of copies is called.
pub struct BspOptions {
    /// Stands for it in plans and errors.
    pub name: String,
    /// The columns whose equal values are at one copy. None: rows are spread by all their values.
    pub by: Vec<String>,
    /// Windows of a column of time, from [`WindowRule::of`]; `None`: it is called at every barrier, and at the end.
    pub window: Option<Expr>,
    /// Of the rows that it returns.
    pub schema: SchemaRef,
    /// How many copies there are; by default as many as of other steps.
    pub copies: Option<u32>,
    /// Windows that end meanwhile.
    pub on_busy: OnBusy,
}

/// Adds a step that calls a function for each window of a stream, on all copies together.
///
/// # Errors
/// `UnknownColumn`; `Query` for windows that are not of time alone, or not of a column.
pub fn bsp(
    rows: &DataSet,
    options: BspOptions,
    function: MakeBspFunction,
) -> std::result::Result<DataSet, DataSetError> {
    let BspOptions { name, by, window, schema, copies, on_busy } = options;
    let by = column_places(rows, &by)?;
    let window = window.map(|window| {
        let (rule, time) = windows_of(&name, &window)?;
        Ok::<_, DataSetError>(BspWindow { rule, time: column_places(rows, &[time])?[0] })
    });
    let window = window.transpose()?;
    function_step(rows, BspQuery { name, by, window, function, schema, copies, on_busy })
}

/// The windows that an expression stands for, and the column that they are of.
fn windows_of(name: &str, window: &Expr) -> std::result::Result<(WindowRule, String), DataSetError> {
    let wrong = |reason: &str| Err(DataSetError::Query(format!("{name}: {reason}")));
    let Some((rule, time)) = WindowRule::in_call(window) else {
        return wrong(
            "window= takes a window of time, such as tm.stream.window(tm.stream.tumbling(\"10s\"), on=\"time\")",
        );
    };
    if !matches!(rule.kind, WindowKind::Sliding { .. } | WindowKind::Calendar(_)) {
        return wrong("bsp takes tumbling, sliding and calendar windows: all keys must end theirs at the same time");
    }
    if rule.lateness > 0 || rule.early != EarlyResults::Never {
        return wrong("a window of bsp gives its result once: leave out allowed_lateness= and early results");
    }
    match time {
        Expr::Column(column) => Ok((rule, column.name().to_owned())),
        _ => wrong("the window's time must be a column; compute it by with_columns() before bsp"),
    }
}

/// The windows of a function.
pub(crate) struct BspWindow {
    pub rule: WindowRule,
    /// A column of the input.
    pub time: usize,
}

/// A function of copies, in a query.
pub(crate) struct BspQuery {
    pub name: String,
    /// Columns of its input.
    pub by: Vec<usize>,
    pub window: Option<BspWindow>,
    pub function: MakeBspFunction,
    pub schema: SchemaRef,
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

/// It in a plan.
pub(crate) type BspExec = FunctionExec<BspQuery>;

/// A window's start and end.
pub(crate) type WindowSpan = (Micros, Micros);
