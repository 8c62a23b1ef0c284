//! Steps of streams that pass rows on unchanged: a name for the step below, which checkpoints, plans and errors then
//! use wherever the step is in the program; and a shuffle, which makes all copies work on the rows.
//!
//! In a plan each is a table, as a function on keys is: the plan below is planned when the table is scanned.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataset::extend::{StepProvider, StepTable, StreamStep, StreamStepExec, planned_below, table_at};
use tidemill_dataset::{DataSet, DataSetError};

/// The same rows. The last stateful step of the stream, or else its source, gets the name `name`.
///
/// # Errors
/// `Query` if `rows` is not a stream. A missing step or a duplicate name is an error of the job.
pub fn named(rows: &DataSet, name: &str) -> std::result::Result<DataSet, DataSetError> {
    if !rows.is_stream() {
        return Err(DataSetError::Query(format!(
            "step_name({name:?}) names steps of streams, and this is not a stream"
        )));
    }
    passing(rows, PassingStep::Named(Arc::from(name)))
}

/// The same rows, distributed over all copies of the following steps regardless of their values: batches go to copies
/// in turn, skipping full copies while others have room.
///
/// # Errors
/// `Query` if `rows` is not a stream.
pub fn shuffled(rows: &DataSet) -> std::result::Result<DataSet, DataSetError> {
    if !rows.is_stream() {
        let remedy = "shuffle() deals the rows of a stream, and this is not a stream; use repartition(n)";
        return Err(DataSetError::Query(remedy.into()));
    }
    passing(rows, PassingStep::Shuffle)
}

fn passing(rows: &DataSet, step: PassingStep) -> std::result::Result<DataSet, DataSetError> {
    let (state, input) = rows.frame().clone().into_parts();
    let schema = Arc::new(input.schema().as_arrow().clone());
    let name = step.title();
    let table = PassingTable { step, input, schema };
    let plan =
        LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(StepProvider(Arc::new(table)))), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
}

/// A passing step in a query.
pub(crate) struct PassingTable {
    step: PassingStep,
    input: LogicalPlan,
    schema: SchemaRef,
}

impl PassingTable {
    /// The plan below such a step, if this node is one.
    pub(crate) fn below(node: &LogicalPlan) -> Option<LogicalPlan> {
        StepProvider::step_of::<PassingTable>(table_at(node)?.as_ref()).map(|table| table.input.clone())
    }
}

impl StepTable for PassingTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(PassingTable { step: self.step.clone(), input, schema: Arc::clone(&self.schema) }))
    }
}

impl fmt::Debug for PassingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassingTable").field("step", &self.step).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for PassingTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// Filters and projections after the step apply below it, too, so that nothing unnecessary is computed and stored
    /// there. However, computations after a shuffle must be done by all copies.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let supported = match self.step {
            PassingStep::Named(_) => TableProviderFilterPushDown::Exact,
            PassingStep::Shuffle => TableProviderFilterPushDown::Unsupported,
        };
        Ok(vec![supported; filters.len()])
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plan = LogicalPlanBuilder::from(self.input.clone());
        if let Some(filter) = filters.iter().cloned().reduce(Expr::and) {
            plan = plan.filter(filter)?;
        }
        if let Some(columns) = projection {
            let columns = columns.iter().map(|&column| Expr::from(self.input.schema().qualified_field(column)));
            plan = plan.project(columns.collect::<Vec<_>>())?;
        }
        let input = planned_below(session, &plan.build()?).await?;
        Ok(Arc::new(StreamStepExec::new(Arc::new(self.step.clone()), Some(input))?))
    }
}

/// The step in a stream's plan, until it is lowered. Its text does not depend on where the plan names the step.
#[derive(Clone, Debug)]
pub(crate) enum PassingStep {
    /// The name of the last stateful step below.
    Named(Arc<str>),
    /// Any copy of the following step gets any rows.
    Shuffle,
}

impl StreamStep for PassingStep {
    fn kind(&self) -> &'static str {
        match self {
            PassingStep::Named(_) => "NamedExec",
            PassingStep::Shuffle => "ShuffleExec",
        }
    }

    fn title(&self) -> String {
        match self {
            PassingStep::Named(name) => name.to_string(),
            PassingStep::Shuffle => "shuffle".into(),
        }
    }

    fn schema(&self, input: Option<SchemaRef>) -> Result<SchemaRef> {
        input.ok_or_else(|| DataFusionError::Internal("a step of a stream without rows".into()))
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} is a step of a stream: run it with write_stream, such as write_stream(print), or preview its first \
             rows with show()",
            self.title()
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}
