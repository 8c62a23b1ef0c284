//! Names that a program gives steps of streams: what checkpoints, plans and errors call them, wherever they come in the
//! program.
//!
//! In a plan a name is a table, as a function on keys is: what lies below is planned when it is scanned.

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
    let (state, input) = rows.frame().clone().into_parts();
    let schema = Arc::new(input.schema().as_arrow().clone());
    let table = NamedTable { name: Arc::from(name), input, schema };
    let plan =
        LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(StepProvider(Arc::new(table)))), None)?.build()?;
    DataSet::new(DataFrame::new(state, plan))
}

/// A step's name, in a query.
pub(crate) struct NamedTable {
    name: Arc<str>,
    input: LogicalPlan,
    schema: SchemaRef,
}

impl NamedTable {
    /// What has a name at this node of a plan, if anything has.
    pub(crate) fn named_at(node: &LogicalPlan) -> Option<LogicalPlan> {
        StepProvider::step_of::<NamedTable>(table_at(node)?.as_ref()).map(|named| named.input.clone())
    }
}

impl StepTable for NamedTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(NamedTable { name: Arc::clone(&self.name), input, schema: Arc::clone(&self.schema) }))
    }
}

impl fmt::Debug for NamedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedTable").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for NamedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// What is filtered behind it, and which columns are left out, is so below it, too: so that nothing is computed and
    /// kept there that nobody wants.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Exact; filters.len()])
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
        Ok(Arc::new(StreamStepExec::new(Arc::new(NamedExec(Arc::clone(&self.name))), Some(input))?))
    }
}

/// Stands in the plan of a stream until it is lowered. Its text is the same wherever a plan has the step named once.
#[derive(Debug)]
pub(crate) struct NamedExec(pub Arc<str>);

impl StreamStep for NamedExec {
    fn kind(&self) -> &'static str {
        "NamedExec"
    }

    fn title(&self) -> String {
        self.0.to_string()
    }

    fn schema(&self, input: Option<SchemaRef>) -> Result<SchemaRef> {
        input.ok_or_else(|| DataFusionError::Internal("a name without a step".into()))
    }

    fn refusal(&self) -> DataFusionError {
        let error = format!(
            "{} is a step of a stream: run it with write_stream, such as write_stream(print), or preview its first \
             rows with show()",
            self.0
        );
        DataFusionError::from(DataSetError::Unsupported(error))
    }
}
