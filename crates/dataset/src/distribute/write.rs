//! Writes on all workers. For a local folder, each worker writes its partitions to separate files in a common hidden
//! folder, which worker 0 renames when all are done. All workers must see the same folder: they must be on one host or
//! share a file system. For an object store, each worker uploads its own files and passes the uploads to worker 0,
//! which completes all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use tidemill_dataflow::Outputs;
use tidemill_storage::{ObjectFolder, StorageOptions, UploadedParts};
use url::Url;

use super::prepare::{ResultDivision, prepare};
use super::stages::{StageRole, StagedPlan};
use super::{ActionError, ResultTarget, Watch, WorkerGroup};
use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::DataSetError;
use crate::files::commit::{
    FolderCommit, ObjectCommit, OutputTarget, StagedFiles, UncommittedFolder, when_full, write_id,
};
use crate::files::output::OutputFormat;
use crate::files::uncommitted::abort;
use crate::files::write::{empty_file, part_sinks, written};

/// The parameters of a write.
struct WriteQuery<'a> {
    set: &'a DataSet,
    output: &'a OutputFormat,
    partition_by: Vec<String>,
}

impl WorkerGroup {
    /// [`DataSet::write`] by all workers. Collective.
    ///
    /// # Errors
    /// As for [`DataSet::write`], the same on every worker.
    #[expect(clippy::too_many_arguments, reason = "those of DataSet::write, and where and how to run it")]
    pub fn write(
        &self,
        engine: &Engine,
        set: &DataSet,
        dir: &str,
        storage: &StorageOptions,
        output: &OutputFormat,
        partition_by: Vec<String>,
        overwrite: bool,
        watch: Watch<'_>,
    ) -> Result<u64, ActionError> {
        self.agree(set.check_columns(&partition_by))?;
        let query = WriteQuery { set, output, partition_by };
        match self.agree(OutputTarget::of(engine, dir, storage))? {
            OutputTarget::Folder(path) => {
                let written = self.write_folder(engine, query, &path, overwrite, watch);
                written.map_err(|error| match error {
                    ActionError::DataSet(error) => when_full(error, &path, engine).into(),
                    other => other,
                })
            }
            OutputTarget::Objects(at) => self.write_objects(engine, query, &at, overwrite, watch),
        }
    }

    fn write_folder(
        &self,
        engine: &Engine,
        query: WriteQuery<'_>,
        path: &Path,
        overwrite: bool,
        watch: Watch<'_>,
    ) -> Result<u64, ActionError> {
        let begun = match self.comm.rank() {
            0 => FolderCommit::begin(path, overwrite).map(Some),
            _ => Ok(None),
        };
        let commit = self.agree(begun)?;
        let hidden = commit.as_ref().map(|commit| commit.hidden.display().to_string());
        let hidden = PathBuf::from(self.tell(0, hidden.unwrap_or_default())?);
        let seen = match hidden.is_dir() {
            true => StagedFiles::of(engine, &hidden, query.output, &query.partition_by),
            false => Err(DataSetError::Io(format!(
                "{}, created by worker 0, is not visible here: all workers must share the folder",
                hidden.display()
            ))),
        };
        let files = self.agree(seen)?;
        let (schema, output) = (self.agree(query.set.schema())?, query.output);
        let written = self.write_into(engine, query, files.url(), "", watch);
        if let Err(ActionError::DataSet(_)) = &written {
            let fault = engine.threads().block_on(files.close());
            self.agree(fault.map_or(Ok(()), Err))?;
        }
        let rows = written?;
        let ended =
            commit.map_or(Ok(()), |commit| commit.end(if rows == 0 { empty_file(output, &schema, "")? } else { None }));
        self.agree(ended)?;
        Ok(rows)
    }

