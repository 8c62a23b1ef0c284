//! User functions as steps of a query: a function computes a table from another table, batch by batch.
//!
//! It is a table for DataFusion, so that its planner needs no special support. The part below it is planned when it is
//! scanned, with the session of the enclosing query. Nothing is pushed down through a function, because its behavior is
//! unknown.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::internal_err;
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};

use crate::error::DataSetError;
use crate::exec::step::{one_input, unordered};
use crate::plan::tables::StepTable;

/// Maps a batch to batches, or to an error message. It may take its time, but must not block a thread of the query: the
/// caller may be gone before it is done.
pub type BatchFunction =
    Arc<dyn Fn(RecordBatch) -> BoxFuture<'static, std::result::Result<Vec<RecordBatch>, String>> + Send + Sync>;

/// The rows of a function, as a table.
pub(crate) struct MapTable {
    input: LogicalPlan,
    function: BatchFunction,
    name: String,
    schema: SchemaRef,
}

impl MapTable {
    pub(crate) fn new(input: LogicalPlan, function: BatchFunction, name: &str, schema: SchemaRef) -> Self {
        MapTable { input, function, name: name.to_owned(), schema }
    }
}

impl StepTable for MapTable {
    fn input(&self) -> Option<&LogicalPlan> {
        Some(&self.input)
    }

    fn over(&self, input: LogicalPlan) -> Option<Arc<dyn StepTable>> {
        Some(Arc::new(MapTable::new(input, Arc::clone(&self.function), &self.name, Arc::clone(&self.schema))))
    }
}

impl fmt::Debug for MapTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapTable").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for MapTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
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
        Ok(Arc::new(MapExec::new(
            input,
            Arc::clone(&self.function),
            self.name.clone(),
            Arc::clone(&self.schema),
            projection.cloned(),
        )?))
    }
}

/// The plan of the part below a step that plans its own input, before any rule has run: the session's rules run on the
/// whole plan. If they ran here as well, the rules on the whole plan would find our steps instead of DataFusion's, or
/// sorts and partitions that only the top of the plan had requested.
pub async fn planned_below(session: &dyn Session, input: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return internal_err!("a query is planned in a session of DataFusion");
    };
    let below = SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(Vec::new());
    let mut below = below.build();
    // Including the query's current time.
    *below.execution_props_mut() = state.execution_props().clone();
    below.create_physical_plan(input).await
}

/// Runs the function on each partition.
pub struct MapExec {
    input: Arc<dyn ExecutionPlan>,
    function: BatchFunction,
    name: String,
    schema: SchemaRef,
    projection: Option<Vec<usize>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl MapExec {
    /// The function's name in plans and errors.
    pub fn function_name(&self) -> &str {
        &self.name
    }

    fn new(
        input: Arc<dyn ExecutionPlan>,
        function: BatchFunction,
        name: String,
        schema: SchemaRef,
        projection: Option<Vec<usize>>,
    ) -> Result<Self> {
        let projected = match &projection {
            Some(columns) => Arc::new(schema.project(columns)?),
            None => Arc::clone(&schema),
        };
        let properties = unordered(projected, input.output_partitioning().partition_count());
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(MapExec { input, function, name, schema, projection, properties, metrics })
    }
}

impl fmt::Debug for MapExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapExec").field("name", &self.name).finish_non_exhaustive()
    }
}

impl DisplayAs for MapExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapExec: {}", self.name)
    }
}

impl ExecutionPlan for MapExec {
    fn name(&self) -> &'static str {
        "MapExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// If rows are spread for it, they are spread evenly; see [`spread`](crate::exec::spread).
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    one_input!(self, input => {
        let (function, schema) = (Arc::clone(&self.function), Arc::clone(&self.schema));
        Ok(Arc::new(MapExec::new(input, function, self.name.clone(), schema, self.projection.clone())?))
    });

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let (function, name, schema) = (Arc::clone(&self.function), self.name.clone(), Arc::clone(&self.schema));
        let projection = self.projection.clone();
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let time = metrics.elapsed_compute().clone();
        let finish = Arc::new(move |made: std::result::Result<Vec<RecordBatch>, String>| {
            let wrong = |text: String| DataFusionError::from(DataSetError::Data(format!("{name}: {text}")));
            let made = made.map_err(wrong)?.into_iter().filter(|batch| batch.num_rows() > 0).map(|batch| {
                metrics.record_output(batch.num_rows());
                let batch = fitted(batch, &schema).map_err(wrong)?;
                Ok(match &projection {
                    Some(columns) => batch.project(columns)?,
                    None => batch,
                })
            });
            made.collect::<Result<Vec<_>>>()
        });
        let mapped = input.then(move |batch| {
            let (function, finish, time) = (Arc::clone(&function), Arc::clone(&finish), time.clone());
            async move {
                let batch = batch?;
                let begun = Instant::now();
                // A function gets an empty batch only when it is asked for its result type.
                let made = if batch.num_rows() == 0 { Ok(Vec::new()) } else { function(batch).await };
                let made = finish(made);
                time.add_duration(begun.elapsed());
                made
            }
        });
        let flat = mapped.map_ok(|made| futures::stream::iter(made.into_iter().map(Ok))).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.properties.eq_properties.schema().clone(), flat)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The batch, if it has the announced columns; strings and binaries may have another layout.
pub fn fitted(batch: RecordBatch, schema: &SchemaRef) -> std::result::Result<RecordBatch, String> {
    let columns = |schema: &SchemaRef| {
        let columns = schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type()));
        columns.collect::<Vec<_>>().join(", ")
    };
    let found = batch.schema();
    let alike = |(one, other): (&FieldRef, &FieldRef)| {
        one.name() == other.name()
            && (one.data_type() == other.data_type() || layout(one).is_some_and(|one| Some(one) == layout(other)))
    };
    if found.fields().len() != schema.fields().len() || !found.fields().iter().zip(schema.fields()).all(alike) {
        let (found, wanted) = (columns(&found), columns(schema));
        return Err(format!("it returned the columns {found}, but {wanted} were declared"));
    }
    let values = batch.columns().iter().zip(schema.fields()).map(|(values, field)| cast(values, field.data_type()));
    let values = values.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    RecordBatch::try_new(Arc::clone(schema), values).map_err(|error| error.to_string())
}

/// Strings or binaries, for which Arrow has several layouts with the same values.
#[derive(PartialEq)]
enum StringLayout {
    Text,
    Bytes,
}

fn layout(field: &Field) -> Option<StringLayout> {
    match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(StringLayout::Text),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(StringLayout::Bytes),
        _ => None,
    }
}
