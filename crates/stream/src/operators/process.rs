//! Functions of programs over the rows of one key at a time, with a state for each key and timers: what no query can
//! say.
//!
//! In a plan such a function is a table, as one on batches is: what lies below is planned when it is scanned.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};
use tidemill_dataset::extend::{StepProvider, StepTable, StreamStep, StreamStepExec, fitted, planned_below};
use tidemill_dataset::{DataSet, DataSetError};

use crate::operators::keyed::{KeyOperator, KeyedColumns, KeyedSetup, MakeKeyedFunction};
use crate::rows::keyed::KeyedRows;
use crate::state::state_layout::StateLayout;

/// What a function makes of a stream's rows by key: rows with `schema`. `keeps` says what it keeps of a key, if
/// that is to be known: then a checkpoint's states are those of the function as it is now, or refused. `name` stands
/// for it in plans and errors. A function that `waits` does something when time has passed, whatever comes.
///
/// # Errors
/// `UnknownColumn`; what the function fails with is an error of the job.
pub fn process(
    rows: &DataSet,
    name: &str,
    keys: &[String],
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    waits: bool,
) -> std::result::Result<DataSet, DataSetError> {
    let names = rows.names();
    let place = |key: &String| {
        let found = names.iter().position(|name| name == key);
        found.ok_or_else(|| DataSetError::unknown_column(key, names.clone()))
    };
    let keys = keys.iter().map(place).collect::<std::result::Result<Vec<_>, _>>()?;
    let (state, input) = rows.frame().clone().into_parts();
    let process = ProcessQuery { name: name.to_owned(), keys, function, schema, keeps, waits };
    let table = ProcessTable { input, process: Arc::new(process) };
    let plan =
        LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(StepProvider(Arc::new(table)))), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
}

/// A function on keys, in a query.
pub(crate) struct ProcessQuery {
    pub name: String,
    /// Columns of its input.
    pub keys: Vec<usize>,
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    pub waits: bool,
}

impl ProcessQuery {
    /// What is kept.
    pub(crate) fn state(&self, keyed: &KeyedRows) -> StateSchema {
        let keys = keyed.layout_of_keys();
        match &self.keeps {
            None => StateSchema::new("states of a function, without names", keys.fields().collect()),
            Some(state) => {
                let state = StateLayout::of_rows(state, "");
                StateSchema::new("states of a function", keys.fields().chain(state.fields()).collect())
            }
        }
    }
}

pub(crate) struct ProcessTable {
    input: LogicalPlan,
    process: Arc<ProcessQuery>,
}

impl StepTable for ProcessTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(ProcessTable { input, process: Arc::clone(&self.process) }))
    }
}

impl fmt::Debug for ProcessTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessTable").field("name", &self.process.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for ProcessTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.process.schema)
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
        let step = ProcessExec { process: Arc::clone(&self.process), projection: projection.cloned() };
        Ok(Arc::new(StreamStepExec::new(Arc::new(step), Some(input))?))
    }
}

/// Stands in the plan of a stream until it is lowered.
pub(crate) struct ProcessExec {
    pub process: Arc<ProcessQuery>,
    pub projection: Option<Vec<usize>>,
}

impl fmt::Debug for ProcessExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessExec").field("name", &self.process.name).finish_non_exhaustive()
    }
}

impl StreamStep for ProcessExec {
    fn kind(&self) -> &'static str {
        "ProcessExec"
    }

    fn title(&self) -> String {
        self.process.name.clone()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.process.schema.project(columns)?),
            None => Arc::clone(&self.process.schema),
        })
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} runs per key of a stream: run it with write_stream, such as write_stream(print), or preview its first \
             rows with show()",
            self.process.name
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}

/// The task of a function; `rows` says what the function is to see of a row.
pub(crate) fn process_task(
    exec: (&Arc<ProcessQuery>, &Option<Vec<usize>>),
    keyed: &Arc<KeyedRows>,
    rows: &SchemaRef,
    context: &CopyContext,
) -> Result<KeyOperator, TaskError> {
    let keys = Arc::new(keyed.schema.project(&keyed.keys())?);
    let function = (exec.0.function)(&KeyedSetup { context, keys })?;
    let (process, projection) = (Arc::clone(exec.0), exec.1.clone());
    let finish = move |made: RecordBatch| {
        let rows = fitted(made, &process.schema).map_err(|error| format!("{}: {error}", process.name))?;
        Ok(match &projection {
            Some(columns) => rows.project(columns)?,
            None => rows,
        })
    };
    let columns = KeyedColumns { keys: keyed.keys(), rows: Arc::clone(rows) };
    KeyOperator::calling_program(function, columns, Box::new(finish), context)
}
