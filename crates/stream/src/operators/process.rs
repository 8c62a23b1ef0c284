//! Keyed functions of programs, with a state per key and timers, for what queries cannot express.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::{TaskContext as CopyContext, TaskError};
use tidemill_dataset::{DataSet, DataSetError};

use crate::operators::function_table::{FunctionExec, FunctionQuery, column_places, function_step};
use crate::operators::keyed::{KeyOperator, KeyedColumns, KeyedSetup, MakeKeyedFunction};
use crate::rows::keyed::KeyedRows;
use crate::state::state_layout::StateLayout;

/// Applies a function to a stream's rows by key, giving rows with `schema`. `keeps` describes the state of a key, if it
/// is known: a checkpoint's states are then converted to those of the current function, or rejected. `name` identifies
/// it in plans and errors. A function that `waits` acts when time passes, even without input.
///
/// # Errors
/// `UnknownColumn`; a failure of the function is an error of the job.
pub fn process(
    rows: &DataSet,
    name: &str,
    keys: &[String],
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    waits: bool,
) -> std::result::Result<DataSet, DataSetError> {
    let keys = column_places(rows, keys)?;
    function_step(rows, ProcessQuery { name: name.to_owned(), keys, function, schema, keeps, waits })
}

/// A keyed function in a query.
pub(crate) struct ProcessQuery {
    pub name: String,
    /// Columns of the input.
    pub keys: Vec<usize>,
    function: MakeKeyedFunction,
    schema: SchemaRef,
    keeps: Option<SchemaRef>,
    pub waits: bool,
}

impl ProcessQuery {
    /// The task's state.
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

impl FunctionQuery for ProcessQuery {
    const KIND: &'static str = "ProcessExec";
    const RUNS: &'static str = "runs per key of a stream";

    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

/// The function's node in a plan.
pub(crate) type ProcessExec = FunctionExec<ProcessQuery>;

/// The task of a function; `rows` is the schema of the rows that the function gets.
pub(crate) fn process_task(
    exec: &ProcessExec,
    keyed: &Arc<KeyedRows>,
    rows: &SchemaRef,
    context: &CopyContext,
) -> Result<KeyOperator, TaskError> {
    let keys = Arc::new(keyed.schema.project(&keyed.keys())?);
    let function = (exec.query.function)(&KeyedSetup { context, keys })?;
    let exec = exec.clone();
    let finish = move |made: RecordBatch| exec.finish(made);
    let columns = KeyedColumns { keys: keyed.keys(), rows: Arc::clone(rows) };
    KeyOperator::calling_program(function, columns, Box::new(finish), context)
}
