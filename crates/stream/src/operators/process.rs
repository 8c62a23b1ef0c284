//! Functions of programs over the rows of one key at a time, with a state for each key and timers: what no query can
//! say.

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
    let keys = column_places(rows, keys)?;
    function_step(rows, ProcessQuery { name: name.to_owned(), keys, function, schema, keeps, waits })
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

/// It in a plan.
pub(crate) type ProcessExec = FunctionExec<ProcessQuery>;

/// The task of a function; `rows` says what the function is to see of a row.
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
