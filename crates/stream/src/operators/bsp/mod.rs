//! Functions of programs that all copies of a task enter together, over the rows of a window or of an epoch, with a
//! communicator: bulk-synchronous solvers inside a running stream.
//!
//! In a plan such a function is a table, as one on the rows of a key is.
//!
//! | module   | what is in it                                          |
//! |----------|--------------------------------------------------------|
//! | `spread` | which copy a row goes to                               |
//! | `turns`  | how copies agree on what they call the function for    |
//! | `task`   | the operator: keeps rows, and calls                    |

pub(crate) mod spread;
pub(crate) mod task;
mod turns;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::{Session, TableProvider};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use tidemill_collective::Communicator;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};
use tidemill_dataset::extend::{StepProvider, StepTable, StreamStep, StreamStepExec, planned_below};
use tidemill_dataset::{DataSet, DataSetError};

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
    let names = rows.names();
    let place = |column: &str| {
        let found = names.iter().position(|name| name == column);
        found.ok_or_else(|| DataSetError::unknown_column(column, names.clone()))
    };
    let by = by.iter().map(|column| place(column)).collect::<std::result::Result<Vec<_>, _>>()?;
    let window = window.map(|window| {
        let (rule, time) = windows_of(&name, &window)?;
        Ok::<_, DataSetError>(BspWindow { rule, time: place(&time)? })
    });
    let (state, input) = rows.frame().clone().into_parts();
    let query = BspQuery { name: name.clone(), by, window: window.transpose()?, function, schema, copies, on_busy };
    let table = BspTable { input, query: Arc::new(query) };
    let plan =
        LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(StepProvider(Arc::new(table)))), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
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

pub(crate) struct BspTable {
    input: LogicalPlan,
    query: Arc<BspQuery>,
}

impl StepTable for BspTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(BspTable { input, query: Arc::clone(&self.query) }))
    }
}

impl fmt::Debug for BspTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BspTable").field("name", &self.query.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for BspTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.query.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = planned_below(session, &self.input).await?;
        let step = BspExec { query: Arc::clone(&self.query), projection: projection.cloned() };
        Ok(Arc::new(StreamStepExec::new(Arc::new(step), Some(input))?))
    }
}

/// Stands in the plan of a stream until it is lowered.
pub(crate) struct BspExec {
    pub query: Arc<BspQuery>,
    pub projection: Option<Vec<usize>>,
}

impl fmt::Debug for BspExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BspExec").field("name", &self.query.name).finish_non_exhaustive()
    }
}

impl StreamStep for BspExec {
    fn kind(&self) -> &'static str {
        "BspExec"
    }

    fn title(&self) -> String {
        self.query.name.clone()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.query.schema.project(columns)?),
            None => Arc::clone(&self.query.schema),
        })
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} runs inside a stream: run it with write_stream, such as write_stream(print), or preview its first rows \
             with show()",
            self.query.name
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}

/// A window's start and end.
pub(crate) type WindowSpan = (Micros, Micros);
