//! Arrow IPC files with a choice of compression: DataFusion's own writer supports only LZ4.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow::ipc::{CompressionType, MetadataVersion};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::runtime::{JoinSet, SpawnedTask};
use datafusion::common::{GetExt, Statistics};
use datafusion::datasource::file_format::arrow::{ArrowFormat, ArrowFormatFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::write::demux::DemuxedStreamReceiver;
use datafusion::datasource::file_format::write::{ObjectWriterBuilder, get_writer_schema};
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSink, FileSinkConfig, FileSource};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use object_store::{ObjectMeta, ObjectStore};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::Receiver;

use crate::error::DataSetError;

/// Approximate number of bytes per write.
const BLOCK_BYTES: usize = 1 << 20;
/// Alignment of buffers, the same as in DataFusion and pyarrow.
const ALIGNMENT_BYTES: usize = 64;

/// DataFusion's format with our own writer.
#[derive(Debug, Clone)]
pub(crate) struct IpcFormat {
    compression: Option<CompressionType>,
}

impl IpcFormat {
    /// `compression`: `lz4`, `zstd` or `none`.
    ///
    /// # Errors
    /// `Query` for any other.
    pub(crate) fn new(compression: &str) -> Result<Self, DataSetError> {
        let compression = match compression {
            "lz4" => Some(CompressionType::LZ4_FRAME),
            "zstd" => Some(CompressionType::ZSTD),
            "none" => None,
            other => {
                return Err(DataSetError::Query(format!(
                    "unknown compression {other:?} for Arrow IPC files; use lz4, zstd or none"
                )));
            }
        };
        Ok(IpcFormat { compression })
    }
}

impl GetExt for IpcFormat {
    fn get_ext(&self) -> String {
        ArrowFormatFactory::new().get_ext()
    }
}

impl FileFormatFactory for IpcFormat {
    fn create(&self, _: &dyn Session, _: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(Arc::new(self.clone()))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl FileFormat for IpcFormat {
    fn get_ext(&self) -> String {
        GetExt::get_ext(self)
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        ArrowFormat.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        ArrowFormat.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        ArrowFormat.infer_stats(state, store, table_schema, object).await
    }

    async fn create_physical_plan(&self, state: &dyn Session, conf: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        ArrowFormat.create_physical_plan(state, conf).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _: &dyn Session,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = IpcWriteOptions::try_new(ALIGNMENT_BYTES, false, MetadataVersion::V5)?;
        let options = options.try_with_compression(self.compression)?;
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(IpcSink { config, options }), order)))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        ArrowFormat.file_source(table_schema)
    }
}

/// Writes files from the rows assigned to them.
#[derive(Debug)]
struct IpcSink {
    config: FileSinkConfig,
    options: IpcWriteOptions,
}

impl DisplayAs for IpcSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpcSink: {}", self.config.original_url)
    }
}

#[async_trait]
impl DataSink for IpcSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        FileSink::write_all(self, data, context).await
    }
}

#[async_trait]
impl FileSink for IpcSink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        dealing: SpawnedTask<Result<()>>,
        mut dealt: DemuxedStreamReceiver,
        store: Arc<dyn ObjectStore>,
    ) -> Result<u64> {
        let buffer_bytes = context.session_config().options().execution.objectstore_writer_buffer_size;
        let schema = get_writer_schema(&self.config);
        let mut files = JoinSet::new();
        while let Some((path, rows)) = dealt.recv().await {
            let file = ObjectWriterBuilder::new(FileCompressionType::UNCOMPRESSED, &path, Arc::clone(&store));
            let file = file.with_buffer_size(Some(buffer_bytes)).build()?;
            let writer = FileWriter::try_new_with_options(Vec::new(), &schema, self.options.clone())?;
            files.spawn(write(rows, writer, file));
        }
        let ended = |error| DataFusionError::ExecutionJoin(Box::new(error));
        let mut count = 0;
        while let Some(written) = files.join_next().await {
            count += written.map_err(ended)??;
        }
        dealing.join_unwind().await.map_err(ended)??;
        Ok(count)
    }
}

/// Writes one file. Returns its number of rows.
async fn write(
    mut rows: Receiver<RecordBatch>,
    mut writer: FileWriter<Vec<u8>>,
    mut file: Box<dyn AsyncWrite + Send + Unpin>,
) -> Result<u64> {
    let mut count = 0;
    while let Some(batch) = rows.recv().await {
        count += batch.num_rows() as u64;
        writer.write(&batch)?;
        if writer.get_ref().len() >= BLOCK_BYTES {
            file.write_all(writer.get_ref()).await?;
            writer.get_mut().clear();
        }
    }
    writer.finish()?;
    file.write_all(writer.get_ref()).await?;
    file.shutdown().await?;
    Ok(count)
}
