//! Writing on all workers: each writes its partitions into files of its own in one hidden folder, which worker 0 renames when
//! all are done. The folder must be the same for all of them: one host, or a file system that they share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use tidemill_dataflow::{Look, Outputs};

use super::prepare::prepare;
use super::stages::{Kind, Stages};
use super::{ActionError, To, Workers};
use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::DataSetError;
use crate::records::RecordSink;
use crate::sources::Sources;
use crate::write::{Commit, Output, record_sinks, written};

impl Workers {
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
        output: &Output,
        partition_by: Vec<String>,
        overwrite: bool,
        look: Look<'_>,
    ) -> Result<u64, ActionError> {
        self.agree(set.check_columns(&partition_by))?;
        let begun = match self.comm.rank() {
            0 => Commit::begin(Path::new(dir), overwrite).map(Some),
            _ => Ok(None),
        };
        let commit = self.agree(begun)?;
        let hidden = commit.as_ref().map(|commit| commit.hidden.display().to_string());
        let hidden = self.tell(0, hidden.unwrap_or_default())?;
        let rows = self.write_into(engine, set, &PathBuf::from(hidden), output, partition_by, look)?;
        let ended = commit.map_or(Ok(()), |commit| commit.end(rows, output, &set.schema()));
        self.agree(ended)?;
        Ok(rows)
    }

    fn write_into(
        &self,
        engine: &Engine,
        set: &DataSet,
        hidden: &Path,
        output: &Output,
        partition_by: Vec<String>,
        look: Look<'_>,
    ) -> Result<u64, ActionError> {
        let by_folders = !partition_by.is_empty();
        let records = matches!(output, Output::Records) && !by_folders;
        let seen = if hidden.is_dir() && records {
            RecordSink::check(&set.schema()).map(|()| set.clone())
        } else if hidden.is_dir() {
            set.copy_to(hidden, output, partition_by).and_then(DataSet::new)
        } else {
            let hidden = hidden.display();
            Err(DataSetError::Io(format!(
                "{hidden}, made by worker 0, is not seen here: all workers must share the folder"
            )))
        };
        let copy = self.agree(seen)?;
        let sources = Arc::new(Sources::of(set.frame()));
        let prepared = self.prepare(engine, &copy, &sources)?;
        let context = prepared.state.task_ctx();
        let plan = self.resolve(prepared.plan, &context, &sources, look)?;
        let mut stages = Stages::of(&plan)?;
        if records {
            if stages.undivided.is_some() {
                let first = &mut stages.stages[0];
                first.plan = Arc::new(CoalescePartitionsExec::new(Arc::clone(&first.plan)));
            }
            let copies = stages.stages[0].copies;
            stages.stages[0].kind = Kind::Write(record_sinks(&stages.stages[0].plan, hidden, copies));
        } else if let Some(sink) = plan.downcast_ref::<DataSinkExec>() {
            // Files take rows in any order, so what was gathered for one writer goes to many.
            let input = match sink.input().downcast_ref::<CoalescePartitionsExec>() {
                Some(gather) => gather.input(),
                None => sink.input(),
            };
            let divided = Stages::of(input)?;
            if divided.undivided.is_none() && !(divided.is_spread() && by_folders) {
                stages = divided;
                let sinks = match stages.is_spread() {
                    // Ranges of a sorted whole are read again in their order, which is that of the files' paths.
                    true => self.ordered_sinks(engine, set, hidden, output, stages.stages[0].copies)?,
                    false => vec![Arc::new(sink.clone())],
                };
                stages.stages[0].kind = Kind::Write(sinks);
            }
        }
        Ok(written(&self.run(stages, To::All, &context, &sources, look)?))
    }

    /// A sink for each copy, in a folder of its own. Made of a table without rows: it is the same whatever is written.
    fn ordered_sinks(
        &self,
        engine: &Engine,
        set: &DataSet,
        hidden: &Path,
        output: &Output,
        copies: usize,
    ) -> Result<Vec<Arc<DataSinkExec>>, DataSetError> {
        let empty = DataSet::from_batches(engine, set.schema(), &[])?;
        let partitions = self.partitions;
        let sink = |copy: usize| {
            let copy = empty.copy_to(&hidden.join(format!("part-{copy:05}")), output, Vec::new())?;
            let planned = engine.run(async move { Ok(prepare(copy, partitions, None, 0).await?) })?;
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
