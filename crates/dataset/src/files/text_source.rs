//! CSV and JSON lines in DataFusion's tables of files, decoded by our decoder: DataFusion's decoders silently truncate
//! numbers to integers, and times to dates.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
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
use crate::files::encoding::FileEncoding;
use crate::files::lines::ByteRange;
use crate::files::malformed_rows::{LineLayout, RowDecoder, read_good};
use crate::files::paths::InputFile;

/// The files, by their names in the table's listing.
type Files = Arc<HashMap<Path, InputFile>>;

/// DataFusion's format with our own reader.
#[derive(Debug)]
pub(crate) struct TextLines {
    format: Arc<dyn FileFormat>,
    layout: LineLayout,
    packing: FileEncoding,
    files: Files,
}

impl TextLines {
    /// For `format`, CSV or JSON, with this layout.
    pub(crate) fn new(
        format: Arc<dyn FileFormat>,
        layout: LineLayout,
        packing: FileEncoding,
        files: &[InputFile],
    ) -> Result<Self, DataSetError> {
        let listed = |file: &InputFile| Ok((file.listing_url()?.prefix().clone(), file.clone()));
        let files = files.iter().map(listed).collect::<Result<_, DataSetError>>()?;
        Ok(TextLines { format, layout, packing, files: Arc::new(files) })
    }
}

#[async_trait]
impl FileFormat for TextLines {
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

    async fn create_physical_plan(&self, _: &dyn Session, conf: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        let config = FileScanConfigBuilder::from(conf).with_file_compression_type(self.packing.compression).build();
        Ok(DataSourceExec::from_data_source(config))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        let projection = SplitProjection::unprojected(&table_schema);
        let plain = self.format.file_source(table_schema);
        Arc::new(TextSource {
            plain,
            projection,
            layout: self.layout.clone(),
            packing: self.packing,
            files: Arc::clone(&self.files),
        })
    }
}

#[derive(Clone)]
struct TextSource {
    /// Describes the table.
    plain: Arc<dyn FileSource>,
    projection: SplitProjection,
    layout: LineLayout,
    packing: FileEncoding,
    files: Files,
}

impl FileSource for TextSource {
    fn create_file_opener(&self, _: Arc<dyn ObjectStore>, _: &FileScanConfig, _: usize) -> Result<Arc<dyn FileOpener>> {
        let file_schema = self.table_schema().file_schema();
        let columns = &self.projection.file_indices;
        let decoder = match &self.layout {
            // CSV values have positions, not names.
            LineLayout::Csv(_) => {
                RowDecoder::new(self.layout.clone(), SchemaRef::clone(file_schema))?.projected(Some(columns))
            }
            layout => RowDecoder::new(layout.clone(), Arc::new(file_schema.project(columns)?))?,
        };
        let opener = TextOpener {
            schema: Arc::new(file_schema.project(columns)?),
            decoder: Arc::new(decoder),
            packing: self.packing,
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

    fn supports_repartitioning(&self) -> bool {
        self.packing.is_plain() && !matches!(&self.layout, LineLayout::Csv(layout) if layout.newlines_in_values)
    }

    fn file_type(&self) -> &str {
        self.plain.file_type()
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let all = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema().file_schema(), &all);
        Ok(Some(Arc::new(TextSource { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        datafusion::physical_plan::apply_expression_roots(self.projection.source.iter(), visit)
    }
}

struct TextOpener {
    schema: SchemaRef,
    decoder: Arc<RowDecoder>,
    packing: FileEncoding,
    files: Files,
}

impl FileOpener for TextOpener {
    fn open(&self, part: PartitionedFile) -> Result<FileOpenFuture> {
        let location = &part.object_meta.location;
        let Some(file) = self.files.get(location).cloned() else {
            return Err(DataFusionError::Execution(format!("{location} was not there when the files were listed")));
        };
        let (start, end) = part.range.as_ref().map_or((0, u64::MAX), |range| (range.start as u64, range.end as u64));
        let piece = ByteRange { file, start, end };
        let (decoder, packing, schema) = (Arc::clone(&self.decoder), self.packing, Arc::clone(&self.schema));
        Ok(Box::pin(async move {
            // Two batches ahead: reading continues while one is processed, but not further.
            let mut builder = RecordBatchReceiverStreamBuilder::new(schema, 2);
            let sender = builder.tx();
            builder.spawn_blocking(move || {
                let give = |_: &ByteRange, batch| sender.blocking_send(Ok(batch)).is_ok();
                let is_wanted = || !sender.is_closed();
                read_good(&[piece], &decoder, packing, None, None, &is_wanted, give).map_err(DataFusionError::from)
            });
            Ok(builder.build().boxed())
        }))
    }
}
