//! Arrays in NumPy's files, read in shares: a header, then records of a fixed length, or one column behind the other. `header` says
//! which, `values` makes columns of the bytes.

mod header;
mod values;

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, TryStreamExt};

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::file_table::PiecesTable;
use crate::files::{File, find};
use crate::records::{BATCH_RECORDS, Share, deal};
use crate::stores::StorageOptions;
use header::{Header, Literal};
use values::{Kind, READABLE, padding, shown};

/// Of a file, when it is first looked at: mostly its header is no longer.
const FIRST_BYTES: u64 = 1 << 10;
/// Files whose headers are read at once: of a store each takes a while.
const HEADERS_AT_ONCE: usize = 16;
/// Rows are read so many bytes at a time, if they are not longer themselves.
const BLOCK_BYTES: u64 = 4 << 20;
/// A header may tell of any number of columns; more are hardly meant.
const COLUMNS_MAX: u64 = 1 << 20;

/// A table of the rows of all arrays in the files that `paths` stand for, as for [`read`](crate::read()): a column for each of
/// theirs, or for each field of their records. `columns` are names for them.
///
/// # Errors
/// `Io`; `Data` for a file that holds no array, one that is no table, or another one than the files before; `Query` for columns that
/// are not as many, or two of one name.
pub async fn read_npy(
    engine: &Engine,
    paths: &[String],
    storage: &StorageOptions,
    columns: Option<&[String]>,
) -> Result<DataSet> {
    let files = find(engine, paths, storage).await?.files;
    let look = |file: File| async move {
        let looked = tokio::task::spawn_blocking(move || Array::of(file)).await;
        looked.map_err(|error| DataSetError::Internal(error.to_string()))?
    };
    let looking = futures::stream::iter(files.clone()).map(look).buffered(HEADERS_AT_ONCE);
    let arrays: Vec<Array> = looking.try_collect().await?;
    let first = &arrays[0];
    if let Some(other) = arrays.iter().find(|array| !array.is_like(first)) {
        let text = format!("{} is of {}, the files before it are of {}", other.file, other.told, first.told);
        return Err(DataSetError::Data(text));
    }
    if let Some(given) = columns.filter(|given| given.len() != first.columns.len()) {
        return Err(DataSetError::Query(format!(
            "{} has {} columns, not {}",
            first.file,
            first.columns.len(),
            given.len()
        )));
    }
    let names = match columns {
        Some(given) => given.to_vec(),
        None => first.columns.iter().map(|column| column.name.clone()).collect(),
    };
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(DataSetError::Query(format!("{}: two of its columns are called {twice:?}", first.file)));
    }
    let field =
        |(name, column): (&String, &Column)| Field::new(name, column.kind.data_type.clone(), column.kind.is_nullable());
    let schema: SchemaRef = Arc::new(Schema::new(names.iter().zip(&first.columns).map(field).collect::<Vec<_>>()));
    let rows: Vec<u64> = arrays.iter().map(|array| array.rows).collect();
    let rows_min = first.fitting().min(BATCH_RECORDS);
    let arrays: Vec<Arc<Array>> = arrays.into_iter().map(Arc::new).collect();
    let part = |shares: Vec<Share>| -> Arc<dyn PartitionStream> {
        let piece = |share: Share| (Arc::clone(&arrays[share.file]), share.rows);
        Arc::new(Pieces { schema: SchemaRef::clone(&schema), pieces: shares.into_iter().map(piece).collect() })
    };
    let parts = deal(&rows, rows_min, engine.partitions()).into_iter().map(part).collect();
    let table = PiecesTable::new(SchemaRef::clone(&schema), files, parts)?;
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

/// The array in a file, as its header has it.
#[derive(Debug)]
struct Array {
    file: File,
    /// Where the values begin.
    start: u64,
    rows: u64,
    /// Bytes of a row.
    width: u64,
    /// Columns lie one behind the other, not rows.
    is_fortran: bool,
    columns: Vec<Column>,
    /// Type and shape of its rows, for messages.
    told: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    /// A field's, or what the column is called where nobody says otherwise.
    name: String,
    kind: Kind,
    /// Where it begins in a row.
    offset: u64,
}

