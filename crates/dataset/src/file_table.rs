//! Tables of CSV, JSON and text files that know how to look for rows that cannot be read: after DataFusion's reader has failed
//! on one, or instead of it, to leave them out.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::listing::ListingTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use tokio::runtime::Handle;

use crate::engine::Engine;
use crate::error::DataSetError;
use crate::files::{File, FolderColumns};
use crate::lenient::{BadRows, Decoder, OnError, Quarantine, first_bad, read_good, told};
use crate::lines::{Piece, deal};
use crate::packing::Packing;

/// DataFusion's own table of files, and how to find what it fails on.
#[derive(Debug)]
pub(crate) struct CheckedTable {
    pub(crate) table: ListingTable,
    pub(crate) check: Arc<Check>,
    /// Of compressed files that are cut, which DataFusion does not, all pieces; else nothing.
    pub(crate) pieces: Vec<Piece>,
}

impl CheckedTable {
    /// A partition for each piece.
    fn scan_pieces(&self, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(projection) => Arc::new(self.schema().project(projection)?),
            None => self.schema(),
        };
        let decoder = Arc::new(self.check.decoder.projected(projection));
        let partitions = self.pieces.iter().map(|piece| -> Arc<dyn PartitionStream> {
            Arc::new(Partition {
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

/// How to find the first row of some files that cannot be read.
#[derive(Debug)]
pub(crate) struct Check {
    files: Vec<File>,
    decoder: Decoder,
    packing: Packing,
    threads: Handle,
}

impl Check {
    pub(crate) fn new(engine: &Engine, files: Vec<File>, decoder: Decoder, packing: Packing) -> Self {
        Check { files, decoder, packing, threads: engine.threads().clone() }
    }

    /// Whether the files are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        !self.packing.is_plain()
    }

    /// The first row that cannot be read, or file that cannot be expanded: all are read up to it.
    pub(crate) fn fault(&self) -> Option<DataSetError> {
        // On a thread of its own: this one may be of those that must not wait, and objects are waited for. What else this one
        // had to run goes to another meanwhile: it may be what brings the objects.
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
        // Of the first rows the first piece would have all.
        if self.pieces.is_empty() || limit.is_some() {
            return self.table.scan(state, projection, filters, limit).await;
        }
        self.scan_pieces(projection)
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }
}

/// A partition of a [`PiecesTable`].
pub(crate) trait Part: PartitionStream {
    /// The same of these columns, which `schema` has, and of its first rows where no more than `rows_max` are wanted. `None` of one that
    /// has to read all columns, whichever are wanted.
    fn narrowed(&self, _: &SchemaRef, _: &[usize], _: Option<usize>) -> Option<Arc<dyn PartitionStream>> {
        None
    }
}

/// A table of files that are read in pieces, some by each partition, and not by DataFusion.
#[derive(Debug)]
pub(crate) struct PiecesTable {
    schema: SchemaRef,
    parts: Vec<Arc<dyn Part>>,
    pub(crate) files: Vec<File>,
    /// Whether rows that cannot be read are left out.
    pub(crate) is_lenient: bool,
}

impl PiecesTable {
    pub(crate) fn new(schema: SchemaRef, files: Vec<File>, parts: Vec<Arc<dyn Part>>) -> Self {
        PiecesTable { schema, parts, files, is_lenient: false }
    }

    /// A table of the good rows.
    pub(crate) fn lenient(
        engine: &Engine,
        files: Vec<File>,
        folders: Option<FolderColumns>,
        decoder: Decoder,
        packing: Packing,
        on_error: &OnError,
    ) -> Result<Self, DataSetError> {
        let names = folders.iter().flat_map(|folders| &folders.names);
        let mut fields = decoder.schema().fields().to_vec();
        // As DataFusion's own tables of files have them: behind the others.
        fields.extend(names.map(|name| Arc::new(Field::new(name, DataType::Utf8, false))));
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let folders = Arc::new(folders);
        let mut hasher = DefaultHasher::new();
        files.iter().for_each(|file| file.to_string().hash(&mut hasher));
        let name = format!("bad-{:08x}", hasher.finish() as u32);
        let whole = !packing.is_plain() || decoder.needs_whole_files();
        let groups = deal(files.clone(), whole, engine.partitions())?;
        let decoder = Arc::new(decoder);
        let part = |(number, pieces): (usize, Vec<Piece>)| -> Arc<dyn Part> {
            Arc::new(Partition {
                schema: SchemaRef::clone(&schema),
                pieces,
                folders: Arc::clone(&folders),
                decoder: Arc::clone(&decoder),
                packing,
                seen: Some(Arc::clone(engine.bad_rows())),
                on_error: on_error.clone(),
                name: format!("{name}-{number:05}"),
            })
        };
        let parts = groups.into_iter().enumerate().map(part).collect();
        Ok(PiecesTable { is_lenient: true, ..PiecesTable::new(schema, files, parts) })
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

struct Partition {
    /// With the columns of folders.
    schema: SchemaRef,
    pieces: Vec<Piece>,
    folders: Arc<Option<FolderColumns>>,
    decoder: Arc<Decoder>,
    packing: Packing,
    /// Who counts bad rows; `None` where the first is an error.
    seen: Option<Arc<BadRows>>,
    on_error: OnError,
    /// Of its quarantine; no other partition has it.
    name: String,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "good rows of {:?}, others: {:?}", self.pieces, self.on_error)
    }
}

/// A row that cannot be read is one of all columns.
impl Part for Partition {}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading goes on while one is worked on, and no further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(SchemaRef::clone(self.schema()), 2);
        let sender = builder.tx();
        let quarantine = match &self.on_error {
            OnError::Quarantine(folder) => Some(Quarantine::new(folder, &self.name)),
            _ => None,
        };
        let (pieces, decoder) = (self.pieces.clone(), Arc::clone(&self.decoder));
        let (packing, seen) = (self.packing, self.seen.clone());
        let (schema, folders) = (SchemaRef::clone(&self.schema), Arc::clone(&self.folders));
        builder.spawn_blocking(move || {
            let give = |piece: &Piece, batch: RecordBatch| {
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

/// The batch with a column for each of `values`, the same in all rows.
fn with_values(batch: RecordBatch, values: &[String], schema: &SchemaRef) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let repeated = values.iter().map(|value| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value.as_str(), rows)))
    });
    let columns = batch.columns().iter().cloned().chain(repeated).collect();
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
}
