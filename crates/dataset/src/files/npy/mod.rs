//! NumPy array files, read in shares: a header, followed by fixed-length records, or by one column after the other.
//! `header` parses the layout; `values` converts bytes to the columns that a query needs. If columns are stored
//! separately, only the required ones are read.

mod header;
mod values;

use std::collections::HashSet;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, TryStreamExt};
use tidemill_storage::StorageOptions;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::file_table::{FilePartition, PiecesTable};
use crate::files::paths::{InputFile, find};
use crate::files::records::{BATCH_RECORDS, FileRecords, deal, first_rows};
use header::{NpyHeader, PythonLiteral};
use values::{READABLE, ValueLayout, padding, shown};

/// Bytes to read when a file is first opened; usually its header is no longer.
const FIRST_BYTES: u64 = 1 << 10;
/// Number of headers to read concurrently, because each takes a while in a store.
const HEADERS_AT_ONCE: usize = 16;
/// Bytes of rows to read at a time, unless a single row is longer.
const BLOCK_BYTES: u64 = 4 << 20;
/// A header may claim any number of columns; more are hardly intended.
const COLUMNS_MAX: u64 = 1 << 20;

/// A table of the rows of all arrays in the files of `paths`, as for [`read`](crate::read()): one column for each array
/// column, or for each field of their records. `columns` are names for them.
///
/// # Errors
/// `Io`; `Data` for a file that does not contain an array, an array that is not a table, or one that differs from the
/// previous files; `Query` for the wrong number of columns, or a duplicate name.
pub async fn read_npy(
    engine: &Engine,
    paths: &[String],
    storage: &StorageOptions,
    columns: Option<&[String]>,
) -> Result<DataSet> {
    let files = find(engine, paths, storage).await?.files;
    let look = |file: InputFile| async move {
        let looked = tokio::task::spawn_blocking(move || NpyArray::of(file)).await;
        looked.map_err(|error| DataSetError::Internal(error.to_string()))?
    };
    let looking = futures::stream::iter(files.clone()).map(look).buffered(HEADERS_AT_ONCE);
    let arrays: Vec<NpyArray> = looking.try_collect().await?;
    let first = &arrays[0];
    if let Some(other) = arrays.iter().find(|array| !array.is_like(first)) {
        let text = format!("{} has {}, but the files before it have {}", other.file, other.told, first.told);
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
        return Err(DataSetError::Query(format!("{}: two of its columns are named {twice:?}", first.file)));
    }
    let field = |(name, column): (&String, &ArrayColumn)| {
        Field::new(name, column.kind.data_type.clone(), column.kind.is_nullable())
    };
    let schema: SchemaRef = Arc::new(Schema::new(names.iter().zip(&first.columns).map(field).collect::<Vec<_>>()));
    let rows: Vec<u64> = arrays.iter().map(|array| array.rows).collect();
    let rows_min = fitting(first.width).min(BATCH_RECORDS);
    let arrays: Vec<Arc<NpyArray>> = arrays.into_iter().map(Arc::new).collect();
    let columns: Vec<usize> = (0..names.len()).collect();
    let part = |shares: Vec<FileRecords>| -> Arc<dyn FilePartition> {
        let piece = |share: FileRecords| (Arc::clone(&arrays[share.file]), share.rows);
        let pieces = shares.into_iter().map(piece).collect();
        Arc::new(ArrayRows { schema: SchemaRef::clone(&schema), columns: columns.clone(), pieces })
    };
    let parts = deal(&rows, rows_min, engine.partitions()).into_iter().map(part).collect();
    let table = PiecesTable::new(SchemaRef::clone(&schema), files, parts);
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

/// The array in a file, according to its header.
#[derive(Debug)]
struct NpyArray {
    file: InputFile,
    /// The offset of the values.
    start: u64,
    rows: u64,
    /// Bytes of a row.
    width: u64,
    /// Whether columns rather than rows are contiguous.
    is_fortran: bool,
    columns: Vec<ArrayColumn>,
    /// Type and shape of its rows, for messages.
    told: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ArrayColumn {
    /// The name of the field, or the default name of the column.
    name: String,
    kind: ValueLayout,
    /// Its offset in a row.
    offset: u64,
}

impl NpyArray {
    /// Call it on a thread that may block.
    fn of(file: InputFile) -> Result<Self> {
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
        let len = NpyHeader::len(&bytes).map_err(unreadable)?;
        if len > bytes.len() as u64 {
            bytes = first(len)?;
        }
        let header = NpyHeader::parse(&bytes).map_err(unreadable)?;
        let (shape, told) = (header.shape_from(0), format!("{} and {}", shown(&header.descr), header.shape_from(1)));
        let (rows, across) = match header.shape[..] {
            [rows] => (rows, None),
            [rows, across] => (rows, Some(across)),
            _ => return Err(wrong(format!("has shape {shape}; a table needs arrays of 1 or 2 axes"))),
        };
        let (columns, width) = match across {
            Some(across) => of_two_axes(&header.descr, across),
            None => of_one_axis(&header.descr),
        }
        .map_err(wrong)?;
        let end = rows.checked_mul(width).and_then(|bytes| bytes.checked_add(header.start));
        if end.is_none_or(|end| end > size) {
            return Err(unreadable(format!(
                "it is truncated: shape {shape} with {width} bytes a row needs more than its {size} bytes; fetch it \
                 again"
            )));
        }
        let is_fortran = header.is_fortran && across.is_some();
        Ok(NpyArray { start: header.start, file, rows, width, is_fortran, columns, told })
    }

    fn is_like(&self, other: &NpyArray) -> bool {
        let alike =
            |(one, two): (&ArrayColumn, &ArrayColumn)| one.name == two.name && one.kind.data_type == two.kind.data_type;
        self.columns.len() == other.columns.len() && self.columns.iter().zip(&other.columns).all(alike)
    }

    /// Bytes read per row, for some of its columns.
    fn read_bytes(&self, columns: &[usize]) -> u64 {
        match self.is_fortran || columns.is_empty() {
            true => columns.iter().map(|&at| self.columns[at].kind.width as u64).sum(),
            false => self.width,
        }
    }

    /// The range of some rows, if rows are contiguous.
    fn range(&self, rows: &Range<u64>) -> Range<u64> {
        self.start + rows.start * self.width..self.start + rows.end * self.width
    }

    /// The range of each of these columns for some rows, if columns are contiguous.
    fn ranges(&self, rows: &Range<u64>, columns: &[usize]) -> Vec<Range<u64>> {
        let range = |&at: &usize| {
            let ArrayColumn { kind, offset, .. } = &self.columns[at];
            let (from, width) = (self.start + offset * self.rows, kind.width as u64);
            from + rows.start * width..from + rows.end * width
        };
        columns.iter().map(range).collect()
    }

    /// These columns of `rows` rows, from the bytes read for them.
    fn batch(&self, bytes: &[u8], rows: usize, columns: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
        let mut rest = bytes;
        let values = |&at: &usize| {
            let ArrayColumn { kind, offset, .. } = &self.columns[at];
            match self.is_fortran {
                true => {
                    let own = rest.split_off(..kind.width * rows).expect("so much has been read");
                    kind.values(own, kind.width, 0)
                }
                false => kind.values(bytes, self.width as usize, *offset as usize),
            }
        };
        let columns = columns.iter().map(values).collect::<Result<_, _>>()?;
        // Without columns there are still this many rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options)?)
    }
}

/// Rows to read at a time, given the bytes per row.
fn fitting(row_bytes: u64) -> u64 {
    (BLOCK_BYTES / row_bytes.max(1)).max(1)
}

/// The columns of an array with shape (n, d), and the bytes per row; or the problem, worded to follow the file's name.
fn of_two_axes(descr: &PythonLiteral, across: u64) -> Result<(Vec<ArrayColumn>, u64), String> {
    let kind = ValueLayout::of(descr).ok_or_else(|| not_read(descr))?;
    if across == 0 {
        return Err("has no columns".into());
    }
    if across > COLUMNS_MAX {
        return Err(format!("has {across} columns, more than the limit of {COLUMNS_MAX}"));
    }
    let width = kind.width as u64;
    let column = |at| ArrayColumn { name: format!("column_{}", at + 1), kind: kind.clone(), offset: at * width };
    Ok(((0..across).map(column).collect(), across * width))
}

/// The same for shape (n,), with numbers or with records.
fn of_one_axis(descr: &PythonLiteral) -> Result<(Vec<ArrayColumn>, u64), String> {
    let PythonLiteral::List(fields) = descr else {
        let kind = ValueLayout::of(descr).ok_or_else(|| not_read(descr))?;
        let width = kind.width as u64;
        return Ok((vec![ArrayColumn { name: "value".into(), kind, offset: 0 }], width));
    };
    let (mut columns, mut offset) = (Vec::new(), 0_u64);
    for field in fields {
        let PythonLiteral::Tuple(parts) = field else { return Err(not_read(descr)) };
        let (name, kind, several) = match &parts[..] {
            [name, kind] => (name, kind, false),
            [name, kind, _shape] => (name, kind, true),
            _ => return Err(not_read(descr)),
        };
        let name = match name {
            PythonLiteral::Text(name) => name,
            // The name follows a title.
            PythonLiteral::Tuple(names) => match &names[..] {
                [_, PythonLiteral::Text(name)] => name,
                _ => return Err(not_read(descr)),
            },
            _ => return Err(not_read(descr)),
        };
        if several {
            return Err(format!("has the field {name:?} with several values; {READABLE}"));
        }
        let bytes = match (name.as_str(), padding(kind)) {
            ("", Some(bytes)) => bytes,
            _ => {
                let kind = ValueLayout::of(kind)
                    .ok_or_else(|| format!("has the field {name:?} of type {}; {READABLE}", shown(kind)))?;
                let width = kind.width as u64;
                columns.push(ArrayColumn { name: name.clone(), kind, offset });
                width
            }
        };
        offset = offset.checked_add(bytes).ok_or("has records that are too long")?;
    }
    if columns.is_empty() { Err("has no columns".into()) } else { Ok((columns, offset)) }
}

fn not_read(descr: &PythonLiteral) -> String {
    format!("is of type {}; {READABLE}: convert it with astype", shown(descr))
}

/// The rows of some arrays.
#[derive(Debug)]
struct ArrayRows {
    /// The schema of the required columns.
    schema: SchemaRef,
    columns: Vec<usize>,
    pieces: Vec<(Arc<NpyArray>, Range<u64>)>,
}

impl FilePartition for ArrayRows {
    fn narrowed(
        &self,
        schema: &SchemaRef,
        columns: &[usize],
        rows_max: Option<usize>,
    ) -> Option<Arc<dyn PartitionStream>> {
        let pieces = first_rows(&self.pieces, rows_max);
        Some(Arc::new(ArrayRows { schema: SchemaRef::clone(schema), columns: columns.to_vec(), pieces }))
    }
}

impl PartitionStream for ArrayRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // Two batches ahead: reading continues while one is processed, but not further.
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 2);
        let sender = builder.tx();
        let (schema, columns, pieces) = (Arc::clone(&self.schema), self.columns.clone(), self.pieces.clone());
        builder.spawn_blocking(move || {
            let mut block = Vec::new();
            for (array, rows) in pieces {
                let failed = |error: io::Error| array.file.cut_short(&error);
                let row_bytes = array.read_bytes(&columns);
                // For contiguous columns, parts are long and each is a separate read; rows come one after the other.
                let (mut rest, at_once) = match array.is_fortran || columns.is_empty() {
                    true => (None, fitting(row_bytes)),
                    false => (Some(array.file.open_within(array.range(&rows))?), fitting(row_bytes).min(BATCH_RECORDS)),
                };
                let mut at = rows.start;
                while at < rows.end {
                    let next = at..rows.end.min(at + at_once);
                    let count = next.end - at;
                    block.resize((count * row_bytes) as usize, 0);
                    match &mut rest {
                        Some(rest) => rest.read_exact(&mut block),
                        None if columns.is_empty() => Ok(()),
                        None => array.file.read_ranges(&array.ranges(&next, &columns), &mut block),
                    }
                    .map_err(failed)?;
                    let batch = array.batch(&block, count as usize, &columns, &schema)?;
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    use datafusion::physical_plan::streaming::StreamingTableExec;

    use super::*;
    use crate::engine::EngineConfig;
    use crate::exec::progress::ReadProgress;
    use crate::plan::expr::column;

    const ROWS: u64 = 100_000;
    /// Size of a column.
    const BYTES: u64 = 8 * ROWS;

    /// An array with the columns `a`, `b` and `c`, which are one, two and three times the row's number; and the offset
    /// of its values.
    struct TestArray {
        engine: Arc<Engine>,
        path: PathBuf,
        set: DataSet,
        start: u64,
    }

    impl TestArray {
        fn new(name: &str, is_fortran: bool) -> Self {
            let engine = EngineConfig { threads: 1, workers: 1, memory_bytes: None, spill_dir: None };
            let engine = Arc::new(Engine::new(&engine).unwrap());
            let order = if is_fortran { "True" } else { "False" };
            let header = format!("{{'descr': '<i8', 'fortran_order': {order}, 'shape': ({ROWS}, 3), }}\n");
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((header.len() as u16).to_le_bytes());
            bytes.extend(header.bytes());
            let start = bytes.len() as u64;
            let mut put = |row: u64, times: u64| bytes.extend((row * times).to_le_bytes());
            match is_fortran {
                true => (1..4).for_each(|times| (0..ROWS).for_each(|row| put(row, times))),
                false => (0..ROWS).for_each(|row| (1..4).for_each(|times| put(row, times))),
            }
            let path = std::env::temp_dir().join(format!("tidemill-{name}-{}.npy", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            let (asked, paths) = (Arc::clone(&engine), vec![path.display().to_string()]);
            let names = ["a", "b", "c"].map(String::from);
            let set = engine.run(async move { read_npy(&asked, &paths, &StorageOptions::new(), Some(&names)).await });
            TestArray { engine, path, set: set.unwrap(), start }
        }

        /// Truncates the file, so that a query that reads the rest fails.
        fn keep(&self, bytes: u64) {
            OpenOptions::new().write(true).open(&self.path).unwrap().set_len(self.start + bytes).unwrap();
        }

        fn collect(&self, set: Result<DataSet>) -> Result<Vec<RecordBatch>> {
            self.engine.run(set?.collect(ReadProgress::default()))
        }

        /// The sums of all columns.
        fn sums(&self, set: Result<DataSet>) -> Result<Vec<i64>> {
            let batches = self.collect(set)?;
            let sum = |at: usize| {
                let columns = batches.iter().map(|batch| batch.column(at).as_primitive::<Int64Type>());
                columns.map(|column| column.values().iter().sum::<i64>()).sum()
            };
            Ok((0..batches[0].num_columns()).map(sum).collect())
        }
    }

    impl Drop for TestArray {
        fn drop(&mut self) {
            drop(std::fs::remove_file(&self.path));
        }
    }

    /// A separately stored column that is not required, rows after a limit, values of rows that are only counted: none
    /// of these are read.
    #[test]
    fn only_what_is_wanted_is_read() {
        let all = (0..ROWS as i64).sum::<i64>();
        for is_fortran in [false, true] {
            let written = TestArray::new(&format!("wanted-{is_fortran}"), is_fortran);
            let chosen = |names: &[&str]| written.set.select(names.iter().map(|name| column(name)).collect());
            let lost = |set| written.sums(set).unwrap_err().to_string().contains("became shorter");
            assert_eq!(written.sums(chosen(&["c", "a"])).unwrap(), [3 * all, all]);
            // Ten rows exist or, for columns, ten values of the last.
            written.keep(if is_fortran { 2 * BYTES + 80 } else { 3 * 80 });
            assert_eq!(written.sums(written.set.limit(0, Some(10))).unwrap(), [45, 90, 135]);
            assert_eq!(written.sums(written.set.limit(4, Some(6)).unwrap().select(vec![column("c")])).unwrap(), [117]);
            assert!(lost(written.set.limit(0, Some(11))));
            if is_fortran {
                written.keep(2 * BYTES);
                assert_eq!(written.sums(chosen(&["b", "a"])).unwrap(), [2 * all, all]);
                assert!(lost(chosen(&["c"])));
            }
            written.keep(0);
            assert_eq!(written.sums(written.set.counted()).unwrap(), [ROWS as i64]);
            assert!(lost(chosen(&["a"])));
        }
    }

    /// If rows are read contiguously, fields that are not required are not copied out of them.
    #[test]
    fn only_what_is_wanted_is_copied() {
        let written = TestArray::new("copied", false);
        for names in [&["c", "a"][..], &["b"], &[]] {
            let set = match names {
                [] => written.set.counted().unwrap(),
                names => written.set.select(names.iter().map(|name| column(name)).collect()).unwrap(),
            };
            let frame = set.frame().clone();
            let plan = written.engine.run(async move { Ok(frame.create_physical_plan().await?) }).unwrap();
            let mut seen = Vec::new();
            let walked = plan.apply(|node| {
                if let Some(scan) = node.downcast_ref::<StreamingTableExec>() {
                    let schema = scan.partition_schema();
                    seen.push(schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>());
                }
                Ok(TreeNodeRecursion::Continue)
            });
            walked.unwrap();
            seen.iter_mut().for_each(|names| names.sort_unstable());
            let mut wanted = names.to_vec();
            wanted.sort_unstable();
            assert_eq!(seen, [wanted]);
        }
    }
}
