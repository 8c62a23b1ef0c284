//! The reading progress of an action: a counter above each of its scans, and their total number of rows.
//!
//! Only reading can be predicted for a query; later work, such as the merge of a sort, is not included.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream, collect_partitioned,
};
use futures::TryStreamExt;

use crate::error::DataSetError;
use crate::exec::catch_panics::{CatchPanics, caught};
use crate::exec::step::one_input;

/// Bytes of a text that are sampled to estimate the length of its lines.
const SAMPLE_BYTES: u64 = 64 << 10;

/// The reading progress of an action. Cloning is cheap; clones share it.
#[derive(Clone, Default)]
pub struct ReadProgress(Arc<ReadCounters>);

#[derive(Default)]
struct ReadCounters {
    rows: AtomicU64,
    elsewhere: AtomicU64,
    scans: Mutex<Vec<Arc<dyn ExecutionPlan>>>,
    rows_total: OnceLock<Option<u64>>,
}

impl ReadProgress {
    /// Rows that all workers have read, as far as this one knows.
    pub fn rows(&self) -> u64 {
        self.rows_here() + self.0.elsewhere.load(Ordering::Relaxed)
    }

    /// The maximum number of rows to read, if it is known or, for text files on local disks, can be estimated. The
    /// first call inspects the files.
    pub fn rows_total(&self) -> Option<u64> {
        let scans = self.0.scans.lock().expect("nothing panics with it locked");
        if scans.is_empty() {
            return None;
        }
        *self.0.rows_total.get_or_init(|| scans.iter().map(rows_in).sum())
    }

    /// Rows that this worker has read.
    pub(crate) fn rows_here(&self) -> u64 {
        self.0.rows.load(Ordering::Relaxed)
    }

    /// Sets the number of rows that the other workers have read so far.
    pub(crate) fn learn(&self, elsewhere: u64) {
        self.0.elsewhere.fetch_max(elsewhere, Ordering::Relaxed);
    }

    /// The frame's rows, by partition.
    pub(crate) async fn collect(&self, frame: DataFrame) -> Result<Vec<Vec<RecordBatch>>> {
        self.collect_each(frame, None).await
    }

    /// The same, with at most `rows` rows per partition.
    pub(crate) async fn collect_each(&self, frame: DataFrame, rows: Option<usize>) -> Result<Vec<Vec<RecordBatch>>> {
        let context = Arc::new(frame.task_ctx());
        let mut plan = frame.create_physical_plan().await?;
        if let Some(rows) = rows {
            plan = Arc::new(LocalLimitExec::new(plan, rows));
        }
        self.expect(&plan);
        collect_partitioned(self.counted(plan)?, context).await
    }

    /// The plan with a counter above each scan; this is the plan to run.
    pub(crate) fn counted(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let counted = plan.transform_up(|node| {
            if !is_scan(&node) {
                return Ok(Transformed::no(node));
            }
            Ok(Transformed::yes(Arc::new(ReadExec::new(node, self.clone()))))
        });
        Ok(counted?.data)
    }

    /// Registers the scans that the action will run.
    pub(crate) fn expect(&self, plan: &Arc<dyn ExecutionPlan>) {
        let mut scans = self.0.scans.lock().expect("nothing panics with it locked");
        let seen = plan.apply(|node| {
            if is_scan(node) {
                scans.push(Arc::clone(node));
            }
            Ok(TreeNodeRecursion::Continue)
        });
        debug_assert!(seen.is_ok(), "looking at a plan cannot fail");
    }
}

impl fmt::Debug for ReadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("rows", &self.rows()).finish_non_exhaustive()
    }
}

/// Whether rows originate here; rows from other workers have been counted there.
fn is_scan(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().is_empty() && plan.name() != "Arrival"
}

fn rows_in(scan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let known = StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new()).ok();
    match known.and_then(|known| known.num_rows.get_value().copied()) {
        Some(rows) => Some(rows as u64),
        None => {
            let source = scan.downcast_ref::<DataSourceExec>()?.data_source();
            lines_in(source.downcast_ref::<FileScanConfig>()?)
        }
    }
}

