//! Functions of programs as steps of a stream's plan.
//!
//! In a plan such a function is a table, like a function on batches: the plan below is planned when the table is
//! scanned.

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
use tidemill_dataflow::TaskError;
use tidemill_dataset::extend::{StepProvider, StepTable, StreamStep, StreamStepExec, fitted, planned_below};
use tidemill_dataset::{DataSet, DataSetError};

/// A kind of function, as plans see it.
pub(crate) trait FunctionQuery: Send + Sync + 'static {
    /// The name of its node in plans.
    const KIND: &'static str;
    /// Where it runs, which a batch query cannot provide: "runs ...".
    const RUNS: &'static str;

    /// The function's name in plans and errors.
    fn name(&self) -> &str;

    /// The schema of the rows it returns.
    fn schema(&self) -> &SchemaRef;
}

/// Adds a function to a stream.
///
/// # Errors
/// Any error of the plan.
pub(crate) fn function_step(rows: &DataSet, query: impl FunctionQuery) -> tidemill_dataset::Result<DataSet> {
    let (state, input) = rows.frame().clone().into_parts();
    let name = query.name().to_owned();
    let table = StepProvider(Arc::new(FunctionTable { input, query: Arc::new(query) }));
    let plan = LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(table)), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
}

/// The indices of a stream's columns with these names.
///
/// # Errors
/// `UnknownColumn`.
pub(crate) fn column_places(rows: &DataSet, columns: &[String]) -> tidemill_dataset::Result<Vec<usize>> {
    let names = rows.names();
    let place = |column: &String| {
        let found = names.iter().position(|name| name == column);
        found.ok_or_else(|| DataSetError::unknown_column(column, names.clone()))
    };
    columns.iter().map(place).collect()
}

struct FunctionTable<Q> {
    input: LogicalPlan,
    query: Arc<Q>,
}

impl<Q: FunctionQuery> StepTable for FunctionTable<Q> {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(FunctionTable { input, query: Arc::clone(&self.query) }))
    }
}

impl<Q: FunctionQuery> fmt::Debug for FunctionTable<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTable").field("name", &self.query.name()).finish_non_exhaustive()
    }
}

#[async_trait]
impl<Q: FunctionQuery> TableProvider for FunctionTable<Q> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.query.schema())
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
        let step = FunctionExec { query: Arc::clone(&self.query), projection: projection.cloned() };
        Ok(Arc::new(StreamStepExec::new(Arc::new(step), Some(input))?))
    }
}

/// The function in a stream's plan, until it is lowered.
pub(crate) struct FunctionExec<Q> {
    pub query: Arc<Q>,
    pub projection: Option<Vec<usize>>,
}

impl<Q> Clone for FunctionExec<Q> {
    fn clone(&self) -> Self {
        FunctionExec { query: Arc::clone(&self.query), projection: self.projection.clone() }
    }
}

impl<Q: FunctionQuery> FunctionExec<Q> {
    /// Projects the rows that the function has returned to the needed columns.
    ///
    /// # Errors
    /// If they do not have the declared schema.
    pub(crate) fn finish(&self, made: RecordBatch) -> Result<RecordBatch, TaskError> {
        let rows = fitted(made, self.query.schema()).map_err(|error| format!("{}: {error}", self.query.name()))?;
        Ok(match &self.projection {
            Some(columns) => rows.project(columns)?,
            None => rows,
        })
    }
}

impl<Q: FunctionQuery> fmt::Debug for FunctionExec<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(Q::KIND).field("name", &self.query.name()).finish_non_exhaustive()
    }
}

impl<Q: FunctionQuery> StreamStep for FunctionExec<Q> {
    fn kind(&self) -> &'static str {
        Q::KIND
    }

    fn title(&self) -> String {
        self.query.name().to_owned()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.query.schema().project(columns)?),
            None => Arc::clone(self.query.schema()),
        })
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} {}: run it with write_stream, such as write_stream(print), or preview its first rows with show()",
            self.query.name(),
            Q::RUNS
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}
