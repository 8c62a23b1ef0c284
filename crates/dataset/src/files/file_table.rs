//! Tables of CSV, JSON and text files that can search for unreadable rows: after DataFusion's reader has failed on one,
//! or instead of it, to skip them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{ScalarValue, Statistics};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{ListingTable, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use object_store::path::Path;
use tokio::runtime::Handle;

use crate::bad_rows::BadRows;
use crate::engine::Engine;
use crate::error::DataSetError;
use crate::files::encoding::FileEncoding;
use crate::files::lines::{ByteRange, deal};
use crate::files::malformed_rows::{OnError, QuarantineWriter, RowDecoder, first_bad, read_good, told};
use crate::files::paths::{InputFile, PlaceColumns};

/// DataFusion's own table of files, with a way to find the cause of a failure.
#[derive(Debug)]
pub(crate) struct CheckedTable {
    pub(crate) table: ListingTable,
    pub(crate) check: Arc<FirstBadRow>,
    /// For compressed files that are divided, which DataFusion does not do, all pieces; else empty.
    pub(crate) pieces: Vec<ByteRange>,
}

impl CheckedTable {
    /// Scans with one partition per piece.
    fn scan_pieces(&self, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(projection) => Arc::new(self.schema().project(projection)?),
            None => self.schema(),
        };
        let decoder = Arc::new(self.check.decoder.projected(projection));
        let partitions = self.pieces.iter().map(|piece| -> Arc<dyn PartitionStream> {
            Arc::new(TablePartition {
                schema: SchemaRef::clone(&schema),
                pieces: vec![piece.clone()],
                folders: Arc::default(),
                decoder: Arc::clone(&decoder),
                packing: self.check.packing,
                seen: None,
                on_error: OnError::Raise,
                name: String::new(),
            })
        });
        scan(SchemaRef::clone(&schema), partitions.collect(), None, None)
    }
}

fn scan(
    schema: SchemaRef,
    partitions: Vec<Arc<dyn PartitionStream>>,
    projection: Option<&Vec<usize>>,
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let none = LexOrdering::new([]);
    Ok(Arc::new(StreamingTableExec::try_new(schema, partitions, projection, none, false, limit)?))
}

/// Finds the first unreadable row of some files.
#[derive(Debug)]
pub(crate) struct FirstBadRow {
    files: Vec<InputFile>,
    decoder: RowDecoder,
    packing: FileEncoding,
    threads: Handle,
}

impl FirstBadRow {
    pub(crate) fn new(engine: &Engine, files: Vec<InputFile>, decoder: RowDecoder, packing: FileEncoding) -> Self {
        FirstBadRow { files, decoder, packing, threads: engine.threads().clone() }
    }

    /// Whether the files are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        !self.packing.is_plain()
    }

    /// The first unreadable row, or the first file that cannot be decompressed. Reads all files up to there.
    pub(crate) fn fault(&self) -> Option<DataSetError> {
        // On a separate thread: the current one may be one that must not block, and reading objects blocks. Other work
        // of the current thread moves elsewhere meanwhile, because it may be what delivers the objects.
        let find = || {
            let _within = self.threads.enter();
            first_bad(&self.files, &self.decoder, self.packing)
        };
        let found = tokio::task::block_in_place(|| std::thread::scope(|scope| scope.spawn(find).join()));
        match found.ok()? {
            Ok(row) => row.map(|row| DataSetError::Data(told(&row))),
            Err(error) => self.is_compressed().then_some(error),
        }
    }
}

#[async_trait]
impl TableProvider for CheckedTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // With a limit, the first piece would have all the rows.
        if self.pieces.is_empty() || limit.is_some() {
            return self.table.scan(state, projection, filters, limit).await;
        }
        self.scan_pieces(projection)
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }
}

