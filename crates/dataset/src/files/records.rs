//! Files of fixed-length records without headers: each column is a fixed range of bytes in every record.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, FixedSizeBinaryArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;
use tidemill_storage::StorageOptions;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::file_table::{FilePartition, PiecesTable};
use crate::files::paths::{InputFile, find};
use crate::files::rejected::RejectedRow;

/// Records per batch: DataFusion's own batch size.
pub(crate) const BATCH_RECORDS: u64 = 8192;

/// A table of all records in the files that `paths` refer to, as for [`read`](crate::read()). `columns` are names and
/// sizes in bytes, in the order of a record.
///
/// # Errors
/// `Query` without columns, or for a column without bytes; `Io`; `Data` for a file that does not consist of whole
/// records; `Unsupported` for a file whose name indicates compression.
pub async fn read_records(
    engine: &Engine,
    paths: &[String],
    storage: &StorageOptions,
    columns: &[(String, i32)],
) -> Result<DataSet> {
    if columns.is_empty() || columns.iter().any(|&(_, bytes)| bytes <= 0) {
        return Err(DataSetError::Query("a record needs at least one column, each of at least one byte".into()));
    }
    let fields = columns.iter().map(|(name, bytes)| Field::new(name, DataType::FixedSizeBinary(*bytes), false));
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let width: u64 = columns.iter().map(|&(_, bytes)| bytes as u64).sum();
    let files = find(engine, paths, storage).await?.files;
    let mut records = Vec::new();
    for file in &files {
        file.check_not_compressed()?;
        let bytes = file.size_bytes()?;
        if bytes % width != 0 {
            return Err(DataSetError::Data(format!(
                "{file} has {bytes} bytes, which is not a multiple of the record size, {width} bytes"
            )));
        }
        records.push(bytes / width);
    }
    let part = |shares: Vec<FileRecords>| -> Arc<dyn FilePartition> {
        let pieces = shares.into_iter().map(|FileRecords { file, rows }| (files[file].clone(), rows)).collect();
        Arc::new(RecordSelection::whole(&schema, pieces))
    };
    let parts = deal(&records, BATCH_RECORDS, engine.partitions()).into_iter().map(part).collect();
    let table = PiecesTable::new(SchemaRef::clone(&schema), files, parts);
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

/// A range of records of a file, given by its number.
pub(crate) struct FileRecords {
    pub(crate) file: usize,
    pub(crate) rows: Range<u64>,
}

/// Divides the records of some files, in order, equally among the partitions, but with at least `records_min` records
/// each; at least one partition.
pub(crate) fn deal(records: &[u64], records_min: u64, partitions_max: usize) -> Vec<Vec<FileRecords>> {
    let each = records.iter().sum::<u64>().div_ceil(partitions_max as u64).max(records_min);
    let mut groups = vec![Vec::new()];
    let mut left = each;
    for (file, &count) in records.iter().enumerate() {
        let mut start = 0;
        while start < count {
            if left == 0 {
                groups.push(Vec::new());
                left = each;
            }
            let end = count.min(start + left);
            groups.last_mut().expect("never empty").push(FileRecords { file, rows: start..end });
            left -= end - start;
            start = end;
        }
    }
    groups
}

/// The first rows of pieces with these row ranges, if `rows_max` is given.
pub(crate) fn first_rows<T: Clone>(pieces: &[(T, Range<u64>)], rows_max: Option<usize>) -> Vec<(T, Range<u64>)> {
    let mut left = rows_max.map_or(u64::MAX, |rows| rows as u64);
    let piece = |(of, rows): &(T, Range<u64>)| {
        let count = left.min(rows.end - rows.start);
        left -= count;
        (count > 0).then(|| (of.clone(), rows.start..rows.start + count))
    };
    pieces.iter().filter_map(piece).collect()
}

/// A selection of records from some files.
#[derive(Debug)]
struct RecordSelection {
    /// The schema of the required columns.
    schema: SchemaRef,
    /// The place of each of them in a record.
    places: Vec<Range<usize>>,
    /// Bytes per record.
    width: usize,
    pieces: Vec<(InputFile, Range<u64>)>,
}

impl RecordSelection {
    /// Selects all columns.
    fn whole(schema: &SchemaRef, pieces: Vec<(InputFile, Range<u64>)>) -> Self {
        let mut width = 0;
        let place = |field: &Arc<Field>| {
            let DataType::FixedSizeBinary(bytes) = field.data_type() else { unreachable!("made so by read_records") };
            let from = width;
            width += *bytes as usize;
            from..width
        };
        let places = schema.fields().iter().map(place).collect();
        RecordSelection { schema: SchemaRef::clone(schema), places, width, pieces }
    }
}

impl FilePartition for RecordSelection {
    fn narrowed(
        &self,
        schema: &SchemaRef,
        columns: &[usize],
        rows_max: Option<usize>,
    ) -> Option<Arc<dyn PartitionStream>> {
        let places = columns.iter().map(|&at| self.places[at].clone()).collect();
        let pieces = first_rows(&self.pieces, rows_max);
        Some(Arc::new(RecordSelection { schema: SchemaRef::clone(schema), places, width: self.width, pieces }))
    }
}

impl PartitionStream for RecordSelection {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading continues while one is processed, but not further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 2);
        let sender = builder.tx();
        let (schema, places, pieces) = (Arc::clone(&self.schema), self.places.clone(), self.pieces.clone());
        // Records that are only counted are not read.
        let width = if places.is_empty() { 0 } else { self.width };
        builder.spawn_blocking(move || {
            let mut block = Vec::new();
            for (file, rows) in pieces {
                let failed = |error: std::io::Error| DataFusionError::from(file.cut_short(&error));
                let mut records = file.open_within(rows.start * width as u64..rows.end * width as u64)?;
                for from in rows.clone().step_by(BATCH_RECORDS as usize) {
                    let count = BATCH_RECORDS.min(rows.end - from) as usize;
                    block.resize(count * width, 0);
                    records.read_exact(&mut block).map_err(failed)?;
                    if sender.blocking_send(batch(&block, width, count, &places, &schema)).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        });
        builder.build()
    }
}

/// The bytes at `places` in each of `count` records, as one column each.
fn batch(
    block: &[u8],
    width: usize,
    count: usize,
    places: &[Range<usize>],
    schema: &SchemaRef,
) -> datafusion::error::Result<RecordBatch> {
    let column = |place: &Range<usize>| -> datafusion::error::Result<ArrayRef> {
        let mut values = Vec::with_capacity(count * place.len());
        block.chunks_exact(width).for_each(|record| values.extend_from_slice(&record[place.clone()]));
        Ok(Arc::new(FixedSizeBinaryArray::try_new(place.len() as i32, Buffer::from_vec(values), None)?))
    };
    let columns = places.iter().map(column).collect::<datafusion::error::Result<_>>()?;
    // Without columns there are still this many rows.
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options)?)
}

