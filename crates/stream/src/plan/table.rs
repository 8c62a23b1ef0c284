//! Streams as tables: what a plan knows about an unbounded source.

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

/// A source, as queries see it.
#[derive(Clone)]
pub struct StreamSource {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// The schema of the rows read.
    pub schema: SchemaRef,
    /// The event time of its rows.
    pub times: Option<WatermarkStrategy>,
    /// The maximum number of copies, since more would have nothing to read; 0 means no limit.
    pub copies_max: u32,
    /// What happens to its rows when a job with checkpoints fails and resumes.
    pub guarantee: DeliveryGuarantee,
    /// The specification it was made from, if any; may contain a password.
    pub spec: Option<Arc<str>>,
    /// Where bad records go, if they are wanted.
    pub bad_to: Option<BadTo>,
    /// The folder that it writes bad records to, if any; after a failure, the folder may contain a record twice.
    pub bad_folder: Option<PathBuf>,
    /// The local files that it would read now: all hosts must see the same files.
    pub files: Option<ListFiles>,
    /// Whether its splits can move to other copies while a job runs.
    pub moves_splits: bool,
    /// Makes the source.
    pub make: MakeSource,
}

/// Where a source's bad records go.
#[derive(Clone)]
pub struct BadTo {
    /// The schema of bad records.
    pub schema: SchemaRef,
    /// The sink.
    pub sink: StreamSink,
}

impl StreamSource {
    /// Whether both are clones of one source: a plan has a clone wherever the source is read.
    pub(crate) fn is_same(&self, other: &StreamSource) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A sink, as jobs see it.
#[derive(Clone)]
pub struct StreamSink {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// The maximum number of copies; 0 means no limit.
    pub copies_max: u32,
    /// The best guarantee that it can give.
    pub guarantee: DeliveryGuarantee,
    /// The specification it was made from, if any; may contain a password.
    pub spec: Option<Arc<str>>,
    /// Makes the sink, given the schema of its rows.
    pub make: Arc<dyn Fn(&SchemaRef) -> MakeSink + Send + Sync>,
}

/// A query of a job, and where its rows go.
pub type StreamOutput = (DataSet, StreamSink);

impl StreamSink {
    /// Stands for an unknown sink when a job is explained.
    pub(crate) fn unknown() -> Self {
        let nowhere = |_: &SchemaRef| -> MakeSink { Arc::new(|_| Err("explained, not run".into())) };
        let (name, guarantee) = ("of write_stream".into(), DeliveryGuarantee::ExactlyOnce);
        StreamSink { name, copies_max: 0, guarantee, spec: None, make: Arc::new(nowhere) }
    }
}

/// The rows of a stream, which has no end or no known end: write it with [`run`](crate::run).
///
/// # Errors
/// `Query` if the time column does not exist or has another type, or if a column to be added already exists.
pub fn from_stream(engine: &Engine, mut source: StreamSource) -> tidemill_dataset::Result<DataSet> {
    if let Some(times) = &source.times {
        source.schema = times.schema(&source.schema).map_err(DataSetError::Query)?;
    }
    DataSet::new(engine.context().read_table(Arc::new(StepProvider(Arc::new(StreamTable { source }))))?)
}

/// A [`from_stream`] source in a plan.
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