impl Array {
    /// To be called on a thread that may wait.
    fn of(file: File) -> Result<Self> {
        file.check_not_compressed()?;
        let wrong = |reason: String| DataSetError::Data(format!("{file} {reason}"));
        let unreadable = |reason: String| wrong(format!("cannot be read as .npy: {reason}"));
        let size = file.size_bytes()?;
        let first = |bytes: u64| -> Result<Vec<u8>> {
            let mut read = Vec::new();
            let opened = file.open_within(0..bytes.min(size))?;
            opened.take(bytes).read_to_end(&mut read).map_err(|error| file.failed(&error))?;
            Ok(read)
        };
        let mut bytes = first(FIRST_BYTES)?;
        let len = Header::len(&bytes).map_err(unreadable)?;
        if len > bytes.len() as u64 {
            bytes = first(len)?;
        }
        let header = Header::parse(&bytes).map_err(unreadable)?;
        let (shape, told) = (header.shape_from(0), format!("{} and {}", shown(&header.descr), header.shape_from(1)));
        let (rows, across) = match header.shape[..] {
            [rows] => (rows, None),
            [rows, across] => (rows, Some(across)),
            _ => return Err(wrong(format!("has shape {shape}; a table is made of arrays of 1 or 2 axes"))),
        };
        let (columns, width) = match across {
            Some(across) => of_two_axes(&header.descr, across),
            None => of_one_axis(&header.descr),
        }
        .map_err(wrong)?;
        let end = rows.checked_mul(width).and_then(|bytes| bytes.checked_add(header.start));
        if end.is_none_or(|end| end > size) {
            return Err(unreadable(format!(
                "it is cut short: of shape {shape}, at {width} bytes a row, {size} bytes are not all; fetch it again"
            )));
        }
        let is_fortran = header.is_fortran && across.is_some();
        Ok(Array { start: header.start, file, rows, width, is_fortran, columns, told })
    }

    fn is_like(&self, other: &Array) -> bool {
        let alike = |(one, two): (&Column, &Column)| one.name == two.name && one.kind.data_type == two.kind.data_type;
        self.columns.len() == other.columns.len() && self.columns.iter().zip(&other.columns).all(alike)
    }

    /// How many rows are read at a time.
    fn fitting(&self) -> u64 {
        (BLOCK_BYTES / self.width).max(1)
    }

    /// Where some rows lie, if they lie one behind the other.
    fn range(&self, rows: &Range<u64>) -> Range<u64> {
        self.start + rows.start * self.width..self.start + rows.end * self.width
    }

    /// Where each column of some rows lies, if columns do.
    fn ranges(&self, rows: &Range<u64>) -> Vec<Range<u64>> {
        let range = |column: &Column| {
            let (from, width) = (self.start + column.offset * self.rows, column.kind.width as u64);
            from + rows.start * width..from + rows.end * width
        };
        self.columns.iter().map(range).collect()
    }

    /// The rows that these bytes are, as they lie in the file.
    fn batch(&self, bytes: &[u8], schema: &SchemaRef) -> datafusion::error::Result<RecordBatch> {
        let (width, rows) = (self.width as usize, bytes.len() / self.width as usize);
        let values = |column: &Column| match (column.offset as usize, column.kind.width) {
            (offset, one) if self.is_fortran => column.kind.values(&bytes[offset * rows..][..one * rows], one, 0),
            (offset, _) => column.kind.values(bytes, width, offset),
        };
        let columns: Result<_, _> = self.columns.iter().map(values).collect();
        Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns?)?)
    }
}

/// The columns of an array of shape (n, d), and the bytes of a row; else what is wrong, behind the file's name.
fn of_two_axes(descr: &Literal, across: u64) -> Result<(Vec<Column>, u64), String> {
    let kind = Kind::of(descr).ok_or_else(|| not_read(descr))?;
    if across == 0 {
        return Err("has no columns".into());
    }
    if across > COLUMNS_MAX {
        return Err(format!("has {across} columns, more than {COLUMNS_MAX}"));
    }
    let width = kind.width as u64;
    let column = |at| Column { name: format!("column_{}", at + 1), kind: kind.clone(), offset: at * width };
    Ok(((0..across).map(column).collect(), across * width))
}

