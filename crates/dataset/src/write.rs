//! Writing a DataSet into a folder, all or nothing: files go to a hidden folder beside it, which is renamed at the end.
//!
//! A crash leaves the hidden folder, never half of the output; `read` does not look into hidden folders.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::Schema;
use arrow::ipc::writer::FileWriter;
use datafusion::common::config::{CsvOptions, JsonOptions, TableParquetOptions};
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::arrow::ArrowFormatFactory;
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{FileFormatFactory, format_as_file_type};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::dataset::DataSet;
use crate::error::{DataSetError, Result};
use crate::records::RecordSink;
use crate::sources::Sources;

/// What the files look like.
#[derive(Debug, Clone)]
pub enum Output {
    /// Values between delimiters, the columns' names in the first line.
    Csv {
        /// Between values.
        delimiter: u8,
        /// Whether the first line names the columns.
        has_header: bool,
        /// `""`, `gzip`, `bzip2`, `xz` or `zstd`.
        compression: String,
    },
    /// One JSON object in each line.
    Json {
        /// As for CSV.
        compression: String,
    },
    /// Apache Parquet.
    Parquet {
        /// `uncompressed`, `snappy`, `lz4_raw`, or `gzip(level)`, `brotli(level)`, `zstd(level)`.
        compression: String,
    },
    /// Arrow IPC files.
    Ipc,
    /// Records of a fixed length, one file for each partition, in the order of the partitions.
    Records,
}

impl Output {
    fn factory(&self) -> Result<Arc<dyn FileFormatFactory>> {
        Ok(match self {
            Output::Csv { delimiter, has_header, compression } => {
                Arc::new(CsvFormatFactory::new_with_options(CsvOptions {
                    delimiter: *delimiter,
                    has_header: Some(*has_header),
                    compression: whole_file(compression)?,
                    ..Default::default()
                }))
            }
            Output::Json { compression } => Arc::new(JsonFormatFactory::new_with_options(JsonOptions {
                compression: whole_file(compression)?,
                ..Default::default()
            })),
            Output::Parquet { compression } => {
                let mut options = TableParquetOptions::default();
                options.global.compression = Some(compression.clone());
                Arc::new(ParquetFormatFactory::new_with_options(options))
            }
            Output::Ipc => Arc::new(ArrowFormatFactory::new()),
            Output::Records => {
                return Err(DataSetError::Unsupported("folders by the values of columns, of records".into()));
            }
        })
    }
}

fn whole_file(name: &str) -> Result<CompressionTypeVariant> {
    name.parse()
        .map_err(|_| DataSetError::Query(format!("no compression {name:?}; there are gzip, bzip2, xz, zstd and none")))
}

impl DataSet {
    /// Writes the rows into files in the new folder `dir`, which appears when all is written. Returns the number of rows.
    ///
    /// `partition_by`: a folder `column=value` for each different value of these columns, which then are not in the files.
    ///
    /// # Errors
    /// `Io` if `dir` exists and is not to be replaced, or the disk says no; `UnknownColumn`; what the query fails with.
    /// Nothing is left behind then, and an existing `dir` is as it was.
    pub async fn write(self, dir: &str, output: Output, partition_by: Vec<String>, overwrite: bool) -> Result<u64> {
        self.check_columns(&partition_by)?;
        if matches!(output, Output::Records) && partition_by.is_empty() {
            return self.write_records(dir, overwrite).await;
        }
        let commit = Commit::begin(Path::new(dir), overwrite)?;
        let sources = Sources::of(self.frame());
        let copy = self.copy_to(&commit.hidden, &output, partition_by)?;
        let counts = copy.collect().await.map_err(|error| sources.name_in(error))?;
        let rows = written(&counts);
        commit.end(rows, &output, &self.schema())?;
        Ok(rows)
    }

    async fn write_records(self, dir: &str, overwrite: bool) -> Result<u64> {
        RecordSink::check(&self.schema())?;
        let commit = Commit::begin(Path::new(dir), overwrite)?;
        let sources = Sources::of(self.frame());
        let context = Arc::new(self.frame().task_ctx());
        let work = async {
            let plan = self.frame().clone().create_physical_plan().await?;
            let sinks = record_sinks(&plan, &commit.hidden, plan.output_partitioning().partition_count());
            let written = sinks.iter().enumerate().map(|(partition, sink)| {
                let (plan, context) = (Arc::clone(&plan), Arc::clone(&context));
                async move { sink.sink().write_all(plan.execute(partition, Arc::clone(&context))?, &context).await }
            });
            futures::future::try_join_all(written).await
        };
        let rows = work.await.map_err(|error| sources.name_in(error))?.into_iter().sum();
        commit.end(rows, &Output::Records, &self.schema())?;
        Ok(rows)
    }