/// DataFusion's own table of files, with an additional last column for their names.
#[derive(Debug)]
pub(crate) struct NamedFiles {
    pub(crate) table: Arc<dyn TableProvider>,
    format: Arc<dyn FileFormat>,
    schema: SchemaRef,
    names: HashMap<Path, String>,
}

impl NamedFiles {
    pub(crate) fn new(
        table: Arc<dyn TableProvider>,
        format: Arc<dyn FileFormat>,
        column: &str,
        files: &[InputFile],
    ) -> Result<Self, DataSetError> {
        let mut fields = table.schema().fields().to_vec();
        fields.push(Arc::new(Field::new(column, DataType::Utf8, false)));
        let named = |file: &InputFile| Ok((file.listing_url()?.prefix().clone(), file.to_string()));
        let names = files.iter().map(named).collect::<Result<_, DataSetError>>()?;
        Ok(NamedFiles { table, format, schema: Arc::new(Schema::new(fields)), names })
    }

    /// The same files, each with its name.
    fn named(&self, groups: &[FileGroup]) -> Vec<FileGroup> {
        let named = |file: &PartitionedFile| {
            let name = self.names.get(&file.object_meta.location).cloned();
            let mut file = file.clone();
            file.partition_values.push(ScalarValue::Utf8(name));
            // Statistics only cover the original columns.
            file.statistics = None;
            file
        };
        groups.iter().map(|group| FileGroup::new(group.files().iter().map(named).collect())).collect()
    }
}

#[async_trait]
impl TableProvider for NamedFiles {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.table.scan(state, None, &[], limit).await?;
        let source = plan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
        let Some(files) = source.and_then(|source| source.downcast_ref::<FileScanConfig>()) else {
            // There are no files.
            let schema =
                projection.map_or_else(|| Ok(self.schema()), |some| self.schema.project(some).map(Arc::new))?;
            return Ok(Arc::new(EmptyExec::new(schema)));
        };
        let before = files.file_source.table_schema();
        let mut columns = before.table_partition_cols().to_vec();
        columns.extend(self.schema.fields().last().cloned());
        let schema =
            TableSchema::builder(SchemaRef::clone(before.file_schema())).with_table_partition_cols(columns).build();
        let scan = FileScanConfigBuilder::from(files.clone())
            .with_source(self.format.file_source(schema))
            .with_file_groups(self.named(&files.file_groups))
            .with_statistics(Statistics::new_unknown(&self.schema))
            .with_projection_indices(projection.cloned())?;
        self.format.create_physical_plan(state, scan.build()).await
    }
}

/// A partition of a [`PiecesTable`].
pub(crate) trait FilePartition: PartitionStream {
    /// The same partition with only these columns, which are those of `schema`, and only its first rows if `rows_max`
    /// is given. `None` if it always has to read all columns.
    fn narrowed(&self, _: &SchemaRef, _: &[usize], _: Option<usize>) -> Option<Arc<dyn PartitionStream>> {
        None
    }
}

/// A table of files that are read in pieces, several per partition, without DataFusion.
#[derive(Debug)]
pub(crate) struct PiecesTable {
    schema: SchemaRef,
    parts: Vec<Arc<dyn FilePartition>>,
    pub(crate) files: Vec<InputFile>,
    /// Whether unreadable rows are skipped.
    pub(crate) is_lenient: bool,
}

impl PiecesTable {
    pub(crate) fn new(schema: SchemaRef, files: Vec<InputFile>, parts: Vec<Arc<dyn FilePartition>>) -> Self {
        PiecesTable { schema, parts, files, is_lenient: false }
    }