/// An estimate of the number of lines: all bytes, divided by the length of the first lines of a file.
fn lines_in(files: &FileScanConfig) -> Option<u64> {
    let is_text = matches!(files.file_source.file_type(), "csv" | "json");
    let is_plain = files.file_compression_type == FileCompressionType::UNCOMPRESSED;
    if !is_text || !is_plain || files.object_store_url.as_str() != "file:///" {
        return None;
    }
    let all = || files.file_groups.iter().flat_map(|group| group.iter());
    let bytes: u64 = all().map(PartitionedFile::effective_size).sum();
    let first = all().max_by_key(|file| file.object_meta.size)?;
    let opened = File::open(format!("/{}", first.object_meta.location)).ok()?;
    let mut sample = Vec::new();
    opened.take(SAMPLE_BYTES).read_to_end(&mut sample).ok()?;
    let lines = memchr::memchr_iter(b'\n', &sample).count() as u128;
    (!sample.is_empty()).then(|| (u128::from(bytes) * lines / sample.len() as u128) as u64)
}

/// Counts the rows that a scan outputs.
pub(crate) struct ReadExec {
    input: Arc<dyn ExecutionPlan>,
    reading: ReadProgress,
    metrics: ExecutionPlanMetricsSet,
}

impl ReadExec {
    fn new(input: Arc<dyn ExecutionPlan>, reading: ReadProgress) -> Self {
        ReadExec { input, reading, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whether its input is decoded by a library that may panic.
    fn decodes(&self) -> bool {
        let source = self.input.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
        let files = source.and_then(|source| source.downcast_ref::<FileScanConfig>());
        files.is_some_and(|files| !matches!(files.file_source.file_type(), "csv" | "json"))
    }

    /// The scan that is counted.
    pub(crate) fn scan(&self) -> &dyn ExecutionPlan {
        self.input.as_ref()
    }
}

impl fmt::Debug for ReadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadExec").finish_non_exhaustive()
    }
}

impl DisplayAs for ReadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadExec")
    }
}

impl ExecutionPlan for ReadExec {
    fn name(&self) -> &'static str {
        "ReadExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    one_input!(self, input => Ok(Arc::new(ReadExec::new(input, self.reading.clone()))));

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let reading = Arc::clone(&self.reading.0);
        let rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let decoding = self.decodes().then(|| caught(|| self.input.execute(partition, Arc::clone(&context))));
        let input: SendableRecordBatchStream = match decoding {
            Some(Ok(started)) => {
                Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), CatchPanics::new(started?)))
            }
            Some(Err(text)) => return Err(DataFusionError::External(Box::new(DataSetError::Data(text)))),
            None => self.input.execute(partition, context)?,
        };
        let counted = input.inspect_ok(move |batch| {
            rows.add(batch.num_rows());
            reading.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), counted)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DataSet;
    use crate::engine::{Engine, EngineConfig};
    use crate::files::csv_layout::CsvLayout;
    use crate::files::read::{ReadFormat, ReadOptions, read};
    use arrow::array::Int64Array;
    use tidemill_storage::StorageOptions;

    fn engine() -> Engine {
        Engine::new(&EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
    }

    fn read_all(engine: &Engine, set: &DataSet) -> ReadProgress {
        let (reading, frame) = (ReadProgress::default(), set.frame().clone());
        let within = reading.clone();
        engine.run(async move { Ok(within.collect(frame).await?) }).unwrap();
        reading
    }

    /// Every scan is counted, however many there are, and the size of in-memory tables is known exactly.
    #[test]
    fn counts_tables_in_memory() {
        let engine = engine();
        let column = |rows| RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from_iter_values(0..rows)) as _)]);
        let table = |rows: i64| {
            let batch = column(rows).unwrap();
            DataSet::from_batches(&engine, batch.schema(), &[batch]).unwrap()
        };
        let reading = read_all(&engine, &table(100_000).union(&table(5)).unwrap());
        assert_eq!((reading.rows(), reading.rows_total()), (100_005, Some(100_005)));
    }

    /// For text files the number of lines is an estimate; a progress bar that is far off would be worse than none.
    #[test]
    fn estimates_lines() {
        let engine = engine();
        let rows = 50_000;
        let text: String = std::iter::once("a,b\n".to_owned()).chain((0..rows).map(|i| format!("{i},x\n"))).collect();
        let path = std::env::temp_dir().join(format!("tidemill-reading-{}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let format = ReadFormat::Csv(CsvLayout { has_header: true, ..CsvLayout::default() });
        let paths = vec![path.display().to_string()];
        let storage = StorageOptions::default();
        let set = engine.threads().block_on(read(&engine, &paths, &storage, format, ReadOptions::default()));
        let reading = read_all(&engine, &set.unwrap());
        assert_eq!(reading.rows(), rows);
        let total = reading.rows_total().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!((rows * 8 / 10..rows * 13 / 10).contains(&total), "{total} rows were expected");
    }
}