    fn write_objects(
        &self,
        engine: &Engine,
        query: WriteQuery<'_>,
        at: &ObjectFolder,
        overwrite: bool,
        watch: Watch<'_>,
    ) -> Result<u64, ActionError> {
        let is_first = self.comm.rank() == 0;
        let id = self.tell(0, write_id())?;
        let alone = !at.store.shared && self.comm.size() > 1;
        let begun = if alone {
            Err(DataSetError::Unsupported(format!("{at}: only one worker sees a store in memory")))
        } else if is_first {
            let (at, id) = (at.clone(), id.clone());
            engine.run(async move { ObjectCommit::begin(&at, overwrite, &id).await }).map(Some)
        } else {
            Ok(None)
        };
        let commit = self.agree(begun)?;
        let held = self.agree(UncommittedFolder::open(engine, at, &id))?;
        let written = self.upload(engine, query, &held, &id, watch);
        let (rows, uploads) = match written {
            Ok(written) => written,
            Err(error) => {
                let discard = held.store.discard();
                engine.run(async move {
                    discard.await;
                    Ok(())
                })?;
                return Err(error);
            }
        };
        // From here on, worker 0 has to complete or remove the uploads.
        let ended = match commit {
            Some(commit) => engine.run(async move { commit.end(uploads, rows).await }),
            None => Ok(()),
        };
        self.agree(ended)?;
        Ok(rows)
    }

    /// Uploads the rows of this worker. Returns the number of rows of all workers and, on worker 0, all uploads.
    fn upload(
        &self,
        engine: &Engine,
        query: WriteQuery<'_>,
        held: &UncommittedFolder,
        id: &str,
        watch: Watch<'_>,
    ) -> Result<(u64, Vec<UploadedParts>), ActionError> {
        let (schema, output) = (self.agree(query.set.schema())?, query.output);
        let rows = match self.write_into(engine, query, &held.url, id, watch) {
            // The store's own error; DataFusion may only say that something failed.
            Err(ActionError::DataSet(error)) => {
                self.agree(held.store.fault().map_or(Ok(()), Err))?;
                return Err(error.into());
            }
            written => written?,
        };
        let store = Arc::clone(&held.store);
        let added = match self.comm.rank() {
            0 if rows == 0 => empty_file(output, &schema, id).and_then(|file| match file {
                Some((name, bytes)) => engine.run(held.add(&name, bytes)),
                None => Ok(()),
            }),
            _ => Ok(()),
        };
        self.agree(added)?;
        let mine = engine.run(async move { Ok(store.take().await) })?;
        let all = self.gather(&serde_json::to_vec(&mine).expect("uploads are texts")).and_then(|all| {
            let uploads: Result<Vec<Vec<UploadedParts>>, _> =
                all.iter().map(|bytes| serde_json::from_slice(bytes)).collect();
            uploads.map(|all| all.into_iter().flatten().collect()).map_err(|error| {
                DataSetError::Internal(format!("another worker sent an invalid report about its uploads: {error}"))
                    .into()
            })
        });
        match all {
            Ok(all) => Ok((rows, all)),
            Err(error) => {
                let at = held.at.clone();
                engine.run(async move {
                    abort(&at, mine).await;
                    Ok(())
                })?;
                Err(error)
            }
        }
    }