    /// A table of the readable rows.
    pub(crate) fn lenient(
        engine: &Engine,
        files: Vec<InputFile>,
        folders: Option<PlaceColumns>,
        decoder: RowDecoder,
        packing: FileEncoding,
        on_error: &OnError,
    ) -> Result<Self, DataSetError> {
        let names = folders.iter().flat_map(|folders| &folders.names);
        let mut fields = decoder.schema().fields().to_vec();
        // Folder columns come last, as in DataFusion's own tables of files.
        fields.extend(names.map(|name| Arc::new(Field::new(name, DataType::Utf8, false))));
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let folders = Arc::new(folders);
        let mut hasher = DefaultHasher::new();
        files.iter().for_each(|file| file.to_string().hash(&mut hasher));
        let name = format!("bad-{:08x}", hasher.finish() as u32);
        let whole = !packing.is_plain() || decoder.needs_whole_files();
        let groups = deal(files.clone(), whole, engine.partitions())?;
        let decoder = Arc::new(decoder);
        let part = |(number, pieces): (usize, Vec<ByteRange>)| -> Arc<dyn FilePartition> {
            Arc::new(TablePartition {
                schema: SchemaRef::clone(&schema),
                pieces,
                folders: Arc::clone(&folders),
                decoder: Arc::clone(&decoder),
                packing,
                seen: (*on_error != OnError::Raise).then(|| Arc::clone(engine.bad_rows())),
                on_error: on_error.clone(),
                name: format!("{name}-{number:05}"),
            })
        };
        let parts = groups.into_iter().enumerate().map(part).collect();
        Ok(PiecesTable { is_lenient: *on_error != OnError::Raise, ..PiecesTable::new(schema, files, parts) })
    }
}

#[async_trait]
impl TableProvider for PiecesTable {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let columns = projection.unwrap_or(&all);
        let schema = Arc::new(self.schema.project(columns)?);
        match self.parts.iter().map(|part| part.narrowed(&schema, columns, limit)).collect() {
            Some(narrowed) => scan(schema, narrowed, None, limit),
            None => {
                let parts = self.parts.iter().map(|part| Arc::clone(part) as _).collect();
                scan(self.schema(), parts, projection, limit)
            }
        }
    }
}

struct TablePartition {
    /// Includes the folder columns.
    schema: SchemaRef,
    pieces: Vec<ByteRange>,
    folders: Arc<Option<PlaceColumns>>,
    decoder: Arc<RowDecoder>,
    packing: FileEncoding,
    /// Counts bad rows; `None` if the first one is an error.
    seen: Option<Arc<BadRows>>,
    on_error: OnError,
    /// The name of its quarantine file, unique to the partition.
    name: String,
}

impl fmt::Debug for TablePartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "good rows of {:?}, others: {:?}", self.pieces, self.on_error)
    }
}

/// Whether a row is readable depends on all columns.
impl FilePartition for TablePartition {}

impl PartitionStream for TablePartition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading continues while one is processed, but not further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(SchemaRef::clone(self.schema()), 2);
        let sender = builder.tx();
        let quarantine = match &self.on_error {
            OnError::Quarantine(folder) => Some(QuarantineWriter::new(folder, &self.name)),
            _ => None,
        };
        let (pieces, decoder) = (self.pieces.clone(), Arc::clone(&self.decoder));
        let (packing, seen) = (self.packing, self.seen.clone());
        let (schema, folders) = (SchemaRef::clone(&self.schema), Arc::clone(&self.folders));
        builder.spawn_blocking(move || {
            let give = |piece: &ByteRange, batch: RecordBatch| {
                let batch = match folders.as_ref() {
                    Some(folders) => with_values(batch, &folders.values(&piece.file), &schema),
                    None => Ok(batch),
                };
                sender.blocking_send(batch).is_ok()
            };
            let is_wanted = || !sender.is_closed();
            read_good(&pieces, &decoder, packing, seen.as_deref(), quarantine, &is_wanted, give)
                .map_err(DataFusionError::from)
        });
        builder.build()
    }
}

/// The batch with a column for each of `values`, which are the same in all rows.
fn with_values(batch: RecordBatch, values: &[String], schema: &SchemaRef) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let repeated = values.iter().map(|value| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value.as_str(), rows)))
    });
    let columns = batch.columns().iter().cloned().chain(repeated).collect();
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
}