    /// `UnknownColumn` for a name that is none.
    pub(crate) fn check_columns(&self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.check_column(name))
    }

    /// The query that writes the rows into files in `dir`, and gives their number.
    pub(crate) fn copy_to(&self, dir: &Path, output: &Output, partition_by: Vec<String>) -> Result<DataFrame> {
        // The slash tells DataFusion that this is a folder of files.
        let url = format!("{}/", dir.display());
        let file_type = format_as_file_type(output.factory()?);
        let (mut state, plan) = self.frame().clone().into_parts();
        if is_sorted(&plan) {
            // One file after the other; rows of one partition are dealt to several at once otherwise.
            let one = state.config().clone().set_usize("datafusion.execution.minimum_parallel_output_files", 1);
            *state.config_mut() = one;
        }
        let plan = LogicalPlanBuilder::copy_to(plan, url, file_type, HashMap::new(), partition_by)?.build()?;
        Ok(DataFrame::new(state, plan))
    }
}

/// Whether the rows have an order, that of their last sort.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Limit(_) | LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => is_sorted(plan.inputs()[0]),
        _ => false,
    }
}

/// A file of records for each partition.
pub(crate) fn record_sinks(plan: &Arc<dyn ExecutionPlan>, dir: &Path, partitions: usize) -> Vec<Arc<DataSinkExec>> {
    let sink = |partition: usize| {
        let file = dir.join(format!("part-{partition:05}.bin"));
        let sink = RecordSink { file, schema: plan.schema() };
        Arc::new(DataSinkExec::new(Arc::clone(plan), Arc::new(sink), None))
    };
    (0..partitions).map(sink).collect()
}

/// The sum of the counts that writers gave.
pub(crate) fn written(counts: &[RecordBatch]) -> u64 {
    let columns = counts.iter().filter_map(|batch| batch.column(0).as_any().downcast_ref::<UInt64Array>());
    columns.flat_map(|column| column.iter().flatten()).sum()
}

/// Writes a file without rows: of no rows DataFusion makes no file, and the columns would be lost.
fn empty_file(dir: &Path, output: &Output, schema: &Schema) -> Result<()> {
    let create = |name: &str| {
        let path = dir.join(name);
        File::create(&path).map_err(|error| failed(&path, &error))
    };
    match output {
        Output::Csv { delimiter, has_header, .. } => {
            let writer = arrow::csv::WriterBuilder::new().with_delimiter(*delimiter).with_header(*has_header);
            writer.build(create("empty.csv")?).write(&RecordBatch::new_empty(schema.clone().into()))?;
        }
        Output::Json { .. } => drop(create("empty.json")?),
        Output::Parquet { .. } => {
            let writer = ArrowWriter::try_new(create("empty.parquet")?, schema.clone().into(), None);
            writer.and_then(ArrowWriter::close).map_err(DataFusionError::from)?;
        }
        Output::Ipc => FileWriter::try_new(create("empty.arrow")?, schema)?.finish()?,
        Output::Records => drop(create("empty.bin")?),
    }
    Ok(())
}

/// Output under way. Dropping it before `end` removes what was written.
pub(crate) struct Commit {
    target: PathBuf,
    /// Where files go until the end.
    pub(crate) hidden: PathBuf,
    overwrite: bool,
    done: bool,
}

impl Commit {
    pub(crate) fn begin(target: &Path, overwrite: bool) -> Result<Self> {
        let target = std::path::absolute(target).map_err(|error| failed(target, &error))?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(DataSetError::Query(format!("{} cannot be written to", target.display())));
        };
        if target.exists() && !overwrite {
            return Err(DataSetError::Io(format!("{} exists; overwrite=True replaces it", target.display())));
        }
        let hidden = parent.join(format!(".{}.unfinished-{}", name.to_string_lossy(), std::process::id()));
        std::fs::create_dir_all(&hidden).map_err(|error| failed(&hidden, &error))?;
        Ok(Commit { hidden, target, overwrite, done: false })
    }

    /// Makes the output of `rows` rows appear.
    pub(crate) fn end(mut self, rows: u64, output: &Output, schema: &Schema) -> Result<()> {
        if rows == 0 {
            empty_file(&self.hidden, output, schema)?;
        }
        let old = self.hidden.with_extension("replaced");
        let replaces = self.overwrite && self.target.exists();
        if replaces {
            std::fs::rename(&self.target, &old).map_err(|error| failed(&self.target, &error))?;
        }
        if let Err(error) = std::fs::rename(&self.hidden, &self.target) {
            if replaces {
                // Best effort: what was there goes back, and the first error is the one to tell.
                let _ = std::fs::rename(&old, &self.target);
            }
            return Err(failed(&self.target, &error));
        }
        self.done = true;
        if replaces {
            let removed = if old.is_dir() { std::fs::remove_dir_all(&old) } else { std::fs::remove_file(&old) };
            removed.map_err(|error| failed(&old, &error))?;
        }
        Ok(())
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        if !self.done {
            // The error that led here is the one to tell.
            let _ = std::fs::remove_dir_all(&self.hidden);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> DataSetError {
    DataSetError::Io(format!("{}: {error}", path.display()))
}