/// Checks whether these columns can form records.
pub(crate) fn check(schema: &Schema) -> Result<()> {
    let fixed = |field: &&Arc<Field>| !matches!(field.data_type(), DataType::FixedSizeBinary(_));
    match schema.fields().iter().find(fixed) {
        None => Ok(()),
        Some(field) => Err(DataSetError::Query(format!(
            "records have columns of a fixed number of bytes, but {:?} is {}",
            field.name(),
            field.data_type()
        ))),
    }
}

/// Appends records to `block`: a column at a time, so that values move from one sequence to another.
pub(crate) fn append(batch: &RecordBatch, block: &mut Vec<u8>) -> Result<(), RejectedRow> {
    RejectedRow::null(batch, "a record")?;
    let columns: Vec<&FixedSizeBinaryArray> =
        batch.columns().iter().map(|column| column.as_fixed_size_binary()).collect();
    let width: usize = columns.iter().map(|column| column.value_size()).sum();
    let start = block.len();
    block.resize(start + batch.num_rows() * width, 0);
    let mut from = 0;
    for column in columns.iter().filter(|column| column.value_size() > 0) {
        let bytes = column.value_size();
        let values = column.value_data()[..batch.num_rows() * bytes].chunks_exact(bytes);
        block[start..].chunks_exact_mut(width).zip(values).for_each(|(record, value)| {
            record[from..from + bytes].copy_from_slice(value);
        });
        from += bytes;
    }
    Ok(())
}
