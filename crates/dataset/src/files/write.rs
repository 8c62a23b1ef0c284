//! Writes a DataSet to a folder, or to a folder of an object store, atomically: see `commit`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::FileWriter;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::format_as_file_type;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use tidemill_dataflow::memory::Governor;

use tidemill_storage::StorageOptions;
use url::Url;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::Result;
use crate::exec::progress::ReadProgress;
use crate::files::commit::{
    FolderCommit, ObjectCommit, OutputTarget, StagedFiles, UncommittedFolder, when_full, write_id,
};
use crate::files::output::OutputFormat;
use crate::files::part_sink::{PartFormat, PartSink};
use crate::files::paths::NULL_FOLDER;
use crate::files::sources::SourceFiles;
use crate::plan::expr::column;

impl DataSet {
    /// Writes the rows to files in the new folder `dir`, a path or a URL, which appears when everything is written.
    /// Returns the number of rows. `storage` contains options for a URL's store; `reading` shows the query's progress
    /// meanwhile.
    ///
    /// `partition_by`: creates a folder `column=value` for each distinct value of these columns, which are then omitted
    /// from the files.
    ///
    /// # Errors
    /// `Io` if `dir` exists and must not be replaced, or on an error of the disk or store; `UnknownColumn`; any failure
    /// of the query. Nothing is left behind in these cases, and an existing `dir` is unchanged.
    #[expect(clippy::too_many_arguments, reason = "what, where and how")]
    pub async fn write(
        self,
        engine: &Engine,
        dir: &str,
        storage: &StorageOptions,
        output: OutputFormat,
        partition_by: Vec<String>,
        overwrite: bool,
        reading: ReadProgress,
    ) -> Result<u64> {
        self.check_columns(&partition_by)?;
        let schema = self.schema()?;
        match OutputTarget::of(engine, dir, storage)? {
            OutputTarget::Folder(path) => {
                let commit = FolderCommit::begin(&path, overwrite)?;
                let files = StagedFiles::of(engine, &commit.hidden, &output, &partition_by)?;
                let ended = match self.write_into(engine, files.url(), &output, partition_by, "", reading).await {
                    Ok(0) => empty_file(&output, &schema, "").and_then(|file| commit.end(file)).map(|()| 0),
                    Ok(rows) => commit.end(None).map(|()| rows),
                    // Before `commit` is dropped, which removes the folder.
                    Err(error) => Err(files.close().await.unwrap_or(error)),
                };
                ended.map_err(|error| when_full(error, &path, engine))
            }
            OutputTarget::Objects(at) => {
                let id = write_id();
                let commit = ObjectCommit::begin(&at, overwrite, &id).await?;
                let held = UncommittedFolder::open(engine, &at, &id)?;
                let written = match self.write_into(engine, &held.url, &output, partition_by, &id, reading).await {
                    Ok(0) => match empty_file(&output, &schema, &id) {
                        Ok(Some((name, bytes))) => held.add(&name, bytes).await.map(|()| 0),
                        Ok(None) => Ok(0),
                        Err(error) => Err(error),
                    },
                    written => written,
                };
                match written {
                    Ok(rows) => {
                        commit.end(held.store.take().await, rows).await?;
                        Ok(rows)
                    }
                    Err(error) => {
                        held.store.discard().await;
                        Err(held.store.fault().unwrap_or(error))
                    }
                }
            }
        }
    }

    /// Writes to a folder of DataFusion's session; file names that may already exist get `suffix`.
    async fn write_into(
        self,
        engine: &Engine,
        folder: &Url,
        output: &OutputFormat,
        partition_by: Vec<String>,
        suffix: &str,
        reading: ReadProgress,
    ) -> Result<u64> {
        let sources = SourceFiles::of(self.frame());
        let Some(format) = output.part_format(&partition_by) else {
            let copy = self.copy_to(folder, output, partition_by)?;
            let counts = reading.collect(copy).await.map_err(|error| sources.name_in(error))?;
            return Ok(written(&counts.concat()));
        };
        format.check(self.schema()?.as_ref())?;
        let context = Arc::new(self.frame().task_ctx());
        let work = async {
            let plan = self.frame().clone().create_physical_plan().await?;
            reading.expect(&plan);
            let plan = reading.counted(plan)?;
            let partitions = plan.output_partitioning().partition_count();
            let sinks = part_sinks(&plan, format, folder, partitions, suffix, engine.governor())?;
            let written = sinks.iter().enumerate().map(|(partition, sink)| {
                let (plan, context) = (Arc::clone(&plan), Arc::clone(&context));
                async move { sink.sink().write_all(plan.execute(partition, Arc::clone(&context))?, &context).await }
            });
            futures::future::try_join_all(written).await
        };
        Ok(work.await.map_err(|error| sources.name_in(error))?.into_iter().sum())
    }

