//! Steps of streams that pass rows on as they are: a name for the step below, by which checkpoints, plans and errors
//! call it wherever it comes in the program; and a shuffle, behind which all copies work.
//!
//! In a plan each is a table, as a function on keys is: what lies below is planned when it is scanned.

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

/// The same rows; the last step of the stream that keeps something, or else its source, is called `name`.
///
/// # Errors
/// `Query`, if this is no stream. That no step is there to be named, or two are called alike, is an error of the job.
pub fn named(rows: &DataSet, name: &str) -> std::result::Result<DataSet, DataSetError> {
    if !rows.is_stream() {
        return Err(DataSetError::Query(format!(
            "step_name({name:?}): steps of streams have names, and this is no stream"
        )));
    }
    passing(rows, PassingStep::Named(Arc::from(name)))
}

/// The same rows, dealt to all copies of the steps behind, whatever is in them: batch by batch in turn, but not to a
/// copy that has no room while others have some.
///
/// # Errors
/// `Query`, if this is no stream.
pub fn shuffled(rows: &DataSet) -> std::result::Result<DataSet, DataSetError> {
    if !rows.is_stream() {
        let remedy = "shuffle() deals the rows of a stream, and this is no stream; use repartition(n)";
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

/// Such a step, in a query.
pub(crate) struct PassingTable {
    step: PassingStep,
    input: LogicalPlan,
    schema: SchemaRef,
}

impl PassingTable {
    /// What is below such a step at this node of a plan, if there is one.
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

    /// What is filtered behind it, and which columns are left out, is so below it, too: so that nothing is computed and
    /// kept there that nobody wants. But what stands behind a shuffle is to be computed by all copies.
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

/// Stands in the plan of a stream until it is lowered. Its text is the same wherever a plan has the step named once.
#[derive(Clone, Debug)]
pub(crate) enum PassingStep {
    /// The last step below that keeps something is called so.
    Named(Arc<str>),
    /// Any copy of what is behind gets any rows.
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
