//! Streams as tables: what a plan knows of a source that does not end.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataflow::stream::sink::{DeliveryGuarantee, MakeSink};
use tidemill_dataflow::stream::source::{ListFiles, MakeSource, WatermarkStrategy};
use tidemill_dataset::extend::{StepProvider, StepTable, StreamStep, StreamStepExec};
use tidemill_dataset::{DataSet, DataSetError, Engine};

/// A source, as queries know it.
#[derive(Clone)]
pub struct StreamSource {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// What its rows are, as they are read.
    pub schema: SchemaRef,
    /// How they tell time.
    pub times: Option<WatermarkStrategy>,
    /// More copies than this would have nothing to read; 0 is no limit.
    pub copies_max: u32,
    /// What becomes of its rows when a job with checkpoints fails and goes on.
    pub guarantee: DeliveryGuarantee,
    /// What describes it, for who made it of that; it may have a password.
    pub spec: Option<Arc<str>>,
    /// Where what it meets that is no row goes, if it gives any.
    pub bad_to: Option<BadTo>,
    /// The folder that it writes such records into, if it does: one may be there twice after a failure.
    pub bad_folder: Option<PathBuf>,
    /// The local files that it would read now: all hosts have to see the same.
    pub files: Option<ListFiles>,
    /// Makes one.
    pub make: MakeSource,
}

/// Where records of a source go that are no rows.
#[derive(Clone)]
pub struct BadTo {
    /// What they are to a sink.
    pub schema: SchemaRef,
    /// The sink.
    pub sink: StreamSink,
}

impl StreamSource {
    /// Whether it is another one's copy: a plan has one of it wherever it is read.
    pub(crate) fn is_same(&self, other: &StreamSource) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A sink, as jobs know it.
#[derive(Clone)]
pub struct StreamSink {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// More copies than this are not wanted; 0 is no limit.
    pub copies_max: u32,
    /// What it gives, at best.
    pub guarantee: DeliveryGuarantee,
    /// What describes it, for who made it of that; it may have a password.
    pub spec: Option<Arc<str>>,
    /// Makes one, given what its rows are.
    pub make: Arc<dyn Fn(&SchemaRef) -> MakeSink + Send + Sync>,
}

/// A query of a job, and where its rows go.
pub type StreamOutput = (DataSet, StreamSink);

impl StreamSink {
    /// Stands for one that nobody has named, where a job is explained.
    pub(crate) fn unknown() -> Self {
        let nowhere = |_: &SchemaRef| -> MakeSink { Arc::new(|_| Err("explained, not run".into())) };
        let (name, guarantee) = ("of write_stream".into(), DeliveryGuarantee::ExactlyOnce);
        StreamSink { name, copies_max: 0, guarantee, spec: None, make: Arc::new(nowhere) }
    }
}

/// The rows of a stream. They have no end, or one that nobody knows: it is written with [`run`](crate::run).
///
/// # Errors
/// `Query` when a column that tells time is not there, or tells none, or one that is to be added is there.
pub fn from_stream(engine: &Engine, mut source: StreamSource) -> tidemill_dataset::Result<DataSet> {
    if let Some(times) = &source.times {
        source.schema = times.schema(&source.schema).map_err(DataSetError::Query)?;
    }
    DataSet::new(engine.context().read_table(Arc::new(StepProvider(Arc::new(StreamTable { source }))))?)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct StreamTable {
    pub(crate) source: StreamSource,
}

impl StepTable for StreamTable {
    fn is_stream(&self) -> bool {
        true
    }
}

#[async_trait]
impl TableProvider for StreamTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.source.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (source, projection) = (self.source.clone(), projection.cloned());
        Ok(Arc::new(StreamStepExec::new(Arc::new(StreamExec { source, projection }), None)?))
    }
}

/// The leaf of a stream's plan.
#[derive(Debug)]
pub(crate) struct StreamExec {
    pub(crate) source: StreamSource,
    pub(crate) projection: Option<Vec<usize>>,
}

impl StreamStep for StreamExec {
    fn kind(&self) -> &'static str {
        "StreamExec"
    }

    fn title(&self) -> String {
        self.source.name.clone()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.source.schema.project(columns)?),
            None => Arc::clone(&self.source.schema),
        })
    }

    fn refusal(&self) -> DataFusionError {
        DataFusionError::Plan(format!(
            "{} is a stream: run it with write_stream, such as write_stream(print), or preview its first rows with \
             show()",
            self.source.name
        ))
    }
}