    /// `UnknownColumn` for a name that does not exist.
    pub(crate) fn check_columns(&self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.check_column(name))
    }

    /// The query that writes the rows to files in `folder`, whose URL ends with a slash, and returns their number.
    pub(crate) fn copy_to(&self, folder: &Url, output: &OutputFormat, partition_by: Vec<String>) -> Result<DataFrame> {
        let frame = self.frame().clone();
        let frame = if partition_by.is_empty() {
            frame
        } else {
            frame.select(with_folders_named(self.schema()?.as_ref(), &partition_by))?
        };
        let (mut state, plan) = frame.into_parts();
        let file_type = format_as_file_type(output.factory(&state.config_options().execution.parquet)?);
        if is_sorted(&plan) {
            // One file after the other; otherwise the rows of one partition are distributed over several files.
            let one = state.config().clone().set_usize("datafusion.execution.minimum_parallel_output_files", 1);
            *state.config_mut() = one;
        }
        let plan =
            LogicalPlanBuilder::copy_to(plan, folder.to_string(), file_type, HashMap::new(), partition_by)?.build()?;
        Ok(DataFrame::new(state, plan))
    }
}

/// All columns, with partition columns as strings. DataFusion would use the undefined value below a null, and supports
/// few types there.
fn with_folders_named(schema: &Schema, partition_by: &[String]) -> Vec<Expr> {
    let named = |field: &Arc<Field>| {
        let value = column(field.name());
        match partition_by.contains(field.name()) {
            true => coalesce(vec![cast(value, DataType::Utf8), lit(NULL_FOLDER)]).alias(field.name().clone()),
            false => value,
        }
    };
    schema.fields().iter().map(named).collect()
}

/// Whether the rows are ordered by a last sort.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Limit(_) | LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => is_sorted(plan.inputs()[0]),
        _ => false,
    }
}

/// One file per partition.
pub(crate) fn part_sinks(
    plan: &Arc<dyn ExecutionPlan>,
    format: &PartFormat,
    folder: &Url,
    partitions: usize,
    suffix: &str,
    governor: &Governor,
) -> datafusion::error::Result<Vec<Arc<DataSinkExec>>> {
    let sink = |partition: usize| {
        let name = format!("part-{partition:05}{}.{}", tagged(suffix), format.extension());
        let file = folder.join(&name).map_err(|error| DataFusionError::External(Box::new(error)))?;
        let file = ListingTableUrl::parse(file.as_str())?;
        let sink = PartSink { file, schema: plan.schema(), format: format.clone(), governor: governor.clone() };
        Ok(Arc::new(DataSinkExec::new(Arc::clone(plan), Arc::new(sink), None)))
    };
    (0..partitions).map(sink).collect()
}

fn tagged(suffix: &str) -> String {
    if suffix.is_empty() { String::new() } else { format!("-{suffix}") }
}

/// The sum of the writers' counts.
pub(crate) fn written(counts: &[RecordBatch]) -> u64 {
    let columns = counts.iter().filter_map(|batch| batch.column(0).as_any().downcast_ref::<UInt64Array>());
    columns.flat_map(|column| column.iter().flatten()).sum()
}

/// The name and contents of a file without rows, for DataFusion's formats: it writes no file if there are no rows, and
/// the columns would be lost.
pub(crate) fn empty_file(output: &OutputFormat, schema: &Schema, suffix: &str) -> Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let extension = match output {
        OutputFormat::Csv { delimiter, has_header, .. } => {
            let writer = arrow::csv::WriterBuilder::new().with_delimiter(*delimiter).with_header(*has_header);
            writer.build(&mut bytes).write(&RecordBatch::new_empty(schema.clone().into()))?;
            "csv"
        }
        OutputFormat::Json { .. } => "json",
        OutputFormat::Parquet { .. } => {
            let writer = ArrowWriter::try_new(&mut bytes, schema.clone().into(), None);
            writer.and_then(ArrowWriter::close).map_err(DataFusionError::from)?;
            "parquet"
        }
        OutputFormat::Ipc { .. } => {
            FileWriter::try_new(&mut bytes, schema)?.finish()?;
            "arrow"
        }
        // Empty partitions have files, too.
        OutputFormat::Parts(_) => return Ok(None),
    };
    Ok(Some((format!("empty{}.{extension}", tagged(suffix)), bytes)))
}
