//! JSON lines in DataFusion's tables of files, decoded by the decoder that knows bad rows: that of DataFusion cuts numbers where whole
//! ones are wanted, and nobody hears of it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig, FileSource, JsonSource};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::error::DataSetError;
use crate::files::File;
use crate::lenient::{Decoder, Layout, read_good};
use crate::lines::Piece;

/// The files, as the listing of a table names them.
type Files = Arc<HashMap<Path, File>>;

/// DataFusion's format with a reader of its own.
#[derive(Debug)]
pub(crate) struct JsonLines {
    format: JsonFormat,
    files: Files,
}

impl JsonLines {
    pub(crate) fn new(format: JsonFormat, files: &[File]) -> Result<Self, DataSetError> {
        let listed = |file: &File| Ok((file.listing_url()?.prefix().clone(), file.clone()));
        let files = files.iter().map(listed).collect::<Result<_, DataSetError>>()?;
        Ok(JsonLines { format, files: Arc::new(files) })
    }
}

#[async_trait]
impl FileFormat for JsonLines {
    fn get_ext(&self) -> String {
        self.format.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.format.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.format.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.format.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.format.infer_stats(state, store, table_schema, object).await
    }

    async fn create_physical_plan(&self, state: &dyn Session, conf: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        self.format.create_physical_plan(state, conf).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        let projection = SplitProjection::unprojected(&table_schema);
        let plain = Arc::new(JsonSource::new(table_schema));
        Arc::new(Source { plain, projection, files: Arc::clone(&self.files) })
    }
}

#[derive(Clone)]
struct Source {
    /// What tells of the table.
    plain: Arc<dyn FileSource>,
    projection: SplitProjection,
    files: Files,
}

impl FileSource for Source {
    fn create_file_opener(
        &self,
        _: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let file_schema = self.table_schema().file_schema();
        let schema = Arc::new(file_schema.project(&self.projection.file_indices)?);
        let opener = Opener {
            decoder: Arc::new(Decoder::new(Layout::Json, schema)?),
            compression: config.file_compression_type,
            files: Arc::clone(&self.files),
        };
        ProjectionOpener::try_new(self.projection.clone(), Arc::new(opener), file_schema)
    }

    fn table_schema(&self) -> &TableSchema {
        self.plain.table_schema()
    }

    fn with_batch_size(&self, _: usize) -> Arc<dyn FileSource> {
        Arc::new(self.clone())
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.plain.metrics()
    }

    fn file_type(&self) -> &str {
        self.plain.file_type()
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let all = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema().file_schema(), &all);
        Ok(Some(Arc::new(Source { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        datafusion::physical_plan::apply_expression_roots(self.projection.source.iter(), visit)
    }
}

struct Opener {
    decoder: Arc<Decoder>,
    compression: FileCompressionType,
    files: Files,
}

impl FileOpener for Opener {
    fn open(&self, part: PartitionedFile) -> Result<FileOpenFuture> {
        let location = &part.object_meta.location;
        let Some(file) = self.files.get(location).cloned() else {
            return Err(DataFusionError::Execution(format!("{location} was not there when the files were looked for")));
        };
        let (start, end) = part.range.as_ref().map_or((0, u64::MAX), |range| (range.start as u64, range.end as u64));
        let piece = Piece { file, start, end };
        let (decoder, compression) = (Arc::clone(&self.decoder), self.compression);
        Ok(Box::pin(async move {
            // Two batches ahead: reading goes on while one is worked on, and no further.
            let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(decoder.schema()), 2);
            let sender = builder.tx();
            builder.spawn_blocking(move || {
                let give = |_: &Piece, batch| sender.blocking_send(Ok(batch)).is_ok();
                let is_wanted = || !sender.is_closed();
                read_good(&[piece], &decoder, compression, None, None, &is_wanted, give).map_err(DataFusionError::from)
            });
            Ok(builder.build().boxed())
        }))
    }
}