/// The same of shape (n,), of numbers or of records with fields.
fn of_one_axis(descr: &Literal) -> Result<(Vec<Column>, u64), String> {
    let Literal::List(fields) = descr else {
        let kind = Kind::of(descr).ok_or_else(|| not_read(descr))?;
        let width = kind.width as u64;
        return Ok((vec![Column { name: "value".into(), kind, offset: 0 }], width));
    };
    let (mut columns, mut offset) = (Vec::new(), 0_u64);
    for field in fields {
        let Literal::Tuple(parts) = field else { return Err(not_read(descr)) };
        let (name, kind, several) = match &parts[..] {
            [name, kind] => (name, kind, false),
            [name, kind, _shape] => (name, kind, true),
            _ => return Err(not_read(descr)),
        };
        let name = match name {
            Literal::Text(name) => name,
            // Behind a title.
            Literal::Tuple(names) => match &names[..] {
                [_, Literal::Text(name)] => name,
                _ => return Err(not_read(descr)),
            },
            _ => return Err(not_read(descr)),
        };
        if several {
            return Err(format!("has the field {name:?} of several values; {READABLE}"));
        }
        let bytes = match (name.as_str(), padding(kind)) {
            ("", Some(bytes)) => bytes,
            _ => {
                let kind = Kind::of(kind)
                    .ok_or_else(|| format!("has the field {name:?} of type {}; {READABLE}", shown(kind)))?;
                let width = kind.width as u64;
                columns.push(Column { name: name.clone(), kind, offset });
                width
            }
        };
        offset = offset.checked_add(bytes).ok_or("has records that are too long")?;
    }
    if columns.is_empty() { Err("has no columns".into()) } else { Ok((columns, offset)) }
}

fn not_read(descr: &Literal) -> String {
    format!("is of type {}; {READABLE}: convert it with astype", shown(descr))
}

/// Rows of some arrays.
#[derive(Debug)]
struct Pieces {
    schema: SchemaRef,
    pieces: Vec<(Arc<Array>, Range<u64>)>,
}

impl PartitionStream for Pieces {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading goes on while one is worked on, and no further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 2);
        let sender = builder.tx();
        let (schema, pieces) = (Arc::clone(&self.schema), self.pieces.clone());
        builder.spawn_blocking(move || {
            let mut block = Vec::new();
            for (array, rows) in pieces {
                let failed = |error: io::Error| match error.kind() {
                    ErrorKind::UnexpectedEof => {
                        DataSetError::Data(format!("{} has become shorter while it was read", array.file))
                    }
                    _ => array.file.failed(&error),
                };
                // Of columns the parts are long, each is a read of its own; rows come one behind the other.
                let (mut rest, at_once) = match array.is_fortran {
                    true => (None, array.fitting()),
                    false => (Some(array.file.open_within(array.range(&rows))?), array.fitting().min(BATCH_RECORDS)),
                };
                let mut at = rows.start;
                while at < rows.end {
                    let next = at..rows.end.min(at + at_once);
                    block.resize(((next.end - at) * array.width) as usize, 0);
                    match &mut rest {
                        Some(rest) => rest.read_exact(&mut block),
                        None => array.file.read_ranges(&array.ranges(&next), &mut block),
                    }
                    .map_err(failed)?;
                    let batch = array.batch(&block, &schema)?;
                    for from in (0..batch.num_rows()).step_by(BATCH_RECORDS as usize) {
                        let some = batch.slice(from, (batch.num_rows() - from).min(BATCH_RECORDS as usize));
                        if sender.blocking_send(Ok(some)).is_err() {
                            return Ok(());
                        }
                    }
                    at = next.end;
                }
            }
            Ok(())
        });
        builder.build()
    }
}