    /// Gathers the bytes of every worker.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ActionError> {
        let size = self.comm.size() as usize;
        let mut lengths = vec![0_u64; size];
        self.comm.allgather(&[mine.len() as u64], &mut lengths)?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        if longest == 0 {
            return Ok(vec![Vec::new(); size]);
        }
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0_u8; longest * size];
        self.comm.allgather(&padded, &mut all)?;
        Ok(all.chunks(longest).zip(&lengths).map(|(bytes, &length)| bytes[..length as usize].to_vec()).collect())
    }

    fn write_into(
        &self,
        engine: &Engine,
        query: WriteQuery<'_>,
        folder: &Url,
        suffix: &str,
        watch: Watch<'_>,
    ) -> Result<u64, ActionError> {
        let WriteQuery { set, output, partition_by } = query;
        let by_folders = !partition_by.is_empty();
        let format = output.part_format(&partition_by);
        let seen = match format {
            Some(format) => set.schema().and_then(|schema| format.check(&schema)).map(|()| set.clone()),
            None => set.copy_to(folder, output, partition_by).and_then(DataSet::new),
        };
        let copy = self.agree(seen)?;
        let (plan, mut action) = self.begin(engine, &copy, ResultDivision::AsMade, watch)?;
        let plan = self.resolve(plan, &mut action)?;
        let mut stages = StagedPlan::of(&plan)?;
        if let Some(format) = format {
            if stages.undivided.is_some() {
                let first = &mut stages.stages[0];
                first.plan = Arc::new(CoalescePartitionsExec::new(Arc::clone(&first.plan)));
            }
            let copies = stages.stages[0].copies;
            let sinks = part_sinks(&stages.stages[0].plan, format, folder, copies, suffix, engine.governor());
            stages.stages[0].kind = StageRole::Write(sinks.map_err(DataSetError::from)?);
        } else if let Some(sink) = plan.downcast_ref::<DataSinkExec>() {
            // Files may contain rows in any order, so rows gathered for one writer are spread over many.
            let input = match sink.input().downcast_ref::<CoalescePartitionsExec>() {
                Some(gather) => gather.input(),
                None => sink.input(),
            };
            let divided = StagedPlan::of(input)?;
            if divided.undivided.is_none() && !(divided.is_spread() && by_folders) {
                stages = divided;
                let sinks = match stages.is_spread() {
                    // Ranges of a sorted result are read in the order of the files' paths.
                    true => self.ordered_sinks(engine, set, folder, output, stages.stages[0].copies)?,
                    false => vec![Arc::new(sink.clone())],
                };
                stages.stages[0].kind = StageRole::Write(sinks);
            }
        }
        let stages = stages.counted(&action.reading)?;
        Ok(written(&self.run(&stages, ResultTarget::All, &mut action)?.0.concat()))
    }

    /// One sink per copy, each with its own folder. Made from an empty table, because the sinks do not depend on the
    /// rows.
    fn ordered_sinks(
        &self,
        engine: &Engine,
        set: &DataSet,
        folder: &Url,
        output: &OutputFormat,
        copies: usize,
    ) -> Result<Vec<Arc<DataSinkExec>>, DataSetError> {
        let empty = DataSet::from_batches(engine, set.schema()?, &[])?;
        let partitions = self.partitions;
        let sink = |copy: usize| {
            let inside = folder.join(&format!("part-{copy:05}/"));
            let inside = inside.map_err(|error| DataSetError::Internal(error.to_string()))?;
            let copy = empty.copy_to(&inside, output, Vec::new())?;
            let governor = engine.governor().clone();
            let planned = engine
                .run(async move { Ok(prepare(copy, partitions, None, &governor, 0, ResultDivision::AsMade).await?) })?;
            match planned.plan.downcast_ref::<DataSinkExec>() {
                Some(sink) => Ok(Arc::new(sink.clone())),
                None => Err(DataSetError::Internal("a query that writes has no sink".into())),
            }
        };
        (0..copies).map(sink).collect()
    }
}

/// Writes one partition of `plan`.
pub(super) async fn run_sink(
    sink: &DataSinkExec,
    plan: &dyn ExecutionPlan,
    partition: usize,
    context: Arc<TaskContext>,
    outputs: Outputs,
) -> datafusion::error::Result<()> {
    let mut output = outputs.into_only();
    let rows = sink.sink().write_all(plan.execute(partition, Arc::clone(&context))?, &context).await?;
    let counts = Arc::new(UInt64Array::from(vec![rows]));
    let batch = RecordBatch::try_new(Arc::clone(output.schema()), vec![counts])?;
    output.send(batch).await.map_err(DataFusionError::External)
}
